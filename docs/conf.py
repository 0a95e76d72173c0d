"""How Sphinx builds these pages: `make docs`. What it builds loads nothing from elsewhere."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "hmrf_dask"
version = release = version_of("hmrf-dask")
copyright = "The authors of hmrf_dask, BSD-3-Clause"  # noqa: A001 - Sphinx calls it so

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
smartquotes = False  # "auto" is typed as it is
exclude_patterns = ["built", "data"]
nitpicky = False  # types of docstrings are words, not names of classes

# Headings have the anchors that GitHub gives them, so links work there and here.
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page of the design may begin a section one level deeper

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # they are in the docstrings, in words
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "furo"
html_title = f"hmrf_dask {version}"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


# The README and the pages of pipelines are read in the repository: no links of the site lead there.
_LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
_HERE = Path(__file__).parent


def without_links_out(_: Any, name: str, source: list[str]) -> None:
    """Name what a page links to outside of docs, in place of the link."""
    folder = (_HERE / name).parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(_HERE):
            return link[0]
        return f"{link[1]} (`{target.relative_to(_HERE.parent)}`)"

    source[0] = _LINK.sub(named, source[0])


# What the theme leaves out for people who do not see the page, or use no mouse.
_READABLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="This page">',
    '<aside class="toc-drawer no-toc">': '<aside class="toc-drawer no-toc" aria-label="This page">',
    '<th class="head"><p></p></th>': "<td></td>",
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<div id="search-results">': '<h1>Search</h1><div id="search-results">',
}


def readable(app: Any, _: Exception | None) -> None:
    """Write the pages again with what axe-core finds missing."""
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text()
        for given, needed in _READABLE.items():
            text = text.replace(given, needed)
        page.write_text(text)


def setup(app: Any) -> None:
    """Tell Sphinx."""
    app.connect("source-read", without_links_out)
    app.connect("build-finished", readable)
