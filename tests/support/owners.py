"""What owners of clusters are watched by: what passes through the driver, and workers that die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
from dask.sizeof import sizeof

from hmrf_dask.flow import dataflow
from hmrf_dask.flow.graphs import merged
from hmrf_dask.kernels import shared_memory
from hmrf_dask.tasks import owners, parcels, whole_models


@dataclass
class Passed:
    """Bytes of all that a driver sent and got, graph by graph."""

    sent: list[int] = field(default_factory=list)
    got: list[int] = field(default_factory=list)  # the largest result of each graph
    all_got: int = 0


@contextmanager
def watched_driver() -> Iterator[Passed]:
    """Watch the graphs that leave this process, and the results that come."""
    passed = Passed()
    begun, fetch = dataflow._begun, dataflow.fetch

    def sent(client: Any, tasks: Any, *where: Any) -> Any:
        graph = {key: task for key, task in merged(tasks).items() if type(task) is tuple}
        passed.sent.append(len(cloudpickle.dumps(graph)))
        return begun(client, tasks, *where)

    def got(*arguments: Any, **more: Any) -> Any:
        found = fetch(*arguments, **more)
        sizes = [sizeof(one) for one in found]
        passed.got.append(max(sizes, default=0))
        passed.all_got += sum(sizes)
        return found

    with mock.patch.object(dataflow, "_begun", sent), mock.patch.object(dataflow, "fetch", got):
        yield passed


@contextmanager
def forgetful(after: int) -> Iterator[list[int]]:
    """Let owners in this process lose all they have when they are asked so often; count that."""
    take, asked = owners.take, [0]

    def forgets(name: str, first: int) -> Any:
        asked[0] += 1
        if asked[0] == after:
            owners._held.clear()
        return take(name, first)

    with mock.patch.object(owners, "take", forgets):
        yield asked


_seen: list[Any] = []  # what this process saw of others, in `Mapped.value`, which comes first


def watch_memory(allowed: bool) -> None:
    """Note what this process sees of others, or let it see nothing; for `Client.run`."""
    value = shared_memory.Mapped.value

    def watched(mapped: Any, packed: Any) -> Any:
        if not allowed:
            raise OSError("memory of others is not to be seen here")
        _seen.append(len(packed.pieces))
        return value(mapped, packed)

    _seen[:] = [value]
    shared_memory.Mapped.value = watched  # type: ignore[method-assign]


def memory_seen() -> int:
    """Return how often this process saw what others have, and watch it no more."""
    shared_memory.Mapped.value = _seen[0]  # type: ignore[method-assign]
    return len(_seen) - 1


def dies_at(name: str, number: int, folder: str, n_dying: int) -> None:
    """Let this process die at its nth task of that name, if fewer died; for `Client.run`.

    Each of those that die makes a file in the folder.
    """
    module = next(one for one in (owners, parcels, whole_models) if hasattr(one, name))
    function, left = getattr(module, name), [number]

    def is_due() -> bool:
        """Return whether it is this process's turn to die."""
        for turn in range(n_dying):
            with suppress(FileExistsError, FileNotFoundError):  # the folder is gone: nobody dies
                (Path(folder) / str(turn)).touch(exist_ok=False)
                return True
        return False

    @wraps(function)  # by whose name others ask for it
    def dies(*arguments: Any) -> Any:
        left[0] -= 1
        if not left[0] and is_due():
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    setattr(module, name, dies)
