"""Own distortions that break the protocol: an error says how, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hmrf_dask import (
    HMRFKMeans,
    OwnDistortion,
)
from hmrf_dask.errors import (
    ConfigurationError,
    DistortionError,
    RunDirectoryError,
)
from tests.support.rows_in_forms import FORMS, N, good

pytestmark = pytest.mark.usefixtures("no_work")


class Manhattan(OwnDistortion):
    """City-block distance with whatever is wrong with it."""

    name = "manhattan"

    def __init__(self, **wrong: Callable[..., Any]) -> None:
        self._wrong = wrong

    def _given(self, name: str, right: Any, *given: Any) -> Any:
        return self._wrong[name](right, *given) if name in self._wrong else right

    def distance_matrix(self, rows: Any, centroids: Any) -> Any:
        rows = rows.toarray() if sp.issparse(rows) else rows
        right = np.abs(rows[:, None, :] - centroids).sum(axis=2)
        return self._given("distance_matrix", right, rows)

    def pair_distances(self, rows: Any, others: Any) -> Any:
        right = np.asarray(abs(rows - others).sum(axis=1))
        return self._given("pair_distances", right, rows)

    def largest_pair_distance(self, minimum: Any, maximum: Any) -> Any:
        return self._given("largest_pair_distance", (maximum - minimum).sum())

    def summands(self, rows: Any) -> Any:
        return self._given("summands", rows)

    def centre(self, means: Any) -> Any:
        return self._given("centre", means)


def first_column(rows: Any) -> np.ndarray:
    return np.asarray(rows.toarray() if sp.issparse(rows) else rows)[:, 0]


BROKEN: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "matrix of another shape": (
        {"distance_matrix": lambda right, rows: right.T},
        r"distance_matrix must return finite numbers of shape \(\d, 2\), got shape \(2, \d\)",
    ),
    "matrix with NaN": (
        {"distance_matrix": lambda right, rows: right * np.nan},
        r"distance_matrix must return finite numbers .* with NaN or infinity",
    ),
    "no matrix": (
        {"distance_matrix": lambda right, rows: None},
        r"distance_matrix must return finite numbers of shape \(\d, 2\), got shape \(\)",
    ),
    "text": (
        {"distance_matrix": lambda right, rows: "far"},
        r"distance_matrix must return a numpy array, got str",
    ),
    "rows that look at each other": (
        {"distance_matrix": lambda right, rows: right - right.mean()},
        r"distance_matrix must give a row the same numbers whatever rows come with it, got ",
    ),
    "pairs of another shape": (
        {"pair_distances": lambda right, rows: right[:, None]},
        r"pair_distances must return finite numbers of shape \(\d,\), got shape \(\d, 1\)",
    ),
    "pairs with infinity": (
        {"pair_distances": lambda right, rows: right + np.inf},
        r"pair_distances must return finite numbers .* with NaN or infinity",
    ),
    "asymmetric": (
        {"pair_distances": lambda right, rows: right + first_column(rows)},
        r"pair_distances must be symmetric, got \S+ for \(x, y\) and \S+ for \(y, x\)",
    ),
    "above the maximum": (
        {"largest_pair_distance": lambda right: right / 100},
        r"pair_distances must lie between 0 and largest_pair_distance = \S+, got \S+ to \S+",
    ),
    "negative": (
        {"pair_distances": lambda right, rows: -right},
        r"pair_distances must lie between 0 and largest_pair_distance = \S+, got -\S+ to",
    ),
    "negative maximum": (
        {"largest_pair_distance": lambda right: -right},
        r"largest_pair_distance must be >= 0, got -",
    ),
    "maximum of another shape": (
        {"largest_pair_distance": lambda right: [right, right]},
        r"largest_pair_distance must return finite numbers of shape \(\), got shape \(2,\)",
    ),
    "summands of another shape": (
        {"summands": lambda right: right[:, :3]},
        r"summands must return an array or sparse array of shape \(\d, 5\), got \w+ of shape",
    ),
    "no summands": (
        {"summands": lambda right: 3.0},
        r"summands must return an array or sparse array of shape \(\d, 5\), got float",
    ),
    "summands with NaN": (
        {"summands": lambda right: right * np.nan},
        r"summands must return finite numbers, got NaN or infinity",
    ),
    "centres of another shape": (
        {"centre": lambda right: right[:, :2]},
        r"centre must return finite numbers of shape \(1, 5\), got shape \(1, 2\)",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_own_distortion_that_breaks_the_protocol(form: str, kind: str) -> None:
    wrong, words = BROKEN[kind]
    with pytest.raises(DistortionError, match=f"^manhattan: {words}.*; correct Manhattan$"):
        HMRFKMeans(2, distortion=Manhattan(**wrong)).fit(FORMS[form](good()), must_link=[(0, 1)])


@pytest.mark.usefixtures("working")
def test_an_own_distortion_that_keeps_it(form: str) -> None:
    model = HMRFKMeans(2, distortion=Manhattan(), random_state=0)
    assert len(np.asarray(model.fit(FORMS[form](good()), must_link=[(0, 1)]).labels_)) == N


def test_own_distortions_derive_from_ours() -> None:
    class Stranger:
        def distance_matrix(self, rows: Any, centroids: Any) -> Any:
            return rows

    for given in (Stranger(), Stranger, Manhattan, 3):
        with pytest.raises(
            ConfigurationError,
            match=r"own distortion must be an object of a class that derives from hmrf_dask\.dist",
        ):
            HMRFKMeans(2, distortion=given).fit(good())  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ConfigurationError, match=r"distortion must be one of .*, got 'cosinus'"):
        HMRFKMeans(2, distortion="cosinus").fit(good())
    with pytest.raises(ConfigurationError, match="learn_weights must be 'auto' or False for the d"):
        HMRFKMeans(2, distortion=Manhattan(), learn_weights=True).fit(good())


class Power(Manhattan):
    """A distortion with a parameter of its own."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power


@pytest.mark.usefixtures("working")
def test_a_run_directory_of_another_own_distortion(tmp_path: Path) -> None:
    model = HMRFKMeans(2, distortion=Power(1.0), random_state=0)
    model.fit(good(), run_dir=tmp_path / "run")
    model.fit(good(), run_dir=tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"config\.distortion: .*power=1\.0.*power=2\.0"):
        model.set_params(distortion=Power(2.0)).fit(good(), run_dir=tmp_path / "run")
