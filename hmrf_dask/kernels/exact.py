"""Exact sums of floats, whatever their order; J of linear distortions from them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numba import types

from hmrf_dask.kernels import compiled
from hmrf_dask.kernels.compiled import frozen, inner, instruction, njit
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.threads import over_ranges
from hmrf_dask.types import FloatArray, IntArray

LIMBS = 20
BASE = 288  # numbers below 2**-236 count as zero: their last bits lie below 2**-BASE
LARGEST = 2.0**300  # of one number; up to 2**29 can be added before a carry
_MANTISSA = 2.0**53
BITS = 32
MASK = (1 << BITS) - 1


def exact_zero() -> IntArray:
    """Return an empty exact sum."""
    return np.zeros(LIMBS, np.int64)


@inner()
def add_float(limbs: IntArray, value: float) -> None:
    """Add one float64 to `limbs` without rounding."""
    if value == 0.0:
        return
    if not abs(value) < LARGEST:  # NaN too; a limb out of range would corrupt memory
        raise OverflowError("a term of J must be finite and below 2**300; rescale the rows")
    fraction, exponent = math.frexp(abs(value))
    place = exponent - 53 + BASE
    if place < 0:
        return
    mantissa = np.int64(fraction * _MANTISSA)
    sign = np.int64(1) if value > 0 else np.int64(-1)
    limb = place >> 5
    offset = place & 31
    low = (mantissa & 0xFFFFFFFF) << offset
    high = (mantissa >> 32) << offset
    limbs[limb] += sign * (low & 0xFFFFFFFF)
    limbs[limb + 1] += sign * (((low >> 32) & 0xFFFFFFFF) + (high & 0xFFFFFFFF))
    limbs[limb + 2] += sign * (high >> 32)


@inner()
def carry(limbs: IntArray) -> None:
    """Bring limbs into 0 .. 2**32 − 1 (the last keeps the sign): 2**31 such sums can be added."""
    for place in range(limbs.shape[0] - 1):
        limbs[place + 1] += limbs[place] >> 32
        limbs[place] &= 0xFFFFFFFF


@njit(nogil=True, cache=True, makes_arrays=False)
def _add_all(limbs: IntArray, values: FloatArray) -> None:
    for value in values:
        add_float(limbs, value)
    carry(limbs)


def exact_sum(values: FloatArray) -> IntArray:
    """Return the exact sum of finite float64 `values` as limbs.

    Examples
    --------
    >>> exact_value(exact_sum(np.array([1e20, 1.0, -1e20])))
    1.0
    """
    limbs = exact_zero()
    _add_all(limbs, frozen(values, np.float64).reshape(-1))
    return limbs


def exact_integer(limbs: IntArray) -> int:
    """Return the sum as a Python integer in units of 2**-BASE: two sums compare exactly.

    Examples
    --------
    >>> exact_integer(exact_sum(np.array([1.5]))) == 3 << (BASE - 1)
    True
    """
    return sum(int(limb) << (32 * place) for place, limb in enumerate(limbs))


def exact_value(limbs: IntArray) -> float:
    """Return the correctly rounded float64 of an exact sum.

    Examples
    --------
    >>> numbers = np.array([1e16, 1.0, -1e16])
    >>> exact_value(exact_sum(numbers)), float(np.sum(numbers))
    (1.0, 0.0)
    """
    return float(Fraction(exact_integer(limbs), 1 << BASE))


@inner()
def add_limbs(high: IntArray, low: IntArray, position: int, value: int) -> None:
    """Add an int64 to the number at `position`; the low limb stays within its range."""
    total = low[position] + (value & MASK)
    high[position] += (value >> BITS) + (total >> BITS)
    low[position] = total & MASK


@inner()
def best_limbs(high: IntArray, low: IntArray, base: int, count: int) -> tuple[Any, ...]:
    """Return (target, gain high, gain low) of K alternatives from `base` on and then the present.

    The target is the lowest alternative among the cheapest; -1 with gain 0 when none is cheaper
    than the present.
    """
    last = base + count
    target = -1
    best = last
    for at in range(base, last):
        if high[at] < high[best] or (high[at] == high[best] and low[at] < low[best]):
            target = at - base
            best = at
    low_gain = low[last] - low[best]
    high_gain = high[last] - high[best] + (low_gain >> BITS)
    return target, high_gain, low_gain & MASK


LANES = 16  # independent sums: one chain of additions would wait for itself


@instruction(compiled.multiply_add)
def _multiply_add(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z, rounded once."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit the fused instruction."""
        return builder.fma(*arguments)

    number: Any = types.float64
    return number(number, number, number), code


@inner()
def _add_product(whole: int, t: float, high: FloatArray, low: FloatArray, lane: int) -> None:
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


@inner(error_model="numpy")
def multiply_sums(row: IntArray, line: FloatArray, features: FloatArray, out: FloatArray) -> None:
    """Write Σ_m S_m T_m / f_m of a cluster as `LANES` numbers and their errors."""
    n_features = line.shape[0]
    whole = n_features - n_features % LANES
    out[:] = 0.0
    high, low = out[:LANES], out[LANES:]
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            m = first + lane
            t = line[m] if features.shape[0] == 0 else line[m] / features[m]
            _add_product(row[m], t, high, low, lane)
    for m in range(whole, n_features):
        t = line[m] if features.shape[0] == 0 else line[m] / features[m]
        _add_product(row[m], t, high, low, m - whole)


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _products(sums: IntArray, table: FloatArray, features: FloatArray, out: FloatArray) -> None:
    for h in range(table.shape[0]):
        multiply_sums(sums[h], table[h], features, out[h])


def closed_distances(
    table: Table, features: FloatArray, sums: IntArray, counts: IntArray, exponent: int
) -> int:
    """Return Σ D less the rows' own offsets as an exact integer in units of 2**-BASE.

    The table is of linear form, `features` are the factors f of the summands, and `sums`, of shape
    (K, d + 1), are in units of 2**-exponent.
    """
    factors = np.zeros(0) if bool((features == 1.0).all()) else features
    out = np.empty((len(table.exact), 2 * LANES))
    whole, exact = frozen(sums, np.int64), frozen(table.exact, np.float64)
    known = frozen(factors, np.float64)

    def work(first: int, last: int) -> None:
        """Add up the products of a range of clusters."""
        _products(whole[first:last], exact[first:last], known, out[first:last])

    over_ranges(work, len(out), sums.size)
    return closed_sum(table, sums, counts, exponent, out)


def closed_sum(
    table: Table, sums: IntArray, counts: IntArray, exponent: int, out: FloatArray
) -> int:
    """Return `closed_distances` from what `multiply_sums` wrote of each cluster, (K, 2 LANES)."""
    unit = 2.0**-exponent
    shifts = sums[:, -1] * unit * table.extra
    parts = np.concatenate([counts * table.bias, -shifts, (out * -unit).ravel()])
    return exact_integer(exact_sum(parts))
