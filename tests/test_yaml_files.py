"""What mistakes in manifests and job files are called: in the words of the files, not of Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hmrf_dask.documents import yaml_files
from hmrf_dask.documents.manifest import Manifest
from hmrf_dask.documents.yaml_files import parse_yaml, refuse_other_kind, validated
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs.job_file import Job

WRONG: tuple[Any, ...] = (
    None, "", "x y", "x" * 200, "²", "²" * 200, 3, -1, 10**30, 1.5, float("inf"), float("nan"),
    "1" * 5000, True, False, [], [1], ["a", "b", "c"], [[]], {}, {"a": 1}, {3: "x"},
)  # fmt: skip
PYTHON = re.compile(
    r"input|valid|tuple|dictionar|instance|string|integer|boolean|parse|literal|None|True|False|"
    r"[Ee]rror|\bstr\b|\bint\b|\blist\[|\[key\]"
)
WHOLE = {
    Job: {"$schema": "hmrf-dask/job/v1", "manifest": "m", "method": {"n_clusters": 2},
          "output": "o", "cluster": {}, "text": {}},
    Manifest: {"$schema": "hmrf-dask/manifest/v1", "name": "m", "documents": {}, "licenses": [{}],
               "sources": [{}], "storage_options": {}, "answers": {"path": "a.csv"},
               "resources": [{"name": "r", "path": "p.csv", "dialect": {}}]},
}  # fmt: skip


def _places(model: type[BaseModel], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every key that a file may have."""
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        yield here
        many = "tuple" in str(field.annotation)
        for inner in yaml_files._models_in(field.annotation):
            yield from _places(inner, (*here, 0) if many else here)


def _changed(model: type[BaseModel], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a whole file with another value at a path."""
    found: Any = parse_yaml(repr(WHOLE[model]).encode(), "whole")
    inside = found
    for step in path[:-1]:
        if isinstance(inside, dict) and step not in inside:
            inside[step] = {}
        inside = inside[step]
    inside[path[-1]] = value
    return dict(found)


@pytest.mark.parametrize("model", [Job, Manifest])
def test_no_mistake_is_explained_in_the_words_of_python(model: type[BaseModel]) -> None:
    messages = set()
    for path in _places(model):
        for value in WRONG:
            try:
                validated(model, _changed(model, path, value), "file")
            except ConfigurationError as error:
                messages.add(str(error).replace(repr(value), ""))
    assert len(messages) > 100
    assert not [words for words in messages if PYTHON.search(words)]
    assert not [words for words in messages if re.search(r"must be (must|should)", words)]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("name",), "My Job", "name: must be lower-case letters, digits"),
        (("answers",), {"a": 1}, "answers: must be a list, got a mapping"),
        (("text",), "words", "text: must be a mapping of names to values, got 'words'"),
        (("output",), "", "output: must not be empty"),
        (("keep",), 1.5, "keep: must be a whole number, got 1.5"),
        (("keep",), 0, "keep: must be at least 1, got 0"),
        (("mode",), "predit", "must be fit or predict, got 'predit' (did you mean 'predict'?)"),
        (("text", "lowercase"), 3, "text.lowercase: must be true or false, got 3"),
        (("text", "min_df"), 1.5, "text.min_df: must be a whole number or at most 1, got 1.5"),
        (("text", "refit"), "nevr", "(did you mean 'never'?)"),
        (("method", "must_link_cost"), float("inf"), "must be a finite number, got inf"),
        (("method", "closure"), None, ""),
    ],
)
def test_the_words_of_a_mistake(path: tuple[str, ...], value: Any, words: str) -> None:
    found = _changed(Job, path, value)
    if not words:
        assert validated(Job, found, "job.yaml")
        return
    with pytest.raises(ConfigurationError, match=r"^job\.yaml has a mistake: ") as caught:
        validated(Job, found, "job.yaml")
    assert words in str(caught.value)


def test_known_names_are_said_once() -> None:
    found = {**WHOLE[Job], "xylophone": 1, "weather": 2}
    with pytest.raises(ConfigurationError, match="xylophone, weather: must not be") as caught:
        validated(Job, found, "job.yaml")
    assert str(caught.value).count("known are") == 1


@pytest.mark.parametrize(
    ("text", "wanted", "words"),
    [
        ("$schema: hmrf-dask/manifest/v2\nmanifest: a", "job", "is a manifest, not a job"),
        ("resources: []", "job", "`hmrf-dask check f.yaml`"),
        ("manifest: m.yaml\nmethod: {}", "manifest", "`hmrf-dask check m.yaml`"),
        ("manifest: s3://b/m.yaml", "manifest", "`hmrf-dask check s3://b/m.yaml`"),
    ],
)
def test_a_file_of_the_other_kind(text: str, wanted: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        refuse_other_kind(parse_yaml(text.encode(), "f.yaml"), "f.yaml", wanted)
    assert words in str(caught.value)


def test_shipped_files_are_of_their_kind() -> None:
    root = Path(__file__).parents[1]
    for path in (*root.glob("data_manifests/*.yaml"), *root.glob("pipelines/*/job.yaml")):
        kind = "job" if path.name == "job.yaml" else "manifest"
        refuse_other_kind(parse_yaml(path.read_bytes(), str(path)), str(path), kind)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a: &x 1\nb: *x\n", "anchors and aliases"),
        (b"a: &a [" + b"x, " * 9 + b"x]\n", "anchors and aliases"),
        (b"a: *nobody\n", "anchors and aliases"),
        (b"a: !!binary aGk=\n", "tags are not read"),
        (b"a: !!int x\n", "tags are not read"),
        (b"a: " + b"[" * 100_000, "nested more than 20 deep"),
        (b"{" * 100_000, "nested more than 20 deep"),
        (b"a:\n" + b"".join(b" " * n + b"-\n" for n in range(1, 900)), "nested more than 20 deep"),
        (b"a: [" + b"1," * 30_000 + b"1]\n", "more than 20,000 values"),
        (b"a: " + b"x" * 70_000, "more than 65,536 characters"),
        (b"a: 1\n" * 400_000, "at most 1,048,576 bytes"),
        (b"? [1, 2]\n: x\n", "a key must be a text, got a list or more"),
        (b"? {a: 1}\n: x\n", "a key must be a text"),
        (b"on: x\n", "a key must be a text, got on; put it in quotes"),
        (b"1: x\n", "a key must be a text, got 1"),
        (b"a: 1\na: 2\n", "the key 'a' comes twice"),
        (b"a: 1.0e+400\n", "a number must be finite"),
        (b'a: "x\\0y"\n', "no NUL"),
        (b'a: "\\ud800"\n', "half of a character"),
        (b"a: \x07\n", "no control characters"),
        (b"a: 1\n---\nb: 2\n", "must be YAML"),
        ("a: é\n".encode("utf-16"), "must be UTF-8"),
        ("a: b\n".encode("utf-16-le"), "no control characters"),
        (b"%YAML 9.9\n--- x\n", "must be YAML"),
        (b"a: 'x\n", "must be YAML"),
    ],
)
def test_yaml_beyond_plain_values_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^file.*{words}") as caught:
        parse_yaml(data, "file")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"), ("010", "010"), ("0x10", "0x10"), ("1" * 5000, "1" * 5000),
        (".inf", ".inf"), (".nan", ".nan"), ("=", "="), ("2026-01-02", "2026-01-02"),
        ("1_000", 1000), ("-3", -3), ("1.5e-3", 0.0015), ("1.5e3", 1500.0), ("1e3", "1e3"),
        ("yes", True), ("~", None),
    ],
)  # fmt: skip
def test_what_a_value_without_quotes_is(text: str, value: Any) -> None:
    assert parse_yaml(f"a: {text}".encode(), "file") == {"a": value}


def test_a_merge_is_a_key_like_any_other() -> None:
    assert parse_yaml(b"<<: {a: 1}", "file") == {"<<": {"a": 1}}


@pytest.mark.parametrize("value", [True, False, "3", 3.0, 3.5, None, [3], 10**30, -1])
def test_a_whole_number_is_nothing_else(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"method\.n_clusters: must be "):
        validated(Job, _changed(Job, ("method", "n_clusters"), value), "file")


@pytest.mark.parametrize(
    ("path", "value", "must"),
    [
        (("method", "must_link_cost"), "1e3", r"a number, got '1e3' \(write 1000,"),
        (("method", "must_link_cost"), "0.5", r"a number, got '0.5' \(write 0\.5,"),
        (("method", "n_clusters"), "3", r"a whole number, got '3' \(write 3,"),  # 3.0 is refused
        (("text", "min_df"), "3", r"a whole number or a number, got '3' \(write 3,"),
    ],
)
def test_of_a_number_in_quotes_the_error_says_how_to_write_it(
    path: tuple[str, ...], value: str, must: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"must be {must} without quotes\)"):
        validated(Job, _changed(Job, path, value), "file")
