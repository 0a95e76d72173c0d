"""Measures are scikit-learn's, from tables that are made where the labels are."""

from __future__ import annotations

import itertools
from typing import Any

import dask.array
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn import metrics
from sklearn.metrics.cluster import contingency_matrix, pair_confusion_matrix

from hmrf_dask import Constraints, measures
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.measures.contingency import merge, tabulate

PEERS = {
    measures.mutual_info: metrics.mutual_info_score,
    measures.normalized_mutual_info: metrics.normalized_mutual_info_score,
    measures.homogeneity: metrics.homogeneity_score,
    measures.completeness: metrics.completeness_score,
    measures.v_measure: metrics.v_measure_score,
    measures.adjusted_rand: metrics.adjusted_rand_score,
}
labellings = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(-2, 6), min_size=n, max_size=n),
        st.lists(st.integers(0, 9), min_size=n, max_size=n),
    )
)


@given(labellings)
@settings(max_examples=80)
def test_measures_are_those_of_scikit_learn(both: tuple[list[int], list[int]]) -> None:
    truth, labels = both
    table = measures.contingency(truth, labels)
    assert table.to_array().tolist() == contingency_matrix(truth, labels).tolist()
    for own, peer in PEERS.items():
        expected = peer(truth, labels)
        assert own(truth, labels) == pytest.approx(expected, abs=1e-12)
        assert own(table) == own(truth, labels)
    assert measures.v_measure(truth, labels, beta=0.3) == pytest.approx(
        metrics.v_measure_score(truth, labels, beta=0.3), abs=1e-12
    )


def test_large_tables_lose_no_digits() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 20, 300_000)
    labels = np.where(rng.random(300_000) < 0.7, truth, rng.integers(0, 30, 300_000))
    for own, peer in PEERS.items():
        assert own(truth, labels) == pytest.approx(peer(truth, labels), abs=1e-12)


@pytest.mark.parametrize("kind", [np.int64, str])
def test_tables_of_parts_are_the_table_of_the_whole(kind: Any) -> None:
    rng = np.random.default_rng(1)
    truth, labels = rng.integers(0, 5, 1000).astype(kind), rng.integers(-1, 4, 1000)
    whole = tabulate(truth, labels)
    cuts = [0, 0, 1, 400, 990, 1000]
    parts = [tabulate(truth[a:b], labels[a:b]) for a, b in itertools.pairwise(cuts)]
    merged = merge([merge(parts[:2]), *parts[2:]])
    for one, other in zip(vars(merged).values(), vars(whole).values(), strict=True):
        assert one.tolist() == other.tolist()


def test_dask_arrays_are_counted_chunk_by_chunk() -> None:
    rng = np.random.default_rng(2)
    truth, labels = rng.integers(0, 5, 1000), rng.integers(0, 4, 1000)
    expected = measures.contingency(truth, labels)
    lazy = dask.array.from_array(labels, chunks=300)
    for one in (truth, dask.array.from_array(truth, chunks=170)):
        found = measures.contingency(one, lazy)
        assert found.to_array().tolist() == expected.to_array().tolist()
    pairs = rng.integers(0, 1000, (50, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    scores = measures.pairwise_scores(truth, lazy, without=pairs)
    assert scores == measures.pairwise_scores(truth, labels, without=pairs)


@given(labellings, st.integers(0, 40), st.integers(0, 2**32))
def test_pairwise_scores_count_pairs(
    both: tuple[list[int], list[int]], n_given: int, seed: int
) -> None:
    truth, labels = both
    rng, n = np.random.default_rng(seed), len(both[0])
    drawn = [sorted(rng.integers(0, n, 2).tolist()) for _ in range(n_given)]
    left_out = {(a, b) for a, b in drawn if a != b}
    cells = [0, 0, 0, 0]
    for a, b in itertools.combinations(range(n), 2):
        if (a, b) not in left_out:
            cells[2 * (truth[a] == truth[b]) + (labels[a] == labels[b])] += 1
    found = measures.pairwise_scores(truth, labels, without=sorted(left_out) or None)
    assert found.n_pairs == sum(cells)
    assert found.precision == (cells[3] / (cells[3] + cells[1]) if cells[3] + cells[1] else 0.0)
    assert found.recall == (cells[3] / (cells[3] + cells[2]) if cells[3] + cells[2] else 0.0)
    doubled = 2 * cells[3] + cells[1] + cells[2]
    assert found.f == (2 * cells[3] / doubled if doubled else 0.0)
    if not left_out and n > 1:
        (_, joined), (_, together) = pair_confusion_matrix(truth, labels)
        assert [2 * cells[3], 2 * cells[1]] == [together, joined]


def test_both_kinds_of_answers_are_left_out_once() -> None:
    truth, labels = [0, 0, 1, 1], [0, 0, 0, 1]
    given_pairs = Constraints(must_link=[[0, 1]], cannot_link=[[1, 2], [2, 1]])
    found = measures.pairwise_scores(truth, labels, without=given_pairs)
    assert found == (0.0, 0.0, 0.0, 4)
    assert measures.pairwise_f(truth, labels) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("truth", "labels", "without", "message"),
    [
        ([0, 1], [0], None, "must be of the same rows, got 2 and 1"),
        ([[0, 1]], [0, 1], None, "truth must have one dimension, got shape"),
        ([0.0, np.nan], [0, 1], None, "truth must not be missing"),
        ([0, 1], [0, 1], [[0, 2]], "must name rows 0 to 1, got 0 to 2"),
        ([0, 1], [0, 1], [["a", "b"]], "must name row numbers, got document ids"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    truth: Any, labels: Any, without: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        measures.pairwise_scores(truth, labels, without=without)


def test_equal_labellings_agree_exactly() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        n_classes = generator.integers(2, 12)
        truth = generator.integers(0, n_classes, generator.integers(20, 400))
        labels = generator.permutation(n_classes)[truth]
        assert measures.normalized_mutual_info(truth, labels) == 1.0
        assert measures.homogeneity(truth, labels) == measures.completeness(truth, labels) == 1.0
        assert measures.homogeneity(truth // 2, labels) == 1.0
        assert measures.completeness(truth, labels // 2) <= 1.0
        assert measures.completeness(labels, truth // 2) == 1.0


def test_nothing_to_measure() -> None:
    assert measures.contingency([], []).n_rows == 0
    assert measures.normalized_mutual_info([], []) == 1.0
    assert measures.pairwise_scores([0], [0]) == (0.0, 0.0, 0.0, 0)
