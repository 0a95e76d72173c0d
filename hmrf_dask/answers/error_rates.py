"""How often each annotator errs, by what answers about the same documents say of each other.

Expectation and maximisation (Dawid and Skene 1979) with a beta prior; all groups are as likely
beforehand, so that what a model of rows believes is no witness. Documents with one answer alone
test nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hmrf_dask.answers.evidence import Evidence
from hmrf_dask.answers.settling import Settling

# What is believed of an annotator before any answer: as if two had been checked, 5 % wrong.
BELIEVED_RIGHT, BELIEVED_WRONG = 1.9, 0.1
LEAST_RATE: Final = 1e-9
MOST_RATE: Final = 0.45  # that answers show: none is turned round
ROUNDS: Final = 8

Ballot = tuple[str, int, int | None, frozenset[int]]  # annotator, groups shown, for, against
OTHER: Final = -1  # a group that nothing was said of


class Annotator(NamedTuple):
    """What is known of somebody who answered."""

    n_answers: int
    n_unknown: int  # of them "don't know"
    n_repeated: int  # questions asked again
    n_changed: int  # and answered otherwise
    error_rate: float


def first_rate(trust: float | None) -> float:
    """Return the error rate that is believed before any answer, or known from trust.

    Examples
    --------
    >>> round(first_rate(None), 3), first_rate(1.0)
    (0.05, 1e-09)
    """
    if trust is None:
        return BELIEVED_WRONG / (BELIEVED_RIGHT + BELIEVED_WRONG)
    return min(max(1.0 - trust, LEAST_RATE), 1.0 - LEAST_RATE)


def first_rates(evidence: Evidence, trust: Mapping[str, float]) -> dict[str, float]:
    """Return that of every annotator."""
    return {name: first_rate(trust.get(name)) for name in sorted(evidence.n_answers)}


def learned_rates(
    settling: Settling, rates: Mapping[str, float], trust: Mapping[str, float]
) -> dict[str, float]:
    """Return the error rates that answers show, given the groups of what they were asked against.

    Rates of annotators with trust stay as they are.
    """
    evidence, patterns = settling.evidence, sorted(_patterns(settling).items(), key=repr)
    learned = dict(rates)
    for _ in range(ROUNDS):
        wrong, tested = defaultdict(list), Counter[str]()
        for ballots, n in patterns:
            for name, share in _wrong_shares(ballots, learned, settling.slots):
                wrong[name].append(n * share)
                tested[name] += n
        for name in learned.keys() - trust.keys():
            n_wrong = math.fsum(wrong[name]) + evidence.n_changed[name] + BELIEVED_WRONG
            n_all = tested[name] + evidence.n_repeated[name] + evidence.n_changed[name]
            rate = n_wrong / (n_all + BELIEVED_RIGHT + BELIEVED_WRONG)
            learned[name] = min(max(rate, LEAST_RATE), MOST_RATE)
    return learned


def _patterns(settling: Settling) -> Counter[tuple[Ballot, ...]]:
    """Return what was said of documents, however groups are called, and of how many documents."""
    of_documents: dict[int, list[tuple[str, int, int | None, frozenset[int]]]] = {}
    group = settling.group
    for vote in settling.evidence.votes:
        known = frozenset(group[other] for other in vote.against if group[other] >= 0)
        chosen = None if vote.chosen is None else group[vote.chosen]
        if chosen == -1 or (vote.chosen is None and not known):
            continue
        ballot = (vote.annotator, max(len(vote.shown), 1), chosen, known)
        of_documents.setdefault(vote.document, []).append(ballot)
    return Counter(_renumbered(ballots) for ballots in of_documents.values() if len(ballots) > 1)


def _renumbered(ballots: list[Ballot]) -> tuple[Ballot, ...]:
    """Return ballots with groups numbered as they come: as a rule the same for like documents."""
    ballots = sorted(ballots, key=lambda one: (one[0], one[1], one[2] is None, sorted(one[3])))
    number: dict[int, int] = {}
    renumbered = []
    for name, n_shown, chosen, against in ballots:
        for group in (*sorted(against), *(() if chosen is None else (chosen,))):
            number.setdefault(group, len(number))
        own = None if chosen is None else number[chosen]
        renumbered.append((name, n_shown, own, frozenset(number[group] for group in against)))
    return tuple(renumbered)


def _wrong_shares(
    ballots: tuple[Ballot, ...], rates: Mapping[str, float], slots: int
) -> Iterator[tuple[str, float]]:
    """Yield for each ballot who gave it, and how likely it is wrong."""
    groups = {group for _, _, own, against in ballots for group in against | {own}} - {None}
    weights = dict.fromkeys(groups, 1.0) | {OTHER: float(max(slots - len(groups), 0))}
    for group in weights:
        for name, n_shown, own, against in ballots:
            right = group == own if own is not None else group not in against
            weights[group] *= 1.0 - rates[name] if right else rates[name] / n_shown
    total = math.fsum(weights.values()) or 1.0
    for name, _, own, against in ballots:
        likely = math.fsum(
            weight for group, weight in weights.items()
            if (group == own if own is not None else group not in against)
        )  # fmt: skip
        yield name, max(1.0 - likely / total, 0.0)
