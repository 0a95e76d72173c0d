"""Pair files, CSV, JSONL or Parquet with columns a, b, kind, weight: errors name the line."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from hmrf_dask.constraints.arrays import SHOWN
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.types import AnyArray

if TYPE_CHECKING:
    from hmrf_dask.constraints.pairs import Constraints

COLUMNS = ("a", "b", "kind", "weight")
KINDS = ("must", "cannot")


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

    def add(self, row: list[Any], place: int) -> None:
        """Append one row: a, b, kind, weight."""
        columns = (self.first, self.second, self.kinds, self.weights)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        self.places.append(place)


def read_pairs(path: str | os.PathLike[str], *, ids: bool = True) -> Constraints:
    """Read a pair file; see `hmrf_dask.constraints.pairs.Constraints.from_file`."""
    address = os.fspath(path)
    _ending(address)
    return parse_pairs(_read(address), address, ids=ids)


def parse_pairs(data: bytes, address: str, *, ids: bool = True) -> Constraints:
    """Return the pairs in the bytes of a pair file, whose name tells what they are."""
    from hmrf_dask.constraints.pairs import Constraints

    ending = _ending(address)
    table = _READERS[ending](data, address)
    weights = _checked(table)
    pairs = _as_integers(_pairs(table), table, required=not ids, text=ending == ".csv")
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


def write_pairs(constraints: Constraints, path: str | os.PathLike[str]) -> None:
    """Write a pair file; see `hmrf_dask.constraints.pairs.Constraints.to_file`.

    The bytes are complete before the first one is written, and a local file is replaced whole: a
    killed program leaves the old answers, not half of the new ones.
    """
    import fsspec

    address = os.fspath(path)
    data = _WRITERS[_ending(address)](constraints)
    filesystem, inside = fsspec.core.url_to_fs(address)
    if type(filesystem).__name__ != "LocalFileSystem":
        filesystem.pipe_file(inside, data)
        return
    temporary = f"{inside}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, inside)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def _ending(address: str) -> str:
    ending = PurePosixPath(address).suffix.lower()
    if ending not in _READERS:
        raise InvalidInputError(
            f"a pair file must be named {', '.join(_READERS)}, got {address!r}: rename it"
        )
    return ending


def _read(address: str) -> bytes:
    import fsspec

    filesystem, inside = fsspec.core.url_to_fs(address)
    try:
        return bytes(filesystem.cat_file(inside))
    except FileNotFoundError as error:
        raise InvalidInputError(f"there is no pair file {address!r}: check the path") from error


def _text(data: bytes, address: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{address}, line {line}: must be UTF-8 text, {error}") from error


def _read_jsonl(data: bytes, address: str) -> _Table:
    table = _Table(address, "line")
    for place, line in enumerate(_text(data, address).split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InvalidInputError(f"{address}, line {place}: must be JSON, {error}") from error
        if not isinstance(found, dict) or not set(COLUMNS[:3]) <= found.keys() <= set(COLUMNS):
            raise InvalidInputError(
                f"{address}, line {place}: must be an object with a, b, kind and, if wanted, "
                f"weight, got {line.strip():.80}"
            )
        table.add([found.get(name) for name in COLUMNS], place)
    return table


def _read_csv(data: bytes, address: str) -> _Table:
    table = _Table(address, "line")
    reader = csv.reader(io.StringIO(_text(data, address), newline=""), strict=True)
    try:
        for place, row in _csv_rows(reader, address):
            table.add(row, place)
    except csv.Error as error:
        raise InvalidInputError(f"{address}, line {reader.line_num}: {error}") from error
    return table


def _csv_rows(reader: Any, address: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the fields (a, b, kind, weight) of each row that is not empty."""
    header = [name.strip() for name in next(reader, [])]
    order = _column_order(header, f"{address}, line 1")
    for fields in reader:
        if not fields:
            continue
        if len(fields) != len(header):
            raise InvalidInputError(
                f"{address}, line {reader.line_num}: must have {len(header)} fields "
                f"({', '.join(header)}), got {len(fields)}"
            )
        yield reader.line_num, [fields[place] if place >= 0 else "" for place in order]


def _column_order(header: list[str], where: str) -> list[int]:
    """Return the position of each of a, b, kind, weight (-1: no weight column)."""
    wrong = set(header) ^ set(COLUMNS) if "weight" in header else set(header) ^ set(COLUMNS[:3])
    if wrong or len(set(header)) != len(header):
        raise InvalidInputError(
            f"{where}: the columns must be a, b, kind and, if wanted, weight, "
            f"got {', '.join(header) or 'nothing'}"
        )
    return [header.index(name) if name in header else -1 for name in COLUMNS]


def _read_parquet(data: bytes, address: str) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInputError(f"{address}: is not a whole Parquet file, {error}") from error
    _column_order(found.column_names, address)
    table = _Table(address, "row")
    table.first, table.second, table.kinds = (found[name].to_pylist() for name in COLUMNS[:3])
    table.weights = found["weight"].to_pylist() if "weight" in found.column_names else []
    table.weights = table.weights or [None] * found.num_rows
    table.places = list(range(1, found.num_rows + 1))
    return table


def _checked(table: _Table) -> AnyArray:
    """Return the weights as float64; refuse bad rows, naming their lines."""
    weights = np.full(len(table.weights), np.nan)
    problems: list[str] = []
    rows = zip(table.first, table.second, table.kinds, table.weights, table.places, strict=True)
    for row, (first, second, kind, weight, place) in enumerate(rows):
        problem = _problem(first, second, kind)
        if not problem and weight not in ("", None):
            try:
                weights[row] = float(weight)
            except (TypeError, ValueError):
                problem = f"weight must be a number, got {weight!r}"
            else:
                if not 0 <= weights[row] < np.inf:
                    problem = f"weight must be finite and at least 0, got {weight!r}"
        if problem:
            problems.append(f"{table.unit} {place}: {problem}")
    if problems:
        more = f"; … ({len(problems)} in all)" if len(problems) > SHOWN else ""
        raise InvalidInputError(f"{table.path}, {'; '.join(problems[:SHOWN])}{more}")
    return weights


def _problem(first: Any, second: Any, kind: Any) -> str:
    if kind not in KINDS:
        return f'kind must be "must" or "cannot", got {kind!r}'
    if first in ("", None) or second in ("", None):
        return "a and b must name two documents, got an empty one"
    if first == second:
        return f"a and b must be two different documents, got {first!r} twice"
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
    writer.writerow(COLUMNS)
    writer.writerows(zip(*pairs.T.tolist(), kinds, written, strict=True))
    return text.getvalue().encode()


def _parquet_bytes(constraints: Constraints) -> bytes:
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


_READERS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
_WRITERS = {".csv": _csv_bytes, ".jsonl": _jsonl_bytes, ".parquet": _parquet_bytes}
