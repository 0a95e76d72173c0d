"""Runs of a job in this process, and what they left: for tests of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import dask
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmrf_dask.documents import segments
from hmrf_dask.documents.batches import read_batches
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.places import Report, assignment_files
from hmrf_dask.jobs.run_job import run_job

# Of a test about something else; tests/test_rejected.py has the warnings.
QUARANTINED = pytest.mark.filterwarnings("ignore:quarantined. :hmrf_dask.errors.HmrfWarning")


def run(job: Path, **changes: Any) -> Report:
    """Run a job, some of its keys changed, without its report, which is a quarter of the work."""
    with mock.patch("hmrf_dask.jobs.report.report_after_run"):
        return run_with_report(job, **changes)


def run_with_report(job: Path, **changes: Any) -> Report:
    """Run a job, some of its keys changed, as the command does, on two threads."""
    with dask.config.set(scheduler="threads", num_workers=2):
        return run_job(gather(load_job(str(job), changes), str(job)))


def assigned(report: Report) -> dict[str, Any]:
    """Return the assignment of every document of the last release, by id."""
    tables = [pq.read_table(file.path) for file in assignment_files(report.output)]
    rows = pa.concat_tables(tables).to_pylist()
    found = {row["doc_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def note_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the path of every file that is read."""
    seen: list[str] = []

    def read(source: Any, columns: Any, **limits: Any) -> Any:
        seen.append(source.path)
        return read_batches(source, columns, **limits)

    monkeypatch.setattr(segments, "read_batches", read)
    return seen


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no document be read."""

    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("a document was read")

    monkeypatch.setattr(segments, "read_batches", read)
