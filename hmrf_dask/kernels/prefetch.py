"""Rows that lie anywhere: fetched before they are needed, and found by their address in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmrf_dask.kernels.compiled import COMPILED, inner

AHEAD = 2  # rows: one is on its way while one is worked on
_LINE = 16  # numbers of four bytes in a line of the cache
_MOST = 512  # entries of a row that are asked for; the processor follows a longer row by itself


def _make_prefetch() -> Any:
    """Return the instruction as a function of an array and an index; nothing where none is made."""
    if not COMPILED:
        return lambda array, index: None
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def hint_at(typing, array, index):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
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
def prefetch_row(values, indices, indptr, row):  # type: ignore[no-untyped-def]
    """Have the entries of a row fetched; changes nothing else."""
    first = indptr[row]
    sparse = indices.shape[0] > 0
    for p in range(first, min(indptr[row + 1] + _LINE - 1, first + _MOST), _LINE):
        prefetch(values, p)
        if sparse:
            prefetch(indices, p)


def _make_pointer(name: str) -> Any:
    """Return what makes an address, an int64, a pointer to numbers; nothing where none is made."""
    if not COMPILED:
        return None
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def pointer(typing, address):  # type: ignore[no-untyped-def]
        kind = types.CPointer(getattr(types, name))

        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(types.int64), code

    return pointer


_to_floats, _to_integers = _make_pointer("float32"), _make_pointer("int32")
if COMPILED:
    from numba import carray


@inner(inline="always")
def floats(address, length):  # type: ignore[no-untyped-def]
    """Return the float32 numbers at an address; whoever has it keeps the array alive."""
    return carray(_to_floats(address), (length,))


@inner(inline="always")
def integers(address, length):  # type: ignore[no-untyped-def]
    """Return the int32 numbers at an address."""
    return carray(_to_integers(address), (length,))


@inner(inline="always")
def prefetch_at(values, indices, length):  # type: ignore[no-untyped-def]
    """Have the entries of a row fetched, by their addresses; no indices: 0."""
    stop: Any = min(np.int64(length) + _LINE - 1, _MOST)
    numbers = floats(values, stop)
    for p in range(0, stop, _LINE):
        prefetch(numbers, p)
    if indices != 0:
        features = integers(indices, stop)
        for p in range(0, stop, _LINE):
            prefetch(features, p)
