"""Requests between worker processes: what comes back, in which order, and when one is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.protocol.pickle import dumps

from hmrf_dask.errors import LostOwnerError
from hmrf_dask.flow import messages
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.flow.messages import AT_ONCE, Peers
from tests.support.dask_processes import dask_processes

pytestmark = pytest.mark.cluster
under_way, most = [0], [0]
lock = threading.Lock()


def where(number: int) -> tuple[int, np.ndarray[Any, Any]]:
    """Answer with an array, and count how many do so at the same time."""
    with lock:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
    time.sleep(0.02)
    with lock:
        under_way[0] -= 1
    return number, np.full(3, number)


def lost(what: str) -> None:
    raise LostOwnerError(f"{what} gone; nothing")


def broken(what: str) -> None:
    raise KeyError(what)


def slow(seconds: float) -> None:
    time.sleep(seconds)


def asks(function: Any, asked: list[Any], deadline: float) -> list[Any]:
    return list(Peers(deadline).ask(function, asked))


@pytest.fixture
def cluster() -> Iterator[tuple[DaskFlow, LocalCluster]]:
    """Give a flow on two workers in this process, which have run a task each."""
    address = "127.0.0.1:0"
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=address
        ) as own,
        Client(own) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        flow = DaskFlow()
        flow.compute([flow.lazy_at(one, int) for one in flow.workers()])
        yield flow, own


def test_answers_come_with_the_numbers_of_requests(cluster: Any) -> None:
    flow, _ = cluster
    here, there = flow.workers()
    asked = [(place, (number,)) for number, place in enumerate([here, there] * 15)]
    for place in (here, there):
        most[0] = 0
        (answers,) = flow.compute([flow.lazy_at(place, asks, where, asked, 60.0)])
        assert sorted(number for number, _ in answers) == list(range(30))
        assert all(number == own for number, (own, _) in answers)
        assert all(values.tolist() == [number] * 3 for number, (_, values) in answers)
        assert 1 < most[0] <= AT_ONCE
        first = [number for number, _ in answers[:AT_ONCE]]  # each begins with another one
        assert {asked[number][0] for number in first} >= {place}


def test_what_is_raised_there_is_raised_here(cluster: Any) -> None:
    flow, _ = cluster
    here, there = flow.workers()
    for place in (here, there):  # another one, and the process itself
        with pytest.raises(LostOwnerError, match=r"^7 gone"):
            flow.compute([flow.lazy_at(here, asks, lost, [(place, ("7",))], 60.0)])
    with pytest.raises(KeyError, match="8"):
        flow.compute([flow.lazy_at(here, asks, broken, [(there, ("8",))], 60.0)])


def test_a_silent_process_is_lost(cluster: Any) -> None:
    flow, _ = cluster
    here, there = flow.workers()
    with pytest.raises(LostOwnerError, match=f"{there} must answer, got nothing in 0.05 s"):
        flow.compute([flow.lazy_at(here, asks, slow, [(there, (0.4,))], 0.05)])


def test_a_process_that_has_run_no_task_holds_nothing(cluster: Any) -> None:
    flow, own = cluster
    here, there = (worker for worker in own.workers.values())
    del there.handlers[messages.OPERATION]
    with pytest.raises(LostOwnerError, match=f"{there.address} must answer, got a worker that"):
        flow.compute([flow.lazy_at(here.address, asks, slow, [(there.address, (0.0,))], 60.0)])


def test_a_process_that_is_gone_is_lost(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "CONNECTING", 0.5)
    flow, own = cluster
    here, there = (worker.address for worker in own.workers.values())
    own.sync(own.workers[1].close)
    quick = {"distributed.comm.timeouts.connect": "0.2 s", "hmrf.retries": 0}
    with dask.config.set(quick), pytest.raises(LostOwnerError, match=f"{there} must answer, got "):
        flow.compute([flow.lazy_at(here, asks, slow, [(there, (0.0,))], 60.0)])


@pytest.mark.long
def test_requests_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dask_processes(tmp_path, 2) as processes:
        secured = {key: value for key, value in processes.environment.items() if "TLS" in key}
        from distributed.security import Security

        name = "DASK_DISTRIBUTED__COMM__TLS__"
        files = {
            "tls_ca_file": secured[f"{name}CA_FILE"],
            "tls_client_cert": secured[f"{name}CLIENT__CERT"],
            "tls_client_key": secured[f"{name}CLIENT__KEY"],
        }
        security = Security(require_encryption=True, **files)
        with Client(processes.address, security=security) as client:
            client.wait_for_workers(2, timeout=60)
            flow = DaskFlow()
            here, there = flow.workers()
            assert here.startswith("tls://")
            flow.compute([flow.lazy_at(one, int) for one in (here, there)])
            asked = [(there, (number,)) for number in range(20)]
            (answers,) = flow.compute([flow.lazy_at(here, asks, where, asked, 60.0)])
            assert sorted(number for number, _ in answers) == list(range(20))


def test_many_that_wait_for_one_another_are_all_answered() -> None:
    """One that holds what the others wait for comes last, behind more than there are threads."""

    async def asked() -> list[dict[str, Any]]:
        waiting = [
            asyncio.create_task(messages._answered(None, dumps((held, ())))) for _ in range(64)
        ]
        await asyncio.sleep(0)
        released = messages._answered(None, dumps((release, ())))
        return await asyncio.gather(asyncio.wait_for(released, 10.0), *waiting)

    assert {answer["status"] for answer in asyncio.run(asked())} == {"OK"}


_free = threading.Event()


def held() -> None:
    assert _free.wait(20.0)


def release() -> None:
    _free.set()


def test_a_thread_of_the_driver_answers_nobody() -> None:
    messages.answer_peers()  # and it is not refused
    with pytest.raises(ValueError, match="No worker"):
        _ = messages.Peers(1.0).here
