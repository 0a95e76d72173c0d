"""What is shown of a run while it works: a bar, lines, or nothing."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from hmrf_dask.cli.progress import Bar, Seen, remaining, shown_progress


@contextmanager
def drawn() -> Iterator[tuple[Bar, Progress]]:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    columns = (
        TextColumn("{task.description}"),
        TextColumn("{task.fields[state]}"),
        TextColumn("{task.fields[eta]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress), progress


def test_the_bar_shows_steps_and_iterations() -> None:
    with drawn() as (bar, progress):
        bar.tell({"step": "count words", "done": 3, "of": 12})
        task = progress.tasks[0]
        assert (task.description, task.total, task.completed) == ("count words", 12, 3)
        assert task.fields["state"] == "3 of 12"
        bar.tell({"phase": "start", "iteration": 3, "of": 16, "J": 90.0, "n_rows": 100})
        task = progress.tasks[0]
        assert (task.description, task.total, task.completed) == ("starts", 16, 3)
        assert task.fields["state"] == "3 of 16, J 90 (0.9000 a document)"
        event = {"J": 1234.5, "moved": 17, "n_rows": 2000, "enough": 1e-3}
        bar.tell({"phase": "fit", "iteration": 2, **event})
        task = progress.tasks[0]
        assert (task.description, task.total) == ("fit", None)
        shown = "iteration 2, J 1234.5 (0.6172 a document), 17 rows changed cluster"
        assert task.fields["state"] == shown


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


def test_lines_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=False) as tell:
        tell({"step": "count words", "done": 0, "of": 0})
        for done in (1, 2, 3):
            tell({"step": "count words", "done": done, "of": 3})
        logging.getLogger("hmrf_dask").info("fit 1: J 3")
    assert capsys.readouterr().err == "count words\ncount words 3 of 3\nfit 1: J 3\n"


def test_quiet_leaves_errors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=True) as tell:
        tell({"step": "count words", "done": 0, "of": 0})
        logging.getLogger("hmrf_dask").info("fit 1: J 3")
        logging.getLogger("hmrf_dask").warning("2 clusters are empty")
        logging.getLogger("hmrf_dask").error("a task was lost")
    assert capsys.readouterr().err == "a task was lost\n"
