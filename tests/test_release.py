"""Releases are whole: a reader sees the old one or the new one, whenever the writer is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.errors import HeldError
from hmrf_dask.releases import lock, ownership
from hmrf_dask.releases.lock import held, open_output
from hmrf_dask.releases.own_files import record
from hmrf_dask.releases.ownership import clean
from hmrf_dask.releases.release import (
    Contents,
    DamagedReleaseError,
    Release,
    damages,
    hashed,
    latest,
    publish,
    read_file,
)
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.storage.stores import LocalStorage, Storage, open_storage
from tests.support.output_processes import called, content_of, publish_run, sha256_of
from tests.support.output_processes import release as dying_release
from tests.support.stores import Place, files_below


def storage_of(place: Place) -> Storage:
    storage = open_storage(*place, durable=True)
    storage.make_root()
    return storage


def write_files(storage: Storage, run_id: str) -> dict[str, str]:
    names = [f"runs/{run_id}/assignments/part-00000-of-00001.parquet", f"runs/{run_id}/run.json"]
    for name in names:
        storage.write(name, content_of(name))
    return {name: sha256_of(name) for name in names}


def release(place: Place, run_id: str, *, keep: int | None = None, **changes: Any) -> Release:
    url, options = place
    with held(url, run_id, storage_options=options) as hold:
        record(storage_of(place), run_id, [f"runs/{run_id}"])
        files = write_files(storage_of(place), run_id)
        asked = {
            "run_id": run_id,
            "previous": latest(url, options),
            "contents": Contents(files, {"a.jsonl": [1, "x"]}, {"documents": 3}, "m"),
        } | changes
        made = publish(hold, **asked)
        if keep is not None:
            clean(hold, keep)
        return made


def check_whole(output: str) -> str:
    """Assert that the newest release is whole, and return its run."""
    found = latest(output)
    assert found is not None
    assert damages(open_output(output), found) == []
    for name in found.files:
        assert read_file(open_output(output), name, found.files[name]) == content_of(name)
    return found.run


def test_what_was_published_is_read(place: Place) -> None:
    url, options = place
    assert latest(url, options) is None
    first = release(place, "one")
    found = latest(url, options)
    assert found == first
    assert (first.number, first.run, first.parent) == (1, "one", None)
    assert first.ledger == {"a.jsonl": [1, "x"]}
    assert first.counts == {"documents": 3}
    second = release(place, "two")
    assert latest(url, options) == second
    assert (second.number, second.parent) == (2, "one")
    assert json.loads(storage_of(place).read("LATEST")) == {"release": 2, "run": "two"}
    name = "runs/two/run.json"
    assert read_file(storage_of(place), name, second.files[name]) == content_of(name)
    assert hashed(storage_of(place), [name]) == {name: sha256_of(name)}
    assert damages(storage_of(place), second) == []


def test_damage_is_named(place: Place) -> None:
    found = release(place, "one")
    storage = storage_of(place)
    storage.write("runs/one/run.json", b"other")
    storage.delete(["runs/one/assignments/part-00000-of-00001.parquet"])
    problems = damages(storage, found)
    assert len(problems) == 2
    assert (
        "runs/one/assignments/part-00000-of-00001.parquet must be as it was published"
        in problems[0]
    )
    assert "got none" in problems[0]
    assert "runs/one/run.json" in problems[1]
    assert "got 5 bytes" in problems[1]
    with pytest.raises(DamagedFileError, match=r"runs/one/run.json .*5 bytes"):
        read_file(storage, "runs/one/run.json", found.files["runs/one/run.json"])


def test_a_damaged_release_is_named(tmp_path: Path) -> None:
    release((str(tmp_path), {}), "one")
    path = tmp_path / "releases" / "00001.json"
    kept = path.read_text()
    path.write_text(kept.replace('"documents":3', '"documents":4'))
    with pytest.raises(DamagedFileError, match=r"releases/00001.json .*checksum"):
        latest(str(tmp_path))
    path.unlink()
    with pytest.raises(DamagedFileError, match=r"releases/00001.json must be there"):
        latest(str(tmp_path))
    path.write_text(kept)
    for wrong in (b"", b"{}", b'{"release": "x", "run": 1}', b"[1]"):
        (tmp_path / "LATEST").write_bytes(wrong)
        with pytest.raises(DamagedFileError, match="LATEST must name a release"):
            latest(str(tmp_path))
    (tmp_path / "LATEST").write_text('{"release": 1, "run": "other"}')
    with pytest.raises(DamagedFileError, match="LATEST must name the run"):
        latest(str(tmp_path))
    (tmp_path / "LATEST").unlink()
    assert check_whole(str(tmp_path)) == "one"


def test_a_release_has_all_its_files(place: Place) -> None:
    url, options = place
    with pytest.raises(DamagedFileError, match=r"got none of runs/one/more \(1 missing\)"):
        release(
            place,
            "one",
            contents=Contents({"runs/one/run.json": "0", "runs/one/more": "1"}, [], {}, "m"),
        )
    assert latest(url, options) is None


def test_the_same_run_publishes_once(place: Place) -> None:
    url, options = place
    first = release(place, "one")
    storage_of(place).delete(["LATEST"])  # as if killed before
    assert release(place, "one", previous=None) == first
    assert latest(url, options) == first


def test_a_run_that_was_skipped_publishes_nothing(place: Place) -> None:
    url, options = place
    files = write_files(storage_of(place), "late")
    asked: dict[str, Any] = {"contents": Contents(files, [], {}, "m")}
    with held(url, "late", storage_options=options) as hold:
        # The number is the fence where a check came too early.
        publish(hold, run_id="other", previous=None, **asked)
        with pytest.raises(HeldError, match="release 1 of run other") as caught:
            publish(hold, run_id="late", previous=None, **asked)
        assert caught.value.exit_code == 75
        storage_of(place).write("holders/00001.done", b"")
        with (
            held(url, "next", storage_options=options),
            pytest.raises(HeldError, match=r"took over .*run next "),
        ):
            publish(hold, run_id="late", previous=latest(url, options), **asked)
    found = latest(url, options)
    assert found is not None
    assert found.number == 1


def test_old_runs_go_and_what_is_named_stays(place: Place) -> None:
    url, options = place
    storage = storage_of(place)
    killed, a, b, c, d, e = map(called, "0abcde")
    record(storage, killed, [f"runs/{killed}"])
    write_files(storage, killed)
    for run_id in (a, b, c):
        release(place, run_id, keep=2)
    assert sorted(storage.names("runs")) == [b, c]
    assert sorted(storage.names("releases")) == ["00001.json", "00002.json", "00003.json"]
    kept = storage.read("releases/00003.json")
    storage.delete(["releases/00002.json", "releases/00003.json", "LATEST"])
    with pytest.raises(DamagedReleaseError, match=r"after releases/00001\.json, whose files were"):
        latest(url, options)
    storage.write("releases/00003.json", kept)
    storage.write("LATEST", f'{{"release": 3, "run": "{c}"}}'.encode())
    # A release of new documents alone names the files of the run before.
    found = latest(url, options)
    assert found is not None
    files = write_files(storage, d) | found.files
    release(place, d, keep=1, contents=Contents(files, [], {}, "m"))
    assert sorted(storage.names("runs")) == [c, d]
    # LATEST was not replaced: what it names stays.
    storage.write("LATEST", f'{{"release": 3, "run": "{c}"}}'.encode())
    assert release(place, e, previous=latest(url, options)).number == 5
    storage.write("LATEST", f'{{"release": 3, "run": "{c}"}}'.encode())
    with held(url, e, storage_options=options) as hold:
        assert clean(hold, 1) == [d]
    assert sorted(storage.names("runs")) == [c, e]


def test_records_of_old_releases_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "HISTORY", 5)
    place = (str(tmp_path), {})
    for number in range(12):
        release(place, f"run-{number}", keep=2)
        assert check_whole(str(tmp_path)) == f"run-{number}"
    names = sorted(path.name for path in (tmp_path / "releases").iterdir())
    assert names == [f"{number:05}.json" for number in range(8, 13)]
    # Numbers stay taken: one that slept for all this time publishes nothing.
    with pytest.raises(HeldError, match="got number 3 where there is 12"):
        release(place, "slept", number=3)
    assert sorted(path.name for path in (tmp_path / "releases").iterdir()) == names
    assert check_whole(str(tmp_path)) == "run-11"
    # What is no record of an old release stays.
    mine = tmp_path / "releases" / "00002.json"
    mine.write_text("mine")
    release(place, "last", keep=2)
    assert mine.read_text() == "mine"


def test_halves_of_files_that_killed_writers_left_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_KEPT", 2)
    publish_run(str(tmp_path), called("a"))
    end = f"{'0' * 32}.temporary"
    halves = [f".LATEST.{end}", f"releases/.00002.json.{end}", f"made/.{called('a')}.json.{end}"]
    halves += [f"holders/.00001.{kind}.{end}" for kind in ("json", "beat", "done")]
    others = [f".mine.txt.{end}", f"releases/.mine.json.{end}", "made/.mine", f"runs/.mine.{end}"]
    for name in (*halves, *others):
        (tmp_path / name).write_text("half")
    for name in "bcd":
        publish_run(str(tmp_path), called(name))
    assert {name for name in halves if (tmp_path / name).exists()} == set()
    assert {name for name in others if not (tmp_path / name).exists()} == set()


def test_cleaning_leaves_the_run_in_progress(tmp_path: Path) -> None:
    release((str(tmp_path), {}), called("a"))
    storage, now = open_storage(str(tmp_path), {}, durable=True), called("0")
    record(storage, now, [f"runs/{now}"])
    write_files(storage, now)
    with held(str(tmp_path), now) as hold:
        assert clean(hold) == []
    with held(str(tmp_path), "later") as hold:
        assert clean(hold) == [now]
    assert not (tmp_path / "runs" / now).exists()


def test_a_folder_that_stays_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (str(tmp_path), {})
    a, c = called("a"), called("c")
    for name in "abc":
        release(place, called(name))

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("not yours")

    with held(str(tmp_path), c) as hold:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuse)
            assert clean(hold) == []
        assert f"runs/{a} could not be removed (not yours)" in caplog.text
        assert clean(hold) == [a]


class Killed(BaseException):
    """Ends a writer in the middle, as a kill does: nothing after it is written."""


@pytest.mark.parametrize("when", range(1, 20))
def test_a_writer_killed_anywhere_leaves_whole_releases(
    tmp_path: Path, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path)
    for name in "abc":
        publish_run(output, called(name))
    left = [when]

    def mortal(name: str) -> Any:
        method = getattr(LocalStorage, name)

        def call(self: LocalStorage, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                raise Killed
            return method(self, *arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("create", "write", "sync_folders", "delete"):
            patch.setattr(LocalStorage, name, mortal(name))
        try:
            publish_run(output, called("d"))
        except Killed:
            assert check_whole(output) in (called("c"), called("d"))
    (tmp_path / "holders" / "00004.done").touch()  # this process lives: it cannot seem dead
    publish_run(output, called("d"))
    assert check_whole(output) == called("d")
    kept = {name for name in files_below(output) if name.startswith("runs/")}
    runs = {name.split("/")[1] for name in kept}
    assert called("d") in runs
    assert len(runs) == 2


@pytest.mark.parametrize("when", [7, 11])
def test_a_process_killed_while_it_publishes(tmp_path: Path, when: int) -> None:
    import multiprocessing

    output = str(tmp_path)
    for name in "abc":
        publish_run(output, called(name))
    process = multiprocessing.get_context("spawn").Process(
        target=dying_release, args=(output, called("d"), str(when))
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert check_whole(output) in (called("c"), called("d"))
    publish_run(output, called("d"))
    assert check_whole(output) == called("d")
