"""What violated pairs add to the weight gradient (cosine, Pearson: by log a) or to each feature's coefficient in J (the others)."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from hmrf_dask.dataflow import tree
from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.em.closures import ClosureSums, Embedding, broken_closures, closure_sums, embed
from hmrf_dask.em.engine import Engine, Pricing
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.parts import add_limbs
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.linked_layout import CANNOT, Bundle, PairBlock
from hmrf_dask.rows import RowBlock
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
    exponent: int,
) -> IntArray:
    """Return Σ ±w dφ of the violated pairs of one block, then by feature what cannot-links pay for the box; (2d + 1,)."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    same = run.read_labels(files[0])[block.first] == run.read_labels(files[1])[block.second]
    cannot = block.kind == CANNOT
    signed = np.where(cannot, np.where(same, -cost, 0.0), np.where(same, 0.0, cost))
    chosen = np.flatnonzero(signed)
    gradient = distortion.pair_gradient(
        left,
        right,
        block.first[chosen],
        block.second[chosen],
        signed[chosen],
        model.weights,
        exponent,
    )
    box = np.asarray([np.rint(cost[cannot & same].sum() * 2.0**20)], np.int64)
    return np.concatenate([gradient, box])


def closure_part(
    bundle: Bundle,
    rows: list[RowBlock],
    model: Model,
    run: RunStore,
    files: list[LabelsFile],
    costs: tuple[float, float],
    exponent: int,
) -> IntArray:
    """Return the same for closures kept as tables."""
    labels = np.concatenate([run.read_labels(file) for file in files])[bundle.rows]
    embedding = embed(RowBlock.concatenate(rows).take(bundle.rows), model, potts=False)
    sums = closure_sums(bundle, embedding, labels, model.n_clusters)
    must, cannot = broken_closures(bundle, sums)
    squared = model.distortion.learning == "variance"
    gradient = np.zeros(len(model.weights) + 1)
    for (one, other), cost in ((must, costs[0]), (cannot, -costs[1])):
        part = (
            _scatter_between(sums, embedding, one, other)
            if squared
            else _turning(sums, embedding, model, one, other)
        )
        gradient[:-1] += cost * part
    if squared:
        gradient[:-1] /= model.weights  # rows are scaled by √a, the coefficient of a is wanted
    box = costs[1] * float((sums.count[cannot[0]] * sums.count[cannot[1]]).sum())
    fixed = np.rint(gradient * 2.0**exponent).astype(np.int64)
    return np.concatenate([fixed, np.asarray([np.rint(box * 2.0**20)], np.int64)])


def _scatter_between(
    sums: ClosureSums, embedding: Embedding, one: IntArray, other: IntArray
) -> FloatArray:
    """Return Σ (z − z')² by feature over all pairs between entries one[t] and other[t]: N'Q + NQ' − 2 S·S'."""
    squares = scipy.sparse.csr_array(sums.pick @ embedding.rows.multiply(embedding.rows))
    total = sums.count[other] @ squares[one] + sums.count[one] @ squares[other]
    return np.asarray(total - 2.0 * (sums.sums[one] * sums.sums[other]).sum(axis=0)).ravel()[:-1]


def _turning(
    sums: ClosureSums, embedding: Embedding, model: Model, one: IntArray, other: IntArray
) -> FloatArray:
    """Return ∂/∂log a of Σ φ over all pairs between entries one[t] and other[t]: −z_m z'_m + ½ (z·z')(z_m² + z'_m²) summed."""
    roots, mass = np.sqrt(model.weights), np.sqrt(model.weights.sum())
    means = sums.sums[:, [-1]].toarray() / mass
    whole = sums.sums[:, :-1].toarray() + means * roots
    total = -np.einsum("tm,tm->m", whole[one], whole[other])
    opposite = np.zeros((len(sums.count), embedding.rows.shape[1]))
    np.add.at(opposite, one, sums.sums[other].toarray())
    np.add.at(opposite, other, sums.sums[one].toarray())
    factors = (
        0.5
        * np.asarray(
            embedding.rows.multiply(sums.pick.T @ (opposite * embedding.metric)).sum(axis=1)
        ).ravel()
    )
    rows = scipy.sparse.csr_array(embedding.rows[:, :-1])
    shifts = embedding.rows[:, [-1]].toarray().ravel() / mass
    total += rows.multiply(rows).T @ factors + 2.0 * roots * (rows.T @ (factors * shifts))
    return np.asarray(total + model.weights * float(factors @ (shifts * shifts)))


def pair_statistics(engine: Engine, state: State, pricing: Pricing | None) -> FloatArray:
    """Return what violated pairs add, shape (d,); nought under Potts penalties, which no weight can change."""
    problem, flow, model = engine.problem, engine.flow, state.model
    if problem.potts or not problem.bundles:
        return np.zeros(len(model.weights))
    extent = problem.extent
    bound = (
        engine.summand_bound(model.weights)
        if problem.distortion.learning == "gradient"
        else extent.largest
    )
    exponent = fixed_point_exponent(extent.n_rows, problem.degree * 4.0 * max(bound, 1.0) ** 2)
    shared = flow.share(model)
    found = [
        flow.lazy(
            explicit_part, problem.linked[pair.parts[0]].block, problem.linked[pair.parts[1]].block, pair.block,
            pair.cost, shared, engine.run, (state.linked[pair.parts[0]], state.linked[pair.parts[1]]), exponent,
        )
        for pair in problem.pairs
    ]  # fmt: skip
    found += [
        flow.lazy(
            closure_part, one.bundle, engine.rows_of(number), shared, engine.run,
            [state.linked[part] for part in one.parts], problem.closure_costs, exponent,
        )
        for number, one in enumerate(problem.bundles)
        if one.mode == "table"
    ]  # fmt: skip
    totals = flow.compute([tree(flow, add_limbs, found)])[0]
    by_feature = totals[:-2] * 2.0**-exponent + model.weights * (totals[-2] * 2.0**-exponent)
    if problem.distortion.learning == "variance":
        width = extent.maximum - extent.minimum
        by_feature += totals[-1] * 2.0**-20 * width * width
    return np.asarray(by_feature, np.float64)
