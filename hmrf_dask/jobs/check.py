"""What a job will read and where it will write, before it runs: documents and answers sampled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hmrf_dask.constraints.answer_files import PairLines, parse_lines
from hmrf_dask.documents.batches import Batch, Reject, SeenIds
from hmrf_dask.documents.files import SEGMENT_BYTES, DocumentFile, is_cut
from hmrf_dask.documents.manifest import Columns, Query, base_of, load_manifest
from hmrf_dask.documents.segments import DocumentSegment, list_documents
from hmrf_dask.documents.sources import BATCH_ROWS
from hmrf_dask.documents.yaml_files import is_kind, read_yaml
from hmrf_dask.errors import (
    ConfigurationError,
    ConflictError,
    HmrfError,
    InvalidInputError,
    SourceError,
    counted,
)
from hmrf_dask.jobs.answers import (
    NOTHING_GIVEN,
    Answers,
    Given,
    judge_contradictions,
    put_together,
    refused,
    shown_unknown,
    split_answers,
    unnamed_annotators,
    way_out,
)
from hmrf_dask.jobs.former import Documents, look_up
from hmrf_dask.jobs.inputs import (
    answers_named,
    embedder_of,
    load_job,
    output_of,
    read_answer_file,
    refuse_places,
    resolved,
)
from hmrf_dask.jobs.job_file import Job
from hmrf_dask.jobs.journal import take
from hmrf_dask.jobs.parent import last_release
from hmrf_dask.jobs.publish import check_publishing
from hmrf_dask.jobs.quarantine import is_too_much, over_the_share
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.ownership import Owner, refuse_other
from hmrf_dask.releases.release import Release
from hmrf_dask.storage.addresses import refuse_memory
from hmrf_dask.text.files import Place

SHOWN = 5


@dataclass(frozen=True)
class NextRun:
    """The run that is asked about, and the release that it continues."""

    job: Job
    output: str
    last: Release | None = None


@dataclass
class AnswerFindings:
    """The answers: how many, about how many documents, and how many of these were found."""

    files: int
    must_links: int
    cannot_links: int
    documents: int
    documents_found: int
    not_found: list[str]
    bad_lines: int = 0


def survey_answers(
    sources: Iterable[DocumentFile | Query], problems: list[str], run: NextRun | None = None
) -> tuple[Given, int]:
    """Return the answers of files, and of the journal of a run's output, and how many were read.

    `problems` takes why one could not be.
    """
    read: list[tuple[str, PairLines]] = []
    given = NOTHING_GIVEN
    for source in sources:
        try:
            if file := read_answer_file(source):
                read.append((file.path, parse_lines(file.data, file.path)))
        except InvalidInputError as error:
            problems.append(str(error))
    if run is not None and (journal := take(run.output)).identity:
        read.append((journal.address, journal.pairs(run.job.annotators)))
    try:
        given = put_together(read)
    except InvalidInputError as error:  # more classes than anybody has
        problems.append(str(error))
    return given, len(read)


def judge_answers(
    given: Given, there: set[str] | None, run: NextRun | None
) -> tuple[list[str], list[str]]:
    """Return what of the answers would stop a run, and what is good to know of them.

    The documents that are named and are `there` are known once all were read. Without a run it is
    one of a job that does not say.
    """
    problems, remarks = list[str](), list[str]()
    job = None if run is None else run.job
    split = None if there is None else split_answers(given, _look_up(given, there, run))
    rejects = given.rejects if split is None else split.rejects
    if rejects and not _leaves_out(job, len(rejects), given.n_answers):
        problems.append(_refusal(given, split, job))
    elif rejects:
        remarks.append(f"{counted(len(rejects), 'answer')} will be left out (quarantine)")
    if job is not None and (doubt := unnamed_annotators(given, job.annotators)):
        remarks.append(doubt)
    if split is not None and split.waiting:
        some = counted(len(split.waiting), "answer")
        remarks.append(f"{some} will wait for documents that only former releases had")
    # A run leaves answers out for want of their documents, and goes by the others.
    may_wait = run is not None and (run.last is not None or run.job.quarantines)
    used = given if split is None or run is None else split.known
    method = None if job is None else job.method
    try:
        said = judge_contradictions(used, method, certain=split is not None or not may_wait)
        remarks += [said] if said else []
    except ConflictError as error:
        problems.append(str(error))
    if job is not None and job.mode == "predict":
        return [], [*(f"the next fit will stop: {one}" for one in problems), *remarks]
    return problems, remarks


def _look_up(given: Given, there: set[str], run: NextRun | None) -> Documents:
    """Return what is known of the documents that answers name."""
    known, named = np.array(sorted(there), np.str_), given.named()
    if run is not None and run.last is not None and not there.issuperset(named):
        return look_up(Place(run.output), run.last, named, lambda ids: np.isin(ids, known))
    ids = np.unique(np.array(named, np.str_))
    return Documents(ids, np.isin(ids, known), np.zeros(len(ids), np.bool_))


def _refusal(given: Given, split: Answers | None, job: Job | None) -> str:
    """Return what a run says of lines that are no answers, and of documents that never were."""
    n_bad = len(given.rejects if split is None else split.rejects)
    too_much = is_too_much(job, n_bad, given.n_answers)
    found = [str(refused(given.rejects, too_much=too_much))] if given.rejects else []
    if split is not None and split.unknown:
        documents = split.documents
        missing = documents.ids[~documents.there & ~documents.gone].tolist()
        found.append(
            f"answers must name documents that are there, got {counted(len(missing), 'other')}: "
            f"{shown_unknown(missing)}; {way_out(too_much=too_much)}"
        )
    said = "; ".join(found)
    if job is None or not job.quarantines:
        return said
    return f"{over_the_share(job, 'answers may be rejected', n_bad, given.n_answers)}: {said}"


def _leaves_out(job: Job | None, n_bad: int, n_all: int) -> bool:
    """Return whether a job quarantines what is bad, as it is no more than it allows."""
    return job is not None and job.quarantines and not is_too_much(job, n_bad, n_all)


SAMPLE = 100_000  # documents
SMALLEST_SHARE = 100  # documents of a file: with more files than that allows, not all are read
EXCERPT = 80  # characters of a text


@dataclass
class Findings:
    """What was found; `problems` would stop a run, `remarks` are good to know."""

    name: str
    language: str | None
    files: int
    bytes: int
    formats: dict[str, int]
    files_read: int = 0
    complete: bool = False  # every document was read, not only a sample
    documents: int = 0
    first_documents: list[dict[str, str]] = field(default_factory=list)
    lengths: dict[str, float] = field(default_factory=dict)  # of texts, in characters
    ascii_share: float = 0.0  # of documents: the fast path of tokenising
    embedding_length: int | None = None
    labels: int | None = None  # known classes, None without such a column
    bad_records: int = 0
    first_bad_records: list[dict[str, Any]] = field(default_factory=list)
    duplicate_ids: int = 0
    first_duplicate_ids: list[str] = field(default_factory=list)
    answers: AnswerFindings | None = None
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    output: str | None = None  # None where a manifest alone is checked
    exit_code: int = 0  # of a run that would stop at these problems


def check_manifest(
    url: str,
    *,
    everything: bool = False,
    sample: int = SAMPLE,
    tell: Tell = nothing,
    more_answers: Sequence[str] = (),
    run: NextRun | None = None,
) -> Findings:
    """Read a sample of the documents, and the answers, and say what is there.

    Only where every document is read it is known whether answers name unknown ones; a sample is the
    first documents of files that are spread evenly. `more_answers` are pair files in addition to
    those of the manifest. Without a run, what stops a job that does not say counts as a problem.
    """
    manifest, base = load_manifest(url), base_of(url)
    files = answers_named(manifest, base)
    files += [DocumentFile(one, one, 0, "", "csv") for one in more_answers]
    with closing(list_documents(manifest, base)) as documents:
        segments = documents.segments
        found = Findings(
            manifest.name,
            manifest.language,
            len(segments),
            sum(segment.size for segment in segments),
            dict(sorted(Counter(map(_kind, segments)).items())),
        )
        answers, n_read = survey_answers(files, found.problems, run)
        reading = _Reading(found, set(answers.named()), manifest.documents)
        reading.read_all(segments, None if everything else sample, tell)
    reading.summarise(manifest.documents)
    _judge(found, manifest.documents, None if run is None else run.job)
    _remark_uncut(found, segments)
    if manifest.answers is not None or more_answers or answers.paths:
        _judge_answers(found, answers, n_read, reading, run)
    found.exit_code = InvalidInputError.exit_code if found.problems else 0
    return found


def _kind(segment: DocumentSegment) -> str:
    """Return the format of a file, or the kind of another source."""
    if segment.file is None:
        kind = re.search(r"\w+", segment.source.identity)
        return kind[0] if kind else "rows"
    compression = segment.file.compression
    return f"{segment.file.format}{'' if compression == 'none' else f'.{compression}'}"


def _sample(
    segments: Sequence[DocumentSegment], sample: int
) -> tuple[Sequence[DocumentSegment], int]:
    """Return segments spread evenly over all, and how many documents are read of each."""
    n_chosen = min(len(segments), max(1, sample // SMALLEST_SHARE))
    chosen = [segments[number * len(segments) // n_chosen] for number in range(n_chosen)]
    return chosen, max(1, sample // max(1, n_chosen))  # a table may have no rows yet


class _Reading:
    """What is added up while documents go by."""

    def __init__(self, found: Findings, named: set[str], columns: Columns) -> None:
        self.found = found
        self.named = named
        self.named_found: set[str] = set()
        self.whole = True
        self._columns = columns
        self._seen = SeenIds()
        self._lengths: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._n_ascii = 0
        self._labels: set[str] = set()

    def read_all(self, segments: Sequence[DocumentSegment], sample: int | None, tell: Tell) -> None:
        """Read all segments, or of some of them as many documents as a sample has."""
        chosen, share = (segments, None) if sample is None else _sample(segments, sample)
        for number, segment in enumerate(chosen):
            tell({"step": "reading documents", "done": number, "of": len(chosen)})
            self._read(segment, share)
        self.found.files_read = len(chosen)
        self.found.complete = self.whole and len(chosen) == len(segments)

    def _read(self, segment: DocumentSegment, share: int | None) -> None:
        """Read a segment, or about `share` records of it."""
        n_rows = BATCH_ROWS if share is None else min(share, BATCH_ROWS)
        n_read = 0
        # Closed where the sample ends: a generator that is left open keeps its file.
        with closing(segment.read(rows=n_rows)) as batches:
            for batch in batches:
                if share is not None and n_read >= share:
                    self.whole = False
                    return
                n_read += len(batch.ids) + len(batch.rejects)
                self._add(segment, batch)

    def _add(self, segment: DocumentSegment, batch: Batch) -> None:
        found = self.found
        found.documents += len(batch.ids)
        for id_, text in zip(batch.ids, batch.texts, strict=True):
            if len(found.first_documents) == SHOWN:
                break
            shown = " ".join(text[: 4 * EXCERPT].split())[:EXCERPT]
            found.first_documents.append({"id": id_, "text": shown, "file": segment.name})
        self._lengths.append(np.fromiter(map(len, batch.texts), np.int64, len(batch.texts)))
        self._n_ascii += sum(map(str.isascii, batch.texts))
        self._labels.update(one for one in batch.extra.get("label", ()) if one is not None)
        self.named_found.update(self.named.intersection(batch.ids))
        self._note_width(batch, segment)
        for reject in batch.rejects:
            self._note_reject(reject)
        for position in self._seen.add(batch.ids):
            found.duplicate_ids += 1
            if len(found.first_duplicate_ids) < SHOWN:
                line = batch.lines[position]
                place = f", line {line}" if line else ""
                found.first_duplicate_ids.append(
                    f"{batch.ids[position]!r} again in {segment.name}{place}"
                )

    def _note_width(self, batch: Batch, segment: DocumentSegment) -> None:
        if batch.embeddings is None:
            return
        width = batch.embeddings.shape[1]
        self.found.embedding_length = self.found.embedding_length or width
        if width != self.found.embedding_length:
            self.found.problems.append(
                f"embeddings must be of one length, got {width} numbers in {segment.name} and "
                f"{self.found.embedding_length} in files before it"
            )

    def _note_reject(self, reject: Reject) -> None:
        self.found.bad_records += 1
        if len(self.found.first_bad_records) < SHOWN:
            shown = {"file": reject.source, "line": reject.line, "id": reject.id}
            shown |= {"reason": reject.reason, "raw": reject.raw}
            self.found.first_bad_records.append(shown)

    def summarise(self, columns: Columns) -> None:
        """Turn sums into what is reported."""
        if columns.label is not None:
            self.found.labels = len(self._labels)
        if not self.found.documents:
            return
        lengths = np.concatenate(self._lengths)
        self.found.ascii_share = self._n_ascii / len(lengths)
        self.found.lengths = {
            "shortest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "longest": int(lengths.max()),
        }


def _remark_uncut(found: Findings, segments: Sequence[DocumentSegment]) -> None:
    """Say which large files one task reads alone, whatever the cluster."""
    files = [one.file for one in segments if one.file is not None]
    whole = [one for one in files if one.size >= 2 * SEGMENT_BYTES and not is_cut(one)]
    if whole:
        shown = ", ".join(f"{one.path} ({one.size / 1e6:.0f} MB)" for one in whole[:SHOWN])
        found.remarks.append(
            f"{counted(len(whole), 'large file')} can be read by one task each, from front to end: "
            f"{shown}; "
            "Parquet, JSON Lines that are not compressed, or several files are read side by side"
        )


def _judge(found: Findings, columns: Columns, job: Job | None) -> None:
    """Say what would stop a run, and what is only worth knowing."""
    seen = "" if found.complete else " in the sample"
    n_bad = found.bad_records + found.duplicate_ids
    quarantined = _leaves_out(job, n_bad, found.documents + found.bad_records)
    if not found.documents:
        where = f"{seen} of {counted(found.files, 'file')}" if found.files else ""
        found.problems.append(
            f"there must be documents, got none{where}"
            + ("; are these the columns that the manifest's documents: names?" if n_bad else "")
        )
    if n_bad and quarantined:
        found.remarks.append(f"{counted(n_bad, 'bad record')}{seen} will be left out (quarantine)")
        n_bad = 0
    way = ", or leave them out by on_bad_record: quarantine"
    if is_too_much(job, n_bad, found.documents + found.bad_records):
        way = ", or raise max_rejected of quarantine" if found.documents else ""
    if n_bad and found.bad_records:
        found.problems.append(
            f"{counted(found.bad_records, 'bad record')}{seen}: a run stops; correct them{way}"
        )
    if n_bad and found.duplicate_ids:
        found.problems.append(
            f"ids must be unique, got {counted(found.duplicate_ids, 'document')}{seen} with the id "
            "of another file's document"
        )
    n_clusters = 0 if job is None or job.mode != "fit" else job.method.n_clusters
    if found.complete and isinstance(n_clusters, int) and 0 < found.documents < n_clusters:
        found.problems.append(
            f"method.n_clusters must be at most the number of documents, got {n_clusters} for "
            f"{counted(found.documents, 'document')}; ask for fewer clusters, or add documents"
        )
    if found.labels == 0 and found.documents:
        found.remarks.append(f"the label ({columns.label!r}) is empty everywhere{seen}")
    if not found.complete:
        found.remarks.append("a sample was read; --all reads every document")


def _judge_answers(
    found: Findings, given: Given, n_files: int, reading: _Reading, run: NextRun | None
) -> None:
    missing = sorted(reading.named - reading.named_found)
    pairs = given.with_classes().constraints()
    found.answers = AnswerFindings(
        files=n_files,
        must_links=0 if pairs is None else len(pairs.must_nodes),
        cannot_links=0 if pairs is None else len(pairs.cannot_nodes),
        documents=len(reading.named),
        documents_found=len(reading.named_found),
        not_found=missing[:SHOWN],
        bad_lines=len(given.rejects),
    )
    there = reading.named_found if found.complete else None
    problems, remarks = judge_answers(given, there, run)
    found.problems += problems
    found.remarks += remarks
    if missing and not found.complete:
        found.remarks.append(
            f"answers name {counted(len(missing), 'document')} that the sample does not have"
        )


def check_file(address: str, *, everything: bool = False, tell: Tell = nothing) -> Findings:
    """Return what is found in a manifest, or in a job and in its manifest; see `check_manifest`."""
    if not is_kind(read_yaml(address, "job or manifest"), "job"):
        return check_manifest(address, everything=everything, tell=tell)
    job, base = load_job(address), base_of(address)
    problems, output = _check_output(job, address), output_of(job, address)
    last, damage = (None, None) if problems else _last(output)
    try:
        found = check_manifest(
            resolved(base, job.manifest), everything=everything, tell=tell,
            more_answers=[resolved(base, one) for one in job.answers],
            run=NextRun(job, output, last),
        )  # fmt: skip
    except HmrfError as error:
        if not problems:
            raise
        raise ConfigurationError("; ".join(problems)) from error
    found.output = output
    if job.publish is not None:
        table = job.publish.sql
        found.remarks.append(
            f"releases are shown as {table.table} in the database of {table.url_env}"
        )
    found.problems[:0] = problems
    if problems:
        found.exit_code = ConfigurationError.exit_code
    elif damage is not None:
        found.problems.append(str(damage))
        found.exit_code = damage.exit_code
    elif last is not None:
        _compare(found, int(last.counts.get("documents", 0)))
    return found


def _check_output(job: Job, address: str) -> list[str]:
    """Return in words why a job cannot write to its output; nothing if it can."""
    manifest = load_manifest(resolved(base_of(address), job.manifest))
    try:
        refuse_places(job, address, manifest)
        refuse_memory(job.output, "output")
        embedder_of(job, address)
        owner = Owner(job.name, manifest.name)
        refuse_other(open_output(output_of(job, address), None), owner)
        if job.publish is not None:
            check_publishing(job.publish.sql, output_of(job, address), owner)
    except HmrfError as error:
        if isinstance(error, SourceError) or error.exit_code != ConfigurationError.exit_code:
            raise
        return [str(error)]
    return []


def _last(output: str) -> tuple[Release | None, HmrfError | None]:
    """Return the release that a run continues, or what is wrong with it."""
    try:
        return last_release(output), None
    except HmrfError as error:
        return None, error


def _compare(found: Findings, n_before: int) -> None:
    """Say whether a run would stop because documents of the last release are gone."""
    if found.complete and 2 * found.documents < n_before:
        found.problems.append(
            f"at least half of the last release's documents must be there, got {found.documents} "
            f"where it had {n_before}: a run stops, unless it is given --allow-shrink"
        )
        found.exit_code = InvalidInputError.exit_code
