"""Hostile rows and centroids: arrays, sparse matrices, folders of Parquet blocks."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from hmrf_dask.corpus.partitioned import Corpus
from tests.support.hostile.worlds import FIT, Case, Content

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
    rows("a bomb of 2 GB", zeros(2**31), alone=True),
    rows("a bomb in the row pointers",
         lambda path: path.write_bytes(csr(indptr=np.zeros(2**28, np.int32))), alone=True),
    rows("a folder", lambda path: path.mkdir()),
    rows("a pipe", lambda path: os.mkfifo(path), alone=True),
    rows("a device", lambda path: path.symlink_to("/dev/zero"), alone=True),
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
          _holes(npy_header(F4.format(False, (10**10, 25))), 10**12 + 128), alone=True),
    dense("a folder", lambda path: path.mkdir()),
    dense("a device", lambda path: path.symlink_to("/dev/zero"), alone=True),
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
         {"zero.npy": lambda path: path.symlink_to("/dev/zero")}, "zero.npy", alone=True),
    Case("init: nowhere", (*FIT, "--init=nowhere.npy"), place="nowhere.npy"),
    Case("init: a good one", (*FIT, "--init=init.npy"), fine=True),
)  # fmt: skip

# ---- folders of blocks

Change = Callable[[Any], Any]
FIT_BLOCKS = ("fit", "blocks", "-k2", "--n-init=1", "--run-dir=run", "-q")
OUTSIDE = "part-00000"
PLANNED = "its file"  # the memory for it, before it is opened
DESCRIBED = b"hmrf-dask-blocks"


def folder(
    table: Change | None = None,
    facts: Change | None = None,
    data: Change | None = None,
    *,
    whole: Change | None = None,
    numbers: bool = False,
    **written: Any,
) -> Callable[[Path], None]:
    """Return what writes a folder of blocks whose manifest has the hash of whatever is there.

    Parameters
    ----------
    table, data : callable, optional
        Change what the first file holds, and its bytes.
    facts : callable, optional
        Changes what the manifest says of the first file.
    whole : callable, optional
        Changes the manifest.
    numbers : bool
        Whether ids are numbers.
    **written
        For `write_table`.
    """

    def write(path: Path) -> None:
        rows = sp.random_array((8, 6), density=0.6, format="csr", dtype=np.float32, rng=0)
        ids = np.arange(8) if numbers else [f"d{n}" for n in range(8)]
        Corpus.from_rows(rows, ids, n_partitions=2).to_parquet(str(path))
        folder = json.loads((path / "blocks.json").read_text())
        first = folder["files"][0]
        file = path / first["name"]
        if table is not None:
            changed = table(pq.read_table(file))
            pq.write_table(changed, file, **{"use_dictionary": False, **written})
        if data is not None:
            file.write_bytes(data(file.read_bytes()))
        content = file.read_bytes()
        first |= {"n_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if facts is not None:
            first |= facts(first)
        (path / "blocks.json").write_text(json.dumps(folder if whole is None else whole(folder)))

    return write


def blocks(name: str, *changes: Change | None, place: str = "blocks", **more: Any) -> Case:
    """Return a fit of such a folder."""
    case = {one: more.pop(one) for one in ("alone", "fine") if one in more}
    return Case(f"blocks: {name}", FIT_BLOCKS, {"blocks": folder(*changes, **more)}, place, **case)


def column(name: str, change: Change) -> Change:
    """Return what changes the lists or ids of one column."""

    def changed(table: pa.Table) -> pa.Table:
        place, kind = table.schema.get_field_index(name), table.schema.field(name)
        values = change(table.column(name).to_pylist())
        return table.set_column(place, kind, pa.array(values, kind.type))

    return changed


def described(**facts: Any) -> Change:
    """Return what changes what a file says of itself."""

    def changed(table: pa.Table) -> pa.Table:
        content = {**json.loads(table.schema.metadata[DESCRIBED]), **facts}
        return table.replace_schema_metadata({DESCRIBED: json.dumps(content)})

    return changed


def first_of(change: Change) -> Change:
    """Return what changes the first list."""
    return lambda lists: [change(lists[0]), *lists[1:]]


def retyped(name: str, kind: Any) -> Change:
    """Return what gives a column another type."""

    def changed(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        return table.set_column(place, name, table.column(name).cast(kind))

    return changed


def with_null(table: pa.Table) -> pa.Table:
    """Return rows of which one has no values, in a column that says that it has none such."""
    place, kind = table.schema.get_field_index("values"), table.schema.field("values")
    lists = [None, *table.column("values").to_pylist()[1:]]
    return table.set_column(place, kind.with_nullable(True), pa.array(lists, kind.type))


def bomb(table: pa.Table) -> pa.Table:
    """Return one row of very many equal entries: a few bytes of a dictionary."""
    count = 2 * 10**7
    columns = [table.column(name).slice(0, 1) for name in ("id", "key")]
    for name, value in (("indices", np.int32), ("values", np.float32)):
        kind = table.schema.field(name).type
        entries = pa.array(np.zeros(count, value))
        columns.append(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), entries, kind))
    return pa.table(columns, schema=table.schema)


def block_cases() -> Iterator[Case]:
    """Yield folders of blocks that lie."""
    for name, change in {
        "a negative feature": lambda one: [-1, *one[1:]],
        "a feature beyond the last": lambda one: [*one[:-1], 6],
        "the largest feature there is": lambda one: [*one[:-1], 2**31 - 1],
        "features in no order": lambda one: one[::-1],
        "a feature twice": lambda one: [one[0], *one[:-1]],
        "a feature too few": lambda one: one[:-1],
        "a feature too many": lambda one: [*one, one[-1]],
    }.items():
        yield blocks(name, column("indices", first_of(change)), place=OUTSIDE)
    yield blocks("lists of other lengths",
                 column("indices", lambda lists: [lists[0] + lists[1], [], *lists[2:]]),
                 place=OUTSIDE)  # fmt: skip
    for name, value in {"NaN": np.nan, "infinity": np.inf}.items():
        yield blocks(name, column("values", first_of(lambda one, value=value: [value, *one[1:]])),
                     place="d0")  # fmt: skip
    yield blocks("a list that is missing", with_null, place=OUTSIDE)
    for name in ("indices", "values", "id", "key"):
        yield blocks(f"no {name}", lambda table, name=name: table.drop_columns([name]),
                     place=OUTSIDE)  # fmt: skip
    for name, kind in {"indices": pa.list_(pa.int64()), "values": pa.list_(pa.float64()),
                       "id": pa.binary(), "key": pa.int64()}.items():  # fmt: skip
        yield blocks(f"{name} of another type", retyped(name, kind), place=OUTSIDE)
    yield blocks("an id of 1 MB", column("id", lambda ids: ["x" * 2**20, *ids[1:]]), place=OUTSIDE)
    yield blocks("a NUL in an id", column("id", lambda ids: ["a\0", *ids[1:]]), place=OUTSIDE)
    yield blocks("an id twice", column("id", lambda ids: ["d1", *ids[1:]]), place=OUTSIDE)
    yield blocks("an id of the other file", column("id", lambda ids: ["d7", *ids[1:]]),
                 place=OUTSIDE)  # fmt: skip
    yield blocks("keys of other ids", column("key", lambda keys: keys[::-1]), place=OUTSIDE)
    for value in (-1, 0, 5, 7, 10**30, "6", True, None, 6.5, [6], float("inf"), 2**31 - 1):
        yield blocks(f"a file of {value!r} features", described(n_features=value), place=OUTSIDE)
    for name, value in (("dense", "no"), ("dense", True), ("strings", 1), ("strings", False),
                        ("version", 2), ("version", [1])):  # fmt: skip
        yield blocks(f"a file of {name} {value!r}", described(**{name: value}), place=OUTSIDE)
    for metadata in (b"", b"[]", b"7", b"{", b"[" * 100_000, b"\xff"):
        yield blocks(f"a file described as {metadata[:9]!r}",
                     lambda table, text=metadata: table.replace_schema_metadata({DESCRIBED: text}),
                     place=OUTSIDE)  # fmt: skip
    for name, facts in {
        "n_rows": (-1, 3, 5, "4", None, True, 4.0, 10**30),
        "n_values": (-1, 0, 10**6, "4", 10**30),
        "is_dense": (True, "no", 7),
        "n_bytes": (-1, 0, 10**12, "9", 10**30),
        "sha256": ("", "0" * 64, 7, None),
        "id_bytes": (-1, "x", 10**30),
        "name": ("../rows.npz", "/etc/passwd", "nowhere.parquet", "", 7, None, "a\0b", ".",
                 "x" * 300),
    }.items():  # fmt: skip
        for value in facts:
            place = PLANNED if (name, value) == ("n_bytes", 10**12) else "blocks"
            yield blocks(f"{name} of {value!r:.20}", None,
                         lambda _, name=name, value=value: {name: value}, place=place)  # fmt: skip
    yield blocks("a fact nobody knows", None, lambda _: {"x": 1})
    for n_features in (0, 2**31 - 1):
        yield blocks(f"a folder of {n_features} features", place="feature",
                     whole=lambda content, n=n_features: {**content, "n_features": n})  # fmt: skip
    for files in ([], {}):
        yield blocks(f"a folder with files {files}", place="partition",
                     whole=lambda content, files=files: {**content, "files": files})  # fmt: skip
    for name, change in {
        "n_features": (-1, 10**30, "6", True, None, 6.5, float("inf"), float("nan"), 7),
        "has_ids": ("no", 1, None),
        "files": (None, 7, [None], [[]], "x"),
        "format": ("x", None, 7), "version": (2, "1", None),
    }.items():  # fmt: skip
        for value in change:
            changed = {name: value}
            yield blocks(f"a folder with {name} {value!r:.20}",
                         whole=lambda content, changed=changed: {**content, **changed})  # fmt: skip
    for content in ([], 7, None, "x"):
        yield blocks(f"a folder described as {content!r}", whole=lambda _, content=content: content)
    yield blocks("a file twice", place="d0",
                 whole=lambda content: {**content, "files": content["files"][:1] * 2})  # fmt: skip
    for name, data in {
        "nothing": b"", "a text": b"hello", "magic": b"PAR1PAR1",
        "a footer of 4 GB": b"PAR1" + bytes(100) + b"\xff\xff\xff\xffPAR1",
        "random bytes": b"PAR1" + np.random.default_rng(5).bytes(1000) + b"\xe8\x03\0\0PAR1",
    }.items():  # fmt: skip
        yield blocks(f"a file of {name}", None, None, lambda _, data=data: data, place=OUTSIDE)
    yield blocks("a file cut in half", None, None, lambda data: data[: len(data) // 2],
                 place=OUTSIDE)  # fmt: skip
    yield blocks("a sparse file of 1 TB", None, lambda _: {"n_bytes": 10**12},
                 lambda data: data, place=PLANNED, alone=True)  # fmt: skip
    for option in ({"use_dictionary": True}, {"compression": "gzip"}, {"row_group_size": 1}):
        yield blocks(f"written with {option}", lambda table: table, fine="gzip" in str(option)
                     or "row" in str(option), place=OUTSIDE, **option)  # fmt: skip
    yield blocks("a bomb of a dictionary", bomb, lambda _: {"n_rows": 1, "n_values": 2 * 10**7},
                 use_dictionary=True, place=OUTSIDE, alone=True)  # fmt: skip
    yield blocks("a bomb of plain numbers", bomb, lambda _: {"n_rows": 1, "n_values": 2 * 10**7},
                 compression="zstd", place=OUTSIDE, alone=True)  # fmt: skip
    yield blocks("a bomb that its manifest does not tell", bomb, lambda _: {"n_rows": 1},
                 use_dictionary=True, place=OUTSIDE, alone=True)  # fmt: skip


BLOCKS = tuple(block_cases())

# ---- sizes beyond memory

SIZES = (
    Case("sizes: centroids of 15 GB", (*FIT, "--init=big.npy"),
         {"big.npy": _holes(npy_header(F4.format(False, (2**32, 1))), 2**34 + 129)}, "init",
         alone=True),
    Case("sizes: centroids of the right number", (*FIT, "--init=big.npy"),
         {"big.npy": _holes(npy_header(F4.format(False, (3, 2**30))), 12 * 2**30 + 129)}, "init",
         alone=True),
)  # fmt: skip
