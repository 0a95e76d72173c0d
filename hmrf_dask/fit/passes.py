"""The passes of a fit over its rows: sums, energy, moved labels, and row terms that are cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore
from hmrf_dask.distortions.base import Remade
from hmrf_dask.fit.owners import Owned, Owners
from hmrf_dask.fit.problem import Problem
from hmrf_dask.flow.dataflow import Dataflow, Lazy, tree
from hmrf_dask.flow.graphs import Joined
from hmrf_dask.kernels.exact import exact_integer
from hmrf_dask.kernels.sums import add_sums, add_to, joined
from hmrf_dask.linked.plan import Scale, make_scale
from hmrf_dask.tasks import icm, partitions
from hmrf_dask.tasks.cluster_totals import Clusters
from hmrf_dask.tasks.model import Energy, Model, State, centroids_of, exact, gather_energy
from hmrf_dask.tasks.partitions import (
    LabelStore,
    StoredLabels,
    TaskSlice,
    add_limbs,
)
from hmrf_dask.types import FloatArray, IntArray


@dataclass(frozen=True)
class CorpusTerms:
    """What distances need of all rows under one set of weights, kept where it was computed."""

    weights: FloatArray
    rows: tuple[Lazy, ...]  # row terms by partition, free ones first; None: as large as the rows
    offsets: int  # exact Σ offset over all rows
    bound: float  # of the entries of summands


@dataclass(frozen=True)
class PricedPieces:
    """The pairs of an ICM problem in mode "rounds"."""

    costs: tuple[Lazy, ...]  # by piece, signed costs of its half-edges
    penalties: tuple[Lazy, ...]  # by block, J of its pairs when violated


@dataclass(frozen=True)
class Pricing:
    """The pairs of every ICM problem under one set of weights, kept where they were computed."""

    weights: FloatArray
    scale: Scale
    problems: tuple[Any, ...]  # lazily, or `PricedPieces` of a problem in mode "rounds"


@dataclass
class Engine:
    """Runs passes over the parts of a problem."""

    flow: Dataflow
    problem: Problem
    run: CheckpointStore
    number: int = 0  # of the iteration whose labels are being written
    moments: FloatArray | None = None  # feature moments of the corpus, once they were asked for
    owners: Owners | None = None  # who has sums and centroids, if not the driver
    _known: list[CorpusTerms] = field(default_factory=list, init=False, repr=False)
    _priced: list[Pricing] = field(default_factory=list, init=False, repr=False)
    _sent: tuple[Model, Lazy] | None = field(default=None, init=False, repr=False)
    _held: list[Lazy] = field(default_factory=list, init=False, repr=False)  # what was sent ahead

    @property
    def learning(self) -> bool:
        """Whether weights of features are learned."""
        return self.problem.settings.learn_weights

    def share_model(self, model: Model) -> Lazy:
        """Return a model for the tasks of passes to come; it is sent once, from now on."""
        if self._sent is None or self._sent[0] is not model:
            owned = isinstance(model.centroids, Owned)
            sent = model.centroids.owners.model(model) if owned else self.flow.broadcast(model)
            self._sent = model, sent
        return self._sent[1]

    def send_ahead(self, model: Model) -> None:
        """Begin to send a model that the next pass needs."""
        if isinstance(model.centroids, Owned):
            sent, self._held = model.centroids.owners.ahead(model)
            self._sent = model, sent
        else:
            self.share_model(model)

    def share_ready(self, model: Model) -> Lazy:
        """Return the same for tasks that compare rows with all centroids."""
        sent = self.share_model(model)
        return model.centroids.owners.ready(sent) if isinstance(sent, Joined) else sent

    def remade(
        self, state: State, *, compared: bool = False, near: bool = False
    ) -> tuple[Model, Remade]:
        """Return the model of the centroids that a state's sums ask for; see `Model.remade`."""
        if isinstance(state.sums, Owned):
            return state.sums.owners.remade(state, compared=compared, near=near)
        return state.model.remade(state.sums, state.counts, compared=compared, near=near)

    def at_optimum(self, state: State) -> Model:
        """Return the model of a state with the centroids its sums ask for; see `centroids_of`."""
        if isinstance(state.sums, Owned):
            return self.remade(state)[0]
        return replace(state.model, centroids=centroids_of(state))

    def folded(self, state: State, add: Callable[..., Any], total: Any, *arguments: Any) -> Any:
        """Return `add(total, clusters, *arguments)`, owner by owner: each adds to what was before.

        See `tasks.cluster_totals`.
        """
        if isinstance(state.sums, Owned):
            return state.sums.owners.folded(state, add, total, *arguments)
        n_clusters = state.model.n_clusters
        clusters = Clusters(state.model, state.sums, state.counts, 0, n_clusters)
        return add(total, clusters, *arguments)

    def corpus_terms(self, weights: FloatArray) -> CorpusTerms:
        """Return the terms of all rows under these weights; those of the last two are cached."""
        for known in self._known:
            if known.weights is weights:
                return known
        return self._compute_terms(weights, self._planned_terms(weights), [])[0]

    def _planned_terms(self, weights: FloatArray) -> list[Lazy]:
        """Return lazily the row terms of every partition; None where it is read in every pass."""
        if not self.problem.distortion.keeps_terms:
            return [None] * len(self.problem.partitions)
        metric = self.flow.share((self.problem.distortion, weights))
        return [
            None if part.is_read else self.flow.lazy(partitions.row_terms, part.block, metric)
            for part in self.problem.partitions
        ]

    def _compute_terms(
        self, weights: FloatArray, terms: Sequence[Lazy], wanted: Sequence[Lazy]
    ) -> tuple[CorpusTerms, list[Any]]:
        """Compute the `terms` of all rows, and keep them; in the same graph compute `wanted`."""
        flow, problem, distortion = self.flow, self.problem, self.problem.distortion
        bound, common = distortion.summand_bound(None, weights), distortion.common_offset
        by_row = distortion.linear and distortion.keeps_terms and common is None
        metric = flow.share((distortion, weights))
        free = [(part.block, known) for part, known in zip(problem.free, terms, strict=False)]
        asked = list(wanted)
        if by_row:
            limbs = [flow.lazy(partitions.offset_limbs, *rows, metric) for rows in free]
            asked.append(tree(flow, add_limbs, limbs))
        if bound is None:
            bounds = [flow.lazy(partitions.summand_bound, *rows, metric) for rows in free]
            asked.append(tree(flow, max, bounds))
        lasting = [known for known in terms if known is not None]
        kept = iter(flow.persist([*lasting, *asked]) if lasting or asked else [])
        rows = tuple(None if known is None else next(kept) for known in terms)
        computed = flow.compute(list(kept)) if asked else []
        if bound is None:
            bound = float(computed.pop())
        offsets = exact(common or 0.0) * problem.extent.n_rows
        if by_row:
            offsets = exact_integer(computed.pop())
        corpus_terms = CorpusTerms(weights, rows, offsets, bound)
        self._known = [*self._known[-1:], corpus_terms]
        return corpus_terms, computed

    def keep_terms(self, weights: FloatArray, terms: Sequence[partitions.RowTerms]) -> None:
        """Keep the terms of all rows, by partition, that were made with their sums."""
        problem, bound = self.problem, self.summand_bound(weights)
        offsets = exact(problem.distortion.common_offset or 0.0) * problem.extent.n_rows
        rows = tuple(self.flow.share(known) for known in terms)
        self._known = [*self._known[-1:], CorpusTerms(weights, rows, offsets, bound)]

    @cached_property
    def in_process(self) -> bool:
        """Whether all rows are in this process: then tasks only note those that move."""
        return self.flow.holds([partition.block for partition in self.problem.partitions])

    @property
    def store(self) -> LabelStore:
        """Where tasks read labels and write those of the present iteration."""
        return LabelStore(self.run, self.number, self.in_process)

    def forget(self, weights: FloatArray) -> None:
        """Forget what is cached under weights that were rejected: the ones before are needed."""
        self._known = [known for known in self._known if known.weights is not weights]
        self._priced = [pricing for pricing in self._priced if pricing.weights is not weights]

    def slices(self, state: State) -> tuple[list[TaskSlice], list[TaskSlice]]:
        """Return the slices of free partitions, and each linked partition as one of its own."""
        return self._slices(state, self.corpus_terms(state.model.weights).rows)

    def _slices(
        self, state: State, terms: Sequence[Lazy]
    ) -> tuple[list[TaskSlice], list[TaskSlice]]:
        free, files = self.problem.free, state.free
        slices = [
            TaskSlice(
                [free[place].block for place in places],
                [terms[place] for place in places],
                [files[place] for place in places],
            )
            for places in self.problem.slices
        ]
        linked = zip(self.problem.linked, terms[len(free) :], state.linked, strict=True)
        return slices, [TaskSlice([part.block], [known], [file]) for part, known, file in linked]

    def price(self, model: Model) -> Pricing:
        """Return what all pairs cost under a model; the last two prices are cached."""
        problem = self.problem
        scale = make_scale(
            problem.distortion,
            model.weights,
            potts=problem.potts,
            degree=problem.degree,
            span=problem.distortion.span(model.weights, model.smoothing),
            unit_of_costs=problem.cost_unit,
        )
        for known in self._priced:
            if known.weights is model.weights and known.scale == scale:
                return known
        shared = self.flow.share(model.without_centroids())
        blocks = [
            self.flow.lazy(
                icm.price_pairs, *(problem.linked[place].block for place in pair.partitions),
                pair.block, shared, scale,
            )
            for pair in problem.pairs
        ]  # fmt: skip
        pricing = Pricing(model.weights, scale, self._join(blocks))
        self._priced = [*self._priced[-1:], pricing]
        return pricing

    def _join(self, blocks: Sequence[Lazy]) -> tuple[Any, ...]:
        """Bring priced pairs together, for each ICM problem or each piece of one, and keep them."""
        flow, plans, planned = self.flow, self.problem.icm_problems, []
        for plan in plans:
            priced = [blocks[place] for place in plan.blocks]
            if plan.cutting is None:
                planned.append([flow.lazy(icm.join_pairs, plan.problem, priced)])
                continue
            signed = {place: flow.lazy(getattr, blocks[place], "signed") for place in plan.blocks}
            costs = [
                flow.lazy(icm.join_piece, piece, [signed[place] for place in touching])
                for piece, touching in zip(plan.pieces, plan.cutting.blocks, strict=True)
            ]
            planned.append([*costs, *(flow.lazy(getattr, block, "penalty") for block in priced)])
        kept = iter(flow.persist([value for values in planned for value in values]))
        joined: list[Any] = []
        for plan, lazies in zip(plans, planned, strict=True):
            values, n_pieces = tuple(islice(kept, len(lazies))), len(plan.pieces)
            pieces = PricedPieces(values[:n_pieces], values[n_pieces:])
            joined.append(values[0] if plan.cutting is None else pieces)
        return tuple(joined)

    def rows_of(self, number: int) -> list[Lazy]:
        """Return the rows of an ICM problem where it needs them: in table form only."""
        plan = self.problem.icm_problems[number]
        return [self.problem.linked[part].block for part in plan.partitions if plan.mode == "table"]

    def stored(self, places: Iterable[int], linked: Sequence[Lazy]) -> StoredLabels:
        """Return where the labels of some linked partitions are, of all label files `linked`."""
        return StoredLabels(self.run, [linked[place] for place in places])

    def priced(self, pricing: Pricing, number: int, linked: Sequence[Lazy]) -> icm.PricedProblem:
        """Return an ICM problem for its tasks; `linked` are the label files of all partitions."""
        plan = self.problem.icm_problems[number]
        stored = self.stored(plan.partitions, linked)
        return icm.PricedProblem(plan.problem, pricing.problems[number], stored)

    def cut(self, number: int, settled: Lazy) -> list[Lazy]:
        """Return the labels of each part of an ICM problem, from those of all its points."""
        plan = self.problem.icm_problems[number]
        parts = [self.problem.linked[place] for place in plan.partitions]
        first = parts[0].first_row
        return [
            self.flow.lazy(partitions.labels_at, settled, slice(start, start + part.n_rows))
            for part, start in ((part, part.first_row - first) for part in parts)
        ]

    def violations(self, model: Model, linked: Sequence[Lazy]) -> list[Lazy]:
        """Return lazily what violated pairs cost under the labels in the files `linked`.

        One for each ICM problem; of one in pieces one for each block of pairs.
        """
        flow, problem = self.flow, self.problem
        if not problem.icm_problems:
            return []
        pricing, shared = self.price(model), self.share_model(model)
        costs: list[Lazy] = []
        for number, plan in enumerate(problem.icm_problems):
            if plan.cutting is None:
                priced, rows = self.priced(pricing, number, linked), self.rows_of(number)
                costs.append(flow.lazy(icm.price_violations, priced, rows, shared, pricing.scale))
                continue
            for place, penalty in zip(plan.blocks, pricing.problems[number].penalties, strict=True):
                pair = problem.pairs[place]
                stored = self.stored(pair.partitions, linked)
                costs.append(flow.lazy(icm.price_block, pair.block, penalty, stored))
        return costs

    def distortion_sum(self, state: State) -> int:
        """Return the exact Σ D of a state: from its sums where that can be, else from every row."""
        model, flow = state.model, self.flow
        if model.linear and isinstance(state.sums, Owned):
            return self.corpus_terms(model.weights).offsets + state.sums.owners.closed(state)
        if model.linear:
            sums = (state.sums, state.counts, model.exponent)
            closed = model.distortion.closed_distances(model.table(), model.weights, *sums)
            return self.corpus_terms(model.weights).offsets + closed
        free, linked = self.slices(state)
        shared = self.share_model(model)
        limbs = [
            flow.lazy(partitions.measure, task_slice, shared, self.run)
            for task_slice in [*free, *linked]
        ]
        return exact_integer(flow.compute([tree(flow, add_limbs, limbs)])[0])

    def energy(self, state: State, prior: float) -> Energy:
        """Return J of a state, its distances and every pair computed again."""
        distortion = self.distortion_sum(state)
        if not self.problem.icm_problems:
            return Energy(distortion=distortion, prior=exact(prior))
        penalties = self.flow.compute(self.violations(state.model, list(state.linked)))
        return gather_energy(distortion, penalties, prior)

    def total_sums(self, model: Model, state: State) -> tuple[Any, IntArray]:
        """Return sums and counts from nothing under the model's weights.

        Where the weights are new, the terms of the rows are made in the same graph. Owners hold the
        sums, if there are any.
        """
        flow, weights = self.flow, model.weights
        shared = flow.broadcast(model.without_centroids())
        known = next((terms for terms in self._known if terms.weights is weights), None)
        terms = self._planned_terms(weights) if known is None else known.rows
        free, linked = self._slices(state, terms)
        sums = [
            flow.lazy(partitions.total, task_slice, shared, self.store)
            for task_slice in [*free, *linked]
        ]
        wanted, owned = sums if self.in_process else [tree(flow, add_sums, sums)], None
        if self.owners is not None:
            owned, report, made = self.owners.summed(sums)
            wanted = [report, *made]
        if known is None:
            computed = self._compute_terms(weights, terms, wanted)[1]
        else:
            computed = flow.compute(wanted)
        if owned is not None:
            return owned, computed[0].sums.counts
        whole = joined(computed).finish()
        return whole.dense if whole.is_dense else whole.to_dense(), whole.counts

    def first_centroids(self, centroids: Lazy) -> Any:
        """Return centroids that a task makes: lazily still, where owners are to have them."""
        return centroids if self.owners is not None else self.flow.compute([centroids])[0]

    def no_sums(self, n_clusters: int) -> Any:
        """Return the sums of no rows."""
        if self.owners is not None:
            return self.owners.no_sums()
        return np.zeros((n_clusters, self.problem.extent.n_features + 1), np.int64)

    def with_sums(self, state: State) -> State:
        """Return a state with its sums from its labels: the same integers, wherever they were."""
        sums, counts = self.total_sums(state.model, state)
        return replace(state, sums=sums, counts=counts)

    def summand_bound(self, weights: FloatArray) -> float:
        """Return a bound on the entries of summands under these weights."""
        bound = self.problem.distortion.summand_bound(None, weights)
        return self.corpus_terms(weights).bound if bound is None else bound

    def move(self, state: State, labels: Sequence[Lazy]) -> tuple[State, int]:
        """Return the state under new labels of every partition, and how many rows moved."""
        free, linked = self.slices(state)
        n_free, shared = len(self.problem.free), self.share_model(state.model)
        chosen = [*self.problem.slices, *((n_free + place,) for place in range(len(linked)))]
        steps = [
            self.flow.lazy(
                partitions.relabel, task_slice, shared, self.store,
                [labels[place] for place in places],
            )
            for task_slice, places in zip([*free, *linked], chosen, strict=True)
        ]  # fmt: skip
        return self.finish(state, steps)

    def finish(
        self, state: State, steps: Sequence[Lazy], *, in_place: bool = False
    ) -> tuple[State, int]:
        """Compute the steps of all slices; return the state after them and how many rows moved.

        The last of them are those of the linked partitions. Centroids stay as they are. Sums that
        are changed `in_place` are those of the state before, too. A Σ D that follows from the sums
        stays that of the state before: the M-step to come reads them, and measures it.
        """
        flow, problem = self.flow, self.problem
        linked = [flow.lazy(partitions.file_of, step) for step in steps[len(problem.slices) :]]
        penalties = self.violations(state.model, linked)
        owned, made = isinstance(state.sums, Owned), list[Lazy]()
        if owned:
            owners = state.sums.owners
            sums, report, made = owners.summed(steps, state.sums, in_place=in_place)
            if in_place and state.model.limits is None:  # an E-step: the M-step follows
                made = owners.remaking(state.model, sums, made)
        else:
            report = tree(flow, partitions.merge_steps, steps)
        whole, *costs = flow.compute([report, *penalties, *made])
        if owned:
            sums.answers = costs[len(penalties) :]
        else:
            sums = add_to(state.sums, whole.sums, in_place=in_place)
        files = {file.part: file for file in whole.files}
        after = replace(
            state,
            free=tuple(files[part.name] for part in problem.free),
            linked=tuple(files[part.name] for part in problem.linked),
            optimal=False,
            sums=sums,
            counts=state.counts + whole.sums.counts,
        )
        # the moved rows' exact differences: Σ D exact to the last bit
        distortion = state.energy.distortion + exact_integer(whole.change)
        energy = replace(
            gather_energy(distortion, costs[: len(penalties)], 0.0), prior=state.energy.prior
        )
        return replace(after, energy=energy), whole.n_moved
