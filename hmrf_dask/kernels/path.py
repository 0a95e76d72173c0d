"""Which code computes: bits are promised for one kernel path and one instruction set."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version

import numpy as np

from hmrf_dask.kernels.compiled import COMPILED

LIBRARIES = ("numpy", "scipy")  # their releases may sum differently
COMPILERS = ("numba", "llvmlite")  # theirs may compile differently


def kernel_path() -> dict[str, str]:
    """Return the kernel path and the instruction set it compiles for on this machine.

    Examples
    --------
    >>> kernel_path()["path"] in ("numba", "scipy")
    True
    """
    return dict(_kernel_path())


@cache
def _kernel_path() -> tuple[tuple[str, str], ...]:
    found = _compiled_path() if COMPILED else _scipy_path()
    libraries = LIBRARIES + COMPILERS if COMPILED else LIBRARIES
    return tuple((found | {name: version(name) for name in libraries}).items())


def _scipy_path() -> dict[str, str]:
    """Return what numpy chooses its loops by."""
    vectors = np.show_config(mode="dicts")["SIMD Extensions"]  # of the machine, not of the build
    features = ",".join(vectors["baseline"] + vectors.get("found", []))
    return {
        "path": "scipy",
        "cpu": platform.machine(),
        "features": hashlib.sha256(features.encode()).hexdigest()[:16],
    }


def _compiled_path() -> dict[str, str]:
    import llvmlite.binding
    import numba

    features = llvmlite.binding.get_host_cpu_features().flatten()
    asked = numba.config.CPU_FEATURES  # NUMBA_CPU_FEATURES, in place of what the machine has
    return {
        "path": "numba",
        "cpu": numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        "features": hashlib.sha256((asked or features).encode()).hexdigest()[:16],
    }


def path_differences(path: dict[str, str], own: dict[str, str]) -> str:
    """Return in words what of `path` differs from `own`.

    Examples
    --------
    >>> path_differences({"path": "numba", "cpu": "znver3"}, {"path": "numba", "cpu": "skylake"})
    'cpu znver3, not skylake'
    """
    return ", ".join(
        f"{name} {path.get(name)}, not {own.get(name)}"
        for name in sorted(path.keys() | own.keys())
        if path.get(name) != own.get(name)
    )
