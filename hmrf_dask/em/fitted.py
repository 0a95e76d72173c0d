"""A finished fit: where its labels are, and what they break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.dataflow import Dataflow, Lazy, share_array
from hmrf_dask.em.model import State
from hmrf_dask.em.prepare import Facts, Pairs
from hmrf_dask.em.problem import Problem, whole_labels
from hmrf_dask.runs import MemoryRun, RunDirectory
from hmrf_dask.types import IntArray, LabelArray


def labels_at(labels: LabelArray, rows: IntArray) -> LabelArray:
    """Return the labels of some rows of a part."""
    return labels[rows]


@dataclass
class Fitted:
    """A finished fit."""

    flow: Dataflow
    problem: Problem
    state: State
    run: RunDirectory | MemoryRun
    stop: str
    history: list[tuple[str, str, float]]
    n_iter: int
    pairs: Pairs | None
    facts: Facts

    def labels(self) -> list[Lazy]:
        """Return the labels of every corpus partition, lazily, read from the run."""
        problem, flow = self.problem, self.flow
        parts = zip(self.state.free, problem.places, problem.positions, strict=True)
        return [
            flow.lazy(
                whole_labels,
                self.run,
                file,
                self._holding(positions),
                share_array(flow, places),
                share_array(flow, positions),
            )
            for file, places, positions in parts
        ]

    def _holding(self, positions: np.ndarray[Any, Any]) -> list[Any]:
        """Return the files that hold some of these linked positions."""
        files = self.state.linked
        ends = np.asarray([one.first_row + one.n_rows for one in files])
        return [files[i] for i in np.unique(np.searchsorted(ends, positions, side="right"))]

    def objective_history(self) -> list[float]:
        """Return J after every step that promises not to raise it: all but the warm-up's."""
        return [value for phase, _, value in self.history if phase != "warm-up"]

    def _labels_of_nodes(self, pairs: Pairs) -> LabelArray:
        """Return the labels of constrained rows, from linked parts where they are linked rows."""
        problem = self.problem
        if problem.layout is not None and problem.graph is pairs.graph:
            laid = np.concatenate([self.run.read_labels(file) for file in self.state.linked])
            return laid[problem.layout.position]
        firsts = np.asarray([part.first_row for part in problem.free])
        homes = np.searchsorted(firsts, pairs.node_rows, side="right") - 1
        used, labels = np.unique(homes), np.empty(len(homes), np.int32)
        parts = self.labels()
        found = self.flow.compute(
            [
                self.flow.lazy(
                    labels_at,
                    parts[home],
                    share_array(self.flow, pairs.node_rows[homes == home] - firsts[home]),
                )
                for home in used
            ]
        )
        for home, some in zip(used, found, strict=True):
            labels[homes == home] = some
        return labels

    def violations(self) -> dict[str, int]:
        """Return how many of the given pairs the labels break."""
        if self.pairs is None:
            return {"must_link": 0, "cannot_link": 0}
        labels = self._labels_of_nodes(self.pairs)
        must, cannot = labels[self.pairs.must], labels[self.pairs.cannot]
        return {
            "must_link": int((must[:, 0] != must[:, 1]).sum()),
            "cannot_link": int((cannot[:, 0] == cannot[:, 1]).sum()),
        }
