"""Which group each document is of, by votes that may be wrong: the surest first.

A document is of group h with a probability in proportion to its prior, times the odds of every vote
for h, by those of every vote against h. It is settled where that is .95 for some group; what is
said of other documents against it then counts for that group. A document that stood for a group and
differs from all others opens one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hmrf_dask.answers.evidence import STEPS, Evidence

SETTLED: Final = 0.95
JOINED: Final = 20 * STEPS  # log odds of two documents that stand for the same group
FLOOR: Final = 0.1  # of a prior, in equal parts: the model's may be wrong


class Posterior(NamedTuple):
    """How likely a document is of each group."""

    likely: dict[int, float]  # of groups that something was said of
    elsewhere: float  # of one of the others, maybe one that nobody knows yet

    @property
    def best(self) -> tuple[int, float]:
        """The likeliest group and its probability, -1 where nothing was said; ties: the first."""
        return max(self.likely.items(), key=lambda item: (item[1], -item[0]), default=(-1, 0.0))


class Settling:
    """The state of documents while they are settled; `run` does it.

    Parameters
    ----------
    evidence : Evidence
    rates : mapping of annotator to error rate
    n_groups : int or None
        How many groups there are, as far as known.
    expected : int
        How many there seem to be.
    joined : sequence of pairs of documents
        Documents that stand for the same group, though nobody said so of them.
    """

    def __init__(
        self,
        evidence: Evidence,
        rates: Mapping[str, float],
        n_groups: int | None,
        expected: int,
        joined: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.evidence, self.n_groups = evidence, n_groups
        n = len(evidence.names)
        self.group = [-1] * n
        self.founders: list[int] = []
        self.votes: list[dict[int, int]] = [{} for _ in range(n)]  # steps by group
        self.new = [0] * n  # steps for a group that nobody knows yet
        self._shares: list[dict[int, list[int]]] = [{} for _ in range(n)]  # priors by group
        self._near: list[list[tuple[int, int, int]]] = [[] for _ in range(n)]
        self._likely: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        self._asks: list[list[int]] = [[] for _ in range(n)]  # what was asked against a document
        self._waits = [0] * n  # for documents that stand for a group but have none themselves
        self._counted: set[tuple[int, int]] = set()  # votes and groups
        self._dirty: set[int] = set()
        self._deferred: set[int] = set()
        self._excluded: set[int] = set()
        self._late: set[int] = set()
        self._pull = [0] * n  # steps towards documents without a group
        self._unresolved = [0] * n  # documents without a group that it was asked against
        self._candidates: list[tuple[bool, float, int, int]] = []
        self.slots = max(n_groups or 0, expected)
        self.steps = [vote.steps(rates[vote.annotator]) for vote in evidence.votes]
        self._joined = {second for _, second in joined}
        self._lay_out()
        for first, second in joined:
            self._link(second, first, JOINED, -1)
            self._pull[second] -= JOINED

    def _lay_out(self) -> None:
        """Link documents to those that votes about them name."""
        for number, vote in enumerate(self.evidence.votes):
            steps, document = self.steps[number], vote.document
            if vote.is_new:
                self.new[document] += steps
            if vote.chosen is not None:
                self._link(document, vote.chosen, steps, number)
                self._waits[document] += 1
            for other in vote.against:
                self._link(document, other, -steps, number)
        for document, other, share in self.evidence.likely:
            self._likely[other].append((document, share))
        for document, others in self.evidence.first.items():
            self._unresolved[document] = len(others)
            for other in others:
                self._asks[other].append(document)

    def _link(self, document: int, other: int, steps: int, number: int) -> None:
        self._near[other].append((document, steps, number))
        self._pull[document] += steps
        self._near[document].append((other, steps, -1))

    # ---- probabilities

    def posterior(self, document: int) -> Posterior:
        """Return how likely a document is of each group by all that is settled."""
        votes, shares = self.votes[document], self._shares[document]
        groups = sorted(votes.keys() | shares.keys())
        n_left = self.slots - len(groups)
        if self.new[document]:
            n_left = max(n_left, 1)
        prior, left = _prior([shares.get(group) for group in groups], n_left)
        most = max(self.new[document], *votes.values(), 0)
        weights = [
            share * math.exp((votes.get(group, 0) - most) / STEPS)
            for group, share in zip(groups, prior, strict=True)
        ]
        elsewhere = math.exp(-most / STEPS) * left * n_left
        if self.new[document]:
            elsewhere += left * math.exp((self.new[document] - most) / STEPS)
            elsewhere -= left * math.exp(-most / STEPS)
        total = math.fsum((*weights, elsewhere))
        likely = {group: weight / total for group, weight in zip(groups, weights, strict=True)}
        return Posterior(likely, elsewhere / total)

    def anchors(self) -> list[int]:
        """Return for each group the member that most answers place in it; ties: who opened it."""
        anchors = list(self.founders)
        for document, group in enumerate(self.group):
            if group < 0:
                continue
            votes = self.votes[document].get(group, 0)
            if votes > self.votes[anchors[group]].get(group, 0):
                anchors[group] = document
        return anchors

    def trust(self, document: int) -> float:
        """Return how likely a document is of the group that it was placed in, by all votes."""
        posterior, group = self.posterior(document), self.group[document]
        if group in posterior.likely:
            return posterior.likely[group]
        return posterior.elsewhere if len(posterior.likely) == self.slots - 1 else 0.0

    def not_alone(self, document: int) -> float:
        """Return how likely the group that a document opened is none of the others."""
        posterior = self.posterior(document)
        return posterior.likely.get(self.group[document], 0.0) + posterior.elsewhere

    # ---- the surest first

    def run(self) -> Settling:
        """Settle what can be settled."""
        stands, n_asked = self.evidence.stands, self.evidence.n_asked
        for document in sorted(stands):
            if not n_asked[document] and document not in self._joined:
                self._open(document)  # nobody asked where it belongs itself
            else:
                self._dirty.add(document)
        self._dirty.update(n_asked.keys() - set(self.founders))
        steps = (
            self._settle_all,
            self._open_next,
            self._infer_last,
            self._settle_deferred,
            self._open_late,
        )
        while any(step() for step in steps):
            pass
        return self

    def _settle_all(self) -> bool:
        """Settle what waits for nothing, all that is sure at a time; return whether any was."""
        documents, self._dirty = sorted(self._dirty), set()
        ready = []
        for document in documents:
            if self.group[document] >= 0:
                continue
            posterior = self.posterior(document)
            if group := self._settles(document, posterior):
                if self._waits[document] > 0:
                    self._deferred.add(document)
                else:
                    ready.append((document, group[0]))
                continue
            if self._is_new(document, posterior):
                self._propose(document, posterior)
            if len(self.votes[document]) == self.slots - 1:
                self._excluded.add(document)
        for document, group_number in ready:
            self._settle(document, group_number)
        return bool(ready)

    def _settles(self, document: int, posterior: Posterior) -> tuple[int, ...]:
        """Return the group that a document is settled in, none where it is not.

        Unless somebody said so, it must differ from all other groups, and nobody be unsure.
        """
        group, likely = posterior.best
        votes = self.votes[document]
        if likely < SETTLED:
            return ()
        n_against = sum(steps < 0 for steps in votes.values())
        is_last = n_against >= self.slots - 1 and document not in self.evidence.unsure
        return (group,) if is_last or votes.get(group, 0) > 0 else ()

    def _is_new(self, document: int, posterior: Posterior) -> bool:
        """Return whether a document opens a group: it is in none, and stands for one or is sure."""
        n_new = self.slots - len(self.founders)
        if n_new <= 0 and not self.new[document]:
            return False
        if self.evidence.stands[document]:
            return posterior.elsewhere >= posterior.best[1]
        n_left = self.slots - len(posterior.likely)
        return posterior.elsewhere * max(n_new, 1) / max(n_left, 1) >= SETTLED

    def _propose(self, document: int, posterior: Posterior) -> None:
        """Note that a document may open a group; those that stood for one come first.

        It is late if it was asked against documents that have no group themselves.
        """
        if self._unresolved[document]:
            self._late.add(document)
            return
        n_stood = self.evidence.stands[document]
        entry = (not n_stood, -posterior.elsewhere, -n_stood, document)
        heapq.heappush(self._candidates, entry)

    def _open_next(self) -> bool:
        """Open the group that is surest to be one; return whether there was one."""
        while self._candidates:
            _, least, _, document = heapq.heappop(self._candidates)
            if self.group[document] >= 0:
                continue
            posterior = self.posterior(document)
            if not self._is_new(document, posterior):
                continue
            if -least != posterior.elsewhere:  # more groups are known by now
                self._propose(document, posterior)
                continue
            self._open(document)
            return True
        return False

    def _open_late(self) -> bool:
        """Open the group of one that was asked against documents without a group.

        It is none that answers draw to such a document: that one's group is its own.
        """
        late = sorted(
            document
            for document in self._late
            if self.group[document] < 0 and (self._pull[document] <= 0 or not self.founders)
        )
        for document in late:
            self._unresolved[document] = 0
            self._propose(document, self.posterior(document))
        self._late.difference_update(late)
        return self._open_next()

    def _settle_deferred(self) -> bool:
        """Settle what waits for documents that have no group, as these do not get one."""
        documents, self._deferred = sorted(self._deferred), set()
        found = [
            (document, group[0]) for document in documents
            if self.group[document] < 0
            and (group := self._settles(document, self.posterior(document)))
        ]  # fmt: skip
        for document, number in found:
            self._settle(document, number)
        return bool(found)

    def _infer_last(self) -> bool:
        """Settle documents that differ from all groups but one; return whether any was."""
        if len(self.founders) != self.n_groups or self.slots != self.n_groups:
            return False
        documents, self._excluded = sorted(self._excluded), set()
        groups = set(range(self.slots))
        found = [
            (document, min(groups - self.votes[document].keys()))
            for document in documents
            if self._is_excluded(document)
        ]
        for document, last in found:
            self._settle(document, last)
        return bool(found)

    def _is_excluded(self, document: int) -> bool:
        """Return whether a document differs from all groups but one that nobody named."""
        votes = self.votes[document].values()
        if self.group[document] >= 0 or len(votes) != self.slots - 1 or max(votes, default=0) >= 0:
            return False
        if document in self.evidence.unsure or self.new[document]:
            return False
        return 1.0 - self.posterior(document).best[1] >= SETTLED

    def _open(self, document: int) -> None:
        self.founders.append(document)
        self.slots = max(self.slots, len(self.founders) + (self.n_groups is None))
        self._settle(document, len(self.founders) - 1)

    def _settle(self, document: int, group: int) -> None:
        """Place a document; all that is said of others against it counts for its group."""
        self.group[document] = group
        for other, steps, number in self._near[document]:
            if self._counts(group, steps, number):
                votes = self.votes[other]
                votes[group] = votes.get(group, 0) + steps
            if number >= 0:
                self._pull[other] -= steps
                self._waits[other] -= steps > 0
            self._dirty.add(other)
        for other in self._asks[document]:
            self._unresolved[other] -= 1
            self._dirty.add(other)
        for other, share in self._likely[document]:
            self._shares[other].setdefault(group, []).append(share)
            self._dirty.add(other)

    def _counts(self, group: int, steps: int, number: int) -> bool:
        """Return whether a vote counts: one against several documents of a group does so once."""
        if steps > 0 or number < 0 or len(self.evidence.votes[number].shown) == 1:
            return True
        key = (number, group)
        if key in self._counted:
            return False
        self._counted.add(key)
        return True


def _prior(shares: list[list[int] | None], n_left: int) -> tuple[list[float], float]:
    """Return the prior of groups with their shares, and of each of those that are left.

    Groups without shares, and those that are left, have equal parts of what is left of 1.
    """
    n_slots = len(shares) + n_left
    known = [sum(of) / len(of) / STEPS if of else None for of in shares]
    total = math.fsum(share for share in known if share is not None)
    n_unknown = n_left + sum(share is None for share in known)
    scale = 1.0 / total if total > 1.0 or (total > 0.0 and not n_unknown) else 1.0
    if not total and not n_unknown:
        known, n_unknown = [None] * len(known), len(known)
    left = max(1.0 - total * scale, 0.0) / n_unknown if n_unknown else 0.0
    floor = FLOOR / max(n_slots, 1)
    prior = [(1.0 - FLOOR) * (left if share is None else share * scale) + floor for share in known]
    return prior, (1.0 - FLOOR) * left + floor
