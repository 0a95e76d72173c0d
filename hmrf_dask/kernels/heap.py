"""A heap of items ordered by (largest gain, lowest index) whose gains may change at any time.

An item stands in the heap at most once, so memory is 8 bytes an item plus the gains. A gain is one
int64, or two limbs where `low` is used; only items with a gain above zero are held.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hmrf_dask.types import AnyArray


class Heap(NamedTuple):
    """Arrays of the heap.

    Attributes
    ----------
    high : int64 array, shape (n,)
        Gain of every item; never negative.
    low : int64 array, shape (n,) or (0,)
        Its low limb; empty where gains fit one int64.
    items : int32 array, shape (n,)
        The heap, in its first ``size[0]`` places.
    position : int32 array, shape (n,)
        Where an item stands in the heap, -1 when it is not in it.
    size : int64 array, shape (1,)
    """

    high: AnyArray
    low: AnyArray
    items: AnyArray
    position: AnyArray
    size: AnyArray


@njit(nogil=True, cache=True)
def empty_heap(n, two_limbs):  # type: ignore[no-untyped-def]
    """Return a heap of n items, none of them in it."""
    return Heap(
        np.zeros(n, np.int64),
        np.zeros(n if two_limbs else 0, np.int64),
        np.empty(n, np.int32),
        np.full(n, -1, np.int32),
        np.zeros(1, np.int64),
    )


@njit(nogil=True, cache=True, inline="always")
def _before(heap, one, other):  # type: ignore[no-untyped-def]
    if heap.high[one] != heap.high[other]:
        return heap.high[one] > heap.high[other]
    if heap.low.shape[0] > 0 and heap.low[one] != heap.low[other]:
        return heap.low[one] > heap.low[other]
    return one < other


@njit(nogil=True, cache=True)
def _sift_up(heap, place):  # type: ignore[no-untyped-def]
    item = heap.items[place]
    while place > 0:
        parent = (place - 1) >> 1
        above = heap.items[parent]
        if not _before(heap, item, above):
            break
        heap.items[place] = above
        heap.position[above] = place
        place = parent
    heap.items[place] = item
    heap.position[item] = place
    return place


@njit(nogil=True, cache=True)
def _sift_down(heap, place):  # type: ignore[no-untyped-def]
    item = heap.items[place]
    size = heap.size[0]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap, heap.items[child + 1], heap.items[child]):
            child += 1
        below = heap.items[child]
        if not _before(heap, below, item):
            break
        heap.items[place] = below
        heap.position[below] = place
        place = child
    heap.items[place] = item
    heap.position[item] = place


@njit(nogil=True, cache=True)
def build_heap(heap):  # type: ignore[no-untyped-def]
    """Order a heap anew from the gains alone."""
    heap.size[0] = 0
    for item in range(heap.high.shape[0]):
        heap.position[item] = -1
        if heap.high[item] != 0 or (heap.low.shape[0] > 0 and heap.low[item] != 0):
            heap.items[heap.size[0]] = item
            heap.position[item] = heap.size[0]
            heap.size[0] += 1
    for place in range(heap.size[0] // 2 - 1, -1, -1):
        _sift_down(heap, place)


@njit(nogil=True, cache=True)
def _remove(heap, place):  # type: ignore[no-untyped-def]
    heap.position[heap.items[place]] = -1
    heap.size[0] -= 1
    last = heap.size[0]
    if place < last:
        heap.items[place] = heap.items[last]
        heap.position[heap.items[place]] = place
        if _sift_up(heap, place) == place:
            _sift_down(heap, place)


@njit(nogil=True, cache=True)
def set_gain(heap, item, high, low):  # type: ignore[no-untyped-def]
    """Give an item another gain (`low` counts for two limbs only) and put it where it belongs."""
    changed = heap.high[item] != high
    heap.high[item] = high
    if heap.low.shape[0] > 0:
        changed |= heap.low[item] != low
        heap.low[item] = low
    if not changed:
        return
    place = heap.position[item]
    if high == 0 and low == 0:
        if place >= 0:
            _remove(heap, place)
        return
    if place < 0:
        place = heap.size[0]
        heap.items[place] = item
        heap.size[0] += 1
    if _sift_up(heap, place) == place:
        _sift_down(heap, place)
