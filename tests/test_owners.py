"""Owners of clusters: what passes through the driver, what a loss does, when there are any.

That fits over owners have the bits of others is in `tests/test_same_bits.py`.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
import shutil
import threading
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
from hmrf_dask.tasks import cluster_totals, parcels, whole_models
from hmrf_dask.tasks import owners as tasks
from hmrf_dask.tasks.cluster_totals import Clusters
from hmrf_dask.tasks.model import Model, Settings
from tests.support.cases import FITS
from tests.support.fits import Case, scheduled, text_case
from tests.support.long_cases import long
from tests.support.owners import (
    dies_at,
    forgetful,
    memory_seen,
    watch_memory,
    watched_driver,
)

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

    monkeypatch.setattr(tasks, "take", lost)
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


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has such memory")
@pytest.mark.parametrize("allowed", [True, *long(False)])
@pytest.mark.parametrize("n_owners", [1, *long(2)])
def test_processes_of_a_machine_see_one_model(
    process_client: Client, n_owners: int, allowed: bool
) -> None:
    process_client.wait_for_workers(2, timeout=60)
    process_client.run(watch_memory, allowed)
    with dask.config.set({"hmrf.owners": n_owners}):
        found = WIDE.answer(3)
    seen = sorted(process_client.run(memory_seen).values())
    assert found == answer(WIDE)
    assert seen[0] == 0  # by the one that leads
    assert (seen[-1] > 1) == allowed


def test_workers_of_one_process_lead_together(owned: Client) -> None:
    places = sorted(owned.scheduler_info()["workers"])
    assert owners.machines_of(DaskFlow()) == (places, {})


def test_who_leads_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {
        "a": tasks.Process("first", 1, 2),
        "b": tasks.Process("first", 1, 1),
        "c": tasks.Process("first", 7, 4),
        "d": tasks.Process("second", 1, 8),
    }
    flow = dataflow.Inline()
    monkeypatch.setattr(flow, "workers", lambda: list(there))
    monkeypatch.setattr(flow, "lazy_at", lambda place, _function: there[place])
    first = tasks.Machine("a", 7)
    machines = {"a": first, "b": tasks.Machine("b", 7), "c": first}
    assert owners.machines_of(flow) == (list(there), machines)


def test_a_worker_that_goes_while_it_is_asked_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, left = dataflow.Inline(), [["a", "b"], ["b"]]
    monkeypatch.setattr(flow, "workers", lambda: left.pop(0) if len(left) > 1 else left[0])

    def asked(place: str, _function: Any) -> tasks.Process:
        if place == "a":
            raise LostOwnerError("gone")
        return tasks.Process("first", 1, 2)

    monkeypatch.setattr(flow, "lazy_at", asked)
    assert owners.machines_of(flow) == (["b"], {})
    left[:] = [["a"]]
    with pytest.raises(ClusterError, match="lost 10 times as they were asked where they are"):
        owners.machines_of(flow)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["changed_by", "add_changes", "hand_over", "remake", "rows_since", "assembled", "shown_model"],
)
@pytest.mark.parametrize("n_dying", [1, 2])
def test_workers_that_die_as_owners(
    process_client: Client, name: str, n_dying: int, tmp_path: Path
) -> None:
    process_client.wait_for_workers(2, timeout=60)
    before = set(process_client.run(os.getpid).values())
    big = text_case(n_rows=120, n_features=70_000, n_clusters=3, n_pairs=60, init="random")
    with dask.config.set({"hmrf.owners": 2}):
        process_client.run(dies_at, name, 2, str(tmp_path), n_dying)
        assert big.answer(3) == answer(big)
    died = len(list(tmp_path.iterdir()))
    shutil.rmtree(tmp_path)  # those that were not asked live
    process_client.wait_for_workers(2, timeout=60)
    assert died == len(before - set(process_client.run(os.getpid).values()))
    assert 1 <= died <= n_dying


@pytest.fixture
def leaving() -> Iterator[Any]:
    """Give the address of a worker of two, and what ends it."""
    address = "127.0.0.1:0"
    with (
        dask.config.set({"hmrf.no-progress-timeout": "5 s", "hmrf.no-workers-timeout": "5 s"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=address
        ) as own,
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
        pytest.raises(ConfigurationError, match="auto or a number of owners from 0 to 256, got 'm"),
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


class Here:
    """Stands for worker processes: all of them are this one."""

    here = "this"

    def ask(self, function: Any, asked: Any) -> Any:
        return ((number, function(*known)) for number, (_, known) in enumerate(asked))


HERE: Any = Here()


def test_a_task_that_runs_twice_changes_nothing_twice() -> None:
    visit = tasks.Visit(4, 6, ())
    nothing = np.zeros(0, np.int64)
    ones = Sums(np.ones((6, 3), np.int64), nothing, nothing, np.ones(6, np.int64), 3)
    first, second = (parcels.changed_by(f"7.{n}/0", [ones] * n, [0, 4, 6], HERE) for n in (1, 2))
    with pytest.raises(LostOwnerError, match=r"7\.1/0 for the clusters from 4 on gone"):
        tasks.begin_sums(visit, "7.1", (2, 3), first, HERE)  # a later pass has begun
    tasks.leave("7")
    first = parcels.changed_by("8.1/0", [ones], [0, 4, 6], HERE)
    for _ in range(2):
        tasks.begin_sums(visit, "8.1", (2, 3), first, HERE)
    second = parcels.changed_by("8.2/0", [ones, ones], [0, 4, 6], HERE)
    for _ in range(2):
        tasks.add_changes(visit, ("8.1", "8.2"), second, HERE, True)
    assert tasks.take("8.2", 4).sums.tolist() == [[3, 3, 3], [3, 3, 3]]
    assert tasks.take("8.2", 4).counts.tolist() == [3, 3]
    with pytest.raises(LostOwnerError, match=r"from 4 on gone"):
        tasks.vacant_at(visit, "8.1")
    with pytest.raises(LostOwnerError, match=r"8\.2/0 for the clusters from 4 on gone"):
        tasks.add_changes(visit, ("8.2", "8.3"), second, HERE, False)
    assert tasks.take("8.2", 4).sums.tolist() == [[3, 3, 3], [3, 3, 3]]
    tasks.leave("8")
    assert not parcels._parcels


def test_parcels_are_the_sums() -> None:
    rng = np.random.default_rng(0)
    nothing = np.zeros(0, np.int64)
    whole = rng.integers(-9, 9, (7, 5))
    places = rng.integers(0, 35, 6)
    counts = rng.integers(0, 9, 7)
    dense = Sums(whole, nothing, nothing, counts, 5)
    few = Sums(np.zeros((0, 0), np.int64), places, places, counts, 5)
    for cuts in ([0, 7], [0, 3, 7], [0, 1, 2, 3, 7]):
        for changes in ([dense], [few], [dense, few], [few, few]):
            made = parcels.changed_by("9.1/0", changes, cuts, HERE)
            held = []
            for first, last in pairwise(cuts):
                tasks.begin_sums(tasks.Visit(first, last, ()), "9.1", (last - first, 5), made, HERE)
                held.append(tasks.take("9.1", first))
            together = add_sums(changes)
            expected = together.dense if together.is_dense else together.to_dense()
            assert np.array_equal(np.concatenate([part.sums for part in held]), expected)
            assert np.array_equal(np.concatenate([part.counts for part in held]), together.counts)
            assert np.array_equal(made.report.sums.counts, together.counts)
            tasks._held.clear()


class Counting(Here):
    """Counts the rows that are sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def ask(self, function: Any, asked: Any) -> Any:
        for number, rows in super().ask(function, asked):
            self.sent.append(len(rows.centroids))
            yield number, rows


def test_only_centroids_that_changed_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_models, "PIECE", 2 * 8 * 5)  # two rows
    rng, peers, ranges = np.random.default_rng(2), Counting(), [(0, 4), (4, 9)]
    metric: Any = (None, np.ones(5))
    places = [("this", *ends) for ends in ranges]

    def version(number: int, rows: np.ndarray[Any, Any], before: int | None) -> whole_models.Sketch:
        for first, last in ranges:
            model = Model(*metric, rows[first:last])
            if before is not None:
                old = tasks.take(f"3.{before}", first)
                changed = f"3.{before}", tasks._differing(old, model)
                tasks._hold(f"3.{number}{tasks.CHANGED}", first, changed)
            tasks._hold(f"3.{number}", first, model)
        where = whole_models.Places(f"3.{number}", rows.shape, tuple(places), peers, {})
        return whole_models.Sketch(
            f"3.{100 + number}", where, tasks.Numbers(0.0, 43), None, None, False
        )

    rows = rng.random((9, 5))
    first = whole_models.assembled(version(0, rows, None), metric)
    assert first.centroids.tolist() == rows.tolist()
    memory = first.centroids.ctypes.data
    del first
    for number, clusters, sent in (
        (1, [2, 8], [0, 1, 0, 0, 1]),
        (2, [], [0] * 5),
        (3, [0, 1, 2, 7], [2, 2, 0, 1, 0]),  # of the first owner more than half
        (4, [4, 5, 6, 7], [0, 0, 2, 2, 1]),
    ):
        rows = rows.copy()
        rows[clusters, -1] *= -1.0 if number != 3 else 0.0
        rows[clusters, -1] -= 0.0  # a sign of zero is a bit, too
        peers.sent.clear()
        model = whole_models.assembled(version(number, rows, number - 1), metric)
        assert model.centroids.tobytes() == rows.tobytes()
        assert model.centroids.ctypes.data == memory
        assert peers.sent == sent
        del model
    held, before = whole_models.assembled(version(5, -rows, 4), metric), (-rows).tobytes()
    peers.sent.clear()
    sixth = version(6, rows, 5)
    other = whole_models.assembled(sixth, metric)  # while a task has the one before
    assert peers.sent == [2, 2, 2, 2, 1]
    assert (held.centroids.tobytes(), other.centroids.tobytes()) == (before, rows.tobytes())
    assert whole_models.assembled(sixth, metric) is other
    with pytest.raises(LostOwnerError, match=r"the last model of its fit, got 3\.105"):
        whole_models.assembled(version(5, -rows, 4), metric)  # others may see what would go
    del held, other
    last = version(7, rows, None)
    tasks._held.pop(("3.7", 4))
    with pytest.raises(LostOwnerError, match="from 4 on gone"):
        whole_models.assembled(last, metric)
    assert "3" not in whole_models._wholes  # half of it is of another version
    whole_models.leave("3")
    assert not whole_models._assembled
    assert not whole_models._wholes
    assert not whole_models._keeping


def test_a_fit_that_ends_while_its_model_is_made_leaves_nothing() -> None:
    class Ending:
        """Stands for a distortion: meanwhile the fit ends, on another thread."""

        def make_ready(self, _table: Any, *, dense: bool) -> None:
            assert not dense
            ending = threading.Thread(target=whole_models.leave, args=("4",))
            ending.start()
            ending.join()

        def table(self, centroids: Any, *_metric: Any) -> Any:
            return centroids

    metric: Any = (Ending(), np.ones(5))
    tasks._hold("4.1", 0, Model(*metric, np.ones((2, 5))))
    where = whole_models.Places("4.1", (2, 5), (("elsewhere", 0, 2),), Counting(), {})
    sketch = whole_models.Sketch("4.2", where, tasks.Numbers(0.0, 43), None, None, False)
    assert whole_models.assembled_ready(sketch, metric).centroids.tolist() == [[1.0] * 5] * 2
    assert not whole_models._assembled
    assert not whole_models._wholes
    assert not whole_models._keeping


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
