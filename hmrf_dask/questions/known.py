"""What answers say together: documents known to be the same, and groups known to differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations

from hmrf_dask.answers.beliefs import Beliefs
from hmrf_dask.answers.records import (
    CHOICE,
    IMPORTED,
    NEW,
    PAIR,
    UNKNOWN,
    Entry,
    Question,
)
from hmrf_dask.answers.settling import SETTLED
from hmrf_dask.answers.standing import standing
from hmrf_dask.constraints.pairs import Constraints

Pairs = Iterable[tuple[str, str]]


COMPLETE = 0.99  # of the shares of all groups, which are rounded


class Known:
    """Groups of documents, and which of them differ; ids are text.

    Attributes
    ----------
    answers : list of Entry
        Those that it was made of, if it was made of entries.
    opened : set of str
        Documents that are in no group of those before.
    unsure : set of str
        Documents that somebody did not know, and nobody placed.
    stood : set of str
        Documents that others were compared with.

    Examples
    --------
    >>> known = Known([("x", "r")], [("x", "s")])
    >>> known.group("x"), known.is_apart("r", "s")
    ('r', True)
    """

    def __init__(self, same: Pairs, different: Pairs) -> None:
        self.answers: list[Entry] = []
        self.opened: set[str] = set()
        self.unsure: set[str] = set()
        self.stood: set[str] = set()
        self._above: dict[str, str] = {}
        self._different = list(different)
        for first, second in same:
            low, high = sorted((self.group(first), self.group(second)))
            self._above[high] = low
        for pair in self._different:
            for document in pair:
                self.group(document)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Known:
        """Return what entries that stand say."""
        answers = [entry for entry in entries if entry.kind in (PAIR, CHOICE)]
        said = [pair for one in answers for pair in one.pairs()]
        same = [(first, second) for first, second, is_same in said if is_same]
        different = [(first, second) for first, second, is_same in said if not is_same]
        known = cls(same, different)
        known.answers = answers
        for one in answers:
            known.stood.update(one.documents[1:] if one.kind == PAIR else one.shown)
            if one.answer == NEW:
                known.opened.add(one.documents[0])
            elif one.answer == UNKNOWN:
                known.unsure.add(one.documents[0])
        known.unsure -= known.opened | {document for pair in same for document in pair}
        return known

    @classmethod
    def believed(
        cls, entries: Iterable[Entry], beliefs: Beliefs, pairs: Constraints | None = None
    ) -> Known:
        """Return what is believed of entries, and pairs given next to them.

        Only documents that are settled are in groups.
        """
        said = cls.of(standing(entries))
        together = [beliefs.constraints(), *([] if pairs is None else [pairs.as_text()])]
        same = [(a, b) for one in together for a, b in one.must_link.tolist()]
        different = [(a, b) for one in together for a, b in one.cannot_link.tolist()]
        imported = [pair for one in said.answers if one.why == IMPORTED for pair in one.pairs()]
        same += [(first, second) for first, second, is_same in imported if is_same]
        different += [(first, second) for first, second, is_same in imported if not is_same]
        different += [
            (document, anchor)
            for document in beliefs.open
            for anchor, likely in beliefs.opinion(document).likely.items()
            if likely < 1.0 - SETTLED
        ]
        known = cls(same, different)
        known.answers, known.stood = said.answers, said.stood
        known.opened = said.opened & beliefs.anchor_of.keys()
        unsure = {one.documents[0] for one in said.answers if one.answer == UNKNOWN}
        alone = {name for name in unsure if known.sizes[known.group(name)] < 2}
        known.unsure = {*alone, *beliefs.set_aside}
        return known

    @classmethod
    def of_pairs(cls, pairs: Constraints) -> Known:
        """Return what pairs say."""
        text = pairs.as_text()
        return cls(map(tuple, text.must_link.tolist()), map(tuple, text.cannot_link.tolist()))

    @property
    def documents(self) -> list[str]:
        """All that answers name."""
        return sorted(self._above.keys() | self.unsure | self.stood | self.opened)

    def group(self, document: str) -> str:
        """Return the document that stands for all that are known to be the same as this one."""
        above = self._above.setdefault(document, document)
        while above != self._above[above]:
            above = self._above[above] = self._above[self._above[above]]
        return above

    def is_apart(self, first: str, second: str) -> bool:
        """Return whether two documents are known to be different."""
        return self.group(second) in self.rivals.get(self.group(first), ())

    @cached_property
    def rivals(self) -> dict[str, set[str]]:
        """The groups that are known to differ from each group."""
        found: dict[str, set[str]] = defaultdict(set)
        for pair in self._different:
            first, second = map(self.group, pair)
            found[first].add(second)
            found[second].add(first)
        return dict(found)

    @cached_property
    def sizes(self) -> Counter[str]:
        """How many documents each group has."""
        return Counter(self.group(document) for document in list(self._above))

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """The documents of each group, sorted."""
        found: dict[str, list[str]] = defaultdict(list)
        for document in sorted(self._above):
            found[self.group(document)].append(document)
        return dict(found)

    def left(self, question: Question) -> list[tuple[str, float]]:
        """Return the groups that a document may still belong to, with their shares.

        None are left once it is settled: it has its group, opens one, or one alone is left.
        """
        if self.last_left(question) is not None:
            return []
        own = self.group(question.documents[0])
        likely = question.likely or (1.0 / max(len(question.shown), 1),) * len(question.shown)
        open_ones = set(self._open(question))
        if own in map(self.group, question.shown) or self.opened & set(question.documents):
            return []
        left = [pair for pair in zip(question.shown, likely, strict=True) if pair[0] in open_ones]
        # what is lacking to 1 is that it belongs to none of them
        remaining = 1.0 - sum(likely) + sum(share for _, share in left)
        if remaining <= 0.0:
            return [(document, 1.0 / len(left)) for document, _ in left]
        return [(document, min(share / remaining, 1.0)) for document, share in left]

    def _open(self, question: Question) -> list[str]:
        rivals = self.rivals.get(self.group(question.documents[0]), set())
        return [name for name in question.shown if self.group(name) not in rivals]

    def last_left(self, question: Question) -> str | None:
        """Return the one group that a document must belong to as all others are excluded."""
        left = self._open(question)
        complete = not question.likely or sum(question.likely) > COMPLETE
        if len(left) != 1 or len(question.shown) == 1 or not complete:
            return None
        return left[0] if self._all_apart([self.group(name) for name in question.shown]) else None

    def _all_apart(self, groups: list[str]) -> bool:
        return all(
            second in self.rivals.get(first, ()) for first, second in combinations(set(groups), 2)
        )

    def settles(self, document: str, likely: dict[str, float]) -> float:
        """Return how many pairs of documents an answer is expected to settle.

        `likely` says for each group that is asked about how likely it is that of the document.
        """
        own, nowhere = self.group(document), 1.0 - sum(likely.values())
        groups = {self.group(other): share for other, share in likely.items()}
        n_own, ours = self.sizes[own] or 1, self.rivals.get(own, set())
        sizes = {group: self.sizes[group] or 1 for group in groups}
        total = nowhere * n_own * sum(sizes.values())
        for group, share in groups.items():
            theirs = self.rivals.get(group, set())
            news = n_own * sum(self.sizes[rival] for rival in theirs - ours)
            news += sizes[group] * sum(self.sizes[rival] for rival in ours - theirs)
            total += share * (n_own * sizes[group] + news)
        return round(max(total, 0.0), 2)
