"""Products of one row with many columns, the inner loop of the E-step, kept in vector registers.

A plain loop stores and loads every accumulator for every entry of a row; here as many of them as
there are registers stay for the whole row, and the table's lines are fetched ahead of their use.
LLVM maps the vectors to what the machine has. A table comes in one of three precisions:

    half    uint16 that hold IEEE half floats: the least to fetch, where the machine converts them
    single  float32
    double  float64: one multiplication and one addition an entry, in the order of the entries

The first two only find candidates: fused multiply-adds may be used, and products with them are
within the error bounds of `kernels.distances`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from hmrf_dask.kernels import compiled
from hmrf_dask.kernels.compiled import COMPILED, cpu_features, inner, instruction
from hmrf_dask.kernels.threads import LINE, buffer
from hmrf_dask.types import AnyArray

_INDEX, _LANE, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_REAL = {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}
LANES = 16  # numbers in a vector of the generated code; a machine may take several steps for it
FEW = 4  # vectors of sums so short that entries take turns at two chains of them
MOST_ROWS = 8  # that are multiplied together: each takes a register that holds its address
LEAST_HALF = 2.0**-14  # zero stands for smaller ones, which have fewer digits
SOON = 8  # features between the same of dense rows
AHEAD = 24  # entries between the fetch of a line of the table and its use


class Columns(NamedTuple):
    """A table of columns as `multiply_row` reads it."""

    # uint16, float32 or float64, (d, width): aligned to lines, width all lanes of some `vectors`
    table: AnyArray
    # as many zeros as vectors stay in registers: its length is known when code is made
    vectors: tuple[int, ...]


@cache
def _features() -> frozenset[str]:
    return frozenset(cpu_features().split(",") if COMPILED else ())


def has_half() -> bool:
    """Return whether the machine itself converts half floats."""
    return bool(_features() & {"+f16c", "+fullfp16"})


def layout(n_columns: int, sums: type[np.generic]) -> tuple[int, tuple[int, ...]]:
    """Return the width of a table of so many columns, and its `vectors`, for sums of that type.

    A row is gone through as few times as registers allow.
    """
    most = 16 if "+avx512f" in _features() else 6
    if sums is np.float64:
        most //= 2
    needed = max(1, -(-n_columns // LANES))
    passes = -(-needed // most)
    each = -(-needed // passes)
    return passes * each * LANES, (0,) * each


def side_by_side(columns: Columns) -> Columns:
    """Return the columns of a table for dense rows, of which several are multiplied together.

    A line of the table, once fetched, serves them all; `vectors` are those of one pass, as many as
    leave registers for the sums of the most rows.
    """
    n_vectors = columns.table.shape[1] // LANES
    divisors = [each for each in range(1, n_vectors + 1) if n_vectors % each == 0]
    rows = {each: rows_together(each) for each in divisors}
    # multiplications for each number that is loaded
    best = max(divisors, key=lambda each: rows[each] * each / (rows[each] + each))
    return Columns(columns.table, (0,) * best)


def rows_together(n_vectors: int) -> int:
    """Return how many dense rows are multiplied together with so many vectors of columns.

    Registers hold their sums, and what is multiplied.
    """
    registers = 32 if "+avx512f" in _features() else 8
    fitting = [
        rows
        for rows in range(1, MOST_ROWS + 1)
        if rows * n_vectors + min(rows, n_vectors) + 1 <= registers
    ]
    return max(fitting, default=1)


def aligned(shape: tuple[int, ...], dtype: type[np.generic]) -> AnyArray:
    """Return an array of zeros that begins at a line of the cache."""
    array = buffer(shape, dtype)
    array[...] = 0
    return array


def spread(builder: Any, value: Any) -> Any:
    """Return a number in all lanes of a vector."""
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_LANE, 0))
    lanes = ir.Constant(ir.VectorType(_LANE, LANES), [0] * LANES)
    return builder.shuffle_vector(first, undefined, lanes)


class _Pass:
    """The code of one pass over entries of a row: `n_vectors` of the columns from `column`.

    Entry p is feature p − offset of dense entries, that of the index p − offset of others.
    """

    def __init__(self, builder: Any, bits: tuple[int, int], n_vectors: int, dense: bool) -> None:
        self.builder, self.n_vectors, self.dense = builder, n_vectors, dense
        self.bits, self.stored, self.real = bits, _REAL[bits[0]], _REAL[bits[1]]
        self.vector = ir.VectorType(self.real, LANES)
        self.line_step = n_vectors * LANES * bits[0] // 8
        self.flags = () if bits[0] == 64 else ("contract",)
        twice = n_vectors <= FEW and bits[0] != 64
        self.chains = (n_vectors if twice else 0, n_vectors)

    def _load(self, table: Any, first: Any, number: int) -> Any:
        builder, kept = self.builder, ir.VectorType(self.stored, LANES)
        at = builder.add(first, ir.Constant(_INDEX, LANES * number))
        source = builder.bitcast(builder.gep(table, [at]), kept.as_pointer())
        numbers = builder.load(source, align=min(LINE, LANES * self.bits[0] // 8))
        return numbers if self.stored == self.real else builder.fpext(numbers, self.vector)

    def _fetch(self, table: Any, first: Any) -> None:
        """Ask for the lines of the table that an entry will need."""
        builder, number = self.builder, _LANE
        kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
        place = builder.bitcast(builder.gep(table, [first]), _BYTE.as_pointer())
        for step in range(0, self.line_step, LINE):
            line = builder.gep(place, [ir.Constant(_INDEX, step)])
            builder.call(hint, [line, number(0), number(3), number(1)])

    def _entry(self, pointers: list[Any], numbers: list[Any], place: Any, sums: list[Any]) -> Any:
        """Add what one entry adds to the sums."""
        builder = self.builder
        values, indices, table, _ = pointers
        _, _, offset, width, column, last = numbers

        def feature(at: Any) -> Any:
            """Return where the table has the numbers of an entry's feature."""
            place = builder.gep(indices, [builder.sub(at, offset)])
            index = builder.zext(builder.load(place), _INDEX)
            return builder.add(builder.mul(index, width), column)

        value = builder.load(builder.gep(values, [place]))
        if self.real == _REAL[64]:
            value = builder.fpext(value, self.real)
        factor = spread(builder, value)
        if self.dense:  # the machine sees what comes next
            first = builder.add(builder.mul(builder.sub(place, offset), width), column)
        else:
            first = feature(place)
            ahead = builder.add(place, ir.Constant(_INDEX, AHEAD))
            ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, place)
            self._fetch(table, feature(ahead))
        products = [
            builder.fmul(self._load(table, first, number), factor, flags=self.flags)
            for number in range(self.n_vectors)
        ]
        return [
            builder.fadd(total, product, flags=self.flags)
            for total, product in zip(sums, products, strict=True)
        ]

    def _sums(self, out: Any, column: Any) -> list[Any]:
        """Return where the vectors of sums are."""
        builder, kind = self.builder, self.vector.as_pointer()
        places = (
            builder.add(column, ir.Constant(_INDEX, LANES * one)) for one in range(self.n_vectors)
        )
        return [builder.bitcast(builder.gep(out, [place]), kind) for place in places]

    def emit(self, pointers: list[Any], numbers: list[Any], *, more: bool) -> None:
        """Emit the loop over the entries, the accumulators as phi nodes, and the stores.

        With `more`, sums begin with what is there.
        """
        builder = self.builder
        start, stop, _, _, column, _ = numbers
        targets = self._sums(pointers[3], column)
        zero = ir.Constant(self.vector, [0.0] * LANES)
        firsts = [builder.load(one, align=4) if more else zero for one in targets]
        firsts = [*[zero] * self.chains[0], *firsts]
        before = builder.block
        loop = builder.append_basic_block("entries")
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", start, stop), loop, done)
        builder.position_at_end(loop)
        place = builder.phi(_INDEX)
        resting, sums = ([builder.phi(self.vector) for _ in range(n)] for n in self.chains)
        after = self._entry(pointers, numbers, place, resting or sums)
        if resting:  # they take turns: no entry waits for the sums of the one before it
            after = [*sums, *after]
        following = builder.add(place, ir.Constant(_INDEX, 1))
        builder.cbranch(builder.icmp_signed("<", following, stop), loop, done)
        nodes, starts = [place, *resting, *sums], [start, *firsts]
        for node, first, again in zip(nodes, starts, [following, *after], strict=True):
            node.add_incoming(first, before)
            node.add_incoming(again, loop)
        builder.position_at_end(done)
        results = [builder.phi(self.vector) for _ in after]
        for result, first, total in zip(results, firsts, after, strict=True):
            result.add_incoming(first, before)
            result.add_incoming(total, loop)
        if resting:
            chains = results[: self.n_vectors], results[self.n_vectors :]
            results = list(map(builder.fadd, *chains))
        for result, target in zip(results, targets, strict=True):
            builder.store(result, target, align=4)


def _product(*, dense: bool, more: bool = False) -> Any:
    """Return the function that multiplies entries of a row with columns that fit into registers.

    They are those of a `span`: the first, the end, and the offset of `_Pass`. `more`: products are
    added to what is there.
    """

    @instruction(compiled.product(dense, more, LANES))
    def product(typing: Any, rows: Any, columns: Any, out: Any, span: Any, column: Any) -> Any:
        """Multiply the entries of a row with as many columns as fit."""
        signature = types.void(rows, columns, out, types.UniTuple(types.int64, 3), types.int64)
        (values, indices, *_), (table, vectors) = rows.types, columns.types

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            """Emit the loop over the entries of the row."""
            rows, columns, sums, span, column = arguments
            start, stop, offset = (builder.extract_value(span, place) for place in range(3))
            fields = ((rows, 0), (rows, 1), (columns, 0))
            read = [*(builder.extract_value(value, place) for value, place in fields), sums]
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip((values, indices, table, out), read, strict=True)
            ]
            width = builder.extract_value(arrays[2].shape, 1)
            last = builder.add(builder.extract_value(arrays[1].shape, 0), offset)
            bits = (table.dtype.bitwidth, out.dtype.bitwidth)
            code_of = _Pass(builder, bits, len(vectors), dense)
            pointers = [array.data for array in arrays]
            pointers[2] = builder.bitcast(pointers[2], code_of.stored.as_pointer())
            code_of.emit(pointers, [start, stop, offset, width, column, last], more=more)
            return context.get_dummy_value()

        return signature, code

    return product


_sparse_product, _dense_product = _product(dense=False), _product(dense=True)
_end_product = _product(dense=True, more=True)


class _Together:
    """The code of one pass over the features of some dense rows: `n_vectors` of the columns."""

    def __init__(self, builder: Any, stored: Any, n_vectors: int) -> None:
        self.builder, self.stored, self.n_vectors = builder, stored, n_vectors
        self.n_rows, self.vector = rows_together(n_vectors), ir.VectorType(_REAL[32], LANES)

    def _entry(self, line: Any, number: int) -> Any:
        """Return a vector of a line of the table."""
        builder, kept = self.builder, ir.VectorType(self.stored, LANES).as_pointer()
        place = builder.bitcast(builder.gep(line, [_INDEX(LANES * number)]), kept)
        half = self.stored == _REAL[16]
        entry = builder.load(place, align=LINE // 2 if half else LINE)
        return builder.fpext(entry, self.vector) if half else entry

    def _fetch(self, line: Any, width: Any) -> None:
        """Ask for a line that a later feature needs: the machine itself follows none so far on."""
        builder, byte = self.builder, _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _LANE, _LANE, _LANE])
        hint = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
        later = builder.gep(line, [builder.mul(width, _INDEX(SOON))])
        place = builder.bitcast(later, byte)
        size = LANES * (2 if self.stored == _REAL[16] else 4)
        for step in range(0, self.n_vectors * size, LINE):
            builder.call(hint, [builder.gep(place, [_INDEX(step)]), *map(_LANE, (0, 3, 1))])

    def _feature(
        self, firsts: list[Any], feature: Any, line: Any, width: Any, sums: list[Any]
    ) -> list[Any]:
        """Return the sums of all rows after one more feature."""
        builder, after = self.builder, list(sums)
        self._fetch(line, width)
        factors = [spread(builder, builder.load(builder.gep(row, [feature]))) for row in firsts]
        for number in range(self.n_vectors):
            entry = self._entry(line, number)
            for row, factor in enumerate(factors):
                at = row * self.n_vectors + number
                product = builder.fmul(entry, factor, flags=("contract",))
                after[at] = builder.fadd(after[at], product, flags=("contract",))
        return after

    def emit(self, firsts: list[Any], first_line: Any, sizes: tuple[Any, Any]) -> list[Any]:
        """Emit the loop over features, the sums as phi nodes; return them."""
        builder, (n_features, width) = self.builder, sizes
        zero = ir.Constant(self.vector, [0.0] * LANES)
        before, loop = builder.block, builder.append_basic_block("features")
        builder.branch(loop)
        builder.position_at_end(loop)
        feature = builder.phi(_INDEX)
        sums = [builder.phi(self.vector) for _ in range(self.n_rows * self.n_vectors)]
        line = builder.gep(first_line, [builder.mul(feature, width)])
        after = self._feature(firsts, feature, line, width, sums)
        following = builder.add(feature, _INDEX(1))
        nodes, starts = [feature, *sums], [_INDEX(0), *[zero] * len(sums)]
        for node, start, again in zip(nodes, starts, [following, *after], strict=True):
            node.add_incoming(start, before)
            node.add_incoming(again, loop)
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", following, n_features), loop, done)
        builder.position_at_end(done)
        return after


@instruction(compiled.products)
def _products(typing: Any, rows: Any, starts: Any, columns: Any, out: Any, column: Any) -> Any:
    """Multiply some dense rows, by where they start, with as many columns as fit."""
    signature = types.void(rows, starts, columns, out, types.int64)
    (values, *_), (table, vectors) = rows.types, columns.types

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit the loop over features, and the stores."""
        rows, starts, columns, out, column = arguments
        kinds = (values, signature.args[1], table, signature.args[3])
        read = (builder.extract_value(rows, 0), starts, builder.extract_value(columns, 0), out)
        value, start, lines, sums = (
            context.make_array(kind)(context, builder, array)
            for kind, array in zip(kinds, read, strict=True)
        )
        stored = _REAL[table.dtype.bitwidth]
        together = _Together(builder, stored, len(vectors))
        firsts = [
            builder.gep(value.data, [builder.load(builder.gep(start.data, [_INDEX(row)]))])
            for row in range(together.n_rows)
        ]
        first_line = builder.gep(builder.bitcast(lines.data, stored.as_pointer()), [column])
        sizes = (builder.extract_value(lines.shape, 0), builder.extract_value(lines.shape, 1))
        for number, total in enumerate(together.emit(firsts, first_line, sizes)):
            row, vector = divmod(number, len(vectors))
            first = builder.add(builder.mul(_INDEX(row), sizes[1]), column)
            place = builder.gep(sums.data, [builder.add(first, _INDEX(LANES * vector))])
            target = builder.bitcast(place, together.vector.as_pointer())
            builder.store(total, target, align=4)
        return context.get_dummy_value()

    return signature, code


@inner(inline="always")
def multiply_rows(rows: Any, starts: Any, columns: Any, out: Any) -> None:
    """Write the float32 products of dense rows, by where they start, with all columns."""
    for column in range(0, columns.table.shape[1], LANES * len(columns.vectors)):
        _products(rows, starts, columns, out, column)


@inner(inline="always")
def multiply_indexed(rows: Any, row: Any, columns: Any, out: Any) -> None:
    """Write the products of one row, but for its dense end, with all columns."""
    start, stop = np.int64(rows.indptr[row]), np.int64(rows.indptr[row + 1])
    span = start, stop - rows.n_dense, np.int64(row) * rows.n_dense
    for column in range(0, columns.table.shape[1], LANES * len(columns.vectors)):
        _sparse_product(rows, columns, out, span, column)


@inner(inline="always")
def multiply_row(rows: Any, row: Any, columns: Any, out: Any) -> None:
    """Write the products of one row with all columns, float32 or float64 as `out` is."""
    stop = np.int64(rows.indptr[row + 1])
    end = stop - rows.n_dense, stop, stop - rows.n_features
    if not rows.dense:
        multiply_indexed(rows, row, columns, out)
        if rows.n_dense == 0:
            return
    for column in range(0, columns.table.shape[1], LANES * len(columns.vectors)):
        if rows.dense:
            _dense_product(rows, columns, out, end, column)
        else:
            _end_product(rows, columns, out, end, column)


@instruction(compiled.store)
def store(typing: Any, table: Any, row: Any, column: Any, value: Any) -> Any:
    """Store a float64 in a table; return what was stored."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit the store, and the number as it was rounded."""
        array = context.make_array(table)(context, builder, arguments[0])
        width = builder.extract_value(array.shape, 1)
        at = builder.add(builder.mul(arguments[1], width), arguments[2])
        place = builder.gep(array.data, [at])
        single, real = _REAL[32], _REAL[64]
        value = builder.fptrunc(arguments[3], single)
        if table.dtype.bitwidth == 32:
            builder.store(value, place)
            return builder.fpext(value, real)
        least, zero = ir.Constant(single, LEAST_HALF), ir.Constant(single, 0.0)
        negative = builder.fneg(value)
        size = builder.select(builder.fcmp_ordered("<", value, zero), negative, value)
        value = builder.select(builder.fcmp_ordered("<", size, least), zero, value)
        half = builder.fptrunc(value, _REAL[16])
        builder.store(builder.bitcast(half, ir.IntType(16)), place)
        return builder.fpext(builder.fpext(half, single), real)

    return types.float64(table, types.int64, types.int64, types.float64), code
