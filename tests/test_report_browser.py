"""The report in a browser, opened from the disk: keys, links, hostile texts, and axe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.report.page import page
from tests.support.browser import chromium
from tests.support.reports import example, hostile

TRAP = "window.fired = () => { document.documentElement.dataset.fired = 'yes'; }"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    shown = {"plain": page(example(12, 300)), "hostile": page(hostile())}
    for name, data in shown.items():
        (folder / f"{name}.html").write_bytes(data)
    return {name: folder / f"{name}.html" for name in shown}


@contextmanager
def tab(browser: Any, file: Path, **settings: Any) -> Iterator[Any]:
    """Give the report, as a browser shows it; what it refuses or does wrong fails the test."""
    context = browser.new_context(**settings)
    faults: list[str] = []
    try:
        shown = context.new_page()
        shown.set_default_timeout(15_000)
        shown.on("pageerror", lambda error: faults.append(str(error)))
        shown.on("console", lambda message: faults.append(message.text))
        shown.on("request", lambda request: faults.append(request.url))
        shown.add_init_script(TRAP)
        shown.goto(file.as_uri())
        faults.remove(file.as_uri())
        shown.wait_for_selector("html[data-ready]", state="attached")
        yield shown
        assert not faults
    finally:
        context.close()


def test_clusters_are_chosen_by_keys_links_and_search(browser, files):
    with tab(browser, files["plain"]) as shown:
        title = shown.locator("#cluster h3")
        first = title.text_content()
        shown.focus("#map")
        for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
            shown.keyboard.press(key)
        assert title.text_content().startswith("Cluster ")
        shown.click("#table tbody tr:nth-child(3) th a")
        chosen = shown.get_attribute("#table tr.chosen", "id")
        assert title.text_content().startswith(f"Cluster {chosen[1:]}:")
        assert title.text_content() != first
        assert shown.locator("#cluster .text").count() == 6
        words = shown.locator("#cluster .word").all_text_contents()
        shown.locator("#cluster input[type=range]").fill("1")
        assert len(shown.locator("#cluster .word").all_text_contents()) == len(words) == 12
        shown.locator("#cluster .word").first.click()  # a word marks where else it is
        wanted = shown.input_value("#search")
        assert shown.locator("#cluster .word").first.text_content().startswith(f"{wanted} ×")
        found = shown.locator("#found").text_content()
        assert int(found.split()[0]) >= 1
        shown.locator("#cluster .word").first.click()
        assert shown.locator("#found").text_content() == ""
        shown.fill("#search", "doc/0000007")
        shown.wait_for_selector("text=0 clusters, 1 of 300 documents")
        shown.click("#table th:nth-child(3) button")
        sizes = [int(one.replace(",", "")) for one in
                 shown.locator("#table tbody td:nth-child(3)").all_text_contents()]  # fmt: skip
        assert sizes == sorted(sizes, reverse=True)
        shown.fill("#filter", "nothing has this")
        shown.wait_for_selector("text=0 of 12 clusters")


@pytest.mark.parametrize("settings", [{}, {"viewport": {"width": 390, "height": 780}}])
def test_nothing_runs_and_nothing_is_wider_than_the_screen(browser, files, settings):
    with tab(browser, files["hostile"], **settings) as shown:
        for row in range(1, 5):
            shown.click(f"#table tbody tr:nth-child({row}) th a")
        shown.focus("#map")
        shown.keyboard.press("ArrowRight")
        box = shown.locator("#map").bounding_box()
        for x in range(10, int(box["width"]), 40):
            shown.mouse.move(box["x"] + x, box["y"] + box["height"] / 2)
        shown.evaluate(
            "() => document.querySelectorAll('details').forEach((d) => { d.open = true })"
        )
        shown.fill("#search", "<script>")
        shown.wait_for_timeout(200)
        assert shown.get_attribute("html", "data-fired") is None
        assert (
            shown.evaluate("() => document.querySelectorAll('img, iframe, object, embed').length")
            == 0
        )
        wide, width = shown.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert wide <= width


def test_without_script_tables_say_what_there_is(browser, files):
    context = browser.new_context(java_script_enabled=False)
    try:
        shown = context.new_page()
        shown.goto(files["plain"].as_uri())
        assert shown.locator("#table tbody tr").count() == 12
        assert shown.locator("noscript table").is_visible()
        assert not shown.is_visible("#map")
    finally:
        context.close()


PHONE = {"width": 390, "height": 780}


@pytest.mark.parametrize("settings", [
    {"color_scheme": "light"},
    pytest.param({"color_scheme": "dark"}, marks=pytest.mark.long),
    pytest.param({"viewport": PHONE, "has_touch": True, "is_mobile": True}, marks=pytest.mark.long),
    {"viewport": PHONE, "has_touch": True, "color_scheme": "dark"},
], ids=["light", "dark", "phone", "dark phone"])  # fmt: skip
def test_axe_finds_nothing(browser, files, settings):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    with tab(browser, files["plain"], **settings, bypass_csp=True) as shown:
        shown.evaluate(
            "() => document.querySelectorAll('details').forEach((d) => { d.open = true })"
        )
        found = axe.Axe().run(shown).response["violations"]
        assert [f"{one['id']}: {[n['html'] for n in one['nodes']][:2]}" for one in found] == []
