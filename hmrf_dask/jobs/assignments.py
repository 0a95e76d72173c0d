"""The cluster of every document as Parquet, written partition by partition where the rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs.storage import absolute_url, open_storage
from hmrf_dask.types import IntArray, LabelArray

FOLDER = "assignments"


def write_assignments(corpus: Corpus, labels: Any, run_dir: str, n_clusters: int) -> IntArray:
    """Write columns doc_id and cluster into RUN/assignments, one file for each partition.

    Parameters
    ----------
    corpus : Corpus
        Its ids become doc_id; without ids they are the row numbers.
    labels : dask array, shape (n_rows,)
        In the corpus's own chunks, as `labels_` of an estimator fitted on it is.
    run_dir : str
        Local folder or URL that every worker can write.
    n_clusters : int

    Returns
    -------
    ndarray of int64, shape (n_clusters,)
        Number of documents of each cluster.
    """
    storage = open_storage(absolute_url(run_dir), {}, durable=True)
    n_parts = corpus.n_partitions
    names = [f"{FOLDER}/part-{i:05}-of-{n_parts:05}.parquet" for i in range(n_parts)]
    flow = DaskFlow()
    parts = zip(corpus.named, labels.to_delayed().ravel(), names, strict=True)
    counts = flow.compute(
        [flow.lazy(_write_part, *part, storage.url, n_clusters) for part in parts]
    )
    # Files of a former fit in other partitions; its documents would come twice.
    found = {f"{FOLDER}/{name}" for name in storage.names(FOLDER)}
    storage.delete(found - set(names))
    return np.asarray(np.sum(counts, axis=0), np.int64)


def _write_part(
    block: RowBlock, labels: LabelArray, name: str, url: str, n_clusters: int
) -> IntArray:
    table = pa.table({"doc_id": pa.array(block.ids), "cluster": pa.array(labels, pa.int32())})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    open_storage(url, {}, durable=True).write(name, sink.getvalue().to_pybytes())
    return np.bincount(labels, minlength=n_clusters)
