"""What a command's work costs so far: bytes between workers, bytes of stores, what is done again.

Workers report their bytes with each heartbeat. A plugin of the scheduler adds them up, those of
workers that have left too, and counts tasks that are run again; it goes with its client.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Any

from distributed import SchedulerPlugin

from hmrf_dask.flow.clients import active_client, ask
from hmrf_dask.flow.cluster import TRAFFIC
from hmrf_dask.storage.remote import store_traffic

log = logging.getLogger("hmrf_dask")
SECONDS = 3.0  # in which a scheduler says what it counted, or is asked later
RETRIES = "task_retries"


class Counting(SchedulerPlugin):
    """Counts what happens on a scheduler while a client is there."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._name = _name_of(client)
        self._last: dict[tuple[str, str], int] = {}  # what a worker reported last
        self._counts: Counter[str] = Counter({RETRIES: 0})

    def transition(  # as Dask names what it takes
        self,
        key: Any,  # noqa: ARG002
        start: Any,  # noqa: ARG002
        finish: Any,
        *args: Any,  # noqa: ARG002
        stimulus_id: str,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Count a task that waits again though no graph asks for it: it failed, or was lost."""
        self._counts[RETRIES] += finish == "waiting" and not stimulus_id.startswith("update-graph")

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End with the client."""
        if client == self._client:
            scheduler.remove_plugin(name=self._name)

    def counts(self, scheduler: Any) -> dict[str, int]:
        """Return all counts so far."""
        for worker in scheduler.workers.values():
            for what, now in worker.metrics.get(TRAFFIC, {}).items():
                before = self._last.get((worker.address, what), 0)
                self._counts[what] += now - before if now >= before else now
                self._last[worker.address, what] = now
        return dict(self._counts)


def _name_of(client: str) -> str:
    return f"hmrf-counting-{client}"


def _counts_on(client: str, dask_scheduler: Any) -> dict[str, int]:
    """Return the counts of a client's plugin, which the first question makes."""
    name = _name_of(client)
    if name not in dask_scheduler.plugins:
        dask_scheduler.add_plugin(Counting(client), name=name)
    counted: dict[str, int] = dask_scheduler.plugins[name].counts(dask_scheduler)
    return counted


def traffic() -> dict[str, int]:
    """Return bytes and retries so far: of this process, and of the cluster in use.

    Of a cluster that gives no answer soon they are left out.

    Examples
    --------
    >>> sorted(traffic())[:2]
    ['store_received_bytes', 'store_retries']
    """
    counts = Counter(store_traffic())
    client = active_client()
    if client is not None:
        question = partial(client.run_on_scheduler, _counts_on, client.id)
        try:
            counts.update(ask(client, "the scheduler must count", question, seconds=SECONDS))
        except Exception as error:  # noqa: BLE001 - whoever counts work never ends it
            log.debug("work is not counted: %s", error)
            return {}
    return dict(counts)
