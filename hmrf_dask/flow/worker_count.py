"""Whether as many workers stay as were asked for: counted from one graph to the next."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

from hmrf_dask.errors import ClusterError, counted
from hmrf_dask.flow.clients import AGAIN, LEAST, setting
from hmrf_dask.storage.remote import seconds_of

EVERY = 2.0  # seconds between two counts where no graph takes longer


class WorkerCount:
    """The workers of a cluster, by their number; short graphs add up to a long time.

    Examples
    --------
    >>> WorkerCount().check(0, "tcp://a:1")  # as nobody asked for any
    """

    def __init__(self) -> None:
        self._counted = time.monotonic()
        self._short = 0.0  # seconds for which there have been fewer

    @property
    def is_due(self) -> bool:
        """Whether to count now."""
        return bool(setting("least-workers", 0)) and time.monotonic() - self._counted > EVERY

    def check(self, number: int, address: str) -> None:
        """Raise where there were fewer than were asked for at every count for too long."""
        least, before = int(setting("least-workers", 0)), self._counted
        self._counted = time.monotonic()
        # Between two counts that are far apart nobody knows what was, and this process may have
        # been stopped.
        since = min(self._counted - before, 5 * EVERY)
        self._short = 0.0 if number >= least else self._short + since
        allowed = seconds_of("refill-timeout", "10 minutes", least=LEAST)
        if self._short > allowed:
            raise ClusterError(
                f"{counted(least, 'worker')} must stay while the work lasts, got {number} on "
                f"{address} for {allowed:g} s (cluster.wait_for, cluster.wait_seconds); see why "
                f"lost ones do not come back, and {AGAIN}"
            )


_COUNTS: WeakKeyDictionary[Any, WorkerCount] = WeakKeyDictionary()


def worker_count_of(client: Any) -> WorkerCount:
    """Return the count of workers of a client's cluster."""
    return _COUNTS.setdefault(client, WorkerCount())
