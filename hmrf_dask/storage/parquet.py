"""Parquet files that are written whole, and read whole: our own, and those of others in bounds.

A dictionary makes a few bytes any number of values, so texts of others are read as numbers of
their words, and what they would come to is added up before they are written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.limits import UNPACKED_BYTES


def encode_parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a table as the bytes of a Parquet file, whose pages have checksums.

    `options` are those of `pyarrow.parquet.write_table`; the compression is zstd by default.

    Examples
    --------
    >>> table = decode_parquet(encode_parquet(pa.table({"id": ["a", "b"]})))
    >>> table.to_pydict()
    {'id': ['a', 'b']}
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True, **{"compression": "zstd", **options})
    return bytes(sink.getvalue().to_pybytes())


def decode_parquet(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return columns of a file of our own, all without names; its page checksums are verified."""
    source = pa.BufferReader(data)
    return pq.read_table(source, columns=columns, page_checksum_verification=True)


def read_plain_table(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return columns of a Parquet file, all without names; page checksums are verified.

    Raise ValueError if it would unpack to more than `UNPACKED_BYTES`, lacks a column, or if one
    holds lists or more.

    Examples
    --------
    >>> data = encode_parquet(pa.table({"id": ["a", "b"], "label": [0, 1]}))
    >>> read_plain_table(data, ["label"]).to_pydict()
    {'label': [0, 1]}
    """
    schema = pq.ParquetFile(pa.BufferReader(data)).schema_arrow
    wanted = [schema.field(name) for name in (columns or schema.names) if name in schema.names]
    missing = set(columns or ()) - set(schema.names)
    if missing:
        raise ValueError(f"it has no column {min(missing)!r}")
    nested = [field.name for field in wanted if pa.types.is_nested(field.type)]
    if nested:
        raise ValueError(f"the column {nested[0]!r:.80} must hold plain values, not lists or more")
    file = pq.ParquetFile(
        pa.BufferReader(data),
        page_checksum_verification=True,
        read_dictionary=[field.name for field in wanted if _is_text(field.type)],
    )
    names = {field.name for field in wanted}
    widths = [_width(field.type) for field in file.schema_arrow if field.name in names]
    _refuse_many(file.metadata.num_rows * sum(widths))
    table = file.read(columns)
    _refuse_many(sum(map(_unpacked, table.columns)))
    # Words are written out as texts again, whatever the file had them as.
    return pa.table([_plain(column) for column in table.columns], table.column_names)


def _is_text(kind: pa.DataType) -> bool:
    return "string" in str(kind) or "binary" in str(kind)  # large ones and views, too


def _width(kind: pa.DataType) -> int:
    """Return bytes of a value, of a text those of its number."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 8


def _unpacked(column: pa.ChunkedArray) -> int:
    """Return the bytes of all texts of a column written out."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return int(column.nbytes)
    import pyarrow.compute as pc  # here, because those who write need not wait for it

    return sum(
        pc.sum(pc.binary_length(chunk.dictionary).cast(pa.int64()).take(chunk.indices)).as_py() or 0
        for chunk in column.chunks
    )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind: Any = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _refuse_many(n_bytes: int) -> None:
    if not 0 <= n_bytes <= UNPACKED_BYTES:
        raise ValueError(
            f"it must unpack to at most {UNPACKED_BYTES:,} bytes, got {n_bytes:,}; cut it into "
            "several files"
        )
