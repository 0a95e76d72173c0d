"""The cluster of every document as Parquet, and the table of what each cluster is about."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse as sp

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.comparison import (
    Compared,
    assigned_columns,
    broken_by_row,
    compare,
    id_type,
)
from hmrf_dask.estimators.prediction import marked_labels_of, over_partitions
from hmrf_dask.flow.dataflow import DaskFlow, Lazy, share_array, tree
from hmrf_dask.jobs.packs import read_hashed
from hmrf_dask.jobs.places import ASSIGNMENTS_FOLDER
from hmrf_dask.jobs.words import (
    LENGTHS,
    DocumentWords,
    length_classes,
    sums_by_cluster,
    telling_words,
    usual_classes,
)
from hmrf_dask.kernels.exact import BASE, LIMBS, exact_integer, exact_sum
from hmrf_dask.releases.own_files import ASSIGNMENTS, HASHES
from hmrf_dask.releases.release import read_file
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.sealed import digest
from hmrf_dask.storage.stores import Storage, open_storage, temporary_target
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet
from hmrf_dask.text.files import Place
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray, Sized

Files = dict[str, str]  # sha256 by name below the output
REPRESENTATIVES = 5  # documents of usual length nearest to a centroid, listed for its cluster


@dataclass(frozen=True)
class Nearest(Sized):
    """The documents nearest to each centroid, of each class of lengths some, in order."""

    labels: LabelArray
    lengths: IntArray  # the class that the length of a document is of; 0 where words are not known
    distances: FloatArray
    ids: AnyArray


@dataclass(frozen=True)
class Assigned(Sized):
    """What was written of some partitions, or of all."""

    files: dict[str, str]  # the sha256 of every file, by its name below the folder
    sizes: IntArray  # documents of each label
    distortions: IntArray  # (K, LIMBS), exact sums of their distances to their own centroids
    nearest: Nearest
    lengths: IntArray  # (K, LENGTHS), documents of each class of lengths
    terms: sp.csr_array | None  # (K, n_terms), how many documents have each; None: not known
    n_outliers: int  # documents of no cluster
    violations: dict[str, int]  # how many of the given pairs are broken, by kind

    def sized_values(self) -> tuple[Any, ...]:
        """Return what is large; the size of sparse terms is that of their arrays."""
        terms = self.terms
        arrays = () if terms is None else (terms.data, terms.indices, terms.indptr)
        return self.files, self.sizes, self.distortions, self.nearest, self.lengths, arrays


@dataclass(frozen=True)
class _Target:
    """Where a file goes and what labels are called there.

    `kept` is the file in the output `place` with the columns that go through to it.
    """

    url: str
    cluster_ids: tuple[int, ...]
    place: Place | None = None
    path: str = ""
    kept: str | None = None


class Part(NamedTuple):
    """What a partition of a job's corpus is called.

    `kept` is the file below the output with the columns that go through to its assignments, and
    `words` are what `Assigned` says of words and lengths of its documents, lazily.
    """

    name: str
    kept: str | None = None
    words: Lazy | None = None


def write_assignments(
    corpus: Corpus,
    labels: Any,
    model: HMRFEstimator,
    folder: str,
    *,
    constraints: Constraints | None = None,
    parts: Sequence[Part] | None = None,
    place: Place | None = None,
) -> Assigned:
    """Write FOLDER/assignments, one file for each partition.

    Columns: doc_id; cluster; distortion, the document's distance to the centroid of its cluster;
    runner_up, the nearest other cluster (null where there is one cluster); margin, how much farther
    that one is (negative where pairs hold the document in a cluster that is not the nearest);
    constrained, whether a given pair names it; violated, how many of those pairs are broken; then
    the columns that a manifest keeps. An outlier has cluster -1, the nearest cluster as runner_up,
    the distance to that, and no margin.

    Parameters
    ----------
    corpus : Corpus
        Its ids become doc_id; without ids they are the row numbers.
    labels : dask array, shape (n_rows,), or None
        In the corpus's own chunks, -1 of outliers. None: the nearest cluster of each row.
    model : HMRFEstimator
        Fitted; its `cluster_ids_` are what clusters are called in the files.
    folder : str
        Local folder or URL that every worker can write.
    constraints : Constraints, optional
        The given pairs. Those of documents that the corpus has not count as kept.
    parts : sequence of Part, optional
        One for each partition; the same documents again go best under the same name.
    place : Place, optional
        The output that files of kept columns lie in.
    """
    predictor = model.predictor()
    n_features = predictor.centroids.shape[1]
    if corpus.n_features != n_features:  # kernels trust their input
        raise InvalidInputError(
            f"rows must have the {n_features} columns that the model was fitted on, got "
            f"{corpus.n_features}; make them with the same vocabulary"
        )
    target = _Target(absolute_url(folder), tuple(model.cluster_ids_.tolist()), place)
    paths = paths_of(corpus, None if parts is None else [part.name for part in parts])
    storage = open_storage(target.url, {}, durable=True)
    storage.make_root()
    if parts is None:  # else a run names them, in a folder that it made
        _refuse_foreign(storage)
    flow = DaskFlow()
    if labels is None:
        found = over_partitions(flow, marked_labels_of, predictor, corpus)
    else:
        found = list(labels.to_delayed().ravel())
    broken, violations = broken_by_row(flow, corpus, found, constraints)
    compared = over_partitions(flow, compare, predictor, corpus, found)
    files = [
        flow.lazy(
            _write_part, block, rows, replace(target, path=path, kept=part.kept),
            tuple(share_array(flow, one) for one in pairs), part.words,
        )
        for block, rows, path, part, pairs in zip(
            corpus.named, compared, paths, parts or [Part("")] * len(paths), broken, strict=True
        )
    ]  # fmt: skip
    written: Assigned = flow.compute([tree(flow, _joined, files)])[0]
    # Files of a former fit in other partitions; its documents would come twice.
    former = filter(ASSIGNMENTS.fullmatch, storage.names(ASSIGNMENTS_FOLDER))
    storage.delete({f"{ASSIGNMENTS_FOLDER}/{name}" for name in former} - set(paths))
    return replace(written, violations=violations)


def _refuse_foreign(storage: Storage) -> None:
    """Refuse a folder in which files lie that no former call wrote: they would be read, too."""
    names = [name for name in storage.names(ASSIGNMENTS_FOLDER) if temporary_target(name) is None]
    if foreign := [name for name in sorted(names) if not _is_own(storage, name)]:
        raise RunDirectoryError(
            f"assignments must go into a new folder or one that a former call wrote, got "
            f"{storage.url}/{ASSIGNMENTS_FOLDER}, which holds {foreign[0]}; name another folder"
        )


def _is_own(storage: Storage, name: str) -> bool:
    if not ASSIGNMENTS.fullmatch(name):
        return name == HASHES
    try:
        schema = pq.read_schema(pa.BufferReader(storage.read(f"{ASSIGNMENTS_FOLDER}/{name}")))
    except (OSError, pa.ArrowException, ValueError):
        return False
    return {"doc_id", "cluster", "distortion", "violated"} <= set(schema.names)


def paths_of(corpus: Corpus, names: Sequence[str] | None) -> list[str]:
    """Return the file of each partition, below the folder of the run."""
    n_parts = corpus.n_partitions
    if names is None:
        names = [f"part-{number:05}-of-{n_parts:05}.parquet" for number in range(n_parts)]
    if len(names) != n_parts or len(set(names)) != n_parts:
        raise InvalidInputError(
            f"names must be one for each of the {n_parts} partitions, all different, got "
            f"{len(names)} of which {len(set(names))} differ"
        )
    return [f"{ASSIGNMENTS_FOLDER}/{name}" for name in names]


def table_of(place: Place, files: Files, columns: list[str] | None = None) -> pa.Table:
    """Return some files of assignments as one table."""
    storage = place.storage
    return pa.concat_tables(
        [decode_parquet(read_file(storage, *file), columns) for file in sorted(files.items())]
    )


def require_columns(wanted: Sequence[str] | None, there: Sequence[str]) -> None:
    """Refuse columns that assignments do not have, naming those that they have.

    Examples
    --------
    >>> require_columns(["size"], ["doc_id", "cluster"])
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.InvalidInputError: columns must be among those of the assignments ...
    """
    unknown = [column for column in wanted or () if column not in there]
    if unknown:
        raise InvalidInputError(
            f"columns must be among those of the assignments ({', '.join(there)}), got "
            f"{', '.join(map(repr, unknown))}; name some of these, or leave columns out"
        )


def by_key(files: Files) -> dict[str, Files]:
    """Return files of assignments by what their rows are called."""
    sorted_out: dict[str, Files] = defaultdict(dict)
    for name, sha256 in files.items():
        sorted_out[key_of(name)][name] = sha256
    return sorted_out


def key_of(name: str) -> str:
    """Return what the rows of a file of assignments are called.

    Examples
    --------
    >>> key_of("runs/4fce/assignments/0a1b2c-00000.parquet")
    '0a1b2c'
    """
    return name.rpartition("/")[2].partition("-")[0]


def _write_part(
    block: RowBlock,
    compared: Compared,
    target: _Target,
    pairs: tuple[IntArray, IntArray],
    words: DocumentWords | None,
) -> Assigned:
    """Write the file of one partition; `pairs` are rows that have some, and how many are broken."""
    called = np.asarray(target.cluster_ids, np.int32)
    columns = assigned_columns(block, compared, called, pairs)
    if target.kept is not None and target.place is not None:
        columns |= _kept_of(block, target.kept, target.place)
    data = encode_parquet(pa.table(columns))
    open_storage(target.url, {}, durable=True).write(target.path, data)
    return _summary({target.path: digest(data)}, compared, block.ids, words, len(called))


def _summary(
    files: Files,
    compared: Compared,
    ids: AnyArray,
    words: DocumentWords | None,
    n_clusters: int,
) -> Assigned:
    """Return what a partition says of clusters."""
    inside = np.flatnonzero(compared.labels >= 0)
    labels, own, ids = compared.labels[inside], compared.own[inside], ids[inside]
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(1, n_clusters))
    sums = [exact_sum(some) for some in np.split(own[order], bounds)]
    known = np.zeros(len(own), np.int64) if words is None else words.lengths[inside]
    lengths = length_classes(known)
    cells = np.bincount(labels.astype(np.int64) * LENGTHS + lengths, minlength=n_clusters * LENGTHS)
    return Assigned(
        files,
        np.bincount(labels, minlength=n_clusters).astype(np.int64),
        np.asarray(sums, np.int64).reshape(n_clusters, LIMBS),
        _nearest(Nearest(labels, lengths, own, ids)),
        cells.reshape(n_clusters, LENGTHS).astype(np.int64),
        None if words is None else sums_by_cluster(words.terms[inside], labels, n_clusters),
        n_outliers=len(compared.labels) - len(inside),
        violations={},
    )


def _kept_of(block: RowBlock, name: str, place: Place) -> dict[str, pa.Array]:
    """Return the columns that go through to assignments, of the documents of a block."""
    table = read_hashed(place.storage, name, decode_parquet)
    places = pc.index_in(pa.array(block.ids.tolist(), pa.string()), value_set=table["id"])
    rows = table.drop_columns("id").take(places)
    return {name: rows[name].combine_chunks() for name in rows.column_names}


def _nearest(rows: Nearest) -> Nearest:
    """Return the nearest of each label and class of lengths: least distances first, ties by id."""
    order = np.lexsort((rows.ids, rows.distances, rows.lengths, rows.labels))
    cells = (rows.labels.astype(np.int64) * LENGTHS + rows.lengths)[order]
    first = np.searchsorted(cells, cells)
    chosen = order[np.arange(len(order)) - first < REPRESENTATIVES]
    return Nearest(
        rows.labels[chosen], rows.lengths[chosen], rows.distances[chosen], rows.ids[chosen]
    )


def _joined(parts: Sequence[Assigned]) -> Assigned:
    """Return what several parts wrote."""
    near = [part.nearest for part in parts]
    together = Nearest(
        np.concatenate([part.labels for part in near]),
        np.concatenate([part.lengths for part in near]),
        np.concatenate([part.distances for part in near]),
        np.concatenate([part.ids for part in near if len(part.ids)] or [near[0].ids]),
    )
    terms = [part.terms for part in parts if part.terms is not None]
    return Assigned(
        {name: sha256 for part in parts for name, sha256 in part.files.items()},
        np.sum([part.sizes for part in parts], axis=0, dtype=np.int64),
        np.sum([part.distortions for part in parts], axis=0, dtype=np.int64),
        _nearest(together),
        np.sum([part.lengths for part in parts], axis=0, dtype=np.int64),
        reduce(operator.add, terms) if terms else None,
        n_outliers=sum(part.n_outliers for part in parts),
        violations={},
    )


NAME = "clusters.parquet"


def write_clusters(
    assigned: Assigned, model: HMRFEstimator, folder: str, *, terms: pa.Array | None = None
) -> dict[str, str]:
    """Write FOLDER/clusters.parquet, one row for each cluster, by id; return its name and sha256.

    Columns: cluster; size; top_words, those that tell it from the other clusters (null where words
    or what they are called, `terms`, is not known); representatives, the ids of those documents of
    usual length that are nearest to the centroid; cohesion, the mean distance of its documents to
    it (null where there are none).
    """
    called, top_words = model.cluster_ids_, None
    if assigned.terms is not None and terms is not None:
        top_words = telling_words(assigned.terms, terms)
    order = np.argsort(called, kind="stable").tolist()
    near = [_representatives(assigned, label) for label in order]
    listed = [top_words[label] if top_words else None for label in order]
    table = pa.table(
        {
            "cluster": pa.array(called[order].tolist(), pa.int32()),
            "size": pa.array(assigned.sizes[order].tolist(), pa.int64()),
            "top_words": pa.array(listed, pa.list_(pa.string())),
            "representatives": pa.array(near, pa.list_(id_type(assigned.nearest.ids))),
            "cohesion": pa.array([_cohesion(assigned, label) for label in order], pa.float64()),
        }
    )
    data, storage = encode_parquet(table), open_storage(absolute_url(folder), {}, durable=True)
    storage.make_root()
    storage.write(NAME, data)
    return {NAME: digest(data)}


def _representatives(assigned: Assigned, label: int) -> list[Any]:
    """Return the ids of the documents of usual length nearest to a centroid, the nearest first."""
    near, usual = assigned.nearest, usual_classes(assigned.lengths[label])
    listed = np.flatnonzero((near.labels == label) & usual[near.lengths])
    best = listed[np.lexsort((near.ids[listed], near.distances[listed]))][:REPRESENTATIVES]
    return near.ids[best].tolist()  # type: ignore[no-any-return]


def _cohesion(assigned: Assigned, label: int) -> float | None:
    """Return the mean distance of a cluster, correctly rounded: for any partitioning the same."""
    size = int(assigned.sizes[label])
    if not size:
        return None
    return float(Fraction(exact_integer(assigned.distortions[label]), size << BASE))
