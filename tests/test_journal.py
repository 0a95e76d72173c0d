"""Journals of answers: whoever writes or is killed, no answer is lost, and none counts twice."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from hmrf_dask.answers import journal as journals
from hmrf_dask.answers.journal import Journal, journal_address, open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.errors import ConfigurationError, InvalidInputError, RunDirectoryError
from hmrf_dask.storage.sealed import RunUnavailableError
from tests.support.output_processes import ROOT
from tests.support.stores import Place

WRITER = """
import json, sys
from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Entry
address, options, name, count = sys.argv[1:]
journal = open_journal(address, json.loads(options))
for number in range(int(count)):
    journal.append(Entry(f"{name}-{number}", "pair", ("x", "r"), answer="same", annotator=name))
    print(number, flush=True)
"""


def entry(name: str, **changes: Any) -> Entry:
    return Entry(name, "pair", **{"documents": ("x", "r"), "answer": "same", **changes})


def writer(
    address: str, name: str, count: int, options: dict[str, Any] | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, address, json.dumps(options or {}), name, str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def said_all(process: subprocess.Popen[str]) -> int:
    """Wait for the end of a process; return its exit code."""
    with process:
        process.communicate(timeout=120)
    return process.returncode


@pytest.fixture
def journal(place: Place) -> Journal:
    url, options = place
    if "://" not in url:
        Path(url).mkdir()
    return open_journal(journal_address(url), options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_answers_are_read_back_in_the_order_in_which_they_were_given(journal: Journal) -> None:
    assert (journal.end, journal.entries().entries) == (0, ())
    journal.append()
    journal.append(entry("1"), entry("2"))
    end = journal.end
    assert end > 0
    journal.append(entry("3"))
    read = journal.entries()
    assert [one.id for one in read.entries] == ["1", "2", "3"]
    assert (read.lines, read.bad, read.end) == ((1, 2, 3), (), journal.end)
    before, later = journal.entries(until=end), journal.entries(since=end)
    assert (len(before.entries), before.end) == (2, end)
    assert ([one.id for one in later.entries], later.lines) == (["3"], (3,))
    assert journal.entries(since=journal.end).end == journal.end


def test_what_is_appended_again_counts_once(journal: Journal) -> None:
    journal.append(entry("1"))
    journal.append(entry("1"))
    journal.append(entry("1", answer="different"))
    read = journal.entries()
    assert [(one.id, one.answer) for one in read.entries] == [("1", "same")]
    assert [(bad.line, bad.reason) for bad in read.bad] == [
        (3, "an id must be of one answer, got '1', that of line 1")
    ]


def test_a_thousand_answers_of_two_processes_are_all_there_once(tmp_path: Path) -> None:
    address = str(tmp_path / "journal.jsonl")
    writers = [writer(address, name, 500) for name in ("anna", "bo")]
    assert [said_all(one) for one in writers] == [0, 0]
    read = open_journal(address).entries()
    assert read.bad == ()
    assert len(Path(address).read_bytes().splitlines()) == 1_000
    assert {one.id for one in read.entries} == {
        f"{n}-{i}" for n in ("anna", "bo") for i in range(500)
    }


def test_threads_with_objects_of_their_own_lose_nothing(place: Place) -> None:
    url, options = place
    if "://" not in url:
        Path(url).mkdir()
    address = journal_address(url)

    def write(name: str) -> None:
        own = open_journal(address, options)
        for number in range(8):
            own.append(entry(f"{name}{number}"))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, "abc"))
    read = open_journal(address, options).entries()
    assert (len(read.entries), read.bad) == (24, ())
    assert sorted(read.lines) == list(range(1, 25))


def test_two_processes_share_a_log_in_an_object_store(s3_options: dict[str, Any]) -> None:
    address = f"s3://runs/{uuid4().hex}/journal"
    writers = [writer(address, name, 8, s3_options) for name in ("anna", "bo")]
    assert [said_all(one) for one in writers] == [0, 0]
    read = open_journal(address, s3_options).entries()
    assert (len(read.entries), read.bad, read.lines) == (16, (), tuple(range(1, 17)))


def test_a_killed_writer_loses_no_answer_that_was_saved(file: Path) -> None:
    said = 0
    for attempt in range(3):
        with writer(str(file), f"anna{attempt}", 100_000) as process:
            assert process.stdout is not None
            for _ in range(30):
                process.stdout.readline()
            time.sleep(0.003 * attempt)
            os.kill(process.pid, signal.SIGKILL)
            said += 30 + len(process.stdout.read().splitlines())
    journal = open_journal(file)
    journal.append(entry("last"))
    read = journal.entries()
    assert len(read.entries) >= said + 1
    assert read.entries[-1].id == "last"
    assert len(read.bad) <= 3


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_is_cut_is_reported_and_ended_before_the_next(file: Path, cut: int) -> None:
    journal = open_journal(file)
    journal.append(entry("1"))
    end = journal.end
    file.write_bytes(file.read_bytes() + entry("2").to_line()[:cut])
    read = journal.entries()
    assert ([one.id for one in read.entries], read.end) == (["1"], end)
    assert [(bad.line, "must be JSON" in bad.reason) for bad in read.bad] == [(2, True)]
    journal.append(entry("3"))
    read = journal.entries()
    assert [one.id for one in read.entries] == ["1", "3"]
    assert ([bad.line for bad in read.bad], read.lines) == ([2], (1, 3))
    assert journal.entries(until=end).entries == (entry("1"),)


def test_a_last_line_without_its_end_counts(file: Path) -> None:
    file.write_bytes(entry("1").to_line() + entry("2").to_line().rstrip())
    journal = open_journal(file)
    read = journal.entries()
    assert (len(read.entries), read.end) == (2, file.stat().st_size)
    journal.append(entry("3"))
    later = journal.entries(since=read.end)
    assert ([one.id for one in later.entries], later.bad, later.lines) == (["3"], (), (3,))


def test_lines_of_windows_blank_ones_and_rubbish(file: Path) -> None:
    line = entry("1").to_line().rstrip()
    file.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n\0\0\0\n\xff\xfe\n[1]\n{}\n")
    read = open_journal(file).entries()
    assert read.entries == (entry("1"),)
    assert [bad.line for bad in read.bad] == [3, 4, 5, 6]


def test_a_full_disk_leaves_what_was_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(file)
    journal.append(entry("1"))
    there = file.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(there) + 10, before[1]))
    try:  # ten bytes more, as of a disk that is almost full
        with pytest.raises(RunDirectoryError, match="what was there is as it was"):
            journal.append(entry("2"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert file.read_bytes() == there

    def full(_: int, __: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RunUnavailableError, match="got no space left") as caught:
            journal.append(entry("2"))
    assert caught.value.exit_code == 75
    assert file.read_bytes() == there
    journal.append(entry("2"))
    assert [one.id for one in journal.entries().entries] == ["1", "2"]


def test_a_journal_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    for action in (lambda one: one.entries(), lambda one: one.append(entry("1"))):
        with pytest.raises(RunDirectoryError, match="a folder where a file must be"):
            action(open_journal(tmp_path))
    with pytest.raises(RunDirectoryError, match="--journal"):
        open_journal(tmp_path / "none" / "journal.jsonl").append(entry("1"))
    os.mkfifo(tmp_path / "pipe")
    for action in (lambda one: one.entries(), lambda one: one.append(entry("1"))):
        with pytest.raises(ConfigurationError, match="a pipe or a device"):
            action(open_journal(tmp_path / "pipe"))
    with pytest.raises(ConfigurationError, match="must be a folder in a bucket"):
        open_journal("s3://bucket")
    with pytest.raises(ConfigurationError, match="credential"):
        open_journal("s3://bucket/journal", {"secret": "x1"})


def test_a_writer_that_was_stopped_is_not_waited_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    journal = open_journal(file)
    journal.append(entry("1"))
    monkeypatch.setattr(journals, "PATIENCE", 0.02)
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunUnavailableError, match="another process that locks it"):
            journal.append(entry("2"))
    journal.append(entry("2"))
    assert len(journal.entries().entries) == 2


def test_what_nobody_could_read_again_is_not_written(file: Path) -> None:
    journal = open_journal(file)
    for bad in (entry("1", answer="maybe"), entry("1", annotator="\ud800"), entry("")):
        with pytest.raises(InvalidInputError):
            journal.append(entry("0"), bad)
    assert not file.exists()


def test_a_private_folder_has_a_private_journal(tmp_path: Path) -> None:
    for mode, wanted in ((0o700, 0o600), (0o755, 0o644)):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        open_journal(folder / "journal.jsonl").append(entry("1"))
        assert stat.S_IMODE((folder / "journal.jsonl").stat().st_mode) & ~0o022 == wanted


@pytest.mark.parametrize(
    "content",
    [
        {"id": "\ud800", "kind": "undo", "about": "1"},
        {"id": "2", "kind": "comment", "about": "1", "answer": "\ud800"},
        {"id": "3", "kind": "pair", "documents": ["x", "r"], "answer": "same",
         "annotator": "\udfff"},
    ],
)  # fmt: skip
def test_half_a_character_is_no_text(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content) + "\n")  # it can be read, but never written again
    lines = open_journal(file).entries()
    assert lines.entries == ()
    assert "UTF-8" in lines.bad[0].reason
