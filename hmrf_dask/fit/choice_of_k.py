"""Which K the criteria speak for: how likely each one is, the range that holds most, and the doubt.

Measured on sets of known classes (docs/design/method.md has the figures): no criterion alone shows
K, as some grow with it and others fall; their sum is highest where both meet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from hmrf_dask.tasks.criteria import Criteria
from hmrf_dask.types import FloatArray

LEAST_K = 2
RATIO = 1.2  # of a K to the one before it
WIDEST = 1.5  # range, from its first to its last K
# What a unit of each criterion counts: fitted on 56 sets of newsgroups and 16 of arXiv's classes.
WEIGHTS: Final[Mapping[str, float]] = {
    "fall": 2.8,
    "own": 59.0,
    "silhouette": 21.0,
    "stability": 0.4,
}
CALLED: Final[Mapping[str, str]] = {
    "fall": "the comparison with shuffled rows",
    "own": "the share of rows in their own cluster",
    "silhouette": "the silhouette",
    "stability": "the stability of halves",
    "answers": "the answers",
}
MISFIT = 0.2  # by what share of them answers "same" and "different" miss each other at the right K
BEHIND = 6.0  # in logarithms: K that are so much less likely than the best need no larger ones
IN_A_ROW = 3  # of them
LEAST_LIKELY = 0.25  # that a range must be to be recommended
LEAST_STABLE = 0.2  # fits of two halves: shuffled rows come to .145, 72 sets of known K to .23


def grid(least: int, most: int) -> list[int]:
    """Return the K that are tried: each is a fifth above the one before.

    Examples
    --------
    >>> grid(2, 20)
    [2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20]
    """
    numbers = [least]
    while numbers[-1] < most:
        numbers.append(min(most, max(numbers[-1] + 1, round(numbers[-1] * RATIO))))
    return numbers


def answers_ask(row: Criteria) -> float:
    """Return χ² of McNemar's test: too few clusters join what differs, too many split what is same.

    At the right K both errors are as frequent, as a fit then joins as many pairs as belong
    together; but for the fit's own `MISFIT`, which counts where answers are many.

    Examples
    --------
    >>> round(answers_ask(Criteria(3, 0.1, 0.9, 0.2, 0.5, split=2, joined=14)), 2)
    5.29
    """
    wrong = row.split + row.joined
    return (row.split - row.joined) ** 2 / (wrong + 1.0 + (MISFIT * wrong) ** 2)


def scores(tried: Sequence[Criteria], n_rows: int, *, without: str = "") -> FloatArray:
    """Return the logarithm of how likely each K is, up to a constant; a criterion may be left out.

    The fall grows with the rows of the sample, and what chance adds to it with their root.
    """
    total = np.zeros(len(tried))
    for name, weight in WEIGHTS.items():
        if name != without:
            values = np.asarray([getattr(row, name) for row in tried])
            total += weight * values * (math.sqrt(n_rows) if name == "fall" else 1.0)
    if without != "answers":
        total -= 0.5 * np.asarray([answers_ask(row) for row in tried])
    return total


def goes_on(tried: Sequence[Criteria], n_rows: int) -> bool:
    """Return whether larger K may be likely, after those that were tried."""
    if len(tried) <= IN_A_ROW:
        return True
    logarithms = scores(tried, n_rows)
    return bool((logarithms[-IN_A_ROW:] > logarithms.max() - BEHIND).any())


@dataclass(frozen=True)
class Choice:
    """What was tried, and what it says."""

    tried: tuple[Criteria, ...]
    n_rows: int  # of the sample
    n_answers: int  # about rows of the sample

    @staticmethod
    def of(tried: Sequence[Sequence[Any]], n_rows: int, n_answers: int) -> Choice:
        """Return a choice of plain values, as a file has them."""
        return Choice(tuple(Criteria(*row) for row in tried), n_rows, n_answers)

    @cached_property
    def likely(self) -> FloatArray:
        """How likely each K is that was tried; all together 1."""
        return self._likely()

    def _likely(self, without: str = "") -> FloatArray:
        logarithms = scores(self.tried, self.n_rows, without=without)
        odds = np.exp(logarithms - logarithms.max())
        return np.asarray(odds / odds.sum())

    @cached_property
    def places(self) -> tuple[int, int]:
        """The first and the last K of the likeliest range, by their places."""
        return self._range(self.likely)

    def _range(self, likely: FloatArray) -> tuple[int, int]:
        numbers = [row.n_clusters for row in self.tried]
        ranges = [
            (first, last)
            for first, least in enumerate(numbers)
            for last, most in enumerate(numbers)
            if first <= last and most <= WIDEST * least
        ]
        sums = [likely[first : last + 1].sum() for first, last in ranges]
        return ranges[int(np.argmax(sums))]

    def range_without(self, name: str) -> tuple[int, int]:
        """Return the least and the largest K that are likeliest without a criterion."""
        first, last = self._range(self._likely(name))
        return self.tried[first].n_clusters, self.tried[last].n_clusters

    @property
    def least(self) -> int:
        """The first K of the range."""
        return self.tried[self.places[0]].n_clusters

    @property
    def largest(self) -> int:
        """The last K of the range."""
        return self.tried[self.places[1]].n_clusters

    @property
    def share(self) -> float:
        """How likely the range is."""
        first, last = self.places
        return float(self.likely[first : last + 1].sum())

    @property
    def n_clusters(self) -> int:
        """The K of the range that is the mean of all, each counted as likely as it is."""
        first, last = self.places
        logarithms = np.log([row.n_clusters for row in self.tried[first : last + 1]])
        return round(math.exp(np.average(logarithms, weights=self.likely[first : last + 1])))

    @property
    def _at_ends(self) -> list[str]:
        """At which ends of what was tried the range is; no K lies below the least there is."""
        ends = ["smallest"] if self.places[0] == 0 and self.least > LEAST_K else []
        return [*ends, "largest"] if self.places[1] == len(self.tried) - 1 else ends

    @property
    def is_stable(self) -> bool:
        """Whether halves of the rows agree on any K of the range: shuffled rows do not."""
        first, last = self.places
        stable = max(row.stability for row in self.tried[first : last + 1])
        return stable >= LEAST_STABLE

    @property
    def is_recommended(self) -> bool:
        """Whether there is any structure, and the range is likely enough."""
        return self.is_stable and self.share >= LEAST_LIKELY

    @property
    def doubt(self) -> str:
        """What speaks for the range, and what against it, in a sentence."""
        if not self.is_stable:
            return "fits of two halves of the rows agree no more than those of shuffled rows"
        said = f"{self.least} to {self.largest} are likely to {self.share:.0%}"
        if not self.is_recommended:
            return f"no range up to half as large again is likely, the best ones, {said}"
        if self._at_ends:
            said += f", the {' and the '.join(self._at_ends)} that were tried"
        names = [name for name in (*WEIGHTS, "answers") if name != "answers" or self.n_answers]
        ranges = {name: self.range_without(name) for name in names}
        against = [
            f"{least} to {largest} without {CALLED[name]}"
            for name, (least, largest) in ranges.items()
            if largest < self.least or least > self.largest
        ]
        return f"{said}; it would be {', '.join(against)}" if against else said
