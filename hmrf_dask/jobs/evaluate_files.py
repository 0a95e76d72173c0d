"""How well assignments in files fit known classes in a file: counted where the files are read."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from hmrf_dask.constraints.answer_rows import delimiter_of
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.documents.streams import read_whole
from hmrf_dask.documents.values import MOST_CHARACTERS
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


@dataclass(frozen=True)
class Agreement:
    """How well clusters fit classes.

    Attributes
    ----------
    n_documents, n_compared : int
        With a cluster; of these with a known class.
    nmi, adjusted_rand, pairwise_f, homogeneity, completeness : float
    n_unasked : int or None
        Documents compared that no pair names, None where no pairs were given.
    nmi_unasked : float or None
        NMI of these alone, None where there are none: what the answers did for documents nobody
        was asked about.
    """

    n_documents: int
    n_compared: int
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
        A pair file whose documents are counted apart.
    """
    flow = DaskFlow()
    known = flow.lazy(_known_classes, truth, id_column, label_column)
    asked = [] if pairs is None else Constraints.from_file(pairs).as_text().documents.tolist()
    shared = flow.share(pa.array(asked, pa.string()))
    counted = [flow.lazy(_compared, file, known, shared) for file in assignment_files(assignments)]
    n_documents, table, unasked = flow.compute([tree(flow, _added, counted)])[0]
    if not table.n_rows:
        raise _nothing_compared(assignments, truth, id_column, label_column)
    return _agreement(n_documents, table, unasked if pairs is not None else None)


def _agreement(n_documents: int, table: Contingency, unasked: Contingency | None) -> Agreement:
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
        n_unasked=None if unasked is None else unasked.n_rows,
        nmi_unasked=None
        if unasked is None or not unasked.n_rows
        else normalized_mutual_info(unasked),
    )


def _nothing_compared(
    assignments: str, truth: str, id_column: str | None, label_column: str
) -> InvalidInputError:
    """Return the error that shows how ids are written on either side."""
    known = _known_classes(truth, id_column, label_column)["id"][:1].to_pylist()
    ids = [
        _read(one, ["doc_id"])["doc_id"][:1].to_pylist() for one in assignment_files(assignments)
    ]
    here: list[Any] = next(filter(None, ids), [])
    return InvalidInputError(
        f"documents of {assignments} must have a class in {truth}, got none: ids are such as "
        f"{_first(here)} in the one and {_first(known)} in the other; check --id-column, and that "
        "ids are written alike (spreadsheets drop leading zeros)"
    )


def _first(ids: list[Any]) -> str:
    return f"{str(ids[0])!r:.80}" if ids else "nothing"


def _known_classes(path: str, id_column: str | None, label_column: str) -> pa.Table:
    """Return the ids and classes of a file as text, without rows that lack one."""
    ending = PurePosixPath(path).suffix.lower()
    if ending not in READERS:
        raise InvalidInputError(
            f"known classes must be in a file named {', '.join(READERS)}, got {path!r}"
        )
    data = read_whole(path, {})
    wanted = ID_COLUMNS if id_column is None else (id_column,)
    try:
        found = READERS[ending](data, {*wanted, label_column})
    except (pa.ArrowException, OSError, ValueError, MemoryError, RecursionError) as error:
        raise InvalidInputError(f"{path}: is not a whole {ending} file, {error}") from error
    id_column = next((one for one in wanted if one in found.column_names), wanted[0])
    for name in (id_column, label_column):
        if found.column_names.count(name) != 1:
            raise InvalidInputError(
                f"{path} must have the columns {id_column!r} and {label_column!r}, got "
                f"{', '.join(found.column_names)[:300]}; name them with --id-column and "
                "--label-column"
            )
    try:
        columns = [found[name].cast(pa.string()) for name in (id_column, label_column)]
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"{path}: ids and classes must be texts or numbers, got {error}"
        ) from error
    _refuse_long(columns, path)
    known = pa.table(columns, ["id", "label"]).drop_null()
    _refuse_two_classes(known, path)
    return known


def _read_csv(data: bytes, names: set[str]) -> pa.Table:
    """Return a CSV file; ids and classes are texts: 007 is not 7."""
    return pyarrow.csv.read_csv(
        io.BytesIO(data),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter_of(data)),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )


def _read_jsonl(data: bytes, names: set[str]) -> pa.Table:
    """Return columns of JSON Lines as they are written: a text like a date stays that text."""
    lines = data.decode("utf-8-sig").split("\n")
    rows = [json.loads(line) for line in lines if line and not line.isspace()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("each line must be an object")
    there = dict.fromkeys(name for row in rows for name in row)
    return pa.table({
        name: [_text(row.get(name)) for row in rows] if name in names else pa.nulls(len(rows))
        for name in there
    })  # fmt: skip


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _read_parquet(data: bytes, names: set[str]) -> pa.Table:
    return read_plain_table(data)


READERS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}


def _refuse_two_classes(known: pa.Table, path: str) -> None:
    """Refuse a document with two classes: which of them were right nobody knows."""
    named = known.group_by("id").aggregate([("label", "min"), ("label", "max")])
    two = named.filter(pc.not_equal(named["label_min"], named["label_max"])).slice(0, 1).to_pylist()
    if two:
        raise InvalidInputError(
            f"{path}: a document must have one class, got {two[0]['label_min']!r:.80} and "
            f"{two[0]['label_max']!r:.80} for {two[0]['id']!r:.80}; correct the file"
        )


def _refuse_long(columns: list[Any], path: str) -> None:
    """Refuse names in arrays of which all would be as long as the longest."""
    longest = max(pc.max(pc.utf8_length(column)).as_py() or 0 for column in columns)
    if longest > MOST_CHARACTERS:
        raise InvalidInputError(
            f"{path}: ids and classes must have at most {MOST_CHARACTERS:,} characters, got "
            f"{longest:,}"
        )


def _compared(
    file: AssignmentFile, known: pa.Table, asked: Any
) -> tuple[int, Contingency, Contingency]:
    """Return how many documents a file has, and tables of all and of those nobody asked about."""
    found = _read(file, ["doc_id", "cluster"])
    ids = found["doc_id"].cast(pa.string())
    places = pc.index_in(ids, value_set=known["id"])
    compared = pc.is_valid(places).to_numpy()
    unasked = compared & ~pc.is_in(ids, value_set=asked).to_numpy()
    classes = known["label"].take(places).to_numpy()
    clusters = found["cluster"].to_numpy()
    every, rest = (
        tabulate(classes[rows].astype(np.str_), clusters[rows]) for rows in (compared, unasked)
    )
    return found.num_rows, every, rest


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
