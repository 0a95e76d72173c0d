"""Documents that deltas of a source give again, or say are gone: left out, with nothing read again.

What a pack was counted of stays as it is. Where a later delta has some of its documents, counts of
the others take their place: the same files, and the numbers of the texts that are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.flow.dataflow import DaskFlow, Lazy
from hmrf_dask.jobs.packs import FileDocuments, PackRecord, read_hashed
from hmrf_dask.jobs.rows import CountedPack, names_made
from hmrf_dask.jobs.steps import JobRun
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.text.files import CountedSource, Place, leave_out, read_ids, write_source


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
