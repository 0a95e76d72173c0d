"""The engine of a fit: a problem, a way to run tasks, a place for labels, and the passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hmrf_dask.dataflow import Dataflow, Lazy, tree
from hmrf_dask.em import bundles, parts
from hmrf_dask.em.model import Energy, Model, Penalties, State, gather_energy
from hmrf_dask.em.parts import Part, Shared, add_limbs, share_model
from hmrf_dask.em.problem import Problem
from hmrf_dask.em.scale import Scale, make_scale
from hmrf_dask.kernels.sums import Sums, add_sums
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import FloatArray, IntArray


@dataclass(frozen=True)
class PricedPieces:
    """The pairs of a bundle in mode "rounds".

    Attributes
    ----------
    costs : by piece, signed costs of its half-edges
    penalties : by block, J of its pairs when violated
    """

    costs: tuple[Lazy, ...]
    penalties: tuple[Lazy, ...]


@dataclass(frozen=True)
class Pricing:
    """The pairs of every bundle under one set of weights, kept where they were computed."""

    scale: Scale
    bundles: tuple[Lazy, ...]  # None for a bundle in mode "rounds"
    pieces: dict[int, PricedPieces] = field(default_factory=dict)  # by number of such a bundle


@dataclass
class Engine:
    """Runs passes over the parts of a problem."""

    flow: Dataflow
    problem: Problem
    run: RunStore
    number: int = 0  # of the iteration whose labels are being written
    moments: FloatArray | None = None  # feature moments of the corpus, once they were asked for

    def price(self, model: Model) -> Pricing:
        """Return what all pairs cost under the model's weights."""
        problem = self.problem
        scale = make_scale(
            problem.distortion,
            model.weights,
            potts=problem.potts,
            degree=problem.degree,
            span=problem.distortion.span(model.weights, model.smoothing),
            unit_of_costs=problem.cost_unit,
        )
        if not problem.bundles:
            return Pricing(scale, ())
        shared = self.flow.share(model)
        blocks = [
            self.flow.lazy(
                bundles.price_pairs, problem.linked[pair.parts[0]].block,
                problem.linked[pair.parts[1]].block, pair.block, pair.cost, shared, scale,
                problem.potts,
            )
            for pair in problem.pairs
        ]  # fmt: skip
        return self._join(scale, blocks)

    def _join(self, scale: Scale, blocks: Sequence[Lazy]) -> Pricing:
        """Bring priced pairs together, for each bundle or for each piece of one, and keep them."""
        flow = self.flow
        kept: list[Lazy] = []
        for one in self.problem.bundles:
            if one.cutting is None:
                kept.append(
                    flow.lazy(
                        bundles.join_pairs, one.bundle, [blocks[place] for place in one.blocks]
                    )
                )
                continue
            signed = {place: flow.lazy(bundles.signed_of, blocks[place]) for place in one.blocks}
            kept += [
                flow.lazy(bundles.join_piece, piece, [signed[place] for place in touching])
                for piece, touching in zip(one.pieces, one.cutting.blocks, strict=True)
            ]
            kept += [flow.lazy(bundles.penalty_of, blocks[place]) for place in one.blocks]
        results = iter(flow.persist(kept))
        joined: list[Lazy] = []
        pieces = {}
        for number, one in enumerate(self.problem.bundles):
            joined.append(next(results) if one.cutting is None else None)
            if one.cutting is not None:
                costs = tuple(next(results) for _ in one.pieces)
                pieces[number] = PricedPieces(costs, tuple(next(results) for _ in one.blocks))
        return Pricing(scale, tuple(joined), pieces)

    def rows_of(self, bundle: int) -> list[Lazy]:
        """Return the rows of a bundle where its ICM needs them: in table form only."""
        one = self.problem.bundles[bundle]
        return (
            [self.problem.linked[part].block for part in one.parts] if one.mode == "table" else []
        )

    def violations(self, pricing: Pricing, model: Lazy, linked: Sequence[Lazy]) -> list[Lazy]:
        """Return lazily what violated pairs cost under the labels in the files `linked`.

        One for each bundle; of a bundle in pieces one for each block of pairs.
        """
        problem = self.problem
        found = [
            self.flow.lazy(
                bundles.price_violations, one.bundle, pricing.bundles[number],
                self.rows_of(number), model, problem.potts, problem.closure_costs, self.run,
                [linked[part] for part in one.parts],
            )
            for number, one in enumerate(problem.bundles)
            if one.cutting is None
        ]  # fmt: skip
        for number, priced in pricing.pieces.items():
            for place, penalty in zip(
                problem.bundles[number].blocks, priced.penalties, strict=True
            ):
                pair = problem.pairs[place]
                files = tuple(linked[part] for part in pair.parts)
                found.append(
                    self.flow.lazy(bundles.price_block, pair.block, penalty, self.run, files)
                )
        return found

    def all_parts(self, state: State) -> list[tuple[Part, LabelsFile]]:
        """Return every part with its label file."""
        return [
            *zip(self.problem.free, state.free, strict=True),
            *zip(self.problem.linked, state.linked, strict=True),
        ]

    def distortion_limbs(self, state: State, shared: Shared) -> Lazy:
        """Return lazily Σ D of a state, every row computed anew."""
        limbs = [
            self.flow.lazy(parts.measure, part.block, shared.model, shared.table, self.run, file)
            for part, file in self.all_parts(state)
        ]
        return tree(self.flow, add_limbs, limbs)

    def energy(self, state: State, pricing: Pricing, prior: float) -> Energy:
        """Return J of a state, every row and every pair computed anew."""
        shared = share_model(self.flow, state.model)
        penalties = self.violations(pricing, shared.model, list(state.linked))
        distortion, *costs = self.flow.compute([self.distortion_limbs(state, shared), *penalties])
        return gather_energy(distortion, costs, prior)

    def total_sums(self, model: Model, state: State) -> tuple[IntArray, IntArray]:
        """Return sums and counts from nothing under the model's weights."""
        shared = self.flow.share(model)
        sums = [
            self.flow.lazy(parts.total, part.block, shared, self.run, file)
            for part, file in self.all_parts(state)
        ]
        whole: Sums = self.flow.compute([tree(self.flow, add_sums, sums)])[0]
        return whole.to_dense(), whole.counts

    def summand_bound(self, weights: FloatArray) -> float:
        """Return a bound on the entries of summands under these weights."""
        bound = self.problem.distortion.summand_bound(None, weights)
        if bound is not None:
            return bound
        shared = self.flow.share((self.problem.distortion, weights))
        bounds = [self.flow.lazy(block_bound, part.block, shared) for part in self.problem.free]
        return float(max(self.flow.compute([tree(self.flow, largest, bounds)])))

    def move(
        self, state: State, after: Sequence[Lazy], pricing: Pricing, shared: Shared
    ) -> tuple[State, int]:
        """Return the state under the labels `after` of every part, and how many rows moved."""
        steps = [
            self.flow.lazy(
                parts.relabel,
                part.block,
                shared.model,
                shared.table,
                self.run,
                self.number,
                part.name,
                file,
                labels,
            )
            for (part, file), labels in zip(self.all_parts(state), after, strict=True)
        ]
        return self.finish(state, steps, pricing, shared.model)

    def finish(
        self, state: State, steps: Sequence[Lazy], pricing: Pricing, model: Lazy
    ) -> tuple[State, int]:
        """Compute the steps of all parts; return the state after them and how many rows moved.

        Centroids stay as they are. Σ D changes by the moved rows' exact differences, which is Σ D
        computed anew to the last bit; pairs are priced anew.
        """
        files = [self.flow.lazy(file_of, step) for step in steps]
        briefs = [self.flow.lazy(parts.brief, step) for step in steps]
        moved_sums = tree(
            self.flow, add_sums, [self.flow.lazy(parts.sums_of, step) for step in steps]
        )
        penalties = self.violations(pricing, model, files[len(self.problem.free) :])
        results = self.flow.compute([moved_sums, *briefs, *penalties])
        sums: Sums = results[0]
        told: list[parts.Brief] = results[1 : 1 + len(steps)]
        costs: list[Penalties] = results[1 + len(steps) :]
        change = gather_energy(add_limbs([one.change for one in told]), costs, 0.0)
        energy = replace(
            change, distortion=state.energy.distortion + change.distortion, prior=state.energy.prior
        )
        n_free = len(self.problem.free)
        moved = sum(one.n_moved for one in told)
        return (
            replace(
                state,
                sums=add_dense(state.sums, sums),
                counts=state.counts + sums.counts,
                free=tuple(one.file for one in told[:n_free]),
                linked=tuple(one.file for one in told[n_free:]),
                energy=energy,
            ),
            moved,
        )


def add_dense(sums: IntArray, change: Sums) -> IntArray:
    """Return sums after a change."""
    out = sums.copy()
    if change.is_dense:
        out += change.dense
    else:
        out.ravel()[change.places] += change.values
    return out


def file_of(step: parts.PartStep) -> LabelsFile:
    """Return the label file of a step."""
    return step.file


def block_bound(block: object, shared: tuple[object, FloatArray]) -> float:
    """Return the summand bound of one partition."""
    distortion, weights = shared
    return float(distortion.summand_bound(block, weights))  # type: ignore[attr-defined]


def largest(bounds: list[float]) -> float:
    """Return the largest bound."""
    return max(bounds)


def real_sums(sums: IntArray, exponent: int) -> FloatArray:
    """Return fixed-point sums as float64."""
    return np.asarray(sums * 2.0**-exponent, np.float64)
