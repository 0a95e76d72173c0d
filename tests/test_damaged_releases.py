"""A damaged last release is named, and what the error advises works; ids are never given twice."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.release import damages, latest
from tests.support.job_corpus import JobCorpus
from tests.support.long_cases import long

N_CLUSTERS = 3


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


@pytest.fixture(scope="module")
def model_output(tmp_path_factory: pytest.TempPathFactory) -> JobCorpus:
    """Make three releases."""
    corpus = JobCorpus(tmp_path_factory.mktemp("three"))
    job = corpus.write_all(60, 10)
    for number in range(3):
        done = command("run", str(job))
        assert done.exit_code == 0, done.output
        corpus.write(corpus.files(corpus.draw(20), first=50 + number))
    (corpus.folder / "documents" / "part-052.jsonl.gz").unlink()
    return corpus


@pytest.fixture
def released(model_output: JobCorpus, tmp_path: Path) -> JobCorpus:
    """Give a copy of the three releases, whose times are kept, so nothing is new in it."""
    shutil.copytree(model_output.folder, tmp_path, dirs_exist_ok=True)
    return JobCorpus(tmp_path, documents=model_output.documents[:-20])  # the last are not there


def command(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, [*arguments, "--quiet", "--threads=2", "--json"])


def file_of(corpus: JobCorpus, number: int, ending: str) -> Path:
    release = latest(corpus.folder / "out")
    assert release is not None
    assert release.number == number
    name = next(name for name in release.files if name.endswith(ending))
    return corpus.folder / "out" / name


def advised(error: str) -> list[str]:
    """Return the options of the command that an error advises."""
    found = re.search(r"hmrf-dask run JOB (--from-release \d+)", error)
    assert found, error
    return shlex.split(found[1])


def check_whole(corpus: JobCorpus) -> int:
    release = latest(corpus.folder / "out")
    assert release is not None
    assert damages(open_output(corpus.folder / "out"), release) == []
    return release.number


def lineage(corpus: JobCorpus) -> dict[str, Any]:
    release = latest(corpus.folder / "out")
    assert release is not None
    found: dict[str, Any] = json.loads(
        (corpus.folder / "out" / "runs" / release.run / "lineage.json").read_bytes()
    )
    return found


@pytest.mark.parametrize(
    ("ending", "how", "more"),
    [
        ("model/model.json", "gone", True),
        ("clusters.parquet", "gone", False),
        *long(
            ("model/model.json", "gone", False),
            ("model/centroids.npy", "other bytes", True),
            ("lineage.json", "other bytes", True),
        ),
    ],
)
def test_a_damaged_file_is_named_and_the_advice_works(
    ending: str, how: str, more: bool, released: JobCorpus
) -> None:
    corpus, job = released, released.folder / "job.yaml"
    before = lineage(corpus)
    path = file_of(corpus, 3, ending)
    path.unlink() if how == "gone" else path.write_bytes(b"damaged")
    if more:  # with other answers nobody can make the release again
        corpus.write({"answers.csv": corpus.answers(12)})
        failed = command("run", str(job))
        assert failed.exit_code == 78
        assert f"release 3 of {corpus.folder}/out is damaged" in failed.stderr
        assert str(path.relative_to(corpus.folder)) in failed.stderr
        assert "save the model again" not in failed.stderr
        options = advised(failed.stderr)
    else:
        options = ["--from-release", "2"]
    assert options == ["--from-release", "2"]
    done = command("run", str(job), *options)
    assert done.exit_code == 0, done.output
    # Of the same inputs the same run is made again, so the release is whole again.
    assert check_whole(corpus) == json.loads(done.stdout)["release"] == (4 if more else 3)
    assert lineage(corpus)["ids"] == before["ids"]
    again = command("run", str(job))
    assert json.loads(again.stdout)["status"] == "up to date"
    corpus.write(corpus.files(corpus.draw(20), first=70))
    assert command("run", str(job)).exit_code == 0
    check_whole(corpus)


@pytest.mark.parametrize("how", ["gone", *long("other bytes")])
def test_a_fit_does_without_a_file_of_the_last_assignments(how: str, released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    before = lineage(corpus)
    path = file_of(corpus, 3, "00000.parquet")
    path.unlink() if how == "gone" else path.write_bytes(b"damaged")
    corpus.write(corpus.files(corpus.draw(20), first=60))
    done = command("run", str(job))
    assert done.exit_code == 0, done.output
    assert lineage(corpus)["ids"] == before["ids"]
    check_whole(corpus)


@pytest.mark.parametrize("how", ["gone", "cut off"])
def test_a_release_that_cannot_be_read_is_skipped(how: str, released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    path = corpus.folder / "out" / "releases" / "00003.json"
    path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:100])
    for arguments in (["run", str(job)], ["run", str(job), "--predict"]):
        failed = command(*arguments)
        assert failed.exit_code == 78
        assert "out/releases/00003.json must be" in failed.stderr
        options = advised(failed.stderr)
        assert options == ["--from-release", "2"]
    done = command("run", str(job), *options)
    assert done.exit_code == 0, done.output
    assert check_whole(corpus) == json.loads(done.stdout)["release"] == 4
    assert json.loads(command("run", str(job)).stdout)["status"] == "up to date"


def test_ids_that_a_damaged_release_gave_are_not_given_again(released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    text = job.read_text()
    job.write_text(text.replace("n_clusters: 3", "n_clusters: 5"))
    assert command("run", str(job)).exit_code == 0
    given = lineage(corpus)
    assert given["next_id"] > N_CLUSTERS
    file_of(corpus, 4, "model/model.json").unlink()
    job.write_text(text.replace("n_clusters: 3", "n_clusters: 6"))
    failed = command("run", str(job))
    done = command("run", str(job), *advised(failed.stderr))
    assert done.exit_code == 0, done.output
    new = set(lineage(corpus)["ids"]) - set(range(N_CLUSTERS))
    assert new
    assert min(new) >= given["next_id"]


def test_without_a_whole_release_all_begins_again_with_new_ids(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 10, keep=1)
    assert command("run", str(job)).exit_code == 0
    file_of(corpus, 1, "model/model.json").unlink()
    corpus.write({"answers.csv": corpus.answers(12)})
    failed = command("run", str(job))
    assert failed.exit_code == 78
    assert "all clusters get new ids" in failed.stderr
    options = advised(failed.stderr)
    assert options == ["--from-release", "0"]
    assert command("run", str(job), *options).exit_code == 0
    assert lineage(corpus)["ids"] == [3, 4, 5]
    assert check_whole(corpus) == 2


def test_a_person_may_go_back(released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    for _ in range(2):  # again is the same release
        done = command("run", str(job), "--from-release", "1")
        assert done.exit_code == 0, done.output
        assert check_whole(corpus) == json.loads(done.stdout)["release"] == 4
    for number in (1, 2, 3):
        wrong = command("run", str(job), "--from-release", str(number + 6))
        assert wrong.exit_code == 78
        assert "--from-release must name a release that can be read" in wrong.stderr


def test_numbers_of_old_releases_stay_and_name_no_files(released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    job.write_text(f"{job.read_text()}keep: 2\n")
    corpus.write(corpus.files(corpus.draw(20), first=60))
    assert command("run", str(job)).exit_code == 0
    names = sorted((corpus.folder / "out" / "releases").iterdir())
    found = [json.loads(path.read_text())["content"] for path in names]
    assert [bool(one["files"]) for one in found] == [False, False, True, True]
    assert [one["parent"] for one in found[1:]] == [one["run"] for one in found[:-1]]
    failed = command("run", str(job), "--from-release", "1")
    assert failed.exit_code == 78
    assert "go on from release 4, the last one that is whole" in failed.stderr
    given = lineage(corpus)["next_id"]
    names[2].unlink()  # what was skipped names ids, whatever became of those before it
    job.write_text(f"{job.read_text()}start: cold\n")
    done = command("run", str(job), "--from-release", "0")
    assert done.exit_code == 0, done.output
    assert "may be given again" not in done.stderr
    assert min(lineage(corpus)["ids"]) >= given


def outcome(corpus: JobCorpus) -> dict[str, Any]:
    """Return the cluster of every document of the last release."""
    release = latest(corpus.folder / "out", verify=True)
    assert release is not None
    names = [name for name in release.files if "/assignments/" in name]
    tables = [pq.read_table(corpus.folder / "out" / name).to_pylist() for name in names]
    return {row["doc_id"]: row for rows in tables for row in rows}


def flip(path: Path, place: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize(
    "ending",
    ["centroids.npy", *long("00000.parquet", "lineage.json", "clusters.parquet", "/run.json")],
)
def test_a_damaged_release_is_made_again(ending: str, more: bool, released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    before, ids = outcome(corpus), lineage(corpus)["ids"]
    flip(file_of(corpus, 3, ending))
    if more:
        corpus.write(corpus.files(corpus.draw(20), first=60))
    done = command("run", str(job))
    assert done.exit_code == 0, done.output
    assert "release 3 is made again from what it was made of" in str(done.output)
    check_whole(corpus)
    assert lineage(corpus)["ids"] == ids
    if not more:
        assert json.loads(done.stdout)["status"] == "up to date"
        assert outcome(corpus) == before
    else:
        assert len(outcome(corpus)) == len(before) + 20
    again = command("run", str(job))
    assert json.loads(again.stdout)["status"] == "up to date"
    assert "made again" not in again.output


@pytest.mark.parametrize("how", ["gone", "cut off"])
def test_a_lost_vocabulary_is_made_again_the_same(how: str, released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    (folder,) = (corpus.folder / "out" / "vocabularies").iterdir()
    for path in folder.iterdir():
        path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:50])
    corpus.write(corpus.files(corpus.draw(20), first=60))
    done = command("run", str(job))
    assert done.exit_code == 0, done.output
    assert "the vocabulary of release 3 cannot be read" in done.output
    assert "it was made again, the same" in done.output
    printed = json.loads(done.stdout)
    assert (printed["vocabulary"]["refit"], printed["start"]) == (False, "warm")
    assert [path.name for path in (corpus.folder / "out" / "vocabularies").iterdir()] == [
        folder.name
    ]


def test_a_vocabulary_that_cannot_be_made_again_stops_the_run(released: JobCorpus) -> None:
    corpus, job = released, released.folder / "job.yaml"
    out = corpus.folder / "out"
    for path in (*(out / "vocabularies").rglob("*.*"), *(out / "counts").rglob("counts.json")):
        path.write_bytes(path.read_bytes()[:50])
    corpus.write(corpus.files(corpus.draw(20), first=60))
    before = lineage(corpus)["ids"]
    for option in ("--threads=1", "--predict"):
        failed = command("run", str(job), option)
        assert failed.exit_code == 78
        assert "the vocabulary of release 3 cannot be read" in failed.stderr
        assert "run once with text.refit always and start cold in the job" in failed.stderr
    corpus.write_job(text={"refit": "always"}, start="cold")
    done = command("run", str(job))
    assert done.exit_code == 0, done.output
    assert sorted(lineage(corpus)["ids"]) == sorted(before)
    assert json.loads(done.stdout)["start"] == "cold"


@pytest.mark.parametrize("arguments", [["predict", "out", "rows.npz", "--out", "p"], ["inspect"]])
def test_readers_learn_whom_to_ask(
    arguments: list[str], released: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(released.folder)
    if arguments == ["inspect"]:
        (released.folder / "out" / "releases" / "00003.json").write_bytes(b"{")
        done = CliRunner().invoke(hmrf, ["inspect", "out"])
        named = "releases/00003.json must be as it was written, got no readable record"
    else:
        file_of(released, 3, "centroids.npy").write_bytes(b"")
        done = CliRunner().invoke(hmrf, arguments)
        named = "model/centroids.npy must be as it was published"
    assert done.exit_code == 78, done.output
    assert named in done.stderr
    assert done.stderr.count("restore it from a copy") == 1
    assert "or run the job again, which says how to go on" in done.stderr
