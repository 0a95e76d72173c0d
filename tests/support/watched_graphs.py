"""What every graph that is run holds: the sizes of arguments, the depths of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import pytest
from dask._task_spec import DataNode, Task, convert_legacy_graph

from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.flow.graphs import Constant, Guarded
from tests.support.fits import one_process_cluster


@dataclass
class Graphs:
    """What was seen of every graph that a fit ran."""

    sizes: dict[str, int] = field(default_factory=dict)  # largest argument of each function
    depths: dict[str, int] = field(default_factory=dict)  # longest chain of each function
    computes: int = 0

    def record(self, values: Sequence[Any]) -> None:
        """Take the graph of some values down."""
        self.computes += 1
        graph: dict[Any, Any] = {}
        for value in values:
            graph.update(value.__dask_graph__())
        nodes = convert_legacy_graph(graph)
        chains: dict[Any, int] = {}
        for key in nodes:
            self._measure(key, nodes, chains)

    def _measure(self, key: Any, nodes: dict[Any, Any], chains: dict[Any, int]) -> int:
        """Return how many tasks of the same function end in this one, one after the other."""
        if key in chains or key not in nodes:
            return chains.get(key, 0)
        node = nodes[key]
        if isinstance(node, DataNode) or not isinstance(node, Task):
            chains[key] = 0
            return 0
        name = _name(node)
        if name == Constant.__name__:
            chains[key] = 0
            return 0
        below = [
            self._measure(one, nodes, chains)
            for one in node.dependencies
            if one in nodes and _name(nodes[one]) == name
        ]
        for one in node.dependencies:
            self._measure(one, nodes, chains)
        chains[key] = 1 + max(below, default=0)
        self.depths[name] = max(self.depths.get(name, 0), chains[key])
        # References to other tasks are no arguments: a task that gathers has as many as it must.
        literal = node.func.arguments if isinstance(node.func, Guarded) else ()
        size = len(cloudpickle.dumps((literal, node.args, node.kwargs)))
        size -= 80 * len(node.dependencies)
        self.sizes[name] = max(self.sizes.get(name, 0), size)
        return chains[key]


def _name(node: Any) -> str:
    function = getattr(node, "func", None)
    if isinstance(function, Guarded):
        function = function.function
    return getattr(function, "__qualname__", type(function).__name__)


@contextmanager
def watched_graphs() -> Iterator[Graphs]:
    """Take down every graph that is run inside."""
    seen, patch = Graphs(), pytest.MonkeyPatch()
    for name in ("compute", "persist"):
        real = getattr(DaskFlow, name)

        def watched(self: DaskFlow, values: Any, real: Callable[..., Any] = real) -> Any:
            seen.record(values)
            return real(self, values)

        patch.setattr(DaskFlow, name, watched)
    try:
        # On a cluster, in this process: there everything that a task is given has to travel.
        with one_process_cluster():
            yield seen
    finally:
        patch.undo()
