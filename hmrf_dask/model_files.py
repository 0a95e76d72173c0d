"""A fitted model as a folder of JSON and .npy files: readable in ten years, and nothing in it is run when it is read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hmrf_dask.distortions import DISTORTIONS, Extent
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.prediction import Predictor

FORMAT = "hmrf-dask/model/v1"
ARRAYS = ("centroids", "weights", "minimum", "maximum")


@dataclass(frozen=True)
class SavedModel:
    """What a folder holds."""

    kind: str
    parameters: dict[str, Any]
    predictor: Predictor
    summary: dict[str, Any]


def save_model(
    path: str | os.PathLike[str],
    kind: str,
    parameters: dict[str, Any],
    predictor: Predictor,
    summary: dict[str, Any],
) -> None:
    """Write a model; model.json comes last, so a folder with it is whole."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    extent: Extent = predictor.distortion.extent  # type: ignore[attr-defined]
    arrays = dict(
        zip(
            ARRAYS,
            (predictor.centroids, predictor.weights, extent.minimum, extent.maximum),
            strict=True,
        )
    )
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    record = {
        "format": FORMAT,
        "estimator": kind,
        "parameters": parameters,
        "distortion": predictor.distortion.name,
        "smoothing": predictor.smoothing,
        "corpus": {
            "n_rows": extent.n_rows,
            "n_features": extent.n_features,
            "mean_mass": extent.mean_mass,
            "largest_mass": extent.largest_mass,
        },
        "summary": summary,
    }
    whole = folder / "model.json.part"
    whole.write_text(json.dumps(record, indent=1), encoding="utf-8")
    os.replace(whole, folder / "model.json")


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """Read a model; raise InvalidInputError naming what is wrong with the folder."""
    folder = Path(path)
    try:
        record = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        arrays = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in ARRAYS}
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"path must be a folder that save() wrote, got {folder} ({error})"
        ) from error
    if record.get("format") != FORMAT:
        raise InvalidInputError(
            f"{folder}/model.json must have format {FORMAT!r}, got {record.get('format')!r}"
        )
    facts = record["corpus"]
    extent = Extent(
        facts["n_rows"],
        facts["n_features"],
        arrays["minimum"],
        arrays["maximum"],
        facts["mean_mass"],
        facts["largest_mass"],
    )
    distortion = DISTORTIONS[record["distortion"]]().bind(extent)
    predictor = Predictor(distortion, arrays["centroids"], arrays["weights"], record["smoothing"])
    return SavedModel(record["estimator"], record["parameters"], predictor, record["summary"])
