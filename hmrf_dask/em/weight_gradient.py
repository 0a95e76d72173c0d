"""The gradient of J by feature weights (cosine, Pearson): KDD eq. 18–19 with their signs put right.

Centroids are optimal, so J changes as if they stood still.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hmrf_dask.dataflow import tree
from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.em.engine import Engine, Pricing, real_sums
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.pair_gradients import pair_statistics
from hmrf_dask.em.parts import add_limbs, share_model
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import FloatArray, IntArray


def full_sums(model: Model, sums: IntArray, power: int = 1) -> FloatArray:
    """Return sums with their mean column worked in (power 1), or their squares summed (power 2)."""
    totals = real_sums(sums, model.exponent)
    whole = totals[:, :-1] + totals[:, -1:] * np.sqrt(model.weights)
    return whole if power == 1 else np.asarray((whole * whole).sum(axis=1), np.float64)


def squares_of_part(
    block: RowBlock,
    model: Model,
    table: Any,
    overall: Any,
    run: RunStore,
    file: LabelsFile,
    strength: float,
    exponent: int,
) -> IntArray:
    """Return Σ c_i z_im² of a part.

    c_i is the similarity to the own centroid less `strength` times that to the global one.
    """
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    labels = run.read_labels(file)
    terms = distortion.terms(block, model.weights)
    coefficients = np.where(
        labels >= 0, 1.0 - distortion.own_distances(block, terms, table, labels), 0.0
    )
    if strength:
        everyone = np.where(labels >= 0, 0, labels).astype(np.int32)
        near = np.where(
            labels >= 0, 1.0 - distortion.own_distances(block, terms, overall, everyone), 0.0
        )
        coefficients = coefficients - strength * near
    return distortion.weighted_squares(block, terms, coefficients, model.weights, exponent)


def weight_gradient(engine: Engine, state: State, pricing: Pricing) -> FloatArray:
    """Return ∂J/∂a by feature, priors included."""
    model, strength = state.model, state.prior.strength
    flow, n_rows = engine.flow, engine.problem.extent.n_rows
    shared = share_model(flow, model)
    whole = state.sums.sum(axis=0, keepdims=True)
    overall = replace(model, centroids=_global_centroid(model, whole, n_rows))
    overall_table = share_model(flow, overall).table
    bound = engine.summand_bound(model.weights)
    exponent = fixed_point_exponent(n_rows, (1.0 + strength) * bound * bound)
    squares = [
        flow.lazy(
            squares_of_part,
            part.block,
            shared.model,
            shared.table,
            overall_table,
            engine.run,
            file,
            strength,
            exponent,
        )
        for part, file in engine.all_parts(state)
    ]
    totals = flow.compute([tree(flow, add_limbs, squares)])[0] * 2.0**-exponent
    rows = totals[:-1] + model.weights * totals[-1]
    by_log = 0.5 * (rows - _directions(model, state.sums))
    if strength:
        by_log += 0.5 * strength * _directions(model, whole)
    by_log += pair_statistics(engine, state, pricing)
    return np.asarray(by_log / model.weights, np.float64)


def _global_centroid(model: Model, whole: IntArray, n_rows: int) -> FloatArray:
    return model.distortion.centroids(
        real_sums(whole, model.exponent), np.asarray([n_rows]), model.weights, model.smoothing, None
    )


def _directions(model: Model, sums: IntArray) -> FloatArray:
    """Return Σ_h S_hm²/‖S_h‖."""
    whole = full_sums(model, sums)
    lengths = np.sqrt((whole * whole).sum(axis=1, keepdims=True))
    return np.asarray(
        np.divide(whole * whole, lengths, out=np.zeros_like(whole), where=lengths > 0).sum(axis=0)
    )
