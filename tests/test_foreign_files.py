"""Files of others stay: an output shares no folder with inputs, and removes only its own files."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.jobs.inputs import Place, overlaps
from hmrf_dask.releases.own_files import OUTPUT, is_own
from hmrf_dask.releases.release import latest
from tests.support.job_corpus import JobCorpus
from tests.support.long_cases import long
from tests.support.stores import files_below


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path / "work")


def command(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, [*arguments, "--json"])


def run(job: Path, *options: str) -> Result:
    return command("run", str(job), "--threads=2", *options)


def done(job: Path, *options: str) -> dict[str, Any]:
    result = run(job, *options)
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(str(folder))}


def refused(result: Result, *words: str, code: int = 78) -> None:
    assert result.exit_code == code, result.output
    for word in words:
        assert word in result.output
    assert "Traceback" not in result.output


# ---- an output shares no folder with what is read

MIXED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "the folder of all": lambda folder: {"output": "."},
    "with a slash": lambda folder: {"output": "./"},
    "its absolute path": lambda folder: {"output": str(folder)},
    "a file URL": lambda folder: {"output": f"file://{folder}/documents/"},
    "the documents": lambda folder: {"output": "documents"},
    "by two dots": lambda folder: {"output": "documents/../documents"},
    "below the documents": lambda folder: {"output": "documents/out"},
    "above the job": lambda folder: {"output": ".."},
    "through a link": lambda folder: {"output": "link"},
    "below a link": lambda folder: {"output": "link/deeper/out"},
    "the answers": lambda folder: {"output": "answers.csv", "resource": {"path": "documents/*"}},
    "below a deep pattern": lambda folder: {"resource": {"path": "**/*.gz"}},
    "below a deep pattern's folder": lambda folder: {
        "output": "documents/a/b", "resource": {"path": "documents/**"},
    },
    "a folder of answers": lambda folder: {"answers": ["judged"], "output": "judged/out"},
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_an_output_among_what_is_read_is_refused(name: str, corpus: JobCorpus) -> None:
    folder = corpus.folder
    changes = {"resource": {"path": "documents"}} | MIXED[name](folder)
    job = corpus.write_all(20, 0, **changes)
    (folder / "judged").mkdir()
    (folder / "link").symlink_to("documents")
    before = contents(folder)
    for arguments in (("run", str(job), "--threads=2"), ("check", str(job))):
        refused(command(*arguments), "output must be separate from")
        assert contents(folder) == before


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("documents /", "spaces at its end"),
        ("s3://corp/a /", "spaces at its end"),
        ("s3:/corp/out", "must have 's3://'"),
        ("s3:out", "must have 's3://'"),
        ("file:/out", "must have 'file://'"),
        ("file://out", "an absolute path"),
    ],
)
def test_a_spelling_that_may_be_read_as_another_place_is_refused(
    output: str, words: str, corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = corpus.write_all(20, 0, resource={"path": "documents"}, output=output)
    before = contents(corpus.folder)
    monkeypatch.chdir(corpus.folder)
    for arguments in (("run", str(job), "--threads=2"), ("check", str(job))):
        refused(command(*arguments), "output", words)
        assert contents(corpus.folder) == before


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"resource": {"path": "*/part-*.gz"}, "output": "results/clusters/here"},
        {"resource": {"path": "documents/*.gz"}, "output": "documents/out"},
        {"output": "link"},
    ],
)
def test_an_output_next_to_what_is_read_is_right(
    changes: dict[str, Any], corpus: JobCorpus, tmp_path: Path
) -> None:
    job = corpus.write_all(20, 0, **changes)
    (tmp_path / "elsewhere").mkdir()
    (corpus.folder / "link").symlink_to(tmp_path / "elsewhere")
    assert done(job)["documents"]["all"] == 20
    assert done(job)["status"] == "up to date"
    assert command("check", str(job)).exit_code == 0


@pytest.mark.parametrize("inside", ["", "/fit", "/new"])
def test_commands_write_into_no_folder_of_a_run(inside: str, corpus: JobCorpus) -> None:
    import numpy as np

    printed = done(corpus.write_all(20, 0))
    out = corpus.folder / "out"
    np.save(corpus.folder / "rows.npy", np.eye(6))
    (corpus.folder / "link").symlink_to(out / "runs")
    rows, run_dir = str(corpus.folder / "rows.npy"), str(corpus.folder / "run")
    assert command("fit", rows, "--run-dir", run_dir, "--n-clusters=2").exit_code == 0
    before = contents(corpus.folder)
    for place in (f"{out}/runs/{printed['run']}{inside}", f"link/{printed['run']}{inside}"):
        there = str(corpus.folder / place)
        other = corpus.write_job(output=there, name="other")
        before["job.yaml"] = other.read_bytes()
        for arguments in (
            ("fit", rows, "--run-dir", there, "--n-clusters=2", "--fresh"),
            ("predict", run_dir, rows, "--out", there), ("run", str(other)), ("check", str(other)),
        ):  # fmt: skip
            refused(command(*arguments), "must be separate from what runs of a job made")
    assert contents(corpus.folder) == before
    fine = command("predict", run_dir, rows, "--out", str(out / "runs" / "mine"))
    assert fine.exit_code == 0, fine.output


def test_documents_that_a_link_brings_in_are_none_of_the_output(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, resource={"path": "documents", "format": "jsonl"})
    (corpus.folder / "documents" / "link").symlink_to("../out")
    (corpus.folder / "out").mkdir()
    done(job)
    refused(run(job), "output must be separate from the documents", "documents/link")


@pytest.mark.parametrize(
    ("output", "documents", "is_apart"),
    [
        ("s3://corp", "s3://corp/documents/**", False),
        ("s3://corp/", "s3a://corp//documents/", False),
        ("s3://corp/documents/", "s3://corp/documents", False),
        ("s3://corp/documents/out", "s3://corp/documents", False),
        ("s3://corp/out", "s3://corp/*.jsonl", True),
        ("s3://corp/out", "s3://corp/*/*.jsonl", False),
        ("s3://corp/documents-out", "s3://corp/documents", True),
        ("s3://corp/x/../documents", "s3://corp/documents", False),
        ("s3://other", "s3://corp/documents", True),
        ("gs://corp", "gcs://corp/a.csv", False),
        ("/corp", "s3://corp/documents", True),
    ],
)
def test_places_in_object_stores(output: str, documents: str, is_apart: bool) -> None:
    from hmrf_dask.documents.files import cut_at_magic

    assert (overlaps(output, [Place("documents", *cut_at_magic(documents))]) == []) is is_apart


@pytest.mark.long
def test_documents_in_a_bucket_stay(
    tmp_path: Path, s3_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_options["endpoint_url"])
    store = fsspec.filesystem("s3", **s3_options, use_listings_cache=False)
    bucket, corpus = f"corp-{uuid.uuid4().hex[:8]}", JobCorpus(tmp_path)
    store.makedirs(bucket)
    job = corpus.write_all(20, 0)
    for name, data in corpus.files(corpus.documents).items():
        store.pipe_file(f"{bucket}/{name}", data)
    there = store.find(bucket)
    for output in (f"s3://{bucket}", f"s3://{bucket}/", f"s3a://{bucket}//documents"):
        resource = {"path": f"s3://{bucket}/documents/**"}
        refused(run(corpus.write_job(resource=resource, output=output)), "must be separate from")
        assert store.find(bucket) == there
    # A first run into a place with such names refuses, whosever they are.
    job = corpus.write_job(output=f"s3://{bucket}")
    refused(run(job), "'documents'", "output.json")
    # What others put among the files of an output stays.
    job = corpus.write_job(output=f"s3://{bucket}/out")
    done(job)
    foreign = [f"{bucket}/out/{name}" for name in FOREIGN]
    for name in foreign:
        store.pipe_file(name, b"mine")
    corpus.write(corpus.files(corpus.draw(20), first=50))
    done(corpus.write_job(output=f"s3://{bucket}/out", keep=1, text={"min_df": 1}))
    assert all(store.cat_file(name) == b"mine" for name in foreign)


# ---- what others put into an output stays

FOREIGN = (
    *("documents/a.jsonl", "counts/0123456789abcdef01234567/counts.json", "rows/mine/rows.json"),
    *("vocabularies/words.txt", "runs/first/FINAL.json", "runs/0123456789abcdef/run.json"),
    *("made/mine.json", "holders/notes.txt", "releases/readme", "rows/embeddings/x.parquet"),
)


def test_what_others_put_into_an_output_stays(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0, keep=1)
    done(job)
    out = corpus.folder / "out"
    for name in FOREIGN:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"mine")
    for number in range(3):
        corpus.write(corpus.files(corpus.draw(20), first=50 + number))
        (corpus.folder / "documents" / f"part-{number:03}.jsonl.gz").unlink(missing_ok=True)
        done(job)
    for name in FOREIGN:
        assert (out / name).read_bytes() == b"mine"
    assert len({path.name for path in (out / "runs").iterdir()} - {"first", "0" * 16}) == 2


def test_every_file_of_an_output_has_a_form(corpus: JobCorpus) -> None:
    """What a run writes can be removed, so every name is in the table."""
    job = corpus.write_all(60, 12, on_bad_record="quarantine", max_rejected=0.5, text={"lsa": 5})
    first, *rest = corpus.answers(12).decode().splitlines()
    noted = "".join(f"{line},ann\n" for line in rest)
    corpus.write({"answers.csv": f"{first},annotator\n{noted}nobody,nothing,1,ann\n".encode()})
    corpus.write({"documents/bad.jsonl": b'{"id": "a"\n'})
    done(job)
    again = {"id": corpus.documents[0]["id"], "text": "orbit moon rocket"}
    corpus.write({"documents/twice.jsonl": json.dumps(again).encode()})
    done(job)
    (corpus.folder / "documents" / "part-002.jsonl.gz").unlink()
    done(job)
    done(job, "--predict")
    roots = ("output.json", "LATEST", "releases/", "holders/", "made/")
    names = {name for name in files_below(str(corpus.folder / "out")) if not name.startswith(roots)}
    assert {name.split("/")[0] for name in names} >= {"counts", "documents", "rows", "runs"}
    assert [name for name in sorted(names) if not is_own(name, OUTPUT)] == []


def test_a_run_that_was_given_up_goes_but_for_what_others_put_there(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0, keep=1)
    printed = done(job)
    out = corpus.folder / "out"
    mine = out / "runs" / printed["run"] / "model" / "notes.txt"
    mine.write_text("mine")
    (mine.parent / "link.npy").symlink_to(corpus.folder / "answers.csv")
    (mine.parent / "centroids.npy").unlink()
    (mine.parent / "centroids.npy").symlink_to(corpus.folder / "answers.csv")
    corpus.write(corpus.files(corpus.draw(20), first=50))
    result = run(job, "--from-release=0")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("stays, as it holds what no run wrote") == 1
    assert "model/notes.txt" in result.stderr
    assert mine.read_text() == "mine"
    assert not (mine.parent / "model.json").exists()
    assert (mine.parent / "centroids.npy").is_symlink()
    corpus.write(corpus.files(corpus.draw(20), first=60))
    assert "stays" not in run(job).stderr


def test_numbered_files_of_others_stop_no_run(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0)
    done(job)
    out = corpus.folder / "out"
    copies = ["releases/00099.json", "releases/000099.json", "releases/٠٠٠٠٩.json"]
    copies += ["holders/000099.json", "holders/٠٠٠٠٩.json"]
    for name in copies:
        (out / name).write_bytes((out / name.split("/")[0] / "00001.json").read_bytes())
    before = {name: (out / name).read_bytes() for name in copies}
    for number in range(2):
        corpus.write(corpus.files(corpus.draw(20), first=50 + number))
        assert done(job)["release"] == number + 2
    assert {name: (out / name).read_bytes() for name in copies} == before


def test_what_others_put_next_to_a_model_is_no_part_of_a_release(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hmrf_dask.jobs import run_job

    job = corpus.write_all(40, 0)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_job, "release", die)
        assert run(job).exit_code == 130
    (model,) = (corpus.folder / "out").glob("runs/*/model")
    (model / "notes.txt").write_text("mine")
    done(job)
    release = latest(corpus.folder / "out")
    assert release is not None
    assert [name for name in release.files if "notes" in name] == []
    (model / "notes.txt").write_text("others")
    assert done(job)["warnings"] == []


@pytest.mark.parametrize("name", ["output.json", "releases/00001.json"])
def test_a_pipe_in_an_output_is_waited_for_by_nobody(name: str, corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0)
    out = corpus.folder / "out"
    (out / name).parent.mkdir(parents=True)
    os.mkfifo(out / name)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(30)
    try:
        refused(run(job), "it must be a file, not a pipe")
    finally:
        signal.alarm(0)


def test_an_output_without_runs_is_inspected(corpus: JobCorpus) -> None:
    (corpus.folder / "out" / "holders").mkdir(parents=True)
    result = command("inspect", str(corpus.folder / "out"))
    assert (result.exit_code, json.loads(result.stdout)["progress"]) == (0, None)


@pytest.mark.parametrize("linked", ["rows", *long("runs", "counts")])
def test_nothing_behind_a_link_is_removed(linked: str, corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0, keep=1, text={"refit": "always"})
    done(job)
    out, elsewhere = corpus.folder / "out", corpus.folder / "elsewhere"
    (out / linked).rename(elsewhere)
    (out / linked).symlink_to(elsewhere)
    before = files_below(str(elsewhere))
    for number in range(3):
        corpus.write(corpus.files(corpus.draw(20, words=f"w{number}"), first=50 + number))
        result = run(job)
        assert result.exit_code == 0, result.output
    assert f"{linked} is a link" in result.stderr
    assert before <= files_below(str(elsewhere))


@pytest.mark.parametrize(
    "name", ["documents/a", "rows/x", "runs/first/run.json", "LATEST", "made/x", "output.json"]
)
def test_a_first_run_refuses_a_folder_with_such_names(name: str, corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0)
    corpus.write({f"out/{name}": b"mine"})
    for result in (run(job), command("check", str(job))):
        refused(result, name.split("/")[0], "name another output")
    assert files_below(str(corpus.folder / "out")) == {name}


def test_what_a_killed_run_left_is_swept(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hmrf_dask.jobs import run_job

    job = corpus.write_all(40, 0, keep=1)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_job, "fit_all", die)
        assert run(job).exit_code == 130
    out = corpus.folder / "out"
    left = {f"{one}/{path.name}" for one in ("counts", "documents", "rows", "runs", "vocabularies")
            for path in (out / one).glob("*")}  # fmt: skip
    assert {name.split("/")[0] for name in left} >= {"counts", "rows", "runs", "vocabularies"}
    for path in (corpus.folder / "documents").iterdir():
        path.unlink()
    corpus.write(corpus.files(corpus.draw(40), first=50))
    done(job)
    corpus.write(corpus.files(corpus.draw(40), first=60))
    done(job)
    assert {name for name in left if (out / name).exists()} == set()
    assert len(list((out / "made").iterdir())) == 1


# ---- whose an output is


def test_an_output_is_one_jobs(corpus: JobCorpus) -> None:
    first = corpus.write_all(40, 0, name="first")
    printed = done(first)
    before = contents(corpus.folder / "out")
    second = corpus.write_job(name="second", method={"n_clusters": 4})
    for result in (run(second), command("check", str(second)), run(second, "--predict")):
        refused(result, "job 'first' with manifest 'small'", "job 'second'", "--take-over")
    assert contents(corpus.folder / "out") == before
    # Nothing to do is no excuse: the same inputs under another name.
    refused(run(corpus.write_job(name="third")), "job 'first'")
    manifest = (corpus.folder / "manifest.yaml").read_text()
    job = corpus.write_job(name="first")
    (corpus.folder / "manifest.yaml").write_text(manifest.replace("name: small", "name: other"))
    refused(run(job), "manifest 'other'")
    assert latest(corpus.folder / "out").run == printed["run"]  # type: ignore[union-attr]

    (corpus.folder / "manifest.yaml").write_text(manifest)
    second = corpus.write_job(name="second")
    assert done(second, "--take-over")["status"] == "up to date"
    assert done(second)["status"] == "up to date"
    record = json.loads((corpus.folder / "out" / "output.json").read_text())["content"]
    assert (record["job"], record["manifest"]) == ("second", "small")
    assert [(one["job"], one["manifest"]) for one in record["former"]] == [("first", "small")]
    refused(run(corpus.write_job(name="first")), "job 'second'")


def test_an_output_of_a_version_without_owners_is_adopted(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0)
    done(job)
    (corpus.folder / "out" / "output.json").unlink()
    assert done(job)["status"] == "up to date"
    corpus.write(corpus.files(corpus.draw(20), first=50))
    result = run(job)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("from now on it belongs to job 'job'") == 1
    refused(run(corpus.write_job(name="other")), "job 'job'")


@pytest.mark.parametrize("output", ["memory://x", "memory:///x/y", "MEMORY://x"])
def test_memory_is_no_output_of_a_command(output: str, corpus: JobCorpus, tmp_path: Path) -> None:
    job = corpus.write_all(20, 0)
    for result in (
        run(job, f"--output={output}"),
        run(corpus.write_job(output=output)),
        command("check", str(corpus.write_job(output=output))),
        command("fit", "rows.npz", "-k2", f"--run-dir={output}"),
        command("predict", "model", "rows.npz", f"--out={output}"),
    ):
        refused(result, "must be a place that outlasts the command")


# ---- documents that are gone


def test_more_than_half_of_the_documents_gone_is_refused(corpus: JobCorpus) -> None:
    job = corpus.write_all(100, 0)
    done(job)
    for number in range(3):
        (corpus.folder / "documents" / f"part-{number:03}.jsonl.gz").unlink()
    corpus.write(corpus.files(corpus.draw(20), first=50))
    for options in ((), ("--predict",)):
        refused(run(job, *options), "60 of 100", "--allow-shrink", code=65)
    assert latest(corpus.folder / "out").number == 1  # type: ignore[union-attr]
    assert done(job, "--allow-shrink")["documents"]["all"] == 60
    assert done(job)["status"] == "up to date"


def test_half_of_the_documents_may_go_and_files_may_be_renamed(corpus: JobCorpus) -> None:
    job = corpus.write_all(80, 0)
    done(job)
    documents = corpus.folder / "documents"
    for path in sorted(documents.iterdir()):
        path.rename(documents / f"moved-{path.name}")
    assert done(job)["files"]["new"] == 4
    for number in range(2):
        (documents / f"moved-part-{number:03}.jsonl.gz").unlink()
    assert done(job)["documents"]["all"] == 40


def test_another_collection_is_all_gone(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0)
    done(job)
    for path in (corpus.folder / "documents").iterdir():
        path.unlink()
    refused(run(job), code=65)  # a mount that is gone
    refused(run(job, "--allow-shrink"), code=65)
    corpus.write(corpus.files(corpus.draw(60), first=10))
    refused(run(job), "60 of 60", "--allow-shrink", code=65)
    assert done(job, "--from-release=0")["status"] == "done"
    assert (corpus.folder / "out" / "releases" / "00002.json").exists()
