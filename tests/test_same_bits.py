"""The same bits of labels, centroids, weights and J, however work is cut and wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.fit import m_step
from hmrf_dask.kernels import low_precision, threads
from hmrf_dask.tasks import start_sample
from tests.support.fits import CASES, PARTITIONS, SIZES, Case, digests, fit, scheduled, text_case

MEMORIES = ("1 GiB", "1 MiB", "8 KiB")  # the last cuts even the components of these sizes

pytestmark = pytest.mark.prove


def same_bits(
    case: Case,
    partitions: Sequence[int | Sequence[int]],
    schedulers: Sequence[str],
    task_memory: str,
    cluster: Any = None,
) -> str:
    """Assert that every way to fit a case gives one digest, and return it."""
    found = digests(case, partitions, schedulers, task_memory, cluster)
    assert len(set(found.values())) == 1, found
    return next(iter(found.values()))


def uneven(case: Case) -> list[int]:
    """Return bounds of empty partitions, partitions of one row and large ones."""
    return [0, 0, 1, 1, 2, 77, 77, case.n_rows - 1, case.n_rows, case.n_rows]


@pytest.mark.parametrize("name", CASES)
def test_any_partitioning(name: str) -> None:
    case = CASES[name]
    same_bits(case, (1, 3, uneven(case)), ["synchronous"], "1 GiB")


@pytest.mark.parametrize("name", [*list(CASES)[:3], "kl", "euclidean dense"])
def test_any_partitioning_within_a_small_budget(name: str) -> None:
    case = CASES[name]
    same_bits(case, (2, uneven(case)), ["synchronous"], "8 KiB")


@pytest.mark.parametrize("memory", MEMORIES)
def test_all_partitionings_in_threads(memory: str) -> None:
    case = CASES["cosine"]
    found = same_bits(case, PARTITIONS, ["threads"], memory)
    assert found == same_bits(case, (3,), ["synchronous"], memory)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "memory"),
    [("euclidean", "1 GiB"), ("cosine in tables", "1 GiB"), ("pearson dense", "8 KiB")],
)
def test_processes(name: str, memory: str, process_cluster: Any) -> None:
    case = CASES[name]
    found = same_bits(case, (8,), ["processes"], memory, process_cluster)
    assert found == same_bits(case, (2,), ["synchronous"], memory)


def test_the_small_budget_is_reconciled_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from hmrf_dask.fit import e_step

    rounds = []
    settle = e_step.settle_in_rounds
    monkeypatch.setattr(e_step, "settle_in_rounds", lambda *a: rounds.append(1) or settle(*a))
    digests(CASES["cosine"], [3], ["synchronous"], "8 KiB")
    assert rounds


@pytest.mark.parametrize("memory", ["1 GiB", "8 KiB"])
def test_pairs_in_any_order_and_direction(memory: str) -> None:
    for name in ("cosine", "euclidean"):
        case = CASES[name]
        turned = case.with_pairs_turned(5)
        assert not np.array_equal(case.must, turned.must)
        one = same_bits(case, (2,), ["synchronous"], memory)
        assert one == same_bits(turned, (2,), ["synchronous"], memory)


@pytest.mark.parametrize(
    ("distortion", "memory"),
    [("cosine", "1 GiB"), ("euclidean", "8 KiB"), ("kl", "1 GiB")],
)
def test_documents_with_ids_in_any_order(distortion: str, memory: str) -> None:
    case = text_case(**SIZES, ids=True, distortion=distortion)
    moved = case.reordered(3)
    assert not np.array_equal(case.ids, moved.ids)
    one = same_bits(case, (1, 8), ["synchronous"], memory)
    assert one == same_bits(moved, (3,), ["synchronous"], memory)


@pytest.mark.parametrize("name", ["cosine", "cosine dense"])
def test_the_same_rows_from_anywhere(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    wanted = fit(case, 2)
    stored = case.corpus(3).to_parquet(str(tmp_path / "rows"))

    def other(corpus: Corpus) -> Case:
        changed = Case(case.X, case.must, case.cannot, case.parameters)
        object.__setattr__(changed, "corpus", lambda bounds: corpus)
        return changed

    assert fit(other(stored)).digest == wanted.digest
    if isinstance(case.X, np.ndarray):
        array = dask.array.from_array(case.X, chunks=(50, 5))
        assert fit(other(Corpus.from_dask(array))).digest == wanted.digest


def test_a_table_is_used() -> None:
    from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph

    case = CASES["cosine in tables"]
    pairs = CostedPairs(case.must), CostedPairs(case.cannot)
    graph = build_graph(case.n_rows, *pairs, ClosureRules())
    assert graph.table_components.any()


def test_rows_stored_sparse_or_dense_give_the_same_labels() -> None:
    case = CASES["cosine"]
    dense = Case(case.X.toarray(), case.must, case.cannot, case.parameters)
    assert np.array_equal(fit(case, 2).labels, fit(dense, 3).labels)


def test_a_sample_of_the_starts_depends_on_documents_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr(start_sample, "SAMPLE_ROWS", 60)
    monkeypatch.setattr(start_sample, "SAMPLE_ROWS_PER_CLUSTER", 1)
    for n_pairs in (40, 400):  # small components; one that holds every row
        case = text_case(160, 240, 3, n_pairs, ids=True)
        one = same_bits(case, (1, 8), ["synchronous"], "1 GiB")
        assert one == same_bits(case.reordered(3), (3,), ["synchronous"], "1 GiB")


def test_the_seed_decides() -> None:
    random = {**CASES["cosine"].parameters, "init": "random", "n_init": 1}
    one = replace(CASES["cosine"], parameters={**random, "random_state": 1})
    other = replace(CASES["cosine"], parameters={**random, "random_state": 2})
    with scheduled("synchronous"):
        assert fit(one, 2).digest != fit(other, 2).digest  # or a digest would say nothing


@pytest.mark.parametrize("name", CASES)
def test_threads_of_the_driver_and_spared_rows_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_precision, "RUN", 16)  # bounds are added up by fixed runs of features
    found = set()
    for worth, few in ((2**60, 2**60), (0, 2**60), (2**60, 1), (0, 1)):
        monkeypatch.setattr(threads, "WORTH", worth)
        monkeypatch.setattr(m_step, "FEW", few)
        found.add(same_bits(CASES[name], (2,), ("threads",), "1 GiB"))
    assert len(found) == 1
