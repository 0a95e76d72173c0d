"""Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC 2011), one draw per document.

No state is kept: a draw depends on its own counter alone, not on partitions, threads or order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hmrf_dask.kernels.compiled import frozen, inner, njit
from hmrf_dask.types import FloatArray, KeyArray

PURPOSES = {
    "k-means++": 1,
    "random": 2,
    "perturb": 3,
    "sample": 4,
    "sketch": 6,
    "drawn": 7,
    "fold": 8,
    "half": 9,
    "shuffle": 10,
    "question": 11,
}
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@inner()
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, ...]:
    """Return the four words of Philox 4x32-10 for a counter and a key, all uint64 below 2**32."""
    for _ in range(10):
        left = np.uint64(0xD2511F53) * c0
        right = np.uint64(0xCD9E8D57) * c2
        c0 = (right >> _HALF) ^ c1 ^ k0
        c1 = right & _WORD
        c2 = (left >> _HALF) ^ c3 ^ k1
        c3 = left & _WORD
        k0 = (k0 + np.uint64(0x9E3779B9)) & _WORD
        k1 = (k1 + np.uint64(0xBB67AE85)) & _WORD
    return c0, c1, c2, c3


@njit(nogil=True, cache=True, makes_arrays=False)
def _uniforms(keys: KeyArray, seed: Any, place: Any, counter: Any, out: FloatArray) -> None:
    for i in range(keys.shape[0]):
        words = philox(
            keys[i] & _WORD, keys[i] >> _HALF, counter, place, seed & _WORD, seed >> _HALF
        )
        # 52 bits and a half: with 53 the half would round the largest up to 1
        bits = (words[0] << np.uint64(20)) | (words[1] >> np.uint64(12))
        out[i] = (np.float64(bits) + 0.5) * 2.0**-52


@njit(nogil=True, cache=True, makes_arrays=False)
def _exponentials(numbers: FloatArray) -> None:
    for i in range(numbers.shape[0]):
        numbers[i] = -math.log(numbers[i])  # one by one: numpy's vectors may round otherwise


def uniforms(
    keys: KeyArray, seed: int, purpose: str, start: int, step: int, draw: int
) -> FloatArray:
    """Return one number in (0, 1) for each document key.

    The run's seed is below 2**64; of the counters `start` is below 2**16, `step` below 2**24 and
    `draw` below 2**8.

    Examples
    --------
    >>> keys = np.array([7], np.uint64)
    >>> uniforms(keys, 0, "random", 0, 0, 0) == uniforms(keys, 0, "random", 0, 0, 0)
    array([ True])
    """
    out = np.empty(len(keys), np.float64)
    place = np.uint64((PURPOSES[purpose] << 16) | start)
    counter = np.uint64((step << 8) | draw)
    _uniforms(frozen(keys, np.uint64), np.uint64(seed), place, counter, out)
    return out


def exponentials(
    keys: KeyArray, seed: int, purpose: str, start: int, step: int, draw: int
) -> FloatArray:
    """Return one standard exponential number for each key: the least e/weight wins a fair race."""
    out = uniforms(keys, seed, purpose, start, step, draw)
    _exponentials(out)
    return out
