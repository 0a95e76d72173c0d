"""New directions in one pass over the sums of any range of clusters, with all that is made of them.

A cluster's sums, and its centroid before and after, stay in the cache while its direction is made
and measured, the distance that it went, and its part of J.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels import exact, means
from hmrf_dask.kernels.compiled import frozen, njit
from hmrf_dask.kernels.exact import multiply_sums
from hmrf_dask.kernels.hamerly import length_between
from hmrf_dask.kernels.means import measure_centroid, top, write_direction
from hmrf_dask.kernels.threads import buffer, over_ranges
from hmrf_dask.types import FloatArray, IntArray


class Directions(NamedTuple):
    """The centroids that sums ask for under weights of 1, and what one pass tells of them."""

    centroids: FloatArray  # (K, d), each of length 1 but for rounding
    largest_entry: float
    moved: FloatArray  # (K,): how far each is from the one before, 0 where that was not asked
    products: FloatArray  # (K, 2 LANES), for `exact.closed_sum`


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _remake(
    sums: IntArray,
    previous: FloatArray,
    compared: bool,
    lanes: FloatArray,
    sizes: FloatArray,
    products: FloatArray,
    out: FloatArray,
) -> None:
    """Write centroids; into `sizes` their lengths, largest entries and how far they went."""
    plain, most = lanes[0, :0], lanes[1]
    for h in range(out.shape[0]):
        row, target, before = sums[h], out[h], previous[h]
        if not write_direction(row, plain, lanes[0], target):
            for m in range(target.shape[0]):
                target[m] = before[m]
        sizes[h, 0] = measure_centroid(target, plain, lanes[0], most)
        sizes[h, 1] = top(most)
        sizes[h, 2] = length_between(before, target, plain) if compared else 0.0
        multiply_sums(row, target, plain, products[h])


def remade_directions(sums: IntArray, previous: FloatArray, *, compared: bool) -> Directions | None:
    """Return the directions of sums (K, d + 1) whose last column is zero; see `means.directions`.

    Those without one keep their previous centroid: None where such a one has not length 1, so that
    a table has to be made of it.
    """
    out, products = buffer(previous.shape, np.float64), np.empty((len(sums), 2 * exact.LANES))
    totals, known = frozen(sums, np.int64), frozen(previous, np.float64)
    sizes = np.empty((len(sums), 3))

    def work(first: int, last: int) -> None:
        """Make the directions of a range of clusters."""
        here, lanes = slice(first, last), np.empty((2, means.LANES))
        ends = totals[here], known[here], compared
        _remake(*ends, lanes, sizes[here], products[here], out[here])

    over_ranges(work, len(out), out.size)
    lengths, tops, moved = sizes.T
    unit = (np.abs(lengths - 1.0) < means.UNIT) | (lengths == 0.0)
    if not unit.all():
        return None
    return Directions(out, float(tops.max(initial=0.0)), moved, products)
