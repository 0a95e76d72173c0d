"""The M-steps: centroids from exact sums, empty clusters reseeded, one step of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hmrf_dask.distortions.base import Remade
from hmrf_dask.distortions.idivergence import LEAST, IDivergence
from hmrf_dask.fit.owners import Owned
from hmrf_dask.fit.passes import Engine
from hmrf_dask.flow.dataflow import share_array, tree
from hmrf_dask.kernels.gradients import RUNS, squares_by_length, weighted_squares
from hmrf_dask.kernels.metric import prior_of
from hmrf_dask.kernels.reweighting import Gathered, gather, reweigh
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.tasks import cluster_totals
from hmrf_dask.tasks.first_centroids import Lowest, farthest, merge_lowest
from hmrf_dask.tasks.gradients import (
    Overall,
    closure_part,
    explicit_part,
    feature_moments,
    noted_rows,
    squares_of_slice,
)
from hmrf_dask.tasks.model import Model, State, WeightPrior, centroids_of, real_sums, without_sum
from hmrf_dask.tasks.partitions import RowTerms, StoredLabels, add_limbs
from hmrf_dask.types import BoolArray, FloatArray, IntArray

FEW = 16  # one row in so many


def keeps_centroid(state: State) -> BoolArray:
    """Return which clusters have a centroid that their sums alone do not give."""
    if state.optimal:
        return vacant_clusters(state)
    if isinstance(state.sums, Owned):
        return state.sums.owners.differing(state)
    model = state.model
    alone = replace(state, model=replace(model, centroids=np.zeros_like(model.centroids)))
    return np.asarray((centroids_of(alone) != model.centroids).any(axis=1))


def maximisation(engine: Engine, state: State) -> State:
    """Return the state at its optimal centroids, Σ D computed again."""
    return _optimal(engine, state, *engine.remade(state))


def maximisation_after(
    engine: Engine, state: State, moved: int, *, learning: bool
) -> tuple[State, State]:
    """Return the state after an E-step that `moved` so many rows, and that at optimal centroids.

    One pass over the sums gives Σ D of both. Where few rows moved centroids go so little that most
    rows need no comparison with them, unless weights are learned. While outliers are kept out J of
    both is measured row by row.
    """
    if state.model.limits is not None:
        return state, maximisation(engine, state)
    near = not learning and FEW * moved < engine.problem.extent.n_rows
    model, made = engine.remade(state, compared=True, near=near)
    if made.closed_before is not None:
        state = _measured(engine, state, made.closed_before)
    return state, _optimal(engine, state, model, made)


def _optimal(engine: Engine, state: State, model: Model, made: Remade) -> State:
    """Return the state with the model of its optimal centroids."""
    engine.send_ahead(model)
    after = replace(state, model=model, optimal=True)
    if made.closed is not None and model.linear:
        return _measured(engine, after, made.closed)
    energy = replace(state.energy, distortion=engine.distortion_sum(after))
    return replace(after, energy=energy)


def _measured(engine: Engine, state: State, closed: int) -> State:
    """Return the state with the Σ D of which its sums decide that part."""
    distortion = engine.corpus_terms(state.model.weights).offsets + closed
    return replace(state, energy=replace(state.energy, distortion=distortion))


def vacant_clusters(state: State) -> BoolArray:
    """Return which clusters have no row, or none with a direction where rows may have none."""
    vacant = np.asarray(state.counts == 0)
    if state.model.distortion.zero_rows == "undecided":
        owned = isinstance(state.sums, Owned)
        vacant |= state.sums.owners.vacant(state.sums) if owned else without_sum(state.sums)
    return vacant


def reseed(engine: Engine, state: State) -> State | None:
    """Return the state with the farthest free rows in empty clusters, if J falls; else None."""
    empty = np.flatnonzero(vacant_clusters(state))
    if not len(empty):
        return None
    flow, problem = engine.flow, engine.problem
    counts, model = share_array(flow, state.counts), engine.share_model(state.model)
    free, linked = (
        [StoredLabels(engine.run, [file]) for file in files] for files in (state.free, state.linked)
    )
    lists = [
        flow.lazy(farthest, part.block, model, counts, stored, len(empty))
        for part, stored in zip(problem.free, free, strict=True)
    ]
    far: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    if not len(far.rows):
        return None
    moves = (share_array(flow, far.rows), share_array(flow, empty[: len(far.rows)]))
    after = [
        flow.lazy(StoredLabels.moved, stored, part.first_row, moves)
        for part, stored in zip(problem.free, free, strict=True)
    ]
    after += [flow.lazy(StoredLabels.read, stored) for stored in linked]
    moved, _ = engine.move(state, after)
    seeded = maximisation(engine, moved)
    return seeded if seeded.energy.total < state.energy.total else None


# ---- the closed forms

PAPER_RATE = 1.75
RATE = 0.12  # of the scale-free step; the paper's 1.75 is about this on its data
FLOOR = 1e-3  # least weight of a feature where their mean is 1
HALVINGS = 5
NORMALISER = 1.0  # λ of −λ Σ D(x, global centroid): without it learned weights collapse
LEAST_VARIANCE = 1e-6  # of a feature's scatter in one cluster: less is taken as this
LEAST_MOMENT = 1e-9  # the same of Σ x²; below it a scatter is rounding
MOST_STRENGTH = 1e6  # of the entropy rule: features that then still do not differ never will
REACH = 20.0  # of the logarithm of a weight, up or down
SHARE = 0.9  # of features in effect that the entropy rule must leave: (Σa)²/(d Σa²)


def effective_share(weights: FloatArray) -> float:
    """Return (Σa)²/(d Σa²): 1 when all features weigh the same, 1/d when one weighs all.

    Examples
    --------
    >>> effective_share(np.ones(4)), effective_share(np.array([9.0, 0.0, 0.0, 0.0]))
    (1.0, 0.25)
    """
    return float(weights.sum() ** 2 / (len(weights) * (weights * weights).sum()))


def first_prior(engine: Engine) -> WeightPrior:
    """Return the prior a fit starts with."""
    rule = engine.problem.distortion.learning if engine.learning else None
    if rule != "gradient" or engine.problem.settings.weight_update == "paper":
        return WeightPrior()
    return WeightPrior(strength=NORMALISER)


def prior_value(engine: Engine, state: State) -> float:
    """Return prior(a) of a state, or that of its full metric."""
    if len(state.factor):
        return prior_of(state.factor, engine.problem.extent.n_rows)
    prior, weights = state.prior, state.model.weights
    rule = engine.problem.distortion.learning
    if rule == "gradient" and prior.strength:
        whole = full_sums(state.model, sum_of_clusters(engine, state))
        length = float(np.sqrt((whole * whole).sum()))
        return -prior.strength * (engine.problem.extent.n_rows - length)
    if rule == "entropy" and prior.strength:
        scale = (prior.reference + prior.offset) / prior.strength
        return float(
            (scale * (weights * np.log(weights) - weights) - prior.reference * weights).sum()
        )
    return 0.0


def sum_of_clusters(engine: Engine, state: State) -> IntArray:
    """Return the sums of a state over all clusters, as of one cluster: (1, d + 1)."""
    zeros = np.zeros((1, engine.problem.extent.n_features + 1), np.int64)
    whole: IntArray = engine.folded(state, cluster_totals.add_sums, zeros)
    return whole


def full_sums(model: Model, sums: IntArray) -> FloatArray:
    """Return sums with their mean column worked in, shape (K, d)."""
    whole = real_sums(sums[:, :-1], model.exponent)
    means = real_sums(sums[:, -1:], model.exponent)
    if means.any():
        whole += means * np.sqrt(model.weights)
    return whole


def learn(engine: Engine, state: State) -> State | None:
    """Return the state under better weights, None when no step lowers J."""
    rows = None
    if engine.problem.distortion.learning == "gradient" and engine.in_process:
        rows = _gathered(engine, state)
    for weights in _proposals(engine, state, rows):
        if np.array_equal(weights, state.model.weights):
            return None
        moved = reweighted(engine, state, weights, rows)
        if moved.energy.total < state.energy.total:
            return moved
        engine.forget(weights)
    return None


def _gathered(engine: Engine, state: State) -> Gathered:
    """Return all rows by cluster where the driver sees them, partitions in the problem's order."""
    flow, shared, (free, linked) = (
        engine.flow,
        engine.share_model(state.model),
        engine.slices(state),
    )
    noted = flow.compute(
        [flow.lazy(noted_rows, rows, shared, engine.run) for rows in [*free, *linked]]
    )
    blocks = [rows for of_slice in noted for rows in of_slice]
    places = [place for of_slice in engine.problem.slices for place in of_slice]
    in_order = [blocks[slot] for slot in np.argsort(places)]
    return gather([*in_order, *blocks[len(places) :]])


def reweighted(
    engine: Engine, state: State, weights: FloatArray, rows: Gathered | None = None
) -> State:
    """Return the state under other weights: sums where they change, centroids, pairs, J.

    With the `rows` by cluster, one pass makes sums and terms of rows together where it can.
    """
    model = replace(state.model, weights=weights)
    moved = replace(state, model=model)
    distortion = engine.problem.distortion
    if distortion.learning == "gradient":  # summands are scaled by √a/‖x‖_A
        bound = engine.summand_bound(weights)
        model = replace(model, exponent=fixed_point_exponent(engine.problem.extent.n_rows, bound))
        if rows is not None and distortion.scaled_rows:
            sizes, sums = reweigh(rows, weights, model.n_clusters, model.exponent)
            engine.keep_terms(weights, [RowTerms(distortion.terms_of_sizes(of)) for of in sizes])
            counts = state.counts
        else:
            sums, counts = engine.total_sums(model, moved)
        moved = replace(moved, model=model, sums=sums, counts=counts)
    moved = replace(moved, model=engine.at_optimum(moved))
    return replace(moved, energy=engine.energy(moved, prior_value(engine, moved)))


def _proposals(engine: Engine, state: State, rows: Gathered | None = None) -> Iterator[FloatArray]:
    """Yield weights to try, the boldest first; the `rows` are those that the driver sees."""
    rule = engine.problem.distortion.learning
    weights = state.model.weights
    if rule == "gradient":
        gradient = weight_gradient(engine, state, rows)
        if engine.problem.settings.weight_update == "paper":
            yield _kept(weights - PAPER_RATE * gradient)
            return
        rate = RATE * len(weights) / engine.problem.extent.n_rows
        for halving in range(HALVINGS + 1):
            yield _kept(weights * np.exp(np.clip(-rate * 0.5**halving * gradient, -5.0, 5.0)))
        return
    best = (
        _variance_weights(engine, state) if rule == "variance" else _entropy_weights(engine, state)
    )
    for halving in range(HALVINGS + 1):
        part = 0.5**halving  # no difference is taken: a weight of 1e-12 would vanish in 1
        yield part * best + (1.0 - part) * weights


def _kept(weights: FloatArray) -> FloatArray:
    """Return weights with a mean of 1 and none below the floor, the others in their proportions."""
    kept = np.maximum(weights, 0.0)
    if not np.isfinite(kept.sum()) or not kept.any():
        return np.ones_like(weights)
    low = np.zeros(len(kept), np.bool_)
    while True:  # each turn puts more features on the floor, or ends
        kept = kept * ((len(kept) - FLOOR * low.sum()) / kept[~low].sum())
        below = ~low & (kept < FLOOR)
        if not below.any():
            return np.asarray(np.where(low, FLOOR, kept), np.float64)
        low |= below


@dataclass(frozen=True)
class Scatter:
    """By feature, without weights: Σ D of a labelling, and of one cluster of all rows."""

    own: FloatArray
    overall: FloatArray


def _moments(engine: Engine, model: Model) -> FloatArray:
    """Return the feature moments of the corpus; they never change in a fit.

    Each feature has its own fixed point: metrics are learned where units differ widely.
    """
    if engine.moments is None:
        flow, distortion, extent = engine.flow, engine.problem.distortion, engine.problem.extent
        if isinstance(distortion, IDivergence):
            bounds = np.full(extent.n_features, distortion.entropy_bound)
        else:
            bounds = np.maximum(np.abs(extent.minimum), np.abs(extent.maximum)) ** 2
        units = _fixed_points(bounds, extent.n_rows)
        shared, known = flow.share(model.without_centroids()), share_array(flow, units)
        blocks = (part.block for part in engine.problem.free)
        limbs = [flow.lazy(feature_moments, block, shared, known) for block in blocks]
        engine.moments = flow.compute([tree(flow, add_limbs, limbs)])[0] / units
    return engine.moments


def _fixed_points(bounds: FloatArray, n_rows: int) -> FloatArray:
    """Return the unit of each number below these bounds, of which so many rows are added."""
    largest, each = np.unique(bounds, return_inverse=True)
    exponents = [fixed_point_exponent(n_rows, float(bound)) for bound in largest]
    return np.asarray((2.0 ** np.asarray(exponents, np.float64))[each], np.float64)


def _variance_weights(engine: Engine, state: State) -> FloatArray:
    """Return a_m = N / (scatter of feature m and of violated pairs)."""
    n_rows, moments = engine.problem.extent.n_rows, _moments(engine, state.model)
    whole = real_sums(sum_of_clusters(engine, state)[0], state.model.exponent)[:-1]
    overall = np.maximum(moments - whole * whole / n_rows, 0.0)
    between = engine.folded(state, cluster_totals.add_scatter_between, np.zeros(len(whole)))
    scatter = np.maximum(moments - between, 0.0)
    scatter += pair_statistics(engine, state)
    least = np.maximum(LEAST_VARIANCE * overall, LEAST_MOMENT * moments)
    varies = overall > LEAST_MOMENT * moments  # the others tell nothing and keep their weights
    best = n_rows / np.maximum(scatter, np.where(varies, least, 1.0))
    return np.asarray(np.where(varies, best, state.model.weights), np.float64)


def scatter_of(engine: Engine, state: State, *, settled: bool) -> Scatter:
    """Return s and s0 of the entropy rule; once `settled` with the smoothing's own terms."""
    model, distortion = state.model, engine.problem.distortion
    assert isinstance(distortion, IDivergence)
    moments, u, alpha = _moments(engine, model), distortion.uniform, model.smoothing
    n_rows = engine.problem.extent.n_rows
    totals = real_sums(sum_of_clusters(engine, state)[0], model.exponent)[:-1]
    overall = np.maximum((totals / n_rows + alpha * u) / (1.0 + alpha), LEAST)

    zeros = np.zeros(len(totals))
    own = moments + engine.folded(state, cluster_totals.add_distortions, zeros, settled)
    whole = moments + n_rows * overall - totals * np.log(overall)
    own = own + pair_statistics(engine, state)
    if settled:
        whole = whole + alpha * n_rows * (u * np.log(u / overall) - u + overall)
    return Scatter(np.maximum(own, 0.0), np.maximum(whole, 0.0))


def entropy_form(scatter: Scatter, strength: float) -> FloatArray:
    """Return a_m = exp(−λ (s − s0)/(s0 + T)), T the mean of s0."""
    offset = float(scatter.overall.mean())
    if offset <= 0:
        return np.ones_like(scatter.own)
    return _relative(scatter.own, scatter.overall, offset, strength)


def _relative(own: FloatArray, reference: FloatArray, offset: float, strength: float) -> FloatArray:
    exponents = -strength * (own - reference) / (reference + offset)
    return np.asarray(np.exp(np.clip(exponents, -REACH, REACH)), np.float64)


def largest_strength(scatter: Scatter) -> float:
    """Return the largest λ that leaves `SHARE` of the features in effect; 0 where any would."""
    low, high = 0.0, 1.0
    while effective_share(entropy_form(scatter, high)) >= SHARE:
        low, high = high, 2.0 * high
        if low > MOST_STRENGTH:
            return 0.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        if effective_share(entropy_form(scatter, middle)) >= SHARE:
            low = middle
        else:
            high = middle
    return low


def warm_weights(engine: Engine, state: State, strength: float) -> tuple[FloatArray, float]:
    """Return weights and λ of the warm-up: λ goes half the way to the largest allowed."""
    scatter = scatter_of(engine, state, settled=False)
    target = largest_strength(scatter)
    strength = target if strength == 0 else strength + 0.5 * (target - strength)
    return entropy_form(scatter, strength), strength


def held_prior(engine: Engine, state: State, strength: float) -> WeightPrior:
    """Return the prior that stands from the end of the warm-up on."""
    overall = scatter_of(engine, state, settled=True).overall
    return WeightPrior(strength, overall, float(overall.mean()))


def _entropy_weights(engine: Engine, state: State) -> FloatArray:
    """Return the minimiser of J over the weights under the held prior."""
    prior = state.prior
    if not prior.strength:
        return state.model.weights
    own = scatter_of(engine, state, settled=True).own
    return _relative(own, prior.reference, prior.offset, prior.strength)


def pair_statistics(engine: Engine, state: State) -> FloatArray:
    """Return what violated pairs add, (d,): zero under Potts penalties, which no weight changes."""
    problem, flow, model = engine.problem, engine.flow, state.model
    if problem.potts or not problem.icm_problems:
        return np.zeros(len(model.weights))
    units = _units(engine, model)
    shared, known = engine.share_model(model), share_array(flow, units)
    parts = [
        flow.lazy(
            explicit_part, tuple(problem.linked[place].block for place in pair.partitions),
            pair.block, shared, engine.stored(pair.partitions, state.linked), known,
        )
        for pair in problem.pairs
    ]  # fmt: skip
    parts += [
        flow.lazy(
            closure_part, plan.problem, engine.rows_of(number), shared,
            engine.stored(plan.partitions, state.linked), known,
        )
        for number, plan in enumerate(problem.icm_problems)
        if plan.mode == "table"
    ]  # fmt: skip
    totals = flow.compute([tree(flow, add_limbs, parts)])[0] / units
    by_feature = totals[:-2] + model.weights * totals[-2]
    if problem.distortion.learning == "variance":
        width = _width(engine)
        by_feature = by_feature + totals[-1] * width * width
    return np.asarray(by_feature, np.float64)


def _units(engine: Engine, model: Model) -> FloatArray:
    """Return the units of features, of what is times every a, and of the bounding box: (d + 2,)."""
    problem = engine.problem
    if problem.distortion.learning == "variance":
        reach = _width(engine) ** 2
    elif problem.distortion.learning == "entropy":
        reach = np.full(len(model.weights), 2.0 * engine.summand_bound(model.weights))
    else:
        reach = np.full(len(model.weights), max(engine.summand_bound(model.weights), 1.0) ** 2)
    bounds = 4.0 * problem.degree * np.append(reach, [reach.max(initial=1.0), 1.0])
    return _fixed_points(bounds, problem.extent.n_rows)


def _width(engine: Engine) -> FloatArray:
    """Return the sides of the corpus's bounding box."""
    return engine.problem.extent.maximum - engine.problem.extent.minimum


def _squares(
    engine: Engine, state: State, overall: Model, exponent: int, rows: Gathered | None
) -> IntArray:
    """Return Σ c_i z_im²/a_m of all rows: by the driver where it sees them, else by tasks."""
    flow, model, strength = engine.flow, state.model, state.prior.strength
    if rows is not None:
        return weighted_squares(rows.rows.lined, model.table(), overall.table(), strength, exponent)
    free, linked = engine.slices(state)
    slices, shared = [*free, *linked], engine.share_model(model)
    one_cluster = Overall(flow.share(overall), strength)
    squares = [
        flow.lazy(squares_of_slice, of_slice, shared, engine.run, one_cluster, exponent)
        for of_slice in slices
    ]
    total: IntArray = flow.compute([tree(flow, add_limbs, squares)])[0]
    return total


def weight_gradient(engine: Engine, state: State, gathered: Gathered | None = None) -> FloatArray:
    """Return ∂J/∂a by feature, priors included."""
    model, strength = state.model, state.prior.strength
    n_rows, whole = engine.problem.extent.n_rows, sum_of_clusters(engine, state)
    # A centred row's part is (x + e)² − e², x + e at most 1/√a
    bound = max(engine.summand_bound(model.weights) ** 2, 1.0 / float(model.weights.min()))
    exponent = fixed_point_exponent(n_rows, (1.0 + strength) * bound)
    rows = (whole, model.exponent, np.asarray([n_rows], np.int64))
    centroids = model.distortion.centroids(*rows, model.weights, model.smoothing, None)
    overall = replace(model, centroids=centroids)  # of one cluster of all rows
    totals = _squares(engine, state, overall, exponent, gathered) * 2.0**-exponent
    own = model.weights * (totals[:-1] + totals[-1])
    unit, roots = 2.0**-model.exponent, np.sqrt(model.weights)
    runs = np.zeros((RUNS, len(roots)))
    squares = engine.folded(state, cluster_totals.add_squares_by_length, runs, roots).sum(axis=0)
    by_log = 0.5 * (own - unit * squares)
    if strength:
        by_log += 0.5 * strength * unit * squares_by_length(whole, roots)
    by_log += pair_statistics(engine, state)
    return np.asarray(by_log / model.weights, np.float64)
