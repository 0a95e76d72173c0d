"""Cross-fitting of starts: where the lowest J ignored the answers, a start made of them meets it.

J does not know what answers mean: of two starts whose J differs by a thousandth that of the higher
J may be far closer to what people meant. So both are fitted without a fold of the answers, fold by
fold, and the one that keeps more of what was withheld wins where that is more than chance. Where it
is not, J decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hmrf_dask.fit.candidates import (
    COMPLETED,
    FEW_ITERATIONS,
    Heat,
    Turn,
    begins_without_answers,
)
from hmrf_dask.fit.journal import Candidate
from hmrf_dask.tasks.folds import FOLDS, Agreement

FROM_ANSWERS = ("farthest-first", "agglomerated", "agglomerated-singles", COMPLETED)


class Match(NamedTuple):
    """The two candidates that are cross-fitted."""

    lowest: Candidate  # the one of the lowest J, which ignored the answers, or knew the old ones
    challenger: Candidate  # made of the answers

    def turns(self, heat: Heat, alone: Candidate | None) -> list[Turn]:
        """Return the fits of both without each fold, `heat` being the last one of the pool.

        The one that ignores answers continues from what it was `alone`, if that is known; the one
        that is made of them is made again.
        """
        turns = []
        for fold in range(FOLDS):
            for name, before in ((self.lowest.name, alone), (self.challenger.name, None)):
                done = 0 if before is None else before.n_iter
                most = None if heat.iterations is None else done + FEW_ITERATIONS
                turns.append(Turn(name, Heat(most, 1), before, fold))
        return turns

    def verdict(self, fits: Sequence[Candidate]) -> Verdict:
        """Return what the first of these fits keep, in the order of `turns`."""
        counts = [candidate.agreement or Agreement() for candidate in fits]
        return Verdict(self, _total(counts[::2]), _total(counts[1::2]))


def _total(counts: Sequence[Agreement]) -> Agreement:
    return Agreement(*(sum(numbers) for numbers in zip(*counts, strict=True)))


def match_of(lowest: Candidate, pool: Sequence[Candidate]) -> Match | None:
    """Return who meets the candidate of the lowest J, None if that was made of all answers itself.

    The fit before knew the answers of its time, withheld or not: that speaks for its centroids.

    Who meets it is the lowest J of those in the `pool` made of answers; ties go to the first.
    """
    made = [candidate for candidate in pool if candidate.name.split()[0] in FROM_ANSWERS]
    if not made or not begins_without_answers(lowest.name):
        return None
    return Match(lowest, min(made, key=lambda candidate: candidate.energy.total))


class Verdict(NamedTuple):
    """What the two of a match keep of the answers that were withheld from them."""

    match: Match
    lowest: Agreement
    challenger: Agreement

    @property
    def ahead(self) -> bool:
        """Whether the one that is made of the answers keeps more of them at all."""
        return self.challenger.kept > self.lowest.kept

    @property
    def against_energy(self) -> bool:
        """Whether the answers tell the two apart, and J is overruled."""
        return self.challenger.exceeds(self.lowest)


class Choice(NamedTuple):
    """The candidate that begins the fit, and the verdict if there was a match."""

    winner: Candidate
    verdict: Verdict | None = None

    @property
    def reason(self) -> str:
        """Why it is this one, in a sentence."""
        name, verdict = self.winner.name, self.verdict
        if verdict is None:
            return f"{name} has the lowest J"
        match, (least, _), (kept, withheld) = verdict
        if not verdict.against_energy:
            return (
                f"{name} has the lowest J; of {withheld:,} withheld relations it keeps {least:,} "
                f"and {match.challenger.name}, made of the answers, {kept:,}: no more than chance "
                "explains"
            )
        here, there = self.winner.energy.value, match.lowest.energy.value
        which = "lower" if there < here else "no lower"
        return (
            f"{name}, made of the answers, keeps {kept:,} of {withheld:,} withheld relations and "
            f"{match.lowest.name}, whose J is {which} ({there:.6g} against {here:.6g}), {least:,}"
        )

    def record(self) -> dict[str, Any]:
        """Return it as an event of the run has it."""
        chosen = {"name": self.winner.name, "J": self.winner.energy.value, "reason": self.reason}
        if self.verdict is None:
            return chosen
        match, lowest, challenger = self.verdict
        named = {"name": match.lowest.name, "J": match.lowest.energy.value}
        return chosen | {
            "lowest": named | lowest._asdict(),
            "challenger": {"name": match.challenger.name} | challenger._asdict(),
        }
