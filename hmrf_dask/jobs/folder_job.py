"""A job for a folder of documents that has none: a manifest and a job file next to a new output."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from hmrf_dask.errors import ConfigurationError, InvalidInputError, counted, in_words
from hmrf_dask.limits import MOST_FILES
from hmrf_dask.parameters import AUTO
from hmrf_dask.storage.addresses import absolute_url

OUTPUT, JOB, MANIFEST = "out", "job.yaml", "manifest.yaml"
SUFFIX = "-clusters"
N_QUESTIONS: Final = 25
FEW: Final = 50  # documents, of which some may be empty; from 40 on K can be chosen
_KINDS: Final = {
    "text": (".txt", ".md"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet", ".pq"),
}
_IDS: Final = ("id", "doc_id", "document_id", "_id", "uuid", "key", "name", "url")
_TEXTS: Final = ("text", "body", "content", "document", "abstract", "description", "title")
_HEAD_BYTES = 2**20


@dataclass(frozen=True)
class FolderJob:
    """A job made for a folder, or made before.

    Attributes
    ----------
    job : str
        Its file.
    output : str
    remark : str
        What was found, and what was left out.
    """

    job: str
    output: str
    remark: str


def job_for(folder: str) -> FolderJob:
    """Make a job for a folder of documents, in a new folder next to it; one that is there stays.

    Documents are the text files of the folder and those below, or the rows of its CSV, JSON Lines
    or Parquet files, whichever are the most. K is chosen, and each fit ends with questions.

    Parameters
    ----------
    folder : str
        A local folder.

    Returns
    -------
    FolderJob

    Raises
    ------
    ConfigurationError
        There are no documents, or it is not clear what they are: then a manifest must say it.
    """
    place = absolute_url(folder, "a folder")
    if "://" in place or not os.path.isdir(place):
        raise ConfigurationError(
            f"a job can be made for a folder of this machine, got {folder}; write a manifest and a "
            "job file, as the README shows them"
        )
    if re.search(r"[*?\[]", place):
        raise ConfigurationError(
            f"a folder of documents must have a name without '*', '?' and '[', got {folder}; "
            "rename it"
        )
    home = f"{place}{SUFFIX}"
    job, output = f"{home}/{JOB}", f"{home}/{OUTPUT}"
    if os.path.exists(job):
        return FolderJob(job, output, f"the job of {job}, made before")
    files = _files(place)
    kind = max(files, key=lambda one: (len(files[one]), one == "text"), default="")
    if not kind:
        endings = ", ".join(ending for some in _KINDS.values() for ending in some)
        raise InvalidInputError(
            f"a folder of documents must have files named {endings}, got none in {folder}; check "
            "the path"
        )
    columns = {} if kind == "text" else _columns(kind, files[kind][0])
    n_clusters = _n_clusters(len(files[kind])) if kind == "text" else AUTO
    _write(home, _manifest(place, kind, files[kind], columns), _job(place, n_clusters))
    others = sum(map(len, files.values())) - len(files[kind])
    left_out = f"; {counted(others, 'file')} of another kind left out" if others else ""
    return FolderJob(job, output, f"{counted(len(files[kind]), f'{kind} file')}{left_out}: {job}")


def _files(folder: str) -> dict[str, list[str]]:
    """Return the files of a folder that may hold documents, by kind."""
    kinds = {ending: kind for kind, endings in _KINDS.items() for ending in endings}
    found: dict[str, list[str]] = defaultdict(list)
    n_files = 0
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            kind = kinds.get(os.path.splitext(name)[1].lower())
            if kind and not name.startswith("."):
                found[kind].append(f"{above}/{name}")
                n_files += 1
        if n_files > MOST_FILES:
            raise InvalidInputError(
                f"a folder must have at most {MOST_FILES:,} files, got more in {folder}; put "
                "documents together in larger files"
            )
    return dict(found)


def _columns(kind: str, file: str) -> dict[str, str]:
    """Return which columns of a file are ids and texts, by the names that they usually have."""
    try:
        names = _names(kind, file)
    except (OSError, ValueError, StopIteration, RecursionError, csv.Error) as error:
        raise InvalidInputError(f"{file}: cannot be read, {in_words(error)}; correct it") from None
    found: dict[str, str] = {}
    for what, usual in (("id", _IDS), ("text", _TEXTS)):
        known = {name.strip().casefold(): name for name in reversed(names)}
        column = next((known[name] for name in usual if name in known), None)
        if column is None:
            raise InvalidInputError(
                f"{file}: must have a column that is called {', '.join(usual[:3])} or the like, "
                f"got {', '.join(map(str, names[:20]))[:400]}; write a manifest that says which "
                f"column is the {what}"
            )
        found[what] = column
    return found


def _names(kind: str, file: str) -> list[str]:
    """Return the names of a file's columns."""
    if kind == "parquet":
        import pyarrow.parquet as pq

        return list(pq.read_schema(file).names)
    with open(file, encoding="utf-8-sig", newline="") as opened:
        line = opened.readline(_HEAD_BYTES)
    if kind == "jsonl":
        content = json.loads(line)
        return list(content) if isinstance(content, dict) else []
    return next(csv.reader([line], delimiter=_delimiter(file)))


def _delimiter(file: str) -> str:
    return "\t" if file.lower().endswith(".tsv") else ","


def _manifest(
    folder: str, kind: str, files: Sequence[str], columns: dict[str, str]
) -> dict[str, Any]:
    endings = sorted({os.path.splitext(file)[1] for file in files})
    paths = [f"{folder}/**/*{ending}" for ending in endings]
    return {
        "$schema": "hmrf-dask/manifest/v1",
        "name": _called(folder),
        "resources": [{"name": "documents", "path": paths, "format": kind}],
        "documents": columns,
    }


def _n_clusters(n_documents: int) -> int | str:
    """Return K for so few documents that it cannot be chosen, the rule of thumb √(n / 2)."""
    if n_documents < 2:
        raise InvalidInputError(
            "there must be at least two documents to compare, got one file; put each document in "
            "a file of its own"
        )
    return AUTO if n_documents >= FEW else max(2, round(math.sqrt(n_documents / 2)))


def _job(folder: str, n_clusters: int | str) -> dict[str, Any]:
    return {
        "$schema": "hmrf-dask/job/v1",
        "name": _called(folder),
        "manifest": MANIFEST,
        "method": {"n_clusters": n_clusters},
        "on_bad_record": "quarantine",  # empty files are common
        "output": OUTPUT,
        "questions": N_QUESTIONS,
    }


def _called(folder: str) -> str:
    """Return a name for a manifest or a job.

    Examples
    --------
    >>> _called("/data/My News (2026)")
    'my-news-2026'
    """
    name = re.sub(r"[^a-z0-9]+", "-", os.path.basename(folder).lower()).strip("-")
    return name[:80] or "documents"


def _write(home: str, manifest: dict[str, Any], job: dict[str, Any]) -> None:
    """Write both files; the job comes last, so that one that is there has its manifest."""
    try:
        os.makedirs(home, exist_ok=True)
        for name, content in ((MANIFEST, manifest), (JOB, job)):
            text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
            _refuse_other(f"{home}/{name}", text)
            with open(f"{home}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigurationError(
            f"a job must be written next to its folder, got {in_words(error)} for {home}; write a "
            "manifest and a job file elsewhere, as the README shows them"
        ) from error


def _refuse_other(path: str, text: str) -> None:
    """Refuse to replace a file that says anything else: it is somebody's."""
    if os.path.exists(path):
        with open(path, "rb") as file:
            if not text.encode().startswith(file.read(len(text.encode()) + 1)):
                raise ConfigurationError(
                    f"{path} must be none or what is written there for a folder without a job, got "
                    "another file; rename it, or write a job next to it"
                )
