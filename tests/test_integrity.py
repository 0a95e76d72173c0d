"""A flipped bit of an output is seen by every command that reads it, or changes nothing."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.releases import release as releases_release
from hmrf_dask.releases.release import SHARES, DamagedReleaseError, hashed_in, latest
from hmrf_dask.storage import whole_files
from hmrf_dask.storage.sealed import DamagedFileError, seal, seal_for_people, unseal
from tests.support.damaged_outputs import Damage, asked, campaign, two_nights
from tests.support.job_corpus import JobCorpus
from tests.support.long_cases import long


def test_damage_to_any_file_is_refused_in_words_or_changes_nothing(tmp_path: Path) -> None:
    found = campaign(tmp_path, 4, seed=20)
    assert found["wrong"] == []
    assert found["the same"] + found["refused"] == 4 * 8


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> JobCorpus:
    return two_nights(tmp_path_factory.mktemp("nights"))


@pytest.fixture
def nights(whole: JobCorpus, tmp_path: Path) -> JobCorpus:
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    return JobCorpus(tmp_path, documents=[*whole.documents])


def flip(corpus: JobCorpus, ending: str) -> str:
    """Flip a bit of a file of the last release that a name ends with."""
    release = latest(corpus.folder / "out")
    assert release is not None
    name = next(name for name in release.files if name.endswith(ending))
    Damage(name, "flip", 0.5, 3).do(corpus.folder / "out")
    return name


# ---- readers


def test_readers_see_a_flipped_bit_of_assignments(nights: JobCorpus) -> None:
    out, truth = str(nights.folder / "out"), str(nights.folder / "truth.csv")
    name = flip(nights, "00000.parquet")
    for arguments in (["evaluate", out, truth], ["inspect", out, "--verify"], ["inspect", out]):
        done = CliRunner().invoke(hmrf, arguments)
        assert done.exit_code == 78, done.output
        assert f"{name} must be as it was published" in done.stderr
        assert "restore it from a copy, or run the job again" in done.stderr
    with pytest.raises(DamagedReleaseError, match=f"{name} must be as it was published"):
        latest(out, verify=True)


def test_the_reader_of_the_docs_works(nights: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    (nights.folder / "out").rename(nights.folder / "clusters")
    monkeypatch.chdir(nights.folder)
    page = (Path(__file__).parent.parent / "docs" / "output.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    assert "verify=True" in program
    assert "page_checksum_verification=True" in program
    found: dict[str, Any] = {}
    exec(program, found)
    assert found["assignments"].num_rows == 81


def test_evaluate_sees_a_flipped_bit_in_the_assignments_of_a_fit(nights: JobCorpus) -> None:
    rows, run = str(nights.folder / "rows.npz"), nights.folder / "run"
    done = asked(["fit", rows, "--n-clusters", "2", "--run-dir", str(run), "--n-init", "1"])
    assert done.exit_code == 0, done.output
    (path,) = (run / "assignments").glob("*.parquet")
    assert pq.read_table(run / "assignments").num_rows == 20
    truth = nights.folder / "classes.csv"
    truth.write_text("\n".join(["doc_id,label", *(f"{row},{row % 2}" for row in range(20))]))
    data = path.read_bytes()
    for place in (run, run / "assignments"):
        path.write_bytes(data)
        assert asked(["evaluate", str(place), str(truth)]).exit_code == 0
        path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
        failed = asked(["evaluate", str(place), str(truth)])
        assert failed.exit_code == 78, failed.output
        assert f"{path} must be as it was published" in failed.stderr


# ---- a share every night


def test_every_file_is_hashed_within_as_many_nights_as_there_are_shares() -> None:
    sizes = {f"runs/a/assignments/{number:05}.parquet": 2**22 for number in range(500)}
    for every in (1, 2, 7):
        nights = [hashed_in(every * night, sizes) for night in range(SHARES[0])]
        assert set().union(*nights) == sizes.keys()
        small = set.intersection(*map(set, nights))
        assert len(small) == 2
        assert max(map(len, nights)) < 60
    vast = dict.fromkeys(sizes, 2**30)
    assert max(len(hashed_in(night, vast)) for night in range(31)) < 10


def test_a_run_with_nothing_new_finds_damage_on_its_night(
    nights: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases_release, "SMALL_BYTES", 0)
    job = str(nights.folder / "job.yaml")
    name = flip(nights, "00000.parquet")
    release = latest(nights.folder / "out")
    assert release is not None
    night = next(one for one in range(31) if name in hashed_in(one, release.sizes))
    for now in (night + 1, night):
        monkeypatch.setattr("hmrf_dask.jobs.run_job.tonight", lambda now=now: now)
        done = asked(["run", job])
        assert done.exit_code == 0, done.output
        assert (name in done.stderr) == (now == night)
    latest(nights.folder / "out", verify=True)


def test_another_size_is_seen_every_night(
    nights: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases_release, "SMALL_BYTES", 0)
    path = nights.folder / "out" / flip(nights, "00000.parquet")
    path.write_bytes(path.read_bytes() + b" ")
    for night in range(2):
        monkeypatch.setattr(releases_release, "tonight", lambda night=night: night)
        done = CliRunner().invoke(hmrf, ["inspect", str(nights.folder / "out")])
        assert done.exit_code == 78
        assert "bytes), got" in done.stderr


def test_a_prediction_does_not_carry_damaged_assignments_over(nights: JobCorpus) -> None:
    job, name = nights.folder / "job.yaml", flip(nights, "00000.parquet")
    nights.write({"answers.csv": nights.answers(9)})  # so the release cannot be made again
    nights.write(nights.files(nights.draw(20), first=60))
    failed = asked(["run", str(job), "--predict"])
    assert failed.exit_code == 78, failed.output
    assert name in failed.stderr
    assert "--from-release 1" in failed.stderr


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone"])
def test_a_damaged_pointer_is_written_again(how: str, nights: JobCorpus) -> None:
    path = nights.folder / "out" / "LATEST"
    data = path.read_bytes()
    for place in (0.1, 0.9):  # in its words, and in the id of the run
        Damage("LATEST", how, place, 0).do(nights.folder / "out")
        done = asked(["run", str(nights.folder / "job.yaml")])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["status"] == "up to date"
        assert path.read_bytes() == data
        assert ("LATEST" in done.stderr) == (how != "gone")


def test_a_fit_is_made_again_by_a_run_that_only_predicts(nights: JobCorpus) -> None:
    name = flip(nights, "centroids.npy")
    nights.write(nights.files(nights.draw(20), first=60))
    done = asked(["run", str(nights.folder / "job.yaml"), "--predict"])
    assert done.exit_code == 0, done.output
    assert name in done.stderr
    assert json.loads(done.stdout)["mode"] == "predict"


# ---- what follows from the documents


@pytest.mark.parametrize(
    "pattern",
    [
        "counts/*/counts.json",
        "counts/*/rows-*",
        "counts/*/terms-*",
        "documents/*/labels-*",
        "rows/*/*/rows.json",
        "rows/*/*/part-*",
    ],
)
@pytest.mark.parametrize("how", ["flip", *long("empty")])
def test_what_follows_from_documents_is_made_again(
    pattern: str, how: str, nights: JobCorpus
) -> None:
    out = nights.folder / "out"
    path = sorted(out.glob(pattern))[0]
    data = path.read_bytes()
    Damage(str(path.relative_to(out)), how, 0.5, 3).do(out)
    nights.write_job(on_bad_record="quarantine", text={"refit": "always", "norm": "l1"})
    done = asked(["run", str(nights.folder / "job.yaml")])
    assert done.exit_code == 0, done.output
    used = not pattern.startswith("rows")  # with other settings rows have other names
    assert ("made again of the documents" in done.stderr) == used
    assert not used or path.read_bytes() == data


def test_damaged_rows_are_made_again(nights: JobCorpus) -> None:
    out = nights.folder / "out"
    paths = [sorted(out.glob(f"rows/*/*/{name}"))[0] for name in ("rows.json", "part-*")]
    for path in paths:
        Damage(str(path.relative_to(out)), "flip", 0.5, 3).do(out)
    nights.write(nights.files(nights.draw(20), first=60))
    done = asked(["run", str(nights.folder / "job.yaml")])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert sum("made again of the documents" in one for one in printed["warnings"]) >= 1
    latest(out, verify=True)


def test_a_record_of_counts_that_was_sealed_with_other_keys_is_made_again(
    nights: JobCorpus,
) -> None:
    out = nights.folder / "out"
    first, second = sorted(out.glob("counts/*/counts.json"))[:2]
    content = unseal(first.read_bytes(), "")
    others = [{"told": {}}, {"told": {**content["told"], "documents": [[[99, 1]]]}}, {"batches": 3}]
    for number, other in enumerate(others):
        for path in (first, second):
            path.write_bytes(seal_for_people({**unseal(path.read_bytes(), ""), **other}))
        nights.write(nights.files(nights.draw(20), first=60 + number))
        done = asked(["run", str(nights.folder / "job.yaml")])
        assert done.exit_code == 0, done.output
        assert "made again of the documents" in done.stderr
        assert unseal(first.read_bytes(), "") == content
    latest(out, verify=True)


# ---- records


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"3",
        b"null",
        b'{"sha256": "x"}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"9" * 5000,
        b'{"a": 1e999, "sha256": ""}',
        b'{"sha256": "", "content": NaN}',
    ],
    ids=range(10),
)
def test_no_bytes_are_a_traceback_of_a_record(data: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"^there must be as it was written, got"):
        unseal(data, "there")


def test_records_come_back_and_a_changed_digit_does_not() -> None:
    content = {"format": "a/v1", "share": 0.1, "names": ["ä", None], "n": 3}
    for sealed in (seal(content), seal_for_people(content)):
        assert unseal(sealed, "there") == content
        for place in range(len(sealed)):
            data = bytearray(sealed)
            data[place] ^= 1
            with suppress(DamagedFileError):
                assert unseal(bytes(data), "there") == content


def test_a_record_that_was_sealed_with_other_keys_is_named(nights: JobCorpus) -> None:
    out = nights.folder / "out"
    release = sorted((out / "releases").iterdir())[-1]
    content = unseal(release.read_bytes(), "")
    for other in ({"files": {"a": 3}}, {"number": "x"}, {"ledger": {"sources": 3}}, {"run": None}):
        release.write_bytes(seal({**content, **other}))
        job = str(nights.folder / "job.yaml")
        chosen = ["run", job, "--from-release", str(content["number"])]
        for arguments in (["run", job], ["inspect", str(out)], chosen):
            done = CliRunner().invoke(hmrf, arguments)
            assert isinstance(done.exception, SystemExit | None), (other, done.exception)
            assert done.exit_code in (0, 78), done.output
    for path in out.glob("runs/*/fit/commits/*.json"):
        path.write_bytes(seal({"number": 1}))
    for path in out.glob("runs/*/progress.json"):
        path.write_bytes(b"[[3]]")
    (run,) = {path.parent for path in out.glob(f"runs/{content['run']}/run.json")}
    done = CliRunner().invoke(hmrf, ["inspect", str(run)])
    assert done.exit_code == 0, done.output


def test_arrays_of_a_state_are_believed_as_far_as_their_bytes_go() -> None:
    good = whole_files.encode_npy(whole_files.np.arange(6.0).reshape(2, 3))
    assert whole_files.decode_npy(good, "a").tolist() == [[0, 1, 2], [3, 4, 5]]
    for data in (b"", good[:-1], good + b" ", good.replace(b"(2, 3)", b"(9, 3)"), b"PK" + good):
        with pytest.raises(DamagedFileError, match=r"^a must hold plain arrays"):
            whole_files.decode_npy(data, "a")
        with pytest.raises(DamagedFileError, match=r"^a must hold plain arrays"):
            whole_files.decode_npz(data, "a")
