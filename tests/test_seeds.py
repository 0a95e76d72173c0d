"""Seeds: the paper's loops row by row, seeds of every form, those that are held, and bad ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from hmrf_dask import ConstrainedKMeans, Constraints, Corpus, KMeans, SeededKMeans, load
from hmrf_dask.errors import ConfigurationError, ConflictError, InvalidInputError
from hmrf_dask.fit import fitting
from tests import naive
from tests.naive_family import seed_centroids, seeded_kmeans
from tests.support.family_fits import blobs, digest_of, falls, some_labels, text_corpus
from tests.support.own_distortions import Hellinger

KINDS = (SeededKMeans, ConstrainedKMeans)
PLAIN = ("cosine", "euclidean", "pearson")  # without a warm-up, which the plain loops have not


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Give the first centroids of the fits to come."""
    found: list[Any] = []
    keep = fitting.seeded_centroids

    def noted(*arguments: Any) -> Any:
        found.append(keep(*arguments))
        return found[-1]

    monkeypatch.setattr(fitting, "seeded_centroids", noted)
    return found


# ---- against plain loops


@pytest.mark.parametrize("noise", [0.0, 0.4])
@pytest.mark.parametrize("distortion", PLAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_is_the_papers(kind: Any, distortion: str, noise: float) -> None:
    rows, hidden = blobs(spread=0.7, seed=1)
    y = some_labels(hidden, 0.3)
    wrong = (np.random.default_rng(2).random(len(y)) < noise) & (y >= 0)
    y = np.where(wrong, (y + 1) % 3, y)
    model = kind(3, distortion=distortion, refine=False, random_state=0).fit(rows, y)
    plain = naive.Model(rows.astype(np.float64), distortion)
    classes = {int(row): int(y[row]) for row in np.flatnonzero(y >= 0)}
    labels, objective = seeded_kmeans(plain, classes, 3, held=kind is ConstrainedKMeans)
    np.testing.assert_array_equal(model.labels_, labels)
    assert model.objective_ == pytest.approx(objective, rel=1e-9)
    assert model.converged_
    assert falls(model.objective_history_)


@pytest.mark.parametrize("distortion", [*PLAIN, "kl"])
def test_first_centroids_are_those_of_the_seeds(distortion: str, first: list[Any]) -> None:
    rows, _ = blobs(width=8)
    rng = np.random.default_rng(0)
    soft = rng.integers(0, 6, (len(rows), 3)) / 16.0
    soft[:, 0] = 1.0 - soft[:, 1:].sum(axis=1)
    soft[rng.random(len(rows)) < 0.5] = 0.0
    SeededKMeans(3, distortion=distortion, random_state=0, max_iter=1).fit(rows, soft)
    seeds = {
        int(row): {h: float(soft[row, h]) for h in range(3)}
        for row in np.flatnonzero(soft.any(axis=1))
    }
    alpha = 16.0 if distortion == "kl" else 0.0  # the warm-up begins there
    plain = naive.Model(rows.astype(np.float64), distortion, alpha=alpha)
    wanted = seed_centroids(plain, seeds, 3)
    if distortion in ("cosine", "pearson"):
        wanted = wanted / np.linalg.norm(wanted, axis=1)[:, None]
    np.testing.assert_allclose(first[0], wanted, rtol=1e-6, atol=1e-9)


def test_certain_soft_seeds_are_the_same_as_labels() -> None:
    rows, hidden = blobs()
    y = some_labels(hidden, 0.3)
    soft = np.eye(4)[y][:, :3]  # row -1 of the unit matrix has its one beyond
    found = {digest_of(SeededKMeans(3, random_state=0).fit(rows, one)) for one in (y, soft)}
    assert len(found) == 1


def test_a_doubtful_seed_pulls_less(first: list[Any]) -> None:
    rows = np.eye(3)
    for share in (0.5, 0.75):
        soft = np.array([[1.0, 0.0], [1.0 - share, share], [0.0, 1.0]])
        SeededKMeans(2, distortion="euclidean", random_state=0).fit(rows, soft)
    np.testing.assert_allclose(first[0], [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], rtol=1e-4)
    np.testing.assert_allclose(first[1], [[4 / 5, 1 / 5, 0], [0, 3 / 7, 4 / 7]], rtol=1e-4)


# ---- seeds that are held


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("distortion", PLAIN)
def test_held_seeds_never_move(distortion: str, refine: bool) -> None:
    rows, hidden = blobs(spread=0.6, seed=3)
    wrong = np.where(np.arange(20) % 4 == 0, (hidden[:20] + 1) % 3, hidden[:20])
    y = np.concatenate([wrong, np.full(40, -1)])
    settings = {"distortion": distortion, "refine": refine, "random_state": 0}
    held = ConstrainedKMeans(3, **settings).fit(rows, y)
    np.testing.assert_array_equal(held.labels_[:20], y[:20])
    assert falls(held.objective_history_)
    free = SeededKMeans(3, **settings).fit(rows, y)
    assert (free.labels_[:20] != y[:20]).any()


def test_a_held_seed_does_not_fill_an_empty_cluster() -> None:
    rows = np.array([[0.0], [0.0], [0.1], [0.1], [9.0]])
    y = np.array([0, 0, -1, -1, 0])  # the farthest row is held
    model = ConstrainedKMeans(3, distortion="euclidean", refine=False, random_state=0).fit(rows, y)
    assert (model.labels_[y >= 0] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("refine", [False, True])
def test_all_rows_seeded(kind: Any, refine: bool) -> None:
    rows, hidden = blobs()
    model = kind(3, refine=refine, random_state=0).fit(rows, hidden)
    np.testing.assert_array_equal(model.labels_, hidden)
    assert model.converged_
    # and of new rows only distances decide
    np.testing.assert_array_equal(model.predict(rows), hidden)


# ---- classes without seeds


@pytest.mark.parametrize("fill", ["k-means++", "perturb", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_incomplete_seeding(kind: Any, fill: str, first: list[Any]) -> None:
    rows, hidden = blobs(80, n_classes=4)
    y = np.where(np.isin(hidden, [1, 3]), some_labels(hidden, 0.4), -1)
    model = kind(4, fill=fill, random_state=0).fit(rows, y)
    units = rows / np.linalg.norm(rows, axis=1)[:, None]
    for h in (1, 3):
        total = units[y == h].sum(axis=0, dtype=np.float64)
        np.testing.assert_allclose(first[0][h], total / np.linalg.norm(total), rtol=1e-6)
        assert (np.bincount(model.labels_[y == h], minlength=4).argmax()) == h
    assert np.isfinite(first[0]).all()
    assert len(np.unique(model.labels_)) == 4


def test_rows_of_zeros_make_no_centroid() -> None:
    rows, _ = blobs(30)
    rows[0] = 0.0
    y = np.full(30, -1)
    y[[0, 1, 2]] = [0, 1, 2]
    with pytest.warns(UserWarning, match="rows are zero"):
        model = ConstrainedKMeans(3, random_state=0).fit(rows, y)
    assert np.isfinite(model.cluster_centers_).all()
    assert model.labels_[0] == 0


# ---- seeds as pairs


@pytest.mark.parametrize("kind", KINDS)
def test_must_link_groups_are_seeds(kind: Any) -> None:
    rows, hidden = blobs()
    of = [np.flatnonzero(hidden == h) for h in range(3)]
    y = np.full(len(rows), -1)
    y[of[1][0]] = 0  # classes are the user's, whatever the blobs are called
    must = [(of[1][0], of[1][1]), *zip(of[0][:3], of[0][1:4], strict=True), (of[2][0], of[2][1])]
    model = kind(3, random_state=0).fit(rows, y, must_link=must)
    np.testing.assert_array_equal(model.labels_, np.array([1, 0, 2])[hidden])  # the larger first
    assert model.violations_ == {"must_link": 0, "cannot_link": 0}


def test_pairs_alone_are_seeds_enough() -> None:
    rows, hidden = blobs()
    of = [np.flatnonzero(hidden == h) for h in range(3)]
    must = [(rows_of[0], rows_of[1]) for rows_of in of]
    model = ConstrainedKMeans(3, random_state=0).fit(rows, must_link=must)
    np.testing.assert_array_equal(model.labels_, hidden)


def test_broken_pairs_are_counted_and_cost_nothing() -> None:
    rows, hidden = blobs()
    one, other = np.flatnonzero(hidden == 0)[:2], np.flatnonzero(hidden == 1)[:2]
    y = np.where(np.arange(len(rows)) < 30, hidden, -1)
    y[[*one, *other]] = -1
    pairs = Constraints(cannot_link=[tuple(one)], cannot_link_costs=[7.0])
    for kind in KINDS:
        model = kind(3, random_state=0).fit(rows, y, must_link=pairs)
        assert model.violations_ == {"must_link": 0, "cannot_link": 1}
        assert model.objective_terms_["cannot_link"] == 0.0
        np.testing.assert_array_equal(model.labels_, kind(3, random_state=0).fit(rows, y).labels_)


# ---- forms of y, partitions, threads, resume


def forms() -> dict[str, Callable[[Any], Any]]:
    return {
        "list": lambda y: y.tolist(),
        "int8": lambda y: y.astype(np.int8),
        "whole floats": lambda y: y.astype(float),
        "dask": lambda y: da.from_array(y, chunks=7),
        "soft": lambda y: np.eye(4)[y][:, :3],
        "sparse soft": lambda y: sp.csr_array(np.eye(4)[y][:, :3]),
        "dask soft": lambda y: da.from_array(np.eye(4)[y][:, :3], chunks=(11, 2)),
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_y_means_the_same(kind: Any, form: str) -> None:
    rows, topics, *_ = text_corpus()
    y = some_labels(topics, 0.2)
    wanted = digest_of(kind(3, random_state=0).fit(rows, y))
    assert digest_of(kind(3, random_state=0).fit(rows, forms()[form](y))) == wanted


@pytest.mark.parametrize("name", ["labels", "two classes of three", "labels and pairs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_task_memory_changes_no_label(kind: Any, name: str) -> None:
    rows, topics, must, _ = text_corpus()
    y = some_labels(topics, 0.2)
    y = np.where(y == 1, -1, y) if name == "two classes of three" else y
    pairs = must if name == "labels and pairs" else None
    wanted = kind(3, random_state=0).fit(rows, y, must_link=pairs).labels_
    with dask.config.set({"hmrf.task-memory": "64 KiB"}):
        model = kind(3, random_state=0).fit(rows, y, must_link=pairs)
    np.testing.assert_array_equal(model.labels_, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_directory_of_other_seeds_is_refused(kind: Any, tmp_path: Any) -> None:
    rows, topics, must, _ = text_corpus()
    where = {"must_link": must, "run_dir": tmp_path / "run"}
    model = kind(3, random_state=0).fit(rows, some_labels(topics, 0.1), **where)
    with pytest.raises(OSError, match="seeds"):
        model.fit(rows, some_labels(topics, 0.1, 5), **where)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_comes_back(kind: Any, tmp_path: Any) -> None:
    rows, hidden = blobs()
    model = kind(3, fill="perturb", random_state=0).fit(rows, some_labels(hidden, 0.3))
    model.save(tmp_path)
    other = load(tmp_path)
    assert type(other) is kind
    assert other.get_params() == model.get_params()
    np.testing.assert_array_equal(other.predict(rows), model.predict(rows))


def test_fit_predict_takes_seeds() -> None:
    rows, hidden = blobs()
    labels = SeededKMeans(3, random_state=0).fit_predict(rows, hidden)
    np.testing.assert_array_equal(labels, hidden)


# ---- bad input

BAD: dict[str, tuple[Any, str]] = {
    "a class beyond K": ([0, 1, 3, -1, -1], r"classes from 0 to 2 .*got 3 \(row 2\)"),
    "a negative class": ([0, 1, -2, -1, -1], r"or -1 where unlabelled, got -2 \(row 2\)"),
    "too few labels": ([0, 1, 2, -1], "one entry for each of the 5 rows of X, got 4"),
    "texts": (
        ["a", "b", "c", "", ""],
        "^Unknown label type: y must hold a class from 0 to 2 or -1",
    ),
    "halves": ([0.5, 1, 2, -1, -1], "must hold a class from 0 to 2"),
    "NaN": ([0, 1, 2, np.nan, -1], "must hold a class from 0 to 2"),
    "other columns": (np.full((5, 4), 0.25), r"shape \(n_samples, 3\), got .*\(5, 4\)"),
    "shares of 2": (np.full((5, 3), 2 / 3), "sum to 1.*got the sum 2 .*in row 0"),
    "shares below 0": ([[2.0, -1.0, 0.0], *[[0.0] * 3] * 4], "the lowest -1 in row 0"),
    "nobody": ([-1] * 5, "class of at least one row, got none: label some"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_cannot_be_seeds(kind: Any, name: str) -> None:
    y, words = BAD[name]
    with pytest.raises(InvalidInputError, match=words):
        kind(3).fit(np.eye(5), y)
    if name not in ("texts", "too few labels"):
        with pytest.raises(InvalidInputError, match=words):
            kind(3).fit(np.eye(5), da.from_array(np.asarray(y), chunks=2))


def test_no_seeds_at_all() -> None:
    with pytest.raises(InvalidInputError, match=r"requires y to be passed.*must_link.*KMeans"):
        SeededKMeans(2).fit(np.eye(4))


def test_soft_seeds_cannot_be_held() -> None:
    soft = [[0.5, 0.5], [1, 0], [0, 1], [0, 0]]
    with pytest.raises(InvalidInputError, match=r"must be certain.*SeededKMeans"):
        ConstrainedKMeans(2).fit(np.eye(4), soft)
    with pytest.raises(ConfigurationError, match="built-in distortion, got 'hellinger'"):
        SeededKMeans(2, distortion=Hellinger()).fit(np.eye(4) + 1, soft)


@pytest.mark.parametrize("kind", KINDS)
def test_an_own_distortion_takes_seeds(kind: Any) -> None:
    rows, hidden = blobs(30)
    model = kind(3, distortion=Hellinger(), random_state=0).fit(rows, some_labels(hidden, 0.4))
    np.testing.assert_array_equal(model.labels_, hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_that_contradict_pairs(kind: Any) -> None:
    rows, y = np.eye(5), [0, 1, -1, 0, -1]
    with pytest.raises(InvalidInputError, match=r"rows 0 \(class 0\) and 1 \(class 1\) in one"):
        kind(3).fit(rows, y, must_link=[(0, 2), (2, 1)])
    with pytest.raises(InvalidInputError, match=r"rows [04] and [04] cannot-linked .*of class 0"):
        kind(3).fit(rows, y, must_link=[(3, 4)], cannot_link=[(0, 4)])
    with pytest.raises(ConflictError):
        kind(3).fit(rows, y, must_link=[(2, 4)], cannot_link=[(2, 4)])


def test_a_fill_nobody_knows() -> None:
    with pytest.raises(ConfigurationError, match=r"fill must be one of .*'random', got 'zeros'"):
        SeededKMeans(2, fill="zeros").fit(np.eye(4), [0, 1, -1, -1])


def test_seeds_by_documents_of_a_corpus() -> None:
    rows, hidden = blobs()
    names = [f"d{number}" for number in range(len(rows))]
    corpus = Corpus.from_rows(rows, ids=names, n_partitions=3)
    model = ConstrainedKMeans(3, random_state=0).fit(corpus, hidden, must_link=[("d0", "d3")])
    np.testing.assert_array_equal(model.labels_.compute(), hidden)


def test_without_information_seeds_are_a_start_of_k_means() -> None:
    rows, _ = blobs(spread=0.8)
    model = SeededKMeans(3, random_state=0, refine=False).fit(rows, [0, 1, 2] + [-1] * 57)
    other = KMeans(3, init=rows[:3].astype(float), refine=False, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.labels_, other.labels_)
    assert model.objective_ == other.objective_
