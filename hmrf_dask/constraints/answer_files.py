"""Files of answers, CSV, JSONL or Parquet, to pairs and back: errors name the line.

Known classes of documents, columns id and label, are pairs as soon as all of them are known.
"""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.constraints.answer_rows import (
    CANNOT,
    MUST,
    PAIR,
    BadLine,
    Labelled,
    Table,
    class_links,
    id_problem,
    kind_of,
    pair_ending,
    read_rows,
    said,
    unknown_kind,
)
from hmrf_dask.constraints.pairs import SHOWN, Constraints
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.limits import ANSWER_BYTES, problem_of_cost
from hmrf_dask.storage.remote import explained, open_files
from hmrf_dask.storage.stores import open_file
from hmrf_dask.storage.whole_files import read_bounded
from hmrf_dask.types import AnyArray


@dataclass(frozen=True)
class PairLines:
    """The pairs of a file as they stand there, and the lines that are none.

    Attributes
    ----------
    pairs : object array, shape (m, 2)
        Ids as text.
    must : bool array, shape (m,)
    weights : float64 array, shape (m,)
        NaN where none is given.
    lines : int array, shape (m,)
    notes : object array, shape (m,)
        What other columns hold, by their names; None where they hold nothing.
    labels : list of Labelled
        Documents and their classes, which are no pairs yet.
    bad : list of BadLine
    """

    pairs: AnyArray
    must: AnyArray
    weights: AnyArray
    lines: AnyArray
    notes: AnyArray
    labels: list[Labelled]
    bad: list[BadLine]


def read_pairs(path: str | os.PathLike[str], *, ids: bool = True) -> Constraints:
    """Read a pair file; see `hmrf_dask.constraints.pairs.Constraints.from_file`."""
    address = os.fspath(path)
    pair_ending(address)
    return parse_pairs(_read(address), address, ids=ids)


def parse_pairs(data: bytes, address: str, *, ids: bool = True) -> Constraints:
    """Return the pairs in the bytes of a pair file, whose name tells what they are."""
    table, weights = _read_table(data, address)
    if table.bad:
        shown = "; ".join(f"{table.unit} {one.line}: {one.reason}" for one in table.bad[:SHOWN])
        more = f"; … ({len(table.bad)} in all)" if len(table.bad) > SHOWN else ""
        raise InvalidInputError(f"{address}, {shown}{more}")
    weights = np.concatenate([weights, np.full(_add_classes(table), np.nan)])
    text = pair_ending(address) == ".csv"
    pairs = _as_integers(_pairs(table), table, required=not ids, text=text)
    must = np.array(table.kinds) == MUST
    if not len(pairs):
        return Constraints(ids=ids)
    try:
        return Constraints(
            pairs[must],
            pairs[~must],
            must_link_costs=weights[must],
            cannot_link_costs=weights[~must],
            ids=ids,
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"{address}: {error}") from error


def parse_lines(data: bytes, address: str) -> PairLines:
    """Return the pairs in the bytes of a pair file, and the lines that are none.

    Raises
    ------
    InvalidInputError
        It is no pair file at all: its columns are others, or it cannot be read.
    """
    table, weights = _read_table(data, address)
    # Text before there is an array: one of whole numbers makes those from 2**63 on floats.
    ends = [list(map(str, table.first)), list(map(str, table.second))]
    pairs = np.array(ends, dtype=object).T.reshape(-1, 2)
    must = np.array(table.kinds, np.str_) == MUST
    notes = np.empty(len(table.notes), object)
    notes[:] = table.notes
    labels = [one._replace(document=name) for name, one in table.labels.found.items()]
    lines = np.array(table.places, np.int64)
    return PairLines(pairs, must, weights, lines, notes, labels, table.bad)


def _add_classes(table: Table) -> int:
    """Append the pairs that tell the classes; return how many."""
    rows = list(table.labels.found.values())
    ends = zip(table.first, table.second, table.kinds, strict=True)
    before = {said(one, other, must=kind == MUST) for one, other, kind in ends}
    n_before = len(table.places)
    for must, other, row in class_links(rows, before):
        kind = MUST if must else CANNOT
        table.add([other, rows[row].document, kind, None], rows[row].line)
    return len(table.places) - n_before


def _read_table(data: bytes, address: str) -> tuple[Table, AnyArray]:
    """Return the good rows of a pair file, beside the bad ones, and their weights as float64."""
    found = read_rows(data, address)
    table, weights = Table(address, found.unit, bad=found.bad), list[float]()
    table.labels = found.labels
    table.labels.refuse_many(address)
    columns = (found.first, found.second, found.kinds, found.weights)
    rows = zip(*columns, found.places, found.notes, strict=True)
    for first, second, given_kind, weight, place, notes in rows:
        kind = kind_of(given_kind)
        problem = unknown_kind(given_kind) if kind is None else _problem(first, second, weight)
        if problem:
            row = (first, second, given_kind, weight)
            table.refuse(place, problem, ",".join("" if one is None else str(one) for one in row))
        else:
            table.add((first, second, kind, weight), place, notes)
            weights.append(np.nan if weight in ("", None) else float(weight))
    table.bad.sort(key=lambda one: one.line)
    return table, np.array(weights, np.float64)


def _read(address: str) -> bytes:
    with explained(address, "read the pairs"):
        try:
            return read_bounded(address, most=ANSWER_BYTES)
        except FileNotFoundError as error:
            raise InvalidInputError(f"there is no pair file {address!r}: check the path") from error


def _problem(first: Any, second: Any, weight: Any) -> str:
    """Return what is wrong with a row of a known kind, nothing if it is a pair."""
    if first in ("", None) or second in ("", None):
        return "a and b must name two documents, got an empty one"
    for one in (first, second):
        if isinstance(one, bool) or not isinstance(one, str | int):
            return f"a and b must be ids, text or whole numbers, got {one!r:.80}"
    reason = id_problem(first) or id_problem(second)
    if reason:
        return reason
    if str(first) == str(second):
        return f"a and b must be two different documents, got {first!r:.80} twice"
    if weight in ("", None):
        return ""
    if isinstance(weight, bool):
        return f"weight must be a number, got {weight!r}"
    try:
        number = float(weight)
    except (TypeError, ValueError, OverflowError):
        return f"weight must be a number, got {weight!r:.80}"
    problem = problem_of_cost(number)
    return f"weight {problem}, got {weight!r:.80}" if problem else ""


def _pairs(table: Table) -> AnyArray:
    return np.array([table.first, table.second], dtype=object).T.reshape(-1, 2)


def _as_integers(pairs: AnyArray, table: Table, *, required: bool, text: bool) -> AnyArray:
    """Return integers where all ids are; refuse text where row numbers are needed."""
    if not len(pairs) or not (required or text):
        return pairs
    try:
        numbers = pairs.astype(np.int64)
    except (TypeError, ValueError, OverflowError):
        numbers = None
    if numbers is not None and (not text or bool(np.all(numbers.astype(str) == pairs))):
        return np.asarray(numbers)
    if not required:
        return pairs
    bad = next(row for row, pair in enumerate(pairs) if not all(map(_is_integer, pair)))
    raise InvalidInputError(
        f"{table.path}, {table.unit} {table.places[bad]}: a and b must be row numbers, "
        f"got {pairs[bad, 0]!r}, {pairs[bad, 1]!r}; document ids need rows that have ids"
    )


def _is_integer(value: Any) -> bool:
    try:
        return str(int(value)) == str(value) and abs(int(value)) < 2**63
    except (TypeError, ValueError):
        return False


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
