"""Votes: what several answers about one pair, of several people, come to together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hmrf_dask.constraints.answer_rows import Labelled, Notes, Said, take_vote
from hmrf_dask.constraints.trust import CHECKED_RIGHT, CHECKED_WRONG, log_odds
from hmrf_dask.types import FloatArray

UNCHECKED = CHECKED_RIGHT / (CHECKED_RIGHT + CHECKED_WRONG)  # the trust of one vote among several
CERTAIN_CLASS = 1.0  # the trust of a class where nobody says otherwise


def trust_of(notes: Notes | None, annotators: Mapping[str, float]) -> float:
    """Return the trust that an answer's notes give it, or its annotator's; NaN: neither.

    Examples
    --------
    >>> trust_of({"annotator": "anna"}, {"anna": 0.9}), trust_of({"trust": 0.8}, {})
    (0.9, 0.8)
    """
    if not notes:
        return math.nan
    own: float = notes.get("trust", annotators.get(str(notes.get("annotator")), math.nan))
    return own


def trust_of_votes(
    judged: Sequence[Said], notes: Sequence[Notes | None], annotators: Mapping[str, float]
) -> FloatArray:
    """Return the trust of each line: of what one annotator says again once, of all together.

    Log odds of different annotators add up; lines that name none are one. Of two trusts in what one
    of them says it is the lower.

    Examples
    --------
    >>> said = [(True, "x", "y")] * 2
    >>> trust_of_votes(said, [{"annotator": "anna"}, {"annotator": "bob"}], {}).round(3).tolist()
    [0.988, 0.988]
    >>> trust_of_votes(said[:1], [None], {}).tolist()
    [nan]
    """
    votes: dict[Said, dict[str, float]] = {}
    for what, note in zip(judged, notes, strict=True):
        take_vote(votes.setdefault(what, {}), note, trust_of(note, annotators))
    together = {what: _of_pair([*own.values()]) for what, own in votes.items()}
    return np.array([together[what] for what in judged], np.float64)


def _of_pair(likely: list[float]) -> float:
    if len(likely) == 1:
        return likely[0]
    return _together([UNCHECKED if math.isnan(trust) else trust for trust in likely])


def _together(likely: list[float]) -> float:
    """Return how likely it is that votes for the same are right."""
    odds = log_odds(np.array(likely)).sum()
    return likely[0] if len(likely) == 1 else float(1.0 / (1.0 + np.exp(-odds)))


def trust_of_classes(row: Labelled, partner: Labelled, annotators: Mapping[str, float]) -> float:
    """Return how likely a pair is right that follows from the classes of its documents.

    Both are right, or both are wrong. Votes for a class come together as those for a pair do.

    Examples
    --------
    >>> sure, unsure = (Labelled(name, "x", 1) for name in "ab")
    >>> unsure.votes["anna"] = 0.75
    >>> trust_of_classes(sure, unsure, {}), trust_of_classes(unsure, unsure, {})
    (0.75, 0.625)
    """
    first, second = (_of_class(labelled.votes, annotators) for labelled in (row, partner))
    return first * second + (1.0 - first) * (1.0 - second)


def _of_class(votes: Mapping[str, float], annotators: Mapping[str, float]) -> float:
    own = (annotators.get(n, math.nan) if math.isnan(p) else p for n, p in votes.items())
    return _together([CERTAIN_CLASS if math.isnan(p) else p for p in own] or [CERTAIN_CLASS])
