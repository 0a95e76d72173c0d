"""Texts of documents by their ids: read where they lie now, and distinguished from those gone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs.texts import Texts
from tests.support.job_corpus import JobCorpus, lines
from tests.support.job_runs import note_reads, run


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> JobCorpus:
    corpus = JobCorpus(tmp_path_factory.mktemp("texts"))
    run(corpus.write_all())
    return corpus


def test_texts_are_those_of_the_documents(ran: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts(str(ran.folder / "out"))
    seen = note_reads(monkeypatch)
    wanted = ran.documents[3::17]
    read = texts.read([one["id"] for one in wanted])
    assert {name: one.text for name, one in read.items()} == {
        one["id"]: one["text"] for one in wanted
    }
    assert all(one.columns == {} for one in read.values())  # known classes are not shown
    assert {one.cluster for one in read.values()} <= {0, 1, 2}
    assert not any(one.missing or one.changed for one in read.values())
    assert len(seen) == len(set(seen))
    n_read = len(seen)
    assert texts.read([one["id"] for one in wanted]) == read
    assert len(seen) == n_read  # nothing is read again
    assert texts.read(["nobody"])["nobody"].missing == "it was not in the last release"
    assert len(seen) == n_read


def test_documents_that_are_gone_or_changed_are_said_so(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    run(corpus.write_all())
    gone, cut, changed, same = (corpus.documents[n]["id"] for n in (5, 25, 26, 45))
    texts = Texts(str(tmp_path / "out"))
    (tmp_path / "documents/part-000.jsonl.gz").unlink()
    assert texts.read([gone])[gone].missing == "its file is gone since the last release"
    later = [{**one, "text": "new words"} for one in corpus.documents[26:40]]
    corpus.write({"documents/part-001.jsonl.gz": lines(later)})
    read = Texts(str(tmp_path / "out")).read([gone, cut, changed, same])
    for name in (gone, cut):  # small files are read as one: which it was is not known
        assert read[name].missing == "its file is gone or changed since the last release"
    assert (read[changed].text, read[changed].changed, read[changed].missing) == (
        "new words", True, "",
    )  # fmt: skip
    assert (read[same].text, read[same].changed) == (corpus.documents[45]["text"], False)


def test_folders_of_text_files_are_read_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = JobCorpus(tmp_path)
    documents = {f"documents/{n}.txt": one["text"] for n, one in enumerate(corpus.draw(30))}
    corpus.write({name: text.encode() for name, text in documents.items()})
    corpus.write({"answers.csv": b"a,b,kind\n0.txt,3.txt,same\n"})
    run(corpus.write_job(columns={}))
    seen = note_reads(monkeypatch)
    read = Texts(str(tmp_path / "out")).read(["7.txt", "11.txt"])
    assert [one.text for one in read.values()] == [
        documents["documents/7.txt"], documents["documents/11.txt"],
    ]  # fmt: skip
    assert sorted(seen) == ["documents/11.txt", "documents/7.txt"]


def test_what_does_not_say_where_its_documents_are_asks_for_the_job(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    job, output = corpus.write_all(), str(tmp_path / "out")
    with pytest.raises(ConfigurationError, match="without a release; run the job first"):
        Texts(output)
    run(job)
    moved = job.rename(tmp_path / "moved.yaml")
    name = corpus.documents[0]["id"]
    with pytest.raises(ConfigurationError, match="name the job where it is now by --job"):
        Texts(output).read([name])
    assert Texts(output, str(moved)).read([name])[name].text == corpus.documents[0]["text"]
    assert Texts(output, str(moved)).release.ledger["job"] == str(job)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "jsonl.gz", "parquet"])
def test_other_columns_of_a_document(tmp_path: Path, kind: str) -> None:
    corpus = JobCorpus(tmp_path)
    documents = [
        {**one, "year": 2000 + n, "by": f"a, {n}\n"} for n, one in enumerate(corpus.draw(40))
    ]
    frame, path = pd.DataFrame(documents), tmp_path / f"documents/all.{kind}"
    path.parent.mkdir()
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path, row_group_size=7)
    else:
        frame.to_json(path, orient="records", lines=True)
    corpus.write({"answers.csv": corpus.answers(5)})
    run(corpus.write_job(columns={"label": "label", "time": "year"}))
    texts = Texts(str(tmp_path / "out"))
    wanted = documents[29]
    assert texts.read([wanted["id"]])[wanted["id"]].columns == {"year": "2029"}
    assert texts.columns(wanted["id"]) == {"year": "2029", "by": wanted["by"]}
    assert texts.columns("nobody") == {}
    path.unlink()
    assert texts.columns(wanted["id"]) == {"year": "2029"}
