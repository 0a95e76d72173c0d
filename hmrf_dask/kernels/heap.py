"""A heap of items ordered by (largest gain, lowest index) whose gains may change at any time.

An item stands in the heap at most once, so memory is 8 bytes an item plus the gains. A gain is one
int64, or two limbs where `low` is used; only items with a gain above zero are held.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import inner
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


def empty_heap(n: int, two_limbs: bool) -> Heap:
    """Return a heap of n items, none of them in it."""
    return Heap(
        np.zeros(n, np.int64),
        np.zeros(n if two_limbs else 0, np.int64),
        np.empty(n, np.int32),
        np.full(n, -1, np.int32),
        np.zeros(1, np.int64),
    )


@inner(inline="always")
def _before(high, low, one, other):  # type: ignore[no-untyped-def]
    if high[one] != high[other]:
        return high[one] > high[other]
    if low.shape[0] > 0 and low[one] != low[other]:
        return low[one] > low[other]
    return one < other


@inner(inline="always")
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


@inner(inline="always")
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


@inner()
def place_item(high, low, items, position, size, item):  # type: ignore[no-untyped-def]
    """Put an item whose gain has changed where it belongs: in, out or elsewhere."""
    place = np.int64(position[item])
    last = size[0]
    if high[item] != 0 or (low.shape[0] > 0 and low[item] != 0):
        if place < 0:
            place = last
            items[place] = item
            last += 1
    elif place >= 0:
        position[item] = -1
        last -= 1
        items[place] = items[last]
    size[0] = last
    if 0 <= place < last:
        settled = _sift_up(high, low, items, position, place)
        if settled == place:
            _sift_down(high, low, items, position, last, place)
