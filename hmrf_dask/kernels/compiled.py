"""How kernels are compiled, and the one form of arrays that code is compiled for."""

from __future__ import annotations

import ctypes
import gc
import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

import numpy as np

from hmrf_dask.errors import HmrfError
from hmrf_dask.types import DTYPES, AnyArray, FloatArray, LabelArray, RowArray

P = ParamSpec("P")
Made = TypeVar("Made", bound=NamedTuple)

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

    With `cache` code is kept from one process to the next, where that can be done. A kernel that
    does not make arrays counts no references to the arrays it reads: it is smaller, sooner compiled
    and may take arrays out of tuples inside loops.
    """

    def compile_or_leave(function: Callable[..., Any]) -> Any:
        """Return the compiled function; without numba, the Python one."""
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
        """Do the work with the collector off, and leave it as it was."""
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


def cpu_features() -> str:
    """Return what the instruction set that kernels are compiled for has, as LLVM names it."""
    import llvmlite.binding
    import numba

    asked = numba.config.CPU_FEATURES  # NUMBA_CPU_FEATURES, in place of what the machine has
    return str(llvmlite.binding.get_host_cpu_features().flatten() if asked is None else asked)


@cache
def kernel_path() -> dict[str, str]:
    """Return the kernel path and the instruction set it compiles for on this machine.

    Examples
    --------
    >>> kernel_path()["path"] in ("numba", "python")
    True
    """
    import llvmlite.binding
    import numba

    return {
        "path": "numba" if COMPILED else "python",
        "cpu": numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        "features": hashlib.sha256(cpu_features().encode()).hexdigest()[:16],
        **{name: version(name) for name in LIBRARIES},
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
    if type(array) is np.ndarray and array.dtype == dtype:
        flags = array.flags
        if flags.c_contiguous and not flags.writeable:
            return array
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def former(kind: Callable[P, Made]) -> Callable[P, Made]:
    """Return what makes a NamedTuple in the one form the kernels are compiled for.

    The annotations of its fields say it: arrays are `frozen`, numbers those of Python.
    """
    forms = [_form(hint) for hint in get_type_hints(kind).values()]

    def make(*values: P.args, **named: P.kwargs) -> Made:
        """Return a record whose arrays have the types of its fields."""
        made = kind(*values, **named)
        return made._make([form(value) for form, value in zip(forms, made, strict=True)])

    return make


def _form(hint: Any) -> Callable[[Any], Any]:
    """Return what brings a value into the form that an annotation says."""
    dtype = DTYPES.get(hint)
    if dtype is not None:
        return lambda array: frozen(array, dtype)
    return hint if hint in (int, float, bool) else lambda value: value


class RowArrays(NamedTuple):
    """Rows, sparse, dense, or sparse with a dense end: the last features, which every row has.

    Row i has the entries p from indptr[i] to indptr[i + 1]. The last `n_dense` of them are the last
    features, so entry p is feature p − (indptr[i + 1] − n_features); of the entries before, which
    dense rows have none of, it is indices[p − i · n_dense].
    """

    values: RowArray  # (n_values,)
    indices: LabelArray  # (n_values − n_rows · n_dense,), or (0,) where rows are dense
    indptr: LabelArray  # (n_rows + 1,)
    dense: bool
    n_features: int
    n_dense: int  # all features of dense rows, 0 of sparse ones

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def indexed(self) -> RowArrays:
        """The same rows with an index for every entry; dense rows as they are.

        Examples
        --------
        >>> values, indptr = np.ones(5, np.float32), np.array([0, 2, 5], np.int32)
        >>> RowArrays(values, np.array([1], np.int32), indptr, False, 4, 2).indexed.indices
        array([2, 3, 1, 2, 3], dtype=int32)
        """
        if self.dense or not self.n_dense:
            return self
        ends = (self.indptr[1:, None] + np.arange(-self.n_dense, 0)).reshape(-1)
        indices, before = np.empty(len(self.values), np.int32), np.ones(len(self.values), np.bool_)
        before[ends] = False
        indices[before] = self.indices
        last = np.arange(self.n_features - self.n_dense, self.n_features, dtype=np.int32)
        indices[ends] = np.tile(last, self.n_rows)
        return self._replace(indices=frozen(indices, np.int32), n_dense=0)


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


frozen_terms = former(Terms)


def spread(term: FloatArray, n_rows: int) -> FloatArray:
    """Return one of the `Terms` with a number for every row.

    Examples
    --------
    >>> spread(np.array([2.0]), 3).tolist()
    [2.0, 2.0, 2.0]
    """
    return np.ascontiguousarray(np.broadcast_to(term, n_rows))


@inner(inline="always")
def of_row(term: Any, i: Any) -> Any:
    """Return the number of a row, or the one that all rows share."""
    return term[min(i, term.shape[0] - 1)]


@inner(inline="always")
def feature_of(rows: Any, i: Any, p: Any) -> Any:
    """Return the feature of entry p of row i; unsigned, which is not counted from the end."""
    behind = np.int64(rows.indptr[i + 1]) - p
    if behind <= rows.n_dense:
        return np.uint32(rows.n_features - behind)
    return np.uint32(rows.indices[p - i * rows.n_dense])


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


def instruction(stand_in: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Emit instructions of LLVM, as numba's `intrinsic`; where Python runs it runs `stand_in`."""

    def emit_or_stand_in(function: Callable[..., Any]) -> Any:
        """Return what emits the instructions; without numba, the stand-in."""
        if not COMPILED:
            return stand_in
        from numba.extending import intrinsic

        return intrinsic(function)

    return emit_or_stand_in


# ---- what stands in for instructions


def product(dense: bool, more: bool, lanes: int) -> Callable[..., None]:
    """Return what writes the products of a row with `lanes` × vectors columns of a table."""

    def multiply(
        rows: RowArrays, columns: Any, out: AnyArray, span: tuple[int, int, int], column: int
    ) -> None:
        """Write the products of one row, from a column on."""
        width, (start, stop, offset) = lanes * len(columns.vectors), span
        here = slice(column, column + width)
        sums = out[here].copy() if more else np.zeros(width, out.dtype)
        for place in range(start, stop):
            feature = place - offset if dense else rows.indices[place - offset]
            sums += columns.table[feature, here] * out.dtype.type(rows.values[place])
        out[here] = sums

    return multiply


def products(rows: RowArrays, starts: AnyArray, columns: Any, out: AnyArray, column: int) -> None:
    """Write the products of dense rows, by where they start, with some columns of a table."""
    if column == 0:  # all at once
        n_features = len(columns.table)
        for row, start in enumerate(starts):
            out[row] = rows.values[start : start + n_features] @ columns.table


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


def within(scores: AnyArray, limit: float) -> tuple[int, int]:
    """Return how many scores are not above a limit, and the place of it where it is one.

    Examples
    --------
    >>> within(np.array([0.5, 1.0, 0.2]), 0.3)
    (1, 2)
    """
    found = np.flatnonzero(scores <= limit)
    return len(found), int(found.sum())


def least_beyond(scores: AnyArray, limit: float) -> Any:
    """Return the least score above a limit, infinity where there is none."""
    return scores[scores > limit].min(initial=np.float32(np.inf))


def multiply_add(x: float, y: float, z: float) -> float:
    """Return x y + z, rounded once."""
    return float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))


def view(name: str) -> Callable[[int, int], AnyArray]:
    """Return what shows numbers at an address as an array."""
    number = ctypes.c_float if name == "float32" else ctypes.c_int32

    def shown(address: int, length: int) -> AnyArray:
        """Return the numbers, without a copy."""
        return np.ctypeslib.as_array((number * int(length)).from_address(int(address)))

    return shown


def copy_line(source: AnyArray, first: int, target: AnyArray, place: int) -> None:
    """Copy the numbers of a cache line."""
    target[place : place + 16] = source[first : first + 16]
