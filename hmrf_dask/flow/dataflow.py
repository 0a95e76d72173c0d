"""How work reaches Dask: tasks over partitions, trees of sums, shared state.

The loop speaks to a `Dataflow`. `DaskFlow` builds delayed tasks and runs them under whatever
scheduler Dask would use: an active `Client`, else threads. `Inline` runs every function at once: a
candidate start lives inside one task and uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hmrf_dask.types import AnyArray

FAN = 8  # children of a node of a reduction tree
SMALL = 4096  # bytes of an array that may travel as an argument
Lazy = Any  # a Delayed under DaskFlow, the value itself under Inline


class Dataflow(Protocol):
    """What the loop needs of a way to run functions."""

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Lazy:
        """Return the result of function(*arguments), lazily."""

    def share(self, value: Any) -> Lazy:
        """Return `value` as a task result that survives the loss of any worker."""

    def broadcast(self, value: Any) -> Lazy:
        """Return `value` as `share` does, to be sent to all workers at once."""

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values."""

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept where they were computed."""

    def neighbours(self, values: Sequence[Lazy]) -> list[list[int]]:
        """Return the numbers of kept values in groups: one task takes a group where it lies."""

    def holds(self, values: Sequence[Lazy]) -> bool:
        """Return whether the values lie in this process, where any task can use them."""

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given."""


def tree(
    flow: Dataflow,
    combine: Callable[[list[Any]], Any],
    parts: Sequence[Lazy],
    fan: int = FAN,
) -> Lazy:
    """Return combine over all parts as a tree of `fan` children a node, a few levels deep."""
    level = list(parts)
    while len(level) > 1:
        level = [
            flow.lazy(combine, level[first : first + fan])
            if len(level[first : first + fan]) > 1
            else level[first]
            for first in range(0, len(level), fan)
        ]
    return level[0]


def share_array(flow: Dataflow, values: AnyArray) -> Lazy:
    """Return an array as a task result of its own, unless it is small enough for an argument."""
    return values if values.nbytes <= SMALL else flow.share(values)


class Inline:
    """Runs functions where they are called."""

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return function(*arguments)."""
        return function(*arguments)

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value

    def broadcast(self, value: Any) -> Any:
        """Return the value."""
        return value

    def compute(self, values: Sequence[Any]) -> list[Any]:
        """Return the values."""
        return list(values)

    def persist(self, values: Sequence[Any]) -> list[Any]:
        """Return the values."""
        return list(values)

    def neighbours(self, values: Sequence[Any]) -> list[list[int]]:
        """Return all in one group."""
        return [list(range(len(values)))]

    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether the values lie in this process: they do."""
        return True

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given: they do."""
        return True
