"""Questions of a job: a release ends with them, whatever the files and the scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmrf_dask.active import next_choices, next_pairs
from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import Entry, Question
from hmrf_dask.errors import HmrfError, InvalidInputError
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.places import Report, inspect_output
from hmrf_dask.jobs.questions import batch_of, questions_of
from hmrf_dask.jobs.run_job import report_if_done, run_job
from tests.support.job_corpus import JobCorpus, lines, one_each
from tests.support.job_runs import run


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def test_a_release_ends_with_questions(corpus: JobCorpus) -> None:
    report = run(corpus.write_all(questions=8))
    name = report.places["questions"]
    assert name == f"runs/{report.run}/questions.parquet"
    table = pq.read_table(f"{report.output}/{name}")
    assert table.column_names == [
        "id", "kind", "documents", "shown", "likely", "why", "settles",
    ]  # fmt: skip
    asked = questions_of(report.output)
    assert len(asked) == 8
    assert table["id"].to_pylist() == [one.id for one in asked]
    known = {document["id"] for document in corpus.documents}
    assert all({*one.documents, *one.shown} <= known for one in asked)
    assert all(list(one.likely) == sorted(one.likely, reverse=True) for one in asked)
    assert report.answers["questions"] == 8
    assert inspect_output(report.output, verify=True)["release"]["counts"]["questions"] == 8
    assert next_choices(report.output, 8) == asked
    assert [one.documents[0] for one in next_pairs(report.output, 8)] == [
        one.documents[0] for one in asked
    ]


def test_without_questions_there_are_none(corpus: JobCorpus) -> None:
    report = run(corpus.write_all())
    assert "questions" not in report.places
    assert questions_of(report.output) == []
    assert len(next_choices(report.output, 3)) == 3


def test_a_prediction_keeps_the_questions_of_the_last_fit(corpus: JobCorpus) -> None:
    job = corpus.write_all(questions=5)
    first = run(job)
    asked = questions_of(first.output)
    assert report_if_done(gather(load_job(str(job)), str(job))) == first.up_to_date()
    corpus.write(corpus.files(corpus.draw(30), first=50))
    predicted = run(job, mode="predict")
    assert predicted.release == 2
    assert predicted.places["questions"] == first.places["questions"]
    assert predicted.answers["questions"] == 5
    assert questions_of(first.output) == asked
    assert inspect_output(first.output, verify=True)["release"]["counts"]["questions"] == 5


def test_the_same_questions_for_any_files_and_scheduler(tmp_path: Path) -> None:
    found = []
    for number, scheduler in enumerate(("threads", "synchronous")):
        corpus = JobCorpus(tmp_path / str(number))
        if number:
            job = one_each(corpus, 60, questions=10)
        else:
            corpus.write(corpus.files(corpus.draw(60)))
            corpus.write({"answers.csv": corpus.answers(10)})
            job = corpus.write_job(questions=10)
        with dask.config.set(scheduler=scheduler, num_workers=2):
            report = run_job(gather(load_job(str(job)), str(job)))
        found.append(Path(report.output, report.places["questions"]).read_bytes())
    assert found[0] == found[1]


def nightly(job: Path, output: str) -> tuple[Report, list[Question]]:
    report = run(job)
    asked = questions_of(output)
    topics = {name: name.split("/")[0] for one in asked for name in (*one.documents, *one.shown)}
    with_answers = open_journal(journal_address(output))
    for one in asked:
        own = [name for name in one.shown if topics[name] == topics[one.documents[0]]]
        documents, answer = (*one.documents, *own[:1]), "same" if own else "none"
        name = f"{report.release}-{one.id}"
        with_answers.append(Entry(name, "choice", documents, one.shown, answer, likely=one.likely))
    return report, asked


def test_what_the_journal_settles_is_not_asked_again(corpus: JobCorpus) -> None:
    job = corpus.write_all(n_pairs=2, questions=10)
    output = str(corpus.folder / "out")
    asked = [nightly(job, output)[1] for _ in range(3)]
    about = [{one.documents[0] for one in night if one.why != "anchors"} for night in asked]
    assert not about[0] & about[1]
    assert not about[1] & about[2]
    now = {one.documents[0] for one in next_choices(output, 10) if one.why != "anchors"}
    assert not now & about[2]


@pytest.mark.parametrize("distortion", ["kl", "euclidean"])
def test_clusters_of_other_distances_ask_too(corpus: JobCorpus, distortion: str) -> None:
    method = {"n_clusters": 3, "n_init": 1, "distortion": distortion}
    report = run(corpus.write_all(60, method=method, questions=6))
    assert len(questions_of(report.output)) == 6


def test_embeddings_are_asked_about(corpus: JobCorpus) -> None:
    rng, centres = np.random.default_rng(0), np.eye(3, 8)
    vectors = centres[np.arange(40) % 3] + rng.normal(size=(40, 8)) / 4
    table = pa.table({"id": [f"d{n}" for n in range(40)], "vector": vectors.tolist()})
    corpus.write({"answers.csv": b"a,b,kind\nd0,d3,must\n"})
    (corpus.folder / "documents").mkdir()
    pq.write_table(table, corpus.folder / "documents" / "all.parquet")
    columns = {"text": None, "embedding": "vector"}
    report = run(corpus.write_job(columns=columns, questions=6))
    assert len(questions_of(report.output)) == 6
    assert next_choices(report.output, 6) == questions_of(report.output)


def test_an_output_without_what_is_needed_says_so(corpus: JobCorpus) -> None:
    (corpus.folder / "empty").mkdir()
    with pytest.raises(InvalidInputError, match=r"an output with a release, got .*run the job"):
        next_choices(str(corpus.folder / "empty"), 3)
    report = run(corpus.write_all())
    for path in Path(report.output, "rows").rglob("rows.json"):
        path.unlink()
    with pytest.raises(HmrfError, match=r"rows of release 1 are gone.*run the job again"):
        next_choices(report.output, 3)


def test_one_document_leaves_nothing_to_ask(corpus: JobCorpus) -> None:
    corpus.write({"documents/one.jsonl": lines(corpus.draw(1))})
    corpus.write({"documents/one.jsonl.gz": lines(corpus.documents), "answers.csv": b""})
    (corpus.folder / "documents" / "one.jsonl").unlink()
    with pytest.warns(match="no answers yet|byte"):
        report = run(corpus.write_job(questions=5, method={"n_clusters": 1}, text={"min_df": 1}))
    assert questions_of(report.output) == []
    assert report.answers["questions"] == 0


def test_answers_that_were_taken_back_are_known_no_more(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, method={"n_clusters": 3, "n_init": 1, "max_iter": 5})
    output = run(job).output
    before = batch_of(output, 9)[0].members
    of_class: dict[str, list[str]] = {}
    for document in corpus.documents:
        of_class.setdefault(document["label"], []).append(document["id"])
    entries = [
        Entry(f"{who}{number}", "pair", (name, names[0]), answer="same", annotator=who)
        for names in of_class.values()
        for number, name in enumerate(names[1:6])
        for who in ("anna", "bo", "cy")
    ]  # fmt: skip
    entries = [replace(one, id=str(number)) for number, one in enumerate(entries)]
    journal = open_journal(journal_address(output))
    journal.append(*entries)
    assert run(job).answers["pairs"]["must"] > 5
    assert batch_of(output, 9)[0].members != before
    journal.append(*(Entry(f"u{one.id}", "undo", about=one.id) for one in entries))
    after = batch_of(output, 9)[0].members
    assert [some for some in after.values() if len(some) > 1] == [
        some for some in before.values() if len(some) > 1
    ]
