"""What a user of the estimators sees: any form of rows, every parameter, every attribute."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from dask.delayed import delayed

from hmrf_dask import Constraints, Corpus, HMRFKMeans, KMeans, MPCKMeans
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from tests.support.family_fits import counts, pairs_of
from tests.support.long_cases import long
from tests.support.problems import DISTORTIONS, label_pairs, planted_text

LEARNING = {"euclidean", "i-divergence", "kl"}  # what "auto" means


def wide(matrix: Any) -> Any:
    """Return a CSR matrix with int64 feature numbers and row pointers."""
    csr = sp.csr_array(matrix, dtype=float)
    csr.indices, csr.indptr = csr.indices.astype(np.int64), csr.indptr.astype(np.int64)
    return csr


def in_chunks(rows: np.ndarray, make: Callable[[np.ndarray], Any], known: bool) -> Any:
    """Return a dask array of four chunks, one of them empty."""
    parts = [make(rows[start:stop]) for start, stop in ((0, 7), (7, 7), (7, 50), (50, len(rows)))]
    arrays = [
        da.from_delayed(
            delayed(part, traverse=False),
            shape=(part.shape[0] if known else np.nan, rows.shape[1]),
            meta=make(np.zeros((0, rows.shape[1]))),
        )
        for part in parts
    ]
    return da.concatenate(arrays, allow_unknown_chunksizes=not known)


MEMORY: dict[str, Callable[[np.ndarray], Any]] = {
    "csr_matrix": sp.csr_matrix,
    "csr_array": sp.csr_array,
    "csc": sp.csc_array,
    "coo": sp.coo_matrix,
    "lil": sp.lil_array,
    "dok": sp.dok_array,
    "int64 indices": wide,
    "sparse float32": lambda rows: sp.csr_array(rows.astype(np.float32)),
    "integers": lambda rows: rows,
    "uint8": lambda rows: rows.astype(np.uint8),
    "float32": lambda rows: rows.astype(np.float32),
    "Fortran": lambda rows: np.asfortranarray(rows.astype(float)),
    "read-only": lambda rows: np.broadcast_to(rows[None].astype(float), (1, *rows.shape))[0],
    "list": lambda rows: rows.tolist(),
    "objects": lambda rows: rows.astype(object),
}
LAZY: dict[str, Callable[[np.ndarray], Any]] = {
    "dask dense": lambda rows: in_chunks(rows.astype(float), np.asarray, True),
    "dask sparse": lambda rows: in_chunks(rows, sp.csr_matrix, True),
    "dask unknown": lambda rows: in_chunks(rows, sp.csc_array, False),
    "dask columns": lambda rows: da.from_array(rows.astype(float), chunks=(30, 11)),
    "corpus": lambda rows: Corpus.from_rows(sp.csr_array(rows), n_partitions=5),
    "dense corpus": lambda rows: Corpus.from_rows(rows, n_partitions=2),
}


@pytest.fixture(scope="module")
def expected() -> HMRFKMeans:
    rows, hidden = counts()
    return HMRFKMeans(3, random_state=0).fit(sp.csr_array(rows), must_link=pairs_of(hidden, 30))


@pytest.mark.parametrize("form", [*MEMORY, *LAZY])
def test_any_form_of_rows_gives_the_same_labels(form: str, expected: HMRFKMeans) -> None:
    rows, hidden = counts()
    given = (MEMORY | LAZY)[form](rows)
    model = HMRFKMeans(3, random_state=0).fit(given, must_link=pairs_of(hidden, 30))
    assert isinstance(model.labels_, da.Array if form in LAZY else np.ndarray)
    np.testing.assert_array_equal(np.asarray(model.labels_), expected.labels_)
    assert model.labels_.dtype == np.int32
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-12)
    if sp.issparse(given) or form == "corpus":
        assert model.objective_ == expected.objective_
        np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(np.asarray(model.predict(given)), expected.predict(rows))
    np.testing.assert_allclose(np.asarray(model.transform(given)), expected.transform(rows))
    assert model.score(given) == pytest.approx(expected.score(rows), rel=1e-12)


def test_a_corpus_with_ids_and_its_path_give_the_same_labels(tmp_path: Path) -> None:
    rows, hidden = counts()
    names = np.array([f"d{number}" for number in np.random.default_rng(0).permutation(len(rows))])
    by_row = pairs_of(hidden, 30)
    by_id = Constraints(names[by_row.must_link], names[by_row.cannot_link])
    # Starts that are drawn depend on ids, and so does which of several groups is placed first.
    model = HMRFKMeans(3, init=rows[:3], penalty="distance", random_state=0)
    labels = model.fit(rows, must_link=by_row).labels_
    assert len(np.unique(labels)) == 3
    corpus = Corpus.from_rows(sp.csr_array(rows), ids=names, n_partitions=4)
    for pairs in (by_row, by_id):
        np.testing.assert_array_equal(model.fit(corpus, must_link=pairs).labels_, labels)
    corpus.to_parquet(str(tmp_path / "rows"))
    for path in (tmp_path / "rows", str(tmp_path / "rows")):
        stored = model.fit(path, must_link=by_id)
        assert stored.labels_.chunks == (corpus.row_counts,)
        np.testing.assert_array_equal(stored.labels_, labels)
        np.testing.assert_array_equal(stored.predict(path), labels)


def test_lazy_rows_give_lazy_results_of_the_same_chunks() -> None:
    rows, _ = counts()
    ran: list[int] = []

    def seen(chunk: np.ndarray) -> np.ndarray:
        ran.append(len(chunk))
        return chunk

    model = KMeans(3, random_state=0).fit(rows)
    meta = np.zeros((0, 40))
    lazy = da.from_array(rows.astype(float), chunks=((20, 0, 70), 40)).map_blocks(seen, meta=meta)
    ran.clear()
    labels, distances = model.predict(lazy), model.transform(lazy)
    assert ran == []
    assert labels.chunks == ((20, 0, 70),)
    assert distances.chunks == ((20, 0, 70), (3,))
    assert distances.dtype == np.float64
    np.testing.assert_array_equal(labels, model.predict(rows))
    np.testing.assert_array_equal(labels[85:].compute(), model.predict(rows)[85:])
    fitted = model.fit(lazy).labels_
    assert fitted.chunks == ((20, 0, 70),)
    np.testing.assert_array_equal(fitted.map_blocks(np.negative), -fitted.compute())


# ---- files of a run that nobody named


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with dask.config.set({"hmrf.scratch-directory": str(tmp_path)}):
        yield tmp_path


def test_rows_in_memory_leave_no_files(scratch: Path) -> None:
    rows, _ = counts()
    model = KMeans(3, random_state=0).fit(rows)
    assert list(scratch.iterdir()) == []
    assert len(model.labels_) == len(rows)


def test_a_fit_that_fails_leaves_no_files(scratch: Path) -> None:
    rows, _ = counts()
    with pytest.raises(ValueError, match="rows 0 to 89"):
        HMRFKMeans(3, random_state=0).fit(rows, must_link=[(0, 90)])
    assert list(scratch.iterdir()) == []


def test_lazy_labels_keep_their_files_and_only_they(scratch: Path) -> None:
    rows, _ = counts()
    corpus = Corpus.from_rows(rows, n_partitions=2)
    expected = KMeans(3, random_state=0).fit(rows).labels_
    labels = KMeans(3, random_state=0).fit_predict(corpus)  # the estimator itself is gone
    gc.collect()
    part = labels[40:]
    del labels
    np.testing.assert_array_equal(part, expected[40:])
    del part
    gc.collect()
    assert list(scratch.iterdir()) == []


def test_labels_of_a_run_directory_stay(tmp_path: Path) -> None:
    rows, _ = counts()
    corpus = Corpus.from_rows(rows, n_partitions=2)
    first = KMeans(3, random_state=0).fit(corpus, run_dir=tmp_path / "run")
    again = KMeans(3, random_state=0).fit(corpus, run_dir=tmp_path / "run")
    np.testing.assert_array_equal(again.labels_, first.labels_)
    assert again.objective_ == first.objective_
    np.testing.assert_array_equal(again.objective_history_, first.objective_history_)
    del first, again
    gc.collect()
    assert (tmp_path / "run" / "FINAL.json").exists()


# ---- parameters


@pytest.mark.parametrize("learn", ["auto", True, False])
@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_weights_are_learned_where_they_are_asked_for(distortion: str, learn: str | bool) -> None:
    rows, _ = counts()
    model = HMRFKMeans(3, distortion=distortion, learn_weights=learn, random_state=0).fit(rows)
    expected = distortion in LEARNING if learn == "auto" else learn
    assert (model.feature_weights_ != 1.0).any() == expected
    assert model.feature_weights_.shape == (40,)
    assert (model.feature_weights_ > 0).all()
    history = model.objective_history_
    assert (np.diff(history) <= 0).all()
    assert history[-1] == model.objective_ == model.objective_terms_["J"]


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_rows_of_the_fit_are_predicted_as_they_were_labelled(
    distortion: str, make: Callable[[np.ndarray], Any]
) -> None:
    rows, _ = counts(seed=1)
    model = HMRFKMeans(3, distortion=distortion, random_state=0).fit(make(rows))
    assert model.converged_
    np.testing.assert_array_equal(model.predict(make(rows)), model.labels_)
    new, _ = counts(seed=2)
    distances = model.transform(make(new))
    np.testing.assert_array_equal(distances.argmin(axis=1), model.predict(make(new)))
    assert model.score(make(new)) == pytest.approx(-distances.min(axis=1).sum(), rel=1e-12)


def test_new_rows_are_measured_by_the_learned_weights() -> None:
    rows, _ = counts()
    model = MPCKMeans(3, random_state=0).fit(rows)
    a, centroids = model.feature_weights_, model.cluster_centers_
    new = counts(seed=3)[0].astype(float)
    separate = ((new[:, None, :] - centroids) ** 2 * a).sum(axis=2) - np.log(a).sum()
    np.testing.assert_allclose(model.transform(new), separate, rtol=1e-9)


def test_potts_penalties_count_violated_pairs() -> None:
    rows, hidden = counts()
    wrong = pairs_of(np.random.default_rng(5).permutation(hidden), 60)
    settings = {"closure": False, "must_link_cost": 0.25, "cannot_link_cost": 0.5}
    model = HMRFKMeans(3, penalty="potts", random_state=0, **settings)
    labels = model.fit(rows, must_link=wrong).labels_
    must, cannot = labels[wrong.must_link], labels[wrong.cannot_link]
    broken = int((must[:, 0] != must[:, 1]).sum()), int((cannot[:, 0] == cannot[:, 1]).sum())
    assert model.violations_ == {"must_link": broken[0], "cannot_link": broken[1]}
    assert model.objective_terms_["must_link"] == 0.25 * broken[0]
    assert model.objective_terms_["cannot_link"] == 0.5 * broken[1]
    assert min(broken) > 0


def test_a_pair_can_cost_more_than_the_others() -> None:
    rows, hidden = counts()
    separate = [(0, int(np.flatnonzero(hidden != hidden[0])[0]))]
    model = HMRFKMeans(3, must_link_cost=2.0**-6, random_state=0).fit(rows, must_link=separate)
    assert model.violations_["must_link"] == 1
    heavy = Constraints(separate, must_link_costs=[50.0])
    assert model.fit(rows, must_link=heavy).violations_["must_link"] == 0


def test_must_and_cannot_links_can_be_given_separately_or_together() -> None:
    rows, hidden = counts()
    pairs = pairs_of(hidden, 30)
    model = HMRFKMeans(3, random_state=0)
    together = model.fit(rows, must_link=pairs).labels_
    np.testing.assert_array_equal(
        model.fit(rows, must_link=pairs.must_link, cannot_link=pairs.cannot_link).labels_, together
    )
    lists = pairs.must_link.tolist(), pairs.cannot_link.tolist()
    np.testing.assert_array_equal(
        model.fit(rows, must_link=lists[0], cannot_link=lists[1]).labels_, together
    )
    model.fit(rows, must_link=[], cannot_link=np.empty((0, 2), int))
    assert model.violations_ == {"must_link": 0, "cannot_link": 0}


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array, np.ndarray.tolist])
def test_given_centroids_name_the_clusters(distortion: str, make: Callable[..., Any]) -> None:
    rows, hidden = counts()
    means = np.stack([rows[hidden == group].mean(axis=0) for group in (2, 0, 1)])
    model = KMeans(3, distortion=distortion, init=make(means), random_state=0).fit(rows)
    np.testing.assert_array_equal(model.labels_, np.array([1, 2, 0])[hidden])


@pytest.mark.parametrize("init", ["auto", "neighborhoods", "k-means++", "random"])
@pytest.mark.parametrize("fill", ["k-means++", "perturb"])
def test_every_start_ends_somewhere_good(init: str, fill: str) -> None:
    rows, hidden = counts()
    model = HMRFKMeans(3, init=init, fill=fill, random_state=0)
    model.fit(rows, must_link=pairs_of(hidden, 40))
    assert len(np.unique(model.labels_)) == 3
    assert model.violations_ == {"must_link": 0, "cannot_link": 0}


def test_more_starts_never_end_higher() -> None:
    rows, _ = planted_text(200, 300, 5, 0)
    objectives = [
        KMeans(5, n_init=n, refine=False, random_state=1).fit(rows).objective_ for n in (1, 3, 10)
    ]
    assert objectives[0] > objectives[2]
    assert objectives == sorted(objectives, reverse=True)


def test_refinement_begins_where_batches_stop() -> None:
    rows, _ = planted_text(200, 300, 5, 0)
    batch = KMeans(5, refine=False, random_state=1).fit(rows)
    refined = KMeans(5, refine=True, random_state=1).fit(rows)
    assert refined.objective_ < batch.objective_
    assert batch.stop_reason_ == "no label moved"
    automatic = KMeans(5, random_state=1).fit(rows)  # 40 rows a cluster are few
    np.testing.assert_array_equal(automatic.labels_, refined.labels_)


def test_max_iter_is_kept_and_said() -> None:
    rows, _ = planted_text(200, 300, 5, 0)
    model = KMeans(5, init=rows[:5].toarray(), max_iter=1, refine=False).fit(rows)
    assert (model.n_iter_, model.converged_) == (1, False)
    assert "max_iter" in model.stop_reason_
    longer = KMeans(5, init=rows[:5].toarray(), refine=False).fit(rows)
    assert longer.n_iter_ > 1
    assert longer.converged_
    assert longer.objective_ < model.objective_


@pytest.mark.parametrize(("refine", "phase"), [(False, "fit"), (True, "refine")])
@pytest.mark.parametrize("with_pairs", [True, *long(False)])
def test_a_fit_ends_where_its_last_iterations_brought_little(
    refine: bool, phase: str, with_pairs: bool, tmp_path: Path
) -> None:
    rows, hidden = planted_text(1500, 300, 6, 1, topical_share=0.1)
    must, cannot = label_pairs(hidden, 60, 1) if with_pairs else (None, None)
    models, values = [], []
    for tol in (0, 0.001):
        model = HMRFKMeans(6, init=rows[:6].toarray(), refine=refine, random_state=0, tol=tol)
        folder = tmp_path / f"{tol}"
        models.append(model.fit(rows, must_link=must, cannot_link=cannot, run_dir=folder))
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        iterations = [one for one in events if one["event"] == "iteration"]
        values.append([one["J"] for one in iterations if one["phase"] == phase])
    (whole, short), (all_of_it, part) = models, values
    assert short.stop_reason_ == "the last 5 iterations lowered J by less than 0.001 of it"
    assert short.converged_
    assert whole.stop_reason_.startswith(("no label moved", "neither a row nor a group"))
    if not refine:  # else its refinement begins sooner, too
        assert all_of_it[: len(part)] == part
    gains = -np.subtract(part[5:], part[:-5]) / part[:-5]
    assert (gains[:-1] >= 0.001).all()
    assert gains[-1] < 0.001
    assert short.objective_ >= whole.objective_ or refine


def test_the_seed_is_drawn_once_and_recorded(tmp_path: Path) -> None:
    rows, _ = counts()
    state = np.random.RandomState(0)
    seeds = [KMeans(3, n_init=1, random_state=state).fit(rows).seed_ for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert KMeans(3, n_init=1, random_state=np.uint64(7)).fit(rows).seed_ == 7
    drawn = KMeans(3, n_init=1).fit(rows, run_dir=tmp_path / "run")
    again = KMeans(3, n_init=1).fit(rows, run_dir=os.fspath(tmp_path / "run"))
    assert again.seed_ == drawn.seed_
    named = KMeans(3, n_init=1, random_state=drawn.seed_).fit(rows)
    np.testing.assert_array_equal(named.labels_, drawn.labels_)


def test_costs_of_pairs_are_those_given() -> None:
    rows, hidden = counts()
    pairs = pairs_of(np.random.default_rng(5).permutation(hidden), 20)
    settings = {"closure": False, "on_conflict": "keep", "penalty": "potts", "random_state": 0}
    dear = HMRFKMeans(3, must_link_cost=9.0, cannot_link_cost=9.0, **settings)
    free = HMRFKMeans(3, must_link_cost=0.0, cannot_link_cost=0.0, **settings)
    broken = [sum(model.fit(rows, must_link=pairs).violations_.values()) for model in (dear, free)]
    assert broken[0] < broken[1]
    assert free.objective_ == free.objective_terms_["distortion"]


BAD_PARAMETERS = {
    "n_clusters": [0, -1, 2.0, True, "3", None],
    "distortion": ["cosin", 3, None],
    "learn_weights": ["yes", 1, None],
    "penalty": ["pots", None],
    "must_link_cost": [-1.0, np.nan, np.inf, "1", True, None],
    "cannot_link_cost": [-0.5, np.inf],
    "init": ["k-means", None, 3, [[1.0, 2.0]], np.full((3, 40), np.nan), "given"],
    "fill": ["zeros", None],
    "inference": ["beliefs", True, None],
    "refine": ["yes", 1],
    "weight_update": ["raw"],
    "closure": ["auto", 1, None],
    "on_conflict": ["ignore"],
    "n_init": [0, 1.5, "auto", True],
    "max_iter": [0, -3, None],
    "random_state": [-1, 2**64],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD_PARAMETERS.items() for value in values],
)
def test_values_that_cannot_be_used_are_refused(name: str, value: Any) -> None:
    rows, _ = counts()
    model = HMRFKMeans(3).set_params(**{name: value})
    with pytest.raises(ConfigurationError, match=f"^(an own )?{name} must be .* got "):
        model.fit(rows)


@pytest.mark.parametrize("distortion", ["i-divergence", "kl"])
def test_refinement_without_a_closed_form_is_refused(distortion: str) -> None:
    rows, _ = counts()
    model = HMRFKMeans(3, distortion=distortion, refine=True)
    with pytest.raises(ConfigurationError, match="refine must be 'auto' or False for"):
        model.fit(rows)


def test_k_means_knows_no_neighbourhoods() -> None:
    rows, _ = counts()
    with pytest.raises(ConfigurationError, match="init must be one of 'k-means\\+\\+', 'random'"):
        KMeans(3, init="neighborhoods").fit(rows)
    with pytest.raises(TypeError, match="must_link"):
        KMeans(3).fit(rows, must_link=[(0, 1)])  # type: ignore[call-arg]  # what is tested


def test_given_centroids_stay_the_users() -> None:
    rows = np.random.default_rng(0).random((30, 4))
    init = rows[:3].astype(np.float64)
    before = init.copy()
    for max_iter in (1, 5):
        model = HMRFKMeans(3, init=init, max_iter=max_iter, refine=False).fit(rows)
        assert not np.may_share_memory(model.cluster_centers_, init)
        assert np.array_equal(init, before)


@pytest.mark.parametrize("cost", [1e12, 1e-12])
def test_costs_at_the_ends_of_the_range_leave_sums_sound(cost: float) -> None:
    model = HMRFKMeans(2, distortion="euclidean", penalty="potts", random_state=0)
    model.set_params(must_link_cost=cost, cannot_link_cost=cost)
    rows = np.random.default_rng(0).uniform(0.1, 1.0, (12, 4))
    pairs = [(0, 1), (2, 3)]
    model.fit(rows, must_link=pairs, cannot_link=[(0, 5)])
    assert np.isfinite(model.objective_)


def test_costs_that_leave_no_bits_for_integers_are_refused() -> None:
    model = HMRFKMeans(2, penalty="distance", must_link_cost=1e12, random_state=0)
    rows = np.random.default_rng(0).uniform(0.1, 1.0, (12, 4))
    with pytest.raises(InvalidInputError, match="must leave 14 bits for exact integers"):
        model.fit(rows, must_link=[(0, 1), (2, 3)])


def test_a_subclass_may_make_a_parameter_a_property() -> None:
    class Doubled(HMRFKMeans):
        @property
        def n_clusters(self) -> int:
            return 2 * self._half

        @n_clusters.setter
        def n_clusters(self, value: int) -> None:
            self._half = value // 2

    assert Doubled(6).n_clusters == Doubled().set_params(n_clusters=6).n_clusters == 6
