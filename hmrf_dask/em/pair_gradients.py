"""What violated pairs add to the weights' step.

For cosine and Pearson that is a part of the gradient by log a, for the other distortions a part of
each feature's coefficient in J.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from hmrf_dask.dataflow import share_array, tree
from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.em.closures import ClosureSums, Embedding, broken_closures, closure_sums, embed
from hmrf_dask.em.engine import Engine, Pricing
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.parts import add_limbs
from hmrf_dask.kernels.gradients import member_products
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.linked.layout import CANNOT, Bundle, PairBlock
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import FloatArray, IntArray


def explicit_part(
    left: RowBlock,
    right: RowBlock,
    block: PairBlock,
    cost: FloatArray,
    model: Model,
    run: RunStore,
    files: tuple[LabelsFile, LabelsFile],
    units: FloatArray,
) -> IntArray:
    """Return Σ ±w dφ of the violated pairs of one block in fixed point, shape (d + 2,).

    Entry d is times every a; the last is what violated cannot-links pay for the bounding box. Every
    entry is in its own unit, since features may differ widely in theirs.
    """
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    same = run.read_labels(files[0])[block.first] == run.read_labels(files[1])[block.second]
    cannot = block.kind == CANNOT
    signed = np.where(cannot, np.where(same, -cost, 0.0), np.where(same, 0.0, cost))
    chosen = np.flatnonzero(signed)
    ends = (block.first[chosen], block.second[chosen], signed[chosen])
    gradient = distortion.pair_gradient(left, right, *ends, model.weights, units[:-1])
    return np.append(gradient, in_fixed_point(cost[cannot & same], units[-1]).sum())


def in_fixed_point(numbers: FloatArray, units: Any) -> IntArray:
    """Return numbers as integers, each rounded by itself: sums of them know no order."""
    scaled: FloatArray = numbers * units
    return np.rint(scaled).astype(np.int64)


def closure_part(
    bundle: Bundle,
    rows: list[RowBlock],
    model: Model,
    run: RunStore,
    files: list[LabelsFile],
    costs: tuple[float, float],
    units: FloatArray,
) -> IntArray:
    """Return the same for closures kept as tables."""
    labels = np.concatenate([run.read_labels(file) for file in files])[bundle.rows]
    embedding = embed(RowBlock.concatenate(rows).take(bundle.rows), model)
    sums = closure_sums(bundle, embedding, labels, model.n_clusters)
    must, cannot = broken_closures(bundle, sums)
    squared = model.distortion.learning == "variance"
    gradient = np.zeros(len(model.weights) + 1)
    for (one, other), cost in ((must, costs[0]), (cannot, -costs[1])):
        if squared:
            part = _scatter_between(sums, embedding, one, other)
        else:
            part = _turning(sums, embedding, model, one, other)
        gradient[:-1] += cost * part
    if squared:
        gradient[:-1] /= model.weights  # rows are scaled by √a, the coefficient of a is wanted
    n_broken = int((sums.count[cannot[0]] * sums.count[cannot[1]]).sum())
    box = in_fixed_point(np.array([costs[1]]), units[-1]) * n_broken
    return np.concatenate([in_fixed_point(gradient, units[:-1]), box])


def _scatter_between(
    sums: ClosureSums, embedding: Embedding, one: IntArray, other: IntArray
) -> FloatArray:
    """Return Σ (z − z')² by feature over all pairs between entries one[t] and other[t].

    It is N'Q + NQ' − 2 S·S' with Q the sums of squares.
    """
    squares = scipy.sparse.csr_array(sums.pick @ embedding.rows.multiply(embedding.rows))
    total = squares[one].T @ sums.count[other] + squares[other].T @ sums.count[one]
    products = sums.sums[one].multiply(sums.sums[other]).sum(axis=0)
    return np.asarray(total - 2.0 * np.asarray(products).ravel(), np.float64)[:-1]


def _turning(
    sums: ClosureSums, embedding: Embedding, model: Model, one: IntArray, other: IntArray
) -> FloatArray:
    """Return ∂/∂log a of Σ φ over all pairs between entries one[t] and other[t].

    It is the sum of −z_m z'_m + ½ (z·z')(z_m² + z'_m²), z with its centring worked in.
    """
    roots, mass = np.sqrt(model.weights), np.sqrt(model.weights.sum())
    table = scipy.sparse.csr_array(sums.sums[:, :-1])
    means = sums.sums[:, [-1]].toarray().ravel() / mass
    products = np.asarray(table[one].multiply(table[other]).sum(axis=0)).ravel()
    crossed = table[one].T @ means[other] + table[other].T @ means[one]
    total = -(products + roots * crossed + model.weights * (means[one] * means[other]).sum())
    factors = 0.5 * _partner_products(sums, embedding, one, other)
    rows = scipy.sparse.csr_array(embedding.rows[:, :-1])
    shifts = embedding.rows[:, [-1]].toarray().ravel() / mass
    total += rows.multiply(rows).T @ factors + 2.0 * roots * (rows.T @ (factors * shifts))
    return np.asarray(total + model.weights * (factors * shifts * shifts).sum(), np.float64)


def _partner_products(
    sums: ClosureSums, embedding: Embedding, one: IntArray, other: IntArray
) -> FloatArray:
    """Return Σ z·z' over all z' that each row is paired with in these entries, shape (points,)."""
    ends = (np.concatenate([one, other]), np.concatenate([other, one]))
    n_entries = len(sums.count)
    joined = scipy.sparse.csr_array((np.ones(len(ends[0])), ends), shape=(n_entries, n_entries))
    partners = scipy.sparse.csr_array(joined @ sums.sums)
    rows, picked = embedding.rows, sums.pick
    return member_products(
        (rows.data, rows.indices, rows.indptr),
        (partners.data, partners.indices, partners.indptr),
        (picked.indices, picked.indptr),
        embedding.metric,
    )


def pair_statistics(engine: Engine, state: State, pricing: Pricing | None) -> FloatArray:
    """Return what violated pairs add, shape (d,).

    It is nought under Potts penalties, which no weight can change.
    """
    problem, flow, model = engine.problem, engine.flow, state.model
    if problem.potts or not problem.bundles:
        return np.zeros(len(model.weights))
    units = _units(engine, model)
    shared, known = flow.share(model), share_array(flow, units)
    found = [
        flow.lazy(
            explicit_part,
            problem.linked[pair.parts[0]].block,
            problem.linked[pair.parts[1]].block,
            pair.block,
            pair.cost,
            shared,
            engine.run,
            (state.linked[pair.parts[0]], state.linked[pair.parts[1]]),
            known,
        )
        for pair in problem.pairs
    ]
    found += [
        flow.lazy(
            closure_part,
            one.bundle,
            engine.rows_of(number),
            shared,
            engine.run,
            [state.linked[part] for part in one.parts],
            problem.closure_costs,
            known,
        )
        for number, one in enumerate(problem.bundles)
        if one.mode == "table"
    ]
    totals = flow.compute([tree(flow, add_limbs, found)])[0] / units
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
    largest, each = np.unique(bounds, return_inverse=True)
    exponents = [fixed_point_exponent(problem.extent.n_rows, float(one)) for one in largest]
    return np.asarray((2.0 ** np.asarray(exponents, np.float64))[each], np.float64)


def _width(engine: Engine) -> FloatArray:
    """Return the sides of the corpus's bounding box."""
    return engine.problem.extent.maximum - engine.problem.extent.minimum
