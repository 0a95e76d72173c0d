"""A batch of questions about a finished model, none of which depends on the answer to another.

The clusters stand for the groups, each by one document, its anchor. Asked about are the anchors
themselves, documents between two clusters, and, while most clusters have no answers, documents far
from all. Which one comes next as answers come in: `hmrf_dask.active.rounds`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from hmrf_dask.active.answers import Answers
from hmrf_dask.active.known import Known
from hmrf_dask.active.pool import FIRST_GAP, ODDS, Pool
from hmrf_dask.active.rounds import asks
from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.records import CHOICE, MOST_SHOWN, PAIR, Entry, Question
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus, as_corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.kernels.exact import BASE, exact_integer
from hmrf_dask.kernels.uncertainty import uncertainties
from hmrf_dask.limits import RANGES
from hmrf_dask.tasks import questions
from hmrf_dask.tasks.open_rows import Listed, OpenRows, Wanted
from hmrf_dask.types import FloatArray, IntArray

N_QUESTIONS = 25
REPORTED = 4  # rows of a partition for each question
SAMPLED = 4096  # rows by which the median gap of all is estimated
EXPLORED = 65_536  # rows among which those far from all are looked for
FEW_CLUSTERS = 5  # of so many all anchors are asked about against each other
SHARE = 5  # of a batch a fifth is about anchors, and a fifth may be far from all
NEAREST_SHOWN = 5  # of the anchors of many clusters
ALIKE = 0.5  # how likely it is that an anchor belongs with one of those nearest to it


@dataclass(frozen=True)
class Clusters:
    """The clusters of a finished model.

    Attributes
    ----------
    directions : ndarray of shape (K, d)
    lengths : ndarray of shape (K,)
        Of the sums of their unit rows.
    sizes : ndarray of shape (K,)
    central : sequence of sequences of str
        Documents of each, the nearest to its centroid first.
    """

    directions: FloatArray
    lengths: FloatArray
    sizes: IntArray
    central: Sequence[Sequence[str]]

    @staticmethod
    def of(pool: Pool, centroids: FloatArray) -> Clusters:
        """Return the clusters that rows make, each in that of the nearest centroid: one pass."""
        parts = pool.cluster_parts(centroids)
        lengths = [
            float(size - Fraction(exact_integer(limbs), 1 << BASE))
            for size, limbs in zip(parts.sizes.tolist(), parts.distances, strict=True)
        ]
        central = [list(map(str, found.ids.tolist())) for found in parts.central]
        return Clusters(centroids, np.array(lengths), parts.sizes, central)

    def mean(self) -> FloatArray:
        """Return the mean direction of all rows, shape (1, d)."""
        units = questions.direction_table(self.directions).exact
        total: FloatArray = self.lengths[None, :] @ units
        return total


def next_choices(
    finished: Any, n: int = N_QUESTIONS, *, X: Any = None, answers: Any = None
) -> list[Question]:
    """Return which groups to ask about next, given a finished model.

    Parameters
    ----------
    finished : fitted estimator, str or path
        Or the address of a job's output, whose last release it is about.
    n : int
        How many; there are fewer where nothing is left to ask.
    X : sparse matrix or array, ndarray, dask array, Corpus or path of one
        The rows that the estimator was fitted on; an output knows its own.
    answers : Constraints, Answers, or sequence of Entry, optional
        What was answered so far; without it, of an output, what its journal and its last fit have.

    Returns
    -------
    list of Question
        Choices; `shown` are all groups that the document may belong to, the likeliest first.

    Examples
    --------
    >>> from hmrf_dask import KMeans
    >>> rows = np.array([[1.0, 0.1], [1.0, 0.2], [1.0, 0.9], [0.1, 1.0], [0.2, 1.0]])
    >>> model = KMeans(2, random_state=0).fit(rows)
    >>> [question.documents for question in next_choices(model, 2, X=rows)][1]
    ('2',)
    """
    return _next(finished, n, X, answers)[1]


def next_pairs(
    finished: Any, n: int = N_QUESTIONS, *, X: Any = None, answers: Any = None
) -> list[Question]:
    """Return which pairs to ask about next, given a finished model.

    Parameters and order are those of `next_choices`; each document is asked about against the
    group that is the likeliest for it.

    Examples
    --------
    >>> from hmrf_dask import KMeans
    >>> rows = np.array([[1.0, 0.1], [1.0, 0.2], [1.0, 0.9], [0.1, 1.0], [0.2, 1.0]])
    >>> model = KMeans(2, random_state=0).fit(rows)
    >>> next_pairs(model, 2, X=rows)[1].documents
    ('2', '1')
    """
    known, choices = _next(finished, n, X, answers)
    return [pair for question in choices if (pair := asks(known, question, PAIR)) is not None]


def _next(finished: Any, n: int, X: Any, answers: Any) -> tuple[Known, list[Question]]:
    """Return what is known, and the next choices."""
    if problem := RANGES["batch"].problem(n):
        raise InvalidInputError(f"n {problem}, got {n!r:.60}; say how many questions to ask")
    if isinstance(finished, str | os.PathLike):
        from hmrf_dask.jobs.questions import batch_of  # which imports this module

        return batch_of(os.fspath(finished), n, answers)
    if not isinstance(finished, HMRFEstimator):
        raise InvalidInputError(
            f"a finished model must be a fitted estimator or the address of an output, got "
            f"{finished!r:.60}; give one of them"
        )
    centroids = finished.predictor().centroids
    if X is None:
        raise InvalidInputError(
            "X must be the rows that the model was fitted on, got none; give them"
        )
    corpus = as_corpus(X)
    if corpus.n_features != centroids.shape[1]:
        raise InvalidInputError(
            f"X must have the {centroids.shape[1]} columns that the model was fitted on, got "
            f"{corpus.n_features}; give the same rows"
        )
    known = known_from(answers, corpus)
    pool = Pool(corpus.persist(), None, in_memory=corpus.in_client)
    return known, choose(pool, Clusters.of(pool, centroids), known, n)


def known_from(answers: Any, corpus: Corpus) -> Known:
    """Return what answers say, whatever form they have."""
    if answers is None:
        return Known([], [])
    if isinstance(answers, Constraints):
        if len(answers) and answers.by_id != corpus.has_ids:
            have = "ids" if corpus.has_ids else "no ids"
            raise InvalidInputError(
                f"answers must name documents as the rows do, which have {have}, got {answers!r}; "
                "give both ids, or neither"
            )
        return Known.of_pairs(answers)
    if isinstance(answers, Answers):
        return Known.believed(answers.entries, answers.beliefs)
    entries = list(answers)
    if not all(isinstance(entry, Entry) for entry in entries):
        raise InvalidInputError(
            f"answers must be Constraints, Answers or entries of a journal, got {answers!r:.60}; "
            "make one of them"
        )
    return Known.believed(entries, believe(entries))


# ---- a batch


def choose(pool: Pool, clusters: Clusters, known: Known, n: int) -> list[Question]:
    """Return a batch of choices, by one pass over the rows."""
    if not n or (clusters.sizes > 0).sum() < 2:
        return []
    n_groups = sum(len(members) > 1 for members in known.members.values())
    n_clusters = int((clusters.sizes > 0).sum())
    exploring = n_clusters > FEW_CLUSTERS and 2 * n_groups < n_clusters
    documents = np.array(known.documents, np.str_)
    closed = [
        known.sizes[known.group(name)] > 1 or name in known.opened or name in known.unsure
        for name in documents.tolist()
    ]
    share, explored = (min(1.0, some / max(pool.n_rows, 1)) for some in (SAMPLED, EXPLORED))
    is_closed, most = np.array(closed, np.bool_), REPORTED * n
    wanted = Wanted(documents, is_closed, clusters.lengths, most, share, explored)
    found = pool.open_rows(clusters.directions, wanted, clusters.mean() if exploring else None)
    batch = Batch(clusters, known, found, n)
    return [
        replace(question, likely=tuple(round(share, 4) for share in question.likely))
        for question in batch.questions(exploring=exploring)
    ]


class Batch:
    """What a batch is chosen from: anchors, and the rows that a pass found."""

    def __init__(self, clusters: Clusters, known: Known, found: OpenRows, n: int) -> None:
        self.clusters, self.known, self.found, self.n = clusters, known, found, n
        gaps = np.sort(found.gaps)
        gap = float(gaps[(len(gaps) - 1) // 2]) if len(gaps) else FIRST_GAP
        self.scale = math.log(ODDS) / max(gap, 1e-6)
        self.named = {str(name): place for place, name in enumerate(_ids(found.named))}
        self.anchors = self._anchors()
        self.used = {known.group(anchor) for anchor in self.anchors.values()}

    # ---- the documents that stand for clusters

    def _anchors(self) -> dict[int, str]:
        """Return the anchor of each cluster that has one."""
        chosen = self._of_groups()
        used = {self.known.group(anchor) for anchor in chosen.values()}
        earlier = self._earlier()
        for cluster in np.flatnonzero(self.clusters.sizes).tolist():
            if cluster not in chosen:
                names = [*earlier.get(cluster, ()), *self.clusters.central[cluster]]
                free = [
                    name for name in names
                    if name not in self.known.unsure and self.known.group(name) not in used
                ]  # fmt: skip
                if free:
                    chosen[cluster] = free[0]
                    used.add(self.known.group(free[0]))
        return dict(sorted(chosen.items()))

    def _earlier(self) -> dict[int, list[str]]:
        """Return by cluster the documents that stood for groups before, the most central first."""
        cosines, labels = self.found.named.cosines, self.found.named.labels
        found: dict[int, list[tuple[float, str]]] = {}
        for name, place in self.named.items():
            if name in self.known.stood or name in self.known.opened:
                label = int(labels[place])
                found.setdefault(label, []).append((-cosines[place, label], name))
        return {label: [name for _, name in sorted(some)] for label, some in found.items()}

    def _of_groups(self) -> dict[int, str]:
        """Return for clusters that have groups the most central member of the largest."""
        best: dict[int, tuple[int, str, str]] = {}
        cosines, labels = self.found.named.cosines, self.found.named.labels
        for group, members in self.known.members.items():
            there = [self.named[name] for name in members if name in self.named]
            if len(members) < 2 or not there:
                continue
            counts = np.bincount(labels[there])
            cluster = int(counts.argmax())
            names = [name for name in members if name in self.named]
            near = [
                (-cosines[place, cluster], name)
                for place, name in zip(there, names, strict=True)
                if labels[place] == cluster
            ]
            rank = (-len(members), group, min(near)[1])
            best[cluster] = min(best.get(cluster, rank), rank)
        return {cluster: anchor for cluster, (_, _, anchor) in best.items()}

    # ---- questions

    def questions(self, *, exploring: bool) -> list[Question]:
        """Return the questions, those about anchors first."""
        part = max(1, self.n // SHARE)
        few = len(self.anchors) <= FEW_CLUSTERS
        found = list(self._about_groups())[:part]
        found += list(self._about_anchors())[: self.n if few else part]
        if exploring and self.found.far is not None:
            found += self._far_apart(self.found.far, part)
        found = _of_different_documents(found)[: self.n]
        asked = {question.documents[0] for question in found}
        return found + self._uncertain(asked, self.n - len(found))

    def _about_groups(self) -> Iterator[Question]:
        """Yield what is open about groups that stand for no cluster, the largest first."""
        groups = [
            (-len(members), group, members) for group, members in self.known.members.items()
            if len(members) > 1 and group not in self.used
        ]  # fmt: skip
        for _, _, members in sorted(groups):
            places = [(self.named[name], name) for name in members if name in self.named]
            if places:
                _, name, place = min(
                    (-self.found.named.cosines[place].max(), name, place) for place, name in places
                )
                yield from self._about(name, self.found.named.cosines[place], "anchors")

    def _about_anchors(self) -> Iterator[Question]:
        """Yield for each anchor those that it is not known to differ from, the nearest first."""
        clusters = np.array(list(self.anchors), np.int64)
        units = questions.direction_table(self.clusters.directions[clusters]).exact
        near = units @ units.T
        order = np.lexsort((clusters, -self.clusters.sizes[clusters]))
        few, pending = len(clusters) <= FEW_CLUSTERS, []
        for rank, place in enumerate(order.tolist()):
            before = order[:rank].tolist()
            document = self.anchors[int(clusters[place])]
            open_ones = [
                (-near[place, other], self.anchors[int(clusters[other])]) for other in before
                if not self.known.is_apart(document, self.anchors[int(clusters[other])])
            ]  # fmt: skip
            shown = sorted(open_ones)[: None if few else NEAREST_SHOWN]
            if shown:
                pending.append((rank if few else shown[0][0], document, shown))
        for _, document, shown in sorted(pending):
            weights = [math.exp(self.scale * (shown[0][0] - value)) for value, _ in shown]
            likely = tuple(ALIKE * weight / sum(weights) for weight in weights)
            yield self._question(document, [name for _, name in shown], likely, "anchors")

    def _far_apart(self, far: Listed, most: int) -> list[Question]:
        """Return questions about rows far from all clusters, and from each other."""
        own = far.cosines[np.arange(len(far.labels)), far.labels]
        distance = 1.0 - own
        density = -far.values / np.maximum(distance, 1e-12)
        names = _ids(far)
        found: list[Question] = []
        while len(found) < most and len(names):
            worth = distance * density
            best = int(np.lexsort((far.rows.block.ids, -worth))[0])
            if not worth[best] > 0.0:
                break
            found += self._about(names[best], far.cosines[best], "explore")
            table = questions.direction_table(far.rows.take(np.array([best])).directions())
            distance = np.minimum(distance, far.rows.distances(table)[:, 0])
            distance[best] = 0.0
        return found

    def _uncertain(self, asked: set[str], most: int) -> list[Question]:
        """Return questions about the rows whose groups are most uncertain, not too many of one."""
        ranked = []
        for place, name in enumerate(_ids(self.found.between)):
            if name in asked or self.known.group(name) in self.used:
                continue
            cosines = self.found.between.cosines[place]
            ranked += [
                (-_uncertainty(question), name, place, question)
                for question in self._about(name, cosines, "uncertain")
            ]
        shares = self.clusters.sizes / max(int(self.clusters.sizes.sum()), 1)
        allowed = np.maximum(np.floor(2 * self.n * shares), 1)
        found: list[Question] = []
        for _, _, place, question in sorted(ranked, key=lambda entry: entry[:2]):
            label = self.found.between.labels[place]
            if len(found) < most and allowed[label]:
                allowed[label] -= 1
                found.append(question)
        return found

    def _about(self, document: str, cosines: FloatArray, why: str) -> Iterator[Question]:
        """Yield the question which of all groups a document belongs to, unless that is settled."""
        clusters = list(self.anchors)
        near = cosines[clusters]
        order = np.argsort(-near, kind="stable")[:MOST_SHOWN]
        weights = np.array([math.exp(self.scale * (near[place] - near.max())) for place in order])
        likely = tuple((weights / weights.sum()).tolist())
        shown = tuple(self.anchors[clusters[place]] for place in order.tolist())
        if document in shown:
            return
        left = self.known.left(Question(CHOICE, (document,), shown, likely))
        if left:
            names, shares = [name for name, _ in left], tuple(share for _, share in left)
            yield self._question(document, names, shares, why)

    def _question(
        self, document: str, shown: list[str], likely: tuple[float, ...], why: str
    ) -> Question:
        settles = self.known.settles(document, dict(zip(shown, likely, strict=True)))
        return Question(CHOICE, (document,), tuple(shown), likely, why, settles)


def _uncertainty(question: Question) -> float:
    shares = np.maximum(np.array(question.likely), 1e-300)
    return float(uncertainties(-np.log(shares)[None, :], 1.0)[0])


def _ids(listed: Listed) -> list[str]:
    return list(map(str, listed.rows.block.ids.tolist()))


def _of_different_documents(found: list[Question]) -> list[Question]:
    """Return the questions without those about a document that was asked about before."""
    first: dict[str, Question] = {}
    for question in found:
        first.setdefault(question.documents[0], question)
    return list(first.values())
