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

from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.rows.encoding import as_arrow
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
_MOST = 2.0**50  # of a distance in these units, so that a sum of them is one
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
    ids = table["doc_id"].cast(pa.string()).combine_chunks()
    clusters, places = np.unique(_numbers(table, "cluster"), return_inverse=True)
    margin = _numbers(table, "margin", np.inf)
    linked = _numbers(table, "constrained", 0) > 0
    violated = _numbers(table, "violated", 0) > 0
    distances = np.nan_to_num(_numbers(table, "distortion", 0.0))

    def counted(chosen: AnyArray) -> IntArray:
        """Return how many of the chosen documents each cluster has."""
        return np.bincount(places[chosen], minlength=len(clusters)).astype(np.int64)

    spreads = np.zeros(len(clusters), np.int64)
    np.add.at(spreads, places, np.rint(distances * _SCALE).clip(-_MOST, _MOST).astype(np.int64))
    keys = hash_ids(np.asarray(ids.to_pylist(), np.str_)) if len(ids) else np.zeros(0, np.uint64)
    every = np.arange(len(keys))
    finite = every[np.isfinite(margin)]
    chosen = {
        "sampled": _lowest(keys, every, n_sampled),
        "typical": _lowest_of_each(distances, places, every, TYPICAL),
        "borderline": _lowest_of_each(margin, places, finite, BORDERLINE),
        "breaking": _lowest(keys, every[violated], MOST_BROKEN),
    }
    survey = Survey(
        clusters=clusters.astype(np.int64),
        sizes=counted(every),
        linked=counted(linked),
        broken=counted(violated),
        undecided=counted(margin == 0.0),
        spreads=spreads,
        **{name: _with_keys(table, ids, keys, rows, pack) for name, rows in chosen.items()},
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


def _with_keys(
    table: pa.Table, ids: pa.Array, keys: AnyArray, rows: AnyArray, pack: str
) -> pa.Table:
    """Return some rows with what documents are sampled by, and the name of their file."""
    places = as_arrow(rows, pa.int64())
    columns = [ids.take(places), *(table[name].take(places) for name in COLUMNS[1:])]
    columns += [as_arrow(keys[rows], pa.uint64()), pa.array([pack] * len(rows), pa.string())]
    return pa.table(columns, _SCHEMA.names).cast(_SCHEMA)


def _lowest(values: AnyArray, rows: AnyArray, most: int) -> AnyArray:
    """Return the rows with the lowest values, and all that tie with the last of them."""
    if len(rows) <= most:
        return rows
    limit = np.partition(values[rows], most - 1)[most - 1]
    lowest: AnyArray = rows[values[rows] <= limit]
    return lowest


def _lowest_of_each(values: AnyArray, clusters: AnyArray, rows: AnyArray, most: int) -> AnyArray:
    """Return the rows with the lowest values of each cluster, and all that tie with the last."""
    order = rows[np.lexsort((values[rows], clusters[rows]))]
    of, ends = clusters[order], np.searchsorted(clusters[order], clusters[order], "right") - 1
    first = np.searchsorted(of, of)
    limits = values[order[np.minimum(first + most - 1, ends)]]
    lowest: AnyArray = order[values[order] <= limits]
    return lowest


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
    """Return the first rows, ties by id."""
    order = np.lexsort((rows["doc_id"].to_pylist(), rows[by].to_numpy()))
    return rows.take(as_arrow(order[:most], pa.int64()))


def _first_of_each(rows: pa.Table, by: str, most: int) -> pa.Table:
    """Return the first rows of each cluster, ties by id."""
    clusters = rows["cluster"].to_numpy()
    order = np.lexsort((rows["doc_id"].to_pylist(), rows[by].to_numpy(), clusters))
    clusters = clusters[order]
    places = np.arange(len(order)) - np.searchsorted(clusters, clusters)
    return rows.take(as_arrow(order[places < most], pa.int64()))
