"""Clusters in shards: the same bits as of all at once, within the memory of a task."""

from __future__ import annotations

import pickle
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from hmrf_dask import HMRFKMeans, KMeans, PCKMeans, load
from hmrf_dask.distortions import make_distortion
from hmrf_dask.em import fitting, looks, memory_plan, prepare, shard_files, shard_tasks, sharding
from hmrf_dask.em.memory_plan import plan_tasks, table_task
from hmrf_dask.em.memory_plan import shards_of as shards_that_fit
from hmrf_dask.em.model import Model, Settings
from hmrf_dask.em.shelf import shelf
from hmrf_dask.errors import MemoryPlanError, RunDirectoryError
from hmrf_dask.kernels.finders import frame_of, make_finder
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs.memory import MemoryRun
from tests.fits import Case, digests, fit, text_case
from tests.problems import planted_text
from tests.resume_driver import killed_fit, make_case
from tests.test_cost_rows import make_case as make_cost_case


def shards_of(n_clusters: int, each: int) -> list[range]:
    bounds = [*range(0, n_clusters, each), n_clusters]
    return [range(first, last) for first, last in pairwise(bounds)]


# ---- linked rows: what finds their costs rounds as the whole table does


@pytest.mark.parametrize(
    ("n_clusters", "each"), [(3, 1), (20, 7), (50, 16), (70, 33), (100, 48), (130, 16), (300, 144)]
)
@pytest.mark.parametrize("how", [{}, {"euclidean": True, "far": 3.0}, {"in_groups": 1.0}])
def test_cost_rows_by_shard_are_those_of_the_whole_table(
    n_clusters: int, each: int, how: dict[str, Any]
) -> None:
    case = make_cost_case(n_clusters, n=320, d=300, k=n_clusters, apart=1e-5, **how)
    block, model, scale = case["block"], case["model"], case["scale"]
    pairs, bundle, run = case["pairs"], case["bundle"], MemoryRun()
    file = run.write_labels(0, "linked-00000", 0, case["labels"])
    pieces = [(one, model.piece(one)) for one in shards_of(n_clusters, each)]
    frame = frame_of(piece.table() for _, piece in pieces)
    aparts = [
        shard_tasks.measure_linked(
            block, None, piece, one.start, run, 1, "linked-00000", frame, bundle
        )
        for one, piece in pieces
    ]
    found = shard_tasks.look_at(
        block, None, model.piece(range(0)), scale, pairs, 0, run, [file], aparts
    )
    wanted = looks.look_at(block, None, model, scale, bundle, pairs, 0, run, [file])
    assert np.array_equal(found.costs, wanted.costs)
    assert wanted.gains is not None
    assert np.array_equal(found.gains, wanted.gains)
    exact = [shard_tasks.Apart(one.clusters, one.distances) for one in aparts]
    assert np.array_equal(
        shard_tasks.linked_costs(run, exact, block.n_rows, scale),
        looks.linked_costs(block, model, scale),
    )


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("n_clusters", "each"), [(37, 5), (100, 16)])
def test_finders_of_shards_hold_the_columns_of_the_whole_one(
    n_clusters: int, each: int, half: bool
) -> None:
    model = make_cost_case(1, n=150, k=n_clusters)["model"]
    whole = make_finder(model.table(), half=half)
    pieces = [model.piece(one) for one in shards_of(n_clusters, each)]
    frame = frame_of(piece.table() for piece in pieces)
    shards = [make_finder(piece.table(), half=half, frame=frame) for piece in pieces]
    columns = [
        one.columns.table[:, : piece.n_clusters] for one, piece in zip(shards, pieces, strict=True)
    ]
    assert np.array_equal(np.concatenate(columns, axis=1), whole.columns.table[:, :n_clusters])
    for name in ("norm", "entry", "norm_error", "entry_error"):
        assert max(getattr(one, name) for one in shards) == getattr(whole, name)


# ---- whole fits

SIZES = {"n_rows": 400, "n_features": 500, "n_clusters": 24}
SMALL = "100 KiB"  # five clusters at a time
PLAIN = {"init": "k-means++", "n_init": 1, "refine": False, "learn_weights": False}


def case_of(n_pairs: int = 120, **parameters: Any) -> Case:
    return text_case(**SIZES, n_pairs=n_pairs, **{**PLAIN, **parameters})


@contextmanager
def in_shards(memory: str = SMALL, least: int = 2) -> Iterator[None]:
    """Give tasks little memory, and look that clusters come in shards then."""
    seen: list[int] = []
    whole = sharding.ShardEngine.expectation

    def expectation(self: sharding.ShardEngine, *arguments: Any) -> Any:
        seen.append(len(self.problem.shards))
        return whole(self, *arguments)

    with dask.config.set({"hmrf.task-memory": memory}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding.ShardEngine, "expectation", expectation)
        yield
    assert seen
    assert min(seen) >= least


def given(distortion: str) -> np.ndarray:
    """Return first centroids, two of which are the same: one cluster is empty and reseeded."""
    X = text_case(**SIZES, n_pairs=0).X
    first = X[: SIZES["n_clusters"]].toarray().astype(np.float64) + 0.01
    first[-1] = first[0]
    return first if distortion == "cosine" else first / first.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("n_pairs", [0, 120])
@pytest.mark.parametrize("init", ["k-means++", "random", "neighborhoods", "given"])
@pytest.mark.parametrize("distortion", ["cosine", "pearson", "euclidean", "kl"])
def test_the_same_bits_as_all_clusters_at_once(distortion: str, init: str, n_pairs: int) -> None:
    first = given(distortion) if init == "given" else init
    case = case_of(n_pairs, distortion=distortion, init=first)
    with dask.config.set(scheduler="synchronous"):
        wanted = fit(case, 3)
        with in_shards():
            found = fit(case, 3)
    assert found.digest == wanted.digest
    assert np.array_equal(found.labels, wanted.labels)


@pytest.mark.parametrize("fill", ["perturb", "random"])
def test_neighbourhoods_are_filled_up_alike(fill: str) -> None:
    case = case_of(init="neighborhoods", fill=fill)
    with dask.config.set(scheduler="synchronous"):
        wanted = fit(case)
        with in_shards():
            assert fit(case).digest == wanted.digest


def test_the_largest_neighbourhoods_are_those() -> None:
    case = case_of()
    model = PCKMeans(24, random_state=0, refine=False)
    with dask.config.set(scheduler="synchronous"):
        model.fit(case.X, must_link=case.must, cannot_link=case.cannot)
        wanted = model.labels_, model.cluster_centers_
        with in_shards():
            model.fit(case.X, must_link=case.must, cannot_link=case.cannot)
    assert np.array_equal(model.labels_, wanted[0])
    assert np.array_equal(model.cluster_centers_, wanted[1])


@pytest.mark.parametrize("memory", [SMALL, "20 KiB"])
def test_the_same_bits_for_any_partitions_and_threads(memory: str) -> None:
    case = case_of(ids=True)
    with in_shards(memory):
        found = digests(case, (1, 3, 8, [0, 0, 1, 400]), ("synchronous", "threads"), memory)
    assert len(set(found.values())) == 1


@pytest.mark.cluster
def test_the_same_bits_on_processes(process_cluster: Any) -> None:
    case = case_of(ids=True)
    with in_shards():
        found = digests(case, (1, 3, 8), ("processes",), SMALL, process_cluster)
        found |= digests(case, (3,), ("threads",), SMALL)
    assert len(set(found.values())) == 1


def test_a_cluster_that_runs_empty_is_reseeded_alike(tmp_path: Path) -> None:
    case = case_of(init=given("cosine"))
    with dask.config.set(scheduler="synchronous"), in_shards():
        fit(case, 3, run_dir=str(tmp_path / "run"))
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"reseed"' in events


@pytest.mark.parametrize(("commit", "when"), [(1, "after"), (2, "before"), (3, "while cleaning")])
def test_killed_and_resumed_to_the_same_bits(
    commit: int, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_HMRF__TASK_MEMORY", SMALL)
    run_dir, case = str(tmp_path / "run"), make_case("sharded", 3)
    assert killed_fit("sharded", run_dir, commit, when, 3) == -signal.SIGKILL
    with dask.config.set(scheduler="synchronous"):
        with in_shards():
            found = fit(case, 8, run_dir=run_dir)
            assert fit(case, 1, run_dir=run_dir).digest == found.digest  # it was done
        assert found.digest == fit(case, 3).digest


def test_nothing_is_left_in_the_run_but_what_commits_name(tmp_path: Path) -> None:
    with dask.config.set(scheduler="synchronous"), in_shards():
        fit(case_of(), 3, run_dir=str(tmp_path / "run"))
    names = [path.name for path in (tmp_path / "run" / "labels").rglob("*.parquet")]
    assert names
    assert all(name.startswith(("rows-", "linked-", "centroids-")) for name in names)
    assert not any("near" in name or "-distances" in name for name in names)


def test_rows_of_files_are_read_again_for_every_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of()
    with dask.config.set(scheduler="synchronous"):
        wanted = fit(case, 3)
        case.corpus(3).to_parquet(str(tmp_path / "corpus"))
        monkeypatch.setattr(fitting, "memory_of_all", lambda: 1)
        model = HMRFKMeans(**case.parameters)
        with in_shards():
            model.fit(str(tmp_path / "corpus"), must_link=case.constraints())
        assert np.array_equal(model.labels_.compute(), wanted.labels)


# ---- memory


def peak_of(work: Callable[[], Any]) -> int:
    """Return the most bytes that numpy held at a time while `work` ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n_pairs", [0, 200])
def test_a_whole_fit_stays_below_what_one_task_may_have(n_pairs: int) -> None:
    case = text_case(2000, 20_000, 96, n_pairs, **PLAIN, max_iter=3)
    memory, whole = 2**24, 8 * 96 * 20_000  # bytes of a task, and of one array of K × d

    def work() -> None:
        HMRFKMeans(**case.parameters).fit(case.X, must_link=case.must, cannot_link=case.cannot)

    with dask.config.set(scheduler="synchronous"):
        with in_shards("16 MiB"):
            work()  # compiled and imported before anything is measured
            taken = peak_of(work)
        assert taken <= memory
        assert peak_of(work) > 4 * whole > memory  # what it takes otherwise


@pytest.mark.parametrize("name", ["compare", "change"])
def test_tasks_of_a_shard_take_what_the_plan_says(name: str) -> None:
    n_rows, width, n_clusters = 3000, 6000, 100
    X, topics = planted_text(n_rows, width, n_clusters, 0)
    block, clusters = RowBlock.from_scipy(X), range(16, 48)
    distortion = make_distortion("cosine")
    facts = prepare.look_at(block, 0, distortion, has_ids=False)
    bound = distortion.bind(prepare.extent_of(facts, width))
    centroids = np.random.default_rng(0).random((n_clusters, width))
    run = MemoryRun()
    files = [run.write_labels(0, "rows-00000", 0, topics)]

    def work() -> None:
        model = Model(bound, np.ones(width), centroids).piece(clusters)
        if name == "compare":
            model = replace(model, centroids=model.centroids.copy())
            shard_tasks.compare([block], [None], model, 16, run, 1, files, None)
        else:
            shard_tasks.change([block], [None], model, clusters, run, False, None, files)

    work()
    tasks = plan_tasks(
        facts,
        Settings(n_clusters),
        width,
        pairs=None,
        refining=False,
        refining_starts=False,
        shards=[clusters],
    )
    planned = next(task.total for task in tasks if task.name == "an E-step task")
    assert peak_of(work) <= planned


@pytest.mark.parametrize("n_clusters", [1, 15, 16, 17, 100, 500])
@pytest.mark.parametrize("memory", [2**10, 2**17, 2**20, 2**22, 2**30])
def test_shards_fit_and_hold_every_cluster_once(n_clusters: int, memory: int) -> None:
    width = 1000
    shards = shards_that_fit(n_clusters, width, memory)
    if table_task(n_clusters, width).total <= memory:
        assert shards == ()
        return
    assert [h for one in shards for h in one] == list(range(n_clusters))
    for one in shards:
        assert len(one) == 1 or table_task(len(one), width).total <= memory
    assert len({len(one) for one in shards[:-1]}) <= 1


# ---- what is said


REFUSED = [
    ({"learn_weights": True}, "learned weights"),
    ({"refine": True}, "first variation"),
    ({"n_init": 2}, "a pool of starts"),
    ({"init": "auto"}, "a pool of starts"),
]


@pytest.mark.parametrize(("parameters", "words"), REFUSED)
def test_what_needs_all_clusters_at_once_runs_where_there_is_memory_else_says_so(
    parameters: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(max_iter=2, **parameters)
    with dask.config.set({"hmrf.task-memory": SMALL, "scheduler": "synchronous"}):
        fit(case)
        monkeypatch.setattr(memory_plan, "memory_of_a_task", lambda: (2**18, "this machine"))
        with pytest.raises(MemoryPlanError, match=f"taken in shards only without {words}"):
            fit(case)


def test_a_fit_that_would_not_fit_the_machine_fits_in_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of(0, ids=False)
    monkeypatch.setattr(memory_plan, "memory_of_a_task", lambda: (2**20, "this machine"))
    monkeypatch.setattr(memory_plan, "ground_size", lambda n_rows, settings: 100)
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(MemoryPlanError, match=r"a smaller hmrf\.task-memory"):
            fit(case)
        with in_shards():
            fit(case)


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    with (
        dask.config.set({"hmrf.scratch-directory": str(tmp_path / "nowhere")}),
        pytest.raises(RunDirectoryError, match=r"hmrf\.scratch-directory must be a folder with"),
    ):
        shelf((3, 4), np.float64)


# ---- after the fit


@pytest.mark.parametrize("distortion", ["cosine", "euclidean"])
def test_a_model_of_shards_is_used_as_any_other(distortion: str, tmp_path: Path) -> None:
    case = case_of(0, distortion=distortion)
    with dask.config.set(scheduler="threads"):
        with in_shards():
            model = KMeans(24, distortion=distortion, init="random", n_init=1, random_state=0)
            model.set_params(refine=False).fit(case.X)
            found = [model.predict(case.X), model.transform(case.X), model.score(case.X)]
            lazily = model.predict(case.corpus(3)).compute()
            again = pickle.loads(pickle.dumps(model))
            model.save(tmp_path / "model")
        whole = KMeans(24, distortion=distortion, init="random", n_init=1, random_state=0)
        whole.set_params(refine=False).fit(case.X)
        wanted = [whole.predict(case.X), whole.transform(case.X), whole.score(case.X)]
    assert type(model.cluster_centers_) is np.ndarray
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(lazily, wanted[0])
    assert np.array_equal(again.cluster_centers_, whole.cluster_centers_)
    assert np.array_equal(load(tmp_path / "model").cluster_centers_, whole.cluster_centers_)


def test_centroids_that_sums_do_not_give_are_kept_by_shard() -> None:
    run, shards = MemoryRun(), shards_of(10, 4)
    centroids = np.random.default_rng(0).random((10, 7))
    kept = np.asarray([0, 3, 9])
    files = shard_files.write_kept(run, 3, centroids, shards, kept)
    assert [file.part for file in files] == ["centroids-00000", "centroids-00002"]
    out = np.zeros_like(centroids)
    others = [run.write_labels(3, "rows-00000", 0, np.zeros(5, np.int32))]
    shard_files.take_kept(out, kept, run, [*others, *files])
    assert np.array_equal(out[kept], centroids[kept])
    assert not np.delete(out, kept, axis=0).any()
