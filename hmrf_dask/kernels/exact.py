"""Exact sums: the same number for any order, any partitioning, any magnitude.

Of float64 numbers a sum is `LIMBS` int64 numbers of 32 bits each, a fixed-point number from
2**-BASE upwards. Adding a float adds its 53-bit mantissa to the limbs it covers, so nothing is ever
rounded; limbs of two sums simply add. Of int64 numbers a sum, which may outgrow int64, is two
limbs: high · 2**32 + low with 0 <= low < 2**32.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.types import FloatArray, IntArray

LIMBS = 20
BASE = 288  # numbers below 2**-236 count as nought: their last bits lie below 2**-BASE
LARGEST = 2.0**300  # of one number; up to 2**29 can be added before a carry
_MANTISSA = 2.0**53
BITS = 32
MASK = (1 << BITS) - 1


def exact_zero() -> IntArray:
    """Return an empty exact sum."""
    return np.zeros(LIMBS, np.int64)


@inner()
def add_float(limbs, value):  # type: ignore[no-untyped-def]
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
def carry(limbs):  # type: ignore[no-untyped-def]
    """Bring limbs into 0 .. 2**32 − 1 (the last keeps the sign): 2**31 such sums can be added."""
    for place in range(limbs.shape[0] - 1):
        limbs[place + 1] += limbs[place] >> 32
        limbs[place] &= 0xFFFFFFFF


@njit(nogil=True, cache=True, makes_arrays=False)
def _add_all(limbs, values):  # type: ignore[no-untyped-def]
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
    numbers = np.ascontiguousarray(values, np.float64).reshape(-1)
    numbers = numbers.view()
    numbers.flags.writeable = False
    _add_all(limbs, numbers)
    return limbs


def exact_integer(limbs: IntArray) -> int:
    """Return the sum as a Python integer in units of 2**-BASE: two sums compare exactly."""
    return sum(int(limb) << (32 * place) for place, limb in enumerate(limbs))


def exact_value(limbs: IntArray) -> float:
    """Return the correctly rounded float64 of an exact sum."""
    return float(Fraction(exact_integer(limbs), 1 << BASE))


@inner()
def add_limbs(high, low, position, value):  # type: ignore[no-untyped-def]
    """Add an int64 to the number at `position`; the low limb stays within its range."""
    total = low[position] + (value & MASK)
    high[position] += (value >> BITS) + (total >> BITS)
    low[position] = total & MASK


@inner()
def best_limbs(high, low, base, count):  # type: ignore[no-untyped-def]
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


def join_limbs(high: int, low: int) -> int:
    """Return the two limbs as one Python integer."""
    return (int(high) << BITS) + int(low)
