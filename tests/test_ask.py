"""Questions in a terminal and in tables: what is asked is answered, saved and not asked again."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.answers.standing import standing
from hmrf_dask.cli import show_questions
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.jobs.ask import Asked, Asking, as_table
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> JobCorpus:
    corpus = JobCorpus(tmp_path_factory.mktemp("ask"))
    run(corpus.write_all(60, 5, method={"n_clusters": 3, "n_init": 1}, questions=6))
    return corpus


def ask(corpus: JobCorpus, *arguments: str, typed: str | None = None) -> Result:
    command = ["ask", str(corpus.folder / "out"), "--threads=1", *arguments]
    return CliRunner().invoke(hmrf, command, input=typed)


def kind_of(corpus: JobCorpus, first: str, second: str) -> str:
    return "same" if first.partition("/")[0] == second.partition("/")[0] else "different"


def test_questions_are_those_of_the_release_with_texts(ran: JobCorpus) -> None:
    asked = json.loads(ask(ran, "-n4", "--json").stdout)
    assert len(asked["questions"]) == 4
    texts = {one["id"]: one["text"] for one in ran.documents}
    for question in asked["questions"]:
        assert question["kind"] == "pair"  # three groups are asked about two by two
        assert all(texts[one].startswith(asked["texts"][one][:50]) for one in question["documents"])
    choices = json.loads(ask(ran, "-n4", "--json", "--as=choices").stdout)["questions"]
    assert {one["kind"] for one in choices} == {"choice"}
    more = sum(max(len(one["documents"]) + len(one["shown"]) - 2, 0) for one in choices)
    with pytest.MonkeyPatch.context() as few:
        few.setattr(
            show_questions, "_GROUPS", 1
        )  # the likeliest alone, and how many there are beyond it
        page = ask(ran, "-n4", "--as=choices").stdout
    beyond = re.findall(r"  … (\d+) groups? th.* less likely \(--json has all\)", page)
    assert sum(map(int, beyond)) == more > 0
    page = ask(ran, "-n2").stdout
    assert all(one in page for one in asked["questions"][0]["documents"])


def test_a_table_that_was_filled_in_is_imported_and_not_asked_again(
    ran: JobCorpus, tmp_path: Path
) -> None:
    journal = f"--journal={tmp_path / 'own.jsonl'}"
    before = list(csv.DictReader(io.StringIO(ask(ran, "-n3", "--csv", journal).stdout)))
    assert [row["kind"] for row in before] == [""] * 3
    for row in before[:2]:
        row["kind"], row["annotator"] = kind_of(ran, row["a"], row["b"]), "anna"
    with (tmp_path / "filled.csv").open("w") as file:
        writer = csv.DictWriter(file, before[0])
        writer.writeheader()
        writer.writerows(before)
    command = ["answers", "import", str(ran.folder / "out"), str(tmp_path / "filled.csv"), journal]
    done = json.loads(CliRunner().invoke(hmrf, [*command, "--json"]).stdout)
    assert (done["added"], done["open"]) == (2, 1)
    after = list(csv.DictReader(io.StringIO(ask(ran, "-n3", "--csv", journal).stdout)))
    answered = {frozenset((row["a"], row["b"])) for row in before[:2]}
    assert not answered & {frozenset((row["a"], row["b"])) for row in after}


def test_people_are_believed_as_the_job_says(ran: JobCorpus, tmp_path: Path) -> None:
    said = yaml.safe_load((ran.folder / "job.yaml").read_text()) | {"annotators": {"bob": 0.6}}
    job, journal = tmp_path / "job.yaml", tmp_path / "own.jsonl"
    job.write_text(yaml.safe_dump(said))
    output = str(ran.folder / "out")
    for trusted in ("", str(job)):
        asking = Asking(output, 4, kind="choice", journal=str(journal), job=trusted)
        question = asking.batch[0]
        pair = (question.documents[0], question.shown[0])
        asking.save(Entry("1", "choice", pair, question.shown, "same", annotator="bob"))
        is_said = asking.beliefs().annotators["bob"].error_rate == pytest.approx(0.4)
        assert is_said == bool(trusted)


def test_keys_are_answers(ran: JobCorpus, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    done = ask(ran, "-i", f"--journal={file}", "--name=anna", typed="sxdb?kq")
    assert (done.exit_code, "2 answers saved in" in done.stdout) == (0, True)
    entries = open_journal(file).entries().entries
    assert [one.answer for one in entries if one.kind == "pair"] == ["same", "different", "unknown"]
    assert [one.kind for one in entries] == ["pair", "pair", "undo", "pair"]
    assert len(standing(entries)) == 2
    assert {one.annotator for one in entries} == {"anna"}
    assert all(one.time and one.likely and one.why for one in entries if one.kind == "pair")
    done = ask(ran, "-i", "--as=choices", f"--journal={file}", typed="9\n1\nn\nq\n")
    choices = [one for one in open_journal(file).entries().entries if one.kind == "choice"]
    assert [one.answer for one in choices] == ["same", "none"]
    assert choices[0].documents[1] == choices[0].shown[0]


def test_a_person_who_knows_all_is_asked_until_nothing_is_left(
    ran: JobCorpus, tmp_path: Path
) -> None:
    file = tmp_path / "own.jsonl"
    for name in ("anna", "bo", "cy"):
        journal = open_journal(file)
        for _ in range(60):
            asked = json.loads(ask(ran, "-n60", "--json", f"--journal={file}").stdout)
            if not asked["questions"]:
                break
            journal.append(
                *(
                    Entry(
                        f"{name}{journal.end}{number}", "pair", tuple(one["documents"]),
                        answer=kind_of(ran, *one["documents"]), annotator=name,
                    )
                    for number, one in enumerate(asked["questions"])
                )
            )  # fmt: skip
    assert asked["questions"] == []
    assert asked["remark"] == "nothing is left to ask"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["-n1000"], 0, "of 1000 is left to ask"),
        (["-n0"], 0, ""),
        (["--csv", "--as=choices"], 2, "--csv asks about pairs"),
        (["--csv", "--json"], 2, "exclude each other"),
        (["-n-1"], 2, "-n"),
        (["--job=/nowhere/job.yaml", "-n1"], 0, "without texts: "),
    ],
)
def test_mistakes_are_said_in_words(
    ran: JobCorpus, arguments: list[str], code: int, said: str
) -> None:
    done = ask(ran, *arguments)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_an_output_without_a_model_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(hmrf, ["ask", str(tmp_path)])
    assert (done.exit_code, "without a release; run the job first" in done.stderr) == (78, True)


def test_texts_are_no_formulas() -> None:
    question: dict[str, Any] = {"kind": "pair", "documents": ("x", "r"), "likely": (), "why": "w"}
    table = as_table(Asked("out", "j", 0, [question], {"x": "=1+1", "r": "plain"}))
    (row,) = csv.DictReader(io.StringIO(table))
    assert (row["text_a"], row["text_b"]) == ("'=1+1", "plain")


def test_without_a_terminal_nobody_presses_a_key(
    ran: JobCorpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_terminal(*_: Any) -> str:
        raise OSError(6, "No such device or address", "/dev/tty")

    monkeypatch.setattr("click.getchar", no_terminal)
    done = ask(ran, "-i", f"--journal={tmp_path / 'own.jsonl'}")
    assert (done.exit_code, "--interactive must have a terminal" in done.stderr) == (2, True)


@pytest.mark.parametrize(("kind", "end"), [("pairs", "s\x04"), ("choices", "1\n")])
def test_the_end_of_what_is_typed_ends_the_questions(
    ran: JobCorpus, tmp_path: Path, kind: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = iter(end)

    def pressed() -> str:
        if (key := next(keys)) == "\x04":
            raise EOFError  # what Ctrl-D is
        return key

    monkeypatch.setattr("click.getchar", pressed)
    done = ask(ran, "-i", f"--as={kind}", f"--journal={tmp_path / 'own.jsonl'}", typed=end)
    assert (done.exit_code, "1 answer saved" in done.stdout) == (0, True), done.output
