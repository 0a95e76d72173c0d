"""What lies in an output or a run directory, and how far its run is: read from files alone."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from hmrf_dask.addresses import absolute_url
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.places import explained_to_readers, last_release
from hmrf_dask.jobs.report import NAME as REPORT
from hmrf_dask.jobs.report import Report
from hmrf_dask.jobs.watch import PROGRESS
from hmrf_dask.releases import Release, check_files
from hmrf_dask.releases.holder import holder_of
from hmrf_dask.releases.nightly import small_of
from hmrf_dask.runs.commits import CommitLog
from hmrf_dask.runs.storage import Storage, open_storage


def inspect_output(place: str, *, verify: bool = False) -> dict[str, Any]:
    """Return what a job's output or a run directory holds.

    Parameters
    ----------
    place : str
    verify : bool
        Whether every file of the release is hashed; else sizes are looked at, and what is small is
        hashed.

    Returns
    -------
    dict
        `kind` is "output", "run" (directory of a fit) or "job run" (the folder of one below an
        output), `running` whether somebody writes it now. Of an output also `release`, `holder` and
        `progress` of the run that holds it or was last at work; of a run `progress` alone, and of
        the run of a job its `report`, too.
    """
    if PurePosixPath(place).suffix in (".yaml", ".yml"):
        raise InvalidInputError(
            f"inspect must be given the output of a job or a run directory, got {place!r}: give it "
            "the folder that the job names as output"
        )
    url = absolute_url(place)
    storage = open_storage(url, {}, durable=False)
    names = set(storage.names(""))
    if {"LATEST", "releases", "holders", "runs"} & names:
        return _of_output(url, storage, verify)
    if PROGRESS in names:
        return _of_job_run(url, storage)
    if "commits" in names or "run.json" in names:
        fit = fit_progress(url)
        ended = "FINAL.json" in names
        return {"kind": "run", "place": url, "running": not ended, "progress": {"fit": fit}}
    raise InvalidInputError(
        f"inspect must be given the output of a job or a run directory, got {place!r}, where "
        f"neither lies ({', '.join(sorted(names)[:5]) or 'nothing is there'}); check the path"
    )


def _of_output(url: str, storage: Storage, verify: bool) -> dict[str, Any]:
    release, holder = last_release(url), holder_of(url)
    told: dict[str, Any] = {"kind": "output", "place": url, "running": holder is not None}
    told["release"] = None
    if release is not None:
        told["release"] = {
            "number": release.number,
            "run": release.run,
            "parent": release.parent,
            "when": release.when,
            "counts": release.counts,
            "files": len(release.files),
            "hashed": _checked(storage, release, verify),
        }
    told["holder"] = None if holder is None else asdict(holder)
    unfinished = sorted(set(storage.names("runs")) - {release.run if release else ""})
    at_work = [holder.run] if holder is not None else ([] if release else unfinished[-1:])
    told["progress"] = run_progress(url, *at_work) if at_work else None
    return told


def _checked(storage: Storage, release: Release, verify: bool) -> int:
    """Return how many files of a release were hashed; one that is damaged is an error."""
    hashed = list(release.files) if verify else small_of(release.sizes)
    with explained_to_readers():
        check_files(storage, release, hashed)
    return len(hashed)


def _of_job_run(url: str, storage: Storage) -> dict[str, Any]:
    """Return what the folder of one run of a job tells; whether it works only the output knows."""
    output, _, run = url.rpartition("/runs/")
    told: dict[str, Any] = {"kind": "job run", "place": url, "running": False, "report": None}
    told["progress"] = run_progress(output, run)
    with suppress(FileNotFoundError):
        told["report"] = asdict(Report.from_json(storage.read(REPORT), output))
    return told


def run_progress(output: str, run: str) -> dict[str, Any]:
    """Return the last step that a run of a job told of, and how far its fit is."""
    folder = f"{output}/runs/{run}"
    return {"run": run, "step": _step(folder), "fit": fit_progress(f"{folder}/fit")}


def _step(folder: str) -> dict[str, Any] | None:
    """Return the last step, None where nothing tells it: it is for people, so it is not sealed."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        told = json.loads(open_storage(folder, {}, durable=False).read(PROGRESS))
        words, numbers = (told["step"], told["since"]), (told["done"], told["of"])
        if all(type(one) is str for one in words) and all(type(one) is int for one in numbers):
            return {key: told[key] for key in ("step", "done", "of", "since")}
    return None


def fit_progress(run_dir: str) -> dict[str, Any] | None:
    """Return the last commit of a fit in words and numbers, None before the first.

    `rows_moved` are those that this iteration gave another cluster; iteration 0 their first one.
    """
    commit = CommitLog(open_storage(run_dir, {}, durable=False)).newest()
    if commit is None:
        return None
    record = commit.record
    told = {name: record.get(name) for name in ("phase", "iteration", "J", "stop")}
    return {"commit": commit.number, **told, "rows_moved": record.get("moved")}
