"""What an experiment is: studies (rows, an axis, arms, what is told) and figures drawn of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import hmrf_dask
from hmrf_dask.errors import HmrfWarning
from pipelines.papers.sets import Rows
from pipelines.papers.supervision import Fold, Given

# The paper's own start and steps: centroids of neighbourhoods, the missing ones by perturbing the
# global centroid, batch moves only. One start: nothing is compared.
PAPERS_START: dict[str, Any] = {"init": "neighborhoods", "fill": "perturb", "refine": False}


class Key(NamedTuple):
    """The place of one fit in an experiment; `x` is None for an arm that is alike at every x."""

    study: str
    arm: str
    x: float | None
    run: int
    fold: int


@dataclass(frozen=True)
class Arm:
    """One way to cluster: an estimator of the library, its parameters, and what it is told.

    Attributes
    ----------
    name : str
    estimator : str
        A class of `hmrf_dask`.
    parameters : mapping
        Of the estimator, without `n_clusters` and `random_state`.
    takes : {"nothing", "pairs", "seeds"}
    at_x : tuple of str
        Parameters that get the place on the x axis.
    """

    name: str
    estimator: str = "HMRFKMeans"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    takes: Literal["nothing", "pairs", "seeds"] = "pairs"
    at_x: tuple[str, ...] = ()

    @property
    def is_flat(self) -> bool:
        """Whether it is the same at every x."""
        return self.takes == "nothing" and not self.at_x

    def fit(self, rows: Rows, given: Given, x: float | None, seed: int) -> Any:
        """Return a fitted model of all rows."""
        chosen = {**self.parameters, **dict.fromkeys(self.at_x, x)}
        if given.trust is not None and self.estimator == "HMRFKMeans" and self.takes == "pairs":
            chosen.setdefault("trust", given.trust)
        model = getattr(hmrf_dask, self.estimator)(rows.n_clusters, random_state=seed, **chosen)
        model._last = given.last  # as a job does, for want of a parameter
        told: dict[str, Any] = {}
        if self.takes == "seeds":
            told = {"y": given.seeds}
        elif self.takes == "pairs" and len(given.pairs):
            told = {"must_link": given.must_link, "cannot_link": given.cannot_link}
        with warnings.catch_warnings():
            # a few short messages have no word that is left, and the fit says so every time
            warnings.filterwarnings("ignore", r"\d+ rows are zero", HmrfWarning)
            # where pairs are told the wrong way round they contradict others
            warnings.filterwarnings("ignore", "must-links contradict", HmrfWarning)
            warnings.filterwarnings("ignore", r"\d+ documents all exclude", HmrfWarning)
            return model.fit(rows.values, **told)


@dataclass(frozen=True)
class Axis:
    """The x axis of a study: its label, its places, and those among them of `--quick`."""

    label: str
    values: tuple[float, ...]
    quick: tuple[float, ...]
    scale: str = "linear"


@dataclass(frozen=True)
class Study:
    """Arms compared on one set over one axis.

    Attributes
    ----------
    name : str
    load : callable
        Returns the rows, given the folder of the data.
    axis : Axis
    arms : tuple of Arm
    ask : callable
        Returns what is told in a fold at a place on the axis.
    n_folds : int
    is_large : bool
        Whether `--quick` leaves it out.
    seed_by : {"fold", "run"}
        Whether every fold has a seed of its own, or all folds of a run have its number.
    """

    name: str
    load: Callable[[Path], Rows]
    axis: Axis
    arms: tuple[Arm, ...]
    ask: Callable[[Fold, float], Given]
    n_folds: int = 2
    is_large: bool = False
    seed_by: Literal["fold", "run"] = "fold"

    def seed(self, key: Key) -> int:
        """Return the seed of a fit; arms of a fold have the same one."""
        return key.run if self.seed_by == "run" else key.run * self.n_folds + key.fold

    def places(self, quick: bool) -> tuple[float, ...]:
        """Return the places on the axis that are run."""
        return self.axis.quick if quick else self.axis.values

    def keys(self, runs: int, quick: bool) -> Iterator[Key]:
        """Yield the fits in their order, whole curves of a fold after each other."""
        for run in range(runs):
            for fold in range(min(self.n_folds, 2) if quick else self.n_folds):
                for arm in self.arms:
                    for x in (None,) if arm.is_flat else self.places(quick):
                        yield Key(self.name, arm.name, x, run, fold)

    def settings(self, rows: Rows) -> dict[str, Any]:
        """Return what figures depend on beside their keys, as JSON has it."""
        arms = {
            arm.name: {
                "estimator": arm.estimator,
                "parameters": dict(arm.parameters),
                "takes": arm.takes,
                "at_x": list(arm.at_x),
            }
            for arm in self.arms
        }
        # left out where it is "fold": files that are older have no word of it
        seeds = {} if self.seed_by == "fold" else {"seed_by": self.seed_by}
        return {"rows": rows.fingerprint(), "n_folds": self.n_folds, **seeds, "arms": arms}


@dataclass(frozen=True)
class Figure:
    """One panel: a measure of a study's arms over its axis."""

    title: str
    study: str
    measure: str = "nmi"
    arms: tuple[str, ...] = ()  # all of the study without it


@dataclass(frozen=True)
class Experiment:
    """A page of a paper: studies, the figures drawn of them, and what is to be read in them.

    Attributes
    ----------
    name : str
        Of the files it writes.
    title, about : str
        The head of the text: what is compared, and how.
    studies : tuple of Study
    figures : tuple of Figure
    findings : callable
        Returns lines of Markdown from the curves by study; studies that were not run are missing.
    runs, quick_runs : int
        How many runs without `--runs`.
    further : tuple of str
        Measures that are kept beside those of every experiment.
    """

    name: str
    title: str
    about: str
    studies: tuple[Study, ...]
    figures: tuple[Figure, ...]
    findings: Callable[[Mapping[str, Any]], list[str]]
    runs: int = 20
    quick_runs: int = 2
    further: tuple[str, ...] = ()

    def chosen(self, quick: bool) -> list[Study]:
        """Return the studies that are run."""
        return [one for one in self.studies if not (quick and one.is_large)]
