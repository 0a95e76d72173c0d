"""What is shown of work while it goes on: a bar, lines, a notebook's bar, or nothing."""

from __future__ import annotations

import io
import logging
import re
import sys
import time
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hmrf_dask import LSA, KMeans
from hmrf_dask.cli.group import HmrfCommand
from hmrf_dask.cli.progress import Bar, shown_progress
from hmrf_dask.errors import HmrfWarning
from hmrf_dask.progress import COMPILING, TICK, Account, Lines, Seen, remaining, verbosely

PLAN = {"plan": ["read answers", "count words", "fit"]}


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def iteration(number: int, moved: int, **more: Any) -> dict[str, Any]:
    values = {"J": 100.0 / number, "n_rows": 2000, "enough": 1e-3}
    return {"phase": "fit", "iteration": number, "moved": moved, **values, **more}


def test_an_account_numbers_steps_and_says_how_much_is_done_how_fast_and_how_long_yet(
    clock: Clock,
) -> None:
    account = Account(clock)
    account.take(PLAN)
    assert account.take({"step": "count words", "done": 0, "of": 0})
    files = {"step": "count words", "of": 12, "unit": "files"}
    account.take({**files, "done": 0, "documents": 0})
    clock.now = 10.0
    assert not account.take({**files, "done": 4, "documents": 5213})
    assert account.heading == "2 of 3: read documents and count words"
    assert account.share == pytest.approx((1 + 4 / 12) / 3)
    state, left, rate, memory = account.details()
    assert (state, left, rate) == ("4 of 12 files", "about 20 s left", "520 documents a second")
    assert re.fullmatch(r"[\d.]+ [MG]B of memory", memory)
    assert account.seconds == 10.0  # one clock, whatever the step


def test_an_account_of_a_fit_speaks_of_rounds_and_documents_that_moved(clock: Clock) -> None:
    account = Account(clock)
    account.take({"step": "fit"})
    assert not account.take({"phase": "survey"})
    assert (account.heading, account.share) == ("find clusters", None)
    account.take({"phase": "start", "iteration": 3, "of": 16, "J": 90.0, "n_rows": 100})
    assert account.details()[0] == "trying starts: 3 of 16"
    account.take(iteration(1, 1000))
    clock.now = 2.0
    account.take(iteration(2, 100))
    words = "moving documents to their nearest clusters: round 2, 100 documents moved"
    assert account.details()[:3] == [words, "about 4 s left", "1,000 documents a second"]
    account.take({**iteration(31, 1), "phase": "refine"})
    assert account.details()[0].endswith("round 31, 1 document moved")


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ([], ""),
        ([(0.0, 100)], ""),
        ([(0.0, 100), (1.0, 100)], ""),
        ([(0.0, 1000), (2.0, 100)], "about 4 s left"),
        ([(0.0, 10**8), (1200.0, 10**7)], "about 2.3 h left"),
    ],
)
def test_the_end_is_guessed_from_how_fast_fewer_documents_move(
    seen: list[tuple[float, int]], text: str
) -> None:
    assert remaining([Seen(when, moved, 1.0) for when, moved in seen]) == text


def test_the_end_is_guessed_from_how_fast_smaller_gains_are_made() -> None:
    energies = [100.0, 90.0, 89.0, 88.9]  # gains 10, 1, .1
    seen = [Seen(float(when), 50, one, 1e-3) for when, one in enumerate(energies)]
    assert remaining(seen) == "about 2 s left"
    assert remaining([one._replace(enough=0.0) for one in seen]) == ""
    moving = [one._replace(moved=10 ** (6 - at)) for at, one in enumerate(seen)]
    assert remaining(moving) == "about 2 s left"  # gains end it sooner than the 3 s of the rows


def test_lines_say_where_a_step_begins_and_how_it_goes_on_now_and_then(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.account = Account(clock)
    monkeypatch.setattr("hmrf_dask.progress.memory_used", lambda: 412_000_000)
    compiling = [False]
    monkeypatch.setattr("hmrf_dask.progress.is_compiling", lambda: compiling[0])
    with lines as tell:
        tell(PLAN)
        tell({"step": "count words", "done": 0, "of": 0})
        for done in range(200):
            clock.now = done / 20
            compiling[0] = done > 120
            tell({"step": "count words", "done": done, "of": 200, "unit": "files"})
        clock.now = 62.0
    shown = re.sub(r"about \d+ s left", "about N s left", stream.getvalue()).splitlines()
    memory = "412 MB of memory"
    head = "2 of 3: read documents and count words"
    assert shown == [
        f"   0:00  {head}, {memory}",
        f"   0:04  {head}, 80 of 200 files, about N s left, {memory}",
        f"   0:08  {head}, 160 of 200 files, {COMPILING}, about N s left, {memory}",
        "   1:02  done",
    ]


def test_lines_of_a_narrow_terminal_say_at_least_the_step(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "26")
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    lines = Lines(stream)
    lines.account = Account(clock)
    with lines as tell:
        tell(PLAN)
        tell({"step": "count words", "done": 3, "of": 12, "unit": "files"})
    assert stream.getvalue().splitlines()[0] == "   0:00  2 of 3: read"


def test_without_stderr_a_fit_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert KMeans(2, verbose=1, random_state=0).fit([[0.0, 1.0], [1.0, 0.0]]).n_clusters_ == 2


def test_lines_are_never_silent_though_nothing_is_reported(clock: Clock) -> None:
    stream = io.StringIO()
    lines = Lines(stream, after=1.0)
    lines.account = Account(clock)
    with lines as tell:
        tell({"step": "weigh words"})
        assert not stream.getvalue()  # an error may come first, which is to stand alone
        clock.now = 1.0
        tell({"step": "publish"})
        clock.now = 5.5
        for _ in range(100):
            if len(stream.getvalue().splitlines()) > 1:
                break
            time.sleep(TICK / 5)
    shown = [re.sub(r", [^,]* of memory", "", line) for line in stream.getvalue().splitlines()]
    assert shown == ["   0:01  publish", "   0:05  publish", "   0:05  done"]


def drawn(width: int, *, utf: bool = True) -> list[str]:
    """Return the lines of a bar."""
    file = io.TextIOWrapper(io.BytesIO(), "utf-8" if utf else "ascii")
    console = Console(file=file, force_terminal=True, width=width, highlight=False)
    bar = Bar(console)
    bar.account.take(PLAN)
    bar.account.take({"step": "count words", "done": 3, "of": 12, "unit": "files"})
    return ["".join(part.text for part in line).rstrip() for line in console.render_lines(bar)]


@pytest.mark.parametrize(("width", "utf"), [(80, True), (80, False), (40, True), (12, True)])
def test_the_bar_fits_the_terminal_and_cuts_no_word(width: int, utf: bool) -> None:
    lines = drawn(width, utf=utf)
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    first, second = lines
    if width == 80:
        assert first[1:] == f" 2 of 3: read documents and count words  {bar_of(8, utf)}  0:00"
        assert second.startswith("  3 of 12 files, ")
    words = {"2", "of", "3:", "read", "documents", "and", "count", "words", "0:00"}
    assert set(re.sub(r"[━─#-]+", "", first)[1:].split()) <= words


def bar_of(done: int, utf: bool) -> str:
    full, empty = "━─" if utf else "#-"
    return full * done + empty * (20 - done)


def test_what_others_write_appears_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal)

    def work() -> None:
        with shown_progress(quiet=False) as tell:
            tell({"step": "count words", "done": 3, "of": 12})
            warnings.warn("2 rows are zero", HmrfWarning, stacklevel=1)
            logging.getLogger("hmrf_dask").warning("2 clusters are empty")

    HmrfCommand("work", callback=work).main([], standalone_mode=False)
    moves = re.compile(r"^.*\x1b\[(2K|\?25l)")  # the bar is erased, and something takes its place
    lines = [moves.sub("", line) for line in terminal.getvalue().split("\n")]
    assert "warning: 2 rows are zero" in lines
    assert "2 clusters are empty" in lines


@pytest.mark.parametrize("term", ["dumb", "pipe"])
def test_lines_where_no_cursor_can_be_moved(
    term: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if term == "dumb":
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("hmrf_dask.cli.progress.AFTER", 0.0)
    with shown_progress(quiet=False) as tell:
        tell({"step": "weigh words", "done": 0, "of": 0})
        logging.getLogger("hmrf_dask").info("a cold start")
        logging.getLogger("hmrf_dask").debug("fit 1: J 3")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("   0:00  weigh words")
    assert (second, third) == ("a cold start", "   0:00  done")


def test_quiet_leaves_errors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=True) as tell:
        tell({"step": "count words", "done": 0, "of": 0})
        logging.getLogger("hmrf_dask").info("fit 1: J 3")
        logging.getLogger("hmrf_dask").warning("2 clusters are empty")
        logging.getLogger("hmrf_dask").error("a task was lost")
    assert capsys.readouterr().err == "a task was lost\n"


ROWS = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])


def test_verbose_shows_a_fit_and_changes_nothing_of_it(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = KMeans(2, random_state=0).fit(ROWS, run_dir=tmp_path / "run")
    assert capsys.readouterr() == ("", "")
    shown = KMeans(2, random_state=0, verbose=1).fit(ROWS, run_dir=tmp_path / "run")  # resumed
    out, err = capsys.readouterr()
    assert out == ""
    first, *_, last = err.splitlines()
    assert first.startswith("   0:00  find clusters")
    assert last.endswith(f"done, the report is {tmp_path}/run/report.html")
    assert (shown.labels_ == silent.labels_).all()
    assert shown.objective_ == silent.objective_
    silent.save(tmp_path / "silent")
    shown.save(tmp_path / "shown")
    models = [(tmp_path / name / "model.json").read_text() for name in ("silent", "shown")]
    assert models[0] == models[1]
    KMeans(2, random_state=0, verbose=True).fit(ROWS)
    assert "find clusters" in capsys.readouterr().err


def test_a_notebook_has_a_bar_without_more_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, str]] = []
    handle = SimpleNamespace(update=lambda data, raw: drawn.append(data))

    def display(data: dict[str, str], **_: object) -> Any:
        drawn.append(data)
        return handle

    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with verbosely(1) as tell:
        tell(PLAN)
        tell({"step": "<b>", "done": 0, "of": 0})
    assert [data["text/plain"].split(",")[0] for data in drawn] == [
        "0:00  starting", "0:00  <b>", "0:00  done",
    ]  # fmt: skip
    assert "<b>" not in drawn[1]["text/html"]
    assert 'value="1.000"' in drawn[2]["text/html"]


def test_components_say_how_many_passes_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    silent = LSA(1, random_state=0).fit(ROWS)
    assert capsys.readouterr() == ("", "")
    shown = LSA(1, random_state=0, verbose=True).fit(ROWS)
    assert "find components" in capsys.readouterr().err
    assert (shown.components_ == silent.components_).all()
