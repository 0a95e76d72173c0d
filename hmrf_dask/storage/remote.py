"""Stores behind fsspec, none of which is waited for without an end, and their errors in words.

A request to S3 that gets no answer is cut after a while and made again, and so is one whose answer
is that the server is busy, until the time for it is over (`hmrf.store-timeout`).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.asyn import sync_wrapper

from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    NoAnswerError,
    SourceError,
    SourceUnavailableError,
    in_words,
    lacks_credentials,
    may_pass,
)
from hmrf_dask.storage.addresses import plain_url

TIMEOUT = "120 s"
LONGEST = 86_400.0
_CUTS = 12  # a request that is silent for this part of the time is made again
_REFUSALS = 6  # a server that cannot even be reached gets this part of the time
_LONGEST_PAUSE = 2.0
_PIECE_BYTES = 2**18
_SAID_EVERY = 60.0
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_said: dict[str, float] = {}
log = logging.getLogger("hmrf_dask")


def store_timeout() -> float:
    """Return the seconds in which a store must have answered a request: `hmrf.store-timeout`."""
    return seconds_of("store-timeout", TIMEOUT, least=1.0)


def seconds_of(name: str, default: str, *, least: float) -> float:
    """Return a setting of the `hmrf` section of Dask's configuration, a time.

    Examples
    --------
    >>> store_timeout() == seconds_of("store-timeout", TIMEOUT, least=1.0)
    True
    """
    import dask.config  # here, because local files need it not
    from dask.utils import parse_timedelta

    setting = dask.config.get(f"hmrf.{name}", default)
    try:
        seconds = float(parse_timedelta(setting, default="s"))
    except (ValueError, LookupError, OverflowError, TypeError, AttributeError):
        seconds = math.nan
    if not least <= seconds <= LONGEST:
        raise ConfigurationError(
            f"hmrf.{name} must be a time from {least:g} s to {LONGEST:g} s, got {setting!r}; write "
            f"such as {default!r}"
        )
    return seconds


def open_files(
    url: str, options: Mapping[str, Any] | None = None, *, listed: bool = False
) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it.

    A `listed` one was checked before, or is the name of a file as its store lists it.

    Examples
    --------
    >>> files, path = open_files("memory://bucket/rows.csv")
    >>> type(files).__name__, path
    ('MemoryFileSystem', '/bucket/rows.csv')
    """
    if not listed:
        url = plain_url(url, "a path or URL")
    # A cached listing would hide what other processes wrote.
    known = {"use_listings_cache": False, **(options or {})}
    protocol = url.partition("://")[0]
    if protocol in ("s3", "s3a"):
        kind, longest = _patient_s3(), store_timeout()
        silence = {
            "connect_timeout": longest / _CUTS,
            "read_timeout": longest / _CUTS,
            "retries": {"total_max_attempts": 1},  # ours are quicker, and reported
            "max_pool_connections": 32,
        }
        known["config_kwargs"] = {**silence, **known.get("config_kwargs", {})}
        return kind(**{**kind._get_kwargs_from_urls(url), **known}), kind._strip_protocol(url)
    if protocol in ("gs", "gcs"):
        known = {"requests_timeout": store_timeout() / 2, **known}
    files, path = fsspec.url_to_fs(url, **known)
    return files, str(path)


@functools.cache
def _patient_s3() -> Any:
    """Return s3fs's file system with our way to wait; its own gives up on a busy server at once."""
    from s3fs import S3FileSystem
    from s3fs.errors import translate_boto_error

    class PatientS3(S3FileSystem):  # type: ignore[misc]
        """S3, every request of which ends."""

        async def _call_s3(self, method: str, *given: Any, **more: Any) -> Any:
            async def ask() -> Any:
                """Send the request once."""
                await self.set_session()
                function = getattr(await self.get_s3(more.get("Bucket")), method)
                return await function(**self._get_s3_method_kwargs(function, *given, **more))

            place = f"s3://{more.get('Bucket', '')}"
            try:
                answer = await answered(ask, place)
            except Exception as error:
                raise translate_boto_error(error) from error
            _count("store_sent_bytes", len(more.get("Body") or b""))
            if method == "get_object":
                answer["Body"] = _Body(answer["Body"], place)
            return answer

        call_s3 = sync_wrapper(_call_s3)  # what open files use

    return PatientS3


class _Body:
    """What a request brings, which comes piece by piece in the store's time, or ends.

    The library gives up on a silent connection alone: one byte now and then would do for ever.
    """

    def __init__(self, body: Any, place: str) -> None:
        self._body = body
        self._place = place

    async def read(self) -> bytes:
        """Return all of it."""
        pieces = [await self._piece()]
        while len(pieces[-1]) == _PIECE_BYTES:
            pieces.append(await self._piece())
        return b"".join(pieces)

    async def _piece(self) -> bytes:
        """Return the next bytes, less than a piece at the end."""
        from botocore.exceptions import ReadTimeoutError

        piece = bytearray()
        try:
            async with asyncio.timeout(store_timeout()) as deadline:
                while data := await self._body.read(_PIECE_BYTES - len(piece)):
                    piece += data
        except TimeoutError as error:
            if not deadline.expired():  # silent: s3fs tries that again, but stumbles over its kind
                raise ReadTimeoutError(endpoint_url=self._place) from error
            raise NoAnswerError(
                f"{self._place} sent {len(piece)} bytes in {store_timeout():g} s "
                f"(hmrf.store-timeout), not {_PIECE_BYTES >> 10} KiB"
            ) from error
        alive()  # a slow store does not hang
        _count("store_received_bytes", len(piece))
        return bytes(piece)

    def close(self) -> None:
        """Give the connection back."""
        self._body.close()


async def answered(ask: Callable[[], Awaitable[Any]], place: str) -> Any:
    """Return the answer to a request, made again while that may help; NoAnswerError in the end."""
    longest, began, number = store_timeout(), time.monotonic(), 0
    while True:
        number += 1
        left = longest - (time.monotonic() - began)
        try:
            async with asyncio.timeout(left):
                return await ask()
        except Exception as error:
            if not may_pass(error):
                raise
            spent = time.monotonic() - began
            pause = min(0.05 * 1.7**number, _LONGEST_PAUSE) * random.uniform(0.5, 1.5)
            no_server = (
                isinstance(error, ConnectionRefusedError)
                or "EndpointConnection" in type(error).__name__  # no such address
            )
            if spent + pause >= longest / (_REFUSALS if no_server else 1):
                raise NoAnswerError(
                    f"no answer from {place} for {spent:.0f} s, in {number} attempts, the last "
                    f"time {in_words(error)} (hmrf.store-timeout is {longest:g} s)"
                ) from error
            _say(place, error)
            _count("store_retries", 1)
        await asyncio.sleep(pause)


def _say(place: str, error: BaseException) -> None:
    """Report once a minute that a store does not answer."""
    now = time.monotonic()
    if now - _said.get(place, -_SAID_EVERY) >= _SAID_EVERY:
        _said[place] = now
        log.warning("%s does not answer, trying again (%s)", place, in_words(error))


# ---- errors


@contextmanager
def explained(url: str, action: str, *passing: type[OSError]) -> Iterator[None]:
    """Turn what a file system raises into a SourceError, unavailable (75) if it may pass.

    The caller expects what is `passing`.

    Examples
    --------
    >>> with explained("rows.csv", "read it"):  # doctest: +ELLIPSIS
    ...     raise FileNotFoundError("rows.csv")
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.SourceError: rows.csv: cannot read it: there is no such file or ...
    """
    try:
        yield
    except Exception as error:  # botocore, aiohttp and others share no base but this one
        if isinstance(error, (HmrfError, *passing)):
            raise
        kind = SourceUnavailableError if may_pass(error) else SourceError
        raise kind(f"{url}: cannot {action}: {_problem(url, error)}") from error


def _problem(url: str, error: Exception) -> str:
    protocol = url.partition("://")[0]
    if isinstance(error, FileNotFoundError):
        named = error.filename if isinstance(error.filename, str) and error.filename != url else ""
        return f"there is no such file or folder{named and f' ({named})'}; check the path"
    if isinstance(error, PermissionError):
        return f"no permission ({error}); check the profile or the rights of the file"
    if isinstance(error, ImportError) and protocol in _EXTRAS:
        return f"install hmrf-dask[{_EXTRAS[protocol]}]"
    if lacks_credentials(error):
        return f"{error}; give credentials in the environment or a profile, or say anon: true"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "make some, then run again"
    else:
        advice = "run again later" if may_pass(error) else "check the path"
    return f"{in_words(error)}; {advice}"


# ---- signs of life: a task that waits for a store has the state of a running one


_signs = 0
_traffic = dict.fromkeys(("store_sent_bytes", "store_received_bytes", "store_retries"), 0)
_counting = threading.Lock()


def alive() -> None:
    """Report that work goes on here, though it computes nothing.

    That is a sign of every task of this process: bytes of a store come to threads of their own.
    """
    global _signs
    with _counting:
        _signs += 1


def signs_of_life() -> int:
    """Return how many signs there were in this process, pieces that stores sent among them."""
    return _signs


def _count(what: str, number: int) -> None:
    with _counting:
        _traffic[what] += number


def store_traffic() -> dict[str, int]:
    """Return the bytes that this process sent to S3 and got from it, and requests made again."""
    with _counting:
        return dict(_traffic)
