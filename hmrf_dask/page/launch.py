"""From an output to a page that answers: what is asked, where answers go, and the address."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from hmrf_dask.errors import ConfigurationError, InvalidInputError, counted
from hmrf_dask.jobs.again import run_again
from hmrf_dask.jobs.ask import Asking
from hmrf_dask.jobs.new_job import job_for
from hmrf_dask.jobs.places import last_release
from hmrf_dask.jobs.texts import Texts
from hmrf_dask.page.output import OutputClusters, material_of, refit, rounds_of
from hmrf_dask.page.refit import Outcome, Refit
from hmrf_dask.page.security import Guard
from hmrf_dask.page.server import Page, listening, serve
from hmrf_dask.page.session import Session
from hmrf_dask.progress import Tell
from hmrf_dask.storage.addresses import absolute_url, is_local, local_path

SWITCH_SECONDS: Final = 0.0005
SHARE_LEFT: Final = 4  # times as long as it worked
Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What a page is to ask about, and where it listens.

    Attributes
    ----------
    output : str
    questions : int
        Of a round, where the release has none.
    people : int
        How many answer each question.
    journal : str or None
        Where answers go, None for the journal of the output.
    job : str
        The job file, "" where the release says where it is.
    host : str
    port : int
        0 for any that is free.
    browser : bool
        Whether to open one.
    """

    output: str
    questions: int = 25
    people: int = 1
    journal: str | None = None
    job: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    browser: bool = False


def label_output(wanted: Wanted, *, say: Say, address: Say) -> None:
    """Serve a page about an output until the process is ended.

    Parameters
    ----------
    wanted : Wanted
    say : callable
        Called with what is printed for a person.
    address : callable
        Called with the address that a person is to open.
    """
    wanted = replace(wanted, output=_made_if_folder(wanted.output, say))
    listener = listening(wanted.host, wanted.port)
    try:
        say("reading the last release, and choosing questions where it has none ...")
        page = _page(wanted, listener.getsockname()[1])
    except BaseException:
        listener.close()
        raise
    where = page.session.journal.address
    say(f"answers are saved in {where}; Ctrl-C ends the page")
    url = f"http://{_called(wanted.host)}:{page.port}/?token={page.guard.token}"

    def opened() -> None:
        address(url)
        if wanted.browser and _has_browser():
            threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()

    # An answer waits neither for threads that think nor while all memory is searched for refuse.
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(serve(page, listener, opened, asyncio.Event()))
    finally:
        say(f"{counted(len(page.session.notes.answers), 'answer')} in {where} stand")


def _page(wanted: Wanted, port: int) -> Page:
    turns, reads, thoughts = (ThreadPoolExecutor(1) for _ in range(3))
    asking = _asking(wanted)
    _refuse_read_only(asking.journal.address)
    output = absolute_url(wanted.output)
    texts = Texts(output, wanted.job)
    if not asking.batch and not asking.standing:
        raise InvalidInputError(
            f"there must be something to ask, got {wanted.output} with documents that are all one "
            "group or too few; let the job make more clusters, of more documents"
        )
    before = () if wanted.journal is None else asking.standing
    material = material_of(texts, asking.batch)
    session = Session(
        material,
        asking.journal,
        people=wanted.people,
        before=before,
        trust=asking.trust,
        later=lambda work: thoughts.submit(_paced, work),
    )

    sources = [texts]  # of the releases since the start, the last one last

    def more() -> None:
        """Ask about what is open now."""
        session.take(material_of(sources[-1], _asking(wanted).batch))

    def again(tell: Tell) -> Outcome:
        """Run the job again, then ask about what came of it."""
        outcome = refit(output, texts.job, tell)
        sources.append(Texts(output, wanted.job))
        turns.submit(more).result()
        return outcome

    refused = _ELSEWHERE if wanted.journal else ""
    return Page(
        session=session,
        guard=Guard.of(wanted.host),
        refit=Refit(None if refused else again, refused),
        rounds=lambda: rounds_of(output),
        more=more,
        clusters=OutputClusters(output, refused),
        port=port,
        turns=turns,
        reads=reads,
    )


def _paced(work: Callable[[], None]) -> None:
    """Do something that takes a while, then leave the processor to those who answer."""
    started = time.monotonic()
    work()
    time.sleep(SHARE_LEFT * (time.monotonic() - started))


_ELSEWHERE = (
    "A run takes the journal of the output, and answers go to another one here: add them to it by "
    "hmrf-dask answers import, then run the job."
)


def _made_if_folder(place: str, say: Say) -> str:
    """Return an output; for a folder of documents that has none, one is made next to it."""
    url = absolute_url(place)
    if "://" in url or not os.path.isdir(url):
        return place
    if {"LATEST", "releases", "holders", "runs"} & set(os.listdir(url)):
        return place
    made = job_for(place)
    if last_release(made.output) is None:
        say(f"making groups of {made.remark} ...")
        steps = dict[str, None]()
        run_again(made.output, made.job, tell=lambda step: _tell_once(steps, step["step"], say))
    return made.output


def _tell_once(steps: dict[str, None], step: str, say: Say) -> None:
    if step and step not in steps:
        steps[step] = None
        say(f"{step} ...")


def _asking(wanted: Wanted) -> Asking:
    return Asking(wanted.output, wanted.questions, journal=wanted.journal, job=wanted.job)


def _refuse_read_only(where: str) -> None:
    """Refuse a place on this machine where answers cannot be saved, before anybody answers."""
    if not is_local(where):
        return
    path = local_path(where)
    place = path if os.path.exists(path) else os.path.dirname(path)
    if not os.access(place, os.W_OK):
        raise ConfigurationError(
            f"answers must have a place where they can be saved, got {where}, which cannot be "
            "written; name another file by --journal"
        )


def _called(host: str) -> str:
    """Return an address as browsers take it.

    Examples
    --------
    >>> _called("::1"), _called("0.0.0.0")
    ('[::1]', '127.0.0.1')
    """
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _has_browser() -> bool:
    """Return whether a window may open here: not over ssh, and not in a terminal."""
    screen = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return screen and "SSH_CONNECTION" not in os.environ
