"""From the documents of a run to its rows: packs, words, vectors, each made where it is new."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError, counted
from hmrf_dask.fit.preparation import check_memory, hashing_task, table_task
from hmrf_dask.jobs.job_file import Text
from hmrf_dask.jobs.packs import Pack, packed
from hmrf_dask.jobs.parent import MADE_OF
from hmrf_dask.jobs.quarantine import check_records, without_repeated
from hmrf_dask.jobs.rows import (
    CountedPack,
    JobRows,
    Vectors,
    count_documents,
    embed_documents,
    find_lines,
    names_made,
    ready_vectors,
    settings_of,
    store_vectors,
    vectors_made,
    weigh_documents,
)
from hmrf_dask.jobs.steps import JobRun, Material
from hmrf_dask.jobs.superseded import live_packs
from hmrf_dask.text.tfidf import Dense, Vocabulary
from hmrf_dask.text.vectorise import corpus_of, counts_key


def prepare(run: JobRun) -> Material:
    """Return the rows of all documents; new and changed segments alone are read."""
    try:
        return _prepared(run)
    finally:
        run.inputs.documents.close()  # all is read


def _prepared(run: JobRun) -> Material:
    packs = _packs(run)
    rows = _rows(run, packs)
    with run.watch.step("look for ids that come twice"):
        corpus, repeated = without_repeated(
            corpus_of(rows.rows, run.place.options),
            rows.homes(),
            f"{run.folder}/rows",
            first=lambda path: (run.came.get(path, 0), path),
            find_lines=partial(find_lines, packs, rows),
            quarantine=run.inputs.job.quarantines,
        )
    if repeated:
        check_records(run, rows.records, repeated)
    _refuse_few(run, corpus.n_rows)
    return Material(rows, corpus, rows.names(), rows.places(), repeated)


def _refuse_few(run: JobRun, n_documents: int) -> None:
    """Refuse more clusters than documents as soon as these are counted."""
    if run.inputs.job.mode == "fit" and n_documents < run.n_clusters:
        raise InvalidInputError(
            f"method.n_clusters must be at most the number of documents, got {run.n_clusters} for "
            f"{counted(n_documents, 'document')} in "
            f"{counted(len(run.inputs.segments), 'file')}; ask for fewer clusters, or check that "
            "the manifest names all files"
        )


def _packs(run: JobRun) -> list[Pack]:
    files = [part for segment in run.inputs.segments for part in segment.parts()]
    made_of = () if run.previous is None else run.previous.ledger[MADE_OF]
    return packed(
        files, run.last_files, run.place, stop=not run.inputs.job.quarantines, made_of=made_of
    )


def _rows(run: JobRun, packs: list[Pack]) -> JobRows:
    if not run.counts_words:
        return _ready_rows(run, packs)
    text, keys = run.text, [one.key for one in packs]
    _refuse_columns(run, text)
    before = _vocabulary_to_keep(run, text)
    counts = [counts_key(key, settings_of(text)) for key in keys]
    run.record_made(names_made(keys, counts, ()))
    with run.watch.step("count words", "files") as so_far:
        counted_packs = count_documents(packs, settings_of(text), run.place, so_far)
    check_records(run, [one.record for one in counted_packs])
    _refuse_few(run, sum(one.counts.n_texts for one in counted_packs))
    vectors = _vectors(run, packs, counted_packs)
    counted_packs = live_packs(run, counted_packs)
    before = _of_one_width(run, before, vectors)
    if run.inputs.job.mode == "predict":
        text = text.model_copy(update={"refit": "never"})
    new = [not run.same.issuperset(one.record.paths) for one in counted_packs]
    with run.watch.step("weigh words"):
        rows = weigh_documents(
            counted_packs, new, text, before, run.place, vectors=vectors,
            before_written=lambda vocabulary: run.record_made(names_made((), (), (vocabulary,))),
        )  # fmt: skip
    _warn_of_empty(rows)
    return rows


def _ready_rows(run: JobRun, packs: list[Pack]) -> JobRows:
    """Return the column of embeddings as rows."""
    run.record_made(names_made([one.key for one in packs], (), (None,)))
    with run.watch.step("read embeddings", "files") as so_far:
        rows = embed_documents(packs, run.place, so_far)
    check_records(run, rows.records)
    return rows


def _vectors(
    run: JobRun, packs: list[Pack], counted_packs: Sequence[CountedPack]
) -> Vectors | None:
    """Return the vectors of all documents: those that are stored, a column, or made now."""
    dense, embedder = run.dense, run.inputs.embedder
    if dense is None:
        return None
    if embedder is None:
        ready = _ready_rows(run, packs)
        return ready_vectors(ready, counted_packs, dense.share, run.place)
    run.record_made(vectors_made(dense, [one.key for one in packs]))
    with run.watch.step("embed texts", "files") as so_far:
        return store_vectors(packs, embedder, dense, run.place, so_far)


def _of_one_width(
    run: JobRun, before: tuple[Vocabulary, list[str]] | None, vectors: Vectors | None
) -> tuple[Vocabulary, list[str]] | None:
    """Return the vocabulary to keep, None where ready embeddings have another width now."""
    last = None if before is None else before[0].dense
    if last is None or vectors is None or last.width == vectors.dense.width:
        return before
    if run.inputs.job.mode == "predict":
        raise InvalidInputError(
            f"embeddings must have the {last.width} numbers of those of the last fit, got "
            f"{vectors.dense.width}; make them with the same model, or run with mode fit"
        )
    return None


def _warn_of_empty(rows: JobRows) -> None:
    """Warn of documents that the model knows nothing of, and of rows that lack a kind."""
    vectors, n_partial = rows.vectors, sum(one.n_partial for one in rows.rows)
    if vectors is not None and vectors.n_zero:
        warnings.warn(
            f"{counted(vectors.n_zero, 'document')} without a token that {vectors.dense.model} "
            f"knows ({vectors.first_zero!r}): the vector is zero",
            HmrfWarning,
            stacklevel=2,
        )
    if n_partial:
        warnings.warn(
            f"{counted(n_partial, 'document')} with words alone or a vector alone: that is the "
            "whole row",
            HmrfWarning,
            stacklevel=2,
        )


def _refuse_columns(run: JobRun, text: Text) -> None:
    """Refuse more columns than memory holds where they are known before any word is counted."""
    job, buckets = run.inputs.job, text.n_features if text.kind == "hashing" else 0
    if run.recipe.share == 1.0:
        return  # words are for people alone
    tasks = [hashing_task(buckets, text.lsa or 0)]
    if job.mode == "fit":
        tasks.append(table_task(run.n_clusters, text.lsa or buckets))
    check_memory(tasks)


def _vocabulary_to_keep(run: JobRun, text: Text) -> tuple[Vocabulary, list[str]] | None:
    last, dense = run.last_vocabulary, run.dense
    same = last is not None and last.settings == settings_of(text)
    if last is not None and run.previous is not None and same and _are_alike(last.dense, dense):
        return last, run.previous.ledger[MADE_OF]
    if run.inputs.job.mode == "predict":
        got = "none that can be read" if last is None else "other text settings or another model"
        raise ConfigurationError(
            f"mode predict must have the vocabulary of the last fit, got {got}; run with mode fit "
            "first"
        )
    return None


def _are_alike(last: Dense | None, dense: Dense | None) -> bool:
    """Return whether vectors are of the same model and count the same."""
    if last is None or dense is None:
        return last is dense
    own = dense.identity, dense.share, dense.column
    return (last.identity, last.share, last.column) == own
