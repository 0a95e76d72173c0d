"""An S3 with faults: a proxy before moto's server that swallows some requests, or answers 503.

What happens to a request is drawn from a seed. A swallowed one may have been done before: its reply
alone is lost.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUSY = (
    b"<Error><Code>ServiceUnavailable</Code><Message>Please reduce your request rate."
    b"</Message></Error>"
)


class FaultyS3(ThreadingHTTPServer):
    """A proxy before a server that speaks S3.

    Attributes
    ----------
    busy, silent, lost : float
        The share of requests that are answered 503, never reach the server and get no answer, and
        are done without an answer.
    body : str
        How objects come: "drips" byte by byte, "is cut", "stops" half-way; "" whole.
    n_requests, n_faults : int
        So far.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, behind: str, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind.removeprefix("http://")
        self.busy = self.silent = self.lost = 0.0
        self.body = ""
        self.n_requests = self.n_faults = 0
        self.closing = threading.Event()
        self._chosen = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away: a command under test may have standard error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def fault(self) -> str:
        """Return what happens to the next request: "busy", "silent", "lost" or nothing."""
        with self._lock:
            drawn = self._chosen.random()
            self.n_requests += 1
            for name in ("busy", "silent", "lost"):
                drawn -= getattr(self, name)
                if drawn < 0:
                    self.n_faults += 1
                    return name
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyS3

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault()
        if fault == "busy":
            self._reply(503, [("Content-Type", "application/xml")], BUSY)
            return
        if fault != "silent":
            status, headers, data = self._asked(body)
        if fault:
            self.close_connection = True
            self.server.closing.wait()  # the connection stays, and nothing comes
            return
        self._reply(status, headers, data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

    def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        headers = {key: value for key, value in self.headers.items() if key != "Connection"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        skipped = {"connection", "transfer-encoding", "date", "server"}
        headers = [(key, value) for key, value in answer.getheaders() if key.lower() not in skipped]
        connection.close()
        return answer.status, headers, data

    def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        if "content-length" not in {key.lower() for key, _ in headers}:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET" and self.server.body and "list-type" not in self.path:
            self._bring(data)
        elif self.command != "HEAD":
            self.wfile.write(data)

    def _bring(self, data: bytes) -> None:
        """Bring some of an object."""
        self.close_connection = True
        if self.server.body != "drips":
            self.wfile.write(data[: len(data) // 2])
            self.server.closing.wait(0 if self.server.body == "is cut" else None)
            return
        with contextlib.suppress(OSError):  # nobody reads any more
            for byte in data:
                self.wfile.write(bytes([byte]))
                if self.server.closing.wait(0.02):
                    return

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def faulty_s3(behind: str, seed: int = 0) -> Iterator[FaultyS3]:
    """Give a proxy before a server, without faults yet."""
    server = FaultyS3(behind, seed)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
