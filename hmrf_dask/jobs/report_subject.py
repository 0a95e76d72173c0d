"""What a report is about: a release of an output, or a fit in a run directory, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from hmrf_dask.errors import ConfigurationError, HmrfError, in_words
from hmrf_dask.jobs.parent import VOCABULARY
from hmrf_dask.jobs.places import (
    ANSWERS,
    CLASSES,
    MODEL,
    NAME,
    assignment_files,
    assignments_of,
    explained_to_readers,
    last_release,
    model_of,
)
from hmrf_dask.jobs.places import Report as RunRecord
from hmrf_dask.releases.ownership import read_owner
from hmrf_dask.releases.release import Release, read_file, read_if_whole, release_log
from hmrf_dask.report.content import JSON, Report
from hmrf_dask.report.words import Words
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.stores import Storage, open_storage
from hmrf_dask.text.files import Place, load_vocabulary
from hmrf_dask.types import AnyArray

Value = TypeVar("Value")
Wanted = Mapping[str, set[str]]  # ids of documents by what their file of assignments is called
READABLE = (HmrfError, OSError, ValueError, KeyError, pa.ArrowException)


@dataclass
class Subject:
    """What a report is about.

    Attributes
    ----------
    url : str
        The output, or the run directory.
    folder : str
        Below it, where the report goes: of a release that of its run, of a fit "".
    files : dict
        Files of assignments, with their sha256 where it is known.
    model, fit : str or None
        Folders below it.
    limits : list of str
        What could not be said, and why; it grows while a report is made.
    """

    url: str
    title: str
    folder: str
    files: Mapping[str, str | None]
    model: str | None
    fit: str | None
    release: Release | None = None
    record: RunRecord | None = None
    former: Report | None = None  # the report that was written with it
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)  # where no run.json has them
    pairs: Callable[[], bytes] = bytes  # the answers used, as `encode_pairs` gives them
    classes: Callable[[], bytes] = bytes  # classes.parquet
    words: Callable[[], Words | None] = lambda: None
    texts: Callable[[Wanted], dict[str, str]] | None = None
    limits: list[str] = field(default_factory=list)

    @property
    def storage(self) -> Storage:
        """The place."""
        return open_storage(self.url, {}, durable=True)

    def attempt(self, what: str, read: Callable[[], Value]) -> Value | None:
        """Return what can be read; what cannot is a limit of the report, no error, and None."""
        try:
            return read()
        except READABLE as error:
            words = str(error) if isinstance(error, HmrfError) else in_words(error)
            self.limits.append(f"{what}: {words.replace(self.url, 'OUTPUT')}")
            return None

    def file_of_release(self, name: str) -> bytes:
        """Return a file of the release by its last name; nothing where it has none."""
        files = {} if self.release is None else self.release.files
        path = next((path for path in files if path.endswith(f"/{name}")), None)
        return b"" if path is None else read_file(self.storage, path, files[path])


def subject_of(place: str, number: int | None = None) -> Subject:
    """Return what a report of an output, or of a run directory, is about.

    Parameters
    ----------
    place : str
    number : int, optional
        Of a release; the last one without it.
    """
    url = absolute_url(place)
    with explained_to_readers():
        release = last_release(url)
    if release is None:
        if number is not None:
            raise ConfigurationError(
                f"--release must be of the output of a job, got {place!r}, which has no release; "
                "leave it out for the run directory of a fit"
            )
        return of_fit(url)
    return of_release(url, release if number is None else numbered(url, number))


def numbered(url: str, number: int) -> Release:
    """Return a release of an output by its number; one without its files is an error in words."""
    storage = open_storage(url, {}, durable=False)
    release = read_if_whole(storage, number)
    if release is None or not release.files:
        numbers = sorted(release_log(storage).numbers())
        there = [n for n in numbers if (r := read_if_whole(storage, n)) is not None and r.files]
        raise ConfigurationError(
            f"a release must be one that has its files yet, got {number}; there are "
            f"{', '.join(map(str, there)) or 'none'}: name one of them"
        )
    return release


def of_release(url: str, release: Release) -> Subject:
    """Return a release as what a report is about."""
    storage, folder = open_storage(url, {}, durable=False), f"runs/{release.run}"
    owner = read_owner(storage)
    title = owner.job if owner and owner.job else url.rstrip("/").rpartition("/")[2]
    has_model = any(name.endswith(f"/{MODEL}/model.json") for name in release.files)
    model = model_of(release.files) if has_model else None
    subject = Subject(
        url,
        title,
        folder,
        files=assignments_of(release.files),
        model=model,
        fit=None if model is None else f"{model.removesuffix(MODEL)}fit",
        release=release,
        former=_former(storage, folder),
    )
    subject.record = subject.attempt("The numbers of the run", lambda: _record(subject, url))
    subject.pairs = lambda: subject.file_of_release(ANSWERS)
    subject.classes = lambda: subject.file_of_release(CLASSES)
    subject.words = lambda: _words_of(subject)
    return subject


def _record(subject: Subject, url: str) -> RunRecord:
    return RunRecord.from_json(subject.file_of_release(NAME), url)


def _former(storage: Storage, folder: str) -> Report | None:
    """Return the report that is there; a damaged one, or one of another version, is none."""
    try:
        return Report.from_json(storage.read(f"{folder}/{JSON}" if folder else JSON))
    except READABLE:
        return None


def former_of_run(url: str, run: str | None) -> Report | None:
    """Return the report of a run of an output, None where it cannot be read."""
    return None if run is None else _former(open_storage(url, {}, durable=False), f"runs/{run}")


def page_of(url: str, release: Release) -> Report:
    """Return the report that was written with a release, or say how to make it again."""
    report = former_of_run(url, release.run)
    if report is None:
        raise ConfigurationError(
            f"a release must have its report to show it, got none in runs/{release.run}; make it "
            f"again: hmrf-dask report {url} --release {release.number}"
        )
    return report


def _words_of(subject: Subject) -> Words | None:
    identity = None if subject.release is None else subject.release.ledger.get(VOCABULARY)
    if identity is None:
        return None
    vocabulary = load_vocabulary(identity, Place(subject.url, {}))

    def terms(columns: AnyArray) -> Sequence[str | None]:
        words: list[str | None] = vocabulary.terms.take(pa.array(columns.tolist())).to_pylist()
        return words

    components = vocabulary.components if len(vocabulary.components) else None
    return Words(terms, vocabulary.n_word_columns, components)


def of_fit(url: str) -> Subject:
    """Return the run directory of a fit as what a report is about."""
    storage = open_storage(url, {}, durable=False)
    subject = Subject(url, url.rstrip("/").rpartition("/")[2], "", {}, None, "")
    if "model" in storage.names(""):
        subject.model = MODEL
    subject.files = (
        subject.attempt(
            "Documents and clusters",
            lambda: {file.name: file.sha256 for file in assignment_files(url)},
        )
        or {}
    )
    subject.former = _former(storage, "")
    if subject.files or subject.model or subject.former is not None:
        return subject
    if "run.json" in storage.names(""):
        raise ConfigurationError(
            f"a report must be of files, or of a fit in Python that wrote its own, got {url}, "
            "where neither lies any more; call report(X) of the estimator"
        )
    raise ConfigurationError(
        f"a report must be of the output of a job, or of the run directory of a fit, got "
        f"{url}, where neither lies; check the path"
    )


def step_seconds(record: RunRecord | None) -> dict[str, float]:
    """Return the seconds of the steps of a run."""
    return {} if record is None else dict(record.seconds)


def counts_of(subject: Subject, name: str) -> dict[str, Any]:
    """Return counts as run.json has them, nothing where it cannot be read."""
    if subject.record is None:
        return subject.counts.get(name, {})
    return dict(getattr(subject.record, name))
