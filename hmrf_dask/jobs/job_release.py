"""The end of a run: rejects, agreement with known classes, the report, and the one commit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.dataflow import DaskFlow, tree
from hmrf_dask.jobs.assignments import assignments_of
from hmrf_dask.jobs.bundles import n_documents_of, n_rejects_of, read_beside, read_table
from hmrf_dask.jobs.carried import Files
from hmrf_dask.jobs.job_answers import Answers
from hmrf_dask.jobs.job_results import Results
from hmrf_dask.jobs.job_rows import JobRows
from hmrf_dask.jobs.job_steps import Material, Run
from hmrf_dask.jobs.ledger import CAME, MADE_OF, SOURCES, VOCABULARY, entries, keys_of
from hmrf_dask.jobs.parent import INPUTS, NEXT_ID
from hmrf_dask.jobs.places import GONE, LINEAGE, NOTES, REJECTS, model_of
from hmrf_dask.jobs.rejected import warn_of_rejects, write_answers, write_records
from hmrf_dask.jobs.report import NAME, Report
from hmrf_dask.jobs.sweep import sweep
from hmrf_dask.measures import normalized_mutual_info
from hmrf_dask.measures.table import Contingency, merge, tabulate
from hmrf_dask.releases import clean, publish
from hmrf_dask.releases.release import read_file, read_if_whole
from hmrf_dask.runs.records import DamagedFileError, digest
from hmrf_dask.text.files import Place

KINDS = ("must", "cannot")


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
        files = results.files | _rejects(run, material, answers) | _answer_files(run, answers)
        nmi = _agreement(run, material, results.files)
        report = _report(run, material, answers, results, start, fit, nmi)
        report, data = _kept(run, report)
        files[f"{run.name}/{NAME}"] = digest(data)
    with run.watch.step("publish"):
        ledger = _ledger(run, material, results)
        publish(
            run.inputs.output, run.hold, run_id=run.run_id, previous=run.previous, files=files,
            ledger=ledger,
            counts={"documents": report.documents["all"], "clusters": report.clusters["number"]},
            model=_model_identity(results.files), number=run.parent.number,
        )  # fmt: skip
        before = [] if run.previous is None else [run.previous.ledger]
        run.hold.check()
        sweep(run.inputs.output, run.run_id, [ledger, *before])
        # What a person went back to stays, so that the same command may be given again.
        also = run.inputs.from_release
        clean(run.inputs.output, run.hold, keep=run.inputs.job.keep, also=also)
    warn_of_rejects(run, report.documents["quarantined"], answers)
    return report


def _ledger(run: Run, material: Material, results: Results) -> dict[str, Any]:
    """Return what the next run must know of this one."""
    rows = material.rows
    return {
        INPUTS: run.inputs.identity,
        SOURCES: entries(run.inputs.sources, rows.file_keys()),
        CAME: run.came,
        VOCABULARY: None if rows.vocabulary is None else rows.vocabulary.identity,
        MADE_OF: list(rows.made_of),
        NEXT_ID: results.lineage.next_id,
    }


def _model_identity(files: Files) -> str:
    return next(sha256 for name, sha256 in files.items() if name.endswith("/model.json"))


# ---- rejects


def _rejects(run: Run, material: Material, answers: Answers) -> Files:
    """List what was quarantined, with the reasons, and answers that wait for documents."""
    records = write_records(run, material.rows.told, material.repeated)
    return records | write_answers(run, answers.rejects, answers.waiting)


def _answer_files(run: Run, answers: Answers) -> Files:
    """Write what stands beside the answers, and which documents they name are gone."""
    written = {NOTES: answers.notes, GONE: answers.gone}
    files = Files()
    for name, data in written.items():
        if data:
            run.place.storage.write(f"{run.name}/{name}", data)
            files[f"{run.name}/{name}"] = digest(data)
    return files


# ---- known classes


def _agreement(run: Run, material: Material, files: Files) -> float | None:
    """Return the NMI with the label column; None where no document has a label."""
    flow = DaskFlow()
    written: dict[str, list[tuple[str, str]]] = {}
    for named in assignments_of(files).items():
        written.setdefault(named[0].rpartition("/")[2].partition("-")[0], []).append(named)
    tasks = [
        flow.lazy(_compared, run.place, written[key], [name for name in told["labels"] if name])
        for key, told in zip(material.rows.keys, material.rows.told, strict=True)
        if any(told["labels"]) and key in written
    ]
    if not tasks:
        return None
    table: Contingency = flow.compute([tree(flow, merge, tasks)])[0]
    return normalized_mutual_info(table) if table.n_rows else None


def _compared(place: Place, written: list[tuple[str, str]], labels: list[str]) -> Contingency:
    """Return how many documents of a file each class has in each cluster."""
    storage = place.storage
    known = pa.concat_tables([read_beside(storage, name, read_table) for name in labels])
    known = known.drop_null()
    found = pa.concat_tables([read_table(read_file(storage, *named)) for named in written])
    places = pc.index_in(found["doc_id"], value_set=known["id"])
    there = pc.is_valid(places)
    classes = known["label"].take(places.filter(there)).to_numpy()
    return tabulate(np.asarray(classes, np.str_), found["cluster"].filter(there).to_numpy())


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
    rows, lineage = material.rows, results.lineage
    n_quarantined = sum(map(n_rejects_of, rows.told)) + len(material.repeated)
    kinds = Counter(change.kind for change in lineage.changes)
    vocabulary = rows.vocabulary
    return Report(
        status="done",
        run=run.run_id,
        output=run.inputs.output,
        parent=None if run.previous is None else run.previous.run,
        release=run.parent.number,
        mode=run.inputs.job.mode,
        start=start,
        files=run.changes.counted(),
        documents={
            "all": sum(lineage.sizes),
            "new": lineage.n_added,
            "changed": results.n_changed,
            "gone": lineage.n_gone,
            "moved": lineage.n_moved,
            "moved_share": lineage.moved_share,
            "vectorised": _n_vectorised(run, rows),
            "quarantined": n_quarantined,
        },
        vocabulary={}
        if vocabulary is None
        else {
            "terms": vocabulary.n_terms,
            "refit": rows.refit,
            "unknown_share": rows.coverage.unknown_share,
            "unknown_share_then": vocabulary.unknown_share,
        },
        answers={
            "pairs": _by_kind(answers.used),
            "violated": {kind: results.violations[f"{kind}_link"] for kind in KINDS},
            "quarantined": len(answers.rejects),
            "unknown": answers.n_unknown,
            "waiting": len(answers.waiting),
            "unused": answers.n_unused,
        },
        fit=fit,
        clusters={"number": len(lineage.ids), **dict(sorted(kinds.items()))},
        nmi=nmi,
        seconds=dict(run.watch.seconds),
        places=_places(
            run, results, listed=bool(n_quarantined or answers.rejects or answers.waiting)
        ),
    )


def _by_kind(pairs: Constraints | None) -> dict[str, int]:
    """Return how many pairs of each kind there are."""
    if pairs is None:
        return dict.fromkeys(KINDS, 0)
    return {kind: len(getattr(pairs, f"{kind}_link")) for kind in KINDS}


def _n_vectorised(run: Run, rows: JobRows) -> int:
    """Return the documents of bundles that the last release did not have as they are now."""
    last = {one.counts for entry in run.last_files.values() for one in keys_of(entry)}
    pairs = zip(rows.keys, rows.told, strict=True)
    return sum(n_documents_of(told) for key, told in pairs if key not in last)


def _places(run: Run, results: Results, *, listed: bool) -> dict[str, str]:
    folders = {name.rpartition("/")[0] for name in assignments_of(results.files)}
    found = {
        "assignments": ", ".join(sorted(folders)),
        "clusters": f"{run.name}/clusters.parquet",
        "lineage": f"{run.name}/{LINEAGE}",
        "model": model_of(results.files),
        "report": f"{run.name}/{NAME}",
    }
    return found | ({"rejects": f"{run.name}/{REJECTS}"} if listed else {})


def _kept(run: Run, report: Report) -> tuple[Report, bytes]:
    """Write run.json, or return that of an attempt that was killed after it: its times differ.

    Where it was damaged since, or tells of a release that was, it is written anew.
    """
    name, storage = f"{run.name}/{NAME}", run.place.storage
    data = report.to_json()
    try:
        storage.create(name, data)
        return report, data
    except FileExistsError:
        there = storage.read(name)
    with suppress(DamagedFileError):
        found = Report.from_json(there, run.inputs.output)
        made = read_if_whole(storage, found.release)
        if found.release == report.release or (made is not None and made.run == run.run_id):
            return found, there
    storage.write(name, data)
    return report, data
