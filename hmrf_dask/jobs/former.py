"""Documents of former releases that answers name: an answer about one that is gone waits for it.

A release keeps no list of all ids that ever were. It keeps those that answers named and that a
former release had (`gone.parquet`); others are looked up in the assignments that are still there.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hmrf_dask.constraints.answer_files import parse_pairs
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.em.prepare import find_ids
from hmrf_dask.errors import HmrfWarning
from hmrf_dask.jobs.assignments import assignments_of
from hmrf_dask.jobs.places import ANSWERS, GONE
from hmrf_dask.releases.output import numbers_in
from hmrf_dask.releases.release import (
    FOLDER,
    DamagedReleaseError,
    Release,
    read_file,
    read_if_whole,
)
from hmrf_dask.text.files import Place
from hmrf_dask.types import AnyArray, BoolArray

COLUMN = "doc_id"


@dataclass(frozen=True)
class Documents:
    """What is known of documents that answers name, or named.

    Attributes
    ----------
    ids : str array, shape (n,)
        Sorted, each once.
    there : bool array, shape (n,)
        Which of them the corpus has.
    gone : bool array, shape (n,)
        Which of the others a former release had.
    """

    ids: AnyArray
    there: BoolArray
    gone: BoolArray

    def places(self, names: AnyArray) -> AnyArray:
        """Return where names that were looked up are."""
        return np.searchsorted(self.ids, names.astype(np.str_))

    def encode_gone(self) -> bytes:
        """Return the ids that are gone as the file that the next run reads."""
        sink = pa.BufferOutputStream()
        table = pa.table({COLUMN: pa.array(self.ids[self.gone].tolist(), pa.string())})
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        return bytes(sink.getvalue().to_pybytes())


def look_up(
    place: Place, last: Release | None, named: Sequence[str], find: Callable[[AnyArray], BoolArray]
) -> Documents:
    """Return which documents are there, and which of the others a former release had.

    Parameters
    ----------
    place : Place
        The output.
    last : Release or None
        What the run goes on from.
    named : sequence of str
        The documents that answers name.
    find : callable
        Takes ids, returns which of them are there.
    """
    releases = list(_releases(place, last))
    remembered = _remembered(place, last, releases)
    ids = np.unique(np.array([*set(named), *remembered], np.str_))
    there = find(ids)
    gone = np.zeros(len(ids), np.bool_)
    for row in np.flatnonzero(~there).tolist():
        gone[row] = ids[row] in remembered
    for release in releases:
        unknown = np.flatnonzero(~there & ~gone)
        if not len(unknown):
            break
        gone[unknown] = _in_assignments(place, release, ids[unknown])
    return Documents(ids, there, gone)


def find_in(corpus: Corpus, wanted: AnyArray) -> BoolArray:
    """Return which of some documents a corpus has."""
    there = np.zeros(len(wanted), np.bool_)
    if not len(wanted):
        return there
    flow = DaskFlow()
    documents = flow.share(wanted)
    for places, _ in flow.compute([flow.lazy(find_ids, one, documents) for one in corpus.named]):
        there[places] = True
    return there


def _releases(place: Place, last: Release | None) -> Iterator[Release]:
    """Yield the releases that have their files yet, the one that the run goes on from first."""
    if last is not None:
        yield last
    storage = place.storage
    for number in sorted(numbers_in(storage, FOLDER), reverse=True):
        found = read_if_whole(storage, number)
        if found is not None and found.files and found != last:
            yield found


def _remembered(place: Place, last: Release | None, releases: Sequence[Release]) -> set[str]:
    """Return ids that answers named and that a former release had: later ones know of earlier."""
    found: set[str] = set()
    for release in releases:
        if last is not None and release.number < last.number:
            continue
        for name, sha256 in release.files.items():
            with suppress(DamagedReleaseError):  # that of the last release was checked before
                if name.endswith(f"/{GONE}"):
                    data = read_file(place.storage, name, sha256)
                    found.update(pq.read_table(io.BytesIO(data))[COLUMN].to_pylist())
                elif name.endswith(f"/{ANSWERS}"):
                    data = read_file(place.storage, name, sha256)
                    found.update(parse_pairs(data, ANSWERS).as_text().documents.tolist())
    return found


def _in_assignments(place: Place, release: Release, wanted: AnyArray) -> BoolArray:
    """Return which documents a release had."""
    flow = DaskFlow()
    shared = flow.share(wanted)
    tasks = [
        flow.lazy(_found, place, name, sha256, shared)
        for name, sha256 in assignments_of(release.files).items()
    ]
    read = flow.compute(tasks) if tasks else []
    if any(one is None for one in read):
        warnings.warn(
            f"some assignments of release {release.number} are damaged: documents that no other "
            "release has count as unknown where answers name them",
            HmrfWarning,
            stacklevel=2,
        )
    known = np.zeros(len(wanted), np.bool_)
    for one in read:
        if one is not None:
            known |= one
    return known


def _found(place: Place, name: str, sha256: str, wanted: AnyArray) -> BoolArray | None:
    """Return which documents a file names, None where it is damaged."""
    try:
        data = read_file(place.storage, name, sha256)
    except DamagedReleaseError:
        return None
    known = pq.read_table(io.BytesIO(data), columns=[COLUMN])[COLUMN]
    values = pa.array(wanted.tolist(), pa.string())
    return np.asarray(pc.is_in(values, value_set=known.combine_chunks()).to_numpy(False))
