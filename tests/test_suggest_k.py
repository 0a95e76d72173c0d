"""K of a job: `hmrf-dask suggest-k`, and `n_clusters: auto`, chosen once and kept over nights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs import steps
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.places import Report, assignment_files
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.releases.release import latest
from tests.support.job_corpus import WORDS, JobCorpus
from tests.support.job_runs import assigned

AUTO = {"n_clusters": "auto", "n_init": 2}


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def run(job: Path, *, choose_k: bool = False, **changes: Any) -> Report:
    with dask.config.set(scheduler="threads", num_workers=2):
        return run_job(gather(load_job(str(job), changes), str(job), choose_k=choose_k))


def command(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


def chosen(report: Report) -> tuple[int, int]:
    """Return the K of a report, and the release that it was chosen for."""
    choice = report.fit["choice_of_k"]
    return choice["n_clusters"], choice["release"]


def add(corpus: JobCorpus, n_documents: int = 20) -> None:
    corpus.write(corpus.files(corpus.draw(n_documents), first=50))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often K is chosen."""
    calls, choose = [], steps.choose_k

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return choose(*arguments)

    monkeypatch.setattr(steps, "choose_k", counted)
    return calls


def test_a_job_chooses_k_once_and_keeps_it(corpus: JobCorpus, tried: list[int]) -> None:
    job = corpus.write_all(method=AUTO)
    first = run(job)
    assert first.nmi == pytest.approx(1.0)
    assert (chosen(first), first.clusters["number"]) == ((3, 1), 3)
    assert run(job).status == "up to date"
    add(corpus)
    second = run(job)
    assert (second.release, second.start, chosen(second)) == (2, "warm", (3, 1))
    assert second.clusters["kept"] == 3
    add(corpus)
    predicted = run(job, mode="predict")
    assert predicted.fit == {}
    add(corpus)
    assert chosen(run(job)) == (3, 1)  # a prediction keeps it too
    assert len(tried) == 1


@pytest.mark.long
def test_k_is_chosen_again_where_that_is_asked(
    corpus: JobCorpus, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = corpus.write_all(method=AUTO)
    run(job)
    monkeypatch.setitem(WORDS, "music", "guitar piano violin chord melody concert opera jazz")
    add(corpus, 80)
    assert chosen(run(job)) == (3, 1)
    again = run(job, choose_k=True)
    assert (chosen(again), again.status, again.start) == ((4, 3), "done", "cold")
    assert run(job, choose_k=True).status == "up to date"
    assert run(job).status == "up to date"
    add(corpus)
    assert chosen(run(job)) == (4, 3)
    assert len(tried) == 2


def test_a_given_number_ends_what_was_chosen(corpus: JobCorpus, tried: list[int]) -> None:
    job = corpus.write_all(method=AUTO)
    run(job)
    report = run(job, method={"n_clusters": 5, "n_init": 2})
    assert (report.clusters["number"], "choice_of_k" in report.fit) == (5, False)
    assert chosen(run(job)) == (3, 3)
    assert len(tried) == 2


@pytest.mark.long
def test_a_run_killed_after_the_choice_ends_as_one_that_was_not(
    corpus: JobCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = corpus.write_all(method=AUTO)
    expected = assigned(run(job, output=str(tmp_path / "whole")))
    with monkeypatch.context() as patched:
        patched.setattr(steps, "fit_job", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(job)
    report = run(job)
    assert (chosen(report), assigned(report)) == ((3, 1), expected)


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_a_damaged_release_that_chose_again_is_made_again(
    corpus: JobCorpus, tried: list[int]
) -> None:
    job = corpus.write_all(method=AUTO)
    run(job)
    report = run(job, choose_k=True)
    before = latest(report.output)
    Path(assignment_files(report.output)[0].path).write_bytes(b"damaged")
    with pytest.warns(HmrfWarning, match="release 2 is made again"):
        run(job)
    after = latest(report.output)
    assert before is not None
    assert after is not None
    assert (after.run, after.files) == (before.run, before.files)
    assert len(tried) == 3


def test_documents_that_k_cannot_be_chosen_by(corpus: JobCorpus) -> None:
    job = corpus.write_all(30, n_pairs=5, method=AUTO)
    with pytest.raises(InvalidInputError, match="K must be chosen by at least 40 rows"):
        run(job)
    result = command("suggest-k", str(job), "--quiet")
    assert (result.exit_code, result.stdout) == (65, "")
    assert "K must be chosen by at least 40 rows" in result.stderr


def test_choose_k_without_a_k_to_choose(corpus: JobCorpus) -> None:
    job = corpus.write_all()
    result = command("run", str(job), "--choose-k")
    assert result.exit_code == 78
    assert "--choose-k must go with method.n_clusters auto and a fit, got n_clusters 3" in (
        result.stderr
    )
    with pytest.raises(ConfigurationError, match="mode predict"):
        gather(
            load_job(str(corpus.write_job(method=AUTO, mode="predict"))), str(job), choose_k=True
        )


# ---- the command


def test_the_command_says_what_a_run_would_choose(corpus: JobCorpus) -> None:
    job = corpus.write_all(method={"n_clusters": 7, "n_init": 2})
    before = sorted(corpus.folder.rglob("*"))
    result = command("suggest-k", str(job), "--json", "--threads", "2")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert sorted(corpus.folder.rglob("*")) == before  # nothing is written
    assert (found["n_documents"], found["n_sample"], found["n_answers"]) == (120, 120, 30)
    assert found["recommended"]
    assert (found["n_clusters"], found["least"]) == (3, 3)
    assert found["least"] <= found["largest"] <= 1.5 * found["least"]
    rows = {one["n_clusters"]: one for one in found["tried"]}
    assert rows[2]["joined"] > rows[3]["joined"] == 0
    assert sum(one["likely"] for one in found["tried"]) == pytest.approx(1.0, abs=1e-3)
    report = run(job, method=AUTO)
    choice = report.fit["choice_of_k"]
    for name in ("n_clusters", "least", "largest"):
        assert choice[name] == found[name]


def test_the_page_marks_the_range_and_says_the_doubt(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmrf_dask.cli.progress.AFTER", 0.0)
    job = corpus.write_all()
    scratch = corpus.folder / "scratch"
    scratch.mkdir()
    arguments = ["--least=3", "--most=6", f"--scratch={scratch}"]
    result = command("suggest-k", str(job), *arguments)
    assert result.exit_code == 0, result.output
    assert not [*scratch.iterdir()]
    lines = result.stdout.splitlines()
    assert lines[0] == "120 of 120 documents, 30 answers about them"
    assert [line[:6].split() for line in lines[2:-1]] == [["*", "3"], ["*", "4"], ["5"], ["6"]]
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("K = 3: 3 to 4 are likely to ")
    assert "5 of 5: try numbers of clusters" in result.stderr


def test_answers_about_documents_that_are_gone_are_left_out(corpus: JobCorpus) -> None:
    job = corpus.write_all()
    name = next((corpus.folder / "documents").iterdir())
    name.unlink()
    result = command("suggest-k", str(job), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["n_documents"] == 100
    assert 0 < found["n_answers"] < 30
    n_left_out = 30 - found["n_answers"]
    said = "answers of 30 name documents that are not there, and are left out"
    assert found["warnings"] == [f"{n_left_out} {said}"]


def test_answers_that_say_only_different_tell_nothing(corpus: JobCorpus) -> None:
    job = corpus.write_all()
    lines = corpus.answers(30).decode().splitlines()
    corpus.write({"answers.csv": "\n".join(one for one in lines if "must" not in one).encode()})
    found = json.loads(command("suggest-k", str(job), "--json").stdout)
    assert found["n_answers"] == 0
    assert [one.partition(":")[0] for one in found["warnings"]] == [
        "the 26 answers tell nothing of K"
    ]


def test_k_to_try_must_be_in_order(corpus: JobCorpus) -> None:
    result = command("suggest-k", str(corpus.write_all(60)), "--least", "9", "--most", "5")
    assert result.exit_code == 2
    assert "--least must be at most --most, got 9 and 5" in result.stderr


def test_fit_takes_auto(tmp_path: Path) -> None:
    import numpy as np

    means = np.random.default_rng(0).normal(size=(3, 6)) * 5
    rows = means[np.arange(90) % 3] + np.random.default_rng(1).normal(size=(90, 6))
    np.save(tmp_path / "rows.npy", rows)
    arguments = [str(tmp_path / "rows.npy"), "-k", "auto", "--n-init=2", "--json"]
    result = command("fit", *arguments, f"--run-dir={tmp_path / 'run'}")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["sizes"]) == 3
    result = command("fit", *arguments[:1], "-k", "many", f"--run-dir={tmp_path / 'other'}")
    assert result.exit_code == 2
    assert "must be a whole number or auto, got 'many'" in result.stderr
    np.save(tmp_path / "init.npy", rows[:3])
    result = command("fit", *arguments, f"--run-dir={tmp_path / 'third'}",
                     f"--init={tmp_path / 'init.npy'}")  # fmt: skip
    assert result.exit_code == 78
    assert "n_clusters must be a number where init is an array" in result.stderr
