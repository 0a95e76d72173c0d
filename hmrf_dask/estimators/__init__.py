"""Estimators with scikit-learn's interface over the one loop."""

from __future__ import annotations

from hmrf_dask.estimators.classes import HMRFKMeans, KMeans, MPCKMeans, load
from hmrf_dask.estimators.lsa import LSA

__all__ = ["LSA", "HMRFKMeans", "KMeans", "MPCKMeans", "load"]
