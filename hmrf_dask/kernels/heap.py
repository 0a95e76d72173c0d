"""A heap of items ordered by (largest gain, lowest index) whose gains may change at any time.

An item stands in the heap at most once, so memory is 8 bytes an item plus the gains. A gain is one
int64, or two limbs where `low` is used; only items with a gain above zero are held.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import njit
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


# Numba counts references, atomically, to an array taken out of a tuple: what runs for every change
# is given plain arrays.
@njit(nogil=True, cache=True, inline="always")
def _before(high, low, one, other):  # type: ignore[no-untyped-def]
    if high[one] != high[other]:
        return high[one] > high[other]
    if low.shape[0] > 0 and low[one] != low[other]:
        return low[one] > low[other]
    return one < other


@njit(nogil=True, cache=True)
def _sift_up(high, low, items, position, place):  # type: ignore[no-untyped-def]
    item = items[place]
    while place > 0:
        parent = (place - 1) >> 1
        above = items[parent]
        if not _before(high, low, item, above):
            break
        items[place] = above
        position[above] = place
        place = parent
    items[place] = item
    position[item] = place
    return place


@njit(nogil=True, cache=True)
def _sift_down(high, low, items, position, size, place):  # type: ignore[no-untyped-def]
    item = items[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(high, low, items[child + 1], items[child]):
            child += 1
        below = items[child]
        if not _before(high, low, below, item):
            break
        items[place] = below
        position[below] = place
        place = child
    items[place] = item
    position[item] = place


@njit(nogil=True, cache=True)
def build_heap(heap):  # type: ignore[no-untyped-def]
    """Order a heap anew from the gains alone."""
    high, low, items, position = heap.high, heap.low, heap.items, heap.position
    size = 0
    for item in range(high.shape[0]):
        position[item] = -1
        if high[item] != 0 or (low.shape[0] > 0 and low[item] != 0):
            items[size] = item
            position[item] = size
            size += 1
    for place in range(size // 2 - 1, -1, -1):
        _sift_down(high, low, items, position, size, place)
    heap.size[0] = size


@njit(nogil=True, cache=True)
def _settle_place(high, low, items, position, size, place):  # type: ignore[no-untyped-def]
    if _sift_up(high, low, items, position, place) == place:
        _sift_down(high, low, items, position, size, place)


@njit(nogil=True, cache=True)
def place_item(high, low, items, position, size, item):  # type: ignore[no-untyped-def]
    """Put an item whose gain has changed where it belongs: in, out or elsewhere."""
    place = np.int64(position[item])
    last = size[0]
    if high[item] != 0 or (low.shape[0] > 0 and low[item] != 0):
        if place < 0:
            place = last
            items[place] = item
            last += 1
            size[0] = last
        _settle_place(high, low, items, position, last, place)
    elif place >= 0:
        position[item] = -1
        last -= 1
        size[0] = last
        if place < last:
            items[place] = items[last]
            _settle_place(high, low, items, position, last, place)


@njit(nogil=True, cache=True)
def set_gain(heap, item, high, low):  # type: ignore[no-untyped-def]
    """Give an item another gain (`low` counts for two limbs only) and put it where it belongs."""
    changed = heap.high[item] != high
    heap.high[item] = high
    if heap.low.shape[0] > 0:
        changed |= heap.low[item] != low
        heap.low[item] = low
    if changed:
        place_item(heap.high, heap.low, heap.items, heap.position, heap.size, item)
