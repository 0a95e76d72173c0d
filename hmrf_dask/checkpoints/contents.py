"""The bytes of labels (Parquet) and state (npz) files, a function of their content alone."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.checkpoints.records import Arrays, Labels, LabelsFile, Piece
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.storage.parquet import encode_parquet
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.storage.whole_files import decode_npz

_PART = re.compile(r"[a-z0-9][a-z0-9_-]*")
LABEL = "label"


def check_labels(part: str, first_row: int, labels: Labels) -> None:
    """Refuse what cannot be kept as the labels of a part."""
    if not _PART.fullmatch(part):
        raise InvalidInputError(
            f"part must be lower-case letters, digits, - and _, got {part!r}; name it rows-00007"
        )
    if first_row < 0:
        raise InvalidInputError(f"first_row of {part} must be 0 or more, got {first_row}")
    if labels.dtype != np.int32 or labels.ndim != 1:
        raise InvalidInputError(
            f"labels of {part} must be a 1-D int32 array, got {labels.dtype} of shape "
            f"{labels.shape}; convert them with labels.astype(np.int32)"
        )


def encode_labels(pieces: Sequence[Piece]) -> bytes:
    """Return a Parquet file with the column `label`, pages with checksums.

    The rows of several parts stand one after the other.
    """
    parts, rows, labels = zip(*pieces, strict=True)
    whole = np.ascontiguousarray(labels[0] if len(labels) == 1 else np.concatenate(labels))
    column = pa.Array.from_buffers(pa.int32(), len(whole), [None, pa.py_buffer(whole)])
    told = {"part": ",".join(parts), "first_row": ",".join(map(str, rows))}
    table = pa.table({LABEL: column}).replace_schema_metadata(told)
    # Bytes of equal weight side by side: all but the lowest are nought. Half a dictionary's time.
    return encode_parquet(
        table,
        use_dictionary=False,
        use_byte_stream_split=[LABEL],
        compression_level=1,
        write_statistics=False,
    )


def decode_labels(data: bytes) -> Labels:
    """Return the labels of a file, read-only."""
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    chunks = file.read(columns=[LABEL], use_threads=False).column(0).chunks
    # Arrow's own way imports pandas, 0.7 s and 35 MiB of every worker
    return _joined([_labels(chunk) for chunk in chunks])


def _labels(chunk: pa.Array) -> Labels:
    """Return the labels of an Arrow array, sharing its memory."""
    if not len(chunk):
        return np.empty(0, np.int32)
    return np.frombuffer(chunk.buffers()[1], np.int32, len(chunk), 4 * chunk.offset)


def encode_state(state: Arrays) -> bytes:
    """Return an uncompressed npz of `state`: numpy.savez, but with any key and never a pickle."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(state):
            # A ZipInfo without a date keeps the clock out of the bytes.
            entry = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(entry, "w", force_zip64=True) as member:
                values = np.asarray(state[name], order="C")
                try:
                    np.lib.format.write_array(member, values, allow_pickle=False)
                except ValueError as error:
                    raise InvalidInputError(
                        f"state must hold plain arrays, got {name!r} of {values.dtype}; "
                        "put text and nested values in the record"
                    ) from error
    return sink.getvalue()


def decode_state(data: bytes, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an npz, or raise DamagedFileError naming the file."""
    return decode_npz(data, name)


def read_range(
    read: Callable[[Sequence[LabelsFile]], Sequence[Labels]],
    files: Sequence[LabelsFile],
    first_row: int,
    last_row: int,
    prefix: str,
) -> Labels:
    """Return rows `first_row` to `last_row` (exclusive) from the files that overlap them."""
    chosen: list[tuple[LabelsFile, slice]] = []
    reached = first_row
    parts = (f for f in files if f.part.startswith(prefix) and f.n_rows)
    for file in sorted(parts, key=lambda file: file.first_row):
        if file.first_row + file.n_rows <= first_row or file.first_row >= last_row:
            continue
        if max(file.first_row, first_row) != reached:
            break
        chosen.append((file, slice(reached - file.first_row, last_row - file.first_row)))
        reached = min(file.first_row + file.n_rows, last_row)
    else:
        if reached >= last_row:
            found = read([file for file, _ in chosen])
            return _joined([one[place] for one, (_, place) in zip(found, chosen, strict=True)])
    raise DamagedFileError(
        f"the {prefix}… files of a commit must hold every row from {first_row} to "
        f"{last_row - 1} once, got none or two for row {reached}; resume with the same corpus"
    )


def _joined(pieces: list[Labels]) -> Labels:
    rows = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int32), *pieces])
    rows.setflags(write=False)
    return rows
