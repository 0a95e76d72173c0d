"""Clusters of an output as people want them, as entries of its journal that can be taken back."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, cast

from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import EDITS, FREEZE, MERGE, NAME, SPLIT, UNDO, Entry
from hmrf_dask.answers.standing import standing
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.estimators.files import RECORD
from hmrf_dask.jobs.names import names_given
from hmrf_dask.jobs.parent import JOB
from hmrf_dask.jobs.places import last_release
from hmrf_dask.jobs.reshape import Edit, Edits, frozen_by, in_words
from hmrf_dask.parameters import PARAMETERS
from hmrf_dask.redaction import shortened
from hmrf_dask.releases.lock import holder_of
from hmrf_dask.storage.sealed import unseal

if TYPE_CHECKING:
    from hmrf_dask.jobs.namers import Named, Namer
    from hmrf_dask.jobs.released import ReleasedModel


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

    @property
    def said(self) -> str:
        """What it is called now, in words."""
        return f"cluster {self.cluster} is called {self.name}; before: {self.before}"


@dataclass(frozen=True)
class Edited:
    """An edit of clusters that was saved, or taken back.

    Attributes
    ----------
    output : str
    edit : {"merge", "split", "freeze"}
    clusters : list of int
        Those it is about; of a merge the first one keeps its id.
    names : list of str
        What they are called.
    taken_back : bool
    next_run : bool
        Whether the next run changes clusters for it; without that nothing had come of it yet.
    at_work : bool
        Whether a run is at work now, which does not see it.
    job : str or None
        The job file, where the last release says it.
    journal : str
    """

    output: str
    edit: str
    clusters: list[int]
    names: list[str]
    taken_back: bool
    next_run: bool
    at_work: bool
    job: str | None
    journal: str

    @property
    def said(self) -> str:
        """What the next run does, in words.

        Examples
        --------
        >>> edited = Edited("out", "merge", [3, 7], ["pay", "bill"], False, True, False, None, "")
        >>> edited.said
        'with the next run clusters 3 (pay), 7 (bill) become one, which keeps the number 3'
        """
        named = zip(self.clusters, self.names, strict=True)
        several = "clusters" if len(self.clusters) > 1 else "cluster"
        subject = f"{several} {', '.join(f'{cluster} ({name})' for cluster, name in named)}"
        if not self.next_run:
            return f"{self.edit} taken back of {subject}: no run had done it yet"
        what = _BY_EDITS[self.edit][self.taken_back].format(first=self.clusters[0])
        later = "; a run is at work now, which does not see it, but the one after it does"
        return f"with the next run {subject} {what}{later * self.at_work}"


LONGEST_NAME: Final = 200  # characters: it stands in tables, headings and lists

# What the next run does for an edit, and for one that is taken back.
_BY_EDITS = {
    "merge": ("become one, which keeps the number {first}", "become clusters of their own again"),
    "split": ("becomes two, the larger of which keeps its number", "becomes one again"),
    "freeze": ("begins this and every later fit as it is now", "follows its documents again"),
}


class Editable:
    """What people do to the clusters of a release: `ReleasedModel` is one."""

    def rename(self, cluster: int, name: str) -> Renamed:
        """Give a cluster a name, which it keeps from run to run.

        It is an entry of the journal about the document nearest to the centroid: the name stays
        with the cluster that has the document. No run is needed for it, and none takes it away.

        Parameters
        ----------
        cluster : int
        name : str
        """
        return Editing(cast("ReleasedModel", self)).rename(cluster, name)

    def merge(self, clusters: Sequence[int]) -> Edited:
        """Merge clusters with the next run; the first one keeps its id.

        The fit begins with one centroid in place of theirs, so there are fewer clusters than
        before, whatever the job's n_clusters says.

        Parameters
        ----------
        clusters : sequence of int
        """
        return Editing(cast("ReleasedModel", self)).save(MERGE, clusters)

    def split(self, cluster: int) -> Edited:
        """Split a cluster in two with the next run; the larger part keeps its id.

        Parameters
        ----------
        cluster : int
        """
        return Editing(cast("ReleasedModel", self)).save(SPLIT, [cluster])

    def freeze(self, cluster: int) -> Edited:
        """Let every run from now on begin with the centroid that a cluster has, under its id.

        A frozen cluster is neither merged nor split until that is undone.

        Parameters
        ----------
        cluster : int
        """
        return Editing(cast("ReleasedModel", self)).save(FREEZE, [cluster])

    def undo(self, cluster: int) -> Edited | Renamed:
        """Take back what was done to a cluster last: a name, a merge, a split or a freeze.

        Parameters
        ----------
        cluster : int
        """
        return Editing(cast("ReleasedModel", self)).undo(cluster)

    def name_clusters(self, namer: Namer) -> Named:
        """Name the clusters that nobody named by a callable of their words and texts.

        It is called once for each of them, and again only where words change; a name that somebody
        gives goes before. Where it fails a cluster goes by its words, and a warning says so.

        Parameters
        ----------
        namer : callable
            Of a list of words and a list of texts, which returns a name.
        """
        from hmrf_dask.jobs.namers import name_clusters

        return name_clusters(Editing(cast("ReleasedModel", self)), namer)


class Editing:
    """The edits of an output, and what may be done next.

    Parameters
    ----------
    model : ReleasedModel
        Of the last release.
    annotator : str, optional
        Who edits; without it the user of this process.
    """

    def __init__(self, model: ReleasedModel, annotator: str | None = None) -> None:
        if not model.output:
            raise ConfigurationError(
                "clusters must be those of a job's output to be edited, got texts in memory; "
                "write the texts into files, and run a job over them"
            )
        last = last_release(model.output)
        if last is not None and last.number != model.release:
            raise ConfigurationError(
                f"clusters must be those of the last release ({last.number}) to be edited, got "
                f"release {model.release}; load the last one"
            )
        self.model, self.annotator = model, annotator
        self.journal = open_journal(journal_address(model.output))
        self.done = Edits.of(model.ledger, model.n_clusters)

    @cached_property
    def entries(self) -> list[Entry]:
        """The names and edits that stand and that something comes of, the first one first."""
        kinds, ended = (NAME, *EDITS), set(self.done.ended)
        stand = standing(self.journal.entries().entries)
        return [one for one in stand if one.kind in kinds and one.id not in ended]

    @property
    def edits(self) -> list[Entry]:
        """The edits alone."""
        return [entry for entry in self.entries if entry.kind in EDITS]

    @property
    def pending(self) -> list[Entry]:
        """The edits that the last release has not."""
        applied = {edit.id for edit in self.done.applied}
        return [entry for entry in self.edits if entry.id not in applied]

    def of(self, cluster: int) -> ReleasedModel:
        """Return the model if it has a cluster, or say which there are."""
        self.model.nearest(cluster)
        return self.model

    def of_cluster(self, cluster: int) -> str:
        """Return in words what was done to a cluster last, "" where nothing was."""
        own = [entry for entry in self.entries if cluster in self._clusters(entry)]
        if not own:
            return ""
        return "its name" if own[-1].kind == NAME else in_words(own[-1])

    def named_by_people(self) -> set[int]:
        """Return the clusters that have a name of somebody's."""
        return set(names_given(self.model.output, self.model._release, made=False))

    @staticmethod
    def new_id() -> str:
        """Return the id of a new entry."""
        return secrets.token_hex(12)

    def write(self, entries: Sequence[Entry], annotator: str) -> None:
        """Save names that a namer made."""
        time = datetime.now(UTC).isoformat()
        if entries:
            self.journal.append(*(replace(one, annotator=annotator, time=time) for one in entries))
        self.model.forget_names()

    # ---- a name, and an edit

    def rename(self, cluster: int, name: str) -> Renamed:
        """Give a cluster a name."""
        words = " ".join(name.split())
        if not words:
            raise InvalidInputError("a name must not be empty, got one; undo takes a name back")
        if len(words) > LONGEST_NAME:
            raise InvalidInputError(
                f"a name must have at most {LONGEST_NAME} characters, got {len(words):,}"
            )
        near = self.of(cluster).nearest(cluster)
        if not near:
            raise InvalidInputError(
                f"a cluster must have documents to be given a name, got cluster {cluster} without "
                "any"
            )
        return self._named(cluster, Entry(self.new_id(), NAME, (near[0],), answer=words))

    def _named(self, cluster: int, entry: Entry) -> Renamed:
        """Save a name, or that one is taken back, and return what the cluster is called with it."""
        entry, model = self._signed(entry), self.model
        if problem := entry.problem:
            raise InvalidInputError(f"the name: {problem}")
        before = model.names[cluster]
        self.journal.append(entry)
        model.forget_names()
        address = self.journal.address
        return Renamed(model.output, cluster, model.names[cluster], before, address)

    def save(self, kind: str, clusters: Sequence[int]) -> Edited:
        """Save an edit of clusters for the next run."""
        given: tuple[Any, ...] = tuple(clusters) if hasattr(clusters, "__iter__") else (clusters,)
        if not all(map(_is_whole, given)):
            raise InvalidInputError(
                f"clusters must be given by their numbers, whole ones, got {shortened(clusters)}"
            )
        wanted = tuple(int(cluster) for cluster in given)
        for cluster in wanted:
            self.of(cluster)
        entry = Entry(self.new_id(), kind, clusters=wanted, release=self.model.release)
        if problem := entry.problem:
            raise InvalidInputError(problem)
        self._refuse(entry)
        self.journal.append(self._signed(entry))
        return self._edited(entry, taken_back=False, next_run=True)

    def _refuse(self, entry: Entry) -> None:
        """Raise InvalidInputError where an edit cannot be, in words that say what to do."""
        method = str(unseal(self.model._file(RECORD), RECORD)["estimator"])
        if method not in PARAMETERS["init"].methods:
            raise InvalidInputError(
                f"{in_words(entry)} must go with a method that begins with centroids, got {method},"
                " whose seeds decide where clusters are; give other seeds"
            )
        for earlier in self.pending:
            shared = sorted(set(earlier.clusters) & set(entry.clusters))
            if shared and FREEZE not in (earlier.kind, entry.kind):
                raise InvalidInputError(
                    f"{in_words(entry)} must wait, got {in_words(earlier)} that the next run is to "
                    f"do first; run the job, or take that back with undo {shared[0]}"
                )
        frozen = sorted(frozen_by(self.edits).intersection(entry.clusters))
        if frozen:
            again = entry.kind == FREEZE
            raise InvalidInputError(
                f"{in_words(entry)} must be of a cluster that is not frozen{' yet' * again}, got "
                f"cluster {frozen[0]}, which is; take that back with undo {frozen[0]}"
            )
        sizes = self.model.sizes
        if entry.kind == SPLIT and sizes[entry.clusters[0]] < 2:
            raise InvalidInputError(
                f"{in_words(entry)} must be of one with at least 2 documents, got "
                f"{sizes[entry.clusters[0]]}"
            )

    # ---- taking one back

    def undo(self, cluster: int) -> Edited | Renamed:
        """Take back the last name or edit of a cluster."""
        own = [entry for entry in self.entries if cluster in self._clusters(entry)]
        if not own:
            self.of(cluster)
            raise InvalidInputError(
                f"a cluster must have a name or an edit that can be taken back, got cluster "
                f"{cluster} without one"
            )
        last = own[-1]
        entry = Entry(self.new_id(), UNDO, about=last.id)
        if last.kind == NAME:
            return self._named(cluster, entry)
        self._refuse_if_followed(last)
        self.journal.append(self._signed(entry))
        applied = any(edit.id == last.id for edit in self.done.applied)
        return self._edited(last, taken_back=True, next_run=applied)

    def _clusters(self, entry: Entry) -> set[int]:
        """Return the clusters that a name or an edit is about, and that came of it."""
        if entry.kind == NAME:
            return set(entry.clusters) or {self._homes.get(entry.documents[0], -1)}
        applied = {edit.id: edit for edit in self.done.applied}
        edit = applied.get(entry.id, Edit(entry.id, entry.kind, entry.clusters))
        return edit.all_clusters

    @cached_property
    def _homes(self) -> dict[str, int]:
        """The clusters of the documents that have names."""
        names = [entry for entry in self.entries if entry.kind == NAME and not entry.clusters]
        named = [entry.documents[0] for entry in names]
        return self.model.clusters_of(named)

    def _refuse_if_followed(self, entry: Entry) -> None:
        """Raise InvalidInputError where a later edit is of clusters that an edit made."""
        later = self.edits[self.edits.index(entry) + 1 :]
        for other in later:
            if shared := sorted(self._clusters(other) & self._clusters(entry)):
                raise InvalidInputError(
                    f"{in_words(entry)} can be taken back after {in_words(other)}, which came "
                    f"later; take that back first with undo {shared[0]}"
                )

    def _signed(self, entry: Entry) -> Entry:
        """Return an entry of this moment, with who made it: "" where nobody knows."""
        user = self.annotator
        try:
            user = getpass.getuser() if user is None else user
        except (KeyError, OSError):  # a container without users
            user = ""
        return replace(entry, annotator=user, time=datetime.now(UTC).isoformat())

    def _edited(self, entry: Entry, *, taken_back: bool, next_run: bool) -> Edited:
        clusters, names = list(entry.clusters), self.model.names
        return Edited(
            output=self.model.output,
            edit=entry.kind,
            clusters=clusters,
            names=[names.get(cluster, f"cluster {cluster}") for cluster in clusters],
            taken_back=taken_back,
            next_run=next_run,
            at_work=holder_of(self.model.output) is not None,
            job=self.model.ledger.get(JOB),
            journal=self.journal.address,
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
