"""Progress on stderr: a bar where a person watches, lines elsewhere, nothing where unwanted."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hmrf_dask.errors import rows_moved
from hmrf_dask.jobs.progress import nothing

if TYPE_CHECKING:
    from rich.progress import Progress

SETTLED = 1  # documents that move when a fit is all but over


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Give a function that shows events of a job; see `hmrf_dask.jobs.progress`.

    A terminal gets a bar, anything else the lines that the loop logs. `quiet` leaves errors alone;
    warnings are those of the command (`hmrf_dask.cli.group`).
    """
    if quiet:
        with _logged(logging.ERROR):
            yield nothing
    elif sys.stderr.isatty():
        with _bar() as tell:
            yield tell
    else:
        with _logged(logging.INFO):
            yield _tell_steps


def _tell_steps(event: dict[str, Any]) -> None:
    """Log a step where it begins and where it ends; iterations are logged by the loop itself."""
    if "step" in event and event.get("done", 0) in (0, event.get("of", 0)):
        count = f" {event['done']} of {event['of']}" if event.get("of") else ""
        logging.getLogger("hmrf_dask").info("%s%s", event["step"], count)


@contextmanager
def _logged(level: int) -> Iterator[None]:
    """Write what the package logs, one line each."""
    log = logging.getLogger("hmrf_dask")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = propagate


@contextmanager
def _bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Draw one line that changes: phase, bar or iteration, J, documents moved, time, ETA."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}"),
    )
    # While the bar is drawn rich puts a stream in the place of stderr whose lines appear above it.
    with Progress(*columns, console=console, transient=True) as bar, _logged(logging.WARNING):
        yield Bar(bar).tell


class Bar:
    """Turns the events of a job into the state of the bar."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("", total=None, state="", eta="")
        self.seen: list[tuple[float, int]] = []  # when, and how many documents moved
        self.phase = ""

    def tell(self, event: dict[str, Any]) -> None:
        """Show a step or an iteration."""
        if "step" in event:
            self._enter(event["step"])
            total = event.get("of") or None
            done = event.get("done", 0)
            self.progress.update(self.task, total=total, completed=done)
            left = self.progress.tasks[0].time_remaining
            state = f"{done} of {total}" if total else ""
            eta = f"about {_span(left)} left" if left else ""
        else:
            self._enter(event["phase"])
            self.seen.append((time.monotonic(), event["moved"]))
            moved = rows_moved(event["iteration"], event["moved"])
            state = f"iteration {event['iteration']}, J {event['J']:.6g}, {moved}"
            eta = remaining(self.seen)
        self.progress.update(self.task, state=state, eta=eta)

    def _enter(self, phase: str) -> None:
        if phase != self.phase:
            self.phase, self.seen = phase, []
            self.progress.remove_task(self.task)  # a reset one would keep its total
            self.task = self.progress.add_task(phase, total=None, state="", eta="")


def remaining(seen: list[tuple[float, int]]) -> str:
    """Return how long a phase will last yet, from how fast fewer documents move; '' if unknown.

    Examples
    --------
    >>> remaining([(0.0, 1000), (2.0, 100)])
    'about 4 s left'
    >>> remaining([(0.0, 1000)])
    ''
    """
    recent = [(when, moved) for when, moved in seen[-4:] if moved > 0]
    if len(recent) < 2 or recent[-1][1] >= recent[0][1]:
        return ""
    (began, many), (now, few) = recent[0], recent[-1]
    falling = math.log(many / few) / (now - began) if now > began else math.inf
    return f"about {_span(math.log(few / SETTLED) / falling)} left"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
