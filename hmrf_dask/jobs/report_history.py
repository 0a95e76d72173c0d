"""What a report says over nights: releases so far, where documents went, two releases compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs.places import NAME, assignments_of
from hmrf_dask.jobs.places import Report as RunRecord
from hmrf_dask.jobs.report_clusters import lineage_of
from hmrf_dask.jobs.report_subject import READABLE, Subject, former_of_run
from hmrf_dask.jobs.texts import homes_in
from hmrf_dask.releases.release import Release, read_file, read_if_whole, release_log
from hmrf_dask.report.content import Comparison, Flow, Moved, Night, Report, Text
from hmrf_dask.storage.whole_files import decode_parquet

MOST_NIGHTS: Final = 60
MOST_FLOWS: Final = 400
MOST_MOVED: Final = 200


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


def comparison_of(
    subject: Subject, before: Release | None, sampled: Sequence[Text], *, now: Report | None
) -> Comparison | None:
    """Return which sampled documents are in another cluster than in a release before.

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
    ids = sorted(document.id for document in sampled)
    then = clusters_in(subject.url, assignments_of(before.files), ids)
    changed = [one for one in sampled if then.get(one.id, one.cluster) != one.cluster]
    why = _reasons(before)
    return Comparison(
        before=before.number,
        after=subject.release.number,
        n_compared=len(then),
        n_moved=len(changed),
        moved=tuple(Moved(one, then[one.id], why(one)) for one in changed[:MOST_MOVED]),
        names_before=_names_of(subject, before),
    )


def clusters_in(url: str, files: Mapping[str, str], ids: list[str]) -> dict[str, int]:
    """Return the clusters of documents by id, as far as files of assignments have them.

    Parameters
    ----------
    url : str
        The output.
    files : mapping of str to str
        Their sha256 by name.
    ids : list of str
    """
    flow = DaskFlow()
    wanted = flow.share(pa.array(ids, pa.string()))
    tasks = [flow.lazy(_found, url, file, wanted) for file in sorted(files.items())]
    if not tasks:
        return {}
    clusters: dict[str, int] = flow.compute([tree(flow, _joined, tasks)])[0]
    return clusters


def _found(url: str, file: tuple[str, str], wanted: pa.Array) -> dict[str, int]:
    return {name: home.cluster for name, home in homes_in(url, file, wanted).items()}


def _joined(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: cluster for part in parts for name, cluster in part.items()}


def _reasons(before: Release) -> Callable[[Text], str]:
    """Return what says why a document moved, as far as that is known."""
    packs = {name.rpartition("/")[2].partition("-")[0] for name in assignments_of(before.files)}

    def why(document: Text) -> str:
        if document.pack not in packs:
            return "its file is new or changed"
        if document.held:
            return "an answer names it"
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
