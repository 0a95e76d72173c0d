"""Owners of clusters: what their processes hold, and the tasks that add, decide and measure there.

An owner has the sums and the centroids of a range of clusters, by the names of their versions, in
the memory of one worker process. Its tasks run there alone. A task that runs a second time finds
what it made, and returns the same; one that does not find what it needs says that it is lost.

What rows change goes to owners, and centroids to processes that have rows, when these ask for it
(`flow.messages`): the scheduler knows of W + C tasks, not of W × C.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import LostOwnerError
from hmrf_dask.kernels.first_variation import squares_of
from hmrf_dask.kernels.shared_memory import machine
from hmrf_dask.kernels.sums import Sums, joined
from hmrf_dask.kernels.threads import buffer, n_allowed, shared_buffers, threads_allowed
from hmrf_dask.tasks import parcels
from hmrf_dask.tasks.cluster_totals import Clusters
from hmrf_dask.tasks.first_variation import column_weights
from hmrf_dask.tasks.model import COLUMNS, Model, without_sum
from hmrf_dask.tasks.parcels import Changes, fit_of, has_left, taken
from hmrf_dask.types import BoolArray, FloatArray, IntArray, Sized

if TYPE_CHECKING:
    from hmrf_dask.flow.messages import Peers

CENTROIDS = "centroids-"  # begins the names of what owners write in commits
MADE = " made"  # ends the name of what an owner said of centroids
CHANGED = " changed"  # ends the name of what is new in them
FEW = 2  # centroids that changed, times this, are at most all: else all are sent
Metric = tuple[Distortion, FloatArray]


class Machine(NamedTuple):
    """A machine with worker processes that share what one of them, its leader, makes for all."""

    leader: str  # its address
    n_threads: int  # of all workers there: the others wait while it makes something

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Make arrays in here where all processes see them, on the threads of all."""
        with shared_buffers(), threads_allowed(self.n_threads):
            yield


class Visit(NamedTuple):
    """Which owner a task is for, and the names that nobody asks for any more."""

    first: int  # cluster
    last: int
    dead: tuple[str, ...]
    machine: Machine | None = None  # that the owner leads

    def at_work(self) -> AbstractContextManager[None]:
        """Make centroids in here."""
        return nullcontext() if self.machine is None else self.machine.at_work()


@dataclass(frozen=True)
class HeldSums(Sized):
    """The sums of an owner's clusters."""

    sums: IntArray  # (k, d + 1)
    counts: IntArray


class HeldRound(NamedTuple):
    """The sums of an owner's clusters in a round of first variation."""

    sums: IntArray
    counts: IntArray
    squares: FloatArray  # ‖S_h‖²


class Numbers(NamedTuple):
    """What a model has next to its metric and its centroids."""

    smoothing: float
    exponent: int


class Made(NamedTuple):
    """What an owner says of new centroids: nothing of their size."""

    closed: int | None  # `Remade.closed`, of its clusters
    closed_before: int | None
    changes: FloatArray | None  # (3, k)
    vacant: BoolArray  # which clusters have sums of zeros


_held: dict[
    tuple[str, int], Any
] = {}  # of all owners of this process, by version and first cluster
_lock = threading.RLock()  # a fit may end as garbage is collected in here
_turns: dict[int, threading.Lock] = defaultdict(threading.Lock)  # by first cluster


def take(name: str, first: int) -> Any:
    """Return a version that an owner holds."""
    try:
        return _held[name, first]
    except KeyError:
        raise LostOwnerError(
            f"an owner must hold what it was given, got {name} of the clusters from {first} on "
            "gone; the fit resumes from its last commit"
        ) from None


def _hold(name: str, first: int, value: Any) -> None:
    """Hold a version for the owner, unless its fit has ended: a task of it may run still."""
    with _lock:
        if not has_left(fit_of(name)):
            _held[name, first] = value


def _forget(names: Sequence[str]) -> None:
    """Let go of versions that nobody asks for any more."""
    if names:
        with _lock:
            for key in [key for key in _held if key[0].partition(" ")[0] in names]:
                _held.pop(key, None)


def rows_between(rows: FloatArray, first: int, last: int) -> FloatArray:
    """Return the centroids of some clusters, of all."""
    return rows[first:last]


class Process(NamedTuple):
    """The process of a worker: two workers may be in one, and several on a machine."""

    machine: str
    number: int
    n_threads: int  # of this worker


def process_here() -> Process:
    """Return the process of the worker that runs this, on all of its threads."""
    return Process(machine(), os.getpid(), n_allowed())


# ---- sums


def _add(sums: HeldSums, changes: Iterator[Sums]) -> None:
    for parcel in changes:
        joined([parcel]).add_into(sums.sums)
        np.add(sums.counts, parcel.counts, out=sums.counts)


def begin_sums(
    visit: Visit, name: str, shape: tuple[int, int], changes: Changes, peers: Peers
) -> None:
    """Hold sums of these changes alone."""
    _forget(visit.dead)
    with _turns[visit.first]:
        if (name, visit.first) not in _held:
            sums = HeldSums(np.zeros(shape, np.int64), np.zeros(shape[0], np.int64))
            _add(sums, taken(visit.first, changes, peers))
            _hold(name, visit.first, sums)


def add_changes(
    visit: Visit, names: tuple[str, str], changes: Changes, peers: Peers, in_place: bool
) -> None:
    """Hold the sums of a version after changes: in the place of that version, or next to it.

    The `names` are of both.
    """
    _forget(visit.dead)
    base, name = names
    with _turns[visit.first]:
        if (name, visit.first) in _held:
            return
        before = take(base, visit.first)
        if in_place:  # what fails half way must be lost, not wrong
            del _held[base, visit.first]
        sums = before if in_place else HeldSums(before.sums.copy(), before.counts.copy())
        _add(sums, taken(visit.first, changes, peers))
        _hold(name, visit.first, sums)


# ---- centroids


def place_centroids(
    visit: Visit, metric: Metric, numbers: Numbers, name: str, rows: FloatArray
) -> None:
    """Hold the centroids of the owner's clusters as they are."""
    _forget(visit.dead)
    with visit.at_work():
        held = buffer(rows.shape, np.float64)
    held[...] = rows
    _hold(name, visit.first, bare_model(metric, numbers, held))


class KeptRows(NamedTuple):
    """Centroids in a commit that its sums do not give."""

    clusters: IntArray
    centroids: FloatArray
    run: CheckpointStore
    files: tuple[LabelsFile, ...]  # others, written by owners

    def put(self, first: int, centroids: FloatArray) -> None:
        """Put those in the place of centroids from cluster `first` on."""
        here = (self.clusters >= first) & (self.clusters < first + len(centroids))
        centroids[self.clusters[here] - first] = self.centroids[here]
        for file in self.files:
            start, end = max(first, file.first_row), file.first_row + file.n_rows
            if start < min(end, first + len(centroids)):
                rows = self.run.read_rows(file)[start - file.first_row :]
                rows = rows[: first + len(centroids) - start]
                centroids[start - first : start - first + len(rows)] = rows


def restore_centroids(
    visit: Visit, metric: Metric, numbers: Numbers, names: tuple[str, str], kept: KeptRows
) -> None:
    """Hold the centroids of sums, but for clusters that keep theirs."""
    _forget(visit.dead)
    sums = take(names[0], visit.first)
    model = bare_model(metric, numbers, np.zeros((len(sums.sums), sums.sums.shape[1] - 1)))
    with visit.at_work():
        made = _centroids(model, sums)
    kept.put(visit.first, made)
    _hold(names[1], visit.first, replace(model, centroids=made))


def remake(
    visit: Visit, metric: Metric, numbers: Numbers, names: tuple[str, str, str],
    compared: bool, near: bool, _done: Any = None,
) -> Made:  # fmt: skip
    """Hold the centroids that sums ask for; `names`: of sums, of centroids before, of these.

    See `Model.remade`; what `near` needs is returned for the driver, which knows all clusters. The
    last argument is what the task that makes the sums returns: it comes before.
    """
    _forget(visit.dead)
    sums_name, before_name, name = names
    with _turns[visit.first]:
        if (name + MADE, visit.first) in _held:
            known: Made = _held[name + MADE, visit.first]
            return known
        sums = take(sums_name, visit.first)
        before = measured_by(take(before_name, visit.first), metric, numbers)
        with visit.at_work():
            model, made = before.remade(sums.sums, sums.counts, compared=compared)
        changes = made.changes
        if near and changes is None:
            changes = model.distortion.changes(before.table(), model.table())
        vacant = without_sum(sums.sums)
        closed = None if made.closed is None else int(made.closed)
        answer = Made(closed, made.closed_before, changes if near else None, vacant)
        _hold(name + CHANGED, visit.first, (before_name, _differing(before, model)))
        _hold(name, visit.first, model)
        _hold(name + MADE, visit.first, answer)
        return answer


def closed_at(visit: Visit, metric: Metric, numbers: Numbers, names: tuple[str, str]) -> int:
    """Return the `closed_distances` of an owner's clusters; `names`: of sums, of centroids."""
    _forget(visit.dead)
    sums = take(names[0], visit.first)
    model = measured_by(take(names[1], visit.first), metric, numbers)
    totals = (sums.sums, sums.counts, model.exponent)
    return int(model.distortion.closed_distances(model.table(), model.weights, *totals))


def vacant_at(visit: Visit, name: str) -> BoolArray:
    """Return which of an owner's clusters have sums of zeros."""
    _forget(visit.dead)
    return without_sum(take(name, visit.first).sums)


def differing_at(
    visit: Visit, metric: Metric, numbers: Numbers, names: tuple[str, str]
) -> BoolArray:
    """Return which centroids are not those of the sums alone; see `keeps_centroid`."""
    _forget(visit.dead)
    sums, model = take(names[0], visit.first), take(names[1], visit.first)
    alone = bare_model(metric, numbers, np.zeros_like(model.centroids))
    return np.asarray((_centroids(alone, sums) != model.centroids).any(axis=1))


def centroids_at(visit: Visit, name: str, clusters: IntArray) -> FloatArray:
    """Return the centroids of those of the clusters that are the owner's."""
    _forget(visit.dead)
    here = clusters[(clusters >= visit.first) & (clusters < visit.last)] - visit.first
    rows: FloatArray = take(name, visit.first).centroids[here]
    return rows


def write_at(visit: Visit, name: str, run: CheckpointStore, number: int) -> LabelsFile:
    """Write an owner's centroids as part of a commit."""
    _forget(visit.dead)
    part, centroids = f"{CENTROIDS}{visit.first:07d}", take(name, visit.first).centroids
    return run.write_rows(number, part, visit.first, centroids)


def squares_at(visit: Visit, metric: Metric, numbers: Numbers, name: str) -> FloatArray:
    """Return ‖S_h‖² of an owner's clusters."""
    return round_at(visit, metric, numbers, name).squares


def fold_at(
    visit: Visit, metric: Metric, numbers: Numbers, names: tuple[str, str], n_clusters: int,
    add: Callable[..., Any], total: Any, *arguments: Any,
) -> Any:  # fmt: skip
    """Return `add` of a total and of an owner's clusters; see `tasks.cluster_totals`."""
    _forget(visit.dead)
    sums = take(names[0], visit.first)
    model = measured_by(take(names[1], visit.first), metric, numbers)
    clusters = Clusters(model, sums.sums, sums.counts, visit.first, n_clusters)
    return add(total, clusters, *arguments)


def round_at(visit: Visit, metric: Metric, numbers: Numbers, name: str) -> HeldRound:
    """Return the sums of an owner's clusters and their ‖S_h‖², as first variation reads them."""
    _forget(visit.dead)
    held = take(name, visit.first)
    weights = column_weights(bare_model(metric, numbers, np.zeros((0, 0))))
    squares = squares_of(held.sums, weights, numbers.exponent)
    return HeldRound(held.sums, held.counts, squares)


class Rows(NamedTuple):
    """Centroids of a range of clusters: of some of them, or of all."""

    clusters: IntArray | None  # from the first of the range on; None: all
    centroids: FloatArray


def rows_since(name: str, first: int, known: str, span: tuple[int, int]) -> Rows:
    """Return an owner's centroids for a process that has another version of them: what differs.

    The span is of its clusters, from the first one on; all of it, where those that differ are not
    few.
    """
    here = slice(*span)
    centroids = take(name, first).centroids[here]
    if known == name:
        return Rows(np.zeros(0, np.int64), centroids[:0])
    before, differ = _held.get((name + CHANGED, first), (None, np.zeros(0, np.bool_)))
    if known != before or FEW * int(differ.sum()) > len(differ):
        return Rows(None, centroids)
    return Rows(np.flatnonzero(differ[here]), centroids[differ[here]])


def _differing(before: Model, after: Model) -> BoolArray:
    """Return which centroids' bits changed."""
    old, new = before.centroids.view(np.int64), after.centroids.view(np.int64)
    differ: BoolArray = (old[:, :COLUMNS] != new[:, :COLUMNS]).any(axis=1)
    for cluster in np.flatnonzero(~differ):
        differ[cluster] = not np.array_equal(old[cluster], new[cluster])
    return differ


def leave(fit: str) -> None:
    """Let go of all that a fit held in this process as an owner."""
    with _lock:
        parcels.leave(fit)
        for key in [key for key in _held if key[0].startswith(fit)]:
            _held.pop(key, None)


def bare_model(metric: Metric, numbers: Numbers, centroids: FloatArray) -> Model:
    """Return the model of these centroids, with nothing that the driver alone knows."""
    distortion, weights = metric
    return Model(distortion, weights, centroids, numbers.smoothing, numbers.exponent)


def measured_by(model: Model, metric: Metric, numbers: Numbers) -> Model:
    """Return a model of the same centroids under a metric; itself, with its table, if it has it."""
    same = (model.smoothing, model.exponent) == numbers
    if same and (model.weights is metric[1] or np.array_equal(model.weights, metric[1])):
        return model
    return bare_model(metric, numbers, model.centroids)


def _centroids(model: Model, sums: HeldSums) -> FloatArray:
    """Return the centroids that sums ask for; undecided clusters have those of the model."""
    totals = (sums.sums, model.exponent, sums.counts)
    made: FloatArray = model.distortion.centroids(
        *totals, model.weights, model.smoothing, model.centroids
    )
    return made
