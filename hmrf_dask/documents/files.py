"""The files a manifest names, each with what shows whether it changed, and segments of large ones.

JSON Lines are cut at bytes, and a line is of the segment it begins in; Parquet is cut between row
groups. Where depends on the size of the file alone. What is compressed as a whole, and CSV, whose
quoted cells may hold line ends, can only be read from the front.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from hmrf_dask.documents import builtin
from hmrf_dask.documents.manifest import (
    BUILTIN,
    Answers,
    Dialect,
    Manifest,
    Resource,
)
from hmrf_dask.documents.streams import BLOCK_BYTES, WatchedFile, etag_of, filesystem, open_file
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.parameters import MOST_FILES
from hmrf_dask.redaction import GLOB_STORES
from hmrf_dask.storage.addresses import is_local, local_path, store_problem
from hmrf_dask.storage.remote import explained

SEGMENT_BYTES = 64 * 2**20


def segments_of(source: DocumentFile) -> list[DocumentFile]:
    """Return a file in segments of at least `SEGMENT_BYTES`, or as it is.

    Examples
    --------
    >>> large = DocumentFile("a.jsonl", "/a.jsonl", 150 * 2**20, "1", "jsonl")
    >>> [part.span for part in segments_of(large)]
    [(0, 78643200), (78643200, 157286400)]
    """
    n_segments = source.size // SEGMENT_BYTES
    if n_segments < 2 or not is_cut(source):
        return [source]
    bounds = [source.size * number // n_segments for number in range(n_segments + 1)]
    return [replace(source, span=(bounds[n], bounds[n + 1])) for n in range(n_segments)]


def is_cut(source: DocumentFile) -> bool:
    """Return whether a file is cut if it is large.

    Examples
    --------
    >>> [is_cut(DocumentFile("a", "/a", 9, "1", kind)) for kind in ("jsonl", "parquet", "csv")]
    [True, True, False]
    """
    return source.format == "parquet" or (source.format, source.compression) == ("jsonl", "none")


class SegmentLines(WatchedFile):
    r"""The lines that begin in a span of a file, as if there were no others.

    Examples
    --------
    >>> import io
    >>> SegmentLines(io.BytesIO(b"aa\nbb\ncc\n"), "a.jsonl", (2, 5)).read()
    b'bb\n'
    """

    def __init__(self, file: BinaryIO, name: str, span: tuple[int, int]) -> None:
        super().__init__(file, name, None)
        self._place = max(span[0] - 1, 0)  # that byte shows whether a line begins with the next
        self._end = span[1]
        self._skips = span[0] > 0
        self._ended = False
        self.n_lines = 0
        self.seek(self._place)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of these lines."""
        while not self._ended and (data := super().read(size)):
            lines = self._taken(data)
            if lines:
                self.n_lines += lines.count(b"\n")
                return lines
        return b""

    def _taken(self, data: bytes) -> bytes:
        """Return what bytes have of these lines."""
        start = self._place
        self._place += len(data)
        if self._skips:
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
            self._skips = not cut
            self._ended = (start if cut else self._place) >= self._end
            if self._skips or self._ended:
                return b""
        if self._place >= self._end:  # the line with the last byte of the span is the last one
            cut = data.find(b"\n", max(self._end - 1 - start, 0)) + 1
            self._ended = bool(cut)
            return data[:cut] if cut else data
        return data


def lines_before(source: DocumentFile) -> int:
    """Return how many lines of a JSON Lines file begin before a segment of it."""
    if source.format != "jsonl" or source.span is None or not source.span[0]:
        return 0
    left, n_lines = source.span[0] - 1, 1
    with explained(source.path, "open it"):
        opened = open_file(source.url, dict(source.options))
    with opened:
        file = WatchedFile(opened, source.path, None)
        while left and (data := file.read(min(BLOCK_BYTES, left))):
            left -= len(data)
            n_lines += data.count(b"\n")
    return n_lines


_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".md": "text",
}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".zstd": "zst"}
_MAGIC = re.compile(r"[*?[]")
_USUAL = Dialect()


@dataclass(frozen=True)
class DocumentFile:
    """One file with documents, as tasks get it: plain values, picklable, nothing secret.

    Its `path` names it in ledgers and errors: relative to the manifest's folder where the manifest
    is written so and local, else absolute or a URL. It is stable when the folder moves.
    """

    path: str
    url: str  # where it is read from: an absolute path or a URL
    size: int  # in bytes, as stored
    etag: str  # changes with the content: mtime in hexadecimal nanoseconds, or the store's own
    format: str = ""  # empty while files are listed
    compression: str = "none"
    encoding: str = "utf-8"
    dialect: Dialect = _USUAL
    hash: str | None = None  # what the content must have, as ``algorithm:hexadecimal``
    document_id: str = ""  # of a text file: its path below the folder or the fixed part of the glob
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    # The segment that this is: lines that begin in it, or row groups. None is the whole file.
    span: tuple[int, int] | None = None

    @property
    def n_bytes(self) -> int:
        """How much of the file this is.

        Examples
        --------
        >>> DocumentFile("a", "/a", 100, "1", "jsonl", span=(20, 50)).n_bytes
        30
        """
        return self.size if self.span is None else self.span[1] - self.span[0]


def list_files(manifest: Manifest, base: str) -> list[DocumentFile]:
    """Return every file with documents, sorted by path; `base` is the manifest's folder.

    Raises
    ------
    InvalidInputError
        There is no file where a resource points to, or one has not the size it must have.
    SourceError
        The store cannot be listed; SourceUnavailableError if trying again may help.
    """
    sources: dict[str, DocumentFile] = {}
    for resource in manifest.resources:
        if not isinstance(resource, Resource):
            continue
        options = _options(manifest, resource)
        for file in _files_of(resource, resource.name, base, options, resource.format):
            source = _source(resource, file, options)
            if source.path in sources:
                raise ConfigurationError(
                    f"resources: {source.path} must be in one of them, got it in two; narrow a path"
                )
            sources[source.path] = source
    return [sources[path] for path in sorted(sources)]


def list_answers(manifest: Manifest, base: str) -> list[DocumentFile]:
    """Return the files with pairs, sorted by path; none if the manifest names none."""
    answers = manifest.answers
    if not isinstance(answers, Answers):
        return []
    options, sources = _options(manifest, answers), list[DocumentFile]()
    for file in _files_of(answers, "answers", base, options, "csv"):
        kind = os.path.splitext(file.path)[1].lower().lstrip(".")
        if kind not in ("csv", "jsonl", "parquet"):
            raise ConfigurationError(
                f"answers: a file must be named .csv, .jsonl or .parquet, got {file.path}; "
                "rename it"
            )
        shared = tuple(options.items())
        sources.append(
            replace(file, format=kind, hash=answers.hash, document_id="", options=shared)
        )
    return sorted(sources, key=lambda source: source.path)


def _options(manifest: Manifest, files: Resource | Answers) -> dict[str, Any]:
    """Return the options of a resource, else those of the manifest."""
    return (files.storage_options or manifest.storage_options).model_dump(exclude_none=True)


def _source(resource: Resource, file: DocumentFile, options: Mapping[str, Any]) -> DocumentFile:
    compression, kind, ending = _kind_of(resource, file.path)
    dialect = resource.dialect
    if ending == ".tsv" and "delimiter" not in dialect.model_fields_set:
        dialect = dialect.model_copy(update={"delimiter": "\t"})
    return replace(
        file,
        format=kind,
        compression=compression,
        encoding=resource.encoding,
        dialect=dialect,
        hash=resource.hash,
        document_id=file.document_id if kind == "text" else "",
        options=tuple(options.items()),
    )


def _kind_of(resource: Resource, path: str) -> tuple[str, str, str]:
    """Return compression, format and the ending that says it."""
    stem, ending = posixpath.splitext(path.lower())
    compression = _COMPRESSIONS.get(ending, "none")
    if compression != "none":
        ending = posixpath.splitext(stem)[1]
    kind = resource.format or ("builtin" if path.startswith(BUILTIN) else _FORMATS.get(ending))
    if kind is None:
        raise ConfigurationError(
            f"resources, {resource.name!r}: the format of {path} must be known by its ending "
            f"({', '.join(_FORMATS)}, then .gz or .zst); give format: jsonl, parquet, csv or text, "
            "or a narrower path"
        )
    compression = resource.compression or compression
    if kind == "parquet" and compression != "none":
        raise ConfigurationError(
            f"resources, {resource.name!r}: Parquet must not be compressed as a whole, got {path}; "
            "it compresses its own pages"
        )
    return compression, kind, ending


def _files_of(
    files: Resource | Answers, name: str, base: str, options: Mapping[str, Any], kind: str | None
) -> list[DocumentFile]:
    """Return the files of a resource, each once; size and hash are of a single one."""
    listed: dict[str, DocumentFile] = {}
    for pattern in files.path:
        matching = _matching(pattern, base, options, kind)
        if not matching:
            raise InvalidInputError(
                f"{name!r}: there must be at least one file, got none for {pattern} "
                f"(seen from {base}); check the path"
            )
        listed.update((file.path, file) for file in matching)
    if (files.hash or files.bytes is not None) and len(listed) != 1:
        raise ConfigurationError(
            f"{name!r}: hash and bytes must be those of one file, got {len(listed)} files; "
            "make a resource of each"
        )
    for file in listed.values():
        if files.bytes is not None and files.bytes != file.size:
            raise InvalidInputError(
                f"{file.path}: must have {files.bytes} bytes (so the manifest says), got "
                f"{file.size}; fetch the file again or correct the manifest"
            )
    return list(listed.values())


def _matching(
    pattern: str, base: str, options: Mapping[str, Any], kind: str | None
) -> list[DocumentFile]:
    """Return the files of a pattern as the store lists them; `document_id` is the path below it."""
    if pattern.startswith(BUILTIN):
        return [DocumentFile(pattern, pattern, 0, builtin.version_of(pattern))]
    relative = is_relative(pattern)
    if relative:
        # Only what the manifest says is a pattern, the folder it lies in may be called anything.
        address, fixed = f"{glob.escape(base)}/{pattern}", f"{base}/{pattern}"
    else:
        address = fixed = pattern = local_path(pattern) if is_local(pattern) else pattern
    if is_local(address):
        return _local(address, fixed, pattern, base if relative else None, kind)
    return _remote(address, fixed, pattern, options, kind)


def is_relative(pattern: str) -> bool:
    """Return whether a path is seen from the folder of its manifest.

    Examples
    --------
    >>> is_relative("texts/*.csv"), is_relative("/data/texts"), is_relative("s3://bucket/texts")
    (True, False, False)
    """
    return is_local(pattern) and "://" not in pattern and not pattern.startswith(("/", "~"))


def cut_at_magic(pattern: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder that a pattern cannot leave, and the rest of its segments.

    Examples
    --------
    >>> cut_at_magic("s3://bucket/2026-*/*.csv")
    ('s3://bucket', ('2026-*', '*.csv'))
    """
    match = _MAGIC.search(pattern)
    if match is None:
        return pattern, ()
    folder = pattern[: match.start()].rpartition("/")[0]
    below = tuple(filter(None, pattern[len(folder) :].split("/")))
    return folder or pattern[: pattern.startswith("/")], below


def _local(
    address: str, fixed: str, pattern: str, base: str | None, kind: str | None
) -> list[DocumentFile]:
    with explained(pattern, "list it"):
        if _MAGIC.search(pattern):
            root = os.path.normpath(_fixed_part(fixed, pattern))
            paths = [p for p in glob.glob(address, recursive=True) if not os.path.isdir(p)]
        elif os.path.isdir(fixed):
            root = os.path.normpath(fixed)
            paths = [p for p in _walk(root) if not _is_private(p, root, kind)]
        else:
            os.stat(fixed)
            root, paths = os.path.dirname(os.path.normpath(fixed)), [fixed]
        listed = []
        for path in map(os.path.normpath, paths):
            state = os.stat(path)
            if not stat.S_ISREG(state.st_mode):  # opening a pipe waits for a writer, for ever
                raise ConfigurationError(
                    f"a path must be that of a file, got {path}, a pipe or a device; "
                    "narrow the path"
                )
            name = path if base is None else os.path.relpath(path, base)
            etag, below = f"{state.st_mtime_ns:x}", os.path.relpath(path, root)
            listed.append(DocumentFile(name, path, state.st_size, etag, document_id=below))
    return listed


def _walk(root: str) -> list[str]:
    def fail(error: OSError) -> None:
        """Stop at a folder that cannot be read; os.walk alone would skip it."""
        raise error

    paths, seen = list[str](), {os.path.realpath(root)}
    for folder, below, names in os.walk(root, onerror=fail, followlinks=True):
        paths += [os.path.join(folder, name) for name in names]
        if len(paths) > MOST_FILES:
            raise ValueError(f"there are more than {MOST_FILES:,} files in it")
        real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(below)}
        below[:] = [name for name, path in real.items() if path not in seen]  # links may go round
        seen.update(real.values())
    return paths


def _remote(
    address: str, fixed: str, pattern: str, options: Mapping[str, Any], kind: str | None
) -> list[DocumentFile]:
    with explained(pattern, "list it"):
        files, path = filesystem(address, options)
        protocol = address.partition("://")[0]
        if _MAGIC.search(pattern):
            root = files._strip_protocol(_fixed_part(fixed, pattern))
            infos = files.glob(path, detail=True)
        else:
            info = files.info(path)
            root = path.rpartition("/")[0]
            infos = {path: info}
            if info["type"] == "directory":
                root = path
                infos = files.find(path, detail=True)
                infos = {p: i for p, i in infos.items() if not _is_private(p, root, kind)}
        listed = []
        for name, info in infos.items():
            if info["type"] == "directory" or name.endswith("/"):
                continue
            url = name if "://" in name else f"{protocol}://{name.lstrip('/')}"
            # Names of objects may have any sign; a page of the web may link to signed addresses.
            if protocol not in GLOB_STORES and (problem := store_problem(url)):
                raise ConfigurationError(f"{pattern}: what it lists {problem}")
            if info["size"] is None:  # pages do not say it
                info = files.info(name)
            size, etag = int(info["size"]), etag_of(files, name, info)
            below = name.removeprefix(root).lstrip("/")
            listed.append(DocumentFile(url, url, size, etag, document_id=below))
    return listed


def _fixed_part(address: str, pattern: str) -> str:
    """Return the folder that a pattern cannot leave: all before its first name with magic."""
    return address[: len(address) - len(pattern)] + cut_at_magic(pattern)[0]


def _is_private(path: str, root: str, kind: str | None) -> bool:
    """Return whether a file in a folder is a program's own: hidden, or such as Spark's _SUCCESS."""
    below = path.removeprefix(root).lstrip("/")
    marks = (".",) if kind == "text" else (".", "_")
    return any(part.startswith(marks) for part in below.split("/"))
