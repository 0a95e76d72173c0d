"""Three lines of Python: texts in memory become clusters, and nothing is left on the disk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hmrf_dask
from hmrf_dask import Constraints
from hmrf_dask.errors import HmrfError, InvalidInputError
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run

METHOD = {"n_init": 2, "random_state": 0}


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    corpus = JobCorpus(tmp_path)
    corpus.draw(60)
    return corpus


def grouped(texts: Any, *arguments: Any, **more: Any) -> hmrf_dask.ReleasedModel:
    return hmrf_dask.group(texts, *arguments, method=METHOD, **more)


def test_a_column_is_grouped_as_a_job_groups_it(corpus: JobCorpus, disk: Path) -> None:
    frame = pd.DataFrame(corpus.documents).set_index("id")
    pairs = [tuple(line.split(",")) for line in corpus.answers(10).decode().split("\n")[1:-1]]
    model = grouped(frame["text"], 3, pairs)
    assert not list(disk.glob("hmrf-texts-*"))
    table = model.assignments()
    assert table.index is not frame.index
    assert table.index.equals(frame.index)
    assert table["doc_id"].tolist() == frame.index.tolist()
    corpus.write(corpus.files(corpus.documents))
    corpus.write({"answers.csv": corpus.answers(10)})
    settings = {"min_df": 2, "max_df": 0.5}
    report = run(corpus.write_job(method={"n_clusters": 3, **METHOD}, text=settings))
    wanted = assigned(report)
    assert table["cluster"].tolist() == [wanted[one]["cluster"] for one in frame.index]
    assert model.predict(frame["text"]).tolist() == model.assignments()["cluster"].tolist()
    near = model.representatives(0)
    assert near["text"].tolist() == frame["text"][near["doc_id"]].tolist()
    assert model.report.answers["pairs"]["cannot"] > 0
    assert model.output == ""
    page = model.report_page(disk / "groups.html")
    assert sum(cluster.size for cluster in page.clusters) == len(frame)
    assert {one.text for one in page.documents_shown} <= {*frame["text"]}
    assert (disk / "groups.html").read_bytes() == page.to_html()
    assert "<table>" in model._repr_html_()


def test_answers_come_in_any_form(corpus: JobCorpus, tmp_path: Path) -> None:
    texts = [document["text"] for document in corpus.documents[:30]]
    labels = [document["label"] for document in corpus.documents[:6]]
    path = tmp_path / "answers.csv"
    path.write_text("a,b,kind\n0,3,same\n0,1,different\n")
    triples = [(0, 3, "same"), (0, 1, "different")]
    for given in (triples, str(path), Constraints([("0", "3")], [("0", "1")])):
        report = grouped(texts, 3, given).report
        assert report.answers["pairs"] == {"must": 1, "cannot": 1}
    by_class = pd.Series([*labels, None, np.nan])
    report = grouped(texts, 3, by_class).report
    assert report.answers["pairs"]["must"] == 3
    with pytest.raises(InvalidInputError, match=r"answers must be triples .* at position 1"):
        grouped(texts, 3, [(0, 1, "same"), (0, 1)])
    with pytest.raises(InvalidInputError, match=r"answers must name documents, got unknown '99'"):
        grouped(texts, 3, [(0, 99, "same")])


@pytest.mark.parametrize(
    ("texts", "given", "said"),
    [
        (pd.DataFrame({"a": ["x y"], "b": ["y z"]}), {}, "one column of texts, got a DataFrame"),
        ({"a": "x y", "b": "y z"}, {}, r"list\(texts.values\(\)\)"),
        (["x y", "y z"], {"answers": 5}, "answers must be triples .* got a int"),
        (["x y", "y z"], {"answers": pd.DataFrame({"a": [0]})}, "itertuples"),
        (["x y", "y z"], {"rows": 5}, "rows must be a mapping .* got a int"),
        (["x y", "y z"], {"method": [3]}, "method must be a mapping .* got a list"),
        (["x y", "y z"], {"threads": 0}, "threads must be .* from 1 .* got 0"),
        (["x y", "y z"], {"n_clusters": np.int64(0)}, "what group was given has .* got 0"),
    ],
)
def test_what_cannot_be_grouped_is_said(texts: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(HmrfError, match=said):
        hmrf_dask.group(texts, **{"n_clusters": 2, **given})


def test_rows_are_those_that_are_asked_for(corpus: JobCorpus) -> None:
    texts = [document["text"] for document in corpus.documents]
    assert grouped(texts, 3, rows={"lsa": 5}).model.cluster_centers_.shape == (3, 5)
    embeddings = np.eye(3)[np.arange(60) % 3] + 0.1
    model = grouped(texts, 3, rows=embeddings)
    assert model.predict(embeddings).tolist() == model.assignments()["cluster"].tolist()
    with pytest.raises(InvalidInputError, match="a row for each of the 60 texts"):
        grouped(texts, 3, rows=embeddings[:5])


def test_empty_texts_have_a_cluster_and_few_are_enough(
    corpus: JobCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match="rows are zero"):
        model = grouped(["a tree", "a sea", "", "a tree"], 2, verbose=True)
    assert len(model.assignments()) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].endswith("done")
    with pytest.raises(InvalidInputError, match="at least two"):
        grouped(["a tree"])
    with pytest.raises(InvalidInputError, match="reset_index"):
        grouped(pd.Series(["a", "b"], index=[0, 0]))
