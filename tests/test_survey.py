"""The one look at every row: ranges, sums, fingerprints, whatever the partitions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.corpus.partitions import EVEN, LEAST_ROWS, PARTITIONS, bounds_by_bytes
from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.fit import preparation
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.kernels.exact import exact_integer
from hmrf_dask.rows.block import RowBlock, survey
from hmrf_dask.rows.canonical import is_csr, is_sorted
from hmrf_dask.tasks import partitions as survey_tasks


@st.composite
def matrices(draw: st.DrawFn) -> NDArray[np.float32]:
    """Few rows and features, some features in every row, some in none."""
    shape = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.normal(size=shape) * (rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.9])))
    rows[:, rng.random(shape[1]) < 0.3] = draw(st.sampled_from([-2.0, 0.0, 3.0]))
    return rows.astype(np.float32)


@given(matrices(), st.booleans())
@settings(max_examples=80)
def test_a_survey_is_what_numpy_finds(rows: NDArray[np.float32], dense: bool) -> None:
    sparse = scipy.sparse.csr_array(rows)
    found = survey(RowBlock.from_array(rows) if dense else RowBlock.from_scipy(sparse))
    assert np.array_equal(found.minimum, rows.min(axis=0, initial=np.inf))
    assert np.array_equal(found.maximum, rows.max(axis=0, initial=-np.inf))
    assert np.allclose(found.total, rows.sum(axis=1, dtype=np.float64), atol=1e-12)
    assert np.allclose(found.mass, np.abs(rows).sum(axis=1, dtype=np.float64), atol=1e-12)
    assert np.array_equal(found.mass == 0, ~rows.any(axis=1))


@pytest.mark.parametrize("lacking", [None, 2, 150])
def test_features_of_many_rows_are_counted(lacking: int | None) -> None:
    rows = np.ones((200, 3), np.float32)
    rows[:, 1] = np.arange(200) % 2  # 0 in every other row
    if lacking is not None:
        rows[lacking, 2] = 0
    found = survey(RowBlock.from_scipy(scipy.sparse.csr_array(rows)))
    assert found.minimum.tolist() == [1.0, 0.0, 1.0 if lacking is None else 0.0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_entry_that_is_not_finite_is_named(wrong: float) -> None:
    rows = np.ones((9, 4), np.float32)
    rows[5, 2] = wrong
    for matrix in (rows, scipy.sparse.csr_array(rows)):
        corpus = Corpus.from_rows(matrix, n_partitions=3)
        with pytest.raises(InvalidInputError, match=r"got 1 .* in 1 rows, the first with ids 5;"):
            preparation.survey_corpus(DaskFlow(), corpus, make_distortion("cosine"))


def test_facts_are_those_of_one_partition_however_tasks_take_them() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6)) * (rng.random((40, 6)) < 0.5)
    rows[7] = 0
    whole = survey_tasks.survey_block(
        RowBlock.from_array(rows), 0, make_distortion("cosine"), False
    )
    corpus = Corpus.from_rows(scipy.sparse.csr_array(rows)).with_partitions([0, 0, 8, 9, 24, 40])
    for groups in (None, [[0, 1], [2], [3, 4]], [[3, 1, 0, 2, 4]]):
        facts = survey_of(corpus, slices=groups)
        for name in ("n_rows", "content", "order", "largest_mass", "n_zero", "zero_rows"):
            assert getattr(facts, name) == getattr(whole, name), name
        assert np.array_equal(facts.minimum, whole.minimum)
        assert np.array_equal(facts.maximum, whole.maximum)
        assert exact_integer(facts.mass) == exact_integer(whole.mass)
        assert (facts.longest_block, whole.longest_block) == (16, 40)
        assert facts.n_values == np.count_nonzero(rows.astype(np.float32))


def survey_of(corpus: Corpus, **options: Any) -> survey_tasks.Facts:
    """Look at a corpus as cosine does."""
    return preparation.survey_corpus(DaskFlow(), corpus, make_distortion("cosine"), **options)


def test_a_fingerprint_is_made_when_asked_for() -> None:
    corpus = Corpus.from_rows(np.eye(4), n_partitions=2)
    assert (survey_of(corpus, fingerprinted=False).content, survey_of(corpus).content != 0) == (
        0,
        True,
    )
    assert survey_of(corpus, fingerprinted=False).n_rows == 4


@given(matrices(), st.data())
@settings(max_examples=100)
def test_order_within_rows_is_distinguished_from_falls_between_them(
    rows: NDArray[np.float32], data: st.DataObject
) -> None:
    matrix = scipy.sparse.csr_array(rows)
    indices, indptr = matrix.indices.copy(), matrix.indptr
    assert is_csr(indices, indptr, rows.shape[1])
    assert is_sorted(indices, indptr)
    if not len(indices):
        return
    place = data.draw(st.integers(0, len(indices) - 1))
    indices[place] = data.draw(st.integers(0, rows.shape[1] - 1))
    ascending = all(np.all(np.diff(indices[start:stop]) > 0) for start, stop in pairwise(indptr))
    assert is_sorted(indices, indptr) == ascending


@pytest.mark.parametrize("n_rows", [1, 100, 5 * LEAST_ROWS + 3, 80 * LEAST_ROWS])
def test_default_partitions_are_many_and_alike(n_rows: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 500, n_rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    none = np.empty(0, np.float32)
    matrix = scipy.sparse.csr_array((n_rows, 500), dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = none, none, indptr  # only indptr is read
    bounds = bounds_by_bytes(matrix, 2**40)
    assert len(bounds) - 1 in (1, *range(EVEN, PARTITIONS + 1, EVEN))
    assert 0 <= len(bounds) - 1 - max(1, min(PARTITIONS, n_rows // LEAST_ROWS)) < EVEN
    entries = np.diff(indptr[bounds])
    assert np.ptp(entries) <= 500 * PARTITIONS // 8 or len(entries) == 1
    assert (bounds[0], bounds[-1]) == (0, n_rows)


def test_rows_that_are_named_do_not_depend_on_which_task_had_them() -> None:
    add, distortion = survey_tasks.add_facts, make_distortion("i-divergence")
    empty = np.zeros((4, 3), np.float32)
    negative = RowBlock.from_array(np.full((4, 3), -1, np.float32))
    surveys = [
        survey_tasks.survey_block(RowBlock.from_array(empty), 0, distortion, has_ids=False),
        survey_tasks.survey_block(negative, 4, distortion, has_ids=False),
        survey_tasks.survey_block(RowBlock.from_array(empty), 8, distortion, has_ids=False),
        survey_tasks.survey_block(negative, 12, distortion, has_ids=False),
    ]
    whole, other = add(surveys), add([add(surveys[2:]), add(surveys[:2])])
    assert [row for row, _ in whole.zero_rows] == [0, 1, 2, 3, 8]
    assert other.zero_rows == whole.zero_rows
    assert [row for row, _ in whole.troubles] == [4]
    assert other.troubles == whole.troubles
