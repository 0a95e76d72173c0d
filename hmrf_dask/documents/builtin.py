"""Corpora that an installed package brings or fetches: ``path: builtin://newsgroups20``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hmrf_dask.errors import ConfigurationError, SourceUnavailableError


class Record(NamedTuple):
    """A document of such a corpus."""

    id: str
    text: str
    label: str


def _newsgroups20() -> Iterator[Record]:
    """Fetch scikit-learn's 20 Newsgroups once, into its own folder; messages without headers."""
    from sklearn.datasets import fetch_20newsgroups

    try:
        found = fetch_20newsgroups(subset="all", shuffle=False, remove=("headers",))
    except OSError as error:  # urllib's errors are OSErrors
        raise SourceUnavailableError(
            f"builtin://newsgroups20: cannot fetch it with scikit-learn ({error}); run again with "
            "a network, or name files of your own in the manifest"
        ) from error
    names = found.target_names
    for text, target, filename in zip(found.data, found.target, found.filenames, strict=True):
        # Numbers are unique within a group only; a cross-posted message has one in each.
        yield Record("/".join(str(filename).split("/")[-2:]), text, names[target])


def _docstrings() -> Iterator[Record]:
    from hmrf_dask.documents.docstrings import read_docstrings

    return iter(Record(*document) for document in read_docstrings())


def _versions(*packages: str) -> str:
    from importlib.metadata import version

    return "-".join(f"{package}-{version(package)}" for package in packages)


_CORPORA: dict[str, tuple[Callable[[], Iterator[Record]], Callable[[], str]]] = {
    # The archive and its checksum are scikit-learn's own constants; how it cuts headers may change.
    "builtin://newsgroups20": (_newsgroups20, lambda: _versions("scikit-learn")),
    "builtin://docstrings": (_docstrings, lambda: _versions("numpy", "scipy", "scikit-learn")),
}


def _corpus(url: str) -> tuple[Callable[[], Iterator[Record]], Callable[[], str]]:
    try:
        return _CORPORA[url]
    except KeyError:
        raise ConfigurationError(
            f"a builtin corpus must be {' or '.join(_CORPORA)}, got {url}"
        ) from None


def version_of(url: str) -> str:
    """Return what stands for an etag: the releases of the packages it comes from."""
    return _corpus(url)[1]()


def read_builtin(url: str) -> Iterator[Record]:
    """Return the documents of a builtin corpus."""
    return _corpus(url)[0]()
