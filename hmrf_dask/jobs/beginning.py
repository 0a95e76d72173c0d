"""How the fit of a run begins: with the last centroids, as people edited them, or cold."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.answers.records import Entry
from hmrf_dask.errors import HmrfWarning
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.classes import ESTIMATORS
from hmrf_dask.fit.division import Division, divide
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs.job_file import Method
from hmrf_dask.jobs.places import EDITED, LINEAGE, assignments_of
from hmrf_dask.jobs.reshape import (
    Edits,
    Former,
    Reshaping,
    Start,
    decode_former,
    in_words,
    with_made,
)
from hmrf_dask.parameters import PARAMETERS
from hmrf_dask.releases.lineage import Lineage
from hmrf_dask.releases.release import DamagedReleaseError, Release, read_file
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.text.files import Place
from hmrf_dask.text.tfidf import Vocabulary
from hmrf_dask.types import AnyArray, FloatArray

if TYPE_CHECKING:
    from hmrf_dask.jobs.steps import JobRun, Material

MOST: Final = 20_000  # documents of a cluster that its parts are found in
log = logging.getLogger("hmrf_dask")


@dataclass(frozen=True)
class Beginning:
    """How a fit begins."""

    n_clusters: int
    first: FloatArray | None = None  # its centroids; None: cold
    alone: bool = False  # no other start competes with them
    edits: Edits | None = None
    called: dict[int, int] = field(default_factory=dict)  # ids of labels that edits decide
    parts: dict[str, list[int]] = field(default_factory=dict)  # labels of those of each split
    former: dict[str, list[Former]] = field(default_factory=dict)

    def edits_of(self, ids: Sequence[int]) -> Edits | None:
        """Return the edits of a release, whose splits made clusters with the `ids` of labels."""
        return None if self.edits is None else with_made(self.edits, self.parts, ids)

    @property
    def start(self) -> str:
        """Warm or cold."""
        return "cold" if self.first is None else "warm"


def begin(run: JobRun, material: Material, method: Method) -> Beginning:
    """Return how the fit of a run begins; `method` has the number of clusters that is asked for."""
    asked, last, entries = int(method.n_clusters), run.previous, run.inputs.journal.edits
    before = None if last is None else Edits.of(last.ledger, last.counts["clusters"])
    if reason := _cold_by_choice(run, method, before, asked):
        return _cold(asked, entries, before, reason)
    assert last is not None
    assert before is not None
    n_last, first, now = int(last.counts["clusters"]), None, material.rows.vocabulary
    known = run.last_vocabulary is not None or now is None  # else nobody knows which column is what
    if known:
        model = run.last_model
        first = warm_centroids(method, model, run.last_vocabulary, now, n_clusters=n_last)
        if first is not None and first.shape[1] != material.corpus.n_features:
            first = None
    if first is None:
        return Beginning(n_last, edits=waiting_edits(before, entries, asked))
    if not entries and not before.applied:
        return Beginning(n_last, first)
    return _edited(run, material, method, before, first)


def _cold_by_choice(run: JobRun, method: Method, before: Edits | None, asked: int) -> str:
    """Return why a fit is to begin cold whatever the last release has, "" where it is not."""
    if run.previous is None or before is None:
        return "there is no release to continue"
    if run.inputs.job.start == "cold":
        return "the job says start: cold"
    if method.name not in PARAMETERS["init"].methods:
        return f"seeds give the first centroids of {method.name}"
    if asked not in (before.n_clusters, run.previous.counts["clusters"]):
        return f"n_clusters is {asked} now, it was {before.n_clusters}"
    return ""


def _cold(asked: int, entries: Sequence[Entry], before: Edits | None, reason: str) -> Beginning:
    """Return a cold start, which leaves all edits: their clusters are not those to come."""
    if before is not None:
        log.info("%s: a cold start", reason)
    ended = set() if before is None else set(before.ended)
    if left := [entry for entry in entries if entry.id not in ended]:
        _warn(
            f"{'; '.join(map(in_words, left))}: nothing comes of it, as the clusters are found "
            f"without those of the last release ({reason})"
        )
    names = tuple(entry.id for entry in entries)
    return Beginning(asked, edits=Edits(asked, ended=names) if names else None)


def waiting_edits(before: Edits, entries: Sequence[Entry], asked: int) -> Edits | None:
    """Return the edits of a release whose columns are others: as many clusters, nothing new."""
    known = {*before.ended, *(edit.id for edit in before.applied)}
    standing = {entry.id for entry in entries}
    waiting = tuple(entry.id for entry in entries if entry.id not in known)
    waiting += tuple(edit.id for edit in before.applied if edit.id not in standing)  # to be undone
    if waiting:
        _warn(
            "edits of clusters wait for the run after this one, as this one cannot begin with the "
            "last centroids: run the job once more"
        )
    return replace(before, n_clusters=asked, waiting=waiting) or None


def _edited(
    run: JobRun, material: Material, method: Method, before: Edits, first: FloatArray
) -> Beginning:
    """Return the last centroids as edits make them."""
    lineage = Lineage.from_json(run.read_last(LINEAGE))
    starts = [
        Start(cluster, centroid, size, (cluster,))
        for cluster, centroid, size in zip(lineage.ids, first, lineage.sizes, strict=True)
    ]

    def parts(clusters: tuple[int, ...], n_parts: int) -> Division | None:
        """Return the parts of some clusters of the last release."""
        wanted = method.model_copy(update={"n_clusters": n_parts})
        return _divided(run, material, wanted, clusters)

    reshaping = Reshaping(starts, before, _former(run, material), parts)
    reshaping.follow(run.inputs.journal.edits)
    for remark in reshaping.remarks:
        _warn(remark)
    edits = replace(reshaping.edits, n_clusters=int(method.n_clusters))
    for said in edits.described(len(reshaping.starts)):
        log.info("%s", said)
    return Beginning(
        n_clusters=len(reshaping.starts),
        first=reshaping.centroids,
        alone=reshaping.changed,
        edits=edits or None,
        called=reshaping.called,
        parts=reshaping.parts,
        former=reshaping.former,
    )


def _former(run: JobRun, material: Material) -> dict[str, list[Former]]:
    """Return clusters before edits that the last release has, their columns as they are now."""
    former = decode_former(run.read_last(EDITED))
    before, now = run.last_vocabulary, material.rows.vocabulary
    mapped: dict[str, list[Former]] = {}
    for name, clusters in former.items():
        centroids = _as_now(np.stack([one.centroid for one in clusters]), before, now)
        if centroids.any(axis=1).all():  # else no word is left that one had
            pairs = zip(clusters, centroids, strict=True)
            mapped[name] = [one._replace(centroid=row) for one, row in pairs]
    return mapped


def _divided(
    run: JobRun, material: Material, method: Method, clusters: tuple[int, ...]
) -> Division | None:
    assert run.previous is not None
    settings, distortion = ESTIMATORS[method.name](**method.parameters)._settings(None, None)
    documents = _documents_of(run.place, run.previous, clusters)
    return divide(material.corpus, documents, settings, distortion)


def _documents_of(place: Place, release: Release, clusters: tuple[int, ...]) -> AnyArray:
    """Return ids of documents of some clusters, sorted: all, or of many those of lowest hash."""
    flow = DaskFlow()
    files = sorted(assignments_of(release.files).items())
    lists = [flow.lazy(_lowest, place, *file, clusters) for file in files]
    lowest: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    return np.sort(lowest.ids)


def _lowest(place: Place, name: str, sha256: str, clusters: tuple[int, ...]) -> Lowest:
    """Return the documents of clusters in a file; none where it is damaged, which is said later."""
    ids = np.zeros(0, np.str_)
    try:
        table = decode_parquet(read_file(place.storage, name, sha256), ["doc_id", "cluster"])
    except DamagedReleaseError:
        pass
    else:
        inside = table.filter(pc.is_in(table["cluster"], value_set=_numbers(clusters)))
        ids = np.asarray(inside["doc_id"].to_pylist(), np.str_)
    return Lowest(hash_ids(ids).astype(np.float64), ids, np.zeros(len(ids), np.int64), MOST).cut()


def _numbers(clusters: tuple[int, ...]) -> pa.Array:
    return pa.array(clusters, pa.int32())


def _warn(said: str) -> None:
    warnings.warn(said, HmrfWarning, stacklevel=2)


def warm_centroids(
    method: Method,
    last: HMRFEstimator,
    before: Vocabulary | None,
    now: Vocabulary | None,
    *,
    n_clusters: int,
) -> FloatArray | None:
    """Return the centroids of the last model as columns are now; None where they are of no use.

    Vocabularies are those of the last fit and of the one to come; None where rows are embeddings.
    """
    centroids = last.cluster_centers_
    distortion = method.value_of("distortion")
    same = type(last).__name__ == method.name and len(centroids) == n_clusters
    if not same or last._distortion.name not in (distortion, "euclidean"):
        log.info("the method is another one than that of the last model: a cold start")
        return None
    if before is None or now is None or before.identity == now.identity:
        return centroids
    if before.dense != now.dense:
        log.info("embeddings are others than those of the last model: a cold start")
        return None
    alone = now.dense is not None and now.dense.alone
    if not alone and (len(before.components) or len(now.components)):
        log.info("components of the vocabulary were made again: a cold start")
        return None
    moved = _as_now(centroids, before, now)
    if not moved.any(axis=1).all():
        log.info("a centroid has no word of the new vocabulary: a cold start")
        return None
    return moved


def _as_now(centroids: FloatArray, before: Vocabulary | None, now: Vocabulary | None) -> FloatArray:
    """Return centroids with the columns of another vocabulary; new words begin at zero."""
    if before is None or now is None or before.identity == now.identity:
        return centroids
    if now.settings.kind == "hashing" or (now.dense is not None and now.dense.alone):
        return centroids  # a bucket is a bucket
    places = now.places(before.terms)
    known = np.flatnonzero(places >= 0)
    moved = np.zeros((len(centroids), now.n_features))
    moved[:, places[known]] = centroids[:, known]
    moved[:, now.n_word_columns :] = centroids[:, before.n_word_columns :]
    return moved
