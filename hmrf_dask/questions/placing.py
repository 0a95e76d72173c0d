"""Documents are placed by answers that may be wrong: each is asked about until it is settled.

What is known is what `hmrf_dask.answers.beliefs` makes of all answers; between two of its passes a
document is judged by its own answers and the error rate of the last pass.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from hmrf_dask.answers.beliefs import PATIENCE, Beliefs
from hmrf_dask.answers.error_rates import first_rate
from hmrf_dask.answers.settling import FLOOR, SETTLED
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.questions.dialogue import Dialogue, Neighbourhoods
from hmrf_dask.questions.pool import Pool
from hmrf_dask.questions.rounds import ALL_SHOWN, SOME_SHOWN
from hmrf_dask.tasks import questions
from hmrf_dask.tasks.questions import Askable, Means
from hmrf_dask.types import FloatArray, IntArray

MEMBERS: Final = 3  # of a group that one document is asked against
UNLIKELY: Final = 0.02  # groups that are not asked about where a likelier one is not settled
NEW: Final = 0.25  # prior of a group that is not known, at least, while groups are sought
SEARCH: Final = 4  # documents a group, after which none is likely to open one
GROWTH: Final = 1.1  # of answers, after which all are judged again


@dataclass
class Case:
    """A document that is asked about, and what was said of it."""

    row: Askable
    odds: dict[int, float] = field(default_factory=dict)  # log odds of answers, by group
    n_shown: Counter[int] = field(default_factory=Counter)  # questions against a group
    n_asked: int = 0
    unsure: bool = False
    own: int | None = None  # the group that it stands for, which may be one of the others

    @property
    def name(self) -> str:
        """The document as entries have it."""
        return str(document_of(self.row))


class Prior(NamedTuple):
    """What rows say of a document alone."""

    likely: FloatArray  # of each known group
    distances: FloatArray


class Opinion(NamedTuple):
    """How likely a document is of which group."""

    prior: Prior
    posterior: FloatArray
    new: float  # posterior of a group that is not known

    @property
    def best(self) -> int:
        """The likeliest group."""
        return int(self.posterior.argmax())


class Placing:
    """The groups that answers make, and the documents that are not settled yet.

    Parameters
    ----------
    dialogue : Dialogue
    pool : Pool
        Of the rows that may be asked about.
    everything : Pool
        Of all rows.
    n_clusters : int or None
    trust : float or None
        The probability that an answer is right; None: as answers show.
    """

    def __init__(
        self,
        dialogue: Dialogue,
        pool: Pool,
        everything: Pool,
        n_clusters: int | None,
        trust: float | None,
    ) -> None:
        self.known = Neighbourhoods()
        self._dialogue, self._n_clusters = dialogue, n_clusters
        self._pool, self._everything = pool, everything
        self._clusters: Means | None = None  # that all rows make, until more is known
        self._trust = None if trust is None else {"": trust}
        self._certain = trust == 1.0
        self._error_rate = first_rate(trust)
        self._rows: dict[str, Askable] = {}  # of documents asked about
        self._open: dict[str, Case] = {}  # of those that are not settled
        self._again: list[str] = []  # open ones to ask about again
        self._against: dict[str, set[str]] = defaultdict(set)  # which were asked about together
        self._judged = 0  # answers that all were judged by

    @property
    def explored(self) -> bool:
        """Whether every cluster has a group."""
        return self._n_clusters is not None and len(self.known) >= self._n_clusters

    @property
    def finds_groups(self) -> bool:
        """Whether documents still open groups: there may be fewer groups than clusters."""
        return len(self._rows) <= SEARCH * (len(self.known) + 1)

    @property
    def asked(self) -> IntArray:
        """The rows that were asked about."""
        return np.asarray(sorted(int(row.rows[0]) for row in self._rows.values()), np.int64)

    def means(self) -> Means:
        """Return the mean directions of the groups; once each cluster has one, of the clusters."""
        if not self.explored:
            return Means(self.known.directions())
        if self._clusters is None:
            self._clusters = self._everything.clusters(self.known.directions(), *self.known.placed)
        return self._clusters

    def place(self, row: Askable) -> None:
        """Ask about a document until it is settled, opens a group, or nothing is left to ask."""
        case = Case(row)
        self._rows[case.name] = row
        if len(self.known):
            self._open[case.name] = case
            self._go_on(case)
        else:
            self.known.add(row, 0)
        self._judge()

    def ask_again(self) -> bool:
        """Ask about open documents that others may settle by now; return whether any was asked."""
        while self._again:
            case = self._open.get(self._again.pop())
            if case is not None and self._go_on(case):
                self._judge()
                return True
        return False

    def constraints(self) -> Constraints:
        """Return the pairs of settled documents."""
        beliefs = self._dialogue.beliefs(self._trust, self._n_clusters)
        return self._dialogue.named(beliefs.constraints())

    # ---- a document

    def _go_on(self, case: Case) -> bool:
        """Ask about a document as long as that helps; return whether it was asked about."""
        n_before = case.n_asked
        prior = self._prior(case)
        while True:
            opinion = self._opinion(case, prior)
            if self._settles(case, opinion):
                self._settle(case, opinion.best)
                break
            shown = {} if self._is_new(case, opinion) else self._next(case, opinion)
            if not shown:
                if self._opens(case, opinion):
                    self._settle(case, len(self.known))
                break
            self._ask(case, shown, opinion)
        return case.n_asked > n_before

    def _settle(self, case: Case, group: int) -> None:
        del self._open[case.name]
        if case.own is None:
            self.known.add(case.row, group)
        else:  # two groups are one: all that was said of either is judged again
            self._judged = 0

    def _prior(self, case: Case) -> Prior:
        """Return how likely each group is by rows alone; while groups are searched, others are.

        So the sum is below 1 until every cluster has a group.
        """
        means = self.means()
        table = questions.direction_table(means.directions)
        distances = questions.distances_to(case.row, table, means.lengths)[0]
        if case.own is not None:
            distances[case.own] = np.inf
        weights = np.exp(self._pool.scale * (distances.min() - distances))
        known = 1.0
        if case.own is not None or not self.explored:
            missing = 0.0
            if self._n_clusters and self.finds_groups:
                missing = 1.0 - len(self.known) / self._n_clusters
            known -= max(NEW, missing)
        if case.own is not None or (not self.explored and self.finds_groups):
            # such rows are chosen for being far from all: where they are near says less of them
            weights = weights + weights.sum() / len(weights)
        return Prior(known * weights / weights.sum(), distances)

    def _opinion(self, case: Case, prior: Prior) -> Opinion:
        n_known, likely = len(prior.likely), prior.likely
        n_new = 0 if self.explored else (self._n_clusters or n_known + 1) - n_known
        n_new += case.own is not None
        floor = FLOOR / (n_known + n_new)
        odds = np.array([case.odds.get(group, 0.0) for group in range(n_known)])
        most = max(odds.max(), 0.0)
        weights = ((1.0 - FLOOR) * likely + floor) * np.exp(odds - most)
        if case.own is not None:
            weights[case.own] = 0.0
        new = ((1.0 - FLOOR) * (1.0 - likely.sum()) + floor * n_new) * math.exp(-most)
        new = 0.0 if not n_new else new
        total = weights.sum() + new
        return Opinion(prior, weights / total, float(new / total))

    def _settles(self, case: Case, opinion: Opinion) -> bool:
        """Return whether it is known where a document belongs.

        Unless somebody said so, it must be said to differ from all other groups.
        """
        if opinion.posterior[opinion.best] < SETTLED:
            return False
        n_against = sum(odds < 0.0 for odds in case.odds.values())
        is_last = not case.unsure and n_against >= len(self.known) - 1
        return is_last or case.odds.get(opinion.best, 0.0) > 0.0

    def _is_new(self, case: Case, opinion: Opinion) -> bool:
        """Return whether a document is of no group, as far as all of them were asked about."""
        return opinion.new >= SETTLED and self._all_shown(case)

    def _all_shown(self, case: Case) -> bool:
        return len(case.n_shown.keys() | {case.own} - {None}) >= len(self.known)

    def _opens(self, case: Case, opinion: Opinion) -> bool:
        """Return whether a document is likeliest in a group of its own, after all were asked."""
        if self.explored or case.unsure or case.own is not None:
            return False
        return self._all_shown(case) and opinion.new >= float(opinion.posterior.max())

    # ---- a question

    def _next(self, case: Case, opinion: Opinion) -> dict[int, Askable]:
        """Return groups to ask about, each by a member, the likeliest first; none: no more."""
        n_known = len(self.known)
        chooses = self._dialogue.chooses
        if case.n_asked >= (PATIENCE if chooses else max(PATIENCE, n_known)):
            return {}
        order = np.lexsort((opinion.prior.distances, -opinion.posterior)).tolist()
        order = [group for group in order if group != case.own]
        if not order:
            return {}
        return self._groups(case, order) if chooses else self._group(case, order, opinion)

    def _group(self, case: Case, order: list[int], opinion: Opinion) -> dict[int, Askable]:
        """Return the likeliest group with a member that can be asked about.

        Where a group was said the unlikely ones need no answer, unless nothing else can settle it.
        """
        is_said = case.odds.get(opinion.best, 0.0) > 0.0
        searches = self.finds_groups and not self.explored
        for least in (UNLIKELY, 0.0) if is_said and not searches else (UNLIKELY,):
            for group in order:
                is_likely = opinion.posterior[group] >= least
                is_likely |= not (is_said or case.n_shown[group])
                member = self._unasked(case, group) if is_likely else None
                if member is not None:
                    return {group: member}
        return {}

    def _groups(self, case: Case, order: list[int]) -> dict[int, Askable]:
        """Return the groups of a choice: all, or of many the likeliest that were not shown yet.

        A wrong "new" may open more than there are: that hides none.
        """
        n_groups = min(len(order), self._n_clusters or len(order))
        if n_groups > ALL_SHOWN:
            least = min(case.n_shown[group] for group in order)
            order = [group for group in order if case.n_shown[group] == least][:SOME_SHOWN]
        if self._unasked(case, order[0]) is None:
            return {}
        members = ((group, self._unasked(case, group)) for group in order)
        return {
            group: self.known.representative(group) if member is None else member
            for group, member in members
        }

    def _unasked(self, case: Case, group: int) -> Askable | None:
        """Return a member that a document was not asked against, if it may be."""
        if case.n_shown[group] >= (1 if self._certain else MEMBERS):
            return None
        return self.known.member(group, self._against[case.name])

    def _ask(self, case: Case, shown: dict[int, Askable], opinion: Opinion) -> None:
        """Ask, and take the answer."""
        likely = [float(opinion.prior.likely[group]) for group in shown]
        members = [document_of(member) for member in shown.values()]
        document, groups = document_of(case.row), list(shown)
        if self._dialogue.chooses:
            whole = len(shown) == len(self.known)
            place = self._dialogue.choose(document, members, likely, all_shown=whole)
            chosen = place if place is None or place == "new" else groups[place]
        else:
            why = "uncertain" if self.explored else "explore"
            why = why if case.own is None else "anchors"
            is_same = self._dialogue.ask(document, members[0], likely, why)
            chosen = None if is_same is None else groups[0] if is_same else "new"
        case.n_asked += 1
        case.unsure |= chosen is None
        for member in members:
            self._against[case.name].add(str(member))
            self._against[str(member)].add(case.name)
        case.n_shown.update(groups)
        self._weigh(case, groups, chosen)

    def _weigh(self, case: Case, groups: list[int], chosen: int | str | None) -> None:
        """Take what an answer says of groups: of the one chosen, or against all shown."""
        odds = math.log((1.0 - self._error_rate) * len(groups) / self._error_rate)
        if isinstance(chosen, int):
            case.odds[chosen] = case.odds.get(chosen, 0.0) + odds
        elif chosen is not None:
            for group in groups:
                case.odds[group] = case.odds.get(group, 0.0) - odds

    # ---- all of them

    def _judge(self) -> None:
        """Judge all documents by all answers, as soon as there are enough new ones."""
        n_answers = len(self._dialogue.entries)
        if n_answers < GROWTH * self._judged + 1:
            return
        self._judged, self._clusters = n_answers, None
        if self._certain:
            return
        beliefs = self._dialogue.beliefs(self._trust, self._n_clusters)
        self._error_rate = beliefs.annotators[""].error_rate
        self.known.members = [
            [self._rows[name] for name in group.members] for group in beliefs.groups
        ]
        number = {group.anchor: place for place, group in enumerate(beliefs.groups)}
        doubted = {anchor for anchor in number if beliefs.trust[anchor] < SETTLED}
        left = [name for name in beliefs.open if name not in beliefs.set_aside]
        self._open = {name: self._case(name, beliefs, number) for name in (*left, *sorted(doubted))}
        for name in doubted:
            self._open[name].own = number[name]
        self._again = list(self._open)

    def _case(self, name: str, beliefs: Beliefs, number: dict[str, int]) -> Case:
        """Return what is known of an open document."""
        opinion = beliefs.opinion(name)
        odds = {number[anchor]: steps for anchor, steps in opinion.odds.items()}
        shown = Counter(
            number[beliefs.anchor_of[other]]
            for other in opinion.asked
            if other in beliefs.anchor_of
        )
        return Case(self._rows[name], odds, shown, opinion.n_asked, opinion.unsure)


def document_of(row: Askable) -> Any:
    """Return the number or id of a document as an oracle takes it."""
    return row.block.ids[0].item()
