"""Owners: sums and centroids that live on workers, as the driver sees them; it knows their names.

On worker processes, where there are many clusters and features, the sums and centroids of a range
of clusters lie in one of these processes. Tasks send it what rows change there; it makes centroids,
and says counts, exact integers of J and how far centroids went (`tasks/owners.py`). Nothing of
K × d numbers reaches the driver. The integers are the same whoever adds them, so are the centroids.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.distortions.base import Distortion, Remade, TableDistortion
from hmrf_dask.errors import (
    ClusterError,
    ConfigurationError,
    HmrfError,
    LostOwnerError,
    RunDirectoryError,
)
from hmrf_dask.fit.problem import Problem
from hmrf_dask.flow.clients import AGAIN, no_progress, setting
from hmrf_dask.flow.cluster import least_memory
from hmrf_dask.flow.dataflow import Dataflow, Lazy, share_array, tree
from hmrf_dask.flow.graphs import Joined
from hmrf_dask.flow.messages import Peers
from hmrf_dask.tasks import owners as tasks
from hmrf_dask.tasks import parcels, whole_models
from hmrf_dask.tasks.cluster_totals import block_of
from hmrf_dask.tasks.model import Model, Settings, State
from hmrf_dask.types import BoolArray, FloatArray, IntArray

LEAST = 2**20  # numbers, K × d: fewer are sooner added up by the driver
EACH = 2**17  # numbers an owner has at least
MOST = 256  # owners: fewer than workers, and the link of each is what all wait for
AT_A_TIME = 2**25  # bytes of centroids that are brought here at the end; more lie in a file
HELD = 64  # bytes of an owner for each number, in a worker that has much else to hold
TIMES = 10  # that workers are asked where they are, as some of them go
REMEMBERED = 64  # names of what died, for owners that were busy when it did


class Owned:
    """K × n numbers that owners hold, some rows each: their name."""

    def __init__(self, owners: Owners, width: int, name: str | None = None) -> None:
        self.owners = owners
        self.name = owners.new_name() if name is None else name
        self.shape = owners.n_clusters, width
        self.vacant: BoolArray | None = None  # of sums: which clusters have none, once it is known
        if self.name:
            weakref.finalize(self, owners.dead.append, self.name).atexit = False

        self.squares = np.zeros(0)  # of the sums a fit ends with: ‖S_h‖²
        self.model: Model | None = None  # that it ends with, as owners hold it
        # centroids that were made with these sums: held, of which before, of which numbers
        self.next: tuple[Owned, str, tasks.Numbers] | None = None
        self.answers: list[tasks.Made] = []  # what owners said of these

    def __len__(self) -> int:
        return self.shape[0]

    def take_next(self, before: Model) -> tuple[Owned | None, list[tasks.Made]]:
        """Return centroids that follow those of a model, None where none were made yet."""
        if self.next is None or self.next[1:] != (before.centroids.name, numbers_of(before)):
            return None, []
        (held, *_), self.next = self.next, None
        return held, self.answers

    def __reduce__(self) -> Any:
        """Refuse to travel: tasks are given names, or what `Owners.model` makes."""
        raise TypeError("what owners hold is named to tasks, not sent")


class Owners:
    """The owners of a fit, and what the driver asks of them."""

    def __init__(self, flow: Dataflow, problem: Problem, n_owners: int) -> None:
        self.flow, self.dense = flow, problem.dense
        self.n_clusters, self.n_features = problem.settings.n_clusters, problem.extent.n_features
        slices = [problem.free[places[0]].block for places in problem.slices]
        self._rows = [*slices, *(part.block for part in problem.linked)]
        self.fit, self._numbers = uuid.uuid4().hex[:12], itertools.count()
        self.leave = weakref.finalize(self, _leave, flow, self.fit)  # workers let go of everything
        self.leave.atexit = False
        self.dead: deque[str] = deque(maxlen=REMEMBERED)
        self._peers = Peers(no_progress())
        step = block_of(self.n_features)  # see `tasks.cluster_totals`
        starts = np.arange(n_owners) * self.n_clusters // n_owners // step * step
        self.ranges = list(pairwise([*np.unique(starts).tolist(), self.n_clusters]))
        self.move()

    def move(self) -> None:
        """Give all clusters to workers that are there now; what others had is lost."""
        self.workers, self._machines = machines_of(self.flow)
        places = self.workers
        leaders = leaders_of(places, self._machines)
        followers = [place for place in places if place not in leaders]
        owning = leaders if len(self.ranges) <= len(leaders) else [*leaders, *followers]
        self.places = [owning[number % len(owning)] for number in range(len(self.ranges))]
        homes = self.flow.homes(self._rows)
        runs = np.arange(len(homes)) * len(places) // max(len(homes), 1)  # of rows read each time
        self._homes = [home or f"run {run}" for home, run in zip(homes, runs, strict=True)]
        self._metric: tuple[Any, FloatArray, Lazy] | None = None

    def each(self, function: Callable[..., Any], *arguments: Any) -> list[Lazy]:
        """Return lazily what a task returns at every owner."""
        return [self.at(number, function, *arguments) for number in range(len(self.ranges))]

    def at(self, number: int, function: Callable[..., Any], *arguments: Any) -> Lazy:
        """Return lazily what a task returns at one owner."""
        place = self.places[number]
        machine = self._machines.get(place)
        led = machine if machine is not None and machine.leader == place else None
        visit = tasks.Visit(*self.ranges[number], tuple(self.dead), led)
        return self.flow.lazy_at(place, function, visit, *arguments)

    def metric(self, model: Model) -> Lazy:
        """Return what distances are taken in, kept where it was needed: it seldom changes."""
        known = self._metric
        if known is None or known[0] is not model.distortion or known[1] is not model.weights:
            shared = self.flow.share((model.distortion, model.weights))
            (kept,) = self.flow.persist([shared])
            self._metric = known = model.distortion, model.weights, kept
        return known[2]

    # ---- sums

    def no_sums(self) -> Owned:
        """Return sums of no rows, which nobody holds."""
        return Owned(self, self.n_features + 1, "")

    def summed(
        self, changes: Sequence[Lazy], base: Owned | None = None, *, in_place: bool = False
    ) -> tuple[Owned, Lazy, list[Lazy]]:
        """Return the sums of steps, or of sums, on top of a `base`, and tasks that make them.

        There is one of each slice of rows, and of each linked partition: those of one worker reach
        an owner together. A task that reports to the driver comes before the list of them.
        """
        sums, groups = Owned(self, self.n_features + 1), defaultdict(list)
        for home, change in zip(self._homes, changes, strict=True):
            groups[home].append(change)
        ends = (0, *(last for _, last in self.ranges))
        parts = [
            self.flow.lazy(parcels.changed_by, f"{sums.name}/{number}", group, ends, self._peers)
            for number, group in enumerate(groups.values())
        ]
        whole = tree(self.flow, parcels.Changes.merged, parts)
        made = []
        for number, (first, last) in enumerate(self.ranges):
            if base is None or not base.name:
                shape = last - first, self.n_features + 1
                lazily = self.at(number, tasks.begin_sums, sums.name, shape, whole, self._peers)
            else:
                both = base.name, sums.name
                lazily = self.at(number, tasks.add_changes, both, whole, self._peers, in_place)
            made.append(lazily)
        return sums, self.flow.lazy(parcels.report_of, whole), made

    def vacant(self, sums: Owned) -> BoolArray:
        """Return which clusters have sums of zeros."""
        if sums.vacant is None:
            found = self.flow.compute(self.each(tasks.vacant_at, sums.name))
            sums.vacant = np.concatenate(found)
        return sums.vacant

    # ---- centroids

    def placed(self, model: Model, centroids: Any) -> Model:
        """Return a model of first centroids, an array or lazily one, which owners hold from now."""
        held = Owned(self, self.n_features)
        known = self.metric(model), numbers_of(model), held.name
        if isinstance(centroids, np.ndarray):
            pieces = [self.flow.share(centroids[first:last]) for first, last in self.ranges]
        else:
            cut = tasks.rows_between
            pieces = [self.flow.lazy(cut, centroids, *ends) for ends in self.ranges]
        self.flow.compute(
            [
                self.at(number, tasks.place_centroids, *known, rows)
                for number, rows in enumerate(pieces)
            ]
        )
        return replace(model, centroids=held)

    def restored(self, state: State, kept: tasks.KeptRows) -> Model:
        """Return the model of the sums of a state, but for clusters that have kept centroids."""
        held, model = Owned(self, self.n_features), state.model
        names = state.sums.name, held.name
        kept = kept._replace(centroids=share_array(self.flow, kept.centroids))
        known = self.metric(model), numbers_of(model)
        self.flow.compute(self.each(tasks.restore_centroids, *known, names, kept))
        return replace(model, centroids=held)

    def written(self, centroids: Owned, run: CheckpointStore, number: int) -> list[LabelsFile]:
        """Write all centroids as parts of a commit; return their files."""
        return self.flow.compute(self.each(tasks.write_at, centroids.name, run, number))

    def remaking(self, model: Model, sums: Owned, made: Sequence[Lazy]) -> list[Lazy]:
        """Return tasks that make the centroids of sums as soon as these are there: M-step A."""
        held = Owned(self, self.n_features)
        names = sums.name, model.centroids.name, held.name
        known = self.metric(model), numbers_of(model), names, True, True
        sums.next = held, model.centroids.name, numbers_of(model)
        return [self.at(number, tasks.remake, *known, done) for number, done in enumerate(made)]

    def remade(
        self, state: State, *, compared: bool = False, near: bool = False
    ) -> tuple[Model, Remade]:
        """Return what `Model.remade` does, the centroids held by owners."""
        before, sums = state.model, state.sums
        held, answers = sums.take_next(before)
        if held is None:
            held = Owned(self, self.n_features)
            names = sums.name, before.centroids.name, held.name
            known = self.metric(before), numbers_of(before), names, compared, near
            answers = self.flow.compute(self.each(tasks.remake, *known))
        sums.vacant = np.concatenate([answer.vacant for answer in answers])
        model, changes = replace(before, centroids=held), None
        if near and answers[0].changes is not None:
            changes = np.concatenate([answer.changes for answer in answers], axis=1)
            model.moved_from(before, changes)
        closed = _added(answer.closed for answer in answers)
        earlier = _added(answer.closed_before for answer in answers) if compared else None
        return model, Remade(held, None, changes, closed, earlier)

    def closed(self, state: State) -> int:
        """Return the `closed_distances` of a state."""
        names = state.sums.name, state.model.centroids.name
        known = self.metric(state.model), numbers_of(state.model)
        return sum(self.flow.compute(self.each(tasks.closed_at, *known, names)))

    def differing(self, state: State) -> BoolArray:
        """Return which centroids are not those of the sums alone."""
        names = state.sums.name, state.model.centroids.name
        known = self.metric(state.model), numbers_of(state.model)
        return np.concatenate(self.flow.compute(self.each(tasks.differing_at, *known, names)))

    def rows(self, centroids: Owned, clusters: IntArray) -> FloatArray:
        """Return the centroids of some clusters, sorted."""
        if not len(clusters):
            return np.zeros((0, self.n_features))
        known = share_array(self.flow, clusters)
        return np.concatenate(
            self.flow.compute(self.each(tasks.centroids_at, centroids.name, known))
        )

    def ended(self, state: State) -> State:
        """Return the last state of a fit, centroids here: in a temporary file where they are many.

        They are read from it where somebody asks for them. Owners let go of all they have when
        nobody has the state any more: until then they give tasks its model.
        """
        sums = state.sums
        sums.squares = np.concatenate(
            self.flow.compute(self.each(tasks.squares_at, *self._of(state)))
        )
        sums.model = state.model
        return replace(state, model=replace(state.model, centroids=self._here(state.model)))

    def new_name(self) -> str:
        """Return a name that no other version has, of this fit or of another one."""
        return f"{self.fit}.{next(self._numbers)}"

    def _of(self, state: State) -> tuple[Lazy, tasks.Numbers, str]:
        return self.metric(state.model), numbers_of(state.model), state.sums.name

    def _here(self, model: Model) -> FloatArray:
        """Return all centroids, a few at a time."""
        rows = max(1, AT_A_TIME // (8 * self.n_features))
        everything = np.arange(self.n_clusters)
        if self.n_clusters <= rows:
            return self.rows(model.centroids, everything)
        try:
            return self._in_file(model, everything, rows)
        except OSError as error:
            if isinstance(error, HmrfError):  # of workers
                raise
            needed = 8e-6 * self.n_clusters * self.n_features
            raise RunDirectoryError(
                f"hmrf.scratch-directory must have room for the centroids that a fit ends with, "
                f"{needed:,.0f} MB, got {error}; set it to another folder, or make room, and fit "
                "again"
            ) from error

    def _in_file(self, model: Model, everything: IntArray, rows: int) -> FloatArray:
        """Return all centroids in a temporary file, that takes some rows at a time."""
        with tempfile.TemporaryFile(dir=setting("scratch-directory", None)) as file:
            for first in range(0, self.n_clusters, rows):
                few = self.rows(model.centroids, everything[first : first + rows])
                file.write(few.data)  # `tofile` would not say why it fails
            file.flush()
            return np.memmap(file, np.float64, "c", shape=(self.n_clusters, self.n_features))

    def folded(self, state: State, add: Callable[..., Any], total: Any, *arguments: Any) -> Any:
        """Return what owner after owner adds to a total; see `Engine.folded`."""
        names = state.sums.name, state.model.centroids.name
        known = self.metric(state.model), numbers_of(state.model), names, self.n_clusters, add
        value, given = share_array(self.flow, total), [self.flow.share(one) for one in arguments]
        for number in range(len(self.ranges)):
            value = self.at(number, tasks.fold_at, *known, value, *given)
        return self.flow.compute([value])[0]

    # ---- what tasks over rows are given

    def model(self, model: Model) -> Joined:
        """Return a model for tasks: put together once in a process, of what owners answer."""
        owners = tuple((at, *ends) for at, ends in zip(self.places, self.ranges, strict=True))
        centroids = model.centroids
        there = owners, self._peers, self._machines
        where = whole_models.Places(centroids.name, centroids.shape, *there)
        known = numbers_of(model), model.limits, model.drift, self.dense
        sketch = whole_models.Sketch(self.new_name(), where, *known)
        return Joined(whole_models.assembled, (self.flow.share(sketch), self.metric(model)))

    def sources(self, state: State, model: Lazy) -> Joined:
        """Return what tasks of first variation read, with its `model`."""
        pieces = self.each(tasks.round_at, *self._of(state))
        return Joined(
            whole_models.assembled_sources, (self.new_name(), model, pieces, state.optimal)
        )

    def ahead(self, model: Model) -> tuple[Joined, list[Lazy]]:
        """Return a model as `model` does, on its way to all workers; and tasks that hold it there.

        They put it together and make ready what rows are compared by, while the driver is at work.
        """
        sent = self.model(model)
        sketch, metric = sent.arguments
        (sketch,) = self.flow.begin([sketch])
        sent = Joined(sent.function, (sketch, metric))
        made = [
            self.flow.lazy_at(one, whole_models.made_ready, self.ready(sent))
            for one in self.workers
        ]
        return sent, self.flow.begin(made)

    def ready(self, model: Joined) -> Joined:
        """Return the same model with what the nearest centroids of rows are found by."""
        return Joined(whole_models.assembled_ready, model.arguments)


def machines_of(flow: Dataflow) -> tuple[list[str], dict[str, tasks.Machine]]:
    """Return the workers, and the machine of each that shares one with other processes.

    Workers that are in the leader's process lead as it does: they have its memory.
    """
    places, found = _processes(flow)
    processes = dict(zip(places, found, strict=True))
    together = defaultdict(list)
    for place, process in processes.items():
        together[process.machine].append(place)
    machines = {}
    for members in together.values():
        first, n_threads = members[0], sum(processes[place].n_threads for place in members)
        if len({processes[place].number for place in members}) > 1:
            for place in members:
                same = processes[place].number == processes[first].number
                machines[place] = tasks.Machine(place if same else first, n_threads)
    return places, machines


def leaders_of(places: Sequence[str], machines: Mapping[str, tasks.Machine]) -> list[str]:
    """Return the workers that need nothing of another one on their machine."""
    return [place for place in places if place not in machines or machines[place].leader == place]


def _processes(flow: Dataflow) -> tuple[list[str], list[tasks.Process]]:
    """Return the workers that are there, and the process of each: one may go while it is asked."""
    for _ in range(TIMES):
        places = flow.workers()
        with suppress(LostOwnerError):
            return places, flow.compute([flow.lazy_at(at, tasks.process_here) for at in places])
    raise ClusterError(
        f"workers must stay for a moment, got one of them lost {TIMES} times as they were "
        f"asked where they are; see why they die (for want of memory?), and {AGAIN}"
    )


def _leave(flow: Dataflow, fit: str) -> None:
    """Let workers know that nobody asks for anything of a fit any more, if they are there."""
    with suppress(Exception):
        whole_models.leave(fit)  # workers in this process may be gone before they are told
        flow.tell(whole_models.leave, fit)


def model_of(flow: Dataflow, state: State) -> Lazy:
    """Return the model that a fit ended with, for tasks."""
    sums = state.sums
    if isinstance(sums, Owned) and sums.model is not None:
        return sums.owners.model(sums.model)
    return flow.share(state.model)


def numbers_of(model: Model) -> tasks.Numbers:
    """Return what a model has next to its metric and its centroids."""
    return tasks.Numbers(model.smoothing, model.exponent)


def _added(parts: Any) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def n_owners(flow: Dataflow, settings: Settings, distortion: Distortion, n_features: int) -> int:
    """Return how many owners a fit has, 0 where the driver has its sums and centroids.

    They are on worker processes alone: elsewhere all threads share one array. What decides changes
    no bits.
    """
    asked, n_places, n_clusters = setting("owners", "auto"), flow.n_workers, settings.n_clusters
    if not n_places or why_none(settings, distortion):
        return 0
    if asked != "auto" and not (str(asked).isdecimal() and int(asked) <= MOST):
        raise ConfigurationError(
            f"hmrf.owners must be auto or a number of owners from 0 to {MOST}, got {asked!r}; "
            "leave it out, or say 0 for none"
        )
    if asked != "auto":
        return min(int(asked), n_clusters)
    size = n_clusters * n_features
    return 0 if size < LEAST else min(_places(flow, size), MOST, n_clusters, size // EACH)


def _places(flow: Dataflow, size: int) -> int:
    """Return in how many processes K × d numbers are: one a machine, more where memory is short."""
    places, machines = machines_of(flow)
    n_leaders = len(leaders_of(places, machines))
    return min(len(places), max(n_leaders, HELD * size // least_memory()))


def why_none(settings: Settings, distortion: Distortion) -> str:
    """Return why a fit cannot have owners, however large it is; nothing where it can."""
    if not isinstance(distortion, TableDistortion):
        return "owners make tables of centroids, which a distortion of your own has not"
    if settings.metric:
        return "a full metric is learned from all sums at once"
    return ""


def in_driver(flow: Dataflow, settings: Settings, distortion: Distortion, n_features: int) -> str:
    """Return in words that much passes through the driver, and why; nothing where it need not."""
    size, why = settings.n_clusters * n_features, why_none(settings, distortion)
    if not why or not flow.n_workers or size < LEAST:
        return ""
    return (
        f"all sums and centroids pass through the driver, {settings.n_clusters} clusters of "
        f"{n_features} features, {8e-6 * size:,.0f} MB to each worker and back in an iteration: "
        f"{why}; more workers gain less than they could"
    )


def owners_for(flow: Dataflow, problem: Problem) -> Owners | None:
    """Return the owners of a fit, if it has any."""
    number = n_owners(flow, problem.settings, problem.distortion, problem.extent.n_features)
    return Owners(flow, problem, number) if number else None
