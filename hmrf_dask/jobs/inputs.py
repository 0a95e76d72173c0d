"""What a run is made of: the job, its documents, the answers, an output away from both."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from hmrf_dask.constraints.answer_query import named_after, query_answers
from hmrf_dask.documents.files import DocumentFile, cut_at_magic, is_relative, list_answers
from hmrf_dask.documents.manifest import (
    BUILTIN,
    Manifest,
    QueriedAnswers,
    Query,
    Resource,
    base_of,
    load_manifest,
)
from hmrf_dask.documents.segments import (
    Documents,
    DocumentSegment,
    KnownListing,
    documents_of,
    list_documents,
)
from hmrf_dask.documents.streams import read_whole
from hmrf_dask.documents.yaml_files import read_yaml, refuse_other_kind, validated
from hmrf_dask.errors import ConfigurationError, InvalidInputError, meant
from hmrf_dask.jobs import journal
from hmrf_dask.jobs.job_file import Job
from hmrf_dask.jobs.namers import find_namer
from hmrf_dask.jobs.places import FORMAT
from hmrf_dask.parameters import ANSWER_BYTES, AUTO
from hmrf_dask.redaction import shortened
from hmrf_dask.releases import ownership
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.own_files import FOLDERS
from hmrf_dask.releases.ownership import Owner
from hmrf_dask.releases.release import latest, read_if_whole
from hmrf_dask.storage.addresses import Location, absolute_url, is_local, plain_url
from hmrf_dask.storage.sealed import DamagedFileError, digest
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.text.embedders import Embedder, find_embedder

_IN_RUN = re.compile(rf"/({FOLDERS.pattern})(?=/)")
_ADVICE = "name an output folder of its own, next to them"


class Place(NamedTuple):
    """What is read: a file, a folder with all that is in it, or what a pattern finds in one."""

    what: str  # as a person calls it
    address: str  # an absolute path or a URL: of the folder that a pattern cannot leave
    pattern: tuple[str, ...] = ()  # the segments of a pattern below it


def _places_of(manifest: Manifest, base: str) -> Iterator[Place]:
    """Yield where the documents and answers of a manifest lie; `base` is its folder."""
    named = [(f"the documents of {one.name!r}", one.path) for one in manifest.resources]
    if manifest.answers is not None:
        named.append(("the answers", manifest.answers.path))
    for what, paths in named:
        for path in paths:
            if not path.startswith(BUILTIN):
                folder, pattern = cut_at_magic(path)
                address = (f"{base}/{folder}" if folder else base) if is_relative(path) else folder
                yield Place(f"{what} ({path})", address, pattern)


def overlaps(output: str, places: Sequence[Place], *, called: str = "output") -> list[str]:
    """Return in words how an output lies in the way of what is read; nothing if it does not.

    `called` says where the output, an absolute path or a URL, was given.

    Examples
    --------
    >>> overlaps("/data/out", [Place("the documents", "/data/news")])
    []
    >>> len(overlaps("/data/news/out", [Place("the documents", "/data/news")]))
    1
    """
    own = Location.of(output)
    climbs = "://" in output and ".." in output.split("/")
    found = [f"{called} must have no '..' in its URL, got {output}"] if climbs else []
    for what, address, pattern in places:
        place = Location.of(address)
        if own.holds(place):
            how = "is" if place.holds(own) else "holds"
            found.append(f"{called} must be separate from {what}, got {output}, which {how} it")
        elif place.holds(own) and _may_find(place, pattern, own):
            found.append(
                f"{called} must be separate from {what}, got {output}, which lies in it: what is "
                "written there would be read as these"
            )
    return found


def _listed_inside(output: str, segments: Sequence[DocumentSegment]) -> list[str]:
    """Return in words which files with documents lie in the output, by whichever way."""
    own, folders = Location.of(output), dict[str, bool]()
    for source in filter(None, (segment.file for segment in segments)):
        folder = os.path.dirname(source.url)
        if folder not in folders:
            folders[folder] = own.holds(Location.of(folder))
        is_link = is_local(source.url) and os.path.islink(source.url)
        if folders[folder] or (is_link and own.holds(Location.of(source.url))):
            return [
                f"output must be separate from the documents, got {output}, in which {source.path} "
                "lies"
            ]
    return []


def refuse(problems: Sequence[str]) -> None:
    """Raise ConfigurationError for what `overlaps` found.

    Examples
    --------
    >>> refuse([])
    >>> refuse(["output is taken"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: output is taken; name an output folder of its own, ...
    """
    if problems:
        raise ConfigurationError(f"{'; '.join(problems)}; {_ADVICE}")


def refuse_in_run(place: str, called: str) -> None:
    """Refuse to write into a folder that a run of a job made: what lies there is a release's.

    `called` says where the place, an absolute path or a URL, was given.
    """
    url = os.path.realpath(place) if is_local(place) else place
    for found in _IN_RUN.finditer(f"{url}/"):
        output = url[: found.start()]
        if ownership.NAME in open_storage(output, {}, durable=False).names(""):
            raise ConfigurationError(
                f"{called} must be separate from what runs of a job made, got {place}, which is or "
                f"lies in {found[1]} of the output {output}; {_ADVICE}"
            )


def _may_find(place: Location, pattern: Sequence[str], own: Location) -> bool:
    """Return whether a pattern may find files in a folder below the one where it begins."""
    depth = len(place.parts)
    if not pattern or own.parts[:depth] != place.parts:  # all files, or a folder with two names
        return True
    below = own.parts[depth:]
    for part, segment in zip(below, pattern, strict=False):
        if "**" in segment:  # any folders
            return True
        if not fnmatchcase(part, segment):
            return False
    return len(pattern) > len(below)


# What a job says that changes no result.
_IGNORED = {"schema_", "name", "manifest", "answers", "cluster", "output", "keep", "private"}
_IGNORED |= {"names", "publish"}


@dataclass(frozen=True)
class AnswerFile:
    """A pair file: its name in errors, and its bytes, which are few."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Inputs:
    """What a run is made of."""

    job: Job
    manifest: Manifest
    output: str  # an absolute path or a URL
    documents: Documents  # as they are now: files sorted by path, then those of other sources
    answers: tuple[AnswerFile, ...]
    address: str  # of the job file, an absolute path or a URL
    journal: journal.Taken
    embedder: Embedder | None = None  # that the job names, not loaded
    from_release: int | None = None  # the release to continue, 0 for none; else the last one
    take_over: bool = False  # the output becomes this job's if it is another's
    allow_shrink: bool = False  # more than half of the last release's documents may be gone
    choose_k: bool = False  # a K that was chosen for a former release is chosen again
    command: str = ""  # that launched the run

    @property
    def segments(self) -> tuple[DocumentSegment, ...]:
        """All segments with documents."""
        return self.documents.segments

    @property
    def owner(self) -> Owner:
        """The job, as the owner of its output."""
        return Owner(self.job.name, self.manifest.name)

    @property
    def identity(self) -> str:
        """The same for the same configuration, files and answers: then there is nothing to do."""
        # A setting that a later version adds changes nothing for those who do not use it.
        columns = self.manifest.documents
        taken = self.journal.identity
        return _hashed(
            {
                "job": self.job.model_dump(mode="json", exclude=_IGNORED, exclude_defaults=True),
                "documents": columns.model_dump(mode="json", exclude_defaults=True),
                "language": self.manifest.language,
                "sources": [segment.seen for segment in self.segments],
                "answers": sorted(digest(file.data) for file in self.answers),
                **({"journal": taken} if taken else {}),
                **({"embedder": self.embedder.identity} if self.embedder else {}),
                "report": FORMAT,  # one that another version wrote cannot be shown again
            }
        )

    def run_id(self, parent: str | None) -> str:
        """Return the id of the run that continues a parent run, named by what its model is."""
        from importlib.metadata import version

        named = {"inputs": self.identity, "parent": parent, "version": version("hmrf-dask")}
        if self.choose_k:
            named["choose_k"] = "again"
        return _hashed(named)[:16]


def gather(
    job: Job,
    address: str,
    from_release: int | None = None,
    *,
    take_over: bool = False,
    allow_shrink: bool = False,
    choose_k: bool = False,
) -> Inputs:
    """Return what the job of a file, in whose folder relative paths begin, is made of now."""
    if choose_k and (job.method.n_clusters != AUTO or job.mode != "fit"):
        got = f"n_clusters {job.method.n_clusters}, mode {job.mode}"
        raise ConfigurationError(
            f"--choose-k must go with method.n_clusters auto and a fit, got {got}; leave it out, "
            "or let the job choose K"
        )
    if job.names is not None:  # before hours of work
        find_namer(job.names.namer, by_file=True)
    base = base_of(address)
    manifest_url = resolved(base, job.manifest)
    manifest = load_manifest(manifest_url)
    output = output_of(job, address)
    documents = documents_apart(job, address, manifest, _before(output, manifest, from_release))
    with ExitStack() as stack:
        stack.callback(documents.close)
        sources_of_answers = answers_named(manifest, base_of(manifest_url))
        named = list(filter(None, map(read_answer_file, sources_of_answers)))
        more = [
            AnswerFile(one, read_whole(resolved(base, one), {}, ANSWER_BYTES))
            for one in job.answers
        ]
        inputs = Inputs(
            job=job,
            manifest=manifest,
            output=output,
            documents=documents,
            answers=(*named, *more),
            address=absolute_url(address, "a job"),
            journal=journal.take(output),
            embedder=embedder_of(job, address),
            from_release=from_release,
            take_over=take_over,
            allow_shrink=allow_shrink,
            choose_k=choose_k,
        )
        stack.pop_all()  # whoever reads them closes them
        return inputs


def embedder_of(job: Job, address: str) -> Embedder | None:
    """Return the embedder that a job names, in whose folder relative paths begin; None without."""
    vectors = job.recipe.vectors
    if vectors is None or vectors.model is None:
        return None
    return find_embedder(vectors.model, partial(resolved, base_of(address)))


def documents_apart(
    job: Job,
    address: str,
    manifest: Manifest,
    before: Mapping[str, KnownListing] | None = None,
) -> Documents:
    """Return the documents, once nothing that a job reads lies in the way of its output.

    That is ConfigurationError where the output is, holds or lies in such a place.
    """
    _refuse_overlaps(job, address, manifest)
    documents = list_documents(manifest, base_of(resolved(base_of(address), job.manifest)), before)
    try:
        refuse(_listed_inside(output_of(job, address), documents.segments))
    except ConfigurationError:
        documents.close()
        raise
    return documents


def refuse_places(job: Job, address: str, manifest: Manifest) -> None:
    """Refuse an output in whose way something lies that a job reads, listing files alone."""
    _refuse_overlaps(job, address, manifest)
    files = documents_of(manifest, base_of(resolved(base_of(address), job.manifest)), {})
    refuse(_listed_inside(output_of(job, address), files))


def _refuse_overlaps(job: Job, address: str, manifest: Manifest) -> None:
    output = output_of(job, address)
    _refuse_columns(job, manifest.documents.texts)
    refuse(overlaps(output, _read_by(job, address, manifest)))
    refuse_in_run(output, "output")


def _before(output: str, manifest: Manifest, number: int | None) -> Mapping[str, KnownListing]:
    """Return what the release was made of that a run continues: nothing where it is to be all read.

    Files need none of it; nor is it worth an error, which the run itself will say.
    """
    if number == 0 or all(isinstance(one, Resource) for one in manifest.resources):
        return {}
    with suppress(DamagedFileError):
        storage = open_output(output, None)
        release = latest(output) if number is None else read_if_whole(storage, number)
        return {} if release is None else KnownListing.of(release.ledger)
    return {}


def listed_again(inputs: Inputs) -> Inputs:
    """Return inputs whose documents can be read: listed again where nothing holds them still."""
    if inputs.documents.is_held:
        return inputs
    before = _before(inputs.output, inputs.manifest, inputs.from_release)
    documents = documents_apart(inputs.job, inputs.address, inputs.manifest, before)
    return replace(inputs, documents=documents)


def _refuse_columns(job: Job, texts: Sequence[str]) -> None:
    """Refuse rows of a column of text that the manifest does not have."""
    for kind in job.kinds:
        if kind.column is not None and kind.column not in texts:
            raise ConfigurationError(
                f"text.column must be one of documents.text in the manifest ("
                f"{', '.join(texts) or 'none'}), got {shortened(kind.column)}"
                f"{meant(kind.column, texts)}; name the column there, too"
            )


def _read_by(job: Job, address: str, manifest: Manifest) -> list[Place]:
    """Return all places that a job reads, its own file and the manifest among them."""
    base = base_of(address)
    manifest_url = resolved(base, job.manifest)
    named = [("the job file", address), ("the manifest", manifest_url)]
    named += [("the answers", resolved(base, one)) for one in job.answers]
    if job.cluster.scheduler_file is not None:
        named.append(("the scheduler file", resolved(base, job.cluster.scheduler_file)))
    places = _places_of(manifest, base_of(manifest_url))
    return [*(Place(f"{what} ({where})", where) for what, where in named), *places]


def load_job(address: str, changes: dict[str, Any] | None = None) -> Job:
    """Read a job file, of which `changes` replace keys; every mistake is named in one error."""
    address = plain_url(address, "a job")
    content = read_yaml(address, "job")
    refuse_other_kind(content, address, "job")
    return validated(Job, {**content, **(changes or {})}, address)


def output_of(job: Job, address: str) -> str:
    """Return where a job writes: an absolute path or a URL."""
    return absolute_url(resolved(base_of(address), job.output), "output")


def resolved(base: str, path: str) -> str:
    """Return a path as it is if it is absolute or a URL, else below a folder.

    Examples
    --------
    >>> resolved("s3://bucket/jobs", "out"), resolved("/jobs", "/data/out")
    ('s3://bucket/jobs/out', '/data/out')
    """
    path = os.path.expanduser(path)
    return path if "://" in path or os.path.isabs(path) else f"{base}/{path}"


def answers_named(manifest: Manifest, base: str) -> list[DocumentFile | Query]:
    """Return the files of answers that a manifest names, or its query."""
    if isinstance(manifest.answers, QueriedAnswers):
        return [manifest.answers.sql]
    return [*list_answers(manifest, base)]


def read_answer_file(source: DocumentFile | Query) -> AnswerFile | None:
    """Return a pair file, which must have the hash that the manifest says, or rows of a query.

    None where a query gives no rows: a table that people write into begins without any.
    """
    if isinstance(source, Query):
        rows = query_answers(source.url_env, source.query)
        return AnswerFile(named_after(source.url_env), rows) if rows else None
    data = read_whole(source.url, dict(source.options), ANSWER_BYTES)
    algorithm, _, wanted = (source.hash or "").partition(":")
    if wanted and hashlib.new(algorithm, data, usedforsecurity=False).hexdigest() != wanted:
        raise InvalidInputError(
            f"{source.path}: must have the hash that the manifest says ({source.hash}), got another"
            "; fetch the file again, or correct answers.hash"
        )
    return AnswerFile(source.path, data)


def _hashed(content: Any) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())
