"""Clusters that keep their ids from run to run: matched to the old ones by shared documents.

Old clusters h and new ones j share c_hj of the documents that both runs know. Those whose share
c_hj / max(Σ_j c_hj, Σ_h c_hj) is large enough may be the same; among them the Hungarian method
chooses the pairs with the most shared documents in all. A cluster that is not matched gets the next
id, and no id is ever given twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.storage.sealed import DamagedFileError, seal_for_people, unseal_as
from hmrf_dask.types import AnyArray, IntArray

FORMAT = "hmrf-dask/lineage/v2"
LEAST_SHARE = 0.25  # of both clusters' common documents, for them to be the same
_MOST = 0.5  # of the documents of a cluster
_LISTED = 0.05  # smaller shares are left out
Kind = Literal["kept", "split", "new", "merged", "vanished"]


@dataclass(frozen=True)
class Flow:
    """Documents that went from one cluster to another.

    Attributes
    ----------
    cluster : int
        Stable id of the other one.
    share : float
        Of the documents of this cluster that both runs know.
    """

    cluster: int
    documents: int
    share: float


@dataclass(frozen=True)
class Change:
    """What became of one cluster.

    Attributes
    ----------
    kind : str
        "kept": a cluster of both runs. "split": a new one, at least half of it documents of one old
        one. "new": any other that is new. "merged": an old one that ended, at least half of its
        documents in one that is there. "vanished": any other that ended.
    size_before, size_after : int
        All its documents in the old and in the new run.
    came_from, went_to : tuple of Flow
        Old clusters of its documents, and where its old documents are now; large shares first.
    """

    cluster: int
    kind: Kind
    size_before: int
    size_after: int
    came_from: tuple[Flow, ...] = ()
    went_to: tuple[Flow, ...] = ()


@dataclass(frozen=True)
class Lineage:
    """The stable ids of the clusters of a run.

    Attributes
    ----------
    ids : tuple of int
        Stable id of each label of the model, 0 to K - 1.
    sizes : tuple of int
        Documents of each label.
    next_id : int
        The lowest id that no cluster ever had.
    changes : tuple of Change
        One for each cluster of this run and of the one before, by id.
    n_common, n_gone, n_added : int
        Documents of clusters of both runs, of the old alone, of the new alone; outliers are of
        none.
    n_moved : int
        Documents of both runs whose stable cluster is another one than before.
    """

    ids: tuple[int, ...]
    sizes: tuple[int, ...]
    next_id: int
    changes: tuple[Change, ...]
    n_common: int
    n_gone: int
    n_added: int
    n_moved: int

    @property
    def moved_share(self) -> float:
        """Return `n_moved` as a share of `n_common`, 0 to 1; 0 where both runs share nothing.

        Examples
        --------
        >>> carried_on(first_lineage([5, 3]), [5, 3], n_common=8, n_moved=2).moved_share
        0.25
        """
        return self.n_moved / self.n_common if self.n_common else 0.0

    def to_json(self) -> bytes:
        """Return lineage.json.

        Examples
        --------
        >>> before = first_lineage([5, 3])
        >>> Lineage.from_json(before.to_json()) == before
        True
        """
        return seal_for_people({"format": FORMAT, **asdict(self)})

    @staticmethod
    def from_json(data: bytes, name: str = "lineage.json") -> Lineage:
        """Return what `to_json` wrote, or raise DamagedFileError naming the file."""
        lineage = unseal_as(Lineage, data, name, FORMAT)
        n_ids, n_sizes = len(lineage.ids), len(lineage.sizes)
        if n_ids != n_sizes or len(set(lineage.ids)) != n_ids:
            raise DamagedFileError(
                f"{name} must have one size for each cluster, and each id once, got "
                f"{n_sizes} sizes for {n_ids} ids"
            )
        return lineage


def first_lineage(sizes: Sequence[int], first_id: int = 0) -> Lineage:
    """Return the lineage of a run without one before it: every cluster is new.

    Ids go up from `first_id` by label.

    Examples
    --------
    >>> first_lineage([5, 3], first_id=7).ids
    (7, 8)
    """
    nobody = Lineage((), (), first_id, (), n_common=0, n_gone=0, n_added=0, n_moved=0)
    nothing = np.zeros(0, np.int64)
    return trace(nobody, nothing, nothing, nothing, sizes)


def carried_on(previous: Lineage, sizes: Sequence[int], n_common: int, n_moved: int = 0) -> Lineage:
    """Return the lineage of a run under the same model: every cluster keeps its id.

    Of the `n_common` documents that both runs know, `n_moved` changed and went to another cluster.

    Examples
    --------
    >>> night = carried_on(first_lineage([5, 3]), [6, 3], n_common=8)
    >>> night.ids, night.n_added, [change.kind for change in night.changes]
    ((0, 1), 1, ['kept', 'kept'])
    """
    sizes = tuple(map(int, sizes))
    each = sorted(zip(previous.ids, previous.sizes, sizes, strict=True))
    return replace(
        previous,
        sizes=sizes,
        changes=tuple(Change(cluster, "kept", before, after) for cluster, before, after in each),
        n_common=n_common,
        n_gone=sum(previous.sizes) - n_common,
        n_added=sum(sizes) - n_common,
        n_moved=n_moved,
    )


def trace(
    previous: Lineage,
    old: AnyArray,
    new: AnyArray,
    counts: IntArray,
    sizes: Sequence[int],
    called: Mapping[int, int] | None = None,
) -> Lineage:
    """Return the stable ids of new clusters: a function of the arguments, in any order of cells.

    Parameters
    ----------
    previous : Lineage
        Of the run before.
    old, new : int arrays, shape (n_cells,)
        Stable id of an old cluster and label of a new one. What two share may be in parts.
    counts : int array, shape (n_cells,)
        How many documents each two share.
    sizes : sequence of int
        All documents of each new label.
    called : mapping of int to int, optional
        The ids of labels that are known whatever documents say, such as of merged clusters.

    Examples
    --------
    >>> old, new, counts = np.array([0, 1]), np.array([1, 0]), np.array([5, 3])
    >>> now = trace(first_lineage([5, 3]), old, new, counts, [3, 5, 4])
    >>> now.ids, now.next_id, [change.kind for change in now.changes]
    ((1, 0, 2), 3, ['kept', 'kept', 'new'])
    """
    sizes = tuple(map(int, sizes))
    known = np.asarray(sorted(previous.ids), np.int64)
    table = _table(known, old, new, counts, len(sizes))
    ids = np.full(len(sizes), -1, np.int64)
    called = dict(called or {})
    ids[list(called)] = list(called.values())
    rows, columns = _matched(_without(table, np.isin(known, ids), ids >= 0))
    ids[columns] = known[rows]
    fresh = np.flatnonzero(ids < 0)
    ids[fresh] = previous.next_id + np.arange(len(fresh))
    n_common = int(table.sum())
    return Lineage(
        ids=tuple(ids.tolist()),
        sizes=sizes,
        next_id=previous.next_id + len(fresh),
        changes=_changes(previous, known, table, ids, sizes),
        n_common=n_common,
        n_gone=sum(previous.sizes) - n_common,
        n_added=sum(sizes) - n_common,
        n_moved=n_common - _n_staying(table, known, ids),
    )


def _table(known: IntArray, old: AnyArray, new: AnyArray, counts: IntArray, n_new: int) -> Any:
    """Return the shared documents as a sparse array, old clusters by id."""
    from scipy.sparse import coo_array  # not needed to find a release, which must be quick

    strange = np.setdiff1d(old, known)
    if len(strange):
        raise InvalidInputError(
            f"old clusters must be those of the run before, got {strange[:5].tolist()} too; "
            "its lineage.json belongs to other assignments"
        )
    cells = (counts, (np.searchsorted(known, old), new))
    table = coo_array(cells, shape=(len(known), n_new), dtype=np.int64).tocsr()
    table.eliminate_zeros()
    return table


def _without(table: Any, rows: AnyArray, columns: AnyArray) -> Any:
    """Return a table without the documents of some rows and columns."""
    cells = table.tocoo()
    other = ~(rows[cells.row] | columns[cells.col])
    places = cells.row[other], cells.col[other]
    return type(cells)((cells.data[other], places), shape=cells.shape).tocsr()


def _n_staying(table: Any, known: IntArray, ids: IntArray) -> int:
    """Return how many documents are in the cluster of the same id in both runs."""
    cells = table.tocoo()
    return int(cells.data[known[cells.row] == ids[cells.col]].sum())


def _matched(table: Any) -> tuple[IntArray, IntArray]:
    """Return places of old and new clusters that are the same."""
    from scipy.optimize import linear_sum_assignment
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    cells, (n_old, n_new) = table.tocoo(), table.shape
    larger = np.maximum(table.sum(axis=1)[cells.row], table.sum(axis=0)[cells.col])
    good = cells.data >= LEAST_SHARE * larger
    shared, old, new = cells.data[good], cells.row[good], cells.col[good]
    allowed = coo_array((shared, (old, new)), table.shape).tocsr()
    # Few clusters can have a large share of the same documents, so groups that share nothing with
    # others are small, where one matrix of all clusters would take minutes.
    graph = coo_array((shared, (old, n_old + new)), shape=(n_old + n_new,) * 2)
    n_groups, group = connected_components(graph, directed=False)
    order = np.argsort(group, kind="stable")
    pairs = [np.zeros((2, 0), np.int64)]
    for members in np.split(order, np.searchsorted(group[order], np.arange(1, n_groups))):
        rows, columns = members[members < n_old], members[members >= n_old] - n_old
        if len(rows) and len(columns):
            matrix = allowed[rows][:, columns].toarray()
            first, second = linear_sum_assignment(matrix, maximize=True)
            real = matrix[first, second] > 0
            pairs.append(np.stack([rows[first[real]], columns[second[real]]]))
    rows, columns = np.concatenate(pairs, axis=1)
    return rows, columns


def _changes(
    previous: Lineage, known: IntArray, table: Any, ids: IntArray, sizes: tuple[int, ...]
) -> tuple[Change, ...]:
    """Return what became of every cluster, by id."""
    before = dict(zip(previous.ids, previous.sizes, strict=True))
    after = dict(zip(ids.tolist(), sizes, strict=True))
    went_to = _flows(table, known, ids)
    came_from = _flows(table.T.tocsr(), ids, known)
    changes = []
    for cluster in sorted(before.keys() | after.keys()):
        came, went = came_from.get(cluster, ()), went_to.get(cluster, ())
        if cluster in before:
            most = bool(went) and went[0].share >= _MOST
            kind: Kind = "kept" if cluster in after else "merged" if most else "vanished"
        else:
            # A few old documents do not make a cluster of mostly new ones a part of an old one.
            most = bool(came) and came[0].documents >= _MOST * after[cluster]
            kind = "split" if most else "new"
        changes.append(
            Change(cluster, kind, before.get(cluster, 0), after.get(cluster, 0), came, went)
        )
    return tuple(changes)


def _flows(table: Any, names: IntArray, others: IntArray) -> dict[int, tuple[Flow, ...]]:
    """Return where the documents of every row of a table are, large shares first."""
    flows = {}
    for row, name in enumerate(names.tolist()):
        place = slice(table.indptr[row], table.indptr[row + 1])
        counts, ends = table.data[place], others[table.indices[place]]
        total = int(counts.sum())
        order = np.lexsort((ends, -counts))
        flows[name] = tuple(
            Flow(int(ends[at]), int(counts[at]), float(counts[at] / total))
            for at in order
            if counts[at] >= _LISTED * total
        )
    return flows
