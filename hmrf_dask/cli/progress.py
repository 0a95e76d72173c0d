"""Progress on stderr: a bar where a person watches, lines elsewhere, nothing where unwanted."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

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
        self.seen: list[Seen] = []  # the iterations of the phase
        self.phase = ""

    def tell(self, event: dict[str, Any]) -> None:
        """Show a step or an iteration."""
        if "step" in event:
            self._enter(event["step"])
            state, eta = self._counted(event.get("done", 0), event.get("of") or None)
        elif event["phase"] == "start":
            self._enter("starts")
            state, eta = self._counted(event["iteration"], event["of"])
            state = f"{state}, {_energy(event)}"
        else:
            self._enter(event["phase"])
            numbers = event["moved"], event["J"], event["enough"]
            self.seen.append(Seen(time.monotonic(), *numbers))
            moved = rows_moved(event["iteration"], event["moved"])
            state = f"iteration {event['iteration']}, {_energy(event)}, {moved}"
            eta = remaining(self.seen)
        self.progress.update(self.task, state=state, eta=eta)

    def _counted(self, done: int, total: int | None) -> tuple[str, str]:
        """Draw how much of a known number is done; return it, and the time left, in words."""
        self.progress.update(self.task, total=total, completed=done)
        left = self.progress.tasks[0].time_remaining
        return f"{done} of {total}" if total else "", f"about {_span(left)} left" if left else ""

    def _enter(self, phase: str) -> None:
        if phase != self.phase:
            self.phase, self.seen = phase, []
            self.progress.remove_task(self.task)  # a reset one would keep its total
            self.task = self.progress.add_task(phase, total=None, state="", eta="")


def _energy(event: dict[str, Any]) -> str:
    """Return J, and how much of it is a document's: at once a first answer to how good this is."""
    return f"J {event['J']:.6g} ({event['J'] / max(event['n_rows'], 1):.4f} a document)"


class Seen(NamedTuple):
    """An iteration that was shown."""

    when: float
    moved: int
    energy: float
    enough: float = 0.0  # an iteration that lowers J by less ends the phase, in the long run


def remaining(seen: Sequence[Seen]) -> str:
    """Return how long a phase will last yet, '' if unknown.

    It ends where no document moves or J falls too little; both fall by about the same share in
    every iteration.

    Examples
    --------
    >>> remaining([Seen(0.0, 1000, 9.0), Seen(2.0, 100, 8.0)])
    'about 4 s left'
    >>> remaining([Seen(0.0, 1000, 9.0)])
    ''
    """
    recent = [one for one in seen[-4:] if one.moved > 0]
    times = [one.when for one in recent]
    lefts = [_until(times, [one.moved for one in recent], SETTLED)]
    gains = [one.energy - after.energy for one, after in pairwise(recent)]
    if recent and recent[-1].enough > 0:
        lefts.append(_until(times[1:], gains, recent[-1].enough))
    known = [left for left in lefts if left is not None]
    return f"about {_span(min(known))} left" if known else ""


def _until(times: Sequence[float], values: Sequence[float], end: float) -> float | None:
    """Return the seconds until values that fall by a share come to `end`, None if they rise."""
    if len(values) < 2 or not values[0] > values[-1] > 0 or times[-1] <= times[0]:
        return None
    falling = math.log(values[0] / values[-1]) / (times[-1] - times[0])
    return max(0.0, math.log(values[-1] / end) / falling)


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
