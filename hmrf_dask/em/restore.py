"""States made anew: from a commit under any partitioning, and from the labels of a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hmrf_dask.dataflow import Lazy, share_array
from hmrf_dask.em import starts
from hmrf_dask.em.centroids import centroids_of
from hmrf_dask.em.engine import Engine
from hmrf_dask.em.model import Energy, Model, State, WeightPrior
from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.runs import Commit, LabelsFile, RunStore
from hmrf_dask.types import IntArray, LabelArray

Files = tuple[tuple[LabelsFile, ...], tuple[LabelsFile, ...]]  # of corpus parts, of linked parts


def restore(engine: Engine, commit: Commit) -> State:
    """Return the state of a commit: sums and centroids are functions of labels and weights."""
    problem, record = engine.problem, commit.record
    arrays = engine.run.load_state(commit)
    engine.number = commit.number
    free, linked = recut(engine, commit)
    n_clusters, n_features = problem.settings.n_clusters, problem.extent.n_features
    model = Model(
        problem.distortion,
        arrays["weights"],
        np.zeros((n_clusters, n_features)),
        record["smoothing"],
        record["exponent"],
    )
    state = State(
        model,
        np.zeros((0, 0), np.int64),
        np.zeros(0, np.int64),
        free,
        linked,
        Energy.decoded(record["energy"]),
        WeightPrior(record["strength"], arrays["reference"], record["offset"]),
    )
    sums, counts = engine.total_sums(model, state)
    state = replace(state, sums=sums, counts=counts)
    centroids = centroids_of(state)
    centroids[arrays["kept"]] = arrays["centroids"]
    return replace(state, model=replace(model, centroids=centroids))


def recut(engine: Engine, commit: Commit) -> Files:
    """Return label files of the present parts: those of the commit, cut anew where it must be."""
    problem, flow, run = engine.problem, engine.flow, engine.run
    rows = [file for file in commit.files if file.part.startswith("rows-")]
    linked = tuple(file for file in commit.files if file.part.startswith("linked-"))
    if [file.n_rows for file in linked] != [part.n_rows for part in problem.linked]:
        raise RunDirectoryError(
            f"commit {commit.number} must hold the linked parts of this fit, got "
            f"{[file.n_rows for file in linked]} rows for {[p.n_rows for p in problem.linked]}; "
            "resume with the version of hmrf_dask that began the run"
        )
    cuts = [(part.first_row, part.n_rows) for part in problem.free]
    if [(file.first_row, file.n_rows) for file in rows] == cuts:
        return tuple(rows), linked
    files = [
        flow.lazy(
            cut_labels,
            run,
            commit.number,
            part.name,
            part.first_row,
            part.n_rows,
            overlapping(rows, part.first_row, part.n_rows),
        )
        for part in problem.free
    ]
    return tuple(flow.compute(files)), linked


def overlapping(files: Sequence[LabelsFile], first_row: int, n_rows: int) -> list[LabelsFile]:
    """Return the files that hold some of these rows: a task is told of no others."""
    last_row = first_row + n_rows
    return [
        file
        for file in files
        if file.first_row < last_row and file.first_row + file.n_rows > first_row
    ]


def cut_labels(
    run: RunStore, number: int, part: str, first_row: int, n_rows: int, files: list[LabelsFile]
) -> LabelsFile:
    """Write the labels of a part from files of another partitioning."""
    labels = run.read_label_range(files, first_row, first_row + n_rows)
    return run.write_labels(number, part, first_row, np.array(labels))


def spread(engine: Engine, ground: Lazy, file: LabelsFile) -> Files:
    """Write the labels of a candidate, which knows every row, as those of every part."""
    flow, problem, run, number = engine.flow, engine.problem, engine.run, engine.number
    labels = flow.lazy(starts.labels_by_row, ground, run, file)
    free = [
        flow.lazy(
            write_free,
            run,
            number,
            part.name,
            part.first_row,
            part.n_rows,
            share_array(flow, places),
            labels,
        )
        for part, places in zip(problem.free, problem.places, strict=True)
    ]
    linked = [
        flow.lazy(
            write_linked,
            run,
            number,
            part.name,
            part.first_row,
            share_array(flow, problem.laid_rows(part)),
            labels,
        )
        for part in problem.linked
    ]
    files = flow.compute([*free, *linked])
    return tuple(files[: len(free)]), tuple(files[len(free) :])


def write_free(
    run: RunStore,
    number: int,
    part: str,
    first_row: int,
    n_rows: int,
    places: IntArray,
    labels: LabelArray,
) -> LabelsFile:
    """Write the labels of a corpus part, its linked rows marked."""
    own = np.array(labels[first_row : first_row + n_rows])
    own[places] = LINKED
    return run.write_labels(number, part, first_row, own)


def write_linked(
    run: RunStore, number: int, part: str, first_row: int, rows: IntArray, labels: LabelArray
) -> LabelsFile:
    """Write the labels of a linked part."""
    return run.write_labels(number, part, first_row, np.array(labels[rows], np.int32))
