"""What a person may mean by a place (files, a run directory, an output), and what is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from hmrf_dask.answers.journal import open_journal
from hmrf_dask.checkpoints.directory import CommitLog
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.journal import COUNTING, KEY, take
from hmrf_dask.jobs.progress import PROGRESS
from hmrf_dask.jobs.reshape import Edits
from hmrf_dask.releases.lock import holder_of
from hmrf_dask.releases.own_files import HASHES
from hmrf_dask.releases.release import (
    DamagedReleaseError,
    Release,
    check_files,
    latest,
    read_file,
    read_release,
    release_log,
    small_of,
)
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.remote import explained, open_files
from hmrf_dask.storage.sealed import DamagedFileError, seal_for_people, typed, unseal, unseal_as
from hmrf_dask.storage.stores import Storage, open_storage

FORMAT = "hmrf-dask/run/v2"
NAME = "run.json"


@dataclass(frozen=True)
class Report:
    """How a run ended.

    Attributes
    ----------
    status : {"done", "up to date"}
    parent : str or None
        The run that it continued.
    start : {"cold", "warm"} or None
        None where nothing was fitted.
    files : dict
        Number of files with documents: `all` that are there; `new`, `changed` and `gone` since the
        last release. Ranges of rows of other sources count as files.
    documents : dict
        Number of documents by their ids: `all`; `new` and `gone` since the last release; `changed`,
        those that it had too, in a file that is new or changed, and rows of other sources that are
        not as they were; `moved`, those that it had too, in
        another cluster, and `moved_share`, 0 to 1, of those that it had too. Of all, `outliers` are
        of no cluster, where the method marks some: a document that becomes one, or is none any
        more, has moved. Also those `vectorised` in this run, and `quarantined` records of all
        files.
    vocabulary : dict
        `terms`, whether it was made again (`refit`), the share of words it does not know in the
        files that are new (`unknown_share`), and in those it was made of (`unknown_share_then`).
    answers : dict
        `pairs` used and those of them that are `violated`, both by kind (`must`, `cannot`); those
        that are more likely wrong than right (`suspect`); lines
        that were `quarantined`, and those of them that name documents that never were (`unknown`);
        lines that are `waiting` for a document that a former release had; those that wait for the
        next fit (`unused`, in predict mode); how many `questions` come next.
    fit : dict
        `J`, `iterations`, `stop_reason`, `start_reason`, `converged`; empty where nothing was
        fitted.
    clusters : dict
        `number`, and how many were kept, split, merged, new, vanished.
    nmi : float or None
        With the label column, where the manifest names one.
    seconds : dict
        By step; of the attempt that ended the run.
    memory : dict
        The most bytes of memory that the `process` had at a time: that of the driver, which does
        all of the work where there are no worker processes.
    places : dict
        Where assignments, clusters, model, lineage, questions, suspect answers and rejects lie,
        below the output.
    unit : {"file", "segment"}
        What `files` counts: segments where some documents are in no file.
    """

    status: str
    run: str
    output: str
    parent: str | None
    release: int
    mode: str
    start: str | None
    files: dict[str, int]
    documents: dict[str, Any]
    vocabulary: dict[str, Any]
    answers: dict[str, Any]
    fit: dict[str, Any]
    clusters: dict[str, Any]
    nmi: float | None
    seconds: dict[str, float]
    places: dict[str, str]
    memory: dict[str, int] = field(default_factory=dict)
    unit: str = "file"

    def to_json(self) -> bytes:
        """Return run.json. The output may be moved, so it is not in there."""
        content = asdict(self)
        del content["output"]
        return seal_for_people({"format": FORMAT, **content})

    @staticmethod
    def from_json(data: bytes, output: str) -> Report:
        """Return what `to_json` wrote."""
        name = f"{NAME} of a run in {output}"
        content = unseal(data, name)
        if content.pop("format", None) != FORMAT:
            raise DamagedFileError(f"{name} must have the format {FORMAT}, got another; run again")
        return typed(Report, {**content, "output": output}, name)

    def up_to_date(self) -> Report:
        """Return the same report of a run that had nothing to do."""
        return replace(self, status="up to date")


ASSIGNMENTS_FOLDER = "assignments"
_SHOWN = ("number", "when", "counts")  # of a release that is not the last
LINEAGE = "lineage.json"
ANSWERS = "answers.parquet"  # those that a fit was made with
MODEL = "model"
QUESTIONS = "questions.parquet"  # the next ones to ask
NOTES = "notes.jsonl"  # their other columns
SUSPECTS = "suspects.jsonl"  # answers that the fit finds improbable, the least likely first
EDITED = "edits.parquet"  # clusters as they were before edits that the release has
CLASSES = "classes.parquet"  # how many documents of each known class each cluster has
GONE = "gone.parquet"  # documents that answers named, and that only former releases had
REJECTS = "rejects"
REPEATED = "repeated-ids.jsonl"  # what a release has if it quarantined documents for their ids


@dataclass(frozen=True)
class AssignmentFile:
    """A file of assignments."""

    url: str  # the place: an output, a run directory or a folder
    name: str  # below it
    sha256: str | None  # that it was published with; None where nothing recorded that

    @property
    def path(self) -> str:
        """Path or URL of the file.

        Examples
        --------
        >>> AssignmentFile("s3://bucket/out", "assignments/part-0.parquet", None).path
        's3://bucket/out/assignments/part-0.parquet'
        """
        return f"{self.url}/{self.name}"


def last_release(place: str) -> Release | None:
    """Return the last release where a place is the output of a job, else None."""
    names = open_storage(absolute_url(place), {}, durable=False).names("")
    with explained_to_readers():
        return latest(place) if {"LATEST", "releases"} & set(names) else None


@contextmanager
def explained_to_readers() -> Iterator[None]:
    """Say whom to ask how to go on where a release is damaged."""
    try:
        yield
    except DamagedReleaseError as error:
        raise DamagedReleaseError(
            f"{error}; restore it from a copy, or run the job again, which says how to go on"
        ) from error


def assignment_files(place: str) -> list[AssignmentFile]:
    """Return the Parquet files with the assignments of a job's output, a run, or a folder."""
    root = absolute_url(place)
    release = last_release(place)
    published = {} if release is None else release.files
    if release is not None:
        names = sorted(assignments_of(published))
    else:
        storage = open_storage(root, {}, durable=False)
        for folder in (f"{ASSIGNMENTS_FOLDER}/", ""):
            published = _recorded(storage, folder)
            found = sorted(name for name in storage.names(folder[:-1]) if name.endswith(".parquet"))
            names = sorted(published) or [f"{folder}{name}" for name in found]
            if names:
                break
    if not names:
        raise InvalidInputError(
            f"assignments must be a job's output, a run directory or a folder of .parquet files, "
            f"got {place!r} without any; check the path"
        )
    return [AssignmentFile(root, name, published.get(name)) for name in names]


def record_assignments(place: str, files: Mapping[str, str]) -> None:
    """Keep the sha256 of files of assignments next to them, where no release does.

    Its name begins with a line below, so what reads a folder of Parquet files does not see it.
    """
    storage = open_storage(absolute_url(place), {}, durable=True)
    storage.write(f"{ASSIGNMENTS_FOLDER}/{HASHES}", seal_for_people({"files": {**files}}))


@dataclass(frozen=True)
class _Recorded:
    """What `record_assignments` keeps."""

    files: dict[str, str]


def _recorded(storage: Storage, folder: str) -> dict[str, str]:
    """Return the sha256 of files of assignments by their names in a place, none if not recorded."""
    name = f"{folder}{HASHES}"
    try:
        files = unseal_as(_Recorded, storage.read(name), f"{storage.url}/{name}").files
    except FileNotFoundError:
        return {}
    return {f"{folder}{path.rpartition('/')[2]}": sha256 for path, sha256 in files.items()}


def model_folder(place: str) -> str:
    """Return the folder of the model that a job's output, a run, or the folder itself holds."""
    root = absolute_url(place)
    release = last_release(place)
    if release is not None:
        with explained_to_readers():
            return verified_model(open_storage(root, {}, durable=False), release)
    with explained(root, "read it"):
        filesystem, inside = open_files(root)
        folders = ("", f"/{MODEL}")
        there = [f for f in folders if filesystem.exists(f"{inside}{f}/model.json")]
    if there:
        return f"{root}{there[0]}"
    raise InvalidInputError(
        f"a model must be a folder that save() wrote, a run directory or a job's output, got "
        f"{place!r} without model.json; check the path"
    )


def verified_model(storage: Storage, release: Release) -> str:
    """Return the folder of the model of a release, whose files are as they were published."""
    folder = model_of(release.files)
    for name in (name for name in release.files if name.startswith(f"{folder}/")):
        read_file(storage, name, release.files[name])
    return f"{storage.url}/{folder}"


def model_of(files: Iterable[str]) -> str:
    """Return the folder of the model among the files of a release, below the output.

    Examples
    --------
    >>> model_of(["runs/4fce/run.json", "runs/4fce/model/model.json"])
    'runs/4fce/model'
    """
    return next(name.removesuffix("/model.json") for name in files if name.endswith("/model.json"))


def assignments_of(files: Mapping[str, str]) -> dict[str, str]:
    """Return the assignments among the files of a release, with their sha256.

    Examples
    --------
    >>> assignments_of({"runs/1/assignments/part-0.parquet": "9f", "runs/1/run.json": "86"})
    {'runs/1/assignments/part-0.parquet': '9f'}
    """
    return {name: sha256 for name, sha256 in files.items() if f"/{ASSIGNMENTS_FOLDER}/" in name}


def inspect_output(place: str, *, verify: bool = False) -> dict[str, Any]:
    """Return what a job's output or a run directory holds.

    Without `verify` sizes are compared, and what is small is hashed; with it every file is.

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
        progress, ended = {"fit": _fit_progress(url)}, "FINAL.json" in names
        return {"kind": "run", "place": url, "running": not ended, "progress": progress}
    raise InvalidInputError(
        f"inspect must be given the output of a job or a run directory, got {place!r}, where "
        f"neither lies ({', '.join(sorted(names)[:5]) or 'nothing is there'}); check the path"
    )


def _of_output(url: str, storage: Storage, verify: bool) -> dict[str, Any]:
    release, holder = last_release(url), holder_of(url)
    published = None
    if release is not None:
        names = ("number", "run", "parent", "when", "counts")
        published = {name: getattr(release, name) for name in names}
        published |= {"files": len(release.files), "hashed": _checked(storage, release, verify)}
        n_clusters = release.counts.get("clusters", 0)
        if edits := Edits.of(release.ledger, n_clusters).described(n_clusters):
            published["edits"] = edits
    unfinished = sorted(set(storage.names("runs")) - {release.run if release else ""})
    at_work = [holder.run] if holder is not None else ([] if release else unfinished[-1:])
    return {
        "kind": "output",
        "place": url,
        "running": holder is not None,
        "release": published,
        "releases": _kept_releases(storage),
        "holder": None if holder is None else asdict(holder),
        "journal": _journal(url, release),
        "progress": _run_progress(url, *at_work) if at_work else None,
    }


def _kept_releases(storage: Storage) -> list[dict[str, Any]]:
    """Return the releases whose files are there, the last one first."""
    found = list[dict[str, Any]]()
    for number in sorted(release_log(storage).numbers(), reverse=True):
        with explained_to_readers(), suppress(FileNotFoundError):  # it may go meanwhile
            release = read_release(storage, number)
            if release.files:
                found.append({name: getattr(release, name) for name in _SHOWN})
    return found


def _journal(url: str, release: Release | None) -> dict[str, Any] | None:
    """Return how far the journal of an output is, and how far the last release took it.

    `since` are the answers and edits that it did not see, and those that took one back.
    """
    journal = take(url)
    if not (described := journal.described()):
        return None
    taken = None if release is None else release.ledger.get(KEY)
    since = open_journal(journal.address).entries(since=taken["end"] if taken else 0).entries
    return {**described[KEY], "taken": taken, "since": sum(one.kind in COUNTING for one in since)}


def _checked(storage: Storage, release: Release, verify: bool) -> int:
    """Return how many files of a release were hashed; one that is damaged is an error."""
    hashed = list(release.files) if verify else small_of(release.sizes)
    with explained_to_readers():
        check_files(storage, release, hashed)
    return len(hashed)


def _of_job_run(url: str, storage: Storage) -> dict[str, Any]:
    """Return what the folder of one run of a job holds; whether it works only the output knows."""
    output, _, run = url.rpartition("/runs/")
    report = None
    with suppress(FileNotFoundError):
        report = asdict(Report.from_json(storage.read(NAME), output))
    described = {"kind": "job run", "place": url, "running": False, "report": report}
    return {**described, "progress": _run_progress(output, run)}


def _run_progress(output: str, run: str) -> dict[str, Any]:
    """Return the last step that a run of a job reported, and how far its fit is."""
    folder = f"{output}/runs/{run}"
    return {"run": run, "step": _step(folder), "fit": _fit_progress(f"{folder}/fit")}


def _step(folder: str) -> dict[str, Any] | None:
    """Return the last step, None where none is recorded: it is for people, so not sealed."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        stored = json.loads(open_storage(folder, {}, durable=False).read(PROGRESS))
        words, numbers = (stored["step"], stored["since"]), (stored["done"], stored["of"])
        if all(type(one) is str for one in words) and all(type(one) is int for one in numbers):
            return {key: stored[key] for key in ("step", "done", "of", "since")}
    return None


def _fit_progress(run_dir: str) -> dict[str, Any] | None:
    """Return the last commit of a fit in words and numbers, None before the first.

    `rows_moved` are those that this iteration gave another cluster; iteration 0 their first one.
    """
    commit = CommitLog(open_storage(run_dir, {}, durable=False)).newest()
    if commit is None:
        return None
    record = commit.record
    description = {name: record.get(name) for name in ("phase", "iteration", "J", "stop")}
    return {"commit": commit.number, **description, "rows_moved": record.get("moved")}
