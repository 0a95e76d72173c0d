"""How lines look to a person: bold, broken between words, paths as they are seen from here."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from hmrf_dask.cli.group import one_line


def folded(text: str, width: int) -> str:
    """Return lines broken between words where they are longer than a terminal is wide.

    Examples
    --------
    >>> print(folded("  output  a/long/path of a job", 16))
      output
        a/long/path
        of a job
    """
    folded = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        fits = len(click.unstyle(line)) <= width
        parts = [line] if fits else textwrap.wrap(
            line, width, subsequent_indent=f"{indent}  ", break_long_words=False,
            break_on_hyphens=False, drop_whitespace=True,
        )  # fmt: skip
        folded += parts or [""]
    return "\n".join(folded)


def bold(text: str) -> str:
    """Return text in bold, where the terminal has it."""
    return text if os.environ.get("TERM") == "dumb" else click.style(text, bold=True)


def file_list(files: dict[str, str], folder: str = "") -> Iterator[str]:
    """Return the lines of a list of files, in a folder if one is named."""
    yield bold("Files")
    for name, path in files.items():
        whole = ", ".join(relative(f"{folder}{one}") for one in path.split(", "))
        yield f"  {name:12} {whole}"


def relative(path: str) -> str:
    """Return a path below this folder as seen from here, others as they are."""
    if "://" in path or (seen := os.path.relpath(path)).startswith(".."):
        return path
    return min(path, seen, key=len)


def next_steps(*steps: tuple[str, str]) -> Iterator[str]:
    """Return command lines to type next, each with what it does."""
    yield bold("Next")
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        line = f"  {own_name()} {command:{width}}  {what}"
        fits = len(line) <= shutil.get_terminal_size().columns
        yield from [line] if fits else [f"  # {what}", f"  {own_name()} {command}"]


def wrapped(text: str) -> str:
    """Return text in lines as wide as the terminal."""
    return click.wrap_text(text, shutil.get_terminal_size().columns, "  ", "  ")


def cut_to_terminal(line: str) -> str:
    """Return as many whole words of a line as the terminal is wide."""
    width = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or len(line) <= width:
        return line
    return line[: width + 1].rpartition(" ")[0].rstrip()


def own_name() -> str:
    """Return how this very command is called: `make demo` leaves it in a .venv, not on the PATH."""
    called = Path(sys.argv[0])
    on_path = shutil.which("hmrf-dask") or called.name != "hmrf-dask"
    return "hmrf-dask" if on_path else str(called)


def section(title: str, lines: Iterable[str], count: int) -> Iterator[str]:
    """Return a title, lines, and how many more there are; nothing of none."""
    if count:
        shown = [f"  {one_line(line)}" for line in lines]
        yield from (bold(title), *shown)
        if count > len(shown):
            yield f"  … {count - len(shown)} more"
