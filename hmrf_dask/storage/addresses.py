"""Paths and URLs, wherever they are given: no secret in them, and whether one contains another."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.redaction import GLOB_STORES, HIDDEN, has_secret_form, is_secret_name, shortened
from hmrf_dask.redaction import without_secrets as without_secrets

# The stores that a job or a manifest may name. Others run programs (ssh), follow a file to
# anywhere (reference, zip) or take files from whoever answers (github).
STORES: Final = frozenset((*GLOB_STORES - {""}, "az", "abfs", "abfss", "http", "https"))
# Whatever is before a colon, not what a scheme may be: the odd ones are repeated by errors as well.
_SCHEME = re.compile(
    r"(?:(?P<scheme>[^:/\\?#]{2,}|[^:/\\?#]?(?=:[/\\]{2})|[^:/\\?#](?=:[^/\\])):)?"
    r"(?P<slashes>[/\\]*)(?P<rest>.*)",
    re.S,
)
_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_PARAMETER = re.compile(r"[?#][^/?#]*=")
_PARAMETER_NAME = re.compile(r"[?#&;]([^=/?#&;]*)=")
_METADATA_HOSTS = ("metadata", "metadata.google.internal", "instance-data")
_INSTEAD: Final = "give credentials in the environment, a profile or a role of the machine"
_IN_BRACKETS = re.compile(r"(?<=//)\[[0-9a-fA-F:.]*\]")  # a host as IPv6 writes it
_LOCAL: Final = ("file", "local")
_NOT_PRINTED = re.compile(r"[\x00-\x1f\x7f]")


class _Parts(NamedTuple):
    """A path or URL in pieces: `authority` is what is before the first slash of the rest."""

    scheme: str
    slashes: str
    authority: str
    rest: str

    @property
    def is_url(self) -> bool:
        """Whether it has a scheme and slashes behind it."""
        return bool(self.scheme and self.slashes)


def plain_url(address: str | os.PathLike[str], what: str) -> str:
    """Return a path or URL without the spaces around it; refuse one that may carry a secret.

    That is one with a user part, a query or a fragment, or that chains stores. The error calls it
    `what`, such as ``output`` or ``--run-dir``, and does not show it.

    Examples
    --------
    >>> plain_url(" s3://bucket/rows ", "output")
    's3://bucket/rows'
    >>> plain_url("s3://me:secret@bucket/rows", "output")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: output must not hold a user or a password, got ...
    """
    try:
        text = os.fspath(address).strip()
        problem = url_problem(text)
    except TypeError as error:  # a number, or bytes
        raise ConfigurationError(
            f"{what} must be a path or a URL, got {shortened(address)}"
        ) from error
    if problem:
        raise ConfigurationError(f"{what} {problem}")
    return text


def url_problem(address: str) -> str:
    """Return what is wrong with a path or URL, without any secret in it; "" if nothing is.

    Examples
    --------
    >>> url_problem("data/rows"), url_problem("s3:/rows")
    ('', "must have 's3://' before a place in such a store, got s3:/rows")
    """
    if _NOT_PRINTED.search(address):
        return f"must have no control characters, got {shown(address)}; remove them"
    for text in _decodings(address):
        parts = _parts(text)
        if _has_user(parts):
            return f"must not hold a user or a password, got {shown(address)}; {_INSTEAD}"
        if "::" in _IN_BRACKETS.sub("", text):
            return (
                f"must be a plain URL without '::', got {shown(address)}; "
                "a manifest has a key for compression"
            )
        if _has_query(parts):
            return (
                "must have no query and no fragment (behind ? or #): these may hold a secret, got "
                f"{shown(address)}; {_INSTEAD}"
            )
    problem = _slash_problem(_parts(address))
    return f"{problem}, got {shown(address)}" if problem else ""


def _slash_problem(parts: _Parts) -> str:
    """Return why a URL is none of its store, but a folder called s3: or one below whatever folder.

    A command is given a path relative to where it runs: the same file URL would be many places.
    """
    if parts.scheme in STORES and parts.slashes in ("", "/"):
        return f"must have '{parts.scheme}://' before a place in such a store"
    if parts.scheme in _LOCAL and parts.slashes == "//" and not parts.rest.startswith("~"):
        return f"must have an absolute path behind '{parts.scheme}://', which begins with a slash"
    return ""


def link_problem(link: str) -> str:
    """Return what is wrong with a link for people, which may have a query; "" if nothing is.

    Examples
    --------
    >>> link_problem("https://host/page?lang=en")
    ''
    >>> link_problem("https://host/page?token=x1")
    'must be a link without a secret, got https://host/page?…; leave the secret out'
    """
    for text in _decodings(link):
        parts = _parts(text)
        names = _PARAMETER_NAME.findall(parts.rest)
        if _has_user(parts) or any(map(is_secret_name, names)) or has_secret_form(text):
            return f"must be a link without a secret, got {shown(link)}; leave the secret out"
    return ""


def store_problem(address: str) -> str:
    """Return why a file may not name a path or URL: an unknown kind of store; "" if it may.

    Examples
    --------
    >>> store_problem("s3://bucket/rows")
    ''
    >>> store_problem("ssh://host/rows").partition(", got ")[2]
    "an unknown kind of store, 'ssh'; copy the files to one of these"
    >>> store_problem("http://169.254.169.254/latest")
    "must not be an address of a cloud's metadata, got 169.254.169.254; name a store"
    """
    if problem := url_problem(address):
        return problem
    parts = _parts(address)
    if "://" not in address:
        return ""
    if parts.scheme not in STORES:
        return (
            f"must be a path or a URL of {', '.join(sorted(STORES))}, got an unknown kind of "
            f"store, {parts.scheme!r}; copy the files to one of these"
        )
    if parts.scheme in ("http", "https"):
        return _host_problem(address)
    return ""


def _host_problem(address: str) -> str:
    """Return why an address of the web may not be asked: machines have secrets there."""
    authority = _parts(address).authority
    host = authority.strip("[]") if authority.endswith("]") else authority.rpartition(":")[0]
    host = (host or authority).strip("[]").rstrip(".").lower()
    if host in _METADATA_HOSTS or _is_link_local(host):
        return f"must not be an address of a cloud's metadata, got {host}; name a store"
    return ""


def refuse_credentials(options: Mapping[str, Any], path: str = "storage_options") -> None:
    """Refuse secrets: these options are pickled into every task and shown by dashboards.

    Examples
    --------
    >>> refuse_credentials({"profile": "research", "anon": False})
    >>> refuse_credentials({"secret": "x"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: storage_options must not hold a credential, got ...
    """
    for place, key, value in _leaves(options, path):
        if value is None or isinstance(value, bool) or value == "":
            continue
        if is_secret_name(key):
            raise ConfigurationError(
                f"{place} must not hold a credential, got {key!r}; use a profile, the "
                "environment, or a role of the machine"
            )
        if not isinstance(value, str):
            continue
        if has_secret_form(value):
            raise ConfigurationError(
                f"{place}[{key!r}] must not hold a credential, got what may be one; {_INSTEAD}"
            )
        problem = url_problem(value) if "://" in value else link_problem(value)
        if problem:
            raise ConfigurationError(f"{place}[{key!r}] {problem}")


def is_local(url: str) -> bool:
    """Return whether a path or URL means a file of this machine.

    Examples
    --------
    >>> is_local("rows.csv"), is_local("file:///rows.csv"), is_local("s3://bucket/rows.csv")
    (True, True, False)
    """
    protocol, separator, _ = url.partition("://")
    return not separator or protocol.lower() in ("", *_LOCAL)


def local_path(url: str) -> str:
    """Return the absolute path of a local path or a file:// URL.

    Examples
    --------
    >>> local_path("file:///data/rows.csv"), local_path("/data/./rows.csv")
    ('/data/rows.csv', '/data/rows.csv')
    """
    return os.path.abspath(os.path.expanduser(url.partition("://")[2] or url))


def absolute_url(url: str | os.PathLike[str], what: str = "a folder") -> str:
    """Return an absolute local path, or the URL of an object store: the same on every worker.

    Examples
    --------
    >>> absolute_url("/data//rows/../pairs"), absolute_url("S3://bucket/rows/")
    ('/data/pairs', 's3://bucket/rows')
    """
    text = plain_url(url, what)
    protocol, _, path = text.partition("://")
    if is_local(text):
        absolute = local_path(text)
    elif any(character in path for character in "*?["):  # fsspec expands these in names to delete
        raise ConfigurationError(
            f"{what} must be a plain URL without '*', '?' and '[', got {shown(text)}; rename it"
        )
    else:
        absolute = f"{protocol.lower()}://{path.rstrip('/')}"
    if absolute != absolute.strip():  # asked again, it would be another place
        raise ConfigurationError(
            f"{what} must have a name without spaces at its end, got {shown(text)}; rename it"
        )
    return absolute


def shown(address: str) -> str:
    """Return as much of an address as surely is no secret.

    Examples
    --------
    >>> shown("S3://me:pass?word@host/a"), shown("https://host/a?sig=9f")
    ('S3://…', 'https://host/a?…')
    """
    plain = _NOT_PRINTED.sub("", unicodedata.normalize("NFKC", address))
    parts = _parts(plain)
    begin = plain[: len(plain) - len(parts.rest)] if parts.is_url else parts.slashes
    rest = parts.rest if begin else plain
    if "@" in plain or "%" in plain or ":" in parts.authority:
        return f"{begin}{HIDDEN}"
    safe, mark, _ = re.match(r"([^?#&;]*)(.?)(.*)", rest, re.S).groups()  # type: ignore[union-attr]
    return f"{begin}{safe}{mark}{HIDDEN if mark else ''}"


def _parts(text: str) -> _Parts:
    pieces = _SCHEME.match(text.strip())
    assert pieces is not None  # it matches everything
    authority = re.split(r"[/\\?#]", pieces["rest"], maxsplit=1)[0]
    return _Parts((pieces["scheme"] or "").lower(), pieces["slashes"], authority, pieces["rest"])


def _decodings(text: str) -> Iterator[str]:
    """Yield a text, and what it is when percent signs are read, once and again."""
    text = unicodedata.normalize("NFKC", text)  # other at signs and slashes are read as these
    for _ in range(4):
        yield text
        decoded = unquote(text)
        if decoded == text:
            return
        text = decoded


def _has_user(parts: _Parts) -> bool:
    if parts.is_url or len(parts.slashes) > 1:
        of_a_store = parts.is_url and parts.scheme not in _LOCAL
        odd_port = of_a_store and not _PORT.fullmatch(parts.authority)
        many = ":" in parts.authority and "@" in parts.rest
        # Some read a backslash as a slash, others as a part of the name.
        longer = re.split(r"[/?#]", parts.rest, maxsplit=1)[0] if of_a_store else parts.authority
        return "@" in longer or odd_port or many
    return bool(parts.scheme) and "@" in parts.rest  # me:password@host


def _has_query(parts: _Parts) -> bool:
    names = _PARAMETER_NAME.findall(parts.rest)
    if _PARAMETER.search(parts.rest) or any(map(is_secret_name, names)):
        return True
    marks = "#" if parts.scheme in GLOB_STORES else "#?"
    return parts.is_url and any(mark in parts.rest for mark in marks)


def _leaves(content: Any, path: str, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield every value in mappings and lists with its place and the key it stands behind."""
    if isinstance(content, Mapping):
        inside = f"{path}[{key!r}]" if key else path
        for name, value in content.items():
            yield from _leaves(value, inside, str(name))
    elif isinstance(content, list | tuple | set | frozenset):
        for value in content:
            yield from _leaves(value, path, key)
    else:
        yield path, key, content


def _is_link_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(host))  # 2852039166, 0xa9fea9fe
        except (OSError, ValueError):
            return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_link_local) or str(mapped) == "fd00:ec2::254"


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

    Examples
    --------
    >>> Location.of("gcs://bucket/a/b")
    Location(store='gs', parts=('bucket', 'a', 'b'))
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
        store = _SAME_STORE.get(protocol.lower(), protocol.lower())
        if is_local(text):
            store, path = "", os.path.realpath(os.path.expanduser(path if separator else text))
        return cls(store, tuple(part for part in path.split("/") if part))

    def holds(self, other: Location) -> bool:
        """Return whether another place is this one or lies in it.

        A mount or a file system that ignores case gives a folder two names: folders of this
        machine are compared by what they are, too.

        Examples
        --------
        >>> rows = Location.of("s3://bucket/rows")
        >>> [rows.holds(Location.of(one)) for one in ("s3a://bucket/rows/a.csv", "s3://bucket/row")]
        [True, False]
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
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def refuse_memory(place: str, what: str) -> None:
    """Refuse a place, called `what`, in the memory of a process that ends with its command.

    Examples
    --------
    >>> refuse_memory("memory://rows", "output")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: output must be a place that outlasts the command, ...
    """
    if place.strip().lower().startswith("memory:"):
        raise ConfigurationError(
            f"{what} must be a place that outlasts the command, got {place}, which is the memory "
            "of this process; name a folder or the URL of an object store"
        )
