"""How kernels are compiled: by numba; with NUMBA_DISABLE_JIT=1 they run as Python.

Bits are promised for one kernel path: one compiler, one instruction set, the same libraries.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from functools import cache as cached
from importlib.metadata import version
from typing import Any

import numpy as np

from hmrf_dask.errors import HmrfError

# Releases of these may add up, or compile, in another way.
LIBRARIES = ("numpy", "scipy", "numba", "llvmlite")


class CompilerError(HmrfError, ImportError):
    """Numba, which compiles the kernels, cannot be imported."""

    exit_code = 78


def _compiles() -> bool:
    """Return whether kernels are compiled in this process: not with NUMBA_DISABLE_JIT=1."""
    try:
        import numba
    except (ImportError, OSError) as error:  # refused by numpy's release; llvmlite's library
        raise CompilerError(
            f"hmrf_dask must have numba to compile its kernels, got {type(error).__name__}: "
            f"{error}; install numba and a numpy that it takes (pip install 'hmrf-dask')"
        ) from error
    return not numba.config.DISABLE_JIT


COMPILED: bool = _compiles()  # False: kernels run as Python, to be debugged


def njit(
    *, cache: bool = False, makes_arrays: bool = True, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel that Python calls, or leave it as Python where `COMPILED` is False.

    Parameters
    ----------
    cache : bool
        Whether to keep the code from one process to the next, where that can be done.
    makes_arrays : bool
        Whether the kernel makes arrays. One that does not counts no references to the arrays it
        reads: it is smaller, sooner compiled and may take arrays out of tuples inside loops.
    **options
        As of `numba.njit`.
    """

    def compile_or_leave(function: Callable[..., Any]) -> Any:
        if not COMPILED:  # numpy's integers overflow as the machine's do, but warn of it
            return np.errstate(all="ignore")(function)
        import numba

        from hmrf_dask.kernels.code_cache import KernelCache, KernelCompiler

        # no way in for C either: a wrapper that nobody calls is a sixth of the code
        settings = {"_nrt": makes_arrays, "no_cfunc_wrapper": True, **options}
        dispatcher = numba.njit(pipeline_class=KernelCompiler, **settings)(function)
        if cache:
            dispatcher._cache = KernelCache(function)
            dispatcher.compile = _uncollected(dispatcher.compile)
        return dispatcher

    return compile_or_leave


def _uncollected(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `work` without garbage collection: a compiler's objects are many, and no garbage."""

    def run(signature: Any) -> Any:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return work(signature)
        finally:
            if collecting:
                gc.enable()

    return run


def inner(*, makes_arrays: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that only kernels call: neither a way in from Python nor a place on disk.

    Both cost more than the function itself; the code is kept with the kernels that call it. What
    is called from one place only is best inlined (`inline="always"`): LLVM then sees it once.
    """
    return njit(makes_arrays=makes_arrays, no_cpython_wrapper=True, **options)


def kernel_path() -> dict[str, str]:
    """Return the kernel path and the instruction set it compiles for on this machine.

    Examples
    --------
    >>> kernel_path()["path"] in ("numba", "python")
    True
    """
    return dict(_kernel_path())


@cached
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
