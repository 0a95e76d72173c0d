"""Clusters of an output are given names, as entries of its journal that can be taken back."""

from __future__ import annotations

import getpass
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import NAME, UNDO, Entry
from hmrf_dask.answers.standing import standing
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.released import ReleasedModel, load_release


@dataclass(frozen=True)
class Renamed:
    """A cluster that was given a name.

    Attributes
    ----------
    output : str
    cluster : int
    name : str
        What it is called now: without a name its first words.
    before : str
    journal : str
    """

    output: str
    cluster: int
    name: str
    before: str
    journal: str


def rename_cluster(output: str, cluster: int, name: str) -> Renamed:
    """Give a cluster of the last release a name, which it keeps from run to run.

    It is an entry of the journal of the output, about the document nearest to the centroid: the
    name stays with the cluster that has the document. No run is needed for it, and none takes it
    away.
    """
    words = " ".join(name.split())
    model = load_release(output)
    near = model.nearest(cluster)
    if not near:
        raise InvalidInputError(
            f"a cluster must have documents to be given a name, got cluster {cluster} without any"
        )
    return _written(model, cluster, Entry(_new_id(), NAME, (near[0],), answer=words))


def undo_name(output: str, cluster: int) -> Renamed:
    """Take back the last name of a cluster; the one before, if there was one, counts again."""
    model = load_release(output)
    model.nearest(cluster)  # or say which clusters there are
    entries = standing(open_journal(journal_address(model.output)).entries().entries)
    named = [entry for entry in entries if entry.kind == NAME]
    homes = model.clusters_of([entry.documents[0] for entry in named])
    own = [entry for entry in named if homes.get(entry.documents[0]) == cluster]
    if not own:
        raise InvalidInputError(
            f"a cluster must have a name that can be taken back, got cluster {cluster} without one"
        )
    return _written(model, cluster, Entry(_new_id(), UNDO, about=own[-1].id))


def _new_id() -> str:
    return secrets.token_hex(12)


def _written(model: ReleasedModel, cluster: int, entry: Entry) -> Renamed:
    """Save an entry, and return what the cluster is called with it."""
    entry = replace(entry, annotator=_user(), time=datetime.now(UTC).isoformat())
    if problem := entry.problem:
        raise InvalidInputError(f"the name: {problem}")
    journal, before = open_journal(journal_address(model.output)), model.names[cluster]
    journal.append(entry)
    called = load_release(model.output).names[cluster]
    return Renamed(model.output, cluster, called, before, journal.address)


def _user() -> str:
    """Return who gives the name, "" where nobody knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without users
        return ""
