"""MPCK-Means on iris against the figure two independent implementations agree on: NMI .868.

Here the learned metric is worth that to rows of which nothing is known: those of the half without
pairs, or all rows by nearest centroid. Labels of all rows are far above where all have pairs: 250
pairs of 150 rows tell nearly every class, and none of them is broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from hmrf_dask import MPCKMeans
from hmrf_dask.measures.contingency import contingency
from hmrf_dask.measures.scores import normalized_mutual_info
from pipelines.papers.sets import iris
from pipelines.papers.supervision import Fold, folds, random_pairs
from tests.support.long_cases import long

PEERS, NEAR = 0.868, 0.02
SEEDS = range(10)
ROWS = iris(Path())

pytestmark = pytest.mark.parametrize("n_pairs", [250, *long(500)])


@pytest.fixture(autouse=True)
def synchronous() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def nmi(classes: Any, labels: Any) -> float:
    return float(normalized_mutual_info(contingency(classes, labels)))


def fitted(fold: Fold, n_pairs: int) -> MPCKMeans:
    """Return the peers' diagonal metric with random pairs of the training part."""
    given = random_pairs(fold, n_pairs)
    model = MPCKMeans(3, learn_weights=True, random_state=fold.run)
    return model.fit(ROWS.values, must_link=given.must_link, cannot_link=given.cannot_link)


@pytest.mark.long
def test_rows_of_the_half_without_pairs_are_as_the_peers_have_them(n_pairs: int) -> None:
    found = [
        nmi(fold.classes[fold.test], fitted(fold, n_pairs).labels_[fold.test])
        for seed in SEEDS
        for fold in folds(ROWS.classes, seed, 2)
    ]
    assert np.mean(found) == pytest.approx(PEERS, abs=NEAR)


def test_pairs_of_all_rows_teach_the_metric_and_are_kept(n_pairs: int) -> None:
    every = np.arange(len(ROWS.classes))
    metric, labels = [], []
    for seed in SEEDS:
        model = fitted(Fold(ROWS.classes, every, every, seed, 0), n_pairs)
        metric.append(nmi(ROWS.classes, model.predict(ROWS.values)))
        labels.append(nmi(ROWS.classes, model.labels_))
        assert sum(model.violations_.values()) == 0
        assert model.feature_weights_.argmax() == 3  # the width of petals
    assert np.mean(metric) == pytest.approx(PEERS, abs=NEAR)
    assert np.mean(labels) > 0.95
