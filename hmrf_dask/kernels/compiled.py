"""How kernels are compiled, and the one form of arrays that code is compiled for."""

from __future__ import annotations

import ctypes
import gc
import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache as cached
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.errors import HmrfError
from hmrf_dask.types import AnyArray, FloatArray, LabelArray, RowArray

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


def frozen(array: AnyArray, dtype: type[np.generic]) -> Any:
    """Return a read-only contiguous view (or copy) of `dtype`.

    Arrays that come out of a message are read-only, new ones are not; numba would compile every
    mixture again.

    Examples
    --------
    >>> array = frozen(np.array([1, 2]), np.int32)
    >>> array.dtype, array.flags.writeable
    (dtype('int32'), False)
    """
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


class RowArrays(NamedTuple):
    """Rows, sparse or dense: entry p of row i is feature p − indptr[i] where they are dense.

    Attributes
    ----------
    values : float32 array, shape (n_values,)
    indices : int32 array, shape (n_values,), or (0,) where rows are dense
    indptr : int32 array, shape (n_rows + 1,)
    dense : bool
    n_features : int
    """

    values: RowArray
    indices: LabelArray
    indptr: LabelArray
    dense: bool
    n_features: int

    @property
    def n_rows(self) -> int:
        """Number of rows.

        Examples
        --------
        >>> indptr = np.array([0, 2, 4], np.int32)
        >>> RowArrays(np.ones(4, np.float32), np.zeros(0, np.int32), indptr, True, 2).n_rows
        2
        """
        return len(self.indptr) - 1


class Terms(NamedTuple):
    """What the kernels know of each row under the present weights.

    Arrays of shape (n_rows,), or (1,) where all rows share the number.
    """

    offset: FloatArray
    scale: FloatArray
    shift: FloatArray
    norm: FloatArray  # norm of the row (see `Table.weights`), |scale| included, or more
    mass: FloatArray  # sum of absolute values of the row, |scale| included, or more
    factor: FloatArray  # the summand is factor · f∘x + extra · f, f the distortion's factors
    extra: FloatArray
    size: FloatArray  # of the row's own part of a distance: float64 rounding is relative to it


def spread(term: FloatArray, n_rows: int) -> FloatArray:
    """Return one of the `Terms` with a number for every row.

    Examples
    --------
    >>> spread(np.array([2.0]), 3).tolist()
    [2.0, 2.0, 2.0]
    """
    return np.ascontiguousarray(np.broadcast_to(term, n_rows))


def frozen_terms(terms: Terms) -> Terms:
    """Return the terms in the one form the kernels are compiled for."""
    return Terms(*(frozen(term, np.float64) for term in terms))


@inner(inline="always")
def of_row(term: Any, i: Any) -> Any:
    """Return the number of a row, or the one that all rows share."""
    return term[min(i, term.shape[0] - 1)]


@inner()
def find(values: LabelArray, value: int) -> int:
    """Return where `value` stands in sorted `values`, -1 when it does not."""
    low = 0
    high = values.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    if low < values.shape[0] and values[low] == value:
        return low
    return -1


def product(dense: bool, lanes: int) -> Callable[..., None]:
    """Return what writes the products of a row with `lanes` × vectors columns of a table."""

    def multiply(
        rows: RowArrays, columns: Any, out: AnyArray, start: int, stop: int, column: int
    ) -> None:
        width = lanes * len(columns.vectors)
        here = slice(column, column + width)
        sums = np.zeros(width, out.dtype)
        for place in range(start, stop):
            feature = place - start if dense else rows.indices[place]
            sums += columns.table[feature, here] * out.dtype.type(rows.values[place])
        out[here] = sums

    return multiply


def store(table: AnyArray, row: int, column: int, value: float) -> float:
    """Store a number in a float32 table and return what was stored."""
    table[row, column] = value
    return float(table[row, column])


def score(scores: AnyArray, bias: AnyArray, extra: AnyArray, scale: float, shift: float) -> Any:
    """Turn products into scores and return the least."""
    scores *= scale
    scores += bias
    scores += extra * shift
    return scores.min()


def count_within(scores: AnyArray, limit: float) -> int:
    """Return how many scores are not above a limit.

    Examples
    --------
    >>> count_within(np.array([0.5, 1.0, 2.0]), 1.0)
    2
    """
    return int(np.count_nonzero(scores <= limit))


def least_beyond(scores: AnyArray, limit: float) -> Any:
    """Return the least score above a limit, infinity where there is none.

    Examples
    --------
    >>> float(least_beyond(np.array([0.5, 1.0, 2.0], np.float32), 1.0))
    2.0
    """
    return scores[scores > limit].min(initial=np.float32(np.inf))


def multiply_add(one: float, other: float, third: float) -> float:
    """Return one · other + third, rounded once.

    Examples
    --------
    >>> multiply_add(2.0, 3.0, 1.0)
    7.0
    """
    return float(Fraction(float(one)) * Fraction(float(other)) + Fraction(float(third)))


def view(name: str) -> Callable[[int, int], AnyArray]:
    """Return what shows numbers at an address as an array."""
    number = ctypes.c_float if name == "float32" else ctypes.c_int32

    def shown(address: int, length: int) -> AnyArray:
        return np.ctypeslib.as_array((number * int(length)).from_address(int(address)))

    return shown


def copy_line(source: AnyArray, first: int, target: AnyArray, place: int, width: int = 16) -> None:
    """Copy the numbers of a cache line.

    Examples
    --------
    >>> target = np.zeros(4)
    >>> copy_line(np.arange(4.0), 1, target, 0, width=2)
    >>> target.tolist()
    [1.0, 2.0, 0.0, 0.0]
    """
    target[place : place + width] = source[first : first + width]
