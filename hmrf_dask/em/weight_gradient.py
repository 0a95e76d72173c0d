"""The gradient of J by feature weights (cosine, Pearson): KDD eq. 18–19 with their signs put right.

Centroids are optimal, so J changes as if they stood still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hmrf_dask.dataflow import tree
from hmrf_dask.em.engine import Engine, Pricing, real_sums
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.pair_gradients import pair_statistics
from hmrf_dask.em.parts import KeptTerms, add_limbs
from hmrf_dask.kernels.gradients import weighted_squares
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import FloatArray, IntArray

TOGETHER = 2**16  # numbers of several clusters that are worked on at once: they stay in the cache


def over_clusters(shape: tuple[int, ...], part: Callable[[slice], FloatArray]) -> FloatArray:
    """Return the sum over clusters of `part`, which gives it by feature for some of them.

    Of arrays as large as the centroids, shape (K, d), no copy is made.
    """
    n_clusters, n_features = shape
    step = max(1, TOGETHER // n_features)
    total = np.zeros(n_features)
    for first in range(0, n_clusters, step):
        total += part(slice(first, first + step))
    return total


def full_sums(model: Model, sums: IntArray) -> FloatArray:
    """Return sums with their mean column worked in, shape (K, d)."""
    whole = real_sums(sums[:, :-1], model.exponent)
    means = real_sums(sums[:, -1:], model.exponent)
    if means.any():
        whole += means * np.sqrt(model.weights)
    return whole


def squares_of_group(
    blocks: Sequence[RowBlock],
    kept: Sequence[KeptTerms],
    model: Model,
    overall: Model,
    run: RunStore,
    files: Sequence[LabelsFile],
    strength: float,
    exponent: int,
) -> IntArray:
    """Return Σ c_i z_im²/a_m of some parts.

    c_i is the similarity to the own centroid less `strength` times that to the global one.
    """
    labels, terms = [run.read_labels(file) for file in files], [one.terms for one in kept]
    tables = (model.table(), overall.table())
    return weighted_squares(blocks, terms, labels, *tables, strength, exponent)


def weight_gradient(engine: Engine, state: State, pricing: Pricing) -> FloatArray:
    """Return ∂J/∂a by feature, priors included."""
    model, strength = state.model, state.prior.strength
    flow, n_rows = engine.flow, engine.problem.extent.n_rows
    whole = state.sums.sum(axis=0, keepdims=True)
    shared, overall = flow.share(model), flow.share(_one_cluster(model, whole, n_rows))
    # A centred row's part is (x + e)² − e², x + e at most 1/√a
    bound = max(engine.summand_bound(model.weights) ** 2, 1.0 / float(model.weights.min()))
    exponent = fixed_point_exponent(n_rows, (1.0 + strength) * bound)
    free, linked = engine.groups(state)
    squares = [
        flow.lazy(
            squares_of_group, one.blocks, list(one.kept), shared, overall, engine.run,
            list(one.files), strength, exponent,
        )
        for one in [*free, *linked]
    ]  # fmt: skip
    totals = flow.compute([tree(flow, add_limbs, squares)])[0] * 2.0**-exponent
    rows = model.weights * (totals[:-1] + totals[-1])
    by_log = 0.5 * (rows - _directions(model, state.sums))
    if strength:
        by_log += 0.5 * strength * _directions(model, whole)
    by_log += pair_statistics(engine, state, pricing)
    return np.asarray(by_log / model.weights, np.float64)


def _one_cluster(model: Model, whole: IntArray, n_rows: int) -> Model:
    """Return the model of one cluster of all rows."""
    counts, weights = np.asarray([n_rows]), model.weights
    arguments = (whole, model.exponent, counts, weights, model.smoothing, None)
    return replace(model, centroids=model.distortion.centroids(*arguments))


def _directions(model: Model, sums: IntArray) -> FloatArray:
    """Return Σ_h S_hm²/‖S_h‖."""

    def part(clusters: slice) -> FloatArray:
        squares = full_sums(model, sums[clusters])
        squares *= squares
        lengths = np.sqrt(squares.sum(axis=1))
        squares /= np.where(lengths > 0, lengths, 1.0)[:, None]
        return squares[0] if len(squares) == 1 else np.asarray(squares.sum(axis=0))

    return over_clusters((len(sums), len(model.weights)), part)
