"""An own distortion in under 40 lines, as the README shows it: does it keep the promises?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from hmrf_dask import Constraints, Corpus, HMRFKMeans, OwnDistortion
from hmrf_dask.errors import DistortionError, InvalidInputError
from tests.support import own_distortions
from tests.support.own_distortions import Hellinger, histograms


def pairs_of(hidden: np.ndarray, seed: int, n_pairs: int = 40) -> Constraints:
    ends = np.random.default_rng(seed).integers(0, len(hidden), (n_pairs, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    same = hidden[ends[:, 0]] == hidden[ends[:, 1]]
    return Constraints(ends[same], ends[~same])


def penalties(model: HMRFKMeans, rows: np.ndarray, pairs: Constraints) -> float:
    """The closure's violated pairs, by plain loops."""
    n, phi = len(rows), Hellinger()
    group = list(range(n))
    for i, j in pairs.must_link.tolist():
        group = [group[j] if one == group[i] else one for one in group]
    rivals = {frozenset((group[i], group[j])) for i, j in pairs.cannot_link.tolist()}
    total = 0.0
    for i in range(n):
        for j in range(i + 1, n):
            together = model.labels_[i] == model.labels_[j]
            difference = float(phi.pair_distances(rows[[i]], rows[[j]])[0])
            if group[i] == group[j] and not together:
                total += difference
            if frozenset((group[i], group[j])) in rivals and together:
                total += 1.0 - difference
    return total


def test_the_example_has_fewer_than_40_lines() -> None:
    source = Path(own_distortions.__file__).read_text()
    shown = source.split("# example:")[1].split("# end of the example")[0].strip()
    assert shown.count("\n") + 1 < 40


@pytest.mark.parametrize("seed", range(4))
def test_j_falls_and_is_what_the_formula_says(seed: int) -> None:
    rows, hidden = histograms(seed)
    pairs = pairs_of(hidden, seed)
    model = HMRFKMeans(3, distortion=Hellinger(), init=rows[:3] / 12, random_state=seed)
    history = model.fit(rows, must_link=pairs).objective_history_
    assert (np.diff(history) <= 0).all()
    assert history[-1] < history[0]
    assert history[-1] == model.objective_
    own = Hellinger().distance_matrix(rows, model.cluster_centers_)
    distances = own[np.arange(len(rows)), model.labels_].sum()
    expected = distances + penalties(model, rows, pairs)
    assert model.objective_ == pytest.approx(expected, rel=1e-9)


def test_the_centre_minimises_the_distances() -> None:
    rows, _ = histograms(5)
    phi = Hellinger()
    centre = phi.centre(phi.summands(rows).mean(axis=0, keepdims=True))
    best = phi.distance_matrix(rows, centre).sum()
    rng = np.random.default_rng(0)
    for _ in range(50):
        other = centre * rng.uniform(0.8, 1.25, centre.shape)
        assert phi.distance_matrix(rows, other / other.sum()).sum() >= best


@pytest.mark.parametrize("closure", [True, False])
def test_pairs_are_honoured(closure: bool) -> None:
    rows, hidden = histograms(1)
    pairs = pairs_of(hidden, 2, n_pairs=80)
    model = HMRFKMeans(
        3, distortion=Hellinger(), closure=closure, must_link_cost=5.0, cannot_link_cost=5.0,
        random_state=0,
    )  # fmt: skip
    assert sum(model.fit(rows).violations_.values()) == 0
    model.fit(rows, must_link=pairs)
    assert model.violations_ == {"must_link": 0, "cannot_link": 0}


class Sparse(OwnDistortion):
    """Squared Euclidean distance of scipy rows: own code gets sparse rows as they are."""

    def distance_matrix(self, rows, centroids):
        assert sp.issparse(rows)
        squares = np.asarray(rows.multiply(rows).sum(axis=1)).reshape(-1, 1)
        return squares - 2.0 * (rows @ centroids.T) + (centroids**2).sum(axis=1)

    def pair_distances(self, rows, others):
        difference = rows - others
        return np.asarray(difference.multiply(difference).sum(axis=1)).ravel()

    def largest_pair_distance(self, minimum, maximum):
        return float(((maximum - minimum) ** 2).sum())


def test_sparse_rows_reach_own_code_as_they_are() -> None:
    rows, hidden = histograms(2)
    pairs = pairs_of(hidden, 2)
    settings = {"random_state": 0, "refine": False, "learn_weights": False}
    corpus = Corpus.from_rows(sp.csr_array(rows)).with_partitions([0, 7, 7, len(rows)])
    own = HMRFKMeans(3, distortion=Sparse(), **settings).fit(corpus, must_link=pairs)
    built_in = HMRFKMeans(3, distortion="euclidean", **settings).fit(corpus, must_link=pairs)
    np.testing.assert_array_equal(own.labels_.compute(), built_in.labels_.compute())
    assert own.objective_ == pytest.approx(built_in.objective_, rel=1e-9)


def test_an_error_of_own_code_names_the_kind_of_rows() -> None:
    rows = sp.csr_array(histograms(2)[0])
    with pytest.raises(DistortionError, match=r"take rows as csr_array, got .*; correct Hellinger"):
        HMRFKMeans(3, distortion=Hellinger(), random_state=0).fit(rows)


def test_closures_beyond_the_pair_budget_are_refused() -> None:
    n = 6500  # in one must-link group: 21 million pairs
    rows = np.ones((n, 2))
    chain = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    model = HMRFKMeans(2, distortion=Hellinger(), random_state=0)
    with pytest.raises(
        InvalidInputError, match=r"at most 20,000,000 pairs .* set closure to false"
    ):
        model.fit(rows, must_link=chain)


def test_rows_are_predicted_in_any_partitioning() -> None:
    rows, hidden = histograms(3)
    model = HMRFKMeans(3, distortion=Hellinger(), random_state=0)
    model.fit(rows, must_link=pairs_of(hidden, 3))
    corpus = Corpus.from_rows(rows).with_partitions([0, 0, 1, 30, 30, len(rows)])
    np.testing.assert_array_equal(model.predict(corpus).compute(), model.predict(rows))
