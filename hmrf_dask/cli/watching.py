"""What machines watch of a command: metrics for Prometheus, and events as JSON lines."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hmrf_dask.cli.group import Place, with_options
from hmrf_dask.errors import ConfigurationError, HmrfWarning

if TYPE_CHECKING:
    from hmrf_dask.progress import Tell

EVERY = 1.0  # seconds between two writes of the file
NAMES = ("metrics_file", "metrics_address", "events_file", "performance_report")
watch_options = with_options(
    click.option(
        "--metrics-file", type=Place(), help="Keep metrics of the run there, as Prometheus reads."
    ),
    click.option(
        "--metrics-address", metavar="HOST:PORT", help="Serve them there, at /metrics, meanwhile."
    ),
    click.option("--events-file", type=Place(), help="Append every step and iteration as JSON."),
    click.option(
        "--performance-report", type=Place(), help="Write Dask's own report of a cluster's work."
    ),
)
COMMITTED = {"phase", "iteration", "J", "moved", "n_rows"}  # what the event of a commit has
HELP = {
    "hmrf_iteration": "The iteration of the phase that was committed last.",
    "hmrf_energy": "J, what is minimised, after it.",
    "hmrf_rows": "Documents of the fit.",
    "hmrf_moved_rows": "Documents that changed their cluster in it.",
    "hmrf_rows_per_second": "Documents that an iteration goes through in a second.",
    "hmrf_empty_clusters": "Clusters without documents.",
    "hmrf_commits_total": "Iterations, and finished starts, that were committed.",
    "hmrf_step_done": "How much of the current step is done.",
    "hmrf_step_size": "Of how much.",
    "hmrf_start_time_seconds": "When the command began, in seconds since 1970.",
    "hmrf_last_event_time_seconds": "When something was last reported.",
    "hmrf_worker_sent_bytes_total": "Bytes of values that workers sent, to workers and the driver.",
    "hmrf_store_received_bytes_total": "Bytes that came from S3, here and to workers.",
    "hmrf_store_sent_bytes_total": "Bytes that went to S3, from here and from workers.",
    "hmrf_store_retries_total": "Requests to S3 that were made again.",
    "hmrf_task_retries_total": "Tasks that a cluster started again: failed, or lost with a worker.",
    "hmrf_succeeded": "1 once the command has ended well, 0 before that and where it has not.",
}


class Metrics:
    """The state of a run as numbers, in Prometheus' text format.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.take({"step": "count words", "done": 2, "of": 5})
    >>> [line for line in metrics.text().splitlines() if line.startswith("hmrf_step_done")]
    ['hmrf_step_done{step="count words"} 2']
    """

    def __init__(self) -> None:
        now = time.time()
        self._values: dict[str, tuple[str, float]] = {  # by name: labels, value
            "hmrf_start_time_seconds": ("", now),
            "hmrf_last_event_time_seconds": ("", now),
            "hmrf_succeeded": ("", 0),
            **{name: ("", 0) for name in HELP if name.endswith("_total")},
        }
        self._committed: tuple[str, float] | None = None  # phase and time of the last iteration
        self._lock = threading.Lock()

    def take(self, event: dict[str, Any]) -> None:
        """Take notice of a step or a commit."""
        with self._lock:
            self._set("hmrf_last_event_time_seconds", time.time())
            if "step" in event:
                label = f'{{step="{_escaped(event["step"])}"}}'
                self._set("hmrf_step_done", event.get("done", 0), label)
                self._set("hmrf_step_size", event.get("of", 0), label)
            elif event.keys() >= COMMITTED:
                self._commit(event)

    def count(self, counts: dict[str, int]) -> None:
        """Take the bytes and retries so far."""
        with self._lock:
            for name, number in counts.items():
                self._set(f"hmrf_{name}_total", number)

    def end(self) -> None:
        """Say that all went well."""
        with self._lock:
            self._set("hmrf_succeeded", 1)

    def text(self) -> str:
        """Return all that is known."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name in HELP.keys() & values.keys():
            kind = "counter" if name.endswith("_total") else "gauge"
            label, value = values[name]
            lines.append(f"# HELP {name} {HELP[name]}\n# TYPE {name} {kind}\n{name}{label} {value}")
        return "\n".join([*sorted(lines), ""])

    def _commit(self, event: dict[str, Any]) -> None:
        phase, now = str(event["phase"]), time.monotonic()
        label = f'{{phase="{_escaped(phase)}"}}'
        self._set("hmrf_commits_total", self._values["hmrf_commits_total"][1] + 1)
        self._set("hmrf_iteration", event["iteration"], label)
        self._set("hmrf_energy", event["J"], label)
        self._set("hmrf_moved_rows", event["moved"], label)
        self._set("hmrf_rows", event["n_rows"])
        if "empty" in event:
            self._set("hmrf_empty_clusters", event["empty"])
        if self._committed is not None and self._committed[0] == phase:
            seconds = max(now - self._committed[1], 1e-9)
            self._set("hmrf_rows_per_second", round(event["n_rows"] / seconds, 1))
        self._committed = phase, now

    def _set(self, name: str, value: float, label: str = "") -> None:
        if math.isfinite(value):
            self._values[name] = label, value


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def watching(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of this module out of those of a command, and return them.

    Examples
    --------
    >>> options = {"threads": 2, "events_file": "events.jsonl"}
    >>> watching(options), options
    ({'events_file': 'events.jsonl'}, {'threads': 2})
    """
    taken = {name: options.pop(name, None) for name in NAMES}
    return {name: value for name, value in taken.items() if value is not None}


@contextmanager
def watched(tell: Tell, asked: dict[str, Any]) -> Iterator[Tell]:
    """Give a function that reports to `tell`, and to whatever watches."""
    metrics, listeners = Metrics(), [tell]
    counts = _counts() if asked else None
    with ExitStack() as stack:
        if "events_file" in asked:
            listeners.append(stack.enter_context(_events(asked["events_file"])))
        if "metrics_file" in asked:
            listeners.append(stack.enter_context(_kept(metrics, asked["metrics_file"])))
        if "metrics_address" in asked:
            stack.enter_context(_served(metrics, asked["metrics_address"]))

        def tell_all(event: dict[str, Any]) -> None:
            """Report to all."""
            metrics.take(event)
            listeners[0](event)  # whoever sits in front of it waits for no cluster
            if counts is not None:
                metrics.count(counted := counts(event))
                event = event | counted if "J" in event else event
            for listener in listeners[1:]:
                listener(event)

        yield tell_all
        metrics.end()


def _counts() -> Callable[[dict[str, Any]], dict[str, int]]:
    """Return a function of an event that gives bytes and retries so far, not too often new ones."""
    counted: dict[str, int] = {}
    asked, step = -EVERY, ""

    def counts(event: dict[str, Any]) -> dict[str, int]:
        """Ask again where a step begins, or after a while."""
        nonlocal asked, step
        begins = event.get("step", step) != step
        step = event.get("step", step)
        if begins or time.monotonic() - asked > EVERY:
            from hmrf_dask.cli.traffic import traffic

            counted.update(traffic())
            asked = time.monotonic()
        return counted

    return counts


@contextmanager
def _events(path: str) -> Iterator[Tell]:
    """Append events to a file, each a line as soon as it happens."""
    with _explained("--events-file", path):
        Path(path).open("a", encoding="utf-8").close()
    with open(path, "ab", buffering=0) as file:  # a line that fails is not tried again at the end

        def write(event: dict[str, Any]) -> None:
            """Write a line: what the event says in numbers and short texts, and when it was."""
            plain = {key: one for key, one in event.items() if not isinstance(one, list | dict)}
            line = json.dumps({"time": round(time.time(), 3), **plain}, default=str)
            file.write(f"{line}\n".encode())

        yield _harmless(write, "--events-file", path)


@contextmanager
def _kept(metrics: Metrics, path: str) -> Iterator[Tell]:
    """Keep a file of metrics up to date, whole at any time; it stays when the command ends."""
    written = -EVERY

    def write() -> None:
        """Put a new file in the place of the old one."""
        folder = os.path.dirname(path) or "."
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            try:
                file.write(metrics.text())
                file.flush()
                os.fchmod(file.fileno(), 0o644)  # whoever collects it is somebody else
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise

    def take(event: dict[str, Any]) -> None:
        """Write it, not too often."""
        nonlocal written
        if not event or time.monotonic() - written > EVERY:
            written = time.monotonic()
            write()

    with _explained("--metrics-file", path):
        write()
    take_if_possible = _harmless(take, "--metrics-file", path)
    try:
        yield take_if_possible
    finally:
        take_if_possible({})


def _harmless(tell: Tell, option: str, path: str) -> Tell:
    """Report as `tell` does until that fails, which a warning says: who watches a run ends none."""
    failed = False

    def report(event: dict[str, Any]) -> None:
        """Report if that is possible yet."""
        nonlocal failed
        if failed:
            return
        try:
            tell(event)
        except OSError as error:
            failed = True
            warnings.warn(
                f"{option} {path} cannot be written any more ({error.strerror or error}); the "
                "command goes on without it",
                HmrfWarning,
                stacklevel=2,
            )

    return report


@contextmanager
def _explained(option: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{option} must be a file that can be written, got {path} ({error.strerror})"
        ) from error


@contextmanager
def _served(metrics: Metrics, address: str) -> Iterator[None]:
    """Serve metrics at /metrics as long as the command runs."""

    class Handler(BaseHTTPRequestHandler):
        """Answers with the metrics of now."""

        def do_GET(self) -> None:
            """Answer /metrics, and nothing else."""
            found = self.path == "/metrics"
            body = metrics.text().encode() if found else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write nothing: stderr is for the run."""

    host, _, port = address.rpartition(":")
    try:
        if not host:  # would be every address of this machine
            raise ValueError("no host")
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            "--metrics-address must be a free address of this machine as 127.0.0.1:9464, got "
            f"{address!r} ({error})"
        ) from error
    threading.Thread(target=server.serve_forever, name="hmrf-metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
