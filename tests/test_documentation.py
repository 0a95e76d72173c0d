"""What README and docs tell to type does what they say; and the site is built without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import chromium
from tests.support.documentation import (
    LANGUAGES,
    PAGES,
    ROOT,
    Reader,
    blocks,
    is_shown,
    read_page,
)

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WITH_LONG = [page for page in PAGES if any("long" in block.notes for block in blocks(page))]


def check(reader: Reader) -> None:
    for block, shown, printed in reader.compared:
        assert is_shown(shown, printed), (
            f"{block.name} shows another thing than\n{printed}\n"
            "python -m tests.support.documentation writes it into the page"
        )


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_what_a_page_says_works(page: Path, tmp_path: Path) -> None:
    check(read_page(page, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_LONG, ids=lambda page: page.stem)
def test_what_takes_long_works_too(page: Path, tmp_path: Path) -> None:
    check(read_page(page, tmp_path, long=True))


def test_every_setting_is_on_the_page_of_settings() -> None:
    sources = "".join(one.read_text() for one in (ROOT / "hmrf_dask").rglob("*.py"))
    names = set(re.findall(r'\b(?:setting|seconds_of)\("([\w-]+)", [^7]', sources))
    page = (ROOT / "docs/reference/configuration.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == names


def test_every_alert_is_on_the_page_of_the_report() -> None:
    source = (ROOT / "hmrf_dask/report/alerts.py").read_text()
    kinds = re.findall(r'Alert\(\s*"([a-z ]+)", "', source)
    page = (ROOT / "docs/report.md").read_text()
    assert len(kinds) > 10
    assert [kind for kind in kinds if f"| {kind} |" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_say_what_they_are(page: Path) -> None:
    languages = {block.language for block in blocks(page)}
    assert {one for one in languages if not one.startswith("{")} <= LANGUAGES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("furo", "myst_parser", "numpydoc"):
        pytest.importorskip(name, reason="the group docs of pyproject.toml is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", folder / ".trees", ROOT / "docs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long  # Sphinx takes six seconds; `make docs` is the same
def test_the_site_is_built_without_a_warning_and_of_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    elsewhere = r"=[\"']?(?:https?:)?//"
    loaded = rf"<(?:script|img|iframe)[^>]+src{elsewhere}|<link[^>]+href{elsewhere}"
    imported = r"@import|url\([\"']?(?:https?:)?//"
    for page in pages:
        assert not re.search(loaded, page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(imported, sheet.read_text()), sheet


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_everybody_can_read_the_site(site: Path, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with chromium() as browser:
        view = {"width": width, "height": 800}
        tab = browser.new_context(color_scheme=scheme, viewport=view).new_page()
        problems = {}
        for page in sorted(site.rglob("*.html")):
            tab.goto(page.as_uri())
            for found in axe.run(tab).response["violations"]:
                problems[page.name, found["id"]] = [node["html"] for node in found["nodes"][:3]]
        assert not problems
