"""Logs whose entries are created once: who has a number, what its file is called, what is none."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.storage.log import Entry, ExclusiveLog
from hmrf_dask.storage.stores import open_storage


@pytest.fixture(params=["folder", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> ExclusiveLog:
    url = str(tmp_path) if request.param == "folder" else f"memory://{uuid4().hex}"
    return ExclusiveLog(open_storage(url, {}, durable=True), "entries")


def test_a_number_is_of_whoever_made_it_first(log: ExclusiveLog) -> None:
    assert log.newest() == 0
    assert log.claim(7, b"mine")
    assert log.claim(7, b"mine")  # a second try of the same request
    assert not log.claim(7, b"another's")
    assert log.claim(100_000, b"mine")
    assert (log.numbers(), log.newest()) == ([100_000, 7], 100_000)
    assert log.read(7) == b"mine"
    log.delete(7)
    assert log.numbers() == [100_000]
    with pytest.raises(FileNotFoundError):
        log.read(7)


def test_a_later_generation_stands_in_for_a_damaged_entry(log: ExclusiveLog) -> None:
    assert log.claim(12, b"half")
    assert log.claim(12, b"whole", generation=1)
    assert log.claim(3, b"whole")
    assert log.entries() == [Entry(12, 1), Entry(12), Entry(3)]
    assert log.path(12, 1) == "entries/00012.r1.json"
    assert log.read(12, 1) == b"whole"
    assert log.numbers() == [12, 3]


def test_other_files_are_no_entries(log: ExclusiveLog) -> None:
    for name in (
        *("7.json", "000007.json", "0123456789.json", "00007.jsonl", "00007.r0.json"),
        *("00007.r01.json", "00007.done", ".00007.json.0123456789abcdef.temporary", "x00007.json"),
    ):
        log.storage.write(f"entries/{name}", b"")
    assert log.entries() == []
    with pytest.raises(InvalidInputError, match="0 or more, got -1"):
        log.path(-1)


def test_an_entry_that_is_a_link_to_nothing_is_nobodys(tmp_path: Path) -> None:
    log = ExclusiveLog(open_storage(str(tmp_path), {}, durable=True), "entries")
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries" / "00007.json").symlink_to("nothing")
    assert not log.claim(7, b"mine")
