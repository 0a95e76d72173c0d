"""Products of one row with many centroids, the inner loop of the E-step, kept in vector registers.

The plain loop stores and loads every accumulator for every entry of a row; here up to 128 of them
stay in registers for the whole row (2 to 3 times as fast). LLVM maps the vectors to what the
machine has. Results are float32 and only find candidates, so fused multiply-adds may be used: the
error bound of `kernels.distances` holds either way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import AnyArray

LANES = 16  # float32 numbers in one vector; columns of the table are padded to whole vectors
_INDEX = ir.IntType(64)
_LANE = ir.IntType(32)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)


class Entries(NamedTuple):
    """The rows of a block as kernels read them: feature p − indptr[i] where they are dense."""

    values: AnyArray
    indices: AnyArray
    indptr: AnyArray
    dense: bool


def entries(block: RowBlock) -> Entries:
    """Return the arrays of a block; they are read-only and aligned already."""
    return Entries(block.values, block.indices, block.indptr, block.is_dense)


def _generate(
    builder: Any, n_vectors: int, dense: bool, pointers: list[Any], numbers: list[Any]
) -> None:
    """Emit the loop over the entries of one row, the accumulators as phi nodes."""
    values, indices, table, out = pointers
    start, stop, width, column = numbers
    before = builder.block
    loop = builder.append_basic_block("entries")
    done = builder.append_basic_block("done")
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    builder.cbranch(builder.icmp_signed("<", start, stop), loop, done)
    builder.position_at_end(loop)
    place = builder.phi(_INDEX)
    sums = [builder.phi(_VECTOR) for _ in range(n_vectors)]
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    value = builder.load(builder.gep(values, [place]))
    spread = builder.insert_element(undefined, value, ir.Constant(_LANE, 0))
    lanes = ir.Constant(ir.VectorType(_LANE, LANES), [0] * LANES)
    spread = builder.shuffle_vector(spread, undefined, lanes)
    if dense:
        feature = builder.sub(place, start)
    else:
        feature = builder.zext(builder.load(builder.gep(indices, [place])), _INDEX)
    first = builder.add(builder.mul(feature, width), column)
    after = []
    for number, total in enumerate(sums):
        at = builder.add(first, ir.Constant(_INDEX, LANES * number))
        source = builder.bitcast(builder.gep(table, [at]), _VECTOR.as_pointer())
        product = builder.fmul(builder.load(source, align=4), spread, flags=("contract",))
        after.append(builder.fadd(total, product, flags=("contract",)))
    following = builder.add(place, ir.Constant(_INDEX, 1))
    builder.cbranch(builder.icmp_signed("<", following, stop), loop, done)
    for node, first_value, next_value in zip(
        [place, *sums], [start, *[zero] * n_vectors], [following, *after], strict=True
    ):
        node.add_incoming(first_value, before)
        node.add_incoming(next_value, loop)
    builder.position_at_end(done)
    results = [builder.phi(_VECTOR) for _ in range(n_vectors)]
    for number, (result, total) in enumerate(zip(results, after, strict=True)):
        result.add_incoming(zero, before)
        result.add_incoming(total, loop)
        at = builder.add(column, ir.Constant(_INDEX, LANES * number))
        target = builder.bitcast(builder.gep(out, [at]), _VECTOR.as_pointer())
        builder.store(result, target, align=4)


def _product(n_vectors: int, dense: bool) -> Any:
    """Return an intrinsic that multiplies a row with `n_vectors` vectors of the table's columns."""

    @intrinsic
    def product(typing, values, indices, table, out, start, stop, width, column):  # type: ignore[no-untyped-def]
        numbers = (types.int64, types.int64, types.int64, types.int64)
        signature = types.void(values, indices, table, out, *numbers)

        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            pointers = [
                context.make_array(kind)(context, builder, argument).data
                for kind, argument in zip(signature.args[:4], arguments[:4], strict=True)
            ]
            _generate(builder, n_vectors, dense, pointers, list(arguments[4:]))
            return context.get_dummy_value()

        return signature, code

    return product


def _whole_row(dense: bool) -> Any:
    """Return the inline function that covers a table of any width, widest blocks first."""
    one, two, four, eight = (_product(n_vectors, dense) for n_vectors in (1, 2, 4, 8))

    @njit(nogil=True, inline="always")
    def whole_row(values, indices, table, out, start, stop):  # type: ignore[no-untyped-def]
        width = table.shape[1]
        column = 0
        while width - column >= 8 * LANES:
            eight(values, indices, table, out, start, stop, width, column)
            column += 8 * LANES
        if width - column >= 4 * LANES:
            four(values, indices, table, out, start, stop, width, column)
            column += 4 * LANES
        if width - column >= 2 * LANES:
            two(values, indices, table, out, start, stop, width, column)
            column += 2 * LANES
        if width - column >= LANES:
            one(values, indices, table, out, start, stop, width, column)

    return whole_row


_sparse_row = _whole_row(dense=False)
_dense_row = _whole_row(dense=True)


@njit(nogil=True, inline="always")
def multiply_row(rows, row, table, out):  # type: ignore[no-untyped-def]
    """Write the products of one row with all columns of a float32 table (d, whole vectors)."""
    start, stop = np.int64(rows.indptr[row]), np.int64(rows.indptr[row + 1])
    if rows.dense:
        _dense_row(rows.values, rows.indices, table, out, start, stop)
    else:
        _sparse_row(rows.values, rows.indices, table, out, start, stop)
