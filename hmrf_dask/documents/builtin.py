"""Corpora that an installed package brings or fetches: ``path: builtin://newsgroups20``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

from hmrf_dask.errors import ConfigurationError, SourceUnavailableError

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
    """A document of such a corpus."""

    id: str
    text: str
    label: str


def read_docstrings() -> list[Document]:
    """Collect the docstrings of `SUBPACKAGES`, one document per distinct text, sorted by id."""
    first_with_text: dict[str, Document] = {}
    modules = [(label, module) for label, names in SUBPACKAGES.items() for module in names]
    for label, module_name in modules:
        for name, docstring in _public_docstrings(importlib.import_module(module_name)):
            text = _plain_text(docstring)
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
        members = sorted(vars(exported).items()) if inspect.isclass(exported) else []
        for member_name, member in members:
            if not member_name.startswith("_"):
                yield from _own_docstring(f"{name}.{member_name}", member)


def _own_docstring(name: str, documented: object) -> Iterator[tuple[str, str]]:
    """Yield (name, docstring), unless it is missing or only that of the object's class."""
    docstring = documented.__doc__
    if isinstance(docstring, str) and docstring != type(documented).__doc__:
        yield name, inspect.cleandoc(docstring)


def _plain_text(docstring: str) -> str:
    """Take out what would give the label away: example code, link targets, the path of a name."""
    without_code = _DOCTEST_LINE.sub("", docstring)
    return _DOTTED_NAME.sub("", _LINK_TARGET.sub("", without_code)).strip()


def _newsgroups20() -> Iterator[Document]:
    """Fetch scikit-learn's 20 Newsgroups once, into its own folder; messages without headers."""
    from sklearn.datasets import fetch_20newsgroups

    try:
        corpus = fetch_20newsgroups(subset="all", shuffle=False, remove=("headers",))
    except OSError as error:  # urllib's errors are OSErrors
        raise SourceUnavailableError(
            f"builtin://newsgroups20: cannot fetch it with scikit-learn ({error}); run again with "
            "a network, or name files of your own in the manifest"
        ) from error
    names = corpus.target_names
    for text, target, filename in zip(corpus.data, corpus.target, corpus.filenames, strict=True):
        # Numbers are unique within a group only; a cross-posted message has one in each.
        yield Document("/".join(str(filename).split("/")[-2:]), text, names[target])


def _versions(*packages: str) -> str:
    from importlib.metadata import version

    return "-".join(f"{package}-{version(package)}" for package in packages)


_CORPORA: dict[str, tuple[Callable[[], Iterable[Document]], Callable[[], str]]] = {
    # The archive and its checksum are scikit-learn's own constants; how it cuts headers may change.
    "builtin://newsgroups20": (_newsgroups20, lambda: _versions("scikit-learn")),
    "builtin://docstrings": (read_docstrings, lambda: _versions("numpy", "scipy", "scikit-learn")),
}


def _corpus(url: str) -> tuple[Callable[[], Iterable[Document]], Callable[[], str]]:
    try:
        return _CORPORA[url]
    except KeyError:
        raise ConfigurationError(
            f"a builtin corpus must be {' or '.join(_CORPORA)}, got {url}"
        ) from None


def version_of(url: str) -> str:
    """Return what stands for an etag: the releases of the packages it comes from."""
    return _corpus(url)[1]()


def read_builtin(url: str) -> Iterable[Document]:
    """Return the documents of a builtin corpus."""
    return _corpus(url)[0]()
