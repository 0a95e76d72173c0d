"""Who may read what a run writes: `private: true`, or the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster

from hmrf_dask import KMeans
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.run_job import make_private, report_if_done, run_job
from hmrf_dask.storage.stores import LocalStorage
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run


@pytest.fixture
def umask() -> Iterator[Any]:
    """Set the umask of this process as long as a test runs."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def corpus(tmp_path: Path, umask: Any) -> JobCorpus:
    return JobCorpus(tmp_path)


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """Return the permission bits of files and of folders, the folder's own among them."""
    files, folders = set[int](), {stat.S_IMODE(folder.stat().st_mode)}
    for path in folder.rglob("*"):
        (folders if path.is_dir() else files).add(stat.S_IMODE(path.lstat().st_mode))
    return files, folders


PRIVATE = ({0o600}, {0o700})


@pytest.mark.parametrize(
    ("mask", "files", "folders"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)]
)
def test_the_umask_says_who_may_read(
    mask: int, files: int, folders: int, corpus: JobCorpus, umask: Any
) -> None:
    umask(mask)
    run(corpus.write_all(40, 4))
    assert modes(corpus.folder / "out") == ({files}, {folders})


def test_a_private_output_is_its_owners_alone(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 4, private=True)
    run(job)
    out = corpus.folder / "out"
    assert modes(out) == PRIVATE
    corpus.write(corpus.files(corpus.draw(20), first=50))
    run(job)
    run(job, mode="predict", on_bad_record="quarantine")
    assert modes(out) == PRIVATE
    assert {path.name for path in out.iterdir()} >= {"LATEST", "releases", "holders", "runs"}
    assert stat.S_IMODE(corpus.folder.joinpath("documents").stat().st_mode) == 0o755


def test_an_output_may_become_private_later(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 4)
    run(job)
    out, mine = corpus.folder / "out", corpus.folder / "mine.txt"
    mine.write_text("mine")
    (out / "runs" / "link").symlink_to(mine)
    (out / "notes.txt").write_text("mine")
    (out / "notes.txt").chmod(0o644)
    (out / "runs" / "mine.sh").write_text("mine")
    (out / "runs" / "mine.sh").chmod(0o555)
    job = corpus.write_job(private=True)  # nothing else is new
    result = CliRunner().invoke(hmrf, ["run", str(job), "--threads", "2"])
    assert (result.exit_code, "up to date" in result.stdout) == (0, True)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (mine, out / "notes.txt")] == [0o644] * 2
    assert stat.S_IMODE((out / "runs" / "mine.sh").stat().st_mode) == 0o500
    (out / "runs" / "mine.sh").unlink()
    (out / "runs" / "link").unlink()
    (out / "notes.txt").unlink()
    assert modes(out) == PRIVATE
    job = corpus.write_job()  # taken out again, it opens nothing
    corpus.write(corpus.files(corpus.draw(20), first=50))
    run(job)
    assert modes(out) == PRIVATE


@pytest.mark.cluster
def test_files_of_workers_are_private_too(process_cluster: LocalCluster, corpus: JobCorpus) -> None:
    job = str(corpus.write_all(40, 4, private=True))
    with Client(process_cluster):
        run_job(gather(load_job(job), job))
    assert modes(corpus.folder / "out") == PRIVATE


def test_an_object_store_has_its_own_rules(corpus: JobCorpus) -> None:
    job = str(corpus.write_all(40, 4, private=True, output="memory://private-files"))
    inputs = gather(load_job(job), job)
    with dask.config.set(scheduler="threads", num_workers=2):
        assert run_job(inputs).status == "done"
    assert report_if_done(inputs) is not None


def test_a_folder_of_another_user_is_refused(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(corpus.write_all(40, 4))
    job = corpus.write_job(private=True)

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    result = CliRunner().invoke(hmrf, ["run", str(job), "--threads", "2"])
    assert result.exit_code == 78
    assert "private: true must go with an output whose owner runs the job" in result.stderr


def test_private_folders_pass_it_on(tmp_path: Path, umask: Any) -> None:
    out = tmp_path / "out"
    make_private(str(out / "deep"))
    assert modes(out) == (set(), {0o755, 0o700}) or modes(out) == (set(), {0o700})
    storage = LocalStorage(str(out / "deep"), durable=True)
    storage.write("a/b/c", b"1")
    storage.create("a/d", b"1")
    storage.append("log.jsonl", b"{}\n")
    KMeans(2, random_state=0).fit([[1.0], [2.0], [5.0]]).save(out / "deep" / "model")
    assert modes(out / "deep") == PRIVATE
