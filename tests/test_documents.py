"""Batches of documents: every format from every store, and records that are bad."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.documents import builtin, delimited
from hmrf_dask.documents.batches import SeenIds, read_batches
from hmrf_dask.documents.files import list_files
from hmrf_dask.errors import (
    ConfigurationError,
    SourceUnavailableError,
)
from tests.support.document_files import (
    COLUMNS,
    FORMS,
    ROWS,
    Folder,
    as_csv,
    as_jsonl,
    as_parquet,
    manifest_of,
    rejects_of,
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- what is read ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["local", "memory", "s3"])
@pytest.mark.parametrize("name", FORMS)
def test_every_format_gives_the_same_documents_from_every_store(
    name: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options = request.getfixturevalue("s3_options") if place == "s3" else {}
    root = {"local": str(tmp_path), "memory": "memory://x", "s3": "s3://runs"}[place]
    url = f"{root}/{uuid.uuid4().hex}-{name}"
    data = FORMS[name](ROWS)
    files, path = fsspec.url_to_fs(url, **options)
    files.pipe_file(path, data)
    digest = hashlib.sha256(data).hexdigest()
    manifest = manifest_of(
        url, COLUMNS, hash=f"sha256:{digest}", bytes=len(data), storage_options=options
    )
    (source,) = list_files(manifest, "/nowhere")
    (batch,) = read_batches(pickle.loads(pickle.dumps(source)), manifest.documents)
    assert batch.ids == [row["id"] for row in ROWS]
    assert batch.texts == [row["text"] for row in ROWS]
    assert batch.rejects == []
    assert batch.lines == ([2, 3, 5, 6] if "csv" in name else [1, 2, 3, 4])
    assert batch.extra["label"] == ["pets", "x", None, "space"]
    assert batch.extra["time"][:3] == ["2026-01-01", None, "2026-01-03"]
    assert batch.embeddings is None


def test_texts_are_documents_called_by_their_path(folder: Folder) -> None:
    folder.put("t/../t/b/1.txt", "Größe".encode("latin-1"))
    folder.put("t/a.txt.gz", gzip.compress(b"zipped"))
    manifest = manifest_of("t", format="text", encoding="latin-1")
    sources = list_files(manifest, str(folder.path))
    found = [batch for source in sources for batch in read_batches(source, manifest.documents)]
    assert [batch.ids for batch in found] == [["a.txt.gz"], ["b/1.txt"]]
    assert [batch.texts for batch in found] == [["zipped"], ["Größe"]]


def test_batches_depend_on_the_file_and_the_limits_alone(folder: Folder) -> None:
    rows = [{"id": n, "text": "x" * (n % 7 + 1)} for n in range(1000)]
    for name in ("a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet"):
        data = FORMS[name.replace("a.", "d.")](rows)
        by_rows = folder.read(name, data, limits={"batch_rows": 300})
        assert [len(batch.ids) for batch in by_rows] == [300, 300, 300, 100]
        by_bytes = folder.read(name, data, limits={"batch_bytes": 1000})
        assert [sum(map(len, batch.texts)) // 100 for batch in by_bytes] == [10, 10, 10, 9]
        for found in (by_rows, by_bytes):
            assert [id_ for batch in found for id_ in batch.ids] == [str(n) for n in range(1000)]


def test_memory_does_not_grow_with_the_file(folder: Folder) -> None:
    manifest = manifest_of("a.jsonl.gz")
    peaks = []
    for n_rows in (2_000, 20_000):
        lines = (f'{{"id": "{n}", "text": "{"word " * 200}"}}\n'.encode() for n in range(n_rows))
        with gzip.open(folder.path / "a.jsonl.gz", "wb", 1) as file:
            file.writelines(lines)
        (source,) = list_files(manifest, str(folder.path))
        tracemalloc.start()
        batches = read_batches(source, manifest.documents, batch_rows=500)
        assert sum(len(batch.ids) for batch in batches) == n_rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2_000_000  # twenty megabytes of text more, 16 bytes an id


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=20),
    chunk=st.integers(1, 60),
)
def test_lines_are_the_same_however_bytes_arrive(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], chunk: int
) -> None:
    folder = Folder(tmp_path_factory.mktemp("chunks"))
    data = as_jsonl([{"id": n, "text": text} for n, text in enumerate(texts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "CHUNK_BYTES", chunk)
        found = folder.read("a.jsonl", data, {"empty_text": "keep"})
    assert [text for batch in found for text in batch.texts] == texts
    assert [line for batch in found for line in batch.lines] == list(range(1, len(texts) + 1))


def test_integers_are_ids_and_marks_and_empty_lines_are_nothing(folder: Folder) -> None:
    data = b'\xef\xbb\xbf{"id": 7, "text": "a"}\r\n\r\n  \n{"text": "b", "id": 8}'
    batch = folder.one("a.jsonl", data)
    assert (batch.ids, batch.lines, batch.rejects) == (["7", "8"], [1, 4], [])
    assert folder.read("b.jsonl", b"\n\n") == []
    assert folder.read("c.jsonl", b"") == []
    assert folder.read("d.jsonl.gz", gzip.compress(b"")) == []


def test_columns_are_called_as_the_manifest_says(folder: Folder) -> None:
    rows = [{"key": "a", "body": "x", "id": 1, "text": 2}]
    for name in ("d.jsonl", "d.csv", "d.parquet"):
        batch = folder.one(name, FORMS[name](rows), {"id": "key", "text": "body"})
        assert (batch.ids, batch.texts, batch.extra) == (["a"], ["x"], {})


def test_embeddings_are_rows_of_float32(folder: Folder) -> None:
    columns = {"text": None, "embedding": "row"}
    rows = [{"id": "a", "row": [0.5, 1.0]}, {"id": "b", "row": [0.25, -2.0]}]
    cells = [{"id": "a", "row": "[0.5, 1.0]"}, {"id": "b", "row": "0.25 -2"}]
    for name, data in (
        ("a.jsonl", as_jsonl(rows)),
        ("a.parquet", as_parquet(rows)),
        ("a.csv", as_csv(cells)),
    ):
        batch = folder.one(name, data, columns)
        assert batch.embeddings is not None
        assert batch.embeddings.dtype == np.float32
        np.testing.assert_array_equal(batch.embeddings, [[0.5, 1.0], [0.25, -2.0]])
        assert batch.texts == ["", ""]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 2), None]
)
def test_columns_of_any_kind_of_list_or_of_bytes_are_embeddings(folder: Folder, kind: Any) -> None:
    rows = np.array([[0.5, 1.0], [0.25, -2.0]], np.float32)
    column = pa.array(rows.tolist(), kind) if kind else _bytes_of(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["a", "b"], "row": column}), sink)
    data = sink.getvalue().to_pybytes()
    batch = folder.one("a.parquet", data, {"text": None, "embedding": "row"})
    np.testing.assert_array_equal(batch.embeddings, rows)


def _bytes_of(rows: Any) -> pa.Array:
    return pa.array([row.astype("<f4").tobytes() for row in rows], pa.binary(4 * rows.shape[1]))


def test_embeddings_that_are_none(folder: Folder) -> None:
    bad = [[1], None, "no", [1, "x"], [1, 1e60], [], [True, False], [3, 4]]
    rows = [{"id": n, "row": row} for n, row in enumerate([[1, 2], *bad])]
    batch = folder.one("a.jsonl", as_jsonl(rows), {"text": None, "embedding": "row"})
    assert batch.ids == ["0", "8"]
    assert [reason.removeprefix("the embedding ") for _, _, reason in rejects_of(batch)] == [
        "must have 2 numbers, as the first of this file has, got 1",
        "is missing",
        "must be a list of numbers, got a text",
        "must be a list of numbers, got a list with other things",
        "must be finite numbers in the range of float32",
        "must have 2 numbers, as the first of this file has, got 0",
        "must be a list of numbers, got a list with other things",
    ]


def test_builtin_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [builtin.Document("g/1", "text", "g"), builtin.Document("g/2", " ", "g")]
    monkeypatch.setitem(
        builtin._CORPORA, "builtin://newsgroups20", (lambda: iter(records), lambda: "1")
    )
    manifest = manifest_of("builtin://newsgroups20", {"label": "label"})
    (source,) = list_files(manifest, "/nowhere")
    (batch,) = read_batches(source, manifest.documents)
    assert (batch.ids, batch.extra) == (["g/1"], {"label": ["g"]})
    assert rejects_of(batch)[0][:2] == (2, "g/2")


def test_the_docstrings_are_a_builtin_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "SUBPACKAGES", {"numpy.ma": ("numpy.ma",)})
    manifest = manifest_of("builtin://docstrings", {"label": "label"})
    (source,) = list_files(manifest, "/nowhere")
    (batch,) = read_batches(source, manifest.documents)
    assert "numpy.ma.masked_where" in batch.ids
    assert set(batch.extra["label"]) == {"numpy.ma"}
    assert batch.rejects == []


def test_newsgroups_without_a_network_may_be_had_later(monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib.error import URLError

    def fail(**options: Any) -> Any:
        raise URLError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fail)
    manifest = manifest_of("builtin://newsgroups20")
    (source,) = list_files(manifest, "/nowhere")
    with pytest.raises(SourceUnavailableError, match="run again with a network"):
        list(read_batches(source, manifest.documents))


# --- bad records -----------------------------------------------------------------------------

GOOD = b'{"id": "good", "text": "x"}'
BAD_LINES: dict[bytes, tuple[str | None, str]] = {
    b"not json": (None, "not JSON: invalid character (byte 4)"),
    b'{"id": "a", "text": "b"': (None, "not JSON: input data was truncated"),
    b'{"id": "a", "text": "b"} {"id": "c"}': (None, "not JSON: trailing characters"),
    b'["a", "b"]': (None, "not a JSON object: expected `object`, got `array`"),
    b'{"text": "b"}': (None, "the id ('id') is missing"),
    b'{"id": "", "text": "b"}': (None, "the id ('id') is missing"),
    b'{"id": null, "text": "b"}': (None, "the id ('id') is missing"),
    b'{"id": 1.5, "text": "b"}': (None, "must be a text or an integer, got a fraction"),
    b'{"id": true, "text": "b"}': (None, "must be a text or an integer, got true or false"),
    b'{"id": {"a": 1}, "text": "b"}': (None, "must be a text or an integer, got an object"),
    b'{"id": "a\\u0000", "text": "b"}': ("a\0", "must not end in a NUL"),
    b'{"id": "a"}': ("a", "the text ('text') is missing"),
    b'{"id": 5, "text": 7}': ("5", "the text ('text') must be a text, got a number"),
    b'{"id": "a", "text": ""}': ("a", "the text is empty"),
    b'{"id": "a", "text": " \\n\\t"}': ("a", "the text is empty"),
    b'{"id": "a", "text": "\xff"}': (None, "bytes that are not UTF-8"),
    b'{"id": "\\ud800", "text": "b"}': (None, "not JSON: unexpected end of escaped utf-16"),
    b'{"id": ' + b"[" * 5000: (None, "not JSON that can be read: nested too deeply"),
    b'{"id": "a", "text": "b", "label": {}}': ("a", "the label must be a text or a number"),
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:30].decode(errors="replace"))
def test_a_bad_line_is_reported_and_the_others_are_read(folder: Folder, line: bytes) -> None:
    id_, reason = BAD_LINES[line]
    data = GOOD + b"\n" + line + b'\n{"id": "last", "text": "y"}\n'
    batch = folder.one("a.jsonl", data, {"label": "label"})
    assert (batch.ids, batch.lines) == (["good", "last"], [1, 3])
    (reject,) = batch.rejects
    assert (reject.source, reject.line, reject.id) == ("a.jsonl", 2, id_)
    assert reason in reject.reason
    assert reject.raw[:7] == line[:7].decode(errors="replace")
    assert len(reject.raw) <= 200
    reject.raw.encode()
    error = reject.as_error()
    assert str(error).startswith(f"a.jsonl, line 2: {reject.reason}")
    assert ("manifest's documents:" in str(error)) == reason.endswith(" is missing")
    assert error.exit_code == 65


def test_empty_texts_can_be_kept(folder: Folder) -> None:
    data = as_jsonl([{"id": "a", "text": ""}, {"id": "b", "text": " "}, {"id": "c"}])
    batch = folder.one("a.jsonl", data, {"empty_text": "keep"})
    assert (batch.ids, batch.texts) == (["a", "b"], ["", " "])
    assert rejects_of(batch) == [(3, "c", "the text ('text') is missing")]


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_a_huge_line_is_skipped_in_bounded_memory(folder: Folder, compression: str) -> None:
    huge = b'{"id": "huge", "text": "' + b"x" * 30_000_000 + b'"}'
    short = b'{"id": "long", "text": "' + b"x" * 1100 + b'"}'
    data = b"\n".join([GOOD, huge, short, b'{"id": "last", "text": "y"}', huge])
    folder.put(f"a.jsonl{compression}", gzip.compress(data, 1) if compression else data)
    manifest = manifest_of(f"a.jsonl{compression}", {"max_bytes": 1024})
    (source,) = list_files(manifest, str(folder.path))
    del data, huge
    tracemalloc.start()
    (batch,) = read_batches(source, manifest.documents)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (batch.ids, batch.lines) == (["good", "last"], [1, 4])
    assert [line for line, _, _ in rejects_of(batch)] == [2, 3, 5]
    assert all(
        "longer than 1024 bytes; raise documents.max_bytes" in r.reason for r in batch.rejects
    )
    assert peak < 8_000_000


def test_huge_cells_and_files(folder: Folder) -> None:
    rows = [{"id": "a", "text": "x" * 2000}, {"id": "b", "text": "y"}]
    few = {"max_bytes": 1024}
    batch = folder.one("a.parquet", as_parquet(rows), few)
    assert (batch.ids, rejects_of(batch)[0][:2]) == (["b"], (1, "a"))
    batch = folder.one("a.txt", b"x" * 2000, few)
    assert "longer than 1024 bytes" in batch.rejects[0].reason
    batch = folder.one("a.csv", as_csv(rows), few)
    assert batch.rejects[0].whole_rest  # a table has no place to go on from
    batch = folder.one("b.csv", as_csv([{"id": "a", "text": "x" * 200_000}]))
    assert batch.ids == ["a"]  # Python's own limit of cells is lower
    four = [{"id": "a", "text": "日" * 340}, {"id": "b", "text": "日" * 342}]
    batch = folder.one("c.parquet", as_parquet(four), few)
    assert (batch.ids, rejects_of(batch)[0][:2]) == (["a"], (2, "b"))


def test_ids_that_come_twice_in_a_file(folder: Folder) -> None:
    rows = [{"id": n % 700, "text": f"t{n}", "label": n} for n in range(1000)]
    for name in ("d.jsonl", "d.csv", "d.parquet"):
        for limits in ({}, {"batch_rows": 90}):
            found = folder.read(name, FORMS[name](rows), {"label": "label"}, limits)
            assert [id_ for b in found for id_ in b.ids] == [str(n) for n in range(700)]
            assert [t for b in found for t in b.texts] == [f"t{n}" for n in range(700)]
            assert [x for b in found for x in b.extra["label"]] == [str(n) for n in range(700)]
            rejects = [reject for b in found for reject in b.rejects]
            assert [reject.id for reject in rejects] == [str(n) for n in range(300)]
            first = 702 if "csv" in name else 701
            assert [reject.line for reject in rejects] == list(range(first, first + 300))
            assert rejects[0].reason == "the id is that of an earlier document of this file"
            assert rejects[0].raw == "t700"


@given(st.lists(st.lists(st.integers(0, 40), max_size=15), max_size=12))
def test_seen_ids_are_those_a_set_would_find(batches: list[list[int]]) -> None:
    seen, there = SeenIds(), set()
    for batch in batches:
        expected = []
        for position, number in enumerate(batch):
            if number in there:
                expected.append(position)
            there.add(number)
        assert seen.add([str(number) for number in batch]) == expected


def test_rejects_are_as_bounded_as_documents(folder: Folder) -> None:
    found = folder.read("a.jsonl", b"no\n" * 1000, limits={"batch_rows": 300})
    assert [len(batch.rejects) for batch in found] == [300, 300, 300, 100]


def test_rows_of_a_table_that_are_none(folder: Folder) -> None:
    data = (
        b"id,text\na,b\nc\nd,e,f\n\n"  # 3: a cell is missing; 4: one too many
        b',g\nh,\n"i"j,k\nl,\xff\n"m\nn",o\n'  # 6, 7, 8: id, text, quotes; 9: bytes; 10: a line end
    )
    batch = folder.one("a.csv", data)
    assert (batch.ids, batch.lines) == (["a", "m\nn"], [2, 10])
    assert [(line, reason.split(",")[0]) for line, _, reason in rejects_of(batch)] == [
        (3, "must have 2 fields (id"),
        (4, "must have 2 fields (id"),
        (6, "the id ('id') is missing"),
        (7, "the text is empty (documents.empty_text: keep takes such documents)"),
        (8, "not CSV: '"),
        (9, "must be UTF-8 text"),
    ]
    wanted = "must have 2 fields (id, text) as the first row has, got"
    assert [reason for _, _, reason in rejects_of(batch)[:2]] == [f"{wanted} 1", f"{wanted} 3"]
    assert rejects_of(batch)[4][2] == "not CSV: ',' expected after '\"', in lines 8 to 8"


def test_a_quote_left_open_is_reported_where_it_was_opened(folder: Folder) -> None:
    batch = folder.one("a.csv", b'id,text\na,b\nc,"d\ne,f\ng,h\n')
    assert batch.ids == ["a"]
    assert rejects_of(batch) == [(3, None, "not CSV: unexpected end of data, in lines 3 to 5")]
    assert batch.rejects[0].raw.startswith('c,"d')
    long = b"".join(b"e%d,f\n" % n for n in range(1000))
    batch = folder.one("b.csv", b'id,text\na,b\nc,"d\n' + long, {"max_bytes": 1024})
    assert batch.rejects[-1].line == 3


def test_tables_in_other_encodings_and_dialects(folder: Folder) -> None:
    text = "a;'Gr\u00f6\u00dfe; 1'\nb;x\n"
    for encoding in ("latin-1", "utf-16", "cp1252"):
        batch = folder.one(
            "a.csv",
            text.encode(encoding),
            {"id": "1", "text": "2"},
            encoding=encoding,
            dialect={"delimiter": ";", "quoteChar": "'", "header": False},
        )
        assert (batch.ids, batch.texts) == (["a", "b"], ["Größe; 1", "x"])


def test_a_row_that_is_not_in_the_encoding(folder: Folder) -> None:
    batch = folder.one("a.csv", b"id,text\na,b\nc,\xff\n", encoding="ascii")
    assert rejects_of(batch) == [(3, None, "must be text in ascii, got other bytes")]


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_a_file_of_line_ends_is_left_where_nobody_expects_records(
    folder: Folder, name: str
) -> None:
    batch = folder.one(name, b"id,text\n" * (name == "d.csv") + b"\n" * 2**20)
    (reject,) = batch.rejects
    assert reject.reason.endswith(" lines without a record before it; cut them out")
    assert reject.whole_rest


@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_a_table_without_the_columns(folder: Folder, name: str) -> None:
    batch = folder.one(name, FORMS[name]([{"key": "a", "texts": "b"}]), {"id": "key"})
    (reject,) = batch.rejects
    assert reject.reason == (
        "no column 'text', got key, texts (did you mean 'texts'?); correct documents: in the "
        "manifest, or the file"
    )
    assert reject.whole_rest
    assert "quarantine" not in str(reject.as_error())  # a whole file is no bad record


def test_a_table_with_another_delimiter_needs_a_dialect(folder: Folder) -> None:
    (reject,) = folder.one("d.csv", b"id;text\n1;a\n").rejects
    assert reject.reason.endswith("give the resource in the manifest a dialect with its delimiter")


def test_a_table_in_another_encoding_is_reported_in_words_that_print(
    folder: Folder,
) -> None:
    batch = folder.one("a.csv", "id,text\na,b\n".encode("utf-16"))
    assert batch.rejects[0].reason.startswith("no column 'id', got \\udcff\\udcfei")
    str(batch.rejects[0].as_error()).encode()


def test_times_are_reported_beyond_what_python_can_count(folder: Folder) -> None:
    for unit, number, told_as in (
        ("ns", 1, "1970-01-01 00:00:00.000000001"),
        ("us", 2**62, "<value out of range: 4611686018427387904>"),
    ):
        table = pa.table({"id": ["a"], "text": ["b"], "t": pa.array([number], pa.timestamp(unit))})
        sink = io.BytesIO()
        pq.write_table(table, sink)
        batch = folder.one(f"{unit}.parquet", sink.getvalue(), {"time": "t"})
        assert batch.extra == {"time": [told_as]}


def test_ids_and_numbers_that_are_too_long(folder: Folder) -> None:
    rows = [{"id": "i" * n, "text": "b"} for n in (4096, 4097)]
    batch = folder.one("a.jsonl", as_jsonl(rows))
    assert [len(id_) for id_ in batch.ids] == [4096]
    assert rejects_of(batch)[0][2] == "the id must have at most 4096 characters, got 4097"
    data = b'{"id":"a","e":[1,%s]}' % (b"9" * 400)
    batch = folder.one("b.jsonl", data, {"text": None, "embedding": "e"})
    assert "must be finite numbers in the range of float32" in rejects_of(batch)[0][2]


def test_labels_are_no_bytes(folder: Folder) -> None:
    data = as_parquet([{"id": "a", "text": "b", "l": b"c"}])
    batch = folder.one("a.parquet", data, {"label": "l"})
    assert rejects_of(batch) == [
        (1, "a", "the label must be a text or a number, got a value of type bytes")
    ]


def test_a_pipe_is_not_waited_for(folder: Folder) -> None:
    os.mkfifo(folder.path / "a.jsonl")
    with pytest.raises(ConfigurationError, match=r"must be that of a file, got .*a\.jsonl, a pipe"):
        folder.source("a.jsonl")


def test_columns_of_parquet_that_hold_other_things(folder: Folder) -> None:
    batch = folder.one(
        "a.parquet", as_parquet([{"id": 1.5, "text": "b"}, {"id": None, "text": "c"}])
    )
    assert [reason for _, _, reason in rejects_of(batch)] == [
        "the id ('id') must be a text or an integer, got a fraction",
        "the id ('id') is missing",
    ]
    batch = folder.one("b.parquet", as_parquet([{"id": "a", "text": b"\xff"}]))
    assert rejects_of(batch) == [
        (1, "a", "the text ('text') must be a text, got a value of type bytes")
    ]
    table = pa.table({"id": pa.array(["x", "y"]).dictionary_encode(), "text": ["b", None]})
    pq.write_table(table, folder.path / "c.parquet")
    batch = folder.one("c.parquet", (folder.path / "c.parquet").read_bytes())
    assert (batch.ids, rejects_of(batch)) == (["x"], [(2, "y", "the text ('text') is missing")])


def test_parquet_with_bytes_that_are_not_utf8(folder: Folder) -> None:
    offsets, data = pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")
    text = pa.StringArray.from_buffers(2, offsets, data)
    pq.write_table(pa.table({"id": ["x", "y"], "text": text}), folder.path / "w.parquet")
    batch = folder.one("a.parquet", (folder.path / "w.parquet").read_bytes())
    assert (batch.texts, rejects_of(batch)) == (["a"], [(2, None, "bytes that are not UTF-8")])


def test_texts_with_bytes_that_are_not_in_the_encoding(folder: Folder) -> None:
    batch = folder.one("a.txt", b"ab\xffc")
    assert rejects_of(batch) == [(1, None, "bytes that are not utf-8: invalid start byte (0xff)")]
    assert batch.rejects[0].raw == "ab\\xffc"
