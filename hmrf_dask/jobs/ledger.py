"""Which files a release was made of, and what is new since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hmrf_dask.documents.sources import Source
from hmrf_dask.releases.release import DamagedReleaseError, Release, latest
from hmrf_dask.storage.sealed import RESTORE, DamagedFileError, typed

SOURCES = "sources"
VOCABULARY = "vocabulary"  # its identity, None where rows are ready embeddings
MADE_OF = "made_of"  # keys of the counts that the vocabulary was made of
CAME = "came"  # the releases that files came with since the last fit, by path


class Keys(NamedTuple):
    """What a segment of a file is called; most files have one.

    Attributes
    ----------
    counts : str
        The counts and rows of its pack.
    pack : str
    own : str
    """

    counts: str
    pack: str
    own: str


class FileEntry(NamedTuple):
    """A file of a release, as its ledger lists it.

    Attributes
    ----------
    size, etag : object
        What the store said of it.
    keys : list of Keys
        Of each segment of the file.
    """

    size: Any
    etag: Any
    keys: list[Keys]


@dataclass(frozen=True)
class _Ledger:
    """What the ledger of a release has at least."""

    inputs: str
    sources: dict[str, tuple[Any, Any, list[tuple[str, str, str]]]]
    vocabulary: str | None
    made_of: list[str]
    next_id: int
    came: dict[str, int] = field(default_factory=dict)  # former versions kept none


def last_release(output: str) -> Release | None:
    """Return the last release of a job's output, with a ledger that a run can go on from."""
    found = latest(output)
    if found is not None:
        check_ledger(found, output)
    return found


def check_ledger(release: Release, output: str) -> None:
    """Raise DamagedReleaseError where the ledger of a release is none that a run can go on from."""
    try:
        typed(_Ledger, release.ledger, f"the ledger of release {release.number} of {output}")
    except DamagedFileError as error:
        raise DamagedReleaseError(str(error).removesuffix(f"; {RESTORE}")) from error


@dataclass(frozen=True)
class Changes:
    """What happened to the files since the last release, by path, sorted."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    same: tuple[str, ...]
    gone: tuple[str, ...]

    def counted(self) -> dict[str, int]:
        """Return how many there are of each kind, and of all that are there."""
        there = len(self.new) + len(self.changed) + len(self.same)
        return {
            "all": there,
            "new": len(self.new),
            "changed": len(self.changed),
            "gone": len(self.gone),
        }


def entries(sources: Sequence[Source], keys: Mapping[str, list[Keys]]) -> dict[str, FileEntry]:
    """Return what the ledger of a release keeps of its files, by path; `keys` by path too."""
    return {one.path: FileEntry(one.size, one.etag, keys[one.path]) for one in sources}


def files_of(ledger: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Return the files that a ledger lists, by path; keys of former versions name nothing now."""
    return {
        path: FileEntry(size, etag, [Keys(*one) for one in keys[0]] if len(keys) == 1 else [])
        for path, (size, etag, *keys) in ledger.get(SOURCES, {}).items()
    }


def compare(before: Mapping[str, FileEntry], sources: Sequence[Source]) -> Changes:
    """Return what is new beside the ledger of a release.

    Parameters
    ----------
    before : mapping
        What `files_of` gives of its ledger; empty where there was no release.
    sources : sequence of Source
        As they are now.
    """
    now = {source.path: (source.size, source.etag) for source in sources}
    both = sorted(now.keys() & before.keys())
    return Changes(
        new=tuple(sorted(now.keys() - before.keys())),
        changed=tuple(path for path in both if before[path][:2] != now[path]),
        same=tuple(path for path in both if before[path][:2] == now[path]),
        gone=tuple(sorted(before.keys() - now.keys())),
    )
