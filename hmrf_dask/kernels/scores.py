"""Scores of one row in whole vectors: LLVM by itself goes through them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hmrf_dask.kernels import stand_ins
from hmrf_dask.kernels.compiled import COMPILED
from hmrf_dask.kernels.products import LANES

if COMPILED:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    _INDEX, _LANE, _REAL = ir.IntType(64), ir.IntType(32), ir.FloatType()
    _VECTOR = ir.VectorType(_REAL, LANES)


def _spread(builder: Any, value: Any) -> Any:
    """Return a number in all lanes."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(_LANE, 0))
    lanes = ir.Constant(ir.VectorType(_LANE, LANES), [0] * LANES)
    return builder.shuffle_vector(one, undefined, lanes)


def _place(builder: Any, array: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(array.data, [at]), _VECTOR.as_pointer())


def _lesser(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", one, other), one, other)


def _loop(builder: Any, length: Any, first: Any, body: Callable[[Any, Any], Any]) -> Any:
    """Emit a loop over whole vectors of an array that carries one value; return its last."""
    before, loop = builder.block, builder.append_basic_block("vectors")
    done = builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    at, carried = builder.phi(_INDEX), builder.phi(first.type)
    after = body(at, carried)
    following = builder.add(at, ir.Constant(_INDEX, LANES))
    at.add_incoming(ir.Constant(_INDEX, 0), before)
    at.add_incoming(following, loop)
    carried.add_incoming(first, before)
    carried.add_incoming(after, loop)
    builder.cbranch(builder.icmp_signed("<", following, length), loop, done)
    builder.position_at_end(done)
    return after


def _infinite() -> Any:
    return ir.Constant(_VECTOR, [float("inf")] * LANES)


def _least_lane(builder: Any, least: Any) -> Any:
    """Return the least number of a vector."""
    half = LANES // 2
    while half:  # halves against halves
        kind = ir.VectorType(_LANE, LANES)
        turned = ir.Constant(kind, [(lane + half) % LANES for lane in range(LANES)])
        least = _lesser(builder, least, builder.shuffle_vector(least, least, turned))
        half //= 2
    return builder.extract_element(least, ir.Constant(_LANE, 0))


def _make_score() -> Any:
    @intrinsic
    def score(typing, scores, bias, extra, scale, shift):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            products, own, more = (
                context.make_array(scores)(context, builder, argument) for argument in arguments[:3]
            )
            scales, shifts = (_spread(builder, number) for number in arguments[3:])
            flags = ("contract",)

            def body(at: Any, least: Any) -> Any:
                found, first, last = (
                    builder.load(_place(builder, array, at), align=4)
                    for array in (products, own, more)
                )
                found = builder.fadd(builder.fmul(found, scales, flags=flags), first, flags=flags)
                found = builder.fadd(builder.fmul(last, shifts, flags=flags), found, flags=flags)
                builder.store(found, _place(builder, products, at), align=4)
                return _lesser(builder, found, least)

            length = builder.extract_value(products.shape, 0)
            return _least_lane(builder, _loop(builder, length, _infinite(), body))

        return types.float32(scores, scores, scores, types.float32, types.float32), code

    return score


def _make_count_within() -> Any:
    @intrinsic
    def count_within(typing, scores, limit):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            array = context.make_array(scores)(context, builder, arguments[0])
            limits, bits = _spread(builder, arguments[1]), ir.IntType(LANES)

            def body(at: Any, count: Any) -> Any:
                found = builder.load(_place(builder, array, at), align=4)
                within = builder.bitcast(builder.fcmp_ordered("<=", found, limits), bits)
                return builder.add(count, builder.zext(builder.ctpop(within), _INDEX))

            length = builder.extract_value(array.shape, 0)
            return _loop(builder, length, ir.Constant(_INDEX, 0), body)

        return types.int64(scores, types.float32), code

    return count_within


def _make_least_beyond() -> Any:
    @intrinsic
    def least_beyond(typing, scores, limit):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            array = context.make_array(scores)(context, builder, arguments[0])
            limits = _spread(builder, arguments[1])

            def body(at: Any, least: Any) -> Any:
                found = builder.load(_place(builder, array, at), align=4)
                beyond = builder.fcmp_ordered(">", found, limits)
                return _lesser(builder, builder.select(beyond, found, _infinite()), least)

            length = builder.extract_value(array.shape, 0)
            return _least_lane(builder, _loop(builder, length, _infinite(), body))

        return types.float32(scores, types.float32), code

    return least_beyond


# score(products, bias, extra, scale, shift): turn products into scores, which are distances but for
# the row's own part, and return the least; lengths are whole vectors, and all are float32.
score: Any = _make_score() if COMPILED else stand_ins.score
# count_within(scores, limit): return how many are not above.
count_within: Any = _make_count_within() if COMPILED else stand_ins.count_within
# least_beyond(scores, limit): return the least that is above.
least_beyond: Any = _make_least_beyond() if COMPILED else stand_ins.least_beyond
