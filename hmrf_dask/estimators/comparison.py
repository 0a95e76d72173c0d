"""Rows next to the clusters of a model: distances, the nearest other cluster, pairs they break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus, delayed_chunks, is_dask_array
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.estimators.prediction import (
    OUTLIER,
    Predictor,
    marked_labels_of,
    over_partitions,
)
from hmrf_dask.flow.dataflow import DaskFlow, Lazy, share_array, tree
from hmrf_dask.report.survey import Survey, merge_surveys, survey_table
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import as_arrow
from hmrf_dask.tasks.partitions import find_ids, labels_at
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray, Sized

if TYPE_CHECKING:
    from hmrf_dask.estimators.base import HMRFEstimator

Places = tuple[IntArray, IntArray]  # which of the documents named, and their rows of a partition
_BATCH_BYTES = 2**26  # of the distances of some rows to all centroids


@dataclass(frozen=True)
class Compared(Sized):
    """Rows next to the clusters."""

    labels: LabelArray
    own: FloatArray  # distance to the own centroid
    runner_up: LabelArray  # the nearest other cluster
    nearest: FloatArray  # how far it is; infinity where there is none


def compare(block: RowBlock, predictor: Predictor, table: Any, labels: LabelArray) -> Compared:
    """Compare rows with their own cluster and the nearest other one.

    The distances are those of `transform`; ties go to the lowest cluster, as in `predict`. Outliers
    have no cluster: their own distance is the least one, and the nearest cluster the other one.
    """
    n_rows, n_clusters = block.n_rows, len(predictor.centroids)
    own, nearest = np.empty(n_rows), np.empty(n_rows)
    runner_up = np.zeros(n_rows, np.int32)
    step = max(1, _BATCH_BYTES // (8 * n_clusters))
    for start in range(0, n_rows, step):
        some = slice(start, min(start + step, n_rows))
        rows = block.rows(some.start, some.stop)
        matrix = predictor.distortion.distances(rows, predictor.terms(rows), table)
        every, outliers = np.arange(rows.n_rows), labels[some] < 0
        nearest_of_all = matrix.argmin(axis=1)
        own[some] = matrix[every, np.where(outliers, nearest_of_all, labels[some])]
        inside = np.flatnonzero(~outliers)
        matrix[inside, labels[some][inside]] = np.inf
        runner_up[some] = matrix.argmin(axis=1)
        nearest[some] = matrix[every, runner_up[some]]
    return Compared(labels, own, runner_up, nearest)


def marked_labels(model: HMRFEstimator) -> Any:
    """Return the labels of a fit, lazy where they are, with -1 in place of those of outliers."""
    labels, outliers = model.labels_, model.outliers_
    return labels if outliers is None else labels - (labels - OUTLIER) * outliers


def labels_by_partition(flow: DaskFlow, model: HMRFEstimator, corpus: Corpus) -> list[Lazy]:
    """Return the labels of each partition, -1 of outliers; of a model that was read the nearest.

    Raises where a fit was of another number of rows.
    """
    if not hasattr(model, "labels_"):
        return over_partitions(flow, marked_labels_of, model.predictor(), corpus)
    labels = marked_labels(model)
    if len(labels) != corpus.n_rows:
        raise InvalidInputError(
            f"X must be the {len(labels)} rows that fit was given, got {corpus.n_rows}; of other "
            "rows predict says the clusters"
        )
    if is_dask_array(labels):
        return list(delayed_chunks(labels.rechunk((tuple(corpus.row_counts),))))
    return [share_array(flow, labels[start:stop]) for start, stop in pairwise(corpus.offsets)]


class SurveyedRows(NamedTuple):
    """A survey of rows, and how many of the given pairs they break, by kind."""

    survey: Survey
    violations: dict[str, int]


def survey_rows(
    model: HMRFEstimator, corpus: Corpus, constraints: Constraints | None = None
) -> SurveyedRows:
    """Return what a report takes of fitted rows, each partition in a task."""
    flow, predictor = DaskFlow(), model.predictor()
    labels = labels_by_partition(flow, model, corpus)
    broken, violations = broken_by_row(flow, corpus, labels, constraints)
    compared = over_partitions(flow, compare, predictor, corpus, labels)
    called = share_array(flow, model.cluster_ids_)
    parts = [
        flow.lazy(_surveyed, block, rows, called, tuple(share_array(flow, one) for one in pairs))
        for block, rows, pairs in zip(corpus.named, compared, broken, strict=True)
    ]
    whole: Survey = flow.compute([tree(flow, merge_surveys, parts)])[0]
    return SurveyedRows(whole, violations)


def _surveyed(
    block: RowBlock, compared: Compared, called: LabelArray, pairs: tuple[IntArray, IntArray]
) -> Survey:
    return survey_table(pa.table(assigned_columns(block, compared, called, pairs)), "")


def broken_by_row(
    flow: DaskFlow, corpus: Corpus, labels: Sequence[Lazy], constraints: Constraints | None
) -> tuple[list[tuple[IntArray, IntArray]], dict[str, int]]:
    """Return of each partition the rows that pairs name and how many of these are broken, and all.

    A pair that names a document the corpus has not counts as kept. Labels come here of the
    documents alone that are named.
    """
    if constraints is None:
        none = np.zeros(0, np.int64)
        return [(none, none)] * corpus.n_partitions, {"must_link": 0, "cannot_link": 0}
    places = _places(flow, corpus, constraints)
    used = [number for number, (documents, _) in enumerate(places) if len(documents)]
    found = flow.compute(
        [flow.lazy(labels_at, labels[one], share_array(flow, places[one][1])) for one in used]
    )
    known = np.full(len(constraints.documents), -1, np.int32)
    for number, some in zip(used, found, strict=True):
        known[places[number][0]] = some
    must, cannot = known[constraints.must_nodes], known[constraints.cannot_nodes]
    there = (must >= 0).all(axis=1), (cannot >= 0).all(axis=1)
    across = constraints.must_nodes[there[0] & (must[:, 0] != must[:, 1])]
    together = constraints.cannot_nodes[there[1] & (cannot[:, 0] == cannot[:, 1])]
    ends = np.concatenate([across.ravel(), together.ravel()])
    broken = np.bincount(ends, minlength=len(known))
    by_kind = {"must_link": len(across), "cannot_link": len(together)}
    return [(rows, broken[documents]) for documents, rows in places], by_kind


def _places(flow: DaskFlow, corpus: Corpus, constraints: Constraints) -> list[Places]:
    """Return which of the documents named each partition holds, and at which of its rows."""
    documents = constraints.documents
    if constraints.by_id:
        shared = flow.share(documents)
        return flow.compute([flow.lazy(find_ids, block, shared) for block in corpus.named])
    bounds = np.searchsorted(documents, corpus.offsets)
    return [
        (np.arange(start, stop), documents[start:stop] - first)
        for start, stop, first in zip(bounds[:-1], bounds[1:], corpus.offsets, strict=False)
    ]


def assigned_columns(
    block: RowBlock, compared: Compared, called: LabelArray, pairs: tuple[IntArray, IntArray]
) -> dict[str, pa.Array]:
    """Return the columns that files of assignments have.

    Parameters
    ----------
    block : RowBlock
    compared : Compared
    called : int32 array, shape (K,)
        What clusters are called.
    pairs : tuple of int array
        The rows that pairs name, and how many of these pairs are broken.
    """
    labels, own, runner_up = compared.labels, compared.own, compared.runner_up
    rows, violated = pairs
    outliers = labels < 0
    broken = np.zeros(block.n_rows, np.int32)
    broken[rows] = violated
    constrained = np.zeros(block.n_rows, np.bool_)
    constrained[rows] = True
    columns = {
        "doc_id": pa.array(block.ids.tolist(), id_type(block.ids)),
        "cluster": as_arrow(np.where(outliers, np.int32(OUTLIER), called[labels]), pa.int32()),
        "distortion": as_arrow(own, pa.float64()),
        "runner_up": as_arrow(called[runner_up], pa.int32()),
        "margin": as_arrow(compared.nearest - own, pa.float64()),
        "constrained": as_arrow(constrained, pa.bool_()),
        "violated": as_arrow(broken, pa.int32()),
    }
    if outliers.any():
        no_margin = as_arrow(outliers, pa.bool_())
        columns["margin"] = pc.if_else(no_margin, pa.scalar(None, pa.float64()), columns["margin"])
    if len(called) == 1:  # no other cluster
        columns["runner_up"] = pa.nulls(len(own), pa.int32())
        columns["margin"] = pa.nulls(len(own), pa.float64())
    return columns


def id_type(ids: AnyArray) -> pa.DataType:
    """Return the type of a column of such ids."""
    return pa.string() if ids.dtype.kind == "U" else pa.int64()
