"""The fits that must give the same bits however they are done: a feature joins with a line here.

`tests/test_same_bits.py` holds all of them to that; `tests/golden.py` records their answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse

from hmrf_dask import (
    ConstrainedKMeans,
    COPKMeans,
    KMeans,
    MPCKMeans,
    PCKMeans,
    SeededKMeans,
)
from tests.support.family_fits import blobs, some_labels, text_corpus
from tests.support.fits import NO_PAIRS, SIZES, Case, Mixed, Projection, text_case
from tests.support.own_distortions import Hellinger, histograms
from tests.support.problems import label_pairs, pairs_of_classes, planted_text, string_ids

# The last budget cuts even the components of these sizes, which are then settled in rounds.
ROOMY, NARROW = "1 GiB", "8 KiB"
WHOLE_SIZES = "hmrf_dask.fit.candidates.WHOLE_ROWS", "hmrf_dask.fit.starts.WHOLE_WORK"
DENSE = {**SIZES, "n_features": 10, "dense": True}


def chained(**parameters: Any) -> Case:
    """Return a case with a must-link chain so long that its closure is kept as a table."""
    case = text_case(**{**SIZES, "n_rows": 200, "penalty": "distance", **parameters})
    chain = np.arange(140)
    must = np.stack([chain[:-1], chain[1:]], axis=1)
    cannot = np.array([[0, 150], [3, 160], [151, 160], [152, 161]])
    return replace(case, must=must, cannot=cannot)


def noisy(**parameters: Any) -> Case:
    """Return a case whose cannot-links are partly wrong, so that pairs are violated."""
    case = text_case(**{**SIZES, "closure": False, "penalty": "distance", **parameters})
    kept = np.delete(case.must, np.s_[::4], axis=0)
    return replace(case, must=kept, cannot=np.concatenate([case.cannot, case.must[::4]]))


def doubted(**parameters: Any) -> Case:
    """Return a case with answers that contradict each other, and cost by how likely they are."""
    case = noisy(penalty="trust", on_conflict="keep", **parameters)
    again = case.cannot[::3]  # some people say the opposite
    return replace(case, must=np.concatenate([case.must, again]))


def believing(**parameters: Any) -> Case:
    """Return a case that is settled by belief propagation."""
    return text_case(**SIZES, inference="belief-propagation", **parameters)


def sampled(n_pairs: int) -> Case:
    """Return a case whose starts are tried on a sample of the rows."""
    starts = "hmrf_dask.tasks.start_sample"
    constants = {f"{starts}.SAMPLE_ROWS": 60, f"{starts}.SAMPLE_ROWS_PER_CLUSTER": 1}
    return replace(text_case(160, 240, 3, n_pairs, ids=True), constants=constants)


def tournament(n_pairs: int) -> Case:
    """Return a case whose starts compete in heats, on part of the rows and of those drawn."""
    constants = {
        **dict.fromkeys(WHOLE_SIZES, 0),
        "hmrf_dask.tasks.first_centroids.DRAWN_ROWS": 40,
        "hmrf_dask.tasks.first_centroids.DRAWN_ROWS_PER_CLUSTER": 1,
    }
    case = sampled(n_pairs)
    return replace(case, constants={**case.constants, **constants})


def partly_labelled() -> Case:
    """Return text in heats whose start the labels of three of four topics decide, against J."""
    rows, topics = planted_text(200, 300, 4, 20, words=30, topical_share=0.3)
    known = np.full(200, -1)
    few = np.random.default_rng(20).permutation(200)[:20]
    known[few] = np.where(topics[few] == 1, -1, topics[few])
    parameters = {"n_clusters": 4, "random_state": 0, "n_init": 5}
    constants = dict.fromkeys(WHOLE_SIZES, 0)
    pairs, ids = pairs_of_classes(known), string_ids(200, 23)
    return Case(rows, *pairs, parameters, ids, constants=constants)


def of_family(
    kind: type[Any], n_pairs: int = 30, *, cannot: bool = True, **parameters: Any
) -> Case:
    """Return text with pairs for another estimator of the family."""
    rows, _, must, cannot = text_corpus(n_pairs=n_pairs)
    chosen = {"n_clusters": 3, "random_state": 0, **parameters}
    return Case(rows, must, cannot, chosen, kind=kind)


def seeded(kind: type[Any], *, pairs: bool = True, classes: int = 3, lazy: bool = False) -> Case:
    """Return text of which a fifth of the rows have known classes."""
    rows, topics, must, _ = text_corpus()
    known: Any = some_labels(topics, 0.2)
    known = np.where(known == 1, -1, known) if classes < 3 else known
    parameters = {"n_clusters": 3, "random_state": 0}
    must = must if pairs else NO_PAIRS
    known = da.from_array(known, chunks=50) if lazy else known
    return Case(rows, must, NO_PAIRS, parameters, known=known, kind=kind)


def softly_seeded() -> Case:
    """Return text of which a fifth of the rows have shares in every class."""
    case = seeded(SeededKMeans, pairs=False)
    shares = np.where(case.known[:, None] >= 0, 0.1 + 0.7 * np.eye(3)[text_corpus()[1]], 0.0)
    return replace(case, known=shares)


def learning_pairs() -> Case:
    """Return few rows whose weights are learned from chains of pairs."""
    rows, hidden = blobs()
    same, different = np.flatnonzero(hidden == 0), np.flatnonzero(hidden == 1)
    must, cannot = np.stack([same[:-1], same[1:]], 1)[:8], np.stack([same, different], 1)[:8]
    parameters = {"n_clusters": 3, "random_state": 0, "n_init": 2}
    return Case(rows, must, cannot, parameters, kind=MPCKMeans)


def of_own_distortion() -> Case:
    """Return histograms that are compared by a distortion of the user's."""
    rows, hidden = histograms(3)
    parameters = {"n_clusters": 3, "random_state": 0, "distortion": Hellinger()}
    return Case(rows, *label_pairs(hidden, 40, 3), parameters)


def of_two_kinds(**parameters: Any) -> Mixed:
    """Return text with a vector around that of its topic next to the words of each row."""
    case, rng = text_case(**{**SIZES, **parameters}), np.random.default_rng(5)
    sizes = (SIZES[name] for name in ("n_rows", "n_features", "n_clusters"))
    topics, width = planted_text(*sizes, 0, words=12)[1], Mixed.n_vectors
    vectors = rng.normal(size=(3, width))[topics] + rng.normal(size=(case.n_rows, width))
    both = scipy.sparse.hstack([case.X, vectors.astype(np.float32)], format="csr")
    return Mixed(**{**vars(case), "X": both})


def projected(*, dense: bool = False) -> Projection:
    """Return rows for LSA."""
    rows: Any = planted_text(240, 300, 6, 0, words=25)[0]
    if dense:
        rows = np.random.default_rng(0).normal(size=(150, 40)) * np.linspace(1.0, 5.0, 40)
        rows = rows.astype(np.float32)
    parameters = {"n_components": 8, "random_state": 0}
    return Projection(rows, NO_PAIRS, NO_PAIRS, parameters, string_ids(rows.shape[0], 0))


CASES = {
    "cosine": text_case(**{**SIZES, "n_pairs": 100}),
    "cosine learned": text_case(**SIZES, penalty="distance", learn_weights=True),
    "cosine potts open": text_case(**{**SIZES, "n_pairs": 150}, penalty="potts", closure=False),
    "cosine in tables": chained(),
    "doubted": doubted(n_pairs=150),
    "certain, in tables": chained(penalty="trust", trust=1.0),
    "euclidean": text_case(**SIZES, distortion="euclidean"),
    "i-divergence": text_case(**SIZES, distortion="i-divergence", max_iter=4),
    "kl": text_case(**SIZES, distortion="kl"),
    "pearson": text_case(**SIZES, distortion="pearson"),
    "cosine dense": text_case(**DENSE),
    "euclidean dense": text_case(**DENSE, distortion="euclidean", learn_weights=True),
    "pearson dense": text_case(**DENSE, distortion="pearson"),
    "words and vectors": of_two_kinds(ids=True),
}
FEW = {**SIZES, "n_rows": 70, "n_pairs": 50}  # rounds are many small tasks
IN_ROUNDS = {
    "cosine": text_case(**FEW),
    "cosine learned": text_case(**FEW, penalty="distance", learn_weights=True),
    "cosine potts open": text_case(**FEW, penalty="potts", closure=False),
    "doubted": doubted(n_rows=70, n_pairs=60),
    "kl": text_case(**FEW, distortion="kl"),
    "pearson": text_case(**FEW, distortion="pearson"),
    "euclidean dense": text_case(
        **{**FEW, "n_features": 10, "dense": True}, distortion="euclidean", learn_weights=True
    ),
    "euclidean, with ids": text_case(**FEW, ids=True, distortion="euclidean"),
}
# A process takes a task in milliseconds, so only what takes a way of its own through the tasks.
ON_WORKERS = (
    "euclidean", "cosine in tables", "pearson, in rounds", "beliefs", "first variation",
    "own distortion", "COPKMeans, many pairs", "SeededKMeans, two classes", "ConstrainedKMeans",
    "LSA",
)  # fmt: skip
FITS: Mapping[str, Case] = {
    **CASES,
    **{f"{name}, in rounds": replace(case, memory=NARROW) for name, case in IN_ROUNDS.items()},
    "with ids": text_case(**SIZES, ids=True),
    "words and vectors, learned": of_two_kinds(penalty="distance", learn_weights=True),
    "words and vectors, euclidean": of_two_kinds(distortion="euclidean", learn_weights=True),
    "words and vectors, first variation": of_two_kinds(refine=True, closure=False),
    "words and vectors, beliefs": of_two_kinds(inference="belief-propagation"),
    "words and vectors, in rounds": replace(of_two_kinds(), memory=NARROW),
    "words and vectors, hard pairs": replace(of_two_kinds(), kind=COPKMeans),
    "kl with ids": text_case(**SIZES, ids=True, distortion="kl", learn_weights=True),
    "one start": text_case(**SIZES, init="neighborhoods"),
    "starts from a sample": sampled(40),
    "starts from a sample, one component": sampled(400),
    "starts in heats": tournament(40),
    "starts by held-out answers": partly_labelled(),
    "ended by tol": text_case(**SIZES, init="neighborhoods", refine=True, tol=3e-3),
    "beliefs": noisy(inference="belief-propagation"),
    "beliefs, potts": noisy(inference="belief-propagation", penalty="potts"),
    "beliefs, learned": believing(learn_weights=True, closure=False),
    "beliefs, euclidean": believing(distortion="euclidean"),
    "beliefs, kl with ids": believing(distortion="kl", ids=True),
    "first variation": noisy(refine=True, n_init=3),
    "first variation in small tasks": replace(noisy(refine=True, n_init=3), memory="16 KiB"),
    "first variation with ids": noisy(refine=True, n_init=3, ids=True),
    "doubted, with ids": doubted(ids=True),
    "doubted, euclidean": doubted(distortion="euclidean"),
    "trusted in part": doubted(trust=0.8, inference="belief-propagation"),
    "own distortion": of_own_distortion(),
    "KMeans": replace(of_family(KMeans, n_init=3), must=NO_PAIRS, cannot=NO_PAIRS),
    "PCKMeans": of_family(PCKMeans, n_init=2),
    "MPCKMeans": learning_pairs(),
    "outliers kept out": text_case(**FEW, init="neighborhoods", outliers=0.1, trim_outliers=True),
    "outliers kept out, euclidean": text_case(
        **DENSE, distortion="euclidean", learn_weights=True, outliers=0.1, trim_outliers=True
    ),
    "full metric": text_case(**DENSE, distortion="euclidean", learn_weights="full", ids=True),
    "full metric, outliers kept out": text_case(
        **DENSE, distortion="euclidean", learn_weights="full", outliers=0.1, trim_outliers=True
    ),
    "COPKMeans": of_family(COPKMeans, n_init=2),
    "COPKMeans, many pairs": of_family(COPKMeans, 60, n_init=2),
    "COPKMeans, labels that are searched for": replace(
        of_family(COPKMeans, 160, n_init=2), ids=string_ids(120, 0)
    ),
    "SeededKMeans": seeded(SeededKMeans),
    "SeededKMeans without pairs": seeded(SeededKMeans, pairs=False),
    "SeededKMeans, two classes": seeded(SeededKMeans, classes=2, lazy=True),
    "SeededKMeans, soft": softly_seeded(),
    "ConstrainedKMeans": seeded(ConstrainedKMeans),
    "ConstrainedKMeans without pairs": seeded(ConstrainedKMeans, pairs=False),
    "ConstrainedKMeans, two classes": seeded(ConstrainedKMeans, classes=2, lazy=True),
}
LSAS: Mapping[str, Case] = {"LSA": projected(), "LSA dense": projected(dense=True)}
