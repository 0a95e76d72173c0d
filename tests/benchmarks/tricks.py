"""The hand-made tricks of the kernels and the fit, and what a plain program does in their place.

The plain way is here and nowhere in the package: `Trick.off` patches it in. A kernel reads other
kernels and constants when it is compiled, so it is compiled again with the plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, Literal
from unittest.mock import patch

import numba
import numpy as np
from numpy.typing import NDArray

from hmrf_dask.distortions import cosine
from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.fit import fitting, m_step
from hmrf_dask.fit.passes import Engine
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.kernels import approximate, cost_rows, distances, nearest, products, sums
from hmrf_dask.kernels.compiled import inner
from hmrf_dask.kernels.exact import exact_sum, exact_zero
from hmrf_dask.tasks import icm, partitions
from hmrf_dask.tasks.model import Model

Kind = Literal["fit", "pairs", "workers"]
Replacement = tuple[Any, str, Any]  # a module or class, a name in it, and what is put there


@dataclass(frozen=True)
class Trick:
    """One trick.

    Attributes
    ----------
    name, what : str
    replacements : callable
        Gives the plain way, as what is put in the place of what.
    kinds : tuple of Kind
        The fits in which it plays a part.
    same_bits : tuple of Kind
        The fits in which it promises the labels of the plain way. Costs of linked rows hold what
        low precision rounds, so there another rounding may change which move comes first.
    by : {"cpu", "wall"}
        Whether it saves seconds of all threads, or of the clock alone.
    """

    name: str
    what: str
    replacements: Callable[[], tuple[Replacement, ...]]
    kinds: tuple[Kind, ...] = ("fit", "pairs")
    same_bits: tuple[Kind, ...] = ("fit", "pairs", "workers")
    by: Literal["cpu", "wall"] = "cpu"

    def off(self) -> AbstractContextManager[None]:
        """Put the plain way in its place."""
        return replaced(*self.replacements())


@contextmanager
def replaced(*replacements: Replacement) -> Iterator[None]:
    """Put other values under names of modules or classes."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(patch.object(owner, name, value))
        yield


def recompiled(kernel: Any, **names: Any) -> Any:
    """Return a kernel to be compiled again, with other values under some names that it reads."""
    function = kernel.py_func
    missing = names.keys() - set(function.__code__.co_names)
    if missing:
        raise NameError(f"{function.__name__} must read {sorted(missing)}; take out what it reads")
    known = function.__globals__ | names
    plain = FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    options = {name: one for name, one in kernel.targetoptions.items() if name != "nopython"}
    return numba.njit(pipeline_class=kernel._compiler.pipeline_class, **options)(plain)


# ---- caches of the processor


@inner()
def _copy(source, n, target, place):  # type: ignore[no-untyped-def]
    for number in range(n):
        target[place + number] = source[number]


@inner(inline="always")
def _no_row_hint(rows, row):  # type: ignore[no-untyped-def]
    pass


@inner(inline="always")
def _no_hint(lined, t):  # type: ignore[no-untyped-def]
    pass


@inner(inline="always")
def _no_number_hint(array, index):  # type: ignore[no-untyped-def]
    pass


@cache
def _streams() -> tuple[Replacement, ...]:
    return ((cost_rows, "_approximate", recompiled(cost_rows._approximate, stream=_copy)),)


@cache
def _row_hints() -> tuple[Replacement, ...]:
    return (
        (nearest, "_nearest", recompiled(nearest._nearest, prefetch_row=_no_row_hint)),
        (distances, "_own", recompiled(distances._own, prefetch_row=_no_row_hint)),
        (sums, "_scatter", recompiled(sums._scatter, prefetch_later=_no_hint)),
    )


@cache
def _centroid_hints() -> tuple[Replacement, ...]:
    return ((approximate, "_fill", recompiled(approximate._fill, prefetch=_no_number_hint)),)


@cache
def _products_with(owner: Any, name: str, value: Any) -> tuple[Replacement, ...]:
    """Return a change of the generated code, and the kernels in which it stands."""
    return (
        (owner, name, value),
        (nearest, "_nearest", recompiled(nearest._nearest)),
        (cost_rows, "_approximate", recompiled(cost_rows._approximate)),
    )


def _no_lines(*arguments: Any) -> None:
    """Fetch nothing."""


@cache
def _sums_aside() -> tuple[Replacement, ...]:
    return ((sums, "_scatter", recompiled(sums._scatter, GATHERED=0)),)


@cache
def _block_by_block() -> tuple[Replacement, ...]:
    scatter = sums.scatter

    def each_alone(blocks: Any, *arguments: Any) -> None:
        for block in blocks:
            scatter([block], *arguments)

    return ((sums, "scatter", each_alone),)


# ---- products, scores, low precision


def _one_vector(n_columns: int, sums: type[np.generic]) -> tuple[int, tuple[int, ...]]:
    width = max(1, -(-n_columns // products.LANES)) * products.LANES
    return width, (0,)


@inner()
def _score(scores, bias, extra, scale, shift):  # type: ignore[no-untyped-def]
    least = np.float32(np.inf)
    for h in range(scores.shape[0]):
        scores[h] = scores[h] * scale + bias[h] + extra[h] * shift
        least = min(least, scores[h])
    return least


@inner()
def _within(scores, limit):  # type: ignore[no-untyped-def]
    count, place = 0, 0
    for h in range(scores.shape[0]):
        if scores[h] <= limit:
            count, place = count + 1, h
    return count, place


@inner()
def _least_beyond(scores, limit):  # type: ignore[no-untyped-def]
    least = np.float32(np.inf)
    for h in range(scores.shape[0]):
        least = scores[h] if limit < scores[h] < least else least
    return least


@cache
def _scalar_scores() -> tuple[Replacement, ...]:
    names = {"score": _score, "within": _within, "least_beyond": _least_beyond}
    choose = recompiled(nearest._choose, **names)
    return (
        (nearest, "_nearest", recompiled(nearest._nearest, _choose=choose)),
        (cost_rows, "_approximate", recompiled(cost_rows._approximate, score=_score)),
    )


@inner()
def _no_mean(line, lanes):  # type: ignore[no-untyped-def]
    return 0.0


@cache
def _uncentred() -> tuple[Replacement, ...]:
    return ((approximate, "_fill", recompiled(approximate._fill, _mean=_no_mean)),)


@numba.njit(nogil=True)
def _least(values, labels, out):  # type: ignore[no-untyped-def]
    for i in range(labels.shape[0]):
        best = labels[i]
        if best != distances.LINKED:
            least = values[i, best] if best >= 0 else np.inf
            for h in range(values.shape[1]):
                if values[i, h] < least:
                    least = values[i, h]
                    best = np.int32(h)
        out[i] = best


def _in_float64(
    self: TableDistortion, block: Any, terms: Any, table: Any, labels: NDArray[np.int32],
    *, measured: bool = True, bounds: Any = None, drift: Any = None,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:  # fmt: skip
    """Return what `Distortion.nearest` does, all distances computed in float64."""
    values = distances.all_distances(block.arrays, terms, table)
    out = np.empty(len(labels), np.int32)
    _least(values, np.ascontiguousarray(labels), out)
    if not measured:
        return out, exact_zero()
    moved = np.flatnonzero((out != labels) & (labels >= 0))
    here, there = values[moved, labels[moved]], values[moved, out[moved]]
    return out, exact_sum(there) - exact_sum(here)


def _exact_costs(rows: Any, model: Any, scale: Any, *arguments: Any) -> Any:
    return icm.LinkedCosts(icm.exact_costs(rows.blocks[0], model, scale))


# ---- what is known from the iteration before


def _no_drift(model: Model, previous: Model, losses: Any = None) -> Model:
    return model


def _scaling(rows: Any, terms: Any, rounding: Any, bounds: Any) -> Any:
    return approximate.RowScaling.of(rows, terms, rounding)


def _roots(weights: Any) -> Any:
    return np.sqrt(weights.values)


def _terms(block: Any, kept: Any, model: Model) -> Any:
    return model.distortion.terms(block, model.weights)


@cache
def _unknown_gains() -> tuple[Replacement, ...]:
    costs = icm.linked_costs

    def without_gains(*arguments: Any) -> Any:
        return icm.LinkedCosts(costs(*arguments).costs)

    return ((icm, "linked_costs", without_gains),)


def _vacant(state: Any) -> Any:
    vacant = np.asarray(state.counts == 0)
    if state.model.distortion.zero_rows == "undecided":
        vacant |= ~state.sums.any(axis=1)
    return vacant


# ---- the driver, threads and workers


def _nothing_made(distortion: Any, table: Any, *, dense: bool) -> None:
    """Leave it to the tasks."""


def _off(*replacements: Replacement) -> Callable[[], tuple[Replacement, ...]]:
    return lambda: replacements


TRICKS = (
    Trick("streams", "cost rows of linked rows stored past the caches", _streams, ("pairs",)),
    Trick("row-hints", "rows fetched before they are needed", _row_hints),
    Trick("centroid-hints", "centroids fetched ahead where their table is made", _centroid_hints),
    Trick(
        "line-hints", "lines of the table fetched ahead of their products",
        lambda: _products_with(products._Pass, "_fetch", _no_lines),
    ),
    Trick(
        "registers", "sums of many clusters in registers for a whole row",
        _off((approximate, "layout", _one_vector)), same_bits=("fit",),
    ),
    Trick(
        "chains", "two chains of sums where clusters are few",
        lambda: _products_with(products, "FEW", 0), same_bits=("fit",),
    ),
    Trick("vectors", "scores in whole vectors", _scalar_scores, same_bits=("fit",)),
    Trick(
        "half", "scores in half precision",
        _off((approximate, "has_half", lambda: False)), same_bits=("fit",),
    ),
    Trick(
        "low-precision", "candidates found in low precision, float64 for these alone",
        _off((TableDistortion, "nearest", _in_float64)),
    ),
    Trick(
        "low-costs", "cost rows of linked rows in low precision",
        _off((icm, "linked_costs", _exact_costs)), ("pairs",), same_bits=(),
    ),
    Trick(
        "centred", "columns of the approximate table centred", _uncentred, same_bits=("fit",)
    ),
    Trick(
        "margins", "bounds of rows (Hamerly) spare comparisons",
        _off((Model, "moved_from", _no_drift)),
    ),
    Trick(
        "slack", "bounds of rounding that hold for several tables",
        _off((nearest, "_lasting_scaling", _scaling)),
    ),
    Trick("terms", "terms of rows kept", _off((partitions, "terms_of", _terms))),
    Trick("roots", "roots of the weights kept", _off((cosine, "_roots", _roots))),
    Trick(
        "gains", "gains of points known before ICM begins",
        _unknown_gains, ("pairs",), by="wall",
    ),
    Trick(
        "columns", "a few columns show that a cluster is not vacant",
        _off((m_step, "vacant_clusters", _vacant)),
    ),
    Trick("sums-aside", "clusters with many moved rows added up in a vector", _sums_aside),
    Trick(
        "blocks", "moved rows of all blocks added up cluster by cluster",
        _block_by_block,
    ),
    Trick(
        "moved-rows", "tasks on threads only note moved rows, the driver adds them up",
        _off((Engine, "in_process", False)),
    ),
    Trick(
        "memory", "memory of large arrays used again",
        _off((fitting, "buffers_kept", nullcontext)),
    ),
    Trick(
        "threads", "the driver's work between passes on all threads",
        _off((fitting, "threads_allowed", nullcontext)), by="wall",
    ),
    Trick(
        "table-first", "the approximate table made by all threads before the tasks",
        _off((TableDistortion, "make_ready", _nothing_made)), by="wall",
    ),
    Trick(
        "sent-ahead", "models sent to workers before the tasks that need them",
        _off((DaskFlow, "broadcast", DaskFlow.share)), ("workers",), by="wall",
    ),
)  # fmt: skip
