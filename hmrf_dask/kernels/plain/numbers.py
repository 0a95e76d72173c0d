"""Exact sums, random numbers and hashes, whole arrays at once."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from hmrf_dask.kernels.plain.pieces import row_sums
from hmrf_dask.types import AnyArray, FloatArray, IntArray, KeyArray

_BASE = 288  # as in kernels.exact
_LARGEST = 2.0**300
_AT_ONCE = 1 << 16
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def logarithms(factors: AnyArray, values: AnyArray) -> FloatArray:
    """Return factor · ln value, nought where the factor is, one by one as the C library does.

    numpy's vectors may round otherwise, by the place of a number in its array.
    """
    return np.asarray(xlogy(factors, values), np.float64)


def add_exactly(limbs: IntArray, values: FloatArray) -> None:
    """Add float64 numbers to the limbs of `kernels.exact` without rounding, and carry."""
    for first in range(0, len(values), _AT_ONCE):
        _add_mantissas(limbs, values[first : first + _AT_ONCE])
        for place in range(len(limbs) - 1):
            limbs[place + 1] += limbs[place] >> 32
            limbs[place] &= 0xFFFFFFFF


def _add_mantissas(limbs: IntArray, values: FloatArray) -> None:
    if not (np.abs(values) < _LARGEST).all():
        raise OverflowError("a term of J must be finite and below 2**300; rescale the rows")
    fraction, exponent = np.frexp(np.abs(values))
    place = exponent - 53 + _BASE
    kept = np.flatnonzero((place >= 0) & (fraction > 0))
    place = place[kept]
    mantissa = (fraction[kept] * 2.0**53).astype(np.int64)
    sign = np.where(values[kept] > 0, np.int64(1), np.int64(-1))
    limb, offset = place >> 5, (place & 31).astype(np.int64)
    low = (mantissa & 0xFFFFFFFF) << offset
    high = (mantissa >> 32) << offset
    middle = ((low >> 32) & 0xFFFFFFFF) + (high & 0xFFFFFFFF)
    for number, part in enumerate((low & 0xFFFFFFFF, middle, high >> 32)):
        np.add.at(limbs, limb + number, sign * part)


def uniforms(
    keys: KeyArray, seed: np.uint64, place: np.uint64, counter: np.uint64, out: FloatArray
) -> None:
    """Write one number in (0, 1) for each key: Philox 4x32-10, as in kernels.random."""
    c0, c1 = keys & _WORD, keys >> _HALF
    c2, c3 = np.full_like(keys, counter), np.full_like(keys, place)
    k0, k1 = seed & _WORD, seed >> _HALF
    for _ in range(10):
        left = np.uint64(0xD2511F53) * c0
        right = np.uint64(0xCD9E8D57) * c2
        c0, c1 = (right >> _HALF) ^ c1 ^ k0, right & _WORD
        c2, c3 = (left >> _HALF) ^ c3 ^ k1, left & _WORD
        k0 = (k0 + np.uint64(0x9E3779B9)) & _WORD
        k1 = (k1 + np.uint64(0xBB67AE85)) & _WORD
    bits = (c0 << np.uint64(20)) | (c1 >> np.uint64(12))
    out[:] = (bits.astype(np.float64) + 0.5) * 2.0**-52


def exponentials(numbers: FloatArray) -> None:
    """Turn uniform numbers into standard exponential ones."""
    numbers[:] = -logarithms(np.ones(1), numbers)


def _mix(z: KeyArray) -> KeyArray:
    """Return splitmix64's finaliser of each number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sum_row_hashes(
    bits: AnyArray,
    indices: AnyArray,
    indptr: AnyArray,
    keys: KeyArray,
    dense: bool,
    first_row: np.uint64,
) -> tuple[np.uint64, np.uint64]:
    """Return the two sums of `rows.block.fingerprint`."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    lengths = np.diff(indptr)
    if dense:
        features = np.arange(len(bits)) - np.repeat(indptr[:-1], lengths)
    else:
        features = indices
    mixed = _mix(((features.astype(np.uint64) << _HALF) | bits.astype(np.uint64)) + golden)
    mixed[bits == 0] = 0  # the zeros of a dense row are not content
    row = _mix(row_sums(mixed, indptr) + _mix(keys + golden))
    # In arrays: of single numbers numpy would warn that they wrap round.
    twice = np.full(len(keys), 2, np.uint64) * golden
    order = _mix(row + _mix(first_row + np.arange(len(keys), dtype=np.uint64) + twice))
    return np.sum(row, dtype=np.uint64), np.sum(order, dtype=np.uint64)
