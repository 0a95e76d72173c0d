"""The clusters and documents of a report, from a survey of documents and from centroids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from hmrf_dask.report.content import Cluster, Near, Text, Word
from hmrf_dask.report.layout import SIDE, likeness, place_clusters, place_documents
from hmrf_dask.report.survey import Survey
from hmrf_dask.report.words import Words, word_bars
from hmrf_dask.types import FloatArray, IntArray

SIMILAR: Final = 3  # clusters that are listed next to one
_FEW_BARS: Final = 200  # clusters, of which each has all bars
_LEAST_BARS: Final = 8
_BLOCK: Final = 1_000  # clusters that are compared with all at a time


@dataclass(frozen=True)
class Map:
    """What follows from centroids, by the id of a cluster."""

    places: dict[int, FloatArray]
    bars: dict[int, tuple[Word, ...]]
    similar: dict[int, tuple[Near, ...]]
    centroids: Centroids | None = None
    learned: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Centroids:
    """The clusters of a model: their ids, their centroids, and the learned weights, if there are.

    Examples
    --------
    >>> Centroids([4, 7], np.eye(2)).learned is None
    True
    """

    ids: list[int]
    rows: FloatArray
    weights: FloatArray | None = None
    are_directions: bool = False  # distances are 1 - cosine

    @property
    def learned(self) -> FloatArray | None:
        """The weights where some differ from 1: a metric was learned."""
        weights = self.weights
        return None if weights is None or (weights == 1.0).all() else weights


@dataclass(frozen=True)
class Known:
    """What is known of a cluster elsewhere: a name, its words, its size; what it was before."""

    name: str = ""
    words: tuple[str, ...] = ()
    size: int | None = None
    spread: float | None = None
    size_before: int | None = None
    change: str = ""


def map_of(centroids: Centroids, sizes: Mapping[int, int]) -> Map:
    """Return where clusters lie and which are alike; without words.

    Examples
    --------
    >>> drawn = map_of(Centroids([4, 7], np.eye(2)), {4: 1, 7: 2})
    >>> drawn.places[7].tolist(), drawn.similar[4]
    ([0.8, 0.5], ())
    """
    ids = centroids.ids
    counts = np.array([sizes.get(one, 0) for one in ids], np.int64)
    places = place_clusters(centroids.rows, counts)
    return Map(dict(zip(ids, places, strict=True)), {}, _similar(ids, centroids.rows), centroids)


def in_a_ring(clusters: Sequence[int]) -> Map:
    """Return clusters in a ring, where their centroids are not known.

    Examples
    --------
    >>> {cluster: place.round(2).tolist() for cluster, place in in_a_ring([3, 7]).places.items()}
    {3: [0.9, 0.5], 7: [0.1, 0.5]}
    """
    turns = 2 * np.pi * np.arange(len(clusters)) / max(len(clusters), 1)
    places = 0.5 + 0.4 * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    return Map(dict(zip(clusters, places, strict=True)), {}, {})


def with_bars(drawn: Map, centroids: Centroids, sizes: Mapping[int, int], words: Words) -> Map:
    """Return a map with the words of clusters and those that were learned to weigh most."""
    if not words.n_columns:  # rows are vectors
        return drawn
    rows, learned = centroids.rows[:, : words.n_columns], None
    if words.components is None and centroids.learned is not None:
        learned = centroids.learned[: words.n_columns]
    counts = np.array([sizes.get(one, 0) for one in centroids.ids], np.int64)
    many = _FEW_BARS * 15 // max(len(counts), 1)
    bars = word_bars(
        rows, counts, words.terms,
        components=words.components, learned=learned, most=min(15, max(many, _LEAST_BARS)),
    )  # fmt: skip
    heaviest = () if learned is None else _heaviest(learned, words)
    return replace(drawn, bars=dict(zip(centroids.ids, bars, strict=True)), learned=heaviest)


def _heaviest(learned: FloatArray, words: Words) -> tuple[Word, ...]:
    """Return the words with the largest learned weights."""
    order = np.lexsort((np.arange(len(learned)), -learned))[:20]
    named = zip(words.terms(order), learned[order].tolist(), strict=True)
    return tuple(Word(word, weight, 1.0, weight) for word, weight in named if word is not None)


def _similar(ids: list[int], centroids: FloatArray) -> dict[int, tuple[Near, ...]]:
    """Return the clusters that are most alike to each; blocks of clusters at a time."""
    similar: dict[int, tuple[Near, ...]] = {}
    for start in range(0, len(ids), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(ids)))
        alike = likeness(centroids, rows)
        alike[np.arange(len(rows)), rows] = -np.inf
        most = np.argsort(-alike, axis=1, kind="stable")[:, : min(SIMILAR, len(ids) - 1)]
        for at, row in enumerate(rows.tolist()):
            near = (Near(ids[other], float(alike[at, other])) for other in most[at].tolist())
            similar[ids[row]] = tuple(one for one in near if one.likeness > 0)
    return similar


# ---- clusters and documents


def sizes_of(whole: Survey, known: Mapping[int, Known]) -> dict[int, int]:
    """Return the documents of each cluster: as it is known, else as it was counted."""
    sizes = dict(zip(whole.clusters.tolist(), whole.sizes.tolist(), strict=True))
    return sizes | {one: about.size for one, about in known.items() if about.size is not None}


def clusters_of(whole: Survey, drawn: Map, known: Mapping[int, Known]) -> tuple[Cluster, ...]:
    """Return all clusters, the largest first and outliers last, without their documents."""
    counted = {one: at for at, one in enumerate(whole.clusters.tolist())}
    sizes = sizes_of(whole, known)
    order = sorted(sizes, key=lambda one: (one < 0, -sizes[one], one))
    clusters = [
        _cluster(one, sizes[one], counted.get(one), (whole, drawn, known.get(one, Known())))
        for one in order
    ]
    gains = _gains(drawn.centroids, {one.id: one for one in clusters})
    return tuple(replace(one, gain=gains.get(one.id)) for one in clusters)


def _gains(centroids: Centroids | None, clusters: Mapping[int, Cluster]) -> dict[int, float]:
    """Return how much nearer documents are to the centroid of their cluster than to that of all.

    A mean cosine is the part of the documents' lengths along a direction; so it is that of the
    cluster times the cosine of the two centroids for the direction of all documents.
    """
    if centroids is None or not centroids.are_directions:
        return {}
    rows, weights = centroids.rows, centroids.weights
    weights = np.ones(rows.shape[1]) if weights is None else weights
    known = [clusters.get(one) for one in centroids.ids]
    cosines = np.array(
        [0.0 if one is None or one.spread is None else 1 - one.spread for one in known]
    )
    sizes = np.array([0 if one is None else one.size for one in known])
    with threadpool_limits(1):  # sums in one order
        lengths = np.sqrt((rows * rows) @ weights)
        lengths[lengths == 0.0] = np.inf
        mean = (sizes * cosines / lengths) @ rows
        likeness_to_all = rows @ (weights * mean) / lengths
    length = float(np.sqrt(mean @ (weights * mean)))
    gains = cosines * (1.0 - likeness_to_all / (length or 1.0))
    return {
        one.id: float(gain)
        for one, gain in zip(known, gains.tolist(), strict=True)
        if one is not None and one.size
    }


def _cluster(one: int, size: int, at: int | None, about: tuple[Survey, Map, Known]) -> Cluster:
    """Return a cluster, which is at place `at` of the survey if that has it."""
    whole, drawn, known = about
    x, y = np.rint(SIDE * drawn.places.get(one, np.full(2, 0.5))).astype(int).tolist()
    bars = drawn.bars.get(one, ())
    spread = known.spread
    if spread is None and at is not None and whole.sizes[at]:
        spread = float(whole.spreads[at]) / 2.0**32 / float(whole.sizes[at])

    def of(counts: IntArray) -> int:
        """Return what the survey counted."""
        return 0 if at is None else int(counts[at])

    return Cluster(
        id=one,
        name=known.name,
        size=size,
        size_before=known.size_before,
        change=known.change,
        words=known.words or tuple(bar.word for bar in bars[:10]),
        bars=bars,
        spread=spread,
        linked=of(whole.linked),
        broken=of(whole.broken),
        undecided=of(whole.undecided),
        x=x,
        y=y,
        similar=drawn.similar.get(one, ()),
    )


def documents_of(table: pa.Table, drawn: Map) -> list[Text]:
    """Return documents of a survey with their places, without their texts."""
    if not table.num_rows:
        return []
    middle = np.full(2, 0.5)
    rows = table.to_pylist()
    own = np.array([drawn.places.get(row["cluster"], middle) for row in rows])
    other = np.array([drawn.places.get(row["runner_up"], own[at]) for at, row in enumerate(rows)])
    margins = np.array([np.nan if row["margin"] is None else row["margin"] for row in rows])
    usual = float(np.nanmedian(np.abs(margins))) if np.isfinite(margins).any() else 0.0
    # A document that is as near to both lies halfway; one with the usual margin close to its own.
    shares = 0.5 * np.exp(-2.0 * np.nan_to_num(margins) / (usual or 1.0)).clip(0.0, 1.6)
    shares[~np.isfinite(margins)] = 0.0
    keys = np.array([row["key"] for row in rows], np.uint64)
    places = place_documents(own, other, shares, keys).tolist()
    return [
        Text(
            row["doc_id"], row["cluster"], row["runner_up"], row["pack"], x=x, y=y,
            held=bool(row["constrained"]),
        )
        for row, (x, y) in zip(rows, places, strict=True)
    ]  # fmt: skip


def with_documents(
    clusters: Sequence[Cluster], typical: Sequence[Text], borderline: Sequence[Text]
) -> tuple[Cluster, ...]:
    """Return clusters with their documents."""
    by_cluster: dict[int, tuple[list[Text], list[Text]]] = {c.id: ([], []) for c in clusters}
    for place, documents in enumerate((typical, borderline)):
        for document in documents:
            by_cluster[document.cluster][place].append(document)
    return tuple(
        replace(c, typical=tuple(by_cluster[c.id][0]), borderline=tuple(by_cluster[c.id][1]))
        for c in clusters
    )
