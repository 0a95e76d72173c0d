"""Segments of one large file: the documents, lines and errors of reading it from the front."""

from __future__ import annotations

import io
import json
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.documents import files
from hmrf_dask.documents.batches import read_batches
from hmrf_dask.documents.files import DocumentFile, SegmentLines, lines_before, segments_of
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.streams import state_of
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs import packs
from hmrf_dask.jobs.places import assignment_files
from hmrf_dask.releases.release import latest
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import QUARANTINED, assigned, run

COLUMNS = Columns()


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SEGMENT_BYTES", 2000)


def source_of(path: Path, kind: str, **more: Any) -> DocumentFile:
    size, etag = state_of(str(path), {})
    return DocumentFile(path.name, str(path), size, etag, kind, **more)


def read(source: DocumentFile) -> tuple[list[tuple[str, int]], list[tuple[int, str]]]:
    """Return ids and rejects, each with its line in the whole file."""
    before = lines_before(source)
    documents, rejects = [], []
    for batch in read_batches(source, COLUMNS, batch_rows=7):
        lines = [line + before for line in batch.lines]
        documents += list(zip(batch.ids, lines, strict=True))
        rejects += [(one.line + before, one.reason) for one in batch.rejects]
    return documents, rejects


def joined(some: list[DocumentFile]) -> tuple[list[tuple[str, int]], list[tuple[int, str]]]:
    found = [read(one) for one in some]
    return [one for each, _ in found for one in each], [one for _, each in found for one in each]


@given(st.text("ab\n", max_size=30).map(str.encode), st.integers(1, 6), st.integers(1, 5))
def test_every_line_is_of_one_segment(data: bytes, n_segments: int, at_once: int) -> None:
    bounds = sorted({len(data) * number // n_segments for number in range(n_segments + 1)})
    starts = [0, *(place + 1 for place, byte in enumerate(data) if byte == ord("\n"))]
    for first, last in pairwise(bounds):
        file = SegmentLines(io.BytesIO(data), "x", (first, last))
        found = b"".join(iter(lambda file=file: file.read(at_once), b""))
        mine = [place for place in starts if first <= place < last]
        assert found == b"".join(data[one : data.find(b"\n", one) + 1 or None] for one in mine)
        assert file.n_lines == found.count(b"\n")


def test_lines_of_a_file_in_segments(tmp_path: Path) -> None:
    rows = [json.dumps({"id": str(n), "text": "moon " * (1 + n % 9)}) for n in range(300)]
    rows[40], rows[41], rows[299] = "", "{broken", "[1]"
    rows[150] = json.dumps({"id": "long", "text": "x" * 5000})  # nothing else begins there
    path = tmp_path / "large.jsonl"
    path.write_text("\ufeff" + "\n".join(rows))
    source = source_of(path, "jsonl")
    cut = segments_of(source)
    assert len(cut) > 5
    assert joined(cut) == read(source)
    assert read(source)[1][0][0] == 42


def test_row_groups_of_a_file_in_segments(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    rows = {"id": [str(n) for n in range(300)], "text": [f"moon {n} " * 40 for n in range(300)]}
    rows["text"][111] = None
    pq.write_table(pa.table(rows), path, row_group_size=17, compression="none")
    source = source_of(path, "parquet")
    cut = segments_of(source)
    assert len(cut) > 5
    assert joined(cut) == read(source)
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    source = source_of(path, "parquet")
    (reject,) = joined(segments_of(source))[1]  # listed once
    assert "damaged" in reject[1]


def test_what_cannot_be_cut_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 9000)
    assert len(segments_of(source_of(path, "jsonl"))) == 4
    for kind, compression in (("jsonl", "gz"), ("jsonl", "zst"), ("csv", "none"), ("text", "none")):
        source = source_of(path, kind, compression=compression)
        assert segments_of(source) == [source]


# ---- runs


def write_large(
    corpus: JobCorpus, documents: list[Any], name: str = "documents/large.jsonl"
) -> bytes:
    data = "".join(f"{json.dumps(one)}\n" for one in documents).encode()
    corpus.write({name: data, "answers.csv": corpus.answers(10)})
    return data


def test_a_large_file_in_segments_must_have_the_hash_of_its_manifest(corpus: JobCorpus) -> None:
    data = write_large(corpus, corpus.draw(90))
    resource = {"path": "documents/large.jsonl", "hash": f"sha256:{sha256(data).hexdigest()}"}
    job = corpus.write_job(resource=resource)
    cut = run(job, output="cut")
    assert len(assignment_files(cut.output)) == len(data) // 2000
    assert cut.files["all"] == 1
    assert run(job, output="cut").status == "up to date"
    job = corpus.write_job(resource={**resource, "hash": f"sha256:{'0' * 64}"})
    with pytest.raises(InvalidInputError, match=r"large\.jsonl: must have the hash"):
        run(job, output="other")


def test_segments_are_read_once(corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = corpus.draw(90)
    write_large(corpus, documents)
    job = corpus.write_job(start="cold")
    run(job)
    written: list[int] = []
    write = packs._Writer.write
    monkeypatch.setattr(
        packs._Writer, "write", lambda writer, parts: written.append(1) or write(writer, parts)
    )
    corpus.write({"documents/more.jsonl": b'{"id": "new", "text": "orbit moon"}\n'})
    report = run(job)
    assert report.documents.items() >= {"all": 91, "vectorised": 1, "quarantined": 0}.items()
    assert len(written) == 1
    predicted = run(job, mode="predict")
    assert assigned(predicted) == assigned(report)
    (corpus.folder / "documents/large.jsonl").unlink()
    corpus.write(
        {"documents/x.jsonl": "".join(f"{json.dumps(one)}\n" for one in documents).encode()}
    )
    assert run(job).files == {"all": 2, "new": 1, "changed": 0, "gone": 1}


@QUARANTINED
def test_bad_records_and_ids_are_reported_with_their_lines(corpus: JobCorpus) -> None:
    documents: list[Any] = corpus.draw(90)
    documents[70] = {"id": documents[70]["id"]}
    documents.insert(80, documents[3])
    write_large(corpus, documents)
    job = corpus.write_job()
    with pytest.raises(InvalidInputError, match=r"large\.jsonl, line 71: the text"):
        run(job)
    report = run(job, on_bad_record="quarantine")
    assert report.documents.items() >= {"all": 89, "vectorised": 90, "quarantined": 2}.items()
    rejected = [
        json.loads(line)
        for path in (Path(report.output) / report.places["rejects"]).iterdir()
        for line in path.read_text().splitlines()
    ]
    assert {(one["line"], one["id"]) for one in rejected} == {
        (71, documents[70]["id"]),
        (81, documents[3]["id"]),
    }
    assert any("an earlier document of this file" in one["reason"] for one in rejected)
    with pytest.raises(InvalidInputError, match=r"large\.jsonl, line 71: the text"):
        run(job, on_bad_record="stop")
    documents[70] = {"id": "other", "text": "moon orbit"}
    write_large(corpus, documents)
    with pytest.raises(InvalidInputError, match=r"'.*/0003' in .*large\.jsonl and .*, line 81;"):
        run(job)
    assert latest(report.output).number == 1  # type: ignore[union-attr]
