"""What every source must do, over the kinds of `tests/support/source_kinds.py`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.documents.batches import Batch
from hmrf_dask.documents.segments import KnownListing
from hmrf_dask.documents.sources import GONE, Listing, Segment, Source
from hmrf_dask.errors import InvalidInputError
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import QUARANTINED, assigned, run
from tests.support.long_cases import long
from tests.support.source_kinds import CASES, KINDS, Shelf, job_of, watched_reads

TEXTS = {f"d/{number:02}": f"text number {number}" for number in range(12)}
NAMES = ["id", "text"]


@pytest.fixture(params=CASES)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    return KINDS[request.param](tmp_path, request)


def rows(batches: Iterator[Any]) -> list[tuple[str, str | None, bool]]:
    """Return id, text and whether it is gone of every row."""
    found: list[tuple[str, str | None, bool]] = []
    for batch in batches:
        if isinstance(batch, Batch):
            found += [(*both, False) for both in zip(batch.ids, batch.texts, strict=True)]
        else:
            some = batch.to_pydict()
            nothing = [None] * batch.num_rows
            found += zip(
                map(str, some["id"]),
                some.get("text", nothing),
                some.get(GONE, nothing),
                strict=True,
            )
    return [(name, text, bool(gone)) for name, text, gone in found]


def read(source: Source, some: tuple[Segment, ...], snapshot: str = "") -> dict[str, str | None]:
    """Return the texts of documents that segments have, each of which must be there once."""
    found = [row for one in some for row in rows(source.read(one, snapshot, NAMES))]
    there = {name: text for name, text, gone in found if not gone}
    assert len(there) == sum(not gone for *_, gone in found)
    return there


def known(listing: Listing) -> Listing:
    """Return a listing as the ledger of a release gives it back."""
    return KnownListing.of({"listings": {"all": KnownListing("", listing).as_json}})["all"].listing


def test_the_same_content_is_listed_the_same(shelf: Shelf) -> None:
    shelf.put(TEXTS)
    source = shelf.source()
    with source.snapshot() as snapshot:
        first = source.segments(snapshot, None)
    with shelf.source().snapshot() as snapshot:
        assert shelf.source().segments(snapshot, None) == first
        assert shelf.source().segments(snapshot, first) == first
    assert len({one.name for one in first.segments}) == len(first.segments)
    assert all(one.size >= 0 and one.stamp and not one.is_delta for one in first.segments)
    assert shelf.source().identity == source.identity


def test_every_document_is_read_once_in_an_order_that_stays(shelf: Shelf) -> None:
    shelf.put(TEXTS)
    source = pickle.loads(pickle.dumps(shelf.source()))
    with source.snapshot() as snapshot:
        listing = pickle.loads(pickle.dumps(source.segments(snapshot, None)))
        assert read(source, listing.segments, snapshot) == TEXTS
        for one in listing.segments:
            whole = rows(source.read(one, snapshot, NAMES))
            assert rows(source.read(one, snapshot, NAMES)) == whole
            assert rows(source.read(one, snapshot, NAMES, rows=2)) == whole
            ids = [name for name, *_ in rows(source.read(one, snapshot, ["id"]))]
            assert ids == [name for name, *_ in whole]
    assert read(source, listing.segments) == TEXTS  # for people, when the snapshot is gone


def test_documents_that_are_asked_for_are_there(shelf: Shelf) -> None:
    shelf.put(TEXTS)
    source = shelf.source()
    with source.snapshot() as snapshot:
        segments = source.segments(snapshot, None).segments
    wanted = ["d/03", "d/11"]
    found = [row for one in segments for row in rows(source.read(one, "", NAMES, ids=wanted))]
    assert {(name, TEXTS[name], False) for name in wanted} <= set(found)


def test_a_stamp_changes_with_the_content(shelf: Shelf) -> None:
    shelf.put(TEXTS)
    source = shelf.source()
    with source.snapshot() as snapshot:
        before = source.segments(snapshot, None)
    shelf.put({"d/07": "another text of another length"})
    shelf.remove(["d/09"])
    with source.snapshot() as snapshot:
        after = source.segments(snapshot, before)
        there = read(source, after.segments, snapshot)
    left = {name: text for name, text in TEXTS.items() if name != "d/09"}
    assert there == {**left, "d/07": "another text of another length"}
    stamps = {(one.name, one.stamp) for one in before.segments}
    assert {(one.name, one.stamp) for one in after.segments} != stamps


def test_what_changed_since_a_listing_comes_as_deltas(shelf: Shelf) -> None:
    shelf.put(TEXTS)
    source = shelf.source()
    with source.snapshot() as snapshot:
        before = source.segments(snapshot, None)
        since = source.changes(snapshot, known(before) if before.stamp else before)
    if not shelf.says_changes:
        assert since is None
        return
    assert since is not None
    assert since.segments == before.segments
    shelf.put({"d/07": "another text", "d/99": "a new one"})
    shelf.remove(["d/09"])
    with source.snapshot() as snapshot:
        after = source.changes(snapshot, known(since))
        assert after is not None
        assert after.segments[: len(before.segments)] == known(before).segments
        deltas = after.segments[len(before.segments) :]
        assert all(one.is_delta for one in deltas)
        found = [row for one in deltas for row in rows(source.read(one, snapshot, NAMES))]
        again = source.changes(snapshot, known(after))
    assert again is not None
    assert [asdict(one) for one in again.segments] == [asdict(one) for one in after.segments]
    there = {(name, text) for name, text, gone in found if not gone}
    assert {("d/07", "another text"), ("d/99", "a new one")} <= there
    assert len(there) <= 3  # the last change of before may come once more
    gone = {name for name, _, is_gone in found if is_gone}
    assert gone == (set() if after.compares_keys else {"d/09"})


# ---- jobs


NIGHTS = [*(one for one in CASES if one != "s3"), *long("s3")]


@pytest.mark.parametrize("kind", NIGHTS)
def test_nights_are_those_of_a_cold_run(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelf").mkdir()
    shelf, corpus = KINDS[kind](tmp_path / "shelf", request), JobCorpus(tmp_path)
    shelf.put({one["id"]: one["text"] for one in corpus.draw(60)})
    again: dict[str, Any] = {"start": "cold", "text": {"refit": "always"}}
    job = job_of(shelf, corpus, **again)
    report = run(job)
    assert report.documents["all"] == 60
    seen = watched_reads(shelf.source(), monkeypatch)
    assert run(job).status == "up to date"
    assert not seen
    names = sorted(one["id"] for one in corpus.documents)
    shelf.put({one["id"]: one["text"] for one in corpus.draw(2)})
    shelf.put(dict.fromkeys(names[:3], "rocket orbit moon people"))
    shelf.remove(names[5:6])
    report = run(job)
    told = {name: report.documents[name] for name in ("all", "new", "gone")}
    assert told == {"all": 61, "new": 2, "gone": 1}
    if shelf.says_changes:
        assert 3 <= report.documents["changed"] <= 4  # the last change of before comes once more
        assert len(seen) == report.files["new"] == 1
    incremental = assigned(report)
    assert assigned(run(job, output=str(tmp_path / "cold"))) == incremental


@QUARANTINED
def test_what_is_no_document_is_quarantined_under_its_id(shelf: Shelf, tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    shelf.put({one["id"]: one["text"] for one in corpus.draw(30)} | {"blank": " "})
    with pytest.raises(InvalidInputError, match=r"all:.*id 'blank': |blank.jsonl, line 1: "):
        run(job_of(shelf, corpus))
    report = run(job_of(shelf, corpus, on_bad_record="quarantine", max_rejected=0.5))
    assert (report.documents["all"], report.documents["quarantined"]) == (30, 1)
    listed = (Path(report.output) / report.places["rejects"]).glob("*.jsonl")
    assert '"id": "blank"' in "".join(one.read_text() for one in listed)
