"""The run directory survives: whole iterations or none, whatever dies, races or rots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.storage import stores
from hmrf_dask.storage.sealed import RunUnavailableError
from tests.support.long_cases import long
from tests.support.stores import (
    Place,
    check_whole,
    events,
    files_below,
    iterate,
    opener,
)

# --- kill: every prefix of the operations


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs, clean-up included."""


class Mortal:
    """Counts operations on something, and dies at a given one: before, after or in its middle."""

    def __init__(self, real: Any, deadly: set[str], at: int, torn: bool) -> None:
        self.real, self.deadly, self.at, self.torn = real, deadly, at, torn
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.real, name)
        if name not in self.deadly:
            return function

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at and self.torn and name == "write":
                function(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            if self.count >= self.at:
                raise Killed
            return function(*arguments, **options)

        return counted


MUTATIONS = {"open", "write", "fsync", "link", "replace", "unlink", "mkdir", "rmdir"}


def count_operations(patch: pytest.MonkeyPatch, at: int, torn: bool) -> Mortal:
    mortal = Mortal(os, MUTATIONS, at, torn)
    patch.setattr(stores, "os", mortal)
    return mortal


@pytest.mark.parametrize("torn", [True, *long(False)])
def test_a_kill_at_any_file_operation_leaves_a_whole_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a kill is no power cut

    def two_iterations(run: RunDirectory) -> None:
        for number in (2, 3):
            iterate(run, number)
            run.clean()

    with pytest.MonkeyPatch.context() as patch:
        mortal = count_operations(patch, at=10**9, torn=False)
        run = opener((str(tmp_path / "counted"), {}))()
        iterate(run, 1)
        mortal.count = 0
        two_iterations(run)
    assert mortal.count > 40
    reached = set()
    for at in range(1, mortal.count + 1):
        open_run = opener((str(tmp_path / f"run-{at}"), {}))
        run = open_run()
        iterate(run, 1)
        with pytest.MonkeyPatch.context() as patch:
            count_operations(patch, at, torn)
            with pytest.raises(Killed):
                two_iterations(run)
        resumed = open_run()
        latest = resumed.latest()
        assert latest is not None
        check_whole(resumed, latest.number)
        reached.add(latest.number)
        for number in range(latest.number + 1, 6):
            iterate(resumed, number)
            resumed.clean()
        check_whole(open_run(), 5)
        left = files_below(run.url) - {f"commits/{n:05d}.json" for n in range(1, 6)} - {"run.json"}
        assert {int(name.split("/")[-1 if "state" in name else 1][:5]) for name in left} == {4, 5}
        assert not [name for name in left if "temporary" in name]
    assert reached == {1, 2, 3}


def test_a_kill_while_the_run_is_begun_leaves_a_directory_that_can_be_opened(
    tmp_path: Path,
) -> None:
    at, ended = 0, False
    while not ended:
        at += 1
        open_run = opener((str(tmp_path / f"run-{at}"), {}))
        with pytest.MonkeyPatch.context() as patch:
            count_operations(patch, at, torn=True)
            try:
                open_run()
                ended = True
            except Killed:
                pass
        iterate(open_run(), 0)
        check_whole(open_run(), 0)
    assert at > 5


def test_a_kill_at_any_put_leaves_a_whole_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryFileSystem.pipe_file
    reached = []
    for at in range(1, 6):  # three labels, state, commit; then none is killed
        for after in (False, True):
            open_run = opener((f"memory://run-{uuid.uuid4().hex}", {}))
            run = open_run()
            iterate(run, 0)
            count = 0

            def put(self: Any, *args: Any, _at: int = at, _after: bool = after, **kw: Any) -> None:
                nonlocal count
                count += 1
                if count < _at or (count == _at and _after):
                    real(self, *args, **kw)
                if count >= _at:
                    raise Killed

            monkeypatch.setattr(MemoryFileSystem, "pipe_file", put)
            with pytest.raises(Killed):
                iterate(run, 1)
            monkeypatch.setattr(MemoryFileSystem, "pipe_file", real)
            latest = open_run().latest()
            assert latest is not None
            reached.append(latest.number)
            check_whole(open_run(), latest.number)
            again = open_run()
            for number in range(latest.number + 1, 3):
                iterate(again, number)
            check_whole(open_run(), 2)
    assert reached == [0] * 9 + [1]


def test_a_process_killed_while_it_commits_leaves_a_whole_commit(tmp_path: Path) -> None:
    program = (
        "import itertools, sys\n"
        "from tests.support.stores import iterate, opener\n"
        "run = opener((sys.argv[1], {}))()\n"
        "for number in itertools.count(): iterate(run, number); run.clean()\n"
    )
    url = tmp_path / "run"
    arguments = [sys.executable, "-c", program, str(url)]
    with subprocess.Popen(arguments, cwd=Path(__file__).parents[1]) as process:
        while not (url / "commits/00003.json").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    resumed = opener((str(url), {}))()
    latest = resumed.latest()
    assert latest is not None
    assert latest.number >= 3
    check_whole(resumed, latest.number)
    iterate(resumed, latest.number + 1)
    check_whole(resumed, latest.number + 1)


# --- races


def race(tasks: list[Callable[[], object]]) -> list[BaseException | None]:
    """Run the tasks at once and return what each raised."""
    barrier = threading.Barrier(len(tasks))
    outcomes: list[BaseException | None] = [None] * len(tasks)

    def go(index: int) -> None:
        barrier.wait()
        try:
            tasks[index]()
        except RunDirectoryError as error:
            outcomes[index] = error

    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_of_racing_committers_one_wins(place: Place) -> None:
    runs = [opener(place)() for _ in range(8)]
    for number in range(3):
        lost = [o for o in race([partial(iterate, run, number) for run in runs]) if o is not None]
        assert len(lost) == 7
        for error in lost:
            assert isinstance(error, RunUnavailableError)
            assert error.exit_code == 75
            assert "got another run writing" in str(error)
        check_whole(opener(place)(), number)


def test_of_racing_committers_in_memory_one_wins_however_slow_listing_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = MemoryFileSystem.exists

    def slow_listing(self: Any, path: str, **options: Any) -> bool:
        found: bool = look(self, path, **options)
        time.sleep(0.02)  # the others look, too, before this one writes
        return found

    place = (f"memory://run-{uuid.uuid4().hex}", {})
    runs = [opener(place)() for _ in range(4)]
    monkeypatch.setattr(MemoryFileSystem, "exists", slow_listing)
    outcomes = race([partial(run.commit, 0, {}, {}, []) for run in runs])
    assert sum(outcome is None for outcome in outcomes) == 1


def test_racing_openers_agree_on_one_configuration(place: Place) -> None:
    def begin(seed: int) -> None:
        opener(place)(config={"seed": seed})

    outcomes = race([partial(begin, seed) for seed in (0, 0, 1, 1)])
    assert sorted(o is None for o in outcomes) == [False, False, True, True]
    assert (outcomes[0] is None) == (outcomes[1] is None)


def test_racing_resumers_of_a_damaged_commit_have_one_winner(
    place: Place,
) -> None:
    first = opener(place)()
    iterate(first, 0)
    made = iterate(first, 1)
    first._storage.delete([made.files[0].name])
    runs = [opener(place)() for _ in range(4)]
    for run in runs:
        check_whole(run, 0)
    assert sorted(o is None for o in race([partial(iterate, run, 1) for run in runs])) == [
        False,
        False,
        False,
        True,
    ]
    check_whole(opener(place)(), 1)


def test_a_commit_whose_reply_was_lost_is_not_taken_for_anothers(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opener(place)()
    create = run._storage.create

    def retried(name: str, data: bytes, after: Any = ()) -> None:
        create(name, data, after)
        create(name, data, after)  # what a client library does when the first reply does not come

    monkeypatch.setattr(run._storage, "create", retried)
    iterate(run, 0)
    check_whole(run, 0)


# --- damage


def flip(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << (position % 8)
    return bytes(changed)


def damage_everywhere(data: bytes) -> Iterator[bytes]:
    """Give truncations and flipped bits all over the file, and nothing at all."""
    step = max(1, len(data) // 60)
    yield b""
    yield from (data[:length] for length in range(1, len(data) - 1, step * 3))
    yield from (flip(data, position) for position in range(0, len(data), step))


@pytest.mark.parametrize("kind", ["commit", "state", "labels", "linked"])
def test_damage_falls_back_to_the_commit_before(tmp_path: Path, kind: str) -> None:
    open_run = opener((str(tmp_path), {}))
    run = open_run()
    iterate(run, 0)
    made = iterate(run, 1)
    name = {
        "commit": "commits/00001.json",
        "state": made.state_name,
        "labels": made.files[1].name,
        "linked": made.files[2].name,
    }[kind]
    good = (tmp_path / name).read_bytes()
    for damaged in damage_everywhere(good):
        (tmp_path / name).write_bytes(damaged)
        check_whole(open_run(), 0)
    (tmp_path / name).unlink()
    check_whole(open_run(), 0)
    (tmp_path / name).write_bytes(good)
    check_whole(open_run(), 1)


def test_a_resumed_run_goes_past_damage_and_says_so(place: Place) -> None:
    run = opener(place)()
    made = [iterate(run, number) for number in range(4)]
    run._storage.delete([made[2].state_name, made[3].files[0].name])
    run._storage.write(made[3].files[0].name, b"PAR1")
    resumed = opener(place)()
    check_whole(resumed, 1)
    check_whole(resumed, 1)
    rejected = [e for e in events(resumed) if e["event"] == "commit-rejected"]
    assert [e["commit"] for e in rejected] == ["00003.json", "00002.json"]
    assert made[3].files[0].name in rejected[0]["reason"]
    assert made[2].state_name in rejected[1]["reason"]
    iterate(resumed, 2)
    resumed.clean(keep=1)  # must not take the damaged 3 for the newest
    check_whole(opener(place)(), 2)
    iterate(resumed, 3)
    resumed.clean(keep=1)
    check_whole(opener(place)(), 3)


def test_a_run_whose_every_commit_is_damaged_begins_again(tmp_path: Path) -> None:
    open_run = opener((str(tmp_path), {}))
    iterate(open_run(), 0)
    (tmp_path / "commits/00000.json").write_bytes(b"{")
    resumed = open_run()
    assert resumed.latest() is None
    iterate(resumed, 0)
    check_whole(open_run(), 0)


def test_a_store_that_fails_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://run-{uuid.uuid4().hex}"
    open_run = opener((url, {}))
    iterate(open_run(), 0)
    resumed = open_run()

    def time_out(*_: object, **__: object) -> bytes:
        raise TimeoutError("no answer for 60 s")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", time_out)
        with pytest.raises(
            RunUnavailableError, match=r"no answer for 60 s \(cannot read"
        ) as caught:
            resumed.latest()
    assert caught.value.exit_code == 75
    check_whole(resumed, 0)
