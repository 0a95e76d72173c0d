"""What each cluster is about, as one small table: clusters.parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.addresses import absolute_url, refuse_credentials
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.jobs.assignments import Assigned, id_type
from hmrf_dask.kernels.exact import BASE, exact_integer
from hmrf_dask.runs.records import digest
from hmrf_dask.runs.storage import open_storage
from hmrf_dask.types import AnyArray, FloatArray, LabelArray

NAME = "clusters.parquet"
Words = AnyArray | Sequence[str] | Callable[[FloatArray], list[list[str]]]


def write_clusters(
    assigned: Assigned,
    model: HMRFEstimator,
    folder: str,
    *,
    words: Words | None = None,
    n_words: int = 10,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Write FOLDER/clusters.parquet, one row for each cluster, by id.

    Columns: cluster; size; top_words (null without `words`); representatives, the ids of the
    documents nearest to the centroid; cohesion, the mean distance of its documents to it (null
    where there are none).

    Parameters
    ----------
    assigned : Assigned
        What `write_assignments` returned.
    model : HMRFEstimator
        Fitted; its `cluster_ids_` are what clusters are called.
    folder : str
        Local folder or URL.
    words : array of str of shape (n_features,), or callable, optional
        Names of the features: the largest entries of a centroid are its top words. Or what gives
        the words of centroids, shape (K, n_features), one list for each.
    n_words : int
        Most words of a cluster.
    storage_options : mapping, optional
        For fsspec, without credentials.

    Returns
    -------
    dict of str to str
        The sha256 of the file by its name.
    """
    refuse_credentials(storage_options or {})
    storage = open_storage(absolute_url(folder), dict(storage_options or {}), durable=True)
    top_words = _top_words(model.cluster_centers_, words, n_words)
    data = _encoded(assigned, model.cluster_ids_, top_words)
    storage.make_root()
    storage.write(NAME, data)
    return {NAME: digest(data)}


def _encoded(assigned: Assigned, called: LabelArray, words: list[list[str]] | None) -> bytes:
    n_clusters = len(assigned.sizes)
    order = np.argsort(called, kind="stable").tolist()
    near = [assigned.ids[assigned.labels == label].tolist() for label in range(n_clusters)]
    strings = pa.list_(pa.string())
    table = pa.table(
        {
            "cluster": pa.array(called[order].tolist(), pa.int32()),
            "size": pa.array(assigned.sizes[order].tolist(), pa.int64()),
            "top_words": pa.array([words[one] if words else None for one in order], strings),
            "representatives": pa.array(
                [near[one] for one in order], pa.list_(id_type(assigned.ids))
            ),
            "cohesion": pa.array([_cohesion(assigned, one) for one in order], pa.float64()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _cohesion(assigned: Assigned, label: int) -> float | None:
    """Return the mean distance of a cluster, correctly rounded: for any partitioning the same."""
    size = int(assigned.sizes[label])
    if not size:
        return None
    return float(Fraction(exact_integer(assigned.distortions[label]), size << BASE))


def _top_words(centroids: FloatArray, words: Words | None, n_words: int) -> list[list[str]] | None:
    if words is None:
        return None
    if callable(words):
        return [list(some)[:n_words] for some in words(centroids)]
    if len(words) != centroids.shape[1]:
        raise InvalidInputError(
            f"words must name each of the {centroids.shape[1]} features, got {len(words)}; give "
            "the names in the order of the columns"
        )
    largest = np.argsort(-centroids, axis=1, kind="stable")[:, :n_words]
    return [
        [str(words[place]) for place in some if centroid[place] > 0]
        for centroid, some in zip(centroids, largest.tolist(), strict=True)
    ]
