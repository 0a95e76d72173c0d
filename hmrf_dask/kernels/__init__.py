"""Numba kernels: pure functions over arrays, no Dask, no validation."""

from __future__ import annotations

import hmrf_dask.kernels.compiled  # noqa: F401  # before any other module asks for numba
