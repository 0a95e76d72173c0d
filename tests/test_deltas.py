"""Deltas of a source: superseded documents, deletions, compaction, and what a night reads."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import pytest

from hmrf_dask.documents import segments
from hmrf_dask.documents.sources import GONE, Listing, register
from hmrf_dask.errors import SourceUnavailableError
from hmrf_dask.jobs.inputs import Inputs, gather, load_job
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.releases.release import latest
from hmrf_dask.text.embedders import ALLOWED
from tests.support import embedders
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run
from tests.support.source_kinds import NoteShelf, job_of, notes_of_the_docs, watched_reads

COLD: dict[str, Any] = {"start": "cold", "text": {"refit": "always"}}
Notes = notes_of_the_docs().Notes


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


@pytest.fixture
def shelf(tmp_path: Path, request: pytest.FixtureRequest, corpus: JobCorpus) -> NoteShelf:
    shelf = NoteShelf(tmp_path, request)
    shelf.put({one["id"]: one["text"] for one in corpus.draw(60)})
    return shelf


def night(shelf: NoteShelf, corpus: JobCorpus, first: int = 0) -> None:
    """Let two documents be new, two change, and one go."""
    names = sorted(one["id"] for one in corpus.documents[:60])
    shelf.put({one["id"]: one["text"] for one in corpus.draw(2)})
    shelf.put(dict.fromkeys(names[first : first + 2], "rocket orbit moon people"))
    shelf.remove(names[first + 3 : first + 4])


def cold(job: Path) -> dict[str, Any]:
    """Return the assignments of a run that continues none."""
    return assigned(run(job, output=str(job.parent / "cold")))


class WithoutTraces(Notes):  # type: ignore[misc, valid-type]
    """Notes of which nobody knows what was removed: their ids are compared."""

    def segments(self, snapshot: str, before: Listing | None) -> Listing:
        return replace(super().segments(snapshot, before), compares_keys=True)

    def changes(self, snapshot: str, since: Listing) -> Listing | None:
        return replace(super().changes(snapshot, since), compares_keys=True)

    def read(self, *asked: Any, **more: Any) -> Iterator[Any]:
        for batch in super().read(*asked, **more):
            here = batch.filter([not gone for gone in batch.column(GONE).to_pylist()])
            yield here.drop_columns([GONE])


def test_ids_that_are_there_no_more_are_gone(shelf: NoteShelf, corpus: JobCorpus) -> None:
    register("notes", lambda *_: WithoutTraces())
    job = job_of(shelf, corpus, **COLD)
    run(job)
    for number in range(2):
        night(shelf, corpus, 10 * number)
        report = run(job)
        told = [report.documents[name] for name in ("all", "new", "changed", "gone")]
        assert told == [60 + number + 1, 2, 2, 1]
    shelf.remove([corpus.documents[61]["id"]])  # of a delta
    report = run(job)
    assert report.documents["gone"] == 1
    assert assigned(report) == cold(job)


def test_many_deltas_are_read_into_segments(
    shelf: NoteShelf, corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MOST_DELTAS", 1)
    job = job_of(shelf, corpus, **COLD)
    run(job)
    seen = watched_reads(shelf.source(), monkeypatch)
    night(shelf, corpus)
    run(job)
    assert len(seen) == 1
    shelf.put({"n/1": "engine brake people wheel"})
    report = run(job)
    release = latest(report.output)
    assert release is not None
    known = release.ledger["listings"]["all"]["segments"]
    assert [one["is_delta"] for one in known] == [False] * 3
    assert assigned(report) == cold(job)


def test_a_prediction_goes_by_deltas(shelf: NoteShelf, corpus: JobCorpus) -> None:
    job = job_of(shelf, corpus)
    before = assigned(run(job))
    night(shelf, corpus)
    report = run(job, mode="predict")
    told = [report.documents[name] for name in ("all", "new", "changed", "gone")]
    assert told == [61, 2, 2, 1]
    after = assigned(report)
    changed = {name for name in after.keys() & before.keys() if after[name] != before[name]}
    assert changed <= set(sorted(before)[:2])
    assert run(job, mode="predict").status == "up to date"


def test_vectors_of_other_documents_are_used_again(
    shelf: NoteShelf, corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = f"{embedders.__name__}:Topics"
    monkeypatch.setenv(ALLOWED, model)
    words = {"kind": "words", "lsa": 4, "refit": "always"}
    kinds = [words, {"kind": "embeddings", "model": model}]
    job = job_of(shelf, corpus, text=kinds, start="cold")
    run(job)
    embedders.EMBEDDED.clear()
    night(shelf, corpus)
    report = run(job)
    assert len(set(embedders.EMBEDDED)) == 3  # two that are new, and the text of both that changed
    assert report.documents["changed"] == 2
    assert assigned(report) == cold(job)


def gathered(job: Path) -> Inputs:
    return gather(load_job(str(job)), str(job))


def test_what_went_elsewhere_is_listed_again(shelf: NoteShelf, corpus: JobCorpus) -> None:
    inputs = pickle.loads(pickle.dumps(gathered(job_of(shelf, corpus))))
    assert not inputs.documents.is_held
    shelf.put({"n/1": "engine brake people wheel"})
    with dask.config.set(scheduler="threads", num_workers=2):
        assert run_job(inputs).documents["all"] == 61


def test_a_run_that_ended_early_reads_the_rest(
    shelf: NoteShelf, corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(shelf, corpus)
    whole = Notes.read

    def read(self: Any, segment: Any, *asked: Any, **more: Any) -> Iterator[Any]:
        if segment.name == "2":
            raise SourceUnavailableError("all:2: the program that has the notes is away")
        yield from whole(self, segment, *asked, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Notes, "read", read)
        with dask.config.set(scheduler="sync"), pytest.raises(SourceUnavailableError, match="away"):
            run_job(gathered(job))
    seen = watched_reads(shelf.source(), monkeypatch)
    report = run(job)
    assert report.documents["all"] == 60
    assert "2" in seen
    assert len(seen) < 3 + len([one for one in seen if one == "2"])
    assert assigned(report) == cold(job)
