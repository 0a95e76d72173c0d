"""Stores that pass the caches by: what is not read again soon should not push out what is."""

from __future__ import annotations

from typing import Any

from hmrf_dask.kernels import stand_ins
from hmrf_dask.kernels.compiled import COMPILED, inner

LINE = 64  # bytes of a line of the cache
_NUMBERS = 16  # of four bytes in a line


def _make_store() -> Any:
    """Return the instruction as a function of two int32 arrays and where in them a line begins."""
    if not COMPILED:
        return stand_ins.copy_line
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def store_line(typing, source, first, target, place):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
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
def stream(source, n, target, place):  # type: ignore[no-untyped-def]
    """Copy n int32 numbers to `place` of a flat array; there a line must begin."""
    whole = n // _NUMBERS * _NUMBERS
    for first in range(0, whole, _NUMBERS):
        _store_line(source, first, target, place + first)
    for rest in range(whole, n):
        target[place + rest] = source[rest]
