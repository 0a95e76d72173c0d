"""What README and docs tell to type does what they say; and the site is built without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_say_what_they_are(page: Path) -> None:
    languages = {block.language for block in blocks(page)}
    assert {one for one in languages if not one.startswith("{")} <= LANGUAGES


def test_the_site_is_built_without_a_warning_and_of_nothing_from_elsewhere(tmp_path: Path) -> None:
    for name in ("furo", "myst_parser", "numpydoc"):
        pytest.importorskip(name, reason="the group docs of pyproject.toml is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", tmp_path / "trees", ROOT / "docs", tmp_path / "site"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    elsewhere = r"=[\"']?(?:https?:)?//"
    loaded = rf"<(?:script|img|iframe)[^>]+src{elsewhere}|<link[^>]+href{elsewhere}"
    imported = r"@import|url\([\"']?(?:https?:)?//"
    for page in pages:
        assert not re.search(loaded, page.read_text()), page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(imported, sheet.read_text()), sheet
