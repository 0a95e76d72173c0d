"""How two places lie to each other: the same, one inside the other or apart, in any spelling."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from hmrf_dask.errors import ConfigurationError

_LOCAL = ("", "file", "local")
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}


@dataclass(frozen=True)
class Location:
    """A place in its plainest spelling.

    Attributes
    ----------
    store : str
        The protocol of an object store; "" is this machine.
    parts : tuple of str
        The path from the root of the store. Of a local place without links, ``..`` and ``~``.
    """

    store: str
    parts: tuple[str, ...]

    @classmethod
    def of(cls, place: str | os.PathLike[str]) -> Location:
        """Return where a local path or a URL leads.

        Examples
        --------
        >>> Location.of("s3a://bucket//documents/") == Location.of("s3://bucket/documents")
        True
        """
        text = os.fspath(place)
        protocol, separator, path = text.partition("://")
        protocol = protocol.lower()
        if not separator or protocol in _LOCAL:
            path = os.path.realpath(os.path.expanduser(path if separator else text))
            protocol = ""
        parts = tuple(part for part in path.split("/") if part)
        return cls(_SAME_STORE.get(protocol, protocol), parts)

    def holds(self, other: Location) -> bool:
        """Tell whether another place is this one or lies in it.

        A mount or a file system that ignores case gives a folder two names: folders of this
        machine are compared by what they are, too.
        """
        if self.store != other.store:
            return False
        if other.parts[: len(self.parts)] == self.parts:
            return True
        return self._node is not None and self._node in other._nodes

    @cached_property
    def _node(self) -> tuple[int, int] | None:
        return _node_of("/" + "/".join(self.parts)) if not self.store else None

    @cached_property
    def _nodes(self) -> set[tuple[int, int] | None]:
        """What a local place and the folders above it are, where they are there."""
        above = ("/" + "/".join(self.parts[:n]) for n in range(1, len(self.parts) + 1))
        return {_node_of(path) for path in above} - {None}


def _node_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def refuse_memory(place: str, what: str) -> None:
    """Refuse a place in the memory of a process that ends with its command.

    Parameters
    ----------
    place : str
    what : str
        What the place is called where it was given: ``output``, ``--run-dir``.
    """
    if place.strip().lower().startswith("memory:"):
        raise ConfigurationError(
            f"{what} must be a place that outlasts the command, got {place}, which is the memory "
            "of this process; name a folder or the URL of an object store"
        )
