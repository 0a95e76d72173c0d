"""Rows about vectorising: texts to TF-IDF rows on one core, against scikit-learn's way there.

Both sides begin with a list of texts and end with float32 TF-IDF rows and a vocabulary; ours as it
is done in tasks, batch by batch and then all batches once more. The texts are made up: words by
chance with the frequencies of language, so that every machine has them.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from hmrf_dask.flow.dataflow import Inline
from hmrf_dask.text.counts import TextSettings, count_texts
from hmrf_dask.text.files import Place
from hmrf_dask.text.tfidf import Frequencies, make_vocabulary, to_rows
from hmrf_dask.text.vectorise import count_sources, fit_vocabulary, rows_of
from tests.benchmarks.measuring import Bench, Figure, in_turn, ratios, raw, threads

BATCH = 10_000
WORDS_IN_TEXT = 150
ODD_SHARE = {"ascii": 0.0, "mixed": 0.5}  # of texts with a character beyond ASCII
ASKED = {"ascii": (3.0, 5.0), "mixed": (1.0, 2.0)}
SETTINGS = TextSettings()


@dataclass
class Texts:
    """Texts as a source that lies in memory."""

    texts: list[str]
    ids: list[str]
    key: str = "benchmark"

    def read(self) -> Any:
        """Yield the texts in batches."""
        for first in range(0, len(self.texts), BATCH):
            some = slice(first, first + BATCH)
            yield Texts(self.texts[some], self.ids[some])

    def record(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


def make_texts(n_texts: int, n_words: int, odd_share: float, seed: int = 0) -> list[str]:
    """Return texts of about 150 words each, a share of them with characters beyond ASCII."""
    rng = np.random.default_rng(seed)
    characters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    likely = 1.0 / np.arange(2, len(characters) + 2)
    likely /= likely.sum()
    lengths = np.minimum(2 + rng.poisson(np.linspace(1, 7, n_words)), 14)
    drawn = characters[rng.choice(len(characters), lengths.sum(), p=likely)]
    words = np.array(["".join(one) for one in np.split(drawn, np.cumsum(lengths)[:-1])], object)
    odd = np.array([word.replace("e", "é").replace("o", "ö") for word in words], object)
    shares = 1.0 / (np.arange(n_words) + 2.7)
    sizes = np.maximum(1, rng.poisson(WORDS_IN_TEXT, n_texts))
    found = []
    for size in sizes:
        chosen = rng.choice(n_words, size, p=shares / shares.sum())
        said = words[chosen]
        if rng.random() < odd_share:
            said = np.where(rng.random(size) < 0.1, odd[chosen], said)
        found.append(". ".join(" ".join(one).capitalize() for one in np.array_split(said, 9)))
    return found


def ours(texts: list[str], ids: list[str]) -> Any:
    """Return the rows of all batches."""
    counted = [
        count_texts(texts[first : first + BATCH], SETTINGS) for first in range(0, len(texts), BATCH)
    ]
    whole = Frequencies.merge([Frequencies.of(one, SETTINGS) for one in counted])
    vocabulary = make_vocabulary(whole, SETTINGS)
    firsts = range(0, len(texts), BATCH)
    return [
        to_rows(one, vocabulary, ids[first : first + BATCH])[0]
        for one, first in zip(counted, firsts, strict=True)
    ]


def with_files(texts: list[str], ids: list[str]) -> None:
    """Write counts, vocabulary and rows, as a job does."""
    with tempfile.TemporaryDirectory() as folder:
        flow, place = Inline(), Place(folder)
        counted = count_sources(flow, [Texts(texts, ids)], SETTINGS, place)
        rows_of(flow, counted, fit_vocabulary(flow, counted, SETTINGS, place), place)


def theirs(texts: list[str]) -> Any:
    """Return scikit-learn's rows."""
    counts = CountVectorizer(dtype=np.float32).fit_transform(texts)
    return TfidfTransformer().fit_transform(counts)


def vectorising(bench: Bench) -> list[Figure]:
    """Time both ways to the same matrix."""
    return [_vectorising(bench, kind) for kind in ODD_SHARE]


def _vectorising(bench: Bench, kind: str) -> Figure:
    n_texts = bench.sizes.texts
    bench.say(f"vectorising, {kind}, {n_texts:,} texts")
    texts = make_texts(n_texts, bench.sizes.n_features, ODD_SHARE[kind])
    ids = [str(number) for number in range(n_texts)]
    with threads(1):
        rows = ours(texts, ids)  # once before: code is loaded
        same = _same(rows, theirs(texts))
        works: dict[str, Any] = {
            "ours": lambda: ours(texts, ids) and None,
            "scikit_learn": lambda: theirs(texts) is None,
            "ours_with_files": lambda: with_files(texts, ids),
        }
        runs = in_turn(bench.sizes.repeats, works)
    if not same:
        raise RuntimeError(
            f"our rows must have the bits of scikit-learn's, got others for {kind} texts: a ratio "
            "of two different results says nothing"
        )
    must, aim = ASKED[kind]
    files = ratios(runs["scikit_learn"], runs["ours_with_files"], "cpu")
    return Figure(
        f"vectorising-{kind}",
        f"texts to TF-IDF rows on one core, against scikit-learn's CountVectorizer and "
        f"TfidfTransformer, {kind} texts",
        ratios(runs["scikit_learn"], runs["ours"], "cpu"), must=must, aim=aim, raw=raw(runs),
        facts={
            "texts": n_texts, "characters": sum(map(len, texts)),
            "texts_beyond_ascii": sum(not text.isascii() for text in texts),
            "terms": rows[0].n_features, "same_bits": same,
            "texts_a_second": round(n_texts / min(one.cpu for one in runs["ours"])),
            "with_all_files_written_and_read": round(float(np.median(files)), 2),
        },
    )  # fmt: skip


def _same(blocks: list[Any], matrix: Any) -> bool:
    """Return whether rows have the same bits once entries of a row are in order."""
    found = scipy.sparse.vstack([block.to_scipy() for block in blocks]).tocsr()
    expected = matrix.tocsr()
    expected.sort_indices()
    names = ("indptr", "indices", "data")
    return all(np.array_equal(getattr(found, one), getattr(expected, one)) for one in names)
