"""Kernels of numpy and scipy, which stand in for the compiled ones where numba cannot run.

Each takes the arguments of the kernel it stands in for and, apart from what decides nothing (the
float32 products that find candidates), does the same operations in the same order on every row:
sums over a row go entry by entry, never through BLAS or pairwise sums. A row's numbers depend on
the row alone here too. Kernels that are linear in the pairs have no form here: without a compiler
they run as Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hmrf_dask.kernels.compiled import COMPILED


def instead(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Let `plain` stand in for the kernel below where kernels are not compiled."""
    return lambda kernel: kernel if COMPILED else plain
