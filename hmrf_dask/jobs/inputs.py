"""What a run is made of: the job, the documents' files as they are now, and the answers.

All of it is known before anything heavy is imported, so a run with nothing new ends in a second.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from hmrf_dask.addresses import absolute_url, plain_url
from hmrf_dask.documents.manifest import Manifest, base_of, load_manifest
from hmrf_dask.documents.sources import Source, list_answers, list_sources
from hmrf_dask.documents.streams import read_whole
from hmrf_dask.documents.yaml_files import parse_yaml, refuse_other_kind, validated
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.apart import Place, listed_inside, overlaps, places_of, refuse, refuse_in_run
from hmrf_dask.jobs.job_file import Job
from hmrf_dask.jobs.report import FORMAT
from hmrf_dask.limits import ANSWER_BYTES, YAML_BYTES
from hmrf_dask.releases.owner import Owner

# What a job says that changes no result.
_BESIDE = {"schema_", "name", "manifest", "answers", "cluster", "output", "keep", "private"}


@dataclass(frozen=True)
class AnswerFile:
    """A pair file: its name in errors, and its bytes, which are few."""

    path: str
    data: bytes

    @property
    def digest(self) -> str:
        """What tells its content."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Inputs:
    """What a run is made of.

    Attributes
    ----------
    job : Job
    manifest : Manifest
    output : str
        Absolute path or URL.
    sources : tuple of Source
        The files with documents as they are now, sorted by path.
    answers : tuple of AnswerFile
    from_release : int, optional
        Number of the release to go on from, 0 for none; without it that is the last one.
    take_over : bool
        Whether the output becomes this job's if it is another's.
    allow_shrink : bool
        Whether more than half of the last release's documents may be gone.
    """

    job: Job
    manifest: Manifest
    output: str
    sources: tuple[Source, ...]
    answers: tuple[AnswerFile, ...]
    from_release: int | None = None
    take_over: bool = False
    allow_shrink: bool = False

    @property
    def owner(self) -> Owner:
        """The job, as the owner of its output."""
        return Owner(self.job.name, self.manifest.name)

    @property
    def identity(self) -> str:
        """The same for the same configuration, files and answers: then there is nothing to do."""
        # A setting that a later version adds changes nothing for those who do not use it.
        columns = self.manifest.documents
        return _hashed(
            {
                "job": self.job.model_dump(mode="json", exclude=_BESIDE, exclude_defaults=True),
                "documents": columns.model_dump(mode="json", exclude_defaults=True),
                "language": self.manifest.language,
                "sources": [_seen(source) for source in self.sources],
                "answers": sorted(one.digest for one in self.answers),
                "report": FORMAT,  # one that another version wrote cannot be shown again
            }
        )

    def run_id(self, parent: str | None) -> str:
        """Return the id of the run that goes on from a parent run, named by what its model is."""
        from importlib.metadata import version

        found = {"inputs": self.identity, "parent": parent, "version": version("hmrf-dask")}
        return _hashed(found)[:16]


def gather(
    job: Job,
    address: str,
    from_release: int | None = None,
    *,
    take_over: bool = False,
    allow_shrink: bool = False,
) -> Inputs:
    """Return what a run is made of now.

    Parameters
    ----------
    job : Job
    address : str
        Where its file is: paths in it begin there.
    from_release : int, optional
        Number of the release to go on from, 0 for none; without it that is the last one.
    take_over, allow_shrink : bool
        See `Inputs`.

    Raises
    ------
    ConfigurationError
        The output is, holds or lies in a place that the job reads, among other mistakes.
    """
    base = base_of(address)
    manifest_url = beside(base, job.manifest)
    manifest = load_manifest(manifest_url)
    folder = base_of(manifest_url)
    output = output_of(job, address)
    refuse(overlaps(output, read_by(job, address, manifest)))
    refuse_in_run(output, "output")
    named = [read_answer_file(one) for one in list_answers(manifest, folder)]
    more = [AnswerFile(one, read_whole(beside(base, one), {}, ANSWER_BYTES)) for one in job.answers]
    sources = tuple(list_sources(manifest, folder))
    refuse(listed_inside(output, sources))
    return Inputs(
        job, manifest, output, sources, (*named, *more), from_release, take_over, allow_shrink
    )


def read_by(job: Job, address: str, manifest: Manifest) -> list[Place]:
    """Return all places that a job reads, its own file and the manifest among them."""
    base = base_of(address)
    manifest_url = beside(base, job.manifest)
    named = [("the job file", address), ("the manifest", manifest_url)]
    named += [("the answers", beside(base, one)) for one in job.answers]
    if job.cluster.scheduler_file is not None:
        named.append(("the scheduler file", beside(base, job.cluster.scheduler_file)))
    places = places_of(manifest, base_of(manifest_url))
    return [*(Place(f"{what} ({where})", where) for what, where in named), *places]


def load_job(address: str, changes: dict[str, Any] | None = None) -> Job:
    """Read a job file; every mistake in it is named in one ConfigurationError.

    Parameters
    ----------
    address : str
        Path or URL.
    changes : dict, optional
        Keys of the file that the command line replaces.
    """
    address = plain_url(address, "a job")
    found = parse_yaml(read_whole(address, {}, YAML_BYTES), address)
    refuse_other_kind(found, address, "job")
    return validated(Job, {**found, **(changes or {})}, address)


def output_of(job: Job, address: str) -> str:
    """Return where a job writes: an absolute path or a URL."""
    return absolute_url(beside(base_of(address), job.output), "output")


def beside(base: str, path: str) -> str:
    """Return a path as it is if it is absolute or a URL, else below a folder."""
    path = os.path.expanduser(path)
    return path if "://" in path or os.path.isabs(path) else f"{base}/{path}"


def read_answer_file(source: Source) -> AnswerFile:
    """Return a pair file, which must have the hash that the manifest says."""
    data = read_whole(source.url, dict(source.options), ANSWER_BYTES)
    algorithm, _, wanted = (source.hash or "").partition(":")
    if wanted and hashlib.new(algorithm, data, usedforsecurity=False).hexdigest() != wanted:
        raise InvalidInputError(
            f"{source.path}: must have the hash that the manifest says ({source.hash}), got another"
            "; fetch the file again, or correct answers.hash"
        )
    return AnswerFile(source.path, data)


def _seen(source: Source) -> list[Any]:
    """Return what tells that a file is the same, and is read the same way."""
    dialect = source.dialect.model_dump(mode="json")
    how = [source.format, source.compression, source.encoding, dialect]
    return [source.path, source.size, source.etag, how]


def _hashed(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
