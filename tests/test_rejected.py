"""How much a run may reject, and answers that wait for documents that are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConflictError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs.places import Report
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run
from tests.support.long_cases import long

FEW = {"n_clusters": 3, "n_init": 1}


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


@pytest.fixture
def unfitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be fitted."""

    def fit(*_: Any) -> Any:
        raise AssertionError("a fit began")

    monkeypatch.setattr("hmrf_dask.jobs.run_job.fit_all", fit)


def command(job: Path, *options: str) -> Result:
    return CliRunner().invoke(hmrf, ["run", str(job), *options])


def answers(*pairs: tuple[str, str, str]) -> bytes:
    return "".join(f"{','.join(pair)}\n" for pair in [("a", "b", "kind"), *pairs]).encode()


def listed(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a file of rejects of the only run."""
    (path,) = folder.glob(f"out/runs/*/rejects/{name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def a_hundred(corpus: JobCorpus, n_bad: int, kind: str = "perhaps") -> bytes:
    """Return a hundred answers, some of another kind."""
    ids = [one["id"] for one in corpus.documents[:30]]
    pairs = [(ids[number % 15], ids[15 + number // 10]) for number in range(100)]
    kinds = [kind if number < n_bad else "0" for number in range(100)]
    return answers(*((*pair, kind) for pair, kind in zip(pairs, kinds, strict=True)))


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(("n_bad", "settings"), [
    (100, {}), (6, {}), (100, {"max_rejected": 1}), (1, {"max_rejected": 0}),
])  # fmt: skip
def test_too_many_bad_answers_end_with_65_before_a_document_is_read(
    n_bad: int, settings: dict[str, Any], corpus: JobCorpus
) -> None:
    job = corpus.write_all(60, 0, on_bad_record="quarantine", **settings)
    corpus.write({"answers.csv": a_hundred(corpus, n_bad)})
    result = command(job, "--quiet")
    assert result.exit_code == 65
    assert f"got {n_bad} of 100: answers.csv, line 2: kind must be must (" in result.stderr
    assert "/rejects lists them" in result.stderr
    assert result.stderr.count("\n") == 1
    assert [one["line"] for one in listed(corpus.folder, "answers.jsonl")] == [*range(2, n_bad + 2)]
    assert not (corpus.folder / "out" / "LATEST").exists()


def test_a_share_that_is_allowed_is_a_warning(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, on_bad_record="quarantine", max_rejected=0.29, method=FEW)
    corpus.write({"answers.csv": a_hundred(corpus, 29)})
    result = command(job, "--quiet", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    (warned,) = report["warnings"]
    assert result.stderr == f"warning: {warned}\n"
    assert warned.startswith("quarantined: 29 answers, listed with the reasons in /")
    assert report["answers"]["quarantined"] == 29
    assert json.loads(command(job, "--quiet", "--json").stdout)["warnings"] == []


@pytest.mark.usefixtures("unfitted")
def test_too_many_unknown_documents_end_before_the_fit(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, on_bad_record="quarantine")
    ids = [one["id"] for one in corpus.documents]
    pairs = [(ids[0], one, "must") for one in ids[1:19]]
    corpus.write({"answers.csv": answers(*pairs, (ids[0], "nobody", "must"), (ids[0], "x", "no"))})
    with pytest.raises(InvalidInputError, match=r"got 2 of 20: answers\.csv, line 20: .*'nobody'"):
        run(job)
    assert [one["line"] for one in listed(corpus.folder, "answers.jsonl")] == [20, 21]


def bad_records(corpus: JobCorpus, n_bad: int) -> None:
    corpus.write({"documents/bad.jsonl": b'{"id": "one"}\n' * n_bad})


@pytest.mark.usefixtures("unfitted")
@pytest.mark.parametrize("kind", ["words", "embeddings"])
def test_too_many_bad_records_end_before_rows(kind: str, corpus: JobCorpus) -> None:
    corpus.draw(60)
    for one in corpus.documents:
        one["vector"] = [1.0, float(len(one["text"]))]
    corpus.write(corpus.files(corpus.documents))
    corpus.write({"answers.csv": answers()})
    columns = {"embedding": "vector"}
    settings: dict[str, Any] = {"on_bad_record": "quarantine", "text": {"kind": kind}}
    job = corpus.write_job(columns=columns, **settings)
    bad_records(corpus, 4)
    words = r"at most 5 % of records may be .* got 4 of 64: documents/bad\.jsonl, line 1: .*text"
    with pytest.raises(InvalidInputError, match=words):
        run(job)
    assert len(listed(corpus.folder, "*.jsonl")) == 4


@pytest.mark.usefixtures("unfitted")
def test_ids_that_come_twice_count_as_rejected(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, on_bad_record="quarantine")
    corpus.write(corpus.files(corpus.documents[:10], first=9))
    with pytest.raises(InvalidInputError, match=r"at most 5 % of records may be .* got 10 of 70: "):
        run(job)
    assert len(listed(corpus.folder, "repeated-ids.jsonl")) == 10


@pytest.mark.usefixtures("unfitted")
def test_a_large_file_that_breaks_off_is_more_than_one_record(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, on_bad_record="quarantine")
    path = corpus.folder / "documents" / "part-001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidInputError, match=r"of the bytes may .*part-001\.jsonl\.gz, line \d"):
        run(job)


@pytest.mark.parametrize(("changes", "exit_code"), [
    ({}, 65), ({"on_bad_record": "quarantine"}, 0),
    ({"on_bad_record": "quarantine", "max_rejected": 0.01}, 65),
])  # fmt: skip
def test_check_says_of_a_job_what_its_run_would_do(
    changes: dict[str, Any], exit_code: int, corpus: JobCorpus
) -> None:
    method = {**FEW, "on_conflict": "drop"}
    job = corpus.write_all(60, 0, method=method, **changes)
    first, second = corpus.documents[0]["id"], corpus.documents[3]["id"]
    pairs = a_hundred(corpus, 4)
    more = f"{first},{second},1\n{first},{second},0\n{first},nobody,1\n"
    corpus.write({"answers.csv": pairs + more.encode()})
    bad_records(corpus, 2)
    result = CliRunner().invoke(hmrf, ["check", str(job), "--json", "--quiet"])
    found = json.loads(result.stdout)
    assert result.exit_code == exit_code, found["problems"]
    assert len(found["problems"]) == (2 if exit_code else 0)
    assert command(job, "--quiet").exit_code == exit_code


# ---- answers that wait


def checked(job: Path) -> int:
    """Return the exit code of a check, which a run would have."""
    return CliRunner().invoke(hmrf, ["check", str(job), "--quiet"]).exit_code


class Nights:
    """Nights of a job with answers about a document that comes and goes."""

    def __init__(self, corpus: JobCorpus, **job: Any) -> None:
        self.corpus = corpus
        self.job = corpus.write_all(60, 0, **{"method": FEW, **job})
        self.path = corpus.folder / "documents" / "part-002.jsonl.gz"
        self.there = self.path.read_bytes()
        self.ids = [one["id"] for one in corpus.documents]
        self.gone = self.ids[40]

    def without(self) -> None:
        """Take the document out of its file."""
        some = [one for one in self.corpus.documents[40:60] if one["id"] != self.gone]
        self.path.write_bytes(self.corpus.files(some)["documents/part-000.jsonl.gz"])

    def back(self) -> None:
        self.path.write_bytes(self.there)

    def answer(self, *pairs: tuple[str, str, str]) -> None:
        self.corpus.write({"answers.csv": answers(*pairs)})


def counts(report: Report) -> tuple[int, int, int]:
    found = report.answers
    return sum(found["pairs"].values()), found["waiting"], found["quarantined"]


@pytest.mark.parametrize("mode", ["quarantine", *long("stop")])
def test_an_answer_about_a_document_that_is_gone_waits_for_it(mode: str, corpus: JobCorpus) -> None:
    nights = Nights(corpus, on_bad_record=mode, keep=1)
    first, second, gone = nights.ids[0], nights.ids[3], nights.gone
    nights.answer((first, second, "same"), (first, gone, "different"))
    assert counts(run(nights.job)) == (2, 0, 0)
    nights.without()
    assert checked(nights.job) == 0
    report = run(nights.job)
    assert counts(report) == (1, 1, 0)
    waiting = Path(report.output) / report.places["rejects"] / "waiting.jsonl"
    (line,) = map(json.loads, waiting.read_text().splitlines())
    assert (line["source"], line["line"]) == ("answers.csv", 3)
    assert line["reason"] == f"waits for {gone!r}: gone since a former release"
    # It is remembered where nothing else is left of the release that had it.
    for number in range(2):
        corpus.write(corpus.files(corpus.draw(3), first=50 + number))
        assert counts(run(nights.job)) == (1, 1, 0)
    nights.back()
    assert counts(run(nights.job)) == (2, 0, 0)
    nights.without()
    assert counts(run(nights.job)) == (1, 1, 0)


KNOWN, GONE, NEVER = ("a", "b", "must"), ("a", "gone", "cannot"), ("a", "nobody", "must")


@pytest.mark.parametrize(("changes", "given", "exit_code", "words"), [
    ({}, [KNOWN, GONE], 0, "1 answer will wait"),
    ({}, [KNOWN, GONE, NEVER], 65, "got 1 other: 'nobody'"),
    ({}, [KNOWN, ("b", "gone", "must"), GONE], 0, "2 answers will wait"),  # a contradiction
    ({"on_bad_record": "quarantine"}, [KNOWN, GONE, NEVER], 65, "got 1 of 3"),
    ({"on_bad_record": "quarantine", "max_rejected": 0.4}, [KNOWN, GONE, NEVER], 0, "1 answer wi"),
    ({"mode": "predict"}, [KNOWN, NEVER], 0, "the next fit will stop: answers must name"),
])  # fmt: skip
def test_check_says_which_answers_its_run_would_let_wait(
    changes: dict[str, Any], given: list[tuple[str, str, str]], exit_code: int, words: str,
    corpus: JobCorpus,
) -> None:  # fmt: skip
    nights = Nights(corpus)
    run(nights.job)
    nights.without()
    ids = {"a": nights.ids[0], "b": nights.ids[3], "gone": nights.gone}
    nights.answer(*((ids[a], ids.get(b, b), kind) for a, b, kind in given))
    job = corpus.write_job(method=FEW, **changes)
    result = CliRunner().invoke(hmrf, ["check", str(job), "--all", "--json", "--quiet"])
    found = json.loads(result.stdout)
    assert (result.exit_code, len(found["problems"])) == (exit_code, 1 if exit_code else 0), found
    assert words in "; ".join([*found["problems"], *found["remarks"]])
    assert command(job, "--quiet").exit_code == exit_code


def test_waiting_answers_are_no_share_of_what_is_rejected(corpus: JobCorpus) -> None:
    nights = Nights(corpus, on_bad_record="quarantine")
    first, gone = nights.ids[0], nights.gone
    corpus.write({"answers.csv": f"id,label\n{first},x\n{gone},x\n".encode()})
    assert counts(run(nights.job)) == (1, 0, 0)
    nights.without()
    assert counts(run(nights.job)) == (0, 1, 0)
    nights.answer((first, gone, "must"), (first, "nobody", "must"))
    with pytest.raises(InvalidInputError, match=r"got 1 of 2: .*'nobody'"):
        run(nights.job)
    nights.answer((gone, "nobody", "must"), (first, gone, "must"))
    with pytest.raises(InvalidInputError, match=r"line 2: .* got unknown 'nobody';"):
        run(nights.job, on_bad_record="stop")


def test_an_answer_that_comes_late_finds_its_document_in_old_assignments(
    corpus: JobCorpus,
) -> None:
    nights = Nights(corpus)
    run(nights.job)
    nights.without()
    run(nights.job)
    nights.answer((nights.ids[0], nights.gone, "must"))
    assert counts(run(nights.job)) == (0, 1, 0)
    assert counts(run(nights.job, keep=2, start="cold")) == (0, 1, 0)
    nights.answer((nights.ids[0], nights.gone, "must"), (nights.ids[0], "never", "must"))
    assert checked(nights.job) == 65
    with pytest.raises(InvalidInputError, match=r"^answers\.csv, line 3: .*'never'; correct"):
        run(nights.job)
    nights.answer((nights.ids[0], nights.gone, "must"))
    result = command(nights.job, "--json", "--from-release", "0")
    assert json.loads(result.stdout)["answers"]["waiting"] == 1


def test_damaged_assignments_are_reported_where_they_are_needed(
    corpus: JobCorpus,
) -> None:
    nights = Nights(corpus)
    report = run(nights.job)
    for path in Path(report.output).glob("runs/*/assignments/*"):
        path.write_bytes(path.read_bytes()[:-9])
    nights.without()
    nights.answer((nights.ids[0], nights.gone, "must"))
    with (
        pytest.warns(HmrfWarning, match="some assignments of release 1 are damaged: documents"),
        pytest.raises(InvalidInputError, match=f"got unknown {nights.gone!r}"),
    ):
        run(nights.job)


def test_predictions_remember_documents_that_go(corpus: JobCorpus) -> None:
    nights = Nights(corpus, keep=1)
    run(nights.job)
    nights.answer((nights.ids[0], nights.gone, "must"))
    nights.without()
    report = run(nights.job, mode="predict")
    assert (report.answers["unused"], report.answers["waiting"]) == (0, 1)
    corpus.write(corpus.files(corpus.draw(3), first=50))
    assert run(nights.job, mode="predict").answers["waiting"] == 1
    assert counts(run(nights.job)) == (0, 1, 0)


def test_predictions_report_answers_that_will_stop_the_next_fit(corpus: JobCorpus) -> None:
    nights = Nights(corpus)
    run(nights.job)
    nights.answer((nights.ids[0], "nobody", "must"))
    with (
        pytest.warns(HmrfWarning, match=r"the next fit will stop: answers\.csv, line 2: .*nobody"),
        pytest.warns(HmrfWarning, match="quarantined: 1 answer, "),
    ):
        assert counts(run(nights.job, mode="predict")) == (0, 0, 1)
    assert [checked(corpus.write_job(mode=mode)) for mode in ("predict", "fit")] == [0, 65]


def test_a_contradiction_waits_with_its_documents(corpus: JobCorpus) -> None:
    nights = Nights(corpus, method={**FEW, "on_conflict": "raise"})
    first, second, gone = nights.ids[0], nights.ids[3], nights.gone
    run(nights.job)
    nights.without()
    nights.answer((first, gone, "same"), (gone, second, "same"), (first, second, "different"))
    with pytest.warns(HmrfWarning, match="the fit will stop unless one of these documents is gone"):
        assert counts(run(nights.job)) == (1, 2, 0)
    assert checked(nights.job) == 0
    nights.back()
    assert checked(nights.job) == 65
    with (
        pytest.warns(HmrfWarning, match="the fit will stop unless"),
        pytest.raises(ConflictError, match=r"^answers\.csv, lines 2, 3, 4: "),
    ):
        run(nights.job)


def test_notes_are_kept_with_the_release(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, method=FEW, answers=["classes.jsonl"])
    first, second = corpus.documents[0]["id"], corpus.documents[3]["id"]
    corpus.write({"answers.csv": f"a,b,kind,annotator\n{first},{second},1,anna\n".encode()})
    rows = [{"id": first, "label": 1, "trust": 0.5}, {"id": second, "label": 1}]
    corpus.write({"classes.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    report = run(job)
    expected = [
        {"source": "answers.csv", "line": 2, "a": first, "b": second, "kind": "must",
         "notes": {"annotator": "anna"}},
        {"source": "classes.jsonl", "line": 1, "id": first, "label": "1", "notes": {"trust": 0.5}},
    ]  # fmt: skip
    for mode in ("fit", "predict"):
        (path,) = Path(report.output).glob(f"runs/{report.run}/notes.jsonl")
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert [{**one, "source": Path(one["source"]).name} for one in found] == expected
        corpus.write(corpus.files(corpus.draw(3), first=50))
        run(job, mode="predict", keep=1)
        assert mode == "predict" or path.exists()
