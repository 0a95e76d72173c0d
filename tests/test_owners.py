"""Owners of clusters: what passes through the driver, what a loss does, when there are any.

That fits over owners have the bits of others is in `tests/test_same_bits.py`.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import ClusterError, ConfigurationError, LostOwnerError, RunDirectoryError
from hmrf_dask.fit import fitting, journal, owners
from hmrf_dask.fit.preparation import ADDING, HELD, TaskMemory, with_owners
from hmrf_dask.flow import dataflow, places
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.kernels.gradients import squares_by_length
from hmrf_dask.kernels.sums import Sums, add_sums
from hmrf_dask.tasks import cluster_totals
from hmrf_dask.tasks import owners as tasks
from hmrf_dask.tasks.cluster_totals import Clusters
from hmrf_dask.tasks.model import Model, Settings
from tests.support.cases import FITS
from tests.support.fits import Case, scheduled, text_case
from tests.support.long_cases import long
from tests.support.owners import dies_at, forgetful, watched_driver

SMALL = {"n_rows": 120, "n_features": 150, "n_clusters": 3, "n_pairs": 60}
CASE = text_case(**SMALL, init="random", n_init=1, refine=False, max_iter=4)
WIDE = text_case(
    n_rows=200, n_features=6000, n_clusters=24, n_pairs=20, init="random", n_init=1, refine=False
)
pytestmark = pytest.mark.cluster


def answer(case: Case) -> str:
    with scheduled("synchronous"):
        return case.answer(1)


@pytest.fixture(scope="module")
def workers() -> Iterator[Client]:
    """Give a client of two workers in this process."""
    address = "127.0.0.1:0"
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=address) as c:
        yield c


@pytest.fixture
def owned(workers: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Let both of them own clusters, however few there are."""
    monkeypatch.setattr(cluster_totals, "TOGETHER", 1)
    with dask.config.set({"hmrf.owners": 2}):
        yield workers


def test_nothing_of_the_size_of_centroids_passes_through_the_driver(
    owned: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "AT_A_TIME", 4 * 8 * 6000)  # four centroids at the end
    monkeypatch.setattr(journal, "SENT", 0)
    size = 8 * 24 * 6000
    with watched_driver() as passed:
        model = WIDE.fitted(3)
    assert max(passed.sent) < size / 4
    assert max(passed.got) < size / 4
    assert isinstance(model.cluster_centers_, np.memmap)
    with dask.config.set({"hmrf.owners": 0}), watched_driver() as passed:
        other = WIDE.fitted(3)
    assert max(passed.sent) > size / 4  # or the limit would say nothing
    assert other.cluster_centers_.tobytes() == model.cluster_centers_.tobytes()


def test_centroids_that_find_no_room_at_the_end(
    owned: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owners, "AT_A_TIME", 8)
    monkeypatch.setattr(owners.tempfile, "TemporaryFile", full)
    with pytest.raises(RunDirectoryError, match=r"room for the centroids .* 0 MB, got .*No space"):
        CASE.fitted(3)


@pytest.mark.parametrize("after", [3, *long(20)])
def test_what_owners_lose_is_made_again_from_the_last_commit(owned: Client, after: int) -> None:
    with forgetful(after) as asked:
        assert CASE.answer(3) == answer(CASE)
    assert asked[0] > after


def test_owners_that_are_lost_again_and_again(
    owned: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_asked: Any) -> Any:
        raise LostOwnerError("gone; nothing")

    monkeypatch.setattr(tasks, "_take", lost)
    monkeypatch.setattr(fitting, "MOST_LOSSES", 2)
    with pytest.raises(ClusterError, match=r"lost 3 times after commit 0 \(gone\); see") as e:
        CASE.fitted(3)
    assert e.value.exit_code == 75
    owned.run(int)
    assert not tasks._held  # though the error is here, and all that was in its frames


@pytest.mark.long
def test_owners_that_are_lost_after_a_fit(owned: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    case, ended = FITS["doubted, with ids"], owners.Owners.ended

    def then_lost(*arguments: Any) -> Any:
        state = ended(*arguments)
        tasks._held.clear()
        return state

    monkeypatch.setattr(owners.Owners, "ended", then_lost)
    assert "SuspectAnswer" in answer(case)
    assert case.answer(3) == answer(case)


def test_a_fit_over_owners_is_resumed_by_the_driver_alone(owned: Client, tmp_path: Path) -> None:
    class Stopped(BaseException):
        """Stands for Ctrl-C."""

    run_dir, keep = str(tmp_path / "run"), journal.Journal.keep

    def stop(own: Any, *arguments: Any) -> None:
        keep(own, *arguments)
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "SENT", 0)  # first centroids are files of their owners
        patch.setattr(journal.Journal, "keep", stop)
        with pytest.raises(Stopped):
            CASE.answer(3, run_dir=run_dir)
    with scheduled("synchronous"):
        assert CASE.answer(2, run_dir=run_dir) == answer(CASE)


def test_owners_let_go_of_everything_at_the_end(owned: Client) -> None:
    CASE.fitted(3)
    owned.run(int)  # comes after what was told before
    assert not tasks._held


@pytest.mark.long
@pytest.mark.parametrize("name", ["add_changes", "remake"])
@pytest.mark.parametrize("n_dying", [1, 2])
def test_workers_that_die_as_owners(process_client: Client, name: str, n_dying: int) -> None:
    process_client.wait_for_workers(2, timeout=60)
    addresses = sorted(process_client.scheduler_info()["workers"])[:n_dying]
    pids = process_client.run(os.getpid, workers=addresses)
    big = text_case(n_rows=120, n_features=70_000, n_clusters=3, n_pairs=60, init="random")
    with dask.config.set({"hmrf.owners": 2}):
        process_client.run(dies_at, name, 2, workers=addresses)
        assert big.answer(3) == answer(big)
    process_client.wait_for_workers(2, timeout=60)
    assert not set(pids.values()) & set(process_client.run(os.getpid).values())


@pytest.fixture
def leaving() -> Iterator[Any]:
    """Give the address of a worker of two, and what ends it."""
    address = "127.0.0.1:0"
    with (
        dask.config.set({"hmrf.no-progress-timeout": "5 s", "hmrf.no-workers-timeout": "5 s"}),
        LocalCluster(2, threads_per_worker=1, processes=False, dashboard_address=address) as own,
        Client(own),
    ):
        first = own.workers[0]
        yield first.address, lambda: own.sync(first.close)


def test_a_result_that_dies_with_its_owner_before_it_is_fetched(
    leaving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place, leave), fetch = leaving, dataflow.fetch

    def late(*arguments: Any, **more: Any) -> Any:
        leave()
        return fetch(*arguments, **more)

    monkeypatch.setattr(dataflow, "fetch", late)
    flow = DaskFlow()
    with pytest.raises(LostOwnerError, match=f"workers must stay, got {place} gone"):
        flow.compute([flow.lazy(abs, flow.lazy_at(place, int, 7))])


@pytest.mark.parametrize("way", ["persist", "begin"])
def test_a_kept_result_that_dies_with_its_owner(leaving: Any, way: str) -> None:
    place, leave = leaving
    flow = DaskFlow()
    kept = getattr(flow, way)([flow.lazy_at(place, int, 7)])
    assert flow.compute(kept) == [7]
    leave()
    with pytest.raises(LostOwnerError, match=f"workers must stay, got {place} gone"):
        flow.compute(kept)


def test_what_is_no_number_of_owners_is_refused(workers: Client) -> None:
    with (
        dask.config.set({"hmrf.owners": "many"}),
        pytest.raises(ConfigurationError, match="auto or a number of owners from 0 to 32, got 'm"),
    ):
        CASE.fitted(3)


@pytest.mark.parametrize(
    ("name", "why"),
    [("own distortion", "a distortion of your own"), *long(("full metric", "a full metric"))],
)
def test_much_that_passes_through_the_driver_is_said_with_its_reason(
    name: str,
    why: str,
    workers: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hmrf_dask")
    monkeypatch.setattr(owners, "LEAST", 1)
    FITS[name].fitted(3)
    (said,) = [one for one in caplog.messages if "pass through the driver" in one]
    assert why in said
    assert re.search(r"3 clusters of \d+ features, \d+ MB to each worker and back", said)


def test_little_that_passes_through_the_driver_is_not_said() -> None:
    cluster: Any = SimpleNamespace(n_workers=2)
    alone: Any = SimpleNamespace(n_workers=0)
    full, usual, many = Settings(10, metric="full"), Settings(10), owners.LEAST
    assert owners.in_driver(cluster, full, make_distortion("euclidean"), many)
    assert not owners.in_driver(cluster, full, make_distortion("euclidean"), 10)
    assert not owners.in_driver(alone, full, make_distortion("euclidean"), many)
    assert not owners.in_driver(cluster, usual, make_distortion("cosine"), many)


def test_an_owner_is_planned_for_in_the_place_of_whole_sums() -> None:
    planned = [TaskMemory("a step", (("rows", 7),)), TaskMemory(ADDING, (("9 of them", 9 * 80),))]
    step, owner = with_owners(planned, 2, 3)
    assert step == planned[0]
    assert owner.total == (3 + HELD) * 80 // 2


def test_a_task_that_runs_twice_changes_nothing_twice() -> None:
    visit = tasks.Visit(4, 6, ())
    nothing = np.zeros(0, np.int64)
    ones = Sums(np.ones((2, 3), np.int64), nothing, nothing, np.ones(2, np.int64), 3)
    for _ in range(2):
        tasks.begin_sums(visit, "test.0", [ones])
    for _ in range(2):
        tasks.add_changes(visit, "test.0", "test.1", [ones, ones], True)
    assert tasks._take("test.1", 4).sums.tolist() == [[3, 3, 3], [3, 3, 3]]
    with pytest.raises(LostOwnerError, match=r"from 4 on gone"):
        tasks.vacant_at(visit, "test.0")
    tasks.leave("test")


def test_parts_of_sums_are_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    nothing = np.zeros(0, np.int64)
    whole = rng.integers(-9, 9, (7, 5))
    places = rng.integers(0, 35, 6)
    counts = rng.integers(0, 9, 7)
    dense = Sums(whole, nothing, nothing, counts, 5)
    few = Sums(np.zeros((0, 0), np.int64), places, places, counts, 5)
    for cuts in ([0, 7], [0, 3, 7], [0, 1, 2, 3, 7]):
        for changes in ([dense], [few], [dense, few], [few, few]):
            ends = list(pairwise(cuts))
            parts = [tasks.part_of(changes, *end) for end in ends]
            together = add_sums(changes)
            expected = together.dense if together.is_dense else together.to_dense()
            assert np.array_equal(np.concatenate([part.to_dense() for part in parts]), expected)
            assert np.array_equal(np.concatenate([part.counts for part in parts]), together.counts)


def test_totals_over_owners_are_those_of_one_array() -> None:
    rng = np.random.default_rng(1)
    sums, roots = rng.integers(-(2**40), 2**40, (19, 6)), rng.random(5)
    model: Any = Model(None, roots, None)  # type: ignore[arg-type]
    for cuts in ([0, 19], [0, 7, 12, 19], list(range(20))):
        totals = np.zeros((8, 5))
        for first, last in pairwise(cuts):
            few = Clusters(model, sums[first:last], np.ones(last - first, np.int64), first, 19)
            totals = cluster_totals.add_squares_by_length(totals, few, roots)
        assert totals.sum(axis=0).tobytes() == squares_by_length(sums, roots).tobytes()


def test_partitions_are_spread_by_their_rows_and_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = {"one": {"nthreads": 1}, "two": {"nthreads": 3}}
    monkeypatch.setattr(places, "workers_by_name", lambda _client: threads)
    assert places.shares_of(None, [5] * 8) == ["one"] * 2 + ["two"] * 6
    assert places.shares_of(None, [30, 1, 1, 1, 30, 30, 27]) == ["one"] + ["two"] * 6
    monkeypatch.setattr(places, "workers_by_name", lambda _client: {})
    assert places.shares_of(None, [5]) == [""]


def test_partitions_of_equal_rows_are_shared_out_equally(workers: Client) -> None:
    flow = DaskFlow()
    kept = flow.spread([flow.lazy(int, number) for number in range(6)], [1] * 6)
    homes = flow.homes(kept)
    assert homes == sorted(homes)
    assert [homes.count(home) for home in dict.fromkeys(homes)] == [3, 3]


def test_what_owners_hold_does_not_travel(owned: Client) -> None:
    class Few:
        """Stands for owners of three clusters."""

        n_clusters, dead = 3, []

        def new_name(self) -> str:
            """Return a name."""
            return "test.7"

    handle: Any = owners.Owned(Few(), 5)  # type: ignore[arg-type]
    assert (len(handle), handle.shape) == (3, (3, 5))
    with pytest.raises(TypeError, match="is named to tasks, not sent"):
        pickle.dumps(handle)
