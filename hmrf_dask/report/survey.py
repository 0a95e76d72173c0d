"""What a report takes of assignments: counts, borderline documents and a sample, from each file.

The sample are the documents whose ids have the lowest hashes: the same for any partitioning, and
mostly the same from release to release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.types import AnyArray, IntArray, Sized

COLUMNS: Final = (
    "doc_id",
    "cluster",
    "distortion",
    "runner_up",
    "margin",
    "constrained",
    "violated",
)
MOST_SAMPLED: Final = 5_000
MOST_BROKEN: Final = 2_000  # documents with broken answers that are compared
TYPICAL, BORDERLINE = 3, 3  # of a cluster
_SCALE = 2.0**32  # distances are added up as integers: the same sum in any order
_KEY = "key"
_SCHEMA = pa.schema(
    [
        ("doc_id", pa.string()),
        ("cluster", pa.int32()),
        ("distortion", pa.float64()),
        ("runner_up", pa.int32()),
        ("margin", pa.float64()),
        ("constrained", pa.bool_()),
        ("violated", pa.int32()),
        (_KEY, pa.uint64()),
        ("pack", pa.string()),
    ]
)


@dataclass(frozen=True)
class Survey(Sized):
    """What was found in some files of assignments, or in all.

    Attributes
    ----------
    clusters : int array
        Their ids, ascending; the other arrays have a value for each.
    sizes, linked, broken, undecided : int array
        Documents; those that answers name; with a broken answer; as near to another cluster.
    spreads : int array
        Sums of distances, in units of 2**-32.
    sampled, typical, borderline, breaking : pyarrow.Table
        Documents: those with the lowest hashes, the nearest to their centroids, the nearest to
        another cluster, and those with broken answers.
    """

    clusters: IntArray
    sizes: IntArray
    linked: IntArray
    broken: IntArray
    undecided: IntArray
    spreads: IntArray
    sampled: pa.Table
    typical: pa.Table
    borderline: pa.Table
    breaking: pa.Table

    @property
    def n_documents(self) -> int:
        """How many documents there are."""
        return int(self.sizes.sum())


def survey_table(table: pa.Table, pack: str, n_sampled: int = MOST_SAMPLED) -> Survey:
    """Return what a report takes of one file of assignments.

    Examples
    --------
    >>> columns = [["a", "b"], [4, 4], [0.1, 0.3], [5, 5], [0.2, 0.0], [True, False], [1, 0]]
    >>> survey = survey_table(pa.table(columns, list(COLUMNS)), "pack")
    >>> survey.clusters.tolist(), survey.sizes.tolist(), survey.undecided.tolist()
    ([4], [2], [1])
    """
    rows = _with_keys(table, pack)
    clusters, places = np.unique(_numbers(rows, "cluster"), return_inverse=True)
    margin = _numbers(rows, "margin", np.inf)
    distances = np.rint(np.nan_to_num(_numbers(rows, "distortion", 0.0)) * _SCALE)

    def counted(chosen: AnyArray) -> IntArray:
        return np.bincount(places[chosen], minlength=len(clusters)).astype(np.int64)

    spreads = np.zeros(len(clusters), np.int64)
    np.add.at(spreads, places, np.clip(distances, -(2.0**50), 2.0**50).astype(np.int64))
    linked = _numbers(rows, "constrained", 0).astype(np.bool_)
    violated = _numbers(rows, "violated", 0) > 0
    survey = Survey(
        clusters=clusters.astype(np.int64),
        sizes=counted(np.ones(len(places), np.bool_)),
        linked=counted(linked),
        broken=counted(violated),
        undecided=counted(margin == 0.0),
        spreads=spreads,
        sampled=rows,
        typical=rows,
        borderline=rows.filter(pc.is_finite(rows["margin"])),
        breaking=rows.filter(pa.array(violated.tolist(), pa.bool_())),
    )
    return _cut(survey, n_sampled)


def merge_surveys(parts: Sequence[Survey], n_sampled: int = MOST_SAMPLED) -> Survey:
    """Return what is in several files together: the same in any order."""
    every = np.concatenate([part.clusters for part in parts])
    clusters, places = np.unique(every, return_inverse=True)
    sums = {}
    for name in ("sizes", "linked", "broken", "undecided", "spreads"):
        total = np.zeros(len(clusters), np.int64)
        np.add.at(total, places, np.concatenate([getattr(part, name) for part in parts]))
        sums[name] = total
    tables = {
        name: pa.concat_tables([getattr(part, name) for part in parts])
        for name in ("sampled", "typical", "borderline", "breaking")
    }
    return _cut(Survey(clusters=clusters, **sums, **tables), n_sampled)


def no_survey() -> Survey:
    """Return a survey of nothing."""
    none = np.zeros(0, np.int64)
    return Survey(*[none] * 6, *[_SCHEMA.empty_table()] * 4)


def _with_keys(table: pa.Table, pack: str) -> pa.Table:
    """Return a table with what documents are sampled by, and the name of their file."""
    ids = table["doc_id"].cast(pa.string())
    keys = hash_ids(np.asarray(ids.to_pylist(), np.str_)) if len(ids) else np.zeros(0, np.uint64)
    columns = [ids, *(table[name] for name in COLUMNS[1:])]
    columns += [pa.array(keys.tolist(), pa.uint64()), pa.array([pack] * len(ids), pa.string())]
    return pa.table(columns, _SCHEMA.names).cast(_SCHEMA)


def _numbers(rows: pa.Table, name: str, missing: float | None = None) -> AnyArray:
    column = rows[name] if missing is None else rows[name].cast(pa.float64()).fill_null(missing)
    values: AnyArray = column.to_numpy()
    return values


def _cut(survey: Survey, n_sampled: int) -> Survey:
    """Leave out of the tables what others come before."""
    return replace(
        survey,
        sampled=_first(survey.sampled, _KEY, n_sampled),
        typical=_first_of_each(survey.typical, "distortion", TYPICAL),
        borderline=_first_of_each(survey.borderline, "margin", BORDERLINE),
        breaking=_first(survey.breaking, _KEY, MOST_BROKEN),
    )


def _first(rows: pa.Table, by: str, most: int) -> pa.Table:
    order = np.lexsort((rows["doc_id"].to_pylist(), rows[by].to_numpy()))
    return _taken(rows, order[:most])


def _first_of_each(rows: pa.Table, by: str, most: int) -> pa.Table:
    """Return the first rows of each cluster, ties by id."""
    clusters, values = rows["cluster"].to_numpy(), rows[by].to_numpy()
    coarse = np.lexsort((values, clusters))
    first = np.searchsorted(clusters[coarse], clusters[coarse])
    last = np.minimum(first + most - 1, len(coarse) - 1)
    # What ties with the last that stays is still in the race by its id.
    ends = np.searchsorted(clusters[coarse], clusters[coarse], "right") - 1
    limit = values[coarse[np.minimum(last, ends)]]
    left = coarse[values[coarse] <= limit] if len(coarse) else coarse
    some = _taken(rows, left)
    clusters, values = some["cluster"].to_numpy(), some[by].to_numpy()
    order = np.lexsort((some["doc_id"].to_pylist(), values, clusters))
    clusters = clusters[order]
    places = np.arange(len(order)) - np.searchsorted(clusters, clusters)
    return _taken(some, order[places < most])


def _taken(rows: pa.Table, places: AnyArray) -> pa.Table:
    return rows.take(pa.array(places.tolist(), pa.int64()))
