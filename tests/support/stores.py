"""Stores to test runs on (folders, memory, a fake S3) and iterations that can be checked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import fsspec
import numpy as np
import pytest

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.checkpoints.records import CheckpointStore, Commit, MemoryRun

CONFIG = {"n_clusters": 3, "seed": 7, "kernel": {"path": "numba", "instructions": "avx2"}}
FINGERPRINT = "0123456789abcdef"
Opener = Callable[..., RunDirectory]
Place = tuple[str, dict[str, Any]]


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 to test")
    pytest.importorskip("s3fs", reason="s3fs is not installed: no S3 to test")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    create_in_turn()
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        options = {"endpoint_url": f"http://{host}:{port}"}
        fsspec.filesystem("s3", **options).makedirs("runs", exist_ok=True)
        yield options
    server.stop()


def create_in_turn() -> None:
    """Let of two requests that create one object one win, as S3 has it: moto reads, then writes."""
    from moto.s3.responses import S3Response

    turns, put = Lock(), S3Response.put_object
    if put.__name__ == "put_in_turn":
        return

    def put_in_turn(response: Any) -> Any:
        with turns:
            return put(response)

    S3Response.put_object = put_in_turn


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Give an address where nothing is yet, and the options to reach it."""
    if request.param == "local":
        return str(tmp_path / "run"), {}
    if request.param == "memory":
        return f"memory://run-{uuid.uuid4().hex}", {}
    return f"s3://runs/run-{uuid.uuid4().hex}", request.getfixturevalue("s3_options")


def opener(place: Place) -> Opener:
    url, options = place

    def open_run(**changed: Any) -> RunDirectory:
        run = RunDirectory.at(url, options)
        run.begin(**{"config": CONFIG, "fingerprint": FINGERPRINT, **changed})
        return run

    return open_run


def labels_of(number: int, size: int = 100) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 5, size).astype(np.int32)


def iterate(run: CheckpointStore, number: int) -> Commit:
    """Write and commit iteration `number`: two parts of rows and one of linked rows."""
    labels = labels_of(number)
    files = [
        run.write_labels(number, "rows-00000", 0, labels[:60]),
        run.write_labels(number, "rows-00001", 60, labels[60:]),
        run.write_labels(number, "linked-00000", 0, labels[:10]),
    ]
    state = {"weights": np.linspace(0.1, 1.7, 11) * number, "scale": np.int64(2**43)}
    return run.commit(number, {"phase": "fit", "iteration": number, "J": number / 3}, state, files)


def check_whole(run: CheckpointStore, number: int) -> None:
    """Assert that the latest commit is iteration `number`, every bit of it."""
    commit = run.latest()
    assert commit is not None
    assert commit.number == number
    assert commit.record == {"phase": "fit", "iteration": number, "J": number / 3}
    np.testing.assert_array_equal(run.read_label_range(commit.files, 0, 100), labels_of(number))
    state = run.load_state(commit)
    np.testing.assert_array_equal(state["weights"], np.linspace(0.1, 1.7, 11) * number)
    assert state["scale"] == 2**43
    assert state["scale"].shape == ()


def files_below(url: str) -> set[str]:
    return {str(p.relative_to(url)) for p in Path(url).rglob("*") if p.is_file()}


def events(run: RunDirectory) -> list[dict[str, Any]]:
    run.flush_events()
    files, root = fsspec.url_to_fs(run.url, **run.storage_options)
    paths = [p for p in files.find(root) if "/events" in p]
    return [json.loads(line) for p in sorted(paths) for line in files.cat_file(p).splitlines()]


@pytest.fixture(params=["local", "scratch", "memory", "s3", "in-process"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    if request.param == "in-process":
        yield MemoryRun()
    elif request.param == "scratch":
        run = RunDirectory.scratch(str(tmp_path))
        yield run
        run.remove()
    else:
        place = (str(tmp_path / "run"), {})
        if request.param == "memory":
            place = (f"memory://run-{uuid.uuid4().hex}", {})
        if request.param == "s3":
            place = (f"s3://runs/{uuid.uuid4().hex}", request.getfixturevalue("s3_options"))
        yield opener(place)()
