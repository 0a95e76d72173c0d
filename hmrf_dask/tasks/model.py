"""What travels through the loop: settings, the model tasks see, J, the state after a step."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from hmrf_dask.checkpoints.records import LabelsFile
from hmrf_dask.distortions.base import Distortion, Remade
from hmrf_dask.kernels.exact import BASE, exact_integer
from hmrf_dask.kernels.hamerly import CentroidDrift, losses_of
from hmrf_dask.kernels.sums import Accumulator
from hmrf_dask.types import BoolArray, FloatArray, IntArray, Sized

Penalty = Literal["trust", "distance", "potts"]
WeightUpdate = Literal["normalized", "paper"]
Inference = Literal["icm", "belief-propagation"]


@dataclass(frozen=True)
class Settings:
    """A fit's parameters, every "auto" already decided except `refine`, which follows sizes."""

    n_clusters: int  # 0: not chosen yet
    penalty: Penalty = "distance"
    must_link_cost: float = 1.0
    cannot_link_cost: float = 1.0
    init: str = "auto"
    neighborhoods: Literal["farthest", "largest"] = "farthest"  # of more than K
    fill: str = "k-means++"
    inference: Inference = "icm"
    refine: str | bool = "auto"
    learn_weights: bool = False
    metric: str = ""  # "full", which has steps; "auto" or "weights" until it is decided
    weight_update: WeightUpdate = "normalized"
    closure: bool = True
    on_conflict: Literal["warn", "raise", "keep", "drop"] = "warn"
    trust: float | None = None  # in answers that have none of their own; None: as they show
    n_init: int = 10
    max_iter: int = 100
    tol: float = 2e-5
    hard: bool = False  # no pair is ever broken: COP-KMeans
    retries: int = 0  # more searches for labels that keep hard pairs
    outliers: float | str | None = None  # which rows are of no cluster: "auto", or a share of them
    trim_outliers: bool = False  # whether they are kept out of centroids, or marked after the fit
    seed: int = 0
    task_memory: int = 2**30


@dataclass(frozen=True)
class Limits(Sized):
    """How far rows may be from their centroids and not be kept out of these, held for a phase."""

    reach: FloatArray  # (K,), τ
    middle: FloatArray  # (d,), see `Distortion.middle`


@dataclass(frozen=True)
class NoCentroids(Sized):
    """The place of centroids where only their number is needed."""

    n_clusters: int
    n_features: int

    def __len__(self) -> int:
        return self.n_clusters

    @property
    def shape(self) -> tuple[int, int]:
        """That of the centroids."""
        return self.n_clusters, self.n_features


@dataclass(frozen=True)
class Model(Sized):
    """What a task needs to compute any distance, sum or penalty."""

    distortion: Distortion
    weights: FloatArray
    centroids: Any  # (K, d), float64; in the driver may be `fit.owners.Owned`
    smoothing: float = 0.0
    exponent: int = 43  # sums hold summands times 2**exponent
    limits: Limits | None = None  # where outliers are kept out of centroids
    drift: CentroidDrift | None = field(default=None, init=False, repr=False, compare=False)
    _made: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def n_clusters(self) -> int:
        """K."""
        return len(self.centroids)

    @property
    def linear(self) -> bool:
        """Whether Σ D follows from the sums: not where some rows are out, and others may go."""
        return self.distortion.linear and self.limits is None

    def without_centroids(self) -> Model:
        """Return what rows are summed up and pairs are measured with: small to send."""
        return replace(self, centroids=NoCentroids(self.n_clusters, len(self.weights)))

    def table(self) -> Any:
        """Return the centroids as the distortion's kernels use them, made once in a process."""
        with self._lock:  # tasks on other threads wait for the one that makes it
            if not self._made:
                made = self.distortion.table(self.centroids, self.weights, self.smoothing)
                self._made.append(made)
        return self._made[0]

    def remade(
        self, sums: IntArray, counts: IntArray, *, compared: bool = False, near: bool = False
    ) -> tuple[Model, Remade]:
        """Return the model of the centroids that sums ask for, and what was found with these.

        They are `compared` with the centroids before where Σ D at these is wanted too. Where they
        go little, `near`, the model has how far they went.
        """
        metric, before = (self.weights, self.smoothing), self.table() if compared else None
        totals = (sums, self.exponent, counts)
        made = self.distortion.remade(totals, metric, self.centroids, before)
        model = replace(self, centroids=made.centroids)
        if made.table is not None:
            model._made.append(made.table)
        return (model.moved_from(self, made.changes) if near else model), made

    def moved_from(self, previous: Model, changes: FloatArray | None = None) -> Model:
        """Return this model with how far its centroids are from a previous one's.

        Rows are compared under models that follow one another so; any other change begins again.
        """
        if changes is None:
            changes = self.distortion.changes(previous.table(), self.table())
        if changes is not None:
            before = "" if previous.drift is None else previous.drift.after
            drift = CentroidDrift(before, uuid.uuid4().hex, losses_of(changes))
            object.__setattr__(self, "drift", drift)
        return self

    def accumulator(self, *, lasting: bool = True) -> Accumulator:
        """Return sums over no rows yet; see `Accumulator` for blocks that are not `lasting`."""
        return Accumulator(self.n_clusters, self.centroids.shape[1] + 1, lasting=lasting)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the table behind: it is made again faster than it travels."""
        parts = (self.distortion, self.weights, self.centroids, self.smoothing, self.exponent)
        return _with_drift, (*parts, self.limits, self.drift)

    def sized_values(self) -> tuple[Any, ...]:
        """Return the arrays, and as much again twice for the table that is made later."""
        return self.weights, self.centroids, self.centroids, self.centroids, self.limits


def _with_drift(*parts: Any) -> Model:
    """Return a model that has travelled."""
    model = Model(*parts[:-1])
    object.__setattr__(model, "drift", parts[-1])
    return model


def exact(value: float) -> int:
    """Return a float as an exact integer in units of 2**-BASE.

    Examples
    --------
    >>> exact(0.1) + exact(0.2) == exact(0.3), exact(0.25) + exact(0.5) == exact(0.75)
    (False, True)
    """
    return int(Fraction(value) * (1 << BASE))


@dataclass(frozen=True)
class Energy:
    """J and its terms as exact integers in units of 2**-288: two of them compare unrounded."""

    distortion: int = 0
    must: int = 0
    cannot: int = 0
    prior: int = 0

    @property
    def total(self) -> int:
        """The exact J."""
        return self.distortion + self.must + self.cannot + self.prior

    @property
    def value(self) -> float:
        """J, correctly rounded."""
        return self.total / (1 << BASE)

    def terms(self) -> dict[str, float]:
        """Return J and its terms as floats."""
        names = ("J", "distortion", "must_link", "cannot_link", "prior")
        parts = (self.total, self.distortion, self.must, self.cannot, self.prior)
        return {name: part / (1 << BASE) for name, part in zip(names, parts, strict=True)}

    def encoded(self) -> list[str]:
        """Return the exact terms for a commit."""
        return [str(part) for part in (self.distortion, self.must, self.cannot, self.prior)]

    @staticmethod
    def decoded(parts: list[Any]) -> Energy:
        """Return the energy a commit holds."""
        return Energy(*(int(part) for part in parts))


@dataclass(frozen=True)
class Penalties:
    """What the violated pairs of one ICM problem cost: exact sums as limbs."""

    must: IntArray
    cannot: IntArray


def gather_energy(distortion: int, penalties: Sequence[Penalties], prior: float) -> Energy:
    """Return the energy from exact partial sums."""
    return Energy(
        distortion=distortion,
        must=sum(exact_integer(part.must) for part in penalties),
        cannot=sum(exact_integer(part.cannot) for part in penalties),
        prior=exact(prior),
    )


@dataclass(frozen=True)
class WeightPrior:
    """What prior(a) needs next to the weights: the constants of the rule in force."""

    strength: float = 0.0  # λ
    reference: FloatArray = field(default_factory=lambda: np.zeros(0))  # s0 of the entropy rule
    offset: float = 0.0  # T of the entropy rule


NO_FACTOR = np.zeros((0, 0))


@dataclass(frozen=True)
class State:
    """One committed iteration; the next is a pure function of it, the corpus and the pairs."""

    model: Model
    sums: Any  # (K, d + 1), int64; or `fit.owners.Owned`, the name of what owners hold
    counts: IntArray  # (K,)
    free: tuple[LabelsFile, ...]  # labels of corpus partitions, -1 at linked rows
    linked: tuple[LabelsFile, ...]  # labels of linked partitions
    energy: Energy
    prior: WeightPrior = field(default_factory=WeightPrior)
    factor: FloatArray = field(default_factory=lambda: NO_FACTOR)  # G: rows are z·G, none: z
    optimal: bool = False  # whether the centroids are those of the sums, but for vacant clusters


def centroids_of(state: State) -> FloatArray:
    """Return the centroids the state's sums ask for; undecided clusters keep theirs."""
    model = state.model
    sums = (state.sums, model.exponent, state.counts)
    return model.distortion.centroids(*sums, model.weights, model.smoothing, model.centroids)


COLUMNS = 1024  # columns that show whether a cluster has a direction, nearly always


def without_sum(sums: IntArray) -> BoolArray:
    """Return which clusters have sums of zeros: no row, or none with a direction.

    Examples
    --------
    >>> without_sum(np.array([[0, 3], [0, 0]])).tolist()
    [False, True]
    """
    empty = np.zeros(len(sums), np.bool_)
    suspects = np.flatnonzero(~sums[:, :COLUMNS].any(axis=1))
    empty[suspects] = ~sums[suspects].any(axis=1)
    return empty


def real_sums(sums: IntArray, exponent: int) -> FloatArray:
    """Return fixed-point sums as float64.

    Examples
    --------
    >>> real_sums(np.array([3, -1]), exponent=2).tolist()
    [0.75, -0.25]
    """
    return np.asarray(sums * 2.0**-exponent, np.float64)
