"""The passes of a fit over its rows: sums, energy, moved labels, and row terms that are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.fit.problem import Problem
from hmrf_dask.flow.dataflow import Dataflow, Lazy, tree
from hmrf_dask.kernels.exact import exact_integer
from hmrf_dask.kernels.sums import add_sums, add_to, joined
from hmrf_dask.linked.plan import Scale, make_scale
from hmrf_dask.tasks import icm, partitions
from hmrf_dask.tasks.model import Energy, Model, State, exact, gather_energy
from hmrf_dask.tasks.partitions import LabelledPartition, LabelStore, TaskSlice, add_limbs
from hmrf_dask.types import FloatArray, IntArray


@dataclass(frozen=True)
class CorpusTerms:
    """What distances need of all rows under one set of weights, kept where it was computed.

    Attributes
    ----------
    weights : float64 array, shape (d,)
    free, linked : row terms of each part; None where they are as large as the rows
    offsets : exact Σ offset over all rows
    bound : bound on the entries of summands
    """

    weights: FloatArray
    free: tuple[Lazy, ...]
    linked: tuple[Lazy, ...]
    offsets: int
    bound: float


def planned_terms(flow: Dataflow, problem: Problem, weights: FloatArray) -> list[Lazy]:
    """Return lazily the row terms of every part, free ones first; None where it is read."""
    every = [*problem.free, *problem.linked]
    if not problem.distortion.keeps_terms:
        return [None] * len(every)
    metric = flow.share((problem.distortion, weights))
    return [
        None if part.is_read else flow.lazy(partitions.row_terms, part.block, metric)
        for part in every
    ]


def compute_terms(
    flow: Dataflow,
    problem: Problem,
    weights: FloatArray,
    terms: Sequence[Lazy],
    wanted: Sequence[Lazy],
) -> tuple[CorpusTerms, list[Any]]:
    """Compute the `terms` of all rows, and keep them; in the same graph compute `wanted`."""
    distortion, n_free = problem.distortion, len(problem.free)
    bound = distortion.summand_bound(None, weights)
    common, metric = distortion.common_offset, flow.share((distortion, weights))
    asked = list(wanted)
    by_row = distortion.linear and distortion.keeps_terms and common is None
    if by_row:
        limbs = [
            flow.lazy(partitions.offset_limbs, one.block, known, metric)
            for one, known in zip(problem.free, terms, strict=False)
        ]
        asked.append(tree(flow, add_limbs, limbs))
    if bound is None:
        ends = zip(problem.free, terms, strict=False)
        bounds = [
            flow.lazy(partitions.summand_bound, one.block, known, metric) for one, known in ends
        ]
        asked.append(tree(flow, max, bounds))
    lasting = [one for one in terms if one is not None]
    kept = flow.persist([*lasting, *asked]) if lasting or asked else []
    remaining = iter(kept)
    terms = [None if one is None else next(remaining) for one in terms]
    found = flow.compute(list(remaining)) if asked else []
    if bound is None:
        bound = float(found.pop())
    offsets = exact(common or 0.0) * problem.extent.n_rows
    if by_row:
        offsets = exact_integer(found.pop())
    rows = CorpusTerms(weights, tuple(terms[:n_free]), tuple(terms[n_free:]), offsets, bound)
    return rows, found


def task_slices(
    problem: Problem, state: State, terms: Sequence[Lazy]
) -> tuple[list[TaskSlice], list[TaskSlice]]:
    """Return the slices of free partitions, and each linked partition as one of its own."""
    n_free = len(problem.free)
    free = [
        TaskSlice(
            [problem.free[place].block for place in places],
            [terms[place] for place in places],
            [state.free[place] for place in places],
        )
        for places in problem.slices
    ]
    linked = [
        TaskSlice([partition.block], [known], [file])
        for partition, known, file in zip(problem.linked, terms[n_free:], state.linked, strict=True)
    ]
    return free, linked


@dataclass(frozen=True)
class PricedPieces:
    """The pairs of an ICM problem in mode "rounds".

    Attributes
    ----------
    costs : by piece, signed costs of its half-edges
    penalties : by block, J of its pairs when violated
    """

    costs: tuple[Lazy, ...]
    penalties: tuple[Lazy, ...]


@dataclass(frozen=True)
class Pricing:
    """The pairs of every ICM problem under one set of weights, kept where they were computed."""

    weights: FloatArray
    scale: Scale
    problems: tuple[Lazy, ...]  # None for a problem in mode "rounds"
    pieces: dict[int, PricedPieces] = field(default_factory=dict)  # by number of such a problem


@dataclass
class Engine:
    """Runs passes over the parts of a problem."""

    flow: Dataflow
    problem: Problem
    run: CheckpointStore
    number: int = 0  # of the iteration whose labels are being written
    moments: FloatArray | None = None  # feature moments of the corpus, once they were asked for
    _known: list[CorpusTerms] = field(default_factory=list, init=False, repr=False)
    _priced: list[Pricing] = field(default_factory=list, init=False, repr=False)
    _sent: tuple[Model, Lazy] | None = field(default=None, init=False, repr=False)

    @property
    def learning(self) -> bool:
        """Whether weights of features are learned."""
        return self.problem.settings.learn_weights

    def share_model(self, model: Model) -> Lazy:
        """Return a model for the tasks of passes to come; it is sent once, from now on."""
        if self._sent is None or self._sent[0] is not model:
            self._sent = model, self.flow.broadcast(model)
        return self._sent[1]

    def corpus_terms(self, weights: FloatArray) -> CorpusTerms:
        """Return the terms of all rows under these weights; those of the last two are cached."""
        for known in self._known:
            if known.weights is weights:
                return known
        return self._compute_terms(weights, planned_terms(self.flow, self.problem, weights), [])[0]

    def _compute_terms(
        self, weights: FloatArray, terms: Sequence[Lazy], wanted: Sequence[Lazy]
    ) -> tuple[CorpusTerms, list[Any]]:
        corpus_terms, computed = compute_terms(self.flow, self.problem, weights, terms, wanted)
        self._known = [*self._known[-1:], corpus_terms]
        return corpus_terms, computed

    @cached_property
    def in_process(self) -> bool:
        """Whether all rows are in this process: then tasks only note those that move."""
        every = [*self.problem.free, *self.problem.linked]
        return self.flow.holds([partition.block for partition in every])

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
        known = self.corpus_terms(state.model.weights)
        return task_slices(self.problem, state, [*known.free, *known.linked])

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
        if not problem.icm_problems:
            return Pricing(model.weights, scale, ())
        for known in self._priced:
            if known.weights is model.weights and known.scale == scale:
                return known
        shared = self.flow.share(model)
        blocks = [
            self.flow.lazy(
                icm.price_pairs, problem.linked[pair.partitions[0]].block,
                problem.linked[pair.partitions[1]].block, pair.block, pair.cost, shared, scale,
                problem.potts,
            )
            for pair in problem.pairs
        ]  # fmt: skip
        pricing = Pricing(model.weights, scale, *self._join(blocks))
        self._priced = [*self._priced[-1:], pricing]
        return pricing

    def _join(self, blocks: Sequence[Lazy]) -> tuple[tuple[Lazy, ...], dict[int, PricedPieces]]:
        """Bring priced pairs together, for each ICM problem or each piece of one, and keep them."""
        flow = self.flow
        kept: list[Lazy] = []
        for plan in self.problem.icm_problems:
            priced = [blocks[place] for place in plan.blocks]
            if plan.cutting is None:
                kept.append(flow.lazy(icm.join_pairs, plan.problem, priced))
                continue
            signed = {place: flow.lazy(icm.signed_of, blocks[place]) for place in plan.blocks}
            kept += [
                flow.lazy(icm.join_piece, piece, [signed[place] for place in touching])
                for piece, touching in zip(plan.pieces, plan.cutting.blocks, strict=True)
            ]
            kept += [flow.lazy(icm.penalty_of, block) for block in priced]
        results = iter(flow.persist(kept))
        joined: list[Lazy] = []
        pieces = {}
        for number, plan in enumerate(self.problem.icm_problems):
            joined.append(next(results) if plan.cutting is None else None)
            if plan.cutting is not None:
                costs = tuple(next(results) for _ in plan.pieces)
                pieces[number] = PricedPieces(costs, tuple(next(results) for _ in plan.blocks))
        return tuple(joined), pieces

    def rows_of(self, number: int) -> list[Lazy]:
        """Return the rows of an ICM problem where it needs them: in table form only."""
        plan = self.problem.icm_problems[number]
        return [self.problem.linked[part].block for part in plan.partitions if plan.mode == "table"]

    def cut(self, number: int, settled: Lazy) -> list[Lazy]:
        """Return the labels of each part of an ICM problem, from those of all its points."""
        linked, plan = self.problem.linked, self.problem.icm_problems[number]
        first = linked[plan.partitions.start].first_row
        return [
            self.flow.lazy(
                icm.part_labels, settled, linked[part].first_row - first,
                linked[part].first_row - first + linked[part].n_rows,
            )
            for part in plan.partitions
        ]  # fmt: skip

    def violations(self, model: Model, linked: Sequence[Lazy]) -> list[Lazy]:
        """Return lazily what violated pairs cost under the labels in the files `linked`.

        One for each ICM problem; of one in pieces one for each block of pairs.
        """
        problem, pricing, shared = self.problem, self.price(model), self.share_model(model)
        found = [
            self.flow.lazy(
                icm.price_violations, plan.problem, pricing.problems[number],
                self.rows_of(number), shared, problem.potts, problem.closure_costs, self.run,
                [linked[part] for part in plan.partitions],
            )
            for number, plan in enumerate(problem.icm_problems)
            if plan.cutting is None
        ]  # fmt: skip
        for number, priced in pricing.pieces.items():
            for place, penalty in zip(
                problem.icm_problems[number].blocks, priced.penalties, strict=True
            ):
                pair = problem.pairs[place]
                files = tuple(linked[part] for part in pair.partitions)
                found.append(self.flow.lazy(icm.price_block, pair.block, penalty, self.run, files))
        return found

    def labelled_partitions(self, state: State) -> list[tuple[LabelledPartition, LabelsFile]]:
        """Return every partition with its label file."""
        return [
            *zip(self.problem.free, state.free, strict=True),
            *zip(self.problem.linked, state.linked, strict=True),
        ]

    def distortion_sum(self, state: State) -> int:
        """Return the exact Σ D of a state: from its sums where D is linear, else from every row."""
        model, flow = state.model, self.flow
        if self.problem.distortion.linear:
            return self.corpus_terms(model.weights).offsets + _closed(state)
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

    def total_sums(self, model: Model, state: State) -> tuple[IntArray, IntArray]:
        """Return sums and counts from nothing under the model's weights.

        Where the weights are new, the terms of the rows are made in the same graph.
        """
        flow, weights, shared = self.flow, model.weights, self.share_model(model)
        known = next((one for one in self._known if one.weights is weights), None)
        if known is None:
            terms = planned_terms(flow, self.problem, weights)
        else:
            terms = [*known.free, *known.linked]
        free, linked = task_slices(self.problem, state, terms)
        sums = [
            flow.lazy(partitions.total, task_slice, shared, self.store)
            for task_slice in [*free, *linked]
        ]
        wanted = sums if self.in_process else [tree(flow, add_sums, sums)]
        if known is None:
            found = self._compute_terms(weights, terms, wanted)[1]
        else:
            found = flow.compute(wanted)
        whole = joined(found).finish()
        return whole.dense if whole.is_dense else whole.to_dense(), whole.counts

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

    def finish(self, state: State, steps: Sequence[Lazy]) -> tuple[State, int]:
        """Compute the steps of all slices; return the state after them and how many rows moved.

        The last of them are those of the linked partitions. Centroids stay as they are.
        """
        flow, problem = self.flow, self.problem
        linked = [flow.lazy(partitions.file_of, step) for step in steps[len(problem.slices) :]]
        penalties = self.violations(state.model, linked)
        whole, *costs = flow.compute([tree(flow, partitions.merge_steps, steps), *penalties])
        files = {file.part: file for file in whole.files}
        after = replace(
            state,
            free=tuple(files[part.name] for part in problem.free),
            linked=tuple(files[part.name] for part in problem.linked),
            optimal=False,
        )
        sums = add_to(state.sums, whole.sums)
        after = replace(after, sums=sums, counts=state.counts + whole.sums.counts)
        if problem.distortion.linear or whole.change is None:
            distortion = self.distortion_sum(after)
        else:  # the moved rows' exact differences: Σ D exact to the last bit
            distortion = state.energy.distortion + exact_integer(whole.change)
        energy = replace(gather_energy(distortion, costs, 0.0), prior=state.energy.prior)
        return replace(after, energy=energy), whole.n_moved


def _closed(state: State) -> int:
    """Return Σ D less the rows' own offsets, from the sums."""
    model = state.model
    return model.distortion.closed_distances(
        model.table(), model.weights, state.sums, state.counts, model.exponent
    )
