"""Pairs as the bytes of a file, and whole files of them."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import TYPE_CHECKING

import numpy as np

from hmrf_dask.constraints.columns import PAIR
from hmrf_dask.constraints.rows import pair_ending
from hmrf_dask.modes import open_file
from hmrf_dask.remote import explained, open_files
from hmrf_dask.types import AnyArray

if TYPE_CHECKING:
    from hmrf_dask.constraints.pairs import Constraints


def write_pairs(constraints: Constraints, path: str | os.PathLike[str]) -> None:
    """Write a pair file; see `hmrf_dask.constraints.pairs.Constraints.to_file`.

    The bytes are complete before the first one is written, and a local file is replaced whole: a
    killed program leaves the old answers, not half of the new ones.
    """
    address = os.fspath(path)
    data = _WRITERS[pair_ending(address)](constraints)
    with explained(address, "write it"):
        _put(address, data)


def _put(address: str, data: bytes) -> None:
    filesystem, inside = open_files(address)
    if type(filesystem).__name__ != "LocalFileSystem":
        filesystem.pipe_file(inside, data)
        return
    temporary = f"{inside}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb", opener=open_file) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, inside)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def _columns(constraints: Constraints) -> tuple[AnyArray, list[str], AnyArray]:
    pairs = np.concatenate([constraints.must_nodes, constraints.cannot_nodes])
    kinds = ["must"] * len(constraints.must_nodes) + ["cannot"] * len(constraints.cannot_nodes)
    weights = np.concatenate([constraints.must_link_costs, constraints.cannot_link_costs])
    return constraints.documents[pairs], kinds, weights


def _csv_bytes(constraints: Constraints) -> bytes:
    pairs, kinds, weights = _columns(constraints)
    written = ["" if np.isnan(weight) else repr(weight) for weight in weights.tolist()]
    text = io.StringIO(newline="")
    # Python 3.11 quotes a carriage return inside an id only when lines end with one (RFC 4180).
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(PAIR)
    writer.writerows(zip(*pairs.T.tolist(), kinds, written, strict=True))
    return text.getvalue().encode()


def encode_pairs(constraints: Constraints) -> bytes:
    """Return the pairs as the bytes of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs, kinds, weights = _columns(constraints)
    ids = pa.string() if constraints.documents.dtype.kind == "U" else pa.int64()
    columns = {
        "a": pa.array(pairs[:, 0].tolist(), ids),
        "b": pa.array(pairs[:, 1].tolist(), ids),
        "kind": pa.array(kinds, pa.string()),
        "weight": pa.array(weights, pa.float64(), mask=np.isnan(weights)),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())


def _jsonl_bytes(constraints: Constraints) -> bytes:
    pairs, kinds, weights = _columns(constraints)
    rows = zip(*pairs.T.tolist(), kinds, weights.tolist(), strict=True)
    lines = [
        {"a": first, "b": second, "kind": kind} | ({} if weight != weight else {"weight": weight})
        for first, second, kind, weight in rows
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


_WRITERS = {".csv": _csv_bytes, ".jsonl": _jsonl_bytes, ".parquet": encode_pairs}
