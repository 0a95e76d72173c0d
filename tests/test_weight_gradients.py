from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hmrf_dask.kernels.by_cluster import line_up
from hmrf_dask.kernels.exact import exact_value
from hmrf_dask.kernels.gradients import rows_by_cluster, weighted_squares
from hmrf_dask.linked.layout import CANNOT, MUST, IcmProblem, PairBlock
from hmrf_dask.tasks import gradients
from hmrf_dask.tasks.gradients import closure_part, explicit_part
from hmrf_dask.tasks.icm import table_penalties
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import StoredLabels
from tests import naive
from tests.support import problems
from tests.support.distortion_rows import blocks_of, bound, sums_of

EXPONENT = 45
GRADIENT = ["cosine", "pearson"]
LINEAR = ["euclidean", "i-divergence", "kl"]


class Labels:
    """A run store that knows one labelling."""

    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def read_group(self, files: Any) -> Any:
        return [self.labels for _ in files]


@dataclass
class Case:
    problem: problems.Problem
    model: naive.Model
    weights: Any
    labels: Any
    centroids: Any
    distortion: Any
    blocks: list[Any]


def make_case(name: str, seed: int, **settings: Any) -> Case:
    chosen = {"n": 24, "d": 6, "K": 3, "closure": False, "on_conflict": "keep", "smooth": True}
    problem = problems.random_problem(seed, distortion=name, penalty="distance", **chosen)
    weights = problems.random_weights(6, seed)
    labels = np.random.default_rng(seed).integers(0, 3, 24).astype(np.int32)
    model = problem.model(**settings)
    centroids = naive.optimal_centroids(model, labels, 3, weights)
    return Case(
        problem, model, weights, labels, centroids, bound(name, problem.X), blocks_of(problem.X)
    )


def model_of(case: Case, smoothing: float = 0.0) -> Model:
    return Model(case.distortion, case.weights, case.centroids, smoothing, EXPONENT)


def explicit_pairs(case: Case) -> PairBlock:
    must, cannot = case.model.pairs.must, case.model.pairs.cannot
    ends = np.array([*must, *cannot], np.int32).reshape(-1, 2)
    kind = np.repeat(np.array([MUST, CANNOT], np.int8), [len(must), len(cannot)])
    cost = np.array([*must.values(), *cannot.values()], np.float64)
    return PairBlock((0, 0), ends[:, 0], ends[:, 1], kind, cost)


def stored(labels: Any, n_files: int = 1) -> StoredLabels:
    """Return labels as tasks read them, the same ones for every file."""
    run: Any = Labels(labels)
    files: Any = (None,) * n_files
    return StoredLabels(run, files)


def pair_part(case: Case, block: Any) -> Any:
    """Return what violated pairs add by feature, as `pair_statistics` puts it together."""
    pairs, labels = explicit_pairs(case), stored(case.labels, 2)
    found = explicit_part((block, block), pairs, model_of(case), labels, units_of(case))
    return together(case, found)


def units_of(case: Case) -> Any:
    """Return the unit of every feature and of the two entries behind them, no two alike."""
    return 2.0 ** (EXPONENT - np.arange(len(case.weights) + 2) % 3)


def together(case: Case, found: Any) -> Any:
    totals = found / units_of(case)
    by_feature = totals[:-2] + case.weights * totals[-2]
    if case.model.distortion == "euclidean":
        width = np.array(naive.box_sides(case.model.rows.tolist()))
        by_feature = by_feature + totals[-1] * width * width
    return by_feature


def row_part(case: Case, block: Any, strength: float) -> Any:
    """Return ∂/∂log a of Σ D − λ Σ D(x, global centroid), as `em.weights` puts it together."""
    weights, distortion = case.weights, case.distortion
    terms = distortion.terms(block, weights)
    totals, _ = sums_of(distortion, block, case.labels, 3, weights)
    whole = totals[:, :-1] + totals[:, -1:] * np.sqrt(weights)

    def table(sums: Any) -> Any:
        integers = np.rint(sums * 2.0**40).astype(np.int64)
        counts = np.ones(len(sums), np.int64)
        centroids = distortion.centroids(integers, 40, counts, weights, 0.0, None)
        return distortion.table(centroids, weights)

    def directions(sums: Any) -> Any:
        return (sums * sums / np.sqrt((sums * sums).sum(axis=1, keepdims=True))).sum(axis=0)

    together = totals.sum(axis=0, keepdims=True)
    tables = (table(totals), table(together))
    members = rows_by_cluster([block.arrays], [terms], [case.labels], len(tables[0].exact))
    squares = weighted_squares(line_up(members, 1.0), *tables, strength, EXPONENT)
    rows = weights * (squares[:-1] + squares[-1]) * 2.0**-EXPONENT
    everyone = whole.sum(axis=0, keepdims=True)
    return 0.5 * (rows - directions(whole) + strength * directions(everyone))


@pytest.mark.parametrize("name", GRADIENT)
@pytest.mark.parametrize("strength", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_is_that_of_central_differences(name: str, strength: float, seed: int) -> None:
    case = make_case(name, seed, normaliser=strength)
    expected = naive.numerical_gradient(case.model, case.labels, case.centroids, case.weights)
    expected = expected * case.weights
    size = naive.energy(case.model, case.labels, case.centroids, case.weights).absolute
    for block in case.blocks:
        found = row_part(case, block, strength) + pair_part(case, block)
        assert np.abs(found - expected).max() < 1e-6 * size
        assert abs(found.sum()) < 1e-9 * size  # J does not change when a is scaled


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("seed", range(5))
def test_pairs_add_their_coefficients(name: str, seed: int) -> None:
    case = make_case(name, seed, alpha=0.0 if name == "euclidean" else 0.5)
    alone = replace(case.model, pairs=naive.Pairs())
    expected = np.array(naive.feature_distortions(case.model, case.labels, case.centroids))
    rows = np.array(naive.feature_distortions(alone, case.labels, case.centroids))
    numeric = naive.numerical_gradient(case.model, case.labels, case.centroids, case.weights)
    if name == "euclidean":
        numeric = numeric + len(case.labels) / case.weights
    for block in case.blocks:
        found = pair_part(case, block)
        assert found == pytest.approx(expected - rows, abs=1e-8 * (1 + np.abs(expected).max()))
        assert found + rows == pytest.approx(numeric, abs=1e-6 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("name", ["i-divergence", "kl"])
@pytest.mark.parametrize("seed", range(3))
def test_feature_entropies_and_sums_give_every_features_distortion(name: str, seed: int) -> None:
    case = make_case(name, seed, alpha=0.5)
    alone = replace(case.model, pairs=naive.Pairs(), alpha=0.0)
    expected = np.array(naive.feature_distortions(alone, case.labels, case.centroids))
    for block in case.blocks:
        units = np.full(block.n_features, 2.0**EXPONENT)
        moments = case.distortion.feature_entropies(block, units) / units
        totals, counts = sums_of(case.distortion, block, case.labels, 3, case.weights)
        used = counts > 0
        mu = case.centroids[used]
        found = moments + (counts[used, None] * mu - totals[used, :-1] * np.log(mu)).sum(axis=0)
        assert found == pytest.approx(expected, abs=1e-9 * (1 + expected.max()))


# --- closures in table form ----------------------------------------------------------------------


def table_case(name: str, seed: int) -> tuple[Case, IcmProblem]:
    """Return a problem whose pairs are one problem: groups in table form, rivals, and a rest."""
    case = make_case(name, seed)
    rng = np.random.default_rng(seed + 50)
    sizes = [7, 5, 4, 3, 2, 1, 2]
    groups = np.repeat(np.arange(7), sizes).astype(np.int32)
    groups = groups[rng.permutation(24)]
    groups = np.unique(groups, return_inverse=True)[1].astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups))])
    tables = np.array([True, True, True, True, True, True, False])
    empty = np.zeros(0, np.int32)
    problem = IcmProblem(
        mode="table", partitions=range(1), nodes=np.arange(24, dtype=np.int32),
        first=empty, second=empty, kind=np.zeros(0, np.int8), closure_costs=(0.75, 1.25),
        blocks=range(0), groups=groups, group_starts=starts,
        group_members=np.argsort(groups, kind="stable").astype(np.int32),
        group_components=np.zeros(7, np.int32), group_tables=tables,
        rivals=np.array([[0, 1], [0, 3], [2, 5]], np.int32),
    )  # fmt: skip
    must = {}
    cannot = {}
    rivals = {tuple(pair) for pair in problem.rivals.tolist()}
    for p in range(24):
        for q in range(p + 1, 24):
            g, r = sorted((int(groups[p]), int(groups[q])))
            if g == r and tables[g]:
                must[p, q] = 0.75
            if (g, r) in rivals:
                cannot[p, q] = 1.25
    model = replace(case.model, pairs=naive.Pairs(must, cannot))
    return replace(case, model=model), problem


@pytest.mark.parametrize("name", ["cosine", "pearson", "euclidean"])
@pytest.mark.parametrize("potts", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_closures_cost_what_their_pairs_cost(name: str, potts: bool, seed: int) -> None:
    case, problem = table_case(name, seed)
    model = replace(case.model, penalty="potts" if potts else "distance")
    expected = naive.energy(model, case.labels, case.centroids, case.weights)
    for block in case.blocks:
        found = table_penalties(problem, block, model_of(case), case.labels, potts=potts)
        assert exact_value(found.must) == pytest.approx(
            expected.must_link, abs=1e-9 * expected.absolute
        )
        assert exact_value(found.cannot) == pytest.approx(
            expected.cannot_link, abs=1e-9 * expected.absolute
        )


@pytest.mark.parametrize("name", ["cosine", "pearson", "euclidean"])
@pytest.mark.parametrize("seed", range(4))
def test_closures_turn_weights_as_their_pairs_do(name: str, seed: int) -> None:
    case, problem = table_case(name, seed)
    labels = stored(case.labels)
    for block in case.blocks:
        found = closure_part(problem, [block], model_of(case), labels, units_of(case))
        expected = pair_part(case, block)
        size = 1e-9 * (1 + np.abs(expected).max()) * len(case.model.pairs.must)
        assert together(case, found) == pytest.approx(expected, abs=size)


@pytest.mark.parametrize("name", ["cosine", "pearson", "euclidean"])
def test_few_entries_at_a_time_give_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, problem = table_case(name, 1)
    labels = stored(case.labels)
    arguments = (problem, [case.blocks[0]], model_of(case), labels, units_of(case))
    whole = closure_part(*arguments)
    assert np.abs(whole).max() > 0
    monkeypatch.setattr(gradients, "TOGETHER", 1)
    assert np.array_equal(closure_part(*arguments), whole)


def test_closures_that_hold_add_nothing() -> None:
    case, problem = table_case("pearson", 1)
    labels = stored(problem.groups % 3)
    rivals = problem.rivals[problem.rivals[:, 0] % 3 != problem.rivals[:, 1] % 3]
    separated = replace(problem, rivals=rivals)
    arguments = ([case.blocks[0]], model_of(case), labels, units_of(case))
    assert not closure_part(separated, *arguments).any()


def test_parts_of_pairs_add_up_to_the_same_bits_in_any_blocks() -> None:
    case = make_case("cosine", 3)
    block = case.blocks[0]
    pairs, labels = explicit_pairs(case), stored(case.labels, 2)

    def part(chosen: Any) -> Any:
        first, second, kind = pairs.first[chosen], pairs.second[chosen], pairs.kind[chosen]
        some = PairBlock((0, 0), first, second, kind, pairs.cost[chosen] / 3.0)
        return explicit_part((block, block), some, model_of(case), labels, units_of(case))

    whole = part(np.arange(len(pairs.cost)))
    cuts = np.array_split(np.random.default_rng(0).permutation(len(pairs.cost)), 4)
    assert np.array_equal(whole, sum(part(cut) for cut in cuts))
