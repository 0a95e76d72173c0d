"""`hmrf-dask label`: what is refused before anybody answers, and how a folder gets an output."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.jobs import new_job
from hmrf_dask.page import launch
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run


def label(*arguments: object) -> Result:
    return CliRunner().invoke(hmrf, ["label", *map(str, arguments), "--no-browser"])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pages that would be served."""
    pages: list[Any] = []

    async def serve(page: Any, listener: socket.socket, opened: Any, end: Any) -> None:
        listener.close()
        opened()
        pages.append(page)

    monkeypatch.setattr(launch, "serve", serve)
    return pages


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(run(JobCorpus(tmp_path_factory.mktemp("label")).write_all(60, 0)).output)


def test_the_address_is_printed_with_its_token(output, served):
    result = label(output, "--port", 0)
    assert result.exit_code == 0, result.output
    page = served[0]
    assert result.stdout == f"http://127.0.0.1:{page.port}/?token={page.guard.token}\n"
    assert f"answers are saved in {output}/journal.jsonl" in result.stderr
    material = page.session.material
    assert (material.kind, len(material.groups)) == ("pair", 3)
    assert material.groups[0].words
    assert page.rounds()[0]["documents"] == 60
    assert max(page.session.weigh(["engine", "orbit", "church", "nowhere"])) > 1.0


def test_another_host_is_warned_of(output, served):
    assert "prefer ssh -L" in label(output, "--port", 0, "--host", "0.0.0.0").stderr


def test_a_port_in_use_is_refused_in_words(output):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = label(output, "--port", taken.getsockname()[1])
    assert result.exit_code == 78
    assert "the port must be free" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_output_without_a_model_is_refused_in_words(tmp_path):
    (tmp_path / "runs").mkdir()
    result = label(tmp_path, "--port", 0)
    assert result.exit_code == 78
    assert "without a release; run the job first" in result.stderr


def test_a_place_that_is_not_there_is_refused_in_words(tmp_path):
    result = label(tmp_path / "nowhere", "--port", 0)
    assert result.exit_code == 78
    assert "without a release; run the job first" in result.stderr


def test_one_document_leaves_nothing_to_ask(tmp_path, served):
    job = JobCorpus(tmp_path).write_all(1, 0, method={"n_clusters": 1})
    report = run(job, text={})
    result = label(report.output, "--port", 0)
    assert result.exit_code == 65
    assert "there must be something to ask" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_that_cannot_be_written_wants_another_journal(output, served):
    output.chmod(0o500)
    try:
        result = label(output, "--port", 0)
        assert "name another file by --journal" in result.stderr
    finally:
        output.chmod(0o700)


def test_answers_may_go_to_another_journal_and_then_no_run_is_started(output, served, tmp_path):
    file = tmp_path / "mine.jsonl"
    assert label(output, "--port", 0, "--journal", file).exit_code == 0
    page = served[0]
    assert page.session.journal.address == str(file)
    assert "answers import" in page.refit.view()["refused"]


def test_a_folder_of_texts_gets_a_job_and_an_output(output, served, monkeypatch, tmp_path):
    """The run itself is a test of its own (tests/test_job_journal.py)."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for place in range(3):
        (folder / f"{place}.txt").write_text("dear all")
    ran: list[tuple[str, str]] = []

    def run_again(output: str, job: str, *, tell: Any) -> None:
        ran.append((output, job))
        tell({"step": "count", "done": 0, "of": 1})
        tell({"step": "count", "done": 1, "of": 1})

    monkeypatch.setattr(launch, "run_again", run_again)
    result = label(folder, "--port", 0)
    home = f"{folder}{new_job.SUFFIX}"
    assert ran == [(f"{home}/out", f"{home}/job.yaml")]
    assert result.stderr.count("count ...") == 1
    assert "without a release" in result.stderr  # as nothing ran
