"""Exact sums of float64 numbers: the same number for any order, any partitioning, any magnitude.

A sum is `LIMBS` int64 numbers of 32 bits each, a fixed-point number from 2**-BASE upwards. Adding a
float adds its 53-bit mantissa to the limbs it covers, so nothing is ever rounded; limbs of two sums
simply add.
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
