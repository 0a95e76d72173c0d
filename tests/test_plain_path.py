"""The scipy path, for machines where numba cannot run: the same bits row by row, and whole fits."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from hmrf_dask.distortions import idivergence
from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.kernels import (
    closed,
    distances,
    exact,
    finders,
    gradients,
    means,
    nearest,
    pairs,
    random,
    sums,
    variation,
    worths,
)
from hmrf_dask.kernels.compiled import COMPILED
from hmrf_dask.kernels.distances import LINKED, UNDECIDED
from hmrf_dask.kernels.exact import exact_sum, exact_zero
from hmrf_dask.kernels.path import kernel_path
from hmrf_dask.kernels.plain import centroids as plain_centroids
from hmrf_dask.kernels.plain import distances as plain_distances
from hmrf_dask.kernels.plain import numbers as plain_numbers
from hmrf_dask.kernels.plain import pairs as plain_pairs
from hmrf_dask.kernels.plain import pieces as plain_pieces
from hmrf_dask.kernels.plain import refinement as plain_refinement
from hmrf_dask.kernels.plain import sums as plain_sums
from hmrf_dask.rows import block as row_block
from hmrf_dask.rows.block import RowBlock
from tests import plain_driver
from tests.test_distortions import bound

NAMES = ("cosine", "pearson", "euclidean", "i-divergence", "kl")
KINDS = ("sparse", "dense")
K = 5
STANDINS = [
    (distances, "_moments", plain_distances.moments),
    (distances, "_sizes", plain_distances.sizes),
    (distances, "_centred", plain_distances.centred_squares),
    (distances, "_own", plain_distances.own_distances),
    (distances, "_all", plain_distances.all_distances),
    (distances, "moves_by_cluster", plain_sums.moves_by_cluster),
    (finders, "_fill", plain_distances.fill_finder),
    (finders, "has_half", lambda: False),
    (nearest, "_nearest", plain_distances.nearest),
    (exact, "_add_all", plain_numbers.add_exactly),
    (random, "_uniforms", plain_numbers.uniforms),
    (random, "_exponentials", plain_numbers.exponentials),
    (row_block, "_sum_row_hashes", plain_numbers.sum_row_hashes),
    (sums, "moves_by_cluster", plain_sums.moves_by_cluster),
    (sums, "scatter", plain_sums.scatter),
    (sums, "emit", plain_sums.emit),
    (sums, "_add_entries", plain_sums.add_entries),
    (gradients, "moves_by_cluster", plain_sums.moves_by_cluster),
    (gradients, "_weighted_squares", plain_sums.weighted_squares),
    (gradients, "_squares_by_length", plain_sums.squares_by_length),
    (gradients, "_feature_squares", plain_sums.feature_squares),
    (gradients, "_member_products", plain_sums.member_products),
    (idivergence, "_entropies", plain_sums.entropies),
    (idivergence, "_feature_entropies", plain_sums.feature_entropies),
    (pairs, "_values", plain_pairs.values),
    (pairs, "_quantise", plain_pairs.quantise),
    (pairs, "_integers", plain_pairs.integers),
    (pairs, "_gradient", plain_pairs.gradient),
    (worths, "_squares", plain_refinement.cluster_squares),
    (worths, "_summands", plain_refinement.summands),
    (variation, "_single_gains", plain_refinement.single_gains),
    (closed, "_products", plain_centroids.linear_products),
    (means, "_directions", plain_centroids.directions),
    (means, "_means", plain_centroids.means),
    (means, "_lengths", plain_centroids.lengths),
    (means, "_weigh", plain_centroids.weigh),
]

bit_by_bit = pytest.mark.skipif(
    platform.machine() != "x86_64" or not COMPILED,
    reason="scipy may be built with fused multiply-adds; nothing to compare with",
)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs another with the kernels of one path."""

    def run(function: Any, *, path: str) -> Any:
        with monkeypatch.context() as patch:
            if path == "scipy":
                patch.setattr(plain_pieces, "ENTRIES", 64)
                for module, name, kernel in STANDINS:
                    patch.setattr(module, name, kernel)
            return function()

    return run


def rows_of(kind: str, signed: bool, n_rows: int = 60, d: int = 23, seed: int = 0) -> RowBlock:
    """Return rows with ties, doubles, rows of one entry and, where they are allowed, of none."""
    rng = np.random.default_rng(seed)
    rows = rng.choice([0.0, 0.0, 0.0, 0.5, 1.0, rng.random(), 3.7], (n_rows, d))
    rows[::7] = rows[3]
    rows[5] = np.eye(d)[2]
    if signed:
        rows *= rng.choice([-1.0, 1.0], rows.shape)
        rows[11] = 0.0
    rows = rows.astype(np.float32)
    return (
        RowBlock.from_scipy(scipy.sparse.csr_array(rows))
        if kind == "sparse"
        else (RowBlock.from_array(rows))
    )


def leaves(found: Any) -> Iterator[Any]:
    """Yield all arrays and numbers of nested results."""
    if isinstance(found, tuple | list):
        for one in found:
            yield from leaves(one)
    elif isinstance(found, sums.Sums):
        yield from (found.to_dense(), found.counts)
    else:
        yield np.asarray(found)


def assert_same(one: Any, other: Any) -> None:
    for left, right in zip(leaves(one), leaves(other), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
        assert left.tobytes() == right.tobytes()


def everything_of_rows(name: str, kind: str) -> list[Any]:
    """Return what the loop asks a distortion about rows."""
    rng = np.random.default_rng(7)
    block = rows_of(kind, signed=name in NAMES[:3])
    d = block.n_features
    distortion = bound(name, block.to_dense())
    weights = rng.uniform(0.2, 2.0, d)
    centroids = rng.uniform(0.05, 1.0, (K, d))
    centroids[3] = centroids[1]  # ties
    labels = rng.integers(-2, K, block.n_rows).astype(np.int32)
    after = rng.integers(-1, K, block.n_rows).astype(np.int32)
    terms, table = distortion.terms(block, weights), distortion.table(centroids, weights, 0.3)
    found: list[Any] = [
        list(terms),
        distances.moments(block, weights),
        distances.sizes(block, weights),
        distortion.own_distances(block, terms, table, labels),
        distortion.distances(block, terms, table),
        distortion.nearest(block, terms, table, labels),
        distortion.nearest(block, terms, table, np.full(block.n_rows, UNDECIDED, np.int32)),
        distortion.nearest(block, terms, table, np.full(block.n_rows, LINKED, np.int32)),
        distortion.sum_moves(block, terms, weights, labels, after, K, 30),
        distortion.sum_moves(block, terms, weights, labels, after, 50 * K, 30),
        gradients.feature_squares(block, rng.uniform(1e3, 1e6, d)),
        row_block.fingerprint(block, 12),
    ]
    few = distortion.table(centroids[:1], weights)
    found.append(distortion.nearest(block, terms, few, np.minimum(labels, 0)))
    if distortion.learning == "gradient":
        overall = distortion.table(centroids[:1], weights)
        found.append(
            gradients.weighted_squares(
                gradients.rows_by_cluster([block], [terms], [labels], K), table, overall, 0.7, 30
            )
        )
    if name in NAMES[3:]:
        found.append(distortion.feature_entropies(block, rng.uniform(1e3, 1e6, d)))
    return found


@bit_by_bit
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_bits_of_the_compiled_kernels(plain: Any, name: str, kind: str) -> None:
    told = [plain(lambda: everything_of_rows(name, kind), path=path) for path in ("numba", "scipy")]
    assert_same(*told)


def everything_of_pairs(name: str, kind: str) -> list[Any]:
    """Return what the loop asks a distortion about pairs."""
    rng = np.random.default_rng(8)
    left = rows_of(kind, signed=name in NAMES[:3])
    right = rows_of(kind, signed=name in NAMES[:3], n_rows=31, seed=5)
    distortion = bound(name, np.concatenate([left.to_dense(), right.to_dense()]))
    weights = rng.uniform(0.2, 2.0, left.n_features)
    first = rng.integers(0, left.n_rows, 200).astype(np.int32)
    second = rng.integers(0, right.n_rows, 200).astype(np.int32)
    signed = rng.choice([-1.5, 0.0, 0.7], 200)
    units = rng.uniform(1e3, 1e6, left.n_features + 1)
    quantised = [distortion.quantise(block, weights, 14) for block in (left, right)]
    sides = distortion.sides(left, right, weights)
    return [
        distortion.pair_values(left, right, first, second, weights),
        distortion.pair_values(right, left, second, first, weights),
        distortion.pair_gradient(left, right, first, second, signed, weights, units),
        [list(one) for one in quantised],
        [list(distortion.quantise(block, weights * 1e9, 14)) for block in (left, right)],
        pairs.pair_integers(*sides, *quantised, first, second, distortion.kappa),
    ]


@bit_by_bit
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_pairs_have_the_bits_of_the_compiled_kernels(plain: Any, name: str, kind: str) -> None:
    told = [
        plain(lambda: everything_of_pairs(name, kind), path=path) for path in ("numba", "scipy")
    ]
    assert_same(*told)


def everything_of_refinement(name: str, kind: str) -> list[Any]:
    """Return what first variation asks about rows and clusters."""
    rng = np.random.default_rng(9)
    block = rows_of(kind, signed=True)
    d = block.n_features
    distortion = bound(name, block.to_dense())
    weights = rng.uniform(0.2, 2.0, d)
    terms = distortion.terms(block, weights)
    factors = (distances.spread(term, block.n_rows) for term in (terms.factor, terms.extra))
    arrays = (block.values, block.indices, block.indptr, block.is_dense, *factors)
    rows = worths.summands(*arrays, distortion.features(weights), 30)
    labels = rng.integers(0, K, block.n_rows).astype(np.int32)
    nowhere = np.full(block.n_rows, -1, np.int32)
    totals = distortion.sum_moves(block, terms, weights, nowhere, labels, K, 30)
    metric = np.concatenate([np.ones(d), [-weights.sum()]])
    squares = worths.cluster_squares(totals.to_dense(), metric, 30)
    columns = np.ascontiguousarray(totals.to_dense().T) * 2.0**-30
    start = np.arange(0, 2 * block.n_rows + 1, 2)
    neighbour = rng.integers(0, block.n_rows, 2 * block.n_rows).astype(np.int32)
    ties = worths.Ties(start, neighbour, rng.normal(size=2 * block.n_rows))
    skip = rng.random(block.n_rows) < 0.1
    clusters = (squares, totals.counts, name != "euclidean", labels, skip)
    return [
        list(rows),
        squares,
        variation.single_gains(rows, columns, metric, 30, *clusters),
        variation.single_gains(rows, columns, metric, 30, *clusters, ties, labels),
    ]


@bit_by_bit
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES[:3])
def test_refinement_has_the_bits_of_the_compiled_kernels(plain: Any, name: str, kind: str) -> None:
    told = [
        plain(lambda: everything_of_refinement(name, kind), path=path)
        for path in ("numba", "scipy")
    ]
    assert_same(*told)


@bit_by_bit
def test_numbers_are_those_of_the_compiled_kernels(plain: Any) -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 2**63, 500).astype(np.uint64) * np.uint64(2)
    values = rng.normal(size=1000) * 2.0 ** rng.integers(-250, 290, 1000)

    def found() -> list[Any]:
        return [
            exact_sum(values),
            exact_sum(np.zeros(0)),
            exact_zero(),
            random.uniforms(keys, 2**63 + 5, "random", 3, 9, 1),
            random.exponentials(keys, 12, "k-means++", 3, 9, 1),
        ]

    assert_same(*(plain(found, path=path) for path in ("numba", "scipy")))


def everything_of_sums() -> list[Any]:
    """Return centroids of sums."""
    rng = np.random.default_rng(4)
    totals = rng.integers(-(2**58), 2**58, (K, 24))
    totals[2] = 0
    counts = np.array([3, 1, 0, 7, 2])
    weights = rng.uniform(0.2, 2.0, 23)
    previous = rng.random((K, 23))
    return [
        means.directions(totals, weights, previous),
        means.directions(totals, np.ones(23), None),
        means.weighted_directions(totals[:, :-1] * 2.0**-40, weights),
        means.weighted_directions(totals * 2.0**-40, np.ones(24)),
        gradients.squares_by_length(totals, np.sqrt(weights)),
        means.means(totals, 40, counts, None),
        means.means(totals, 40, counts, previous, 0.3, 0.01),
    ]


@bit_by_bit
def test_centroids_are_those_of_the_compiled_kernels(plain: Any) -> None:
    assert_same(*(plain(everything_of_sums, path=path) for path in ("numba", "scipy")))


@bit_by_bit
@pytest.mark.parametrize("name", ["cosine", "kl"])
def test_the_sum_of_distances_has_twice_the_digits_of_float64(plain: Any, name: str) -> None:
    rng = np.random.default_rng(4)
    block = rows_of("sparse", signed=False)
    distortion = bound(name, block.to_dense())
    weights = rng.uniform(0.2, 2.0, 23)
    table = distortion.table(rng.uniform(0.05, 1.0, (K, 23)), weights)
    totals = rng.integers(-(2**58), 2**58, (K, 24))
    arguments = (table, weights, totals, np.arange(K), 40)
    told = [
        plain(lambda: distortion.closed_distances(*arguments), path=path)
        for path in ("numba", "scipy")
    ]
    size = float(np.abs(totals).sum()) * 2.0**-40
    assert abs(told[0] - told[1]) * 2.0**-exact.BASE < 1e-28 * size


# --- whole fits ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_numba(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return a run directory and what a process that cannot import numba did."""
    run_dir = str(tmp_path_factory.mktemp("plain") / "run")
    return run_dir, plain_driver.run(run_dir)


def test_fits_without_numba_know_no_partitioning(
    without_numba: tuple[str, dict[str, Any]],
) -> None:
    _, answer = without_numba
    assert answer["loaded"] == []
    assert set(answer["fits"]) == set(plain_driver.FITS)
    for name, (whole, cut) in answer["fits"].items():
        assert whole == cut, name
    assert answer["runs"][0] == answer["runs"][1]


def test_another_path_is_not_resumed(without_numba: tuple[str, dict[str, Any]]) -> None:
    run_dir, answer = without_numba
    assert answer["path"]["path"] == "scipy"
    assert not {"numba", "llvmlite"} & set(answer["path"])
    if not COMPILED:
        pytest.skip("this process is of the same path")
    assert kernel_path()["path"] == "numba"
    with pytest.raises(RunDirectoryError, match="kernels"):
        plain_driver.model().fit(plain_driver.rows(), **plain_driver.pairs(), run_dir=run_dir)


# What compares with the oracle, as far as it is quick without a compiler.
SUITE = (
    "tests/test_distortions.py",
    "tests/test_kernels_sums.py",
    "tests/test_weight_gradients.py",
    "tests/test_icm.py",
    "tests/test_energy.py",
)
SLOW = ("compiled_once", "carried_along", "closures_are_tables", "numbering", "tables_and_pairs")


@pytest.mark.skipif(not COMPILED, reason="these tests run on the scipy path anyway")
def test_the_suite_holds_without_a_compiler() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", *SUITE]
    done = subprocess.run(
        [*command, "-k", " and ".join(f"not {name}" for name in SLOW)],
        cwd=plain_driver.ROOT,
        env=os.environ | {"HMRF_KERNELS": "plain"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
