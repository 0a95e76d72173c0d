"""One run at a time on one output: exactly one wins, a dead run is skipped, a living one is not."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hmrf_dask.errors import ConfigurationError, HeldError, RunDirectoryError
from hmrf_dask.releases import lock as holding
from hmrf_dask.releases.lock import OutputLock, held, holder_of, is_alive, this_process
from hmrf_dask.storage.log import ExclusiveLog
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.storage.stores import LocalStorage, Storage, open_storage
from tests.support.output_processes import started
from tests.support.stores import Place


def storage_of(place: Place) -> Storage:
    storage = open_storage(*place, durable=True)
    storage.make_root()
    return storage


def leave(place: Place, **changes: Any) -> holding.Holder:
    """Leave a holder that did not end, as another process would."""
    storage = storage_of(place)
    process = replace(this_process(), **changes)
    number = ExclusiveLog(storage, holding.LOCK_FOLDER).newest() + 1
    other = holding.Holder(number, "other", process, holding.now(), 60.0, 0.02, "token")
    storage.create(f"holders/{number:05d}.json", other.sealed())
    return other


def sign(place: Place, other: holding.Holder, age: float) -> None:
    beat = json.dumps({"time": time.time() - age, "token": str(age)})
    storage_of(place).write(f"holders/{other.number:05d}.beat", beat.encode())


def beating() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "hmrf-holder"]


def test_a_number_that_goes_between_two_listings_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path), {}
    leave(place)
    is_done = holding._is_done

    def slowly(storage: Storage, number: int) -> bool:
        found = is_done(storage, number)
        (tmp_path / "holders" / "00001.json").unlink(missing_ok=True)  # of a run that was too late
        return found

    monkeypatch.setattr(holding, "_is_done", slowly)
    assert holder_of(*place) is None
    monkeypatch.undo()
    (tmp_path / "holders" / "00009.json").symlink_to("nothing")
    with pytest.raises(DamagedFileError, match=r"holders/00009.json must be .* remove it and run"):
        holder_of(*place)


def test_a_second_run_learns_who_holds_the_output(place: Place) -> None:
    url, options = place
    assert holder_of(url, options) is None
    with held(url, "first", storage_options=options):
        with (
            pytest.raises(HeldError, match="run first") as caught,
            held(url, "second", storage_options=options),
        ):
            pass
        assert caught.value.exit_code == 75
        words = str(caught.value)
        process = this_process()
        for said in (str(os.getpid()), socket.gethostname(), process.user, "since 20", "last sign"):
            assert said in words
        found = holder_of(url, options)
        assert found is not None
        assert found.run == "first"
    assert holder_of(url, options) is None
    with held(url, "second", storage_options=options) as hold:
        assert hold.holder.number == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_output_is_free_and_the_thread_gone_however_it_ends(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def fail() -> None:
        with held(str(tmp_path), "a", beat=0.01):
            assert len(beating()) == 1
            raise error

    with pytest.raises(error):
        fail()
    assert not beating()
    with held(str(tmp_path), "b"):
        pass


def test_signs_are_given_again_and_again(place: Place) -> None:
    url, options = place
    with held(url, "a", storage_options=options, beat=0.02):
        storage = storage_of(place)
        seen = {storage.read("holders/00001.beat")}
        while len(seen) < 3:
            seen.add(storage.read("holders/00001.beat"))
            time.sleep(0.005)


def test_a_store_that_fails_meanwhile_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def fail(*_: Any) -> None:
        failed.set()
        raise RunDirectoryError("no space left")

    with monkeypatch.context() as patch:
        with held(str(tmp_path), "a", beat=0.01):
            patch.setattr(LocalStorage, "write", fail)
            assert failed.wait(10)
        assert "could not be given free (no space left)" in caplog.text
    with pytest.raises(HeldError), held(str(tmp_path), "b"):  # its process lives
        pass
    (tmp_path / "holders" / "00001.done").touch()
    monkeypatch.setattr(LocalStorage, "write", fail)
    with pytest.raises(RunDirectoryError, match="no space left"), held(str(tmp_path), "b"):
        pass
    assert not beating()


def test_a_killed_process_of_this_machine_is_skipped_at_once(tmp_path: Path) -> None:
    output = str(tmp_path)
    process = started("hold", output)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(HeldError, match=f"process {process.pid} "), held(output, "next"):
        pass
    process.kill()
    # Nobody asks how it ended: a zombie is dead too.
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.005)
    with held(output, "next") as hold:
        assert hold.holder.number == 2
    process.wait()
    process.stdout.close()


def test_a_process_that_hangs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_HMRF__LEASE", "1 s")
    monkeypatch.setenv("DASK_HMRF__HUNG_AFTER", "1 s")
    with started("hold", str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        until = time.monotonic() + 60.0
        while True:  # it lives, but does nothing, so its signs end
            try:
                with held(str(tmp_path), "next") as hold:
                    assert hold.holder.number == 2
                break
            except HeldError:
                assert time.monotonic() < until
                time.sleep(0.1)
        assert process.poll() is None
        process.kill()


def test_a_number_that_another_process_uses_now_is_no_sign_of_life(tmp_path: Path) -> None:
    place = (str(tmp_path), {})
    leave(place, started=this_process().started - 100)
    with held(str(tmp_path), "next"):
        pass


def test_a_process_of_this_machine_that_lives_and_gives_no_sign_is_skipped(
    place: Place,
) -> None:
    url, options = place
    other = leave(place)
    sign(place, other, age=30)
    with (
        pytest.raises(HeldError, match=r"last sign 3\d s ago"),
        held(url, "next", storage_options=options),
    ):
        pass
    sign(place, other, age=10_000)
    with held(url, "next", storage_options=options) as hold:
        assert hold.holder.number == 2


def test_another_machine_has_its_lease(place: Place) -> None:
    url, options = place
    other = leave(place, machine="elsewhere", host="far", pid=1)
    with pytest.raises(HeldError, match="host far"), held(url, "next", storage_options=options):
        pass  # it has just begun, and gave no sign yet
    sign(place, other, age=30)
    with (
        pytest.raises(HeldError, match=r"last sign 3\d s ago"),
        held(url, "next", storage_options=options),
    ):
        pass
    sign(place, other, age=61)
    with held(url, "next", storage_options=options) as hold:
        assert hold.holder.number == 2


@pytest.mark.parametrize("age", [3600, -3600])
def test_a_clock_that_is_wrong_costs_nobody_the_output(
    tmp_path: Path, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (str(tmp_path), {})
    other = leave(place, machine="elsewhere")
    sign(place, other, age)
    watched: list[float] = []

    def beat_meanwhile(seconds: float) -> None:
        watched.append(seconds)
        sign(place, other, age + 1)

    monkeypatch.setattr(holding.time, "sleep", beat_meanwhile)
    with pytest.raises(HeldError), held(str(tmp_path), "next"):
        pass
    monkeypatch.setattr(holding.time, "sleep", watched.append)
    with held(str(tmp_path), "next"):
        pass
    assert watched == [0.05, 0.05]


def test_whoever_was_skipped_is_informed(place: Place) -> None:
    url, options = place
    with held(url, "first", storage_options=options) as hold:
        hold.check()
        leave(place, host="far")
        with pytest.raises(
            HeldError, match=r"another run took over .*: run other .* on host far"
        ) as caught:
            hold.check()
        assert caught.value.exit_code == 75


def test_one_of_eight_processes_wins(tmp_path: Path) -> None:
    process = started("race", str(tmp_path))
    codes, numbers = json.loads(process.communicate()[0])
    assert sorted(codes) == [0] + [75] * 7
    winner = codes.index(0)
    for number in range(8):
        answer = (tmp_path / f"tried-{number}").read_text()
        wanted = f"held by run {winner} (process {numbers[winner]} of"
        assert answer == "won" if number == winner else wanted in answer
    assert len(list((tmp_path / "holders").glob("*.json"))) == 1


def test_one_of_many_threads_wins(place: Place) -> None:
    url, options = place
    leave(place, started=-1.0)  # dead: all see it and want its place
    start, end = threading.Barrier(6), threading.Barrier(6)

    def compete(number: int) -> str:
        start.wait()
        try:
            with held(url, f"run-{number}", storage_options=options):
                end.wait()
                return "won"
        except HeldError as error:
            end.wait()
            return str(error)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(compete, range(6)))
    assert sorted(answers)[-1] == "won"
    assert answers.count("won") == 1
    winner = f"run-{answers.index('won')}"
    assert all(winner in one for one in answers if one != "won")


def test_many_runs_leave_few_files(tmp_path: Path) -> None:
    for number in range(25):
        with held(str(tmp_path), str(number)) as hold:
            assert hold.holder.number == number + 1
    assert len(list((tmp_path / "holders").iterdir())) <= 3 * 20


def test_a_number_made_long_after_it_was_free_is_no_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = storage_of((str(tmp_path), {}))
    for number in range(30):
        with held(str(tmp_path), str(number)):
            pass
    calls = [0]

    newest = ExclusiveLog.newest

    def first_sign_is_long_ago(log: ExclusiveLog) -> int:
        calls[0] += 1
        return 0 if calls[0] == 1 else newest(log)

    monkeypatch.setattr(ExclusiveLog, "newest", first_sign_is_long_ago)
    with held(str(tmp_path), "late") as hold:
        assert hold.holder.number == 31
    assert 1 not in ExclusiveLog(storage, holding.LOCK_FOLDER).numbers()


def test_credentials_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="credential"),
        held(str(tmp_path), "a", storage_options={"secret": "x"}),
    ):
        pass


def test_this_process_lives() -> None:
    own = this_process()
    assert is_alive(own) is True
    assert is_alive(replace(own, machine="elsewhere")) is None
    assert is_alive(replace(own, pid=2**22 + 1)) is False


def test_a_hold_says_who_it_is(tmp_path: Path) -> None:
    with held(str(tmp_path), "a") as hold:
        assert isinstance(hold, OutputLock)
        assert hold.holder == holder_of(str(tmp_path))


def test_a_record_that_cannot_be_read_stops_nobody_once_it_is_done(tmp_path: Path) -> None:
    with held(str(tmp_path), "one"):
        pass
    record = tmp_path / "holders" / "00001.json"
    record.write_bytes(b"{")
    assert holder_of(str(tmp_path)) is None
    with held(str(tmp_path), "two") as hold:
        assert hold.holder.number == 2
    (tmp_path / "holders" / "00002.done").unlink()
    (tmp_path / "holders" / "00002.json").write_bytes(b"{")
    with (
        pytest.raises(DamagedFileError, match=r"00002\.json .*; where no run is at work, remove"),
        held(str(tmp_path), "three"),
    ):
        pass
    for path in (tmp_path / "holders").glob("00002.*"):
        path.unlink()
    with held(str(tmp_path), "three") as hold:
        assert hold.holder.number == 2
