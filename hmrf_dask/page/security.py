"""Who may ask the page for what: token and cookie, Host and Origin, POST alone with its own key."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
XSRF: Final = "X-Page-Key"
_OWN: Final = ("same-origin", "none")  # of Sec-Fetch-Site: the page itself, or a person
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the first address has the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Guard:
    """The secrets of one server, and the names it is asked by.

    Attributes
    ----------
    token : str
        In the first address, which a person opens.
    cookie : str
        What the browser has from then on.
    xsrf : str
        In the page, and with every request that changes something: other pages cannot read it.
    hosts : tuple of str
        Names and addresses by which the server may be called.
    """

    token: str
    cookie: str
    xsrf: str
    hosts: tuple[str, ...]

    @staticmethod
    def of(host: str) -> Guard:
        """Return new secrets for a server on an address.

        Examples
        --------
        >>> Guard.of("127.0.0.1").hosts
        ('127.0.0.1', 'localhost', '::1')
        """
        hosts = LOOPBACK if host in LOOPBACK else (*LOOPBACK, host.lower())
        token, cookie, xsrf = (secrets.token_urlsafe(32) for _ in range(3))
        return Guard(token, cookie, xsrf, hosts)

    def refuses(self, request: HTTPServerRequest, cookie_name: str, token: str | None) -> str:
        """Return in words why a request is refused, "" where it is not.

        `token` is that of the first address, None for every other one.
        """
        headers, host = request.headers, request.headers.get("Host", "")
        if not self.knows(host, request):
            return "the page must be asked for by its own address"
        if headers.get("Sec-Fetch-Site", "none") not in _OWN and token is None:
            return "the page must be used from itself, not from another one"
        if token is not None:
            return "" if _same(token, self.token) else _NEW_ADDRESS
        if not _same(_cookie(headers, cookie_name), self.cookie):
            return _NEW_ADDRESS
        if request.method in ("GET", "HEAD"):
            return ""
        if headers.get("Origin") != f"{request.protocol}://{host}":
            return "a change must come from the page itself"
        if not _same(headers.get(XSRF, ""), self.xsrf):
            return "a change must have the key of the page; load the page again"
        return ""

    def knows(self, host: str, request: HTTPServerRequest) -> bool:
        """Return whether a Host header names this server: by address, or a name that it was given.

        A page of somebody else whose name is made to lead here has its own name in there.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return name in self.hosts or name == _address_called(request)


_NEW_ADDRESS = "the page must be opened by the address that hmrf-dask label printed; open that one"


def _same(one: str, wanted: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), wanted.encode())


def _cookie(headers: Mapping[str, str], name: str) -> str:
    try:
        cookies = SimpleCookie(headers.get("Cookie", ""))
    except CookieError:
        return ""
    return cookies[name].value if name in cookies else ""


def _address_called(request: HTTPServerRequest) -> str | None:
    """Return the address of this machine that a connection came to."""
    stream = getattr(request.connection, "stream", None)
    if stream is None or stream.socket is None:
        return None
    address = stream.socket.getsockname()
    return str(address[0]).partition("%")[0] if isinstance(address, tuple) else None
