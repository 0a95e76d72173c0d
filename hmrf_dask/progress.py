"""How far work is, in a user's words: one account of its events, shown as lines or in a notebook.

Events are dictionaries: `{"plan": [steps]}` before the first of these steps; `{"step": words,
"done": n, "of": n}` while a step goes on, maybe with a `unit` and the `documents` so far;
`{"phase", "iteration", "moved", "J", ...}` for every commit of a fit; `{"report": path}` at the
end. The bar of a terminal is in `hmrf_dask.cli.progress`.
"""

from __future__ import annotations

import html
import math
import shutil
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import pairwise
from textwrap import shorten
from typing import Any, Final, NamedTuple, TextIO

from hmrf_dask.errors import counted

Event = Mapping[str, Any]
Tell = Callable[[dict[str, Any]], None]
SoFar = Callable[[int, int], None]  # takes how much of a known number is done

COMPILING: Final = "compiling kernels (later runs have them)"
START: Final = "load the libraries"
WORDS: Final = {  # of steps whose names in records say too little
    "fit": "find clusters",
    "count words": "read documents and count words",
    "look up answers": "match answers with documents",
    "match clusters": "give clusters their numbers",
}
PHASES: Final = {
    "survey": "reading the rows, trying first centroids",
    "start": "trying starts",
    "warm-up": "warming up",
    "fit": "moving documents to their nearest clusters",
    "refine": "fine-tuning, document by document",
    "metric": "learning the metric",
    "trim": "keeping outliers out of centroids",
}
TICK: Final = 0.5  # seconds after which the clock is read again
SETTLED: Final = 1  # documents that move when a fit is all but over


def nothing(event: dict[str, Any]) -> None:
    """Report to nobody."""


def uncounted(done: int, total: int) -> None:
    """Report how much is done to nobody."""


class Seen(NamedTuple):
    """An iteration that was reported."""

    when: float
    moved: int
    energy: float
    enough: float = 0.0  # an iteration that lowers J by less ends the phase, in the long run


class Counted(NamedTuple):
    """How much of a known number is done."""

    when: float
    done: int
    total: int
    documents: int


class Account:
    """Where work stands by its events, on one clock from beginning to end.

    Examples
    --------
    >>> account = Account()
    >>> _ = account.take({"plan": ["read answers", "count words", "fit"]})
    >>> _ = account.take({"step": "count words", "done": 3, "of": 12, "unit": "files"})
    >>> account.heading, account.details()[0], round(account.share, 2)
    ('2 of 3: read documents and count words', '3 of 12 files', 0.42)
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self._plan: list[str] = []
        self._step, self._unit, self._phase = START, "", ""
        self._counts: list[Counted] = []  # the first and the last of the step, or of its starts
        self._seen: list[Seen] = []  # the iterations of the phase
        self._n_rows = self._iteration = 0
        self._memory = (-math.inf, 0)
        self.report = ""  # where it is

    def take(self, event: Event) -> bool:
        """Take an event; return whether a step begins."""
        if "plan" in event:
            self._plan = list(event["plan"])
            return False
        if "report" in event:
            self.report = event["report"]
            return False
        before = self._step, self._phase
        if "step" in event:
            self._step, self._phase = event["step"], ""
            self._unit = event.get("unit", "")
        else:
            self._phase = event["phase"]
            self._n_rows = event.get("n_rows", 0)
        if before != (self._step, self._phase):
            self._counts, self._seen = [], []
        done, total = event.get("done", event.get("iteration", 0)), event.get("of") or 0
        if total:
            now = Counted(self._now(), done, total, event.get("documents", 0))
            self._counts = [*self._counts[:1], now]
        elif "moved" in event:
            self._iteration = event["iteration"]
            numbers = event["moved"], event["J"], event["enough"]
            self._seen.append(Seen(self._now(), *numbers))
        return before[0] != self._step

    @property
    def seconds(self) -> float:
        """The seconds since the work began."""
        return self._now() - self._began

    @property
    def heading(self) -> str:
        """The step in words, with its number where the plan has it."""
        words = WORDS.get(self._step, self._step)
        if self._step in self._plan:
            return f"{self._plan.index(self._step) + 1} of {len(self._plan)}: {words}"
        return words

    @property
    def share(self) -> float | None:
        """The share of the plan, or of the only step, that is done; None if unknown."""
        counts = self._counts[-1] if self._counts and not self._phase else None
        part = counts.done / counts.total if counts else 0.0
        if self._step in self._plan:
            return (self._plan.index(self._step) + part) / len(self._plan)
        return part if counts else None

    def details(self) -> list[str]:
        """Return what else there is to say, the most important first."""
        words = [self._state(), COMPILING if is_compiling() else "", self._left(), self._rate()]
        memory = self._used()
        return [*filter(None, words), *([f"{bytes_in_words(memory)} of memory"] if memory else [])]

    def _state(self) -> str:
        if self._phase:
            state = PHASES.get(self._phase.rstrip("-0123456789"), self._phase)
            if self._counts:
                return f"{state}: {self._counts[-1].done} of {self._counts[-1].total}"
            if self._seen and self._iteration:
                moved = counted(self._seen[-1].moved, "document")
                return f"{state}: round {self._iteration}, {moved} moved"
            return state
        if not self._counts:
            return ""
        last = self._counts[-1]
        return f"{last.done:,} of {last.total:,} {self._unit}".rstrip()

    def _left(self) -> str:
        """Return how long the step, or the phase, will last yet, '' if unknown."""
        if self._seen:
            return remaining(self._seen)
        if len(self._counts) < 2:
            return ""
        first, last = self._counts
        done, seconds = last.done - first.done, self._now() - first.when
        if done <= 0 or last.done >= last.total:
            return ""
        return f"about {span(seconds / done * (last.total - last.done))} left"

    def _rate(self) -> str:
        """Return how many documents are done a second, '' if unknown."""
        if self._phase in ("fit", "warm-up") and len(self._seen) > 1:
            rounds, seconds = len(self._seen) - 1, self._seen[-1].when - self._seen[0].when
            documents = rounds * self._n_rows
        elif len(self._counts) > 1:
            first, last = self._counts
            documents, seconds = last.documents - first.documents, last.when - first.when
        else:
            return ""
        if documents <= 0 or seconds <= 0:
            return ""
        rate = documents / seconds
        rate = round(rate, 1 - math.floor(math.log10(rate)))
        return f"{rate:,.0f} documents a second" if rate >= 1 else ""

    def _used(self) -> int:
        """Return the bytes that this process and those it started use, asked now and then."""
        when, n_bytes = self._memory
        if self._now() - when > 4 * TICK:
            n_bytes = memory_used()
            self._memory = (self._now(), n_bytes)
        return n_bytes


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
    recent = [iteration for iteration in seen[-4:] if iteration.moved > 0]
    times = [iteration.when for iteration in recent]
    lefts = [_until(times, [iteration.moved for iteration in recent], SETTLED)]
    gains = [before.energy - after.energy for before, after in pairwise(recent)]
    if recent and recent[-1].enough > 0:
        lefts.append(_until(times[1:], gains, recent[-1].enough))
    known = [left for left in lefts if left is not None]
    return f"about {span(min(known))} left" if known else ""


def _until(times: Sequence[float], values: Sequence[float], end: float) -> float | None:
    """Return the seconds until values that fall by a share come to `end`, None if they rise."""
    if len(values) < 2 or not values[0] > values[-1] > 0 or times[-1] <= times[0]:
        return None
    falling = math.log(values[0] / values[-1]) / (times[-1] - times[0])
    return max(0.0, math.log(values[-1] / end) / falling)


def span(seconds: float) -> str:
    """Return a time to wait in words.

    Examples
    --------
    >>> span(0.2), span(600), span(9000)
    ('1 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def clock(seconds: float) -> str:
    """Return a time that passed as clocks show it.

    Examples
    --------
    >>> clock(61.7), clock(3661)
    ('1:01', '1:01:01')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bytes_in_words(n_bytes: int) -> str:
    """Return a number of bytes as people write it.

    Examples
    --------
    >>> bytes_in_words(412_000_000), bytes_in_words(2_340_000_000), bytes_in_words(7)
    ('412 MB', '2.3 GB', '7 bytes')
    """
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if (number := n_bytes / 1000**power) >= 1:
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"
    return f"{n_bytes} bytes"


def fitted(parts: Sequence[str], joint: str, width: int) -> str:
    """Return as many parts, joined, as fit into a width: none is cut.

    Examples
    --------
    >>> fitted(["3 of 12 files", "about 4 s left", "412 MB of memory"], ", ", 40)
    '3 of 12 files, about 4 s left'
    """
    shown: list[str] = []
    for part in parts:
        if len(joint.join([*shown, part])) <= width:
            shown.append(part)
    return joint.join(shown)


def memory_used() -> int:
    """Return the bytes of memory that this process and those it started hold; 0 if unknown."""
    import psutil

    try:
        own = psutil.Process()
        return sum(process.memory_info().rss for process in [own, *own.children(recursive=True)])
    except psutil.Error:  # one that ended meanwhile
        return 0


def is_compiling() -> bool:
    """Return whether kernels are compiled in this process now."""
    if "hmrf_dask.kernels.code_cache" not in sys.modules:  # numba takes a second to import
        return False
    from hmrf_dask.kernels.code_cache import compiling

    return compiling()


def compile_seconds() -> float:
    """Return for how long kernels were compiled in this process, from the first call on."""
    timer = _compile_timer()
    return float(timer.duration) if timer.done else 0.0


@cache
def _compile_timer() -> Any:
    from numba.core import event

    timer = event.TimingListener()
    event.register("numba:compile", timer)
    return timer


# ---- faces of the account


class Face(AbstractContextManager[Tell]):
    """Shows an account: where a step begins, and where nothing was shown for a while."""

    def __init__(self, after: float = 0.0) -> None:
        self.account = Account()
        self._after = after  # seconds: nothing is shown of shorter work
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._shown = -math.inf  # when, by the account's clock
        self._began = False  # whether anything was reported
        self._ticker = threading.Thread(target=self._tick, name="hmrf-progress", daemon=True)

    def __enter__(self) -> Tell:
        """Return what events are reported to."""
        self._ticker.start()
        return self._tell

    def __exit__(self, kind: object, *_: object) -> None:
        """End with how long it took, if anything was shown."""
        self._ended.set()
        self._ticker.join()
        if self._shown >= 0:
            self.show_end(failed=kind is not None)

    def _tell(self, event: dict[str, Any]) -> None:
        with self._lock:
            begins = self.account.take(event)
            self._began |= "plan" not in event
            if (begins and self.account.seconds >= self._after) or self._is_due():
                self._show()

    def _tick(self) -> None:
        while not self._ended.wait(TICK):
            with self._lock:
                if self._is_due():
                    self._show()

    def _is_due(self) -> bool:
        seconds = self.account.seconds
        is_late = seconds - self._shown >= self.pause(seconds)
        return self._began and is_late and seconds >= self._after

    def _show(self) -> None:
        self._shown = self.account.seconds
        self.show()

    @abstractmethod
    def pause(self, seconds: float) -> float:
        """Return for how long nothing more need be shown, so many seconds after the beginning."""

    @abstractmethod
    def show(self) -> None:
        """Show the account."""

    @abstractmethod
    def show_end(self, *, failed: bool) -> None:
        """Show that the work ended."""


class Lines(Face):
    """Lines on a stream: one where a step begins, and one now and then while it goes on."""

    def __init__(self, stream: TextIO, after: float = 0.0) -> None:
        super().__init__(after)
        self._stream = stream
        columns = shutil.get_terminal_size().columns if stream.isatty() else 10_000
        self._width = max(columns - 10, 1)  # less what the clock takes

    def pause(self, seconds: float) -> float:
        """Return 4 seconds in the first minute, up to a minute after a quarter of an hour."""
        return max(4.0, min(60.0, seconds / 15))

    def show(self) -> None:
        """Write the step and all that is known of it."""
        heading = shorten(self.account.heading, self._width, placeholder="", break_on_hyphens=False)
        self._write(fitted([heading, *self.account.details()], ", ", self._width))

    def show_end(self, *, failed: bool) -> None:
        """Write that it is done; why it failed is said by the error."""
        if not failed:
            report = self.account.report
            self._write(f"done, the report is {report}" if report else "done")

    def _write(self, words: str) -> None:
        self._stream.write(f"{clock(self.account.seconds):>7}  {words}\n")
        self._stream.flush()


class Notebook(Face):
    """A bar in the output of a notebook's cell, which the browser draws."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None

    def __enter__(self) -> Tell:
        """Draw the bar."""
        from IPython.display import display

        self._handle = display(self._drawn("starting"), raw=True, display_id=True)
        return super().__enter__()

    def pause(self, seconds: float) -> float:  # noqa: ARG002 - one interval, however long it takes
        """Return a second."""
        return 1.0

    def show(self) -> None:
        """Draw the account."""
        self._handle.update(self._drawn(self.account.heading, self.account.details()), raw=True)

    def show_end(self, *, failed: bool) -> None:
        """Draw how it ended."""
        report = [f"the report is {self.account.report}"] if self.account.report else []
        end = self._drawn("stopped") if failed else self._drawn("done", report, 1.0)
        self._handle.update(end, raw=True)

    def _drawn(
        self, words: str, details: Sequence[str] = (), share: float | None = None
    ) -> dict[str, str]:
        share = self.account.share if share is None else share
        value = "" if share is None else f' value="{share:.3f}"'
        text, more = f"{clock(self.account.seconds)}  {words}", ", ".join(details)
        return {
            "text/plain": ", ".join(filter(None, [text, more])),
            "text/html": f'<div><progress max="1"{value}></progress> {html.escape(text)}'
            f"<br><small>{html.escape(more)}</small></div>",
        }


def in_notebook() -> bool:
    """Return whether this is a notebook's kernel, whose cells show more than text."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def verbosely(verbose: int, tell: Tell = nothing, *, step: str = "") -> Iterator[Tell]:
    """Give what events are reported to: `tell`, and where `verbose` lines or a notebook's bar.

    These begin with a `step`, if one is named.
    """
    if not verbose or (sys.stderr is None and not in_notebook()):  # as under pythonw
        yield tell
        return
    with Notebook() if in_notebook() else Lines(sys.stderr) as shown:

        def both(event: dict[str, Any]) -> None:
            """Report to both."""
            tell(event)
            shown(event)

        if step:
            shown({"step": step})
        yield both
