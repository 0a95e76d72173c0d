"""Clusters in shards: the same bits as of all at once, within the memory of a task."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from hmrf_dask import HMRFKMeans, PCKMeans
from hmrf_dask.em import fitting, looks, shard_tasks, sharding
from hmrf_dask.kernels.compiled import COMPILED
from hmrf_dask.kernels.finders import frame_of, make_finder
from hmrf_dask.runs.memory import MemoryRun
from tests.fits import Case, digests, fit, text_case
from tests.resume_driver import killed_fit, make_case
from tests.test_cost_rows import make_case as make_cost_case


def shards_of(n_clusters: int, each: int) -> list[range]:
    bounds = [*range(0, n_clusters, each), n_clusters]
    return [range(first, last) for first, last in pairwise(bounds)]


# ---- linked rows: what finds their costs rounds as the whole table does


@pytest.mark.skipif(not COMPILED, reason="float64 alone where nothing is compiled")
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


@pytest.mark.skipif(not COMPILED, reason="tables of another form")
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
