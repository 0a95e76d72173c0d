"""What a run leaves behind: assignments, clusters with stable ids, the model, in its folder."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.constraints.written import encode_pairs
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.jobs import clusters
from hmrf_dask.jobs.assignments import assignments_of, write_assignments
from hmrf_dask.jobs.carried import Files, carry, origins_of
from hmrf_dask.jobs.clusters import write_clusters
from hmrf_dask.jobs.job_answers import Answers
from hmrf_dask.jobs.job_steps import Material, Run
from hmrf_dask.jobs.overlap import count_overlap
from hmrf_dask.jobs.parent import next_id_after
from hmrf_dask.jobs.places import ANSWERS, LINEAGE, MODEL, model_of
from hmrf_dask.releases import Lineage, carried_on, first_lineage, hashed, read_published, trace
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
    """

    files: Files
    lineage: Lineage
    violations: dict[str, int]


def write_fit(run: Run, material: Material, answers: Answers, model: HMRFEstimator) -> Results:
    """Write the results of a fit."""
    n_clusters = len(model.cluster_centers_)
    with run.watch.step("match clusters"):
        lineage = _traced(run, material, model, n_clusters)
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
        model.save(f"{run.folder}/{MODEL}")
    if lineage is None:
        lineage = first_lineage(written.sizes.tolist(), first_id)
    files = {f"{run.name}/{name}": sha256 for name, sha256 in (written.files | told).items()}
    files |= _model_files(run) | _written(run, LINEAGE, lineage.to_json())
    if answers.used is not None:
        files |= _written(run, ANSWERS, encode_pairs(answers.used))
    return Results(files, lineage, written.violations)


def _traced(run: Run, material: Material, model: HMRFEstimator, n_clusters: int) -> Lineage | None:
    """Return the lineage after the last release; None where there is none."""
    if run.previous is None:
        return None
    old = assignments_of(run.previous.files)
    output, names = run.inputs.output, material.names
    shared = count_overlap(output, old, material.corpus, model.labels_, n_clusters, names=names)
    sizes = shared.sizes.tolist()
    return trace(_last_lineage(run), shared.old, shared.new, shared.counts, sizes)


def _last_lineage(run: Run) -> Lineage:
    assert run.previous is not None
    name = next(name for name in run.previous.files if name.endswith(f"/{LINEAGE}"))
    found = Lineage.from_json(read_published(run.inputs.output, run.previous, name))
    next_id = next_id_after(run.inputs.output, run.parent)
    return replace(found, next_id=max(found.next_id, next_id))


def _model_files(run: Run) -> Files:
    folder = f"{run.name}/{MODEL}"
    names = open_storage(run.inputs.output, {}, durable=True).names(folder)
    # What begins with a dot is half a file, of an attempt that was killed while it wrote.
    written = [f"{folder}/{name}" for name in sorted(names) if not name.startswith(".")]
    return hashed(run.inputs.output, written)


def _written(run: Run, name: str, data: bytes) -> Files:
    open_storage(run.inputs.output, {}, durable=True).write(f"{run.name}/{name}", data)
    return {f"{run.name}/{name}": digest(data)}


# ---- new documents under the last model


def write_prediction(run: Run, material: Material) -> Results:
    """Give documents of new and changed files clusters of the last model; others keep theirs."""
    assert run.previous is not None
    model, before = run.last_model, _last_lineage(run)
    origins = origins_of(run, material)
    files, sizes, n_common = _predicted(run, material, model, before, origins)
    lineage = carried_on(before, sizes.tolist(), n_common)
    folder = model_of(run.previous.files)
    kept = (f"{folder}/", f"{folder.removesuffix(MODEL)}{ANSWERS}")
    files |= {n: sha256 for n, sha256 in run.previous.files.items() if n.startswith(kept)}
    files |= _written(run, clusters.NAME, _resized(run, lineage))
    files |= _written(run, LINEAGE, lineage.to_json())
    return Results(files, lineage, {"must_link": 0, "cannot_link": 0})


def _predicted(
    run: Run,
    material: Material,
    model: HMRFEstimator,
    before: Lineage,
    origins: list[str | None],
) -> tuple[Files, IntArray, int]:
    """Return assignments, their sizes by cluster, and how many documents kept theirs."""
    corpus, names = material.of_files([origin is None for origin in origins])
    files, sizes = Files(), np.zeros(len(before.ids), np.int64)
    if corpus is not None:
        with run.watch.step("write assignments"):
            written = write_assignments(corpus, None, model, run.folder, names=names)
        sizes = written.sizes
        files |= {f"{run.name}/{name}": sha256 for name, sha256 in written.files.items()}
    carried, kept = carry(run, material, origins, before)  # writes too, beside the others
    return files | carried, sizes + kept, int(kept.sum())


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
