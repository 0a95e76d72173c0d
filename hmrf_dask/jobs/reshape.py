"""Clusters as people want them: which edits of a journal a fit applies, and what it begins with.

A merge, a split or a freeze is an entry about clusters of a release. The first fit after it begins
with the last centroids, edited: one in the place of those that are merged, two in that of a split
one, the old one where a cluster is frozen. Its release says which edits it has, so later fits do
not apply them again, and one that is taken back is undone by the fit that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from hmrf_dask.answers.records import FREEZE, MERGE, SPLIT, Entry
from hmrf_dask.errors import counted
from hmrf_dask.storage.sealed import typed
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet
from hmrf_dask.types import FloatArray

if TYPE_CHECKING:
    from hmrf_dask.fit.division import Division

EDITS = "edits"  # in a ledger: an `Edits`
Divide = Callable[[tuple[int, ...], int], "Division | None"]


@dataclass(frozen=True)
class Edit:
    """An edit that a release has."""

    id: str  # of the entry
    kind: str
    clusters: tuple[int, ...]  # as the entry names them
    made: tuple[int, ...] = ()  # the clusters that came of it, those of a split alone

    @property
    def all_clusters(self) -> set[int]:
        """The clusters that it is about, and that came of it."""
        return {*self.clusters, *self.made}


@dataclass(frozen=True)
class Edits:
    """The edits that a release has, and those that it leaves."""

    n_clusters: int  # that the job asked for
    applied: tuple[Edit, ...] = ()  # the first one first
    ended: tuple[str, ...] = ()  # entries that nothing comes of: their clusters are not there
    waiting: tuple[str, ...] = ()  # entries for the next fit

    @staticmethod
    def of(ledger: Mapping[str, Any], n_clusters: int) -> Edits:
        """Return those that a ledger has; `n_clusters` is how many its release has.

        Examples
        --------
        >>> Edits.of({}, 20)
        Edits(n_clusters=20, applied=(), ended=(), waiting=())
        """
        named = ledger.get(EDITS)
        return Edits(n_clusters) if named is None else typed(Edits, named, "the edits of a ledger")

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.applied or self.ended or self.waiting)

    def described(self, n_clusters: int) -> list[str]:
        """Return in words how a release came to its number of clusters, and what waits.

        Examples
        --------
        >>> edits = Edits(20, (Edit("a", "merge", (3, 7)), Edit("b", "freeze", (5,))))
        >>> edits.described(19)
        ['n_clusters 20, 1 less by edits: 1 merge, 1 freeze']
        """
        said, kinds = [], [edit.kind for edit in self.applied]
        if more := n_clusters - self.n_clusters:
            by = f", {abs(more)} {'more' if more > 0 else 'less'} by edits"
        else:
            by = "; edits"
        if kinds:
            each = ", ".join(counted(kinds.count(kind), kind) for kind in dict.fromkeys(kinds))
            said.append(f"n_clusters {self.n_clusters}{by}: {each}")
        if self.waiting:
            said.append(f"{counted(len(self.waiting), 'edit')} waiting for the next run")
        return said


class Former(NamedTuple):
    """A cluster as it was before an edit."""

    cluster: int
    size: int
    centroid: FloatArray


class Start(NamedTuple):
    """A centroid that a fit begins with.

    `documents` are the clusters of the last release whose documents it stands for; `edit` is the
    split that it is a part of.
    """

    cluster: int | None  # its id, None where documents decide that
    centroid: FloatArray
    size: int
    documents: tuple[int, ...] = ()
    is_edited: bool = False
    edit: str = ""


@dataclass
class Reshaping:
    """The centroids of the last release, as edits make them those that a fit begins with.

    `divide` returns the parts of the documents of some clusters of the last release; `former` are
    clusters before the edits that the last release has.
    """

    starts: list[Start]
    edits: Edits
    former: dict[str, list[Former]]
    divide: Divide
    remarks: list[str] = field(default_factory=list)
    changed: bool = False

    def follow(self, entries: Sequence[Entry]) -> None:
        """Undo what stands no more, hold what is frozen, and apply what is new."""
        standing = {entry.id for entry in entries}
        for edit in reversed(self.edits.applied):
            if edit.id not in standing:
                self._undo(edit)
        left = [edit for edit in self.edits.applied if edit.id in standing]
        ended = tuple(one for one in self.edits.ended if one in standing)
        self.edits = replace(self.edits, applied=tuple(left), ended=ended, waiting=())
        known = {*ended, *(edit.id for edit in left)}
        for edit in left:
            if edit.kind == FREEZE:
                self._hold(edit)
        for entry in entries:
            if entry.id not in known:
                self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        places = [self._place(cluster) for cluster in entry.clusters]
        parts = (start for start in self.starts if start.cluster is None)
        nameless = {cluster for part in parts for cluster in part.documents}
        if nameless.intersection(entry.clusters):
            self.edits = replace(self.edits, waiting=(*self.edits.waiting, entry.id))
            return  # parts get their ids with this release
        missing = [one for one, at in zip(entry.clusters, places, strict=True) if at is None]
        if problem := self._problem(entry, missing):
            self._ended(entry.id, f"{in_words(entry)} is left out: {problem}")
            return
        edit = Edit(entry.id, entry.kind, entry.clusters)
        steps = {MERGE: self._merge, SPLIT: self._split, FREEZE: self._hold}
        steps[entry.kind](edit)

    def _problem(self, entry: Entry, missing: Sequence[int]) -> str:
        """Return why an edit cannot be applied, "" where it can."""
        if missing:
            return f"the last release has no cluster {' or '.join(map(str, missing))}"
        frozen = sorted(frozen_by(self.edits.applied).intersection(entry.clusters))
        if frozen and entry.kind != FREEZE:
            return f"cluster {frozen[0]} is frozen"
        return ""

    def _merge(self, edit: Edit) -> None:
        """Put the mean of clusters, by their documents, in the place of the first one."""
        places = [at for cluster in edit.clusters if (at := self._place(cluster)) is not None]
        parts = [self.starts[at] for at in places]
        sizes = np.asarray([max(part.size, 1) for part in parts], np.float64)
        mean = np.average(np.stack([part.centroid for part in parts]), axis=0, weights=sizes)
        documents = tuple(one for part in parts for one in part.documents)
        size = sum(part.size for part in parts)
        self.starts[places[0]] = Start(edit.clusters[0], mean, size, documents, is_edited=True)
        for at in sorted(places[1:], reverse=True):
            del self.starts[at]
        self._applied(edit, parts)

    def _split(self, edit: Edit) -> None:
        place = self._place(edit.clusters[0])
        assert place is not None
        before = self.starts[place]
        if not self._divided(place, 2, edit.id):
            self._ended(edit.id, f"{in_words(edit)} is left out: all its documents are the same")
            return
        self._applied(edit, [before])

    def _divided(self, place: int, n_parts: int, edit: str = "") -> bool:
        """Put the parts of a cluster in its place; return whether it has that many."""
        whole = self.starts[place]
        division = self.divide(whole.documents, n_parts)
        if division is None:
            return False
        shares = division.sizes / division.sizes.sum() * whole.size
        self.starts[place : place + 1] = [
            Start(None, centroid, round(float(share)), whole.documents, edit=edit)
            for centroid, share in zip(division.centroids, shares, strict=True)
        ]
        return True

    def _hold(self, edit: Edit) -> None:
        """Begin a frozen cluster with the centroid that it was frozen with."""
        place = self._place(edit.clusters[0])
        if place is None:
            self._ended(edit.id, f"{in_words(edit)} has ended: the last release has it no more")
            return
        start = self.starts[place]
        known = self.former.get(edit.id)
        centroid = known[0].centroid if known else start.centroid
        self.starts[place] = start._replace(centroid=centroid, is_edited=True)
        if not known:
            self._applied(edit, [start])
        self.changed = True

    def _applied(self, edit: Edit, before: Sequence[Start]) -> None:
        self.changed = True
        self.former[edit.id] = [
            Former(start.cluster, start.size, start.centroid)
            for start in before if start.cluster is not None
        ]  # fmt: skip
        others = [one for one in self.edits.applied if one.id != edit.id]
        self.edits = replace(self.edits, applied=(*others, edit))

    def _ended(self, name: str, remark: str) -> None:
        """Leave an edit for good, and say why."""
        self.remarks.append(remark)
        applied = tuple(one for one in self.edits.applied if one.id != name)
        self.edits = replace(self.edits, applied=applied, ended=(*self.edits.ended, name))

    def _undo(self, edit: Edit) -> None:
        """Undo an edit that the last release has."""
        former = self.former.pop(edit.id, [])
        if edit.kind == FREEZE:
            return
        done = self._apart(edit, former) if edit.kind == MERGE else self._together(edit)
        self.changed |= done
        if not done:
            self.remarks.append(
                f"{in_words(edit)} cannot be undone: the clusters that came of it are gone"
            )

    def _apart(self, edit: Edit, former: Sequence[Former]) -> bool:
        """Put merged clusters back as they were, or parts where nobody knows how they were."""
        place = self._place(edit.clusters[0])
        if place is None:
            return False
        there = {start.cluster for start in self.starts}
        if not former or there.intersection(edit.clusters[1:]):
            return self._divided(place, len(edit.clusters))
        self.starts[place : place + 1] = [
            Start(one.cluster, one.centroid, one.size, is_edited=True) for one in former
        ]
        return True

    def _together(self, edit: Edit) -> bool:
        """Merge the parts of a split again."""
        places = [at for cluster in edit.made if (at := self._place(cluster)) is not None]
        if len(places) < len(edit.made) or len(places) < 2:
            return False
        again = sorted(edit.made, key=lambda cluster: cluster != edit.clusters[0])
        before = self.edits
        self._merge(Edit(edit.id, MERGE, tuple(again)))
        self.former.pop(edit.id)
        self.edits = before
        return True

    def _place(self, cluster: int) -> int | None:
        """Return where the start of a cluster is."""
        numbers = (at for at, start in enumerate(self.starts) if start.cluster == cluster)
        return next(numbers, None)

    # ---- what comes of it

    @property
    def centroids(self) -> FloatArray:
        """What the fit begins with, (n_clusters, n_features)."""
        return np.ascontiguousarray(np.stack([start.centroid for start in self.starts]))

    @property
    def called(self) -> dict[int, int]:
        """The ids of labels that edits decide."""
        return {
            at: start.cluster
            for at, start in enumerate(self.starts)
            if start.is_edited and start.cluster is not None
        }

    @property
    def parts(self) -> dict[str, list[int]]:
        """The labels of the parts of each split, by its entry."""
        parts: dict[str, list[int]] = {}
        for at, start in enumerate(self.starts):
            if start.edit:
                parts.setdefault(start.edit, []).append(at)
        return parts


def with_made(edits: Edits, parts: Mapping[str, Sequence[int]], ids: Sequence[int]) -> Edits:
    """Return edits whose splits say which clusters came of them, `ids` those of labels."""
    made = {name: tuple(ids[label] for label in labels) for name, labels in parts.items()}
    applied = tuple(replace(one, made=made.get(one.id, one.made)) for one in edits.applied)
    return replace(edits, applied=applied)


def frozen_by(edits: Sequence[Edit | Entry]) -> set[int]:
    """Return the clusters that are frozen.

    Examples
    --------
    >>> frozen_by([Edit("a", "freeze", (3,)), Edit("b", "merge", (1, 2))])
    {3}
    """
    return {cluster for edit in edits if edit.kind == FREEZE for cluster in edit.clusters}


def in_words(edit: Edit | Entry) -> str:
    """Return what an edit does.

    Examples
    --------
    >>> in_words(Edit("a", "merge", (3, 7, 9))), in_words(Edit("b", "freeze", (3,)))
    ('the merge of clusters 3, 7 and 9', 'the freeze of cluster 3')
    """
    numbers = [str(cluster) for cluster in edit.clusters]
    said = " and ".join(one for one in (", ".join(numbers[:-1]), numbers[-1]) if one)
    return f"the {edit.kind} of cluster{'s' if len(numbers) > 1 else ''} {said}"


# ---- centroids before edits, as a release keeps them


def encode_former(former: Mapping[str, Sequence[Former]]) -> bytes:
    """Return clusters as they were before edits as the file of a release.

    Examples
    --------
    >>> former = {"a": [Former(3, 10, np.asarray([0.0, 1.0]))]}
    >>> decode_former(encode_former(former))["a"][0].size
    10
    """
    rows = [(name, one) for name, several in former.items() for one in several]
    table = {
        "edit": pa.array([name for name, _ in rows], pa.string()),
        "cluster": pa.array([one.cluster for _, one in rows], pa.int32()),
        "size": pa.array([one.size for _, one in rows], pa.int64()),
        "centroid": pa.array([one.centroid for _, one in rows], pa.list_(pa.float64())),
    }
    return encode_parquet(pa.table(table))


def decode_former(data: bytes) -> dict[str, list[Former]]:
    """Return what `encode_former` wrote; nothing of no bytes."""
    former: dict[str, list[Former]] = {}
    for row in decode_parquet(data).to_pylist() if data else ():
        centroid = np.asarray(row["centroid"], np.float64)
        former.setdefault(row["edit"], []).append(Former(row["cluster"], row["size"], centroid))
    return former
