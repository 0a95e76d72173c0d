"""What a person would have told: folds, random pairs and seeds of the training part, some wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmrf_dask.active import ChoosingOracle, LabelOracle, explore_consolidate
from hmrf_dask.errors import ConfigurationError

Rows = NDArray[np.int64]
UNLABELLED = -1
UNKNOWN = 0.2  # of the answers of somebody who errs, too


@dataclass(frozen=True)
class Fold:
    """One part of the rows to be asked about and one to be judged on; all are clustered."""

    classes: Rows
    training: Rows
    test: Rows
    run: int
    number: int
    values: Any = None  # the rows, for questions that depend on what they say

    def random(self, purpose: int = 0) -> np.random.Generator:
        """Return random numbers that depend on run, fold and purpose alone."""
        return np.random.default_rng([self.run, self.number, *([purpose] if purpose else [])])


@dataclass(frozen=True)
class Given:
    """What a fit is told: pairs of rows, shape (m, 2), and a class of every seed."""

    must_link: Rows = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    cannot_link: Rows = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    seeds: Rows | None = None  # of every row, -1 where it is none
    trust: NDArray[np.float64] | None = None  # of the pairs, must-links first
    last: NDArray[np.float64] | None = None  # centroids of the night before

    @property
    def pairs(self) -> Rows:
        """All pairs, whatever was said of them."""
        return np.concatenate([self.must_link, self.cannot_link])


def folds(classes: Rows, run: int, n_folds: int) -> list[Fold]:
    """Return the folds of a run: every row is once in a test part."""
    if not 2 <= n_folds <= len(classes):
        raise ConfigurationError(
            f"n_folds must be from 2 to the number of rows, {len(classes)}, got {n_folds}"
        )
    order = np.random.default_rng(run).permutation(len(classes))
    parts = np.array_split(order, n_folds)
    found = []
    for number in range(n_folds):
        test = n_folds - 1 - number
        training = np.concatenate([part for one, part in enumerate(parts) if one != test])
        found.append(Fold(classes, training, parts[test], run, number))
    return found


def random_pairs(fold: Fold, n_pairs: float, *, wrong: float = 0.0) -> Given:
    """Return random pairs of the training part; more pairs begin with those of fewer.

    Parameters
    ----------
    fold : Fold
    n_pairs : float
        A whole number.
    wrong : float
        The share of pairs that are told the wrong way round.
    """
    n_asked, n_rows = int(n_pairs), len(fold.training)
    if n_asked > n_rows * (n_rows - 1) // 2:
        raise ConfigurationError(
            f"the number of pairs must be at most {n_rows * (n_rows - 1) // 2}, all pairs of "
            f"{n_rows} rows of the training part, got {n_asked}"
        )
    rng, drawn = fold.random(), dict[tuple[int, int], None]()
    while len(drawn) < n_asked:
        one, other = sorted(rng.choice(fold.training, 2, replace=False).tolist())
        drawn[one, other] = None
    pairs = np.array(list(drawn), np.int64).reshape(-1, 2)
    same = fold.classes[pairs[:, 0]] == fold.classes[pairs[:, 1]]
    # A pair's own draw decides, so that more pairs do not change what was said of the first.
    same ^= fold.random(1).random(n_asked) < wrong
    return Given(pairs[same], pairs[~same])


def asked(
    fold: Fold,
    n_questions: float,
    *,
    strategy: str,
    wrong: float = 0.0,
    clicks: bool = False,
    trust: float | None = None,
    everywhere: bool = False,
) -> Given:
    """Return what answers to chosen questions come to.

    Parameters
    ----------
    fold : Fold
    n_questions : float
    strategy : str
    wrong : float
        How many of the answers are; a fifth are "don't know" if any is.
    clicks : bool
        Whether a question is which of several documents another belongs with.
    trust : float, optional
        As `explore_consolidate` takes it.
    everywhere : bool
        Whether all documents may be asked about, not only the training part.
    """
    oracle = (ChoosingOracle if clicks else LabelOracle)(
        fold.classes,
        error_rate=wrong,
        unknown_rate=UNKNOWN if wrong else 0.0,
        seed=fold.run * 2 + fold.number,
    )
    found = explore_consolidate(
        fold.values, oracle, int(fold.classes.max()) + 1, int(n_questions),
        strategy=strategy, pool=None if everywhere else fold.training, trust=trust,
        random_state=fold.run,
    )  # fmt: skip
    pairs = (kind.astype(np.int64) for kind in (found.must_link, found.cannot_link))
    likely = np.concatenate([found.must_link_trust, found.cannot_link_trust])
    return Given(*pairs, trust=likely if strategy == "default" else None)


def seeds(
    fold: Fold, fraction: float, *, wrong: float = 0.0, n_categories: int | None = None
) -> Given:
    """Return labels of a share of the training part, and pairs that say the same.

    Parameters
    ----------
    fold : Fold
    fraction : float
        The share of the training part that is seeded.
    wrong : float
        The share of seeds with a random other class.
    n_categories : int, optional
        How many classes have seeds; all without it.
    """
    n_classes = int(fold.classes.max()) + 1
    chosen = fold.random(2).permutation(fold.training)[: round(fraction * len(fold.training))]
    if n_categories is not None:
        seeded = fold.random(3).permutation(n_classes)[:n_categories]
        chosen = chosen[np.isin(fold.classes[chosen], seeded)]
    told = fold.classes[chosen].copy()
    # The order of `chosen` is random, so its beginning is a random part of it.
    n_wrong = round(wrong * len(chosen))
    shift = fold.random(4).integers(1, max(n_classes, 2), n_wrong)
    told[:n_wrong] = (told[:n_wrong] + shift) % n_classes
    labels = np.full(len(fold.classes), UNLABELLED, np.int64)
    labels[chosen] = told
    must_link, cannot_link = pairs_of_seeds(labels)
    return Given(must_link, cannot_link, labels)


def pairs_of_seeds(labels: Rows) -> tuple[Rows, Rows]:
    """Return must-links and cannot-links whose closure says what the labels say.

    A chain in every class and one cannot-link between any two of them: as many pairs as seeds, not
    as many as there are pairs of seeds.
    """
    groups = [np.flatnonzero(labels == one) for one in np.unique(labels) if one != UNLABELLED]
    chains = [np.column_stack([rows[:-1], rows[1:]]) for rows in groups]
    first = [int(rows[0]) for rows in groups]
    apart = [(one, other) for place, one in enumerate(first) for other in first[place + 1 :]]
    return _stacked(chains), _stacked([np.array(apart, np.int64).reshape(-1, 2)])


def _stacked(pieces: list[Any]) -> Rows:
    return np.concatenate([np.zeros((0, 2), np.int64), *pieces]).astype(np.int64)
