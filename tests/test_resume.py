"""A fit that was stopped anywhere goes on to the same bits; another fit is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from hmrf_dask import HMRFKMeans
from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import HmrfError, InvalidInputError, RunDirectoryError
from hmrf_dask.fit.fitting import FitInput, fit_corpus
from hmrf_dask.tasks.model import Settings
from tests.support.fits import Result, fit
from tests.support.killed_fits import (
    WHENS,
    make_case,
    phases_of,
    resumes_to,
    spread_kills,
)
from tests.support.long_cases import long


@pytest.fixture(autouse=True)
def synchronous() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, str]]:
    """Give the result and the run directory of whole fits."""
    with dask.config.set(scheduler="synchronous"):
        found = {}
        for name in ("cosine", "kl", "euclidean"):
            run_dir = str(tmp_path_factory.mktemp(name) / "run")
            found[name] = fit(make_case(name), 3, run_dir=run_dir), run_dir
        return found


# --- SIGKILL


@pytest.mark.long
def test_killed_in_every_phase_of_a_pool(
    undisturbed: dict[str, tuple[Result, str]], tmp_path: Path
) -> None:
    wanted, run_dir = undisturbed["cosine"]
    phases = phases_of(run_dir)
    assert set(phases) == {"start", "fit", "refine"}
    kills = list(zip(sorted(spread_kills(phases, 3)), WHENS, strict=True))
    assert resumes_to("cosine", tmp_path, kills, [0, 0, 1, 50, 120]) == the_same_as(wanted)


@pytest.mark.long
def test_killed_in_a_warm_up(undisturbed: dict[str, tuple[Result, str]], tmp_path: Path) -> None:
    wanted, run_dir = undisturbed["kl"]
    phases = phases_of(run_dir)
    assert set(phases) == {"warm-up", "fit"}
    assert resumes_to("kl", tmp_path, [(5, "after")], 2) == the_same_as(wanted)


class the_same_as:  # noqa: N801 - reads as a word of a sentence
    """A result to compare with: digests and labels, and what a difference would show in."""

    def __init__(self, wanted: Result) -> None:
        self.wanted = wanted

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Result)
        assert np.array_equal(other.labels, self.wanted.labels)
        return replace(other, labels=self.wanted.labels) == self.wanted


# --- what was finished, in this process


class Stopped(BaseException):
    """Stands for Ctrl-C."""


def final(run_dir: str) -> Any:
    return json.loads(Path(run_dir, "FINAL.json").read_text())["content"]


def events_of(run_dir: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run_dir, "events.jsonl").read_text().splitlines()]


def test_a_finished_run_returns_at_once(
    undisturbed: dict[str, tuple[Result, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted, finished = undisturbed["cosine"]
    run_dir = str(shutil.copytree(finished, tmp_path / "run"))
    before = {path: path.stat().st_mtime_ns for path in Path(run_dir).rglob("*.*")}
    for name in ("commit", "write_labels"):  # not one more iteration, not one more file
        monkeypatch.setattr(RunDirectory, name, None)
    assert fit(make_case("cosine"), 3, run_dir=run_dir) == the_same_as(wanted)
    after = {path: path.stat().st_mtime_ns for path in Path(run_dir).rglob("*.*")}
    assert {path.name for path in before if before[path] != after[path]} == {"events.jsonl"}
    assert [event["event"] for event in events_of(run_dir)][-2:] == ["stop", "resume"]


# --- damage


@pytest.mark.parametrize("what", ["commit", *long("labels", "state")])
def test_a_damaged_last_commit_is_skipped(
    what: str, undisturbed: dict[str, tuple[Result, str]], tmp_path: Path
) -> None:
    wanted, finished = undisturbed["cosine"]
    run_dir = shutil.copytree(finished, tmp_path / "run")
    path = run_dir / "commits" / f"{len(phases_of(finished)):05d}.json"
    content = json.loads(path.read_text())["content"]
    if what != "commit":
        path = run_dir / (content["files"] if what == "labels" else [content["state"]])[0][0]
    path.write_bytes(path.read_bytes()[:-9] + b"disturbed")
    assert fit(make_case("cosine"), 3, run_dir=str(run_dir)) == the_same_as(wanted)
    rejected = [one for one in events_of(str(run_dir)) if one["event"] == "commit-rejected"]
    assert rejected[0]["commit"] == f"{content['number']:05d}.json"
    assert final(str(run_dir)) == final(finished)


def test_with_all_commits_damaged_it_begins_again(
    undisturbed: dict[str, tuple[Result, str]], tmp_path: Path
) -> None:
    wanted, finished = undisturbed["euclidean"]
    run_dir = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(run_dir / "labels")
    assert fit(make_case("euclidean"), 2, run_dir=str(run_dir)) == the_same_as(wanted)


# --- refusal


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_clusters": 4}, "config.settings.n_clusters: run.json has 3, asked 4"),
        ({"random_state": 1}, "config.settings.seed: run.json has 0, asked 1"),
        ({"distortion": "pearson"}, "config.distortion: run.json has 'cosine', asked 'pearson'"),
        ({"max_iter": 7}, "config.settings.max_iter: run.json has 100, asked 7"),
        (
            {"inference": "belief-propagation"},
            "config.settings.inference: run.json has 'icm', asked 'belief-propagation'",
        ),
    ],
)
def test_another_configuration_is_refused(
    changed: dict[str, Any],
    words: str,
    undisturbed: dict[str, tuple[Result, str]],
) -> None:
    case = make_case("cosine")
    other = replace(case, parameters={**case.parameters, **changed})
    with pytest.raises(RunDirectoryError, match="must hold the same run") as caught:
        fit(other, 3, run_dir=undisturbed["cosine"][1])
    assert words in str(caught.value)


def test_another_task_memory_is_refused(undisturbed: dict[str, tuple[Result, str]]) -> None:
    with (
        dask.config.set({"hmrf.task-memory": "8 KiB"}),
        pytest.raises(RunDirectoryError, match="task_memory"),
    ):
        fit(make_case("cosine"), 3, run_dir=undisturbed["cosine"][1])


@pytest.mark.parametrize("what", ["a value", "the order of rows", "a pair"])
def test_changed_input_is_refused(what: str, undisturbed: dict[str, tuple[Result, str]]) -> None:
    case, words = make_case("cosine"), "fingerprint: run.json has"
    if what == "a value":
        rows = case.X.copy()
        rows.data[17] *= 1.5
        case = replace(case, X=rows)
    elif what == "the order of rows":
        case = replace(case, X=case.X[::-1])
    else:
        case, words = replace(case, must=case.must[1:]), "config.constraints: run.json has"
    with pytest.raises(RunDirectoryError) as caught:
        fit(case, 3, run_dir=undisturbed["cosine"][1])
    assert words in str(caught.value)
    assert "start again without this folder" in str(caught.value)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunDirectoryError, match="thesis"):
        fit(make_case("cosine"), 3, run_dir=str(tmp_path))


# --- events, progress, clean-up


def watched(run_dir: Path, progress: Any = lambda record: None, **changed: Any) -> Any:
    case = make_case("euclidean")
    settings = Settings(3, **{"init": "random", "n_init": 2, **changed})
    distortion = make_distortion("euclidean")
    pairs = case.constraints()
    asked = FitInput(case.corpus(3), pairs, settings, distortion)
    return fit_corpus(asked, run_dir=run_dir, progress=progress)


def test_progress_and_events_report_every_commit(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    fitted = watched(tmp_path / "run", records.append)
    events = events_of(str(tmp_path / "run"))
    names = [event["event"] for event in events]
    assert names[0] == "start"
    assert names[-1] == "stop"
    assert names.count("candidate") == 2
    iterations = [event for event in events if event["event"] == "iteration"]
    assert len(iterations) + 2 == len(records) == events[-1]["commit"]
    assert [one["J"] for one in iterations] == [one["J"] for one in records[2:]]
    assert events[-1]["stop"] == fitted.stop
    assert [one["phase"] for one in records] == phases_of(str(tmp_path / "run"))


def test_empty_clusters_and_reseeding_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = np.repeat([[1.0, 0.0], [0.0, 1.0]], 5, axis=0)
    given = np.array([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    settings = Settings(3, init="given", refine=False)
    corpus, distortion = Corpus.from_rows(rows, n_partitions=2), make_distortion("euclidean")
    asked = FitInput(corpus, None, settings, distortion, given)
    fit_corpus(asked, run_dir=tmp_path / "run")
    empty = [e for e in events_of(str(tmp_path / "run")) if e["event"] == "empty-clusters"]
    assert empty[-1]["clusters"] == [2]
    assert "1 of 3 clusters are empty" in caplog.text
    rows[0] = [3.0, 3.0]
    farther = np.array([[1.0, 0.0], [0.0, 1.0], [99.0, 99.0]])
    corpus = Corpus.from_rows(rows, n_partitions=2)
    fit_corpus(replace(asked, corpus=corpus, centroids=farther), run_dir=tmp_path / "other")
    assert "reseed" in [event["event"] for event in events_of(str(tmp_path / "other"))]


def test_a_failure_is_reported_and_the_run_is_resumed_later(tmp_path: Path) -> None:
    def fail(record: dict[str, Any]) -> None:
        if record["phase"] == "fit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(tmp_path / "run", fail)
    last = events_of(str(tmp_path / "run"))[-1]
    assert (last["event"], last["error"]) == ("failed", "KeyboardInterrupt")
    resumed = watched(tmp_path / "run")
    whole = watched(tmp_path / "other")
    assert resumed.state.energy == whole.state.energy
    assert resumed.history == whole.history


def test_events_that_wait_are_written_on_failure() -> None:
    url = "memory://failed-run"

    def fail(record: dict[str, Any]) -> None:
        raise HmrfError("enough")

    with pytest.raises(HmrfError, match="enough"):
        watched(url, fail)
    storage = RunDirectory.at(url)._storage
    text = b"".join(storage.read(f"events/{name}") for name in sorted(storage.names("events")))
    assert [json.loads(line)["event"] for line in text.splitlines()][-1] == "failed"


@pytest.mark.parametrize("wrong", ["rows", "pairs", "Ctrl-C"])
def test_a_scratch_run_goes_with_a_failure(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case("euclidean")
    rows, must, errors = case.X.copy(), case.must, InvalidInputError
    if wrong == "rows":
        rows.data[0] = np.nan
    elif wrong == "pairs":
        must = np.array([[0, 1], [0, 120]])
    else:
        errors = Stopped
        monkeypatch.setattr(RunDirectory, "commit", lambda *a: (_ for _ in ()).throw(Stopped()))
    with dask.config.set({"hmrf.scratch-directory": str(tmp_path)}), pytest.raises(errors):
        HMRFKMeans(3, distortion="euclidean").fit(elsewhere(rows), must_link=must)
    assert not list(tmp_path.iterdir())


def elsewhere(rows: Any) -> Corpus:
    """Return rows that do not lie in this process, as far as a fit can tell."""
    return replace(Corpus.from_rows(rows, n_partitions=2), in_client=False)


def test_rows_of_this_process_need_no_scratch_run(tmp_path: Path) -> None:
    with dask.config.set({"hmrf.scratch-directory": str(tmp_path)}):
        case = make_case("euclidean")
        model = HMRFKMeans(3, distortion="euclidean", random_state=0, n_init=2)
        lazy = model.fit(case.corpus(2), must_link=case.constraints()).labels_
        assert not list(tmp_path.iterdir())
        plain = model.fit(elsewhere(case.X), must_link=case.constraints()).labels_
        np.testing.assert_array_equal(lazy.compute(), plain.compute())


def test_a_scratch_run_keeps_one_iteration(tmp_path: Path) -> None:
    with dask.config.set({"hmrf.scratch-directory": str(tmp_path)}):
        case = make_case("euclidean")
        model = HMRFKMeans(3, distortion="euclidean", random_state=0, n_init=2)
        model.fit(elsewhere(case.X), must_link=case.constraints())
        (run_dir,) = tmp_path.iterdir()
        assert len(list((run_dir / "state").iterdir())) == 1
        model.labels_.compute()
        del model
        assert not list(tmp_path.iterdir())
