"""Runs take the journal of their output: up to its end when they began, and never change it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.jobs.answers import read_answers, split_answers
from hmrf_dask.jobs.check import check_file
from hmrf_dask.jobs.former import Documents
from hmrf_dask.jobs.inputs import AnswerFile, gather, load_job
from hmrf_dask.jobs.journal import anchored, take
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.page.output import rounds_of
from hmrf_dask.releases.own_files import OUTPUT, is_own
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run
from tests.support.long_cases import long

SMALL: dict[str, Any] = {"method": {"n_clusters": 3, "n_init": 1, "max_iter": 5}}


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def answer(corpus: JobCorpus, name: str, first: int, second: int, **changes: Any) -> Entry:
    """Return a right answer about two documents, by a person who knows."""
    one, other = corpus.documents[first], corpus.documents[second]
    said = "same" if one["label"] == other["label"] else "different"
    return Entry(name, "pair", (one["id"], other["id"]), answer=said, **changes)


def answers(corpus: JobCorpus, n_groups: int = 3, each: int = 4) -> list[Entry]:
    """Return answers that make groups: documents are of classes in turn."""
    found = [
        answer(corpus, f"d{group}{other}", group, other)
        for group in range(n_groups)
        for other in range(group)
    ]
    for number in range(n_groups, n_groups * each):
        found += [
            answer(corpus, f"{who}{number}", number, number % n_groups, annotator=who)
            for who in ("anna", "bo")
        ]
    return found


def test_a_run_takes_the_journal_next_to_files(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, **SMALL)
    first = run(job)
    journal = open_journal(journal_address(first.output))
    journal.append(*answers(corpus))
    taken = run(job)
    assert (taken.status, taken.release) == ("done", 2)
    assert sum(taken.answers["pairs"].values()) > sum(first.answers["pairs"].values()) + 8
    assert taken.answers["violated"] == {"must": 0, "cannot": 0}
    assert taken.answers["journal"] == {"end": journal.end, "answers": 21, "bad": 0}
    history = [(one["release"], one["answers"]) for one in rounds_of(first.output)]
    assert history == [(2, 21), (1, 0)]  # of answers without a time, such as imported ones, too
    assert run(job).status == "up to date"
    journal.append(Entry("note", "comment", answer="well", about="d10"))
    assert run(job).status == "up to date"
    inspected = CliRunner().invoke(hmrf, ["inspect", first.output, "--json"])
    assert json.loads(inspected.stdout)["journal"] == {
        "end": journal.end, "answers": 21, "bad": 0, "taken": taken.answers["journal"],
        "since": 0,
    }  # fmt: skip
    journal.append(Entry("undo", "undo", about="d10"))
    again = run(job)
    assert (again.status, again.answers["journal"]["answers"]) == ("done", 20)


def test_the_order_of_lines_changes_nothing(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, **SMALL)
    corpus.write({"out/journal.jsonl": b"".join(one.to_line() for one in answers(corpus))})
    assert run(job).status == "done"
    lines = (corpus.folder / "out/journal.jsonl").read_bytes().splitlines(keepends=True)
    corpus.write({"out/journal.jsonl": b"".join([*reversed(lines), lines[0]])})
    assert run(job).status == "up to date"


def test_check_reads_the_journal_too(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, **SMALL)
    before = check_file(str(job)).answers
    assert before is not None
    corpus.write({"out/journal.jsonl": b"".join(one.to_line() for one in answers(corpus))})
    after = check_file(str(job)).answers
    assert after is not None
    assert after.must_links > before.must_links
    assert after.files == before.files + 1


def test_a_killed_run_goes_on_with_the_answers_that_it_had(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, **SMALL)
    output = run(job).output
    journal = open_journal(journal_address(output))
    journal.append(*answers(corpus))
    end = journal.end

    def killed(event: dict[str, Any]) -> None:
        if event.get("step") == "match clusters":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(gather(load_job(str(job)), str(job)), tell=killed)
    begun = {path.name for path in (corpus.folder / "out/runs").iterdir()}
    journal.append(answer(corpus, "late", 20, 2))
    with pytest.warns(HmrfWarning, match="had, where there are 22 now; run again to use all"):
        resumed = run(job)
    assert resumed.run in begun
    assert resumed.answers["journal"]["end"] == end
    later = run(job)
    assert (later.release, later.answers["journal"]["end"]) == (resumed.release + 1, journal.end)


def test_a_line_that_a_kill_cut_is_said_and_stops_nothing(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, **SMALL)
    line = answer(corpus, "1", 0, 3).to_line()
    corpus.write({"out/journal.jsonl": line + line[:30] + b"\n" + answers(corpus)[0].to_line()})
    with pytest.warns(HmrfWarning) as caught:
        report = run(job)
    assert any("1 line of the journal left out" in str(one.message) for one in caught)
    assert report.answers["journal"]["bad"] == report.answers["quarantined"] == 1
    listed = corpus.folder / "out" / report.places["rejects"] / "answers.jsonl"
    assert json.loads(listed.read_text())["line"] == 2


@pytest.mark.parametrize("quarantine", [False, True])
def test_answers_about_unknown_documents_are_rejected(corpus: JobCorpus, quarantine: bool) -> None:
    changes = {"on_bad_record": "quarantine", "max_rejected": 0.5} if quarantine else {}
    job = corpus.write_all(60, 5, **SMALL, **changes)
    known = corpus.documents[0]["id"]
    about = [
        Entry(who, "pair", ("nobody", known), answer="same", annotator=who)
        for who in ("anna", "bo")
    ]
    entries = [*answers(corpus), *about]
    corpus.write({"out/journal.jsonl": b"".join(one.to_line() for one in entries)})
    if not quarantine:
        with pytest.raises(InvalidInputError, match=r"journal.jsonl, line \d+: .*'nobody'"):
            run(job)
        return
    with pytest.warns(HmrfWarning, match="quarantined: 1 answer"):
        assert run(job).answers["unknown"] == 1


def test_what_stands_for_a_group_may_go(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, **SMALL)
    corpus.write({"out/journal.jsonl": b"".join(one.to_line() for one in answers(corpus))})
    before = run(job).answers
    inputs = gather(load_job(str(job)), str(job))
    given = read_answers((), {}, inputs.journal)
    anchor = given.pairs[given.must][:, 0].tolist()[0]
    ids = np.unique(np.array(given.named()))
    documents = Documents(ids, ids != anchor, ids == anchor)
    split = split_answers(anchored(given, inputs.journal.address, documents), documents)
    assert len(split.waiting) == 1
    assert len(split.known.pairs) == len(given.pairs) - 1
    trust = [one["trust"] for one in split.known.notes.tolist()]
    assert 0.5 < min(trust) <= max(trust) <= 1
    assert before["pairs"]["must"]


@pytest.mark.parametrize("private", [True, *long(False)])
def test_the_journal_is_nobodys_to_remove(corpus: JobCorpus, private: bool) -> None:
    job = corpus.write_all(60, 5, **SMALL, keep=1, private=private)
    output = run(job).output
    journal = open_journal(journal_address(output))
    journal.append(*answers(corpus))
    there = (corpus.folder / "out/journal.jsonl").read_bytes()
    run(job)
    for n_documents, more in ((9, {}), (9, {"from_release": 3}), (9, {"take_over": True})):
        corpus.write(corpus.files(corpus.draw(n_documents), first=len(corpus.documents)))
        changes = {"name": "other"} if more.get("take_over") else {}
        inputs = gather(load_job(str(job), changes), str(job), **more)
        assert run_job(inputs).status == "done"
    assert (corpus.folder / "out/journal.jsonl").read_bytes() == there
    mode = stat.S_IMODE((corpus.folder / "out/journal.jsonl").stat().st_mode)
    assert not (private and mode & 0o077)


def test_a_journal_that_was_there_before_becomes_private(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 5, **SMALL, private=True)
    corpus.write({"out/journal.jsonl": b""})
    (corpus.folder / "out/journal.jsonl").chmod(0o644)
    run(job)
    assert stat.S_IMODE((corpus.folder / "out/journal.jsonl").stat().st_mode) == 0o600


def test_names_of_a_journal_are_no_names_of_a_run() -> None:
    assert not any(is_own(n, OUTPUT) for n in ("journal.jsonl", "journal/00001.json"))
    assert is_own("runs/0123456789abcdef/journal.json", OUTPUT)


def test_a_weight_in_a_file_is_that_of_the_pair_in_the_journal(corpus: JobCorpus) -> None:
    corpus.write_all(60, 5, **SMALL)
    entries = answers(corpus)
    first, second = believe(entries).constraints().must_link.tolist()[0]
    corpus.write({"out/journal.jsonl": b"".join(one.to_line() for one in entries)})
    files = [AnswerFile("w.csv", f"a,b,kind,weight\n{second},{first},same,2.0\n".encode())]
    given = read_answers(files, {}, take(str(corpus.folder / "out")))
    assert given.rejects == []
    weights = given.weights[[sorted(pair) == [first, second] for pair in given.pairs.tolist()]]
    assert weights.tolist() == [2.0, 2.0]
    assert np.isnan(given.weights).sum() == len(given.weights) - 2
