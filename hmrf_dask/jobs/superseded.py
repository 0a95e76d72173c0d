"""Documents that deltas of a source give again, or say are gone: left out, with nothing read again.

What a pack was counted of stays as it is. Where a later delta has some of its documents, counts of
the others take their place: the same files, and the numbers of the texts that are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.errors import UnreadableFileError
from hmrf_dask.flow.dataflow import DaskFlow, Lazy
from hmrf_dask.jobs.former import BUCKET
from hmrf_dask.jobs.packs import FileDocuments, PackRecord, read_hashed
from hmrf_dask.jobs.rows import CountedPack, JobRows, names_made, record_of_embeddings
from hmrf_dask.jobs.steps import JobRun
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.text.files import (
    CountedSource,
    Place,
    leave_out,
    read_ids,
    read_left_out,
    read_source,
    write_source,
)


def live_packs(run: JobRun, packs: Sequence[CountedPack]) -> list[CountedPack]:
    """Return packs without the documents that a later delta of their source has, or says are gone.

    The last one stays of documents with one id: deltas follow each other as they were listed.
    """
    flow, live = DaskFlow(), list(packs)
    if not run.inputs.documents.listings:
        return live
    tasks = _tasks(flow, run, packs)
    found = flow.compute(list(tasks.values())) if tasks else []
    for number, counts in zip(tasks, found, strict=True):
        if counts is not None:
            record = PackRecord.of(counts.record, counts.key)
            live[number] = packs[number]._replace(counts=counts, record=record)
    made = [live[number].counts for number in tasks if live[number] is not packs[number]]
    if made:
        run.record_made(names_made((), [counts.key for counts in made], ()))
        flow.compute([flow.lazy(_write, counts, run.place) for counts in made])
    was = {key.pack: key.counts for entry in run.last_files.values() for key in entry.keys}
    return [one._replace(was=was.get(one.record.key, "")) for one in live]


def _tasks(flow: DaskFlow, run: JobRun, packs: Sequence[CountedPack]) -> dict[int, Lazy]:
    """Return what finds the documents that are left, by the number of the pack."""
    sources: dict[str, list[int]] = defaultdict(list)
    for number, pack in enumerate(packs):
        sources[pack.pack.files[0].resource].append(number)
    sources.pop("", None)  # files change as a whole
    tasks: dict[int, Lazy] = {}
    for numbers in sources.values():
        later: list[Lazy] = []
        for number in reversed(numbers):
            segment = packs[number].pack.files[0]
            compared = segment if segment.compares_keys and segment.name in run.same else None
            if later or compared is not None:
                counts = packs[number].counts
                tasks[number] = flow.lazy(_live, counts, run.place, compared, list(later))
            if segment.segment.is_delta:
                _, counts, record, _ = packs[number]
                later += flow.persist([flow.lazy(_ids_of, counts, record, run.place)])
    return tasks


def _ids_of(counts: CountedSource, record: PackRecord, place: Place) -> pa.Array:
    """Return the ids of all documents that a delta has, or says are gone."""
    gone = [read_hashed(place.storage, name, decode_parquet)["id"] for name in record.gone]
    ids = [read_ids(place.storage, batch) for batch in counts.batches]
    return pa.chunked_array(
        [*ids, *(chunk for column in gone for chunk in column.chunks)], pa.string()
    ).combine_chunks()


def _live(
    counts: CountedSource, place: Place, compared: DocumentSegment | None, later: Sequence[pa.Array]
) -> CountedSource | None:
    """Return the counts of the documents that are left, None where all of them are.

    The segment is `compared` where what it does not give any more is gone.
    """
    there = None if compared is None else pa.chunked_array(list(compared.keys()), pa.string())
    batches = []
    for number, batch in enumerate(counts.batches):
        ids = read_ids(place.storage, batch)
        out = np.zeros(len(ids), np.bool_)
        for newer in later:
            out |= np.asarray(pc.is_in(ids, value_set=newer))
        if there is not None:
            out |= ~np.asarray(pc.is_in(ids, value_set=there))
        rows = np.flatnonzero(out)
        batches.append(
            leave_out(place.storage, counts.key, number, batch, rows) if len(rows) else batch
        )
    left_out = [batch.without.name for batch in batches if batch.without is not None]
    if not left_out:
        return None
    key = sha256(" ".join([counts.key, *left_out]).encode()).hexdigest()[:24]
    live = [(FileDocuments(0, one.n_texts),) if one.n_texts else () for one in batches]
    record = replace(PackRecord.of(counts.record, counts.key), documents=tuple(live))
    return CountedSource(key, tuple(batches), asdict(record))


def _write(counts: CountedSource, place: Place) -> None:
    write_source(place.storage, counts)


# ---- documents that were read again, and are as they were


def count_unchanged(run: JobRun, rows: JobRows) -> int:
    """Return how many documents of segments that are new or changed are as the last release had.

    A segment is read again where any row of it changed, and so are the newest rows of before.
    """
    resources = tuple(f"{name}:" for name in run.inputs.documents.listings)
    if not resources:
        return 0
    entries = run.last_files.items()
    before = {one.counts for name, entry in entries if name.startswith(resources)
              for one in entry.keys}  # fmt: skip
    changed = [
        (key, record.n_documents)
        for key, record in zip(rows.keys, rows.records, strict=True)
        if any(record.hashes) and not run.same.issuperset(record.paths)
    ]
    old, read = sorted(before.difference(rows.keys)), _read_counted
    if not run.counts_words:
        read = _read_ready
    flow = DaskFlow()
    tasks = [flow.lazy(_n_shared, read, old, new, run.place) for new in _groups(changed)]
    return sum(flow.compute(tasks)) if old and tasks else 0


def _groups(packs: Sequence[tuple[str, int]]) -> list[list[str]]:
    """Return the keys of packs in groups that have about as many documents as one task takes."""
    groups: dict[int, list[str]] = defaultdict(list)
    so_far = 0
    for key, n_documents in packs:
        groups[so_far // BUCKET].append(key)
        so_far += n_documents
    return list(groups.values())


Hashes = npt.NDArray[np.uint64]


def _n_shared(
    read: Callable[[str, Place], Iterator[Hashes]],
    old: Sequence[str],
    new: Sequence[str],
    place: Place,
) -> int:
    """Return how many documents of some packs others have too, and as they are."""
    now = np.unique(np.concatenate([hashes for key in new for hashes in read(key, place)]))
    return sum(int(np.isin(then, now).sum()) for key in old for then in read(key, place))


def _read_counted(key: str, place: Place) -> Iterator[Hashes]:
    """Yield the hashes of counted documents; none where these are gone, or have none."""
    with suppress(UnreadableFileError):
        source = read_source(place.storage, key)
        batches = () if source is None else source.batches
        hashes = () if source is None else PackRecord.of(source.record, key).hashes
        for batch, name in zip(batches, hashes, strict=False):
            if name is not None:
                yield np.delete(_hashes(place, name), read_left_out(place.storage, batch))


def _read_ready(key: str, place: Place) -> Iterator[Hashes]:
    """Yield the hashes of documents whose rows are a column of embeddings."""
    with suppress(UnreadableFileError):
        record = record_of_embeddings(key, place)
        for name in () if record is None else record.hashes:
            if name is not None:
                yield _hashes(place, name)


def _hashes(place: Place, name: str) -> Hashes:
    found: Hashes = read_hashed(place.storage, name, decode_parquet)["hash"].to_numpy()
    return found
