"""The run directory: what is written, what comes back, what is cleaned."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.checkpoints import records
from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile, MemoryRun
from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from hmrf_dask.storage import sealed
from hmrf_dask.storage.sealed import DamagedFileError
from tests.support.stores import (
    Place,
    check_whole,
    events,
    files_below,
    iterate,
    labels_of,
    opener,
)


def test_a_store_gives_back_what_was_committed(store: CheckpointStore) -> None:
    assert store.latest() is None
    for number in range(4):
        made = iterate(store, number)
        store.clean()
        assert store.latest() == made
        check_whole(store, number)
    assert store.final() is None
    store.finalise({"J": 0.1, "clusters": (1, 2)})
    assert store.final() == {"J": 0.1, "clusters": [1, 2]}


def test_a_store_refuses_the_same_commit_twice(store: CheckpointStore) -> None:
    iterate(store, 0)
    with pytest.raises(RunDirectoryError):
        iterate(store, 0)
    check_whole(store, 0)


def test_a_store_keeps_no_reference_to_the_callers_arrays(store: CheckpointStore) -> None:
    labels, weights = labels_of(0), np.ones(3)
    file = store.write_labels(0, "rows-00000", 0, labels)
    commit = store.commit(0, {}, {"weights": weights}, [file])
    labels[:], weights[:] = -1, -1
    np.testing.assert_array_equal(store.read_labels(file), labels_of(0))
    store.load_state(commit)["weights"][:] = -2
    np.testing.assert_array_equal(store.load_state(commit)["weights"], np.ones(3))
    assert not store.read_labels(file).flags.writeable
    assert not store.read_label_range([file], 3, 9).flags.writeable


@pytest.mark.parametrize(
    ("part", "first_row", "labels", "text"),
    [
        ("../x", 0, np.zeros(2, np.int32), "part must be lower-case letters"),
        ("rows-0", -1, np.zeros(2, np.int32), "first_row of rows-0 must be 0 or more, got -1"),
        ("rows-0", 0, np.zeros(2, np.int64), "must be a 1-D int32 array, got int64 of shape"),
        ("rows-0", 0, np.zeros((2, 1), np.int32), r"got int32 of shape \(2, 1\)"),
    ],
)
def test_a_store_refuses_what_are_no_labels(
    store: CheckpointStore, part: str, first_row: int, labels: Any, text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        store.write_labels(0, part, first_row, labels)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, np.zeros(2)])
def test_a_store_refuses_records_that_json_cannot_hold(store: CheckpointStore, value: Any) -> None:
    def commit_and_read() -> None:  # what is kept in memory becomes JSON when it is read
        store.commit(0, {"J": value}, {}, [])
        store.latest()

    with pytest.raises(InvalidInputError, match="JSON values and finite numbers"):
        commit_and_read()


# --- what is written


def test_labels_are_parquet_that_others_can_read(tmp_path: Path) -> None:
    run = opener((str(tmp_path), {}))()
    file = run.write_labels(12, "rows-00007", 700, labels_of(1))
    assert file.name.startswith("labels/00012/rows-00007-")
    assert (file.first_row, file.n_rows, file.part) == (700, 100, "rows-00007")
    table = pq.read_table(tmp_path / file.name, page_checksum_verification=True)
    np.testing.assert_array_equal(table["label"].to_numpy(), labels_of(1))
    read = run.read_labels(file)
    np.testing.assert_array_equal(read, labels_of(1))
    assert not read.flags.writeable
    assert pq.read_metadata(tmp_path / file.name).metadata[b"first_row"] == b"700"


def test_parts_of_one_task_share_a_file(store: CheckpointStore) -> None:
    labels = labels_of(3)
    second = store.write_labels(0, "rows-00001", 30, labels[30:45])
    first, last = store.write_group(
        0, [("rows-00000", 0, labels[:30]), ("rows-00002", 45, labels[45:])]
    )
    assert [(one.part, one.first_row, one.n_rows) for one in (first, last)] == [
        ("rows-00000", 0, 30),
        ("rows-00002", 45, 55),
    ]
    made = store.commit(0, {}, {}, [first, second, last])
    found = store.latest()
    assert found == made
    np.testing.assert_array_equal(store.read_labels(last), labels[45:])
    for read, wanted in zip(
        store.read_group([last, first]), (labels[45:], labels[:30]), strict=True
    ):
        np.testing.assert_array_equal(read, wanted)
        assert not read.flags.writeable
    for start, stop in [(0, 100), (29, 46), (44, 100), (50, 60), (7, 7)]:
        read = store.read_label_range(made.files, start, stop)
        np.testing.assert_array_equal(read, labels[start:stop])
    with pytest.raises(InvalidInputError, match="must be a 1-D int32 array"):
        store.write_group(0, [("rows-00000", 0, labels), ("rows-00002", 45, np.zeros(2))])  # type: ignore[list-item]


def test_a_shared_file_is_read_checked_and_removed_as_one(tmp_path: Path) -> None:
    run = opener((str(tmp_path), {}))()
    labels = labels_of(0)
    for number in range(4):
        files = run.write_group(
            number,
            [(f"rows-{part:05d}", 10 * part, labels[10 * part :][:10]) for part in range(10)],
        )
        assert len({file.name for file in files}) == 1
        made = run.commit(number, {}, {}, files)
        run.clean()
    assert sorted(path.name for path in (tmp_path / "labels").iterdir()) == ["00002", "00003"]
    assert opener((str(tmp_path), {}))().latest() == made
    read: list[str] = []
    real = type(run._storage).read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(run._storage), "read", lambda self, name: read.append(name) or real(self, name)
        )
        run.read_group(made.files)
    assert read == [made.files[0].name]
    (tmp_path / made.files[0].name).unlink()
    latest = opener((str(tmp_path), {}))().latest()
    assert latest is not None
    assert latest.number == 2


def test_a_task_waits_for_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opener((str(tmp_path), {}))()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    pieces = [(f"rows-{part:05d}", 10 * part, labels_of(part, 10)) for part in range(20)]
    files = run.write_group(0, pieces)
    assert len(synced) == 1
    run.commit(0, {}, {}, files)
    # State, commit, the folders of labels, state and commits, the one above, which has two names.
    assert len(synced) <= 10


def test_a_commit_of_files_that_no_parts_share_is_read(tmp_path: Path) -> None:
    """Commits from before parts shared files do not say where in their file they begin."""
    run = opener((str(tmp_path), {}))()
    made = iterate(run, 0)
    content = records.commit_content(made, "before")
    content["files"] = [file[:5] for file in content["files"]]
    (tmp_path / "commits" / "00000.json").write_bytes(sealed.seal(content))
    check_whole(opener((str(tmp_path), {}))(), 0)


def test_labels_are_written_and_read_without_pandas(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "from hmrf_dask.checkpoints.directory import RunDirectory\n"
        "run = RunDirectory.scratch(sys.argv[1])\n"
        "files = run.write_group(0, [('rows-00000', 0, np.arange(9, dtype=np.int32))])\n"
        "assert run.read_labels(files[0])[8] == 8\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_labels_of_more_than_one_row_group_come_back(tmp_path: Path) -> None:
    run, labels = RunDirectory.scratch(str(tmp_path)), labels_of(0, 2**20 + 5)
    read = run.read_labels(run.write_labels(0, "rows-00000", 0, labels))
    np.testing.assert_array_equal(read, labels)
    assert not read.flags.writeable


def test_the_same_content_is_written_once(tmp_path: Path) -> None:
    run = opener((str(tmp_path), {}))()
    first = run.write_labels(0, "rows-00000", 0, labels_of(1))
    before = (tmp_path / first.name).stat()
    again = run.write_labels(0, "rows-00000", 0, labels_of(1))
    other = run.write_labels(0, "rows-00000", 0, labels_of(2))
    assert again == first
    assert (tmp_path / first.name).stat() == before
    assert other.name != first.name
    assert len(list((tmp_path / "labels/00000").iterdir())) == 2


def test_the_same_content_heals_a_damaged_file(place: Place) -> None:
    run = opener(place)()
    file = run.write_labels(0, "rows-00000", 0, labels_of(1))
    run._storage.delete([file.name])
    run._storage.write(file.name, b"torn")
    with pytest.raises(DamagedFileError, match=file.name):
        run.read_labels(file)
    run.write_labels(0, "rows-00000", 0, labels_of(1))
    np.testing.assert_array_equal(run.read_labels(file), labels_of(1))


def test_names_do_not_depend_on_when_or_where(tmp_path: Path) -> None:
    one, two = opener((str(tmp_path / "1"), {}))(), opener((str(tmp_path / "2"), {}))()
    a, b = iterate(one, 3), iterate(two, 3)
    assert a == b
    named = {a.state_name, *(file.name for file in a.files)}
    for name in named:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_empty_partitions_and_empty_state_are_normal(store: CheckpointStore) -> None:
    empty = store.write_labels(0, "rows-00000", 0, np.empty(0, np.int32))
    commit = store.commit(0, {}, {}, [empty])
    assert store.read_labels(empty).shape == (0,)
    assert store.read_label_range([empty], 0, 0).dtype == np.int32
    assert store.load_state(commit) == {}


def test_state_keeps_types_and_any_name(tmp_path: Path) -> None:
    run = opener((str(tmp_path), {}))()
    state = {
        "file": np.arange(3, dtype=np.int64),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "flags": np.array([True, False]),
    }
    loaded = run.load_state(run.commit(0, {}, state, []))
    assert loaded.keys() == state.keys()
    for name, values in state.items():
        np.testing.assert_array_equal(loaded[name], values)
        assert loaded[name].dtype == values.dtype
    with pytest.raises(InvalidInputError, match="plain arrays, got 'words' of object"):
        run.commit(1, {}, {"words": np.array(["a", None])}, [])


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_bit_for_bit(value: float) -> None:
    data = sealed.seal({"J": value, "numpy": np.float64(value)})
    content = sealed.unseal(data, "x")
    for read in content.values():
        assert struct.pack("<d", read) == struct.pack("<d", value)


def test_records_take_numpy_scalars() -> None:
    record = {"n": np.int64(2**62), "a": np.float32(0.1), "done": np.bool_(True), "t": (1, 2)}
    read = sealed.round_trip(record)
    assert read == {"n": 2**62, "a": float(np.float32(0.1)), "done": True, "t": [1, 2]}


# --- ranges


@given(
    cuts=st.lists(st.integers(0, 50), max_size=6),
    bounds=st.tuples(st.integers(0, 50), st.integers(0, 50)),
    order=st.randoms(use_true_random=False),
)
def test_a_range_is_read_under_any_partitioning(
    cuts: list[int], bounds: tuple[int, int], order: Any
) -> None:
    run, labels = MemoryRun(), np.arange(50, dtype=np.int32)
    edges = [0, *sorted(cuts), 50]
    files: list[LabelsFile] = [
        run.write_labels(0, f"rows-{i:05d}", a, labels[a:b])
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]
    files.append(run.write_labels(0, "linked-00000", 0, np.full(50, -1, np.int32)))
    order.shuffle(files)
    first, last = sorted(bounds)
    np.testing.assert_array_equal(run.read_label_range(files, first, last), labels[first:last])


def test_a_range_reads_only_files_that_overlap_it(tmp_path: Path) -> None:
    run = opener((str(tmp_path), {}))()
    files = [run.write_labels(0, f"rows-{i}", 10 * i, labels_of(i, 10)) for i in range(4)]
    for far in (files[0], files[3]):
        (tmp_path / far.name).unlink()
    expected = np.concatenate([labels_of(1, 10), labels_of(2, 10)])[2:15]
    np.testing.assert_array_equal(run.read_label_range(files, 12, 25), expected)
    with pytest.raises(DamagedFileError, match=files[0].name):
        run.read_label_range(files, 9, 25)


@pytest.mark.parametrize("starts", [(0, 12), (0, 8), (2, 10)])
def test_a_range_with_gaps_or_overlaps_is_refused(starts: tuple[int, int]) -> None:
    run = MemoryRun()
    files = [
        run.write_labels(0, f"rows-{i}", row, labels_of(i, 10)) for i, row in enumerate(starts)
    ]
    with pytest.raises(DamagedFileError, match="every row from 0 to 17 once, got none or two"):
        run.read_label_range(files, 0, 18)


# --- cleaning, events, probe, end


def test_cleaning_keeps_what_kept_commits_name(place: Place) -> None:
    run = opener(place)()
    old = run.write_labels(0, "linked-00000", 0, labels_of(0))
    run.write_labels(0, "rows-00000", 0, labels_of(9))  # of an attempt that was killed
    commits = [run.commit(n, {}, {"n": np.array(n)}, [old]) for n in range(5)]
    run.clean(keep=2)
    np.testing.assert_array_equal(run.read_labels(old), labels_of(0))
    assert [run._storage.names(f) for f in ("labels", "labels/00000")] == [
        ["00000"],
        [old.name.rpartition("/")[2]],
    ]
    assert sorted(run._storage.names("state")) == [
        c.state_name.rpartition("/")[2] for c in commits[3:]
    ]
    assert sorted(run._storage.names("commits")) == [f"{n:05d}.json" for n in range(5)]


def test_cleaning_leaves_newer_files_and_strangers_alone(tmp_path: Path) -> None:
    open_run = opener((str(tmp_path), {}))
    run = open_run()
    run.clean()
    for number in range(4):
        iterate(run, number)
    ahead = run.write_labels(4, "rows-00000", 0, labels_of(4))
    (tmp_path / "labels/notes.txt").write_text("mine")
    (tmp_path / "state/notes.txt").write_text("mine")
    open_run().clean()
    run.read_labels(ahead)
    assert {"labels/notes.txt", "state/notes.txt"} <= files_below(str(tmp_path))
    assert sorted(p.name for p in (tmp_path / "labels").iterdir()) == [
        "00002",
        "00003",
        "00004",
        "notes.txt",
    ]
    check_whole(open_run(), 3)


def test_cleaning_by_a_slower_process_keeps_its_own_commit(tmp_path: Path) -> None:
    slow, fast = (opener((str(tmp_path), {}))() for _ in range(2))
    iterate(slow, 0)
    mine = iterate(slow, 1)
    for number in (2, 3):
        iterate(fast, number)
    slow.clean(keep=1)
    slow.load_state(mine)
    assert sorted(path.name for path in (tmp_path / "labels").iterdir()) == [
        "00001",
        "00002",
        "00003",
    ]


def test_events_are_lines_with_a_time(place: Place) -> None:
    run = opener(place)()
    run.event({"event": "reseed", "cluster": np.int64(3)})
    iterate(run, 0)
    run.event({"event": "end"})
    read = events(run)
    assert [e["event"] for e in read] == ["reseed", "end"]
    assert read[0]["cluster"] == 3
    assert all(e["time"].endswith("+00:00") for e in read)


def test_a_torn_event_spoils_no_other(tmp_path: Path) -> None:
    run = opener((str(tmp_path), {}))()
    run.event({"event": "one"})
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "tor')
    run.event({"event": "two"})
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["event"] == "two"


def test_the_probe_knows_who_sees_the_directory(place: Place) -> None:
    run = opener(place)()
    token = run.probe()
    worker: RunDirectory = pickle.loads(pickle.dumps(run))
    worker.check_probe(token)
    run.remove_probe(token)
    assert run._storage.names("probe") == []
    with pytest.raises(
        RunDirectoryError, match="must lie where every worker can read and write, got"
    ):
        worker.check_probe(token)


def test_a_worker_that_may_not_write_fails_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opener((str(tmp_path), {}))()
    token = run.probe()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunDirectoryError, match=r"every worker can read and write.*no permission"):
        run.check_probe(token)


def test_a_run_ends_once(place: Place) -> None:
    run = opener(place)()
    run.finalise({"J": 0.1})
    run.finalise({"J": 0.1})
    with pytest.raises(RunDirectoryError, match="must end once"):
        run.finalise({"J": 0.2})
    run._storage.delete(["FINAL.json"])
    run._storage.write("FINAL.json", b"{")
    resumed = opener(place)()
    assert resumed.final() is None
    assert events(resumed)[-1]["event"] == "final-rejected"
    resumed.finalise({"J": 0.3})
    assert opener(place)().final() == {"J": 0.3}


# --- scratch and pickling


def test_a_scratch_run_keeps_one_iteration_and_goes_away(tmp_path: Path) -> None:
    run = RunDirectory.scratch(str(tmp_path))
    for number in range(3):
        iterate(run, number)
        run.clean()
    assert [path.name for path in Path(run.url, "labels").iterdir()] == ["00002"]
    worker: RunDirectory = pickle.loads(pickle.dumps(run))
    assert not worker.durable
    run.remove()
    run.remove()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunDirectoryError, match="must be there while the run lasts"):
        worker.write_labels(3, "rows-00000", 0, labels_of(3))
    with pytest.raises(RunDirectoryError):
        worker.event({})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_while_it_is_written_to_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.scratch(str(tmp_path))
    there = os.path.isdir

    def removed_after_the_look(path: str) -> bool:
        seen = there(path)
        run.remove()
        return seen

    worker: RunDirectory = pickle.loads(pickle.dumps(run))
    monkeypatch.setattr("hmrf_dask.storage.stores.os.path.isdir", removed_after_the_look)
    with pytest.raises(RunDirectoryError):
        worker.write_labels(3, "rows-00000", 0, labels_of(3))
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"hmrf\.scratch-directory must be a folder"):
        RunDirectory.scratch(str(tmp_path / "none"))


def test_a_users_directory_is_never_removed(tmp_path: Path) -> None:
    run = opener((str(tmp_path), {}))()
    with pytest.raises(RunDirectoryError, match="on a scratch run"):
        run.remove()
    assert (tmp_path / "run.json").exists()


def test_a_run_is_small_and_absolute_when_pickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = opener(("run", {}))()
    for number in range(3):
        iterate(run, number)
    assert len(pickle.dumps(run)) < 500
    monkeypatch.chdir("/")
    check_whole(pickle.loads(pickle.dumps(run)), 2)
    check_whole(opener((f"file://{run.url}", {}))(), 2)


def test_without_durability_nothing_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    run = RunDirectory.scratch(str(tmp_path))
    iterate(run, 0)
    assert synced == []
    iterate(opener((str(tmp_path / "run"), {}))(), 0)
    assert len(synced) > 10


def test_a_commit_appears_after_all_that_it_names_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync, link, replace = os.fsync, os.link, os.replace

    def note_sync(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), tmp_path))

    def note_rename(rename: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def renamed(old: str, new: str) -> None:
            assert os.path.relpath(old, tmp_path) in synced
            rename(old, new)
            # What was synced before says nothing of the new name in the folder.
            folder = os.path.relpath(Path(new).parent, tmp_path)
            synced[:] = [
                *(name for name in synced if name != folder),
                os.path.relpath(new, tmp_path),
            ]

        return renamed

    def note_link(old: str, new: str) -> None:
        before = list(synced)
        note_rename(link)(old, new)
        if "commits" in new:
            before_commits.append(before)

    before_commits: list[list[str]] = []
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename(replace))
    monkeypatch.setattr(os, "link", note_link)
    run = opener((str(tmp_path), {}))()
    for number in range(2):
        file = run.write_labels(number, "rows-00000", 0, labels_of(number))
        assert file.name in synced
        # The worker may have been killed before it synced the folders it made: the commit does.
        synced[:] = [file.name]
        made = run.commit(number, {}, {"n": np.arange(number)}, [file])
        expected = {file.name, made.state_name, ".", "labels", "state", f"labels/{number:05d}"}
        assert expected <= set(before_commits[number])
        assert "commits" in synced


def test_a_memory_run_reads_only_its_own_labels_and_last_commit(tmp_path: Path) -> None:
    run, other = MemoryRun(), RunDirectory.scratch(str(tmp_path))
    with pytest.raises(RunDirectoryError, match="must be given labels that it wrote"):
        run.read_labels(other.write_labels(0, "rows-00000", 0, labels_of(0)))
    first = iterate(run, 0)
    iterate(run, 1)
    with pytest.raises(RunDirectoryError, match="must be asked for its last commit, got number 0"):
        run.load_state(first)
    run.event({"n": np.int64(1)})
    assert run.events == [{"n": 1}]


def test_another_process_sees_new_files_after_a_listing(
    s3_options: dict[str, Any],
) -> None:
    """A cached listing made s3fs report objects of other processes as missing."""
    url = f"s3://runs/{uuid.uuid4().hex}"
    reader = opener((url, s3_options))()
    iterate(reader, 0)
    reader.clean()
    writer = opener((url, {**s3_options, "skip_instance_cache": True}))()
    assert writer._storage.files is not reader._storage.files
    iterate(writer, 1)
    check_whole(reader, 1)
