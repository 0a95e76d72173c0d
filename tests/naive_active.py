"""The default choice of questions as written, a row at a time; imports nothing from the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

BINS = 4096


class Naive:
    """Explore by the rows nearest to centroids of finer and finer fits, then along density.

    Then consolidate the most uncertain rows. `fits` gives labels and centroids of so many clusters.
    """

    def __init__(
        self,
        rows: NDArray[np.float64],
        n_clusters: int,
        oracle: Callable[[int, int], bool | None],
        fits: Callable[[int], tuple[NDArray[np.int32], NDArray[np.float64]]] | None,
    ) -> None:
        self.units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self.n_clusters, self.oracle, self.fits = n_clusters, oracle, fits
        self.groups: list[list[int]] = []
        self.aside: list[int] = []
        self.inferred: list[tuple[int, int]] = []
        self.answers = 0
        self.seen = 0  # answers as of the last clusters
        self.sums: NDArray[np.float64] | None = None  # of the clusters

    def questions(self) -> Iterator[tuple[int, int]]:
        """Yield one pair after the other, and take the answers."""
        mean = self.units.sum(axis=0)
        density = np.maximum(self.units @ (mean / np.linalg.norm(mean)), 1e-9)
        for row in self.central_rows():
            if len(self.groups) < self.n_clusters:
                yield from self.place(row)
        while len(self.groups) < self.n_clusters:
            distance = 1.0 - (self.units @ self.units[self.visited()].T).max(axis=1)
            yield from self.place(int((distance * density).argmax()))
        while True:
            yield from self.place(self.most_uncertain())

    def visited(self) -> list[int]:
        return [row for group in self.groups for row in group] + self.aside

    def central_rows(self) -> Iterator[int]:
        """Yield the row nearest to each centroid, as long as rows open groups.

        Of sparse rows there are no `fits`: the one in the middle of all.
        """
        if self.fits is None:
            yield int((self.units @ self.units.sum(axis=0)).argmax())
            return
        n_clusters = self.n_clusters
        while 4 * n_clusters <= len(self.units):
            labels, centroids = self.fits(n_clusters)
            sizes = np.bincount(labels, minlength=n_clusters)
            for cluster in sorted(range(n_clusters), key=lambda one: (-sizes[one], one)):
                if len(self.visited()) > 4 * (len(self.groups) + 1):
                    return
                members = np.flatnonzero(labels == cluster)
                if len(members) and not set(members.tolist()) & set(self.visited()):
                    yield int(members[(self.units[members] @ centroids[cluster]).argmax()])
            n_clusters = math.ceil(1.5 * n_clusters)

    def place(self, row: int) -> Iterator[tuple[int, int]]:
        near = self.near([row])[0] if self.groups else np.zeros(0)
        yield from self.ask(row, near)
        if self.answers >= 1.1 * self.seen + 1:  # a tenth more: clusters are made again
            self.seen, self.sums = self.answers, None

    def ask(self, row: int, near: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
        unsure, complete = False, len(self.groups) == self.n_clusters
        for nth, number in enumerate(np.argsort(near)[::-1].tolist(), 1):
            member = self.representative(self.groups[number])
            if complete and not unsure and nth == self.n_clusters:
                self.inferred.append((row, member))
                self.groups[number].append(row)
                return
            yield row, member
            answer = self.oracle(row, member)
            self.answers += 1
            if answer:
                self.groups[number].append(row)
                return
            unsure = unsure or answer is None
        if unsure or complete:
            self.aside.append(row)
        else:
            self.groups.append([row])

    def mean(self, group: list[int]) -> NDArray[np.float64]:
        total = self.units[group].sum(axis=0)
        return np.asarray(total / np.linalg.norm(total))

    def representative(self, group: list[int]) -> int:
        """Return the member nearest to the mean; of two, which are as near, the lowest."""
        near = self.units[group] @ self.mean(group)
        return min(group[place] for place in np.flatnonzero(near > near.max() - 1e-9))

    def near(self, rows: list[int]) -> NDArray[np.float64]:
        """Return cosines to groups; once all are known, to clusters that rows are taken out of."""
        directions = np.array([self.mean(group) for group in self.groups])
        if len(self.groups) < self.n_clusters:
            return np.asarray(self.units[rows] @ directions.T)
        if self.sums is None:
            for _ in range(3):
                labels = (self.units @ directions.T).argmax(axis=1)
                for number, group in enumerate(self.groups):
                    labels[group] = number
                sums = np.array(
                    [self.units[labels == h].sum(axis=0) for h in range(len(directions))]
                )
                directions = sums / np.linalg.norm(sums, axis=1, keepdims=True)
            self.sums = sums
        directions = self.sums / np.linalg.norm(self.sums, axis=1, keepdims=True)
        cosines = self.units[rows] @ directions.T
        for place, row in enumerate(rows):
            nearest = cosines[place].argmax()
            remainder = self.sums[nearest] - self.units[row]
            cosines[place, nearest] = self.units[row] @ remainder / np.linalg.norm(remainder)
        return np.asarray(cosines)

    def most_uncertain(self) -> int:
        closed = {row for group in self.groups for row in group} | set(self.aside)
        left = [row for row in range(len(self.units)) if row not in closed]
        near = self.near(left)
        best = np.sort(near, axis=1)
        gaps = sorted(int(gap * BINS) for gap in best[:, -1] - best[:, -2])
        scale = math.log(9.0) / ((gaps[(len(gaps) + 1) // 2 - 1] + 0.5) / BINS)
        return left[int(np.argmax([self.uncertainty(row, scale) for row in near]))]

    def uncertainty(self, near: NDArray[np.float64], scale: float) -> float:
        odds = sorted((math.exp(scale * (each - near.max())) for each in near), reverse=True)
        shares = [each / sum(odds) for each in odds]
        entropy = -sum(share * math.log(share) for share in shares if share > 0)
        last = len(shares) - 1
        return entropy / sum(share * min(nth, last) for nth, share in enumerate(shares, 1))


def gaps_between_clusters(
    rows: NDArray[np.float64], centroids: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosines to clusters that rows are taken out of, and the gap between the best two."""
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    directions = centroids / np.linalg.norm(centroids, axis=1, keepdims=True)
    labels = (units @ directions.T).argmax(axis=1)
    cosines = np.empty((len(units), len(directions)))
    lengths = [float((units[labels == h] @ directions[h]).sum()) for h in range(len(directions))]
    for i, unit in enumerate(units):
        for h, direction in enumerate(directions):
            remainder = lengths[h] * direction - (unit if labels[i] == h else 0.0)
            cosines[i, h] = unit @ remainder / np.linalg.norm(remainder)
    best = np.sort(cosines, axis=1)
    return cosines, best[:, -1] - best[:, -2]


def batch_of_uncertain(
    rows: NDArray[np.float64], centroids: NDArray[np.float64], anchors: list[int], n: int
) -> list[int]:
    """Return the rows that a batch of n asks about, of those with the 4 n least gaps."""
    cosines, gaps = gaps_between_clusters(rows, centroids)
    scale = math.log(9.0) / float(np.sort(gaps)[(len(gaps) - 1) // 2])
    value = []
    for near in cosines:
        odds = sorted((math.exp(scale * (each - near.max())) for each in near), reverse=True)
        shares = [each / sum(odds) for each in odds]
        entropy = -sum(share * math.log(share) for share in shares if share > 0)
        last = len(shares) - 1
        value.append(entropy / sum(share * min(nth, last) for nth, share in enumerate(shares, 1)))
    labels = (rows @ (centroids / np.linalg.norm(centroids, axis=1, keepdims=True)).T).argmax(
        axis=1
    )
    shares = np.bincount(labels, minlength=len(centroids)) / len(rows)
    allowed = np.maximum(np.floor(2 * n * shares), 1)
    nearest = np.argsort(gaps, kind="stable")[: 4 * n].tolist()
    chosen: list[int] = []
    for row in sorted(nearest, key=lambda row: -value[row]):
        if row not in anchors and allowed[labels[row]] > 0 and len(chosen) < n:
            allowed[labels[row]] -= 1
            chosen.append(row)
    return chosen
