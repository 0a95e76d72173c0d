"""A full metric as a step of J: where a fit has ended, A follows its labels and the fit goes on.

Rows z lie in the space of the first metric (`fit/metric.py`); J has N (tr M − d) − 2 N ln det M of
M = G Gᵀ in that space, which is 1 at first: as if as many rows again lay as the first metric says.
M = 2 N (W + N)⁻¹ is the minimiser for labels and centroids as they are. W is the scatter of rows
within clusters: Σ z zᵀ, integers summed over partitions, less what centroids have of it. Violated
pairs have no part in M but in J, and a step that does not lower J is undone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from hmrf_dask.checkpoints.records import Commit
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Extent
from hmrf_dask.fit.loop import Fit, Iteration, Position, check_progress
from hmrf_dask.fit.m_step import prior_value
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.preparation import extent_of, survey_corpus
from hmrf_dask.flow.dataflow import Dataflow, share_array, tree
from hmrf_dask.kernels.metric import NEGLIGIBLE, factor_of, vectors_before, vectors_under
from hmrf_dask.kernels.sketches import Basis, power_below, sketch_exponent
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.tasks.metric import in_metric, scatter_of
from hmrf_dask.tasks.model import NO_FACTOR, Energy, State, centroids_of, real_sums
from hmrf_dask.tasks.partitions import add_limbs
from hmrf_dask.types import BoolArray, FloatArray

PHASE = "metric"
ROUNDED = 1e-6  # of J, where rows are float32


def covariance_of(
    flow: Dataflow, corpus: Corpus, largest: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """Return the covariance of all rows, (d, d), and of which features it is more than rounding.

    Integers in units of each feature, whose `largest` |x| are given, are summed over partitions.
    """
    scale = np.array([0.5 / power_below(one) for one in largest])
    known, n_rows = share_array(flow, scale), corpus.n_rows
    parts = [flow.lazy(scatter_of, block, known, n_rows) for block in corpus.blocks]
    total = flow.compute([tree(flow, add_limbs, parts)])[0] * 2.0 ** -sketch_exponent(n_rows, 1.0)
    moments, means = total[:, :-1] / n_rows, total[:, -1] / n_rows
    covariance = moments - means[:, None] * means
    varies = np.diag(covariance) > NEGLIGIBLE * np.diag(moments)
    covariance = covariance / scale / scale[:, None]
    return np.asarray(0.5 * (covariance + covariance.T), np.float64), varies


@dataclass
class MetricSteps:
    """The steps of the metric of one fit."""

    first: Engine  # of the rows under the first metric
    corpus: Corpus  # these rows
    kept: bool  # whether rows under a later metric fit into memory next to them

    @cached_property
    def covariance(self) -> FloatArray:
        """The covariance of the rows under the first metric."""
        largest = np.maximum(np.abs(self._extent.minimum), np.abs(self._extent.maximum))
        return covariance_of(self.first.flow, self.corpus, largest)[0]

    @property
    def _extent(self) -> Extent:
        return self.first.problem.extent

    def engine(self, factor: FloatArray) -> Engine:
        """Return an engine over rows z·G, the same partitions and pairs."""
        if not len(factor):
            return self.first
        flow, problem = self.first.flow, self.first.problem
        basis = flow.share(Basis(factor))
        blocks = [flow.lazy(in_metric, part.block, basis) for part in problem.partitions]
        n_free = len(problem.free)
        lasting = flow.persist(blocks[0 if self.kept else n_free :])  # linked rows are gathered
        blocks[len(blocks) - len(lasting) :] = lasting
        corpus = replace(self.corpus, partitions=tuple(blocks[:n_free]), sources=())
        facts = survey_corpus(flow, corpus, problem.distortion, fingerprinted=False)
        extent = extent_of(facts, corpus.n_features)
        parts = [
            replace(part, block=block)
            for part, block in zip(problem.partitions, blocks, strict=True)
        ]
        problem = replace(
            problem, extent=extent, distortion=problem.distortion.bind(extent),
            free=tuple(parts[:n_free]), linked=tuple(parts[n_free:]),
        )  # fmt: skip
        return Engine(flow, problem, self.first.run)

    def resumed(self, commit: Commit) -> Engine:
        """Return the engine that a commit's state belongs to."""
        return self.engine(self.first.run.load_state(commit).get("factor", NO_FACTOR))

    def step(self, state: State) -> tuple[Engine, State] | None:
        """Return engine and state under the metric that labels ask for; None if J stays."""
        factor = self._best(state)
        engine = self.engine(factor)
        bound = engine.summand_bound(state.model.weights)
        model = replace(
            state.model,
            distortion=engine.problem.distortion,
            centroids=vectors_under(_before(state.model.centroids, state.factor), factor),
            exponent=fixed_point_exponent(self._extent.n_rows, bound),
        )
        sums, counts = engine.total_sums(model, state)
        after = replace(state, model=model, sums=sums, counts=counts, factor=factor, optimal=True)
        after = replace(after, model=replace(model, centroids=centroids_of(after)))
        after = replace(after, energy=engine.energy(after, prior_value(engine, after)))
        return (engine, after) if self._falls(state.energy, after.energy) else None

    def _falls(self, before: Energy, after: Energy) -> bool:
        """Return whether J falls by more than `tol` of its terms, and than rows are rounded."""
        terms = before.distortion, before.must, before.cannot, before.prior
        least = max(self.first.problem.settings.tol, ROUNDED) * sum(map(abs, terms))
        return before.total - after.total > least

    def _best(self, state: State) -> FloatArray:
        """Return G of M = 2 N (W + N)⁻¹, for the labels of a state."""
        n_rows = self._extent.n_rows
        totals = real_sums(state.sums, state.model.exponent)[:, :-1]
        means = totals / np.maximum(state.counts, 1)[:, None]
        gaps = _before(means - totals.sum(axis=0) / n_rows, state.factor)
        shares = (state.counts / n_rows)[:, None]
        within = self.covariance - np.einsum("ki,kj->ij", gaps * shares, gaps)
        used = np.maximum(self._extent.maximum, -self._extent.minimum) > 0.0
        within[~used], within[:, ~used] = 0.0, 0.0
        return factor_of(0.5 * (within + np.diag(used.astype(np.float64))))


def _before(vectors: FloatArray, factor: FloatArray) -> FloatArray:
    """Return vectors in the space of the first metric."""
    return vectors_before(vectors, factor) if len(factor) else vectors


def follow_labels(
    steps: MetricSteps, fit: Fit, state: State, stop: str | None
) -> tuple[State, str | None]:
    """Repeat, from the end of a fit: a step of the metric, and the fit resumed under it.

    Return the state of the last end, and why it ended; the fit has the engine of that state.
    """
    record = fit.record
    while (stepped := steps.step(state)) is not None:
        fit.engine, after = stepped
        check_progress(state, after)
        number = 1 + sum(phase == PHASE for phase, _, _ in record.history)
        record.keep(PHASE, number, Iteration(after, steps=((PHASE, after.energy.value),)))
        state, stop = fit.run(partial(Position, "fit", record.n_iter, None, after))
    return state, stop
