"""A batch of questions about a finished model, none of which depends on the answer to another.

The clusters stand for the groups, each by one document, its anchor. Asked about are the anchors
themselves, documents between two clusters, and, while most clusters have no answers, documents far
from all. Which one comes next as answers come in: `hmrf_dask.questions.rounds`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.records import CHOICE, MOST_SHOWN, Entry, Question
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.exact import BASE, exact_integer
from hmrf_dask.kernels.uncertainty import uncertainties
from hmrf_dask.questions.answers import Answers
from hmrf_dask.questions.known import Known
from hmrf_dask.questions.pool import FIRST_GAP, ODDS, Pool
from hmrf_dask.tasks import questions
from hmrf_dask.tasks.open_rows import Listed, OpenRows, Wanted
from hmrf_dask.types import FloatArray, IntArray

N_QUESTIONS = 25
REPORTED = 4  # rows of a partition for each question
SAMPLED = 4096  # rows by which the median gap of all is estimated
EXPLORED = 65_536  # rows among which those far from all are searched
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
        total: FloatArray = self.lengths[None, :] @ self.units
        return total

    @cached_property
    def units(self) -> FloatArray:
        """The directions, all of length 1."""
        return questions.direction_table(self.directions).exact


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
        found = list(islice(self._about_groups(), part))
        found += islice(self._about_anchors(), self.n if few else part)
        if exploring and self.found.far is not None:
            found += self._far_apart(self.found.far, part)
        found = _of_different_documents(found)[: self.n]
        asked = {question.documents[0] for question in found}
        found += self._uncertain(asked, self.n - len(found))
        return [replace(question, settles=self._settles(question)) for question in found]

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
        clusters, names = np.array(list(self.anchors), np.int64), list(self.anchors.values())
        units = self.clusters.units[clusters]
        near = units @ units.T
        order = np.lexsort((clusters, -self.clusters.sizes[clusters]))
        few, pending = len(clusters) <= FEW_CLUSTERS, []
        for rank, place in enumerate(order.tolist()):
            document = names[place]
            others, values = order[:rank].tolist(), (-near[place, order[:rank]]).tolist()
            before = sorted(zip(values, map(names.__getitem__, others), strict=True))
            open_ones = (one for one in before if not self.known.is_apart(document, one[1]))
            shown = list(islice(open_ones, None if few else NEAREST_SHOWN))
            if shown:
                pending.append((rank if few else shown[0][0], document, shown))
        for _, document, shown in sorted(pending):
            weights = [math.exp(self.scale * (shown[0][0] - value)) for value, _ in shown]
            likely = tuple(ALIKE * weight / sum(weights) for weight in weights)
            yield Question(CHOICE, (document,), tuple(name for _, name in shown), likely, "anchors")

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
        gaps = (near[order] - near.max()).tolist()
        weights = np.array([math.exp(self.scale * gap) for gap in gaps])
        likely = tuple((weights / weights.sum()).tolist())
        shown = tuple(self.anchors[clusters[place]] for place in order.tolist())
        if document in shown:
            return
        left = self.known.left(Question(CHOICE, (document,), shown, likely))
        if left:
            names, shares = tuple(name for name, _ in left), tuple(share for _, share in left)
            yield Question(CHOICE, (document,), names, shares, why)

    def _settles(self, question: Question) -> float:
        likely = dict(zip(question.shown, question.likely, strict=True))
        return self.known.settles(question.documents[0], likely)


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
