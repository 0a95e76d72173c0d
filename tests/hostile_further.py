"""Hostile folders of Parquet blocks, bombs of dictionaries, sizes beyond memory, and URLs.

They go on from `tests.hostile_inputs`; `ALL_CASES` are those of both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from hmrf_dask.corpus.partitioned import Corpus
from tests.hostile_inputs import (
    CASES,
    F4,
    FIT,
    JOB,
    RUN,
    Case,
    _holes,
    answers,
    classes,
    job,
    manifest,
    npy_header,
    pairs,
)
from tests.test_addresses import WITH_SECRETS

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
        told = json.loads((path / "blocks.json").read_text())
        first = told["files"][0]
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
        (path / "blocks.json").write_text(json.dumps(told if whole is None else whole(told)))

    return write


def blocks(name: str, *changes: Change | None, place: str = "blocks", **more: Any) -> Case:
    """Return a fit of such a folder."""
    case = {one: more.pop(one) for one in ("apart", "fine") if one in more}
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
        told = {**json.loads(table.schema.metadata[DESCRIBED]), **facts}
        return table.replace_schema_metadata({DESCRIBED: json.dumps(told)})

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
                     lambda table, told=metadata: table.replace_schema_metadata({DESCRIBED: told}),
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
                     whole=lambda told, n=n_features: {**told, "n_features": n})  # fmt: skip
    for files in ([], {}):
        yield blocks(f"a folder with files {files}", place="partition",
                     whole=lambda told, files=files: {**told, "files": files})  # fmt: skip
    for name, change in {
        "n_features": (-1, 10**30, "6", True, None, 6.5, float("inf"), float("nan"), 7),
        "has_ids": ("no", 1, None),
        "files": (None, 7, [None], [[]], "x"),
        "format": ("x", None, 7), "version": (2, "1", None),
    }.items():  # fmt: skip
        for value in change:
            changed = {name: value}
            yield blocks(f"a folder with {name} {value!r:.20}",
                         whole=lambda told, changed=changed: {**told, **changed})  # fmt: skip
    for told in ([], 7, None, "x"):
        yield blocks(f"a folder described as {told!r}", whole=lambda _, told=told: told)
    yield blocks("a file twice", whole=lambda told: {**told, "files": told["files"][:1] * 2},
                 place="d0")  # fmt: skip
    for name, data in {
        "nothing": b"", "a text": b"hello", "magic": b"PAR1PAR1",
        "a footer of 4 GB": b"PAR1" + bytes(100) + b"\xff\xff\xff\xffPAR1",
        "random bytes": b"PAR1" + np.random.default_rng(5).bytes(1000) + b"\xe8\x03\0\0PAR1",
    }.items():  # fmt: skip
        yield blocks(f"a file of {name}", None, None, lambda _, data=data: data, place=OUTSIDE)
    yield blocks("a file cut in half", None, None, lambda data: data[: len(data) // 2],
                 place=OUTSIDE)  # fmt: skip
    yield blocks("a sparse file of 1 TB", None, lambda _: {"n_bytes": 10**12},
                 lambda data: data, place=PLANNED, apart=True)  # fmt: skip
    for option in ({"use_dictionary": True}, {"compression": "gzip"}, {"row_group_size": 1}):
        yield blocks(f"written with {option}", lambda table: table, fine="gzip" in str(option)
                     or "row" in str(option), place=OUTSIDE, **option)  # fmt: skip
    yield blocks("a bomb of a dictionary", bomb, lambda _: {"n_rows": 1, "n_values": 2 * 10**7},
                 use_dictionary=True, place=OUTSIDE, apart=True)  # fmt: skip
    yield blocks("a bomb of plain numbers", bomb, lambda _: {"n_rows": 1, "n_values": 2 * 10**7},
                 compression="zstd", place=OUTSIDE, apart=True)  # fmt: skip
    yield blocks("a bomb that its manifest does not tell", bomb, lambda _: {"n_rows": 1},
                 use_dictionary=True, place=OUTSIDE, apart=True)  # fmt: skip


# ---- sizes beyond memory


def hashed(n_features: int, **method: Any) -> Case:
    """Return a job whose words are hashed to very many columns."""
    told = {**JOB, "text": {"kind": "hashing", "n_features": n_features}}
    told["method"] = {**JOB["method"], **method}
    return Case(f"sizes: {n_features} hashed columns, {method}", RUN,
                {"job.yaml": json.dumps(told).encode()}, "MiB", apart=True)  # fmt: skip


SIZES = (
    hashed(2**31 - 1),
    hashed(2**29),
    hashed(2**24, n_clusters=45),
    Case("sizes: hashed columns and their components", RUN, {"job.yaml": json.dumps(
        {**JOB, "text": {"kind": "hashing", "n_features": 2**20, "lsa": 10_000}}).encode()}, "MiB",
        apart=True),
    Case("sizes: centroids of 15 GB", (*FIT, "--init=big.npy"),
         {"big.npy": _holes(npy_header(F4.format(False, (2**32, 1))), 2**34 + 129)}, "init",
         apart=True),
    Case("sizes: centroids of the right number", (*FIT, "--init=big.npy"),
         {"big.npy": _holes(npy_header(F4.format(False, (3, 2**30))), 12 * 2**30 + 129)}, "init",
         apart=True),
)  # fmt: skip

# ---- URLs


def url_cases() -> Iterator[Case]:
    """Yield every place of a job and a manifest with every URL that has a secret."""
    for place in ("output", "manifest", "answers", "cluster.address"):
        for number, url in enumerate(WITH_SECRETS):
            yield job(place, json.dumps(url), name=f"secret {number}")
    for number, url in enumerate(WITH_SECRETS):
        yield manifest("resources.0.path", json.dumps(url), name=f"secret {number}")


URLS = tuple(url_cases())

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
            apart=True),
    answers("a bomb of notes", words(3_000, a="0", b="1", kind="must", note=LONG), "bomb.parquet",
            apart=True),
    pairs("a bomb of long ids", words(3_000, a=LONG, b="1", kind="must"), "bomb.parquet",
          apart=True),
    classes("a bomb of long classes", words(3_000, id="0", label=LONG), "bomb.parquet", apart=True),
    classes("a bomb of another column", words(3_000, id="0", label="a", text=LONG), "bomb.parquet",
            apart=True),
    Case("assigned: a bomb of long ids", ("evaluate", "bombs", "truth.csv", "-q"),
         {"bombs/bomb.parquet": words(3_000, doc_id=LONG, cluster="1")}, "bomb.parquet",
         apart=True),
)  # fmt: skip

BLOCKS = tuple(block_cases())
ALL_CASES = (*CASES, *BLOCKS, *SIZES, *BOMBS, *URLS)
