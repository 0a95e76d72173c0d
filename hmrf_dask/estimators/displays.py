"""Plots of a fitted estimator in scikit-learn's manner; matplotlib is imported to draw one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.estimators.comparison import survey_rows
from hmrf_dask.report.clusters import Centroids, Map, documents_of, map_of, sizes_of, with_bars
from hmrf_dask.report.content import Text
from hmrf_dask.report.layout import SIDE
from hmrf_dask.report.words import Words

if TYPE_CHECKING:
    from hmrf_dask.estimators.base import HMRFEstimator

TERMS: Final[Mapping[str, str]] = {
    "J": "J",
    "distortion": "distances",
    "must_link": "broken must-links",
    "cannot_link": "broken cannot-links",
    "prior": "weights",
}
_LARGEST = 900.0  # area of the largest cluster, in points
_NAMED = 25  # clusters whose words are written


class ConvergenceDisplay:
    """J over the iterations of a fit, or the terms that it is made of.

    Parameters
    ----------
    iterations : list of dict
        `iterations_` of an estimator.

    Attributes
    ----------
    lines_ : dict of str to Line2D
        By the name of the term.
    ax_, figure_ : Axes, Figure
        What it was drawn on.

    Examples
    --------
    >>> from hmrf_dask import ConvergenceDisplay, KMeans
    >>> model = KMeans(2, random_state=0).fit([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> [step["phase"] for step in ConvergenceDisplay(model.iterations_).iterations][0]
    'fit'
    """

    def __init__(self, iterations: Sequence[Mapping[str, Any]]) -> None:
        self.iterations = iterations

    @classmethod
    def from_estimator(
        cls, estimator: HMRFEstimator, *, terms: Sequence[str] = ("J",), ax: Any = None
    ) -> Self:
        """Draw the convergence of a fitted estimator.

        Parameters
        ----------
        estimator : estimator of this package
        terms : sequence of {"J", "distortion", "must_link", "cannot_link", "prior"}
            J, distances, what broken pairs cost, and what learned weights cost.
        ax : Axes, optional
        """
        check_is_fitted(estimator)
        iterations = getattr(estimator, "iterations_", None)
        if iterations is None:  # a model that was read
            history = enumerate(estimator.objective_history_.tolist())
            iterations = [{"phase": "fit", "iteration": at, "J": value} for at, value in history]
        return cls(iterations).plot(terms=terms, ax=ax)

    def plot(self, *, terms: Sequence[str] = ("J",), ax: Any = None) -> Self:
        """Draw some terms on some axes, or on new ones; see `from_estimator`."""
        if unknown := [name for name in terms if name not in TERMS]:
            raise ConfigurationError(f"terms must be of {', '.join(TERMS)}, got {unknown[0]!r}")
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        places, marker = range(len(self.iterations)), "." if len(self.iterations) < 60 else ""
        values = {name: [step.get(name, np.nan) for step in self.iterations] for name in terms}
        self.lines_ = {
            name: self.ax_.plot(places, values[name], label=TERMS[name], marker=marker)[0]
            for name in terms
        }
        _mark_phases(self.ax_, [str(step.get("phase", "")) for step in self.iterations])
        self.ax_.xaxis.get_major_locator().set_params(integer=True)
        self.ax_.set(xlabel="iteration", ylabel=TERMS[terms[0]] if len(terms) == 1 else "part of J")
        if len(terms) > 1:
            self.ax_.legend()
        return self


def _mark_phases(ax: Any, phases: Sequence[str]) -> None:
    """Draw a line where another phase begins, with its name."""
    for at in range(1, len(phases)):
        if phases[at] != phases[at - 1]:
            ax.axvline(at - 0.5, color="0.6", linewidth=0.8, linestyle=":")
            ax.annotate(
                phases[at], (at - 0.5, 1), xycoords=("data", "axes fraction"),
                xytext=(3, -10), textcoords="offset points", fontsize="small", color="0.4",
            )  # fmt: skip


class ClusterMapDisplay:
    """The map of a report: clusters that are alike lie close, documents next to their own.

    Parameters
    ----------
    drawn : Map
    sizes : mapping of int to int
        The documents of each cluster.
    documents : sequence of Text
        Those that are drawn, with their places.

    Attributes
    ----------
    clusters_ : PathCollection
        Their circles, in the order of `sizes`.
    documents_ : PathCollection or None
    texts_ : list of Text
        The words, or the ids, of the largest clusters.
    ax_, figure_ : Axes, Figure
        What it was drawn on.

    Examples
    --------
    >>> from hmrf_dask.report.clusters import in_a_ring
    >>> ClusterMapDisplay(in_a_ring([0, 1]), {0: 3, 1: 2}).sizes
    {0: 3, 1: 2}
    """

    def __init__(
        self, drawn: Map, sizes: Mapping[int, int], documents: Sequence[Text] = ()
    ) -> None:
        self.drawn, self.sizes, self.documents = drawn, dict(sizes), documents

    @classmethod
    def from_estimator(
        cls, estimator: HMRFEstimator, X: Any = None, *, words: Any = None, ax: Any = None
    ) -> Self:
        """Draw the clusters of a fitted estimator.

        Parameters
        ----------
        estimator : estimator of this package
        X : as for `fit`, optional
            The rows that were fitted: a sample of them, 5,000 at most, is drawn as well.
        words : vectoriser, or sequence of str, optional
            What columns are called; see `HMRFKMeans.report`.
        ax : Axes, optional
        """
        check_is_fitted(estimator)
        centroids, named = centroids_of(estimator), estimator._words_of(words)
        if X is None:
            sizes = dict.fromkeys(centroids.ids, 1)
            if (counts := getattr(estimator, "_sizes", None)) is not None:
                sizes = dict(zip(centroids.ids, counts, strict=True))
            return cls(placed(centroids, sizes, named), sizes).plot(ax=ax)
        whole = survey_rows(estimator, estimator._corpus(X, fitting=False)).survey
        sizes = dict.fromkeys(centroids.ids, 0) | sizes_of(whole, {})
        sizes.pop(-1, None)
        drawn = placed(centroids, sizes, named)
        return cls(drawn, sizes, documents_of(whole.sampled, drawn)).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw it on some axes, or on new ones."""
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        ids = list(self.sizes)
        colours = dict(zip(ids, _colours(len(ids)), strict=True))
        self.documents_ = self._documents(colours)
        places = np.array([self.drawn.places[one] for one in ids]).reshape(-1, 2)
        counts = np.array([self.sizes[one] for one in ids], np.float64)
        self.clusters_ = self.ax_.scatter(
            *places.T, s=np.maximum(_LARGEST * counts / max(counts.max(initial=1.0), 1.0), 8.0),
            c=[colours[one] for one in ids], alpha=0.35, edgecolors="0.3", linewidths=0.8,
        )  # fmt: skip
        largest = sorted(ids, key=lambda one: (-self.sizes[one], one))[:_NAMED]
        self.texts_ = [
            self.ax_.text(*self.drawn.places[one], self._name(one), ha="center", fontsize="small")
            for one in largest
        ]
        self.ax_.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])  # as the page has it
        return self

    def _name(self, cluster: int) -> str:
        words = [bar.word for bar in self.drawn.bars.get(cluster, ())[:2]]
        return " ".join(words) or str(cluster)

    def _documents(self, colours: Mapping[int, Any]) -> Any:
        known = [one for one in self.documents if one.cluster in colours]
        if not known:
            return None
        places = np.array([(one.x, one.y) for one in known]) / SIDE
        return self.ax_.scatter(*places.T, s=3, c=[colours[one.cluster] for one in known])


def centroids_of(estimator: HMRFEstimator) -> Centroids:
    """Return the clusters of a fitted estimator."""
    return Centroids(
        estimator.cluster_ids_.tolist(),
        estimator.cluster_centers_,
        estimator.feature_weights_,
        are_directions=estimator._distortion.name == "cosine",
    )


def placed(centroids: Centroids, sizes: Mapping[int, int], words: Words | None) -> Map:
    """Return the map of clusters, with their words where those of columns are known."""
    drawn = map_of(centroids, sizes)
    return drawn if words is None else with_bars(drawn, centroids, sizes, words)


def _colours(number: int) -> list[Any]:
    """Return colours as different as they can be, the same each time."""
    from matplotlib.colors import hsv_to_rgb

    return [hsv_to_rgb((at * 0.381966 % 1.0, 0.75, 0.75)) for at in range(number)]


def _axes(ax: Any) -> Any:
    """Return axes to draw on; without matplotlib say what is missing."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ConfigurationError(
            "a plot must have the package matplotlib, got none that imports; install it: pip "
            "install 'hmrf-dask[plot]'"
        ) from error
    if ax is None:
        return plt.subplots(layout="constrained")[1]
    if not hasattr(ax, "scatter"):
        raise ConfigurationError(f"ax must be axes of matplotlib, got {type(ax).__name__}")
    return ax
