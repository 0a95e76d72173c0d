"""Assignments that documents keep from the last release, where a run only predicts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.documents.batches import decode_rejects
from hmrf_dask.estimators.prediction import OUTLIER
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs.assignments import Files, by_key, key_of, table_of
from hmrf_dask.jobs.places import ASSIGNMENTS_FOLDER, REPEATED, assignments_of
from hmrf_dask.jobs.steps import JobRun, Material
from hmrf_dask.releases.lineage import Lineage
from hmrf_dask.releases.release import read_file
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.storage.sealed import digest
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet
from hmrf_dask.tasks.partitions import add_limbs
from hmrf_dask.text.files import Place
from hmrf_dask.types import IntArray

Origin = frozenset[str]  # what the rows of a pack were called in the last release


def origins_of(run: JobRun, material: Material) -> list[Origin | None]:
    """Return what the rows of each pack were called in the last release, None if it had none.

    A pack that several were merged into has several. Where ids came twice, a pack may have
    other documents than it had then, though its files are the same: it is as good as new.
    """
    found = _last_origins(run, material)
    last = decode_rejects(run.read_last(REPEATED))
    then, now = (
        Counter((one.source, one.id) for one in some) for some in (last, material.repeated)
    )
    if not then and not now:
        return found
    moved = {one[0] for one in then.keys() | now.keys() if then[one] != now[one]}
    others = _with_other_copies(material, found, moved) | _with_other_ids(run, material, found)
    return [None if pack in others else origin for pack, origin in enumerate(found)]


def _last_origins(run: JobRun, material: Material) -> list[Origin | None]:
    """Return the origins by their files; one that is read in another way has other rows."""
    last = {one.own: one.counts for entry in run.last_files.values() for one in entry.keys}
    found: list[Origin | None] = []
    for record in material.rows.records:
        then = {last.get(file.key, "") for file in record.files}
        found.append(None if "" in then else Origin(then))
    return found


def _with_other_copies(
    material: Material, origins: Sequence[Origin | None], moved: set[str]
) -> set[int]:
    """Return the packs with files of which other documents are quarantined now.

    Of the same two ids the rows may be those of another file. Only the file is known by its ids.
    """
    rows = material.rows
    return {
        pack
        for pack, (record, key) in enumerate(zip(rows.records, rows.keys, strict=True))
        if not moved.isdisjoint(record.paths)
        and (len(record.files) > 1 or origins[pack] != Origin({key}))
    }


def _with_other_ids(run: JobRun, material: Material, origins: Sequence[Origin | None]) -> set[int]:
    """Return the packs whose last assignments are not those of the documents they have now."""
    assert run.previous is not None
    there = by_key(assignments_of(run.previous.files))
    flow, tasks, packs, others = DaskFlow(), [], [], set()
    for part, (name, pack) in enumerate(zip(material.names, material.files, strict=True)):
        origin = origins[pack]
        if origin is None:
            continue
        whole = origin == {material.rows.keys[pack]}
        last = {
            file: sha256
            for file, sha256 in _last_of(origin, there).items()
            if not whole or file.endswith(f"/{name}")
        }
        if not last:
            others.add(pack)
            continue
        tasks.append(flow.lazy(_has_others, material.corpus.named[part], run.place, last, whole))
        packs.append(pack)
    found = flow.compute(tasks) if tasks else []
    return others.union(itertools.compress(packs, found))


def _has_others(block: RowBlock, place: Place, last: Files, whole: bool) -> bool:
    then = set(table_of(place, last, ["doc_id"])["doc_id"].to_pylist())
    now = set(block.ids.tolist())
    return then != now if whole else not now <= then


def carry(
    run: JobRun, material: Material, origins: Sequence[Origin | None], before: Lineage
) -> tuple[Files, IntArray]:
    """Return the assignments of packs that keep theirs, and their sizes by cluster.

    Of a pack that lost files, and of packs that are merged, those of the files that
    stayed are written again.
    """
    assert run.previous is not None
    gone = not_carried(run, material, origins)
    old = assignments_of(run.previous.files)
    reused = {name: sha256 for name, sha256 in old.items() if name not in gone}
    sizes = np.asarray(before.sizes, np.int64) - _sizes(run, gone, before)
    remainders = _remaining(run, material, origins, gone)
    return reused | remainders, sizes + _sizes(run, remainders, before)


def not_carried(run: JobRun, material: Material, origins: Sequence[Origin | None]) -> Files:
    """Return the last assignments of packs that are not as they were."""
    assert run.previous is not None
    keys = material.rows.keys
    whole = {key for key, origin in zip(keys, origins, strict=True) if origin == Origin({key})}
    old = assignments_of(run.previous.files)
    return {name: sha256 for name, sha256 in old.items() if key_of(name) not in whole}


def _remaining(
    run: JobRun, material: Material, origins: Sequence[Origin | None], old: Files
) -> Files:
    """Write the assignments of packs that lost files or were merged."""
    there = by_key(old)
    flow, tasks = DaskFlow(), []
    for part, (name, pack) in enumerate(zip(material.names, material.files, strict=True)):
        if last := _last_of(origins[pack] or Origin(), there):
            target = f"{run.name}/{ASSIGNMENTS_FOLDER}/{name}"
            block = material.corpus.named[part]
            tasks.append(flow.lazy(_write_rest, block, run.place, last, target))
    found = flow.compute(tasks) if tasks else []
    return {name: sha256 for one in found for name, sha256 in one.items()}


def _write_rest(block: RowBlock, place: Place, last: Files, target: str) -> Files:
    table = table_of(place, last)
    kept = table.filter(pc.is_in(table["doc_id"], pa.array(block.ids.tolist(), pa.string())))
    data = encode_parquet(kept)
    place.storage.write(target, data)
    return {target: digest(data)}


def _last_of(origin: Origin, there: Mapping[str, Files]) -> Files:
    """Return the last assignments of a pack."""
    return {name: sha256 for key in origin for name, sha256 in there.get(key, {}).items()}


def count_outliers(place: Place, files: Files) -> int:
    """Return how many documents of some assignments are of no cluster."""
    flow = DaskFlow()
    parts = [flow.lazy(_outliers_of, place, *file) for file in sorted(files.items())]
    return sum(flow.compute(parts))


def _outliers_of(place: Place, name: str, sha256: str) -> int:
    table = decode_parquet(read_file(place.storage, name, sha256), ["cluster"])
    return int(np.count_nonzero(table["cluster"].to_numpy() == OUTLIER))


def _sizes(run: JobRun, files: Files, lineage: Lineage) -> IntArray:
    """Return how many documents of each label some assignments have."""
    if not files:
        return np.zeros(len(lineage.ids), np.int64)
    flow, place = DaskFlow(), run.place
    parts = [flow.lazy(_sizes_of, place, *file, lineage.ids) for file in sorted(files.items())]
    sizes: IntArray = flow.compute([tree(flow, add_limbs, parts)])[0]
    return sizes


def _sizes_of(place: Place, name: str, sha256: str, ids: tuple[int, ...]) -> IntArray:
    data = read_file(place.storage, name, sha256)
    called = decode_parquet(data, ["cluster"])["cluster"].to_numpy()
    called = called[called != OUTLIER]
    order = np.argsort(ids)
    places = order[np.searchsorted(np.asarray(ids)[order], called)]
    return np.bincount(places, minlength=len(ids)).astype(np.int64)
