"""Groups that turn out to be one: documents are said to belong with both.

Two groups are one rather than two by the ratio of how likely all votes are either way, each
document's group left open.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import combinations
from typing import Final

from hmrf_dask.answers.evidence import STEPS
from hmrf_dask.answers.settling import SETTLED, Settling

ENOUGH: Final = math.log(SETTLED / (1.0 - SETTLED))


def joined_groups(settling: Settling) -> list[tuple[int, int]]:
    """Return pairs of founders whose groups are one, that of the larger group first."""
    votes = _forward_votes(settling)
    candidates = {
        pair
        for own in votes.values()
        for pair in combinations(sorted(group for group, steps in own.items() if steps > 0), 2)
    }
    if not candidates:
        return []
    odds: dict[tuple[int, int], float] = defaultdict(float)
    for document, own in sorted(votes.items()):
        home = settling.group[document]
        founds = home >= 0 and settling.founders[home] == document
        known = own.keys() | ({home} if founds else set())
        for pair in combinations(sorted(known), 2):
            if pair in candidates:
                odds[pair] += _log_ratio(settling, own, pair, home if founds else None)
    for pair, n in _choices_between(settling).items():
        if pair in candidates:  # who sees the same group twice chooses either place as often
            odds[pair] -= n * math.log(2.0)
    least = ENOUGH + math.log(max(settling.slots - 1, 1))
    sizes = Counter(settling.group)
    found = sorted((-ratio, pair) for pair, ratio in odds.items() if ratio > least)
    joins, taken = [], set[int]()
    for _, pair in found:
        if not taken & set(pair):  # three groups wait for the next round
            taken.update(pair)
            stays, goes = sorted(pair, key=lambda group: (-sizes[group], group))
            joins.append((settling.founders[stays], settling.founders[goes]))
    return joins


def _forward_votes(settling: Settling) -> dict[int, dict[int, int]]:
    """Return what was said of each document by group, each vote once."""
    votes: dict[int, dict[int, int]] = defaultdict(dict)
    for number, vote in enumerate(settling.evidence.votes):
        steps, own = settling.steps[number], votes[vote.document]
        signs = dict.fromkeys((settling.group[other] for other in vote.against), -1)
        if vote.chosen is not None:
            signs = {settling.group[vote.chosen]: 1}
        for group, sign in signs.items():
            if group >= 0:
                own[group] = own.get(group, 0) + sign * steps
    return votes


def _choices_between(settling: Settling) -> Counter[tuple[int, int]]:
    """Return how often one of two groups was chosen where both were shown."""
    found, group = Counter[tuple[int, int]](), settling.group
    for vote in settling.evidence.votes:
        if vote.chosen is not None and len(vote.shown) > 1:
            own = group[vote.chosen]
            shown = {group[other] for other in vote.shown} - {own}
            found.update((min(own, other), max(own, other)) for other in shown)
    return found


def _log_ratio(
    settling: Settling, votes: dict[int, int], pair: tuple[int, int], founded: int | None
) -> float:
    """Return ln of how much likelier a document's votes are where two groups are one."""
    first, second = (votes.get(group, 0) / STEPS for group in pair)
    if founded in pair:  # it is of its own group, whatever the other is
        return second if founded == pair[0] else first
    beyond = [steps / STEPS for group, steps in votes.items() if group not in pair]
    n_other = max(settling.slots - len(votes), 0)
    most = max(first + second, first, second, 0.0, *beyond)
    remainder = math.fsum(math.exp(odds - most) for odds in beyond) + n_other * math.exp(-most)
    joined = math.exp(first + second - most) + remainder + math.exp(-most)
    separate = math.exp(first - most) + math.exp(second - most) + remainder
    return math.log(joined) - math.log(separate)
