"""The end of a run: assignments, stable ids, the model, rejects, the report, and the one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.answer_files import encode_pairs
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.prediction import nearest_rows
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs import assignments
from hmrf_dask.jobs.answers import Answers
from hmrf_dask.jobs.assignments import assignments_of, write_assignments, write_clusters
from hmrf_dask.jobs.former import OldAssignments, Overlap, count_overlap
from hmrf_dask.jobs.packs import read_hashed
from hmrf_dask.jobs.parent import (
    CAME,
    INPUTS,
    MADE_OF,
    NEXT_ID,
    SOURCES,
    VOCABULARY,
    entries,
    next_id_after,
)
from hmrf_dask.jobs.places import (
    ANSWERS,
    GONE,
    LINEAGE,
    MODEL,
    NAME,
    NOTES,
    REJECTS,
    Report,
    model_of,
)
from hmrf_dask.jobs.predict import Files, Origin, carry, not_carried, origins_of
from hmrf_dask.jobs.quarantine import warn_of_rejects, write_answers, write_records
from hmrf_dask.jobs.rows import JobRows, sweep
from hmrf_dask.jobs.steps import JobRun, Material
from hmrf_dask.measures.contingency import Contingency, merge, tabulate
from hmrf_dask.measures.scores import normalized_mutual_info
from hmrf_dask.releases.lineage import Lineage, carried_on, first_lineage, trace
from hmrf_dask.releases.own_files import OUTPUT, remove_own
from hmrf_dask.releases.ownership import clean
from hmrf_dask.releases.release import (
    Contents,
    hashed,
    publish,
    read_file,
    read_if_whole,
)
from hmrf_dask.storage.parquet import decode_parquet, encode_parquet
from hmrf_dask.storage.sealed import DamagedFileError, digest
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.text.files import Place
from hmrf_dask.text.tfidf import top_words
from hmrf_dask.types import IntArray


@dataclass(frozen=True)
class Results:
    """What a run wrote.

    Attributes
    ----------
    files : dict of str to str
        The sha256 of all files of the release so far, by their names below the output.
    lineage : Lineage
    violations : dict of str to int
    n_changed : int
        Documents that the last release had too, in files that are new or changed since.
    """

    files: Files
    lineage: Lineage
    violations: dict[str, int]
    n_changed: int


def write_fit(run: JobRun, material: Material, answers: Answers, model: HMRFEstimator) -> Results:
    """Write the results of a fit."""
    n_clusters = len(model.cluster_centers_)
    with run.watch.step("match clusters"):
        lineage, n_changed = _traced(run, material, model, n_clusters)
    first_id = next_id_after(run.inputs.output, run.parent) if lineage is None else 0
    ids = range(first_id, first_id + n_clusters) if lineage is None else lineage.ids
    model.cluster_ids_ = np.asarray(ids, np.int32)  # whoever asks it, now or later, gets these
    with run.watch.step("write assignments"):
        written = write_assignments(
            material.corpus, model.labels_, model, run.folder, constraints=answers.used,
            names=material.names,
        )  # fmt: skip
        vocabulary = material.rows.vocabulary
        words = None if vocabulary is None else partial(top_words, vocabulary=vocabulary)
        tables = write_clusters(written, model, run.folder, words=words)
        remove_own(run.place.storage, f"{run.name}/{MODEL}")  # of an attempt, or damaged since
        model.save(f"{run.folder}/{MODEL}")
    if lineage is None:
        lineage = first_lineage(written.sizes.tolist(), first_id)
    files = {f"{run.name}/{name}": sha256 for name, sha256 in (written.files | tables).items()}
    files |= _model_files(run) | _written(run, LINEAGE, lineage.to_json())
    if answers.used is not None:
        files |= _written(run, ANSWERS, encode_pairs(answers.used))
    return Results(files, lineage, written.violations, n_changed)


def _traced(
    run: JobRun, material: Material, model: HMRFEstimator, n_clusters: int
) -> tuple[Lineage | None, int]:
    """Return the lineage after the last release, None where there is none, and `n_changed`."""
    if run.previous is None:
        return None, 0
    old = assignments_of(run.previous.files)
    shared = count_overlap(
        OldAssignments(run.inputs.output, old),
        material.corpus,
        model.labels_,
        n_clusters,
        names=material.names,
        changed=_in_changed_files(run, material),
    )
    sizes = shared.sizes.tolist()
    lineage = trace(_last_lineage(run), shared.old, shared.new, shared.counts, sizes)
    return lineage, shared.n_changed


def _in_changed_files(run: JobRun, material: Material) -> list[bool]:
    """Return of each partition whether its files are new or changed since the last release."""
    changed = [not run.same.issuperset(record.paths) for record in material.rows.records]
    return [changed[pack] for pack in material.files]


def _last_lineage(run: JobRun) -> Lineage:
    assert run.previous is not None
    name = next(name for name in run.previous.files if name.endswith(f"/{LINEAGE}"))
    found = Lineage.from_json(read_file(run.place.storage, name, run.previous.files[name]))
    next_id = next_id_after(run.inputs.output, run.parent)
    return replace(found, next_id=max(found.next_id, next_id))


def _model_files(run: JobRun) -> Files:
    folder = f"{run.name}/{MODEL}"
    names = [f"{folder}/{name}" for name in sorted(run.place.storage.names(folder))]
    # Neither half a file, of an attempt that was killed while it wrote, nor what others put there.
    return hashed(run.place.storage, filter(OUTPUT.fullmatch, names))


def _written(run: JobRun, name: str, data: bytes) -> Files:
    open_storage(run.inputs.output, {}, durable=True).write(f"{run.name}/{name}", data)
    return {f"{run.name}/{name}": digest(data)}


# ---- new documents under the last model


def write_prediction(run: JobRun, material: Material) -> Results:
    """Give documents of new and changed files clusters of the last model; others keep theirs."""
    assert run.previous is not None
    model, before = run.last_model, _last_lineage(run)
    origins = origins_of(run, material)
    files, sizes, shared = _predicted(run, material, model, before, origins)
    lineage = carried_on(before, sizes.tolist(), shared.n_common, shared.n_moved)
    folder = model_of(run.previous.files)
    fitted = folder.removesuffix(MODEL)
    kept = (f"{folder}/", f"{fitted}{ANSWERS}", f"{fitted}{NOTES}")
    files |= {n: sha256 for n, sha256 in run.previous.files.items() if n.startswith(kept)}
    files |= _written(run, assignments.NAME, _resized(run, lineage))
    files |= _written(run, LINEAGE, lineage.to_json())
    return Results(files, lineage, {"must_link": 0, "cannot_link": 0}, shared.n_changed)


class _Shared(NamedTuple):
    """Documents that the last release had too.

    Attributes
    ----------
    n_common : int
        All of them.
    n_changed : int
        Those in files that are new or changed since.
    n_moved : int
        Those that are in another cluster now.
    """

    n_common: int
    n_changed: int
    n_moved: int


def _predicted(
    run: JobRun,
    material: Material,
    model: HMRFEstimator,
    before: Lineage,
    origins: list[Origin | None],
) -> tuple[Files, IntArray, _Shared]:
    """Return assignments, their sizes by cluster, and what they share with the last release."""
    wanted = [origin is None for origin in origins]
    corpus, names = material.of_files(wanted)
    files, sizes, shared = Files(), np.zeros(len(before.ids), np.int64), _Shared(0, 0, 0)
    if corpus is not None:
        old = not_carried(run, material, origins)
        with run.watch.step("write assignments"):
            labels = nearest_rows(model.predictor(), corpus) if old else None
            written = write_assignments(corpus, labels, model, run.folder, names=names)
        if old:
            parts = zip(_in_changed_files(run, material), material.files, strict=True)
            changed = [one for one, pack in parts if wanted[pack]]
            shared = _shared(
                count_overlap(
                    OldAssignments(run.inputs.output, old),
                    corpus,
                    labels,
                    len(before.ids),
                    changed=changed,
                ),
                before.ids,
            )
        sizes = written.sizes
        files |= {f"{run.name}/{name}": sha256 for name, sha256 in written.files.items()}
    reused, kept = carry(run, material, origins, before)  # writes too, next to the others
    n_common = shared.n_common + int(kept.sum())
    return files | reused, sizes + kept, shared._replace(n_common=n_common)


def _shared(found: Overlap, ids: Sequence[int]) -> _Shared:
    moved = found.old != np.asarray(ids)[found.new]
    return _Shared(int(found.counts.sum()), found.n_changed, int(found.counts[moved].sum()))


def _resized(run: JobRun, lineage: Lineage) -> bytes:
    """Return the clusters of the last release with the sizes they have now."""
    assert run.previous is not None
    name = next(name for name in run.previous.files if name.endswith(f"/{assignments.NAME}"))
    table = decode_parquet(read_file(run.place.storage, name, run.previous.files[name]))
    sizes = dict(zip(lineage.ids, lineage.sizes, strict=True))
    now = pa.array([sizes[one] for one in table["cluster"].to_pylist()], pa.int64())
    place = table.column_names.index("size")
    return encode_parquet(table.set_column(place, "size", now))


KINDS = ("must", "cannot")


def release(
    run: JobRun,
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
        report = _report(
            run=run,
            material=material,
            answers=answers,
            results=results,
            start=start,
            fit=fit,
            nmi=nmi,
        )
        report, data = _kept(run, report)
        files[f"{run.name}/{NAME}"] = digest(data)
    with run.watch.step("publish"):
        ledger = _ledger(run, material, results)
        counts = {"documents": report.documents["all"], "clusters": report.clusters["number"]}
        publish(
            run.hold,
            run_id=run.run_id,
            previous=run.previous,
            contents=Contents(files, ledger, counts, _model_identity(results.files)),
            number=run.parent.number,
        )
        before = [] if run.previous is None else [run.previous.ledger]
        run.hold.check()
        sweep(run.inputs.output, run.run_id, [ledger, *before])
        # What a person went back to stays, so that the same command may be given again.
        also = run.inputs.from_release
        clean(run.hold, keep=run.inputs.job.keep, also=also)
    warn_of_rejects(run, report.documents["quarantined"], answers)
    return report


def _ledger(run: JobRun, material: Material, results: Results) -> dict[str, Any]:
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


def _rejects(run: JobRun, material: Material, answers: Answers) -> Files:
    """List what was quarantined, with the reasons, and answers that wait for documents."""
    records = write_records(run, material.rows.records, material.repeated)
    return records | write_answers(run, answers.rejects, answers.waiting)


def _answer_files(run: JobRun, answers: Answers) -> Files:
    """Write what their other columns hold, and which documents they name are gone."""
    written = {NOTES: answers.notes, GONE: answers.gone}
    files = Files()
    for name, data in written.items():
        if data:
            run.place.storage.write(f"{run.name}/{name}", data)
            files[f"{run.name}/{name}"] = digest(data)
    return files


# ---- known classes


def _agreement(run: JobRun, material: Material, files: Files) -> float | None:
    """Return the NMI with the label column; None where no document has a label."""
    flow = DaskFlow()
    written: dict[str, list[tuple[str, str]]] = {}
    for named in assignments_of(files).items():
        written.setdefault(named[0].rpartition("/")[2].partition("-")[0], []).append(named)
    tasks = [
        flow.lazy(_compared, run.place, written[key], [name for name in record.labels if name])
        for key, record in zip(material.rows.keys, material.rows.records, strict=True)
        if any(record.labels) and key in written
    ]
    if not tasks:
        return None
    table: Contingency = flow.compute([tree(flow, merge, tasks)])[0]
    return normalized_mutual_info(table) if table.n_rows else None


def _compared(place: Place, written: list[tuple[str, str]], labels: list[str]) -> Contingency:
    """Return how many documents of a file each class has in each cluster."""
    storage = place.storage
    known = pa.concat_tables([read_hashed(storage, name, decode_parquet) for name in labels])
    known = known.drop_null()
    found = pa.concat_tables([decode_parquet(read_file(storage, *named)) for named in written])
    places = pc.index_in(found["doc_id"], value_set=known["id"])
    there = pc.is_valid(places)
    classes = known["label"].take(places.filter(there)).to_numpy()
    return tabulate(np.asarray(classes, np.str_), found["cluster"].filter(there).to_numpy())


# ---- the report


def _report(
    run: JobRun,
    material: Material,
    answers: Answers,
    results: Results,
    start: str | None,
    fit: dict[str, Any],
    nmi: float | None,
) -> Report:
    rows, lineage = material.rows, results.lineage
    n_quarantined = sum(record.n_rejects for record in rows.records) + len(material.repeated)
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


def _n_vectorised(run: JobRun, rows: JobRows) -> int:
    """Return the documents of packs that the last release did not have as they are now."""
    last = {one.counts for entry in run.last_files.values() for one in entry.keys}
    pairs = zip(rows.keys, rows.records, strict=True)
    return sum(record.n_documents for key, record in pairs if key not in last)


def _places(run: JobRun, results: Results, *, listed: bool) -> dict[str, str]:
    folders = {name.rpartition("/")[0] for name in assignments_of(results.files)}
    found = {
        "assignments": ", ".join(sorted(folders)),
        "clusters": f"{run.name}/clusters.parquet",
        "lineage": f"{run.name}/{LINEAGE}",
        "model": model_of(results.files),
        "report": f"{run.name}/{NAME}",
    }
    return found | ({"rejects": f"{run.name}/{REJECTS}"} if listed else {})


def _kept(run: JobRun, report: Report) -> tuple[Report, bytes]:
    """Write run.json, or return that of an attempt that was killed after it: its times differ.

    Where it was damaged since, or names an earlier release, it is written again.
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
