"""Bundles of small files: one partition for many, and each file still stands for itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmrf_dask.documents.batches import read_batches
from hmrf_dask.errors import InvalidInputError, SourceUnavailableError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.jobs import bundles, bundling, inputs
from hmrf_dask.jobs.bundling import bundled
from hmrf_dask.jobs.places import assignment_files
from hmrf_dask.releases.release import latest
from hmrf_dask.text.files import Place
from tests.support.bundles import by_path, ledger, of_size, paths
from tests.support.job_corpus import JobCorpus, names_of, one_each, write_one
from tests.support.job_runs import QUARANTINED, assigned, note_reads, run


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the files that are read."""
    return note_reads(monkeypatch)


# ---- which files share one


def test_small_neighbours_share_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "FILES", 3)
    monkeypatch.setattr(bundling, "BYTES", 100)
    monkeypatch.setattr(bundling, "SMALL", 60)
    files = [of_size(f"{n:02}", size) for n, size in enumerate([0, 5, 5, 5, 61, 50, 60, 40, 1])]
    files.append(of_size("builtin://x", 0, "builtin"))
    found = bundled(files, {}, Place("out"), stop=True)
    assert paths(found) == [
        ["00", "01", "02"], ["03", "05"], ["04"], ["06", "07"], ["08"], ["builtin://x"]
    ]  # fmt: skip
    assert len({one.key for one in found}) == len(found)
    assert all(not one.origins for one in found)


def test_compressed_files_count_for_the_text_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "SMALL", 80)
    files = [of_size(f"{n}", 11) for n in range(4)]
    for file in files[:2]:
        object.__setattr__(file, "source", replace(file.source, compression="gz"))
    found = bundled(files, {}, Place("out"), stop=True)
    assert paths(found) == [["0"], ["1"], ["2", "3"]]


def test_files_stay_in_their_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "FILES", 3)
    files = [of_size(f"{n:02}", 5) for n in range(6)]
    first = bundled(files, {}, Place("out"), stop=True)
    more = [of_size("001", 5), *files, of_size("07", 5)]
    found = bundled(sorted(more, key=by_path), ledger(first), Place("out"), stop=True)
    assert paths(found) == [["00", "01", "02"], ["001", "07"], ["03", "04", "05"]]
    changed = [*files[:4], of_size("04", 6)]  # the sixth is gone
    found = bundled(changed, ledger(first), Place("out"), stop=True)
    assert paths(found) == [["00", "01", "02"], ["03"], ["04"]]
    assert [one.origins for one in found] == [(), (first[1].key,), ()]
    assert found[0].key == first[0].key
    again = bundled(changed, ledger(found), Place("out"), stop=True)
    assert [(one.key, one.origins) for one in again] == [(one.key, ()) for one in found]


def test_a_ledger_of_former_versions_tells_of_no_bundles() -> None:
    files = [of_size("a", 5)]
    found = bundled(files, {"a": [5, "1", "counts", "documents"]}, Place("out"), stop=True)
    assert [(paths([one]), one.origins) for one in found] == [([["a"]], ())]


# ---- runs


def test_bundles_give_the_bits_of_files_alone(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = one_each(corpus, 60)
    together = run(job, output="together")
    assert len(assignment_files(together.output)) == 1
    monkeypatch.setattr(bundling, "FILES", 1)
    alone = run(job, output="alone")
    assert len(assignment_files(alone.output)) == 60
    monkeypatch.setattr(bundling, "FILES", 7)
    some = run(job, output="some")
    assert len(assignment_files(some.output)) == 9
    assert assigned(together) == assigned(alone) == assigned(some)
    assert together.fit["J"] == alone.fit["J"] == some.fit["J"]
    assert together.nmi == alone.nmi == some.nmi == pytest.approx(1.0)


def test_a_batch_ends_before_it_is_too_large(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = one_each(corpus, 60)
    expected = assigned(run(job, output="whole"))
    monkeypatch.setattr(bundles, "BATCH_ROWS", 25)
    report = run(job, output="cut")
    assert len(assignment_files(report.output)) == 3
    assert assigned(report) == expected


@pytest.mark.parametrize("refit", ["always", "never"])
def test_only_bundles_with_a_changed_file_are_read_again(
    refit: str, corpus: JobCorpus, read_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "FILES", 16)
    job = one_each(corpus, 60, text={"refit": refit}, start="cold")
    run(job)
    gone, changed = corpus.documents[6], corpus.documents[30]
    (corpus.folder / write_one(corpus, gone)).unlink()
    read_files.clear()
    name = write_one(corpus, {**changed, "text": "orbit moon rocket people time"})
    report = run(job)
    names = sorted(names_of(corpus, list(range(60))))
    both = {names.index(one) // 16 for one in (name, *names_of(corpus, [6]))}
    assert len(both) == 2  # of the four bundles
    again = {one for place, one in enumerate(names) if place // 16 in both}
    assert sorted(read_files) == sorted(again - set(names_of(corpus, [6])))
    assert report.files == {"all": 59, "new": 0, "changed": 1, "gone": 1}
    told = {"all": 59, "vectorised": len(read_files), "quarantined": 0}
    assert report.documents.items() >= told.items()
    found = assigned(report)
    if refit == "always":  # then nothing is left of the run before
        fresh = run(job, output="fresh")
        assert report.fit["J"] == fresh.fit["J"]
        assert report.vocabulary["terms"] == fresh.vocabulary["terms"]
        assert {n: row["distortion"] for n, row in found.items()} == {
            n: row["distortion"] for n, row in assigned(fresh).items()
        }
    read_files.clear()
    assert run(job, on_bad_record="quarantine").documents["vectorised"] == 0
    assert read_files == []


@pytest.mark.parametrize("folder", ["counts", "documents"])
def test_lost_counts_of_a_bundle_are_made_again(
    folder: str, corpus: JobCorpus, read_files: list[str]
) -> None:
    job = one_each(corpus, 30, start="cold", text={"refit": "always"})
    report = run(job)
    expected = assigned(report)
    for path in (Path(report.output) / folder).rglob("*.*"):
        path.unlink()
    read_files.clear()
    (corpus.folder / names_of(corpus, [3])[0]).unlink()
    report = run(job)
    assert len(read_files) == 29
    assert set(assigned(report)) == set(expected) - {corpus.documents[3]["id"]}


@QUARANTINED
def test_who_is_left_keeps_records_and_classes(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = one_each(corpus, 30, on_bad_record="quarantine", max_rejected=0.1)
    names = names_of(corpus, [3, 4])
    for name in names:  # a line that is no document
        with (corpus.folder / name).open("a") as file:
            file.write(f"{name}\n")
    with pytest.raises(InvalidInputError, match=rf"{names[1]}, line 2: not JSON"):
        run(job, on_bad_record="stop", output="stopped")
    assert run(job).documents.items() >= {"all": 30, "vectorised": 30, "quarantined": 2}.items()
    (corpus.folder / names[1]).unlink()
    report = run(job)
    assert report.documents.items() >= {"all": 29, "vectorised": 29, "quarantined": 1}.items()
    assert report.nmi == pytest.approx(1.0)
    release = latest(report.output)
    assert release is not None
    (kept,) = [name for name in release.files if "/rejects/" in name]
    told = json.loads((Path(report.output) / kept).read_text())
    assert (told["source"], told["line"]) == (names[0], 2)
    with pytest.raises(InvalidInputError, match=rf"{names[0]}, line 2"):  # it is only known
        run(job, on_bad_record="stop")


@QUARANTINED
def test_an_id_of_two_files_of_a_bundle(corpus: JobCorpus) -> None:
    job = one_each(corpus, 30)
    twice = corpus.documents[7]
    corpus.write({"documents/a-copy.jsonl": f"{json.dumps(twice)}\n".encode()})
    (name,) = names_of(corpus, [7])
    with pytest.raises(InvalidInputError, match=rf"in documents/a-copy\.jsonl and {name}"):
        run(job)
    report = run(job, on_bad_record="quarantine")
    assert report.documents["all"] == len(assigned(report)) == 30
    (kept,) = (Path(report.output) / report.places["rejects"]).iterdir()
    assert json.loads(kept.read_text())["source"] == name
    (corpus.folder / "documents/a-copy.jsonl").unlink()
    predicted = run(job, on_bad_record="quarantine", mode="predict")
    assert predicted.documents["all"] == len(assigned(predicted)) == 30


def test_predict_leaves_what_pairs_had_decided(corpus: JobCorpus) -> None:
    job = one_each(corpus, 30)
    one, other = corpus.documents[0]["id"], corpus.documents[1]["id"]
    corpus.write({"answers.csv": f"a,b,kind,weight\n{one},{other},must,1000\n".encode()})
    before = assigned(run(job))
    assert before[one]["cluster"] == before[other]["cluster"]
    (corpus.folder / names_of(corpus, [5])[0]).unlink()
    report = run(job, mode="predict")
    del before[corpus.documents[5]["id"]]
    assert assigned(report) == before
    again = run(job, mode="predict")
    assert again.status == "up to date"


def test_a_file_that_changes_while_it_is_read(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = one_each(corpus, 30)
    (name,) = names_of(corpus, [9])

    def read(source: Any, columns: Any) -> Any:
        if source.path == name:
            (corpus.folder / name).write_text("{}")
        return read_batches(source, columns)

    monkeypatch.setattr(inputs, "read_batches", read)
    with pytest.raises(SourceUnavailableError, match=name):
        run(job)
    assert not list((corpus.folder / "out").glob("counts/*/counts.json"))


def test_batches_keep_their_numbers(corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in corpus.draw(40):
        write_one(corpus, {**one, "vector": [len(one["text"]), int(one["id"][-2:]) % 7, 1]})
    corpus.write({"answers.csv": corpus.answers(10)})
    columns = {"text": None, "embedding": "vector", "label": "label"}
    job = corpus.write_job(columns=columns, text={"kind": "embeddings"})
    monkeypatch.setattr(bundles, "BATCH_ROWS", 10)
    before = assigned(run(job))
    names = sorted(path.name for path in (corpus.folder / "documents").iterdir())
    for some in (names[10:20], names[25:26], names[30:]):  # all of a batch, one, the last
        for name in some:
            (corpus.folder / "documents" / name).unlink()
            del before[name.removesuffix(".jsonl").replace("-", "/")]
        report = run(job, mode="predict")
        assert assigned(report) == before


def test_embeddings_share_a_bundle_too(corpus: JobCorpus, read_files: list[str]) -> None:
    generator = np.random.default_rng(0)
    centres = {"space": [3, 0, 0, 1], "motor": [0, 3, 0, 1], "faith": [0, 0, 3, 1]}
    for one in corpus.draw(30):
        vector = np.array(centres[one["label"]]) + generator.random(4)
        write_one(corpus, {**one, "vector": vector.tolist()})
    corpus.write({"answers.csv": corpus.answers(10)})
    columns = {"text": None, "embedding": "vector", "label": "label"}
    job = corpus.write_job(columns=columns, text={"kind": "embeddings"}, start="cold")
    assert len(assignment_files(run(job).output)) == 1
    read_files.clear()
    (corpus.folder / names_of(corpus, [3])[0]).unlink()
    report = run(job)
    assert len(read_files) == 29
    assert report.nmi == pytest.approx(1.0)
    assert report.fit["J"] == run(job, output="fresh").fit["J"]
    write_one(corpus, {**corpus.documents[4], "vector": [1.0, 2.0]})
    write_one(corpus, {**corpus.documents[5], "vector": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(InvalidInputError, match=r"same length in all files, got 2 in .* 4 in"):
        run(job)


def test_half_a_file_of_a_killed_attempt_is_not_released(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = HMRFEstimator.save

    def left(model: HMRFEstimator, folder: str) -> None:
        save(model, folder)
        (Path(folder) / ".minimum.npy.0123.temporary").write_bytes(b"half")

    monkeypatch.setattr(HMRFEstimator, "save", left)
    release = latest(run(one_each(corpus, 30)).output)
    assert release is not None
    assert not any("temporary" in name for name in release.files)


@QUARANTINED
def test_of_many_bad_records_the_first_are_listed_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmrf_dask.jobs.bundles.REJECTS_LISTED", 5)
    corpus = JobCorpus(tmp_path)
    job = corpus.write_all(45, 0, on_bad_record="quarantine", max_rejected=1.0)
    corpus.write({"documents/bad.jsonl": b"no\n" * 12})
    report = run(job)
    assert report.documents["quarantined"] == 12
    folder = Path(report.output) / report.places["rejects"]
    listed = [json.loads(line) for one in folder.iterdir() for line in one.read_text().splitlines()]
    assert [one["line"] for one in listed] == [1, 2, 3, 4, 5, 0]
    assert listed[-1]["reason"].startswith("7 more records are no documents")
