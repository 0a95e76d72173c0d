"""Memory that processes of one machine share: filled once, never half, never left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.kernels import machine_room
from hmrf_dask.kernels.machine_room import LEAST, shared_room

if not machine_room.FOLDER.is_dir():
    pytest.skip("this system has no files in RAM", allow_module_level=True)

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use an empty folder; at the end nothing may be in it."""
    monkeypatch.setattr(machine_room, "FOLDER", tmp_path)
    machine_room._remove_left.cache_clear()
    yield tmp_path
    machine_room._remove_left.cache_clear()
    assert list(tmp_path.iterdir()) == []


def ones(memory: Any) -> None:
    memory[:] = 1


def never(memory: Any) -> None:
    raise AssertionError("it is there already")


def _hold(folder: Path, pipe: Any, *, dies: bool) -> None:
    """Fill memory in a process of its own; tell, and wait for a word before it goes."""
    machine_room.FOLDER = folder

    def fill(memory: Any) -> None:
        memory[:] = 7
        if dies:
            pipe.send("half")
            pipe.recv()

    room = shared_room("other", LEAST, fill)
    pipe.send("filled" if room is not None else "none")
    pipe.recv()


@pytest.fixture
def other(folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """Start a process that fills `other`; yield it and its pipe."""
    pipe, theirs = SPAWN.Pipe()
    dies = getattr(request, "param", False)
    process = SPAWN.Process(target=_hold, args=(folder, theirs), kwargs={"dies": dies})
    process.start()
    assert pipe.recv() == ("half" if dies else "filled")
    yield process, pipe
    if process.is_alive():
        pipe.send("go")
    process.join()


def test_a_second_process_maps_what_the_first_filled(other: tuple[Any, Any], folder: Path) -> None:
    room = shared_room("other", LEAST, never)
    assert room is not None
    assert (room == 7).all()
    assert room.ctypes.data % 64 == 0
    room[0] = 9
    again = shared_room("other", LEAST, never)
    assert again is not None
    assert again[0] == 9, "the same memory, not a copy"
    process, pipe = other
    pipe.send("go")
    process.join()
    assert len(list(folder.iterdir())) == 1, "we still use it"
    assert room[1] == 7


def test_memory_outlives_the_process_that_filled_it(other: tuple[Any, Any]) -> None:
    room = shared_room("other", LEAST, never)
    process, _ = other
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert room is not None
    assert (room == 7).all()


@pytest.mark.parametrize("other", [True], indirect=True)
def test_what_a_killed_process_began_is_filled_anew(other: tuple[Any, Any]) -> None:
    process, _ = other
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    room = shared_room("other", LEAST, ones)
    assert room is not None
    assert (room == 1).all()


@pytest.mark.parametrize("other", [True], indirect=True)
def test_files_of_killed_processes_are_removed(other: tuple[Any, Any], folder: Path) -> None:
    process, _ = other
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert len(list(folder.iterdir())) == 1
    assert shared_room("mine", LEAST, ones) is not None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("other", [True], indirect=True)
def test_nobody_waits_for_ever(other: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_room, "PATIENCE", 0.05)
    assert shared_room("other", LEAST, never) is None
    process, _ = other
    process.kill()
    process.join()
    assert shared_room("other", LEAST, ones) is not None


def test_no_room_left_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert shared_room("mine", LEAST, never) is None


@pytest.mark.parametrize(("name", "size"), [("", LEAST), ("mine", LEAST - 1)])
def test_what_nobody_shares_is_not_made(name: str, size: int) -> None:
    assert shared_room(name, size, never) is None


def test_a_failed_fill_leaves_nothing() -> None:
    with pytest.raises(AssertionError, match="already"):
        shared_room("mine", LEAST, never)
