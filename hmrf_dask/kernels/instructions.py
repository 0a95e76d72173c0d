"""Machine instructions that LLVM has and numba lacks: prefetching and streaming stores."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from hmrf_dask.kernels import compiled
from hmrf_dask.kernels.compiled import inner, instruction
from hmrf_dask.kernels.threads import LINE
from hmrf_dask.types import LabelArray

AHEAD = 1  # rows: the next is on its way; more of them at once hold up the reads of tables
_NUMBERS = 16  # of four bytes in a line
_MOST = 512  # entries of a row that are asked for; the processor follows a longer row by itself
_INT = ir.IntType(32)


def _hint(locality: int) -> Any:
    """Return what has a number fetched: 0 to be used once and soon, 2 into the second cache."""

    @instruction(lambda _array, _index: None)
    def hint(typing: Any, array: Any, index: Any) -> Any:
        """Have the number at an index fetched."""

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            """Emit LLVM's prefetch of a number that will be read, as data."""
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            byte = ir.IntType(8).as_pointer()
            place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
            kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
            fetch = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
            builder.call(fetch, [place, _INT(0), _INT(locality), _INT(1)])
            return context.get_dummy_value()

        return types.void(array, types.int64), code

    return hint


prefetch, prefetch_for_later = _hint(0), _hint(2)


@inner(inline="always")
def prefetch_row(rows: Any, row: Any) -> None:
    """Have the entries of a row fetched; changes nothing else."""
    first, stop, n_dense = np.int64(rows.indptr[row]), np.int64(rows.indptr[row + 1]), rows.n_dense
    offset = np.int64(row) * n_dense
    for p in range(first, min(stop, first + _MOST) + _NUMBERS - 1, _NUMBERS):
        prefetch(rows.values, p)
    if not rows.dense:
        for p in range(first, min(stop - n_dense, first + _MOST) + _NUMBERS - 1, _NUMBERS):
            prefetch(rows.indices, p - offset)


@inner(inline="always")
def prefetch_indexed(rows: Any, row: Any) -> None:
    """Have the values of a mixed row fetched, but for those of its end."""
    stop = np.int64(rows.indptr[row + 1]) - rows.n_dense
    for p in range(np.int64(rows.indptr[row]), stop + _NUMBERS - 1, _NUMBERS):
        prefetch(rows.values, p)


@inner(inline="always")
def prefetch_end(rows: Any, row: Any) -> None:
    """Have the dense end of a mixed row fetched, which is not read soon."""
    stop = np.int64(rows.indptr[row + 1])
    for p in range(stop - rows.n_dense, stop + _NUMBERS - 1, _NUMBERS):
        prefetch_for_later(rows.values, p)


def _view(name: str) -> Any:
    """Return what shows numbers at an address, two int64, as an array.

    Whoever has it keeps the numbers alive. numba's `carray` counts references, and takes as long to
    compile as a kernel.
    """

    @instruction(compiled.view(name))
    def view(typing: Any, address: Any, length: Any) -> Any:
        """Show numbers at an address as an array."""
        from numba.np.arrayobj import populate_array

        number = getattr(types, name)
        kind = types.Array(number, 1, "C")

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            """Emit an array that owns no memory."""
            array = context.make_array(kind)(context, builder)
            data = builder.inttoptr(arguments[0], array.data.type)
            width = context.get_constant(types.intp, number.bitwidth // 8)
            populate_array(array, data, [arguments[1]], [width], width, meminfo=None)
            return array._getvalue()

        return kind(types.int64, types.int64), code

    return view


# floats(address, length), integers(address, length): the float32 or int32 numbers there
floats, integers = _view("float32"), _view("int32")


@inner(inline="always")
def prefetch_at(values: Any, indices: Any, length: Any, n_indices: Any) -> None:
    """Have the entries of a row fetched, by their addresses."""
    stop = min(np.int64(length) + _NUMBERS - 1, np.int64(_MOST))
    numbers = floats(values, stop)
    for p in range(0, stop, _NUMBERS):
        prefetch(numbers, p)
    if n_indices > 0:
        stop = min(np.int64(n_indices) + _NUMBERS - 1, np.int64(_MOST))
        features = integers(indices, stop)
        for p in range(0, stop, _NUMBERS):
            prefetch(features, p)


@instruction(compiled.copy_line)
def _store_line(typing: Any, source: LabelArray, first: Any, target: LabelArray, place: int) -> Any:
    """Copy a line of int32 numbers, past the cache, to where a line begins."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit a store with LLVM's hint that the line is not read soon."""
        line = ir.VectorType(_INT, _NUMBERS).as_pointer()
        pointers = []
        for kind, array, at in zip((source, target), arguments[0::2], arguments[1::2], strict=True):
            data = context.make_array(kind)(context, builder, array).data
            pointers.append(builder.bitcast(builder.gep(data, [at]), line))
        stored = builder.store(builder.load(pointers[0], align=4), pointers[1], align=LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_INT(1)]))
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), code


@inner()
def stream(source: LabelArray, n: int, target: LabelArray, place: int) -> None:
    """Copy n int32 numbers to `place` of a flat array; there a line must begin."""
    whole = n // _NUMBERS * _NUMBERS
    for first in range(0, whole, _NUMBERS):
        _store_line(source, first, target, place + first)
    for rest in range(whole, n):
        target[place + rest] = source[rest]
