"""Damaged files are made again where all that they were made of is there and unchanged."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from hmrf_dask.errors import HmrfWarning, UnreadableFileError
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.ledger import compare, files_of, last_release
from hmrf_dask.jobs.parent import INPUTS, Parent, parent_again
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.release import DamagedReleaseError, Release, check_files, hashed_in, tonight
from hmrf_dask.storage.stores import Storage
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
        The record, below the output, that goes with the key of a pack.

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


@dataclass(frozen=True)
class Remake:
    """How the last release is made again.

    Attributes
    ----------
    inputs : Inputs
        What it was made of.
    parent : Parent
    damage : str
        What is wrong with it.
    """

    inputs: Inputs
    parent: Parent
    damage: str


def damage_of(output: str, release: Release) -> str | None:
    """Return what is wrong with a release, as far as one night looks at it; None if nothing is."""
    try:
        check_files(open_output(output, None), release, hashed_in(tonight(), release.sizes))
    except DamagedReleaseError as error:
        return str(error)
    return None


def remake_of(inputs: Inputs) -> Remake | None:
    """Return how the last release is made again; None where it is whole, or cannot be made."""
    last = None if inputs.from_release is not None else last_release(inputs.output)
    damage = None if last is None else damage_of(inputs.output, last)
    if last is None or damage is None:
        return None
    then = inputs_of(last, inputs)
    parent = None if then is None else parent_again(then, last)
    return None if then is None or parent is None else Remake(then, parent, damage)


def inputs_of(release: Release, inputs: Inputs) -> Inputs | None:
    """Return what a release was made of, None where these inputs have it no more as it was."""
    changes = compare(files_of(release.ledger), inputs.sources)
    if changes.changed or changes.gone:
        return None
    same = set(changes.same)
    sources = tuple(one for one in inputs.sources if one.path in same)
    for mode in ("fit", "predict"):  # whatever is asked now, with --predict or without
        job = inputs.job.model_copy(update={"mode": mode})
        then = replace(inputs, job=job, sources=sources)
        if release.ledger.get(INPUTS) == then.identity:
            return then
    return None
