"""Files of documents that are damaged, change while they are read, or are in stores that fail."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hmrf_dask.documents import delimited, streams
from hmrf_dask.documents.batches import Batch, Reject, read_batches
from hmrf_dask.documents.files import list_files
from hmrf_dask.errors import (
    InvalidInputError,
    SourceError,
    SourceUnavailableError,
)
from tests.support.document_files import (
    FORMS,
    ROWS,
    Folder,
    as_jsonl,
    as_parquet,
    manifest_of,
)
from tests.support.long_cases import long


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- damaged files ---------------------------------------------------------------------------

MANY = [{"id": n, "text": hashlib.sha256(b"%d" % n).hexdigest() * 3} for n in range(20_000)]


@pytest.mark.parametrize(
    ("name", "hurt"),
    [
        *product(("d.jsonl.gz",), ("truncated", "end missing", "flipped", "appended")),
        *long(*product(("d.csv.gz",), ("truncated", "end missing", "flipped", "appended"))),
        # Checksums of the content are an option of zstd, and Arrow writes none.
        *product(("d.jsonl.zst",), ("truncated", "end missing", "appended")),
    ],
)
def test_a_damaged_stream_is_reported_after_what_could_be_read(
    folder: Folder, name: str, hurt: str
) -> None:
    data = FORMS[name](MANY)
    data = {
        "truncated": data[: len(data) // 2],
        "end missing": data[:-3],
        "flipped": data[:-6] + bytes([data[-6] ^ 1]) + data[-5:],
        "appended": data + b"something else",
    }[hurt]
    found = folder.read(name, data)
    ids = [id_ for batch in found for id_ in batch.ids]
    assert ids == [str(n) for n in range(len(ids))]
    (reject,) = [reject for batch in found for reject in batch.rejects]
    assert reject.whole_rest
    assert reject.reason.startswith("damaged: ")
    assert reject.line == len(ids) + (2 if "csv" in name else 1)
    assert "the rest of the file cannot be read" in str(reject.as_error())
    again = folder.read(name, data)
    assert [batch.ids for batch in again] == [batch.ids for batch in found]


@pytest.mark.parametrize("hurt", ["truncated", "flipped", "text", "empty"])
def test_a_damaged_parquet_file(folder: Folder, hurt: str) -> None:
    data = as_parquet(MANY, compression="none", use_dictionary=False, row_group_size=5000)
    place = data.rindex(b"PAR1") // 2
    data = {
        "truncated": data[:-50],
        "flipped": data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
        "text": b"id,text\na,b\n",
        "empty": b"",
    }[hurt]
    found = folder.read("a.parquet", data, limits={"batch_rows": 1000})
    rejects = [reject for batch in found for reject in batch.rejects]
    assert [reject.whole_rest for reject in rejects] == [True]
    assert rejects[0].reason.startswith("damaged: ")
    n_read = sum(len(batch.ids) for batch in found)
    assert (n_read > 0) == (hurt == "flipped")
    assert rejects[0].line == n_read + 1


def test_a_damaged_text_file(folder: Folder) -> None:
    batch = folder.one("a.txt.gz", gzip.compress(b"hello" * 1000)[:-5])
    assert batch.ids == []
    assert batch.rejects[0].whole_rest


# --- files that change, checksums, stores that fail ------------------------------------------


def go_through(batches: Iterator[Batch], after_each: Callable[[], Any]) -> None:
    for _ in batches:
        after_each()


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.txt", "a.jsonl.gz"])
@pytest.mark.parametrize("when", ["listed", "read"])
def test_a_file_that_changes_is_read_another_time(folder: Folder, name: str, when: str) -> None:
    form = FORMS.get(name.replace("a.", "d."), lambda rows: b"text")
    folder.put(name, form(ROWS))
    source, columns = folder.source(name), manifest_of(name).documents
    if when == "listed":
        folder.put(name, form(ROWS) + b" ")
    batches = read_batches(source, columns, batch_rows=1)
    with pytest.raises(SourceUnavailableError, match="run again when nobody writes it") as caught:
        go_through(batches, lambda: os.utime(folder.path / name))
    assert caught.value.exit_code == 75
    assert f"{name}: must not change" in str(caught.value)


def test_a_file_that_is_still_being_written_is_not_called_damaged(folder: Folder) -> None:
    data = gzip.compress(as_jsonl(MANY))
    folder.put("a.jsonl.gz", data[: len(data) // 2])
    source = folder.source("a.jsonl.gz")
    batches = read_batches(source, manifest_of("a.jsonl.gz").documents, batch_rows=100)
    with pytest.raises(SourceUnavailableError, match="must not change while it was read"):
        go_through(batches, lambda: folder.put("a.jsonl.gz", data[: len(data) // 2 + 1]))


def test_a_file_that_is_gone(folder: Folder) -> None:
    folder.put("a.jsonl", as_jsonl(ROWS))
    source = folder.source("a.jsonl")
    (folder.path / "a.jsonl").unlink()
    with pytest.raises(SourceError, match="there is no such file"):
        list(read_batches(source, manifest_of("a.jsonl").documents))


def test_an_object_that_is_replaced_while_it_is_read(
    s3_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 2**16)
    monkeypatch.setattr(delimited, "CHUNK_BYTES", 2**16)
    files = fsspec.filesystem("s3", **s3_options)
    url = f"s3://runs/{uuid.uuid4().hex}.jsonl"
    files.pipe_file(url, as_jsonl(MANY))
    manifest = manifest_of(url, storage_options=s3_options)
    (source,) = list_files(manifest, "/")
    batches = read_batches(source, manifest.documents, batch_rows=50)
    next(batches)
    files.pipe_file(url, as_jsonl(MANY[::-1]))
    with pytest.raises(SourceUnavailableError) as caught:
        list(batches)
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("name", ["d.jsonl.gz", "d.csv", "d.parquet"])
def test_content_that_has_not_the_hash_of_the_manifest(folder: Folder, name: str) -> None:
    wrong = f"sha256:{hashlib.sha256(b'other').hexdigest()}"
    message = f"{name}: must have the hash {wrong} .* fetch the file again or correct the manifest"
    with pytest.raises(InvalidInputError, match=message):
        folder.read(name, FORMS[name](ROWS), hash=wrong)


class Failing(io.BytesIO):
    """A file of a store that goes away in the middle."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 1000:
            raise ConnectionError("reset by peer")
        return super().read(min(size or 0, 1001) if size and size > 0 else 1001)


@pytest.mark.parametrize("name", FORMS)
def test_a_store_that_fails_in_the_middle_is_not_a_damaged_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data = FORMS[name](MANY)
    folder.put(name, data)
    monkeypatch.setattr("hmrf_dask.documents.batches.open_file", lambda url, options: Failing(data))
    with pytest.raises(SourceUnavailableError, match="reset by peer; run again later") as caught:
        list(read_batches(folder.source(name), manifest_of(name).documents))
    assert caught.value.exit_code == 75


def test_files_are_closed_when_a_reader_stops_early(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def note(url: str, options: Any) -> Any:
        opened.append(io.BytesIO(Path(url).read_bytes()))
        return opened[-1]

    monkeypatch.setattr("hmrf_dask.documents.batches.open_file", note)
    for name, form in FORMS.items():
        folder.put(name, form(ROWS))
        batches: Iterator[Batch] = read_batches(
            folder.source(name), manifest_of(name).documents, batch_rows=1
        )
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert opened[-1].closed


def test_rejects_cross_process_boundaries() -> None:
    reject = Reject("a.jsonl", 3, None, "not JSON", "{", whole_rest=True)
    assert pickle.loads(pickle.dumps(reject)) == reject
