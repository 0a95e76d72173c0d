"""The same bits of labels, centroids, weights and J, however work is cut and wherever it runs.

Every case of `tests/support/cases.py` is held to all of it: in any partitioning, under any
scheduler, with documents and pairs in any order, read from files in every pass, stopped after any
commit and resumed. A feature joins with a line there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
from distributed import Client

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.documents import files as document_files
from hmrf_dask.fit import e_step, m_step, owners, refinement
from hmrf_dask.jobs import packs
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.places import Report, assignment_files
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.kernels import approximate, threads
from hmrf_dask.tasks import cluster_totals
from tests.support.cases import CASES, FITS, LSAS, ON_WORKERS
from tests.support.fits import Case, scheduled
from tests.support.icm_problems import SMALL, in_rounds, tangled
from tests.support.job_corpus import JobCorpus, one_each
from tests.support.job_runs import assigned, run
from tests.support.killed_fits import phases_of, spread_kills
from tests.support.long_cases import long, long_but
from tests.support.loop import Bench, iterations, make_bench, some_bench
from tests.support.problems import random_problem
from tests.support.reads import watched_reads

ALL: dict[str, Case] = {
    name: replace(case, memory=case.memory or "1 GiB") for name, case in {**FITS, **LSAS}.items()
}

# What takes a way of its own through a fit; of these nothing is left to `make prove`.
SHORT = {
    "cosine", "cosine in tables", "euclidean", "pearson dense", "kl, in rounds",
    "cosine potts open, in rounds", "one start", "starts in heats", "starts by held-out answers",
    "beliefs", "first variation", "trusted in part", "own distortion", "outliers kept out",
    "KMeans", "MPCKMeans",
    "COPKMeans, many pairs", "SeededKMeans, two classes", "ConstrainedKMeans", "LSA", "LSA dense",
    "words and vectors",
}  # fmt: skip


# Where pairs, labels or sets of centroids of another kind are committed, or read in every pass.
OWN_FILES = {
    "cosine in tables", "euclidean", "kl, in rounds", "one start", "starts by held-out answers",
    "beliefs", "first variation", "MPCKMeans", "COPKMeans, many pairs",
    "SeededKMeans, two classes", "LSA", "full metric, outliers kept out",
}  # fmt: skip


def together(cases: Iterable[str], short: Container[str] = ALL) -> list[Any]:
    """Return the names of cases, the tests of each in one process: its answer is made once."""
    marks = {name: [pytest.mark.xdist_group(name)] for name in cases}
    for name in marks:
        marks[name] += [] if name in short else [pytest.mark.long]
    return [pytest.param(name, marks=marks[name]) for name in marks]


@cache
def undisturbed(name: str) -> str:
    """Return the answer of a case whose rows are one partition."""
    with scheduled("synchronous"):
        return ALL[name].answer(1)


@pytest.fixture
def synchronous() -> Iterator[None]:
    with scheduled("synchronous"):
        yield


@pytest.mark.parametrize("name", together(ALL, SHORT))
def test_documents_and_pairs_in_any_order_and_partitioning_on_threads(name: str) -> None:
    case = ALL[name]
    other = case.in_other_order(3)
    assert case.ids is None or not np.array_equal(case.ids, other.ids)
    with scheduled("threads"):
        assert other.answer(other.uneven()) == undisturbed(name)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "name", long_but(SHORT - {"euclidean", "beliefs"}, [*ON_WORKERS, "full metric"])
)
def test_worker_processes(name: str, process_client: Any) -> None:
    assert ALL[name].answer(3) == undisturbed(name)


OF_THE_DRIVER = {"own distortion", "full metric", "full metric, outliers kept out"}
# What owners of clusters have a way of their own for.
OWNED = {"first variation", "MPCKMeans"}


@pytest.fixture(scope="module")
def few_workers() -> Iterator[Any]:
    """Give a client of three workers in this process."""
    with Client(n_workers=3, threads_per_worker=2, processes=False, dashboard_address=":0") as own:
        yield own


@pytest.mark.cluster
@pytest.mark.parametrize("n_owners", [3, *long(2)])
@pytest.mark.parametrize("name", long_but(OWNED, list(FITS)))
@pytest.mark.usefixtures("few_workers")
def test_owners_of_clusters(name: str, n_owners: int, monkeypatch: pytest.MonkeyPatch) -> None:
    owned, named = [], owners.Owned.__init__
    monkeypatch.setattr(owners.Owned, "__init__", lambda *a: owned.append(a) or named(*a))
    wanted = undisturbed(name)
    monkeypatch.setattr(cluster_totals, "TOGETHER", 1)  # else they would be one block, of one owner
    with dask.config.set({"hmrf.owners": n_owners}):
        assert ALL[name].answer(3) == wanted
    assert bool(owned) == (name not in OF_THE_DRIVER)


@pytest.mark.parametrize("name", together(ALL, OWN_FILES))
@pytest.mark.usefixtures("little_memory")
def test_rows_that_are_read_from_files_in_every_pass(name: str, tmp_path: Path) -> None:
    case = ALL[name]
    files = case.corpus(5).to_parquet(str(tmp_path / "rows"))
    with scheduled("threads"), watched_reads() as reads:
        assert case.answer(files) == undisturbed(name)
    assert len(reads.files) > 5  # or the corpus was kept after all


AFTER_EVERY = ("one start", "kl", "euclidean")  # commit; the others after three of them


class Stopped(BaseException):
    """Stands for Ctrl-C."""


# A commit is the same whether components were settled in rounds or not: two of these will do.
STOPPED = [name for name in FITS if not name.endswith("in rounds")]
STOPPED += ["kl, in rounds", "cosine potts open, in rounds"]


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("name", together(STOPPED, OWN_FILES))
def test_a_fit_that_is_stopped_and_resumed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, run_dir, commit = ALL[name], str(tmp_path / "run"), RunDirectory.commit
    assert case.answer(3, run_dir=str(tmp_path / "whole")) == undisturbed(name)
    phases = phases_of(str(tmp_path / "whole"))
    every_commit, kills = range(1, len(phases) + 1), max(3, len(set(phases)))
    for stop in every_commit if name in AFTER_EVERY else sorted(spread_kills(phases, kills)):

        def stop_after(run: RunDirectory, number: int, *arguments: Any, last: int = stop) -> None:
            commit(run, number, *arguments)
            if number == last:
                raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "commit", stop_after)
            with pytest.raises(Stopped):
                case.answer(1 + stop % 3, run_dir=run_dir)
        assert len(phases_of(run_dir)) == stop
    for partitions in (2, 3):  # the second time there is nothing left to do
        assert case.answer(partitions, run_dir=run_dir) == undisturbed(name)
        assert phases_of(run_dir) == phases
    finals = [json.loads((tmp_path / one / "FINAL.json").read_text()) for one in ("run", "whole")]
    assert finals[0]["content"] == finals[1]["content"]


@pytest.mark.parametrize("name", together(CASES, {"cosine in tables", "pearson dense"}))
def test_threads_of_the_driver_and_spared_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "RUN", 16)  # bounds are added up by fixed runs of features
    for worth, few in ((0, 2**60), (2**60, 1), (0, 1)):
        monkeypatch.setattr(threads, "WORTH", worth)
        monkeypatch.setattr(m_step, "FEW", few)
        with scheduled("threads"):
            assert ALL[name].answer(2) == undisturbed(name)


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("name", ["cosine dense", "euclidean dense"])
def test_rows_of_a_dask_array_in_any_chunks(name: str) -> None:
    array = dask.array.from_array(ALL[name].X, chunks=(50, 5))
    assert ALL[name].answer(Corpus.from_dask(array)) == undisturbed(name)


# ---- every iteration of the loop: problems full of ties, contradictions and zero rows


def trace(bench: Bench, **how: Any) -> list[tuple[str, int, list[int]]]:
    """Return phase, J and labels of every iteration of a fit."""
    return [
        (phase, turn.state.energy.total, bench.labels(turn.state).tolist())
        for phase, turn in iterations(bench, **how)
    ]


def of_any_problem(seed: int, n_parts: int) -> Any:
    return trace(some_bench(random_problem(seed), seed, n_parts=n_parts))


def in_pieces(seed: int, n_parts: int) -> Any:
    problem = tangled(seed, distortion=("cosine", "pearson", "euclidean", "kl")[seed % 4])
    bench = make_bench(problem, n_parts=n_parts, task_memory=SMALL)
    in_rounds(bench)
    return trace(bench, most=4)


def refined(seed: int, n_parts: int) -> Any:
    name = ("cosine", "pearson", "euclidean")[seed % 3]
    bench = make_bench(random_problem(seed, distortion=name, n=30, K=3), n_parts=n_parts)
    return trace(bench, refining=True, most=200)


def refined_a_few_rows_at_a_time(seed: int, n_parts: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refinement, "LEAST_ROWS", 3)
        patch.setattr(refinement, "SHARE", 2**40)
        return refined(seed, n_parts)


LOOPS: dict[str, tuple[Callable[[int, int], Any], int]] = {
    "any problem": (of_any_problem, 16),
    "components in pieces": (in_pieces, 4),
    "first variation": (refined, 9),
    "first variation, a few rows at a time": (refined_a_few_rows_at_a_time, 9),
}


@pytest.mark.parametrize("name", LOOPS)
def test_every_iteration_in_any_partitioning(name: str) -> None:
    traced, n_problems = LOOPS[name]
    for seed in range(n_problems):
        whole = traced(seed, 1)
        assert traced(seed, 3) == traced(seed, 7) == whole


# ---- jobs, however their files are taken


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Give a job over a large file and many small ones, and what a run of it ends with."""
    corpus = JobCorpus(tmp_path_factory.mktemp("job"))
    path = one_each(corpus, 30)
    large = "".join(f"{json.dumps(one)}\n" for one in corpus.draw(60)).encode()
    corpus.write({"documents/large.jsonl": large})
    return path, ending(run(path, output="together"))


def ending(report: Report) -> tuple[Any, int]:
    """Return what is promised of a run, and in how many files it is."""
    return (assigned(report), report.fit["J"], report.nmi), len(assignment_files(report.output))


@pytest.mark.parametrize(
    ("module", "constant", "value", "n_files"),
    [
        (packs, "PACK_FILES", 7, 5),
        *long((packs, "PACK_FILES", 1, 31), (packs, "BATCH_ROWS", 25, 3)),
        (document_files, "SEGMENT_BYTES", 2000, 6),
    ],
)
def test_files_of_a_job_however_they_are_taken(
    module: Any, constant: str, value: int, n_files: int, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (wanted, n_together) = job
    monkeypatch.setattr(module, constant, value)
    assert ending(run(path, output=f"{constant}-{value}")) == (wanted, n_files)
    assert n_files != n_together


@pytest.mark.cluster
def test_a_job_on_worker_processes(job: Any, process_client: Any) -> None:
    path, wanted = job
    report = run_job(gather(load_job(str(path), {"output": "workers"}), str(path)))
    assert ending(report) == wanted


# ---- or what is above would say nothing


def test_a_small_budget_is_settled_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    settle = e_step.settle_in_rounds
    monkeypatch.setattr(e_step, "settle_in_rounds", lambda *a: rounds.append(1) or settle(*a))
    with scheduled("synchronous"):
        ALL["cosine, in rounds"].answer(3)
    assert rounds


def test_a_table_is_used() -> None:
    case = CASES["cosine in tables"]
    pairs = CostedPairs(case.must), CostedPairs(case.cannot)
    graph = build_graph(case.n_rows, *pairs, ClosureRules())
    assert graph.table_components.any()


@pytest.mark.parametrize("name", ["cosine", "LSA"])
def test_the_seed_decides(name: str) -> None:
    case = ALL[name]
    random = {"init": "random", "n_init": 1} if name == "cosine" else {}
    cases = [
        replace(case, parameters={**case.parameters, **random, "random_state": seed})
        for seed in (1, 2)
    ]
    with scheduled("synchronous"):
        assert cases[0].answer(2) != cases[1].answer(2)
