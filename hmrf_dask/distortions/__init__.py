"""Distortions by name; CONTRIBUTING.md says what a new one needs."""

from __future__ import annotations

from hmrf_dask.distortions.base import Distortion, Extent, TableDistortion
from hmrf_dask.distortions.cosine import Cosine
from hmrf_dask.distortions.euclidean import Euclidean
from hmrf_dask.distortions.idivergence import IDivergence, KullbackLeibler
from hmrf_dask.distortions.own import OwnDistortion
from hmrf_dask.distortions.pearson import Pearson
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.redaction import shortened

DISTORTIONS: dict[str, type[TableDistortion]] = {
    "cosine": Cosine,
    "i-divergence": IDivergence,
    "kl": KullbackLeibler,
    "euclidean": Euclidean,
    "pearson": Pearson,
}

__all__ = ["DISTORTIONS", "Distortion", "Extent", "OwnDistortion", "make_distortion"]


def make_distortion(distortion: str | Distortion) -> Distortion:
    """Return the distortion of that name, or the object itself where it is a `Distortion`.

    Examples
    --------
    >>> make_distortion("euclidean").name
    'euclidean'
    """
    if isinstance(distortion, str):
        if distortion not in DISTORTIONS:
            raise ConfigurationError(
                f"distortion must be one of {sorted(DISTORTIONS)} or a distortion object, "
                f"got {shortened(distortion)}"
            )
        return DISTORTIONS[distortion]()
    if not isinstance(distortion, Distortion):
        raise ConfigurationError(
            "an own distortion must be an object of a class that derives from "
            f"hmrf_dask.distortions.OwnDistortion, got {shortened(distortion)}"
        )
    return distortion
