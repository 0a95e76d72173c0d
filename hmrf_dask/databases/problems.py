"""What goes wrong with a database, in words: which of it may pass, and what a person can do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    SourceUnavailableError,
)

_LONGEST = 500  # characters of what a server says


class _Kind(NamedTuple):
    """A kind of problem: the error that it becomes, and what to do."""

    error: type[HmrfError]
    advice: str


_LATER: Final = _Kind(SourceUnavailableError, "run again later")
_FULL: Final = _Kind(SourceUnavailableError, "make room on the server, then run again")
_SLOW: Final = _Kind(SourceUnavailableError, "run again when less is going on, or raise timeout")
_LOGIN: Final = _Kind(ConfigurationError, "correct the address, the role or its password")
_RIGHTS: Final = _Kind(ConfigurationError, "give the role the right, or correct the statement")
_STATEMENT: Final = _Kind(ConfigurationError, "correct the query, or what it names")
_CONTENT: Final = _Kind(InvalidInputError, "correct the row, or leave it out by the query")
# By the beginning of an SQLSTATE, the longest that fits.
_STATES: Final[Mapping[str, _Kind]] = {
    "08": _LATER,
    "0A": _STATEMENT,
    "21": _STATEMENT,
    "22": _CONTENT,
    "23": _CONTENT,
    "25": _LATER,
    "25001": _STATEMENT,
    "25006": _RIGHTS,
    "28": _LOGIN,
    "3D": _LOGIN,
    "40": _LATER,
    "42": _STATEMENT,
    "42501": _RIGHTS,
    "53": _LATER,
    "53100": _FULL,
    "53400": _FULL,
    "54": _CONTENT,
    "55": _LATER,
    "57": _LATER,
    "57014": _SLOW,
    "58": _LATER,
    "XX001": _CONTENT,
    "XX002": _CONTENT,
}
# Where there is no SQLSTATE: while connecting, while rows come in, and of SQLite.
_TEXTS: Final[tuple[tuple[str, _Kind], ...]] = (
    (r"statement timeout|lock timeout", _SLOW),
    (r"No space left|could not (write|extend)|temp_file_limit|disk is full", _FULL),
    (r"authentication failed|no password|no pg_hba|role \S+ |database \S+ does not", _LOGIN),
    (r"invalid (URI|connection option|port|percent-encoded|\w+ value)|service file", _LOGIN),
    (r"definition of|IPv6 host address|unexpected (spaces|character)", _LOGIN),
    (r"attempt to write|permission denied|readonly", _RIGHTS),
    (r"unable to open|failed to open|not a database", _LOGIN),
    (r"no such (table|column|function)|syntax error|ambiguous column|NOT_FOUND", _STATEMENT),
    (r"must be set before any query", _STATEMENT),
    (r"malformed|Type mismatch", _CONTENT),
    (r"terminating|canceling|out of memory|serialize|recovery|shutting down|starting up", _LATER),
    (r"connection|server closed|could not translate|timeout|locked|disk I/O|SSL", _LATER),
    (r"snapshot", _LATER),
    (r"PGRES_FATAL_ERROR|ERROR:", _CONTENT),  # of a row, while rows come in
    (r"INVALID_ARGUMENT", _STATEMENT),
)
_STATE = re.compile(r"SQLSTATE: (\w{5})")
_AROUND = re.compile(
    r"^(?:[A-Z_]+: )?(?:\[\w+\] )?(?:(?:Failed to [\w ]+|Execution error \[\w+\]|"
    r"could not begin COPY|connection to server [^:]*? failed): )*(?:[A-Z]{4,}:\s+)?"
)
_BEHIND = re.compile(r"\n\s*(?:LINE \d|Query was|query:|CONTEXT:|Is the server)|\. SQLSTATE")


@contextmanager
def explained(url_env: str) -> Iterator[None]:
    """Turn what a driver raises into an error of ours, in words and without the address.

    Examples
    --------
    >>> with explained("TICKETS_URL"):
    ...     raise OSError("[libpq] server closed the connection unexpectedly")
    Traceback (most recent call last):
    hmrf_dask.errors.SourceUnavailableError: the database of TICKETS_URL: server closed the ...
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, HmrfError) or not _is_of_a_driver(error):
            raise
        kind = _kind_of(error)
        said = _without_password(_said(error), os.environ.get(url_env, ""))
        raise kind.error(f"the database of {url_env}: {said}; {kind.advice}") from None


def _without_password(text: str, url: str) -> str:
    """Return words without any part of the password in an address, which libpq may not have read.

    Examples
    --------
    >>> _without_password("invalid integer value 'hun' for 'port'", "postgresql://me:hun/ter2@a/t")
    "invalid integer value '…' for 'port'"
    """
    before, at, _ = url.partition("://")[2].rpartition("@")
    passwords = [before.partition(":")[2]] if at else []
    passwords += re.findall(r"[?&](?:ssl)?password=([^&]*)", url)
    parts = {part for one in passwords for part in (one, *re.split(r"[\s@:/?#&%\[\]]", one))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) > 2:
            text = text.replace(part, "…")
    return text


def _is_of_a_driver(error: Exception) -> bool:
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return "adbc_driver_manager" in modules or bool(re.match(r"\[\w+\] ", str(error)))


def sqlstate_of(error: BaseException) -> str:
    """Return the SQLSTATE of what a driver raised, "" where it says none.

    Examples
    --------
    >>> sqlstate_of(OSError("relation does not exist. SQLSTATE: 42P01"))
    '42P01'
    """
    named = getattr(error, "sqlstate", None)
    found = _STATE.search(str(error))
    return str(named) if named else found[1] if found else ""


def _kind_of(error: Exception) -> _Kind:
    state, text = sqlstate_of(error), str(error)
    if state == "22023" and "snapshot" in text:  # the process that held it is gone
        return _LATER
    for length in (5, 2):
        if kind := _STATES.get(state[:length]):
            return kind
    return next((kind for pattern, kind in _TEXTS if re.search(pattern, text)), _LATER)


def _said(error: Exception) -> str:
    """Return what a server says, without what the driver puts around it.

    Examples
    --------
    >>> _said(OSError("IO: [libpq] Failed to connect: invalid URI query parameter: 'foo'"))
    "invalid URI query parameter: 'foo'"
    """
    text = _AROUND.sub("", str(error), count=1)
    text = _BEHIND.split(text, maxsplit=1)[0]
    return " ".join(text.split())[:_LONGEST] or type(error).__name__
