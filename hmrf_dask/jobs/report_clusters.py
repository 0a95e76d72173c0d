"""The clusters of a report: surveyed in tasks, placed on the map, with words and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from hmrf_dask.errors import HmrfError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.classes import load
from hmrf_dask.estimators.prediction import OUTLIER
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs import assignments
from hmrf_dask.jobs.assignments import key_of
from hmrf_dask.jobs.names import OUTLIERS
from hmrf_dask.jobs.places import LINEAGE
from hmrf_dask.jobs.report_subject import READABLE, Subject
from hmrf_dask.releases.lineage import Lineage
from hmrf_dask.releases.release import read_file
from hmrf_dask.report.content import Cluster, Near, Text, Word
from hmrf_dask.report.layout import SIDE, likeness, place_clusters, place_documents
from hmrf_dask.report.survey import COLUMNS, Survey, merge_surveys, no_survey, survey_table
from hmrf_dask.report.words import word_bars
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.text.files import Place
from hmrf_dask.types import FloatArray, IntArray

SIMILAR: Final = 3  # clusters that are listed next to one
_FEW_BARS: Final = 200  # clusters, of which each has all bars
_LEAST_BARS: Final = 8


class Surveyed(NamedTuple):
    """A survey, and what is wrong with files that could not be read."""

    survey: Survey
    damages: list[str]


def survey(subject: Subject) -> Survey:
    """Return what a report takes of all assignments; a task reads each file."""
    flow, place = DaskFlow(), Place(subject.url, {})
    tasks = [flow.lazy(_surveyed, place, *file) for file in sorted(subject.files.items())]
    if not tasks:
        return no_survey()
    whole: Surveyed = flow.compute([tree(flow, _merged, tasks)])[0]
    if whole.damages:
        words = whole.damages[0].replace(subject.url, "OUTPUT")
        subject.limits.append(
            f"Documents: {len(whole.damages)} of {len(tasks)} files with assignments cannot be "
            f"read, and what is in them is missing here: {words}"
        )
    return whole.survey


def _surveyed(place: Place, name: str, sha256: str | None) -> Surveyed:
    storage = place.storage
    try:
        data = storage.read(name) if sha256 is None else read_file(storage, name, sha256)
        return Surveyed(survey_table(decode_parquet(data, list(COLUMNS)), key_of(name)), [])
    except READABLE as error:
        return Surveyed(no_survey(), [str(error)])


def _merged(parts: Sequence[Surveyed]) -> Surveyed:
    damages = [words for part in parts for words in part.damages]
    return Surveyed(merge_surveys([part.survey for part in parts]), damages[:1_000])


# ---- places and words


@dataclass(frozen=True)
class Map:
    """What follows from centroids, by the id of a cluster."""

    places: dict[int, FloatArray]
    bars: dict[int, tuple[Word, ...]]
    similar: dict[int, tuple[Near, ...]]
    learned: tuple[Word, ...] = ()


def map_of(subject: Subject, sizes: Mapping[int, int]) -> Map:
    """Return what follows from the centroids of the model; of a damaged one clusters in a ring."""
    model = subject.attempt("Map, words as bars, similar clusters", lambda: _model(subject))
    if model is None:
        turns = {one: 2 * np.pi * at / max(len(sizes), 1) for at, one in enumerate(sorted(sizes))}
        ring = {one: 0.5 + 0.4 * np.array([np.cos(t), np.sin(t)]) for one, t in turns.items()}
        return Map(ring, {}, {})
    ids, centroids = model.cluster_ids_.tolist(), model.cluster_centers_
    counts = np.array([sizes.get(one, 0) for one in ids], np.int64)
    places = place_clusters(centroids, counts)
    bars, learned = subject.attempt("Words as bars", lambda: _bars(subject, model, counts)) or (
        [],
        (),
    )
    return Map(
        dict(zip(ids, places, strict=True)),
        dict(zip(ids, bars, strict=False)),
        _similar(ids, centroids),
        learned,
    )


def _model(subject: Subject) -> HMRFEstimator:
    if subject.model is None:
        raise HmrfError("there is no model")
    return load(f"{subject.url}/{subject.model}")


def _similar(ids: list[int], centroids: FloatArray) -> dict[int, tuple[Near, ...]]:
    """Return the clusters that are most alike to each; blocks of clusters at a time."""
    similar: dict[int, tuple[Near, ...]] = {}
    for start in range(0, len(ids), 1_000):
        rows = np.arange(start, min(start + 1_000, len(ids)))
        alike = likeness(centroids, rows)
        alike[np.arange(len(rows)), rows] = -np.inf
        most = np.argsort(-alike, axis=1, kind="stable")[:, : min(SIMILAR, len(ids) - 1)]
        for at, row in enumerate(rows.tolist()):
            near = (Near(ids[other], float(alike[at, other])) for other in most[at].tolist())
            similar[ids[row]] = tuple(one for one in near if one.likeness > 0)
    return similar


def _bars(
    subject: Subject, model: HMRFEstimator, sizes: IntArray
) -> tuple[list[tuple[Word, ...]], tuple[Word, ...]]:
    words = subject.words()
    if words is None:
        return [], ()
    centroids, weights = model.cluster_centers_[:, : words.n_columns], model.feature_weights_
    if not words.n_columns:  # rows are vectors
        return [], ()
    learned = None  # as weights are where the metric is a full one
    if weights is not None and words.components is None and (weights != 1.0).any():
        learned = weights[: words.n_columns]
    many = _FEW_BARS * 15 // max(len(sizes), 1)
    bars = word_bars(
        centroids, sizes, words.terms,
        components=words.components, learned=learned, most=min(15, max(many, _LEAST_BARS)),
    )  # fmt: skip
    return bars, () if learned is None else _heaviest(learned, words.terms)


def _heaviest(learned: FloatArray, terms: Any) -> tuple[Word, ...]:
    """Return the words with the largest learned weights."""
    order = np.lexsort((np.arange(len(learned)), -learned))[:20]
    named = zip(terms(order), learned[order].tolist(), strict=True)
    return tuple(Word(word, weight, 1.0, weight) for word, weight in named if word is not None)


# ---- clusters and documents


def clusters_of(
    subject: Subject, whole: Survey, names: Mapping[int, str]
) -> tuple[tuple[Cluster, ...], Map]:
    """Return all clusters, the largest first, without their documents; and the map.

    Outliers come last.
    """
    table = {row["cluster"]: row for row in _table(subject)}
    counted = {one: at for at, one in enumerate(whole.clusters.tolist())}
    sizes = {one: _size(one, table, whole, counted) for one in table.keys() | counted.keys()}
    lineage = subject.attempt("What became of clusters", lambda: lineage_of(subject))
    changes = {} if lineage is None else {one.cluster: one for one in lineage.changes}
    drawn = map_of(subject, sizes)
    clusters = []
    for one in sorted(sizes, key=lambda one: (one == OUTLIER, -sizes[one], one)):
        row, change, at = table.get(one, {}), changes.get(one), counted.get(one)
        x, y = np.rint(SIDE * drawn.places.get(one, np.full(2, 0.5))).astype(int).tolist()
        bars = drawn.bars.get(one, ())
        clusters.append(
            Cluster(
                id=one,
                name=OUTLIERS if one == OUTLIER else names.get(one, ""),
                size=sizes[one],
                size_before=change.size_before if change and change.kind == "kept" else None,
                change=change.kind if change else "",
                words=tuple(row.get("top_words") or [bar.word for bar in bars[:10]]),
                bars=bars,
                spread=_spread(row, whole, at),
                linked=0 if at is None else int(whole.linked[at]),
                broken=0 if at is None else int(whole.broken[at]),
                undecided=0 if at is None else int(whole.undecided[at]),
                x=x,
                y=y,
                similar=drawn.similar.get(one, ()),
            )
        )
    return tuple(clusters), drawn


def _size(one: int, table: Mapping[int, Any], whole: Survey, counted: Mapping[int, int]) -> int:
    if one in table:
        return int(table[one]["size"])
    return int(whole.sizes[counted[one]])


def _spread(row: Mapping[str, Any], whole: Survey, at: int | None) -> float | None:
    if row.get("cohesion") is not None:
        return float(row["cohesion"])
    if at is None or not whole.sizes[at]:
        return None
    return float(whole.spreads[at]) / 2.0**32 / float(whole.sizes[at])


def _table(subject: Subject) -> list[dict[str, Any]]:
    if subject.release is None:
        return []

    def read() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = decode_parquet(
            subject.file_of_release(assignments.NAME)
        ).to_pylist()
        return rows

    return subject.attempt("The table of clusters", read) or []


def lineage_of(subject: Subject) -> Lineage | None:
    """Return what became of the clusters of the release before; None of a fit by itself."""
    data = subject.file_of_release(LINEAGE)
    return Lineage.from_json(data) if data else None


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
