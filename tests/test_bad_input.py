"""Bad input: an error says what, which rows or ids, and what to do, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from dask.delayed import delayed

from hmrf_dask import (
    Constraints,
    Corpus,
    HMRFKMeans,
    KMeans,
    MPCKMeans,
    SeededKMeans,
    load,
    load_release,
)
from hmrf_dask.errors import (
    ConfigurationError,
    ConflictError,
    HmrfError,
    HmrfWarning,
    InvalidInputError,
    MemoryPlanError,
    RunDirectoryError,
)
from hmrf_dask.rows.block import RowBlock
from tests.support.long_cases import long
from tests.support.rows_in_forms import FORMS, D, N, good, name_of, unknown

pytestmark = pytest.mark.usefixtures("no_work")

# ---- rows


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_values_that_are_not_finite(form: str, value: float) -> None:
    rows = good()
    rows[7, 2] = rows[9, 1] = rows[9, 2] = value
    shown = f"{name_of(form, 7)}, {name_of(form, 9)}"
    with pytest.raises(
        InvalidInputError,
        match=r"^every value must be finite \(not NaN .*got \d that are not in \d rows, "
        rf"the first with ids {name_of(form, 7)}.*; fix or remove these rows$",
    ) as caught:
        KMeans(2).fit(FORMS[form](rows))
    if form in ("ndarray", "csr"):  # one partition
        assert f"got 3 that are not in 2 rows, the first with ids {shown};" in str(caught.value)


@pytest.mark.parametrize("method", ["predict", "transform", "score"])
@pytest.mark.usefixtures("working")
def test_new_rows_are_checked_too(form: str, method: str) -> None:
    model = KMeans(2, distortion="kl", random_state=0).fit(good())
    for value, words in ((np.nan, "must be finite"), (-1.0, "kl: entries must be >= 0, got -1")):
        rows = good()
        rows[7, 2] = value
        with pytest.raises(InvalidInputError, match=rf"{words}.* {name_of(form, 7)}[,; ]"):
            np.asarray(getattr(model, method)(FORMS[form](rows)))
    with pytest.raises(InvalidInputError, match="X has 4 features, but KMeans is expecting 5"):
        np.asarray(getattr(model, method)(FORMS[form](good()[:, :4])))


@pytest.mark.parametrize("distortion", ["i-divergence", "kl"])
def test_negative_values_for_a_divergence(form: str, distortion: str) -> None:
    rows = good()
    rows[7, 2] = -0.5
    with pytest.raises(
        InvalidInputError,
        match=rf"^{distortion}: entries must be >= 0, got -0\.5 in row {name_of(form, 7)}; "
        r"use counts or frequencies, or another distortion$",
    ):
        HMRFKMeans(2, distortion=distortion).fit(FORMS[form](rows))


def test_zero_rows_for_kl(form: str) -> None:
    rows = good()
    rows[7] = 0.0
    with pytest.raises(
        InvalidInputError,
        match=rf"^kl: rows must have a positive sum, got zeros in row {name_of(form, 7)}; drop",
    ):
        HMRFKMeans(2, distortion="kl").fit(FORMS[form](rows))


@pytest.mark.usefixtures("working")
@pytest.mark.parametrize("distortion", ["cosine", "pearson"])
def test_zero_rows_with_cosine_are_kept_and_counted(form: str, distortion: str) -> None:
    rows = good()
    rows[[3, 7]] = 0.0
    shown = f"{name_of(form, 3)}, {name_of(form, 7)}"
    model = HMRFKMeans(3, distortion=distortion, init=good()[:3], random_state=0)
    with pytest.warns(HmrfWarning) as caught:
        labels = np.asarray(model.fit(FORMS[form](rows), must_link=[(0, 1)]).labels_)
    assert [str(one.message) for one in caught] == [
        f"2 rows are zero and have no direction (rows {shown}): {distortion} keeps them at "
        "distance 1 from every cluster; a text is zero where it has no word that counts"
    ]
    assert caught[0].filename == __file__
    assert labels[[3, 7]].tolist() == [0, 0]  # of equally near clusters the lowest
    assert model.predict(rows)[[3, 7]].tolist() == [0, 0]
    np.testing.assert_array_equal(model.transform(rows)[[3, 7]], 1.0)


@pytest.mark.usefixtures("working")
def test_nothing_but_zero_rows_is_one_cluster_of_them(form: str) -> None:
    with pytest.warns(HmrfWarning, match="^12 rows are zero"):
        model = HMRFKMeans(2, random_state=0).fit(FORMS[form](np.zeros((N, D))))
    assert np.asarray(model.labels_).tolist() == [0] * N
    assert model.objective_ == N


def test_more_clusters_than_rows(form: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^n_samples=12 should be >= n_clusters=13; give more documents"
    ):
        HMRFKMeans(13).fit(FORMS[form](good()))


@pytest.mark.parametrize("n_clusters", [0, -3])
@pytest.mark.parametrize("kind", [HMRFKMeans, MPCKMeans, KMeans])
def test_less_than_one_cluster(form: str, n_clusters: int, kind: type[KMeans]) -> None:
    with pytest.raises(
        ConfigurationError,
        match=rf"^n_clusters must be an integer from 1 to 1000000 or 'auto', got {n_clusters}$",
    ):
        kind(n_clusters).fit(FORMS[form](good()))


def test_no_rows(form: str) -> None:
    with pytest.raises(InvalidInputError, match=r"0 sample\(s\)|n_samples=0 should be >="):
        HMRFKMeans(2).fit(FORMS[form](np.zeros((0, D))))


def test_no_columns(form: str) -> None:
    with pytest.raises(InvalidInputError, match=r"0 feature\(s\) \(shape=\(12, 0\)\) while a min"):
        HMRFKMeans(2).fit(FORMS[form](np.zeros((N, 0))))


def test_one_dimension() -> None:
    for rows in (np.ones(N), da.ones(N), np.ones(N).tolist()):
        with pytest.raises(InvalidInputError, match="Expected 2D array, got 1D array instead"):
            HMRFKMeans(2).fit(rows)
    with pytest.raises(InvalidInputError, match="Found array with dim 3"):
        HMRFKMeans(2).fit(np.ones((3, 3, 3)))


def test_what_is_not_numbers() -> None:
    words = np.array([["a", "b"]] * N, dtype=object)
    with pytest.raises(InvalidInputError, match="could not convert string to float: 'a'"):
        HMRFKMeans(2).fit(words)
    for lazy in (da.from_array(words, chunks=(4, 2)), da.ones((N, 2), dtype=complex)):
        with pytest.raises(InvalidInputError, match="must be of real numbers"):
            HMRFKMeans(2).fit(lazy)
    with pytest.raises(InvalidInputError, match="rows must not be masked, got a masked array"):
        HMRFKMeans(2).fit(np.ma.masked_less(good(), 0.5))
    with pytest.raises(InvalidInputError, match="Expected 2D array, got scalar array"):
        HMRFKMeans(2).fit(None)
    for name in ("U1", "S1", "M8[s]", "m8[s]"):  # which numpy casts to numbers without a word
        with pytest.raises(InvalidInputError, match="rows must be of real numbers, got dtype"):
            HMRFKMeans(2).fit(np.zeros((N, 2), name))
    with pytest.raises(InvalidInputError, match=r"Complex data not supported: [^\n]+$"):
        HMRFKMeans(2).fit(sp.csr_array(np.ones((N, 2), complex)))
    for rows in ({1, 2}, {"a": 1}, (row for row in good())):
        with pytest.raises(InvalidInputError, match="argument must be"):
            HMRFKMeans(2).fit(rows)


def test_masks_are_not_lost_in_silence() -> None:
    def masked(values: Any) -> Any:
        return np.ma.masked_array(values, np.zeros(np.shape(values), bool))

    pairs = [(0, 1)]
    for ask in (
        lambda: KMeans(2).fit(masked(good())),
        lambda: HMRFKMeans(2).fit(good(), must_link=masked(pairs)),
        lambda: HMRFKMeans(2).fit(good(), cannot_link=masked(pairs)),
        lambda: Constraints(pairs, None, must_link_costs=masked([1.0])),
        lambda: SeededKMeans(2).fit(good(), masked([0] * N)),
        lambda: KMeans(2, init=masked(good()[:2])).fit(good()),
    ):
        with pytest.raises(HmrfError, match="masked"):
            ask()


def test_a_wrong_value_is_not_repeated_in_full() -> None:
    with pytest.raises(ConfigurationError, match=r"^init must be .{0,300}$"):
        KMeans(2, init="x" * 100_000).fit(good())


@pytest.mark.parametrize("wrong", [7, b"run", 1.5, ["run"], None])
def test_a_folder_that_is_no_path(wrong: Any) -> None:
    for ask in (load, load_release, lambda path: KMeans(2).fit(good(), run_dir=path or 1)):
        with pytest.raises(ConfigurationError, match="must be a path or a URL, got"):
            ask(wrong)


def test_a_file_of_texts_is_no_rows(tmp_path: Path) -> None:
    (tmp_path / "tickets.csv").write_text("id,text\n1,hello\n")
    with pytest.raises(InvalidInputError, match=r"tickets.csv'; read its texts .*group\(texts\)"):
        KMeans(2).fit(str(tmp_path / "tickets.csv"))


def broken(form: str) -> Any:
    """Return a sparse matrix that scipy has no reason to doubt until a loop follows it."""
    matrix = sp.csr_array(good()).asformat(form)
    if form == "lil":
        matrix.rows[0] = [10**8]
        matrix.data[0] = [1.0]
    elif form == "dok":
        matrix._dict[(0, 10**8)] = 1.0
    elif form == "coo":
        matrix.data = matrix.data[:3]
    elif form == "dia":
        matrix.data = matrix.data[0]
    elif form == "bsr":
        matrix.data = np.ones((len(matrix.indices), 5, 7))
    else:
        matrix.indices = matrix.indices.tolist()
    return matrix


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"])
def test_a_sparse_matrix_that_is_none(form: str) -> None:
    words = f"the numbers of a {form.upper()} matrix must lie within"
    with pytest.raises(InvalidInputError, match=words):
        KMeans(2).fit(broken(form))
    with pytest.raises(ConfigurationError, match=r"^init must be [^\n]+$"):
        KMeans(N, init=broken(form)).fit(good())  # an interpreter that follows it is gone


def test_a_path_without_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match=r"must be a folder with blocks\.json, got '.*rows'"
    ):
        HMRFKMeans(2).fit(tmp_path / "rows")


def test_columns_that_differ_between_partitions() -> None:
    parts = [good(), good()[:, :4]]
    with pytest.raises(
        InvalidInputError,
        match=r"^all partitions must have the same columns, got 5 features in partition 0 but 4 in "
        r"partition 1 .*give all rows the same columns$",
    ):
        HMRFKMeans(2).fit(unknown(parts))
    claimed = [da.from_delayed(delayed(part), shape=(N, D), dtype=float) for part in parts]
    blocks = [delayed(RowBlock.from_array)(part) for part in parts]
    for rows in (da.concatenate(claimed), Corpus.from_delayed(blocks, D, [N, N])):
        with pytest.raises(
            InvalidInputError,
            match=r"^partition 1 must have 12 rows of 5 features, got 12 rows of 4; give all part",
        ):
            HMRFKMeans(2).fit(rows)


def test_ids_given_twice() -> None:
    names = [f"d{number}" for number in range(N)]
    names[9] = names[4] = "d7"
    corpus = Corpus.from_rows(good(), ids=names, n_partitions=3)
    with pytest.raises(
        InvalidInputError, match=r"^document ids must be unique, got some twice: 'd7'; give every"
    ):
        HMRFKMeans(2).fit(corpus)


# ---- pairs


def test_row_numbers_out_of_range(form: str) -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"^pairs must name rows 0 to 11, got -1, 12; check the pairs, or pass Constraints\(",
    ):
        HMRFKMeans(2).fit(FORMS[form](good()), must_link=[(0, 12)], cannot_link=[(3, -1)])


def test_unknown_ids(form: str) -> None:
    rows = FORMS[form](good())
    words = (
        r"^pairs must name documents of the corpus, got 2 unknown ids: 'd12', 'x'; check the ids"
        if form == "corpus"
        else r"^pairs name documents by id, got 'd0', 'd12', 'd3', 'x', but the corpus has no ids; "
    )
    with pytest.raises(InvalidInputError, match=words):
        HMRFKMeans(2).fit(rows, must_link=[("d0", "d12")], cannot_link=[("x", "d3")])


def test_row_numbers_as_text(form: str) -> None:
    words = "2 unknown ids: '0', '1'" if form == "corpus" else "'0', '1', but the corpus has no ids"
    with pytest.raises(InvalidInputError, match=words):
        HMRFKMeans(2).fit(FORMS[form](good()), must_link=[("0", "1")])


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(0, 1), (3, 3)], r"two different documents, got pairs of a document with itself: 3: rem"),
        ([(0, 1, 2)], r"must_link must be an array of pairs of shape \(m, 2\), got shape \(1, 3\)"),
        ([(0, 1), (2,)], r"pairs of shape \(m, 2\), got shape \(2,\)"),
        ([0, 1], r"pairs of shape \(m, 2\), got shape \(2,\)"),
        ([(0, "1")], r"integers only or with strings only, got int, str"),
        (np.array([[0.0, 1.0]]), r"integers or strings, got dtype float64"),
        (np.array([[True, False]]), r"integers or strings, got dtype bool"),
        ([(None, 1)], r"integers only or with strings only, got NoneType, int"),
    ],
)
def test_pairs_that_are_none(form: str, pairs: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        HMRFKMeans(2).fit(FORMS[form](good()), must_link=pairs)


def test_constraints_are_given_alone() -> None:
    pairs = Constraints([(0, 1)])
    for given in ({"cannot_link": pairs}, {"must_link": pairs, "cannot_link": [(0, 2)]}):
        with pytest.raises(InvalidInputError, match="pass it alone, as must_link"):
            HMRFKMeans(2).fit(good(), **given)


def test_contradictions_show_the_shortest_witness(form: str) -> None:
    must = [(0, 1), (1, 2), (2, 3), (0, 5), (5, 3), (7, 8)]
    path = " = ".join(name_of(form, row) for row in (0, 5, 3))
    with pytest.raises(ConflictError, match="must-links and cannot-links must not") as caught:
        HMRFKMeans(2, on_conflict="raise").fit(
            FORMS[form](good()), must_link=must, cannot_link=[(3, 0), (8, 7)]
        )
    said = str(caught.value)
    assert f"got {path} but {name_of(form, 0)} ≠ {name_of(form, 3)}, and 1 more contrad" in said
    assert "set on_conflict to warn" in said
    assert [str(one).removeprefix("d") for one in caught.value.witness] == ["0", "5", "3"]


@pytest.mark.usefixtures("working")
@pytest.mark.parametrize("penalty", ["auto", *long("distance", "potts")])
@pytest.mark.parametrize(
    ("settings", "done"),
    [({}, "kept as pairs that may be broken"), ({"on_conflict": "drop"}, "dropped")],
)
def test_contradictions_are_warned_of(
    form: str, settings: dict[str, Any], done: str, penalty: str
) -> None:
    model = HMRFKMeans(2, penalty=penalty, random_state=0, **settings)
    path = " = ".join(name_of(form, row) for row in (0, 1, 2))
    chain = f"{path} but {name_of(form, 0)} ≠ {name_of(form, 2)}"
    with pytest.warns(HmrfWarning, match=rf"^must-links contradict 1 cannot-link, {done}: {chain}"):
        model.fit(FORMS[form](good()), must_link=[(0, 1), (1, 2)], cannot_link=[(0, 2)])
    assert sum(model.violations_.values()) >= 1


@pytest.mark.usefixtures("working")
def test_contradictions_can_be_kept_without_a_word() -> None:
    pairs: dict[str, Any] = {"must_link": [(0, 1), (1, 2)], "cannot_link": [(0, 2)]}
    with pytest.warns(HmrfWarning, match="contradict"):
        warned = HMRFKMeans(2, random_state=0).fit(good(), **pairs)
    silent = HMRFKMeans(2, on_conflict="keep", random_state=0).fit(good(), **pairs)
    assert silent.objective_history_.tolist() == warned.objective_history_.tolist()


@pytest.mark.parametrize("costs", [[-1.0], [np.inf], [-np.inf]])
def test_costs_of_pairs_that_cannot_be(costs: list[float]) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^must_link_costs must be 0, or from 1e-12 to 1e\+12 .*for pair 0"
    ):
        Constraints([(0, 1)], must_link_costs=costs)


@pytest.mark.parametrize("cost", [-1.0, np.nan, np.inf])
def test_costs_that_cannot_be(form: str, cost: float) -> None:
    with pytest.raises(
        ConfigurationError,
        match=rf"^cannot_link_cost must be 0, or from 1e-12 to 1e\+12, got {cost}$",
    ):
        HMRFKMeans(2, cannot_link_cost=cost).fit(FORMS[form](good()), must_link=[(0, 1)])


# ---- run directories and memory


@pytest.mark.usefixtures("working")
def test_a_run_directory_of_another_configuration(form: str, tmp_path: Path) -> None:
    rows = FORMS[form](good())
    HMRFKMeans(2, random_state=0).fit(rows, run_dir=tmp_path / "run")
    changes: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"n_clusters": 3}, {}, r"config\.settings\.n_clusters: run\.json has 2, asked 3"),
        ({"random_state": 1}, {}, r"config\.settings\.seed: run\.json has 0, asked 1"),
        ({"distortion": "pearson"}, {}, r"config\.distortion: run\.json has 'cosine', asked 'pea"),
        ({"init": good()[:2]}, {}, r"config\.init: run\.json has None, asked '"),
        ({}, {"must_link": [(0, 1)]}, r"config\.constraints: run\.json has None, asked '"),
    ]
    for parameters, pairs, words in changes:
        model = HMRFKMeans(2, random_state=0).set_params(**parameters)
        with pytest.raises(RunDirectoryError, match=rf"must hold the same run, .*{words}"):
            model.fit(rows, run_dir=tmp_path / "run", **pairs)
    with pytest.raises(RunDirectoryError, match=r"same run, .*fingerprint: run\.json has '12-"):
        HMRFKMeans(2, random_state=0).fit(FORMS[form](good() + 1.0), run_dir=tmp_path / "run")


def test_a_folder_of_something_else_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunDirectoryError, match=r"must be new, empty or hold a run, .*thesis\.tex"):
        HMRFKMeans(2, random_state=0).fit(good(), run_dir=tmp_path)


def test_a_plan_that_needs_more_memory_than_there_is() -> None:
    wide = sp.csr_array((np.ones(N), (np.arange(N), np.arange(N))), shape=(N, 2**31 - 2))
    lazy = da.from_delayed(delayed(wide), shape=wide.shape, meta=sp.csr_array((0, 2**31 - 2)))
    for rows in (wide, lazy, Corpus.from_rows(wide)):
        with pytest.raises(
            MemoryPlanError,
            match=r"^a task must fit the memory there is, .* MiB \(.*\), but an E-step task needs "
            r"8 centroids of 2147483646 features and their table 655,360\.0 MiB.*; use smaller",
        ):
            HMRFKMeans(8).fit(rows)


def test_a_number_of_thousands_of_digits_has_no_text() -> None:
    with pytest.raises(ConfigurationError, match="got a number of thousands of digits"):
        HMRFKMeans(10**5000).fit(good())


# ---- numbers out of range, matrices whose numbers leave their shape


@pytest.mark.parametrize("value", [True, np.True_, 10**30, 2.0, np.nan, "3", [3], -1])
@pytest.mark.parametrize("name", ["n_clusters", "n_init", "max_iter", "random_state"])
def test_a_whole_number_is_one_in_its_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name} must be an integer from"):
        HMRFKMeans(**{"n_clusters": 2, name: value}).fit(good())


@pytest.mark.parametrize("value", [True, 1e308, 1e-300, np.inf, np.nan, "3", -1, 10**400])
def test_a_cost_is_one_in_its_range(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^must_link_cost must be 0, or from 1e-12"):
        HMRFKMeans(2, must_link_cost=value).fit(good(), must_link=[(0, 1)])
    if value != value:
        return  # of a pair it means the estimator's cost
    with pytest.raises(InvalidInputError, match=r"^must_link_costs must be"):
        Constraints([(0, 1)], must_link_costs=[value])


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "coo"])
@pytest.mark.parametrize("fault", ["beyond", "below zero", "pointers fall", "pointers beyond"])
@pytest.mark.parametrize("fit", [KMeans(2).fit, Corpus.from_rows])
def test_numbers_that_leave_a_matrix(kind: str, fault: str, fit: Any) -> None:
    matrix = sp.random_array((12, 12), density=0.5, format=kind, rng=0)
    if kind == "coo":
        if fault.startswith("pointers"):
            return
        matrix.coords[1][3] = 99 if fault == "beyond" else -7
    elif fault.startswith("pointers"):
        matrix.indptr[2 if fault == "pointers fall" else -1] = 2**30
    else:
        matrix.indices[3] = 99 if fault == "beyond" else -7
    with pytest.raises(InvalidInputError, match=rf"numbers of a {kind.upper()} matrix must lie"):
        fit(matrix)


def test_true_among_classes_is_no_class() -> None:
    with pytest.raises(InvalidInputError, match="got true or false"):
        SeededKMeans(2).fit(good(), [True, 0, *[-1] * (N - 2)])


@pytest.mark.parametrize("texts", [["a text", "another"], np.array(["a", "b"]), ("a", "b")])
def test_texts_in_the_place_of_rows_are_told_where_they_belong(texts: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"got texts; give these to hmrf_dask\.group"):
        HMRFKMeans(2).fit(texts)


def test_classes_that_are_words_are_to_be_numbered() -> None:
    with pytest.raises(InvalidInputError, match=r"number them, .* LabelEncoder"):
        SeededKMeans(2).fit(np.eye(3), ["a", "b", "c"])
