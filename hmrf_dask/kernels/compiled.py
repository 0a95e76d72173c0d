"""How kernels are compiled: by numba where it can run, else they stay plain Python."""

from __future__ import annotations

from numba import njit

__all__ = ["njit"]
