"""The papers' experiments on tiny sets: folds, what is told, arms, resuming, and the files."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import sklearn.datasets
from click.testing import CliRunner
from sklearn.metrics import mutual_info_score, normalized_mutual_info_score

import hmrf_dask
from hmrf_dask.errors import ConfigurationError, InvalidInputError, RunDirectoryError
from pipelines.papers import (
    costs,
    defaults,
    genes,
    harness,
    icml2002,
    inference,
    kdd2004,
    large,
    peer,
    planted,
    refinement,
    report,
    scale,
    sdm2004,
)
from pipelines.papers.cells import COLUMNS, CellFile, Curves
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Key, Study
from pipelines.papers.sets import Rows, classic400, iris, lsa, news, some_of
from pipelines.papers.supervision import Fold, Given, folds, pairs_of_seeds, random_pairs, seeds

EXPERIMENTS = {
    one.EXPERIMENT.name: one.EXPERIMENT
    for one in (kdd2004, sdm2004, icml2002, defaults, costs, genes, inference)
}
N_ROWS = 96  # a half of them has more than the 1,000 pairs that experiments ask for


def tiny(folder: Path) -> Rows:
    """Return sparse rows of three classes with few words in common."""
    rng = np.random.default_rng(5)
    classes = np.arange(N_ROWS) % 3
    dense = (rng.random((N_ROWS, 30)) < 0.1) * rng.random((N_ROWS, 30))
    for one in range(3):
        dense[classes == one, 10 * one : 10 * one + 10] += rng.random((N_ROWS // 3, 10))
    return Rows(sp.csr_matrix(dense), classes.astype(np.int64))


PLAIN = Arm("plain", parameters={"learn_weights": False, "init": "neighborhoods"})
NONE = Arm("none", "KMeans", {"n_init": 2}, takes="nothing")
STUDY = Study("tiny", tiny, Axis("pairs", (0, 20, 40), (0, 40)), (PLAIN, NONE), random_pairs)


def best(found: Any) -> list[str]:
    """Return the one finding of the tiny experiment."""
    return [f"- plain {found['tiny'].mean('plain', 40):.3f}"]


EXPERIMENT = Experiment(
    "small", "A small experiment", "About it.", (STUDY,), (Figure("Panel", "tiny"),), best, runs=2
)


def run(folder: Path, *, runs: int = 2, quick: bool = False, one: Experiment = EXPERIMENT) -> Any:
    told: list[str] = []
    found = harness.run(
        one, runs=runs, quick=quick, data=Path("/nowhere"), output=folder, say=told.append
    )
    return found, told


def fold_of(classes: Any, run: int = 0, number: int = 0, n_folds: int = 2) -> Fold:
    return folds(np.asarray(classes), run, n_folds)[number]


# ---- folds and what is told


@pytest.mark.parametrize("n_folds", [2, 3, 10])
def test_every_row_is_once_in_a_test_part_and_never_in_both(n_folds: int) -> None:
    for number in range(3):
        found = folds(np.zeros(31, np.int64), number, n_folds)
        assert sorted(np.concatenate([one.test for one in found])) == list(range(31))
        for one in found:
            assert sorted([*one.training, *one.test]) == list(range(31))


def test_runs_have_other_folds() -> None:
    first, second = (fold_of(np.zeros(40), run).training for run in range(2))
    assert set(first) != set(second)


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_pairs_are_of_the_training_part_and_more_hold_the_fewer(wrong: float) -> None:
    classes = np.arange(60) % 3
    fold = fold_of(classes, 1, 1)
    every = [random_pairs(fold, n_pairs, wrong=wrong) for n_pairs in (0, 20, 200)]
    for given, n_pairs in zip(every, (0, 20, 200), strict=True):
        assert len({tuple(pair) for pair in given.pairs.tolist()}) == n_pairs
        assert (given.pairs[:, 0] < given.pairs[:, 1]).all()
        assert set(given.pairs.ravel()) <= set(fold.training)
    for fewer, more in itertools.pairwise(every):
        for kind in ("must_link", "cannot_link"):
            held = {tuple(pair) for pair in getattr(more, kind).tolist()}
            assert {tuple(pair) for pair in getattr(fewer, kind).tolist()} <= held
    most = every[-1]
    same = classes[most.must_link[:, 0]] == classes[most.must_link[:, 1]]
    apart = classes[most.cannot_link[:, 0]] != classes[most.cannot_link[:, 1]]
    share_wrong = 1 - (same.sum() + apart.sum()) / 200
    assert share_wrong == 0 if wrong == 0 else 0.2 < share_wrong < 0.4


def test_pairs_of_the_papers_sets_are_those_of_the_proof() -> None:
    from tests.proofs import news

    classes = np.arange(300) % 3
    for number, (training, test) in enumerate(news.folds(300, 4)):
        fold = fold_of(classes, 4, number)
        assert np.array_equal(fold.training, training)
        assert np.array_equal(fold.test, test)
        must, cannot = news.draw_pairs(training, classes, 4, number, 100)
        given = random_pairs(fold, 100)
        assert list(map(tuple, given.must_link.tolist())) == must
        assert list(map(tuple, given.cannot_link.tolist())) == cannot


def test_more_pairs_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"at most 45, all pairs of 10 rows.*got 46"):
        random_pairs(fold_of(np.zeros(20, np.int64)), 46)


def test_seeds_are_of_the_training_part() -> None:
    classes = np.arange(60) % 4
    fold = fold_of(classes, 2, 1, 10)
    labels = seeds(fold, 0.5).seeds
    assert labels is not None
    seeded = np.flatnonzero(labels >= 0)
    assert len(seeded) == 27
    assert set(seeded) <= set(fold.training)
    assert np.array_equal(labels[seeded], classes[seeded])


def test_wrong_seeds_are_of_another_class_and_as_many_as_asked_for() -> None:
    classes = np.arange(60) % 4
    labels = seeds(fold_of(classes, n_folds=10), 1.0, wrong=0.5).seeds
    assert labels is not None
    seeded = labels >= 0
    assert (labels[seeded] != classes[seeded]).sum() == 27
    assert set(labels[seeded]) == set(range(4))


def test_only_some_categories_have_seeds() -> None:
    classes = np.arange(60) % 4
    fold = fold_of(classes, n_folds=10)
    fewer, more = (seeds(fold, 0.8, n_categories=n_seeded).seeds for n_seeded in (2, 3))
    assert fewer is not None
    assert more is not None
    assert len(set(fewer[fewer >= 0])) == 2
    assert set(fewer[fewer >= 0]) < set(more[more >= 0])


def test_pairs_of_seeds_say_what_the_seeds_say() -> None:
    labels = np.array([0, -1, 1, 0, 2, 1, 0, -1])
    must, cannot = pairs_of_seeds(labels)
    links = sp.coo_matrix((np.ones(len(must)), must.T), shape=(8, 8))
    _, component = sp.csgraph.connected_components(links, directed=False)
    apart = {frozenset(component[list(pair)]) for pair in cannot.tolist()}
    for one, other in itertools.combinations(np.flatnonzero(labels >= 0), 2):
        assert (component[one] == component[other]) == (labels[one] == labels[other])
        if labels[one] != labels[other]:
            assert frozenset((component[one], component[other])) in apart
    assert len(must) + len(cannot) < (labels >= 0).sum() + 3


# ---- arms


class Recorder:
    """An estimator that keeps what it was told and puts all rows into one cluster."""

    told: list[dict[str, Any]]

    def __init__(self, n_clusters: int, **parameters: Any) -> None:
        self.parameters = {"n_clusters": n_clusters, **parameters}

    def fit(self, X: Any, **told: Any) -> Recorder:
        self.told.append({**self.parameters, **told})
        self.labels_ = np.zeros(X.shape[0], np.int32)
        self.objective_ = 1.0
        return self


def test_an_arm_gives_its_estimator_parameters_seed_and_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recorder, "told", [], raising=False)
    monkeypatch.setattr(hmrf_dask, "Recorder", Recorder, raising=False)
    rows = tiny(Path())
    given = seeds(fold_of(rows.classes, n_folds=10), 0.5)
    for arm in (
        Arm("pairs", "Recorder", {"closure": False}, at_x=("must_link_cost",)),
        Arm("seeds", "Recorder", takes="seeds"),
        Arm("nothing", "Recorder", takes="nothing"),
    ):
        arm.fit(rows, given, 0.5, seed=7)
    pairs, labels, nothing = Recorder.told
    assert {"must_link", "cannot_link"} < set(pairs)
    assert pairs["must_link"] is given.must_link
    assert pairs["cannot_link"] is given.cannot_link
    assert (pairs["closure"], pairs["must_link_cost"], pairs["random_state"]) == (False, 0.5, 7)
    assert labels["y"] is given.seeds
    assert nothing == {"n_clusters": 3, "random_state": 7}


def test_the_papers_arms_are_settings_of_one_estimator() -> None:
    for distortion in ("cosine", "kl"):
        arms = {arm.name: arm for arm in kdd2004.arms(distortion)}
        learned, plain, started, none = (arms[name].parameters for name in list(arms)[:4])
        own = {"distortion": distortion, "init": "neighborhoods", "fill": "perturb"}
        for parameters in (learned, plain, started, none):
            assert own.items() <= parameters.items()
            assert parameters["refine"] is False
        assert learned["learn_weights"] is True
        assert learned["weight_update"] == "paper"
        assert plain["learn_weights"] is started["learn_weights"] is none["learn_weights"] is False
        assert started["must_link_cost"] == started["cannot_link_cost"] == 0
        assert "must_link_cost" not in plain
        assert [arm.takes for arm in arms.values()] == ["pairs"] * 3 + ["nothing"] * 2
        assert arms["KMeans, 10 starts"].parameters["n_init"] == 10


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_arm_is_an_estimator_with_these_parameters(name: str) -> None:
    for study in EXPERIMENTS[name].studies:
        assert set(study.axis.quick) <= set(study.axis.values)
        assert len({arm.name for arm in study.arms}) == len(study.arms)
        for arm in study.arms:
            assert arm.estimator in hmrf_dask.__all__
            model = getattr(hmrf_dask, arm.estimator)(3)
            assert {*arm.parameters, *arm.at_x} <= set(model.get_params())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_are_of_studies_and_arms_that_are_there(name: str) -> None:
    experiment = EXPERIMENTS[name]
    studies = {study.name: {arm.name for arm in study.arms} for study in experiment.studies}
    assert len(studies) == len(experiment.studies)
    for figure in experiment.figures:
        assert set(figure.arms) <= studies[figure.study]
    assert {figure.study for figure in experiment.figures} == set(studies)


# ---- cells, resuming, curves


def test_scores_are_those_of_the_test_part_and_of_pairs_nobody_gave() -> None:
    rows = tiny(Path())
    fold = fold_of(rows.classes, 3)
    given = random_pairs(fold, 60)
    model = Recorder(3)
    model.labels_ = np.random.default_rng(0).integers(0, 3, N_ROWS)
    model.objective_ = 2.5
    found = harness.scores(rows, fold, given, model)
    truth, labels = rows.classes[fold.test], model.labels_[fold.test]
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(truth, labels), abs=1e-12)
    assert found["mi"] == pytest.approx(mutual_info_score(truth, labels), abs=1e-12)
    assert found["f"] == pytest.approx(pairwise_f_by_loops(truth, labels, set()), abs=1e-12)
    asked = {tuple(pair) for pair in given.pairs.tolist()}
    whole = pairwise_f_by_loops(rows.classes, model.labels_, asked)
    assert found["f_rest"] == pytest.approx(whole, abs=1e-12)
    agrees = [
        (model.labels_[i] == model.labels_[j]) == (rows.classes[i] == rows.classes[j])
        for i, j in asked
    ]
    assert found["broken"] == agrees.count(False) > 0
    assert found["objective"] == 2.5


def pairwise_f_by_loops(truth: Any, labels: Any, asked: set[Any]) -> float:
    both = classes = clusters = 0
    for i, j in itertools.combinations(range(len(truth)), 2):
        if (i, j) not in asked:
            both += truth[i] == truth[j] and labels[i] == labels[j]
            classes += truth[i] == truth[j]
            clusters += labels[i] == labels[j]
    return float(2 * both / (classes + clusters))


def test_a_run_that_was_stopped_goes_on_to_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole")
    whole = (tmp_path / "whole" / "small.csv").read_text()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 2 * 2 * (3 + 1)
    cut = tmp_path / "cut" / "small.csv"
    shutil.copytree(tmp_path / "whole", cut.parent)
    cut.write_text("".join(lines[:6]) + lines[6][:-4])
    fitted: list[Key] = []
    cell = harness.cell

    def counted(study: Study, arm: Arm, rows: Rows, key: Key) -> Any:
        fitted.append(key)
        return cell(study, arm, rows, key)

    monkeypatch.setattr(harness, "cell", counted)
    run(tmp_path / "cut")
    assert cut.read_text() == whole
    assert len(fitted) == len(lines) - 6
    run(tmp_path / "cut")
    assert len(fitted) == len(lines) - 6
    seconds = [scores["seconds"] for scores in CellFile(cut.parent, "small").cells.values()]
    assert len(seconds) == len(lines) - 1
    assert min(seconds) > 0
    (cut.parent / "small.seconds.csv").unlink()  # of an earlier version: nobody knows them
    assert np.isnan([one["seconds"] for one in CellFile(cut.parent, "small").cells.values()]).all()


def test_more_runs_and_places_are_added_to_what_is_there(tmp_path: Path) -> None:
    run(tmp_path, runs=1, quick=True)
    few = (tmp_path / "small.csv").read_text()
    run(tmp_path, runs=2)
    many = (tmp_path / "small.csv").read_text()
    assert many.startswith(few)
    run(tmp_path / "fresh", runs=2)
    fresh = (tmp_path / "fresh" / "small.csv").read_text()
    assert sorted(many.splitlines()) == sorted(fresh.splitlines())


def test_figures_of_other_settings_or_rows_are_not_mixed_with_these(tmp_path: Path) -> None:
    run(tmp_path, runs=1, quick=True)
    before = (tmp_path / "small.csv").read_text()
    arm = replace(PLAIN, parameters={**PLAIN.parameters, "refine": False})
    other_arms = replace(STUDY, arms=(arm, NONE))
    with pytest.raises(RunDirectoryError, match="the same rows and settings, got other arms"):
        run(tmp_path, one=replace(EXPERIMENT, studies=(other_arms,)))
    halved = Rows(tiny(Path()).values / 2, tiny(Path()).classes)
    other_rows = replace(STUDY, load=lambda folder: halved)
    with pytest.raises(RunDirectoryError, match="got other rows; choose another --output"):
        run(tmp_path, one=replace(EXPERIMENT, studies=(other_rows,)))
    assert (tmp_path / "small.csv").read_text() == before
    (tmp_path / "small.csv").unlink()
    run(tmp_path, runs=1, quick=True, one=replace(EXPERIMENT, studies=(other_rows,)))
    assert len((tmp_path / "small.csv").read_text().splitlines()) == len(before.splitlines())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "small.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunDirectoryError, match=r"must have the columns study.*got a, b"):
        CellFile(tmp_path, "small")


def test_an_arm_told_nothing_is_fitted_once_a_fold_and_drawn_everywhere(tmp_path: Path) -> None:
    found, told = run(tmp_path, runs=1)
    curves = found["tiny"]
    file = CellFile(tmp_path, "small")
    assert [key.x for key in file.cells if key.arm == "none"] == [None, None]
    assert len({curves.mean("none", x) for x in curves.xs}) == 1
    assert told[0] == f"tiny: 8 fits, 0 of them from {tmp_path / 'small.csv'}"


def made_up(values: dict[str, list[float]]) -> Curves:
    """Return curves of one place."""
    cells, keys = {}, {}
    for arm, nmi in values.items():
        keys[arm, 0.0] = [Key("tiny", arm, 0.0, run, 0) for run in range(len(nmi))]
        cells |= {key: {"nmi": one} for key, one in zip(keys[arm, 0.0], nmi, strict=True)}
    return Curves(STUDY, (0.0,), keys, cells)


def test_folds_of_a_run_have_a_seed_each_or_one_together() -> None:
    keys = list(STUDY.keys(3, quick=True))
    assert {STUDY.seed(key) for key in keys} == set(range(6))
    together = replace(STUDY, seed_by="run")
    assert {(key.run, together.seed(key)) for key in keys} == {(0, 0), (1, 1), (2, 2)}


def test_a_cell_reaches_the_first_trial_and_loses_to_no_pairs_beyond_chance() -> None:
    cell = defaults.Verdict("set", 50, 0.40, 0.005, 0.42, -0.01, 0.001)
    assert cell.reaches
    assert not cell.loses
    assert not cell._replace(first=0.43).reaches
    assert cell._replace(first=0.43, error=0.015).reaches  # two standard errors are more
    assert cell._replace(gain=-0.02).loses
    assert not cell._replace(gain=-0.02, gain_error=0.011).loses


def test_arms_are_compared_pair_by_pair() -> None:
    curves = made_up({"low": [0.1, 0.5, 0.9], "high": [0.2, 0.6, 1.0], "wide": [0.9, 0.5, 0.0]})
    assert curves.above("high", "low", 0.0) == pytest.approx(0.1)
    assert curves.error("high", 0.0, against="low") == pytest.approx(0.0, abs=1e-12)
    assert curves.error("low", 0.0) == pytest.approx(0.4 / np.sqrt(3))
    assert curves.holds("high", "low", 0.0)
    assert not curves.holds("low", "high", 0.0)
    assert curves.holds("wide", "low", 0.0)  # below by less than its paired standard error


# ---- experiments and their files


def shrunk(experiment: Experiment, rows: Callable[[Path], Rows]) -> Experiment:
    """Return an experiment on a tiny set."""
    studies = tuple(
        replace(one, load=dense if one.load is iris else rows) for one in experiment.studies
    )
    return replace(experiment, studies=studies)


def dense(folder: Path) -> Rows:
    rows = tiny(folder)
    return Rows(rows.values.toarray(), rows.classes)


def guessed(arm: Arm, rows: Rows, given: Given, x: float | None, *, seed: int) -> Recorder:
    """Return labels by chance in the place of a fit."""
    model = Recorder(rows.n_clusters)
    labels = np.random.default_rng([seed, len(arm.name)]).integers(0, 3, len(rows.classes))
    model.labels_, model.objective_ = labels, 1.0
    return model


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_writes_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "sdm2004":  # one of them fits
        monkeypatch.setattr(Arm, "fit", guessed)
    experiment = shrunk(EXPERIMENTS[name], dense if name == "genes" else tiny)
    options = ["--quick", "--runs", "1", "--output", str(tmp_path)]
    done = CliRunner().invoke(harness.command(experiment), [*options, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    studies = experiment.chosen(quick=True)
    assert len(told["figures"]) == sum(
        figure.study in {one.name for one in studies} for figure in experiment.figures
    )
    header, *lines = (tmp_path / f"{name}.csv").read_text().splitlines()
    assert header == ",".join(COLUMNS)
    assert len(lines) == sum(len(list(one.keys(1, True))) for one in studies)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    page = (tmp_path / f"{name}.md").read_text()
    assert page.startswith(f"# {experiment.title}\n")
    for finding in told["findings"]:
        assert finding in page
    if name != "sdm2004":
        return
    again = CliRunner().invoke(harness.command(experiment), options)
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(f"# {experiment.title}\n")
    assert "about" not in again.stderr  # nothing was left to fit


def test_the_same_cells_give_the_same_files(tmp_path: Path) -> None:
    found, _ = run(tmp_path, runs=1)
    first = {path: path.read_bytes() for path in report.write(EXPERIMENT, found, tmp_path, 1)}
    assert len(first) == 4
    again = {path: path.read_bytes() for path in report.write(EXPERIMENT, found, tmp_path, 1)}
    assert again == first


def test_an_error_is_told_in_a_line_and_ends_with_its_code(tmp_path: Path) -> None:
    def nowhere(folder: Path) -> Rows:
        raise InvalidInputError(f"rows must be there, got nothing in {folder}")

    broken = replace(EXPERIMENT, studies=(replace(STUDY, load=nowhere),))
    options = ["--data", str(tmp_path), "--output", str(tmp_path)]
    done = CliRunner().invoke(harness.command(broken), options)
    assert done.exit_code == 65
    assert done.stderr == f"error: rows must be there, got nothing in {tmp_path}\n"


def test_without_matplotlib_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(harness.command(EXPERIMENT), ["--output", str(tmp_path / "out")])
    assert done.exit_code == 78
    assert "matplotlib must be installed" in done.stderr
    assert not (tmp_path / "out").exists()


# ---- sets

WORDS = {"alt.atheism": "belief doubt", "rec.sport.baseball": "pitch bat", "sci.space": "orbit sun"}


def messages(a_group: int) -> tuple[list[str], list[str]]:
    labels = [label for label in [*WORDS, "misc.forsale"] for _ in range(a_group)]
    return [WORDS.get(label, "price offer") for label in labels], labels


def test_news_are_read_where_they_lie_and_else_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, labels = messages(5)
    pq.write_table(pa.table({"text": texts, "label": labels}), tmp_path / "newsgroups20.parquet")
    read = news("different_3", tmp_path)
    assert read.values.shape == (15, 6)
    assert read.n_clusters == 3
    assert np.bincount(read.classes).tolist() == [5, 5, 5]

    texts[0] = "1 2 3"
    (tmp_path / "one").mkdir()
    lost = tmp_path / "one" / "newsgroups20.parquet"
    pq.write_table(pa.table({"text": texts, "label": labels}), lost)
    assert news("different_3", lost.parent).values.shape[0] == 15
    worded = news("different_3", lost.parent, only_worded=True)
    assert np.bincount(worded.classes).tolist() == [4, 5, 5]
    assert (worded.values.sum(axis=1) > 0).all()

    asked = []

    def fetch(**options: Any) -> Any:
        asked.append(options)
        more, named = messages(130)
        names = sorted(set(named))
        return sklearn.utils.Bunch(
            data=more, target=[names.index(one) for one in named], target_names=names
        )

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fetch)
    reduced = lsa("different_3", tmp_path, 2)
    assert reduced.values.shape == (15, 2)
    assert np.array_equal(reduced.classes, read.classes)

    fetched = news("news_different_3", tmp_path)
    assert np.bincount(fetched.classes).tolist() == [100, 100, 100]
    assert asked == [{"subset": "all", "remove": ("headers",)}]


def test_without_data_and_network_both_ways_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(**options: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fetch)
    with pytest.raises(
        InvalidInputError, match=r"no news_related_3.parquet.*no route to host.*--data"
    ):
        news("news_related_3", tmp_path)
    with pytest.raises(InvalidInputError, match=r"classic3.parquet.*got no such file.*--data"):
        classic400(tmp_path)


def test_classic400_is_of_unequal_classes_and_leaves_out_empty_records(tmp_path: Path) -> None:
    labels = [one for one in ("cisi", "cran", "med") for _ in range(300)]
    texts = ["" if place % 10 == 0 else f"text of {label}" for place, label in enumerate(labels)]
    pq.write_table(pa.table({"text": texts, "label": labels}), tmp_path / "classic3.parquet")
    rows = classic400(tmp_path)
    assert np.bincount(rows.classes).tolist() == [200, 100, 100]
    assert (np.diff(rows.values.indptr) > 0).all()


def test_iris_is_as_it_is() -> None:
    rows = iris(Path())
    assert rows.values.shape == (150, 4)
    assert np.bincount(rows.classes).tolist() == [50, 50, 50]


def test_simulated_genes_are_alike_in_shape_not_in_level() -> None:
    rows = genes.simulated(Path())
    timed = rows.values[:, : genes.N_TIMES]
    alike = rows.classes[:, None] == rows.classes
    correlations = np.corrcoef(timed)
    np.fill_diagonal(alike, False)
    others = ~alike & ~np.eye(len(alike), dtype=bool)
    assert correlations[alike].mean() > correlations[others].mean() + 0.2
    levels = [rows.values[rows.classes == one].mean() for one in range(rows.n_clusters)]
    assert np.std(levels) < 0.5 * rows.values.mean(axis=1).std()
    assert Given().pairs.shape == (0, 2)


# ---- scale, large sets and the size of refinement


def test_planted_rows_of_fewer_begin_those_of_more() -> None:
    for make in (planted.sparse_rows, planted.dense_rows):
        few, many = make(300), make(2_100)
        assert few.values.shape == (300, many.values.shape[1])
        assert abs(few.values - many.values[:300]).max() == 0
        assert np.array_equal(few.classes, many.classes[:300])
        assert set(many.classes) == set(range(planted.N_TOPICS))
        assert make(300, seed=1).fingerprint() != few.fingerprint()
    rows = planted.sparse_rows(2_100)
    assert sp.linalg.norm(rows.values, axis=1) == pytest.approx(1.0, abs=1e-5)
    sums = np.stack([np.asarray(rows.values[rows.classes == one].mean(axis=0))[0]
                     for one in range(planted.N_TOPICS)])  # fmt: skip
    assert ((rows.values @ sums.T).argmax(axis=1) == rows.classes).mean() > 0.9


def timings(arm: str, powers: float, factor: float, kind: str = "dense") -> list[scale.Timing]:
    """Return made-up timings, 5 iterations each."""
    return [
        scale.Timing(kind, arm, size, size // 4, 5, 0.0, 5 * factor * size**powers)
        for size in (100, 200, 400, 800)
    ]


@pytest.mark.parametrize(
    ("powers", "factor", "told"),
    [(1.0, 39.0, "not 40 × or quadratic"), (1.0, 41.0, ": 40 × or"), (2.0, 0.01, ": 40 × or")],
)
def test_scale_tells_what_is_linear_and_how_far_the_peer_is(
    powers: float, factor: float, told: str
) -> None:
    ours, peer = timings("PCKMeans", 1.0, 1.0), timings("PCKMeans, peer", powers, factor)
    assert scale.exponent(peer) == pytest.approx(powers)
    lines = scale.findings([*ours, *peer])
    assert "exponent 1.00, 1.00 over the three largest sizes: linear (at most 1.1)" in lines[0]
    assert told in lines[1]
    assert len(lines) == 2
    steep = scale.findings(timings("COPKMeans", 1.2, 1.0))
    assert ": not linear" in steep[0]
    assert "The peer was not asked" in steep[1]


PEER = """
import numpy as np

class PCKMeans:
    def __init__(self, n_clusters, max_iter):
        self.n_clusters, self.max_iter = n_clusters, max_iter

    def _get_cluster_centers(self, X, labels):
        return X[:self.n_clusters]

    def fit(self, X, ml, cl):
        if np.random.rand() < FAILS:
            raise RuntimeError("an empty cluster")
        assert len(ml) + len(cl) == len(X) // 4 and X.ndim == 2
        for _ in range(self.max_iter - 1):
            self._get_cluster_centers(X, None)

COPKMeans = PCKMeans
"""


def peer_python(folder: Path, code: str) -> str:
    """Return a Python that finds a stand-in for the peer."""
    package = folder / "active_semi_clustering" / "semi_supervised"
    package.mkdir(parents=True)
    (package / "pairwise_constraints.py").write_text(code)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_scale_writes_its_files_and_asks_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "QUICK_SIZES", (200, 400))
    monkeypatch.setattr(scale, "QUICK_PEER_SIZES", (200, 300))
    python = peer_python(tmp_path / "peer", PEER.replace("FAILS", "0.1"))
    output = tmp_path / "out"
    options = ["--quick", "--json", "--output", str(output), "--peer-python", python]
    done = CliRunner().invoke(scale.main, options)
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)
    assert [(one["rows"], one["arm"], "times_ours" in one) for one in lines] == [
        ("sparse", "PCKMeans", False), ("sparse", "COPKMeans", False),
        ("dense", "PCKMeans", False), ("dense", "COPKMeans", False),
        ("dense", "PCKMeans, peer", True), ("dense", "COPKMeans, peer", True),
    ]  # fmt: skip
    header, *rows = (output / "scale.csv").read_text().splitlines()
    assert header == "rows,arm,n_rows,n_pairs,iterations,seconds,cpu_seconds"
    assert len(rows) == 12
    asked = [row.split(",") for row in rows if "peer" in row]
    assert {row[-3] for row in asked} == {"4"}  # its iterations are counted
    assert (output / "scale.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (output / "scale.svg").read_text()
    page = (output / "scale.md").read_text()
    assert "200 rows" not in page
    assert page.count("| sparse | PCKMeans |") == 2


def test_a_python_without_the_peer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "OTHER_SEEDS", 2)
    rows = planted.dense_rows(100)
    ask = partial(peer.fit_peer, rows=rows, given=scale.pairs_of(rows), seed=0, max_iter=3)
    with pytest.raises(ConfigurationError, match=r"got .*nowhere.*pip install active-semi"):
        ask(str(tmp_path / "nowhere"), "PCKMeans")
    with pytest.raises(ConfigurationError, match=r"\(ModuleNotFoundError: No module named"):
        ask(peer_python(tmp_path / "other", "import not_there"), "PCKMeans")
    never = peer_python(tmp_path / "never", PEER.replace("FAILS", "1.0"))
    with pytest.raises(ConfigurationError, match="got RuntimeError with each of 2 seeds"):
        ask(never, "PCKMeans")


@pytest.mark.parametrize("experiment", [large.EXPERIMENT, refinement.EXPERIMENT])
def test_experiments_over_size_keep_time_and_all_rows(
    experiment: Experiment, tmp_path: Path
) -> None:
    name = experiment.name
    options = ["--quick", "--output", str(tmp_path)]
    quick = (0, 0.25) if name == "refinement" else (0, 40)
    study = replace(experiment.studies[0], load=tiny)
    study = replace(study, axis=replace(study.axis, quick=quick))
    figures = tuple(one for one in experiment.figures if one.study == study.name)
    small = replace(experiment, studies=(study,), figures=figures)
    done = CliRunner().invoke(harness.command(small), options)
    assert done.exit_code == 0, done.output
    header, *lines = (tmp_path / f"{name}.csv").read_text().splitlines()
    assert header == ",".join([*COLUMNS, "nmi_all"])
    seconds = (tmp_path / f"{name}.seconds.csv").read_text().splitlines()[1:]
    assert all(float(line.rsplit(",", 1)[1]) > 0 for line in seconds)
    assert len(seconds) == len(lines)
    for figure in experiment.figures:
        assert figure.study in {study.name for study in experiment.studies}
    told = done.stdout.split("## What it shows")[1].split("\n## ")[0]
    table = [line for line in told.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    # the columns of another experiment are refused
    with pytest.raises(RunDirectoryError, match="must have the columns"):
        CellFile(tmp_path, name)


@pytest.mark.parametrize(
    ("nmi", "told"),
    [
        ([0.3, 0.32, 0.4], "grows from 0.300 to 0.400"),
        ([0.3, 0.4, 0.395], "grows from 0.300 to 0.395"),
        ([0.3, 0.4, 0.35], "does not grow from 0.300 to 0.350"),
        ([0.3, 0.3, 0.3], "does not grow from 0.300 to 0.300"),
    ],
)
def test_what_grows_with_the_pairs_is_told(nmi: list[float], told: str) -> None:
    xs = tuple(map(float, range(len(nmi))))
    keys = {(large.DEFAULTS, x): [Key("tiny", large.DEFAULTS, x, 0, 0)] for x in xs}
    cells = {keys[large.DEFAULTS, x][0]: {"nmi_all": one} for x, one in zip(xs, nmi, strict=True)}
    assert large._growth(Curves(STUDY, xs, keys, cells), "nmi_all") == told


def test_some_rows_of_a_set_are_those_of_a_smaller_part_too(tmp_path: Path) -> None:
    texts, labels = messages(20)
    pq.write_table(pa.table({"text": texts, "label": labels}), tmp_path / "any.parquet")
    sizes = [some_of("any", tmp_path, n_rows=n_rows).values.shape[0] for n_rows in (30, 60, None)]
    assert sizes == [30, 60, 80]
    few, many = (some_of("any", tmp_path, n_rows=n_rows).classes for n_rows in (30, 60))
    assert (np.bincount(few) <= np.bincount(many)).all()
    with pytest.raises(InvalidInputError, match=r"other.parquet must be there.*--data"):
        some_of("other", tmp_path)
