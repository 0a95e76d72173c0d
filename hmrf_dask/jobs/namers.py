"""Names that a callable makes of what clusters are about: called once for what it has not seen."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hmrf_dask.answers.records import MADE, NAME, Entry
from hmrf_dask.answers.standing import standing
from hmrf_dask.errors import ConfigurationError, HmrfWarning, counted, in_words
from hmrf_dask.flow.clients import on_a_thread
from hmrf_dask.redaction import shortened
from hmrf_dask.storage.sealed import digest

if TYPE_CHECKING:
    from hmrf_dask.jobs.edit import Editing

Namer = Callable[[list[str], list[str]], str]
# A job file may name callables that are listed here, as it may classes of embedders.
ALLOWED: Final = "HMRF_DASK_NAMERS"
TEXT: Final = 500  # characters of a text that a namer is given
LONGEST: Final = 80  # characters of a name
SECONDS: Final = 300.0  # for one: a model on this machine may take a minute
_CALLABLE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Named:
    """What came of a namer.

    Attributes
    ----------
    output : str
    names : dict of int to str
        The names that it made, by cluster: now or before.
    called : int
        Clusters for which it was called.
    failed : int
        Those of them that go by their words, as no name came of it.
    """

    output: str
    names: dict[int, str]
    called: int
    failed: int

    @property
    def said(self) -> str:
        """What came of it, in words.

        Examples
        --------
        >>> Named("out", {3: "Bills", 5: "Access"}, called=3, failed=1).said
        '2 names by the namer, which was called for 3 clusters, for 1 of them in vain'
        """
        vain = f", for {self.failed} of them in vain" if self.failed else ""
        called = counted(self.called, "cluster")
        return (
            f"{counted(len(self.names), 'name')} by the namer, which was called for {called}{vain}"
        )


def find_namer(named: str, *, by_file: bool) -> Namer:
    """Return the callable that `module:callable` stands for.

    One that a file names must be listed in the environment: no file says by itself which code runs.
    """
    allowed = [one.strip() for one in os.environ.get(ALLOWED, "").split(",") if one.strip()]
    if by_file and named not in allowed:
        raise ConfigurationError(
            f"names.namer must be listed in the environment variable {ALLOWED} (module:callable, "
            f"separated by commas), got {shortened(named)}, where it has "
            f"{', '.join(allowed) or 'none'}"
        )
    module, _, name = named.partition(":")
    try:
        if not _CALLABLE.fullmatch(named):
            raise ImportError("it is not module:callable")
        found = getattr(import_module(module), name)
    except Exception as error:  # somebody else's code: it may raise anything
        raise ConfigurationError(
            f"a namer must be a callable that can be imported, got {shortened(named)}: "
            f"{in_words(error)}"
        ) from error
    return checked(found)


def checked(namer: Any) -> Namer:
    """Return a namer, or refuse what cannot be called."""
    if not callable(namer):
        raise ConfigurationError(
            f"a namer must be a callable of words and texts that returns a name, got {namer!r:.80}"
        )
    found: Namer = namer
    return found


def identity_of(namer: Any) -> str:
    """Return what names depend on: `identity` of a namer that has one, else what it is called.

    Examples
    --------
    >>> identity_of(json.dumps)
    'json:dumps'
    """
    own = getattr(namer, "identity", None)
    if isinstance(own, str) and own:
        return own
    kind = namer if hasattr(namer, "__qualname__") else type(namer)
    return f"{kind.__module__}:{kind.__qualname__}"


def name_clusters(editing: Editing, namer: Namer) -> Named:
    """Name the clusters that nobody named, by what their words and texts say.

    A name is an entry of the journal, which says what it was made of: while the words of a cluster
    are the same ones, and the namer is, it is not called again, nor for a name that was taken back.
    """
    model, identity = editing.model, identity_of(checked(namer))
    entries, keys = editing.journal.entries().entries, _keys(editing, identity)
    made = {one.made_of: one for one in entries if one.kind == NAME and one.made_of}
    stand = standing(entries)
    own = editing.named_by_people()
    there = {(one.clusters[0], one.answer) for one in stand if one.made_of}
    unseen = [cluster for cluster, key in keys.items() if cluster not in own and key not in made]
    names = _called(editing, namer, unseen)
    n_called, n_failed = len(unseen), len(unseen) - len(names)
    for cluster, key in keys.items():
        if cluster not in own and key in made and made[key] in stand:
            names[cluster] = made[key].answer
    editing.write(
        [
            Entry(
                editing.new_id(), NAME, (near[0],), answer=name,
                why=f"{MADE} {keys[cluster]}", clusters=(cluster,), release=model.release,
            )
            for cluster, name in sorted(names.items())
            if (cluster, name) not in there and (near := model.nearest(cluster))
        ],
        annotator=identity,
    )  # fmt: skip
    return Named(model.output, dict(sorted(names.items())), n_called, n_failed)


def _keys(editing: Editing, identity: str) -> dict[int, str]:
    """Return of each cluster what its name depends on: its words, without any its documents."""
    model, keys = editing.model, dict[int, str]()
    for cluster in sorted(model.sizes):
        words = model.top_words(cluster) or model.nearest(cluster)
        keys[cluster] = digest(json.dumps([sorted(words), identity]).encode())[:16]
    return keys


def _called(editing: Editing, namer: Namer, clusters: Sequence[int]) -> dict[int, str]:
    """Call a namer for clusters; return the names that came of it, and warn of what did not.

    One that gives no answer in time is not called for the clusters that follow.
    """
    model, wrong = editing.model, list[str]()
    names: dict[int, str] = {}
    near = {cluster: model.nearest(cluster) for cluster in clusters}
    texts = model._texts([one for ids in near.values() for one in ids])
    for cluster, ids in near.items():
        given = [texts[one][:TEXT] for one in ids if one in texts]
        answer = on_a_thread(partial(namer, model.top_words(cluster), given))
        try:
            if not wait([answer], SECONDS).done:
                wrong.append(f"cluster {cluster}: no answer within {SECONDS:g} s")
                break
            names[cluster] = _as_name(answer.result())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code
            wrong.append(f"cluster {cluster}: {in_words(error)}")
    if wrong:
        n_nameless = len(clusters) - len(names)
        warnings.warn(
            f"the namer gave no name for {counted(n_nameless, 'cluster')}, for which words stand "
            f"({wrong[0]:.200}); it is asked again the next time",
            HmrfWarning,
            stacklevel=3,
        )
    return names


def _as_name(said: object) -> str:
    """Return a name on one line, or raise ValueError."""
    if not isinstance(said, str):
        raise TypeError(f"a name must be a str, got a {type(said).__name__}")
    name = " ".join(said.split())[:LONGEST].strip()
    if problem := Entry("1", NAME, ("x",), answer=name).problem:
        raise ValueError(problem)
    if not name:
        raise ValueError("a name must not be empty")
    return name
