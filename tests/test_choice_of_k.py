"""The choice of K: its criteria against plain loops, their sum, and `n_clusters="auto"`."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone

from hmrf_dask import Constraints, Corpus, HMRFKMeans, KMeans, SeededKMeans, load
from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError
from hmrf_dask.fit.choice_of_k import WEIGHTS, Choice, answers_ask, goes_on, grid
from hmrf_dask.fit.one_k import Trials, cluster, try_out
from hmrf_dask.fit.suggestion import Asked, Span, lay_out_trials, suggest
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.criteria import (
    AnsweredGroups,
    Criteria,
    mean_silhouette,
    n_distinct,
    own_and_next,
    shuffled,
)
from hmrf_dask.tasks.model import Settings
from tests import naive_choice

N_CLASSES = 4


def planted(n_rows: int = 160, seed: int = 0, n_classes: int = N_CLASSES) -> Any:
    """Return sparse rows of classes that have ten words each, and the classes."""
    rng = np.random.default_rng(seed)
    classes = np.arange(n_rows) % n_classes
    words = rng.integers(0, 10, (n_rows, 12)) + 10 * classes[:, None]
    common = rng.integers(0, 20, (n_rows, 6)) + 10 * n_classes
    rows = np.zeros((n_rows, 10 * n_classes + 20), np.float32)
    for columns in (words, common):
        np.add.at(rows, (np.arange(n_rows)[:, None], columns), 1.0)
    return sp.csr_array(rows), classes


def noise(n_rows: int = 200) -> Any:
    """Return rows of words that are drawn one by one, whatever else a row has."""
    rng = np.random.default_rng(1)
    return sp.csr_array((rng.random((n_rows, 60)) < 0.15).astype(np.float32))


def pairs_of(classes: NDArray[Any], n_pairs: int = 60) -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    pairs = np.unique(np.sort(rng.integers(0, len(classes), (n_pairs, 2))), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = classes[pairs[:, 0]] == classes[pairs[:, 1]]
    return pairs[same], pairs[~same]


def chosen(rows: Any, constraints: Any = None, **more: Any) -> Choice:
    corpus = rows if isinstance(rows, Corpus) else Corpus.from_rows(rows)
    asked = Settings(0, seed=0), make_distortion(more.pop("distortion", "cosine"))
    return suggest(Asked(corpus, constraints, *asked, **more))


def trials_of(rows: Any, distortion: str = "cosine") -> Trials:
    asked = Asked(Corpus.from_rows(rows), None, Settings(0, seed=0), make_distortion(distortion))
    flow = DaskFlow()
    trials: Trials = flow.compute([lay_out_trials(flow, asked)[0]])[0]
    return trials


# ---- criteria against plain loops


@pytest.mark.parametrize("form", ["cosine", "euclidean"])
@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), n_clusters=st.integers(2, 5))
def test_a_row_counts_for_no_centroid_of_its_own(form: str, seed: int, n_clusters: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(12, 4))
    labels = np.concatenate([np.arange(n_clusters), rng.integers(0, n_clusters, 12 - n_clusters)])
    distance = getattr(naive_choice, form)
    members = [np.flatnonzero(labels == cluster).tolist() for cluster in range(n_clusters)]
    means = [naive_choice.mean_of(rows, some, form) for some in members]
    distances = np.array([[distance(row, mean) for mean in means] for row in rows])
    found = own_and_next(distances, labels, form)
    expected = naive_choice.own_and_next(rows, labels.tolist(), form)
    np.testing.assert_allclose(np.array(found).T, expected, rtol=1e-6, atol=1e-8)
    assert mean_silhouette(*found) == pytest.approx(naive_choice.silhouette(expected), abs=1e-6)


@settings(max_examples=60)
@given(data=st.data())
def test_answers_that_labels_contradict(data: st.DataObject) -> None:
    ends = st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda pair: pair[0] != pair[1])
    must = data.draw(st.lists(ends, min_size=1, max_size=6))
    hidden = naive_choice.implied(9, must, [])[0]
    different = ends.filter(lambda pair: (min(pair), max(pair)) not in hidden)
    cannot = data.draw(st.lists(different, max_size=6))
    labels = data.draw(st.lists(st.integers(0, 3), min_size=9, max_size=9))
    empty = np.zeros((0, 2), np.int64)
    groups = AnsweredGroups.of(np.arange(9), np.array(must), np.array(cannot or empty))
    found = groups.contradicted(np.array(labels, np.int32), 4)
    assert found == pytest.approx(naive_choice.contradicted(9, must, cannot, labels))


def test_what_one_k_brings() -> None:
    trials, dense = trials_of(planted(60)[0]), planted(60)[0].toarray()
    block = trials.whole.block
    rows, n_clusters = block.to_dense().astype(float), 3
    assert block.n_rows == len(dense)
    found, whole = try_out(trials, n_clusters), cluster(trials.whole, n_clusters)
    energies = [
        sum(
            naive_choice.cosine(row, fit.centroids[label])
            for row, label in zip(sample, fit.labels, strict=True)
        )
        for sample, fit in (
            (rows, whole),
            (trials.shuffled.block.to_dense().astype(float),
             cluster(trials.shuffled, n_clusters, n_starts=1)),
            (rows, cluster(trials.whole, 1)),
        )
    ]  # fmt: skip
    assert found.fall == pytest.approx((energies[1] - energies[0]) / energies[2], rel=1e-5)
    both, shares = [], [_won(rows, whole.labels)]
    for side in (trials.first, ~trials.first):
        sample = trials.whole.block.take(np.flatnonzero(side))
        half = cluster(_sample_of(trials, sample), n_clusters)
        shares.append(_won(rows[side], half.labels))
        nearest = [
            int(np.argmin([naive_choice.cosine(row, mean) for mean in half.centroids]))
            for row in rows
        ]
        both.append(np.where(side, 0, nearest))
        both[-1][side] = half.labels
    assert found.stability == pytest.approx(naive_choice.adjusted_rand(*both))
    assert found.own == pytest.approx(shares[0] / 2 + sum(shares[1:]) / 4)


def _won(rows: NDArray[Any], labels: NDArray[Any]) -> float:
    distances = naive_choice.own_and_next(rows, labels.tolist(), "cosine")
    return float(np.mean([own < other for own, other in distances]))


def _sample_of(trials: Trials, block: RowBlock) -> Any:
    from dataclasses import replace

    return replace(trials.whole, block=block)


@pytest.mark.parametrize("dense", [False, True])
def test_shuffled_rows_have_the_values_of_every_feature(dense: bool) -> None:
    rows = planted(50)[0]
    block = RowBlock.from_array(rows.toarray()) if dense else RowBlock.from_scipy(rows)
    again = shuffled(block, 0)
    for before, after in zip(block.to_dense().T, again.to_dense().T, strict=True):
        assert sorted(before[before > 0]) == sorted(after[after > 0])
    assert (again.to_dense() != block.to_dense()[: again.n_rows]).any()


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=3, max_size=3), min_size=1))
def test_different_rows(rows: list[list[float]]) -> None:
    expected = len(set(map(tuple, rows)))
    assert n_distinct(RowBlock.from_array(np.array(rows, np.float32))) == expected
    assert n_distinct(RowBlock.from_scipy(sp.csr_array(np.array(rows)))) == expected


# ---- what they add up to


def made(own: dict[int, float], stability: float = 0.5) -> Choice:
    tried = [Criteria(k, 0.0, share, 0.0, stability) for k, share in own.items()]
    return Choice(tuple(tried), 100, 0)


def test_how_likely_each_k_is() -> None:
    tried = (Criteria(2, 0.01, 0.9, 0.1, 0.5), Criteria(3, 0.02, 0.95, 0.2, 0.4, 3.0, 1.0))
    choice = Choice(tried, 400, 9)
    odds = [
        math.exp(
            WEIGHTS["fall"] * one.fall * 20
            + sum(WEIGHTS[name] * getattr(one, name) for name in ("own", "silhouette", "stability"))
            - (one.split - one.joined) ** 2
            / (2 * (one.split + one.joined + 1 + (0.2 * (one.split + one.joined)) ** 2))
        )
        for one in tried
    ]
    assert choice.likely == pytest.approx(np.array(odds) / sum(odds))
    assert answers_ask(tried[0]) == 0.0


def test_the_range_is_no_wider_than_half_as_large_again() -> None:
    choice = made({2: 0.80, 3: 0.80, 4: 0.90, 5: 0.90, 6: 0.90, 7: 0.90, 8: 0.8})
    assert (choice.least, choice.largest, choice.n_clusters) == (4, 6, 5)
    assert choice.is_recommended
    assert choice.doubt == "4 to 6 are likely to 75%"


def test_no_recommendation_where_all_are_alike() -> None:
    choice = made(dict.fromkeys(grid(2, 100), 0.9))
    assert not choice.is_recommended
    assert choice.doubt.startswith("no range up to half as large again is likely")


def test_no_recommendation_where_halves_do_not_agree() -> None:
    choice = made({2: 0.8, 3: 0.99, 4: 0.8}, stability=0.1)
    assert choice.share > 0.9
    assert not choice.is_recommended
    assert choice.doubt.startswith("fits of two halves")


def test_the_doubt_names_the_criterion_that_alone_speaks_for_the_range() -> None:
    tried = [Criteria(k, 0.0, 1.0 - 0.02 * k, float(k == 9), 0.5) for k in (2, 3, 9, 12)]
    choice = Choice(tuple(tried), 100, 0)
    assert (choice.least, choice.largest) == (9, 12)
    assert choice.doubt.endswith("the largest that were tried; it would be 2 to 3 without the "
                                 "silhouette")  # fmt: skip


def test_the_doubt_says_where_the_range_ends_with_what_was_tried() -> None:
    assert ", the smallest that were tried" in made({10: 0.99, 12: 0.8, 14: 0.5, 17: 0.5}).doubt
    assert ", the smallest and the largest that were tried" in made({5: 0.9, 6: 0.9}).doubt
    assert "smallest" not in made({2: 0.99, 3: 0.8, 4: 0.5, 5: 0.5}).doubt  # there is none below


def test_larger_k_are_not_tried_where_the_last_ones_are_far_behind() -> None:
    tried = made({2: 0.8, 3: 0.99, 4: 0.8, 5: 0.8, 6: 0.8}).tried
    assert goes_on(tried[:4], 100)
    assert not goes_on(tried, 100)


# ---- the estimators


def test_a_clear_k_is_found() -> None:
    rows, classes = planted()
    model = HMRFKMeans("auto", n_init=2, random_state=0).fit(rows)
    choice = model.choice_of_k_
    assert choice.is_recommended
    assert choice.least <= N_CLASSES <= choice.largest <= 1.5 * choice.least
    assert (model.n_clusters_, choice.n_clusters) == (N_CLASSES, N_CLASSES)
    assert len(model.cluster_centers_) == N_CLASSES
    assert len(set(zip(model.labels_.tolist(), classes.tolist(), strict=True))) == N_CLASSES
    given = HMRFKMeans(N_CLASSES, n_init=2, random_state=0).fit(rows)
    assert given.choice_of_k_ is None
    np.testing.assert_array_equal(model.labels_, given.labels_)


@pytest.mark.parametrize(
    "distortion",
    [
        "euclidean",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("i-divergence", "kl", "pearson")),
    ],
)
def test_other_distortions(distortion: str) -> None:
    choice = chosen(planted(120)[0], distortion=distortion)
    assert choice.least <= N_CLASSES <= choice.largest


def test_dense_rows() -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, 8)) * 4
    rows = means[np.arange(150) % 5] + rng.normal(size=(150, 8))
    choice = chosen(rows, distortion="euclidean")
    assert choice.least <= 5 <= choice.largest


@pytest.mark.long
def test_rows_without_structure_are_fitted_with_a_warning() -> None:
    with pytest.warns(HmrfWarning, match="^n_clusters='auto' took .* is not recommended: "):
        model = HMRFKMeans("auto", n_init=1, random_state=0).fit(noise())
    assert not model.choice_of_k_.is_recommended
    assert model.n_clusters_ == model.choice_of_k_.n_clusters == len(model.cluster_centers_)


def test_answers_move_the_choice() -> None:
    rows, classes = planted(120, n_classes=6)
    halves = classes // 2  # people see three things where words show six
    must, cannot = pairs_of(halves, 200)
    without, answered = chosen(rows), chosen(rows, Constraints(must, cannot))
    assert (without.n_clusters, without.n_answers) == (6, 0)
    assert answered.n_answers == len(must) + len(cannot)
    by_k = {one.n_clusters: one for one in answered.tried}
    assert by_k[6].split > by_k[3].split
    assert answered.likely[[one.n_clusters for one in answered.tried].index(3)] > without.likely[1]


def test_answers_of_one_kind_say_nothing_of_k() -> None:
    rows, classes = planted(80)
    must = pairs_of(classes)[0]
    assert chosen(rows, Constraints(must, None)) == chosen(rows)


def test_the_same_bits_for_any_partitions_order_and_threads() -> None:
    rows, classes = planted(90)
    ids = [f"d{row:03}" for row in range(90)]
    must, cannot = pairs_of(classes)
    names = np.array(ids, object)
    pairs = Constraints(names[must], names[cannot], ids=True)
    expected = chosen(Corpus.from_rows(rows, ids=ids), pairs)
    order = np.random.default_rng(0).permutation(90)
    turned = Corpus.from_rows(rows[order], ids=names[order].tolist(), n_partitions=7)
    for corpus in (Corpus.from_rows(rows, ids=ids, n_partitions=4), turned):
        assert chosen(corpus, pairs) == expected
    with dask.config.set(scheduler="synchronous"):
        assert chosen(turned, pairs) == expected


def test_a_sample_of_many_rows_has_those_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmrf_dask.fit.suggestion.SAMPLE_ROWS", 100)
    rows, classes = planted(400)
    must, cannot = pairs_of(classes, 30)
    choice = chosen(rows, Constraints(must, cannot), span=Span(2, 6))
    assert choice.n_answers == len(must) + len(cannot)
    assert choice.n_rows == 240  # 40 for each of the six
    assert choice.least <= N_CLASSES <= choice.largest


def test_a_run_that_is_done_chooses_the_same(tmp_path: Path) -> None:
    rows = planted(80)[0]
    fits = [
        KMeans("auto", n_init=2, random_state=0).fit(rows, run_dir=tmp_path / "run")
        for _ in range(2)
    ]
    assert fits[0].choice_of_k_ == fits[1].choice_of_k_
    np.testing.assert_array_equal(*(np.asarray(model.labels_) for model in fits))


def test_clones_pickles_and_saved_models(tmp_path: Path) -> None:
    model = KMeans("auto", n_init=2, random_state=0)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["n_clusters"] == "auto"
    model.fit(planted(80)[0])
    assert model.get_params()["n_clusters"] == "auto"
    assert pickle.loads(pickle.dumps(model)).choice_of_k_ == model.choice_of_k_
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.n_clusters, again.n_clusters_) == ("auto", N_CLASSES)
    assert again.choice_of_k_ == model.choice_of_k_
    assert again.choice_of_k_.doubt == model.choice_of_k_.doubt


# ---- what cannot be chosen


@pytest.mark.parametrize(("rows", "n_rows"), [(planted(39)[0], 39), (np.zeros((60, 3)), 0)])
def test_few_rows(rows: Any, n_rows: int) -> None:
    message = f"^K must be chosen by at least 40 rows that are not zero, got {n_rows}; give n_"
    with pytest.raises(InvalidInputError, match=message):
        KMeans("auto", distortion="euclidean").fit(rows)


def test_rows_that_are_all_the_same() -> None:
    message = "at most 1 for 60 rows, 1 of them different, got 2 to begin with; give n_clusters"
    with pytest.raises(InvalidInputError, match=message):
        KMeans("auto").fit(np.ones((60, 3)))


def test_no_more_clusters_than_different_rows_are_tried() -> None:
    rows = np.repeat(np.eye(3), 40, axis=0)
    choice = chosen(rows)
    assert [one.n_clusters for one in choice.tried] == [2, 3]
    assert choice.n_clusters == 3


def test_seeds_and_centroids_have_a_number() -> None:
    rows, classes = planted(60)
    with pytest.raises(ConfigurationError, match=r"^n_clusters must be a number where y gives"):
        SeededKMeans("auto").fit(rows, classes)
    with pytest.raises(ConfigurationError, match=r"^n_clusters must be a number where init is"):
        KMeans("auto", init=rows[:3].toarray()).fit(rows)
    with pytest.raises(ConfigurationError, match=r"1 to 1000000 or 'auto', got 'many'$"):
        KMeans("many").fit(rows)


def test_seeds_of_must_links_need_no_number() -> None:
    rows, classes = planted(120)
    must = [(row, row + N_CLASSES) for row in range(N_CLASSES)]
    model = SeededKMeans("auto", random_state=0).fit(rows, must_link=must)
    assert model.n_clusters_ == N_CLASSES
    assert len(set(zip(model.labels_.tolist(), classes.tolist(), strict=True))) == N_CLASSES
