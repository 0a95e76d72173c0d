"""Outputs and documents in stores that fail: 75 where trying again may help, 78 where it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.storage.remote import _patient_s3, signs_of_life
from hmrf_dask.storage.sealed import RunUnavailableError
from hmrf_dask.storage.stores import open_storage
from tests.support.faulty_s3 import FaultyS3, faulty_s3
from tests.support.job_corpus import JobCorpus


@pytest.fixture
def server(s3_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    with faulty_s3(s3_options["endpoint_url"], seed=3) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        _patient_s3().clear_instance_cache()  # which knows no such variables
        yield server
        _patient_s3().clear_instance_cache()


def run(job: Path, output: str, timeout: str = "10 s") -> Result:
    with dask.config.set({"hmrf.store-timeout": timeout}):
        return CliRunner().invoke(hmrf, ["run", str(job), "--output", output, "--threads=2", "-q"])


def assert_one_line(result: Result, code: int) -> None:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("fault", "share"), [("busy", 0.6), ("silent", 0.08), ("lost", 0.08)])
def test_a_store_that_answers_now_and_then_is_asked_again(
    server: FaultyS3, fault: str, share: float
) -> None:
    setattr(server, fault, share)
    with dask.config.set({"hmrf.store-timeout": "6 s"}):
        storage = open_storage(f"s3://runs/{uuid.uuid4().hex}", {}, durable=True)
        names = [f"part-{number}" for number in range(3)]
        for name in names:
            storage.write(f"written/{name}", name.encode())
            assert storage.read(f"written/{name}") == name.encode()
            with contextlib.suppress(FileExistsError):  # ours, where the reply alone was lost
                storage.create(f"made/{name}", name.encode())
            with pytest.raises(FileExistsError):
                storage.create(f"made/{name}", b"another")
            assert storage.read(f"made/{name}") == name.encode()
        assert sorted(storage.names("written")) == names
        storage.delete([f"written/{name}" for name in names])
        assert storage.names("written") == []
    assert server.n_faults


@pytest.mark.parametrize("fault", ["busy", "silent"])
def test_a_store_that_never_answers_is_given_up_in_time(
    tmp_path: Path, server: FaultyS3, fault: str
) -> None:
    job = JobCorpus(tmp_path).write_all(40, 5)
    setattr(server, fault, 1.0)
    result = run(job, f"s3://runs/{uuid.uuid4().hex}", timeout="1 s")
    assert result.exit_code == 75, result.output
    assert "no answer from s3://runs for" in result.output
    assert "hmrf.store-timeout is 1 s" in result.output


@pytest.mark.parametrize("body", ["drips", "is cut", "stops"])
def test_an_object_that_does_not_come_whole_is_given_up_in_time(
    server: FaultyS3, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dask.config.set({"hmrf.store-timeout": "12 s"}):  # a connection may be silent for 1 s
        storage = open_storage(f"s3://runs/{uuid.uuid4().hex}", {}, durable=True)
        storage.write("rows", bytes(600))
        before = signs_of_life()
        assert storage.read("rows") == bytes(600)
        assert signs_of_life() == before + 1
    server.body = body
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    words = pytest.raises(RunUnavailableError, match=r"sent .* bytes|not completed|Read timeout")
    with dask.config.set({"hmrf.store-timeout": "2 s"}), words:
        storage.read("rows")


@pytest.mark.parametrize(
    "output", ["s4://bucket/x", "s3://No_bucket/x", "s3://there-is-no-such-bucket/x"]
)
def test_an_output_that_can_never_be_is_bad_configuration(
    tmp_path: Path, server: FaultyS3, output: str
) -> None:
    job = JobCorpus(tmp_path).write_all(40, 5)
    assert_one_line(run(job, output), 78)


@pytest.mark.parametrize("kind", ["loop", "long", "below a file"])
def test_a_local_path_that_can_never_be_is_bad_configuration(tmp_path: Path, kind: str) -> None:
    job = JobCorpus(tmp_path).write_all(40, 5)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    output = {"loop": "loop/x", "long": "x" * 300, "below a file": f"{job.name}/x"}[kind]
    assert_one_line(run(job, str(tmp_path / output)), 78)
    for command in ("check", "run"):
        result = CliRunner().invoke(hmrf, [command, str(tmp_path / output)])
        assert_one_line(result, 78)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EROFS, 78),
        (errno.EACCES, 78),
        (errno.ENOSPC, 75),
        (errno.EIO, 75),
        (errno.ESTALE, 75),
    ],
)
def test_what_a_disk_answers_decides_whether_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    job = JobCorpus(tmp_path).write_all(40, 5)
    output = tmp_path / "out"
    real = os.open

    def fail(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith(str(output)) and flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", fail)
    assert_one_line(run(job, str(output)), code)
