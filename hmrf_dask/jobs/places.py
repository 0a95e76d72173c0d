"""What a person may mean by a place: a folder of files, a run directory, or the output of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from hmrf_dask.addresses import absolute_url
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.releases.own_files import HASHES
from hmrf_dask.releases.release import DamagedReleaseError, Release, latest, read_file
from hmrf_dask.remote import explained, open_files
from hmrf_dask.runs.records import seal_for_people, unseal_as
from hmrf_dask.runs.storage import Storage, open_storage

ASSIGNMENTS = "assignments"
LINEAGE = "lineage.json"
ANSWERS = "answers.parquet"  # those that a fit was made with
MODEL = "model"
NOTES = "notes.jsonl"  # what stood beside them in other columns
GONE = "gone.parquet"  # documents that answers named, and that only former releases had
REJECTS = "rejects"
REPEATED = "repeated-ids.jsonl"  # what a release has if it quarantined documents for their ids


@dataclass(frozen=True)
class AssignmentFile:
    """A file of assignments.

    Attributes
    ----------
    url : str
        The place: an output, a run directory or a folder.
    name : str
        Below it.
    sha256 : str or None
        What it was published with; None where nothing recorded that.
    """

    url: str
    name: str
    sha256: str | None

    @property
    def path(self) -> str:
        """Path or URL of the file."""
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
        names = [name for name in published if _folder(name) == ASSIGNMENTS]
    else:
        storage = open_storage(root, {}, durable=False)
        for folder in (f"{ASSIGNMENTS}/", ""):
            published = _recorded(storage, f"{folder}{HASHES}")
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
    """Keep the sha256 of files of assignments beside them, where no release does.

    Its name begins with a line below, so what reads a folder of Parquet files does not see it.
    """
    storage = open_storage(absolute_url(place), {}, durable=True)
    data = seal_for_people(asdict(_Recorded({**files})))
    storage.write(f"{ASSIGNMENTS}/{HASHES}", data)


@dataclass(frozen=True)
class _Recorded:
    """What `record_assignments` keeps."""

    files: dict[str, str]


def _recorded(storage: Storage, name: str) -> dict[str, str]:
    """Return the sha256 of files of assignments by their names in a place, none if not recorded."""
    try:
        found = unseal_as(_Recorded, storage.read(name), f"{storage.url}/{name}").files
    except FileNotFoundError:
        return {}
    below = name.startswith(f"{ASSIGNMENTS}/")
    return {one if below else one.removeprefix(f"{ASSIGNMENTS}/"): found[one] for one in found}


def model_folder(place: str) -> str:
    """Return the folder of the model that a job's output, a run, or the folder itself holds."""
    root = absolute_url(place)
    release = last_release(place)
    if release is not None:
        folder = model_of(release.files)
        storage = open_storage(root, {}, durable=False)
        with explained_to_readers():
            for name, sha256 in release.files.items():
                if name.startswith(f"{folder}/"):
                    read_file(storage, name, sha256)
        return f"{root}/{folder}"
    with explained(root, "read it"):
        filesystem, inside = open_files(root)
        for folder in ("", f"/{MODEL}"):
            if filesystem.exists(f"{inside}{folder}/model.json"):
                return f"{root}{folder}"
    raise InvalidInputError(
        f"a model must be a folder that save() wrote, a run directory or a job's output, got "
        f"{place!r} without model.json; check the path"
    )


def model_of(files: Iterable[str]) -> str:
    """Return the folder of the model among the files of a release, below the output."""
    return next(name.removesuffix("/model.json") for name in files if name.endswith("/model.json"))


def _folder(name: str) -> str:
    """Return the folder of a run in which a file lies."""
    return name.split("/")[2] if name.startswith("runs/") else ""
