"""Hostile values, YAML, options, addresses and sizes of jobs and of commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import yaml

from tests.support.hostile.addresses import WITH_SECRETS
from tests.support.hostile.worlds import CHECK, FIT, RUN, Case, Content

# ---- values of job files and manifests

HERE = "@@"  # stands for the hostile value
NOT_WHOLE = {
    "yes": "yes", "negative": "-1", "fraction": "3.0", "text": '"3"', "10^30": str(10**30),
    "5,000 digits": "7" * 5000, "inf": ".inf", "1e400": "1.0e+400", "nan": ".nan",
    "nested": "[" * 15 + "1" + "]" * 15, "mapping": "{a: 1}", "superscript": "²",
    "sexagesimal": "1:30", "hexadecimal": "0x10", "tag": "!!int 3", "anchor": "&x 3",
}  # fmt: skip
VERY_SMALL = ("1.0e-300", "4.9e-324")
NOT_COST = {
    "yes": "yes", "negative": "-0.5", "text": '"3"', "1e308": "1.0e+308", "10^400": "1" + "0" * 400,
    "5,000 digits": "7" * 5000, "inf": ".inf", "1e400": "1.0e+400", "nan": ".nan", "list": "[1.0]",
    "tiny": "1.0e-300", "mapping": "{a: 1}", "least": "4.9e-324", "10^13": str(10**13),
}  # fmt: skip
NOT_SHARE = {name: value for name, value in NOT_COST.items() if value not in VERY_SMALL}
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
        (job, ("method.cannot_link_cost",), NOT_COST), (job, ("method.tol",), NOT_SHARE),
        (job, JOB_FLAGS, NOT_FLAG),
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
    job("manifest", "/dev/zero", said="/dev/zero", alone=True),
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
    job("method.must_link_cost", "1.0e+12", fine=True),
    job("method.cannot_link_cost", "1.0e-12", fine=True),
    job("text.lsa", "10000", said="n_components"),
    job("keep", "10000", fine=True),
    job("text", "{kind: hashing, n_features: 2147483647}", said="features", alone=True),
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


def yaml_case(name: str, data: Content, *, alone: bool = False, place: str = "job.yaml") -> Case:
    """Return a job file that is no plain YAML."""
    return Case(f"yaml: {name}", RUN, {"job.yaml": data}, place, alone=alone)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML = (
    yaml_case("a bomb of aliases", BOMB.encode(), alone=True),
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
    yaml_case("a device", lambda path: path.symlink_to("/dev/zero"), alone=True),
    yaml_case("a link to itself", lambda path: path.symlink_to(path)),
    yaml_case("a link to nothing", lambda path: path.symlink_to("/nowhere")),
    yaml_case("ten thousand wrong keys", b"".join(b"k%d: 1\n" % n for n in range(9_000))),
    yaml_case("a wrong key of 60,000 characters", b"x" * 1000 + b"y: 1\n"),
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


# ---- sizes beyond memory


def hashed(n_features: int, **method: Any) -> Case:
    """Return a job whose words are hashed to very many columns."""
    content = {**JOB, "text": {"kind": "hashing", "n_features": n_features}}
    content["method"] = {**JOB["method"], **method}
    return Case(f"sizes: {n_features} hashed columns, {method}", RUN,
                {"job.yaml": json.dumps(content).encode()}, "MiB", alone=True)  # fmt: skip


SIZES = (
    hashed(2**31 - 1),
    hashed(2**29),
    hashed(2**24, n_clusters=45),
    Case("sizes: hashed columns and their components", RUN, {"job.yaml": json.dumps(
        {**JOB, "text": {"kind": "hashing", "n_features": 2**20, "lsa": 10_000}}).encode()}, "MiB",
        alone=True),
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
