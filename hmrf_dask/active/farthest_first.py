"""Farthest-first over partitions: the points of one pass a point, in a few passes.

A pass reports the outermost rows of each partition, and how far the next one is. As long as the
best of the reported rows lies farther than any that was not, no pass is needed to know the next.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hmrf_dask.active.pool import Pool
from hmrf_dask.flow.dataflow import Lazy
from hmrf_dask.tasks import questions
from hmrf_dask.tasks.questions import Askable, Outermost
from hmrf_dask.types import FloatArray, IntArray

REPORTED = 256  # rows of a partition


class FarthestFirst:
    """The row that is farthest from all chosen before, again and again; ties go to the lowest id.

    With a `mean` a distance counts by how near to it the row is, so that outliers come late, and
    rows on its far side last of all.
    """

    def __init__(self, pool: Pool, mean: FloatArray | None) -> None:
        self.passes = 0
        self._pool = pool
        self._mean = None if mean is None else pool.table(mean)  # until there is a pass
        self._reached: list[Lazy | None] = [None] * pool.n_partitions
        self._unseen: list[Askable] = []  # points that no pass took into account
        self._found: Outermost | None = None

    def add(self, points: Askable) -> None:
        """Take points into account that were chosen some other way."""
        if not len(points.rows):
            return
        self._unseen.append(points)
        if self._found is not None:
            table = questions.direction_table(points.directions())
            reach = questions.shorten(self._found.rows, self._found.reach, table)
            self._found = replace(self._found, reach=reach)

    def next(self) -> Askable | None:
        """Return the next point, None where all rows lie on points."""
        best = self._best()
        if best is None:
            self._found = self._pass()
            best = int(self._order()[0]) if len(self._found.rows.rows) else None
        if self._found is None or best is None or not self._found.worth[best] > 0.0:
            return None
        point = self._found.rows.take(np.array([best]))
        self.add(point)
        return point

    def _order(self) -> IntArray:
        assert self._found is not None
        order: IntArray = np.lexsort((self._found.rows.block.ids, -self._found.worth))
        return order

    def _best(self) -> int | None:
        """Return the place of the best reported row, if no other row can be better."""
        if self._found is None or not len(self._found.rows.rows):
            return None
        best = int(self._order()[0])
        return best if self._found.worth[best] > self._found.beyond else None

    def _pass(self) -> Outermost:
        """Return the outermost rows of all, with every point taken into account."""
        pool, self.passes, points = self._pool, self.passes + 1, None
        if self._unseen:
            points = pool.table(questions.join_rows(self._unseen).directions())
            self._unseen = []
        found = pool.over_all(
            questions.reached_after, self._mean, points, REPORTED, each=self._reached
        )
        self._mean, self._reached = None, list(kept := pool.flow.persist(found))
        parts = [pool.flow.lazy(questions.outermost_of, part) for part in kept]
        outermost: Outermost = pool.joined(questions.merge_outermost, parts)
        return outermost
