"""Scores of linked rows for one shard of clusters after the other, those of the whole table.

Cost rows come of scores in low precision, so the same integers ask for scores of the same bits:
columns centred by what the whole table is centred by, products in as many chains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.cost_rows import Quick, Ties, all_quick, low_factors
from hmrf_dask.kernels.distances import Table, Terms, of_row
from hmrf_dask.kernels.finders import Frame, finder_of
from hmrf_dask.kernels.links import frozen
from hmrf_dask.kernels.nearest import Bounds, slack_of
from hmrf_dask.kernels.products import LANES, Columns, aligned, entries, multiply_row
from hmrf_dask.kernels.scores import score
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import RowArray


class Scores(NamedTuple):
    """Scores of the rows of a block that are known, and what bounds their rounding.

    Attributes
    ----------
    scores : float32 array, shape (n_rows, K)
    bounds : Bounds
    """

    scores: RowArray
    bounds: Bounds


@njit(nogil=True, cache=True, makes_arrays=False)
def _scores(rows, columns, parts, factors, scores, out):  # type: ignore[no-untyped-def]
    bias, extra = parts
    scale, shift = factors
    for i in range(out.shape[0]):
        multiply_row(rows, i, columns, scores)
        score(scores, bias, extra, of_row(scale, i), of_row(shift, i))
        for h in range(out.shape[1]):
            out[i, h] = scores[h]


def shard_scores(
    block: RowBlock, terms: Terms, table: Table, frame: Frame, *, single: bool = False
) -> Scores:
    """Return the scores of rows for a shard of a table, those that the whole table would give."""
    finder = finder_of(table, single=single, frame=frame)
    out = np.empty((block.n_rows, len(table.bias)), np.float32)
    room = aligned((finder.columns.table.shape[1],), np.float32)
    parts = (finder.bias, finder.extra)
    _scores(entries(block), finder.columns, parts, low_factors(terms, finder.unit), room, out)
    return Scores(out, Bounds.of(table, finder))


def bounds_of_all(shards: Iterable[Bounds]) -> Bounds:
    """Return the bounds of a table from those of its shards."""
    several = list(shards)
    return Bounds._make([*map(max, *(one[:-1] for one in several)), several[0].unit])


def quick_costs_of(
    block: RowBlock, terms: Terms, known: Scores, ties: Ties, step: float, tolerance: float
) -> Quick:
    """Return cost rows of scores that are known; see `cost_rows.quick_costs`."""
    slack = slack_of(block, terms, known.bounds)
    nothing = np.zeros(LANES, np.float32)
    columns = Columns(aligned((1, LANES), np.float32), (0,))
    read = columns, (nothing, nothing), low_factors(terms, known.bounds.unit)
    scores = frozen(known.scores, np.float32)
    n_clusters = scores.shape[1]
    return all_quick(block, read, ties, scores, slack, step, tolerance, n_clusters)
