"""What a report says over nights: releases so far, where documents went, two releases compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.jobs.changes import FILE, changes_of, with_reasons
from hmrf_dask.jobs.places import NAME, assignments_of
from hmrf_dask.jobs.places import Report as RunRecord
from hmrf_dask.jobs.report_clusters import lineage_of
from hmrf_dask.jobs.report_subject import READABLE, Subject, former_of_run
from hmrf_dask.releases.release import Release, read_file, read_if_whole, release_log
from hmrf_dask.report.content import Comparison, Flow, Moved, Night, Report, Text, excerpt
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.text.files import Place

MOST_NIGHTS: Final = 60
MOST_FLOWS: Final = 400
MOST_MOVED: Final = 200
_ANSWER: Final = 120  # characters


def nights_of(subject: Subject) -> tuple[Night, ...]:
    """Return the releases so far, the last one last.

    Those of long ago are known by the report of the release before; without it as far as the
    output lists them.
    """
    if subject.release is None:
        return ()
    if subject.former is not None:
        return subject.former.nights
    before = former_of_run(subject.url, subject.release.parent)
    if before is not None:
        nights = list(before.nights)
    else:
        numbers = sorted(
            n for n in release_log(subject.storage).numbers() if n < subject.release.number
        )
        read = (read_if_whole(subject.storage, number) for number in numbers[-MOST_NIGHTS:])
        nights = [_night(release, _record(subject, release)) for release in read if release]
    nights.append(_night(subject.release, subject.record))
    return tuple(nights[-MOST_NIGHTS:])


def _record(subject: Subject, release: Release) -> RunRecord | None:
    name = f"runs/{release.run}/{NAME}"
    try:
        return RunRecord.from_json(read_file(subject.storage, name, release.files[name]), "")
    except READABLE:
        return None


def _night(release: Release, record: RunRecord | None) -> Night:
    documents = int(release.counts.get("documents", 0))
    objective = record.fit.get("J") if record else None
    return Night(
        release=release.number,
        when=release.when[:16].replace("T", " "),
        documents=documents,
        clusters=int(release.counts.get("clusters", 0)),
        moved_share=record.documents.get("moved_share") if record and record.parent else None,
        spread=objective / documents if objective is not None and documents else None,
        nmi=record.nmi if record else None,
    )


def flows_of(subject: Subject) -> tuple[Flow, ...]:
    """Return where documents of the release before are now, most first."""
    lineage = subject.attempt("Where documents went", lambda: lineage_of(subject))
    if lineage is None:
        return ()
    flows = [
        Flow(change.cluster, flow.cluster, flow.documents)
        for change in lineage.changes
        for flow in change.went_to
    ]
    if lineage.n_common:
        flows += [
            Flow(change.cluster, None, change.size_before)
            for change in lineage.changes
            if change.size_before and not change.went_to and change.kind != "kept"
        ]
    flows.sort(key=lambda flow: (flow.before == flow.after, -flow.documents, flow.before or 0))
    return tuple(flows[:MOST_FLOWS])


# ---- two releases


class _Moves(NamedTuple):
    """Documents that moved, as moved.parquet has them; how many both releases have, and moved."""

    table: pa.Table
    n_both: int
    n_moved: int


def comparison_of(
    subject: Subject, before: Release | None, sampled: Sequence[Text], *, now: Report | None
) -> Comparison | None:
    """Return what moved since a release before; listed are documents of the sample.

    Parameters
    ----------
    subject : Subject
    before : Release or None
        Without its files, what the report `now` says of it is taken.
    sampled : sequence of Text
        Documents of the release that the report is about.
    now : Report, optional
        The report that was written with that release.
    """
    assert subject.release is not None
    if before is None or not before.files:
        return None if now is None else now.comparison
    moves = _moves(subject, subject.release, before)
    ids = pa.array([document.id for document in sampled], pa.string())
    known = moves.table.filter(pc.is_in(moves.table["doc_id"], value_set=ids)).to_pylist()
    rows, why = {row["doc_id"]: row for row in known}, _reasons(before)
    changed = [one for one in sampled if one.id in rows][:MOST_MOVED]
    return Comparison(
        before=before.number,
        after=subject.release.number,
        n_compared=moves.n_both,
        n_moved=moves.n_moved,
        moved=tuple(
            Moved(one, rows[one.id]["from"], why(one, rows[one.id]["answers"])) for one in changed
        ),
        names_before=_names_of(subject, before),
    )


def _moves(subject: Subject, release: Release, before: Release) -> _Moves:
    """Return what moved: as the run recorded it of its parent, else both releases are compared."""
    data = subject.file_of_release(FILE) if before.run == release.parent else b""
    if data and subject.record is not None:
        counts = subject.record.documents
        return _Moves(decode_parquet(data), counts["all"] - counts["new"], counts["moved"])
    place = Place(subject.url, {})
    changed = changes_of(place, assignments_of(before.files), assignments_of(release.files))
    table = with_reasons(changed.moved, place, before.files, release.files)
    return _Moves(table, changed.n_both, changed.n_moved)


def _reasons(before: Release) -> Callable[[Text, Sequence[str]], str]:
    """Return what says why a document moved, as far as that is known."""
    packs = {name.rpartition("/")[2].partition("-")[0] for name in assignments_of(before.files)}

    def why(document: Text, answers: Sequence[str]) -> str:
        if answers:
            more = f" and {len(answers) - 1} more" if len(answers) > 1 else ""
            return f"a new answer: {excerpt(answers[0], _ANSWER)}{more}"
        if document.pack not in packs:
            return "its file is new or changed"
        if document.held:
            return "answers name it, none of them new"
        return "its clusters changed"

    return why


def _names_of(subject: Subject, before: Release) -> dict[str, str]:
    """Return the words of the clusters of a release before."""
    path = next((name for name in before.files if name.endswith("/clusters.parquet")), None)
    if path is None:
        return {}

    def read() -> dict[str, str]:
        data = read_file(subject.storage, path, before.files[path])
        rows = decode_parquet(data, ["cluster", "top_words"]).to_pylist()
        return {str(row["cluster"]): ", ".join((row["top_words"] or [])[:4]) for row in rows}

    return subject.attempt("Names of former clusters", read) or {}
