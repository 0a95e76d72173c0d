"""Damaged files that follow from the documents are made again while a run goes on.

Counts, rows and what lies beside them are named by what they depend on, and one small record makes
the files of a folder count. Where a step finds one of them damaged, wherever it runs, the record of
its folder is removed and the work begins again: all that is whole is found, and the fit resumes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import TypeVar

from hmrf_dask.errors import HmrfWarning, UnreadableFileError
from hmrf_dask.runs.storage import Storage
from hmrf_dask.text.files import COUNTED, COUNTS
from hmrf_dask.text.vectorise import WRITTEN

T = TypeVar("T")
_KEY = "[0-9a-f]{24}"
_COUNTS = re.compile(rf"(?:^|/)({COUNTS}/{_KEY})/[^/]+$")
_ROWS = re.compile(rf"(?:^|/)(rows/(?:{_KEY}|embeddings)/{_KEY})/[^/]+$")
_BESIDE = re.compile(rf"(?:^|/)documents/({_KEY})/[^/]+$")
_OF_RUN = re.compile(r"(?:^|/)(runs/[0-9a-f]{16}/rows/[^/]+)$")


def repaired(
    work: Callable[[], T], storage: Storage, record_of_documents: Callable[[str], str]
) -> T:
    """Return what some work gives, begun again for every damaged file that can be made again.

    Parameters
    ----------
    work : callable
        What is done already is not done again.
    storage : Storage
        The output.
    record_of_documents : callable
        The record, below the output, that goes with the key of a bundle.

    Raises
    ------
    UnreadableFileError
        The same files are damaged again, or nobody knows how to make them.
    """
    removed: set[str] = set()
    while True:
        try:
            return work()
        except UnreadableFileError as error:
            record = _record_of(error.path, record_of_documents)
            if record is None or record in removed:
                raise
            removed.add(record)
            warnings.warn(
                f"{error.path}: {error.what}; it is made again of the documents",
                HmrfWarning,
                stacklevel=2,
            )
            storage.delete([record])


def _record_of(path: str, record_of_documents: Callable[[str], str]) -> str | None:
    """Return the file below the output without which a damaged file is made again."""
    if found := _COUNTS.search(path):
        return f"{found[1]}/{COUNTED}"
    if found := _ROWS.search(path):
        return f"{found[1]}/{WRITTEN}"
    if found := _BESIDE.search(path):
        return record_of_documents(found[1])
    found = _OF_RUN.search(path)  # rows without repeated ids, written by every attempt
    return None if found is None else found[1]
