"""The fit of a report, as it was recorded: its iterations, its answers, and known classes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from hmrf_dask.checkpoints.directory import read_events
from hmrf_dask.checkpoints.records import iterations_in
from hmrf_dask.constraints.answer_files import parse_pairs
from hmrf_dask.jobs.parent import JOB
from hmrf_dask.jobs.places import ANSWERS, REJECTS, SUSPECTS
from hmrf_dask.jobs.report_subject import Subject, counts_of, step_seconds
from hmrf_dask.jobs.reshape import EDITS
from hmrf_dask.measures.contingency import Contingency
from hmrf_dask.report.agreement import compared
from hmrf_dask.report.broken import BrokenPair, broken_shown, chains_in
from hmrf_dask.report.content import Agreement, AnswerPart, Doubtful, Fit, Step, Text, Word, step_of
from hmrf_dask.storage.sealed import unseal
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet

MOST_STEPS: Final = 1_000
MOST_DOUBTFUL: Final = 50
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
    steps = subject.attempt("Iterations of the fit", lambda: tuple(_steps(subject))) or ()
    facts = dict(subject.record.fit) if subject.record else _summary(model)
    if subject.record and (edits := subject.record.clusters.get(EDITS)):
        facts[EDITS] = edits
    return Fit(
        facts=facts,
        steps=steps[:MOST_STEPS],
        seconds=step_seconds(subject.record),
        settings=dict(sorted(settings.items())),
        versions={name: str(version) for name, version in versions.items() if version},
        again=_again(subject),
        learned=learned,
        memory={} if subject.record is None else dict(subject.record.memory),
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


def _steps(subject: Subject) -> Iterator[Step]:
    """Yield the iterations that were recorded."""
    return map(step_of, iterations_in(read_events(subject.storage, subject.fit or "")))


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


# ---- the answers: the worst that are broken, those in doubt, those left out


def answers_of(subject: Subject, pairs: list[BrokenPair], documents: list[Text]) -> AnswerPart:
    """Return the part about answers; `documents` are those of the survey with broken ones."""
    found = subject.attempt("Contradictions", lambda: _chains(subject))
    n_contradictions, chains = found or (0, ())
    return AnswerPart(
        counts=counts_of(subject, "answers"),
        broken=broken_shown(pairs, documents),
        doubtful=(subject.attempt("Answers in doubt", lambda: tuple(_suspects(subject))) or ()),
        left_out=(subject.attempt("Answers left out", lambda: tuple(_left_out(subject))) or ()),
        n_contradictions=n_contradictions,
        chains=chains,
    )


def _chains(subject: Subject) -> tuple[int, tuple[tuple[str, ...], ...]]:
    data = subject.pairs()
    return chains_in(parse_pairs(data, ANSWERS)) if data else (0, ())


def _suspects(subject: Subject) -> Iterator[Doubtful]:
    for row in _lines(subject.file_of_release(SUSPECTS)):
        kind = "same" if row.get("kind") == "must" else "different"
        likely = row.get("trust", row.get("likely"))
        line = f"line {row['line']} of {str(row['source']).rpartition('/')[2]}"
        right = "" if likely is None else f"right with {float(likely):.0%}; "
        yield Doubtful(f"{row['a']} and {row['b']}: {kind}", f"{right}{line}")


def _left_out(subject: Subject) -> Iterator[Doubtful]:
    for row in _lines(subject.file_of_release(f"{REJECTS}/answers.jsonl")):
        line = f"line {row['line']} of {str(row['source']).rpartition('/')[2]}"
        yield Doubtful(str(row.get("raw") or row.get("id") or line), f"{row['reason']} ({line})")


def _lines(data: bytes) -> Iterator[Mapping[str, Any]]:
    for line in data.splitlines()[:MOST_DOUBTFUL]:
        yield json.loads(line)
