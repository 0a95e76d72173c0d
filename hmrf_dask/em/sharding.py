"""The passes of a fit whose clusters come in shards, as its K × d arrays do not fit a task.

A shard is a range of clusters. The driver keeps sums and centroids on disk (`em.shelf`) and sends
tasks the centroids of one shard after the other: by cluster and not by feature, so that 12 bytes a
row cross shards and not K partial products, and every distance, sum and centroid is made by the
kernels of an unsharded fit, from the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmrf_dask.dataflow import NARROW, Lazy, tree
from hmrf_dask.em import bundles
from hmrf_dask.em import shard_tasks as tasks
from hmrf_dask.em.engine import Engine, Pricing
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.parts import Step
from hmrf_dask.em.rounds import settle_in_rounds
from hmrf_dask.em.shelf import shelf
from hmrf_dask.kernels.finders import frame_of
from hmrf_dask.kernels.sums import add_sums, joined
from hmrf_dask.types import IntArray


class ShardEngine(Engine):
    """Runs passes over the parts of a problem for one shard of clusters after the other."""

    def expectation(self, state: State, pricing: Pricing) -> tuple[State, int]:
        """Return the state after an E-step, and how many rows moved; see `em.estep`."""
        flow, run, number = self.flow, self.run, self.number
        groups, _ = self.groups(state)
        near: list[Lazy] = [None] * len(groups)
        aparts: list[list[Lazy]] = [[] for _ in self.problem.linked]
        frame = self._frame(state)
        for first, model in self.models(state.model):
            free = [
                flow.lazy(
                    tasks.compare, one.blocks, list(one.kept), model, first, run, number,
                    list(one.files), known,
                )
                for one, known in zip(groups, near, strict=True)
            ]  # fmt: skip
            found = flow.compute([*free, *self._measured(state, model, first, frame)])
            self._discard(near, found[: len(groups)])
            near = found[: len(groups)]
            for several, one in zip(aparts, found[len(groups) :], strict=False):
                several.append(one)
        steps = [
            flow.lazy(tasks.settle, run, number, known, list(one.files))
            for one, known in zip(groups, near, strict=True)
        ]
        labels = self._settled(state, pricing, aparts)
        steps += self._relabelled([[file] for file in state.linked], [[one] for one in labels])
        done = self.finish(state, steps, pricing, self.send(state.model))
        self._discard(near, [])
        run.discard([file for several in aparts for one in several for file in one.files])
        return done

    def _discard(self, near: Sequence[Lazy], later: Sequence[Lazy]) -> None:
        """Remove what was known of rows, now that more is; the same content has the same file."""
        kept = {file.name for one in later for file in one}
        files = [file for one in near if one is not None for file in one]
        self.run.discard([file for file in files if file.name not in kept])

    def _frame(self, state: State) -> Lazy:
        """Return what finders of all shards share, where linked rows need it; else None."""
        if all(one.mode != "heap" for one in self.problem.bundles):
            return None
        return self.flow.share(frame_of(piece.model.table() for piece in state.pieces()))

    def _measured(self, state: State, model: Lazy, first: int, frame: Lazy) -> list[Lazy]:
        """Return lazily how far linked rows are from the clusters of a shard, by part."""
        problem, known = self.problem, self.rows(state.model.weights).linked
        return [
            self.flow.lazy(
                tasks.measure_linked, problem.linked[part].block, known[part], model, first,
                self.run, self.number, problem.linked[part].name, frame, one.bundle,
            )
            for one in problem.bundles
            for part in one.parts
        ]  # fmt: skip

    def _settled(
        self, state: State, pricing: Pricing, aparts: Sequence[Sequence[Lazy]]
    ) -> list[Lazy]:
        """Return the labels of linked parts after exact ICM."""
        flow, problem, scale = self.flow, self.problem, pricing.scale
        model, known = self.send(state.model), self.rows(state.model.weights).linked
        labels: list[Lazy] = []
        for number, one in enumerate(problem.bundles):
            files = [state.linked[part] for part in one.parts]
            own = [(problem.linked[part], list(aparts[part])) for part in one.parts]
            if one.mode == "rounds":
                costs = [
                    flow.lazy(tasks.linked_costs, self.run, several, part.n_rows, scale)
                    for part, several in own
                ]
                labels += settle_in_rounds(self, number, pricing, costs, files)
                continue
            pairs, start = pricing.bundles[number], own[0][0].first_row
            looks = [
                flow.lazy(
                    tasks.look_at, part.block, known[place], model, scale, pairs,
                    part.first_row - start, self.run, files, several,
                )
                for place, (part, several) in zip(one.parts, own, strict=True)
            ]  # fmt: skip
            settled = flow.lazy(
                bundles.settle, one.bundle, pairs, looks, [], model, scale, problem.potts,
                problem.closure_costs, self.run, files,
            )  # fmt: skip
            labels += self.cut(number, settled)
        return labels

    def move(
        self, state: State, after: Sequence[Lazy], pricing: Pricing, model: Lazy
    ) -> tuple[State, int]:
        """See `Engine.move`."""
        free, linked = self.groups(state)
        n_free = len(self.problem.free)
        chosen = [*self.problem.groups, *((n_free + place,) for place in range(len(linked)))]
        files = [list(one.files) for one in [*free, *linked]]
        steps = self._relabelled(files, [[after[place] for place in places] for places in chosen])
        return self.finish(state, steps, pricing, model)

    def _relabelled(
        self, files: Sequence[Sequence[Lazy]], afters: Sequence[Sequence[Lazy]]
    ) -> list[Lazy]:
        """Return the steps of groups of parts that get other labels."""
        return [
            self.flow.lazy(tasks.relabel, self.run, self.number, list(own), *labels)
            for own, labels in zip(files, afters, strict=True)
        ]

    def sums_after(self, before: State, after: State, step: Step) -> tuple[IntArray, IntArray]:
        """See `Engine.sums_after`."""
        return self._summed(before, after)

    def total_sums(self, model: Model, state: State) -> tuple[IntArray, IntArray]:
        """See `Engine.total_sums`."""
        return self._summed(None, state)

    def _summed(self, before: State | None, after: State) -> tuple[IntArray, IntArray]:
        """Return sums and counts under labels, from those `before` or from nothing."""
        flow, model = self.flow, after.model
        shape = model.n_clusters, self.problem.extent.n_features + 1
        sums, counts = shelf(shape, np.int64), np.zeros(model.n_clusters, np.int64)
        shared, groups = self.send(model), [one for some in self.groups(after) for one in some]
        old: list[list[Lazy] | None] = [None] * len(groups)
        if before is not None:
            old = [list(one.files) for some in self.groups(before) for one in some]
        for clusters in model.shards:
            changes = [
                flow.lazy(
                    tasks.change, one.blocks, list(one.kept), shared, clusters, self.run,
                    self.at_hand, files, list(one.files),
                )
                for one, files in zip(groups, old, strict=True)
            ]  # fmt: skip
            wanted = changes if self.at_hand else [tree(flow, add_sums, changes, NARROW)]
            change, rows = joined(flow.compute(wanted)), slice(clusters.start, clusters.stop)
            known = np.zeros_like(sums[rows]) if before is None else before.sums[rows]
            sums[rows] = change.added_to(known)
            counts[rows] = change.counts + (0 if before is None else before.counts[rows])
        return sums, counts
