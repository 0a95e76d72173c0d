"""Corpora that do not fit: the same bits, a block or two held, each read once in a pass."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pytest

from hmrf_dask import HMRFKMeans
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.fit import preparation
from hmrf_dask.fit.e_step import expectation
from hmrf_dask.fit.preparation import plan_tasks
from hmrf_dask.fit.problem import gather_partitions
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.flow.places import TASKS
from hmrf_dask.kernels.sums import Accumulator
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.files import BlockSource, InTurn, batches
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.partitions import Facts, TaskSlice
from tests.support.fits import Case, fit, one_process_cluster, text_case
from tests.support.problems import planted_text
from tests.support.reads import watched_reads

PARTITIONS = 12


@dataclass(frozen=True, eq=False)
class StoredCase(Case):
    """A case whose rows are read from files."""

    folder: Path = field(kw_only=True)

    def corpus(self, bounds: Any) -> Corpus:
        """Return the rows as Parquet blocks, cut as asked."""
        return super().corpus(bounds).to_parquet(str(self.folder))


def stored(case: Case, folder: Path) -> StoredCase:
    """Return the case with its rows in a folder."""
    return StoredCase(case.X, case.must, case.cannot, case.parameters, case.ids, folder=folder)


# ---- the same bits


@pytest.mark.usefixtures("little_memory")
def test_workers_read_for_themselves(tmp_path: Path) -> None:
    case = text_case(300, 60, 4, 40, n_init=1, max_iter=4, refine=False)
    with one_process_cluster():
        assert fit(stored(case, tmp_path / "rows"), 5).digest == fit(case, 5).digest


def test_files_that_fit_are_read_once(tmp_path: Path) -> None:
    case = text_case(300, 60, 4, 40, n_init=1, max_iter=4)
    with watched_reads() as reads:
        fit(stored(case, tmp_path / "rows"), 5)
    assert len(reads.files) == len(set(reads.files)) == 5


# ---- memory


@pytest.mark.parametrize(
    "parameters",
    [
        {"init": "random", "learn_weights": True},
        pytest.param(
            {"init": "random", "distortion": "euclidean", "refine": True}, marks=pytest.mark.long
        ),
        {"init": "random", "distortion": "kl"},
        {"init": "random", "distortion": "pearson", "learn_weights": True},
    ],
    ids=str,
)
@pytest.mark.usefixtures("little_memory")
def test_no_task_of_a_fit_holds_more_than_two_blocks(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    case = text_case(12_000, 300, 4, 60, n_init=1, max_iter=3, **parameters)
    files = stored(case, tmp_path / "rows")
    corpus = files.corpus(PARTITIONS)
    before = pa.total_allocated_bytes()
    block = corpus.sources[0].read()
    one = pa.total_allocated_bytes() - before
    assert one > block.nbytes / 2  # or the blocks lie elsewhere, and this test sees nothing
    del block
    with dask.config.set(scheduler="synchronous"), watched_reads() as reads:
        fit(files, PARTITIONS)
    assert reads.most - before < 2.5 * one


@pytest.mark.usefixtures("little_memory")
def test_a_pass_is_a_few_tasks_and_reads_every_block_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, _ = planted_text(600, 80, 4, 0)
    corpus = Corpus.from_rows(X, n_partitions=PARTITIONS).to_parquet(str(tmp_path / "rows"))
    counted: list[tuple[int, int]] = []

    def watched(engine: Any, *others: Any) -> Any:
        before = engine.flow.tasks
        found = expectation(engine, *others)
        counted.append((engine.flow.tasks - before, len(engine.problem.slices)))
        return found

    monkeypatch.setattr("hmrf_dask.fit.loop.expectation", watched)
    init = X[:4].toarray().astype(np.float64)
    with dask.config.set(scheduler="threads", num_workers=2), watched_reads() as reads:
        HMRFKMeans(4, init=init, n_init=1, refine=False, max_iter=5).fit(corpus)
    assert {slices for _, slices in counted} == {2 * TASKS}
    assert max(tasks for tasks, _ in counted) < PARTITIONS
    passes = 1 + len(counted)  # the look, and E-steps; nothing else reads rows of the cosine
    assert len(reads.files) == passes * PARTITIONS


def test_a_partition_is_read_once_for_all_linked_parts(tmp_path: Path) -> None:
    X, _ = planted_text(200, 40, 3, 0)
    corpus = Corpus.from_rows(X, n_partitions=4).to_parquet(str(tmp_path / "rows"))
    rows = np.random.default_rng(0).permutation(200)[:90]
    bounds, flow = np.asarray([0, 20, 20, 50, 90]), DaskFlow()
    with watched_reads() as reads:
        parts = gather_partitions(
            flow, corpus.blocks, np.asarray(corpus.offsets), rows, bounds[[0, 1, 3, 4]], "linked"
        )
        found = flow.compute([part.block for part in parts])
    assert sorted(reads.files) == sorted(source.file.name for source in corpus.sources)
    assert [part.n_rows for part in parts] == [20, 30, 40]
    together = np.concatenate([block.to_dense() for block in found])
    np.testing.assert_array_equal(together, X[rows].toarray())


def test_a_plan_counts_the_block_that_is_held_while_the_next_is_read() -> None:
    nothing = np.zeros(0)
    facts = Facts(10, nothing, nothing, nothing, 0.0, 0, (), 0, 0, 0, 2**20, 2**20, 0, None)  # type: ignore[arg-type]
    plans = [
        plan_tasks(
            facts,
            Settings(2),
            5,
            linked=None,
            refining=False,
            refining_starts=False,
            reading=reading,
        )[0]
        for reading in (0, 2**17)
    ]
    assert plans[1].total - plans[0].total == 2**21
    assert "its partition and the next 3.0 MiB" in str(plans[1])


def test_a_task_takes_no_more_rows_than_it_may_hold_labels_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "SLICE_ROWS", 10)
    counts = [0, 4, 6, 0, 1, 25, 3, 8]
    found = preparation.cut_slices([[0, 1, 2, 3], [4, 5, 6, 7]], counts)
    assert found == [[0, 1, 2, 3], [4], [5], [6], [7]]


@pytest.mark.parametrize("moved", [0.0, 0.02, 0.3, 1.0])  # entries, then the whole array
def test_sums_that_let_go_of_blocks_are_the_same(moved: float) -> None:
    X, topics = planted_text(400, 500, 4, 0)
    cosine, weights = make_distortion("cosine"), np.ones(500)
    chance = np.random.default_rng(0)
    found = []
    sums = [Accumulator(4, 501), Accumulator(4, 501, lasting=False)]
    for first in range(0, 400, 50):
        block = RowBlock.from_scipy(X[first : first + 50])
        before = topics[first : first + 50].astype(np.int32)
        after = np.where(chance.random(50) < moved, (before + 1) % 4, before).astype(np.int32)
        for one in sums:
            terms = cosine.terms(block, weights)
            cosine.add_moves(one, block, terms, weights, before, after, 40)
    for one in sums:
        whole = one.finish()
        found.append((whole.to_dense(), whole.counts))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][0].any() == (moved > 0)


# ---- reading in turn


def sources_of(folder: Path, n_partitions: int = 3) -> tuple[BlockSource, ...]:
    X, _ = planted_text(60, 30, 3, 0)
    return Corpus.from_rows(X, n_partitions=n_partitions).to_parquet(str(folder)).sources


def test_the_next_block_is_fetched_while_a_task_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, fetch = sources_of(tmp_path / "rows"), BlockSource.fetch
    begun = {source.file.name: threading.Event() for source in sources}

    def watched(self: BlockSource) -> Any:
        begun[self.file.name].set()
        return fetch(self)

    monkeypatch.setattr(BlockSource, "fetch", watched)
    blocks = InTurn(sources)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        assert block.n_rows == 20
        for later in sources[number + 1 : number + 2]:
            assert begun[later.file.name].wait(10)
        assert not any(begun[later.file.name].is_set() for later in sources[number + 2 :])


def test_a_file_that_is_gone_is_named_by_the_task_that_wanted_it(tmp_path: Path) -> None:
    sources = sources_of(tmp_path / "rows")
    (tmp_path / "rows" / sources[1].file.name).unlink()
    blocks = iter(InTurn(sources))
    assert next(blocks).n_rows == 20
    with pytest.raises(InvalidInputError, match=f"{sources[1].file.name}.*it is missing"):
        next(blocks)


@pytest.mark.parametrize("names", [False, True])
def test_ids_are_read_without_rows(names: bool, tmp_path: Path) -> None:
    X, _ = planted_text(60, 30, 3, 0)
    ids = [f"document {number}" for number in range(60)] if names else None
    corpus = Corpus.from_rows(X, ids, n_partitions=3).to_parquet(str(tmp_path / "rows"))
    for source, named in zip(corpus.sources, corpus.named, strict=True):
        whole, bare = source.read(), named.read()
        np.testing.assert_array_equal(bare.ids, whole.ids)
        np.testing.assert_array_equal(bare.keys, whole.keys)
        assert (bare.n_rows, bare.n_features, len(bare.values)) == (20, 30, 0)


def test_blocks_that_last_come_together_and_others_one_by_one(tmp_path: Path) -> None:
    sources = sources_of(tmp_path / "rows")
    kept = [source.read() for source in sources]
    slices = [TaskSlice(blocks, [], []) for blocks in (kept, InTurn(sources))]
    assert [task_slice.lasting for task_slice in slices] == [True, False]
    assert [(list(places), len(some)) for places, some in batches(kept)] == [([0, 1, 2], 3)]
    found = [(list(places), len(some)) for places, some in batches(InTurn(sources))]
    assert found == [([0], 1), ([1], 1), ([2], 1)]


def test_a_task_gets_blocks_in_place_of_sources(tmp_path: Path) -> None:
    sources, flow = sources_of(tmp_path / "rows"), DaskFlow()
    alone, several = flow.compute(
        [flow.lazy(RowBlock.to_dense, sources[0]), flow.lazy(type, list(sources))]
    )
    np.testing.assert_array_equal(alone, sources[0].read().to_dense())
    assert several is InTurn
    assert flow.co_located(sources) == flow.co_located(list(range(3)))
