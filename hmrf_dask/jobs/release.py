"""The end of a run: assignments, stable ids, the model, rejects, the report, and the one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.answer_files import encode_pairs
from hmrf_dask.documents.segments import LISTINGS
from hmrf_dask.estimators.comparison import marked_labels
from hmrf_dask.estimators.prediction import nearest_rows
from hmrf_dask.flow.cluster import peak_memory
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs import assignments, changes
from hmrf_dask.jobs.answers import Answers
from hmrf_dask.jobs.assignments import (
    Files,
    by_key,
    table_of,
    write_assignments,
    write_clusters,
)
from hmrf_dask.jobs.changes import Changed, changes_of, with_reasons
from hmrf_dask.jobs.former import Overlap, count_overlap
from hmrf_dask.jobs.packs import read_hashed
from hmrf_dask.jobs.parent import (
    CAME,
    CHOICE,
    COUNTED_WHOLE,
    DENSE,
    INPUTS,
    JOB,
    MADE_OF,
    NEXT_ID,
    SOURCES,
    VOCABULARY,
    ChosenK,
    entries,
    next_id_after,
)
from hmrf_dask.jobs.places import (
    ANSWERS,
    CLASSES,
    EDITED,
    GONE,
    LINEAGE,
    MODEL,
    NAME,
    NOTES,
    QUESTIONS,
    REJECTS,
    SUSPECTS,
    Report,
    assignments_of,
    model_of,
)
from hmrf_dask.jobs.predict import Origin, carry, count_outliers, not_carried, origins_of
from hmrf_dask.jobs.quarantine import warn_of_rejects, write_answers, write_records
from hmrf_dask.jobs.questions import write_questions
from hmrf_dask.jobs.report_fit import encode_classes
from hmrf_dask.jobs.reshape import EDITS, Edits, encode_former
from hmrf_dask.jobs.rows import JobRows, sweep
from hmrf_dask.jobs.steps import JobFit, JobRun, Material
from hmrf_dask.jobs.superseded import count_unchanged
from hmrf_dask.jobs.words import words_of_partitions
from hmrf_dask.measures.contingency import Contingency, merge, tabulate
from hmrf_dask.measures.scores import normalized_mutual_info
from hmrf_dask.releases.lineage import Lineage, carried_on, first_lineage, trace
from hmrf_dask.releases.own_files import OUTPUT, remove_own
from hmrf_dask.releases.ownership import clean
from hmrf_dask.releases.release import Contents, Release, hashed, publish, read_if_whole
from hmrf_dask.report.content import HTML
from hmrf_dask.storage.sealed import DamagedFileError, digest
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet
from hmrf_dask.text.files import Place
from hmrf_dask.text.tfidf import Dense


@dataclass(frozen=True)
class Results:
    """What a run wrote: `files` are those of the release so far.

    The last release had `n_changed` of the documents too, in files that are new or changed since;
    of other sources those that are not as they were.
    """

    files: Files
    lineage: Lineage
    violations: dict[str, int]
    n_changed: int
    start: str | None = None
    fit: dict[str, Any] = field(default_factory=dict)
    n_suspect: int = 0  # answers that the fit finds improbable
    n_questions: int = 0  # that come next
    chosen: ChosenK | None = None
    n_outliers: int | None = None  # documents of no cluster; None where none are marked
    edits: Edits | None = None  # of clusters; None where nobody edited any


def write_fit(run: JobRun, material: Material, answers: Answers, fitted: JobFit) -> Results:
    """Write the results of a fit."""
    model = fitted.model
    n_clusters = len(model.cluster_centers_)
    labels = marked_labels(model)
    with run.watch.step("match clusters"):
        lineage, n_changed = _traced(run, material, labels, fitted.begun.called, n_clusters)
    first_id = next_id_after(run.inputs.output, run.parent) if lineage is None else 0
    ids = range(first_id, first_id + n_clusters) if lineage is None else lineage.ids
    model.cluster_ids_ = np.asarray(ids, np.int32)  # whoever asks it, now or later, gets these
    with run.watch.step("write assignments"):
        vocabulary = material.rows.vocabulary
        written = write_assignments(
            material.corpus, labels, model, run.folder, constraints=answers.used,
            parts=_with_words(run, material), place=run.place,
        )  # fmt: skip
        terms = None if vocabulary is None else vocabulary.terms
        tables = write_clusters(written, model, run.folder, terms=terms)
        remove_own(run.place.storage, f"{run.name}/{MODEL}")  # of an attempt, or damaged since
        model.save(f"{run.folder}/{MODEL}")
    if lineage is None:
        lineage = first_lineage(written.sizes.tolist(), first_id)
    files = {f"{run.name}/{name}": sha256 for name, sha256 in (written.files | tables).items()}
    files |= _model_files(run) | run.write(LINEAGE, lineage.to_json())
    if former := fitted.begun.former:
        files |= run.write(EDITED, encode_former(former))
    if answers.used is not None:
        files |= run.write(ANSWERS, encode_pairs(answers.used))
    if model.suspect_answers_:
        files |= run.write(SUSPECTS, answers.suspects(model.suspect_answers_))
    if notes := answers.notes():
        files |= run.write(NOTES, notes)
    wanted = run.inputs.job.questions
    asked, n_questions = ({}, 0) if not wanted else write_questions(run, material, answers, model)
    return Results(
        files | asked, lineage, written.violations, n_changed,
        start=fitted.begun.start, fit=_fit_of(fitted), n_suspect=len(model.suspect_answers_),
        n_questions=n_questions, chosen=fitted.chosen,
        n_outliers=None if model.outliers_ is None else written.n_outliers,
        edits=fitted.begun.edits_of(lineage.ids),
    )  # fmt: skip


def _fit_of(fitted: JobFit) -> dict[str, Any]:
    """Return what is reported of a fit."""
    model = fitted.model
    chosen = {} if fitted.chosen is None else {"choice_of_k": asdict(fitted.chosen)}
    return {
        "J": float(model.objective_),
        "iterations": int(model.n_iter_),
        "converged": bool(model.converged_),
        "stop_reason": str(model.stop_reason_),
        "start_reason": str(model.start_reason_),
        "seed": int(model.seed_),
        **chosen,
    }


def _with_words(run: JobRun, material: Material) -> list[assignments.Part]:
    """Return the parts of a corpus with the words of their documents, where words are counted."""
    parts, named = material.parts, material.corpus.named
    words = words_of_partitions(DaskFlow(), material.rows, named, run.place)
    if words is None:
        return parts
    return [part._replace(words=counted) for part, counted in zip(parts, words, strict=True)]


def _traced(
    run: JobRun, material: Material, labels: Any, called: Mapping[int, int], n_clusters: int
) -> tuple[Lineage | None, int]:
    """Return the lineage after the last release, None where there is none, and `n_changed`."""
    if run.previous is None:
        return None, 0
    shared = count_overlap(
        run.place,
        assignments_of(run.previous.files),
        material.corpus,
        labels,
        n_clusters,
        names=material.names,
        changed=_in_changed_files(run, material),
    )
    sizes = shared.sizes.tolist()
    cells = shared.old, shared.new, shared.counts
    lineage = trace(_last_lineage(run), *cells, sizes, called)
    return lineage, _n_changed(run, material, shared)


def _n_changed(run: JobRun, material: Material, shared: Overlap) -> int:
    """Return how many documents of both releases changed; files do so as a whole."""
    n_read = shared.n_changed  # of which rows that are as they were are no news
    return max(n_read - count_unchanged(run, material.rows), 0) if n_read else 0


def _in_changed_files(run: JobRun, material: Material) -> list[bool]:
    """Return of each partition whether its files are new or changed since the last release."""
    changed = [not run.same.issuperset(record.paths) for record in material.rows.records]
    return [changed[pack] for pack in material.files]


def _last_lineage(run: JobRun) -> Lineage:
    last = Lineage.from_json(run.read_last(LINEAGE))
    next_id = next_id_after(run.inputs.output, run.parent)
    return replace(last, next_id=max(last.next_id, next_id))


def _model_files(run: JobRun) -> Files:
    folder = f"{run.name}/{MODEL}"
    names = [f"{folder}/{name}" for name in sorted(run.place.storage.names(folder))]
    # Neither half a file, of an attempt that was killed while it wrote, nor what others put there.
    return hashed(run.place.storage, filter(OUTPUT.fullmatch, names))


# ---- new documents under the last model


KEPT = (ANSWERS, EDITED, NOTES, QUESTIONS, SUSPECTS)  # of the last fit


def write_prediction(run: JobRun, material: Material) -> Results:
    """Give documents of new and changed files clusters of the last model; others keep theirs."""
    assert run.previous is not None
    before, origins = _last_lineage(run), origins_of(run, material)
    files, shared = _predicted(run, material, len(before.ids), origins)
    reused, kept = carry(run, material, origins, before)  # writes too, next to the others
    moved = shared.old != np.asarray(before.ids)[shared.new]
    n_common, n_moved = int(shared.counts.sum() + kept.sum()), int(shared.counts[moved].sum())
    lineage = carried_on(before, (shared.sizes + kept).tolist(), n_common, n_moved)
    folder = model_of(run.previous.files)
    fitted = folder.removesuffix(MODEL)
    same = (f"{folder}/", *(f"{fitted}{name}" for name in KEPT))
    files |= {n: sha256 for n, sha256 in run.previous.files.items() if n.startswith(same)}
    files |= run.write(assignments.NAME, _resized(run, lineage))
    files |= run.write(LINEAGE, lineage.to_json())
    violations, n_outliers = {"must_link": 0, "cannot_link": 0}, None
    if run.last_model.predictor().limits is not None:
        n_outliers = count_outliers(run.place, assignments_of(files | reused))
    return Results(
        files | reused, lineage, violations, _n_changed(run, material, shared),
        n_suspect=len(run.read_last(SUSPECTS).splitlines()),
        n_questions=run.previous.counts.get("questions", 0), chosen=run.kept_choice,
        n_outliers=n_outliers, edits=Edits.of(run.previous.ledger, len(lineage.ids)) or None,
    )  # fmt: skip


def _predicted(
    run: JobRun, material: Material, n_clusters: int, origins: list[Origin | None]
) -> tuple[Files, Overlap]:
    """Write the assignments of packs that keep none; return what they share with the last ones."""
    none, wanted = np.zeros(0, np.int64), [origin is None for origin in origins]
    corpus, parts = material.of_files(wanted)
    if corpus is None:
        return {}, Overlap(none, none, none, np.zeros(n_clusters, np.int64), 0)
    old, model = not_carried(run, material, origins), run.last_model
    with run.watch.step("write assignments"):
        labels = nearest_rows(model.predictor(), corpus) if old else None
        written = write_assignments(corpus, labels, model, run.folder, parts=parts, place=run.place)
    files = {f"{run.name}/{name}": sha256 for name, sha256 in written.files.items()}
    if not old:
        return files, Overlap(none, none, none, written.sizes, 0)
    packs = zip(_in_changed_files(run, material), material.files, strict=True)
    changed = [one for one, pack in packs if wanted[pack]]
    return files, count_overlap(run.place, old, corpus, labels, n_clusters, changed=changed)


def _resized(run: JobRun, lineage: Lineage) -> bytes:
    """Return the clusters of the last release with the sizes they have now."""
    table = decode_parquet(run.read_last(assignments.NAME))
    sizes = dict(zip(lineage.ids, lineage.sizes, strict=True))
    now = pa.array([sizes[one] for one in table["cluster"].to_pylist()], pa.int64())
    place = table.column_names.index("size")
    return encode_parquet(table.set_column(place, "size", now))


KINDS = ("must", "cannot")


def release(run: JobRun, material: Material, answers: Answers, results: Results) -> Report:
    """Publish what a run made, and return its report."""
    with run.watch.step("write the report"):
        files = results.files | write_records(run, material.rows.records, material.repeated)
        files |= write_answers(run, answers.rejects, answers.waiting)
        changed = None
        if run.previous is not None:
            changed, table = _changed(run, run.previous, files)
            files |= run.write(changes.FILE, encode_parquet(table))
        if answers.documents.gone.any():
            files |= run.write(GONE, answers.documents.encode_gone())
        classes = _agreement(run, material, results.files)
        nmi = None if classes is None else normalized_mutual_info(classes)
        if classes is not None:
            files |= run.write(CLASSES, encode_classes(classes))
        report, data = _kept(run, _report(run, material, answers, results, changed, nmi))
        files[f"{run.name}/{NAME}"] = digest(data)
    with run.watch.step("publish"):
        ledger = _ledger(run, material, results)
        counts = {"documents": report.documents["all"], "clusters": report.clusters["number"]}
        if "questions" in report.places:
            counts["questions"] = results.n_questions
        model = files[f"{model_of(files)}/model.json"]
        publish(
            run.hold,
            run_id=run.run_id,
            previous=run.previous,
            contents=Contents(files, ledger, counts, model),
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


def _changed(run: JobRun, before: Release, files: Files) -> tuple[Changed, pa.Table]:
    """Return what became of the documents of the last release; those that moved, with reasons."""
    changed = changes_of(run.place, assignments_of(before.files), assignments_of(files))
    return changed, with_reasons(changed.moved, run.place, before.files, files)


def _ledger(run: JobRun, material: Material, results: Results) -> dict[str, Any]:
    """Return what the next run must know of this one."""
    rows, chosen = material.rows, results.chosen
    return {
        INPUTS: run.inputs.identity,
        JOB: run.inputs.address,
        **run.inputs.journal.described(),
        SOURCES: entries(run.inputs.segments, rows.file_keys()),
        **_listings(run, rows),
        CAME: run.came,
        VOCABULARY: None if rows.vocabulary is None else rows.vocabulary.identity,
        MADE_OF: list(rows.made_of),
        **({} if rows.vectors is None else {DENSE: _recorded(rows.vectors.dense)}),
        NEXT_ID: results.lineage.next_id,
        **({} if chosen is None else {CHOICE: asdict(chosen)}),
        **({} if results.edits is None else {EDITS: asdict(results.edits)}),
    }


def _listings(run: JobRun, rows: JobRows) -> dict[str, Any]:
    """Return what the next run must know of sources other than files; nothing without any."""
    listings = run.inputs.documents.listings
    if not listings:
        return {}
    whole = [run.counts_of(record.key) for record in rows.records] if run.counts_words else []
    return {
        LISTINGS: {name: known.as_json for name, known in listings.items()},
        COUNTED_WHOLE: sorted(set(whole).difference(rows.keys)),
    }


# ---- known classes


def _agreement(run: JobRun, material: Material, files: Files) -> Contingency | None:
    """Return documents by known class and cluster; None where no document has a class."""
    flow, written = DaskFlow(), by_key(assignments_of(files))
    tasks = [
        flow.lazy(_compared, run.place, written[key], [name for name in record.labels if name])
        for key, record in zip(material.rows.keys, material.rows.records, strict=True)
        if any(record.labels) and key in written
    ]
    if not tasks:
        return None
    table: Contingency = flow.compute([tree(flow, merge, tasks)])[0]
    return table if table.n_rows else None


def _compared(place: Place, written: Files, labels: list[str]) -> Contingency:
    """Return how many documents of a file each class has in each cluster."""
    storage, rows = place.storage, table_of(place, written, ["doc_id", "cluster"])
    known = pa.concat_tables([read_hashed(storage, name, decode_parquet) for name in labels])
    known = known.drop_null()
    places = pc.index_in(rows["doc_id"], value_set=known["id"])
    there = pc.is_valid(places)
    classes = known["label"].take(places.filter(there)).to_numpy()
    return tabulate(np.asarray(classes, np.str_), rows["cluster"].filter(there).to_numpy())


# ---- the report


def _report(
    run: JobRun,
    material: Material,
    answers: Answers,
    results: Results,
    changed: Changed | None,
    nmi: float | None,
) -> Report:
    rows, lineage = material.rows, results.lineage
    n_quarantined = sum(record.n_rejects for record in rows.records) + len(material.repeated)
    outliers = {} if results.n_outliers is None else {"outliers": results.n_outliers}
    n_documents = sum(lineage.sizes) + sum(outliers.values())
    n_moved = changed.n_moved if changed else 0
    return Report(
        status="done",
        run=run.run_id,
        output=run.inputs.output,
        parent=None if run.previous is None else run.previous.run,
        release=run.parent.number,
        mode=run.inputs.job.mode,
        start=results.start,
        files=run.changes.counted(),
        unit="segment" if run.inputs.documents.listings else "file",
        documents={
            "all": n_documents,
            **outliers,
            "new": changed.n_new if changed else n_documents,
            "changed": results.n_changed,
            "gone": changed.n_gone if changed else 0,
            "moved": n_moved,
            "moved_share": n_moved / changed.n_both if changed and changed.n_both else 0.0,
            "vectorised": _n_vectorised(run, rows),
            "quarantined": n_quarantined,
        },
        vocabulary=_words(run, rows),
        answers={
            "pairs": {
                kind: 0 if answers.used is None else len(getattr(answers.used, f"{kind}_link"))
                for kind in KINDS
            },
            "violated": {kind: results.violations[f"{kind}_link"] for kind in KINDS},
            "suspect": results.n_suspect,
            "quarantined": len(answers.rejects),
            "unknown": len(answers.unknown),
            "waiting": len(answers.waiting),
            "unused": answers.n_unused,
            "questions": results.n_questions,
            **run.inputs.journal.described(),
        },
        fit=results.fit,
        clusters=_clusters(lineage, results.edits),
        nmi=nmi,
        seconds=dict(run.watch.seconds),
        memory={"process": peak_memory()},
        places=_places(
            run, results, listed=bool(n_quarantined or answers.rejects or answers.waiting)
        ),
    )


def _clusters(lineage: Lineage, edits: Edits | None) -> dict[str, Any]:
    """Return what is reported of clusters, and of edits where there are any."""
    kinds, number = Counter(change.kind for change in lineage.changes), len(lineage.ids)
    said = [] if edits is None else edits.described(number)
    return {"number": number, **dict(sorted(kinds.items())), **({EDITS: said} if said else {})}


def _words(run: JobRun, rows: JobRows) -> dict[str, Any]:
    """Return what is reported of words and vectors; nothing where rows are ready embeddings."""
    vocabulary = rows.vocabulary
    if vocabulary is None:
        return {}
    return {
        "terms": vocabulary.n_terms,
        "refit": rows.refit,
        "unknown_share": rows.coverage.unknown_share,
        "unknown_share_then": vocabulary.unknown_share,
        **_embeddings(run, rows),
    }


def _recorded(dense: Dense) -> dict[str, Any]:
    """Return vectors as a ledger has them, without what is not said of them."""
    return {name: value for name, value in asdict(dense).items() if value is not None}


def _embeddings(run: JobRun, rows: JobRows) -> dict[str, Any]:
    """Return what is reported of vectors; nothing where rows are words alone."""
    if rows.vectors is None:
        return {}
    dense = {} if run.previous is None else run.previous.ledger.get(DENSE) or {}
    now = rows.vectors.dense
    same = (dense.get("identity"), dense.get("column")) == (now.identity, now.column)
    last = {one.pack for entry in run.last_files.values() for one in entry.keys if same}
    packs = zip(rows.records, rows.vectors.n_new, strict=False)
    return {
        "embeddings": {
            "model": rows.vectors.dense.identity,
            "width": rows.vectors.dense.width,
            "share": rows.vectors.dense.share,
            "embedded": sum(n_new for record, n_new in packs if record.key not in last),
            "without_token": rows.vectors.n_zero,
            "of_one_kind": sum(one.n_partial for one in rows.rows),
        }
    }


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
    if run.previous is not None:
        found["moved"] = f"{run.name}/{changes.FILE}"
    for place, file in (("questions", QUESTIONS), ("suspects", SUSPECTS)):
        if named := [name for name in results.files if name.endswith(f"/{file}")]:
            found[place] = named[0]
    rejects = {"rejects": f"{run.name}/{REJECTS}"} if listed else {}
    return found | rejects | {"page": f"{run.name}/{HTML}"}


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
