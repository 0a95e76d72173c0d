"""Counted texts: what they hold before any vocabulary, in memory and as Parquet bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse

from hmrf_dask.errors import UnreadableFileError
from hmrf_dask.store.encoding import as_arrow, as_numpy
from hmrf_dask.types import AnyArray, IntArray, LabelArray

_NUMBERS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_ROWS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("indices", _NUMBERS, nullable=False),
        pa.field("counts", _NUMBERS, nullable=False),
    ]
)
_TERMS = pa.schema(
    [
        pa.field("term", pa.large_string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("occurrences", pa.int64(), nullable=False),
    ]
)
_ENCODINGS = {
    "id": "DELTA_LENGTH_BYTE_ARRAY",
    "indices.list.element": "DELTA_BINARY_PACKED",
    "counts.list.element": "DELTA_BINARY_PACKED",
    "term": "DELTA_BYTE_ARRAY",  # in ascending order they begin alike
    "documents": "DELTA_BINARY_PACKED",
    "occurrences": "DELTA_BINARY_PACKED",
    "idf": "BYTE_STREAM_SPLIT",
}


@dataclass(frozen=True, eq=False)
class Counted:
    """How often each text has each term of a batch.

    Attributes
    ----------
    indptr : int32 array, shape (n_texts + 1,)
    indices : int32 array, shape (n_entries,)
        Ascending within a text.
    counts : int32 array, shape (n_entries,)
    terms : Arrow array of strings, shape (n_terms,)
        Ascending, each of them in one text at least.
    """

    indptr: LabelArray
    indices: LabelArray
    counts: LabelArray
    terms: pa.Array

    def __sizeof__(self) -> int:
        """Bytes of all arrays, for Dask."""
        arrays = (self.indptr, self.indices, self.counts, self.terms)
        return sum(int(array.nbytes) for array in arrays)

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self.indptr) - 1

    @property
    def documents(self) -> IntArray:
        """How many texts have each term."""
        return np.bincount(self.indices, minlength=len(self.terms)).astype(np.int64)

    @property
    def occurrences(self) -> IntArray:
        """How often each term occurs."""
        totals = np.bincount(self.indices, self.counts, minlength=len(self.terms))
        return totals.astype(np.int64)  # exact: whole numbers below 2**53

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the counts as a matrix, a column for each term."""
        shape = (self.n_texts, len(self.terms))
        return scipy.sparse.csr_array((self.counts, self.indices, self.indptr), shape=shape)


def encode_rows(counted: Counted, ids: Sequence[str]) -> bytes:
    """Return a Parquet file of the ids of texts, and of what each has of which term."""
    offsets = as_arrow(counted.indptr, pa.int32())
    lists = [
        pa.ListArray.from_arrays(offsets, as_arrow(numbers, pa.int32()), type=_NUMBERS)
        for numbers in (counted.indices, counted.counts)
    ]
    return encode_table(pa.Table.from_arrays([pa.array(ids, pa.string()), *lists], schema=_ROWS))


def encode_terms(counted: Counted) -> bytes:
    """Return a Parquet file of the terms, and of how many texts have each, how often."""
    numbers = [as_arrow(one, pa.int64()) for one in (counted.documents, counted.occurrences)]
    return encode_table(pa.Table.from_arrays([counted.terms, *numbers], schema=_TERMS))


def decode_rows(content: bytes, terms: pa.Array, path: str) -> tuple[Counted, list[str]]:
    """Return what `encode_rows` was given; arrays share the buffers of the reader."""
    columns = decode_table(content, _ROWS, path)
    indptr, indices = _flattened(columns[1])
    same, counts = _flattened(columns[2])
    inside = not indices.size or (indices.min() >= 0 and indices.max() < len(terms))
    if not inside or not np.array_equal(indptr, same):
        refuse_file(path, f"its numbers of terms do not fit its counts or its {len(terms)} terms")
    ids: list[str] = columns[0].to_pylist()
    return Counted(indptr, indices, counts, terms), ids


def decode_terms(content: bytes, path: str) -> tuple[pa.Array, IntArray, IntArray]:
    """Return terms, in how many texts each is, and how often."""
    terms, documents, occurrences = decode_table(content, _TERMS, path)
    return terms, as_numpy(documents, np.int64), as_numpy(occurrences, np.int64)


def encode_table(table: pa.Table) -> bytes:
    """Return the bytes of a Parquet file with one row group and checksums of its pages."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        write_statistics=False,
        column_encoding={
            name: code
            for name, code in _ENCODINGS.items()
            if name.split(".")[0] in table.schema.names
        },
        write_page_checksum=True,
        row_group_size=max(1, len(table)),
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_table(content: bytes, schema: pa.Schema, path: str) -> list[pa.Array]:
    """Return the columns of a Parquet file, which must be those of `schema`."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        if not file.schema_arrow.equals(schema):
            refuse_file(path, f"its columns are {file.schema_arrow.names} or of other types")
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        refuse_file(path, f"it cannot be read as Parquet ({error})")
    return [column.combine_chunks() for column in table.columns]


def refuse_file(path: str, what: str) -> NoReturn:
    """Raise UnreadableFileError that names a file and what is wrong with it."""
    raise UnreadableFileError(
        f"the file {path!r} must be as vectorising wrote it, but {what}; restore it, or remove "
        "its folder and run again",
        path,
        what,
    )


def _flattened(lists: pa.Array) -> tuple[LabelArray, AnyArray]:
    return as_numpy(lists.offsets, np.int32), as_numpy(lists.flatten(), np.int32)
