"""First centroids: every way to find them, held against plain versions and exact distributions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hmrf_dask.constraints import closure
from hmrf_dask.kernels.random import exponentials
from hmrf_dask.tasks import first_centroids
from hmrf_dask.tasks.first_centroids import CandidateRows, Neighbourhoods, find_neighbourhoods
from hmrf_dask.tasks.start_sample import make_start_sample
from tests import naive
from tests.support.problems import DISTORTIONS, string_ids
from tests.support.start_samples import graph_of, random_rows, sample_of, start_sample_of

Floats = NDArray[np.float64]


def groups_to_pairs(groups: list[list[int]]) -> list[tuple[int, int]]:
    """Chain the members of each group."""
    return [pair for members in groups for pair in itertools.pairwise(members)]


def plain_centroid(sample: CandidateRows, rows: list[int]) -> Floats:
    """The centroid of some rows by the oracle, cosine's and Pearson's at length 1."""
    name = sample.distortion.name
    model = naive.Model(sample.block.to_dense().astype(np.float64), name, alpha=sample.smoothing)
    labels = [0 if row in rows else 1 for row in range(sample.block.n_rows)]
    found = naive.optimal_centroids(model, labels, 2, [1.0] * model.rows.shape[1])[0]
    if name in ("cosine", "pearson"):
        length = np.sqrt((found * found).sum())
        return found / length if length > 0 else np.zeros_like(found)
    return found


def plain_distances(sample: CandidateRows, centroids: Floats) -> Floats:
    """The oracle's distances of all rows, none below zero."""
    rows = sample.block.to_dense().astype(np.float64).tolist()
    ones = [1.0] * sample.block.n_features
    found = naive.distances(rows, centroids.tolist(), ones, sample.distortion.name)
    return np.maximum(found, 0.0)


def row_of(sample: CandidateRows, centroid: Floats) -> int:
    """Which row a centroid of cosine is the direction of."""
    rows = sample.block.to_dense().astype(np.float64)
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    likeness = units @ centroid / np.linalg.norm(centroid)
    assert likeness.max() > 1 - 1e-6
    return int(likeness.argmax())


# --- greedy k-means++


def test_kmeans_plus_plus_draws_in_proportion_to_distance_and_keeps_the_better_of_its_draws() -> (
    None
):
    sample = sample_of(random_rows(1, n=7, zeros=1))
    distances = plain_distances(sample, sample.centroids_of_rows(np.arange(7)))
    expected = np.zeros((7, 7))
    for first in range(1, 7):  # row 0 is zero
        odds = distances[:, first] * (np.arange(7) > 0)
        odds = odds / odds.sum()
        left = np.minimum(distances, distances[:, [first]]).sum(
            axis=0
        )  # Σ D if that row comes second
        for one, other in itertools.product(range(7), repeat=2):  # two draws for K = 2
            best = min(one, other, key=lambda row: (left[row], row))
            expected[first, best] += odds[one] * odds[other] / 6
    counted = np.zeros((7, 7))
    trials = 2500
    for start in range(trials):
        rows = [row_of(sample, one) for one in first_centroids.kmeans_plus_plus(sample, 2, start)]
        counted[rows[0], rows[1]] += 1
    assert not counted[expected == 0].any()
    likely = expected > 0
    found = scipy.stats.chisquare(counted[likely], trials * expected[likely])
    assert found.pvalue > 1e-3


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", DISTORTIONS)
def test_kmeans_plus_plus_is_the_plain_race(name: str, dense: bool) -> None:
    for seed in range(4):
        sample = sample_of(random_rows(seed, name=name), name, dense=dense, seed=seed)
        found = first_centroids.kmeans_plus_plus(sample, 5, 3)
        for step in range(5):
            n_draws = 2 + int(math.log(5)) if step else 1
            nearest = np.ones(sample.block.n_rows)
            if step:
                nearest = plain_distances(sample, found[:step]).min(axis=1)
            drawn = set()
            for draw in range(n_draws):
                race = exponentials(sample.block.keys, seed, "k-means++", 3, step, draw)
                drawn.add(int(np.argmin(race / np.maximum(nearest, 1e-300))))
            left = {}
            for row in drawn:
                reach = plain_distances(sample, plain_centroid(sample, [row])[None])[:, 0]
                left[row] = (np.minimum(reach, nearest) if step else reach).sum()
            best = plain_centroid(sample, [min(left, key=lambda row: left[row])])
            np.testing.assert_allclose(found[step], best, atol=1e-9)


def test_every_start_looks_at_other_rows_of_those_with_a_direction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = random_rows(4, n=40)
    rows[:20] = 0.0
    sample = sample_of(rows)
    seen = [sample.drawn(10, start) for start in range(8)]
    assert all(one.block.n_rows == 10 and one.decided.all() for one in seen)
    assert len({tuple(one.block.keys.tolist()) for one in seen}) == 8
    monkeypatch.setattr(first_centroids, "DRAWN_ROWS", 10)
    monkeypatch.setattr(first_centroids, "DRAWN_ROWS_PER_CLUSTER", 1)
    for start, part in enumerate(seen):
        found = first_centroids.kmeans_plus_plus(sample, 4, start)
        assert np.array_equal(found, first_centroids.kmeans_plus_plus(part, 4, start))
    monkeypatch.setattr(first_centroids, "DRAWN_ROWS_PER_CLUSTER", 10)
    assert sample.drawn(40, 0) is sample


def test_rows_without_a_direction_are_never_drawn() -> None:
    rows = random_rows(2, n=12)
    rows[:9] = 0.0
    constant = rows.copy()
    constant[:9] = np.arange(1, 10)[:, None]  # no correlation with anything
    for sample in (sample_of(rows), sample_of(constant, "pearson"), sample_of(rows, dense=True)):
        assert sample.decided.tolist() == [False] * 9 + [True] * 3
        for start in range(20):
            for found in (
                first_centroids.kmeans_plus_plus(sample, 3, start),
                first_centroids.random_rows(sample, 3, start),
            ):
                assert np.abs(found).sum(axis=1).min() > 0
                assert len(np.unique(found.round(9), axis=0)) == 3


def test_more_clusters_than_different_rows_still_gives_k_centroids() -> None:
    same = sample_of(np.tile([[1.0, 2.0, 0.0]], (5, 1)))
    nothing = sample_of(np.zeros((4, 3)))
    assert first_centroids.kmeans_plus_plus(same, 4, 0).shape == (4, 3)
    assert not first_centroids.kmeans_plus_plus(nothing, 3, 0).any()
    assert not first_centroids.random_rows(nothing, 3, 0).any()


@pytest.mark.parametrize("name", DISTORTIONS)
def test_given_centroids_are_kept_and_what_comes_next_is_far_from_them(name: str) -> None:
    sample = sample_of(random_rows(3, n=30, name=name), name)
    given = sample.centroids_of_rows(np.asarray([4, 9]))
    found = first_centroids.kmeans_plus_plus(sample, 4, 0, given)
    assert np.array_equal(found[:2], given)
    odds = np.maximum(sample.distances(given).min(axis=1), 1e-300)
    races = [exponentials(sample.block.keys, 0, "k-means++", 0, 2, draw) for draw in range(3)]
    drawn = [int(np.argmin(race / odds)) for race in races]
    assert any(np.allclose(found[2], sample.centroids_of_rows(np.asarray([one]))) for one in drawn)


@given(st.permutations(range(15)))
def test_the_order_of_the_rows_does_not_matter_when_they_have_ids(order: list[int]) -> None:
    rows, ids = random_rows(5, n=15), string_ids(15, 5)
    samples = sample_of(rows, ids=ids), sample_of(rows[order], ids=ids[order])
    one, other = (
        make_start_sample(sample.block, start_sample_of(sample)).candidate_rows(0.0)
        for sample in samples
    )
    for make in (
        first_centroids.kmeans_plus_plus,
        first_centroids.random_rows,
        first_centroids.perturbations,
    ):
        assert np.array_equal(make(one, 4, 1), make(other, 4, 1))
        assert not np.array_equal(make(one, 4, 1), make(one, 4, 2))


@pytest.mark.parametrize("name", ["cosine", "pearson", "euclidean", "kl"])
def test_dense_rows_start_as_sparse_ones(name: str) -> None:
    rows = random_rows(6, n=20, name=name)
    sparse, dense = sample_of(rows, name), sample_of(rows, name, dense=True)
    graph = graph_of(8, groups_to_pairs([[0, 1, 2], [3, 4], [5, 6, 7]]), [(0, 3)])
    for make in (
        first_centroids.kmeans_plus_plus,
        first_centroids.random_rows,
        first_centroids.perturbations,
    ):
        np.testing.assert_allclose(make(sparse, 4, 0), make(dense, 4, 0), atol=1e-12)
    for pick in (first_centroids.farthest_first, first_centroids.agglomerate):
        found = [
            pick(one, find_neighbourhoods(one, graph, np.arange(8), singles=False), 2)
            for one in (sparse, dense)
        ]
        np.testing.assert_allclose(*found, atol=1e-12)


# --- random rows and perturbations


def test_random_rows_are_different_and_all_as_likely() -> None:
    sample = sample_of(random_rows(7, n=9))
    counted = np.zeros(9)
    for start in range(1500):
        rows = {row_of(sample, one) for one in first_centroids.random_rows(sample, 3, start)}
        assert len(rows) == 3
        counted[list(rows)] += 1
    assert scipy.stats.chisquare(counted).pvalue > 1e-3


@pytest.mark.parametrize("name", DISTORTIONS)
def test_perturbations_stay_around_the_global_centroid(name: str) -> None:
    sample = sample_of(random_rows(8, n=20, d=40, name=name), name)
    overall = plain_centroid(sample, list(range(20)))
    found = first_centroids.perturbations(sample, 50, 0)
    away = (found / overall - 1.0) / first_centroids.PERTURBATION
    assert np.abs(away).max() <= 1 + 1e-6
    assert scipy.stats.kstest((away.ravel() + 1) / 2, "uniform").pvalue > 1e-3
    assert len(np.unique(found, axis=0)) == 50


def test_fill_keeps_what_is_given_and_adds_what_is_missing() -> None:
    sample = sample_of(random_rows(9))
    given = sample.centroids_of_rows(np.arange(3))
    assert np.array_equal(first_centroids.fill(sample, 2, 0, given, "k-means++"), given[:2])
    for how in ("k-means++", "perturb"):
        found = first_centroids.fill(sample, 5, 0, given, how)
        assert found.shape == (5, 6)
        assert np.array_equal(found[:3], given)
    perturbed = first_centroids.fill(sample, 5, 0, given, "perturb")[3:]
    assert np.array_equal(perturbed, first_centroids.perturbations(sample, 2, 0))


# --- neighbourhoods


def random_groups(rng: np.random.Generator, n_rows: int) -> tuple[list[list[int]], list[Any]]:
    """Return must-link groups of rows and cannot-links between some of them."""
    order = rng.permutation(n_rows).tolist()
    groups = []
    while len(order) >= 4:
        size = int(rng.integers(1, 4))
        groups.append(sorted(order[:size]))
        order = order[size:]
    cannot = []
    for one, other in itertools.combinations(range(len(groups)), 2):
        if rng.random() < 0.15:
            cannot.append((groups[one][0], groups[other][-1]))
    return groups, cannot


def neighbourhoods_of(
    sample: CandidateRows,
    groups: list[list[int]],
    cannot: list[Any],
    *,
    singles: bool,
    **settings: Any,
) -> tuple[list[list[int]], NDArray[np.bool_], Neighbourhoods]:
    """Return what should be found, and what is: groups, rivals, neighbourhoods."""
    linked = sorted(
        {row for group in groups if len(group) > 1 for row in group}
        | {row for pair in cannot for row in pair}
    )
    node = {row: number for number, row in enumerate(linked)}
    must = [(node[i], node[j]) for i, j in groups_to_pairs(groups)]
    pairs = [(node[i], node[j]) for i, j in cannot]
    graph = graph_of(len(linked), must, pairs, **settings)
    found = find_neighbourhoods(sample, graph, np.asarray(linked), singles=singles)
    wanted = [g for g in groups if len(g) > 1 or (singles and g[0] in node)]
    wanted.sort(key=lambda group: (-len(group), group[0]))
    rivals = np.zeros((len(wanted), len(wanted)), bool)
    home = {row: number for number, group in enumerate(wanted) for row in group}
    for i, j in cannot:
        if i in home and j in home:
            rivals[home[i], home[j]] = rivals[home[j], home[i]] = True
    return wanted, rivals, found


@pytest.mark.parametrize("singles", [False, True])
@pytest.mark.parametrize("tables", [False, True])
def test_neighbourhoods_are_the_groups_largest_first(
    singles: bool, tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tables:  # every closure as a table, so that rivals stand in `graph.rivals`
        monkeypatch.setattr(closure, "EXPLICIT_PAIRS", 0)
        monkeypatch.setattr(closure, "EXPLICIT_RATIO", 0)
    sample = sample_of(random_rows(10, n=40))
    for seed in range(20):
        groups, cannot = random_groups(np.random.default_rng(seed), 40)
        wanted, rivals, found = neighbourhoods_of(sample, groups, cannot, singles=singles)
        assert found.sizes.tolist() == [len(group) for group in wanted]
        assert np.array_equal(found.rivals, rivals)
        for number, group in enumerate(wanted):
            own = sample.centroids(found.sums[[number]].toarray(), found.sizes[[number]])[0]
            np.testing.assert_allclose(own, plain_centroid(sample, group), atol=1e-9)


def test_only_the_largest_neighbourhoods_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_centroids, "MOST_NEIGHBOURHOODS", 4)
    sample = sample_of(random_rows(10, n=40))
    groups, cannot = random_groups(np.random.default_rng(3), 40)
    wanted, rivals, found = neighbourhoods_of(sample, groups, cannot, singles=True)
    assert found.sizes.tolist() == [len(group) for group in wanted[:4]]
    assert np.array_equal(found.rivals, rivals[:4, :4])


def test_no_neighbourhood_at_all() -> None:
    sample = sample_of(random_rows(10, n=10))
    found = find_neighbourhoods(
        sample, graph_of(2, [], [(0, 1)]), np.asarray([3, 4]), singles=False
    )
    assert len(found) == 0
    assert found.totals.shape == (0, 7)


def plain_farthest_first(sample: CandidateRows, groups: list[list[int]], n_clusters: int) -> Floats:
    """Weighted farthest-first by loops over the oracle's distances."""
    name, ones = sample.distortion.name, [1.0] * sample.block.n_features
    centroids = [plain_centroid(sample, group) for group in groups]
    means = [sample.block.to_dense()[group].astype(np.float64) for group in groups]
    taken = [[naive.row_as_taken(x, ones, name) for x in rows] for rows in means]
    if name == "cosine":
        rows = [np.asarray(centroid) for centroid in centroids]
    else:
        rows = [np.mean(one, axis=0) for one in taken]

    def distances(one: int, other: Floats) -> float:
        return naive.distance(rows[one].tolist(), other.tolist(), ones, name)

    overall = plain_centroid(sample, list(range(sample.block.n_rows)))
    off = [distances(one, overall) for one in range(len(groups))]
    everyone = range(len(groups))
    chosen = [min(everyone, key=lambda one: (-len(groups[one]), -off[one], one))]
    while len(chosen) < n_clusters:
        scores = {
            one: min(
                distances(one, centroids[other]) * len(groups[one]) * len(groups[other])
                for other in chosen
            )
            for one in everyone
            if one not in chosen
        }
        chosen.append(min(scores, key=lambda one: (-scores[one], -off[one], one)))
    return np.stack([centroids[one] for one in chosen])


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", ["cosine", "euclidean", "kl"])
def test_farthest_first_is_the_plain_version(name: str, dense: bool) -> None:
    for seed in range(6):
        sample = sample_of(random_rows(seed, n=40, name=name), name, dense=dense)
        groups, cannot = random_groups(np.random.default_rng(seed), 40)
        wanted, _, found = neighbourhoods_of(sample, groups, cannot, singles=False)
        chosen = first_centroids.farthest_first(sample, found, 4)
        np.testing.assert_allclose(chosen, plain_farthest_first(sample, wanted, 4), atol=1e-6)


def test_the_largest_neighbourhood_comes_first_and_ties_go_to_the_farthest_from_the_centre() -> (
    None
):
    rows = np.eye(6)[[0, 0, 1, 1, 2, 2, 2, 3, 3]] + np.asarray([0.2, 0, 0, 0, 0, 0])
    sample = sample_of(rows)
    groups = [[0, 1], [2, 3], [4, 5, 6], [7, 8]]
    _, _, found = neighbourhoods_of(sample, groups, [], singles=False)
    chosen = first_centroids.farthest_first(sample, found, 3)
    assert chosen[0].argmax() == 2
    # features 1 and 3 lie equally far from everything: the lower id is taken first
    assert [one.argmax() for one in chosen[1:]] == [1, 3]
    even = [[0, 1], [2, 3], [7, 8]]  # all as large: the one off the common direction leads
    _, _, found = neighbourhoods_of(sample, even, [], singles=False)
    assert first_centroids.farthest_first(sample, found, 2)[0].argmax() == 1


def test_as_many_neighbourhoods_as_clusters_are_all_taken() -> None:
    sample = sample_of(random_rows(4, n=20))
    _, _, found = neighbourhoods_of(sample, [[0, 1], [2, 3, 4], [5, 6]], [], singles=False)
    for pick in (first_centroids.farthest_first, first_centroids.agglomerate):
        for n_clusters in (3, 5):
            wanted = [plain_centroid(sample, group) for group in ([2, 3, 4], [0, 1], [5, 6])]
            np.testing.assert_allclose(pick(sample, found, n_clusters), wanted, atol=1e-9)


def one_cluster_energy(sample: CandidateRows, rows: list[int]) -> float:
    """The oracle's J of some rows as one cluster."""
    model = naive.Model(sample.block.to_dense()[rows].astype(np.float64), sample.distortion.name)
    ones, together = [1.0] * sample.block.n_features, [0] * len(rows)
    centroids = naive.optimal_centroids(model, together, 1, ones)
    return naive.energy(model, together, centroids, ones).total


def plain_unions(
    groups: list[list[int]], rivals: NDArray[np.bool_], n_clusters: int, cost: Any
) -> list[list[int]]:
    """Merge groups to K, always the two whose union costs least, by loops; return all unions."""
    unions = {number: list(group) for number, group in enumerate(groups)}
    enemies = {number: set(np.flatnonzero(rivals[number]).tolist()) for number in unions}
    while len(unions) > n_clusters:
        open_pairs = [
            (cost(unions[one], unions[other]), one, other)
            for one, other in itertools.combinations(sorted(unions), 2)
            if other not in enemies[one]
        ]
        if not open_pairs:
            break
        _, one, other = min(open_pairs)
        unions[one] += unions.pop(other)
        for enemy in enemies.pop(other):
            enemies[one].add(enemy)
            enemies[enemy].discard(other)
            enemies[enemy].add(one)
    return sorted(unions.values(), key=lambda rows: -len(rows))


@pytest.mark.parametrize("singles", [False, True])
@pytest.mark.parametrize("name", ["cosine", "pearson", "euclidean"])
def test_agglomeration_merges_the_two_whose_union_raises_j_least(name: str, singles: bool) -> None:
    for seed in range(5):
        sample = sample_of(random_rows(seed, n=30), name)
        groups, cannot = random_groups(np.random.default_rng(seed), 30)
        wanted, rivals, found = neighbourhoods_of(sample, groups, cannot, singles=singles)

        def cost(one: list[int], other: list[int], sample: CandidateRows = sample) -> float:
            distances = one_cluster_energy(sample, one) + one_cluster_energy(sample, other)
            return one_cluster_energy(sample, one + other) - distances

        unions = plain_unions(wanted, rivals, 3, cost)
        owner = first_centroids.merge_to(sample, found, 3)
        merged = [
            sorted(row for number in np.flatnonzero(owner == first) for row in wanted[number])
            for first in np.unique(owner)
        ]
        assert sorted(merged) == sorted(sorted(rows) for rows in unions)
        chosen = first_centroids.agglomerate(sample, found, 3)
        largest = sorted(merged, key=lambda rows: -len(rows))[:3]
        sizes = [len(rows) for rows in merged]
        if len(set(sizes)) == len(sizes):  # else which come first is a tie
            centroids = [plain_centroid(sample, rows) for rows in largest]
            np.testing.assert_allclose(chosen, centroids, atol=1e-9)


def test_agglomeration_by_distances_alone_is_ward_with_lance_and_williams() -> None:
    for seed in range(5):
        sample = sample_of(random_rows(seed, n=30, name="kl"), "kl")
        groups, cannot = random_groups(np.random.default_rng(seed), 30)
        wanted, rivals, found = neighbourhoods_of(sample, groups, cannot, singles=True)
        distances = plain_distances_of_groups(sample, wanted)

        def cost(one: list[int], other: list[int], ap: Any = distances, w: Any = wanted) -> float:
            return ward(one, other, [len(group) for group in w], ap)

        unions = plain_unions([[n] for n in range(len(wanted))], rivals, 3, cost)
        owner = first_centroids.merge_to(sample, found, 3)
        merged = [np.flatnonzero(owner == first).tolist() for first in np.unique(owner)]
        assert sorted(merged) == sorted(sorted(one) for one in unions)


def plain_distances_of_groups(sample: CandidateRows, groups: list[list[int]]) -> Floats:
    """The oracle's distances of the groups' means to the centroids of all groups, for kl."""
    ones = [1.0] * sample.block.n_features
    rows = [naive.row_as_taken(x, ones, "kl") for x in sample.block.to_dense().tolist()]
    means = [np.mean([rows[row] for row in group], axis=0).tolist() for group in groups]
    centroids = [plain_centroid(sample, group).tolist() for group in groups]
    return naive.distances(means, centroids, ones, "kl")


def ward(one: list[int], other: list[int], sizes: list[int], distances: Floats) -> float:
    """Ward's criterion between two unions of neighbourhoods, by Lance and Williams.

    For a table of dissimilarities it has a closed form: n_A n_B / (n_A + n_B) times the mean
    across less half the mean within each, means by size and symmetric.
    """

    def mean(left: list[int], right: list[int]) -> float:
        total = 0.0
        for a in left:
            for b in right:
                if a != b:
                    total += sizes[a] * sizes[b] * (distances[a, b] + distances[b, a]) / 2
        return total / (sum(sizes[a] for a in left) * sum(sizes[b] for b in right))

    n_one, n_other = sum(sizes[a] for a in one), sum(sizes[b] for b in other)
    inner = mean(one, other) - 0.5 * mean(one, one) - 0.5 * mean(other, other)
    return n_one * n_other / (n_one + n_other) * inner


def test_no_union_ever_crosses_a_cannot_link_and_where_that_ends_early_the_largest_are_taken() -> (
    None
):
    sample = sample_of(random_rows(11, n=40))
    for seed in range(30):
        groups, cannot = random_groups(np.random.default_rng(seed), 40)
        _, rivals, found = neighbourhoods_of(sample, groups, cannot, singles=True)
        owner = first_centroids.merge_to(sample, found, 2)
        assert not (rivals & (owner[:, None] == owner[None, :])).any()
    groups = [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9, 10], [11, 12]]
    every = [(one[0], other[0]) for one, other in itertools.combinations(groups, 2)]
    _, _, found = neighbourhoods_of(sample, groups, every, singles=False)
    wanted = [plain_centroid(sample, groups[3]), plain_centroid(sample, groups[1])]
    np.testing.assert_allclose(first_centroids.agglomerate(sample, found, 2), wanted, atol=1e-9)
