"""What was asked and answered so far: a budget, entries as a journal has them, and neighbourhoods.

A question is one about a pair, or a choice among documents that stand for groups: one click.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hmrf_dask.answers.beliefs import Beliefs, believe
from hmrf_dask.answers.records import CHOICE, DIFFERENT, NEW, NONE, PAIR, SAME, UNKNOWN, Entry
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
    """Questions to an oracle, as many as the budget allows; what is asked, strategies choose.

    Attributes
    ----------
    left : int
        Questions that may be asked still.
    entries : list of Entry
        What was answered, documents by their names as text.
    """

    def __init__(self, oracle: Oracle, n_queries: int, *, by_id: bool) -> None:
        self.left = n_queries
        self.entries: list[Entry] = []
        self._oracle = oracle
        self._by_id = by_id
        self._is_text = False
        self._inferred: list[tuple[Any, Any]] = []

    @property
    def chooses(self) -> bool:
        """Whether the oracle can say which of several documents another belongs with."""
        return callable(getattr(self._oracle, "choose", None))

    def ask(
        self, first: Any, second: Any, likely: Sequence[float] = (), why: str = ""
    ) -> bool | None:
        """Return whether two documents belong together, None where the oracle does not know."""
        self._spend(first)
        answer: Any = self._oracle(first, second)
        if answer is not None and (
            not isinstance(answer, int | np.bool_ | np.integer) or answer not in (0, 1)
        ):
            raise InvalidInputError(
                "an oracle must return True (same), False (different) or None (don't know), got "
                f"{answer!r:.60} for {first!r} and {second!r}"
            )
        said = UNKNOWN if answer is None else SAME if answer else DIFFERENT
        self._note(PAIR, (first, second), (), said, likely, why)
        return None if answer is None else bool(answer)

    def choose(
        self, document: Any, shown: Sequence[Any], likely: Sequence[float], *, all_shown: bool
    ) -> int | Literal["new"] | None:
        """Return with which of those shown a document belongs, "new" for none of them."""
        self._spend(document)
        answer: Any = self._oracle.choose(document, list(shown))  # type: ignore[attr-defined]
        is_place = isinstance(answer, int | np.integer) and not isinstance(answer, bool)
        if is_place and 0 <= answer < len(shown):
            self._note(CHOICE, (document, shown[answer]), shown, SAME, likely, "")
            return int(answer)
        if answer is not None and not (isinstance(answer, str) and answer == NEW):
            raise InvalidInputError(
                f"choose must return a place from 0 to {len(shown) - 1}, 'new' or None (don't "
                f"know), got {answer!r:.60} for {document!r}"
            )
        said = UNKNOWN if answer is None else NEW if all_shown else NONE
        self._note(CHOICE, (document,), shown, said, likely, "")
        return None if answer is None else "new"

    def _spend(self, document: Any) -> None:
        if not self.left:
            raise BudgetSpentError
        self.left -= 1
        self._is_text = isinstance(document, str)

    def _note(
        self,
        kind: str,
        documents: Sequence[Any],
        shown: Sequence[Any],
        answer: str,
        likely: Sequence[float],
        why: str,
    ) -> None:
        names, of_groups = tuple(map(str, documents)), tuple(map(str, shown))
        number = f"{len(self.entries):09d}"
        shares = tuple(float(share) for share in likely)
        self.entries.append(Entry(number, kind, names, of_groups, answer, likely=shares, why=why))

    def infer_same(self, first: Any, second: Any) -> None:
        """Record that two documents belong together, as all else is excluded."""
        self._inferred.append((first, second))

    def beliefs(self, trust: Mapping[str, float] | None, n_groups: int | None) -> Beliefs:
        """Return what the answers say together."""
        return believe(self.entries, trust=trust, n_groups=n_groups)

    def named(self, pairs: Constraints) -> Constraints:
        """Return pairs of names as pairs of documents."""
        if self._is_text or not len(pairs):
            return pairs
        must, cannot = pairs.must_link.astype(np.int64), pairs.cannot_link.astype(np.int64)
        return Constraints(must, cannot, ids=self._by_id, **pairs.values())

    def constraints(self) -> Constraints:
        """Return the answers as they were given, as pairs."""
        kinds = {
            kind: [entry.documents for entry in self.entries if entry.answer == kind]
            for kind in (SAME, DIFFERENT)
        }
        kinds[SAME] += [(str(first), str(second)) for first, second in self._inferred]
        return self.named(Constraints(*(kinds[kind] or None for kind in (SAME, DIFFERENT))))


class Neighbourhoods:
    """Documents known to belong together; any two neighbourhoods are known to differ.

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

    @property
    def placed(self) -> tuple[IntArray, IntArray]:
        """The rows of all members, sorted, and their neighbourhoods."""
        groups = np.repeat(np.arange(len(self)), [len(group) for group in self.members])
        rows = np.array([int(row.rows[0]) for group in self.members for row in group], np.int64)
        order = np.argsort(rows)
        return rows[order], groups[order]

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
        members, order = self._by_centre(group)
        return members.take(order[:1])

    def member(self, group: int, without: Collection[str]) -> Askable | None:
        """Return the nearest member that is none of some, None where there is no other."""
        members, order = self._by_centre(group)
        names = members.block.ids.tolist()
        left = [place for place in order.tolist() if str(names[place]) not in without]
        return members.take(np.array(left[:1])) if left else None

    def _by_centre(self, group: int) -> tuple[Askable, IntArray]:
        """Return the members, and their places in the order of nearness to their mean."""
        members = questions.join_rows(self.members[group])
        table = questions.direction_table(_means([self.members[group]]))
        distances = members.distances(table)[:, 0]
        nearest = distances <= distances.min() + ROUNDING
        steps = np.where(nearest, -1.0, np.round(distances / ROUNDING))
        return members, np.lexsort((members.block.ids, steps))

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
