"""Streams that never end are given up: what unpacks to too much, and a server that goes on."""

from __future__ import annotations

import gzip
import http.server
import io
import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

from hmrf_dask.documents import streams
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.errors import SourceError
from hmrf_dask.storage.whole_files import read_bounded

MANY = 2**22


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_what_unpacks_to_far_more_than_its_size_is_given_up(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RATIO_FREE_BYTES", MANY // 4)
    monkeypatch.setattr(streams, "MOST_RATIO", 10)
    pack = gzip.compress if compression == "gz" else pa.Codec("zstd").compress
    packed = bytes(pack(bytes(MANY)))
    stream = decompressed(WatchedFile(io.BytesIO(packed), "a", None), compression)
    n_read = 0
    with pytest.raises(ValueError, match="unpacks to more than 10 times"):  # noqa: PT012 - counted
        while data := stream.read(2**16):
            n_read += len(data)
    assert n_read <= MANY // 4


class Endless(http.server.BaseHTTPRequestHandler):
    """Answers with bytes until nobody reads them."""

    sent = 0

    def do_HEAD(self) -> None:
        """Say nothing of a size."""
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        """Send without an end."""
        self.do_HEAD()
        with suppress(OSError):
            for _ in itertools.count():
                Endless.sent += self.wfile.write(bytes(2**16))

    def log_message(self, *args: object) -> None:
        """Be silent."""


@pytest.fixture
def endless() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/answers.csv"
    server.shutdown()
    server.server_close()


@pytest.mark.timeout(60)
def test_a_server_that_never_ends_is_read_no_further_than_allowed(endless: str) -> None:
    with pytest.raises(SourceError, match="must have at most 100,000 bytes, got more"):
        read_bounded(endless, most=100_000)
    assert Endless.sent < 2**26
