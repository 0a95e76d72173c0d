"""Python in the place of our own machine instructions: `NUMBA_DISABLE_JIT=1` runs kernels with it.

That is for debugging: a kernel then stops at a breakpoint, a hundred times slower. Numba cannot run
an intrinsic as Python, so each has its form here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from hmrf_dask.types import AnyArray


def product(dense: bool, lanes: int) -> Callable[..., None]:
    """Return what writes the products of a row with `lanes` × vectors columns of a table."""

    def multiply(
        values: AnyArray, indices: AnyArray, table: AnyArray, out: AnyArray,
        vectors: tuple[int, ...], start: int, stop: int, column: int,
    ) -> None:  # fmt: skip
        columns = slice(column, column + lanes * len(vectors))
        sums = np.zeros(lanes * len(vectors), out.dtype)
        for place in range(start, stop):
            feature = place - start if dense else indices[place]
            sums += table[feature, columns] * out.dtype.type(values[place])
        out[columns] = sums

    return multiply


def store(table: AnyArray, row: int, column: int, value: float) -> float:
    """Store a number in a float32 table and return what was stored."""
    table[row, column] = value
    return float(table[row, column])


def score(scores: AnyArray, bias: AnyArray, extra: AnyArray, scale: float, shift: float) -> Any:
    """Turn products into scores and return the least."""
    scores *= scale
    scores += bias
    scores += extra * shift
    return scores.min()


def count_within(scores: AnyArray, limit: float) -> int:
    """Return how many scores are not above a limit."""
    return int(np.count_nonzero(scores <= limit))


def least_beyond(scores: AnyArray, limit: float) -> Any:
    """Return the least score above a limit, infinity where there is none."""
    return scores[scores > limit].min(initial=np.float32(np.inf))


def multiply_add(one: float, other: float, third: float) -> float:
    """Return one · other + third, rounded once."""
    return float(Fraction(float(one)) * Fraction(float(other)) + Fraction(float(third)))


def view(name: str) -> Callable[[int, int], AnyArray]:
    """Return what shows numbers at an address as an array."""
    number = ctypes.c_float if name == "float32" else ctypes.c_int32

    def shown(address: int, length: int) -> AnyArray:
        return np.ctypeslib.as_array((number * int(length)).from_address(int(address)))

    return shown


def copy_line(source: AnyArray, first: int, target: AnyArray, place: int, width: int = 16) -> None:
    """Copy the numbers of a cache line."""
    target[place : place + width] = source[first : first + width]
