"""How kernels are compiled: by numba; with NUMBA_DISABLE_JIT=1 they run as Python."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from hmrf_dask.errors import HmrfError

__all__ = ["COMPILED", "inner", "njit"]


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

        from hmrf_dask.kernels.compiler import KernelCompiler

        # no way in for C either: a wrapper that nobody calls is a sixth of the code
        settings = {"_nrt": makes_arrays, "no_cfunc_wrapper": True, **options}
        dispatcher = numba.njit(pipeline_class=KernelCompiler, **settings)(function)
        if cache:
            from hmrf_dask.kernels.code_cache import keep

            keep(dispatcher)
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
