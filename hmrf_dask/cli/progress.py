"""Progress on stderr: a bar where a person watches, lines elsewhere, nothing where unwanted."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from hmrf_dask.progress import Face, Lines, Tell, clock, fitted, nothing

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

BAR = 20  # cells
AFTER = 1.0  # seconds: lines of shorter commands are only in the way of what they found


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Tell]:
    """Give a function that shows events of a job; see `hmrf_dask.progress`.

    A terminal gets a bar, anything else lines. `quiet` leaves errors alone; warnings are those of
    the command (`hmrf_dask.cli.group`).
    """
    if quiet:
        with _logged(logging.ERROR):
            yield nothing
    elif (console := _terminal()) is not None:
        with Bar(console) as tell, _logged(logging.WARNING):
            yield tell
    else:
        with Lines(sys.stderr, AFTER) as tell, _logged(logging.INFO):
            yield tell


def _terminal() -> Console | None:
    """Return the terminal of stderr if it has one that can move its cursor."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return None if console.is_dumb_terminal else console


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


class Bar(Face):
    """Two lines at the bottom of a terminal, gone at the end; what others write appears above.

    The first has the step, a bar and the clock, the second as much more as fits.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        super().__init__()
        # While it is drawn, rich puts a stream in the place of stderr whose lines go above it.
        self._live = Live(self, console=console, refresh_per_second=5, transient=True)

    def __enter__(self) -> Tell:
        """Draw the bar."""
        self._live.start()
        return super().__enter__()

    def __exit__(self, *ended: object) -> None:
        """Take the bar away, however it ended."""
        super().__exit__(*ended[:1])
        self._live.stop()

    def pause(self, seconds: float) -> float:  # noqa: ARG002 - rich draws it at its own pace
        """Return a second."""
        return 1.0

    def show(self) -> None:
        """Do nothing: rich draws it."""

    def show_end(self, *, failed: bool) -> None:
        """Do nothing: what the command found is printed next."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw both lines, no longer than the terminal is wide."""
        from rich.text import Text

        with self._lock:
            account, width = self.account, options.max_width
            heading, share, details = account.heading, account.share, account.details()
        signs = UTF_8 if console.encoding.startswith("utf") else ASCII
        time = clock(account.seconds)
        heading = shorten(
            heading, max(width - len(time) - 4, 1), placeholder="", break_on_hyphens=False
        )
        frame = signs.frames[int(5 * account.seconds) % len(signs.frames)]
        line = Text.assemble((frame, "cyan"), f" {heading}  ", no_wrap=True)
        if share is not None and width - line.cell_len - len(time) - 2 >= BAR:
            done = round(share * BAR)
            line.append(signs.done * done, "green")
            line.append(signs.left * (BAR - done) + "  ", "dim")
        yield line.append(time)
        yield Text(f"  {fitted(details, ', ', width - 2)}", "dim", no_wrap=True)


class Signs(NamedTuple):
    """What a bar is drawn with."""

    frames: str
    done: str
    left: str


UTF_8, ASCII = Signs("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "━", "─"), Signs("|/-\\", "#", "-")
