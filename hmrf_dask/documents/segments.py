"""Segments of one large file, each read by a task of its own.

JSON Lines are cut at bytes, and a line is of the segment it begins in; Parquet is cut between row
groups. Where depends on the size of the file alone. What is compressed as a whole, and CSV, whose
quoted cells may hold line ends, can only be read from the front.
"""

from __future__ import annotations

from dataclasses import replace
from typing import BinaryIO

from hmrf_dask.documents.sources import Source
from hmrf_dask.documents.streams import BLOCK_BYTES, WatchedFile, open_file
from hmrf_dask.storage.remote import explained

SEGMENT_BYTES = 64 * 2**20


def segments_of(source: Source) -> list[Source]:
    """Return a file in segments of at least `SEGMENT_BYTES`, or as it is."""
    n_segments = source.size // SEGMENT_BYTES
    if n_segments < 2 or not is_cut(source):
        return [source]
    bounds = [source.size * number // n_segments for number in range(n_segments + 1)]
    return [replace(source, span=(bounds[n], bounds[n + 1])) for n in range(n_segments)]


def is_cut(source: Source) -> bool:
    """Return whether a file is cut if it is large."""
    return source.format == "parquet" or (source.format, source.compression) == ("jsonl", "none")


class SegmentLines(WatchedFile):
    """The lines that begin in a span of a file, as if there were no others."""

    def __init__(self, file: BinaryIO, name: str, span: tuple[int, int]) -> None:
        super().__init__(file, name, None)
        self._place = max(span[0] - 1, 0)  # that byte shows whether a line begins with the next
        self._end = span[1]
        self._skips = span[0] > 0
        self._ended = False
        self.n_lines = 0
        self.seek(self._place)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of these lines."""
        while not self._ended and (data := super().read(size)):
            lines = self._taken(data)
            if lines:
                self.n_lines += lines.count(b"\n")
                return lines
        return b""

    def _taken(self, data: bytes) -> bytes:
        """Return what bytes have of these lines."""
        start = self._place
        self._place += len(data)
        if self._skips:
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
            self._skips = not cut
            self._ended = (start if cut else self._place) >= self._end
            if self._skips or self._ended:
                return b""
        if self._place >= self._end:  # the line with the last byte of the span is the last one
            cut = data.find(b"\n", max(self._end - 1 - start, 0)) + 1
            self._ended = bool(cut)
            return data[:cut] if cut else data
        return data


def lines_before(source: Source) -> int:
    """Return how many lines of a JSON Lines file begin before a segment of it."""
    if source.format != "jsonl" or source.span is None or not source.span[0]:
        return 0
    left, n_lines = source.span[0] - 1, 1
    with explained(source.path, "open it"):
        opened = open_file(source.url, dict(source.options))
    with opened:
        file = WatchedFile(opened, source.path, None)
        while left and (data := file.read(min(BLOCK_BYTES, left))):
            left -= len(data)
            n_lines += data.count(b"\n")
    return n_lines
