"""Answers that contradict one another: the shortest chain of them between two documents."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from hmrf_dask.answers.records import Entry

Place = tuple[str, bool]  # a document, and whether an answer on the way there said "different"
Link = tuple[str, Entry, bool]  # to a document, by an answer, which says that it is another group


class Chains:
    """Answers as links between documents.

    Examples
    --------
    >>> first = Entry("1", "pair", ("x", "r"), answer="same")
    >>> second = Entry("2", "pair", ("r", "y"), answer="same")
    >>> third = Entry("3", "pair", ("x", "y"), answer="different")
    >>> [one.id for one in Chains([first, second, third]).contradicting(third)]
    ['1', '2']
    """

    def __init__(self, answers: Iterable[Entry]) -> None:
        self._links: dict[str, list[Link]] = defaultdict(list)
        for entry in answers:
            for first, second, is_same in entry.pairs():
                self._links[first].append((second, entry, not is_same))
                self._links[second].append((first, entry, not is_same))

    def contradicting(self, entry: Entry) -> list[Entry]:
        """Return the fewest answers that cannot all be right together with this one, if any.

        Two answers to the same question contradict each other, too.
        """
        chains = [
            chain
            for first, second, is_same in entry.pairs()
            if (chain := self._chain(entry, first, second, wanted=is_same))
        ]
        return min(chains, key=len, default=[])

    def _chain(self, entry: Entry, first: str, second: str, *, wanted: bool) -> list[Entry]:
        """Return the fewest other answers from a document to another.

        Where `wanted` exactly one of them says "different", else none.
        """
        start = (first, False)
        reached: dict[Place, tuple[Place, Entry] | None] = {start: None}
        queue = deque([start])
        while queue:
            place = queue.popleft()
            if place == (second, wanted):
                return _walked(reached, place)
            document, crossed = place
            for to, answer, differs in self._links.get(document, ()):
                after = (to, crossed or differs)
                if answer.id != entry.id and not (crossed and differs) and after not in reached:
                    reached[after] = (place, answer)
                    queue.append(after)
        return []


def _walked(reached: dict[Place, tuple[Place, Entry] | None], place: Place) -> list[Entry]:
    """Return the answers on the way to a place; none if it passes a document twice.

    What contradicts then is the detour, with or without the answer whose chain it is.
    """
    chain, documents = list[Entry](), {place[0]}
    while (before := reached[place]) is not None:
        place, answer = before
        chain.append(answer)
        documents.add(place[0])
    return chain[::-1] if len(documents) == len(chain) + 1 else []
