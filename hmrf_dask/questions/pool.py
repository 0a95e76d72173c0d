"""The rows that may be asked about, in partitions: one pass of theirs for each thing to know."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.flow.dataflow import DaskFlow, Lazy, share_array, tree
from hmrf_dask.kernels.sums import add_sums, fixed_point_exponent
from hmrf_dask.kernels.uncertainty import median_gap
from hmrf_dask.tasks import open_rows, questions
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.tasks.open_rows import ClusterParts, OpenRows, Wanted
from hmrf_dask.tasks.questions import Askable, Means, Uncertain
from hmrf_dask.types import AnyArray, FloatArray, IntArray

ODDS = 9.0  # of the nearest neighbourhood against the second, at the median gap between them
FIRST_GAP = 0.1  # that is tried before one is known
STEPS = 3  # of k-means, from groups that are known to the clusters of all rows


class Pool:
    """The rows of a corpus that may be asked about.

    Each method is one pass over the partitions; what comes back is as large as what was asked for.
    """

    def __init__(
        self, corpus: Corpus, allowed: IntArray | None, *, in_memory: bool = False
    ) -> None:
        self.flow = DaskFlow()
        self.n_rows = corpus.n_rows
        self._gap = FIRST_GAP
        self._sources: list[tuple[Any, ...]] = []
        for block, first, count in zip(
            corpus.blocks, corpus.offsets[:-1], corpus.row_counts, strict=True
        ):
            own = None
            if allowed is not None:
                ends = np.searchsorted(allowed, [first, first + count])
                own = share_array(self.flow, allowed[ends[0] : ends[1]])
            self._sources.append((block, first, own))
        # Rows that lie in memory are read once, those of files in every pass.
        self._kept: list[Lazy] | None = None
        if in_memory:
            parts = [self.flow.lazy(questions.askable_rows, *source) for source in self._sources]
            self._kept = self.flow.persist(parts)

    @property
    def scale(self) -> float:
        """What cosines are multiplied by, so that they are log odds of neighbourhoods."""
        return math.log(ODDS) / self._gap

    def over_all(
        self, function: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> list[Lazy]:
        """Return a call for each partition, of its rows, its one of `each` if any, and arguments.

        Rows of files are read in the same task: none waits in memory for its turn.
        """
        own = [()] * len(self._sources) if each is None else [(one,) for one in each]
        if self._kept is not None:
            return [
                self.flow.lazy(function, part, *more, *arguments)
                for part, more in zip(self._kept, own, strict=True)
            ]
        return [
            self.flow.lazy(questions.of_askable, function, *source, *more, *arguments)
            for source, more in zip(self._sources, own, strict=True)
        ]

    @property
    def n_partitions(self) -> int:
        """How many partitions there are."""
        return len(self._sources)

    def joined(self, combine: Callable[[list[Any]], Any], parts: Sequence[Lazy]) -> Any:
        """Return what a tree makes of the results of all partitions."""
        return self.flow.compute([tree(self.flow, combine, parts)])[0]

    def table(self, directions: FloatArray) -> Lazy:
        """Return directions as tasks read them."""
        return self.flow.lazy(questions.direction_table, self.flow.broadcast(directions))

    def mean(self) -> FloatArray:
        """Return the mean direction of all rows, shape (1, d)."""
        sums = self.joined(add_sums, self.over_all(questions.overall_sum, self.n_rows))
        return questions.directions_of(sums, fixed_point_exponent(self.n_rows, 1.0))

    def densest(self, mean: FloatArray) -> int:
        """Return the row nearest to the mean."""
        table = self.table(mean)
        found: Lowest = self.joined(merge_lowest, self.over_all(questions.densest, table))
        return _first(found)

    def nearest(self, directions: FloatArray) -> list[int]:
        """Return the row that is nearest to each direction."""
        parts = self.over_all(questions.nearest_to, self.table(directions))
        return [_first(found) for found in self.joined(questions.merge_nearest, parts)]

    def clusters(self, directions: FloatArray, placed: IntArray, groups: IntArray) -> Means:
        """Return the means of the clusters that the rows make around groups known of a few.

        Steps of k-means from the directions of the groups; the `placed` rows, sorted, stay.
        """
        exponent, means = fixed_point_exponent(self.n_rows, 1.0), Means(directions)
        for _ in range(STEPS):
            named = self.table(means.directions), placed, groups, exponent
            sums = self.joined(add_sums, self.over_all(questions.cluster_sums, *named))
            means = questions.means_of(sums, exponent)
        return means

    def most_uncertain(self, means: Means, settled: IntArray) -> Askable | None:
        """Return the most uncertain open row, None where none is open.

        Odds of `ODDS` are those at the median gap of the open rows. The median before is tried
        first, as it changes little from question to question: one pass, and at times two.
        """
        compared = self.table(means.directions), means.lengths, settled
        while True:
            parts = self.over_all(questions.most_uncertain, *compared, self.scale)
            found: Uncertain = self.joined(questions.merge_uncertain, parts)
            if not len(found.rows.rows):
                return None
            if self._gap == (gap := median_gap(found.gaps)):
                return found.rows
            self._gap = gap

    def cluster_parts(self, centroids: FloatArray) -> ClusterParts:
        """Return sizes, distances and central rows of the clusters that the rows make."""
        parts = self.over_all(open_rows.cluster_parts, self.table(centroids))
        found: ClusterParts = self.joined(open_rows.merge_clusters, parts)
        return found

    def open_rows(
        self, directions: FloatArray, wanted: Wanted, mean: FloatArray | None
    ) -> OpenRows:
        """Return what is wanted of the rows next to the clusters of a finished model."""
        tables = self.table(directions), None if mean is None else self.table(mean)
        parts = self.over_all(open_rows.open_rows, tables[0], self.flow.share(wanted), tables[1])
        found: OpenRows = self.joined(open_rows.merge_open, parts)
        return found

    def drawn(self, seed: int, draw: int, most: int) -> Lowest:
        """Return rows in an order drawn by their ids."""
        parts = self.over_all(questions.drawn, seed, draw, most)
        return _some(self.joined(merge_lowest, parts))

    def rows(self, wanted: Sequence[int] | AnyArray) -> Askable:
        """Return some rows, in this order."""
        numbers = np.asarray(wanted, np.int64)
        found: Askable = self.joined(
            questions.join_rows, self.over_all(questions.named_rows, numbers)
        )
        order = np.argsort(found.rows)
        return found.take(order[np.searchsorted(found.rows, numbers, sorter=order)])


def _some(found: Lowest) -> Lowest:
    if not len(found.rows):
        raise InvalidInputError(
            "a pool must have rows with a direction to ask about, got none: rows of zeros have no "
            "direction; give other rows, or another pool"
        )
    return found


def _first(found: Lowest) -> int:
    return int(_some(found).rows[0])
