"""Beliefs: what answers that may be wrong say together, a posterior for each document.

A function of the entries of a journal, whatever the order of its lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from hmrf_dask.answers.error_rates import Annotator, first_rates, learned_rates
from hmrf_dask.answers.evidence import STEPS, Evidence, Vote, evidence_of
from hmrf_dask.answers.joins import joined_groups
from hmrf_dask.answers.records import Entry
from hmrf_dask.answers.settling import SETTLED, Settling
from hmrf_dask.constraints.closure import N_WITNESSES, BreadthFirst, connected_numbers
from hmrf_dask.constraints.pairs import Constraints

CERTAIN: Final = 1e-5  # doubt that is none
PATIENCE: Final = 6  # questions about a document, after which it is set aside
NEAR: Final = 0.1  # of an error rate: it changes no more
PASSES: Final = 6  # of settling, each with the error rates that the one before shows


class Group(NamedTuple):
    """Documents that belong together."""

    anchor: str  # the document that stands for it
    members: tuple[str, ...]  # settled ones, the anchor among them


class Opinion(NamedTuple):
    """How likely a document is of which group."""

    likely: dict[str, float]  # by the anchor, of groups that something was said of
    elsewhere: float  # of another group, known or not
    odds: dict[str, float]  # log odds of what was said alone, by the anchor
    n_asked: int  # questions about it
    asked: frozenset[str]  # documents that it was asked against
    unsure: bool  # whether somebody did not know


class Dispute(NamedTuple):
    """A settled document about which somebody said something else."""

    document: str
    anchor: str
    trust: float
    entries: tuple[str, ...]  # what the minority said


class Contradiction(NamedTuple):
    """A shortest chain of documents said to be the same, whose ends are said to be different.

    One link of it is wrong, or what closes it.
    """

    documents: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]  # entries that say so, of each link; last of the ends


@dataclass(frozen=True)
class Beliefs:
    """What answers say together.

    Attributes
    ----------
    groups : tuple of Group
        Settled documents, by their groups, in the order of anchors.
    anchor_of : dict
        The anchor of the group of every settled document.
    trust : dict
        The probability that a settled document is where it is.
    open : tuple of str
        Documents that are not settled.
    set_aside : tuple of str
        Documents not settled by six questions, and one about every group: for review.
    disputes : tuple of Dispute
    annotators : dict
        What is known of everybody who answered.
    """

    groups: tuple[Group, ...]
    anchor_of: dict[str, str]
    trust: dict[str, float]
    open: tuple[str, ...]
    set_aside: tuple[str, ...]
    disputes: tuple[Dispute, ...]
    annotators: dict[str, Annotator]
    _state: Settling = field(repr=False, compare=False)
    _anchors: tuple[str, ...] = field(repr=False, compare=False)  # by the number of the group

    def opinion(self, document: str) -> Opinion:
        """Return how likely a document that was answered about is of which group."""
        state, number = self._state, self._number[document]
        names, evidence, anchors = state.evidence.names, state.evidence, self._anchors
        posterior, votes = state.posterior(number), state.votes[number]
        return Opinion(
            {anchors[group]: share for group, share in posterior.likely.items()},
            posterior.elsewhere,
            {anchors[group]: steps / STEPS for group, steps in votes.items()},
            evidence.n_asked[number],
            frozenset(names[other] for other in evidence.asked.get(number, ())),
            number in evidence.unsure,
        )

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._state.evidence.names)}

    @cached_property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """The first answers "different" whose ends answers "same" join, with their chains."""
        return _contradictions(self._state.evidence)

    def constraints(self) -> Constraints:
        """Return what the answers tell a fit: pairs of settled documents alone, with trust.

        A document is linked to the anchor of its group, and known to differ from the anchors of
        groups that somebody said it is not of.
        """
        must, cannot = _pairs(self._state, self.trust, self._anchors)
        return Constraints(
            list(must) or None,
            list(cannot) or None,
            must_link_trust=_rounded(must.values()),
            cannot_link_trust=_rounded(cannot.values()),
            ids=True,
        )


def believe(
    entries: Iterable[Entry],
    *,
    trust: Mapping[str, float] | None = None,
    n_groups: int | None = None,
) -> Beliefs:
    """Return what answers say together, some of which may be wrong.

    Parameters
    ----------
    entries : iterable of Entry
        Of a journal, in any order.
    trust : mapping of str to float, optional
        The probability that an answer of an annotator is right, where it is known; "" are those
        who are not named. Otherwise it is learned from answers that test each other.
    n_groups : int, optional
        How many groups there are, where it is known.

    Examples
    --------
    >>> entries = [
    ...     Entry("1", "pair", ("s", "r"), answer="different"),
    ...     Entry("2", "pair", ("x", "r"), answer="same"),
    ... ]
    >>> believe(entries, trust={"": 1.0}).groups
    (Group(anchor='r', members=('r', 'x')), Group(anchor='s', members=('s',)))
    """
    known = dict(trust or {})
    evidence = evidence_of(entries)
    rates, expected = first_rates(evidence, known), 1
    for _ in range(PASSES):
        state = _settled(evidence, rates, n_groups, expected)
        learned, n_found = learned_rates(state, rates, known), len(state.founders) + 1
        if _is_near(learned, rates) and (n_groups is not None or n_found == expected):
            break
        rates, expected = learned, n_found if n_groups is None else expected
    return _beliefs(state, rates)


def _is_near(learned: Mapping[str, float], rates: Mapping[str, float]) -> bool:
    return all(abs(rate - rates[name]) <= NEAR * rate for name, rate in learned.items())


def _settled(
    evidence: Evidence, rates: Mapping[str, float], n_groups: int | None, expected: int
) -> Settling:
    """Return what is settled, with groups joined that turn out to be one."""
    joined: list[tuple[int, int]] = []
    while True:
        state = Settling(evidence, rates, n_groups, expected, joined).run()
        if not (more := joined_groups(state)):
            return state
        joined += more


def _beliefs(state: Settling, rates: Mapping[str, float]) -> Beliefs:
    evidence, names = state.evidence, state.evidence.names
    numbers = state.anchors()
    anchors, founders = [names[document] for document in numbers], set(state.founders)
    trust: dict[str, float] = {}
    anchor_of: dict[str, str] = {}
    open_ones: list[str] = []
    aside: list[str] = []
    members: list[list[str]] = [[] for _ in anchors]
    for document, group in enumerate(state.group):
        name = names[document]
        likely = state.trust(document) if group >= 0 else 0.0
        is_anchor = group >= 0 and numbers[group] == document
        if is_anchor and document in founders:
            likely = state.not_alone(document)
        if is_anchor or likely >= SETTLED:
            anchor_of[name], trust[name] = anchors[group], likely
            members[group].append(name)
            continue
        open_ones.append(name)
        n_known = len({state.group[other] for other in evidence.asked.get(document, ())} - {-1})
        if evidence.n_asked[document] >= PATIENCE and n_known >= len(anchors):
            aside.append(name)
    groups = [Group(*pair) for pair in zip(anchors, map(tuple, members), strict=True)]
    return Beliefs(
        tuple(sorted(groups)),
        anchor_of,
        trust,
        tuple(open_ones),
        tuple(aside),
        tuple(_disputes(state, anchor_of, trust)),
        annotators={
            name: Annotator(
                n,
                evidence.n_unknown[name],
                evidence.n_repeated[name],
                evidence.n_changed[name],
                rates[name],
            )
            for name, n in sorted(evidence.n_answers.items())
        },
        _state=state,
        _anchors=tuple(anchors),
    )


def _disputes(
    state: Settling, anchor_of: Mapping[str, str], trust: Mapping[str, float]
) -> Iterable[Dispute]:
    """Yield the settled documents about which somebody said something else."""
    names, against = state.evidence.names, dict[int, list[str]]()
    for vote in state.evidence.votes:
        if names[vote.document] in anchor_of and _disagrees(vote, state.group):
            against.setdefault(vote.document, []).extend(vote.entries)
    for document, entries in sorted(against.items()):
        name = names[document]
        yield Dispute(name, anchor_of[name], trust[name], tuple(sorted(entries)))


def _disagrees(vote: Vote, group: list[int]) -> bool:
    """Return whether a vote about a settled document says something else."""
    own = group[vote.document]
    if vote.chosen is None:
        return any(group[other] == own for other in vote.against)
    return group[vote.chosen] not in (own, -1)


def _pairs(
    state: Settling, trust: Mapping[str, float], anchors: Sequence[str]
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Return the must-links and cannot-links of settled documents, with their trust."""
    names, group = state.evidence.names, state.group
    must: dict[tuple[str, str], float] = {}
    cannot: dict[tuple[str, str], float] = {}
    different, shown = _different(state), dict[int, set[int]]()
    for vote in state.evidence.votes:
        shown.setdefault(vote.document, set()).update(group[other] for other in vote.shown)
    for document, number in enumerate(group):
        name = names[document]
        if name not in trust:
            continue
        if name != anchors[number]:
            must[_ordered(name, anchors[number])] = trust[name]
        votes, posterior = state.votes[document], state.posterior(document)
        for rival in shown.get(document, set()) - {number, -1}:
            is_said = votes.get(rival, 0) < 0 or frozenset((number, rival)) in different
            likely = 1.0 - posterior.likely.get(rival, 0.0)
            if is_said and likely >= SETTLED:
                pair = _ordered(name, anchors[rival])
                cannot[pair] = max(likely, cannot.get(pair, 0.0))
    return must, cannot


def _ordered(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)


def _rounded(trust: Iterable[float]) -> list[float]:
    """Return trust as a fit takes it: what is all but certain is."""
    return [1.0 if likely > 1.0 - CERTAIN else likely for likely in trust]


def _different(state: Settling) -> set[frozenset[int]]:
    """Return the pairs of groups that somebody said to be different."""
    group, found = state.group, set()
    for vote in state.evidence.votes:
        own = group[vote.document]
        for other in vote.against:
            if min(own, group[other]) >= 0 and own != group[other]:
                found.add(frozenset((own, group[other])))
    return found


def _contradictions(evidence: Evidence) -> tuple[Contradiction, ...]:
    """Return the first contradictions, by documents, at most 100."""
    same: dict[tuple[int, int], list[str]] = defaultdict(list)
    different: dict[tuple[int, int], list[str]] = defaultdict(list)
    for vote in evidence.votes:
        kind, others = (different, vote.against) if vote.chosen is None else (same, (vote.chosen,))
        for other in others:
            kind[min(vote.document, other), max(vote.document, other)] += vote.entries
    must = np.array(sorted(same), np.int32).reshape(-1, 2)
    cannot = np.array(sorted(different), np.int32).reshape(-1, 2)
    n_nodes = len(evidence.names)
    joined = connected_numbers(n_nodes, must)
    torn = cannot[joined[cannot[:, 0]] == joined[cannot[:, 1]]][:N_WITNESSES].tolist()
    search = BreadthFirst(n_nodes, must) if torn else None
    found = []
    for first, last in torn:
        assert search is not None
        path = search.path(first, last)
        links = [same[min(step), max(step)] for step in pairwise(path)]
        ends = different[first, last]
        documents = tuple(evidence.names[node] for node in path)
        found.append(Contradiction(documents, tuple(map(tuple, [*links, ends]))))
    return tuple(found)
