"""The fit of a report: its iterations and settings as they were recorded, and known classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hmrf_dask.jobs.parent import JOB
from hmrf_dask.jobs.report_subject import Subject, step_seconds
from hmrf_dask.measures.contingency import Contingency, tabulate
from hmrf_dask.measures.scores import (
    adjusted_rand,
    completeness,
    homogeneity,
    normalized_mutual_info,
    pairs_within,
)
from hmrf_dask.report.content import Agreement, Fit, Step, Word
from hmrf_dask.storage.sealed import unseal
from hmrf_dask.storage.stores import Storage
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet

TERMS: Final = ("J", "distortion", "must_link", "cannot_link", "prior")
MOST_STEPS: Final = 1_000
MOST_CLASSES, MOST_CLUSTERS = 40, 60  # of the confusion table
_LIBRARIES = ("numpy", "scipy", "numba", "llvmlite")


def fit_of(subject: Subject, learned: tuple[Word, ...]) -> Fit:
    """Return how the fit went; of a prediction that of the model it used."""
    folder = "" if not subject.fit else f"{subject.fit}/"
    config = subject.attempt("Settings of the fit", lambda: _config(subject, folder)) or {}
    model = subject.attempt("The model", lambda: _model(subject)) or {}
    settings = {**model.get("parameters", {}), **config.get("settings", {})}
    if "distortion" in config:
        settings["distortion"] = config["distortion"]
    kernels = config.get("kernels", {})
    versions = {"hmrf-dask": config.get("hmrf_dask", "")}
    versions |= {name: kernels[name] for name in _LIBRARIES if name in kernels}
    steps = (
        subject.attempt("Iterations of the fit", lambda: tuple(_steps(subject.storage, folder)))
        or ()
    )
    facts = dict(subject.record.fit) if subject.record else _summary(model)
    return Fit(
        facts=facts,
        steps=steps[:MOST_STEPS],
        seconds=step_seconds(subject.record),
        settings=dict(sorted(settings.items())),
        versions={name: str(version) for name, version in versions.items() if version},
        again=_again(subject),
        learned=learned,
    )


def _config(subject: Subject, folder: str) -> dict[str, Any]:
    name = f"{folder}run.json"
    config: dict[str, Any] = unseal(subject.storage.read(name), name)["config"]
    return config


def _model(subject: Subject) -> dict[str, Any]:
    if subject.model is None:
        return {}
    name = f"{subject.model}/model.json"
    return unseal(subject.storage.read(name), name)


def _summary(model: dict[str, Any]) -> dict[str, Any]:
    summary = model.get("summary", {})
    known = {"objective": "J", "n_iter": "iterations", "seed": "seed"}
    same = ("converged", "stop_reason", "start_reason")
    facts = {known[name]: summary[name] for name in known if name in summary}
    return facts | {name: summary[name] for name in same if name in summary}


def _steps(storage: Storage, folder: str) -> Iterator[Step]:
    """Yield the iterations that were recorded; of one that was done again the last."""
    steps = {}
    for line in _event_lines(storage, folder):
        event = json.loads(line)
        if event.get("event") == "iteration":
            terms = {name: float(event[name]) for name in TERMS if event.get(name) is not None}
            step = Step(str(event["phase"]), int(event["iteration"]), int(event["moved"]), terms)
            steps[int(event["commit"])] = step  # refinement may begin again from 1
    yield from steps.values()


def _event_lines(storage: Storage, folder: str) -> Iterator[bytes]:
    """Yield the lines of events: of one file, or of the objects of a store in their order."""
    if "events.jsonl" in storage.names(folder.rstrip("/")):
        yield from storage.read(f"{folder}events.jsonl").splitlines()
        return
    for name in sorted(storage.names(f"{folder}events")):
        yield from storage.read(f"{folder}events/{name}").splitlines()


def _again(subject: Subject) -> tuple[str, ...]:
    """Return the commands that lead to the same; folders are as the reader calls them."""
    if subject.release is None:
        return ("hmrf-dask fit ROWS --pairs PAIRS --run-dir RUN --fresh",)
    job = str(subject.release.ledger.get(JOB) or "job.yaml").rpartition("/")[2]
    parent = subject.release.number - 1
    from_release = f" --from-release {parent}" if subject.release.parent else ""
    return (f"hmrf-dask run {job}{from_release} --output NEW_OUTPUT", "hmrf-dask report OUTPUT")


# ---- known classes


def encode_classes(table: Contingency) -> bytes:
    """Return classes.parquet: the documents of each class in each cluster that has some."""
    columns = {
        "class": pa.array(table.classes[table.rows].tolist(), pa.string()),
        "cluster": pa.array(table.clusters[table.columns].tolist(), pa.int32()),
        "documents": pa.array(table.counts.tolist(), pa.int64()),
    }
    return encode_parquet(pa.table(columns))


def agreement_of(subject: Subject) -> Agreement | None:
    """Return how well clusters fit known classes, None where there are none."""
    data = subject.classes()
    if not data:
        return None
    rows = decode_parquet(data).to_pydict()
    return compared(rows["class"], rows["cluster"], rows["documents"])


def compared(classes: list[str], clusters: list[int], documents: list[int]) -> Agreement | None:
    """Return scores and the largest classes by the largest clusters, from cells of their table.

    Examples
    --------
    >>> compared(["x", "y"], [4, 5], [2, 3]).table
    ((3, 0), (0, 2))
    """
    if not documents:
        return None
    cells = tabulate(np.asarray(classes, np.str_), np.asarray(clusters, np.int64))
    places = {
        (str(cells.classes[row]), int(cells.clusters[column])): at
        for at, (row, column) in enumerate(zip(cells.rows, cells.columns, strict=True))
    }
    counts = np.zeros(len(places), np.int64)
    for cell, number in zip(zip(classes, clusters, strict=True), documents, strict=True):
        counts[places[cell]] += number
    table = Contingency(cells.classes, cells.clusters, cells.rows, cells.columns, counts)
    both, of_classes, of_clusters = (
        pairs_within(sizes) for sizes in (table.counts, table.class_sizes, table.cluster_sizes)
    )
    scores = {
        "NMI": normalized_mutual_info(table),
        "pairwise F": 2 * both / (of_classes + of_clusters) if of_classes + of_clusters else 0.0,
        "adjusted Rand": adjusted_rand(table),
        "homogeneity": homogeneity(table),
        "completeness": completeness(table),
    }
    rows = np.lexsort((np.arange(len(table.class_sizes)), -table.class_sizes))[:MOST_CLASSES]
    columns = _in_diagonal_order(table, rows)[:MOST_CLUSTERS]
    dense = np.zeros((len(table.class_sizes), len(table.cluster_sizes)), np.int64)
    dense[table.rows, table.columns] = table.counts
    return Agreement(
        {name: float(score) for name, score in scores.items()},
        tuple(str(table.classes[row]) for row in rows),
        tuple(int(table.clusters[column]) for column in columns),
        tuple(tuple(dense[row, columns].tolist()) for row in rows),
        table.n_rows,
    )


def _in_diagonal_order(table: Contingency, rows: Any) -> Any:
    """Return the columns so that large cells lie along the diagonal, as far as they can."""
    place = {int(row): at for at, row in enumerate(rows)}
    best: dict[int, tuple[int, int]] = {}
    for row, column, count in zip(
        table.rows.tolist(), table.columns.tolist(), table.counts.tolist(), strict=True
    ):
        best[column] = max(best.get(column, (-1, 0)), (count, -place.get(row, len(place))))
    return np.array(sorted(best, key=lambda column: (-best[column][1], -best[column][0], column)))
