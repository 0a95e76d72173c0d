"""The first full metric of a fit of dense rows, learned from rows that answers name.

A = argmin tr(A·W) − ν ln det A + λ tr(A·T) = ν (W + λT)⁻¹: W is the scatter of these rows within
their clusters, T the covariance of all rows. First W is that of must-linked rows; then these rows
alone are clustered under it, with their answers, and W is theirs by label. Rows are fitted as x·F,
A = F Fᵀ, by Euclidean distances; in that space the metric follows the labels (`metric_steps`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.fit.fitting import FitInput, fit_corpus
from hmrf_dask.fit.metric_steps import covariance_of
from hmrf_dask.fit.preparation import rows_of
from hmrf_dask.flow.dataflow import DaskFlow, Dataflow, share_array, tree
from hmrf_dask.kernels.metric import factor_of, vectors_under
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.kernels.sketches import Basis
from hmrf_dask.tasks.metric import (
    Reach,
    farthest_reach,
    in_metric,
    reach_of,
    take_rows,
)
from hmrf_dask.tasks.model import Settings
from hmrf_dask.types import AnyArray, FloatArray, LabelArray

MOST_FEATURES = 256  # W and T are d × d, and F is made in the driver
MOST_ANSWERS = 2_000  # of a kind: the rows that they name are in the driver, and clustered often
ENOUGH = 3  # rows that answers name, for each feature, before "auto" asks for a full metric
FOLDS = 5  # of the answers, each withheld once
CHANCE = 0.01  # of the answers withheld
STARTS = 3  # of the fits of these rows alone
NONE, DIAGONAL, FULL = "none", "diagonal", "full"
OPTIONS = {FULL: (FULL,), "auto": (NONE, DIAGONAL, FULL), "weights": (NONE, DIAGONAL)}
log = logging.getLogger("hmrf_dask")


class Named(NamedTuple):
    """The rows that answers name, in the order of their documents, and the answers about them."""

    rows: FloatArray  # (n, d)
    answers: Constraints  # by their places


def some_of(given: Constraints, must: AnyArray, cannot: AnyArray) -> Constraints:
    """Return some of the answers, by masks or numbers."""
    return Constraints(
        given.must_link[must], given.cannot_link[cannot],
        must_link_costs=given.must_link_costs[must],
        cannot_link_costs=given.cannot_link_costs[cannot],
        must_link_trust=given.must_link_trust[must],
        cannot_link_trust=given.cannot_link_trust[cannot],
        ids=given.by_id,
    )  # fmt: skip


def under_metric(asked: FitInput) -> tuple[FitInput, FloatArray | None]:
    """Return a fit with its rows and first centroids in the space of its metric, and F if any."""
    settings, factor = choose_metric(asked)
    asked = replace(asked, settings=settings)
    if factor is None:
        return asked, None
    first, last = (
        None if centroids is None else vectors_under(centroids, factor)
        for centroids in (asked.centroids, asked.last)
    )
    corpus = asked.corpus.mapped(in_metric, Basis(factor))
    return replace(asked, corpus=corpus, centroids=first, last=last), factor


def choose_metric(asked: FitInput) -> tuple[Settings, FloatArray | None]:
    """Return the settings of the fit, and the factor F of its metric if it has a full one.

    For `metric` "auto" that is full, diagonal (learned weights) or none, whichever keeps most of
    the answers that are withheld from fits of the rows that they name; for "weights" not full.
    """
    corpus, given, settings = asked.corpus, asked.constraints, asked.settings
    optional, plain = settings.metric != FULL, replace(settings, metric="")
    if problem := _problem(corpus, given, optional=optional):
        if optional:
            return plain, None
        raise problem
    assert given is not None
    flow = DaskFlow()
    parts = [flow.lazy(reach_of, block) for block in corpus.blocks]
    reach: Reach = flow.compute([tree(flow, farthest_reach, parts)])[0]
    if not reach.dense:
        if optional:
            return plain, None
        raise InvalidInputError(
            "learn_weights 'full' must go with dense rows, got sparse ones; give an array, or use "
            "learn_weights True"
        )
    named = _gathered(flow, corpus, _drawn(given, settings.seed))
    options = OPTIONS[settings.metric]
    covariance = _covariance(flow, corpus, reach) if FULL in options else np.zeros((0, 0))
    learning = _Learning(named, plain, asked.distortion, covariance)
    option = learning.best(options)
    if option != FULL:
        return replace(plain, learn_weights=option == DIAGONAL), None
    return replace(plain, metric=FULL, learn_weights=False), learning.factor(named.answers)


def _problem(
    corpus: Corpus, given: Constraints | None, *, optional: bool
) -> ConfigurationError | None:
    """Return why there can be no full metric, or for an optional one why it is not worth asking."""
    d, n_named = corpus.n_features, 0 if given is None else len(given.documents)
    if d > MOST_FEATURES:
        return ConfigurationError(
            f"learn_weights 'full' must go with at most {MOST_FEATURES} features, got {d}: it "
            "learns a matrix of them; use learn_weights True, or fewer dimensions"
        )
    if given is None or not len(given.must_nodes):
        return ConfigurationError(
            "learn_weights 'full' must have must-links, from which it learns what to leave out of "
            "account, got none; give some, or use learn_weights True"
        )
    if optional and n_named < ENOUGH * d:
        return ConfigurationError(f"{n_named} rows are too few for {d} features")
    return None


def _drawn(given: Constraints, seed: int) -> Constraints:
    """Return as many answers of each kind as a metric needs, drawn by keyed numbers."""
    chosen = []
    for number, pairs in enumerate((given.must_nodes, given.cannot_nodes)):
        keys = np.arange(len(pairs), dtype=np.uint64)
        numbers = uniforms(keys, seed, "sample", 1 + number, 0, 0)
        chosen.append(np.sort(np.argsort(numbers, kind="stable")[:MOST_ANSWERS]))
    return some_of(given, chosen[0], chosen[1])


def _gathered(flow: Dataflow, corpus: Corpus, given: Constraints) -> Named:
    """Return the rows that answers name; where rows have ids in their order, else by number."""
    numbers = rows_of(flow, corpus, given)
    offsets = np.asarray(corpus.offsets)
    homes = np.searchsorted(offsets, numbers, side="right") - 1
    places = [np.flatnonzero(homes == home) for home in np.unique(homes)]
    tasks = [
        flow.lazy(
            take_rows, corpus.blocks[homes[some[0]]],
            share_array(flow, numbers[some] - offsets[homes[some[0]]]),
        )
        for some in places
    ]  # fmt: skip
    rows = np.empty((len(numbers), corpus.n_features))
    for some, found in zip(places, flow.compute(tasks), strict=True):
        rows[some] = found
    answers = Constraints(
        given.must_nodes, given.cannot_nodes,
        must_link_costs=given.must_link_costs, cannot_link_costs=given.cannot_link_costs,
        must_link_trust=given.must_link_trust, cannot_link_trust=given.cannot_link_trust,
    )  # fmt: skip
    return Named(rows, answers)


def _covariance(flow: Dataflow, corpus: Corpus, reach: Reach) -> FloatArray:
    """Return the covariance T of all rows, (d, d), 0 where it is rounding."""
    covariance, varies = covariance_of(flow, corpus, reach.largest)
    covariance[~varies], covariance[:, ~varies] = 0.0, 0.0
    return covariance


class _Learning(NamedTuple):
    """What a metric is learned with: the rows that answers name, and the covariance of all."""

    named: Named
    settings: Settings
    distortion: Distortion
    covariance: FloatArray

    def factor(self, answers: Constraints) -> FloatArray:
        """Return F of the metric that some of the answers ask for."""
        first = self._factor_within(*_of_pairs(self.named.rows, answers.must_link))
        labels = self._labels(vectors_under(self.named.rows, first), answers, learning=False)
        return self._factor_within(*_of_clusters(self.named.rows, labels))

    def _factor_within(self, scatter: FloatArray, freedom: int) -> FloatArray:
        """Return F for a scatter of so many degrees of freedom, λ = d rows of the whole added."""
        strength = len(self.covariance)
        return factor_of((scatter + strength * self.covariance) / (freedom + strength))

    def _labels(self, rows: FloatArray, answers: Constraints, *, learning: bool) -> LabelArray:
        """Return the labels of a fit of these rows alone."""
        settings = replace(
            self.settings, n_clusters=min(len(rows), self.settings.n_clusters),
            n_init=min(STARTS, self.settings.n_init), learn_weights=learning,
            init="auto", on_conflict="keep", outliers=None,
        )  # fmt: skip
        corpus = Corpus.from_rows(rows.astype(np.float32), n_partitions=1)
        fitted = fit_corpus(FitInput(corpus, answers, settings, self.distortion))
        labels: Sequence[LabelArray] = fitted.flow.compute(fitted.labels())
        fitted.run.remove()
        return np.concatenate(labels)

    def best(self, options: Sequence[str]) -> str:
        """Return the kind of metric that keeps most of the answers that are withheld.

        Answers that follow from others tell little, so a full metric, which has the largest gain,
        may be behind by as much as chance; learned weights, which may lose, must be ahead.
        """
        if options == (FULL,):
            return FULL
        must, cannot = self.named.answers.must_link, self.named.answers.cannot_link
        keys = np.arange(len(must) + len(cannot), dtype=np.uint64)
        folds = (FOLDS * uniforms(keys, self.settings.seed, "fold", 1, 0, 0)).astype(np.int64)
        kept = dict.fromkeys(options, 0.0)
        for fold in range(FOLDS):
            withheld = folds[: len(must)] == fold, folds[len(must) :] == fold
            answers = some_of(self.named.answers, ~withheld[0], ~withheld[1])
            for option in kept:
                labels = self._fitted(option, answers)
                kept[option] += _kept(labels, must[withheld[0]], cannot[withheld[1]])
        best = DIAGONAL if kept[DIAGONAL] > kept[NONE] else NONE
        if FULL in kept and kept[FULL] >= kept[best] - CHANCE * FOLDS:
            best = FULL
        shares = ", ".join(f"{option} {share / FOLDS:.3f}" for option, share in kept.items())
        log.info("withheld answers kept, by metric: %s; it is %s", shares, best)
        return best

    def _fitted(self, option: str, answers: Constraints) -> LabelArray:
        rows = self.named.rows
        if option == FULL and len(answers.must_link):
            rows = vectors_under(rows, self.factor(answers))
        return self._labels(rows, answers, learning=option == DIAGONAL)


def _kept(labels: LabelArray, must: LabelArray, cannot: LabelArray) -> float:
    """Return the mean of the shares of both kinds of pairs that labels keep."""
    together = labels[must[:, 0]] == labels[must[:, 1]]
    separated = labels[cannot[:, 0]] != labels[cannot[:, 1]]
    return float(np.mean([kind.mean() for kind in (together, separated) if len(kind)] or [0.0]))


def _of_pairs(rows: FloatArray, must: LabelArray) -> tuple[FloatArray, int]:
    """Return the scatter of must-linked rows about the middle of each pair."""
    gaps = rows[must[:, 0]] - rows[must[:, 1]]
    return 0.5 * np.einsum("ni,nj->ij", gaps, gaps), len(must)


def _of_clusters(rows: FloatArray, labels: LabelArray) -> tuple[FloatArray, int]:
    """Return the scatter of rows within their clusters, and its degrees of freedom."""
    used, own = np.unique(labels, return_inverse=True)
    means = np.stack([rows[own == number].mean(axis=0) for number in range(len(used))])
    gaps = rows - means[own]
    return np.einsum("ni,nj->ij", gaps, gaps), len(rows) - len(used)
