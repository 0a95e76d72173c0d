"""Files of answers, CSV, JSONL or Parquet, to pairs and back: errors name the line.

Known classes of documents, columns id and label, are pairs as soon as all of them are known.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hmrf_dask.constraints.answer_rows import (
    Answer,
    AnswerTable,
    Labelled,
    class_links,
    columns_of,
    refuse_many,
    said,
)
from hmrf_dask.constraints.pairs import SHOWN, Constraints
from hmrf_dask.constraints.trust import trust_of_classes, trust_of_votes
from hmrf_dask.documents.delimited import encode_lines, ending_of, read_table
from hmrf_dask.documents.records import BadRecord
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.parameters import ANSWER_BYTES, ANSWER_LINES
from hmrf_dask.storage.remote import explained, open_files
from hmrf_dask.storage.stores import open_file
from hmrf_dask.storage.whole_files import read_bounded
from hmrf_dask.types import AnyArray


@dataclass(frozen=True)
class PairLines:
    """The pairs of a file as they stand there, and the lines that are none."""

    pairs: AnyArray  # ids as text, objects of shape (m, 2)
    must: AnyArray
    weights: AnyArray  # NaN where none is given
    lines: AnyArray
    notes: AnyArray  # what other columns hold, by their names; None where they hold nothing
    labels: list[Labelled]  # documents and their classes, which are no pairs yet
    bad: list[BadRecord]


def read_pairs(path: str | os.PathLike[str], *, ids: bool = True) -> Constraints:
    """Read a pair file; see `hmrf_dask.constraints.pairs.Constraints.from_file`."""
    address = os.fspath(path)
    _ending(address)
    with explained(address, "read the pairs"):
        try:
            data = read_bounded(address, most=ANSWER_BYTES)
        except FileNotFoundError as error:
            raise InvalidInputError(f"there is no pair file {address!r}: check the path") from error
    return parse_pairs(data, address, ids=ids)


def parse_pairs(data: bytes, address: str, *, ids: bool = True) -> Constraints:
    r"""Return the pairs in the bytes of a pair file, whose name says the format.

    Examples
    --------
    >>> pairs = parse_pairs(b"a,b,kind\n1,2,same\n1,3,no\n", "pairs.csv")
    >>> pairs.must_link.tolist(), pairs.cannot_link.tolist()
    ([[1, 2]], [[1, 3]])
    """
    table = _read_table(data, address)
    if table.bad:
        shown = "; ".join(f"{table.unit} {bad.line}: {bad.reason}" for bad in table.bad[:SHOWN])
        more = f"; … ({len(table.bad)} in all)" if len(table.bad) > SHOWN else ""
        raise InvalidInputError(f"{address}, {shown}{more}")
    judged = [said(pair.first, pair.second, must=pair.must) for pair in table.pairs]
    trust = trust_of_votes(judged, [pair.notes for pair in table.pairs], {}).tolist()
    rows = list(table.labels.values())
    for kind, *ends in class_links(rows, set(judged)):
        one, two = (rows[row] for row in ends)
        table.pairs.append(Answer(one.document, two.document, kind, two.line))
        trust.append(trust_of_classes(one, two, {}))
    if not table.pairs:
        return Constraints(ids=ids)
    pairs = _as_integers(table, required=not ids, text=_ending(address) == ".csv")
    must, likely = np.array([pair.must for pair in table.pairs]), np.array(trust)
    weights = np.array([pair.weight for pair in table.pairs])
    try:
        return Constraints(
            pairs[must],
            pairs[~must],
            must_link_costs=weights[must],
            cannot_link_costs=weights[~must],
            must_link_trust=likely[must],
            cannot_link_trust=likely[~must],
            ids=ids,
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"{address}: {error}") from error


def parse_lines(data: bytes, address: str) -> PairLines:
    """Return the pairs in the bytes of a pair file, and the lines that are none.

    InvalidInputError says that it is no pair file at all.

    Examples
    --------
    >>> found = parse_lines(b'{"a": "x", "b": "y", "kind": "same"}', "pairs.jsonl")
    >>> found.pairs.tolist(), found.must.tolist(), found.bad
    ([['x', 'y']], [True], [])
    """
    table = _read_table(data, address)
    pairs = table.pairs
    notes = np.empty(len(pairs), object)
    notes[:] = [pair.notes for pair in pairs]
    return PairLines(
        # Text before there is an array: one of whole numbers makes those from 2**63 on floats.
        pairs=_as_array([str(pair.first) for pair in pairs], [str(pair.second) for pair in pairs]),
        must=np.array([pair.must for pair in pairs], np.bool_),
        weights=np.array([pair.weight for pair in pairs], np.float64),
        lines=np.array([pair.line for pair in pairs], np.int64),
        notes=notes,
        labels=[replace(row, document=name) for name, row in table.labels.items()],
        bad=table.bad,
    )


def _read_table(data: bytes, address: str) -> AnswerTable:
    """Return the rows of a pair file; one without a byte is that of a project that begins."""
    _ending(address)
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        warnings.warn(f"{address} is empty: it has no answers yet", HmrfWarning, stacklevel=2)
        return AnswerTable(address)
    file = read_table(data, address, ANSWER_LINES)
    table = AnswerTable(address, file.unit)
    columns = "" if file.names is None else columns_of(file.names)
    if isinstance(columns, str) and columns:
        place = f"{address}, line 1" if file.unit == "line" else address
        raise InvalidInputError(f"{place}: {columns}; give the file such a header")
    for row in file.rows:
        table.take(row)
    refuse_many(len(table.classes), address)
    return table


def _ending(address: str) -> str:
    return ending_of(address, "a pair file")


def _as_array(first: list[Any], second: list[Any]) -> AnyArray:
    return np.array([first, second], dtype=object).T.reshape(-1, 2)


def _as_integers(table: AnswerTable, *, required: bool, text: bool) -> AnyArray:
    """Return the pairs, as integers where all ids are; refuse text where row numbers are needed."""
    pairs = _as_array([pair.first for pair in table.pairs], [pair.second for pair in table.pairs])
    if not (required or text):
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
        f"{table.path}, {table.unit} {table.pairs[bad].line}: a and b must be row numbers, "
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
    data = _WRITERS[_ending(address)](constraints)
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


def _columns(constraints: Constraints) -> tuple[AnyArray, dict[str, list[Any]]]:
    """Return the pairs, and by name what is known of each: None where it is the estimator's."""
    pairs = np.concatenate([constraints.must_nodes, constraints.cannot_nodes])
    kinds = ["must"] * len(constraints.must_nodes) + ["cannot"] * len(constraints.cannot_nodes)
    columns: dict[str, list[Any]] = {"kind": kinds}
    for name, must, cannot in (
        ("weight", constraints.must_link_costs, constraints.cannot_link_costs),
        ("trust", constraints.must_link_trust, constraints.cannot_link_trust),
    ):
        values = np.concatenate([must, cannot]).tolist()
        columns[name] = [None if value != value else value for value in values]
    return constraints.documents[pairs], columns


def _csv_bytes(constraints: Constraints) -> bytes:
    pairs, columns = _columns(constraints)
    rows = zip(*pairs.T.tolist(), *columns.values(), strict=True)
    text = io.StringIO(newline="")
    # Python 3.11 quotes a carriage return inside an id only when lines end with one (RFC 4180).
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(["a", "b", *columns])
    writer.writerows(rows)  # a number is written as it is, None as nothing
    return text.getvalue().encode()


def encode_pairs(constraints: Constraints) -> bytes:
    """Return the pairs as the bytes of a Parquet file."""
    import pyarrow as pa

    from hmrf_dask.storage.whole_files import encode_parquet  # it imports pyarrow, too

    pairs, columns = _columns(constraints)
    ids = pa.string() if constraints.documents.dtype.kind == "U" else pa.int64()
    arrays = {name: pa.array(pairs[:, end].tolist(), ids) for end, name in enumerate("ab")}
    arrays["kind"] = pa.array(columns.pop("kind"), pa.string())
    arrays |= {name: pa.array(values, pa.float64()) for name, values in columns.items()}
    return encode_parquet(pa.table(arrays))


def _jsonl_bytes(constraints: Constraints) -> bytes:
    pairs, columns = _columns(constraints)
    rows = zip(*pairs.T.tolist(), *columns.values(), strict=True)
    names = ("a", "b", *columns)
    return encode_lines(
        [
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in rows
        ]
    )


_WRITERS = {".csv": _csv_bytes, ".jsonl": _jsonl_bytes, ".parquet": encode_pairs}
