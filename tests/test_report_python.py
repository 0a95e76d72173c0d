"""Reports, plots and tables of estimators: what they say, and of what they are made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.pipeline import make_pipeline

from hmrf_dask import (
    LSA,
    ClusterMapDisplay,
    ConvergenceDisplay,
    Corpus,
    HMRFKMeans,
    KMeans,
    load,
)
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError
from hmrf_dask.report.content import Report
from hmrf_dask.report.page import page
from tests.support.reports import example

mpl.use("Agg")
RNG = np.random.default_rng(0)
KINDS = RNG.integers(0, 3, 90)
WORDS = [[f"{kind}{n}" for n in ("moon", "gear", "leaf", "salt")] for kind in "abc"]
TEXTS = [" ".join([*RNG.choice(WORDS[kind], 6), "all"]) for kind in KINDS]
MUST = [(0, 1), (2, 3)]  # whatever their kinds
PATHS = ("report.html", "report.json")


@pytest.fixture(scope="module")
def fitted() -> tuple[TfidfVectorizer, sp.csr_array, HMRFKMeans]:
    vectoriser = TfidfVectorizer()
    rows = sp.csr_array(vectoriser.fit_transform(TEXTS))
    model = HMRFKMeans(3, n_init=2, must_link_cost=1e-3, penalty="potts", random_state=0)
    return vectoriser, rows, model.fit(rows, must_link=MUST, cannot_link=[(4, 5)])


def test_a_report_says_what_plain_counting_says(fitted: Any, tmp_path: Path) -> None:
    vectoriser, rows, model = fitted
    report = model.report(
        rows, texts=TEXTS, words=vectoriser, classes=KINDS, must_link=MUST, cannot_link=[(4, 5)],
        path=tmp_path / "groups.html",
    )  # fmt: skip
    assert [one.size for one in report.clusters] == sorted(np.bincount(model.labels_))[::-1]
    assert sum(one.linked for one in report.clusters) == 6
    distances = model.transform(rows)
    for cluster in report.clusters:
        members = np.flatnonzero(model.labels_ == cluster.id)
        own = distances[members, cluster.id]
        nearest = sorted(zip(own.tolist(), map(str, members), strict=True))[:3]
        assert [text.id for text in cluster.typical] == [name for _, name in nearest]
        assert [text.text for text in cluster.typical] == [TEXTS[int(name)] for _, name in nearest]
        assert cluster.spread == pytest.approx(own.mean(), rel=1e-6)
        assert cluster.words[0][0] in "abc"
    broken = [pair for pair in MUST if len({*model.labels_[list(pair)]}) == 2]
    assert {(int(one.first.id), int(one.second.id)) for one in report.answers.broken} == {*broken}
    assert report.answers.counts["violated"] == {"must": len(broken), "cannot": 0}
    assert report.agreement is not None
    scores = report.agreement.scores
    assert scores["NMI"] == pytest.approx(normalized_mutual_info_score(KINDS, model.labels_))
    assert scores["adjusted Rand"] == pytest.approx(adjusted_rand_score(KINDS, model.labels_))
    assert report.fit.steps[-1].terms["J"] == model.objective_ == report.fit.facts["J"]
    assert report.limits == ()
    written = [(tmp_path / f"groups.{ending}").read_bytes() for ending in ("html", "json")]
    assert written == [report.to_html(), report.to_json()]
    assert Report.from_json(written[1]).alerts == report.alerts
    assert 'sandbox="allow-scripts"' in report._repr_html_()


def test_any_partitions_forms_and_ids_give_the_same_report(fitted: Any) -> None:
    vectoriser, rows, model = fitted
    texts, classes = np.array(TEXTS), [None if one == 2 else one for one in KINDS]
    known = {"words": vectoriser, "must_link": MUST, "classes": classes}
    whole = model.report(rows, texts=texts, **known)
    parts = Corpus.from_rows(rows, n_partitions=4)
    assert model.report(parts, texts=TEXTS, **known).to_json() == whole.to_json()
    assert whole.agreement is not None
    assert whole.agreement.n_documents == int((KINDS != 2).sum())
    lazy = KMeans(3, random_state=0).fit(parts)
    again = KMeans(3, random_state=0).fit(rows).report(rows)
    assert lazy.report(Corpus.from_rows(rows, n_partitions=3)).to_json() == again.to_json()
    ids = [f"doc-{number}" for number in range(90)]
    named = Corpus.from_rows(rows, ids, n_partitions=3)
    by_place = model.report(named, texts=TEXTS)
    assert by_place == model.report(named, texts=dict(zip(ids, TEXTS, strict=True)))
    shown = by_place.documents_shown[0]
    assert shown.text == TEXTS[int(shown.id.removeprefix("doc-"))]


def test_contradictions_are_drawn_in_chains(fitted: Any) -> None:
    _, rows, model = fitted
    must, cannot = [(0, 1), (1, 2), (2, 3), (5, 6)], [(0, 3), (6, 5), (7, 8)]
    report = model.report(rows, must_link=must, cannot_link=cannot)
    assert report.answers.n_contradictions == 2
    assert report.answers.chains == (("5", "6"), ("0", "1", "2", "3"))
    assert report.to_html().count(b'class="chart chain"') == 2
    assert b"12 answers" in page(example(3, 10))


def test_what_the_rows_of_a_pipeline_are_called(fitted: Any, tmp_path: Path) -> None:
    pipeline = make_pipeline(TfidfVectorizer(), LSA(4, random_state=0))
    rows = pipeline.fit_transform(TEXTS)
    model = KMeans(3, random_state=0).fit(rows)
    model.save(tmp_path / "model")
    words = {one.words[0][0] for one in model.report(rows, words=pipeline).clusters}
    assert words == {"a", "b", "c"}
    loaded = load(tmp_path / "model")
    drawn = loaded.plot_convergence().lines_["J"].get_ydata()
    assert drawn.tolist() == model.objective_history_.tolist()
    mpl.pyplot.close("all")
    again = loaded.report(rows, words=pipeline)  # by the nearest centroids
    assert [one.size for one in again.clusters] == sorted(np.bincount(model.labels_))[::-1]
    assert not model.report(rows).clusters[0].words


def test_documents_of_no_cluster_are_counted_and_drawn_apart() -> None:
    rows = np.concatenate([np.repeat([[1.0], [5.0]], 6, axis=0), [[90.0], [-70.0], [60.0]]])
    start = np.array([[1.0], [5.0]])
    model = KMeans(2, distortion="euclidean", outliers=0.2, init=start, max_iter=1, refine=False)
    report = model.fit(rows).report(rows)
    assert report.documents["outliers"] == int(model.outliers_.sum()) > 0
    assert (report.clusters[-1].id, report.clusters[-1].name) == (-1, "outliers")
    assert "many outliers" in [alert.kind for alert in report.alerts]
    shown = ClusterMapDisplay.from_estimator(model, rows)
    assert list(shown.sizes) == [0, 1]
    mpl.pyplot.close("all")


def test_a_fit_with_a_run_directory_has_its_report_there(fitted: Any, tmp_path: Path) -> None:
    _, rows, _ = fitted
    run = str(tmp_path / "run")
    model = HMRFKMeans(3, random_state=0).fit(rows, must_link=MUST, run_dir=run)
    before = [(tmp_path / "run" / name).read_bytes() for name in PATHS]
    report = Report.from_json(before[1])
    assert report.answers.counts["pairs"] == {"must": 2, "cannot": 0}
    assert [step.moved for step in report.fit.steps] == [one["moved"] for one in model.iterations_]
    again = HMRFKMeans(3, random_state=0).fit(rows, must_link=MUST, run_dir=run)  # reads it
    assert again.iterations_ == model.iterations_
    result = CliRunner().invoke(hmrf, ["report", run, "--json"])
    assert result.exit_code == 0, result.output
    assert [(tmp_path / "run" / name).read_bytes() for name in PATHS] == before
    (tmp_path / "run" / "report.json").unlink()
    result = CliRunner().invoke(hmrf, ["report", run])
    assert result.exit_code == 78
    assert "call report(X) of the estimator" in result.output


def test_a_report_that_fails_is_a_warning_and_the_fit_stays(
    fitted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("hmrf_dask.estimators.reporting.write_report", fail)
    model, events = KMeans(3, random_state=0), list[dict[str, Any]]()
    model._progress = events.append
    with pytest.warns(HmrfWarning, match=r"could not be written \(.*disk is full.*fit is whole"):
        model.fit(fitted[1], run_dir=tmp_path / "run")
    assert model.converged_
    assert not any("report" in event for event in events)  # nobody is sent to what is not there


def test_a_fit_of_many_rows_and_clusters_leaves_its_report_to_who_asks(
    fitted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hmrf_dask.estimators.reporting.MOST_COMPARED", 3 * 90 - 1)
    with caplog.at_level("INFO", "hmrf_dask"):
        model = KMeans(3, random_state=0).fit(fitted[1], run_dir=tmp_path / "run")
    assert f"all 90 rows with all 3 clusters once more: report(X, path='{tmp_path}" in caplog.text
    assert not (tmp_path / "run" / "report.html").exists()
    model.report(fitted[1], path=tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()


def test_mistakes_are_said_in_words(fitted: Any) -> None:
    _, rows, model = fitted
    for wrong, words in (
        ({"texts": TEXTS[:3]}, "texts must be one for each of the 90 rows, .* got 3"),
        ({"texts": "a text"}, "texts must be one for each of the 90 rows"),
        ({"classes": KINDS[:3]}, "classes must be one for each of the 90 rows, got 3"),
        ({"classes": np.ones((45, 2))}, r"one for each of the 90 rows, got the shape \(45, 2\)"),
        ({"words": ["a"]}, "names, of the 13 columns of X, got 1"),
        ({"words": "a text"}, "names, of the 13 columns of X, got 'a text'"),
        ({"words": {"a": 0}}, "names, of the 13 columns of X, got {'a': 0}"),
    ):
        with pytest.raises((InvalidInputError, ConfigurationError), match=words):
            model.report(rows, **wrong)
    with pytest.raises(InvalidInputError, match="X must be the 90 rows that fit was given, got 3"):
        model.report(rows[:3])


def test_what_is_missing_in_columns_of_pandas_is_missing(fitted: Any) -> None:
    _, rows, model = fitted
    classes = pd.array([pd.NA, *KINDS[1:].astype(str)], dtype="string")
    report = model.report(rows, classes=classes, texts=pd.Series([pd.NA, None, *TEXTS[2:]]))
    assert report.agreement is not None
    assert report.agreement.n_documents == 89
    texts = {text.id: text.text for text in report.documents_shown}
    assert texts["0"] == texts["1"] == ""


# ---- plots and notebooks


def test_displays_draw_what_was_fitted(fitted: Any) -> None:
    vectoriser, rows, model = fitted
    drawn = model.plot_convergence(terms=("J", "must_link"))
    heights = drawn.lines_["J"].get_ydata()
    assert heights.tolist() == [step["J"] for step in model.iterations_]
    assert drawn.ax_.figure is drawn.figure_
    again = ConvergenceDisplay(drawn.iterations).plot(ax=drawn.ax_)
    assert again.figure_ is drawn.figure_
    shown = ClusterMapDisplay.from_estimator(model, rows, words=vectoriser)
    assert len(shown.clusters_.get_offsets()) == 3
    assert len(shown.documents_.get_offsets()) == 90
    assert {text.get_text()[0] for text in shown.texts_} == {"a", "b", "c"}
    assert ClusterMapDisplay.from_estimator(model).documents_ is None
    for wrong in ({"ax": 3}, {"terms": ("K",)}):
        with pytest.raises(ConfigurationError, match=r"ax must be axes|terms must be of"):
            model.plot_convergence(**wrong)
    mpl.pyplot.close("all")


def test_without_matplotlib_it_is_named(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hmrf-dask\[plot\]'"):
        fitted[2].plot_convergence()


def test_a_notebook_shows_what_the_fit_came_to(fitted: Any) -> None:
    model = fitted[2]
    bundle = model._repr_mimebundle_()
    assert "What the fit came to" in bundle["text/html"]
    assert "What the fit came to" in model._repr_html_()
    assert f"{max(np.bincount(model.labels_))}, " in bundle["text/html"]
    model = HMRFKMeans(3)
    assert "What the fit came to" not in model._repr_html_()
    model = KMeans(2, random_state=0).fit(fitted[1])
    model.stop_reason_ = "<script>"
    assert "<script></td>" not in model._repr_html_()
