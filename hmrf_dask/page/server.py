"""The server of the page: which request asks for what, one change at a time, on one port."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any, Final, Protocol

from jinja2 import Environment, PackageLoader
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler

from hmrf_dask.errors import ConfigurationError, HmrfError, InvalidInputError, in_words
from hmrf_dask.page import lists, views
from hmrf_dask.page.refit import Refit
from hmrf_dask.page.security import HEADERS, Guard
from hmrf_dask.page.session import Asker, Session
from hmrf_dask.report.page import COLOURS

JSON = dict[str, Any]
BODY_BYTES: Final = 2**17  # of a request; an answer has some hundred
LONGEST_WORDS: Final = 2_000
LONGEST_NAME: Final = 80
_KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_log = logging.getLogger(__name__)


class Clusters(Protocol):
    """The clusters of the last release, and what people do to them."""

    def view(self) -> JSON:
        """Return them, and what waits for the next run."""
        ...

    def edit(self, verb: str, clusters: list[int], name: str, annotator: str) -> str:
        """Do something to clusters; return in words what comes of it."""
        ...


@dataclass(frozen=True)
class Page:
    """What handlers work with.

    Attributes
    ----------
    session : Session
    guard : Guard
    refit : Refit
    rounds : callable
        The releases so far, in numbers.
    more : callable
        Takes new questions about the last release.
    clusters : Clusters
    port : int
    """

    session: Session
    guard: Guard
    refit: Refit
    rounds: Callable[[], list[JSON]]
    more: Callable[[], None]
    clusters: Clusters
    port: int
    turns: ThreadPoolExecutor  # one thread: one change at a time
    reads: ThreadPoolExecutor  # of lists, for which nobody who answers waits

    @property
    def cookie_name(self) -> str:
        """The name of the cookie: browsers send those of all ports of an address."""
        return f"hmrf-dask-{self.port}"


class RefusedError(HTTPError):
    """A request that is refused, in words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status)
        self.words = words


class Guarded(RequestHandler):
    """What all requests have in common: who may ask, and what a refusal says."""

    page: Page

    def initialize(self, page: Page) -> None:
        """Take what every handler works with."""
        self.page = page

    def set_default_headers(self) -> None:
        """Set what browsers must know of every reply."""
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Refuse whoever may not ask."""
        token = self.get_query_argument("token", None) if self.request.path == "/" else None
        problem = self.page.guard.refuses(self.request, self.page.cookie_name, token)
        if problem:
            raise RefusedError(403, problem)

    def write_error(self, status_code: int, **kwargs: Any) -> None:  # noqa: ARG002 - tornado's
        """Say in words what is wrong."""
        error = kwargs.get("exc_info", (None, None))[1]
        words = error.words if isinstance(error, RefusedError) else f"refused: {self._reason}"
        self.finish({"error": words})

    def log_exception(self, *args: Any) -> None:
        """Report faults of ours alone: a refusal is no news."""
        if not isinstance(args[1], HTTPError):
            super().log_exception(*args)

    async def reply(self, work: Callable[[], JSON], turns: ThreadPoolExecutor) -> None:
        """Do something in its turn, and send what comes of it."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self.page.turns, self.page.session.refresh)
            content = await loop.run_in_executor(turns, work)
        except InvalidInputError as error:
            raise RefusedError(400, str(error)) from error
        except HmrfError as error:
            raise RefusedError(503, str(error)) from error
        except OSError as error:
            raise RefusedError(503, in_words(error)) from error
        self.finish(content)


class FirstPage(Guarded):
    """The page itself; opened with the token it sets the cookie, and leads to the plain address."""

    def get(self) -> None:
        """Return the page."""
        guard = self.page.guard
        if self.get_query_argument("token", None) is not None:
            self.set_cookie(
                self.page.cookie_name, guard.cookie, httponly=True, samesite="Strict", path="/"
            )
            self.redirect("/", status=303)
            return
        template = _templates().get_template("page.html")
        self.finish(template.render(name=self.page.session.material.name, key=guard.xsrf))


def _templates() -> Environment:
    return Environment(loader=PackageLoader("hmrf_dask.page"), autoescape=True)


class Static(Guarded):
    """A file of the page's own folder: one of those that are there, and no path."""

    def get(self, name: str) -> None:
        """Return a file; the colours are those of reports."""
        package = "hmrf_dask.report" if name == COLOURS else "hmrf_dask.page"
        folder = resources.files(package) / "static"
        there = {file.name for file in folder.iterdir() if file.is_file()}
        if name not in there or name.rpartition(".")[2] not in _KINDS:
            raise HTTPError(404)
        self.set_header("Content-Type", f"{_KINDS[name.rpartition('.')[2]]}; charset=utf-8")
        self.finish((folder / name).read_bytes())


class Shown(Guarded):
    """What the page shows: nothing changes."""

    async def get(self, what: str) -> None:
        """Return one of the views."""
        view = _VIEWS.get(what)
        if view is None:
            raise HTTPError(405 if what in _CHANGES else 404)
        await self.reply(partial(view, self.page, self._argument), self.page.reads)

    async def post(self, what: str) -> None:
        """Change something."""
        change = _CHANGES.get(what)
        if change is None:
            raise HTTPError(405 if what in _VIEWS else 404)
        content = self._content()
        await self.reply(partial(change, self.page, content), self.page.turns)

    def _argument(self, name: str) -> str:
        return self.get_query_argument(name, "")[:LONGEST_WORDS]

    def _content(self) -> Content:
        kind = self.request.headers.get("Content-Type", "").partition(";")[0]
        if kind != "application/json":
            raise RefusedError(415, "a change must be sent as application/json")
        try:
            content = json.loads(self.request.body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise RefusedError(400, "a change must be a JSON object")
        return Content(content)


class Content:
    """What was sent with a change.

    Examples
    --------
    >>> Content({"answer": "same"}).text("answer")
    'same'
    """

    def __init__(self, content: JSON) -> None:
        self._content = content

    def text(self, name: str, most: int = LONGEST_WORDS) -> str:
        """Return a text, or raise InvalidInputError."""
        value = self._content.get(name, "")
        if not isinstance(value, str) or len(value) > most or not _is_written(value):
            raise InvalidInputError(
                f"{name} must be a text of at most {most:,} characters, got {value!r:.80}"
            )
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return a text, None where nothing was sent."""
        return None if self._content.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """Return whether something is true."""
        return self._content.get(name) is True

    def numbers(self, name: str) -> list[int]:
        """Return a list of numbers of clusters."""
        value = self._content.get(name)
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise InvalidInputError(f"{name} must be a list of whole numbers, got {value!r:.80}")
        return value

    @property
    def asker(self) -> Asker:
        """Who sent it."""
        name = " ".join(self.text("annotator", LONGEST_NAME).split())
        kind = self.text("kind") or "choice"
        if kind not in ("pair", "choice"):
            raise InvalidInputError(f"kind must be pair or choice, got {kind!r:.40}")
        return Asker(name, self.text("tab", LONGEST_NAME), kind)


def _is_written(text: str) -> bool:
    """Return whether a text can be saved: half of a pair of surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- what is shown

_Argument = Callable[[str], str]


def _state(page: Page, _: _Argument) -> JSON:
    return {"kind": page.session.material.kind, "name": page.session.material.name}


def _document(page: Page, argument: _Argument) -> JSON:
    return views.full_document(page.session, argument("ticket"), argument("id"))


def _columns(page: Page, argument: _Argument) -> JSON:
    return views.columns_view(page.session, argument("ticket"), argument("id"))


def _answers(page: Page, argument: _Argument) -> JSON:
    start = argument("start")
    number = int(start) if start.isascii() and start.isdigit() and len(start) < 9 else 0
    wanted = lists.Filter(argument("search"), argument("only"), argument("person"), number)
    return lists.answers_view(page.session, wanted)


def _history(page: Page, _: _Argument) -> JSON:
    return {
        "outlook": page.session.outlook(),
        "rounds": page.rounds(),
        "refit": page.refit.view(),
    }


def _clusters(page: Page, _: _Argument) -> JSON:
    return {**page.clusters.view(), "refit": page.refit.refused}


_VIEWS: Final[dict[str, Callable[[Page, _Argument], JSON]]] = {
    "state": _state,
    "document": _document,
    "columns": _columns,
    "answers": _answers,
    "disputes": lambda page, _: lists.disputes_view(page.session),
    "groups": lambda page, _: lists.groups_view(page.session),
    "clusters": _clusters,
    "people": lambda page, _: lists.people_view(page.session),
    "history": _history,
    "refit": lambda page, _: page.refit.view(),
}


# ---- what changes something


def _next(page: Page, content: Content) -> JSON:
    return views.question_view(page.session, page.session.next(content.asker))


def _answer(page: Page, content: Content) -> JSON:
    session, asker, ticket = page.session, content.asker, content.text("ticket")
    word, chosen = content.text("answer"), content.text_or_none("chosen")
    saved = session.answer(ticket, asker, word, chosen)
    return {**views.saved_view(session, saved), **_next(page, content)}


def _skip(page: Page, content: Content) -> JSON:
    page.session.skip(content.text("ticket"), content.asker)
    return _next(page, content)


def _undo(page: Page, content: Content) -> JSON:
    session, asker = page.session, content.asker
    about = content.text_or_none("about")
    entry = session.undo(about, asker)
    words = [f"Taken back: {views.says(session, entry)}."]
    if about is not None:
        return {"words": words}
    opened = session.reopen(entry, asker) or session.next(asker)
    return {"words": words, **views.question_view(session, opened)}


def _change(page: Page, content: Content) -> JSON:
    word, chosen = lists.said_by(content.text("option"))
    saved = page.session.change(content.text("about"), content.asker, word, chosen)
    return views.saved_view(page.session, saved)


def _comment(page: Page, content: Content) -> JSON:
    about, text, review = content.text("about"), content.text("text"), content.flag("review")
    entry = page.session.comment(about, content.asker, text, review=review)
    return {"id": entry.id, "words": ["Saved."]}


def _name(page: Page, content: Content) -> JSON:
    document, name = content.text("document"), content.text("name", 200)
    entry = page.session.name(document, content.asker, " ".join(name.split()))
    return {"id": entry.id, "words": ["Saved the name." if name else "Took the name away."]}


def _edit(page: Page, content: Content) -> JSON:
    name, who = content.text("name", 200), content.asker.name
    said = page.clusters.edit(content.text("verb"), content.numbers("clusters"), name, who)
    return {"words": [f"{said[:1].upper()}{said[1:]}."]}


def _refit(page: Page, _: Content) -> JSON:
    page.refit.start()
    return page.refit.view()


def _more(page: Page, content: Content) -> JSON:
    page.more()
    return _next(page, content)


_CHANGES: Final[dict[str, Callable[[Page, Content], JSON]]] = {
    "next": _next,
    "answer": _answer,
    "skip": _skip,
    "undo": _undo,
    "change": _change,
    "comment": _comment,
    "name": _name,
    "edit": _edit,
    "refit": _refit,
    "more": _more,
}


# ---- the server


def application(page: Page) -> Application:
    """Return what answers the requests of a page."""
    with_page = {"page": page}
    return Application(
        [
            (r"/", FirstPage, with_page),
            (r"/static/([a-z.]+)", Static, with_page),
            (r"/api/([a-z]+)", Shown, with_page),
        ],
        default_handler_class=NotThere,
        default_handler_args=with_page,
        log_function=_quiet,
    )


class NotThere(Guarded):
    """Any other address: who may not ask learns not even that nothing is there."""

    def get(self) -> None:
        """Say so."""
        raise HTTPError(404)

    def post(self) -> None:
        """Say so."""
        raise HTTPError(404)


def _quiet(handler: RequestHandler) -> None:
    """Log nothing of a request: its first address has the token."""


def listening(host: str, port: int) -> socket.socket:
    """Return a socket at an address, or raise ConfigurationError where it cannot be had.

    Examples
    --------
    >>> listening("127.0.0.1", 0).close()
    """
    try:
        return _bound(host, port)
    except socket.gaierror as error:
        raise ConfigurationError(
            f"--host must be an address of this machine, got {host!r} ({error.strerror}); "
            "leave it out, or name another"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"the port must be free, got {port}, at which another program answers (maybe "
                "another page); end that, or give --port with another number"
            ) from error
        raise ConfigurationError(
            f"--host and --port must be an address that may be used, got {host} and {port} "
            f"({in_words(error)}); name others"
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve(
    page: Page, listener: socket.socket, opened: Callable[[], None], end: asyncio.Event
) -> None:
    """Answer requests until the end comes; `opened` is called once the first one may come."""
    server = HTTPServer(application(page), max_body_size=BODY_BYTES, max_header_size=2**16)
    server.add_socket(listener)
    try:
        opened()
        await end.wait()
    finally:
        server.stop()
        await server.close_all_connections()
