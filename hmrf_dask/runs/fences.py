"""Folders that this process may write as long as nobody else has taken them over.

Whoever holds an output fences it; then nothing below it is written or removed without a look at
whether the hold is lost: a process that was stopped and wakes must not touch what is another's now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHECKS: dict[str, Callable[[], None]] = {}


@contextmanager
def fenced(url: str, check: Callable[[], None]) -> Iterator[None]:
    """Have `check` called before every change below a folder; it raises where that is refused."""
    _CHECKS[url] = check
    try:
        yield
    finally:
        if _CHECKS.get(url) is check:
            del _CHECKS[url]


def refuse_if_lost(url: str) -> None:
    """Raise what the check of a folder raises, if this one is that folder or lies below it."""
    for root, check in list(_CHECKS.items()):
        if url == root or url.startswith(f"{root}/"):
            check()
