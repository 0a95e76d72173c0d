"""How well assignments in files fit known classes in a file: counted where the files are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.documents.delimited import TableFile, ending_of, read_table
from hmrf_dask.documents.records import MOST_CHARACTERS, BadRecord
from hmrf_dask.documents.streams import read_whole
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs.places import AssignmentFile, assignment_files, explained_to_readers
from hmrf_dask.measures.contingency import Contingency, merge, tabulate
from hmrf_dask.measures.scores import (
    adjusted_rand,
    completeness,
    homogeneity,
    normalized_mutual_info,
    pairs_within,
)
from hmrf_dask.releases.release import read_file
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.storage.whole_files import read_plain_table

ID_COLUMNS = ("doc_id", "id")  # of known classes, where it is not said: assignments' or documents'
BATCH_ROWS = 10_000
SHOWN = 50  # names of columns


@dataclass(frozen=True)
class Agreement:
    """How well clusters fit classes.

    `nmi_unasked` is that of the `n_unasked` documents compared that no pair names, where pairs were
    given: what the answers did for documents nobody was asked about.
    """

    n_documents: int  # with a cluster
    n_compared: int  # of these with a known class
    nmi: float
    adjusted_rand: float
    pairwise_f: float
    homogeneity: float
    completeness: float
    n_unasked: int | None
    nmi_unasked: float | None


def evaluate_files(
    assignments: str,
    truth: str,
    *,
    id_column: str | None = None,
    label_column: str = "label",
    pairs: str | None = None,
) -> Agreement:
    """Compare assignments with known classes.

    Parameters
    ----------
    assignments : str
        The output of a job, a run directory, or a folder of Parquet files.
    truth : str
        CSV, JSONL or Parquet, path or URL.
    id_column, label_column : str
        Of `truth`; without the first it is doc_id, or else id.
    pairs : str, optional
        A pair file whose documents are counted separately.
    """
    flow, files = DaskFlow(), assignment_files(assignments)
    known = flow.lazy(_known_classes, truth, id_column, label_column)
    asked = [] if pairs is None else Constraints.from_file(pairs).as_text().documents.tolist()
    shared = flow.share(pa.array(asked, pa.string()))
    counted = [flow.lazy(_compared, file, known, shared) for file in files]
    n_documents, table, unasked = flow.compute([tree(flow, _added, counted)])[0]
    if not table.n_rows:
        here = next(filter(None, (_first(_read(file, ["doc_id"])["doc_id"]) for file in files)), "")
        there = _first(_known_classes(truth, id_column, label_column)["id"])
        raise InvalidInputError(
            f"documents of {assignments} must have a class in {truth}, got none: ids are such as "
            f"{here or 'nothing'} in the one and {there or 'nothing'} in the other; check "
            "--id-column, and that ids are written alike (spreadsheets drop leading zeros)"
        )
    both, classes, clusters = (
        pairs_within(sizes) for sizes in (table.counts, table.class_sizes, table.cluster_sizes)
    )
    return Agreement(
        n_documents=n_documents,
        n_compared=table.n_rows,
        nmi=normalized_mutual_info(table),
        adjusted_rand=adjusted_rand(table),
        pairwise_f=2 * both / (classes + clusters) if classes + clusters else 0.0,
        homogeneity=homogeneity(table),
        completeness=completeness(table),
        n_unasked=None if pairs is None else unasked.n_rows,
        nmi_unasked=normalized_mutual_info(unasked) if pairs and unasked.n_rows else None,
    )


def _first(ids: pa.ChunkedArray) -> str:
    """Return how ids are written, by the first one."""
    return f"{str(ids[0])!r:.80}" if len(ids) else ""


def _known_classes(path: str, id_column: str | None, label_column: str) -> pa.Table:
    """Return the ids and classes of a file as text, without rows that lack one."""
    ending = ending_of(path, "a file of known classes")
    data = read_whole(path, {})
    wanted = (*(ID_COLUMNS if id_column is None else (id_column,)), label_column)
    read = _typed_columns if ending == ".parquet" else _text_columns
    names, columns = read(data, path, wanted)
    id_column = next((name for name in wanted[:-1] if name in names), wanted[0])
    for name in (id_column, label_column):
        if names.count(name) != 1:
            raise InvalidInputError(
                f"{path} must have the columns {id_column!r} and {label_column!r}, got "
                f"{', '.join(names)[:300]}; name them with --id-column and --label-column"
            )
    known = pa.table([columns[id_column], columns[label_column]], ["id", "label"]).drop_null()
    _refuse_long_or_twice(known, path)
    return known


def _typed_columns(
    data: bytes, path: str, wanted: Sequence[str]
) -> tuple[list[str], dict[str, pa.ChunkedArray]]:
    """Return the names of all columns of a Parquet file, and those wanted as text."""
    try:
        table = read_plain_table(data)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InvalidInputError(f"{path}: is not a whole .parquet file, {error}") from error
    names = table.column_names
    try:
        columns = {n: table[n].cast(pa.string()) for n in wanted if names.count(n) == 1}
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"{path}: ids and classes must be texts or numbers, got {error}"
        ) from error
    return names, columns


def _text_columns(
    data: bytes, path: str, wanted: Sequence[str]
) -> tuple[list[str], dict[str, pa.ChunkedArray]]:
    """Return the names of all columns of CSV or JSON Lines, and those wanted as they are written.

    A text like a date stays that text, and 007 is not 7.
    """
    file = read_table(data, path)
    names, chunks = list(file.names or ()), list[pa.Table]()
    rows = _written(file, path, wanted, names)
    while batch := list(islice(rows, BATCH_ROWS)):
        columns = (pa.array(column, pa.string()) for column in zip(*batch, strict=True))
        chunks.append(pa.table(list(columns), list(wanted)))
    schema = pa.schema([(name, pa.string()) for name in wanted])
    table = pa.concat_tables([schema.empty_table(), *chunks])
    return names, {name: table[place] for place, name in enumerate(wanted)}


def _written(
    file: TableFile, path: str, wanted: Sequence[str], names: list[str]
) -> Iterator[list[str | None]]:
    """Yield the wanted values of rows as text, and add names that are new to `names`."""
    places = [names.index(name) if name in names else None for name in wanted]
    for row in file.rows:
        if isinstance(row, BadRecord):
            raise InvalidInputError(f"{path}, line {row.line}: {row.reason}; correct the file")
        if file.names is None:
            values = dict(zip(row.names, row.values, strict=True))
            names += [n for n in values if n not in names and (n in wanted or len(names) < SHOWN)]
            yield [_text(values.get(name)) for name in wanted]
        else:  # an empty cell is nothing
            yield [None if place is None else row.values[place] or None for place in places]


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _refuse_long_or_twice(known: pa.Table, path: str) -> None:
    """Refuse long names, as all in an array take the longest's memory, and two classes of one."""
    longest = max(pc.max(pc.utf8_length(column)).as_py() or 0 for column in known.columns)
    if longest > MOST_CHARACTERS:
        raise InvalidInputError(
            f"{path}: ids and classes must have at most {MOST_CHARACTERS:,} characters, got "
            f"{longest:,}"
        )
    named = known.group_by("id").aggregate([("label", "min"), ("label", "max")])
    two = named.filter(pc.not_equal(named["label_min"], named["label_max"])).slice(0, 1).to_pylist()
    if two:
        raise InvalidInputError(
            f"{path}: a document must have one class, got {two[0]['label_min']!r:.80} and "
            f"{two[0]['label_max']!r:.80} for {two[0]['id']!r:.80}; correct the file"
        )


def _compared(
    file: AssignmentFile, known: pa.Table, asked: Any
) -> tuple[int, Contingency, Contingency]:
    """Return how many documents a file has, and tables of all and of those nobody asked about."""
    table = _read(file, ["doc_id", "cluster"])
    ids = table["doc_id"].cast(pa.string())
    places = pc.index_in(ids, value_set=known["id"])
    compared = pc.is_valid(places).to_numpy()
    unasked = compared & ~pc.is_in(ids, value_set=asked).to_numpy()
    classes = known["label"].take(places).to_numpy()
    clusters = table["cluster"].to_numpy()
    every, rest = (
        tabulate(classes[rows].astype(np.str_), clusters[rows]) for rows in (compared, unasked)
    )
    return table.num_rows, every, rest


def _read(file: AssignmentFile, columns: list[str]) -> pa.Table:
    """Return columns of a file, which is as it was published."""
    storage = open_storage(file.url, {}, durable=False)
    if file.sha256 is None:
        data = storage.read(file.name)
    else:
        with explained_to_readers() if file.name.startswith("runs/") else nullcontext():
            data = read_file(storage, file.name, file.sha256)
    try:
        return read_plain_table(data, columns)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InvalidInputError(
            f"{file.path} must be a whole Parquet file with the columns {', '.join(columns)}, got "
            f"something else ({error}); make the assignments again"
        ) from error


def _added(
    parts: list[tuple[int, Contingency, Contingency]],
) -> tuple[int, Contingency, Contingency]:
    numbers, tables, unasked = zip(*parts, strict=True)
    return sum(numbers), merge(tables), merge(unasked)
