"""Pair files, CSV, JSONL or Parquet with columns a, b, kind, weight: errors name the line.

Known classes of documents, columns id and label, are pairs too.
"""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from hmrf_dask.constraints.arrays import SHOWN
from hmrf_dask.constraints.labels import LABELS, LabelRows
from hmrf_dask.errors import InvalidInputError, in_words
from hmrf_dask.types import AnyArray

if TYPE_CHECKING:
    from hmrf_dask.constraints.pairs import Constraints

COLUMNS = ("a", "b", "kind", "weight")
EITHER = "a, b, kind and, if wanted, weight, or id and label"
KINDS = ("must", "cannot")
RAW = 200  # characters of a bad line that are kept
NO_TEXT = "must be UTF-8 text, got other bytes"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (of Parquet a row) of a pair file that is no pair, and why."""

    line: int
    reason: str
    raw: str


@dataclass(frozen=True)
class PairLines:
    """The pairs of a file as they stand there, and the lines that are none.

    Attributes
    ----------
    pairs : str array, shape (m, 2)
        Ids as text.
    must : bool array, shape (m,)
    weights : float64 array, shape (m,)
        NaN where none is given.
    lines : int array, shape (m,)
    bad : list of BadLine
    """

    pairs: AnyArray
    must: AnyArray
    weights: AnyArray
    lines: AnyArray
    bad: list[BadLine]


@dataclass(slots=True)
class _Table:
    """The columns of a pair file, with the place of each row in the file for errors."""

    path: str
    unit: str
    first: list[Any] = field(default_factory=list)
    second: list[Any] = field(default_factory=list)
    kinds: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)

    def refuse(self, place: int, reason: object, raw: object = "") -> None:
        """Note a line that is no pair."""
        self.bad.append(BadLine(place, str(reason), str(raw)[:RAW]))

    def add(self, row: list[Any], place: int) -> None:
        """Append one row: a, b, kind, weight."""
        columns = (self.first, self.second, self.kinds, self.weights)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        self.places.append(place)


def read_pairs(path: str | os.PathLike[str], *, ids: bool = True) -> Constraints:
    """Read a pair file; see `hmrf_dask.constraints.pairs.Constraints.from_file`."""
    address = os.fspath(path)
    pair_ending(address)
    return parse_pairs(_read(address), address, ids=ids)


def parse_pairs(data: bytes, address: str, *, ids: bool = True) -> Constraints:
    """Return the pairs in the bytes of a pair file, whose name tells what they are."""
    from hmrf_dask.constraints.pairs import Constraints

    table, weights = _read_table(data, address)
    if table.bad:
        shown = "; ".join(f"{table.unit} {one.line}: {one.reason}" for one in table.bad[:SHOWN])
        more = f"; … ({len(table.bad)} in all)" if len(table.bad) > SHOWN else ""
        raise InvalidInputError(f"{address}, {shown}{more}")
    text = pair_ending(address) == ".csv"
    pairs = _as_integers(_pairs(table), table, required=not ids, text=text)
    must = np.array(table.kinds) == "must"
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
    pairs = np.array([table.first, table.second]).astype(np.str_).T.reshape(-1, 2)
    must = np.array(table.kinds, np.str_) == "must"
    return PairLines(pairs, must, weights, np.array(table.places, np.int64), table.bad)


def _read_table(data: bytes, address: str) -> tuple[_Table, AnyArray]:
    """Return the good rows of a pair file, beside the bad ones, and their weights as float64."""
    found = _READERS[pair_ending(address)](data, address)
    table, weights = _Table(address, found.unit, bad=found.bad), list[float]()
    columns = (found.first, found.second, found.kinds, found.weights)
    for row, place in zip(zip(*columns, strict=True), found.places, strict=True):
        problem = _problem(*row)
        if problem:
            table.refuse(place, problem, ",".join("" if one is None else str(one) for one in row))
        else:
            table.add(list(row), place)
            weights.append(np.nan if row[3] in ("", None) else float(row[3]))
    table.bad.sort(key=lambda one: one.line)
    return table, np.array(weights, np.float64)


def pair_ending(address: str) -> str:
    """Return the ending of a name, which says what a pair file is."""
    ending = PurePosixPath(address).suffix.lower()
    if ending not in _READERS:
        raise InvalidInputError(
            f"a pair file must be named {', '.join(_READERS)}, got {address!r}: rename it"
        )
    return ending


def _read(address: str) -> bytes:
    import fsspec

    try:
        filesystem, inside = fsspec.core.url_to_fs(address)
        return bytes(filesystem.cat_file(inside))
    except FileNotFoundError as error:
        raise InvalidInputError(f"there is no pair file {address!r}: check the path") from error
    except (OSError, ValueError, ImportError) as error:
        raise InvalidInputError(
            f"a pair file must be one that can be read, got {address!r}, {in_words(error)}; check "
            "the path"
        ) from error


def _text(data: bytes) -> str:
    """Return bytes as text; what is no UTF-8 stays to be seen, as surrogates."""
    return data.decode("utf-8-sig", "surrogateescape")


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\udc80" <= one <= "\udcff" for one in text)


def _read_jsonl(data: bytes, address: str) -> _Table:
    table = _Table(address, "line")
    labels = LabelRows(table)
    for place, line in enumerate(_text(data).split("\n"), 1):
        if not line.strip():
            continue
        raw = line.strip()
        if not _is_text(line):
            table.refuse(place, NO_TEXT, raw)
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            table.refuse(place, f"must be JSON, {error}", raw)
            continue
        if isinstance(found, dict) and found.keys() == set(LABELS):
            labels.add([found[name] for name in LABELS], place)
            continue
        if not isinstance(found, dict) or not set(COLUMNS[:3]) <= found.keys() <= set(COLUMNS):
            table.refuse(place, f"must be an object with {EITHER}, got {raw:.80}", raw)
            continue
        table.add([found.get(name) for name in COLUMNS], place)
    return table


def _read_csv(data: bytes, address: str) -> _Table:
    table = _Table(address, "line")
    reader = csv.reader(io.StringIO(_text(data), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise InvalidInputError(f"{address}, line 1: {error}") from error
    if not _is_text("".join(header)):
        raise InvalidInputError(f"{address}, line 1: {NO_TEXT}")
    order = _column_order(header, f"{address}, line 1")
    add = LabelRows(table).add if len(order) == len(LABELS) else table.add
    while True:
        began = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return table
        except csv.Error as error:  # the reader goes on with the next line
            lost = f", and so all lines to {reader.line_num}" if reader.line_num > began else ""
            table.refuse(began, f"{error}{lost}")
            continue
        place, raw = reader.line_num, ",".join(fields)
        if not fields:
            continue
        if not _is_text(raw):
            table.refuse(place, NO_TEXT, raw)
        elif len(fields) != len(header):
            wanted = f"{len(header)} fields ({', '.join(header)})"
            table.refuse(place, f"must have {wanted}, got {len(fields)}", raw)
        else:
            add([fields[column] if column >= 0 else "" for column in order], place)


def _column_order(header: list[str], where: str) -> list[int]:
    """Return the position of each of a, b, kind, weight (-1: no weight column), or id, label."""
    if sorted(header) == sorted(LABELS):
        return [header.index(name) for name in LABELS]
    wrong = set(header) ^ set(COLUMNS) if "weight" in header else set(header) ^ set(COLUMNS[:3])
    if wrong or len(set(header)) != len(header):
        raise InvalidInputError(
            f"{where}: the columns must be {EITHER}, got {', '.join(header) or 'nothing'}; give "
            "the file such a header"
        )
    return [header.index(name) if name in header else -1 for name in COLUMNS]


def _read_parquet(data: bytes, address: str) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInputError(f"{address}: is not a whole Parquet file, {error}") from error
    order = _column_order(found.column_names, address)
    table = _Table(address, "row")
    if len(order) == len(LABELS):
        labels, columns = LabelRows(table), [found[name].to_pylist() for name in LABELS]
        for place, row in enumerate(zip(*columns, strict=True), 1):
            labels.add(list(row), place)
        return table
    table.first, table.second, table.kinds = (found[name].to_pylist() for name in COLUMNS[:3])
    table.weights = found["weight"].to_pylist() if "weight" in found.column_names else []
    table.weights = table.weights or [None] * found.num_rows
    table.places = list(range(1, found.num_rows + 1))
    return table


def _problem(first: Any, second: Any, kind: Any, weight: Any) -> str:
    """Return what is wrong with a row, nothing if it is a pair."""
    if kind not in KINDS:
        return f'kind must be "must" or "cannot", got {kind!r}'
    if first in ("", None) or second in ("", None):
        return "a and b must name two documents, got an empty one"
    for one in (first, second):
        if isinstance(one, bool) or not isinstance(one, str | int):
            return f"a and b must be ids, text or whole numbers, got {one!r}"
    if first == second:
        return f"a and b must be two different documents, got {first!r} twice"
    if weight in ("", None):
        return ""
    try:
        number = float(weight)
    except (TypeError, ValueError):
        return f"weight must be a number, got {weight!r}"
    if not 0 <= number < np.inf:
        return f"weight must be finite and at least 0, got {weight!r}"
    return ""


def _pairs(table: _Table) -> AnyArray:
    return np.array([table.first, table.second], dtype=object).T.reshape(-1, 2)


def _as_integers(pairs: AnyArray, table: _Table, *, required: bool, text: bool) -> AnyArray:
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


_READERS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
