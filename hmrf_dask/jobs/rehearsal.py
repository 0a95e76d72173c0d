"""A job rehearsed: run on a part of a sample, in a temporary folder, and its steps timed.

What runs is the job itself, with its own settings, where it would run: threads of this process or
worker processes. Few documents of a sample are those that answers name, so answers are given to
others: what they are about makes no difference to what they take.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.documents.delimited import encode_lines
from hmrf_dask.documents.manifest import base_of
from hmrf_dask.documents.segments import Documents
from hmrf_dask.estimators.classes import load
from hmrf_dask.flow.clients import active_client, ask, local_threads
from hmrf_dask.flow.cluster import compute, peak_memory
from hmrf_dask.jobs.inputs import Inputs, gather, load_job, resolved
from hmrf_dask.jobs.places import last_release, model_of
from hmrf_dask.jobs.plan_sample import DocumentSample
from hmrf_dask.jobs.rows import rows_of_release
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.progress import compile_seconds
from hmrf_dask.text.files import Place
from hmrf_dask.text.vectorise import corpus_of

FIT, READY = "fit", "get ready"
SURVEY, STARTS, BEGINNING = "survey the rows", "run the starts", "label all rows"
ENDING = "end the fit"
CENTROIDS = ("model", "state")  # folders with files of K × d numbers
# Settings of a job that are left out: readers of a database must not see clusters of a sample.
_NOT_REHEARSED: Final = {"annotators", "cluster", "mode", "names", "private", "publish"}


@dataclass(frozen=True)
class Rehearsal:
    """What a run over so many documents showed; times are seconds of the clock."""

    n_documents: int
    n_features: int
    n_clusters: int
    steps: dict[str, float]  # by step of the run, the fit by its parts
    n_iterations: int  # of the fit
    iteration: float  # one of them
    n_rounds: int  # of refinement
    round: float
    row_bytes: float  # of a row in memory
    row_values: float  # entries of a row
    written: int  # bytes, in the output, but for centroids
    n_answered: int  # documents that answers were given to
    driver_peak: int  # bytes of this process, so far
    worker_peak: int  # of the largest worker process, so far; 0 without any
    labelling: float  # giving every row its nearest cluster, once
    compiling: float  # seconds of the clock: kernels that were not on this machine before

    def least(self, other: Rehearsal) -> Rehearsal:
        """Return this one with the shorter time of each step, of two over the same documents.

        Starts and first labels are of this one alone, as fits may begin in other ways.
        """
        steps = {
            name: took if name in (STARTS, BEGINNING) else min(took, other.steps.get(name, took))
            for name, took in self.steps.items()
        }
        labelling = min(self.labelling, other.labelling)
        peaks = max(self.driver_peak, other.driver_peak), max(self.worker_peak, other.worker_peak)
        return replace(
            self, steps=steps, labelling=labelling, driver_peak=peaks[0], worker_peak=peaks[1]
        )


@dataclass(frozen=True)
class Rehearsed:
    """What is run: a job over a sample in a folder, and pairs as places of documents and kinds."""

    inputs: Inputs
    sample: DocumentSample
    folder: str
    pairs: Sequence[tuple[int, int, str]] = ()

    def answers(self, n_documents: int) -> list[tuple[int, int, str]]:
        """Return pairs among half of so many documents, among all where these are all there are."""
        most = n_documents if n_documents == self.sample.n_documents else n_documents // 2
        return [pair for pair in self.pairs if max(pair[:2]) < most]


def rehearse(
    asked: Rehearsed, name: str, n_documents: int, *, answered: bool = False, **method: Any
) -> Rehearsal:
    """Run a job on the first documents of a sample, with other parameters of its method."""
    pairs = asked.answers(n_documents) if answered else []
    address = _written(asked, name, n_documents, pairs, method)
    marks = [(READY, time.time())]
    compiled = _compiled()  # workers import numba for it

    def mark(event: dict[str, Any]) -> None:
        """Note when a step begins."""
        if "step" in event and marks[-1][0] != event["step"]:
            marks.append((event["step"], time.time()))

    with warnings.catch_warnings():  # of so few documents they say nothing
        warnings.simplefilter("ignore")
        copied = gather(load_job(address), address)
        # Each file is a pack, and hence a task, of its own however small it is.
        alone = [one.by_itself() for one in copied.segments]
        report = run_job(replace(copied, documents=Documents(alone, {})), tell=mark)
    marks.append(("", time.time()))
    compiled = _compiled() - compiled
    seconds = {name: end - begin for (name, begin), (_, end) in pairwise(marks)}
    output = copied.output
    events = _events_of(output, report.run)
    fit = _FitTimes.of(events, dict(marks)[FIT], seconds.pop(FIT))
    model, corpus = _released(output)
    n_features, rows = corpus.n_features, list(corpus.sources)
    return Rehearsal(
        n_documents=report.documents["all"],
        n_features=n_features,
        n_clusters=report.clusters["number"],
        steps=seconds | fit.parts,
        n_iterations=len(fit.iterations),
        iteration=median(fit.iterations or [0.0]),
        n_rounds=len(fit.rounds),
        round=sum(fit.rounds) / max(len(fit.rounds), 1),
        row_bytes=sum(row.nbytes for row in rows) / max(report.documents["all"], 1),
        row_values=sum(row.file.n_values for row in rows) / max(report.documents["all"], 1),
        written=_size_of(output),
        n_answered=len({end for pair in pairs for end in pair[:2]}),
        driver_peak=peak_memory() - asked.sample.kept_bytes,  # which a run does not have
        worker_peak=max(_of_processes(peak_memory)[1:], default=0),
        labelling=_labelling(model, corpus),
        compiling=compiled,
    )


# ---- the copy that runs


def _written(
    asked: Rehearsed,
    name: str,
    n_documents: int,
    pairs: Sequence[tuple[int, int, str]],
    method: dict[str, Any],
) -> str:
    """Write documents, answers, manifest and job; return the path of the job."""
    inputs, folder = asked.inputs, Path(asked.folder, name)
    documents = folder / "documents"
    documents.mkdir(parents=True)
    n_files = min(_n_files(), n_documents)
    for number in range(n_files):
        first, stop = (n_documents * one // n_files for one in (number, number + 1))
        (documents / f"part-{number:03}.jsonl").write_bytes(asked.sample.lines(first, stop))
    manifest = {
        "$schema": "hmrf-dask/manifest/v1",
        "name": inputs.manifest.name,
        "language": inputs.manifest.language,
        "resources": [{"name": "sample", "path": "documents/*.jsonl"}],
        "documents": inputs.manifest.documents.model_dump(mode="json", exclude_unset=True),
    }
    left_out = {*_NOT_REHEARSED, "answers", "manifest"}
    job = inputs.job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=left_out)
    job |= {"$schema": "hmrf-dask/job/v1", "manifest": "manifest.yaml", "output": "out"}
    job["on_bad_record"] = "quarantine"
    job["method"] |= method
    if pairs:
        ids = asked.sample.ids
        job["answers"] = ["answers.jsonl"]
        lines = [{"a": ids[one], "b": ids[two], "kind": kind} for one, two, kind in pairs]
        (folder / "answers.jsonl").write_bytes(encode_lines(lines))
    _resolve_models(job, base_of(inputs.address))
    for called, content in (("manifest", manifest), ("job", job)):  # JSON is YAML
        (folder / f"{called}.yaml").write_text(json.dumps(content), encoding="utf-8")
    return str(folder / "job.yaml")


def _n_files() -> int:
    """Return how many files show what threads, or workers, gain: two for each."""
    client = active_client()
    return 2 * (local_threads() if client is None else sum(client.nthreads().values()))


def _resolve_models(job: dict[str, Any], base: str) -> None:
    """Let folders of models be found from elsewhere."""
    text = job.get("text")
    for kind in text if isinstance(text, list | tuple) else [text or {}]:
        if "/" in (kind.get("model") or ""):
            kind["model"] = resolved(base, kind["model"])


# ---- what it showed


# By the event that ends it; BEGINNING is the first labels, a warm-up, what follows a fit.
_PART_OF: Final = {"start": SURVEY, "candidate": STARTS, "chosen start": STARTS}


@dataclass(frozen=True)
class _FitTimes:
    """The seconds of a fit by its parts, and of each iteration and round."""

    parts: dict[str, float]
    iterations: list[float]
    rounds: list[float]

    @staticmethod
    def of(events: Sequence[dict[str, Any]], began: float, seconds: float) -> _FitTimes:
        """Return what the events of a run say that began then and took so long."""
        parts = dict.fromkeys((SURVEY, STARTS, BEGINNING), 0.0)
        iterations: list[float] = []
        rounds: list[float] = []
        last = began
        for event in events:
            now = datetime.fromisoformat(event["time"]).timestamp()
            took, last = now - last, now
            is_iteration, phase = event["event"] == "iteration", event.get("phase")
            if is_iteration and phase == "fit" and event["iteration"] > 1:
                iterations.append(took)
            elif is_iteration and phase == "refine":
                rounds.append(took)
            else:
                parts[_PART_OF.get(event["event"], BEGINNING)] += took
        parts[ENDING] = max(0.0, seconds - (last - began))
        return _FitTimes(parts, iterations, rounds)


def _events_of(output: str, run: str) -> list[dict[str, Any]]:
    path = Path(output, "runs", run, "fit", "events.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _released(output: str) -> tuple[Any, Corpus]:
    """Return the model and the rows of the release of a rehearsal."""
    release = last_release(output)
    assert release is not None
    model = load(f"{output}/{model_of(release.files)}")
    rows = rows_of_release(release, Place(output), model.cluster_centers_.shape[1])
    return model, corpus_of(rows, {})


def _labelling(model: Any, corpus: Corpus) -> float:
    """Return the seconds in which every row gets its nearest cluster, its file read before."""
    kept, took = corpus.persist(), []
    for _ in range(3):
        began = time.perf_counter()
        compute(model.predict(kept))
        took.append(time.perf_counter() - began)
    return min(took)


def _compiled() -> float:
    """Return for how long kernels were compiled so far, in worker processes at the same time."""
    own, *others = _of_processes(compile_seconds)
    return float(own + max(others, default=0.0))


def _of_processes(function: Callable[[], float]) -> list[Any]:
    """Return what a function returns in this process, and in all worker processes."""
    client = active_client()
    if client is None:
        return [function()]
    answers = ask(client, "workers must answer a plan", lambda: client.run(function))
    return [function(), *answers.values()]


def _size_of(output: str) -> int:
    """Return the bytes of an output but for models and states, whose size K × d decides."""
    files = (file for file in Path(output).rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files if file.parent.name not in CENTROIDS)
