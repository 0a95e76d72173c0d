"""A fitted model as a folder of JSON and .npy files; nothing in it is run when it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from fsspec.implementations.local import LocalFileSystem

from hmrf_dask.distortions import DISTORTIONS, Extent
from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.estimators.prediction import Predictor
from hmrf_dask.rows.files import make_place
from hmrf_dask.storage.addresses import plain_url
from hmrf_dask.storage.remote import explained, open_files
from hmrf_dask.storage.sealed import RESTORE, DamagedFileError, digest, seal_for_people, unseal_as
from hmrf_dask.storage.stores import LocalStorage, refuse_if_lost
from hmrf_dask.storage.whole_files import decode_npy, encode_npy
from hmrf_dask.tasks.model import Limits
from hmrf_dask.types import AnyArray, IntArray

FORMAT = "hmrf-dask/model/v3"
RECORD = "model.json"
_MARK = FORMAT.rpartition("v")[0].encode()


@dataclass(frozen=True)
class SavedModel:
    """What a folder holds."""

    kind: str  # name of the estimator's class
    parameters: dict[str, Any]  # for its constructor
    predictor: Predictor
    summary: dict[str, Any]  # fitted attributes that are JSON, without their last underscore
    feature_names: list[str] | None
    cluster_ids: list[int]  # what each cluster is called, by position


@dataclass(frozen=True)
class _Facts:
    """What model.json holds of the rows that were fitted."""

    n_rows: int
    n_features: int
    mean_mass: float
    largest_mass: float


@dataclass(frozen=True)
class _Record:
    """What model.json holds; `files` has the sha256 of every array's file."""

    estimator: str
    parameters: dict[str, Any]
    distortion: str
    smoothing: float
    corpus: _Facts
    summary: dict[str, Any]
    feature_names: list[str] | None
    cluster_ids: list[int]
    files: dict[str, str]


def save_model(model: SavedModel, path: str | os.PathLike[str]) -> None:
    """Write a model into a folder, local or an fsspec URL.

    model.json names every array with its checksum and comes last, so a folder with it is whole.
    """
    predictor, parameters = model.predictor, dict(model.parameters)
    distortion = predictor.distortion
    assert isinstance(distortion, TableDistortion)  # own ones were refused by the estimator
    extent = distortion.corpus
    arrays: dict[str, AnyArray] = {
        "centroids": predictor.centroids,
        "weights": predictor.weights,
        "minimum": extent.minimum,
        "maximum": extent.maximum,
    }
    if isinstance(predictor.limits, Limits):
        arrays |= asdict(predictor.limits)
    elif predictor.limits is not None:
        arrays["limits"] = predictor.limits
    if predictor.factor is not None:
        arrays["factor"] = predictor.factor
    if not isinstance(parameters.get("init", ""), str):
        arrays["init"] = np.asarray(parameters.pop("init"))
    files = {f"{name}.npy": encode_npy(array) for name, array in arrays.items()}
    facts = _Facts(extent.n_rows, extent.n_features, extent.mean_mass, extent.largest_mass)
    record = _Record(
        estimator=model.kind,
        parameters=parameters,
        distortion=distortion.name,
        smoothing=predictor.smoothing,
        corpus=facts,
        summary=model.summary,
        feature_names=model.feature_names,
        cluster_ids=model.cluster_ids,
        files={name: digest(data) for name, data in files.items()},
    )
    sealed = seal_for_people({"format": FORMAT, **asdict(record)})
    _write(os.fspath(path), files, sealed)


def _write(path: str, files: Mapping[str, bytes], record: bytes) -> None:
    """Write arrays, then the record; into a folder so that they outlast a power cut."""
    refuse_if_lost(path)
    with explained(path, "write the model"):
        filesystem, folder = open_files(path)
        make_place(filesystem, folder)
        _refuse_foreign(filesystem, folder, files)
        if not isinstance(filesystem, LocalFileSystem):
            for name, data in {**files, RECORD: record}.items():
                filesystem.pipe_file(f"{folder}/{name}", data)
            return
    storage = LocalStorage(folder, durable=True)
    for name, data in files.items():
        storage.write(name, data)
    storage.sync_folders([""])
    storage.write(RECORD, record)
    storage.sync_folders(["", ".."])


def _refuse_foreign(filesystem: Any, folder: str, files: Mapping[str, bytes]) -> None:
    """Refuse to replace a model.json, or arrays, that `save` did not write.

    Arrays without a model.json are those of a `save` that was killed where they are the same.
    """
    if filesystem.exists(f"{folder}/{RECORD}"):
        foreign = [] if _MARK in filesystem.cat_file(f"{folder}/{RECORD}") else [RECORD]
    else:
        present = [name for name in files if filesystem.exists(f"{folder}/{name}")]
        foreign = [
            name for name in present if filesystem.cat_file(f"{folder}/{name}") != files[name]
        ]
    if foreign:
        raise ConfigurationError(
            f"a model must be saved into a new folder or one that save() wrote, got {folder} with "
            f"another {foreign[0]}; name another folder"
        )


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """Read a model; raise InvalidInputError naming what is wrong with the folder."""
    path = plain_url(path, "the folder of a model")
    with explained(path, "open it"):
        filesystem, folder = open_files(path)
    record = _read_record(filesystem, folder)
    arrays = {
        name.removesuffix(".npy"): _read_array(filesystem, folder, name, checksum)
        for name, checksum in record.files.items()
    }
    try:
        _require_shapes(arrays, record.corpus.n_features)
        return _model_of(record, arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise not_as_saved(path, error) from error


def not_as_saved(path: str | os.PathLike[str], error: Exception) -> InvalidInputError:
    """Return the error for a record that lacks something or has it in another form.

    Examples
    --------
    >>> str(not_as_saved("model", KeyError("weights"))).partition(",")[0]
    'model/model.json must be as save() wrote it'
    """
    return InvalidInputError(
        f"{os.fspath(path)}/{RECORD} must be as save() wrote it, got something else "
        f"({type(error).__name__}: {error}); save the model again"
    )


def _require_shapes(arrays: Mapping[str, AnyArray], n_features: int) -> None:
    """Raise ValueError where arrays are not those of a model: kernels trust what they get."""
    centroids = arrays["centroids"]
    rows = {name: arrays[name] for name in ("weights", "minimum", "maximum")}
    shapes = {name: array.shape for name, array in rows.items()}
    if any(shape != (n_features,) for shape in shapes.values()) or not len(centroids):
        raise ValueError(f"arrays of {n_features} features have the shapes {shapes}")
    if centroids.ndim != 2 or centroids.shape[1] != n_features:
        raise ValueError(f"centroids of {n_features} features have the shape {centroids.shape}")
    if (factor := arrays.get("factor")) is not None:
        if factor.shape != (n_features, n_features) or not np.array_equal(factor, np.triu(factor)):
            raise ValueError(f"a factor of {n_features} features has the shape {factor.shape}")
        rows["factor"] = factor
    limits = arrays.get("limits")
    if limits is not None and (limits.dtype != np.int64 or limits.shape != centroids.shape[:1]):
        raise ValueError("limits must be one int64 for each cluster")
    if (reach := arrays.get("reach")) is not None:
        middle = arrays["middle"]
        if reach.shape != centroids.shape[:1] or middle.shape not in ((0,), (n_features,)):
            raise ValueError(f"limits have the shapes {reach.shape} and {middle.shape}")
        rows |= {"reach": reach, "middle": middle}
    for name, array in {**rows, "centroids": centroids}.items():
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise ValueError(f"{name} has other values than finite float64")


def _model_of(record: _Record, arrays: dict[str, AnyArray]) -> SavedModel:
    facts, parameters = record.corpus, dict(record.parameters)
    if "init" in arrays:
        parameters["init"] = arrays["init"]
    extent = Extent(**asdict(facts), minimum=arrays["minimum"], maximum=arrays["maximum"])
    distortion = DISTORTIONS[record.distortion]().bind(extent)
    limits: IntArray | Limits | None = arrays.get("limits")
    if "reach" in arrays:
        limits = Limits(arrays["reach"], arrays["middle"])
    predictor = Predictor(
        distortion, arrays["centroids"], arrays["weights"], record.smoothing,
        limits, arrays.get("factor"),
    )  # fmt: skip
    ids, n_clusters = record.cluster_ids, len(predictor.centroids)
    if len(ids) != n_clusters or len({one for one in ids if 0 <= one < 2**31}) != n_clusters:
        raise ValueError(f"cluster_ids must be {n_clusters} different ids, got {ids}")
    about = (record.estimator, parameters, predictor)
    return SavedModel(*about, record.summary, record.feature_names, ids)


def _read_record(filesystem: Any, folder: str) -> _Record:
    path = f"{folder}/{RECORD}"
    try:
        data = _read(filesystem, folder, RECORD)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise InvalidInputError(
            f"path must be a folder that save() wrote, got {folder}, where {RECORD} cannot be read "
            f"({type(error).__name__}: {error}); check the path, or save the model again"
        ) from error
    _refuse_other_format(data, path)
    try:
        return unseal_as(_Record, data, path, FORMAT)
    except DamagedFileError as error:
        said = str(error).removesuffix(f"; {RESTORE}")
        raise InvalidInputError(f"{said}; save the model again") from error


def _refuse_other_format(data: bytes, path: str) -> None:
    """Refuse a whole record of another version, which may be sealed in another way, or not."""
    record = None
    with suppress(ValueError, RecursionError):
        record = json.loads(data)
    version = record.get("format") if isinstance(record, dict) else None
    if isinstance(version, str) and version != FORMAT:
        raise InvalidInputError(
            f"{path} must have the format {FORMAT!r}, got {version!r:.80}; read it with the "
            "version of hmrf-dask that wrote it, or save the model again (that of a job's output: "
            "run it once with start: cold, its clusters keep their ids)"
        )


def _read(filesystem: Any, folder: str, name: str) -> bytes:
    """Return a file; FileNotFoundError where there is none is for the caller to explain."""
    with explained(folder, f"read {name}", FileNotFoundError, NotADirectoryError):
        return bytes(filesystem.cat_file(f"{folder}/{name}"))


def _read_array(filesystem: Any, folder: str, name: str, checksum: str) -> AnyArray:
    try:
        data = _read(filesystem, folder, name)
    except FileNotFoundError as error:
        raise InvalidInputError(
            f"{folder} must hold {name}, which {RECORD} names, got none ({error}); save the model "
            "again"
        ) from error
    if digest(data) != checksum:
        raise InvalidInputError(
            f"{folder}/{name} must be the file that {RECORD} names, got other bytes; save the "
            "model again"
        )
    try:
        return decode_npy(data, f"{folder}/{name}")
    except DamagedFileError as error:
        raise InvalidInputError(f"{error}; save the model again") from error
