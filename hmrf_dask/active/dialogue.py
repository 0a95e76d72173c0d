"""What was asked and answered so far: pairs, a budget, and the neighbourhoods that answers make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.tasks import questions
from hmrf_dask.tasks.questions import Askable
from hmrf_dask.types import FloatArray, IntArray

Oracle = Callable[[Any, Any], bool | None]
ROUNDING = 1e-9  # of distances: both members of a pair are as near to their mean


class BudgetSpentError(Exception):
    """All questions were asked."""


class Dialogue:
    """Questions to an oracle, as many as the budget allows; what is asked, strategies choose."""

    def __init__(self, oracle: Oracle, n_queries: int, *, by_id: bool) -> None:
        self.left = n_queries
        self._oracle = oracle
        self._by_id = by_id
        self._same: list[tuple[Any, Any]] = []
        self._different: list[tuple[Any, Any]] = []

    def ask(self, first: Any, second: Any) -> bool | None:
        """Return whether two documents belong together, None where the oracle does not know."""
        if not self.left:
            raise BudgetSpentError
        self.left -= 1
        answer: Any = self._oracle(first, second)
        if answer is None:
            return None
        if not isinstance(answer, int | np.bool_ | np.integer) or answer not in (0, 1):
            raise InvalidInputError(
                "an oracle must return True (same), False (different) or None (don't know), got "
                f"{answer!r:.60} for {first!r} and {second!r}"
            )
        (self._same if answer else self._different).append((first, second))
        return bool(answer)

    def infer_same(self, first: Any, second: Any) -> None:
        """Record that two documents belong together, as all else is excluded."""
        self._same.append((first, second))

    def constraints(self) -> Constraints:
        """Return the answers as pairs."""
        pairs = [pairs or None for pairs in (self._same, self._different)]
        return Constraints(*pairs, ids=self._by_id)


class Neighbourhoods:
    """Documents known to belong together; any two neighbourhoods are known to be apart.

    Each is at its mean direction; its representative is the member nearest to that.
    """

    def __init__(self) -> None:
        self.members: list[list[Askable]] = []
        self.aside: list[int] = []  # rows that were asked about in vain

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.members)

    @property
    def asked(self) -> IntArray:
        """The rows that were asked about."""
        placed = [int(member.rows[0]) for group in self.members for member in group]
        return np.asarray(sorted(placed + self.aside), np.int64)

    def add(self, row: Askable, group: int) -> None:
        """Place a row in a neighbourhood, a new one if there is none of this number."""
        if group == len(self.members):
            self.members.append([])
        self.members[group].append(row)

    def directions(self) -> FloatArray:
        """Return the mean directions of all, whatever the order in which members came."""
        return _means(self.members)

    def by_nearness(self, row: Askable) -> list[int]:
        """Return the neighbourhoods, that with the nearest mean first."""
        distances = row.distances(questions.direction_table(self.directions()))[0]
        order: list[int] = np.argsort(distances, kind="stable").tolist()
        return order

    def representative(self, group: int) -> Askable:
        """Return the member nearest to the mean of a neighbourhood, of two alike the lowest id."""
        members = questions.join_rows(self.members[group])
        table = questions.direction_table(_means([self.members[group]]))
        distances = members.distances(table)[:, 0]
        nearest = np.flatnonzero(distances <= distances.min() + ROUNDING)
        place = nearest[np.argsort(members.block.ids[nearest])[0]]
        return members.take(np.array([place]))

    def by_members(self, row: Askable) -> list[tuple[int, Askable]]:
        """Return the neighbourhoods with the member nearest to a row, the nearest first."""
        found = []
        table = questions.direction_table(row.directions())
        for number, group in enumerate(self.members):
            members = questions.join_rows(group)
            distances = members.distances(table)[:, 0]
            place = np.lexsort((members.block.ids, distances))[0]
            found.append((distances[place], number, members.take(np.array([place]))))
        found.sort(key=lambda entry: entry[:2])
        return [(number, member) for _, number, member in found]


def _means(groups: list[list[Askable]]) -> FloatArray:
    """Return the mean directions of groups of rows."""
    rows = questions.join_rows([member for group in groups for member in group])
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    exponent = fixed_point_exponent(len(labels), 1.0)
    return questions.directions_of(rows.sums(labels, len(groups), exponent), exponent)
