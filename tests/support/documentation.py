"""The blocks of README and docs, run as a reader would; `python -m tests.support.documentation`.

A page is run from top to bottom in one folder, which has small files of its own (`docs/data`). In
a page a comment right before a block says what the block alone does not:

    <!-- file: job.yaml -->      the block is the content of that file
    <!-- part of: job.yaml -->   its keys belong into that file
    <!-- output -->              what the block before prints
    <!-- exit code: 65 -->       how its last command ends
    <!-- not run: why -->        it is only read: commands by click, job files by their models
    <!-- long: why -->           as well, but in tests that are marked long

Called as a program this module writes into the pages what their commands print now.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click
import numpy as np
import yaml
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.documents.manifest import load_manifest
from hmrf_dask.jobs.inputs import load_job

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<notes>(?:<!--[^\n]*-->\n)*)(?P<fence>```+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
NOTE = re.compile(r"<!-- ([a-z ]+?)(?:: (.*?))? -->")
LANGUAGES = {"python", "yaml", "json", "console", "sh", "text", "dockerfile", "sql"}
SHELL = {"cat", "head", "tail", "ls", "wc", "mkdir", "cp", "echo", "printf", "touch"}


class Block(NamedTuple):
    """A fenced block of a page, and what the comments before it say."""

    page: Path
    start: int
    language: str
    text: str
    notes: dict[str, str]

    @property
    def name(self) -> str:
        """Where it is, as an editor finds it."""
        line = self.page.read_text().count("\n", 0, self.start) + 1
        return f"{self.page.relative_to(ROOT)}:{line}"

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Command lines, each with what the page says it prints."""
        if self.language == "sh":
            joined = self.text.replace("\\\n", " ")
            lines = [line.partition(" # ")[0].strip() for line in joined.splitlines()]
            return [(line, "") for line in lines if line and not line.startswith("#")]
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        joined_parts = (part.replace("\\\n", " ").partition("\n") for part in parts)
        return [(command.strip(), output) for command, _, output in joined_parts]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, from top to bottom."""
    return [
        Block(page, found.start("fence"), found["language"].strip(), found["text"],
              dict(NOTE.findall(found["notes"])))
        for found in FENCE.finditer(page.read_text())
    ]  # fmt: skip


def masked(text: str) -> str:
    """Return a text in which numbers, hashes and spaces do not count.

    Examples
    --------
    >>> masked("12 files,  1,910 documents") == masked("3 files, 7 documents ")
    True
    """
    return " ".join(re.sub(r"\b[\da-f]{8,}\b|\d[\d,.]*\d|\d", "0", text).split())


def is_shown(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed; … stands for anything.

    Examples
    --------
    >>> is_shown("5 documents\\n…\\nFiles", "7 documents\\nmuch more\\nFiles\\n")
    True
    >>> is_shown("5 documents", "5 files")
    False
    """
    pattern = ".*?".join(re.escape(masked(part)) for part in shown.split("…"))
    return re.fullmatch(pattern, masked(printed), re.DOTALL) is not None


class Shown(NamedTuple):
    """What a page shows of a command or program, and what it printed."""

    block: Block
    shown: str
    printed: str


class Reader:
    """Somebody who types what a page says into one folder; `differences` is what surprised."""

    def __init__(self, folder: Path, *, long: bool) -> None:
        self.folder, self.long = folder, long
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.last: Shown | None = None
        self.compared: list[Shown] = []

    def read(self, block: Block) -> None:
        """Do what a block says."""
        notes = block.notes
        assert "not run" not in notes or notes["not run"], f"{block.name} must say why not"
        if "file" in notes or "part of" in notes:
            self._file(block)
        elif "output" in notes:
            assert self.last is not None, f"{block.name} follows nothing that prints"
            self.compared.append(self.last._replace(block=block, shown=block.text))
        elif block.language == "python":
            self._python(block)
        elif block.language in ("console", "sh"):
            self._shell(block)
        else:
            assert block.language in ("text", "dockerfile", "sql"), f"{block.name} must be a file"
            assert not re.search(r"^(\$ )?hmrf-dask \w", block.text, re.MULTILINE), block.name

    def _runs(self, block: Block) -> bool:
        return "not run" not in block.notes and (self.long or "long" not in block.notes)

    def _file(self, block: Block) -> None:
        name = block.notes.get("file") or block.notes["part of"]
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = block.text
        if "part of" in block.notes:
            whole = yaml.safe_load(path.read_text() if path.exists() else SOME[name])
            text = yaml.safe_dump({**whole, **yaml.safe_load(text)})
        path.write_text(text)
        if "hmrf-dask/job/v1" in text:
            load_job(str(path))
        elif "hmrf-dask/manifest/v1" in text:
            load_manifest(str(path))

    def _python(self, block: Block) -> None:
        program = compile(block.text, block.name, "exec", dont_inherit=True)
        if not self._runs(block):
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, self.names)
        self.last = Shown(block, "", printed.getvalue())

    def _shell(self, block: Block) -> None:
        for command, shown in block.commands:
            if not self._runs(block):
                parsed(command)
                continue
            code, printed, errors = self._typed(command)
            asked = int(block.notes.get("exit code", 0)) if command == block.commands[-1][0] else 0
            assert code == asked, f"{block.name}: {command} ended with {code}: {printed}{errors}"
            printed = (printed if code == 0 else errors).replace(f"{self.folder}/", "")
            self.last = Shown(block, shown, printed)
            if shown.strip():
                self.compared.append(self.last)

    def _typed(self, command: str) -> tuple[int, str, str]:
        """Return exit code, output and errors of a line; what is left of a | is given to it."""
        before, _, after = command.rpartition(" | ")
        given = self._typed(before)[1] if before else None
        words = shlex.split(after)
        if words[0] == "export":
            os.environ.update(word.split("=", 1) for word in words[1:])
            return 0, "", ""
        if words[0] == "hmrf-dask":
            done = CliRunner().invoke(hmrf, words[1:], input=given, prog_name="hmrf-dask")
            return done.exit_code, done.stdout, done.stderr
        assert words[0] in SHELL, f"{command!r} needs <!-- not run: why -->"
        shell = subprocess.run(after, shell=True, input=given, capture_output=True, text=True)
        return shell.returncode, shell.stdout, shell.stderr


# What a page takes for granted that shows parts of it.
SOME = {
    "job.yaml": (
        "$schema: hmrf-dask/job/v1\nmanifest: tickets.yaml\n"
        "text: {stop_words: english, min_df: 2, max_df: 0.5}\n"
        "method: {n_clusters: 6}\noutput: clusters\n"
    ),
    "tickets.yaml": (
        "$schema: hmrf-dask/manifest/v1\nname: tickets\n"
        "resources: [{name: tickets, path: tickets.csv}]\ndocuments: {id: id, text: body}\n"
    ),
}


def parsed(command: str) -> None:
    """Read a command line as the program would; others than ours are not ours to judge."""
    for part in re.split(r" [|&;>]+ |&& ", command):
        words = shlex.split(part, comments=True)
        at = next((n for n, word in enumerate(words) if re.search(r"(^|/)hmrf-dask$", word)), None)
        if at is None:
            continue
        group: click.Command = hmrf
        arguments = [word for word in words[at + 1 :] if not word.startswith(">")]
        context = click.Context(hmrf, info_name="hmrf-dask", **hmrf.context_settings)
        while isinstance(group, click.Group) and arguments and arguments[0] in group.commands:
            name = arguments.pop(0)
            group = group.commands[name]
        with _files_there(arguments):
            if arguments[:1] not in (["--help"], ["-h"], ["--version"]):
                group.make_context(group.name, arguments, parent=context)


@contextlib.contextmanager
def _files_there(arguments: list[str]) -> Iterator[None]:
    """Give the files that options want to be there."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for argument in arguments:
            if re.fullmatch(r"[\w.-]+\.(json|yaml|csv)", argument):
                Path(argument).touch()
        yield


def small_files(folder: Path) -> None:
    """Write what pages take for granted: texts, answers, embeddings, rows."""
    for path in DATA.iterdir():
        if path.suffix in (".csv", ".jsonl"):
            shutil.copy(path, folder)
    for name, text in SOME.items():
        (folder / name).write_text(text)


def read_page(page: Path, folder: Path, *, long: bool = False) -> Reader:
    """Return the reader of a page, who did all that it says in a folder."""
    small_files(folder)
    reader = Reader(folder, long=long)
    np.random.seed(0)  # noqa: NPY002 - pages of others may draw so
    with contextlib.chdir(folder), mock.patch.dict(os.environ):
        for block in blocks(page):
            if not block.language.startswith("{"):
                reader.read(block)
    return reader


def with_what_is_printed(reader: Reader, page: Path) -> str:
    """Return the text of a page with what its commands print now, where it shows another thing."""
    text = page.read_text()
    for block, shown, printed in reader.compared:
        if not is_shown(shown, printed) and "…" not in shown:
            text = text.replace(shown, printed.rstrip() + "\n" if shown.strip() else shown, 1)
        elif not is_shown(shown, printed):
            sys.stderr.write(f"{block.name} shows a part of what is printed now:\n{printed}\n")
    return text


if __name__ == "__main__":
    for one in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        with tempfile.TemporaryDirectory() as place:
            one.write_text(with_what_is_printed(read_page(one, Path(place)), one))
