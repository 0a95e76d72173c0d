"""Which files of a release are hashed tonight: all that is small, and of the rest a share.

The share follows from names and the day, so no state is needed: after as many nights as there are
shares each file was read once. The numbers of shares are primes, so that a job that runs every
second or every seventh day comes round to all of them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from zlib import crc32

SMALL_BYTES, SMALL_FILES = 8 * 2**20, 128  # at most, together: hashed every time
NIGHT_BYTES = 256 * 2**20  # of the rest, about
SHARES = (31, 61, 127, 251, 509, 1021, 2039, 4093)


def tonight() -> int:
    """Return the number of the day, UTC."""
    return datetime.now(UTC).date().toordinal()


def small_of(sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the smallest files, as many as are hashed every time.

    Examples
    --------
    >>> small_of({"a": 3, "b": 2**30, "c": 1})
    ['c', 'a']
    """
    chosen: list[str] = []
    n_bytes = 0
    for name in sorted(sizes, key=lambda one: (sizes[one], one))[:SMALL_FILES]:
        n_bytes += sizes[name]
        if n_bytes > SMALL_BYTES:
            break
        chosen.append(name)
    return chosen


def hashed_in(night: int, sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the files that a night hashes, of all with these sizes."""
    small = small_of(sizes)
    rest = sorted(sizes.keys() - set(small))
    n_bytes = sum(sizes[name] for name in rest)
    n_shares = next((one for one in SHARES if n_bytes <= one * NIGHT_BYTES), SHARES[-1])
    return small + [name for name in rest if crc32(name.encode()) % n_shares == night % n_shares]
