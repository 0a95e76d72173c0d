"""Answers that contradict one another: the shortest chain of them between two documents."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from hmrf_dask.answers.records import DIFFERENT, NEW, NONE, PAIR, SAME, Entry

Place = tuple[str, bool]  # a document, and whether an answer on the way there tells apart
Link = tuple[str, Entry, bool]  # to a document, by an answer, which says that it is another group


def said_of(entry: Entry) -> Iterator[tuple[str, str, bool]]:
    """Yield the pairs of documents that an answer is about, and whether it tells them apart.

    Examples
    --------
    >>> list(said_of(Entry("1", "choice", ("x",), ("r", "s"), answer="none")))
    [('x', 'r', True), ('x', 's', True)]
    """
    is_different = entry.kind == PAIR and entry.answer == DIFFERENT
    if is_different or entry.answer == SAME:
        yield (*entry.documents[:2], is_different)  # type: ignore[misc]  # two, by its kind
    for shown in entry.shown if entry.answer in (NONE, NEW) else ():
        yield entry.documents[0], shown, True


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
            for first, second, apart in said_of(entry):
                self._links[first].append((second, entry, apart))
                self._links[second].append((first, entry, apart))

    def contradicting(self, entry: Entry) -> list[Entry]:
        """Return the fewest answers that cannot all be right together with this one, if any.

        Two answers to the same question contradict each other, too.
        """
        chains = [
            chain
            for first, second, apart in said_of(entry)
            if (chain := self._chain(entry, first, second, wanted=not apart))
        ]
        return min(chains, key=len, default=[])

    def _chain(self, entry: Entry, first: str, second: str, *, wanted: bool) -> list[Entry]:
        """Return the fewest other answers from a document to another.

        Where `wanted` exactly one of them tells apart, else none.
        """
        start = (first, False)
        reached: dict[Place, tuple[Place, Entry] | None] = {start: None}
        queue = deque([start])
        while queue:
            place = queue.popleft()
            if place == (second, wanted):
                return _walked(reached, place)
            document, crossed = place
            for to, answer, apart in self._links.get(document, ()):
                after = (to, crossed or apart)
                if answer.id != entry.id and not (crossed and apart) and after not in reached:
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
