"""Records and answers that are quarantined: their files, the share that stops, repeated ids."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus, corpus_of_files, find_duplicate_ids
from hmrf_dask.documents.batches import Reject, decode_rejects, encode_rejects
from hmrf_dask.errors import HmrfWarning, InvalidInputError, counted
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.jobs.job_file import MAX_REJECTED, Job
from hmrf_dask.jobs.packs import (
    PackRecord,
    first_rejects,
    lines_before_of,
    placed,
    read_hashed,
)
from hmrf_dask.jobs.places import REJECTS, REPEATED
from hmrf_dask.jobs.rows import Home
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.files import BlockSource, write_block
from hmrf_dask.storage.sealed import digest
from hmrf_dask.tasks.partitions import find_ids
from hmrf_dask.text.files import Place
from hmrf_dask.types import IntArray

if TYPE_CHECKING:
    from hmrf_dask.jobs.answers import Answers, Given
    from hmrf_dask.jobs.steps import JobRun

Files = dict[str, str]
ANSWERS = "answers.jsonl"
WAITING = "waiting.jsonl"
SHOWN = 3


class TooManyRejectedError(InvalidInputError):
    """More than the share that a job allows is rejected; the folder of the run lists it all."""


# ---- the share that stops a run


def check_records(
    run: JobRun, records: Sequence[PackRecord], repeated: Sequence[Reject] = ()
) -> None:
    """Stop where too many records are no documents, or too much lies in files that break off."""
    n_rejected = sum(record.n_rejects for record in records) + len(repeated)
    n_documents = sum(record.n_documents for record in records) - len(repeated)
    broken = {one.source for one in first_rejects(records) if one.whole_rest}
    sizes = {one.name: one.size for one in run.inputs.segments}
    n_lost = sum(sizes.get(path, 0) for path in broken)
    shown = [*islice(first_rejects(records), SHOWN + 1), *repeated[: SHOWN + 1]]
    unreadable = "the bytes may lie in files that cannot be read to their end"
    for n_bad, n_all, what in (
        (n_rejected, n_rejected + n_documents, "records may be rejected"),
        (n_lost, sum(sizes.values()), unreadable),
    ):
        if is_too_much(run.inputs.job, n_bad, n_all):
            write_records(run, records, repeated)
            raise _too_many(run, what, n_bad, n_all, shown)


def check_answers(run: JobRun, given: Given, rejects: Sequence[Reject]) -> None:
    """Stop where too many answers are rejected."""
    if is_too_much(run.inputs.job, len(rejects), given.n_answers):
        write_answers(run, rejects, ())
        raise _too_many(run, "answers may be rejected", len(rejects), given.n_answers, rejects)


def is_too_much(job: Job | None, n_bad: int, n_all: int) -> bool:
    """Return whether a part is strictly more than the share that a job allows, or all there is."""
    allowed = MAX_REJECTED if job is None else job.max_rejected
    share = Fraction(str(allowed))  # exact: 29 of 100 is not more than 0.29
    return n_bad > share * n_all or 0 < n_bad == n_all


def _too_many(
    run: JobRun, what: str, n_bad: int, n_all: int, rejects: Sequence[Reject]
) -> TooManyRejectedError:
    shown = "; ".join(f"{_place(one)}: {one.reason}" for one in rejects[:SHOWN])
    more = "; …" if len(rejects) > SHOWN else ""
    raised = "" if n_bad == n_all else ", or raise max_rejected if so much is to be left out"
    said = over_the_share(run.inputs.job, what, n_bad, n_all)
    return TooManyRejectedError(
        f"{said}: {shown}{more}; {run.folder}/{REJECTS} lists them: correct them{raised}"
    )


def over_the_share(job: Job, what: str, n_bad: int, n_all: int) -> str:
    """Return in words that more is rejected than a job allows."""
    share, percent = job.max_rejected, f"{100 * job.max_rejected:.4g} %"
    return f"at most {percent} of {what} (max_rejected: {share:g}), got {n_bad:,} of {n_all:,}"


def _place(reject: Reject) -> str:
    return f"{reject.source}, line {reject.line}" if reject.line else reject.source


def warn_of_rejects(run: JobRun, n_records: int, answers: Answers) -> None:
    """Say in one line that something was quarantined, how much, and where it is listed."""
    numbers = (n_records, "record"), (len(answers.rejects), "answer")
    if some := [counted(n, what) for n, what in numbers if n]:
        warnings.warn(
            f"quarantined: {' and '.join(some)}, listed with the reasons in {run.folder}/{REJECTS}",
            HmrfWarning,
            stacklevel=2,
        )


# ---- the files that list them


def write_records(run: JobRun, records: Sequence[PackRecord], repeated: Sequence[Reject]) -> Files:
    """List the records that are no documents, a file for each pack, and those with a used id."""
    flow = DaskFlow()
    tasks = [
        flow.lazy(_copy, run.place, record, n_lines, f"{run.name}/{REJECTS}/{record.key}.jsonl")
        for record, n_lines in zip(records, lines_before_of(records), strict=True)
        if record.rejects
    ]
    copied = flow.compute(tasks) if tasks else []
    return dict(copied) | _listed(run, REPEATED, repeated)


def write_answers(run: JobRun, rejects: Sequence[Reject], waiting: Sequence[Reject]) -> Files:
    """List the answers that are rejected, and those that wait for a document that is gone."""
    return _listed(run, ANSWERS, rejects) | _listed(run, WAITING, waiting)


def _listed(run: JobRun, name: str, rejects: Sequence[Reject]) -> Files:
    return run.write(f"{REJECTS}/{name}", encode_rejects(rejects)) if rejects else {}


def _copy(place: Place, record: PackRecord, n_lines: int, target: str) -> tuple[str, str]:
    """Bring the rejects of a pack together, with the lines they have in their whole file."""
    storage = place.storage
    listed = [one for name in record.rejects for one in read_hashed(storage, name, decode_rejects)]
    data = encode_rejects(placed(one, n_lines) for one in [*listed, *record.unlisted_rejects()])
    storage.write(target, data)
    return target, digest(data)


SHOWN_IDS = 5
REASON = "the id is that of a document of another file"
SAME = "the id is that of an earlier document of this file"
FindLines = Callable[[Mapping[int, set[str]]], Mapping[int, Mapping[str, int]]]
RowPlace = tuple[str, int, int]  # a file, a partition, and a row of it


def without_repeated(
    corpus: Corpus,
    homes: Sequence[Home],
    url: str,
    *,
    first: Callable[[str], Any],
    find_lines: FindLines,
    quarantine: bool,
) -> tuple[Corpus, list[Reject]]:
    """Return the corpus with each id once, and the documents left out, which else are an error.

    `homes` are the files in each partition, and how many documents of each. Of documents with one
    id that of the `first` file stays. Rows of partitions that lose some are written below `url`.
    `find_lines` says where documents are that an earlier part of the same file has too.
    """
    flow = DaskFlow()
    repeated = find_duplicate_ids(corpus, flow)
    if not repeated:
        return corpus, []
    ids = np.sort(np.asarray(repeated, np.str_))
    shared = flow.share(ids)
    found = flow.compute([flow.lazy(find_ids, block, shared) for block in corpus.named])
    where: list[list[RowPlace]] = [[] for _ in ids]
    for part, (places, rows) in enumerate(found):
        for place, row, path in zip(places, rows, _paths(homes[part], rows), strict=True):
            where[place].append((path, part, int(row)))
    for some in where:
        some.sort(key=lambda one: (first(one[0]), *one[1:]))
    if not quarantine:
        shown = _lost(ids[:SHOWN_IDS].tolist(), where[:SHOWN_IDS], find_lines)
        _refuse(len(ids), [some[0][0] for some in where], shown)
    out: dict[int, list[int]] = defaultdict(list)
    for some in where:
        for _, part, row in some[1:]:
            out[part].append(row)
    return _without(flow, corpus, out, url), _lost(ids.tolist(), where, find_lines)


def _lost(
    ids: Sequence[str], where: Sequence[Sequence[RowPlace]], find_lines: FindLines
) -> list[Reject]:
    """Return all documents of some ids but the first of each."""
    same: dict[int, set[str]] = defaultdict(set)
    late = [
        (one, path, part, path in {earlier for earlier, *_ in some[:number]})
        for one, some in zip(ids, where, strict=True)
        for number, (path, part, _) in enumerate(some)
        if number
    ]
    for one, _, part, is_same in late:
        if is_same:
            same[part].add(one)
    lines = find_lines(same) if same else {}
    return [
        Reject(path, lines.get(part, {}).get(one, 0), one, SAME if is_same else REASON, "")
        for one, path, part, is_same in late
    ]


def _refuse(n_ids: int, firsts: Sequence[str], lost: Sequence[Reject]) -> NoReturn:
    homes: dict[str, list[str]] = {}
    for one in lost:
        homes.setdefault(str(one.id), [firsts[len(homes)]]).append(_place(one))
    shown = "; ".join(
        f"{one!r} in {' and '.join(dict.fromkeys(home))}" for one, home in homes.items()
    )
    raise InvalidInputError(
        f"document ids must be unique, got {n_ids} of them twice: {shown}; give every "
        "document its own id, or keep the first of each with on_bad_record: quarantine"
    )


def _paths(home: Home, rows: IntArray) -> list[str]:
    """Return the file of each of some rows of a partition."""
    ends = np.cumsum([n for _, n in home])
    return [home[place][0] for place in np.searchsorted(ends, rows, side="right")]


def _without(flow: DaskFlow, corpus: Corpus, out: dict[int, list[int]], url: str) -> Corpus:
    """Return the corpus with other files in the place of those that lose rows."""
    sources = list(corpus.sources)
    tasks = [flow.lazy(_write_rest, sources[part], rows, part, url) for part, rows in out.items()]
    for part, source in zip(out, flow.compute(tasks), strict=True):
        sources[part] = source
    return corpus_of_files(sources, corpus.n_features)


def _write_rest(block: RowBlock, rows: list[int], part: int, url: str) -> BlockSource:
    rest = block.take(np.delete(np.arange(block.n_rows), rows))
    return BlockSource(url, write_block(rest, url, part), block.n_features)
