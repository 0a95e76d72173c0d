"""Σ D of a whole labelling from its exact centroid sums, where distances are linear in the row.

    Σ_i D(i, l_i) = Σ_i offset_i + Σ_h (n_h bias_h − Σ_m S_hm T_hm / f_m − S_h,last extra_h)

The sums S are integers, so the products with the centroids are added in twice the precision of
float64: the result is a function of labels and centroids alone, and no row is read for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmrf_dask.kernels import stand_ins
from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import COMPILED, inner, njit
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.exact import exact_integer, exact_sum
from hmrf_dask.kernels.threads import over_ranges
from hmrf_dask.types import FloatArray, IntArray

LANES = 16  # independent sums: one chain of additions would wait for itself

if COMPILED:
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def _multiply_add(typing, one, other, third):  # type: ignore[no-untyped-def]
        """Return one · other + third, rounded once."""

        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.fma(*arguments)

        number: Any = types.float64
        return number(number, number, number), code

else:
    _multiply_add = stand_ins.multiply_add


@inner()
def _add_product(whole, t, high, low, lane):  # type: ignore[no-untyped-def]
    """Add an integer times a float64 to a sum, and what is rounded off to its errors."""
    a = np.float64(whole)
    rest = np.float64(whole - np.int64(a))
    product = a * t
    error = _multiply_add(a, t, -product) + rest * t
    before = high[lane]
    after = before + product
    moved = after - before
    high[lane] = after
    low[lane] += ((before - (after - moved)) + (product - moved)) + error


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _products(sums, table, features, out):  # type: ignore[no-untyped-def]
    """Write Σ_m S_hm T_hm / f_m of each cluster as `LANES` numbers and their errors."""
    n_features = table.shape[1]
    whole = n_features - n_features % LANES
    for h in range(table.shape[0]):
        out[h] = 0.0
        high, low = out[h, :LANES], out[h, LANES:]
        row, line = sums[h], table[h]
        for first in range(0, whole, LANES):
            for lane in range(LANES):
                m = first + lane
                t = line[m] if features.shape[0] == 0 else line[m] / features[m]
                _add_product(row[m], t, high, low, lane)
        for m in range(whole, n_features):
            t = line[m] if features.shape[0] == 0 else line[m] / features[m]
            _add_product(row[m], t, high, low, m - whole)


def closed_distances(
    table: Table, features: FloatArray, sums: IntArray, counts: IntArray, exponent: int
) -> int:
    """Return Σ D less the rows' own offsets as an exact integer in units of 2**-BASE.

    Parameters
    ----------
    table : Table of linear form
    features : float64 array, shape (d,), the factors f of the summands
    sums : int64 array, shape (K, d + 1), in units of 2**-exponent
    counts : int64 array, shape (K,)
    """
    factors = np.zeros(0) if bool((features == 1.0).all()) else features
    out = np.empty((len(table.exact), 2 * LANES))
    whole, exact = frozen(sums, np.int64), frozen(table.exact, np.float64)
    known = frozen(factors, np.float64)

    def work(first: int, last: int) -> None:
        _products(whole[first:last], exact[first:last], known, out[first:last])

    over_ranges(work, len(out), sums.size)
    unit = 2.0**-exponent
    shifts = sums[:, -1] * unit * table.extra
    parts = np.concatenate([counts * table.bias, -shifts, (out * -unit).ravel()])
    return exact_integer(exact_sum(parts))
