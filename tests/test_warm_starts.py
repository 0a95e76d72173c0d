"""A warm start: the last centroids alone, or next to starts that new answers make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmrf_dask import KMeans
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions import make_distortion
from hmrf_dask.fit.fitting import FitInput, Fitted, fit_corpus
from hmrf_dask.measures.scores import adjusted_rand
from hmrf_dask.tasks.model import Settings
from tests.support.problems import label_pairs, planted_text

ROWS, HIDDEN = planted_text(240, 500, 4, 3, topical_share=0.5)
MUST, CANNOT = label_pairs(HIDDEN, 120, 1)


def centroids_of(labels: NDArray[Any]) -> Any:
    """Return the mean rows of four clusters."""
    return np.stack([np.asarray(ROWS[labels == one].mean(axis=0))[0] for one in range(4)])


# Two classes are one cluster, and a third is in two of them: no step of a fit finds out.
MERGED = np.where(HIDDEN == 1, 0, HIDDEN)
MERGED[np.flatnonzero(HIDDEN == 2)[::2]] = 1
WRONG, RIGHT = centroids_of(MERGED), centroids_of(HIDDEN)


def fit(*, pairs: bool = True, n_partitions: int = 2, **first: Any) -> Fitted:
    """Fit from centroids alone, or from those of the fit before among others."""
    corpus = Corpus.from_rows(ROWS, n_partitions=n_partitions)
    given = Constraints(MUST, CANNOT) if pairs else None
    settings = Settings(4, refine=False, penalty="potts", seed=1)
    return fit_corpus(FitInput(corpus, given, settings, make_distortion("cosine"), **first))


def labels_of(fitted: Fitted) -> NDArray[np.int32]:
    """Return the labels of all rows."""
    return np.concatenate(fitted.flow.compute(fitted.labels()))


@pytest.fixture(params=[5000, 0], ids=["whole", "tournament"])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let candidates run to their ends, or some iterations alone."""
    monkeypatch.setattr("hmrf_dask.fit.candidates.WHOLE_ROWS", request.param)
    monkeypatch.setattr("hmrf_dask.fit.starts.WHOLE_WORK", 10**6 if request.param else 0)


@pytest.mark.usefixtures("pool")
def test_new_answers_have_a_say_where_a_fit_begins() -> None:
    alone, pooled = fit(centroids=WRONG), fit(last=WRONG)
    assert adjusted_rand(labels_of(alone), HIDDEN) < 0.8
    assert adjusted_rand(labels_of(pooled), HIDDEN) > 0.9
    assert pooled.state.energy.total < alone.state.energy.total
    assert "last-centroids" not in pooled.start_reason.split()[0]


@pytest.mark.usefixtures("pool")
def test_where_the_last_centroids_win_the_fit_is_that_from_them_alone() -> None:
    alone, pooled = fit(centroids=RIGHT), fit(last=RIGHT)
    assert pooled.start_reason.startswith("last-centroids 0 has the lowest J")
    assert pooled.state.energy.total <= alone.state.energy.total
    assert labels_of(pooled).tolist() == labels_of(alone).tolist()


def test_without_answers_the_last_centroids_are_the_only_start() -> None:
    alone, pooled = fit(pairs=False, centroids=WRONG), fit(pairs=False, last=WRONG)
    assert pooled.start_reason == ""
    assert pooled.objective_history() == alone.objective_history()


def test_a_warm_pool_is_the_same_for_any_partitioning() -> None:
    fits = [fit(last=WRONG, n_partitions=n) for n in (1, 5)]
    assert len({one.state.energy.total for one in fits}) == 1
    assert labels_of(fits[0]).tolist() == labels_of(fits[1]).tolist()


def test_what_has_no_start_of_answers_begins_with_the_last_centroids() -> None:
    model = KMeans(4, random_state=0)
    model._last = WRONG
    alone = KMeans(4, init=WRONG).fit(ROWS)
    assert model.fit(ROWS).objective_history_.tolist() == alone.objective_history_.tolist()
