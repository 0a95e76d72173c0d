"""The page in a browser: keys, kills, contradictions, hostile texts, and who reads it otherwise."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.answers.standing import standing
from tests.support.browser import chromium
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run
from tests.support.pages import TOPICS, documents, running, session_of

PAYLOADS = (Path(__file__).parent / "support/payloads.txt").read_text().splitlines()
VIEWS = ("answers", "disputes", "groups", "clusters", "history", "people")
TRAP = "window.fired = () => { document.documentElement.dataset.fired = 'yes'; }"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@contextmanager
def tab(browser: Any, address: str, **settings: Any) -> Iterator[Any]:
    """Give the page, as a browser shows it; a fault in its own scripts fails the test."""
    context = browser.new_context(**settings)
    faults: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.add_init_script(TRAP)
        page.goto(address)
        page.wait_for_selector("main h2")
        yield page
        assert not faults
    finally:
        context.close()


def press(page: Any, key: str) -> str:
    """Press a key, and return what the page says once it has done what the key asks for."""
    page.evaluate("() => { document.getElementById('said').textContent = ''; }")
    page.keyboard.press(key)
    page.wait_for_selector("#said:not(:empty)")
    page.wait_for_selector("main:not([aria-busy])")
    return str(page.text_content("#said"))


def sign_in(page: Any) -> None:
    page.fill("#person", "Ada")
    with page.expect_response("**/api/next"):
        page.keyboard.press("Tab")
    page.wait_for_selector("main:not([aria-busy]) h2")


def right_key(page: Any) -> str:
    """Return the key of the right answer to a pair: documents are called by their topics."""
    shown = page.locator("[data-document]")
    topics = {shown.nth(at).get_attribute("data-document").partition("/")[0] for at in (0, 1)}
    return "s" if len(topics) == 1 else "ArrowLeft"


def standing_answers(file: Path) -> list[Entry]:
    entries = standing(open_journal(file).entries().entries)
    return [one for one in entries if one.kind in ("pair", "choice")]


# ---- the command, killed midway


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = JobCorpus(tmp_path_factory.mktemp("page")).write_all(90, 0)
    return Path(run(job).output)


@contextmanager
def labelling(output: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "hmrf_dask", "label", str(output), "--no-browser", "-q"]
    command += ["--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            yield process, address
        finally:
            process.kill()


def test_thirty_answers_by_keys_survive_undos_a_restart_and_a_kill(browser, output):
    file = output / "journal.jsonl"
    with labelling(output, "-n", "60") as (process, address), tab(browser, address) as page:
        sign_in(page)
        for place in range(15):
            assert "Saved" in press(page, right_key(page) if place % 5 else "u")
        assert "Taken back" in press(page, "z")
        assert "Saved" in press(page, right_key(page))
        process.send_signal(signal.SIGKILL)  # nothing is asked before it ends
        process.wait(10)
        page.keyboard.press("s")
        page.wait_for_selector("#wrong:not(:empty)")
        assert "nothing was saved" in page.text_content("#wrong")
    assert len(standing_answers(file)) == 15
    with labelling(output, "-n", "60") as (process, address), tab(browser, address) as page:
        sign_in(page)
        for key in ("z", "Backspace"):
            assert "Taken back" in press(page, key)
        assert len(standing_answers(file)) == 13
        while len(standing_answers(file)) < 30:
            assert "Saved" in press(page, right_key(page))
        page.click("[data-view=history]")
        page.click("text=Refit with the answers so far")
        page.wait_for_selector("text=The refit is done", timeout=90_000)
        assert page.locator("tbody tr").count() == 2
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    answers = standing_answers(file)
    assert len(answers) == len({one.id for one in answers}) == 30
    assert {one.annotator for one in answers} == {"Ada"}
    report = run(output.parent / "job.yaml")
    assert (report.status, report.release) == ("up to date", 2)
    assert report.answers["journal"]["answers"] == 30


# ---- keys, and what is seen


@pytest.mark.long
def test_keys_choose_groups_and_lead_back_and_on(browser, tmp_path):
    with (
        running(session_of(tmp_path, documents(40))) as server,
        tab(browser, server.address) as page,
    ):
        assert page.locator(".group button").count() == 5
        assert "belongs to: diesel" in press(page, "2")
        assert "thought" in page.text_content("#said")
        first = page.text_content(".document .text")
        assert "Skipped" in press(page, "x")
        assert page.text_content(".document .text") != first
        assert "something new" in press(page, "n")
        assert "don't know" in press(page, "ArrowDown")
        page.keyboard.press("p")
        page.wait_for_selector(".pair")
        page.keyboard.press("m")
        page.wait_for_selector(".columns:not([hidden]) dd")
        assert "archive" in page.text_content(".columns")
        page.keyboard.press("h")
        page.wait_for_selector("#help[open]")
        page.keyboard.press("s")  # of the dialog's own
        page.keyboard.press("Escape")
        assert len(standing_answers(tmp_path / "journal.jsonl")) == 3
        assert "Marked" in press(page, "r")
        for name in VIEWS:
            page.click(f"[data-view={name}]")
            page.wait_for_selector("main h2")
            page.keyboard.press("s")  # no answer: nothing is asked here
        page.click("[data-view=answers]")
        page.select_option("select >> nth=0", "review")
        page.wait_for_selector("text=1 answer;")
    assert len(standing_answers(tmp_path / "journal.jsonl")) == 3


def test_a_contradiction_asks_which_link_is_wrong(browser, tmp_path):
    file = tmp_path / "journal.jsonl"
    said = {"kind": "pair", "annotator": "Bob", "time": "2026-01-01T00:00:00+00:00"}
    first, second, third = "space/0005", "space/0010", "space/0000"
    open_journal(file).append(
        Entry("1", documents=(first, third), answer="same", **said),
        Entry("2", documents=(second, first), answer="same", **said),
        Entry("3", documents=(second, third), answer="unknown", **said),
    )
    session = session_of(tmp_path, documents(12))
    with running(session) as server, tab(browser, server.address) as page:
        page.click("[data-view=answers]")
        page.select_option(".entry select >> nth=0", "different")
        page.wait_for_selector("#contradiction[open] li")
        assert page.locator("#chain li").count() == 3
        assert "Bob" in page.text_content("#chain li >> nth=0")
        page.keyboard.press("2")
        page.wait_for_selector("#contradiction:not([open])", state="attached")
        page.wait_for_selector("text=2 answers;")
    assert sorted(one.answer for one in standing_answers(file)) == ["different", "same"]


@pytest.mark.long
def test_a_long_text_is_folded_and_opened(browser, tmp_path):
    texts = documents(7)
    texts["space/0005"] = "Title. " + "Nothing is said here. " * 9_500 + "An orbit decays."
    with running(session_of(tmp_path, texts)) as server, tab(browser, server.address) as page:
        shown = page.text_content(".document .body")
        assert len(shown) < 2_000
        assert "orbit decays" in shown
        page.keyboard.press("o")
        page.wait_for_selector(".document button[aria-expanded=true]")
        assert len(page.text_content(".document .body")) > 200_000


@pytest.mark.long
def test_texts_run_in_their_own_direction(browser, tmp_path):
    hebrew, han = "\u05e9\u05dc\u05d5\u05dd", "\u4f60\u597d\u4e16\u754c"
    topics = {"hebrew": f"{hebrew} \u05e2\u05d5\u05dc\u05dd", "han": han, "space": TOPICS["space"]}
    session = session_of(tmp_path, documents(9, topics))
    with running(session) as server, tab(browser, server.address) as page:
        seen = set()
        for _ in range(6):
            for shown in page.locator(".document .text").all():
                direction = shown.evaluate("(text) => getComputedStyle(text).direction")
                assert direction == ("rtl" if hebrew in shown.text_content() else "ltr")
                seen.add(direction)
            press(page, "u")
        assert seen == {"rtl", "ltr"}


@pytest.mark.long
def test_a_swipe_answers_on_a_phone(browser, tmp_path):
    phone = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
    session = session_of(tmp_path, documents(12))
    with running(session) as server, tab(browser, server.address, **phone) as page:
        page.click("text=Ask about pairs")
        page.wait_for_selector(".pair")
        touch = page.context.new_cdp_session(page)
        points = [
            ("touchStart", 300),
            ("touchMove", 200),
            ("touchMove", 80),
            ("touchEnd", None),
        ]
        for kind, across in points:
            at = [] if across is None else [{"x": across, "y": 300}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})
        page.wait_for_selector("#said:not(:empty)")
    assert [one.answer for one in standing_answers(tmp_path / "journal.jsonl")] == ["different"]


# ---- hostile texts


def test_payloads_run_where_nothing_keeps_them_from_it(browser):
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(TRAP)
    page.goto("about:blank")
    n_fired = 0
    for payload in PAYLOADS[:12]:
        page.set_content(f"<p>{payload}</p>")
        page.wait_for_timeout(10)
        n_fired += page.evaluate("() => document.documentElement.dataset.fired === 'yes'")
    context.close()
    assert n_fired >= 6


def test_no_payload_runs(browser, tmp_path):
    assert len(PAYLOADS) == 40
    texts = {f"doc/{place:04}": payload for place, payload in enumerate(PAYLOADS)}
    file = tmp_path / "journal.jsonl"
    for place, payload in enumerate(PAYLOADS):
        who = {"annotator": payload[:80], "time": "2026-01-01T00:00:00+00:00"}
        pair = (f"doc/{place:04}", f"doc/{(place + 1) % 40:04}")
        open_journal(file).append(
            Entry(f"p{place}", "pair", pair, answer="unknown", **who),
            Entry(f"c{place}", "comment", answer=payload, about=f"p{place}", review=True, **who),
            Entry(f"n{place}", "name", ("doc/0000",), answer=payload, **who),
        )
    with running(session_of(tmp_path, texts)) as server, tab(browser, server.address) as page:
        seen = set[str]()
        for _ in range(39):
            seen.update(page.locator(".document .body").all_text_contents())
            seen_name = page.input_value("#person")
            assert "Saved" in press(page, "u"), seen_name
        assert seen == set(PAYLOADS)
        page.fill("#person", PAYLOADS[0])
        for name in VIEWS:
            page.click(f"[data-view={name}]")
            page.wait_for_selector("main h2")
        for start in (0, 25, 50):
            assert server.get(f"/api/answers?start={start}")["answers"]
        assert page.evaluate("() => document.documentElement.dataset.fired") is None
        assert (
            page.locator("main script, main img, main iframe, main svg, main object").count() == 0
        )
        assert page.url == f"http://{server.host}/"


def test_clusters_are_merged_by_the_keyboard_and_the_focus_stays(browser, tmp_path):
    with (
        running(session_of(tmp_path, documents(12))) as server,
        tab(browser, server.address) as page,
    ):
        sign_in(page)
        page.click("[data-view=clusters]")
        page.wait_for_selector("#merge:disabled")
        for cluster in (0, 3):
            page.focus(f"[data-place='choose {cluster}']")
            page.keyboard.press("Space")
        assert page.text_content("#to-merge") == "3 would go into 0."
        page.focus("#merge")
        page.keyboard.press("Enter")
        page.wait_for_selector("#said:not(:empty)")
        assert page.text_content("#said") == "Merge by Ada."
        assert "merge of [0, 3]" in page.text_content("main [role=status]")
        page.focus("[data-place='freeze 2']")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=freeze of [2]")
        assert page.evaluate("() => document.activeElement.dataset.place") == "freeze 2"
        assert server.page.clusters.edits == [("merge", [0, 3], ""), ("freeze", [2], "")]


# ---- who reads it otherwise


def violations(page: Any) -> list[str]:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'] for node in one['nodes']][:2]}" for one in found]


@pytest.mark.parametrize("settings", [
    {"color_scheme": "light"},
    {"color_scheme": "dark"},
    {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True},
], ids=["light", "dark", "phone"])  # fmt: skip
def test_axe_finds_nothing(browser, tmp_path, settings):
    session = session_of(tmp_path, documents(60))
    settings = {**settings, "bypass_csp": True}  # axe itself is no script of the page
    with running(session) as server, tab(browser, server.address, **settings) as page:
        assert violations(page) == []
        press(page, "1")
        page.keyboard.press("p")
        page.wait_for_selector(".pair")
        press(page, "u")
        assert violations(page) == []
        for name in VIEWS:
            page.click(f"[data-view={name}]")
            page.wait_for_selector(f"[data-view={name}][aria-current]")
            page.wait_for_selector("main h2")
            assert violations(page) == [], name
        page.evaluate("() => document.getElementById('help').showModal()")
        assert violations(page) == []


@pytest.mark.long
def test_a_reader_is_told_what_was_saved_and_where_the_question_is(browser, tmp_path):
    with (
        running(session_of(tmp_path, documents(12))) as server,
        tab(browser, server.address) as page,
    ):
        press(page, "1")
        assert page.get_attribute("#said", "aria-live") == "polite"
        assert page.evaluate("() => document.activeElement.tagName") == "H2"
        page.emulate_media(reduced_motion="reduce")
        moving = "() => getComputedStyle(document.querySelector('button')).transitionDuration"
        assert page.evaluate(moving) == "0s"


def test_all_of_the_page_is_small_and_its_own() -> None:
    folder = Path(__file__).parents[1] / "hmrf_dask/page"
    files = [one for one in folder.rglob("*") if one.suffix in (".js", ".css", ".html", ".svg")]
    texts = {one.name: one.read_text() for one in files}
    assert sum(text.count("\n") for text in texts.values()) <= 1_500
    for name, text in texts.items():
        outside = re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
        assert not outside, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), (
            name
        )
