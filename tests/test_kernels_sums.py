from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings

from hmrf_dask.distortions import make_distortion
from hmrf_dask.kernels import by_cluster, exact, gradients, pairs, random, sums, threads
from hmrf_dask.kernels import sums as kernels_sums
from hmrf_dask.kernels.by_cluster import line_up
from hmrf_dask.kernels.compiled import Terms, njit, spread
from hmrf_dask.kernels.exact import (
    BASE,
    closed_distances,
    exact_integer,
    exact_sum,
    exact_value,
    exact_zero,
)
from hmrf_dask.kernels.gradients import rows_by_cluster, squares_by_length, weighted_squares
from hmrf_dask.kernels.reweighting import all_by_cluster, gather, reweigh
from hmrf_dask.kernels.sums import (
    LARGEST_EXPONENT,
    Accumulator,
    Sums,
    add_sums,
    add_to,
    fixed_point_exponent,
)
from hmrf_dask.kernels.threads import threads_allowed
from hmrf_dask.rows.block import RowBlock
from tests.support import problems
from tests.support.distortion_rows import blocks_of, bound

# --- exact sums ----------------------------------------------------------------------------------

NUMBERS = st.floats(-(2.0**299), 2.0**299, allow_subnormal=False).map(
    lambda x: x if abs(x) > 2.0**-230 else 0.0
)


def sum_moves(
    rows: Any, terms: Any, features: Any, before: Any, after: Any, n_clusters: int, exponent: int
) -> Any:
    accumulator = Accumulator(n_clusters, rows.n_features + 1)
    accumulator.add(rows, terms, features, before, after, exponent)
    return accumulator.finish()


@given(st.lists(NUMBERS, max_size=30), st.randoms(use_true_random=False))
def test_exact_sums_are_those_of_fsum_in_any_order(values: list[float], shuffler: Any) -> None:
    expected = exact_sum(np.array(values))
    assert exact_value(expected) == math.fsum(values)
    assert exact_integer(expected) == sum(Fraction(x) * 2**BASE for x in values)
    shuffler.shuffle(values)
    cut = len(values) // 2
    again = exact_sum(np.array(values[:cut])) + exact_sum(np.array(values[cut:]))
    assert exact_integer(again) == exact_integer(expected)


def test_exact_sums_carry() -> None:
    one = exact_sum(np.full(1000, -(2.0**299)))
    assert one[:-1].min() >= 0
    assert one[:-1].max() < 2**32
    assert exact_value(one) == -1000 * 2.0**299
    assert exact_integer(exact_zero()) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**300, -1e200])
def test_exact_sums_refuse_what_does_not_fit(bad: float) -> None:
    with pytest.raises(OverflowError, match="below 2"):
        exact_sum(np.array([1.0, bad]))


def test_tiny_numbers_count_as_zero() -> None:
    assert exact_integer(exact_sum(np.array([2.0**-237, 5e-324]))) == 0
    assert exact_value(exact_sum(np.array([2.0**-235]))) == 2.0**-235


# --- fixed point ---------------------------------------------------------------------------------


@given(st.integers(1, 10**9), st.floats(1e-30, 1e30))
@example(2**20, 1.0)
@example(2**30, 2.0**-5)
def test_the_exponent_leaves_bits_for_a_difference(n_rows: int, largest: float) -> None:
    exponent = fixed_point_exponent(n_rows, largest)
    finest = math.floor(math.log2(largest)) if largest < 1 else 0
    assert exponent <= LARGEST_EXPONENT - finest
    worst = 2 * n_rows * (round(Fraction(largest) * Fraction(2) ** exponent) + 1)
    assert worst < 2**63
    if exponent < LARGEST_EXPONENT:
        assert n_rows * Fraction(largest) * Fraction(2) ** exponent > 2**59


def test_the_exponent_of_nothing() -> None:
    assert fixed_point_exponent(0, 1.0) == fixed_point_exponent(5, 0.0) == LARGEST_EXPONENT


def python_sums(block: RowBlock, terms: Terms, features: Any, moves: Any, K: int, e: int) -> Any:
    """Return sums and counts with Python integers, row by row."""
    dense = block.to_dense().astype(np.float64)
    held = block.to_scipy()
    factor, extra = (spread(term, block.n_rows) for term in (terms.factor, terms.extra))
    out = np.zeros((K, block.n_features + 1), object)
    counts = [0] * K
    for i, ends in enumerate(zip(*moves, strict=True)):
        for h, sign in zip(ends, (-1, 1), strict=True):
            if ends[0] == ends[1] or h < 0:
                continue
            counts[h] += sign
            features_of = range(block.n_features) if block.is_dense else held[[i]].indices
            for m in features_of:
                scaled = factor[i] * 2.0**e * features[m] * dense[i, m]
                out[h, m] += sign * round(scaled)
            out[h, -1] += sign * round(extra[i] * 2.0**e)
    return out.astype(np.int64), counts


@pytest.mark.parametrize("name", ["cosine", "pearson", "kl"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("near", [0, kernels_sums.NEAR])
def test_moves_of_rows_are_the_same_bits_in_any_form(
    name: str, seed: int, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_sums, "NEAR", near)
    problem = problems.random_problem(seed, distortion=name, n=40, d=11, smooth=True)
    weights, rng, K = problems.random_weights(11, seed), np.random.default_rng(seed), 120
    few = rng.integers(-2, K, 40).astype(np.int32)
    after = np.where(rng.random(40) < 0.3, rng.integers(-2, K, 40), few).astype(np.int32)
    for block in blocks_of(problem.X):
        distortion = bound(name, problem.X)
        terms = distortion.terms(block, weights)
        features = distortion.features(weights)
        expected, counts = python_sums(block, terms, features, (few, after), K, 40)
        found = sum_moves(block.arrays, terms, features, few, after, K, 40)
        assert found.is_dense == (block.is_dense and near > 0)
        assert np.array_equal(found.to_dense(), expected)
        assert found.counts.tolist() == counts
        whole = [sum_moves(block.arrays, terms, features, few % 2, after % 3, 3, 40)]
        assert whole[0].is_dense
        expected, counts = python_sums(block, terms, features, (few % 2, after % 3), 3, 40)
        assert np.array_equal(whole[0].to_dense(), expected)
        assert whole[0].counts.tolist() == counts


@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_sums_are_the_same_bits_in_any_tree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = problems.random_problem(seed, distortion="cosine", n=30, d=6, smooth=True)
    block, distortion = blocks_of(problem.X)[0], bound("cosine", problem.X)
    weights, K = problems.random_weights(6, seed), int(rng.choice([2, 40]))
    nowhere, labels = np.full(30, -1, np.int32), rng.integers(0, K, 30).astype(np.int32)
    terms = distortion.terms(block, weights)
    whole = distortion.sum_moves(block, terms, weights, nowhere, labels, K, 43)
    cuts = np.sort(rng.integers(0, 31, 5))
    parts = [Accumulator(K, 7).finish()]
    for start, stop in zip([0, *cuts], [*cuts, 30], strict=True):
        rows = block.rows(start, stop)
        own = distortion.terms(rows, weights)
        ends = (nowhere[start:stop], labels[start:stop])
        parts.append(distortion.sum_moves(rows, own, weights, *ends, K, 43))
    parts = [parts[t] for t in rng.permutation(len(parts))]
    while len(parts) > 1:
        width = int(rng.integers(2, 4))
        parts = [*parts[width:], add_sums(parts[:width])]
    assert parts[0].to_dense().tobytes() == whole.to_dense().tobytes()
    assert parts[0].counts.tolist() == whole.counts.tolist()
    # and what went comes back: moving on and taking away leaves nothing
    gone = distortion.sum_moves(block, terms, weights, labels, nowhere, K, 43)
    assert not add_sums([whole, gone]).to_dense().any()


def test_adding_changes_none_of_the_parts() -> None:
    dense = Sums(np.ones((2, 3), np.int64), *np.zeros((2, 0), np.int64), np.ones(2, np.int64), 3)
    sparse = Sums(
        np.zeros((0, 0), np.int64), np.array([1, 5]), np.array([7, 9]), np.ones(2, np.int64), 3
    )
    for parts in ([sparse, dense, sparse], [dense, sparse, sparse]):
        total = add_sums(parts)
        assert total.to_dense().tolist() == [[1, 15, 1], [1, 1, 19]]
        assert total.counts.tolist() == [3, 3]
        added = add_to(dense.dense, add_sums([sparse, sparse]))
        assert added.tolist() == total.dense.tolist()
        assert add_to(dense.dense, dense).tolist() == [[2, 2, 2], [2, 2, 2]]
        assert dense.dense.tolist() == [[1, 1, 1], [1, 1, 1]]
        assert dense.counts.tolist() == [1, 1]
        assert sparse.values.tolist() == [7, 9]


def test_entries_may_come_in_any_order_and_more_than_once() -> None:
    places, values = np.array([30, 4, 30, 7, 7]), np.array([1, 2, 3, 5, -5])
    sums = Sums(np.zeros((0, 0), np.int64), places, values, np.zeros(4, np.int64), 10)
    whole = sums.to_dense()
    assert {place: whole.flat[place] for place in np.flatnonzero(whole)} == {4: 2, 30: 4}
    assert [part.tolist() for part in sums.folded()] == [[4, 30], [2, 4]]
    assert [part.tolist() for part in Accumulator(4, 10).finish().folded()] == [[], []]


def random_moves(seed: int, name: str, K: int) -> tuple[list[Any], Any]:
    """Return blocks of rows with their terms and labels before and after, and the features."""
    rng = np.random.default_rng(seed)
    problem = problems.random_problem(seed, distortion=name, n=60, d=13, smooth=True)
    distortion, weights = bound(name, problem.X), problems.random_weights(13, seed)
    found = []
    for block in blocks_of(problem.X):
        cuts = [0, *np.sort(rng.integers(0, 61, 4)), 60]
        for start, stop in itertools.pairwise(cuts):
            rows = block.rows(start, stop)
            ends = rng.integers(-2, K, (2, stop - start)).astype(np.int32)
            found.append((rows, distortion.terms(rows, weights), *ends))
    return found, distortion.features(weights)


@pytest.mark.parametrize("name", ["cosine", "pearson", "kl"])
@pytest.mark.parametrize("K", [2, 30, 2000])
@pytest.mark.parametrize("near", [0, kernels_sums.NEAR])
def test_an_accumulator_adds_blocks_in_any_order(
    name: str, K: int, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_sums, "NEAR", near)
    found, features = random_moves(K, name, K)
    expected, counts = np.zeros((K, 14), np.int64), np.zeros(K, np.int64)
    for rows, terms, before, after in found:
        one, changed = python_sums(rows, terms, features, (before, after), K, 43)
        expected, counts = expected + one, counts + changed
    forms = set()
    for turn in range(3):
        accumulator = Accumulator(K, 14)
        for t in np.random.default_rng(turn).permutation(len(found)):
            rows, terms, *ends = found[t]
            if (t + turn) % 3:
                accumulator.add(rows.arrays, terms, features, *ends, 43)
            else:
                accumulator.join(sum_moves(rows.arrays, terms, features, *ends, K, 43))
        sums = accumulator.finish()
        forms.add(sums.is_dense)
        assert np.array_equal(sums.to_dense(), expected)
        assert np.array_equal(sums.counts, counts)
        assert np.array_equal(add_to(expected, sums), 2 * expected)
    # entries of few rows, the whole array of many, and of dense rows where it stays in the cache
    assert forms == {K < 2000 or near > 0}


def test_an_accumulator_goes_over_to_the_whole_array_in_between() -> None:
    found, features = random_moves(1, "cosine", 200)
    accumulator, forms = Accumulator(200, 14), []
    expected = np.zeros((200, 14), np.int64)
    for rows, terms, before, after in found:
        accumulator.add(rows.arrays, terms, features, before, after, 43)
        expected += python_sums(rows, terms, features, (before, after), 200, 43)[0]
        forms.append(accumulator.finish().is_dense)
        assert np.array_equal(accumulator.finish().to_dense(), expected)
    assert forms == sorted(forms)
    assert set(forms) == {False, True}


def test_few_rows_are_added_to_the_whole_array_as_many_are() -> None:
    rng = np.random.default_rng(0)
    many = scipy.sparse.random_array((400, 3000), density=0.02, rng=rng, dtype=np.float32)
    block = RowBlock.from_scipy(scipy.sparse.csr_array(many))
    terms = bound("cosine", many.toarray()).terms(block, np.ones(3000))
    before, after = rng.integers(-1, 2, (2, 400)).astype(np.int32)
    after[-3:] = [1, 1, 0]
    accumulator, bounds = Accumulator(2, 3001), [0, 397, 398, 400]
    for start, stop in itertools.pairwise(bounds):
        rows = block.rows(start, stop)
        own = Terms(*(term[start:stop] if len(term) > 1 else term for term in terms))
        accumulator.add(rows.arrays, own, np.ones(3000), before[start:stop], after[start:stop], 40)
    expected, counts = python_sums(block, terms, np.ones(3000), (before, after), 2, 40)
    assert np.array_equal(accumulator.finish().dense, expected)
    assert accumulator.finish().counts.tolist() == counts


def test_sums_of_nothing() -> None:
    block = RowBlock.from_array(np.ones((3, 2), np.float32))
    terms, here = bound("cosine", np.ones((3, 2))).terms(block, np.ones(2)), np.zeros(3, np.int32)
    for rows, labels in ((block, here), (block.rows(0, 0), here[:0]), (block, here - 2)):
        sums = sum_moves(rows.arrays, terms, np.ones(2), labels, labels, 1, 43)
        assert not sums.to_dense().any()
        assert sums.counts.tolist() == [0]
    gone = sum_moves(
        block.arrays, terms, np.ones(2), here - 1, here - 2, 1, 43
    )  # from nowhere to nowhere
    assert not gone.to_dense().any()


@pytest.mark.parametrize("n_columns", [9, 1000])
def test_summands_as_large_as_the_exponent_allows_do_not_overflow(n_columns: int) -> None:
    n, size = 50, 3e7
    values = np.full((n, n_columns - 1), size, np.float32)
    block = RowBlock.from_array(values)
    exponent = fixed_point_exponent(n, size)
    whole, zero = np.ones(n), np.zeros(n)
    terms = Terms(zero, whole, zero, zero, zero, whole, np.full(n, -size), zero)
    labels = np.arange(n, dtype=np.int32) % 2
    arguments = (terms, np.ones(n_columns - 1), labels, 1 - labels, 2, exponent)
    expected = Fraction(float(np.float32(size))) * Fraction(2) ** exponent
    assert not sum_moves(block.arrays, *arguments).to_dense().any()  # as many come as go
    arguments = (terms, np.ones(n_columns - 1), labels * 0, labels * 0 + 1, 2, exponent)
    sums = sum_moves(block.arrays, *arguments).to_dense()
    assert abs(int(sums[1, 0]) - n * expected) <= n
    assert (sums[1, :-1] == sums[1, 0]).all()
    assert (sums[0] == -sums[1]).all()
    assert sums[1, -1] == -sums[1, 0]


# --- rows under new weights -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_rows_under_new_weights_are_those_that_terms_and_sums_from_nothing_give(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WORTH", 0)
    rng, distortion = np.random.default_rng(seed), make_distortion("cosine")
    X = rng.random((60, 23)) * (rng.random((60, 23)) < 0.4)
    X[7] = 0.0
    labels = rng.integers(-2, 5, 60).astype(np.int32)  # below 0: no cluster; 3 has no row
    labels[labels == 3] = 2
    for block in blocks_of(X):
        before, weights = distortion.terms(block, np.ones(23)), rng.uniform(0.1, 3.0, 23)
        terms = distortion.terms(block, weights)
        wanted = distortion.sum_moves(
            block, terms, weights, np.full(60, -1, np.int32), labels, 5, exponent=43
        )
        for step in (60, 17):
            parts = [slice(first, first + step) for first in range(0, 60, step)]
            rows = [block.take(np.arange(60)[part]) for part in parts]
            own = [distortion.terms(part, np.ones(23)) for part in rows]
            gathered = gather(
                [
                    all_by_cluster(part.arrays, term, labels[places], 5)
                    for part, term, places in zip(rows, own, parts, strict=True)
                ]
            )
            for number in (1, 3):
                with threads_allowed(number):
                    sizes, sums = reweigh(gathered, weights, 5, 43)
                assert np.array_equal(sums, wanted.to_dense())
                found = distortion.terms_of_sizes(np.concatenate(sizes, axis=1))
                for name in before._fields:
                    assert np.array_equal(getattr(found, name), getattr(terms, name))


# --- squares by feature --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cosine", "pearson"])
@pytest.mark.parametrize("seed", range(3))
def test_weighted_squares_are_those_of_every_row_alone(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WORTH", 0)
    problem = problems.random_problem(seed, distortion=name, n=40, d=11, smooth=True)
    weights, rng = problems.random_weights(11, seed), np.random.default_rng(seed)
    distortion, labels = bound(name, problem.X), rng.integers(-2, 4, 40).astype(np.int32)
    table = distortion.table(rng.random((4, 11)), weights)
    overall = distortion.table(rng.random((1, 11)), weights)
    for block in blocks_of(problem.X):
        terms, x = distortion.terms(block, weights), block.to_dense().astype(np.float64)
        members = rows_by_cluster([block.arrays], [terms], [labels], 4)
        whole = weighted_squares(line_up(members, 1.0), table, overall, 0.7, 44)
        own = 1.0 - distortion.own_distances(block, terms, table, labels)
        own -= 0.7 * (1.0 - distortion.own_distances(block, terms, overall, 0 * labels))
        own[labels < 0] = 0.0
        factor, extra = spread(terms.factor, 40), spread(terms.extra, 40)
        scaled = factor[:, None] * x
        expected = own @ (scaled * (scaled + 2.0 * extra[:, None]))
        assert whole[:-1] * 2.0**-44 == pytest.approx(expected, abs=1e-10)
        assert whole[-1] * 2.0**-44 == pytest.approx(own @ extra**2, abs=1e-10)
        for cut in (1, 7):
            rows = [block.rows(t, min(t + cut, 40)) for t in rng.permutation(range(0, 40, cut))]
            alone = [distortion.terms(one, weights) for one in rows]
            own_labels = [labels[np.isin(block.ids, one.ids)] for one in rows]
            arguments = (table, overall, 0.7, 44)
            members = rows_by_cluster([one.arrays for one in rows], alone, own_labels, 4)
            lined = line_up(members, 1.0)
            assert np.array_equal(weighted_squares(lined, *arguments), whole)
            with threads_allowed(3):
                assert np.array_equal(weighted_squares(lined, *arguments), whole)
            parts = [
                weighted_squares(
                    line_up(rows_by_cluster([one.arrays], [term], [label], 4), 1.0), *arguments
                )
                for one, term, label in zip(rows, alone, own_labels, strict=True)
            ]
            assert np.array_equal(np.sum(parts, axis=0), whole)


@pytest.mark.parametrize("n_clusters", [1, 3, 8, 21])
def test_squares_by_length_are_the_same_for_any_threads(n_clusters: int) -> None:
    rng, d = np.random.default_rng(n_clusters), 40_000
    sums = rng.integers(-(2**50), 2**50, (n_clusters, d + 1))
    sums[0, :-1] = 0
    sums[0, -1] = 0 if n_clusters == 1 else 2**45
    roots = rng.uniform(0.1, 3.0, d)
    whole = sums[:, :-1] + sums[:, -1:] * roots
    lengths = np.sqrt((whole * whole).sum(axis=1, keepdims=True))
    expected = (whole * whole / np.where(lengths > 0, lengths, 1.0)).sum(axis=0)
    found = squares_by_length(sums, roots)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    with threads_allowed(3):
        assert squares_by_length(sums, roots).tobytes() == found.tobytes()


# --- random numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers(
    counter: list[int], key: list[int], words: list[int]
) -> None:
    from_python = njit()(lambda c0, c1, c2, c3, k0, k1: random.philox(c0, c1, c2, c3, k0, k1))
    assert [int(word) for word in from_python(*map(np.uint64, counter + key))] == words


def test_draws_depend_on_their_counters_alone() -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64)
    draw = random.uniforms(keys, 2**63 + 5, "k-means++", 1, 2, 3)
    assert 0 < draw.min() < 0.01
    assert 0.99 < draw.max() < 1
    assert abs(draw.mean() - 0.5) < 0.02
    cut = [random.uniforms(part, 2**63 + 5, "k-means++", 1, 2, 3) for part in (keys[:7], keys[7:])]
    assert np.concatenate(cut).tobytes() == draw.tobytes()
    others = [
        random.uniforms(keys, 5, "k-means++", 1, 2, 3),
        random.uniforms(keys, 2**63 + 5, "random", 1, 2, 3),
        random.uniforms(keys, 2**63 + 5, "k-means++", 0, 2, 3),
        random.uniforms(keys, 2**63 + 5, "k-means++", 1, 0, 3),
        random.uniforms(keys, 2**63 + 5, "k-means++", 1, 2, 0),
    ]
    assert all(np.abs(np.corrcoef(draw, other)[0, 1]) < 0.05 for other in others)
    waits = random.exponentials(keys, 2**63 + 5, "k-means++", 1, 2, 3)
    assert waits == pytest.approx(-np.log(draw), rel=1e-15)
    assert waits.min() > 0


# --- integer pairs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cosine", "pearson", "euclidean"])
@pytest.mark.parametrize("seed", range(6))
def test_integer_pairs_equal_python_integers(name: str, seed: int) -> None:
    problem = problems.random_problem(seed, distortion=name, n=20, d=9, smooth=True)
    weights, bits = problems.random_weights(9, seed), 24
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 20, (2, 40)).astype(np.int32)
    for block in blocks_of(problem.X):
        distortion = bound(name, problem.X)
        rows = distortion.quantise(block, weights, bits)
        there = distortion.row_pairs(block, block, first, second, weights)
        back = distortion.row_pairs(block, block, second, first, weights)
        kappa = distortion.kappa
        found = pairs.pair_integers(there, rows, rows, kappa)
        turned = pairs.pair_integers(back, rows, rows, kappa)
        assert np.array_equal(found, turned)
        whole = integer_rows(block, rows)
        phi, _ = distortion.pair_values(block, block, first, second, weights)
        unit = distortion.radius(weights) ** 2 / 4.0**bits
        for t, (i, j) in enumerate(zip(first, second, strict=True)):
            product = sum(p * q for p, q in zip(whole[i][:-1], whole[j][:-1], strict=True))
            product -= whole[i][-1] * whole[j][-1]
            assert found[t] == int(rows.own[i]) + int(rows.own[j]) - kappa * product
            assert found[t] * unit == pytest.approx(phi[t], abs=1e-5 * (1 + phi[t]))


def integer_rows(block: RowBlock, rows: pairs.Quantised) -> list[list[int]]:
    """Return every row's integers, zeros included, the centring column last."""
    out, indices = [], block.arrays.indexed.indices
    for i in range(block.n_rows):
        row = [0] * block.n_features
        for p in range(block.indptr[i], block.indptr[i + 1]):
            row[p - block.indptr[i] if block.is_dense else indices[p]] = int(rows.values[p])
        out.append([*row, int(rows.centring[i])])
    return out


def test_quantised_rows_far_from_zero_stay_within_int32() -> None:
    rng = np.random.default_rng(0)
    rows = (1e3 + rng.normal(size=(6, 40))).astype(np.float32)
    full, weights = bound("pearson", rows), problems.random_weights(40, 0)
    first, second = np.arange(5, dtype=np.int32), np.arange(1, 6, dtype=np.int32)
    for block in blocks_of(rows):
        quantised = full.quantise(block, weights, 28)
        assert not quantised.centring.any()
        chosen = full.row_pairs(block, block, first, second, weights)
        found = pairs.pair_integers(chosen, quantised, quantised, 1)
        phi, _ = full.pair_values(block, block, first, second, weights)
        assert found * 0.25**28 == pytest.approx(phi, abs=1e-6)
    rows[0, 7] = 0.0
    rows[1, 3] = 0.0
    rows[:, 11] = rows[:, 11] + 3.0
    rows[2:, 5] = 0.0
    rows[2:, 6:30] = 0.0
    block = RowBlock.from_scipy(scipy.sparse.csr_array(rows))
    quantised = full.quantise(block, weights, 29)
    start = block.indptr
    assert not quantised.values[: start[2]].any()  # too flat for its bits: a zero row
    assert quantised.values[start[2] :].any()
    assert np.abs(quantised.values.astype(np.int64)).max() <= 2**30


# --- compilation ---------------------------------------------------------------------------------


def test_kernels_are_compiled_once_for_fresh_and_for_read_only_arrays() -> None:
    rows = np.random.default_rng(0).random((9, 4)).astype(np.float32)
    distortion = make_distortion("cosine").bind(bound("cosine", rows).extent)
    for frozen in (False, True):
        for block in blocks_of(rows):
            weights, labels = np.ones(4), np.zeros(9, np.int32)
            ends, signed = np.arange(9, dtype=np.int32), np.ones(9)
            terms = distortion.terms(block, weights)
            if frozen:
                for array in (weights, labels, ends, signed, *terms):
                    array.flags.writeable = False
            nowhere = labels - 1
            for K in (1, 400):
                distortion.sum_moves(block, terms, weights, nowhere, labels, K, 43)
            few = distortion.sum_moves(block, terms, weights, nowhere, labels, 20_000, 43)
            assert not few.is_dense
            few.to_dense()
            distortion.pair_values(block, block, ends, ends, weights)
            pairs.pair_gradient(
                distortion.form, distortion.row_pairs(block, block, ends, ends, weights), signed,
                weights, np.full(len(weights) + 1, 2.0**40),
            )  # fmt: skip
            table = distortion.table(np.ones((2, 4)), weights)
            members = rows_by_cluster([block.arrays], [terms], [labels], 2)
            weighted_squares(line_up(members, 1.0), table, table, 1.0, 40)
            exact_sum(signed)
    kernels = (
        by_cluster._by_cluster,
        by_cluster._line_up,
        kernels_sums._move_dense,
        sums._scatter,
        sums._emit,
        sums._add_entries,
        gradients._squares_in_line,
        pairs._values,
        pairs._gradient,
        exact._add_all,
    )
    assert [len(kernel.signatures) for kernel in kernels] == [1] * len(kernels)


def test_the_sum_of_distances_has_twice_the_digits_of_float64() -> None:
    rng = np.random.default_rng(4)
    rows, unit = rng.random((60, 23)).astype(np.float32), 2.0**-40
    distortion = make_distortion("cosine").bind(bound("cosine", rows).extent)
    table = distortion.table(rng.uniform(0.05, 1.0, (5, 23)), rng.uniform(0.2, 2.0, 23))
    totals, features = rng.integers(-(2**58), 2**58, (5, 24)), rng.uniform(0.5, 2.0, 23)
    found = closed_distances(table, features, totals, np.arange(5), 40)
    lines = np.asarray(table.exact) / features
    wanted = sum(
        (
            -Fraction(int(amount)) * Fraction(float(number)) * Fraction(unit)
            for amounts, numbers in zip(totals[:, :-1], lines, strict=True)
            for amount, number in zip(amounts, numbers, strict=True)
        ),
        sum(map(Fraction, (np.arange(5) * table.bias).tolist()), Fraction(0)),
    ) - sum(map(Fraction, (totals[:, -1] * unit * table.extra).tolist()), Fraction(0))
    size = np.abs(totals.astype(np.float64)).sum() * unit
    assert abs(float(found * Fraction(1, 2**BASE) - wanted)) < 1e-28 * size
