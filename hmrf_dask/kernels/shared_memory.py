"""Memory that the processes of a machine share: what one makes there, others see, not copied.

It has no name in any folder: other processes of the same user reach it through the process that
made it, and it is gone when the last of those that have it is. Linux has such memory; elsewhere
each process is a machine of its own.
"""

from __future__ import annotations

import mmap
import os
import pickle
import uuid
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.types import AnyArray

LEAST = 2**16  # bytes of an array that is sooner mapped than copied
_alone = uuid.uuid4().hex  # no other process has it, but those that are forked
_NAMESPACES = ("pid", "user", "net")  # processes of containers and of networks stay apart


class Place(NamedTuple):
    """Where some memory is, for other processes of the machine."""

    process: int
    file: int  # its descriptor in that process
    name: str  # that no other memory has
    size: int


class Piece(NamedTuple):
    """A part of some memory."""

    place: Place
    first: int  # byte
    size: int


class Packed(NamedTuple):
    """A value as other processes take it: its parts, and arrays in memory that they can map."""

    frame: bytes
    pieces: Sequence[Piece | bytes]


def machine() -> str:
    """Return a name that all processes have that can share memory with this one, and no others.

    Examples
    --------
    >>> machine() == machine()
    True
    """
    alone = f"{_alone} {os.getpid()}"
    if not hasattr(os, "memfd_create"):
        return alone
    try:
        spaces = [str(Path(f"/proc/self/ns/{name}").stat().st_ino) for name in _NAMESPACES]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return alone
    return " ".join([boot, str(os.getuid()), *spaces])


class _Memories:
    """The memory of this process that others may map, by the address where it begins."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}

    def make(self, size: int) -> AnyArray:
        """Return new memory of zeros."""
        name = f"hmrf-{uuid.uuid4().hex}"
        file = os.memfd_create(name)
        try:
            os.ftruncate(file, size)
            memory = np.frombuffer(mmap.mmap(file, size), np.uint8)
        except OSError:
            os.close(file)
            raise
        address = memory.ctypes.data
        self.places[address] = Place(os.getpid(), file, name, size)
        weakref.finalize(memory, self._close, address)
        return memory

    def _close(self, address: int) -> None:
        os.close(self.places.pop(address).file)

    def piece(self, first: int, size: int) -> Piece | None:
        """Return the piece of memory at an address, if it can be mapped."""
        for address, place in self.places.copy().items():
            if address <= first and first + size <= address + place.size:
                return Piece(place, first - address, size)
        return None


_memories = _Memories()
make = _memories.make


def packed(value: Any, memory_of: Callable[[int], AnyArray]) -> tuple[Packed, Any]:
    """Return a value for other processes, and what must be held as long as they have it.

    Large arrays elsewhere are copied to memory that `memory_of` gives.
    """
    arrays: list[pickle.PickleBuffer] = []
    frame = pickle.dumps(value, 5, buffer_callback=arrays.append)
    copies: list[AnyArray] = []
    pieces: list[Piece | bytes] = []
    for array in arrays:
        whole = np.frombuffer(array.raw(), np.uint8)
        piece = _memories.piece(whole.ctypes.data, whole.nbytes) if whole.nbytes else None
        if piece is None and whole.nbytes >= LEAST:
            copies.append(memory_of(whole.nbytes))
            copies[-1][...] = whole
            piece = _memories.piece(copies[-1].ctypes.data, whole.nbytes)
        pieces.append(whole.tobytes() if piece is None else piece)
    return Packed(frame, pieces), (value, copies)


class Mapped:
    """Memory of other processes, mapped here once.

    Examples
    --------
    >>> Mapped().value(packed([1, np.arange(3)], make)[0])
    [1, array([0, 1, 2])]
    """

    def __init__(self) -> None:
        self._process = 0  # whose memory it is
        self._known: dict[str, memoryview] = {}

    def value(self, packed: Packed) -> Any:
        """Return a packed value, its large arrays the very memory; OSError where that is gone."""
        arrays = [
            bytearray(one) if isinstance(one, bytes) else self._array(one) for one in packed.pieces
        ]
        return pickle.loads(packed.frame, buffers=arrays)

    def _array(self, piece: Piece) -> memoryview:
        place = piece.place
        if place.process != self._process:  # the one before ended, or memory of it would stay
            self._process, self._known = place.process, {}
        if place.name not in self._known:
            self._known[place.name] = memoryview(_mapped(place))
        return self._known[place.name][piece.first : piece.first + piece.size]


def _mapped(place: Place) -> mmap.mmap:
    """Return memory of another process; one that has its number by chance has no such name."""
    path = f"/proc/{place.process}/fd/{place.file}"
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if place.name not in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(f"shared memory must be {place.name}, got another file at {path}")
        return mmap.mmap(file, place.size)
    finally:
        os.close(file)
