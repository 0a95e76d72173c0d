"""Machine instructions that LLVM has and numba lacks: prefetching and streaming stores."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmrf_dask.kernels import compiled
from hmrf_dask.kernels.compiled import COMPILED, inner
from hmrf_dask.types import LabelArray

AHEAD = 2  # rows: one is on its way while one is worked on
_LINE = 16  # numbers of four bytes in a line of the cache
_MOST = 512  # entries of a row that are asked for; the processor follows a longer row by itself


def _make_prefetch() -> Any:
    """Return the instruction as a function of an array and an index; nothing where none is made."""
    if not COMPILED:
        return lambda _array, _index: None
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def hint_at(typing: Any, array: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            byte = ir.IntType(8).as_pointer()
            place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            hint = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
            builder.call(hint, [place, number(0), number(0), number(1)])  # read it, once, as data
            return context.get_dummy_value()

        return types.void(array, types.int64), code

    return hint_at


prefetch = _make_prefetch()


@inner(inline="always")
def prefetch_row(values: Any, indices: Any, indptr: Any, row: Any) -> None:
    """Have the entries of a row fetched; changes nothing else."""
    first = indptr[row]
    sparse = indices.shape[0] > 0
    last = indptr[row + 1] + _LINE - 1
    for p in range(first, last if last < first + _MOST else first + _MOST, _LINE):
        prefetch(values, p)
        if sparse:
            prefetch(indices, p)


def _make_view(name: str) -> Any:
    """Return what shows numbers at an address, two int64, as an array.

    Whoever has it keeps the numbers alive. numba's `carray` counts references, and takes as long to
    compile as a kernel.
    """
    if not COMPILED:
        return compiled.view(name)
    from numba import types
    from numba.extending import intrinsic
    from numba.np.arrayobj import populate_array

    @intrinsic
    def view(typing: Any, address: Any, length: Any) -> Any:
        number = getattr(types, name)
        kind = types.Array(number, 1, "C")

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(kind)(context, builder)
            data = builder.inttoptr(arguments[0], array.data.type)
            width = context.get_constant(types.intp, number.bitwidth // 8)
            populate_array(array, data, [arguments[1]], [width], width, meminfo=None)
            return array._getvalue()

        return kind(types.int64, types.int64), code

    return view


# floats(address, length), integers(address, length): the float32 or int32 numbers there
floats, integers = _make_view("float32"), _make_view("int32")


@inner(inline="always")
def prefetch_at(values: Any, indices: Any, length: Any) -> None:
    """Have the entries of a row fetched, by their addresses; no indices: 0."""
    stop = np.int64(length) + _LINE - 1
    stop = stop if stop < _MOST else np.int64(_MOST)
    numbers = floats(values, stop)
    for p in range(0, stop, _LINE):
        prefetch(numbers, p)
    if indices != 0:
        features = integers(indices, stop)
        for p in range(0, stop, _LINE):
            prefetch(features, p)


LINE = 64  # bytes of a line of the cache
_NUMBERS = 16  # of four bytes in a line


def _make_store() -> Any:
    """Return the instruction as a function of two int32 arrays and where in them a line begins."""
    if not COMPILED:
        return compiled.copy_line
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def store_line(
        typing: Any, source: LabelArray, first: Any, target: LabelArray, place: int
    ) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = ir.IntType(32)
            line = ir.VectorType(number, _NUMBERS).as_pointer()
            pointers = []
            for kind, array, at in zip(
                (source, target), arguments[0::2], arguments[1::2], strict=True
            ):
                data = context.make_array(kind)(context, builder, array).data
                pointers.append(builder.bitcast(builder.gep(data, [at]), line))
            found = builder.load(pointers[0], align=4)
            stored = builder.store(found, pointers[1], align=LINE)
            stored.set_metadata("nontemporal", builder.module.add_metadata([number(1)]))
            return context.get_dummy_value()

        return types.void(source, types.int64, target, types.int64), code

    return store_line


_store_line = _make_store()


@inner()
def stream(source: LabelArray, n: int, target: LabelArray, place: int) -> None:
    """Copy n int32 numbers to `place` of a flat array; there a line must begin."""
    whole = n // _NUMBERS * _NUMBERS
    for first in range(0, whole, _NUMBERS):
        _store_line(source, first, target, place + first)
    for rest in range(whole, n):
        target[place + rest] = source[rest]
