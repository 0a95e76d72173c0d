"""What mistakes in manifests and job files are called: in the words of the files, not of Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hmrf_dask.documents import mistakes
from hmrf_dask.documents.manifest import Manifest
from hmrf_dask.documents.mistakes import parse_yaml, refuse_other_kind, validated
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
        for inner in mistakes._models_in(field.annotation):
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
def test_no_mistake_is_told_in_the_words_of_python(model: type[BaseModel]) -> None:
    told = set()
    for path in _places(model):
        for value in WRONG:
            try:
                validated(model, _changed(model, path, value), "file")
            except ConfigurationError as error:
                told.add(str(error).replace(repr(value), ""))
    assert len(told) > 100
    assert not [words for words in told if PYTHON.search(words)]
    assert not [words for words in told if re.search(r"must be (must|should)", words)]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("name",), "My Job", "name: must be lower-case letters, digits"),
        (("answers",), {"a": 1}, "answers: must be a list, got {'a': 1}"),
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
