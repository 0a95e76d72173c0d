"""Processes of a machine see one another's arrays; what cannot be mapped is refused, not read."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmrf_dask.kernels import shared_memory
from hmrf_dask.kernels.shared_memory import LEAST, Mapped, Packed, Piece, machine, packed
from hmrf_dask.kernels.threads import STEP, buffer, buffers_kept, shared_buffers
from hmrf_dask.types import AnyArray

linux = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="only Linux has memory without a name"
)

OTHER = """
import pickle, sys
from hmrf_dask.kernels.shared_memory import Mapped, machine
found = Mapped().value(pickle.load(sys.stdin.buffer))
found["large"] += 1
print(machine(), found["large"].ctypes.data % 64, found["small"].tolist(), found["few"].tolist())
"""


@dataclass
class Written:
    """What another process said of a value."""

    machine: str
    numbers: str


def room(size: int) -> AnyArray:
    """Return memory that other processes may map."""
    with shared_buffers():
        return buffer((size,), np.uint8)


def seen_by_another_process(value: Packed) -> Written:
    """Return what a process of its own prints of a value, after it changed its large array."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER], input=pickle.dumps(value), capture_output=True, check=True
    )
    *name, numbers = done.stdout.decode().strip().partition(" 0 [")[::2]
    return Written(name[0], "0 [" + numbers)


@linux
def test_another_process_has_the_very_arrays() -> None:
    with buffers_kept():
        with shared_buffers():
            large = buffer((300, 5000), np.float64)
        large[...] = 3.0
        value = {"large": large[10:200], "small": np.arange(3), "few": np.zeros(0)}
        pack, _held = packed(value, room)
        found = seen_by_another_process(pack)
        assert found == Written(machine(), "0 [0, 1, 2] []")
        assert (large[10:200] == 4.0).all()
        assert (large[:10] == 3.0).all()
        assert (large[200:] == 3.0).all()


@linux
def test_large_arrays_that_lie_elsewhere_are_copied_once_and_held() -> None:
    large = np.full(LEAST, 2.0)
    pack, held = packed({"large": large, "small": np.arange(2), "few": np.zeros(1)}, room)
    assert sum(isinstance(piece, Piece) for piece in pack.pieces) == 1
    seen_by_another_process(pack)
    assert (large == 2.0).all()
    mapped = Mapped().value(pack)
    assert (mapped["large"] == 3.0).all()
    del held
    assert (mapped["large"] == 3.0).all()  # still mapped here


@linux
def test_memory_is_used_again_and_given_back_at_the_end() -> None:
    gc.collect()
    before = len(shared_memory._memories.places)
    with buffers_kept():
        first = room(STEP)
        place = shared_memory._memories.piece(first.ctypes.data, STEP)
        del first
        again = room(STEP)
        assert shared_memory._memories.piece(again.ctypes.data, STEP) == place
        assert len(shared_memory._memories.places) == before + 1
        del again
    gc.collect()
    assert len(shared_memory._memories.places) == before


@linux
def test_memory_of_a_leader_that_ended_is_let_go_of() -> None:
    packs = [packed(shared_memory.make(LEAST), room) for _ in range(2)]
    mapped = Mapped()
    mapped.value(packs[0][0])
    mapped._process = 1  # as if that one had been it
    mapped.value(packs[1][0])
    (piece,) = packs[1][0].pieces
    assert isinstance(piece, Piece)
    assert list(mapped._known) == [piece.place.name]


@linux
def test_where_memory_is_refused_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_name: str) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", refused)
    gc.collect()
    large = np.full((STEP // 8 + 1,), 2.0)
    pack, _held = packed({"large": large, "small": np.arange(2), "few": np.zeros(1)}, room)
    assert not any(isinstance(piece, Piece) for piece in pack.pieces)
    assert (Mapped().value(pack)["large"] == 2.0).all()


@linux
@pytest.mark.parametrize("lost", ["closed", "another", "process"])
def test_memory_that_is_gone_is_refused(lost: str, tmp_path: Path) -> None:
    memory = shared_memory.make(LEAST)
    pack, _held = packed({"large": np.frombuffer(memory, np.float64)}, room)
    (piece,) = pack.pieces
    assert isinstance(piece, Piece)
    with (tmp_path / "other").open("w+b") as other:
        place = piece.place._replace(
            **{
                "closed": {"file": 2**20},
                "process": {"process": 2**22 + 1},
                "another": {"file": other.fileno()},
            }[lost]
        )
        with pytest.raises(OSError, match=r"hmrf-|No such"):
            Mapped().value(Packed(pack.frame, [piece._replace(place=place)]))


def test_a_machine_without_such_memory_is_one_process(monkeypatch: Any) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    alone = machine()
    assert alone == machine()
    assert alone == f"{shared_memory._alone} {os.getpid()}"
