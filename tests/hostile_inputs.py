"""Hostile inputs, each one line: files laid over a small healthy world, a command, what must come.

`check` runs one: no traceback, an exit code of the documented ones, one line that names the place,
no file of the user's changed, in bounded time and, where a case runs apart, in bounded memory.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
import yaml
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from tests.job_corpus import JobCorpus

REFUSED = (2, 65, 75, 78)
SECONDS = 60
MEMORY = 4 * 2**30  # bytes of address space of a case that runs apart
LONGEST_ERROR = 1500  # characters
Content = bytes | Callable[[Path], None]
RUN, CHECK = ("run", "job.yaml", "-q"), ("check", "manifest.yaml", "--all", "-q")
FIT = ("fit", "rows.npz", "-k3", "--n-init=1", "--run-dir=run", "-q")


@dataclass(frozen=True)
class Case:
    """One hostile input.

    Attributes
    ----------
    name : str
    command : tuple of str
        In the world's folder.
    files : dict
        By name: bytes, or a function that makes the file at a path.
    place : str
        What the error must name.
    fine : bool
        Whether the command must do its work all the same.
    apart : bool
        Whether it runs in a process of its own, whose memory is capped.
    """

    name: str
    command: tuple[str, ...]
    files: dict[str, Content] = field(default_factory=dict)
    place: str = ""
    fine: bool = False
    apart: bool = False


def make_world(folder: Path) -> None:
    """Write documents, answers, manifest and job, rows with pairs, classes and assignments."""
    JobCorpus(folder).write_all(n_documents=45, n_pairs=6)
    groups = np.repeat(np.arange(3), 20)
    dense = np.random.default_rng(0).random((60, 30)) * (groups[:, None] == np.arange(30) // 10)
    sp.save_npz(folder / "rows.npz", sp.csr_array(dense.astype(np.float32)))
    np.save(folder / "init.npy", dense[[0, 20, 40]])
    (folder / "pairs.csv").write_text("a,b,kind\n0,1,must\n0,20,cannot\n")
    lines = [f"{row},c{group}" for row, group in enumerate(groups)]
    (folder / "truth.csv").write_text("\n".join(["id,label", *lines]))
    (folder / "assigned").mkdir()
    table = pa.table({"doc_id": [str(row) for row in range(60)], "cluster": groups})
    pq.write_table(table, folder / "assigned" / "part.parquet")


def check(case: Case, world: Path, folder: Path) -> str:
    """Return what is wrong with how the program takes a case, "" if nothing is."""
    shutil.copytree(world, folder)
    for name, content in case.files.items():
        _lay(folder / name, content)
    before = _digests(folder)
    code, said = (_apart if case.apart else _inside)(case.command, folder)
    errors = [line for line in said.splitlines() if line.lower().startswith("error: ")]
    wrong = {
        "a traceback": "Traceback" in said,
        "another exit code": code not in ((0,) if case.fine else REFUSED),
        "not one line of error": len(errors) != (0 if case.fine else 1),
        "a secret is shown": "CANARY" in said,
        "a long line": any(len(line) > LONGEST_ERROR for line in said.splitlines()),
        "the place is not named": not case.fine and case.place not in said,
        "files of the user changed": before.items() - _digests(folder).items(),
    }
    told = [words for words, found in wrong.items() if found]
    return f"{case.name}: {', '.join(told)}; exit code {code}: {said[-1500:]}" if told else ""


def _lay(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        if path.is_file():
            path.unlink()
        content(path)
    else:
        path.write_bytes(content)


def _digests(folder: Path) -> dict[str, str]:
    """Return the hash of every small file of the user's."""
    found: dict[str, str] = {}
    for one in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a task of a command that ended, at work yet
            if one.is_file() and one.stat().st_size < 2**26:
                found[str(one)] = hashlib.sha256(one.read_bytes()).hexdigest()
    return found


def _inside(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(hmrf, list(command))
    finally:
        os.chdir(before)
    error = result.exception
    raised = "" if error is None or isinstance(error, SystemExit) else f"Traceback: {error!r:.500}"
    return result.exit_code, result.output + raised


def _apart(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    code = (
        "import resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY})); "
        "from hmrf_dask.cli.commands import hmrf; hmrf(sys.argv[1:])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *command], cwd=folder, capture_output=True, text=True,
            timeout=SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"not done in {SECONDS} s"
    return done.returncode, done.stdout + done.stderr


# ---- values of job files and manifests

HERE = "@@"  # stands for the hostile value
NOT_WHOLE = {
    "yes": "yes", "negative": "-1", "fraction": "3.0", "text": '"3"', "10^30": str(10**30),
    "5,000 digits": "7" * 5000, "inf": ".inf", "1e400": "1.0e+400", "nan": ".nan",
    "nested": "[" * 15 + "1" + "]" * 15, "mapping": "{a: 1}", "superscript": "²",
    "sexagesimal": "1:30", "hexadecimal": "0x10", "tag": "!!int 3", "anchor": "&x 3",
}  # fmt: skip
NOT_COST = {
    "yes": "yes", "negative": "-0.5", "text": '"3"', "1e308": "1.0e+308", "10^400": "1" + "0" * 400,
    "5,000 digits": "7" * 5000, "inf": ".inf", "1e400": "1.0e+400", "nan": ".nan", "list": "[1.0]",
    "tiny": "1.0e-300", "mapping": "{a: 1}", "least": "4.9e-324", "10^13": str(10**13),
}  # fmt: skip
NOT_FLAG = {
    "1": "1", "0": "0", "text": '"true"', "fraction": "1.0", "list": "[true]", "mapping": "{a: 1}",
}  # fmt: skip
NOT_TEXT = {
    "yes": "yes", "number": "3", "nested": "[" * 15 + "x" + "]" * 15, "mapping": "{a: {b: c}}",
    "empty": '""', "NUL": '"a\\0b"', "half of a character": '"\\ud800"', "long": "x" * 65_000,
    "too long": "x" * 70_000,
}  # fmt: skip
JOB_WHOLE = (
    "method.n_clusters", "method.n_init", "method.max_iter", "method.random_state",
    "method.retries", "cluster.local", "cluster.processes", "cluster.workers", "keep",
    "text.max_features", "text.n_features", "text.lsa",
)  # fmt: skip
JOB_FLAGS = (
    "method.learn_weights", "method.refine", "method.closure", "text.lowercase",
    "text.sublinear_tf",
)  # fmt: skip
JOB_TEXTS = (
    "manifest", "output", "mode", "start", "on_bad_record", "method.name", "method.distortion",
    "text.refit", "text.kind", "text.norm", "cluster.class", "name",
)  # fmt: skip
MANIFEST_WHOLE = ("documents.max_bytes", "resources.0.bytes")
MANIFEST_FLAGS = (
    "resources.0.dialect.header", "storage_options.anon", "storage_options.requester_pays",
)  # fmt: skip
MANIFEST_TEXTS = (
    "name", "resources.0.name", "resources.0.format", "resources.0.compression",
    "resources.0.encoding", "resources.0.hash", "resources.0.dialect.delimiter",
    "resources.0.dialect.quoteChar", "documents.id", "documents.empty_text",
)  # fmt: skip
JOB: dict[str, Any] = {
    "$schema": "hmrf-dask/job/v1", "manifest": "manifest.yaml", "output": "out",
    "method": {"n_clusters": 3, "n_init": 2},
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "$schema": "hmrf-dask/manifest/v1", "name": "small", "documents": {"label": "label"},
    "resources": [{"name": "all", "path": "documents/*"}], "answers": {"path": "answers.csv"},
}  # fmt: skip


def with_value(whole: dict[str, Any], place: str, value: str) -> bytes:
    """Return a file with the words of a value at a place."""
    changed = inside = json.loads(json.dumps(whole))
    *way, last = place.split(".")
    for step in way:
        inside = inside[int(step)] if isinstance(inside, list) else inside.setdefault(step, {})
    inside[last] = HERE
    return yaml.safe_dump(changed).replace(f"'{HERE}'", value).encode()


def job(place: str, value: str, **more: Any) -> Case:
    """Return a job with a hostile value."""
    said = place.rpartition(".")[2]
    name = more.pop("name", f"{value:.40}")
    files = {"job.yaml": with_value(JOB, place, value)}
    return Case(f"job {place}: {name}", RUN, files, more.pop("said", said), **more)


def manifest(place: str, value: str, **more: Any) -> Case:
    """Return a manifest with a hostile value."""
    files = {"manifest.yaml": with_value(MANIFEST, place, value)}
    name = more.pop("name", f"{value:.40}")
    said = more.pop("said", "manifest.yaml")
    return Case(f"manifest {place}: {name}", CHECK, files, said, **more)


def values() -> Iterator[Case]:
    """Yield every field with every value that it cannot have."""
    kinds: tuple[tuple[Any, Any, Any], ...] = (
        (job, JOB_WHOLE, NOT_WHOLE), (job, ("method.must_link_cost",), NOT_COST),
        (job, ("method.cannot_link_cost",), NOT_COST), (job, JOB_FLAGS, NOT_FLAG),
        (job, JOB_TEXTS, NOT_TEXT), (manifest, MANIFEST_WHOLE, NOT_WHOLE),
        (manifest, MANIFEST_FLAGS, NOT_FLAG), (manifest, MANIFEST_TEXTS, NOT_TEXT),
    )  # fmt: skip
    for make, places, wrong in kinds:
        for place in places:
            for name, value in wrong.items():
                yield make(place, value, said=f"{make.__name__}.yaml", name=name)


FURTHER_VALUES = (
    job("text.ngram_range", "[1, 1000000000]"),
    job("text.ngram_range", "[2, 1]"),
    job("text.ngram_range", "[1, 2, 3]"),
    job("text.ngram_range", "[yes, 2]"),
    job("text.min_df", "1000000000000000000000"),
    job("text.min_df", "-0.5"),
    job("text.max_df", "1.5"),
    job("text.refit", "drift>999%"),
    job("text.refit", "drift>" + "9" * 400 + "%"),
    job("text.refit", "drift>٣%"),
    job("text.stop_words", "[" + ", ".join(["a"] * 15_000) + "]"),
    job("text.stop_words", "klingon"),
    job("answers", "[" + ", ".join(["a.csv"] * 15_000) + "]"),
    job("answers", "/dev/zero", said="/dev/zero"),
    job("answers", "documents", said="documents"),
    job("answers", "nowhere.csv", said="nowhere.csv"),
    job("manifest", "/dev/zero", said="/dev/zero", apart=True),
    job("manifest", "/dev/full", said="/dev/full"),
    job("manifest", "/proc/self/mem", said="/proc/self/mem"),
    job("manifest", "documents", said="documents"),
    job("manifest", "job.yaml", said="job.yaml"),
    job("manifest", "rows.npz", said="rows.npz"),
    job("manifest", "s4://nowhere/x", said="s4"),
    job("manifest", '"a\\nb"', said="manifest"),
    job("cluster.scheduler_file", "/dev/zero", said="/dev/zero"),
    job("cluster.scheduler_file", "documents", said="documents"),
    job("cluster.address", '"tcp://a:99999999"', said="tcp"),
    job("cluster.kwargs", "{1: 2}", said="job.yaml"),
    job("method.n_clusters", "46", said="n_clusters"),
    job("method.must_link_cost", "1.0e+12"),
    job("method.cannot_link_cost", "1.0e-12", fine=True),
    job("text.lsa", "10000", said="n_components"),
    job("keep", "10000", fine=True),
    job("text", "{kind: hashing, n_features: 2147483647}", said="features", apart=True),
    job("cluster", "{class: distributed.LocalCluster, workers: 100000}", said="worker processes"),
    job("cluster", "{class: distributed.LocalCluster, kwargs: {memory_limit: -5}}",
        said="memory_limit"),
    manifest("documents.id", "'a\"b'", said="documents"),
    manifest("documents.id", '"a\\tb"', said="documents"),
    manifest("resources.0.path", "/dev/zero", said="/dev/zero"),
    manifest("resources.0.path", '"documents\\0"'),
    manifest("resources.0.path", "[" + ", ".join(["a"] * 15_000) + "]"),
    manifest("resources.0.path", "/dev/stdin", said="/dev/stdin"),
    manifest("resources.0.encoding", "rot13"),
    manifest("resources.0.encoding", "undefined"),
    manifest("resources.0.dialect", '{delimiter: "\\n"}'),
    manifest("resources.0.dialect", '{delimiter: "\\""}'),
    manifest("documents.max_bytes", "1000"),
    manifest("answers.path", "/dev/zero", said="/dev/zero"),
    manifest("answers.path", "rows.npz", said="rows.npz"),
)  # fmt: skip

# ---- YAML


def yaml_case(name: str, data: Content, *, apart: bool = False, place: str = "job.yaml") -> Case:
    """Return a job file that is no plain YAML."""
    return Case(f"yaml: {name}", RUN, {"job.yaml": data}, place, apart=apart)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML = (
    yaml_case("a bomb of aliases", BOMB.encode(), apart=True),
    yaml_case("an alias of itself", b"a: &a [*a]\n"),
    yaml_case("a hundred thousand brackets", b"a: " + b"[" * 100_000),
    yaml_case("a hundred thousand braces", b"{a: " * 100_000),
    yaml_case("a hundred thousand dashes", b"- " * 100_000),
    yaml_case("a million values", b"a: [" + b"1," * 500_000 + b"]"),
    yaml_case("one long word", b"a: " + b"x" * 900_000),
    yaml_case("five thousand digits as a key", b"7" * 5000 + b": x\n"),
    yaml_case("two megabytes", b"# x\n" * 500_000),
    yaml_case("nothing", b""),
    yaml_case("a comment", b"# x\n"),
    yaml_case("only a byte order mark", b"\xef\xbb\xbf"),
    yaml_case("UTF-16", "a: 1\n".encode("utf-16")),
    yaml_case("UTF-32", "a: 1\n".encode("utf-32")),
    yaml_case("NULs", b"\0" * 1000),
    yaml_case("random bytes", np.random.default_rng(0).bytes(10_000)),
    yaml_case("a merge", b"<<: {keep: 3}\n"),
    yaml_case("a key twice", b"keep: 3\nkeep: 4\n"),
    yaml_case("a list as a key", b"? [1]\n: 2\n"),
    yaml_case("a mapping as a key", b"? {a: 1}\n: 2\n"),
    yaml_case("a number as a key", b"1: 2\n"),
    yaml_case("nothing as a key", b"~: 2\n"),
    yaml_case("a tag of Python", b"!!python/object/apply:os.system [ls]\n"),
    yaml_case("a tag of binary", b"a: !!binary aGk=\n"),
    yaml_case("a set", b"a: !!set {x}\n"),
    yaml_case("two documents", b"keep: 3\n---\nkeep: 4\n"),
    yaml_case("tabs", b"\ta:\t1\n"),
    yaml_case("a folder", lambda path: path.mkdir()),
    yaml_case("a pipe", lambda path: os.mkfifo(path)),
    yaml_case("a device", lambda path: path.symlink_to("/dev/zero"), apart=True),
    yaml_case("a link to itself", lambda path: path.symlink_to(path)),
    yaml_case("a link to nothing", lambda path: path.symlink_to("/nowhere")),
    yaml_case("ten thousand wrong keys", b"".join(b"k%d: 1\n" % n for n in range(9_000))),
    yaml_case("a wrong key of 60,000 letters", b"x" * 1000 + b"y: 1\n"),
)

# ---- options of the command line


def options() -> Iterator[Case]:
    """Yield every number of the command line with what it cannot be."""
    wrong = ("yes", "-1", "3.0", str(10**30), "7" * 5000, "inf", "nan", "²", "1_0", "0x1", "--")
    for option in ("-k", "--n-init", "--max-iter", "--random-state", "--threads", "--processes"):
        for value in wrong:
            yield Case(f"option {option} {value:.10}", (*FIT, option, value), place=option)
    for option in ("--must-link-cost", "--cannot-link-cost"):
        for value in ("1e308", "inf", "nan", "-1", "1e-300", "x", "1" * 5000, ""):
            yield Case(f"option {option} {value:.10}", (*FIT, option, value), place=option)
    for value in wrong:
        yield Case(f"option --from-release {value:.10}", (*RUN, "--from-release", value))


# ---- rows


def npy(array: Any) -> bytes:
    """Return the bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npy_header(text: str, data: bytes = b"") -> bytes:
    """Return an .npy file with any header."""
    header = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def npz(**members: Any) -> bytes:
    """Return an .npz file with any arrays, compressed; bytes are members as they are."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            data = value if isinstance(value, bytes) else npy(value)
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def csr(**changes: Any) -> bytes:
    """Return a CSR matrix of 4 rows and 5 columns as save_npz writes it, but for some arrays."""
    members: dict[str, Any] = {
        "indices": np.array([0, 1, 2, 3], np.int32), "indptr": np.array([0, 1, 2, 3, 4], np.int32),
        "format": b"csr", "shape": np.array([4, 5]), "data": np.ones(4, np.float32),
    }  # fmt: skip
    members["format"] = np.array(b"csr")
    members.update(changes)
    return npz(**{name: value for name, value in members.items() if value is not None})


def rows(name: str, data: Content, *, ending: str = "npz", **more: Any) -> Case:
    """Return rows that are none."""
    command = ("fit", f"bad.{ending}", "-k2", "--n-init=1", "--run-dir=run", "-q")
    return Case(f"rows: {name}", command, {f"bad.{ending}": data}, **more)


def dense(name: str, data: Content, **more: Any) -> Case:
    """Return an array that is none."""
    return rows(f"dense, {name}", data, ending="npy", **more)


def zeros(n_bytes: int) -> Callable[[Path], None]:
    """Return what writes an .npz of a matrix that unpacks to many zeros."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, value in (("format", np.array(b"csr")), ("shape", np.array([4, 5]))):
                archive.writestr(f"{name}.npy", npy(value))
            for name in ("indices", "indptr"):
                archive.writestr(f"{name}.npy", npy(np.zeros(5, np.int32)))
            with archive.open("data.npy", "w", force_zip64=True) as member:
                shape = f"({n_bytes // 4},)"
                member.write(
                    npy_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}")
                )
                for _ in range(n_bytes // 2**24):
                    member.write(bytes(2**24))

    return write


def _holes(header: bytes, size: int) -> Callable[[Path], None]:
    """Return what writes a file that says its size and holds almost nothing."""

    def write(path: Path) -> None:
        path.write_bytes(header)
        os.truncate(path, size)

    return write


F4 = "{{'descr': '<f4', 'fortran_order': {}, 'shape': {}}}"
ROWS = (
    rows("nothing", b""),
    rows("four bytes", b"PK\x03\x04"),
    rows("a text", b"not a zip at all"),
    rows("cut in half", csr()[:200]),
    rows("an .npy in its place", npy(np.ones((4, 5)))),
    rows("an empty archive", npz()),
    rows("a member is missing", csr(indptr=None)),
    rows("no format", csr(format=None)),
    rows("no shape", csr(shape=None)),
    rows("a member is no array", csr(data=b"hello")),
    rows("a member is empty", csr(data=b"")),
    rows("a pickled member", csr(data=np.array([{}], dtype=object))),
    rows("another format", csr(format=np.array(b"dok"))),
    rows("a strange format", csr(format=np.array([1, 2]))),
    rows("a long format", csr(format=np.array(b"x" * 10_000))),
    rows("blocks that are none", csr(format=np.array(b"bsr"))),
    rows("diagonals that are none", csr(format=np.array(b"dia"))),
    rows("coordinates that are none", csr(format=np.array(b"coo"))),
    rows("indices beyond the columns", csr(indices=np.array([0, 1, 2, 99], np.int32))),
    rows("indices below zero", csr(indices=np.array([0, 1, 2, -7], np.int32))),
    rows("indices far out", csr(indices=np.array([0, 1, 2, 2**40]))),
    rows("indices are fractions", csr(indices=np.array([0.0, 1.5, 2.0, 3.0]))),
    rows("row pointers fall", csr(indptr=np.array([0, 3, 1, 3, 4], np.int32))),
    rows("row pointers beyond the values", csr(indptr=np.array([0, 1, 2, 3, 2**30], np.int32))),
    rows("row pointers below zero", csr(indptr=np.array([-5, 1, 2, 3, 4], np.int32))),
    rows("too few row pointers", csr(indptr=np.array([0, 4], np.int32))),
    rows("no row pointers", csr(indptr=np.array([], np.int32))),
    rows("fewer values than indices", csr(data=np.ones(2, np.float32))),
    rows("a shape of three", csr(shape=np.array([4, 5, 6]))),
    rows("a shape of one", csr(shape=np.array([4]))),
    rows("a shape below zero", csr(shape=np.array([-4, 5]))),
    rows("a shape of text", csr(shape=np.array(["4", "x"]))),
    rows("a huge shape", csr(shape=np.array([10**12, 5]))),
    rows("2^40 columns", csr(shape=np.array([4, 2**40]))),
    rows("NaN", csr(data=np.array([1, np.nan, 1, 1], np.float32))),
    rows("infinity", csr(data=np.array([1, np.inf, 1, 1], np.float32))),
    rows("complex values", csr(data=np.ones(4, np.complex64))),
    rows("values of text", csr(data=np.array(["a", "b", "c", "d"]))),
    rows("a bomb of 2 GB", zeros(2**31), apart=True),
    rows("a bomb in the row pointers", csr(indptr=np.zeros(2**28, np.int32)), apart=True),
    rows("a folder", lambda path: path.mkdir()),
    rows("a pipe", lambda path: os.mkfifo(path), apart=True),
    rows("a device", lambda path: path.symlink_to("/dev/zero"), apart=True),
    dense("nothing", b""),
    dense("the magic alone", b"\x93NUMPY"),
    dense("a version that is none", b"\x93NUMPY\x09\x09" + bytes(100)),
    dense("a header of 4 GB", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100)),
    dense("a header of code", npy_header("__import__('os').system('true')")),
    dense("a header nested deep", npy_header("(" * 60 + ")" * 60)),
    dense("10^12 rows in 200 bytes", npy_header(F4.format(False, (10**12, 5)))),
    dense("more than there are bytes", npy_header(F4.format(False, (10, 5)), bytes(30))),
    dense("a shape that overflows", npy_header(F4.format(False, (2**62, 2**62)))),
    dense("a shape below zero", npy_header(F4.format(False, (-1, 5)), bytes(30))),
    dense("a shape of words", npy_header(F4.format(False, "('a', 5)"))),
    dense("an order that is none", npy_header(F4.format("'maybe'", (2, 2)), bytes(16))),
    dense("objects", npy(np.array([[{}, {}]], dtype=object))),
    dense("text", npy(np.array([["a", "b"]]))),
    dense("complex", npy(np.ones((4, 5), complex))),
    dense("one dimension", npy(np.ones(5))),
    dense("three dimensions", npy(np.ones((2, 2, 2)))),
    dense("no dimension", npy(np.array(1.0))),
    dense("no rows", npy(np.ones((0, 5)))),
    dense("no columns", npy(np.ones((5, 0)))),
    dense("NaN", npy(np.array([[1, np.nan], [1, 1]]))),
    dense("dates", npy(np.array([["2020-01-01"]], dtype="datetime64[D]"))),
    dense("records", npy(np.zeros(3, [("a", "f4")]))),
    dense("a sparse file of 1 TB",
          _holes(npy_header(F4.format(False, (10**10, 25))), 10**12 + 128), apart=True),
    dense("a folder", lambda path: path.mkdir()),
    dense("a device", lambda path: path.symlink_to("/dev/zero"), apart=True),
    Case("rows: nowhere", ("fit", "nowhere.npz", "-k2", "--run-dir=run"), place="nowhere.npz"),
    Case("rows: a pair file", ("fit", "pairs.csv", "-k2", "--run-dir=run"), place="pairs.csv"),
    Case("rows: an empty folder", ("fit", "assigned", "-k2", "--run-dir=run"), place="assigned"),
    Case("init: nothing", (*FIT, "--init=init.npy"), {"init.npy": b""}, "init.npy"),
    Case("init: lies", (*FIT, "--init=init.npy"),
         {"init.npy": npy_header(F4.format(False, (10**12, 30)))}, "init.npy"),
    Case("init: objects", (*FIT, "--init=init.npy"),
         {"init.npy": npy(np.array([[{}]], dtype=object))}, "init.npy"),
    Case("init: another shape", (*FIT, "--init=init.npy"), {"init.npy": npy(np.ones((9, 9)))},
         "init"),
    Case("init: a device", (*FIT, "--init=zero.npy"),
         {"zero.npy": lambda path: path.symlink_to("/dev/zero")}, "zero.npy", apart=True),
    Case("init: nowhere", (*FIT, "--init=nowhere.npy"), place="nowhere.npy"),
    Case("init: a good one", (*FIT, "--init=init.npy"), fine=True),
)  # fmt: skip

# ---- documents


def documents(name: str, content: Content, file: str = "bad.jsonl", **more: Any) -> Case:
    """Return a file of documents beside good ones, that stops a run or does it no harm."""
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


def _frames(path: Path) -> None:
    codec = pa.Codec("zstd", 3)
    with path.open("wb") as file:
        frame = codec.compress(bytes(2**27), asbytes=True)
        file.writelines([frame] * 64)


GOOD = b'{"id": "good", "text": "engine brake wheel"}\n'
MIB = 2**20
DOCUMENTS = (
    documents("a gz of newlines", gz(b"\n" * 2**24, 64), "bad.jsonl.gz", apart=True),
    documents("a gz of newlines after a good one", gz(b"\n" * 2**24, 64, GOOD), "bad.jsonl.gz",
              apart=True),
    documents("a gz of spaces", gz(b" " * 2**24, 64), "bad.jsonl.gz", apart=True),
    documents("a gz of zeros", gz(bytes(2**24), 64), "bad.jsonl.gz", apart=True),
    documents("a csv.gz of newlines", gz(b"\n" * 2**24, 64, b"id,text\n"), "bad.csv.gz",
              apart=True),
    documents("a csv.gz of one line", gz(b"x" * 2**24, 64, b"id,text\n"), "bad.csv.gz",
              apart=True),
    documents("a txt.gz of zeros", gz(bytes(2**24), 64), "bad.txt.gz", apart=True),
    documents("zst of zeros", _frames, "bad.jsonl.zst", apart=True),
    documents("gz that is none", b"hello", "bad.jsonl.gz"),
    documents("gz cut off", gzip.compress(GOOD * 1000)[:100], "bad.jsonl.gz"),
    documents("zst that is none", b"hello", "bad.jsonl.zst"),
    documents("one line of 300 MB", lambda path: path.write_bytes(b"x" * (300 * MIB)), apart=True),
    documents("newlines of 300 MB", lambda path: path.write_bytes(b"\n" * (300 * MIB)), apart=True),
    documents("nested 100,000 deep", b"[" * 100_000),
    documents("objects nested 100,000 deep", b'{"a":' * 100_000),
    documents("nested in the text",
              b'{"id": "a", "text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    documents("a million keys", b'{"id": "a", "text": "x", ' + b",".join(
        b'"k%d": 1' % n for n in range(10**6)) + b"}\n", fine=True),
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
    documents("a million columns", b",".join(b"c%d" % n for n in range(10**6)) + b"\n", "bad.csv"),
    documents("a header of 20 MB", b"x" * (20 * MIB) + b"\n", "bad.csv"),
    documents("a quote left open", b'id,text,label\na,"b' + b"x\n" * 10**6, "bad.csv"),
    documents("a quote left open for 100 MB",
              lambda path: path.write_bytes(b'id,text,label\na,"b' + b"x\n" * (50 * MIB)),
              "bad.csv", apart=True),
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
              }), path), "bad.parquet", fine=True, apart=True),
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
    ("a million columns", b",".join(b"c%d" % n for n in range(10**6)), "csv"),
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
    answers("a million bad lines", A + b"x\n" * 10**6, "hostile.csv", apart=True),
    answers("a sparse file of 1 TB", _holes(A, 10**12), "hostile.csv", apart=True),
    pairs("a pipe", lambda path: os.mkfifo(path), "hostile.csv", apart=True),
    pairs("a device", lambda path: path.symlink_to("/dev/zero"), "hostile.csv", apart=True),
    pairs("a sparse file of 1 TB", _holes(A, 10**12), "hostile.csv", apart=True),
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
    classes("a device", lambda path: path.symlink_to("/dev/zero"), apart=True),
    classes("a sparse file of 1 TB", _holes(b"id,label\n", 10**12), apart=True),
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
    scheduler("a pipe", lambda path: os.mkfifo(path), apart=True),
    scheduler("a device", lambda path: path.symlink_to("/dev/zero"), apart=True),
)  # fmt: skip

CASES: tuple[Case, ...] = (
    *values(), *FURTHER_VALUES, *YAML, *options(), *ROWS, *DOCUMENTS, *answer_files(),
    *FURTHER_FILES,
)  # fmt: skip
