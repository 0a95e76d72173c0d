"""What a run leaves behind: assignments, clusters with stable ids, the model, in its folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.constraints.answer_files import encode_pairs
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.prediction import nearest_rows
from hmrf_dask.jobs import clusters
from hmrf_dask.jobs.assignments import assignments_of, write_assignments
from hmrf_dask.jobs.bundles import paths_of
from hmrf_dask.jobs.carried import Files, Origin, carry, not_carried, origins_of
from hmrf_dask.jobs.clusters import write_clusters
from hmrf_dask.jobs.job_answers import Answers
from hmrf_dask.jobs.job_steps import Material, Run
from hmrf_dask.jobs.overlap import Overlap, count_overlap
from hmrf_dask.jobs.parent import next_id_after
from hmrf_dask.jobs.places import ANSWERS, LINEAGE, MODEL, NOTES, model_of
from hmrf_dask.releases import Lineage, carried_on, first_lineage, hashed, read_published, trace
from hmrf_dask.releases.own_files import OUTPUT, remove_own
from hmrf_dask.runs.records import digest
from hmrf_dask.runs.storage import open_storage
from hmrf_dask.text.rows import top_words
from hmrf_dask.types import IntArray


@dataclass(frozen=True)
class Results:
    """What a run wrote.

    Attributes
    ----------
    files : dict of str to str
        The sha256 of all files of the release so far, by their names below the output.
    lineage : Lineage
    violations : dict of str to int
    n_changed : int
        Documents that the last release had too, in files that are new or changed since.
    """

    files: Files
    lineage: Lineage
    violations: dict[str, int]
    n_changed: int


def write_fit(run: Run, material: Material, answers: Answers, model: HMRFEstimator) -> Results:
    """Write the results of a fit."""
    n_clusters = len(model.cluster_centers_)
    with run.watch.step("match clusters"):
        lineage, n_changed = _traced(run, material, model, n_clusters)
    first_id = next_id_after(run.inputs.output, run.parent) if lineage is None else 0
    ids = range(first_id, first_id + n_clusters) if lineage is None else lineage.ids
    model.cluster_ids_ = np.asarray(ids, np.int32)  # whoever asks it, now or later, gets these
    with run.watch.step("write assignments"):
        written = write_assignments(
            material.corpus, model.labels_, model, run.folder, constraints=answers.used,
            names=material.names,
        )  # fmt: skip
        vocabulary = material.rows.vocabulary
        words = None if vocabulary is None else partial(top_words, vocabulary=vocabulary)
        told = write_clusters(written, model, run.folder, words=words)
        remove_own(run.place.storage, f"{run.name}/{MODEL}")  # of an attempt, or damaged since
        model.save(f"{run.folder}/{MODEL}")
    if lineage is None:
        lineage = first_lineage(written.sizes.tolist(), first_id)
    files = {f"{run.name}/{name}": sha256 for name, sha256 in (written.files | told).items()}
    files |= _model_files(run) | _written(run, LINEAGE, lineage.to_json())
    if answers.used is not None:
        files |= _written(run, ANSWERS, encode_pairs(answers.used))
    return Results(files, lineage, written.violations, n_changed)


def _traced(
    run: Run, material: Material, model: HMRFEstimator, n_clusters: int
) -> tuple[Lineage | None, int]:
    """Return the lineage after the last release, None where there is none, and `n_changed`."""
    if run.previous is None:
        return None, 0
    old = assignments_of(run.previous.files)
    shared = count_overlap(
        run.inputs.output, old, material.corpus, model.labels_, n_clusters, names=material.names,
        changed=_in_changed_files(run, material),
    )  # fmt: skip
    sizes = shared.sizes.tolist()
    lineage = trace(_last_lineage(run), shared.old, shared.new, shared.counts, sizes)
    return lineage, shared.n_changed


def _in_changed_files(run: Run, material: Material) -> list[bool]:
    """Return of each partition whether its files are new or changed since the last release."""
    changed = [not run.same.issuperset(paths_of(told)) for told in material.rows.told]
    return [changed[bundle] for bundle in material.files]


def _last_lineage(run: Run) -> Lineage:
    assert run.previous is not None
    name = next(name for name in run.previous.files if name.endswith(f"/{LINEAGE}"))
    found = Lineage.from_json(read_published(run.inputs.output, run.previous, name))
    next_id = next_id_after(run.inputs.output, run.parent)
    return replace(found, next_id=max(found.next_id, next_id))


def _model_files(run: Run) -> Files:
    folder = f"{run.name}/{MODEL}"
    names = [f"{folder}/{name}" for name in sorted(run.place.storage.names(folder))]
    # Neither half a file, of an attempt that was killed while it wrote, nor what others put there.
    return hashed(run.inputs.output, filter(OUTPUT.fullmatch, names))


def _written(run: Run, name: str, data: bytes) -> Files:
    open_storage(run.inputs.output, {}, durable=True).write(f"{run.name}/{name}", data)
    return {f"{run.name}/{name}": digest(data)}


# ---- new documents under the last model


def write_prediction(run: Run, material: Material) -> Results:
    """Give documents of new and changed files clusters of the last model; others keep theirs."""
    assert run.previous is not None
    model, before = run.last_model, _last_lineage(run)
    origins = origins_of(run, material)
    files, sizes, shared = _predicted(run, material, model, before, origins)
    lineage = carried_on(before, sizes.tolist(), shared.n_common, shared.n_moved)
    folder = model_of(run.previous.files)
    fitted = folder.removesuffix(MODEL)
    kept = (f"{folder}/", f"{fitted}{ANSWERS}", f"{fitted}{NOTES}")
    files |= {n: sha256 for n, sha256 in run.previous.files.items() if n.startswith(kept)}
    files |= _written(run, clusters.NAME, _resized(run, lineage))
    files |= _written(run, LINEAGE, lineage.to_json())
    return Results(files, lineage, {"must_link": 0, "cannot_link": 0}, shared.n_changed)


class _Shared(NamedTuple):
    """Documents that the last release had too.

    Attributes
    ----------
    n_common : int
        All of them.
    n_changed : int
        Those in files that are new or changed since.
    n_moved : int
        Those that are in another cluster now.
    """

    n_common: int
    n_changed: int
    n_moved: int


def _predicted(
    run: Run,
    material: Material,
    model: HMRFEstimator,
    before: Lineage,
    origins: list[Origin | None],
) -> tuple[Files, IntArray, _Shared]:
    """Return assignments, their sizes by cluster, and what they share with the last release."""
    wanted = [origin is None for origin in origins]
    corpus, names = material.of_files(wanted)
    files, sizes, shared = Files(), np.zeros(len(before.ids), np.int64), _Shared(0, 0, 0)
    if corpus is not None:
        old = not_carried(run, material, origins)
        with run.watch.step("write assignments"):
            labels = nearest_rows(model.predictor(), corpus) if old else None
            written = write_assignments(corpus, labels, model, run.folder, names=names)
        if old:
            parts = zip(_in_changed_files(run, material), material.files, strict=True)
            changed = [one for one, bundle in parts if wanted[bundle]]
            shared = _shared(
                count_overlap(
                    run.inputs.output, old, corpus, labels, len(before.ids), changed=changed
                ),
                before.ids,
            )
        sizes = written.sizes
        files |= {f"{run.name}/{name}": sha256 for name, sha256 in written.files.items()}
    carried, kept = carry(run, material, origins, before)  # writes too, beside the others
    n_common = shared.n_common + int(kept.sum())
    return files | carried, sizes + kept, shared._replace(n_common=n_common)


def _shared(found: Overlap, ids: Sequence[int]) -> _Shared:
    moved = found.old != np.asarray(ids)[found.new]
    return _Shared(int(found.counts.sum()), found.n_changed, int(found.counts[moved].sum()))


def _resized(run: Run, lineage: Lineage) -> bytes:
    """Return the clusters of the last release with the sizes they have now."""
    assert run.previous is not None
    name = next(name for name in run.previous.files if name.endswith(f"/{clusters.NAME}"))
    table = pq.read_table(io.BytesIO(read_published(run.inputs.output, run.previous, name)))
    sizes = dict(zip(lineage.ids, lineage.sizes, strict=True))
    now = pa.array([sizes[one] for one in table["cluster"].to_pylist()], pa.int64())
    place = table.column_names.index("size")
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.set_column(place, "size", now), sink, compression="zstd", write_page_checksum=True
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data
