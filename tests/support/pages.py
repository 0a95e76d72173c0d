"""A page over documents in memory: for tests of its server, with a journal in a file."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Question
from hmrf_dask.jobs.texts import Document
from hmrf_dask.page.material import Group, Material
from hmrf_dask.page.refit import Refit
from hmrf_dask.page.security import XSRF, Guard
from hmrf_dask.page.server import Page, listening, serve
from hmrf_dask.page.session import Session

TOPICS = {
    "space": "The orbit of a satellite decays slowly, so the station fires its rockets.",
    "motor": "A diesel engine idles rough when the clutch slips and the gear grinds.",
    "faith": "The sermon was about prayer, and the bishop read from the gospel.",
    "chess": "White castles early and trades the knight for a bishop and two pawns.",
    "bread": "Knead the dough, let the yeast work, and bake the loaf until brown.",
}


class Archive:
    """Documents in memory, some of which may be gone."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self.documents = dict(documents)

    def read(self, ids: Iterable[str]) -> dict[str, Document]:
        """Return documents, some of which are gone."""
        there = self.documents
        return {
            one: Document(one, there[one], {"label": "none"}, source="archive")
            if one in there
            else Document(one, missing="it is gone")
            for one in ids
        }

    def columns(self, name: str) -> dict[str, str]:
        """Return the other columns of a document."""
        return {"archive": name}


def documents(n_documents: int, topics: Mapping[str, str] = TOPICS) -> dict[str, str]:
    """Return documents about topics in turn; the first of each stands for it."""
    named = list(topics.items())
    drawn = [named[number % len(named)] for number in range(n_documents)]
    return {
        f"{topic}/{number:04}": f"{text} Note {number}."
        for number, (topic, text) in enumerate(drawn)
    }


def material_of(texts: Mapping[str, str], archive: Archive | None = None) -> Material:
    """Return questions about all documents but those that stand for a topic."""
    topics: dict[str, list[str]] = {}
    for one in texts:
        topics.setdefault(one.partition("/")[0], []).append(one)
    first = [members[0] for members in topics.values()]
    likely = tuple(round(1.0 / len(first), 3) for _ in first)
    batch = [Question("choice", (one,), tuple(first), likely) for one in texts if one not in first]
    groups = []
    for at, members in enumerate(topics.values()):
        words = tuple(texts[members[0]].lower().split()[1:5])
        groups.append(Group(members[0], words, len(members), tuple(members[1:3]), at))
    return Material("archive", tuple(batch), tuple(groups), archive or Archive(texts))


class ShownClusters:
    """The groups of a page as if they were clusters of a release; edits are noted."""

    def __init__(self, session: Session) -> None:
        self.session, self.edits = session, list[tuple[str, list[int], str]]()

    def view(self) -> dict[str, Any]:
        """Return them, called by what people said of their documents."""
        shown = [
            {
                "cluster": at,
                "name": self.session.called(group.document),
                "size": group.size,
                "words": group.words,
                "frozen": at == 1,
                "last": "" if at else "its name",
            }
            for at, group in enumerate(self.session.material.groups)
        ]
        waiting = [f"{verb} of {clusters}" for verb, clusters, _ in self.edits]
        return {"refused": "", "waiting": waiting, "clusters": shown}

    def edit(self, verb: str, clusters: list[int], name: str, annotator: str) -> str:
        """Note an edit."""
        self.edits.append((verb, clusters, name))
        return f"{verb} by {annotator}"


def page_of(session: Session, port: int, refit: Refit | None = None) -> Page:
    """Return a page with new secrets."""
    guard = Guard.of("127.0.0.1")
    return Page(
        session=session,
        guard=guard,
        refit=refit or Refit(),
        rounds=list,
        more=lambda: None,
        clusters=ShownClusters(session),
        port=port,
        turns=ThreadPoolExecutor(1),
        reads=ThreadPoolExecutor(1),
    )


class Running:
    """A page that answers, and requests to it as a browser that was let in sends them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.host = f"127.0.0.1:{page.port}"
        self.address = f"http://{self.host}/?token={page.guard.token}"

    def headers(self) -> dict[str, str]:
        """Return the headers of a change that is let through."""
        return {
            "Cookie": f"{self.page.cookie_name}={self.page.guard.cookie}",
            "Origin": f"http://{self.host}",
            "Content-Type": "application/json",
            XSRF: self.page.guard.xsrf,
        }

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers."""
        connection = HTTPConnection("127.0.0.1", self.page.port, timeout=20)
        sent = self.headers() if headers is None else headers
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, sent)
            reply = connection.getresponse()
            return reply.status, reply.read(), dict(reply.getheaders())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return what is shown."""
        status, data, _ = self.request("GET", path)
        assert status == 200, data
        return json.loads(data)

    def post(self, what: str, **content: Any) -> Any:
        """Return what a change brought."""
        status, data, _ = self.request("POST", f"/api/{what}", {"tab": "1", **content})
        assert status == 200, data
        return json.loads(data)


@contextmanager
def running(session: Session, refit: Refit | None = None) -> Iterator[Running]:
    """Serve a page in a thread."""
    listener = listening("127.0.0.1", 0)
    page = page_of(session, listener.getsockname()[1], refit)
    started, ended = threading.Event(), threading.Event()
    ending: list[Any] = []

    async def work() -> None:
        end = asyncio.Event()
        ending.extend([asyncio.get_running_loop(), end])
        await serve(page, listener, started.set, end)

    def run() -> None:
        asyncio.run(work())
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert started.wait(10)
    try:
        yield Running(page)
    finally:
        loop, end = ending
        loop.call_soon_threadsafe(end.set)
        assert ended.wait(10)
        page.turns.shutdown()
        page.reads.shutdown()


def session_of(
    folder: Path, texts: Mapping[str, str], archive: Archive | None = None, **settings: Any
) -> Session:
    """Return a session over documents, with a journal in a folder."""
    journal = open_journal(folder / "journal.jsonl")
    return Session(material_of(texts, archive), journal, **settings)
