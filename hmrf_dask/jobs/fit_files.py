"""One fit from files to files: rows and pairs in, a run directory with assignments out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmrf_dask.addresses import absolute_url
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus, as_corpus
from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from hmrf_dask.estimators.classes import HMRFKMeans
from hmrf_dask.jobs.apart import Place, overlaps, refuse, refuse_in_run
from hmrf_dask.jobs.assignments import FOLDER, write_assignments
from hmrf_dask.jobs.matrix_files import read_matrix
from hmrf_dask.jobs.places import record_assignments
from hmrf_dask.jobs.telling import Tell, nothing
from hmrf_dask.releases.own_files import RUN_DIRECTORY, is_own, names_below, remove_files
from hmrf_dask.remote import explained, open_files
from hmrf_dask.runs.identity import NAME as RUN
from hmrf_dask.runs.storage import open_storage

MODEL = "model"
_ALL_BUT_RUN = re.compile(rf"(?!{RUN}$)(?:{RUN_DIRECTORY.pattern})")


@dataclass(frozen=True)
class FitResult:
    """How a fit ended, in numbers a person or a program asks for first."""

    n_documents: int
    n_pairs: int
    sizes: list[int]
    violations: dict[str, int]
    objective: float
    n_iterations: int
    converged: bool
    stop_reason: str
    files: dict[str, str]


def fit_files(
    rows: str,
    pairs: str | None,
    run_dir: str,
    *,
    fresh: bool = False,
    tell: Tell = nothing,
    **parameters: Any,
) -> FitResult:
    """Fit `HMRFKMeans` on files and write the assignments into the run directory.

    Parameters
    ----------
    rows : str
        What `read_rows` reads.
    pairs : str, optional
        What `Constraints.from_file` reads. Integers are document ids where the rows have ids,
        row numbers otherwise.
    run_dir : str
        Where every iteration is kept; a fit that was killed goes on from there.
    fresh : bool, default=False
        Remove what a former run left in `run_dir` first.
    tell : callable
        Called with what happens; see `hmrf_dask.jobs.telling`.
    **parameters
        The estimator's own; `init` may be an .npy file of centroids.
    """
    read = {"the rows": rows, "the pairs": pairs}
    if str(parameters.get("init", "")).endswith(".npy"):
        read["the centroids"] = parameters["init"]
    places = [Place(f"{what} ({path})", path) for what, path in read.items() if path]
    refuse(overlaps(absolute_url(run_dir), places, called="--run-dir"))
    refuse_in_run(absolute_url(run_dir), "--run-dir")
    corpus = read_rows(rows)
    if str(parameters.get("init", "")).endswith(".npy"):
        shape = int(parameters.get("n_clusters", HMRFKMeans().n_clusters)), corpus.n_features
        parameters["init"] = read_matrix(parameters["init"], shape)
    constraints = Constraints.from_file(pairs, ids=corpus.has_ids) if pairs else None
    if fresh:
        start_afresh(run_dir)
    model = HMRFKMeans(**parameters)
    model._progress = tell
    model.fit(corpus, must_link=constraints, run_dir=run_dir)
    remove_files(open_storage(absolute_url(run_dir), {}, durable=True), MODEL, RUN_DIRECTORY)
    model.save(f"{run_dir}/{MODEL}")
    assigned = write_assignments(corpus, model.labels_, model, run_dir, constraints=constraints)
    record_assignments(run_dir, assigned.files)
    return FitResult(
        n_documents=corpus.n_rows,
        n_pairs=0 if constraints is None else len(constraints),
        sizes=assigned.sizes.tolist(),
        violations=dict(model.violations_),
        objective=float(model.objective_),
        n_iterations=int(model.n_iter_),
        converged=bool(model.converged_),
        stop_reason=str(model.stop_reason_),
        files={
            "run": run_dir,
            "assignments": f"{run_dir}/{FOLDER}",
            "model": f"{run_dir}/{MODEL}",
        },
    )


def read_rows(path: str) -> Corpus:
    """Open rows that lie in a file or a folder.

    Parameters
    ----------
    path : str
        A scipy sparse matrix (.npz), a dense array (.npy), or a folder of Parquet blocks (local or
        an fsspec address), which is read block by block, in tasks.

    Returns
    -------
    Corpus
    """
    suffix = Path(path).suffix
    if suffix not in (".npz", ".npy"):
        with explained(path, "read it"):
            filesystem, inside = open_files(path)
            is_folder = filesystem.isdir(inside)
        if is_folder:
            return Corpus.from_parquet(path)
        raise InvalidInputError(
            f"rows must be a .npz or .npy file or a folder of Parquet blocks, got {path!r}; "
            "check the path"
        )
    matrix = read_matrix(path)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"rows must be a table of numbers, got {path!r} of shape {matrix.shape} and type "
            f"{matrix.dtype}; write one row for each document"
        )
    return as_corpus(matrix)


def start_afresh(run_dir: str) -> None:
    """Remove what a run wrote into its directory; refuse where anything else lies there too.

    Nothing is removed then. The file that says that it is a run directory goes last.
    """
    storage = open_storage(absolute_url(run_dir), {}, durable=True)
    with explained(run_dir, "start afresh"):
        names = sorted(names_below(storage))
    if not names:
        return
    foreign = [name for name in names if not is_own(name, RUN_DIRECTORY)]
    if not foreign and RUN not in names:  # it is written before all but probes
        foreign = [name for name in names if not name.startswith(("probe/", "."))]
    if foreign:
        raise RunDirectoryError(
            f"only a run directory can be started afresh, got {run_dir!r}, where "
            f"{', '.join(foreign[:5])} of no run lies; move it, or name another run directory"
        )
    with explained(run_dir, "start afresh"):
        remove_files(storage, "", _ALL_BUT_RUN)
    storage.delete([RUN])
