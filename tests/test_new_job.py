"""From a file or folder of texts to a job and questions; a job run again for the answers since."""

from __future__ import annotations

import csv
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.documents.manifest import load_manifest
from hmrf_dask.errors import ClusterError, ConfigurationError, HmrfError, InvalidInputError
from hmrf_dask.jobs import again
from hmrf_dask.jobs.again import run_again
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.jobs.new_job import Wanted, job_for
from hmrf_dask.jobs.questions import questions_of
from hmrf_dask.jobs.texts import Texts
from hmrf_dask.releases.lock import held
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import QUARANTINED, run


def command(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


def write_texts(folder: Path, documents: list[dict[str, Any]]) -> None:
    for one in documents:
        path = folder / f"{one['id']}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one["text"])


@QUARANTINED
def test_a_folder_of_texts_becomes_a_job_with_questions(tmp_path: Path) -> None:
    corpus, folder = JobCorpus(tmp_path), tmp_path / "My texts"
    write_texts(folder, corpus.draw(60))
    (folder / "space" / "empty.txt").write_text("")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("no document")
    made = job_for(str(folder))
    assert made.remark.startswith("61 text files: ")
    report = run(Path(made.job), output=made.output)
    assert (report.documents["all"], report.clusters["number"]) == (60, 3)
    assert questions_of(made.output)
    text = Texts(made.output).read(["space/0000.txt"])["space/0000.txt"].text
    assert text == corpus.documents[0]["text"]
    again = job_for(f"{folder}/")
    assert (again.job, again.output) == (made.job, made.output)
    assert again.remark.endswith("made before")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_rows_of_files_become_a_job(tmp_path: Path, kind: str) -> None:
    import pandas as pd

    documents = [{"Doc_ID": one["id"], "Body": one["text"]} for one in JobCorpus(tmp_path).draw(30)]
    folder = tmp_path / "rows"
    folder.mkdir()
    frame, path = pd.DataFrame(documents), folder / f"all.{kind}"
    if kind in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(one)}\n" for one in documents))
    else:
        frame.to_parquet(path)
    made = job_for(str(folder))
    method = {"n_clusters": 3, "n_init": 1}
    assert run(Path(made.job), output=made.output, method=method).documents["all"] == 30


def test_a_folder_that_says_nothing_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match=r"must have files named \.txt"):
        job_for(str(tmp_path / "empty"))
    (tmp_path / "rows").mkdir()
    for rows, said in (
        ("number,words\n1,two\n", "must have a column that is called id"),
        ("id,words\n1,two\n", "which column is the text"),
        ("", "called id .* got none"),
        (
            "T1,some words\nT2,more words\n" + "".join(f"T{n},w\n" for n in range(3, 20)),
            "first line must name the columns, got T1, some words",
        ),
        ("id,text\n1,words\n".encode("utf-16"), "UTF-16"),
    ):
        data = rows if isinstance(rows, bytes) else rows.encode()
        (tmp_path / "rows" / "a.csv").write_bytes(data)
        with pytest.raises(HmrfError, match=said):
            job_for(str(tmp_path / "rows"))
    for address in ("s3://bucket/texts", str(tmp_path / "none"), __file__):
        with pytest.raises(ConfigurationError, match="write a manifest and a job file"):
            job_for(address)
    vectors = tmp_path / "vectors.jsonl"
    vectors.write_text(
        "".join(f'{{"id": {n}, "row": [{n}.25, 1.5, 2.5, 3.5]}}\n' for n in range(9))
    )
    with pytest.raises(InvalidInputError, match="which column is the text"):
        job_for(str(vectors))
    write_texts(tmp_path / "single", [{"id": "1", "text": "words"}])
    with pytest.raises(InvalidInputError, match="at least two documents"):
        job_for(str(tmp_path / "single"))
    odd = tmp_path / "odd[1]"
    write_texts(odd, [{"id": "1", "text": "words"}])
    with pytest.raises(ConfigurationError, match="rename it"):
        job_for(str(odd))
    assert not [path for path in tmp_path.iterdir() if path.name.endswith("-clusters")]


def write_tickets(path: Path, documents: list[dict[str, Any]], separator: str = ";") -> None:
    rows = [["Ticket no", "Subject", "Message", "Größe"]]
    rows += [
        [f"T{number}", one["text"][:10], f"the {one['text']} and of", "groß"]
        for number, one in enumerate(documents)
    ]
    with path.open("w", encoding="cp1252", newline="") as file:
        csv.writer(file, delimiter=separator).writerows(rows)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.xlsx", "save the sheet as CSV"),
        ("a.txt", "give the folder of all"),
        ("a.pdf", "give one"),
    ],
)
def test_a_file_without_rows_is_refused_with_what_to_do(
    name: str, advice: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConfigurationError, match=f"named .csv, .*got .*{name}; .*{advice}"):
        job_for(str(tmp_path / name))


def test_a_spreadsheet_becomes_a_job_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With semicolons, in the encoding of Windows, ids seen from values: as users have them."""
    monkeypatch.chdir(tmp_path)
    write_tickets(tmp_path / "tickets.csv", JobCorpus(tmp_path).draw(60))
    shown = command("init", "tickets.csv")
    assert shown.exit_code == 0, shown.output
    assert "text  Subject, Message" in shown.stdout
    typed = next(line for line in shown.stdout.splitlines() if " check " in line).split()[2]
    assert typed == "tickets-clusters/job.yaml"
    assert command("check", typed).exit_code == 0
    report = run(Path(typed), method={"n_clusters": 3, "n_init": 1})
    assert report.documents["all"] == 60
    text = Texts(report.output).read(["T0"])["T0"].text
    assert text.startswith(text[:10] + "\n\nthe ")
    job = Path(typed).read_text()
    assert "stop_words: english" in job
    assert command("init", "tickets.csv").stdout.startswith("the job of ")
    assert "edit it" in command("init", "tickets.csv", "-k", "5").stderr
    assert Path(typed).read_text() == job


def test_what_somebody_says_of_columns_goes_before(tmp_path: Path) -> None:
    write_tickets(tmp_path / "tickets.csv", JobCorpus(tmp_path).draw(30))
    wanted = Wanted("Ticket no", ("Message",), ("Subject", "Größe"), 4)
    made = job_for(str(tmp_path / "tickets.csv"), wanted)
    manifest, job = load_manifest(made.manifest), load_job(made.job)
    assert manifest.documents.text == "Message"
    assert manifest.documents.keep == ("Subject", "Größe")
    assert manifest.resources[0].dialect.delimiter == ";"
    assert job.method.n_clusters == 4
    other = tmp_path / "other.csv"
    write_tickets(other, JobCorpus(tmp_path).draw(30), ",")
    with pytest.raises(ConfigurationError, match=r"--text must name a column .* 'message' \(did"):
        job_for(str(other), Wanted(text=("message",)))
    with pytest.raises(InvalidInputError, match="name it by --id COLUMN"):
        job_for(str(other), Wanted(text=("Ticket no",)))


def test_columns_of_any_name_are_written_so_that_they_are_read(tmp_path: Path) -> None:
    names = ["Ticket\nnumber", "id", "a: b # c", "- x", "body"]
    for keep in ((), tuple(names[:1])):
        place = tmp_path / f"{len(keep)}.csv"
        with place.open("w", newline="") as file:
            csv.writer(file).writerows(
                [names, *([str(n), str(n), "x", "y", "z"] for n in range(9))]
            )
        made = job_for(str(place), Wanted(keep=keep))  # 0.csv: a name that is no number
        manifest = load_manifest(made.manifest)
        assert load_job(made.job).name == manifest.name == place.stem
        assert (manifest.documents.keep, manifest.documents.text) == (keep, "body")


@pytest.mark.parametrize("name", ["check", "run"])
def test_documents_given_to_a_command_for_jobs_are_told_to_begin_with_init(
    tmp_path: Path, name: str
) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(30, 3)).output
    (tmp_path / "tickets.csv").write_text("id,text\n1,a\n")
    for path in ("tickets.csv", "documents", "documents/part-000.jsonl.gz"):
        said = command(name, str(tmp_path / path))
        assert said.exit_code == 78
        assert f"`hmrf-dask init {tmp_path / path}` makes a job for it" in said.stderr
    assert "the job in it is" in command(name, str(tmp_path)).stderr
    assert "is the output of a job" in command(name, output).stderr


def test_a_setting_that_stands_elsewhere_is_shown_its_place(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(30, 3, n_clusters=5)
    said = command("check", str(job)).stderr
    assert "n_clusters: must not be there, but below method: write method: {n_clusters: …}" in said


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def test_a_job_is_run_again_for_new_answers_once_the_output_is_free(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "POLL", 0.05)
    job = corpus.write_all(60, 5, method={"n_clusters": 3, "n_init": 1})
    output = run(job).output
    ends = corpus.documents[0]["id"], corpus.documents[3]["id"]
    journal = open_journal(journal_address(output))
    journal.append(*(Entry(who, "pair", ends, answer="same", annotator=who) for who in ("a", "b")))
    steps, may_go = list[str](), threading.Event()

    def tell(event: dict[str, Any]) -> None:
        steps.append(event["step"])
        may_go.set()

    def hold() -> None:
        with held(output, "another"):
            ready.set()
            may_go.wait(30)

    ready = threading.Event()
    other = threading.Thread(target=hold)
    other.start()
    ready.wait(30)
    report = run_again(output, Texts(output).job, tell=tell)
    other.join(60)
    assert steps[0].startswith("waiting for run another of ")
    assert (report["status"], report["answers"]["journal"]["end"]) == ("done", journal.end)


def test_what_a_run_ends_with_is_said(corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    job = corpus.write_all(60, 5, method={"n_clusters": 3, "n_init": 1})
    with pytest.raises(ConfigurationError, match="a job of mode fit"):
        run_again(str(corpus.folder / "out"), str(corpus.write_job(mode="predict")))
    corpus.write_job()
    said = "warning: first\nerror: documents/bad.jsonl, line 1: not JSON\n"
    for code, kind in ((65, InvalidInputError), (78, ConfigurationError), (75, ClusterError)):
        monkeypatch.setattr(again, "_ended", lambda *_, code=code: (code, "", said))
        with pytest.raises(kind, match=r"^documents/bad.jsonl, line 1: not JSON$"):
            run_again(str(corpus.folder / "out"), str(job))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", '"' + "x" * 200_000 + '",text\n'), ("a.jsonl", "[" * 100_000)],
    ids=["a long header", "deep"],
)
def test_files_that_cannot_be_read_are_refused_in_words(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / name).write_text(content)
    limit = csv.field_size_limit(131_072)  # Python's own, which a reader of documents raises
    try:
        with pytest.raises(InvalidInputError, match="cannot be read"):
            job_for(str(tmp_path / "docs"))
    finally:
        csv.field_size_limit(limit)


def test_a_manifest_of_somebody_else_stays(tmp_path: Path) -> None:
    home = tmp_path / "docs-clusters"
    for folder in (tmp_path / "docs", home):
        folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "docs" / name).write_text(name)
    (home / "manifest.yaml").write_text("mine: 1\n")
    with pytest.raises(ConfigurationError, match=r"manifest\.yaml.* rename"):
        job_for(str(tmp_path / "docs"))
    assert (home / "manifest.yaml").read_text() == "mine: 1\n"
    (home / "manifest.yaml").unlink()
    made = job_for(str(tmp_path / "docs"))
    Path(made.job).unlink()  # as after a kill between both files
    assert job_for(str(tmp_path / "docs")) == made
