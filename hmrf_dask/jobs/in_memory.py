"""Texts in memory become clusters: a job over a folder that is gone when it has ended."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.documents.sources import BATCH_ROWS
from hmrf_dask.errors import ConfigurationError, InvalidInputError, counted
from hmrf_dask.flow.clients import on_threads
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.new_job import n_clusters_for, text_settings
from hmrf_dask.jobs.released import ReleasedModel, load_release
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.parameters import AUTO, RANGES
from hmrf_dask.progress import verbosely
from hmrf_dask.text.given import as_texts

_SAMPLE: Final = 200  # texts that show their language
_ANSWERS: Final = "answers.jsonl"


class InMemory(NamedTuple):
    """What is known of documents that were given in memory.

    Attributes
    ----------
    table : pyarrow.Table
        The assignments, in the order in which texts were given.
    texts : dict of str to str
        By id.
    index : pandas.Index or None
        Of the column that they came in.
    """

    table: pa.Table
    texts: dict[str, str]
    index: Any


def group(
    texts: Any,
    n_clusters: int | str = AUTO,
    answers: Any = None,
    rows: Any = AUTO,
    *,
    method: Mapping[str, Any] | None = None,
    threads: int | None = None,
    verbose: bool = False,
) -> ReleasedModel:
    """Group texts, and return the clusters and the model that new texts can be put to.

    It is what `hmrf-dask run` does with a file, on threads of this process; nothing is left on the
    disk.

    Parameters
    ----------
    texts : sequence of str
        A list, a pandas or polars column. The index of a pandas column stays; without one, texts
        are called by their positions.
    n_clusters : int or "auto", default="auto"
        "auto": chosen on a sample.
    answers : optional
        What is known of some texts: triples (a, b, "same") or (a, b, "different"); a mapping from
        ids to classes; the path of a file with either; or `Constraints`. Texts are called by their
        index, else by their positions.
    rows : "auto", str, mapping or array of shape (n_texts, n_numbers), default="auto"
        How texts become rows: as the section `text` of a job says it, or its `kind` alone; or ready
        embeddings.
    method : mapping, optional
        Other parameters of the section `method` of a job, such as `{"distortion": "euclidean"}`.
    threads : int, optional
        Without it all of this machine.
    verbose : bool, default=False
        Whether to show how far it is: lines on stderr, in a notebook a bar.

    Returns
    -------
    ReleasedModel

    Examples
    --------
    >>> from hmrf_dask import group
    >>> texts = ["cats and dogs", "stars and planets", "dogs bark", "planets orbit stars"]
    >>> model = group(texts, n_clusters=2, answers=[(0, 1, "different")])
    >>> model.assignments()["cluster"].tolist() == model.predict(texts).tolist()
    True
    """
    values, index = as_texts(texts), getattr(texts, "index", None)
    ids = _ids_of(index, len(values))
    if len(values) < 2:
        raise InvalidInputError(
            f"texts must be at least two to be compared, got {counted(len(values), 'text')}; give "
            "one text for each document"
        )
    if threads is not None and (problem := RANGES["threads"].problem(threads)):
        raise ConfigurationError(f"threads {problem}, got {threads!r}")
    with tempfile.TemporaryDirectory(prefix="hmrf-texts-") as folder:
        os.chmod(folder, 0o700)  # they may be private
        job = _write(folder, ids, values, (n_clusters, answers, rows, method or {}))
        try:
            loaded = load_job(job)
        except ConfigurationError as error:  # its file is none of theirs
            raise ConfigurationError(str(error).replace(job, "what group was given")) from None
        with on_threads(threads), verbosely(verbose) as tell:
            run_job(gather(loaded, job), tell=tell)
        return _held(load_release(f"{folder}/out"), ids, values, index)


def _ids_of(index: Any, n_texts: int) -> list[str]:
    """Return what texts are called: by their index if there is one, else by their positions."""
    if index is None or callable(index):  # a list has a method of this name
        return [str(number) for number in range(n_texts)]
    ids = [str(value) for value in index.tolist()]
    if len(set(ids)) < len(ids):
        raise InvalidInputError(
            f"an index must name each text once, got {len(ids) - len(set(ids)):,} names again; "
            "give texts.reset_index(drop=True)"
        )
    return ids


def _write(
    folder: str, ids: Sequence[str], texts: Sequence[str], wanted: tuple[Any, Any, Any, Any]
) -> str:
    """Write documents, answers, a manifest and a job; return the path of the job."""
    n_clusters, answers, rows, method = wanted
    columns = {"id": pa.array(ids, pa.string()), "text": pa.array(texts, pa.large_string())}
    documents: dict[str, Any] = {"empty_text": "keep"}
    if hasattr(rows, "shape"):
        columns["embedding"], documents["embedding"] = _as_lists(rows, len(ids)), "embedding"
        text: Any = {"kind": "embeddings"}
    elif isinstance(rows, str):
        auto = rows == AUTO
        text = text_settings(texts[:_SAMPLE], len(texts)) if auto else {"kind": rows}
    else:
        text = _section("rows", rows)
    pq.write_table(pa.table(columns), f"{folder}/documents.parquet", row_group_size=BATCH_ROWS)
    manifest = {
        "$schema": "hmrf-dask/manifest/v1", "name": "texts",
        "resources": [{"name": "texts", "path": "documents.parquet"}], "documents": documents,
    }  # fmt: skip
    if n_clusters == AUTO:
        n_clusters = n_clusters_for(len(texts))
    job = {
        "$schema": "hmrf-dask/job/v1", "manifest": "manifest.yaml", "text": text or None,
        "method": {**_section("method", method), "n_clusters": n_clusters}, "output": "out",
        "answers": _write_answers(folder, answers),
    }  # fmt: skip
    for name, content in (("manifest", manifest), ("job", job)):  # JSON is YAML
        Path(folder, f"{name}.yaml").write_text(
            json.dumps(content, default=_plain), encoding="utf-8"
        )
    return f"{folder}/job.yaml"


def _section(name: str, values: Any) -> dict[str, Any]:
    """Return a section of a job as somebody gave it."""
    if not isinstance(values, Mapping):
        array = ", or an array with a row for each text" if name == "rows" else ""
        raise InvalidInputError(
            f"{name} must be a mapping as a job has it{array}, got a {type(values).__name__}"
        )
    return dict(values)


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, which JSON takes; of others, what they are."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _as_lists(rows: Any, n_texts: int) -> pa.Array:
    """Return ready embeddings as a column."""
    array = np.asarray(rows)
    if array.ndim != 2 or len(array) != n_texts or array.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"rows must be numbers, a row for each of the {n_texts} texts, got an array of shape "
            f"{array.shape} and type {array.dtype}"
        )
    flat = pa.array(np.ascontiguousarray(array, np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, array.shape[1])


def _write_answers(folder: str, answers: Any) -> list[str]:
    """Write what is known of texts to a file as a job reads it; return its name if there is one."""
    if answers is None:
        return []
    if isinstance(answers, str | os.PathLike):
        return [os.path.abspath(os.fspath(answers))]
    if isinstance(answers, Constraints):
        answers.as_text().to_file(f"{folder}/answers.parquet")
        return ["answers.parquet"]
    lines = [json.dumps(line) for line in _lines_of(answers)]
    Path(folder, _ANSWERS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [_ANSWERS] if lines else []


def _lines_of(answers: Any) -> Iterable[dict[str, Any]]:
    """Yield answers as lines of a file of theirs."""
    if hasattr(answers, "columns") or not isinstance(answers, Iterable):
        raise InvalidInputError(
            "answers must be triples such as (0, 1, 'same'), a mapping from ids to classes, or the "
            f"path of a file, got a {type(answers).__name__}; of a table give "
            "table[['a', 'b', 'kind']].itertuples(index=False)"
        )
    if hasattr(answers, "items"):
        for name, label in answers.items():
            if label is not None and label == label:
                yield {"id": str(name), "label": str(label)}
        return
    for number, answer in zip(count(), answers):
        if not isinstance(answer, Sequence) or isinstance(answer, str) or len(answer) != 3:
            raise InvalidInputError(
                "answers must be triples such as (0, 1, 'same') or (0, 1, 'different'), or a "
                f"mapping from ids to classes, got {answer!r:.80} at position {number}"
            )
        first, second, kind = answer
        yield {"a": str(first), "b": str(second), "kind": str(kind)}


def _held(
    model: ReleasedModel, ids: Sequence[str], texts: Sequence[str], index: Any
) -> ReleasedModel:
    """Return a model with all that it will be asked for in memory."""
    table = pa.concat_tables(model.assignment_tables())
    places = {name: place for place, name in enumerate(table["doc_id"].to_pylist())}
    in_order = table.take(pa.array([places[name] for name in ids], pa.int64()))
    keeps = index is not None and not callable(index)
    return model.in_memory(
        InMemory(in_order, dict(zip(ids, texts, strict=True)), index if keeps else None)
    )
