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
from hmrf_dask.estimators.lsa import LSA

__all__ = [
    "LSA",
    "COPKMeans",
    "ConstrainedKMeans",
    "HMRFKMeans",
    "KMeans",
    "MPCKMeans",
    "PCKMeans",
    "SeededKMeans",
    "load",
]
