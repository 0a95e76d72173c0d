"""The gradient of J by feature weights (cosine, Pearson): KDD eq. 18–19 with their signs put right.

Centroids are optimal, so J changes as if they stood still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hmrf_dask.dataflow import tree
from hmrf_dask.em.engine import Engine, Pricing
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.pair_gradients import pair_statistics
from hmrf_dask.em.parts import KeptTerms, add_limbs, terms_of
from hmrf_dask.kernels.gradients import rows_by_cluster, squares_by_length, weighted_squares
from hmrf_dask.kernels.moves import Moved
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.store.reading import Blocks, batches
from hmrf_dask.types import FloatArray, IntArray


def rows_of_group(
    blocks: Blocks,
    kept: Sequence[KeptTerms | None],
    model: Model,
    run: RunStore,
    files: Sequence[LabelsFile],
) -> Iterator[list[Moved]]:
    """Yield the rows of some parts cluster by cluster, as many at a time as a task may hold."""
    for places, some in batches(blocks):
        labels = run.read_group([files[place] for place in places])
        terms = [
            terms_of(block, kept[place], model) for place, block in zip(places, some, strict=True)
        ]
        yield rows_by_cluster([block.arrays for block in some], terms, labels, model.n_clusters)


def noted_rows(
    blocks: Sequence[RowBlock],
    kept: Sequence[KeptTerms | None],
    model: Model,
    run: RunStore,
    files: Sequence[LabelsFile],
) -> list[Moved]:
    """Return the rows of some parts cluster by cluster: the driver has them, too."""
    return [one for some in rows_of_group(blocks, kept, model, run, files) for one in some]


def squares_of_group(
    blocks: Blocks,
    kept: Sequence[KeptTerms | None],
    model: Model,
    run: RunStore,
    files: Sequence[LabelsFile],
    overall: Model,
    strength: float,
    exponent: int,
) -> IntArray:
    """Return Σ c_i z_im²/a_m of some parts.

    c_i is the similarity to the own centroid less `strength` times that to the global one.
    """
    found = np.zeros(len(model.weights) + 1, np.int64)
    for some in rows_of_group(blocks, kept, model, run, files):
        found += weighted_squares(some, model.table(), overall.table(), strength, exponent)
    return found


def _squares(engine: Engine, state: State, overall: Model, exponent: int) -> IntArray:
    """Return Σ c_i z_im²/a_m of all rows: by the driver where they are at hand, else by tasks."""
    flow, model, strength = engine.flow, state.model, state.prior.strength
    free, linked = engine.groups(state)
    shared = engine.send(model)
    groups = [
        (one.blocks, list(one.kept), shared, engine.run, list(one.files))
        for one in [*free, *linked]
    ]
    if engine.at_hand:
        noted = flow.compute([flow.lazy(noted_rows, *group) for group in groups])
        members = [one for some in noted for one in some]
        return weighted_squares(members, model.table(), overall.table(), strength, exponent)
    others = (flow.share(overall), strength, exponent)
    squares = [flow.lazy(squares_of_group, *group, *others) for group in groups]
    found: IntArray = flow.compute([tree(flow, add_limbs, squares)])[0]
    return found


def weight_gradient(engine: Engine, state: State, pricing: Pricing) -> FloatArray:
    """Return ∂J/∂a by feature, priors included."""
    model, strength = state.model, state.prior.strength
    n_rows, whole = engine.problem.extent.n_rows, state.sums.sum(axis=0, keepdims=True)
    # A centred row's part is (x + e)² − e², x + e at most 1/√a
    bound = max(engine.summand_bound(model.weights) ** 2, 1.0 / float(model.weights.min()))
    exponent = fixed_point_exponent(n_rows, (1.0 + strength) * bound)
    overall = _one_cluster(model, whole, n_rows)
    totals = _squares(engine, state, overall, exponent) * 2.0**-exponent
    rows = model.weights * (totals[:-1] + totals[-1])
    unit, roots = 2.0**-model.exponent, np.sqrt(model.weights)
    by_log = 0.5 * (rows - unit * squares_by_length(state.sums, roots))
    if strength:
        by_log += 0.5 * strength * unit * squares_by_length(whole, roots)
    by_log += pair_statistics(engine, state, pricing)
    return np.asarray(by_log / model.weights, np.float64)


def _one_cluster(model: Model, whole: IntArray, n_rows: int) -> Model:
    """Return the model of one cluster of all rows."""
    counts, weights = np.asarray([n_rows]), model.weights
    arguments = (whole, model.exponent, counts, weights, model.smoothing, None)
    return replace(model, centroids=model.distortion.centroids(*arguments))
