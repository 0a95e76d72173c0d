"""The end of a run: rejects, agreement with known classes, the report, and the one commit."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.dataflow import DaskFlow, tree
from hmrf_dask.documents.batches import Reject
from hmrf_dask.jobs.assignments import assignments_of
from hmrf_dask.jobs.bundles import encode_rejects, lines_before_of, n_rejects_of, placed
from hmrf_dask.jobs.carried import REPEATED
from hmrf_dask.jobs.job_answers import Answers
from hmrf_dask.jobs.job_results import LINEAGE, Files, Results
from hmrf_dask.jobs.job_steps import MADE_OF, Material, Run
from hmrf_dask.jobs.ledger import SOURCES, entries
from hmrf_dask.jobs.places import model_of
from hmrf_dask.jobs.report import NAME, Report
from hmrf_dask.jobs.sweep import VOCABULARY, sweep
from hmrf_dask.jobs.up_to_date import INPUTS
from hmrf_dask.measures import normalized_mutual_info
from hmrf_dask.measures.table import Contingency, merge, tabulate
from hmrf_dask.releases import clean, publish
from hmrf_dask.runs.records import digest
from hmrf_dask.text.files import Place

REJECTS = "rejects"


def release(
    run: Run,
    material: Material,
    answers: Answers,
    results: Results,
    start: str | None,
    fit: dict[str, Any],
) -> Report:
    """Publish what a run made, and return its report."""
    with run.watch.step("write the report"):
        files = results.files | _rejects(run, material, answers)
        nmi = _agreement(run, material, results.files)
        report = _report(run, material, answers, results, start, fit, nmi)
        report, data = _kept(run, report)
        files[f"{run.name}/{NAME}"] = digest(data)
    with run.watch.step("publish"):
        ledger = _ledger(run, material)
        publish(
            run.inputs.output, run.hold, run_id=run.run_id, previous=run.previous, files=files,
            ledger=ledger, counts={**report.documents, "clusters": report.clusters["number"]},
            model=_model_identity(results.files),
        )  # fmt: skip
        clean(run.inputs.output, run.hold, keep=run.inputs.job.keep)
        before = [] if run.previous is None else [run.previous.ledger]
        sweep(run.inputs.output, [ledger, *before])
    return report


def _ledger(run: Run, material: Material) -> dict[str, Any]:
    """Return what the next run must know of this one."""
    rows = material.rows
    return {
        INPUTS: run.inputs.identity,
        SOURCES: entries(run.inputs.sources, rows.file_keys()),
        VOCABULARY: None if rows.vocabulary is None else rows.vocabulary.identity,
        MADE_OF: list(rows.made_of),
    }


def _model_identity(files: Files) -> str:
    return next(sha256 for name, sha256 in files.items() if name.endswith("/model.json"))


# ---- rejects


def _rejects(run: Run, material: Material, answers: Answers) -> Files:
    """Write every record, document and pair that was put aside, with the reason."""
    flow, files = DaskFlow(), Files()
    told = material.rows.told
    tasks = [
        flow.lazy(
            _copy, run.place, one["rejects"], n_lines, f"{run.name}/{REJECTS}/{one['key']}.jsonl"
        )
        for one, n_lines in zip(told, lines_before_of(told), strict=True)
        if one["rejects"]
    ]
    for found in flow.compute(tasks) if tasks else []:
        files |= found
    more = {REPEATED: encode_rejects(material.repeated)} if material.repeated else {}
    if answers.unknown is not None:
        more["answers.jsonl"] = _unknown_pairs(answers.unknown)
    for name, data in more.items():
        run.place.storage.write(f"{run.name}/{REJECTS}/{name}", data)
        files[f"{run.name}/{REJECTS}/{name}"] = digest(data)
    return files


def _copy(place: Place, names: list[str], n_lines: int, target: str) -> Files:
    """Bring the rejects of a bundle together, with the lines they have in their whole file."""
    lines = [line for name in names for line in place.storage.read(name).splitlines()]
    data = encode_rejects(placed(Reject(**json.loads(line)), n_lines) for line in lines)
    place.storage.write(target, data)
    return {target: digest(data)}


def _unknown_pairs(pairs: Constraints) -> bytes:
    reason = "a or b is no document that is there"
    lines = [
        {"a": first, "b": second, "kind": kind, "reason": reason}
        for kind, some in (("must", pairs.must_link), ("cannot", pairs.cannot_link))
        for first, second in some.tolist()
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


# ---- known classes


def _agreement(run: Run, material: Material, files: Files) -> float | None:
    """Return the NMI with the label column; None where no document has a label."""
    flow = DaskFlow()
    written: dict[str, list[str]] = {}
    for name in assignments_of(files):
        written.setdefault(name.rpartition("/")[2].partition("-")[0], []).append(name)
    tasks = [
        flow.lazy(_compared, run.place, written[key], [name for name in told["labels"] if name])
        for key, told in zip(material.rows.keys, material.rows.told, strict=True)
        if any(told["labels"]) and key in written
    ]
    if not tasks:
        return None
    table: Contingency = flow.compute([tree(flow, merge, tasks)])[0]
    return normalized_mutual_info(table) if table.n_rows else None


def _compared(place: Place, written: list[str], labels: list[str]) -> Contingency:
    """Return how many documents of a file each class has in each cluster."""
    known = _table(place, labels).drop_null()
    found = _table(place, written).select(["doc_id", "cluster"])
    places = pc.index_in(found["doc_id"], value_set=known["id"])
    there = pc.is_valid(places)
    classes = known["label"].take(places.filter(there)).to_numpy()
    return tabulate(np.asarray(classes, np.str_), found["cluster"].filter(there).to_numpy())


def _table(place: Place, names: list[str]) -> pa.Table:
    tables = [pq.read_table(io.BytesIO(place.storage.read(name))) for name in names]
    return pa.concat_tables(tables)


# ---- the report


def _report(
    run: Run,
    material: Material,
    answers: Answers,
    results: Results,
    start: str | None,
    fit: dict[str, Any],
    nmi: float | None,
) -> Report:
    rows, lineage, changes = material.rows, results.lineage, run.changes
    n_new = sum(n for home in rows.homes() for path, n in home if path not in run.same)
    n_rejected = sum(map(n_rejects_of, rows.told)) + len(material.repeated)
    kinds = Counter(change.kind for change in lineage.changes)
    vocabulary = rows.vocabulary
    return Report(
        status="done",
        run=run.run_id,
        output=run.inputs.output,
        parent=None if run.previous is None else run.previous.run,
        release=1 if run.previous is None else run.previous.number + 1,
        mode=run.inputs.job.mode,
        start=start,
        files=changes.counted(),
        documents={"all": sum(lineage.sizes), "vectorised": n_new, "rejected": n_rejected},
        vocabulary={}
        if vocabulary is None
        else {
            "terms": vocabulary.n_terms,
            "refit": rows.refit,
            "unknown_share": rows.coverage.unknown_share,
            "unknown_share_then": vocabulary.unknown_share,
        },
        answers={
            "pairs": 0 if answers.used is None else len(answers.used),
            "unknown": answers.n_unknown,
            **results.violations,
        },
        fit=fit,
        clusters={
            "number": len(lineage.ids),
            **dict(sorted(kinds.items())),
            "churn": lineage.churn,
        },
        nmi=nmi,
        seconds=dict(run.watch.seconds),
        places=_places(run, results, rejected=bool(n_rejected or answers.unknown)),
    )


def _places(run: Run, results: Results, *, rejected: bool) -> dict[str, str]:
    folders = {name.rpartition("/")[0] for name in assignments_of(results.files)}
    found = {
        "assignments": ", ".join(sorted(folders)),
        "clusters": f"{run.name}/clusters.parquet",
        "lineage": f"{run.name}/{LINEAGE}",
        "model": model_of(results.files),
        "report": f"{run.name}/{NAME}",
    }
    return found | ({"rejects": f"{run.name}/{REJECTS}"} if rejected else {})


def _kept(run: Run, report: Report) -> tuple[Report, bytes]:
    """Write run.json, or return that of an attempt that was killed after it: its times differ."""
    name, storage = f"{run.name}/{NAME}", run.place.storage
    data = report.to_json()
    try:
        storage.create(name, data)
    except FileExistsError:
        data = storage.read(name)
    return Report.from_json(data, run.inputs.output), data
