"""Which code computes: bits are promised for one kernel path and one instruction set."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version

from hmrf_dask.kernels.compiled import COMPILED

# Releases of these may add up, or compile, in another way.
LIBRARIES = ("numpy", "scipy", "numba", "llvmlite")


def kernel_path() -> dict[str, str]:
    """Return the kernel path and the instruction set it compiles for on this machine.

    Examples
    --------
    >>> kernel_path()["path"] in ("numba", "python")
    True
    """
    return dict(_kernel_path())


@cache
def _kernel_path() -> tuple[tuple[str, str], ...]:
    import llvmlite.binding
    import numba

    features = llvmlite.binding.get_host_cpu_features().flatten()
    asked = numba.config.CPU_FEATURES  # NUMBA_CPU_FEATURES, in place of what the machine has
    found = {
        "path": "numba" if COMPILED else "python",
        "cpu": numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        "features": hashlib.sha256((asked or features).encode()).hexdigest()[:16],
    }
    return tuple((found | {name: version(name) for name in LIBRARIES}).items())


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
