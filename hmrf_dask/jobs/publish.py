"""Releases in a database: what a job's readers see there is whole, and the last one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from hmrf_dask.answers.records import Entry
from hmrf_dask.databases.connection import open_database
from hmrf_dask.databases.publication import (
    CHANGES,
    JOURNAL,
    QUESTIONS,
    RELEASES,
    Contents,
    Publication,
    Rows,
)
from hmrf_dask.databases.relations import Mark
from hmrf_dask.documents.manifest import ASSIGNED
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceUnavailableError
from hmrf_dask.jobs.assignments import NAME as CLUSTERS_FILE
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.job_file import SqlTarget
from hmrf_dask.jobs.places import LINEAGE, last_release
from hmrf_dask.jobs.places import QUESTIONS as QUESTIONS_FILE
from hmrf_dask.jobs.questions import decode_questions
from hmrf_dask.jobs.released import ReleasedModel
from hmrf_dask.releases.lineage import Change, Flow, Lineage
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.ownership import Owner, read_owner
from hmrf_dask.releases.release import Release, read_file
from hmrf_dask.storage.sealed import digest
from hmrf_dask.storage.whole_files import decode_parquet

_REMOVING_SECONDS = 5.0
_TYPES = {
    "doc_id": pa.string(),
    "cluster": pa.int32(),
    "distortion": pa.float64(),
    "runner_up": pa.int32(),
    "margin": pa.float64(),
    "constrained": pa.bool_(),
    "violated": pa.int32(),
}
_RELEASES = pa.schema(
    [
        ("release", pa.int64()),
        ("run", pa.string()),
        ("published", pa.timestamp("us", "UTC")),
        ("documents", pa.int64()),
        ("clusters", pa.int64()),
        *((name, pa.int64()) for name in ("new", "changed", "gone", "moved")),
        ("assignments", pa.string()),
        ("shown", pa.bool_()),
    ]
)
_CHANGES = pa.schema(
    [
        ("release", pa.int64()),
        ("run", pa.string()),
        ("cluster", pa.int32()),
        ("kind", pa.string()),
        ("size_before", pa.int64()),
        ("size_after", pa.int64()),
        ("came_from", pa.string()),
        ("went_to", pa.string()),
    ]
)
_QUESTIONS = pa.schema(
    [
        ("release", pa.int64()),
        ("run", pa.string()),
        ("question", pa.string()),
        ("a", pa.string()),
        ("b", pa.string()),
        ("likely", pa.float64()),
        ("why", pa.string()),
    ]
)
_ENTRIES = pa.schema(
    [
        ("id", pa.string()),
        *((name, pa.string()) for name in ("kind", "documents", "shown", "answer", "annotator")),
        *((name, pa.string()) for name in ("time", "about", "why", "clusters")),
        ("trust", pa.float64()),
    ]
)


def check_publishing(
    target: SqlTarget, output: str, owner: Owner, *, take_over: bool = False
) -> None:
    """Refuse names in a database that are taken, before hours of work; nothing is written."""
    with _publication(target, _of_output(output, owner)) as publication:
        publication.shown(take_over=take_over)


def is_published(inputs: Inputs, target: SqlTarget) -> bool:
    """Return whether readers of the database see the last release as it is called now."""
    mark = _mark_of(inputs, _released(inputs))
    with _publication(target, mark) as publication:
        return publication.shown(take_over=inputs.take_over) == mark


def publish_release(inputs: Inputs, target: SqlTarget, confirm: Callable[[], None]) -> None:
    """Let readers of the database see the last release.

    `confirm` is called before the commit: what it raises leaves all as it was.
    """
    released = _released(inputs)
    number = released.release.number
    with (
        _said_what_is_there(number),
        _publication(target, _mark_of(inputs, released)) as publication,
    ):
        contents = _contents(inputs, released, publication.table, journal=target.journal)
        publication.publish(
            contents, patience=target.wait, confirm=confirm, take_over=inputs.take_over
        )
        with suppress(SourceUnavailableError):  # what somebody reads now goes another time
            publication.remove_old(inputs.job.keep, _REMOVING_SECONDS)


@contextmanager
def _publication(target: SqlTarget, mark: Mark) -> Iterator[Publication]:
    with open_database(target.url_env, writes=True) as database:
        yield Publication(database, target.table, mark, target.id_type)


@contextmanager
def _said_what_is_there(number: int) -> Iterator[None]:
    """Let an error say that the work of the run is not lost."""
    try:
        yield
    except (ConfigurationError, InvalidInputError, SourceUnavailableError) as error:
        raise type(error)(
            f"release {number} is there and not published yet: {error}; it is published then"
        ) from None


class _Released(NamedTuple):
    """The last release of an output, and what its clusters are called now."""

    release: Release
    model: ReleasedModel

    def read(self, name: str) -> bytes | None:
        """Return a file of the release, None where it has none."""
        paths = [one for one in self.release.files if one.rpartition("/")[2] == name]
        storage = open_output(self.model.output)
        return read_file(storage, paths[0], self.release.files[paths[0]]) if paths else None


def _released(inputs: Inputs) -> _Released:
    release = last_release(inputs.output)
    assert release is not None
    return _Released(release, ReleasedModel(inputs.output, release))


def _of_output(output: str, owner: Owner) -> Mark:
    """Return whose the relations of an output are; they are of no other one of the same job."""
    recorded = read_owner(open_output(output, None))
    return Mark(owner.job, owner.manifest, "" if recorded is None else recorded.since)


def _mark_of(inputs: Inputs, released: _Released) -> Mark:
    """Return what is written on the views that show a release."""
    own = _of_output(inputs.output, inputs.owner)
    names = digest(json.dumps(sorted(released.model.names.items())).encode())[:16]
    release = released.release
    return replace(own, release=release.number, run=release.run, names=names)


def _contents(inputs: Inputs, released: _Released, table: str, *, journal: bool) -> Contents:
    release, model = released.release, released.model
    run = {"release": release.number, "run": release.run}
    documents, clusters = model.report.documents, _clusters(released)
    lineage = Lineage.from_json(released.read(LINEAGE) or b"")
    described = run | {
        "published": datetime.now(UTC),
        "documents": documents["all"],
        "clusters": len(clusters),
        **{name: documents[name] for name in ("new", "changed", "gone", "moved")},
        "assignments": table,
        "shown": True,
    }
    changes = [run | _change(one) for one in lineage.changes]
    appended = {
        RELEASES: Rows(pa.Table.from_pylist([described], _RELEASES)),
        CHANGES: Rows(pa.Table.from_pylist(changes, _CHANGES)),
    }
    if asked := [run | row for row in _questions(released)]:
        appended[QUESTIONS] = Rows(pa.Table.from_pylist(asked, _QUESTIONS))
    if journal:
        entries = [_entry(one) for one in inputs.journal.read.entries]
        appended[JOURNAL] = Rows(pa.Table.from_pylist(entries, _ENTRIES), ("id",))
    return Contents(_schema(model), model.assignment_tables, clusters, appended)


def _schema(model: ReleasedModel) -> pa.Schema:
    """Return the columns of assignments: those of each release, and the kept ones."""
    names = next(model.assignment_tables()).column_names
    kept = [(name, pa.string()) for name in names if name not in ASSIGNED]
    return pa.schema([*_TYPES.items(), *kept])


def _clusters(released: _Released) -> pa.Table:
    """Return clusters without lists, which not every database has."""
    rows, names = decode_parquet(released.read(CLUSTERS_FILE) or b""), released.model.names
    words = [", ".join(one or ()) for one in rows["top_words"].to_pylist()]
    near = [_as_json(one or ()) for one in rows["representatives"].to_pylist()]
    return pa.table(
        {
            "cluster": rows["cluster"],
            "name": pa.array([names[one] for one in rows["cluster"].to_pylist()], pa.string()),
            "size": rows["size"],
            "top_words": pa.array(words, pa.string()),
            "representatives": pa.array(near, pa.string()),
            "cohesion": rows["cohesion"],
        }
    )


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _questions(released: _Released) -> Iterator[dict[str, Any]]:
    """Yield the pairs that a release asks about: a document, and each group that it may be of."""
    data = released.read(QUESTIONS_FILE)
    for question in [] if data is None else decode_questions(data):
        shown = question.documents[1:] or question.shown
        for place, other in enumerate(shown):
            likely = question.likely[place] if place < len(question.likely) else None
            yield {
                "question": question.id,
                "a": question.documents[0],
                "b": other,
                "likely": likely,
                "why": question.why,
            }


def _change(change: Change) -> dict[str, Any]:
    return {
        "cluster": change.cluster,
        "kind": change.kind,
        "size_before": change.size_before,
        "size_after": change.size_after,
        "came_from": _flows(change.came_from),
        "went_to": _flows(change.went_to),
    }


def _flows(flows: tuple[Flow, ...]) -> str:
    return _as_json([asdict(one) for one in flows])


def _entry(entry: Entry) -> dict[str, Any]:
    lists = {name: _as_json(getattr(entry, name)) for name in ("documents", "shown", "clusters")}
    return {name: getattr(entry, name) for name in _ENTRIES.names} | lists
