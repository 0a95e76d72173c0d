"""Corpus: rows in partitions of a Dask graph, made from memory, dask arrays, Parquet or tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask.delayed import Delayed

    from hmrf_dask.flow.dataflow import Dataflow

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from hmrf_dask.corpus.partitions import (
    block_of_chunks,
    bounds_by_bytes,
    checked_block,
    chunk_shape,
    even_bounds,
    ids_with_keys,
    join_rows,
    keys_in_bucket,
    one_width,
    overlaps,
    repeated_keys,
    slice_block,
)
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.flow.cluster import compute
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.blocks import Blocks
from hmrf_dask.rows.canonical import id_slices, require_matrix, sound_csr
from hmrf_dask.rows.files import (
    BlockSource,
    Manifest,
    StorageOptions,
    read_manifest,
    write_block,
    write_manifest,
)


def is_dask_array(value: Any) -> bool:
    """Whether it is a dask array; where dask.array was never imported, 0.2 s, there is none."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(value, module.Array)


def delayed_chunks(array: Any) -> list[Any]:
    """Return the chunks as tasks, nested as the array is.

    `to_delayed` does this for classic dask arrays only, not under array.query-planning.
    """
    from dask.base import optimize as dask_optimize
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    (optimized,) = dask_optimize(array)
    layer = f"chunks-{uuid4().hex}"
    graph = HighLevelGraph.from_collections(layer, dict(optimized.__dask_graph__()), ())

    def _tasks(keys: Any) -> Any:
        if isinstance(keys, list):
            return [_tasks(key) for key in keys]
        return Delayed(keys, graph, layer=layer)

    chunks: list[Any] = _tasks(optimized.__dask_keys__())
    return chunks


def lazy_array(
    parts: Sequence[Delayed],
    row_counts: Sequence[int],
    columns: tuple[int, ...],
    dtype: np.dtype[Any],
    meta: Any = None,
) -> Any:
    """Return tasks that each give an array as one dask array of these row chunks.

    Empty chunks are as good as any other. `meta` is an empty chunk where chunks are no ndarrays.
    """
    from dask.array import Array
    from dask.delayed import delayed
    from dask.highlevelgraph import HighLevelGraph

    name = f"rows-{uuid4().hex}"
    keys = [(name, number, *(0 for _ in columns)) for number in range(len(parts))]
    named = [delayed(_same)(part, dask_key_name=key) for part, key in zip(parts, keys, strict=True)]
    merged = {key: task for part in named for key, task in part.__dask_graph__().items()}
    graph = HighLevelGraph.from_collections(name, merged, dependencies=())
    chunks = (tuple(row_counts), *((width,) for width in columns))
    return Array(graph, name, chunks, dtype=dtype, meta=meta)


def _same(value: Any) -> Any:
    return value


def ids_by_partition(ids: Any, row_counts: Sequence[int], offsets: Sequence[int]) -> list[Any]:
    """Return the ids of each partition: a task, or None where there are none."""
    if ids is None:
        return [None] * len(row_counts)
    if not is_dask_array(ids):
        return [_value(part) for part in id_slices(ids, offsets)]
    known = not any(math.isnan(n) for n in ids.chunks[0])
    if ids.ndim == 1 and known and ids.shape[0] == offsets[-1]:
        ids = ids.rechunk((tuple(row_counts),))
    elif ids.ndim != 1 or known or ids.numblocks[0] != len(row_counts):
        raise InvalidInputError(
            f"ids must be a 1-D dask array of the same row chunks as the rows ({offsets[-1]} rows "
            f"in {len(row_counts)} chunks), got shape {ids.shape} in {ids.numblocks[0]} chunks; "
            "rechunk one like the other"
        )
    return delayed_chunks(ids)


def _lazy(function: Callable[..., Any], *arguments: Any) -> Any:
    from dask.delayed import delayed

    return delayed(function)(*arguments)


def _value(value: Any) -> Any:
    """Return a value as a task; Dask would look for collections in the rows."""
    from dask.delayed import delayed

    return delayed(value, traverse=False, pure=False)


PARTITION_BYTES = 64 * 2**20


@dataclass(frozen=True, eq=False)
class Corpus:
    """Rows in partitions, each a task that gives one `RowBlock`; nothing is computed until asked.

    Empty partitions and partitions of one row are as good as any other.

    Parameters
    ----------
    partitions : tuple of Delayed
        Each gives a RowBlock with `row_counts[i]` rows of `n_features` features.
    n_features : int
    row_counts : tuple of int
    has_ids : bool
        Whether rows have document ids; else their ids are the row numbers.
    in_client : bool
        Whether the rows lie in this process's memory, so that `persist` must send them once.
    sources : tuple of BlockSource
        Where the partitions are read, one for each; empty where they do not come from files.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import Corpus
    >>> corpus = Corpus.from_rows(np.eye(5), ids=list("abcde"), n_partitions=2)
    >>> corpus.shape, corpus.row_counts, corpus.has_ids
    ((5, 5), (2, 3), True)
    """

    partitions: tuple[Delayed, ...]
    n_features: int
    row_counts: tuple[int, ...]
    has_ids: bool
    in_client: bool = False
    sources: tuple[BlockSource, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a corpus without partitions or features, which no distance can use."""
        if not self.partitions:
            raise InvalidInputError("a corpus must have at least one partition, got none; add one")
        if self.n_features < 1:
            raise InvalidInputError(
                f"Found array with 0 feature(s) (shape=({self.n_rows}, {self.n_features})) while "
                "a minimum of 1 is required; give rows with at least one column"
            )

    @property
    def n_rows(self) -> int:
        """Number of rows of all partitions."""
        return sum(self.row_counts)

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return len(self.partitions)

    @property
    def blocks(self) -> tuple[Delayed, ...] | tuple[BlockSource, ...]:
        """What a task of a `Dataflow` takes for its rows: of files where to read them."""
        return self.sources or self.partitions

    @property
    def named(self) -> tuple[Delayed, ...] | tuple[BlockSource, ...]:
        """The same where ids and keys are all that is asked of the rows."""
        return tuple(replace(one, ids_only=True) for one in self.sources) or self.partitions

    @property
    def offsets(self) -> tuple[int, ...]:
        """Number of the first row of each partition, and at the end the number of rows.

        Examples
        --------
        >>> import numpy as np
        >>> Corpus.from_rows(np.eye(5), n_partitions=2).offsets
        (0, 2, 5)
        """
        return tuple(int(n) for n in np.cumsum((0, *self.row_counts)))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        return self.n_rows, self.n_features

    def mapped(self, function: Callable[..., RowBlock], *arguments: Any) -> Corpus:
        """Return a corpus of the blocks that a function makes: as many rows, as many features.

        Of rows in this process they are made now, of others where and whenever they are asked for.

        Examples
        --------
        >>> import numpy as np
        >>> Corpus.from_rows(np.eye(3)).mapped(lambda block: block).row_counts
        (3,)
        """
        shared = [_value(argument) for argument in arguments]
        parts = [_lazy(function, part, *shared) for part in self.partitions]
        if self.in_client:
            parts = [_value(block) for block in compute(*parts)]
        return replace(self, partitions=tuple(parts), sources=())

    @staticmethod
    def from_rows(
        X: Any,
        ids: ArrayLike | None = None,
        n_partitions: int | None = None,
        partition_bytes: int = PARTITION_BYTES,
    ) -> Corpus:
        """Cut a matrix in memory into partitions, without a copy where its form allows.

        Parameters
        ----------
        X : sparse matrix or array of any format, ndarray, or Blocks, shape (n_rows, n_features)
        ids : array-like of str or int, shape (n_rows,), optional
        n_partitions : int, optional
            Partitions of equal numbers of rows; without it 64 of equal bytes, fewer where they
            would have less than 8,192 rows or 8 MiB, more where `partition_bytes` or 65,536 rows
            ask for it. Results do not depend on it.
        partition_bytes : int
            Most bytes of values and feature numbers in one partition.

        Examples
        --------
        >>> Corpus.from_rows(np.eye(5), n_partitions=2).row_counts
        (2, 3)
        """
        matrix = X.rows if isinstance(X, Blocks) else _sound_matrix(X)
        n_rows, n_features = (int(n) for n in matrix.shape)
        if n_partitions is not None:
            bounds = even_bounds(n_rows, n_partitions)
        else:
            bounds = bounds_by_bytes(matrix, partition_bytes)
        named = None if ids is None else id_slices(ids, bounds)
        blocks = [
            slice_block(matrix, start, stop, None if named is None else named[i])
            for i, (start, stop) in enumerate(pairwise(bounds))
        ]
        parts = tuple(map(_value, blocks))
        return Corpus(parts, n_features, tuple(b.n_rows for b in blocks), ids is not None, True)

    @staticmethod
    def from_dask(array: Any, ids: Any = None) -> Corpus:
        """Take the row chunks of a dask array as partitions.

        Parameters
        ----------
        array : dask array, shape (n_rows, n_features)
            Its chunks are scipy sparse of any format, or ndarrays. Chunks along the columns are
            put together. Where sizes are unknown the chunks are computed once, for their shapes.
        ids : dask array of the same row chunks, or array-like, of str or int, optional

        Examples
        --------
        >>> import dask.array as da
        >>> Corpus.from_dask(da.ones((5, 3), chunks=(2, 3))).row_counts
        (2, 2, 1)
        """
        require_matrix(array)
        chunks = delayed_chunks(array)
        rows, columns = array.chunks
        if any(math.isnan(n) for n in (*rows, *columns)):
            shapes = compute(*[_lazy(chunk_shape, row, i) for i, row in enumerate(chunks)])
            rows, widths = zip(*shapes, strict=True)
        else:
            widths = (sum(columns),)
        n_features, row_counts = one_width(widths), tuple(int(n) for n in rows)
        offsets = np.cumsum((0, *row_counts)).tolist()
        named = ids_by_partition(ids, row_counts, offsets)
        parts = tuple(
            _lazy(block_of_chunks, row, named[i], offsets[i], (row_counts[i], n_features), i)
            for i, row in enumerate(chunks)
        )
        return Corpus(parts, n_features, row_counts, ids is not None)

    @staticmethod
    def from_delayed(
        parts: Iterable[Delayed],
        n_features: int,
        row_counts: Sequence[int] | None = None,
        *,
        has_ids: bool = True,
    ) -> Corpus:
        """Take tasks that give row blocks; without `row_counts` they are computed once.

        With `has_ids=False` the rows are numbered again, through all partitions.
        """
        parts = tuple(parts)
        if row_counts is None:
            row_counts = compute(*[part.n_rows for part in parts])
        if len(row_counts) != len(parts):
            raise InvalidInputError(
                f"row_counts must be one for each partition, got {len(row_counts)} for "
                f"{len(parts)}; count the rows of every partition, or leave row_counts out"
            )
        offsets = np.cumsum((0, *row_counts)).tolist()
        checked = tuple(
            _lazy(checked_block, part, (n, n_features), i, None if has_ids else offsets[i])
            for i, (part, n) in enumerate(zip(parts, row_counts, strict=True))
        )
        return Corpus(checked, n_features, tuple(int(n) for n in row_counts), has_ids)

    @staticmethod
    def from_parquet(url: str, storage_options: StorageOptions = None) -> Corpus:
        """Open a folder that `to_parquet` wrote; one file, one task.

        Credentials come from the environment or a profile named in `storage_options`: a key in
        there would travel with every task.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = Corpus.from_rows(np.eye(3)).to_parquet(folder)
        ...     Corpus.from_parquet(folder).to_dask_array(dense=True).compute().tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        """
        manifest = read_manifest(url, storage_options)
        width, options = manifest.n_features, storage_options
        sources = [BlockSource(url, file, width, options) for file in manifest.files]
        return corpus_of_files(sources, width, has_ids=manifest.has_ids)

    def to_parquet(self, url: str, storage_options: StorageOptions = None) -> Corpus:
        """Write one file for each partition, then the manifest; return the corpus read from there.

        A retry adds no file. A folder that holds another corpus is refused.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Corpus.from_rows(np.eye(3), n_partitions=3).to_parquet(folder).n_partitions
        3
        """
        parts = enumerate(self.partitions)
        files = compute(*[_lazy(write_block, part, url, i, storage_options) for i, part in parts])
        write_manifest(Manifest(self.n_features, self.has_ids, tuple(files)), url, storage_options)
        return Corpus.from_parquet(url, storage_options)

    def persist(self) -> Corpus:
        """Send rows that lie in this process to the scheduler, once; later graphs only name them.

        They stay recomputable there when a worker dies. Any other corpus is returned as it is.
        """
        import dask
        from dask.base import persist

        if not self.in_client:
            return self
        if "distributed" not in sys.modules:
            return replace(self, in_client=False)  # nobody to send to; Dask would import it to ask
        parts: list[Delayed] = []
        # The rows have to travel this once, which is what Dask's warning is about.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1PiB"}):
            for part in self.partitions:  # one message each, not one of the whole corpus
                parts.extend(persist(part))
        return replace(self, partitions=tuple(parts), in_client=False)

    def repartition(self, n_partitions: int) -> Corpus:
        """Return the same rows in `n_partitions` partitions of equal numbers of rows.

        Examples
        --------
        >>> Corpus.from_rows(np.eye(5), n_partitions=1).repartition(2).row_counts
        (2, 3)
        """
        return self.with_partitions(even_bounds(self.n_rows, n_partitions))

    def with_partitions(self, bounds: Sequence[int]) -> Corpus:
        """Return the same rows cut at `bounds`: 0, ascending row numbers, the number of rows.

        Examples
        --------
        >>> Corpus.from_rows(np.eye(5)).with_partitions([0, 1, 5]).row_counts
        (1, 4)
        """
        cuts = [int(bound) for bound in bounds]
        if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != self.n_rows or cuts != sorted(cuts):
            raise InvalidInputError(
                f"bounds must ascend from 0 to the number of rows, {self.n_rows}, got "
                f"{shortened(cuts)}; give at least these two"
            )
        offsets = self.offsets
        parts = tuple(self._rows_between(*bounds, offsets) for bounds in pairwise(cuts))
        counts = tuple(np.diff(cuts).tolist())
        return replace(self, partitions=parts, row_counts=counts, sources=())

    def _rows_between(self, start: int, stop: int, offsets: Sequence[int]) -> Delayed:
        places, ranges = overlaps(start, stop, offsets)
        pieces = [self.partitions[place] for place in places]
        if ranges == [(0, self.row_counts[places[0]])]:
            return pieces[0]
        joined: Delayed = _lazy(join_rows, pieces, ranges)
        return joined

    def to_dask_array(self, *, dense: bool = False) -> Any:
        """Return a float32 dask array of the same row chunks: `csr_array` chunks, or ndarrays.

        Dask arrays of sparse chunks do little beyond `map_blocks` and slicing of rows.

        Examples
        --------
        >>> Corpus.from_rows(np.eye(2)).to_dask_array(dense=True).compute().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        import dask

        if dask.config.get("array.query-planning", None):
            raise ConfigurationError(
                "array.query-planning must be off to make a dask array of tasks (Dask has no way "
                "there), got True; set it to False"
            )
        form = RowBlock.to_dense if dense else RowBlock.to_scipy
        empty = np.empty((0, self.n_features), np.float32)
        meta = empty if dense else scipy.sparse.csr_array(empty)
        parts = [_lazy(form, part) for part in self.partitions]
        return lazy_array(parts, self.row_counts, (self.n_features,), empty.dtype, meta)


def _sound_matrix(X: Any) -> Any:
    """Return a matrix as CSR or an ndarray, checked."""
    require_matrix(X)
    if isinstance(X, np.ma.MaskedArray):
        raise InvalidInputError("rows must not be masked, got a masked array; fill it")
    return sound_csr(X) if issparse(X) else np.asarray(X)


def as_corpus(X: Any, ids: Any = None) -> Corpus:
    """Make a corpus of whatever holds rows.

    Parameters
    ----------
    X : sparse matrix or array, ndarray, Blocks, dask array, Corpus, or path of Parquet blocks
    ids : array-like of str or int, shape (n_rows,), optional
        Not for a Corpus or a path, which have their own.
    """
    if isinstance(X, Corpus | str | os.PathLike):
        if ids is not None:
            raise InvalidInputError(
                f"ids must not be given with a {type(X).__name__}: it has its own; leave them out"
            )
        return X if isinstance(X, Corpus) else Corpus.from_parquet(os.fspath(X))
    if is_dask_array(X):
        return Corpus.from_dask(X, ids)
    if isinstance(X, np.ndarray | Blocks) or issparse(X):
        return Corpus.from_rows(X, ids)
    raise InvalidInputError(
        "rows must be a scipy sparse matrix or array, an ndarray, Blocks, a dask array, a Corpus "
        f"or the path of a folder of Parquet blocks, got {type(X).__name__}; convert it, for "
        "example with numpy.asarray"
    )


def corpus_of_files(
    sources: Sequence[BlockSource], n_features: int, *, has_ids: bool = True
) -> Corpus:
    """Return the rows of files, at least one, in their order; one file, one task."""
    from dask.delayed import delayed

    parts = tuple(delayed(source.read, pure=False)() for source in sources)
    counts = tuple(source.file.n_rows for source in sources)
    return Corpus(parts, n_features, counts, has_ids, sources=tuple(sources))


_KEYS_PER_BUCKET = 2**25


def find_duplicate_ids(corpus: Corpus, flow: Dataflow) -> list[str | int]:
    """Return some of the ids that more than one row has, sorted; empty if there are none.

    Keys of ids are compared in buckets, in tasks; only ids whose keys collide come back here.
    """
    if not corpus.has_ids:
        return []
    parts, n_buckets = corpus.named, max(1, math.ceil(corpus.n_rows / _KEYS_PER_BUCKET))
    buckets = [
        [flow.lazy(keys_in_bucket, part, bucket, n_buckets) for part in parts]
        for bucket in range(n_buckets)
    ]
    repeated = np.concatenate(flow.compute([flow.lazy(repeated_keys, keys) for keys in buckets]))
    if not repeated.size:
        return []
    # Two ids may share a key, so the ids themselves decide.
    counts: Counter[str | int] = Counter()
    for ids in flow.compute([flow.lazy(ids_with_keys, part, repeated) for part in parts]):
        counts.update(ids)
    return sorted(id_ for id_, count in counts.items() if count > 1)
