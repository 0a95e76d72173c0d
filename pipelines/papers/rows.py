"""What rows are made of: words, embeddings and both, without an answer, at one weight for all sets.

Run with `HMRF_MINILM=FOLDER python -m pipelines.papers.rows`, a folder of all-MiniLM-L6-v2; with
`--quick` without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hmrf_dask import Blocks
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.text.embedders import checked_vectors, find_embedder, loaded
from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import (
    VECTORISER,
    Rows,
    Texts,
    classes_of,
    texts_of_arxiv,
    texts_of_news,
)
from pipelines.papers.supervision import Fold, Given

MINILM: Final = "HMRF_MINILM"  # a folder of all-MiniLM-L6-v2
CACHE: Final = "HMRF_VECTORS"  # where vectors are kept from run to run
LARGEST: Final = ("math", "cs", "physics", "cond-mat")  # classes of arXiv
SETS: Final[Mapping[str, Callable[[Path], Texts]]] = {
    **{
        f"news_{name}_3": partial(texts_of_news, f"news_{name}_3")
        for name in ("different", "related", "similar")
    },
    "arXiv titles": partial(texts_of_arxiv, (), 100, "title"),
    "arXiv abstracts": partial(texts_of_arxiv, LARGEST, 500, "abstract"),
}
# Chosen on four triples of newsgroups (the first of `noise.TRIPLES`), titles of ten classes of
# physics and abstracts of four of cond-mat, from .05 to 1: the highest mean over the better kind.
WEIGHT: Final = 0.25
WORDS, WORDLLAMA, TRANSFORMER = "words", "wordllama", "MiniLM"
# Words and an embedder, and what it weighs next to them.
MIXED: Final[Mapping[str, tuple[str, float]]] = {
    f"{WORDS} + {WORDLLAMA}": (WORDLLAMA, WEIGHT),
    f"{WORDS} + {TRANSFORMER}": (TRANSFORMER, WEIGHT),
    f"{WORDS} + {TRANSFORMER} at 1": (TRANSFORMER, 1.0),
}
KINDS: Final = (WORDS, WORDLLAMA, TRANSFORMER, *MIXED)


def model_of(name: str) -> str:
    """Return what stands for an embedder in a job file."""
    if name == WORDLLAMA:
        return name
    if folder := os.environ.get(MINILM):
        return f"{folder}/"
    raise ConfigurationError(
        f"MiniLM must lie in a folder that the environment variable {MINILM} names, got none; "
        "leave its studies out with --quick"
    )


def vectors_of(name: str, texts: list[str]) -> NDArray[np.float32]:
    """Return vectors of texts, kept in a folder if `HMRF_VECTORS` names one."""
    embedder = find_embedder(model_of(name))
    content = "\0".join([embedder.identity, *texts]).encode("utf-8", "surrogatepass")
    kept = Path(os.environ.get(CACHE, "")) / f"{hashlib.sha256(content).hexdigest()[:24]}.npy"
    if CACHE in os.environ and kept.exists():
        found: NDArray[np.float32] = np.load(kept)
        return found
    vectors = checked_vectors(loaded(embedder), texts)
    if CACHE in os.environ:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(kept, vectors)
    return vectors


def rows_of(load: Callable[[Path], Texts], kind: str, folder: Path) -> Rows:
    """Return rows of a kind: words, an embedder's, or both."""
    texts, labels = load(folder)
    classes = classes_of(labels)
    if kind not in MIXED:
        return Rows(_words(texts) if kind == WORDS else vectors_of(kind, texts), classes)
    embedder, weight = MIXED[kind]
    parts = [_words(texts), vectors_of(embedder, texts)]
    return Rows(Blocks(parts, weights=[1.0, weight]).matrix, classes)


def _words(texts: list[str]) -> sp.csr_matrix:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return sp.csr_matrix(TfidfVectorizer(**VECTORISER).fit_transform(texts))


def _no_answers(_fold: Fold, _x: float) -> Given:
    return Given()


FIT: Final = "defaults"
MEASURE: Final = "nmi_all"


def named(of: str, kind: str) -> str:
    """Return the name of the study of a set and a kind of rows."""
    return f"{of}, {kind}"


STUDIES = tuple(
    Study(
        named(of, kind),
        partial(rows_of, load, kind),
        Axis("answers", (0,), (0,)),
        (Arm(FIT, takes="nothing"),),
        _no_answers,
        is_large=TRANSFORMER in kind,
    )
    for of, load in SETS.items()
    for kind in KINDS
)


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI by set and kind of rows, and what both kinds are above the better one alone."""
    head = [*KINDS, *(f"{kind}, above the better alone" for kind in MIXED)]
    lines = [f"| set | {' | '.join(head)} |", f"|{' --- |' * (len(head) + 1)}"]
    above: dict[str, list[float]] = {kind: [] for kind in MIXED}
    for of in SETS:
        means = {
            kind: found[name].mean(FIT, 0, MEASURE)
            for kind in KINDS
            if (name := named(of, kind)) in found
        }
        for kind in means.keys() & above.keys():
            above[kind].append(means[kind] - max(means[WORDS], means[MIXED[kind][0]]))
        shown = [f"{means[kind]:.3f}" if kind in means else "–" for kind in KINDS]
        shown += [f"{above[kind][-1]:+.3f}" if kind in means else "–" for kind in MIXED]
        lines.append(f"| {of} | {' | '.join(shown)} |")
    ends = [
        f"{kind}: {np.mean(values):+.3f} in the mean, {min(values):+.3f} at worst"
        for kind, values in above.items()
        if values
    ]
    return [*lines, "", f"Above the better kind alone: {'; '.join(ends)}."]


EXPERIMENT = Experiment(
    "rows",
    "What rows are made of",
    "The defaults of the library without an answer on rows of words (TF-IDF), of an embedder, and "
    f"of both, embeddings at weight {WEIGHT:g} next to words on all sets, MiniLM at 1, too, which "
    "sees the first 256 tokens. NMI of all rows.",
    STUDIES,
    tuple(Figure(one.name, one.name, MEASURE) for one in STUDIES),
    findings,
    runs=2,
    quick_runs=1,
    further=(MEASURE,),
)

if __name__ == "__main__":
    main(EXPERIMENT)
