"""Sums that outgrow int64: two limbs, high · 2**32 + low with 0 <= low < 2**32, always exact."""

from __future__ import annotations

from hmrf_dask.kernels.compiled import inner

BITS = 32
MASK = (1 << BITS) - 1


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
