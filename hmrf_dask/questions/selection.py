"""Explore and Consolidate (Basu, Banerjee, Mooney, SDM 2004), and better choices of what to ask.

Explore finds one document of every cluster: a row far from all before is asked about until it is
placed. Consolidate then places rows, by as few questions each as may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, count
from typing import Any

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus, as_corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.estimators.classes import KMeans
from hmrf_dask.estimators.inputs import draw_seed
from hmrf_dask.parameters import RANGES
from hmrf_dask.questions.dialogue import BudgetSpentError, Dialogue, Neighbourhoods, Oracle
from hmrf_dask.questions.farthest_first import FarthestFirst
from hmrf_dask.questions.placing import Placing
from hmrf_dask.questions.pool import Pool
from hmrf_dask.tasks import questions
from hmrf_dask.tasks.open_rows import cluster_parts
from hmrf_dask.tasks.questions import Askable
from hmrf_dask.tasks.start_sample import SAMPLE_ROWS
from hmrf_dask.types import AnyArray, IntArray

DEFAULT = "default"
FEW_CLUSTERS = 5  # of so many a fit without answers finds most: its medoids are asked about first
FIRST_CLUSTERS = 10  # that are sought where nobody knows how many there are
FINER = 1.5  # times as many clusters in the next fit
FEWEST_ROWS = 4  # of a cluster, in the mean: of fewer the row in its middle stands for nothing
N_STARTS = 3  # of each fit


def explore_consolidate(
    X: Any,
    oracle: Oracle,
    n_clusters: int | None,
    n_queries: int,
    *,
    strategy: str = "default",
    pool: Any = None,
    trust: float | None = None,
    random_state: Any = None,
) -> Constraints:
    """Ask an oracle which documents belong together, and return its answers as pairs.

    By default answers may be wrong: a document is asked about until it is settled, and only pairs
    of settled documents are returned, each with the probability that it is right.

    Parameters
    ----------
    X : sparse matrix or array, ndarray, dask array, Corpus or path of one
    oracle : callable
        `oracle(a, b)` returns True (same), False (different) or None (don't know) for two row
        numbers, or ids where the rows have ids. No pair is asked twice. What it raises ends the
        questions, and the answers before are lost unless it keeps them. One that also has
        `choose(x, representatives)` is asked by the default strategy which of these documents x
        belongs with; it returns the place, "new" for none of them, or None (don't know).
    n_clusters : int or None
        At least 2; None: as many as are found while questions are left.
    n_queries : int
        Questions that may be asked; there are fewer where nothing is left to ask.
    strategy : {"default", "explore-consolidate", "min-max", "random"}
        "explore-consolidate" is that of SDM 2004, "min-max" that of Mallapragada, Jin and Jain
        (2008); "random" asks about pairs drawn at random, to compare with.
    pool : array-like of int, optional
        The rows that may be asked about; all of them by default.
    trust : float, optional
        The probability that an answer is right; 1: no document is asked about again. Without it,
        as answers show that test each other. Other strategies than the default believe all.
    random_state : int, RandomState or None
        Of what is drawn; the default strategy draws the starts of a fit alone.

    Examples
    --------
    >>> rows = np.eye(3)[[0, 1, 2, 0, 1, 2]] + 0.1
    >>> pairs = explore_consolidate(rows, lambda a, b: a % 3 == b % 3, 3, 12, random_state=0)
    >>> len(pairs.must_link)
    3
    """
    _check_trust(trust)
    if strategy not in STRATEGIES:
        raise InvalidInputError(
            f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}; choose one"
        )
    if not callable(oracle):
        raise InvalidInputError(
            f"oracle must be a function of two documents, got {oracle!r:.60}; give one that "
            "returns True, False or None"
        )
    if RANGES["questions"].problem(n_queries):
        raise InvalidInputError(f"n_queries must be an integer from 0, got {n_queries!r:.60}")
    corpus = as_corpus(X)
    allowed = _allowed(pool, corpus.n_rows)
    _check_clusters(n_clusters, corpus.n_rows if allowed is None else len(allowed))
    in_memory, corpus = corpus.in_client, corpus.persist()
    rows = Pool(corpus, allowed, in_memory=in_memory)
    dialogue = Dialogue(oracle, n_queries, by_id=corpus.has_ids)
    asking = Asking(corpus, rows, dialogue, n_clusters, draw_seed(random_state))
    everything = rows if allowed is None else Pool(corpus, None, in_memory=in_memory)
    asking.placing = Placing(dialogue, rows, everything, n_clusters, trust)
    with suppress(BudgetSpentError):
        STRATEGIES[strategy](asking)
    return (asking.placing if strategy == DEFAULT else dialogue).constraints()


def _check_trust(trust: Any) -> None:
    if trust is not None and RANGES["share"].problem(trust):
        raise InvalidInputError(
            f"trust must be a probability from 0 to 1, or None, got {trust!r:.60}; give None where "
            "answers are to show it"
        )


def _check_clusters(n_clusters: Any, n_rows: int) -> None:
    if n_clusters is None:
        return
    if RANGES["neighbourhoods"].problem(n_clusters):
        raise InvalidInputError(
            f"n_clusters must be an integer from 2, or None, got {n_clusters!r:.60}; give None "
            "where nobody knows how many there are"
        )
    if n_clusters > n_rows:
        raise InvalidInputError(
            f"n_clusters must be at most the {n_rows} rows that may be asked about, got "
            f"{n_clusters}; ask for fewer, or give more rows"
        )


def _allowed(pool: Any, n_rows: int) -> IntArray | None:
    if pool is None:
        return None
    rows = np.unique(np.asarray(pool))
    if rows.dtype.kind not in "iu" or not len(rows) or rows[0] < 0 or rows[-1] >= n_rows:
        shown = "none" if not len(rows) else f"{rows[0]} to {rows[-1]}"
        raise InvalidInputError(
            f"pool must be row numbers from 0 to {n_rows - 1}, at least one, got {shown}"
        )
    return rows.astype(np.int64)


class Asking:
    """What all strategies share: the rows, the dialogue, and the neighbourhoods known so far."""

    def __init__(
        self, corpus: Corpus, pool: Pool, dialogue: Dialogue, n_clusters: int | None, seed: int
    ) -> None:
        self.corpus, self.pool, self.dialogue = corpus, pool, dialogue
        self.n_clusters, self.seed = n_clusters, seed
        self.known = Neighbourhoods()  # of strategies that believe every answer
        self.placing: Placing  # of the default, that does not

    @property
    def explored(self) -> bool:
        """Whether every cluster has a neighbourhood."""
        return self.n_clusters is not None and len(self.known) >= self.n_clusters

    def place(self, row: Askable, questions: Iterator[tuple[int, Askable]]) -> None:
        """Ask a row against members of neighbourhoods until its own is found.

        The last of all is inferred. Different from all that are known, it opens a new one; where
        an answer was "don't know" and none was "same", nothing is inferred.
        """
        unsure = False
        for nth, (number, member) in enumerate(questions, 1):
            if self.explored and not unsure and nth == len(self.known) > 1:
                self.dialogue.infer_same(*_names(row, member))
                return self.known.add(row, number)
            answer = self.dialogue.ask(*_names(row, member))
            if answer:
                return self.known.add(row, number)
            unsure |= answer is None
        if unsure or self.explored:
            self.known.aside.append(int(row.rows[0]))
        else:
            self.known.add(row, len(self.known))
        return None

    def random_members(self, row: Askable, rng: np.random.Generator) -> Any:
        """Yield neighbourhoods with a member drawn at random, the likeliest first."""
        for number in self.known.by_nearness(row) if len(self.known) else ():
            members = self.known.members[number]
            yield number, members[rng.integers(len(members))]

    def nearest_members(self, row: Askable) -> Iterator[tuple[int, Askable]]:
        """Yield neighbourhoods with the member nearest to a row, the nearest first."""
        yield from self.known.by_members(row) if len(self.known) else ()


def _names(row: Askable, member: Askable) -> tuple[Any, Any]:
    return row.block.ids[0].item(), member.block.ids[0].item()


# ---- the default


def ask_by_uncertainty(asking: Asking) -> None:
    """Explore by the medoids of fits without answers; then place the most uncertain rows."""
    pool, placing = asking.pool, asking.placing
    few = 1 <= (asking.n_clusters or 0) <= FEW_CLUSTERS
    for number in _medoids(asking) if few else ():
        placing.place(pool.rows([number]))
    explore = chain(() if few else _first_rows(asking), _farthest(asking))
    while placing.ask_again() or _place_next(pool, placing, explore):
        pass


def _place_next(pool: Pool, placing: Placing, explore: Iterator[Askable]) -> bool:
    """Place the next row, if there is one."""
    row = None if placing.explored else next(explore, None)
    if row is None and len(placing.known) > 1:
        row = pool.most_uncertain(placing.means(), placing.asked)
    if row is not None:
        placing.place(row)
    return row is not None


def _medoids(asking: Asking) -> list[int]:
    """Return the rows nearest to the centroids of a fit without answers, largest cluster first."""
    n_clusters = asking.n_clusters or 1
    model = KMeans(n_clusters, random_state=asking.seed).fit(asking.corpus)
    sizes = np.asarray(np.bincount(model.labels_, minlength=n_clusters))  # labels stay in tasks
    order = np.argsort(-sizes, kind="stable")
    medoids = asking.pool.nearest(model.cluster_centers_[order])
    return list(dict.fromkeys(medoids))


def _first_rows(asking: Asking) -> Iterator[Askable]:
    """Yield the rows to begin with where a fit without answers does not find most clusters.

    Many clusters of sparse rows are such of chance words: what stands for them is one of few.
    """
    sample = _drawn(asking)
    if sample.block.is_dense:
        yield from _of_finer_fits(asking, sample)
    else:
        yield asking.pool.rows([asking.pool.densest(asking.pool.mean())])


def _of_finer_fits(asking: Asking, sample: Askable) -> Iterator[Askable]:
    """Yield the rows nearest to the centroids of fits without answers, of more and more clusters.

    Those of the largest cluster come first. One that has a row which was asked about is skipped: a
    group that nobody found is in none of these. It ends where rows open no groups any more.
    """
    placing = asking.placing
    n_clusters = asking.n_clusters or FIRST_CLUSTERS
    ids = sample.block.ids if asking.corpus.has_ids else None
    corpus = Corpus.from_rows(sample.block.to_scipy(), ids)
    while FEWEST_ROWS * n_clusters <= len(sample.rows):
        model = KMeans(n_clusters, n_init=N_STARTS, random_state=asking.seed).fit(corpus)
        table = questions.direction_table(model.cluster_centers_)
        parts, labels = cluster_parts(sample, table), np.asarray(model.labels_)
        for cluster in np.argsort(-parts.sizes, kind="stable").tolist():
            if not placing.finds_groups:
                return
            seen = labels[np.isin(sample.rows, placing.asked)]
            if parts.sizes[cluster] and cluster not in seen:
                nearest = parts.central[cluster].rows[:1]
                yield sample.take(np.searchsorted(sample.rows, nearest))
        n_clusters = math.ceil(FINER * n_clusters)


def _drawn(asking: Asking) -> Askable:
    """Return the rows that are fitted: all, or some that are drawn."""
    drawn = asking.pool.drawn(asking.seed, 0, SAMPLE_ROWS)
    return asking.pool.rows(np.sort(drawn.rows))


def _farthest(asking: Asking) -> Iterator[Askable]:
    """Yield the row that is far from all that were asked about, and near the mean of all."""
    farthest = FarthestFirst(asking.pool, asking.pool.mean())
    farthest.add(asking.pool.rows(asking.placing.asked))
    while (row := farthest.next()) is not None:
        yield row


# ---- those of the papers


def ask_as_sdm_2004(asking: Asking) -> None:
    """Explore by distance from a random row; then place random rows."""
    rng = np.random.default_rng(asking.seed)
    order = asking.pool.drawn(asking.seed, 0, asking.dialogue.left + 1).rows
    _explore_by_distance(asking, order, lambda row: asking.random_members(row, rng))
    for number in order:
        if number not in asking.known.asked:
            row = asking.pool.rows([number])
            asking.place(row, asking.random_members(row, rng))


def ask_by_min_max(asking: Asking) -> None:
    """Explore by distance from a random row; then place the row farthest from all placed."""
    order = asking.pool.drawn(asking.seed, 0, 1).rows
    farthest = _explore_by_distance(asking, order, asking.nearest_members)
    while (row := farthest.next()) is not None:
        asking.place(row, asking.nearest_members(row))


def _explore_by_distance(
    asking: Asking, order: AnyArray, members: Callable[[Askable], Any]
) -> FarthestFirst:
    farthest = FarthestFirst(asking.pool, None)
    first = asking.pool.rows(order[:1])
    farthest.add(first)
    asking.place(first, members(first))
    while not asking.explored and (row := farthest.next()) is not None:
        asking.place(row, members(row))
    return farthest


def ask_random_pairs(asking: Asking) -> None:
    """Ask about pairs drawn at random, none twice."""
    asked: set[frozenset[Any]] = set()
    # More rows than questions, and than they have pairs of: fewer are all there are.
    most = max(asking.dialogue.left + 1, 3)
    for draw in count(0, 2):
        ends = [asking.pool.drawn(asking.seed, draw + side, most).ids.tolist() for side in (0, 1)]
        for pair in zip(*ends, strict=True):
            if pair[0] != pair[1] and frozenset(pair) not in asked:
                asked.add(frozenset(pair))
                asking.dialogue.ask(*pair)
        if len(ends[0]) < most and len(asked) == math.comb(len(ends[0]), 2):
            return


STRATEGIES: dict[str, Callable[[Asking], None]] = {
    DEFAULT: ask_by_uncertainty,
    "explore-consolidate": ask_as_sdm_2004,
    "min-max": ask_by_min_max,
    "random": ask_random_pairs,
}
