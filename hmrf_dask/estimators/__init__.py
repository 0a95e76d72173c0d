"""Estimators with scikit-learn's interface over the one loop."""

from __future__ import annotations

from hmrf_dask.estimators.classes import (
    ConstrainedKMeans,
    COPKMeans,
    HMRFKMeans,
    KMeans,
    MPCKMeans,
    PCKMeans,
    SeededKMeans,
    load,
)

__all__ = [
    "COPKMeans",
    "ConstrainedKMeans",
    "HMRFKMeans",
    "KMeans",
    "MPCKMeans",
    "PCKMeans",
    "SeededKMeans",
    "load",
]
