"""Requests of a task to other worker processes: straight there, past the scheduler.

A task of each of W workers for each of C others would be W × C tasks, which the scheduler counts
one by one. What travels here takes the connections that workers have with one another anyway, TLS
with them, and arrays are not copied. Nothing of it is known to the scheduler: what is lost with a
process is lost, and said to be.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

from hmrf_dask.errors import LostOwnerError

OPERATION = "hmrf_ask"  # of Dask's workers, by the name that their peers call it
CONNECTING = 10.0  # seconds
AT_ONCE = 8  # requests under way: as many answers at most are in memory


# Many may wait for one model, and that for another process; Dask's own threads are few.
ANSWERS = ThreadPoolExecutor(2**12, "hmrf-answers")
_answering: ContextVar[Any] = ContextVar("answering")  # the worker, where it answers a request


def _this_worker() -> Any:
    from distributed import get_worker

    return _answering.get(None) or get_worker()


class Peers:
    """The worker processes as tasks see them: what waits longer than the `deadline` is lost."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline  # seconds; of the driver's settings, which workers need not have

    @property
    def here(self) -> str:
        """The address of the worker whose task asks for it."""
        return str(_this_worker().address)

    def ask(
        self, function: Callable[..., Any], asked: Sequence[tuple[str, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, Any]]:
        """Return what the function returns in other processes, as it comes: by number of `asked`.

        That is addresses with arguments. Of W processes that ask all others each begins with
        another one. LostOwnerError where an answer does not come; what is raised there is raised
        here.
        """
        worker = _this_worker()
        order = sorted(range(len(asked)), key=lambda n: (asked[n][0] < worker.address, n))
        waiting, under_way = deque(order), dict[Future[Any], int]()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < AT_ONCE:
                    number = waiting.popleft()
                    under_way[_asked(worker, function, *asked[number])] = number
                done = wait(under_way, self.deadline, FIRST_COMPLETED).done
                if not done:
                    silent = ", ".join(asked[number][0] for number in under_way.values())
                    raise LostOwnerError(
                        f"{silent} must answer, got nothing in {self.deadline:g} s"
                    )
                for future in done:
                    number = under_way.pop(future)
                    yield number, future.result()
        finally:
            for future in under_way:
                future.cancel()


def _asked(
    worker: Any, function: Callable[..., Any], address: str, arguments: tuple[Any, ...]
) -> Future[Any]:
    """Begin to ask; a process that asks itself answers at once, and nothing is sent."""
    if address == worker.address:
        answered: Future[Any] = Future()
        answered.set_result(function(*arguments))
        return answered
    call = _call(worker, function, address, arguments)
    return asyncio.run_coroutine_threadsafe(call, worker.loop.asyncio_loop)


async def _call(
    worker: Any, function: Callable[..., Any], address: str, arguments: tuple[Any, ...]
) -> Any:
    """Return what another worker answers."""
    from distributed.core import clean_exception
    from distributed.protocol.pickle import dumps

    request = dumps((function, arguments))
    try:
        # Dask tries for long to reach a process that is gone, and the thread that waits for that is
        # one that the fit needs.
        worker.rpc.reuse(address, await worker.rpc.connect(address, timeout=CONNECTING))
        reply = await getattr(worker.rpc(address), OPERATION)(request=request)
    except (OSError, TimeoutError) as error:
        what = str(error) or type(error).__name__
        raise LostOwnerError(f"{address} must answer, got {what}; see what its log says") from error
    if not reply:  # no operation of that name
        raise LostOwnerError(f"{address} must answer, got a worker that has run no task yet")
    raised = None if reply["status"] == "OK" else clean_exception(**reply)[1]
    if raised is not None:
        raise raised
    return reply["result"]


def answer_peers() -> None:
    """Let the worker of this task, if any, answer other workers from now on."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        with suppress(ValueError):  # a thread of the driver
            worker = get_worker()
            if OPERATION not in worker.handlers:

                async def answered(request: bytes) -> dict[str, Any]:
                    """Return what a function returns or raises in this worker."""
                    return await _answered(worker, request)

                worker.handlers[OPERATION] = answered


async def _answered(worker: Any, request: bytes) -> dict[str, Any]:
    """Return what a function returns or raises, while the event loop serves others."""
    from distributed.core import error_message
    from distributed.protocol.pickle import loads
    from distributed.protocol.serialize import to_serialize

    function, arguments = loads(request)
    _answering.set(worker)  # for this connection
    call = partial(copy_context().run, function, *arguments)
    try:
        result = await asyncio.get_running_loop().run_in_executor(ANSWERS, call)
    except Exception as error:  # noqa: BLE001 - it is for who asked
        return dict(error_message(error))
    return {"status": "OK", "result": to_serialize(result)}
