"""Groups as a table for other programs: every document with its cluster and its name."""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.answers.journal import journal_address
from hmrf_dask.documents.delimited import encode_lines, ending_of
from hmrf_dask.documents.manifest import ASSIGNED
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs.ask import without_formula
from hmrf_dask.jobs.exchange import refuse_own
from hmrf_dask.jobs.names import OUTLIERS
from hmrf_dask.jobs.released import ReleasedModel, load_release
from hmrf_dask.storage.addresses import absolute_url, is_local, local_path
from hmrf_dask.storage.remote import explained, open_files

COLUMNS = ("doc_id", "cluster")
_FIRST = (*COLUMNS, "name")
_LONGEST_LINE = 2**20


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes
    ----------
    output, file : str
    release : int
    documents : int
    columns : list of str
    """

    output: str
    file: str
    release: int
    documents: int
    columns: list[str]


def export_groups(output: str, file: str, *, release: int | None = None) -> Exported:
    """Write the cluster of every document of a release to a file, whose name says the format.

    Columns are doc_id, cluster, name and those that the manifest keeps. It is written a file of
    assignments at a time, and replaces an earlier export once it is whole; no other file, which may
    be somebody's documents.

    Parameters
    ----------
    output : str
    file : str
        Ending in .csv, .jsonl or .parquet; a path or URL.
    release : int, optional

    Returns
    -------
    Exported
    """
    kind = ending_of(file, "a file of groups")
    url = absolute_url(file, "a file")
    model = load_release(output, release)
    refuse_own(url, model.output, journal_address(model.output), "a file of groups")
    _refuse_other(url, kind)
    with _replaced(url) as target, _WRITERS[kind](target) as write:
        n_documents, columns = 0, list[str]()
        for table in _tables(model):
            write(table)
            n_documents, columns = n_documents + len(table), table.column_names
    return Exported(output, file, model.release, n_documents, columns)


def _refuse_other(url: str, kind: str) -> None:
    """Refuse to replace a file that is no earlier export: it may be the documents themselves."""
    with explained(url, "read it"):
        filesystem, inside = open_files(local_path(url) if is_local(url) else url)
        if not filesystem.isfile(inside) or not filesystem.size(inside):
            return
        with filesystem.open(inside, "rb") as file:
            names = _names_in(file, kind)
    if names[: len(_FIRST)] != _FIRST:
        raise ConfigurationError(
            f"a file of groups must be new or of an earlier export, got {url}, which is another "
            "file; name another one, or remove it"
        )


def _names_in(file: IO[bytes], kind: str) -> tuple[str, ...]:
    """Return the names of the columns of a file, none where it is not of its kind."""
    try:
        if kind == ".parquet":
            return tuple(pq.read_schema(file).names)
        line = file.readline(_LONGEST_LINE).decode("utf-8-sig")
        return tuple(next(csv.reader([line])) if kind == ".csv" else dict(json.loads(line)))
    except (ValueError, TypeError, StopIteration, csv.Error):  # Arrow's are ValueErrors
        return ()


def _tables(model: ReleasedModel) -> Iterator[pa.Table]:
    """Yield documents with their clusters, what these are called, and the kept columns."""
    names = model.names
    for table in model.assignment_tables():
        kept = [name for name in table.column_names if name not in ASSIGNED]
        called = [names.get(cluster, OUTLIERS) for cluster in table["cluster"].to_pylist()]
        chosen = table.select([*COLUMNS, *kept])
        yield chosen.add_column(2, "name", pa.array(called, pa.string()))


@contextmanager
def _replaced(url: str) -> Iterator[IO[bytes]]:
    """Open a file to write, which takes the place of what is there once it is whole."""
    path = local_path(url) if is_local(url) else url
    unfinished = f"{path}.{secrets.token_hex(4)}.part" if is_local(url) else path
    with explained(url, "write it"):
        filesystem, inside = open_files(unfinished)
        try:
            with filesystem.open(inside, "wb") as file:
                yield file
            if is_local(url):
                os.replace(unfinished, path)
        except BaseException:
            if is_local(url) and os.path.exists(unfinished):
                os.remove(unfinished)
            raise


@contextmanager
def _csv(file: IO[bytes]) -> Iterator[Callable[[pa.Table], None]]:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer, header = csv.writer(text), list[str]()

    def write(table: pa.Table) -> None:
        if not header:
            header.extend(table.column_names)
            writer.writerow(header)
        ids, clusters, *texts = table.to_pydict().values()
        shown = [[without_formula(value or "") for value in column] for column in texts]
        writer.writerows(zip(ids, clusters, *shown, strict=True))

    yield write
    text.detach()


@contextmanager
def _jsonl(file: IO[bytes]) -> Iterator[Callable[[pa.Table], None]]:
    def write(table: pa.Table) -> None:
        file.write(encode_lines(table.to_pylist(), ascii_only=False))

    yield write


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Callable[[pa.Table], None]]:
    writers = list[Any]()

    def write(table: pa.Table) -> None:
        if not writers:
            writers.append(pq.ParquetWriter(file, table.schema))
        writers[0].write_table(table)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


_WRITERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
