"""Hostile documents, answers, pairs, classes and scheduler files."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.hostile.rows import _holes
from tests.support.hostile.settings import MANIFEST, with_value
from tests.support.hostile.worlds import FIT, RUN, Case, Content

# ---- documents


def documents(name: str, content: Content, file: str = "bad.jsonl", **more: Any) -> Case:
    """Return a file of documents next to good ones, that stops a run or does it no harm."""
    place = more.pop("place", file)
    return Case(f"documents: {name}", RUN, {f"documents/{file}": content}, place, **more)


def gz(unit: bytes, times: int, head: bytes = b"", tail: bytes = b"") -> Callable[[Path], None]:
    """Return what writes a gzipped file of the same bytes many times."""

    def write(path: Path) -> None:
        with gzip.open(path, "wb", 6) as file:
            file.write(head)
            for _ in range(times):
                file.write(unit)
            file.write(tail)

    return write


def table(**columns: Any) -> Callable[[Path], None]:
    """Return what writes a Parquet file."""
    return lambda path: pq.write_table(pa.table(columns), path)


def million(form: bytes, head: bytes = b"", tail: bytes = b"") -> Callable[[Path], None]:
    """Return what writes a million numbers in a form, with commas between."""
    return lambda path: path.write_bytes(
        head + b",".join(form % number for number in range(10**6)) + tail
    )


def _frames(path: Path) -> None:
    codec = pa.Codec("zstd", 3)
    with path.open("wb") as file:
        frame = codec.compress(bytes(2**27), asbytes=True)
        file.writelines([frame] * 64)


GOOD = b'{"id": "good", "text": "engine brake wheel"}\n'
MIB = 2**20
DOCUMENTS = (
    documents("a gz of newlines", gz(b"\n" * 2**24, 64), "bad.jsonl.gz", alone=True),
    documents("a gz of newlines after a good one", gz(b"\n" * 2**24, 64, GOOD), "bad.jsonl.gz",
              alone=True),
    documents("a gz of spaces", gz(b" " * 2**24, 64), "bad.jsonl.gz", alone=True),
    documents("a gz of zeros", gz(bytes(2**24), 64), "bad.jsonl.gz", alone=True),
    documents("a csv.gz of newlines", gz(b"\n" * 2**24, 64, b"id,text\n"), "bad.csv.gz",
              alone=True),
    documents("a csv.gz of one line", gz(b"x" * 2**24, 64, b"id,text\n"), "bad.csv.gz",
              alone=True),
    documents("a txt.gz of zeros", gz(bytes(2**24), 64), "bad.txt.gz", alone=True),
    documents("zst of zeros", _frames, "bad.jsonl.zst", alone=True),
    documents("gz that is none", b"hello", "bad.jsonl.gz"),
    documents("gz cut off", gzip.compress(GOOD * 1000)[:100], "bad.jsonl.gz"),
    documents("zst that is none", b"hello", "bad.jsonl.zst"),
    documents("one line of 300 MB", lambda path: path.write_bytes(b"x" * (300 * MIB)), alone=True),
    documents("newlines of 300 MB", lambda path: path.write_bytes(b"\n" * (300 * MIB)), alone=True),
    documents("nested 100,000 deep", b"[" * 100_000),
    documents("objects nested 100,000 deep", b'{"a":' * 100_000),
    documents("nested in the text",
              b'{"id": "a", "text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    documents("a million keys", million(b'"k%d": 1', b'{"id": "a", "text": "x", ', b"}\n"),
              fine=True),
    documents("a number of 5,000 digits", b'{"id": ' + b"7" * 5000 + b', "text": "x"}\n'),
    documents("1e999", b'{"id": 1e999, "text": "x"}\n'),
    documents("half of a character", b'{"id": "\\ud800", "text": "x"}\n'),
    documents("NULs", bytes(10_000)),
    documents("a NUL at the end of an id", b'{"id": "a\\u0000", "text": "x"}\n'),
    documents("an id of 1 MB", b'{"id": "' + b"i" * MIB + b'", "text": "x"}\n'),
    documents("a text of 17 MB", b'{"id": "a", "text": "' + b"t" * (17 * MIB) + b'"}\n'),
    documents("a class of 1 MB", b'{"id": "a", "text": "x", "label": "' + b"c" * MIB + b'"}\n'),
    documents("a list of documents", b'[{"id": "a", "text": "x"}]\n'),
    documents("an embedding of objects", b'{"id": "a", "text": {"b": 1}}\n'),
    documents("UTF-16", '{"id": "a"}'.encode("utf-16")),
    documents("random bytes", np.random.default_rng(1).bytes(10_000)),
    documents("no columns", b"\n\n", "bad.csv", fine=True),
    documents("a million columns", million(b"c%d", tail=b"\n"), "bad.csv"),
    documents("a header of 20 MB", b"x" * (20 * MIB) + b"\n", "bad.csv"),
    documents("a quote left open", b'id,text,label\na,"b' + b"x\n" * 10**6, "bad.csv"),
    documents("a quote left open for 100 MB",
              lambda path: path.write_bytes(b'id,text,label\na,"b' + b"x\n" * (50 * MIB)),
              "bad.csv", alone=True),
    documents("a million cells", b"id,text,label\n" + b"," * 10**6 + b"\n", "bad.csv"),
    documents("two columns of a name", b"id,id,text,label\n1,2,x,y\n", "bad.csv"),
    documents("carriage returns", b"id,text,label\r" * 100_000, "bad.csv"),
    documents("NULs in CSV", b"id,text,label\n\0,\0,\0\n", "bad.csv"),
    documents("Parquet of nothing", b"", "bad.parquet"),
    documents("Parquet of its magic", b"PAR1PAR1", "bad.parquet"),
    documents("Parquet with a footer of 4 GB", b"PAR1" + bytes(100) + b"\xff\xff\xff\xffPAR1",
              "bad.parquet"),
    documents("Parquet of random bytes",
              b"PAR1" + np.random.default_rng(2).bytes(1000) + b"\xe8\x03\0\0PAR1", "bad.parquet"),
    documents("Parquet without columns", table(), "bad.parquet"),
    documents("Parquet of lists", table(id=[["a"]], text=[["b"]], label=[["c"]]), "bad.parquet"),
    documents("Parquet of one huge cell", table(id=["a"], text=["x" * (64 * MIB)], label=["c"]),
              "bad.parquet"),
    documents("Parquet of 600 MB in a dictionary",
              lambda path: pq.write_table(pa.table({
                  "id": pa.array(range(600)), "label": pa.array(["x"] * 600),
                  "text": pa.DictionaryArray.from_arrays(
                      pa.array(np.zeros(600, np.int32)), pa.array(["word " * 200_000])),
              }), path), "bad.parquet", fine=True, alone=True),
    documents("a name of other bytes", b"moon", "\udcff.txt", place="UTF-8"),
    documents("a pipe", lambda path: os.mkfifo(path)),
    documents("a device", lambda path: path.symlink_to("/dev/zero")),
    documents("a link to nothing", lambda path: path.symlink_to("/nowhere")),
    documents("a link to its own folder", lambda path: path.symlink_to(path.parent), "loop",
              fine=True),
    documents("nothing", b"", fine=True),
    documents("an ending nobody knows", b"x", "bad.docx"),
)  # fmt: skip

# ---- answers, classes, scheduler files


def answers(name: str, content: Content, file: str = "answers.csv", **more: Any) -> Case:
    """Return an answers file of a job."""
    changed = with_value(MANIFEST, "answers.path", file)
    files = {file: content, "manifest.yaml": changed}
    return Case(f"answers: {name}", RUN, files, more.pop("place", file), **more)


def classes(name: str, content: Content, file: str = "known.csv", **more: Any) -> Case:
    """Return a file of known classes."""
    command = ("evaluate", "assigned", file, "-q")
    return Case(f"classes: {name}", command, {file: content}, more.pop("place", file), **more)


def pairs(name: str, content: Content, file: str = "pairs.csv", **more: Any) -> Case:
    """Return a pair file of `fit`."""
    return Case(f"pairs: {name}", (*FIT, f"--pairs={file}"), {file: content}, file, **more)


def scheduler(name: str, content: Content, **more: Any) -> Case:
    """Return a scheduler file."""
    command = (*FIT, "--scheduler-file=scheduler.json")
    return Case(f"scheduler: {name}", command, {"scheduler.json": content}, "scheduler", **more)


A = b"a,b,kind,weight\n"
HOSTILE_ANSWERS = (
    ("a number", b"7\n", "csv"), ("NULs", bytes(1000), "csv"),
    ("UTF-16", "a,b,kind\n".encode("utf-16"), "csv"), ("no header", b"x,y,must\n", "csv"),
    ("a quote left open", b'a,b,kind\n"x,y,must\n', "csv"),
    ("a weight of 1e308", A + b"0,1,must,1e308\n", "csv"),
    ("a weight of NaN", A + b"0,1,must,nan\n", "csv"),
    ("a weight below zero", A + b"0,1,must,-1\n", "csv"),
    ("a weight of 1e-300", A + b"0,1,must,1e-300\n", "csv"),
    ("a weight of 5,000 digits", A + b"0,1,must," + b"7" * 5000 + b"\n", "csv"),
    ("an id of 1 MB", A + b"x" * MIB + b",1,must,\n", "csv"),
    ("a cell of 300 KB", A + b'"' + b"x" * 300_000 + b'",1,must,\n', "csv"),
    ("a NUL in an id", A + b"0,a\0,must,\n", "csv"),
    ("a million columns", million(b"c%d"), "csv"),
    ("a document with itself", A + b"0,0,must,\n", "csv"),
    ("random bytes", np.random.default_rng(3).bytes(10_000), "csv"),
    ("nested deep", b"[" * 100_000, "jsonl"), ("a list", b"[1]\n", "jsonl"),
    ("5,000 digits", b'{"a": ' + b"7" * 5000 + b', "b": 1, "kind": "must"}\n', "jsonl"),
    ("a weight of true", b'{"a": 0, "b": 1, "kind": "must", "weight": true}\n', "jsonl"),
    ("a weight of infinity", b'{"a": 0, "b": 1, "kind": "must", "weight": Infinity}\n', "jsonl"),
    ("a weight of 10^400", b'{"a": 0, "b": 1, "kind": "must", "weight": 1' + b"0" * 400 + b"}\n",
     "jsonl"),
    ("a kind of list", b'{"a": 0, "b": 1, "kind": ["must"]}\n', "jsonl"),
    ("an id of true", b'{"a": true, "b": 1, "kind": "must"}\n', "jsonl"),
    ("half of a character", b'{"a": "\\ud800", "b": "x", "kind": "must"}\n', "jsonl"),
    ("Parquet of nothing", b"", "parquet"), ("Parquet of its magic", b"PAR1PAR1", "parquet"),
    ("Parquet of lists", table(a=[[1]], b=[[2]], kind=["must"]), "parquet"),
    ("Parquet of binary", table(a=[b"\xff"], b=[b"x"], kind=["must"]), "parquet"),
    ("a folder", lambda path: path.mkdir(), "csv"),
)  # fmt: skip


def answer_files() -> Iterator[Case]:
    """Yield every hostile answers file as a job's and as that of `fit`."""
    for name, content, ending in HOSTILE_ANSWERS:
        if name != "Parquet of nothing":  # a file without a byte is that of a project that begins
            yield answers(name, content, f"hostile.{ending}")
            yield pairs(name, content, f"hostile.{ending}")


FURTHER_FILES = (
    answers("a pipe", lambda path: os.mkfifo(path), "hostile.csv"),
    answers("a device", lambda path: path.symlink_to("/dev/zero"), "hostile.csv", place="hostile"),
    answers("a million bad lines", A + b"x\n" * 10**6, "hostile.csv", alone=True),
    answers("a sparse file of 1 TB", _holes(A, 10**12), "hostile.csv", alone=True),
    pairs("a pipe", lambda path: os.mkfifo(path), "hostile.csv", alone=True),
    pairs("a device", lambda path: path.symlink_to("/dev/zero"), "hostile.csv", alone=True),
    pairs("a sparse file of 1 TB", _holes(A, 10**12), "hostile.csv", alone=True),
    Case("pairs: rows that are not there", (*FIT, "--pairs=pairs.csv"),
         {"pairs.csv": A + b"0,999999,must,\n"}, "999999"),
    classes("nothing", b""),
    classes("NULs", bytes(1000)),
    classes("another header", b"x,y\n1,2\n"),
    classes("a quote left open", b'id,label\n"1,2\n'),
    classes("nobody known", b"id,label\nx,y\n", place="known.csv"),
    classes("two columns of a name", b"id,id,label\n1,2,3\n"),
    classes("nested deep", b'{"id": ' + b"[" * 100_000, "known.jsonl"),
    classes("lists", b'{"id": [1], "label": [2]}\n', "known.jsonl"),
    classes("Parquet of its magic", b"PAR1PAR1", "known.parquet"),
    classes("Parquet of nothing", b"", "known.parquet"),
    classes("a text", b"x", "known.txt"),
    classes("a folder", lambda path: path.mkdir()),
    classes("a pipe", lambda path: os.mkfifo(path)),
    classes("a device", lambda path: path.symlink_to("/dev/zero"), alone=True),
    classes("a sparse file of 1 TB", _holes(b"id,label\n", 10**12), alone=True),
    classes("a class of 1 MB", b"id,label\n0," + b"c" * MIB + b"\n"),
    classes("UTF-16", "id,label\n0,x\n".encode("utf-16")),
    scheduler("nothing", b""),
    scheduler("a list", b"[1]"),
    scheduler("no address", b"{}"),
    scheduler("an address of numbers", b'{"address": 7}'),
    scheduler("an address that is none", b'{"address": "not an address"}'),
    scheduler("a port that is none", b'{"address": "tcp://127.0.0.1:99999999"}'),
    scheduler("nested deep", b"[" * 100_000),
    scheduler("random bytes", np.random.default_rng(4).bytes(1000)),
    scheduler("a folder", lambda path: path.mkdir()),
    scheduler("a pipe", lambda path: os.mkfifo(path), alone=True),
    scheduler("a device", lambda path: path.symlink_to("/dev/zero"), alone=True),
)  # fmt: skip

# ---- bombs of dictionaries


def words(rows: int, **columns: str) -> Callable[[Path], None]:
    """Return what writes a Parquet file of one word many times, in a few kilobytes."""

    def write(path: Path) -> None:
        numbers = pa.array(np.zeros(rows, np.int32))
        pq.write_table(
            pa.table({name: pa.DictionaryArray.from_arrays(numbers, pa.array([word]))
                      for name, word in columns.items()}),
            path,
        )  # fmt: skip

    return write


LONG = "word " * 200_000
BOMBS = (
    answers("a bomb of long ids", words(3_000, a=LONG, b="1", kind="must"), "bomb.parquet",
            alone=True),
    answers("a bomb of notes", words(3_000, a="0", b="1", kind="must", note=LONG), "bomb.parquet",
            alone=True),
    pairs("a bomb of long ids", words(3_000, a=LONG, b="1", kind="must"), "bomb.parquet",
          alone=True),
    classes("a bomb of long classes", words(3_000, id="0", label=LONG), "bomb.parquet", alone=True),
    classes("a bomb of another column", words(3_000, id="0", label="a", text=LONG), "bomb.parquet",
            alone=True),
    Case("assigned: a bomb of long ids", ("evaluate", "bombs", "truth.csv", "-q"),
         {"bombs/bomb.parquet": words(3_000, doc_id=LONG, cluster="1")}, "bomb.parquet",
         alone=True),
)  # fmt: skip
