"""The sets of the papers' experiments: TF-IDF rows of texts with classes, and Iris."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hmrf_dask import LSA
from hmrf_dask.errors import InvalidInputError

ROOT = Path(__file__).resolve().parents[2]
# The papers remove stop words, very frequent and very rare ones, and weigh by TF-IDF. Words of more
# than half of the messages are those of quotation lines ("article", "writes", "edu").
VECTORISER: dict[str, Any] = {
    "min_df": 2,
    "max_df": 0.5,
    "stop_words": "english",
    "token_pattern": "[a-z]{2,}",
}
GROUPS = {
    "different_3": ("alt.atheism", "rec.sport.baseball", "sci.space"),
    "related_3": ("talk.politics.misc", "talk.politics.guns", "talk.politics.mideast"),
    "similar_3": ("comp.graphics", "comp.os.ms-windows.misc", "comp.windows.x"),
}
SMALL = 100  # messages a group in the reduced collection
CLASSIC400 = {"cran": 100, "med": 100, "cisi": 200}
N_DIMENSIONS = 50  # of LSA rows
N_ARCHIVES, PER_CATEGORY = 10, 50  # of arXiv, whose titles are clustered
RECORDS = 20_000  # of arXiv, by which words are weighed

Texts = tuple[list[str], list[str]]  # texts and their labels


@dataclass(frozen=True)
class Rows:
    """Rows to cluster and their classes, 0 to K - 1."""

    values: Any  # csr_matrix, or ndarray of shape (n, d)
    classes: NDArray[np.int64]

    @property
    def n_clusters(self) -> int:
        """How many classes there are."""
        return int(self.classes.max()) + 1

    def fingerprint(self) -> str:
        """Return a hash of rows and classes: figures of other rows must not be mixed with these."""
        found = hashlib.blake2b(digest_size=8)
        arrays = (
            (self.values.data, self.values.indices, self.values.indptr)
            if hasattr(self.values, "indptr")
            else (self.values,)
        )
        for array in (*arrays, self.classes):
            found.update(str((array.shape, array.dtype)).encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()


def data_folder() -> Path:
    """Return where sets lie if nobody says: `HMRF_DATA`, or `shared/data` beside the project."""
    return Path(os.environ.get("HMRF_DATA", ROOT.parent / "shared" / "data"))


@cache
def news(name: str, folder: Path, *, only_worded: bool = False) -> Rows:
    """Return rows of newsgroups.

    Parameters
    ----------
    name : str
        "news_different_3", "news_related_3" or "news_similar_3", 100 messages a group;
        "mini_newsgroups", the 20 groups of these; "newsgroups20", all messages; "different_3",
        "related_3" or "similar_3", all messages of three groups.
    folder : Path
        Where `<name>.parquet` may lie. Where it does not, scikit-learn fetches the messages.
    only_worded : bool
        Whether messages that no word is left of are left out: they have no distribution of words.
    """
    if only_worded:
        return _worded(news(name, folder))
    chosen = GROUPS.get(name.removeprefix("news_"))
    source = "newsgroups20" if name in GROUPS else name
    if (folder / f"{source}.parquet").exists():
        texts, labels = _read(folder / f"{source}.parquet")
        return _vectorised(*_of_groups(texts, labels, chosen))
    texts, labels = _of_groups(*_fetched(name, folder), chosen)
    if name.startswith("news_") or name == "mini_newsgroups":
        texts, labels = _sampled(texts, labels, dict.fromkeys(labels, SMALL))
    return _vectorised(texts, labels)


@cache
def news_groups(groups: tuple[str, ...], folder: Path) -> Rows:
    """Return rows of 100 messages of each of some groups, drawn from all messages."""
    path = folder / "newsgroups20.parquet"
    texts, labels = _read(path) if path.exists() else _fetched("newsgroups20", folder)
    texts, labels = _of_groups(texts, labels, groups)
    return _vectorised(*_sampled(texts, labels, dict.fromkeys(groups, SMALL)))


@cache
def lsa(name: str, folder: Path, n_dimensions: int = N_DIMENSIONS) -> Rows:
    """Return rows of newsgroups in the space of their first singular vectors.

    Parameters
    ----------
    name : str
    folder : Path
        As for `news`.
    n_dimensions : int
    """
    rows = news(name, folder)
    return Rows(LSA(n_dimensions, random_state=0).fit_transform(rows.values), rows.classes)


@cache
def classic400(folder: Path) -> Rows:
    """Return rows of 100 Cranfield, 100 Medline and 200 CISI abstracts."""
    path = folder / "classic3.parquet"
    if not path.exists():
        raise InvalidInputError(
            f"Classic400 must be drawn from classic3.parquet (abstracts, columns text and label: "
            f"{', '.join(CLASSIC400)}), got no such file in {folder}; give its folder with --data"
        )
    return _vectorised(*_sampled(*_read(path), CLASSIC400))


@cache
def some_of(name: str, folder: Path, n_rows: int | None = None) -> Rows:
    """Return rows of random texts of `<name>.parquet`, of all of them without a number.

    A larger set holds the smaller ones.
    """
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise InvalidInputError(
            f"{name}.parquet must be there (columns text and label), got no such file in {folder}; "
            "give its folder with --data"
        )
    texts, labels = _read(path)
    kept = np.sort(np.random.default_rng(0).permutation(len(texts))[:n_rows]).tolist()
    return _vectorised([texts[row] for row in kept], [labels[row] for row in kept])


@cache
def titles(folder: Path, draw: int) -> Rows:
    """Return LSA rows of titles of arXiv's records, 50 of each of ten categories.

    They are the largest ones of the ten largest archives; other draws are other titles. A title has
    few words, so their weights and the components are those of 20,000 whole records.
    """
    texts, categories, names, vectoriser, components = _records(folder)
    rng = np.random.default_rng(draw)
    kept = [rng.permutation(np.flatnonzero(categories == name))[:PER_CATEGORY] for name in names]
    drawn = np.sort(np.concatenate(kept)).tolist()
    words = vectoriser.transform([texts[row].partition("\n")[0] for row in drawn])
    classes = np.unique(categories[drawn], return_inverse=True)[1]
    return Rows(components.transform(words), classes.astype(np.int64))


@cache
def _records(folder: Path) -> tuple[list[str], Any, list[str], Any, LSA]:
    """Return the records of arXiv, their categories, ten of these, and what words are worth."""
    import pyarrow.parquet as pq
    from sklearn.feature_extraction.text import TfidfVectorizer

    path = folder / "arxiv_120k.parquet"
    if not path.exists():
        raise InvalidInputError(
            "titles must be drawn from arxiv_120k.parquet (columns text, label and label_fine), "
            f"got no such file in {folder}; give its folder with --data"
        )
    table = pq.read_table(path, columns=["text", "label", "label_fine"]).to_pydict()
    archives, categories = np.asarray(table["label"]), np.asarray(table["label_fine"])
    largest = [name for name, _ in Counter(archives.tolist()).most_common(N_ARCHIVES)]
    names = [Counter(categories[archives == one].tolist()).most_common(1)[0][0] for one in largest]
    some = np.random.default_rng(0).permutation(len(archives))[:RECORDS].tolist()
    vectoriser = TfidfVectorizer(**VECTORISER).fit([table["text"][row] for row in some])
    words = vectoriser.transform([table["text"][row] for row in some])
    components = LSA(N_DIMENSIONS, random_state=0).fit(words)
    return table["text"], categories, names, vectoriser, components


@cache
def texts_of_news(name: str, folder: Path) -> Texts:
    """Return the messages of "news_different_3", "news_related_3" or "news_similar_3"."""
    path = folder / f"{name}.parquet"
    if path.exists():
        return _of_groups(*_read(path), GROUPS[name.removeprefix("news_")])
    return texts_of_groups(GROUPS[name.removeprefix("news_")], folder)


@cache
def texts_of_groups(groups: tuple[str, ...], folder: Path) -> Texts:
    """Return 100 messages of each of some groups, those of `news_groups`."""
    path = folder / "newsgroups20.parquet"
    texts, labels = _read(path) if path.exists() else _fetched("newsgroups20", folder)
    return _sampled(*_of_groups(texts, labels, groups), dict.fromkeys(groups, SMALL))


@cache
def all_texts(name: str, folder: Path) -> Texts:
    """Return all texts of a file of the data folder, and their labels."""
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise InvalidInputError(
            f"{path.name} must be there (columns text and label), got no such file in {folder}; "
            "give its folder with --data"
        )
    return _read(path)


@cache
def texts_of_arxiv(classes: tuple[str, ...], size: int, part: str, folder: Path) -> Texts:
    """Return titles or abstracts of arXiv, at most `size` of each class; no class: of all."""
    texts, labels = _of_groups(*all_texts("arxiv_120k", folder), classes or None)
    texts, labels = _sampled(texts, labels, dict.fromkeys(labels, size))
    parts = [text.partition("\n") for text in texts]
    return [one[0] if part == "title" else one[2] for one in parts], labels


def classes_of(labels: Sequence[str]) -> NDArray[np.int64]:
    """Return labels as numbers from 0 on."""
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


@cache
def iris(_folder: Path) -> Rows:
    """Return Iris as it is; scikit-learn brings it, so nothing is read."""
    from sklearn.datasets import load_iris

    found = load_iris()
    return Rows(np.asarray(found.data, np.float64), np.asarray(found.target, np.int64))


def _worded(rows: Rows) -> Rows:
    kept = np.flatnonzero(np.diff(rows.values.indptr))
    return Rows(rows.values[kept], rows.classes[kept])


def _read(path: Path) -> Texts:
    """Return texts and labels of a Parquet file; a record without text is left out."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["text", "label"]).to_pydict()
    pairs = [(text, label) for text, label in zip(*table.values(), strict=True) if text]
    return [text for text, _ in pairs], [label for _, label in pairs]


def _fetched(name: str, folder: Path) -> Texts:
    """Return all messages of 20 Newsgroups without their headers, which name the group."""
    from sklearn.datasets import fetch_20newsgroups

    try:
        found = fetch_20newsgroups(subset="all", remove=("headers",))
    except OSError as error:
        raise InvalidInputError(
            f"{name} must be in the data folder or be fetched, got no {name}.parquet in {folder} "
            f"and no answer to scikit-learn's fetcher ({error}); give the folder with --data, or "
            "run once where the network can be reached: the fetcher keeps what it got"
        ) from error
    return list(found.data), [found.target_names[one] for one in found.target]


def _of_groups(texts: list[str], labels: list[str], chosen: Sequence[str] | None) -> Texts:
    """Return the messages of some groups, of all if none are named."""
    kept = [row for row, label in enumerate(labels) if chosen is None or label in chosen]
    return [texts[row] for row in kept], [labels[row] for row in kept]


def _sampled(texts: list[str], labels: list[str], sizes: dict[str, int]) -> Texts:
    """Return some texts of each class, the same ones every time."""
    rng = np.random.default_rng(0)
    named = np.asarray(labels)
    kept = [
        row
        for label, size in sorted(sizes.items())
        for row in sorted(rng.permutation(np.flatnonzero(named == label))[:size].tolist())
    ]
    return [texts[row] for row in kept], [labels[row] for row in kept]


def _vectorised(texts: list[str], labels: list[str]) -> Rows:
    """Return TF-IDF rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    values = sp.csr_matrix(TfidfVectorizer(**VECTORISER).fit_transform(texts))
    return Rows(values, classes_of(labels))
