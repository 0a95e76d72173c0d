"""The papers' experiments on tiny sets: answers of training parts, right scores, whole files."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
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
from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from pipelines.papers import (
    active,
    costs,
    defaults,
    foreign,
    genes,
    goals,
    harness,
    icml2002,
    inference,
    kdd2004,
    labels,
    large,
    metric,
    noise,
    refinement,
    rounds,
    scale,
    sdm2004,
)
from pipelines.papers.cells import COLUMNS, CellFile
from pipelines.papers.plans import Arm, Axis, Experiment, Study
from pipelines.papers.sets import Rows, classic400, iris, lsa, news, some_of
from pipelines.papers.supervision import Given, folds, random_pairs, seeds
from tests.proofs.news import draw_pairs
from tests.proofs.news import folds as folds_of_the_proof

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        active, kdd2004, sdm2004, icml2002, defaults, costs, genes, inference, labels, large,
        metric, noise, refinement, rounds,
    )
}  # fmt: skip
N_ROWS = 96  # a half of them has more than the 1,000 pairs that experiments ask for


def tiny(folder: Path) -> Rows:
    """Return sparse rows of three classes with few words in common."""
    rng = np.random.default_rng(5)
    classes = np.arange(N_ROWS) % 3
    dense = (rng.random((N_ROWS, 30)) < 0.1) * rng.random((N_ROWS, 30))
    for label in range(3):
        dense[classes == label, 10 * label : 10 * label + 10] += rng.random((N_ROWS // 3, 10))
    return Rows(sp.csr_matrix(dense), classes.astype(np.int64))


def tiny_dense(folder: Path) -> Rows:
    """Return the same rows as an array."""
    rows = tiny(folder)
    return Rows(rows.values.toarray(), rows.classes)


PLAIN = Arm("plain", parameters={"learn_weights": False, "init": "neighborhoods"})
NONE = Arm("none", "KMeans", {"n_init": 2}, takes="nothing")
STUDY = Study("tiny", tiny, Axis("pairs", (0, 20, 40), (0, 40)), (PLAIN, NONE), random_pairs)
SMALL = Experiment("small", "A small experiment", "About it.", (STUDY,), (), lambda found: [], 2)


def run(folder: Path, experiment: Experiment = SMALL) -> Any:
    """Run an experiment, quietly."""
    settings = {"runs": 2, "quick": False, "data": Path("/nowhere"), "say": lambda line: None}
    return harness.run(experiment, output=folder, **settings)


class Guess:
    """Stands for an estimator: puts rows into clusters by chance."""

    objective_ = 2.5

    def __init__(self, n_rows: int, seed: int) -> None:
        self.labels_ = np.random.default_rng(seed).integers(0, 3, n_rows).astype(np.int32)


def guessed(arm: Arm, rows: Rows, given: Given, x: float | None, *, seed: int) -> Guess:
    """Return labels by chance in the place of a fit."""
    return Guess(len(rows.classes), seed + len(arm.name))


def test_foreign_texts_are_found_among_messages() -> None:
    topics, rng = (["moon", "star", "orbit"], ["goal", "puck", "ice"]), np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 12)) for words in topics for _ in range(30)]
    texts += ["quux corge", "grault garply"]
    classes = np.repeat([0, 1, -1], [30, 30, 2])
    for parameters in foreign.ARMS.values():
        found = foreign.outcome(foreign.Mixture(texts, classes), 0, **parameters)
        assert (found.found, found.agreement) == (1.0, 1.0)
        assert found.wrong < 0.1


def test_questions_until_all_classes_are_found_are_counted() -> None:
    oracle = goals.Searched(np.array([0, 0, 1, 2, 1, -1]), knows_outliers=False)
    assert [oracle(2, 0), oracle(5, 0), oracle(5, 2), oracle(3, 0), oracle(3, 2)] == [
        False, None, None, False, False,
    ]  # fmt: skip
    with pytest.raises(goals.AllFoundError):
        oracle(4, 2)
    assert oracle.n_questions == 5
    rows = tiny_dense(Path())
    counts = {goals.until_all_found(rows, 0, outliers=said) for said in ("", "unknown")}
    assert all(3 <= count < N_ROWS for count in counts)


def test_questions_until_clusters_are_the_classes_are_found_by_halving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(goals, "measured", lambda rows, seed, how, n: n / 1000)
    assert goals.until_clustered(tiny(Path()), 0, "default") == 900
    assert goals.until_clustered(tiny(Path()), 0, "clicks") == sys.maxsize


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_what_is_given_is_of_the_training_part_alone(wrong: float) -> None:
    classes = np.arange(300) % 3
    cut = folds(classes, 4, 2)
    assert sorted(np.concatenate([fold.test for fold in cut])) == list(range(300))
    for number, (training, test) in enumerate(folds_of_the_proof(300, 4)):
        assert sorted([*cut[number].training, *cut[number].test]) == list(range(300))
        assert np.array_equal(cut[number].training, training)
        assert np.array_equal(cut[number].test, test)
        must, cannot = draw_pairs(training, classes, 4, number, 100)
        given = random_pairs(cut[number], 100)
        assert list(map(tuple, given.must_link.tolist())) == must
        assert list(map(tuple, given.cannot_link.tolist())) == cannot
    labels = seeds(cut[0], 0.5, wrong=wrong).seeds
    assert labels is not None
    seeded = np.flatnonzero(labels >= 0)
    assert len(seeded) == 75
    assert set(seeded) <= set(cut[0].training)
    assert (labels[seeded] != classes[seeded]).sum() == round(75 * wrong)
    fewer, more = (random_pairs(cut[0], n_pairs, wrong=wrong) for n_pairs in (20, 200))
    assert set(more.pairs.ravel()) <= set(cut[0].training)
    assert len(np.unique(more.pairs, axis=0)) == 200
    held = {tuple(pair) for pair in more.pairs.tolist()}
    assert {tuple(pair) for pair in fewer.pairs.tolist()} <= held
    same = classes[more.must_link[:, 0]] == classes[more.must_link[:, 1]]
    differ = classes[more.cannot_link[:, 0]] != classes[more.cannot_link[:, 1]]
    share_wrong = 1 - (same.sum() + differ.sum()) / 200
    assert share_wrong == 0 if wrong == 0 else 0.2 < share_wrong < 0.4


def test_scores_are_those_of_the_test_part_and_of_pairs_nobody_gave() -> None:
    rows = tiny(Path())
    fold = folds(rows.classes, 3, 2)[0]
    given, model = random_pairs(fold, 60), Guess(N_ROWS, 0)
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


def test_a_run_that_was_stopped_is_resumed_to_the_same_file(tmp_path: Path) -> None:
    run(tmp_path)
    file = tmp_path / "small.csv"
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 2 * 2 * (3 + 1)
    file.write_text("".join(lines[:6]) + lines[6][:-4])
    run(tmp_path)
    assert file.read_text() == whole
    others = replace(STUDY, arms=(PLAIN,)), replace(STUDY, load=tiny_dense)
    for study, words in zip(others, ("got other arms", "got other rows"), strict=True):
        with pytest.raises(RunDirectoryError, match=words):
            run(tmp_path, replace(SMALL, studies=(study,)))
    assert file.read_text() == whole
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunDirectoryError, match=r"must have the columns study.*got a, b"):
        CellFile(tmp_path, "other")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("kdd2004", "sdm2004") else pytest.mark.long)
        for name in EXPERIMENTS
    ],
)
def test_each_experiment_writes_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "sdm2004":  # one of them fits
        monkeypatch.setattr(Arm, "fit", guessed)
    quick = {"active": (12, 24), "labels": (12, 24), "large": (0, 40), "refinement": (0, 0.25)}.get(
        name
    )
    studies = []
    for study in EXPERIMENTS[name].studies:
        for arm in study.arms:
            model = getattr(hmrf_dask, arm.estimator)(3)
            assert {*arm.parameters, *arm.at_x} <= set(model.get_params())
        dense = study.load is iris or name in ("genes", "metric")
        of_shares = name == "active" and max(study.axis.quick) < 1  # answers that are wrong
        axis = replace(study.axis, quick=quick) if quick and not of_shares else study.axis
        studies.append(replace(study, load=tiny_dense if dense else tiny, axis=axis))
    experiment = replace(EXPERIMENTS[name], studies=tuple(studies))
    options = ["--quick", "--runs", "1", "--output", str(tmp_path)]
    done = CliRunner().invoke(harness.command(experiment), [*options, "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    chosen = {study.name for study in experiment.chosen(quick=True)}
    drawn = [figure for figure in experiment.figures if figure.study in chosen]
    assert len(printed["figures"]) == len(drawn)
    header, *lines = (tmp_path / f"{name}.csv").read_text().splitlines()
    assert header.startswith(",".join(COLUMNS))
    keys = [list(study.keys(1, True)) for study in experiment.chosen(quick=True)]
    assert len(lines) == sum(map(len, keys))
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / f"{name}.md").read_text()
    assert page.startswith(f"# {experiment.title}\n")
    assert all(finding in page for finding in printed["findings"])


def test_sets_are_read_from_a_folder_and_news_else_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"alt.atheism": "belief", "rec.sport.baseball": "pitch", "sci.space": "orbit sun"}
    labels = [label for label in [*words, "misc.forsale"] for _ in range(20)]
    texts = [words.get(label, "price offer") for label in labels]
    for name in ("newsgroups20", "any"):
        table = pa.table({"text": texts, "label": labels})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    read = news("different_3", tmp_path)
    assert np.bincount(read.classes).tolist() == [20, 20, 20]
    assert lsa("different_3", tmp_path, 2).values.shape == (60, 2)
    assert [some_of("any", tmp_path, n_rows=n).values.shape[0] for n in (30, None)] == [30, 80]
    assert np.bincount(iris(tmp_path).classes).tolist() == [50, 50, 50]

    def fetch(**options: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fetch)
    with pytest.raises(InvalidInputError, match=r"no news_related_3.parquet.*no route.*--data"):
        news("news_related_3", tmp_path)
    with pytest.raises(InvalidInputError, match=r"classic3.parquet.*got no such file.*--data"):
        classic400(tmp_path)


PEER = """
class PCKMeans:
    def __init__(self, n_clusters, max_iter):
        self.n_clusters, self.max_iter = n_clusters, max_iter

    def _get_cluster_centers(self, X, labels):
        return X[:self.n_clusters]

    def fit(self, X, ml, cl):
        assert len(ml) + len(cl) == len(X) // 4 and X.ndim == 2
        for _ in range(self.max_iter - 1):
            self._get_cluster_centers(X, None)

COPKMeans = PCKMeans
"""


@pytest.mark.long
def test_scale_writes_its_files_and_asks_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "QUICK_SIZES", (200, 400))
    monkeypatch.setattr(scale, "QUICK_PEER_SIZES", (200, 300))
    package = tmp_path / "active_semi_clustering" / "semi_supervised"
    package.mkdir(parents=True)
    (package / "pairwise_constraints.py").write_text(PEER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    output = tmp_path / "out"
    options = ["--quick", "--json", "--output", str(output), "--peer-python", str(python)]
    done = CliRunner().invoke(scale.main, options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    peers = [line["rows"] for line in found if "times_ours" in line]
    assert (len(found), peers) == (6, ["dense", "dense"])
    rows = (output / "scale.csv").read_text().splitlines()
    assert len(rows) == 1 + 12
    assert {row.split(",")[-3] for row in rows if "peer" in row} == {
        "4"
    }  # its iterations are counted
    assert (output / "scale.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "scale.md").read_text().count("| sparse | PCKMeans |") == 2
