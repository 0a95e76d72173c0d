"""The clusters of a report: surveyed in tasks, placed on the map, with words and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hmrf_dask.errors import HmrfError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.classes import load
from hmrf_dask.estimators.displays import centroids_of
from hmrf_dask.estimators.prediction import OUTLIER
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs import assignments
from hmrf_dask.jobs.assignments import key_of
from hmrf_dask.jobs.names import OUTLIERS
from hmrf_dask.jobs.places import LINEAGE
from hmrf_dask.jobs.report_subject import READABLE, Subject
from hmrf_dask.releases.lineage import Lineage
from hmrf_dask.releases.release import read_file
from hmrf_dask.report import clusters
from hmrf_dask.report.clusters import (
    Known,
    Map,
    in_a_ring,
    map_of,
    sizes_of,
    with_bars,
)
from hmrf_dask.report.content import Cluster
from hmrf_dask.report.survey import COLUMNS, Survey, merge_surveys, no_survey, survey_table
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.text.files import Place


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


# ---- clusters


def clusters_of(
    subject: Subject, whole: Survey, names: Mapping[int, str]
) -> tuple[tuple[Cluster, ...], Map]:
    """Return all clusters, the largest first, without their documents; and the map.

    Outliers come last.
    """
    known = _known(subject, names)
    sizes = sizes_of(whole, known)
    drawn = _map_of(subject, sizes)
    known[OUTLIER] = Known(name=OUTLIERS)
    return clusters.clusters_of(whole, drawn, known), drawn


def _known(subject: Subject, names: Mapping[int, str]) -> dict[int, Known]:
    """Return what the release says of its clusters, and people of their names."""
    table = {row["cluster"]: row for row in _table(subject)}
    lineage = subject.attempt("What became of clusters", lambda: lineage_of(subject))
    changes = {} if lineage is None else {one.cluster: one for one in lineage.changes}
    known = {}
    for one in table.keys() | names.keys() | changes.keys():
        row, change = table.get(one, {}), changes.get(one)
        known[one] = Known(
            name=names.get(one, ""),
            words=tuple(row.get("top_words") or ()),
            size=row.get("size"),
            spread=row.get("cohesion"),
            size_before=change.size_before if change and change.kind == "kept" else None,
            change=change.kind if change else "",
        )
    return known


def _map_of(subject: Subject, sizes: Mapping[int, int]) -> Map:
    """Return what follows from the centroids of the model; of a damaged one clusters in a ring."""
    model = subject.attempt("Map, words as bars, similar clusters", lambda: _model(subject))
    if model is None:
        return in_a_ring(sorted(sizes))
    centroids = centroids_of(model)
    drawn = map_of(centroids, sizes)

    def with_words() -> Map:
        """Return the map with the words that the release has."""
        words = subject.words()
        return drawn if words is None else with_bars(drawn, centroids, sizes, words)

    return subject.attempt("Words as bars", with_words) or drawn


def _model(subject: Subject) -> HMRFEstimator:
    if subject.model is None:
        raise HmrfError("there is no model")
    return load(f"{subject.url}/{subject.model}")


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
