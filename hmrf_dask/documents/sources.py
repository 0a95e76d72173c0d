"""Where documents lie: what a source must do, its segments, and the kinds that are installed.

A source lists its segments, reads one of them, and says what changed since a listing. Files in a
store are one kind; a package adds its own by an entry point of the group `hmrf_dask.sources`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Final

from hmrf_dask.errors import ConfigurationError, meant
from hmrf_dask.redaction import shortened

if TYPE_CHECKING:
    import pyarrow as pa

    from hmrf_dask.documents.batches import Batch
    from hmrf_dask.documents.manifest import Columns, SourceResource

ENTRY_POINTS: Final = "hmrf_dask.sources"
BATCH_ROWS: Final = 10_000
# The column of a delta that marks documents which are gone: true where one is. Their other columns
# than the id may be null.
GONE: Final = "hmrf_dask_gone"
# Kinds that the package brings: module and callable, by name.
OWN: Final[Mapping[str, str]] = {
    "mongo": "hmrf_dask.documents.mongo:open_mongo",
    "search": "hmrf_dask.documents.search:open_search",
    "sql": "hmrf_dask.documents.sql:open_sql",
}


@dataclass(frozen=True)
class Segment:
    """A part of a source that one task reads: plain values, picklable, nothing secret.

    Attributes
    ----------
    name : str
        Stable from night to night, different from all others of the source: ``"1..50000"``.
    size : int
        About how many bytes its documents have: what is read side by side is weighed by it. The
        same content must have the same size.
    stamp : str
        Changes with the content. A segment whose name and stamp are known is not read again.
    where : JSON value
        What the source needs to find its rows: bounds of a key, a number of a shard. It is written
        to the ledger of the release, and comes back with the segment.
    is_alone : bool
        Of a file, whether it is counted by itself, however small it is; others always are.
    is_delta : bool
        Whether it has what changed in the segments that were listed before it: documents with ids
        that these have too are newer, and those that the column `GONE` marks are no more.
    """

    name: str
    size: int
    stamp: str
    where: Any = None
    is_alone: bool = False
    is_delta: bool = False


@dataclass(frozen=True)
class Listing:
    """All segments of a source: what a release was made of, kept in its ledger.

    Attributes
    ----------
    segments : tuple of Segment
        Base segments first, which share no document, then deltas, the oldest first.
    stamp : str
        What `Source.changes` needs to know of the moment: the last change that is in the segments.
        Empty where the source cannot say what changed.
    compares_keys : bool
        Whether deletions leave no trace in deltas. The ids of all former segments are then read
        again, and nothing else of them: what is not there any more is gone.
    """

    segments: tuple[Segment, ...]
    stamp: str = ""
    compares_keys: bool = False


class Source(ABC):
    """Where the documents of a resource lie; it travels to tasks, and opens what it needs there.

    Whatever goes wrong is one of three errors, in words without secrets: `ConfigurationError` (what
    the manifest or the environment says cannot be), `InvalidInputError` (the content must be
    corrected), `SourceUnavailableError` (trying again may help: exit code 75).
    """

    @property
    @abstractmethod
    def identity(self) -> str:
        """What documents depend on but the columns: the kind, the query, the shape of segments.

        Never an address: the same rows at another address are the same rows.
        """

    @abstractmethod
    def segments(self, snapshot: str, before: Listing | None) -> Listing:
        """Return all segments as they are in a snapshot.

        `before` is the listing of the last release: where its bounds will do, the segments keep
        their names, and those with the same content their stamps.
        """

    @abstractmethod
    def read(
        self,
        segment: Segment,
        snapshot: str,
        names: Sequence[str],
        *,
        ids: Sequence[str] = (),
        rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch | Batch]:
        """Yield the rows of a segment as Arrow batches with the columns `names`, and `GONE`.

        A batch has at most `rows` rows, and about 16 MiB: a task holds one. The order of rows is
        the same every time. With `ids` rows of other documents may be left out. Ids are texts or
        integers; a row whose id or text is wrong is given out all the same: it is quarantined
        under its id. (Files number their lines, and give `Batch` instead.)
        """

    def changes(self, snapshot: str, since: Listing) -> Listing | None:  # noqa: ARG002 - it cannot
        """Return `since` with deltas added for what changed, or None to list all again.

        Without any change it is `since` itself, up to the stamp. It is not asked where deltas are
        many or large by now: then `segments` are listed, and the deltas are read no more.
        """
        return None

    def snapshot(self) -> AbstractContextManager[str]:
        """Hold still what is read until the context ends, and name it for tasks.

        The process that drives a run holds it open from the listing until all is read. Where rows
        cannot be held still, `read` must notice what changed since it was listed:
        SourceUnavailableError. Without a name, "", `read` gives what is there now: a person asks
        for a text.
        """
        return nullcontext("")

    def parts(self, segment: Segment) -> list[Segment]:
        """Return what tasks read of a segment; a large file is listed as one, and cut here."""
        return [segment]

    def described(self, segment: Segment) -> list[Any]:
        """Return what the documents of a segment depend on, as JSON."""
        return [self.identity, segment.name, segment.stamp]


# It takes the name of the resource, its settings, which it checks, and the columns of documents.
Kind = Callable[[str, Mapping[str, Any], "Columns"], Source]
_REGISTERED: dict[str, Kind] = {}


def register(name: str, kind: Kind) -> None:
    """Make a kind of source known to this process; a package does it by an entry point."""
    _REGISTERED[name] = kind


def kinds() -> list[str]:
    """Return the names of all kinds of sources that are known here."""
    return sorted({*OWN, *_REGISTERED, *_installed()})


@cache
def _installed() -> Mapping[str, metadata.EntryPoint]:
    return {one.name: one for one in metadata.entry_points(group=ENTRY_POINTS)}


def open_source(resource: SourceResource, columns: Columns) -> Source:
    """Return the source that a resource names; nothing is connected to before it is used.

    Raises
    ------
    ConfigurationError
        There is no such kind, or its settings are wrong.
    """
    return _kind(resource.kind)(resource.name, resource.settings, columns)


def _kind(name: str) -> Kind:
    if name in OWN:
        module, _, called = OWN[name].partition(":")
        kind: Kind = getattr(import_module(module), called)
        return kind
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in _installed():
        raise ConfigurationError(
            f"a source must be one of {', '.join(kinds()) or 'none that is installed'}, got "
            f"{shortened(name)}{meant(name, kinds())}; install the package that brings it"
        )
    found: Kind = _installed()[name].load()
    return found
