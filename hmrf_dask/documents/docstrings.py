"""The docstrings of the scientific packages that are installed with this one, as a corpus."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

# A label and the modules whose public names carry it. All of them are installed with this package.
SUBPACKAGES: dict[str, tuple[str, ...]] = {
    "numpy.ma": ("numpy.ma",),
    "numpy.polynomial": (
        "numpy.polynomial",
        "numpy.polynomial.chebyshev",
        "numpy.polynomial.hermite",
        "numpy.polynomial.legendre",
        "numpy.polynomial.polynomial",
    ),
    "numpy.random": ("numpy.random",),
    "scipy.interpolate": ("scipy.interpolate",),
    "scipy.ndimage": ("scipy.ndimage",),
    "scipy.optimize": ("scipy.optimize",),
    "scipy.signal": ("scipy.signal",),
    "scipy.sparse": ("scipy.sparse", "scipy.sparse.csgraph", "scipy.sparse.linalg"),
    "scipy.special": ("scipy.special",),
    "scipy.stats": ("scipy.stats",),
    "sklearn.linear_model": ("sklearn.linear_model",),
    "sklearn.metrics": ("sklearn.metrics",),
}

SHORTEST_TEXT = 150  # characters; shorter docstrings are "See also" lines and aliases
_DOCTEST_LINE = re.compile(r"^\s*(>>>|\.\.\.).*$", re.MULTILINE)
_LINK_TARGET = re.compile(r"<[^<>\n]+>")
_DOTTED_NAME = re.compile(r"\b(?:\w+\.)+(?=[A-Za-z_])")


class Document(NamedTuple):
    """One document: the dotted name it belongs to, its text, and the subpackage it is from."""

    doc_id: str
    text: str
    label: str


def read_docstrings() -> list[Document]:
    """Collect the docstrings of `SUBPACKAGES`, one document per distinct text, sorted by id.

    Returns
    -------
    list of Document
        In an order that depends on the installed versions alone.
    """
    first_with_text: dict[str, Document] = {}
    for label, modules in SUBPACKAGES.items():
        for module_name in modules:
            module = importlib.import_module(module_name)
            for name, docstring in _public_docstrings(module):
                text = plain_text(docstring)
                if len(text) >= SHORTEST_TEXT:
                    document = Document(f"{module_name}.{name}", text, label)
                    first_with_text.setdefault(text, document)
    return sorted(first_with_text.values())


def _public_docstrings(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of the functions, classes and methods a module exports."""
    for name in sorted(getattr(module, "__all__", None) or vars(module)):
        exported = vars(module).get(name)
        if name.startswith("_") or inspect.ismodule(exported):
            continue
        yield from _own_docstring(name, exported)
        if inspect.isclass(exported):
            for member_name, member in sorted(vars(exported).items()):
                if not member_name.startswith("_"):
                    yield from _own_docstring(f"{name}.{member_name}", member)


def _own_docstring(name: str, documented: object) -> Iterator[tuple[str, str]]:
    """Yield (name, docstring), unless it is missing or only that of the object's class."""
    docstring = documented.__doc__
    if isinstance(docstring, str) and docstring != type(documented).__doc__:
        yield name, inspect.cleandoc(docstring)


def plain_text(docstring: str) -> str:
    """Take out what would give the label away: example code, link targets, the path of a name.

    Examples
    --------
    >>> plain_text("Like scipy.stats.norm, see `guide <stats_guide>`.")
    'Like norm, see `guide `.'
    """
    without_code = _DOCTEST_LINE.sub("", docstring)
    return _DOTTED_NAME.sub("", _LINK_TARGET.sub("", without_code)).strip()
