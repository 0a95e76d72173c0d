"""Numba kernels: pure functions over arrays, no Dask, no validation."""

from __future__ import annotations
