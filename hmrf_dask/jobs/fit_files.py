"""One fit, or one prediction, from files to files: rows and pairs in, assignments out."""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import scipy.sparse as sp

from hmrf_dask.checkpoints.directory import NAME as RUN
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus, as_corpus
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    MemoryPlanError,
    RunDirectoryError,
    in_words,
)
from hmrf_dask.estimators.classes import HMRFKMeans, load
from hmrf_dask.estimators.comparison import marked_labels
from hmrf_dask.flow.cluster import machine_memory
from hmrf_dask.jobs.assignments import write_assignments
from hmrf_dask.jobs.inputs import Place, overlaps, refuse, refuse_in_run
from hmrf_dask.jobs.places import ASSIGNMENTS_FOLDER, MODEL, model_folder, record_assignments
from hmrf_dask.jobs.report import report_after_fit
from hmrf_dask.parameters import AUTO, LARGEST_INT32, NPZ_FREE_BYTES, NPZ_RATIO
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.releases.own_files import RUN_DIRECTORY, is_own, remove_files
from hmrf_dask.report.content import HTML
from hmrf_dask.rows.canonical import sound_csr
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.remote import explained, open_files
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.storage.whole_files import open_regular, parse_npy, read_header
from hmrf_dask.types import AnyArray

_HEADER_BYTES: Final = 2**16
_INDICES: Final = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}
_MOST_MEMBERS: Final = 100
_PLAIN: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_matrix(path: str, shape: tuple[int, int] | None = None) -> Any:
    """Return the sparse matrix of a .npz file, or the array, of this shape, of a .npy file."""
    read = _read_npz if path.endswith(".npz") else partial(_read_npy, wanted=shape)
    try:
        with open_regular(path) as file:
            return read(file)
    except FileNotFoundError as error:
        raise InvalidInputError(f"there is no file {path!r}: check the path") from error
    except HmrfError as error:
        raise type(error)(f"{path!r}: {error}") from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile,
            MemoryError, OverflowError, SyntaxError) as error:  # fmt: skip
        raise InvalidInputError(
            f"{path!r} cannot be read as a {os.path.splitext(path)[1]} file "
            f"({in_words(error):.300}); write it with scipy.sparse.save_npz or numpy.save"
        ) from error


def _read_npy(file: BinaryIO, wanted: tuple[int, int] | None) -> AnyArray:
    size = os.fstat(file.fileno()).st_size
    begin = io.BytesIO(file.read(_HEADER_BYTES))
    shape, by_columns, dtype = read_header(begin, size)
    _refuse_other_values(dtype)
    if wanted is not None and shape != wanted:
        raise ConfigurationError(f"init must be an array of shape {wanted}, got shape {shape}")
    if size > machine_memory():
        raise _too_large(size)
    file.seek(begin.tell())
    values = np.fromfile(file, dtype, math.prod(shape))
    return values.reshape(shape, order="F" if by_columns else "C")


def _refuse_other_values(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufSU":
        raise ValueError(f"its values must be numbers, got the type {dtype!s:.80}")


def _too_large(n_bytes: int) -> MemoryPlanError:
    return MemoryPlanError(
        f"it must fit into memory, got {n_bytes:,} bytes for {machine_memory():,} of this machine; "
        "write Parquet blocks with Corpus.to_parquet"
    )


# ---- .npz


def _read_npz(file: BinaryIO) -> Any:
    with io.BufferedReader(file) as whole, zipfile.ZipFile(whole) as archive:  # type: ignore[type-var]
        members = _members(archive, os.fstat(file.fileno()).st_size)
        kind = _kind(_array(archive, members, "format"))
        shape = _shape(_array(archive, members, "shape"))
        numbers = [_array(archive, members, name) for name in _INDICES[kind]]
        for name, array in zip(_INDICES[kind], numbers, strict=True):
            if array.dtype.kind not in "iu":
                raise ValueError(f"{name} must be whole numbers, got the type {array.dtype}")
        values = _array(archive, members, "data")
    if kind in ("coo", "dia", "csc") and 8 * shape[0] > machine_memory():
        raise _too_large(8 * shape[0])  # row pointers of the rows it becomes
    return _matrix(kind, values, numbers, shape)


def _members(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, refused where they would unpack to more than matrices do."""
    members = archive.infolist()
    names = [one.filename.removesuffix(".npy") for one in members]
    if len(members) > _MOST_MEMBERS or len(set(names)) < len(names):
        raise ValueError(f"its members must be a few different ones, got {len(members)}")
    if any(one.flag_bits & 1 or one.compress_type not in _PLAIN for one in members):
        raise ValueError("its members must be stored or deflated, without a password")
    total = sum(one.file_size for one in members)
    if total > max(NPZ_FREE_BYTES, NPZ_RATIO * file_bytes):
        raise ValueError(
            f"it must unpack to at most {NPZ_RATIO} times its {file_bytes:,} bytes, got {total:,}"
        )
    if total > machine_memory():
        raise _too_large(total)
    return dict(zip(names, members, strict=True))


def _array(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> AnyArray:
    if name not in members:
        raise ValueError(f"it must have an array {name!r}, got {sorted(members)!s:.80}")
    with archive.open(members[name]) as member:
        array = parse_npy(member.read())  # no more than the directory says
    _refuse_other_values(array.dtype)
    return array


def _kind(array: AnyArray) -> str:
    given = array.item() if array.shape == () else None
    kind = given.decode("ascii", "replace") if isinstance(given, bytes) else given
    if not isinstance(kind, str) or kind not in _INDICES:
        raise ValueError(f"its format must be {', '.join(_INDICES)}, got {kind!r:.80}")
    return kind


def _shape(array: AnyArray) -> tuple[int, int]:
    plain = array.tolist() if array.shape == (2,) and array.dtype.kind in "iu" else []
    if len(plain) != 2 or min(plain) < 0 or plain[1] > LARGEST_INT32:
        found = f"{array.tolist()!s:.80}"
        raise ValueError(f"its shape must be rows and at most {LARGEST_INT32} columns, got {found}")
    return plain[0], plain[1]


def _matrix(kind: str, values: AnyArray, numbers: list[AnyArray], shape: tuple[int, int]) -> Any:
    """Return the rows of a matrix, whose numbers all lie in its shape."""
    make = getattr(sp, f"{kind}_array")
    parts = (values, tuple(numbers)) if kind == "coo" else (values, *numbers)
    return sound_csr(make(parts, shape=shape))


STEPS: Final = ("read the rows", "fit", "write assignments", "write the report page")
_ALL_BUT_RUN = re.compile(rf"(?!{RUN}$)(?:{RUN_DIRECTORY.pattern})")


@dataclass(frozen=True)
class FitResult:
    """How a fit ended, in numbers a person or a program asks for first."""

    n_documents: int
    n_pairs: int
    sizes: list[int]
    violations: dict[str, int]
    suspect_answers: list[dict[str, Any]]  # more likely wrong than right, the least likely first
    objective: float
    n_iterations: int
    converged: bool
    stop_reason: str
    start_reason: str
    files: dict[str, str]
    n_outliers: int = 0  # documents of no cluster, -1 in the assignments


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
        Where every iteration is kept; a fit that was killed resumes there.
    fresh : bool, default=False
        Remove what a former run left in `run_dir` first.
    tell : callable
        Called with what happens; see `hmrf_dask.jobs.progress`.
    **parameters
        The estimator's own; `init` may be an .npy file of centroids.
    """
    init = str(parameters.get("init", ""))
    centroids = init if init.endswith(".npy") else None
    read = {"the rows": rows, "the pairs": pairs, "the centroids": centroids}
    _refuse_place(run_dir, "--run-dir", read)
    tell({"plan": STEPS})
    tell({"step": STEPS[0]})
    corpus = read_rows(rows)
    if centroids is not None:
        n_clusters = parameters.get("n_clusters", HMRFKMeans().n_clusters)
        shape = None if n_clusters == AUTO else (int(n_clusters), corpus.n_features)
        parameters["init"] = read_matrix(centroids, shape)  # refused with "auto" by the estimator
    constraints = Constraints.from_file(pairs, ids=corpus.has_ids) if pairs else None
    if fresh:
        start_afresh(run_dir)
    model = HMRFKMeans(**parameters)
    model._progress, model._reports = tell, False  # the report is made of the files
    tell({"step": STEPS[1]})
    model.fit(corpus, must_link=constraints, run_dir=run_dir)
    tell({"step": STEPS[2]})
    remove_files(open_storage(absolute_url(run_dir), {}, durable=True), MODEL, RUN_DIRECTORY)
    model.save(f"{run_dir}/{MODEL}")
    labels = marked_labels(model)
    assigned = write_assignments(corpus, labels, model, run_dir, constraints=constraints)
    record_assignments(run_dir, assigned.files)
    tell({"step": STEPS[3]})
    report_after_fit(run_dir, constraints, assigned.violations)
    return FitResult(
        n_documents=corpus.n_rows,
        n_pairs=0 if constraints is None else len(constraints),
        sizes=assigned.sizes.tolist(),
        violations=dict(model.violations_),
        suspect_answers=[suspect._asdict() for suspect in model.suspect_answers_],
        objective=float(model.objective_),
        n_iterations=int(model.n_iter_),
        converged=bool(model.converged_),
        stop_reason=str(model.stop_reason_),
        start_reason=str(model.start_reason_),
        files={
            "run": run_dir,
            "assignments": f"{run_dir}/{ASSIGNMENTS_FOLDER}",
            "model": f"{run_dir}/{MODEL}",
            "report": f"{run_dir}/{HTML}",
        },
        n_outliers=assigned.n_outliers,
    )


def read_rows(path: str) -> Corpus:
    """Open rows: a scipy sparse matrix (.npz), a dense array (.npy), or a folder of Parquet blocks.

    The folder, local or an fsspec address, is read block by block, in tasks.
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


def _refuse_place(folder: str, called: str, read: Mapping[str, str | None]) -> None:
    """Refuse a folder to write to that lies in the way of what is read, or in a job's run."""
    places = [Place(f"{what} ({path})", path) for what, path in read.items() if path]
    refuse(overlaps(absolute_url(folder), places, called=called))
    refuse_in_run(absolute_url(folder), called)


def start_afresh(run_dir: str) -> None:
    """Remove what a run wrote into its directory; refuse where anything else lies there too.

    Nothing is removed then. The file that says that it is a run directory goes last.
    """
    storage = open_storage(absolute_url(run_dir), {}, durable=True)
    with explained(run_dir, "start afresh"):
        names = sorted(storage.names_below())
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


@dataclass(frozen=True)
class Prediction:
    """How many new documents each cluster has, and where the assignments are.

    `clusters` have what the model calls each `cluster` (of a job's output the id that stays), and
    its `size`.
    """

    n_documents: int
    clusters: list[dict[str, int]]
    files: dict[str, str]
    n_outliers: int = 0  # documents of no cluster, -1 in the assignments


def predict_files(model: str, rows: str, out: str) -> Prediction:
    """Give rows in files their nearest clusters.

    The model is a saved one, the run directory of a fit, or the output of a job.
    """
    folder = model_folder(model)
    _refuse_place(out, "--out", {"the model": model, "the rows": rows})
    fitted, corpus = load(folder), read_rows(rows)
    assigned = write_assignments(corpus, None, fitted, out)
    record_assignments(out, assigned.files)
    files = {"model": folder, "assignments": f"{out}/{ASSIGNMENTS_FOLDER}"}
    sizes = sorted(zip(fitted.cluster_ids_.tolist(), assigned.sizes.tolist(), strict=True))
    clusters = [{"cluster": cluster, "size": size} for cluster, size in sizes]
    return Prediction(corpus.n_rows, clusters, files, assigned.n_outliers)
