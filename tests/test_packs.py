"""Packs of small files: one partition for many, each file still stands for itself, at any age."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmrf_dask.documents import segments
from hmrf_dask.documents.batches import read_batches
from hmrf_dask.documents.files import DocumentFile
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.segments import DocumentSegment, Files
from hmrf_dask.documents.sources import Segment
from hmrf_dask.errors import InvalidInputError, SourceUnavailableError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.jobs import packs
from hmrf_dask.jobs.packs import MANY, TIERS, Pack, packed
from hmrf_dask.jobs.parent import FileEntry, Keys, entries, files_of
from hmrf_dask.jobs.places import Report, assignment_files
from hmrf_dask.releases import lock, ownership
from hmrf_dask.releases.release import latest
from hmrf_dask.text.files import Place
from tests.support.job_corpus import JobCorpus, names_of, one_each, write_one
from tests.support.job_runs import QUARANTINED, assigned, note_reads, run
from tests.support.long_cases import long

METHOD = {"n_clusters": 3, "n_init": 1, "random_state": 1}
MOST = MANY * TIERS  # packs of nights, and those that nothing is missing of


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the files that are read."""
    return note_reads(monkeypatch)


# ---- which files share one


def of_size(path: str, size: int, kind: str = "jsonl") -> DocumentSegment:
    return of_file(DocumentFile(path, path, size, "1", kind))


def of_file(file: DocumentFile) -> DocumentSegment:
    columns = Columns()
    segment = DocumentSegment(
        Files(columns), Segment(file.path, file.size, file.etag, file), columns
    )
    return segment.parts()[0]


def paths(found: list[Pack]) -> list[list[str]]:
    return [[one.name for one in pack.files] for pack in found]


def by_path(file: DocumentSegment) -> str:
    return file.name


def ledger(found: list[Pack]) -> dict[str, FileEntry]:
    """Return the files that a release of packs lists, as its JSON has them."""
    keys = {f.name: [Keys("counts", one.key, f.key)] for one in found for f in one.files}
    written = entries([f for one in found for f in one.files], keys)
    return files_of(json.loads(json.dumps({"sources": written})))


def test_small_neighbours_share_a_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_FILES", 3)
    monkeypatch.setattr(packs, "PACK_BYTES", 100)
    monkeypatch.setattr(packs, "SMALL", 60)
    files = [of_size(f"{n:02}", size) for n, size in enumerate([0, 5, 5, 5, 61, 50, 60, 40, 1])]
    files.append(of_size("builtin://x", 0, "builtin"))
    found = packed(files, {}, Place("out"), stop=True)
    assert paths(found) == [
        ["00", "01", "02"], ["03", "05"], ["04"], ["06", "07"], ["08"], ["builtin://x"]
    ]  # fmt: skip
    assert len({one.key for one in found}) == len(found)
    assert all(not one.origins for one in found)


def test_compressed_files_count_for_the_text_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SMALL", 80)
    files = [DocumentFile(f"{n}", f"{n}", 11, "1", "jsonl") for n in range(4)]
    some = [replace(file, compression="gz") for file in files[:2]]
    files = list(map(of_file, [*some, *files[2:]]))
    found = packed(files, {}, Place("out"), stop=True)
    assert paths(found) == [["0"], ["1"], ["2", "3"]]


def test_files_stay_in_their_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_FILES", 3)
    files = [of_size(f"{n:02}", 5) for n in range(6)]
    first = packed(files, {}, Place("out"), stop=True)
    more = [of_size("001", 5), *files, of_size("07", 5)]
    found = packed(sorted(more, key=by_path), ledger(first), Place("out"), stop=True)
    assert paths(found) == [["00", "01", "02"], ["001", "07"], ["03", "04", "05"]]
    changed = [*files[:4], of_size("04", 6)]  # the sixth is gone
    found = packed(changed, ledger(first), Place("out"), stop=True)
    assert paths(found) == [["00", "01", "02"], ["03"], ["04"]]
    assert [one.origins for one in found] == [(), (first[1].key,), ()]
    assert found[0].key == first[0].key
    again = packed(changed, ledger(found), Place("out"), stop=True)
    assert [(one.key, one.origins) for one in again] == [(one.key, ()) for one in found]


def test_a_ledger_of_former_versions_names_no_packs() -> None:
    files = [of_size("a", 5)]
    before = files_of({"sources": {"a": [5, "1", "counts", "documents"]}})
    found = packed(files, before, Place("out"), stop=True)
    assert [(paths([one]), one.origins) for one in found] == [([["a"]], ())]


# ---- runs


@pytest.mark.parametrize("refit", ["always", *long("never")])
def test_only_packs_with_a_changed_file_are_read_again(
    refit: str, corpus: JobCorpus, read_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "PACK_FILES", 16)
    job = one_each(corpus, 60, text={"refit": refit}, start="cold")
    run(job)
    gone, changed = corpus.documents[6], corpus.documents[30]
    (corpus.folder / write_one(corpus, gone)).unlink()
    read_files.clear()
    name = write_one(corpus, {**changed, "text": "orbit moon rocket people time"})
    report = run(job)
    names = sorted(names_of(corpus, list(range(60))))
    both = {names.index(one) // 16 for one in (name, *names_of(corpus, [6]))}
    assert len(both) == 2  # of the four packs
    again = {one for place, one in enumerate(names) if place // 16 in both}
    assert sorted(read_files) == sorted(again - set(names_of(corpus, [6])))
    assert report.files == {"all": 59, "new": 0, "changed": 1, "gone": 1}
    counts = {"all": 59, "vectorised": len(read_files), "quarantined": 0}
    assert report.documents.items() >= counts.items()
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


@pytest.mark.parametrize("folder", ["counts", *long("documents")])
def test_lost_counts_of_a_pack_are_made_again(
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
    counts = json.loads((Path(report.output) / kept).read_text())
    assert (counts["source"], counts["line"]) == (names[0], 2)
    with pytest.raises(InvalidInputError, match=rf"{names[0]}, line 2"):  # it is only known
        run(job, on_bad_record="stop")


@QUARANTINED
def test_an_id_of_two_files_of_a_pack(corpus: JobCorpus) -> None:
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

    def read(source: Any, columns: Any, **limits: Any) -> Any:
        if source.path == name:
            (corpus.folder / name).write_text("{}")
        return read_batches(source, columns, **limits)

    monkeypatch.setattr(segments, "read_batches", read)
    with pytest.raises(SourceUnavailableError, match=name):
        run(job)
    assert not list((corpus.folder / "out").glob("counts/*/counts.json"))


def test_batches_keep_their_numbers(corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in corpus.draw(40):
        write_one(corpus, {**one, "vector": [len(one["text"]), int(one["id"][-2:]) % 7, 1]})
    corpus.write({"answers.csv": corpus.answers(10)})
    columns = {"text": None, "embedding": "vector", "label": "label"}
    job = corpus.write_job(columns=columns, text={"kind": "embeddings"})
    monkeypatch.setattr(packs, "BATCH_ROWS", 10)
    before = assigned(run(job))
    names = sorted(path.name for path in (corpus.folder / "documents").iterdir())
    for some in (names[10:20], names[25:26], names[30:]):  # all of a batch, one, the last
        for name in some:
            (corpus.folder / "documents" / name).unlink()
            del before[name.removesuffix(".jsonl").replace("-", "/")]
        report = run(job, mode="predict")
        assert assigned(report) == before


def test_embeddings_share_a_pack_too(corpus: JobCorpus, read_files: list[str]) -> None:
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
    monkeypatch.setattr("hmrf_dask.jobs.packs.REJECTS_LISTED", 5)
    corpus = JobCorpus(tmp_path)
    job = corpus.write_all(45, 0, on_bad_record="quarantine", max_rejected=1.0)
    corpus.write({"documents/bad.jsonl": b"no\n" * 12})
    report = run(job)
    assert report.documents["quarantined"] == 12
    folder = Path(report.output) / report.places["rejects"]
    listed = [json.loads(line) for one in folder.iterdir() for line in one.read_text().splitlines()]
    assert [one["line"] for one in listed] == [1, 2, 3, 4, 5, 0]
    assert listed[-1]["reason"].startswith("7 more records are no documents")


# ---- packs of many nights


def night_of(files: list[DocumentSegment], before: list[Pack], **made: Any) -> list[Pack]:
    return packed(sorted(files, key=by_path), ledger(before), Place("out"), stop=True, **made)


def nights(n_nights: int, sizes: itertools.cycle[int]) -> tuple[list[Pack], Counter[str], int]:
    """Return the packs after nights with three files each, how often each was read, the most."""
    files: list[DocumentSegment] = []
    found: list[Pack] = []
    reads: Counter[str] = Counter()
    most = 0
    for night in range(n_nights):
        files += [of_size(f"{night:04}-{n}", next(sizes)) for n in range(3)]
        known = {one.key for one in found}
        found = night_of(files, found)
        reads.update(f.name for one in found if one.key not in known for f in one.files)
        assert {f.key for one in found for f in one.files} == {f.key for f in files}
        most = max(most, sum(1 for one in found if sum(f.size for f in one.files) < 500))
    return found, reads, most


def test_small_packs_of_many_nights_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 1000)
    monkeypatch.setattr(packs, "PACK_FILES", 100)
    monkeypatch.setattr(packs, "SMALL", 300)
    found, reads, most = nights(150, itertools.cycle([1, 7, 0, 20, 3]))
    assert most <= MOST
    assert len(found) <= MOST + 150 * 3 * 31 / 5 / 500  # others are more than half full
    assert max(reads.values()) <= 1 + 2 * TIERS
    for one in found:
        assert len(one.files) <= 100
        assert sum(f.size for f in one.files) <= 1000
    full, *_ = nights(40, itertools.cycle([300]))  # three nearly fill one: nothing to gain
    assert len(full) == 40


def test_which_packs_are_merged_follows_from_the_last_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packs, "SMALL", 300)
    large = of_size("large", 301)
    files, found = [large], night_of([large], [])
    for night in range(MANY):
        files.append(of_size(f"{night}", 5))
        found = night_of(files, found)
    # Tonight's comes to the seven of other nights; the next run brings the eight together.
    assert len(found) == MANY + 1
    assert not any(one.origins for one in found)
    joined = night_of(files, found)
    assert paths(joined) == [[f"{n}" for n in range(MANY)], ["large"]]
    assert sorted(joined[0].origins) == sorted(one.key for one in found[:-1])
    again = night_of(list(reversed(files)), found)
    assert [(one.key, one.origins) for one in again] == [(one.key, one.origins) for one in joined]
    assert not any(one.origins for one in night_of(files, joined))
    # One that lost a file is not whole, and packs with other counts stay as they are.
    some = night_of(files[:-1], found)
    assert len(some) == MANY
    made = packed(
        sorted(files, key=by_path), _counted(found), Place("out"), stop=True, made_of=["counts-3"]
    )
    assert len(made) == MANY + 1


def _counted(found: list[Pack]) -> dict[str, FileEntry]:
    """Return a ledger whose packs have counts of their own."""
    return {
        path: entry._replace(keys=[one._replace(counts=f"counts-{n}") for one in entry.keys])
        for n, (path, entry) in enumerate(sorted(ledger(found).items()))
    }


def nightly(corpus: JobCorpus, job: Path, night: int, **changes: Any) -> Report:
    """Bring three small files, and run."""
    for number in range(3):
        corpus.write(corpus.files(corpus.draw(2), first=100 + 10 * night + number))
    return run(job, **changes)


def counted(report: Report) -> tuple[int, int]:
    """Return how many packs a release has, and how many files lie in the output."""
    output = Path(report.output)
    release = latest(output)
    assert release is not None
    keys = {keys[1] for *_, parts in release.ledger["sources"].values() for keys in parts}
    return len(keys), sum(1 for path in output.rglob("*") if path.is_file())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring packs together, and end old records, after fewer nights."""
    monkeypatch.setattr(packs, "MANY", 4)
    monkeypatch.setattr(ownership, "HISTORY", 9)
    monkeypatch.setattr(lock, "_KEPT", 9)


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_after_twenty_nights_there_are_few_files(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, n_pairs=6, method=METHOD)
    run(job)
    for night in range(20):
        report = nightly(corpus, job, night)
        assert report.documents["new"] == 6
        n_packs, n_files = counted(report)
        assert n_packs <= 4 * TIERS
        assert n_files <= 240  # it would be 367 where each night left its own
    assert len(assigned(report)) == 60 + 20 * 6


@pytest.mark.usefixtures("short")
def test_a_prediction_leaves_documents_as_they_were_whatever_pack_they_come_to(
    corpus: JobCorpus,
) -> None:
    job = corpus.write_all(60, n_pairs=6, method=METHOD)
    expected = assigned(run(job))
    n_packs = []
    for night in range(9):
        report = nightly(corpus, job, night, mode="predict")
        now = assigned(report)
        assert {one: now[one] for one in expected} == expected
        counts = {"all": 66 + 6 * night, "new": 6, "changed": 0, "gone": 0, "moved": 0}
        assert report.documents.items() >= counts.items()
        n_packs.append(counted(report)[0])
        expected = now
    assert max(n_packs) <= 4 * TIERS
    assert n_packs != sorted(n_packs)  # some were merged


def test_labels_are_those_of_a_fresh_run(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "MANY", 3)
    text = {"refit": "always"}
    job = corpus.write_all(60, n_pairs=6, method=METHOD, start="cold", text=text)
    run(job)
    seen = note_reads(monkeypatch)
    read = []
    for night in range(7):
        seen.clear()
        report = nightly(corpus, job, night)
        n_first = sum("part-0" in name for name in seen)  # 20 documents each, others have 2
        assert report.documents["vectorised"] == 2 * len(seen) + 18 * n_first
        read.append(len(seen))
    assert max(read) > min(read) == 3  # others were read once more, when packs became one
    fresh = run(job, output="fresh")
    assert report.fit["J"] == fresh.fit["J"]
    both = [{n: row["distortion"] for n, row in assigned(one).items()} for one in (report, fresh)]
    assert both[0] == both[1]
    clusters = [{n: row["cluster"] for n, row in assigned(one).items()} for one in (report, fresh)]
    assert len(set(zip(clusters[0].values(), clusters[1].values(), strict=True))) == 3
