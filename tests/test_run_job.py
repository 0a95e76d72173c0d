"""Runs of jobs: what is new alone is read, clusters keep their ids, nothing is lost in silence."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from hmrf_dask.errors import ConfigurationError, HeldError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.places import Report, model_folder
from hmrf_dask.jobs.run_job import report_if_done
from hmrf_dask.releases.lock import held, open_output
from hmrf_dask.releases.release import damages, latest
from hmrf_dask.storage.sealed import RunUnavailableError
from tests.support.job_corpus import JobCorpus, lines
from tests.support.job_runs import QUARANTINED, assigned, note_reads, run
from tests.support.long_cases import long


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def assignments(report: Report) -> dict[str, int]:
    """Return the cluster of every document of the last release."""
    return {name: row["cluster"] for name, row in assigned(report).items()}


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the files that are read."""
    return note_reads(monkeypatch)


def test_a_first_run_gives_every_document_a_cluster(corpus: JobCorpus) -> None:
    report = run(corpus.write_all())
    found = assignments(report)
    assert found.keys() == {one["id"] for one in corpus.documents}
    assert (report.status, report.release, report.start) == ("done", 1, "cold")
    assert report.nmi == pytest.approx(1.0)
    assert sum(report.answers.pop("pairs").values()) == 30
    counts = ("suspect", "quarantined", "unknown", "waiting", "unused", "questions")
    nothing = dict.fromkeys(counts, 0)
    assert report.answers == {"violated": {"must": 0, "cannot": 0}, **nothing}
    release = latest(report.output)
    assert release is not None
    assert damages(open_output(report.output), release) == []
    clusters = pq.read_table(Path(report.output) / report.places["clusters"]).to_pylist()
    assert sum(one["size"] for one in clusters) == 120
    assert {one["top_words"][0] for one in clusters} <= set(corpus.documents[0]["text"].split()) | {
        word for one in corpus.documents for word in one["text"].split()
    }
    assert model_folder(report.output).startswith(report.output)


def test_the_same_again_is_up_to_date_and_changes_nothing(
    corpus: JobCorpus, read_files: list[str]
) -> None:
    job = corpus.write_all()
    first = run(job)
    before = {path: path.read_bytes() for path in Path(first.output).rglob("*") if path.is_file()}
    read_files.clear()
    again = report_if_done(gather(load_job(str(job)), str(job)))
    assert again == first.up_to_date()
    after = {path: path.read_bytes() for path in Path(first.output).rglob("*") if path.is_file()}
    assert before == after
    assert read_files == []


def test_a_run_that_was_killed_after_its_commit_is_finished(corpus: JobCorpus) -> None:
    job = corpus.write_all()
    first = run(job)
    pointer = Path(first.output) / "LATEST"
    text = pointer.read_text()
    pointer.unlink()
    assert report_if_done(gather(load_job(str(job)), str(job))) is None
    assert run(job) == first.up_to_date()
    assert pointer.read_text() == text
    assert report_if_done(gather(load_job(str(job)), str(job))) == first.up_to_date()


def test_new_files_alone_are_read_and_clusters_keep_their_ids(
    corpus: JobCorpus, read_files: list[str]
) -> None:
    job = corpus.write_all()
    before = assignments(run(job))
    read_files.clear()
    corpus.write(corpus.files(corpus.draw(30), first=50))
    report = run(job)
    after = assignments(report)
    assert sorted(read_files) == ["documents/part-050.jsonl.gz", "documents/part-051.jsonl.gz"]
    assert report.files == {"all": 8, "new": 2, "changed": 0, "gone": 0}
    assert report.documents.items() >= {"all": 150, "vectorised": 30, "quarantined": 0}.items()
    assert (report.start, report.release) == ("warm", 2)
    assert not report.vocabulary["refit"]
    assert report.clusters["kept"] == 3
    assert {one: after[one] for one in before} == before


def test_new_answers_start_from_the_last_clusters(corpus: JobCorpus, read_files: list[str]) -> None:
    job = corpus.write_all()
    run(job)
    read_files.clear()
    corpus.write({"answers.csv": corpus.answers(60)})
    report = run(job)
    assert (report.start, sum(report.answers["pairs"].values())) == ("warm", 60)
    assert read_files == []
    assert report.fit["start_reason"]  # new answers had a say
    corpus.write(corpus.files(corpus.draw(20), first=50))
    report = run(job)
    assert report.fit["start_reason"] == ""  # they are not new now
    cold = run(job, output="cold")
    assert report.fit["iterations"] <= cold.fit["iterations"]


def test_changed_and_deleted_files_are_reported(corpus: JobCorpus) -> None:
    job = corpus.write_all(n_pairs=0)
    run(job)
    (corpus.folder / "documents" / "part-000.jsonl.gz").unlink()
    (corpus.folder / "documents" / "part-001.jsonl.gz").write_bytes(lines(corpus.draw(5)))
    report = run(job)
    assert report.files == {"all": 5, "new": 0, "changed": 1, "gone": 1}
    assert report.documents.items() >= {"all": 85, "vectorised": 85, "quarantined": 0}.items()
    assert len(assignments(report)) == 85


@pytest.mark.parametrize(
    ("refit", "is_new"), [("never", False), ("drift>5%", True), *long(("always", True))]
)
def test_the_vocabulary_is_made_again_when_the_words_change(
    refit: str, is_new: bool, corpus: JobCorpus, read_files: list[str]
) -> None:
    job = corpus.write_all(text={"refit": refit})
    before = assignments(run(job))
    read_files.clear()
    corpus.write(corpus.files(corpus.draw(20, words="entirely other words nobody wrote"), first=50))
    report = run(job)
    assert report.vocabulary["refit"] == is_new
    assert report.vocabulary["unknown_share"] > 0.1
    assert read_files == ["documents/part-050.jsonl.gz"]  # counts of the others are kept
    assert report.start == "warm"  # mapped through the words
    after = assignments(report)
    assert {one: after[one] for one in before} == before


def test_predict_gives_new_documents_clusters_of_the_last_model(corpus: JobCorpus) -> None:
    job = corpus.write_all()
    first = run(job)
    before = assignments(first)
    corpus.write(corpus.files(corpus.draw(30), first=50))
    (corpus.folder / "documents" / "part-000.jsonl.gz").unlink()
    report = run(job, mode="predict")
    after = assignments(report)
    assert (report.mode, report.fit, report.release) == ("predict", {}, 2)
    assert len(after) == 130
    gone = {one["id"] for one in corpus.documents[:20]}
    assert {one: after[one] for one in before if one not in gone} == {
        one: before[one] for one in before if one not in gone
    }
    assert report.places["model"] == first.places["model"]
    labels = {one["id"]: one["label"] for one in corpus.documents}
    assert len({(labels[one], cluster) for one, cluster in after.items()}) == 3
    clusters = pq.read_table(Path(report.output) / report.places["clusters"]).to_pydict()
    counted = dict(zip(*np.unique(list(after.values()), return_counts=True), strict=True))
    assert dict(zip(clusters["cluster"], clusters["size"], strict=True)) == counted
    assert run(job, mode="predict").status == "up to date"
    fitted = run(job, on_bad_record="quarantine")
    assert (fitted.mode, fitted.release, fitted.documents["all"]) == ("fit", 3, 130)


def test_predict_loses_no_document_whose_file_is_read_in_another_way(corpus: JobCorpus) -> None:
    job = corpus.write_all()
    before = assignments(run(job))
    manifest = next(one for one in corpus.folder.glob("*.yaml") if one != job)
    content = yaml.safe_load(manifest.read_text())
    del content["documents"]["label"]
    manifest.write_text(yaml.safe_dump(content))
    report = run(job, mode="predict")
    assert assignments(report) == before
    assert report.documents["all"] == len(before)


@QUARANTINED
def test_predict_finds_the_other_document_of_an_id_whose_first_is_gone(corpus: JobCorpus) -> None:
    job = corpus.write_all(on_bad_record="quarantine")
    twice = corpus.documents[0]
    corpus.write({"documents/part-900.jsonl.gz": lines([twice, *corpus.draw(3)])})
    assert run(job).documents["all"] == 123
    (corpus.folder / "documents/part-000.jsonl.gz").unlink()
    report = run(job, mode="predict")
    found = assignments(report)
    assert report.documents["all"] == len(found) == 104
    assert twice["id"] in found


def test_predict_needs_a_model(corpus: JobCorpus) -> None:
    with pytest.raises(ConfigurationError, match="mode predict must have a model"):
        run(corpus.write_all(), mode="predict")


BAD = b'{"id": "a", "text": "orbit"}\n{"id": "b"}\nnothing\n{"id": "a", "text": "moon"}\n'


def test_a_bad_record_stops_the_run_naming_file_and_line(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 3)
    corpus.write({"documents/bad.jsonl": BAD})
    with pytest.raises(InvalidInputError, match=r"documents/bad\.jsonl, line 2: the text"):
        run(job)
    assert latest(corpus.folder / "out") is None


@QUARANTINED
def test_bad_records_are_quarantined_with_the_reason(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 3, on_bad_record="quarantine", max_rejected=0.5)
    corpus.write({"documents/bad.jsonl": BAD})
    corpus.write({"documents/again.jsonl.gz": lines([corpus.documents[0]])})
    with (corpus.folder / "answers.csv").open("a") as file:
        file.write("nobody,space/0000,must\n")
    report = run(job)
    assert report.documents.items() >= {"all": 41, "vectorised": 42, "quarantined": 4}.items()
    assert report.answers["unknown"] == 1
    folder = Path(report.output) / report.places["rejects"]
    content = [
        json.loads(line)
        for path in sorted(folder.iterdir())
        for line in path.read_text().splitlines()
    ]
    reasons = {(one["source"], one["line"]) for one in content}
    assert reasons == {
        ("documents/bad.jsonl", 2),
        ("documents/bad.jsonl", 3),
        ("documents/bad.jsonl", 4),
        ("documents/part-000.jsonl.gz", 0),
        ("answers.csv", 5),
    }
    assert all(one["reason"] for one in content)
    assert len(assignments(report)) == 41
    release = latest(report.output)
    assert release is not None
    assert f"{report.places['rejects']}/answers.jsonl" in release.files
    with pytest.raises(InvalidInputError, match="line 2"):  # counted, but no longer quarantined
        run(job, on_bad_record="stop")


@QUARANTINED
@pytest.mark.parametrize("damaged", [None, *long("labels-*.parquet", "rejects-*.jsonl")])
def test_what_was_kept_with_documents_and_is_lost_is_read_again(
    damaged: str | None, corpus: JobCorpus
) -> None:
    job = corpus.write_all(40, 3, on_bad_record="quarantine", max_rejected=0.5)
    corpus.write({"documents/bad.jsonl": BAD})
    first = run(job)
    stored = Path(first.output) / "documents"
    if damaged is None:
        shutil.rmtree(stored)
    else:
        path = next(stored.glob(f"*/{damaged}"))
        path.write_bytes(path.read_bytes()[:-20])
    corpus.write({"answers.csv": corpus.answers(5)})
    with pytest.warns(HmrfWarning, match=r"documents/.*; it is made again of the documents"):
        report = run(job)
    assert report.documents["quarantined"] == first.documents["quarantined"]
    assert report.nmi == pytest.approx(1.0)


def test_documents_of_two_files_with_one_id_stop_the_run(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0)
    corpus.write({"documents/again.jsonl.gz": lines([corpus.documents[30]])})
    with pytest.raises(
        InvalidInputError,
        match=r"'space/0030' in documents/again\.jsonl\.gz and documents/part-001\.jsonl\.gz",
    ):
        run(job)


def test_pairs_that_name_unknown_documents_stop_the_run(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 3)
    with (corpus.folder / "answers.csv").open("a") as file:
        file.write("nobody,space/0000,must\n")
    with pytest.raises(
        InvalidInputError, match=r"answers\.csv, line 5: .* unknown 'nobody'; correct"
    ):
        run(job)


def test_answers_of_several_files_are_put_together(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 6, answers=["more.jsonl"])
    one, other = corpus.documents[0]["id"], corpus.documents[3]["id"]
    more = json.dumps({"a": one, "b": other, "kind": "must", "weight": 2.0})
    corpus.write({"more.jsonl": f"{more}\n".encode()})
    assert sum(run(job).answers["pairs"].values()) == 7


def test_a_default_that_is_written_out_changes_nothing(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0)
    run(job)
    written_out = {"n_clusters": 3, "n_init": 2, "random_state": 0, "name": "HMRFKMeans"}
    again = run(job, method=written_out, start="warm", keep=5, cluster={"local": 1})
    assert again.status == "up to date"


def test_files_that_are_read_in_another_way_are_counted(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0)
    run(job)
    corpus.write(corpus.files(corpus.draw(20), first=50))
    assert run(job, text={"sublinear_tf": True}).documents["vectorised"] == 20
    assert run(job, text={"lowercase": False}).documents["vectorised"] == 80
    manifest = corpus.folder / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("label: label", "empty_text: keep"))
    report = run(job, text={"lowercase": False})
    assert (report.files["changed"], report.documents["vectorised"]) == (0, 80)


def test_another_configuration_is_another_run(corpus: JobCorpus) -> None:
    job = corpus.write_all()
    run(job)
    report = run(job, method={"n_clusters": 4, "n_init": 2})
    assert (report.release, report.start, report.clusters["number"]) == (2, "cold", 4)


def test_an_output_that_is_held_says_who_holds_it(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0)
    with held(corpus.folder / "out", "another"), pytest.raises(HeldError, match="run another"):
        run(job)
    assert run(job).status == "done"


def test_embeddings_are_rows(corpus: JobCorpus) -> None:
    generator = np.random.default_rng(0)
    corpus.draw(60)
    centres = {"space": [3, 0, 0, 1], "motor": [0, 3, 0, 1], "faith": [0, 0, 3, 1]}
    rows = [
        {**one, "vector": (np.array(centres[one["label"]]) + generator.random(4)).tolist()}
        for one in corpus.documents
    ]
    corpus.write(
        {"documents/a.jsonl.gz": lines(rows[:40]), "documents/b.jsonl.gz": lines(rows[40:])}
    )
    corpus.write({"answers.csv": corpus.answers(10)})
    columns = {"text": None, "embedding": "vector", "label": "label"}
    report = run(corpus.write_job(columns=columns, text={"kind": "embeddings"}))
    assert report.nmi == pytest.approx(1.0)
    assert report.vocabulary == {}
    assert run(corpus.folder / "job.yaml").status == "up to date"


def test_embeddings_need_a_column(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, text={"kind": "embeddings"})
    with pytest.raises(ConfigurationError, match=r"no documents\.embedding in the manifest"):
        run(job)


def test_no_space_left_is_said_in_words(corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    job = corpus.write_all(20, 0)
    monkeypatch.setattr("hmrf_dask.estimators.base.save_model", full)
    with pytest.raises(RunUnavailableError, match="there must be space to write") as caught:
        run(job)
    assert caught.value.exit_code == 75
    monkeypatch.undo()
    assert run(job).status == "done"


def test_old_releases_are_removed(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0, keep=1)
    first = run(job)
    corpus.write(corpus.files(corpus.draw(20), first=50))
    second = run(job)
    runs = {path.name for path in (Path(second.output) / "runs").iterdir()}
    assert runs == {second.run}
    assert first.run != second.run


def test_runs_that_failed_leave_nothing_that_no_run_can_use(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = corpus.write_all(40, 0)
    folder = corpus.folder / "out" / "runs"
    first = run(job)
    corpus.write({"documents/bad.jsonl": BAD})
    with pytest.raises(InvalidInputError, match="line 2"):
        run(job)
    assert [path.name for path in folder.iterdir()] == [first.run]
    (corpus.folder / "documents" / "bad.jsonl").unlink()

    def away(*_: object, **__: object) -> None:
        raise RunUnavailableError("the store is away")

    left = set()
    for n_clusters in (4, 5):
        with monkeypatch.context() as patch:
            patch.setattr("hmrf_dask.jobs.release.write_clusters", away)
            with pytest.raises(RunUnavailableError):
                run(job, method={"n_clusters": n_clusters, "n_init": 2})
        (one,) = {path.name for path in folder.iterdir()} - {first.run}  # it may be resumed
        left.add(one)
    assert len(left) == 2
    resumed = run(job, method={"n_clusters": 5, "n_init": 2})
    assert resumed.run == one


def test_what_no_release_needs_is_swept(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, text={"refit": "always"})
    for number in range(3):  # a file goes each time, and a vocabulary
        report = run(job)
        (corpus.folder / "documents" / f"part-{number:03}.jsonl.gz").unlink()
        corpus.write(corpus.files(corpus.draw(20, words=f"word{number}"), first=50 + number))
    there = {
        name: {path.name for path in (Path(report.output) / name).iterdir()}
        for name in ("counts", "documents", "rows", "vocabularies")
    }
    assert len(there["vocabularies"]) == 2  # this one, and that of the release before
    assert there["rows"] == there["vocabularies"]
    assert len(there["counts"]) == len(there["documents"]) == 4


@pytest.mark.parametrize(
    "text",
    [
        {"kind": "characters", "ngram_range": [3, 4], "min_df": 2},
        {"kind": "hashing", "n_features": 4096, "sublinear_tf": True},
        {"kind": "words", "ngram_range": [1, 2], "lsa": 5, "stop_words": "english"},
    ],
)
def test_other_kinds_of_rows(text: dict[str, Any], corpus: JobCorpus) -> None:
    job = corpus.write_all(text=text)
    before = assignments(run(job))
    corpus.write(corpus.files(corpus.draw(20), first=50))
    report = run(job)
    assert report.nmi == pytest.approx(1.0)
    assert report.clusters["kept"] == 3
    assert {one: assignments(report)[one] for one in before} == before
    clusters = pq.read_table(Path(report.output) / report.places["clusters"]).to_pydict()
    assert all(len(words) == 10 for words in clusters["top_words"])


def test_the_job_file_may_be_anywhere(corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    job = corpus.write_all(20, 0)
    monkeypatch.chdir(corpus.folder.parent)
    assert run(Path(corpus.folder.name) / "job.yaml").output == str(corpus.folder / "out")
    assert yaml.safe_load(job.read_text())["output"] == "out"
