"""The run directory refuses other runs, strangers, and places that cannot hold a run."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hmrf_dask.errors import ConfigurationError, RunDirectoryError
from hmrf_dask.storage.addresses import refuse_credentials
from hmrf_dask.storage.sealed import DamagedFileError, RunUnavailableError
from tests.support.stores import (
    CONFIG,
    Place,
    check_whole,
    files_below,
    iterate,
    opener,
)


def test_another_configuration_is_refused_key_by_key(place: Place) -> None:
    open_run = opener(place)
    open_run()
    other = {"n_clusters": 5, "kernel": {"path": "numba", "instructions": "avx512"}, "init": "auto"}
    with pytest.raises(RunDirectoryError) as caught:
        open_run(config=other, fingerprint="other")
    text = str(caught.value)
    assert "fingerprint: run.json has '0123456789abcdef', asked 'other'" in text
    assert "config.n_clusters: run.json has 3, asked 5" in text
    assert "config.kernel.instructions: run.json has 'avx2', asked 'avx512'" in text
    assert "config.init: run.json has nothing, asked 'auto'" in text
    assert "config.seed: run.json has 7, asked nothing" in text
    assert "config.kernel.path" not in text
    assert text.endswith("give another one; with hmrf-dask fit: --fresh)")
    assert caught.value.exit_code == 78
    open_run()


def test_the_same_configuration_in_other_words_is_accepted(tmp_path: Path) -> None:
    open_run = opener((str(tmp_path), {}))
    open_run(config={"a": (1, 2), "b": np.float64(0.1)})
    open_run(config={"b": 0.1, "a": [1, 2]})
    for changed in ({"a": [1, 2], "b": 0.1 + 2e-17}, {"a": [1, 2], "b": 0.1, "c": None}):
        with pytest.raises(RunDirectoryError, match="with another one"):
            open_run(config=changed)


@pytest.mark.parametrize(("had", "asked"), [(1, True), (1, 1.0), (0, False), ([1], 1), ({}, None)])
def test_values_that_python_takes_for_equal_are_distinguished(
    tmp_path: Path, had: Any, asked: Any
) -> None:
    open_run = opener((str(tmp_path), {}))
    open_run(config={"refine": had})
    text = re.escape(f"config.refine: run.json has {had}, asked {asked}")
    with pytest.raises(RunDirectoryError, match=text):
        open_run(config={"refine": asked})


def test_beginning_afresh_in_a_run_is_refused(place: Place) -> None:
    iterate(opener(place)(resume=False), 0)
    with pytest.raises(RunDirectoryError, match="must be new or empty to begin afresh"):
        opener(place)(resume=False)
    check_whole(opener(place)(), 0)


def test_a_directory_of_something_else_is_refused(place: Place) -> None:
    files, root = fsspec.url_to_fs(place[0], **place[1])
    if place[0].startswith("/"):
        Path(root).mkdir()
    files.pipe_file(f"{root}/thesis.tex", b"\\end")
    with pytest.raises(RunDirectoryError, match=r"with other files and no run.json \(thesis.tex\)"):
        opener(place)()


def test_a_damaged_or_edited_run_json_is_refused(tmp_path: Path) -> None:
    open_run = opener((str(tmp_path), {}))
    open_run()
    text = (tmp_path / "run.json").read_text()
    for changed in (text.replace('"seed":7', '"seed":8'), text[:-9], ""):
        (tmp_path / "run.json").write_text(changed)
        with pytest.raises(DamagedFileError, match=r"run.json must be as it was written"):
            open_run(config={**CONFIG, "seed": 8})


def test_places_that_cannot_hold_a_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases = [
        (str(tmp_path / "file"), RunDirectoryError, "file must be a folder, got a file"),
        (str(tmp_path / "file" / "below"), RunDirectoryError, "cannot make the folder"),
        ("nosuch://x/y", RunDirectoryError, "an unknown kind of store"),
        ("simplecache::memory://x", ConfigurationError, "must be a plain URL"),
        ("memory://x/[1]", ConfigurationError, "must be a plain URL"),
        ("dir://x", RunDirectoryError, "^dir://x must be .* give another place"),
        ("ftp://127.0.0.1:1/x", RunUnavailableError, "cannot open it"),
    ]
    for url, error, text in cases:
        with pytest.raises(error, match=text):
            opener((url, {}))()


def test_a_store_that_cannot_create_exclusively_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", fsspec.AbstractFileSystem.pipe_file)
        with pytest.raises(RunDirectoryError, match="got MemoryFileSystem, which cannot"):
            opener((f"memory://{uuid.uuid4().hex}", {}))()
    real = MemoryFileSystem.pipe_file

    def replacing(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        real(self, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", replacing)
    with pytest.raises(RunDirectoryError, match="which replaced one; use a newer server"):
        opener((f"memory://{uuid.uuid4().hex}", {}))()


def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(RunDirectoryError, match="on a file system with hard links"):
        opener((str(tmp_path), {}))()
    assert files_below(str(tmp_path)) == set()


def test_credentials_are_refused() -> None:
    for options in (
        {"secret": "x"},
        {"key": "x"},
        {"client_kwargs": {"aws_secret_access_key": "x"}},
        {"connection_string": "x"},
    ):
        with pytest.raises(ConfigurationError, match="must not hold a credential"):
            opener(("memory://x", options))()
    refuse_credentials({"profile": "x", "s3_additional_kwargs": {"SSEKMSKeyId": "alias"}})
