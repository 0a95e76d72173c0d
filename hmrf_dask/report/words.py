"""The words of clusters as bars: their weights, and how much more they weigh there than elsewhere.

Relevance as LDAvis has it (Sievert, Shirley, 2014): λ · log weight + (1 − λ) · log lift, which a
reader of the page moves between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hmrf_dask.report.content import Word
from hmrf_dask.types import AnyArray, FloatArray, IntArray

MOST_BARS: Final = 15  # of a cluster, by each of the two ends of relevance
_RARE = 0.05  # of the heaviest word of a cluster: lighter ones are no words of it
_BLOCK = 64  # clusters at a time

Terms = Callable[[AnyArray], Sequence[str | None]]  # the words of columns; None: it has none


@dataclass(frozen=True)
class Words:
    """The words of the first `n_columns` columns; `components` of LSA lead from columns to them.

    Of rows of words and vectors the columns after these are numbers of vectors.
    """

    terms: Terms
    n_columns: int
    components: AnyArray | None = None


def word_bars(
    centroids: AnyArray,
    sizes: IntArray,
    terms: Terms,
    *,
    components: AnyArray | None = None,
    learned: FloatArray | None = None,
    most: int = MOST_BARS,
) -> list[tuple[Word, ...]]:
    """Return the bars of every cluster, the heaviest first.

    Parameters
    ----------
    centroids : array, shape (K, n_features)
    sizes : int array, shape (K,)
    terms : callable
        Returns the words of some columns; None where a column has none.
    components : array, shape (n_features, n_terms), optional
        Of LSA: what leads from centroids to terms.
    learned : float array, shape (n_terms,), optional
        Learned weights of the columns, where there are terms.
    most : int
        How many bars each end of relevance has.

    Examples
    --------
    >>> named = ["moon", "gear"]
    >>> bars = word_bars(np.eye(2), np.array([3, 1]), lambda rows: [named[row] for row in rows])
    >>> bars[1][0].word, bars[1][0].lift
    ('gear', 4.0)
    """
    share = sizes / max(int(sizes.sum()), 1)
    overall = share @ np.asarray(centroids, np.float64)
    if components is not None:
        overall = overall @ components
    bars: list[tuple[Word, ...]] = []
    for start in range(0, len(centroids), _BLOCK):
        block = np.asarray(centroids[start : start + _BLOCK], np.float64)
        weights = block if components is None else block @ components
        bars += [_bars(row, overall, terms, learned, most) for row in weights]
    return bars


def _bars(
    weights: FloatArray,
    overall: FloatArray,
    terms: Terms,
    learned: FloatArray | None,
    most: int,
) -> tuple[Word, ...]:
    heaviest = float(weights.max(initial=0.0))
    if heaviest <= 0.0:
        return ()
    known = np.flatnonzero(weights >= _RARE * heaviest)
    lift = weights[known] / np.maximum(overall[known], 1e-3 * weights[known])
    by_weight = np.lexsort((known, -weights[known]))[:most]
    by_lift = np.lexsort((known, -lift))[:most]
    chosen = np.union1d(by_weight, by_lift)
    chosen = chosen[np.lexsort((known[chosen], -weights[known[chosen]]))]
    words = terms(known[chosen])
    return tuple(
        Word(
            word, float(weights[known[at]]), float(lift[at]),
            None if learned is None else float(learned[known[at]]),
        )
        for word, at in zip(words, chosen.tolist(), strict=True)
        if word is not None
    )  # fmt: skip
