"""A release asked from Python and the shell: its clusters, and the cluster of a new text."""

from __future__ import annotations

import csv
import json
import sys
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from hmrf_dask import load_release
from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs.names import parsed_names
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> JobCorpus:
    """Two nights of a job: the second one gave new documents clusters of the first one's model."""
    corpus = JobCorpus(tmp_path_factory.mktemp("released"))
    job = corpus.write_all(60, 6)
    run(job)
    corpus.write(corpus.files(corpus.draw(20), first=50))
    run(job, mode="predict")
    return corpus


@pytest.fixture
def output(corpus: JobCorpus) -> str:
    return str(corpus.folder / "out")


def command(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(hmrf, list(arguments), input=given)


def test_a_text_gets_the_cluster_that_the_job_gave_it(corpus: JobCorpus, output: str) -> None:
    model = load_release(output)
    table = model.assignments().set_index("doc_id")
    new = corpus.documents[60:]
    texts = [document["text"] for document in new]
    wanted = table.loc[[document["id"] for document in new]]
    for given in (texts, pd.Series(texts, index=range(20, 40)), tuple(texts)):
        assert model.predict(given).tolist() == wanted["cluster"].tolist()
    rows = model.classify(texts)
    for name in ("cluster", "distortion", "runner_up", "margin"):
        assert rows[name].tolist() == wanted[name].tolist()
    assert rows["known"].all()
    assert model.classify(["zzzz", texts[0]])["known"].tolist() == [False, True]
    assert model.predict([]).shape == (0,)


def test_clusters_are_described(corpus: JobCorpus, output: str) -> None:
    model = load_release(output)
    clusters = model.clusters
    assert (model.n_clusters, model.n_documents, clusters["size"].sum()) == (3, 80, 80)
    assert "orbit" in model.top_words(int(model.predict(["orbit rocket moon"])[0]))
    near = model.representatives(clusters["cluster"][0])
    texts = {document["id"]: document["text"] for document in corpus.documents}
    assert [texts[one] for one in near["doc_id"]] == near["text"].tolist()
    assert repr(model) == "<ReleasedModel: 80 documents in 3 clusters, release 2>"
    first = load_release(output, release=1)
    assert (first.release, first.n_documents) == (1, 60)
    assert first.report.documents["new"] == 60


def test_without_the_documents_representatives_have_no_texts(
    corpus: JobCorpus, output: str, tmp_path: Path
) -> None:
    manifest = corpus.folder / "manifest.yaml"
    away = manifest.rename(tmp_path / "away.yaml")
    try:
        with pytest.warns(HmrfWarning, match="without texts: "):
            near = load_release(output).representatives(0)
    finally:
        away.rename(manifest)
    assert len(near)
    assert near["text"].isna().all()


def test_without_pandas_tables_are_of_arrow(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    model = load_release(output)
    for table in (model.clusters, model.assignments(["doc_id"]), model.classify(["orbit"])):
        assert type(table).__module__.startswith("pyarrow")


@pytest.mark.parametrize(
    "content",
    ["7;Bikes", f"0,{'x' * 200_000}", f"{'9' * 5_000},x"],
    ids=["cells", "long", "number"],
)
def test_names_that_cannot_be_read_are_said(content: str) -> None:
    limit = csv.field_size_limit(131_072)  # Python's own, which a reader of documents raises
    try:
        with pytest.raises(InvalidInputError, match=r"names\.csv.* correct it"):
            parsed_names(content.encode())
    finally:
        csv.field_size_limit(limit)


def test_names_are_those_that_people_gave(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(45, 5)).output
    journal = open_journal(journal_address(output))
    hostile = "<script>alert(1)</script>"
    for number, name in enumerate(("Space", hostile)):
        journal.append(Entry(str(number), "name", ("space/0000",), answer=name, time=""))
    journal.append(Entry("2", "name", ("nobody",), answer="none"))
    model, row = load_release(output), assigned(run(tmp_path / "job.yaml"))["space/0000"]
    names = model.clusters.set_index("cluster")["name"]
    assert names[row["cluster"]] == hostile
    assert sum(names == hostile) == 1
    page = model._repr_html_()
    assert hostile not in page
    assert hostile in unescape(page)
    assert model.classify([corpus.documents[0]["text"]])["name"].tolist() == [hostile]


def test_a_cluster_is_renamed_and_keeps_its_name(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(45, 5)).output
    words = load_release(output).names[1]
    shown = command("edit", output, "--rename", "1", "  The  faith ")
    assert shown.exit_code == 0, shown.output
    corpus.write(corpus.files(corpus.draw(15), first=50))
    run(tmp_path / "job.yaml")
    assert load_release(output).names[1] == "The faith"
    command("edit", output, "--rename", "1", "Belief")
    assert load_release(output).names[1] == "Belief"
    command("edit", output, "--undo", "1")
    assert load_release(output).names[1] == "The faith"
    command("edit", output, "--undo", "1")
    assert load_release(output, 1).names[1] == words
    assert command("edit", output, "--undo", "1").exit_code == 65
    assert command("edit", output).exit_code == 2
    assert command("edit", output, "--rename", "9", "x").exit_code == 65
    assert command("edit", output, "--rename", "1", "\ud800").exit_code == 65


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("a text", "got one text; give"),
        (["a", None], "got NoneType .* at position 1; fill or drop"),
        (["\ud800"], "half of a character"),
        (7, "got a int"),
    ],
)
def test_what_is_no_list_of_texts_is_refused_in_words(
    output: str, texts: object, said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        load_release(output).predict(texts)


def test_what_is_not_there_is_said(tmp_path: Path, output: str) -> None:
    with pytest.raises(ConfigurationError, match="run the job first"):
        load_release(tmp_path)
    with pytest.raises(ConfigurationError, match=r"one that is kept \(1, 2\), got 7"):
        load_release(output, 7)
    with pytest.raises(InvalidInputError, match="cluster must be one of 0, 1, 2, got 17"):
        load_release(output).top_words(17)


def test_columns_that_are_not_there_are_refused_in_words(output: str) -> None:
    model = load_release(output)
    assert model.assignments(["cluster"]).columns.tolist() == ["cluster"]
    with pytest.raises(InvalidInputError, match=r"columns must be .*doc_id, cluster.*, got 'nix'"):
        model.assignments(["nix"])


def test_embeddings_are_put_to_a_release_as_they_are(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    documents = corpus.draw(30)
    for number, document in enumerate(documents):
        document["embedding"] = [float(number % 3 == place) + 0.1 for place in range(3)]
    corpus.write(corpus.files(documents))
    corpus.write({"answers.csv": corpus.answers(5)})
    columns = {"text": None, "embedding": "embedding"}
    output = run(corpus.write_job(columns=columns)).output
    model, by_id = load_release(output), load_release(output).assignments().set_index("doc_id")
    rows = [document["embedding"] for document in documents[:3]]
    wanted = by_id.loc[[document["id"] for document in documents[:3]], "cluster"]
    assert model.predict(rows).tolist() == wanted.tolist()
    with pytest.raises(InvalidInputError, match="embeddings with 3 columns"):
        model.predict(["a text"])
    assert command("classify", output, "a text").exit_code == 78


def test_the_shell_classifies_a_text_or_lines(corpus: JobCorpus, output: str) -> None:
    model, texts = load_release(output), [one["text"] for one in corpus.documents[:3]]
    shown = command("classify", output, texts[0])
    cluster = model.predict(texts)[0]
    assert shown.stdout.startswith(f"cluster {cluster}  ")
    result = command("classify", output, given="\n".join([*texts, "zzzz"]))
    lines = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert [int(line.split("\t")[0]) for line in lines[:3]] == model.predict(texts).tolist()
    assert lines[3].endswith("(no word of it is known)")
    printed = json.loads(command("classify", output, texts[0], "--release=1", "--json").stdout)
    assert printed["release"] == 1
    assert printed["texts"][0]["text"] == texts[0]
