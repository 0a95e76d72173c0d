"""Small files of many nights: bundles are brought together, and no answer depends on it."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.jobs import bundling
from hmrf_dask.jobs.bundles import Bundle
from hmrf_dask.jobs.bundling import MANY, TIERS, bundled
from hmrf_dask.jobs.inputs import DocumentSource
from hmrf_dask.jobs.report import Report
from hmrf_dask.releases import lock, ownership
from hmrf_dask.releases.release import latest
from hmrf_dask.text.files import Place
from tests.support.bundles import by_path, ledger, of_size, paths
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, note_reads, run

METHOD = {"n_clusters": 3, "n_init": 1, "random_state": 1}
MOST = MANY * TIERS  # bundles of nights, and those that nothing is missing of


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def packed(files: list[DocumentSource], before: list[Bundle], **made: Any) -> list[Bundle]:
    return bundled(sorted(files, key=by_path), ledger(before), Place("out"), stop=True, **made)


def nights(n_nights: int, sizes: itertools.cycle[int]) -> tuple[list[Bundle], Counter[str], int]:
    """Return the bundles after nights with three files each, how often each was read, the most."""
    files: list[DocumentSource] = []
    found: list[Bundle] = []
    reads: Counter[str] = Counter()
    most = 0
    for night in range(n_nights):
        files += [of_size(f"{night:04}-{n}", next(sizes)) for n in range(3)]
        known = {one.key for one in found}
        found = packed(files, found)
        reads.update(f.source.path for one in found if one.key not in known for f in one.files)
        assert {f.key for one in found for f in one.files} == {f.key for f in files}
        most = max(most, sum(1 for one in found if sum(f.source.n_bytes for f in one.files) < 500))
    return found, reads, most


def test_small_bundles_of_many_nights_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "BYTES", 1000)
    monkeypatch.setattr(bundling, "FILES", 100)
    monkeypatch.setattr(bundling, "SMALL", 300)
    found, reads, most = nights(150, itertools.cycle([1, 7, 0, 20, 3]))
    assert most <= MOST
    assert len(found) <= MOST + 150 * 3 * 31 / 5 / 500  # others are more than half full
    assert max(reads.values()) <= 1 + 2 * TIERS
    for one in found:
        assert len(one.files) <= 100
        assert sum(f.source.n_bytes for f in one.files) <= 1000
    full, *_ = nights(40, itertools.cycle([300]))  # three nearly fill one: nothing to gain
    assert len(full) == 40


def test_what_is_brought_together_follows_from_the_last_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundling, "SMALL", 300)
    large = of_size("large", 301)
    files, found = [large], packed([large], [])
    for night in range(MANY):
        files.append(of_size(f"{night}", 5))
        found = packed(files, found)
    # Tonight's comes to the seven of other nights; the next run brings the eight together.
    assert len(found) == MANY + 1
    assert not any(one.origins for one in found)
    joined = packed(files, found)
    assert paths(joined) == [[f"{n}" for n in range(MANY)], ["large"]]
    assert sorted(joined[0].origins) == sorted(one.key for one in found[:-1])
    again = packed(list(reversed(files)), found)
    assert [(one.key, one.origins) for one in again] == [(one.key, one.origins) for one in joined]
    assert not any(one.origins for one in packed(files, joined))
    # One that lost a file is not whole, and those with other counts stay apart.
    some = packed(files[:-1], found)
    assert len(some) == MANY
    made = bundled(
        sorted(files, key=by_path), _counted(found), Place("out"), stop=True, made_of=["counts-3"]
    )
    assert len(made) == MANY + 1


def _counted(found: list[Bundle]) -> dict[str, Any]:
    """Return a ledger whose bundles have counts of their own."""
    told = ledger(found)
    for number, (path, (size, etag, keys)) in enumerate(sorted(told.items())):
        told[path] = [size, etag, [one._replace(counts=f"counts-{number}") for one in keys]]
    return told


# ---- runs


def nightly(corpus: JobCorpus, job: Path, night: int, **changes: Any) -> Report:
    """Bring three small files, and run."""
    for number in range(3):
        corpus.write(corpus.files(corpus.draw(2), first=100 + 10 * night + number))
    return run(job, **changes)


def counted(report: Report) -> tuple[int, int]:
    """Return how many bundles a release has, and how many files lie in the output."""
    output = Path(report.output)
    release = latest(output)
    assert release is not None
    keys = {keys[1] for *_, parts in release.ledger["sources"].values() for keys in parts}
    return len(keys), sum(1 for path in output.rglob("*") if path.is_file())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring bundles together, and end old records, after fewer nights."""
    monkeypatch.setattr(bundling, "MANY", 4)
    monkeypatch.setattr(ownership, "HISTORY", 9)
    monkeypatch.setattr(lock, "_KEPT", 9)


@pytest.mark.usefixtures("short")
def test_after_thirty_nights_there_are_few_files(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, n_pairs=6, method=METHOD)
    run(job)
    for night in range(30):
        report = nightly(corpus, job, night)
        assert report.documents["new"] == 6
        n_bundles, n_files = counted(report)
        assert n_bundles <= 4 * TIERS
        assert n_files <= 240  # it would be twice that where each night left its own
    assert len(assigned(report)) == 60 + 30 * 6


@pytest.mark.usefixtures("short")
def test_a_prediction_leaves_documents_as_they_were_whatever_bundle_they_come_to(
    corpus: JobCorpus,
) -> None:
    job = corpus.write_all(60, n_pairs=6, method=METHOD)
    expected = assigned(run(job))
    bundles = []
    for night in range(9):
        report = nightly(corpus, job, night, mode="predict")
        now = assigned(report)
        assert {one: now[one] for one in expected} == expected
        told = {"all": 66 + 6 * night, "new": 6, "changed": 0, "gone": 0, "moved": 0}
        assert report.documents.items() >= told.items()
        bundles.append(counted(report)[0])
        expected = now
    assert max(bundles) <= 4 * TIERS
    assert bundles != sorted(bundles)  # some were brought together


def test_labels_are_those_of_a_fresh_run(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "MANY", 3)
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
    assert max(read) > min(read) == 3  # others were read once more, when bundles became one
    fresh = run(job, output="fresh")
    assert report.fit["J"] == fresh.fit["J"]
    both = [{n: row["distortion"] for n, row in assigned(one).items()} for one in (report, fresh)]
    assert both[0] == both[1]
    clusters = [{n: row["cluster"] for n, row in assigned(one).items()} for one in (report, fresh)]
    assert len(set(zip(clusters[0].values(), clusters[1].values(), strict=True))) == 3
