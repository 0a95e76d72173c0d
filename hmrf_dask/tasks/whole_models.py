"""The whole model in every process that has tasks over rows: put together once, of what owners say.

Of several worker processes of a machine one, their leader, has it from the owners and makes its
tables; the others see its arrays (`kernels.shared_memory`). Each has them by itself where there is
no such memory.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

from hmrf_dask.errors import LostOwnerError
from hmrf_dask.kernels.approximate import ApproximateTable
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.hamerly import CentroidDrift
from hmrf_dask.kernels.shared_memory import Mapped, Packed, packed
from hmrf_dask.kernels.threads import buffer, buffers_kept, over_ranges, shared_buffers
from hmrf_dask.tasks import owners
from hmrf_dask.tasks.first_variation import Sources
from hmrf_dask.tasks.model import Limits, Model
from hmrf_dask.tasks.owners import HeldRound, Machine, Metric, Numbers, Rows
from hmrf_dask.tasks.parcels import fit_of, has_left, is_before
from hmrf_dask.types import AnyArray, FloatArray, Sized

if TYPE_CHECKING:
    from hmrf_dask.flow.messages import Peers

log = logging.getLogger("hmrf_dask")
PIECE = 2**24  # bytes of an answer: memory that is freed and taken again, not new pages each time
MODEL = "model"  # the kind of what is made once: it, how others have it, "sources" of a round


class Places(NamedTuple):
    """Where a version of all centroids is."""

    name: str
    shape: tuple[int, int]
    owners: tuple[tuple[str, int, int], ...]  # addresses, and the clusters from one to another
    peers: Peers
    machines: Mapping[str, Machine]  # by address, of workers whose machine has more than one

    @property
    def machine(self) -> Machine | None:
        """That of this process, if there are others on it."""
        return self.machines.get(self.peers.here) if self.machines else None

    @property
    def all_here(self) -> bool:
        """Whether this process owns all clusters."""
        return [address for address, *_ in self.owners] == [self.peers.here]


@dataclass(frozen=True)
class Sketch(Sized):
    """A model without its centroids and its metric."""

    name: str
    places: Places
    numbers: Numbers
    limits: Limits | None
    drift: CentroidDrift | None
    dense: bool  # all rows

    def model(self, metric: Metric, centroids: FloatArray, table: Any = None) -> Model:
        """Return the model of these centroids, with their table if that is made."""
        model = replace(owners.bare_model(metric, self.numbers, centroids), limits=self.limits)
        object.__setattr__(model, "drift", self.drift)
        if table is not None:
            model._made.append(table)
        return model


class Whole(NamedTuple):
    """All centroids of a version in one array, and which models show it."""

    name: str
    centroids: FloatArray
    models: list[ref[Model]]

    @property
    def is_free(self) -> bool:
        """Whether no task has a model of it, so that it may be overwritten."""
        return not any(model() for model in self.models)


# By fit: the name and the value of its model, and of the sources of a round under it. The driver
# never asks for the one before again, and two of them with their tables are most of a worker.
_assembled: dict[str, dict[str, tuple[str, Any]]] = {}
_wholes: dict[str, Whole] = {}  # by fit: what the next version is written over
_assembling = threading.RLock()
_keeping: dict[str, ExitStack] = {}  # by fit
_mapped: dict[str, Mapped] = defaultdict(Mapped)  # by fit: what a leader has


def assembled(sketch: Sketch, metric: Metric) -> Model:
    """Return a whole model, put together once in a process; tasks on other threads wait for it."""

    def whole() -> Model:
        """Return the model of all centroids: that of the leader, or made here."""
        machine = sketch.places.machine
        if machine is None:
            return _put_together(sketch, metric)
        if machine.leader != sketch.places.peers.here:
            shown = _of_leader(machine.leader, sketch, metric)
            return _put_together(sketch, metric) if shown is None else shown
        with machine.at_work():
            return _put_together(sketch, metric)

    made: Model = _once(MODEL, sketch.name, whole)
    return made


def assembled_ready(sketch: Sketch, metric: Metric) -> Model:
    """Return a whole model with what the nearest centroids of rows are found by."""
    model, machine = assembled(sketch, metric), sketch.places.machine
    try:
        with _assembling, ExitStack() as stack:
            if machine is not None and machine.leader == sketch.places.peers.here:
                stack.enter_context(machine.at_work())
            model.distortion.make_ready(model.table(), dense=sketch.dense)
        return model
    finally:
        _let_go()


def _put_together(sketch: Sketch, metric: Metric) -> Model:
    """Return a model of what owners have."""
    places = sketch.places
    if places.all_here:  # a table of the same centroids, but not what is derived from the owner's
        own = owners.measured_by(owners.take(places.name, 0), metric, sketch.numbers)
        return sketch.model(metric, own.centroids, replace(own.table()))
    held = _whole(places)
    model = sketch.model(metric, held.centroids)
    held.models.append(ref(model))
    return model


# ---- one process of a machine makes it for all


def shown_model(sketch: Sketch, metric: Metric) -> Packed:
    """Return the model of this process, ready, for others of its machine to see."""
    model = assembled_ready(sketch, metric)

    def shown() -> tuple[Packed, Any]:
        """Return what is sent, and what is held for those that have it."""
        table: Table = model.table()
        made = {
            name: value
            for name, value in table.made.copy().items()
            if isinstance(value, ApproximateTable)
        }
        return packed((model.centroids, table, made), _shared_bytes)

    known: Packed = _once("shown", sketch.name, shown)[0]
    return known


def _shared_bytes(size: int) -> AnyArray:
    with shared_buffers():
        return buffer((size,), np.uint8)


def _of_leader(leader: str, sketch: Sketch, metric: Metric) -> Model | None:
    """Return the model that the leader of this machine has; None where it cannot be seen."""
    ((_, shown),) = sketch.places.peers.ask(shown_model, [(leader, (sketch, metric))])
    try:
        centroids, table, made = _mapped[fit_of(sketch.name)].value(shown)
    except OSError as error:
        log.warning(
            "worker processes of this machine cannot share memory, each has its own: %s", error
        )
        return None
    table.made.update(made)
    return sketch.model(metric, centroids, table)


# ---- all centroids


def _whole(places: Places) -> Whole:
    """Return all centroids of a version, made of those that this process has and what differs."""
    fit = fit_of(places.name)
    held = _wholes.pop(fit, None)  # what fails half way is not used again
    if held is None or held.name != places.name:
        if held is None or not held.is_free:
            held = Whole("", buffer(places.shape, np.float64), [])
        for first, rows in pieces_of(places, held.name):
            put(rows, held.centroids[first:])
        held = Whole(places.name, held.centroids, [])
    if not has_left(fit):
        _wholes[fit] = held
    return held


def pieces_of(places: Places, known: str) -> Iterator[tuple[int, Rows]]:
    """Return what owners have that differs from a known version, by the first cluster of each."""
    step, asked, firsts = max(1, PIECE // (8 * places.shape[1])), [], []
    for address, first, last in places.owners:
        for start in range(0, last - first, step):
            span = start, min(start + step, last - first)
            asked.append((address, (places.name, first, known, span)))
            firsts.append(first + start)
    for number, rows in places.peers.ask(owners.rows_since, asked):
        yield firsts[number], rows


def put(rows: Rows, out: FloatArray) -> None:
    """Write rows where their range of clusters begins."""
    if rows.clusters is not None:
        out[rows.clusters] = rows.centroids
        return

    def copy(first: int, last: int) -> None:
        """Copy a range of rows."""
        out[first:last] = rows.centroids[first:last]

    over_ranges(copy, len(rows.centroids), rows.centroids.size)


# ---- once in a process


def _once(kind: str, name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` returned when a task of this process first asked for it.

    The one before is forgotten first, so that the next may take its memory.
    """
    fit = fit_of(name)
    try:
        with _assembling:
            if has_left(fit):
                return make()
            if fit not in _keeping:  # arrays of its models take one another's memory
                _keeping[fit] = ExitStack()
                _keeping[fit].enter_context(buffers_kept())
            known = _assembled.setdefault(fit, {})
            if kind in known and is_before(name, known[kind][0]):  # a task that nobody waits for
                raise LostOwnerError(f"a task must ask for the last {kind} of its fit, got {name}")
            if kind not in known or known[kind][0] != name:
                if kind == MODEL:
                    known.clear()
                known.pop(kind, None)
                known[kind] = name, make()
            return known[kind][1]
    finally:
        _let_go()


def leave(fit: str) -> None:
    """Let go of all that a fit has in this process, as an owner too.

    It may be called on the event loop, for which a task that puts a model together waits: whoever
    does that lets go when it is done.
    """
    owners.leave(fit)
    _let_go()


def _let_go() -> None:
    """Let go of what fits have that ended."""
    if _assembling.acquire(blocking=False):
        try:
            for fit in filter(has_left, {*_assembled, *_wholes, *_mapped, *_keeping}):
                for held in (_assembled, _wholes, _mapped):
                    held.pop(fit, None)
                if keeping := _keeping.pop(fit, None):
                    keeping.close()
        finally:
            _assembling.release()


# ---- what is made of it


def assembled_sources(
    name: str, model: Model, pieces: Sequence[HeldRound], optimal: bool
) -> Sources:
    """Return the frozen sums of a round in one piece, put together once in a process."""

    def whole() -> Sources:
        """Return the sources of all pieces."""
        sums, counts, squares = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return Sources(model, sums, counts, squares, optimal)

    made: Sources = _once("sources", name, whole)
    return made


def made_ready(model: Model) -> None:
    """Do nothing: that a process has a model ready is all that is asked."""
