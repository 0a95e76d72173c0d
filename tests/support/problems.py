"""Small problems for the oracle (hypothesis and seeded) and larger planted corpora with pairs.

Small problems are full of what breaks clustering code: ties, duplicate rows, zero rows, signed
values, empty and contradictory constraints, costs of 0, pairs given twice and the wrong way round.
Nothing of hmrf_dask is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hmrf_dask.kernels.compiled import inner, njit
from tests import naive

DISTORTIONS = ("cosine", "pearson", "euclidean", "i-divergence", "kl")
PENALTIES = ("distance", "potts")
SIGNED = ("cosine", "pearson", "euclidean")  # distortions that take negative values
COST_STEPS = 256  # effective costs are multiples of 2^-8


@dataclass(frozen=True, eq=False)
class Problem:
    """One small problem; `hidden` are the labels the consistent pairs were drawn from.

    `must_costs` and `cannot_costs` are None where every given pair costs what the closure costs.
    """

    X: NDArray[np.float32]
    K: int
    must: NDArray[np.int64]
    must_costs: NDArray[np.float64] | None
    cannot: NDArray[np.int64]
    cannot_costs: NDArray[np.float64] | None
    must_link_cost: float
    cannot_link_cost: float
    distortion: str
    penalty: str
    closure: bool
    on_conflict: str
    seed: int
    hidden: NDArray[np.int32]
    ids: NDArray[np.str_] | None = None

    @property
    def csr(self) -> sp.csr_matrix:
        """The rows as CSR float32 with int32 indices, explicit zeros left out."""
        return sp.csr_matrix(self.X)

    def pairs(self) -> naive.Pairs:
        """The pairs of J by brute force."""
        return naive.effective_pairs(
            len(self.X),
            self.must,
            self.cannot,
            self.must_costs,
            self.cannot_costs,
            must_link_cost=self.must_link_cost,
            cannot_link_cost=self.cannot_link_cost,
            closure=self.closure,
            on_conflict=self.on_conflict,
        )

    def model(self, **settings: Any) -> naive.Model:
        """The oracle's view of the problem; `settings` are further fields of `naive.Model`."""
        rows = self.X.astype(np.float64)
        return naive.Model(rows, self.distortion, self.penalty, self.pairs(), **settings)


def grid_of(distortion: str, signed: bool) -> list[float]:
    """Return the few values rows are made of, exact in float32."""
    return [0.0, 0.5, 1.0, -0.5, -1.0] if signed and distortion in SIGNED else [0.0, 0.5, 1.0, 2.0]


def legal_rows(values: NDArray[np.float64], distortion: str) -> NDArray[np.float32]:
    """Return float32 rows the distortion accepts: a row of zeros is bad input for kl.

    I-divergence takes zero rows, but some mass must be there to smooth with.
    """
    rows = np.ascontiguousarray(values, dtype=np.float32)
    zero = np.flatnonzero(~rows.any(axis=1))
    if distortion == "kl" or (distortion == "i-divergence" and len(zero) == len(rows)):
        rows[zero, zero % rows.shape[1]] = 1.0
    return rows


def split_pairs(
    drawn: list[tuple[int, int, bool, int]], hidden: NDArray[np.int32], own_costs: bool
) -> tuple[tuple[NDArray[np.int64], NDArray[np.float64] | None], ...]:
    """Return (pairs, costs) of must-links and of cannot-links.

    Each drawn pair is (i, j, flipped, cost in 1/256). Its kind is what `hidden` says, the opposite
    when flipped. A pair drawn again keeps the cost it had first.
    """
    first: dict[tuple[int, int, bool], int] = {}
    listed: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    costs: dict[bool, list[float]] = {True: [], False: []}
    for i, j, flipped, cost in drawn:
        if i == j:
            continue
        kind = bool(hidden[i] == hidden[j]) != flipped
        cost = first.setdefault((min(i, j), max(i, j), kind), cost)
        listed[kind].append((i, j))
        costs[kind].append(cost / COST_STEPS)
    return tuple(
        (
            np.array(listed[kind], dtype=np.int64).reshape(-1, 2),
            np.array(costs[kind]) if own_costs else None,
        )
        for kind in (True, False)
    )


def string_ids(n_rows: int, seed: int) -> NDArray[np.str_]:
    """Return unique ids whose order is not the order of the rows, some of them not ASCII."""
    order = np.random.default_rng(seed).permutation(n_rows)
    return np.array([f"{'éa'[number % 2]}/{number}" for number in order])


@st.composite
def problems(
    draw: st.DrawFn,
    distortions: tuple[str, ...] = DISTORTIONS,
    penalties: tuple[str, ...] = PENALTIES,
    max_rows: int = 40,
) -> Problem:
    """Draw a problem entry by entry, so that hypothesis shrinks it to its core."""
    distortion = draw(st.sampled_from(distortions))
    n_rows, width = draw(st.integers(4, max_rows)), draw(st.integers(2, 12))
    n_clusters = draw(st.integers(1, min(6, n_rows)))
    values = st.sampled_from(grid_of(distortion, draw(st.booleans())))
    row = st.integers(0, n_rows - 1)
    each = st.nothing()  # no fill: every entry is drawn, or most would be the same
    label = st.integers(0, n_clusters - 1)
    hidden = draw(hnp.arrays(np.int32, n_rows, elements=label, fill=each))
    centres = draw(hnp.arrays(np.float64, (n_clusters, width), elements=values, fill=each))
    rows = centres[hidden]  # many duplicates
    for i, m, value in draw(st.lists(st.tuples(row, st.integers(0, width - 1), values))):
        rows[i, m] = value
    rows[draw(st.lists(row, max_size=2))] = 0.0
    noisy = draw(st.booleans())  # contradictions need an answer, so "raise" only without them
    pair = st.tuples(row, row, st.booleans() if noisy else st.just(False), st.integers(0, 1280))
    fewest = draw(st.sampled_from([0, n_rows // 2, n_rows]))
    drawn = draw(st.lists(pair, min_size=fewest, max_size=2 * n_rows))
    (must, must_costs), (cannot, cannot_costs) = split_pairs(drawn, hidden, draw(st.booleans()))
    seed = draw(st.integers(0, 2**31 - 1))
    return Problem(
        X=legal_rows(rows, distortion),
        K=n_clusters,
        must=must,
        must_costs=must_costs,
        cannot=cannot,
        cannot_costs=cannot_costs,
        must_link_cost=draw(st.sampled_from([1.0, 0.0, 0.25, 5.0])),
        cannot_link_cost=draw(st.sampled_from([1.0, 0.0, 0.25, 5.0])),
        distortion=distortion,
        penalty=draw(st.sampled_from(penalties)),
        closure=draw(st.booleans()),
        on_conflict=draw(st.sampled_from(["keep", "drop"] if noisy else ["raise", "keep", "drop"])),
        seed=seed,
        hidden=hidden,
        ids=string_ids(n_rows, seed) if draw(st.booleans()) else None,
    )


def random_rows(
    rng: np.random.Generator, hidden: NDArray[np.int32], width: int, distortion: str, smooth: bool
) -> NDArray[np.float32]:
    """Return rows around one centre per hidden label: copies, changed entries, zero rows.

    `smooth` rows are no longer on the grid, so ties are rare among them.
    """
    grid = grid_of(distortion, bool(rng.integers(2)))
    shape = (len(hidden), width)
    centres = rng.choice(grid, (int(hidden.max()) + 1, width)) * (rng.random(width) < 0.6)
    rows = centres[hidden]
    rows = np.where(rng.random(shape) < rng.choice([0.0, 0.1, 0.4]), rng.choice(grid, shape), rows)
    if smooth:
        rows *= rng.uniform(0.5, 1.5, shape)
    rows[rng.random(len(rows)) < rng.choice([0.0, 0.1])] = 0.0
    return legal_rows(rows, distortion)


def random_pairs(
    rng: np.random.Generator, n_rows: int, noise: float
) -> list[tuple[int, int, bool, int]]:
    """Return up to 3 n drawn pairs, some of them twice, the second time reversed."""
    count = int(rng.integers(0, 3 * n_rows))
    ends = rng.integers(0, n_rows, (count, 2)).tolist()
    flips = (rng.random(count) < noise).tolist()
    costs = rng.integers(0, 1281, count).tolist()
    drawn = [(i, j, flip, cost) for (i, j), flip, cost in zip(ends, flips, costs, strict=True)]
    return drawn + [(j, i, flip, cost) for i, j, flip, cost in drawn[: count // 8]]


def random_problem(seed: int, **chosen: Any) -> Problem:
    """Return the problem of a seed; `chosen` holds fields of Problem, and n, d, smooth, noise.

    The same kind as `problems()` draws, in a fraction of a millisecond. Without `noise` the pairs
    are consistent; with it (the share of wrong answers) `on_conflict` is "keep" or "drop".
    """
    rng = np.random.default_rng(seed)
    distortion = chosen.pop("distortion", DISTORTIONS[rng.integers(len(DISTORTIONS))])
    n_rows = chosen.pop("n", int(rng.integers(4, 41)))
    width = chosen.pop("d", int(rng.integers(2, 13)))
    n_clusters = chosen.pop("K", int(rng.integers(1, min(6, n_rows) + 1)))
    noise = chosen.pop("noise", float(rng.choice([0.0, 0.0, 0.1, 0.5])))
    smooth = chosen.pop("smooth", bool(rng.integers(2)))
    hidden = rng.integers(0, n_clusters, n_rows).astype(np.int32)
    rows = random_rows(rng, hidden, width, distortion, smooth)
    drawn = random_pairs(rng, n_rows, noise)
    (must, must_costs), (cannot, cannot_costs) = split_pairs(drawn, hidden, bool(rng.integers(2)))
    fields: dict[str, Any] = {
        "X": rows,
        "must": must,
        "must_costs": must_costs,
        "cannot": cannot,
        "cannot_costs": cannot_costs,
        "must_link_cost": float(rng.choice([1.0, 1.0, 0.0, 0.25, 5.0])),
        "cannot_link_cost": float(rng.choice([1.0, 1.0, 0.0, 0.25, 5.0])),
        "penalty": PENALTIES[rng.integers(2)],
        "closure": bool(rng.integers(2)),
        "on_conflict": str(rng.choice(["keep", "drop"] if noise else ["raise", "keep", "drop"])),
        "seed": seed,
        "hidden": hidden,
        "ids": string_ids(n_rows, seed) if rng.integers(2) else None,
    }
    return Problem(K=n_clusters, distortion=distortion, **(fields | chosen))


def random_weights(d: int, seed: int) -> NDArray[np.float64]:
    """Return positive feature weights with mean 1."""
    weights = np.random.default_rng(seed).uniform(0.2, 2.0, d)
    return np.asarray(weights / weights.mean(), dtype=np.float64)


# --- larger corpora ------------------------------------------------------------------------------


@inner()
def _random(state: NDArray[np.uint64]) -> float:
    """One step of splitmix64, as a float in [0, 1)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return float(z >> np.uint64(11)) * 2.0**-53


@njit(nogil=True, cache=True)
def _write_documents(
    labels: NDArray[np.int32],
    lengths: NDArray[np.int32],
    common: NDArray[np.int32],
    topical: NDArray[np.int32],
    share: float,
    seed: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    counts: NDArray[np.float32],
) -> None:
    """Draw each document's words, sort them and count; a document depends on (seed, number)."""
    state = np.zeros(1, np.uint64)
    words = np.empty(lengths.max(), np.int32)
    place = 0
    for i in range(len(labels)):
        state[0] = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(i)
        state[0] = np.uint64(_random(state) * 2.0**53) * np.uint64(2048) + np.uint64(i)
        for p in range(lengths[i]):
            if _random(state) < share:
                words[p] = topical[labels[i], int(_random(state) * topical.shape[1])]
            else:
                words[p] = common[int(_random(state) * len(common))]
        drawn = words[: lengths[i]]
        drawn.sort()
        start = place
        for word in drawn:
            if place > start and indices[place - 1] == word:
                counts[place - 1] += 1.0
            else:
                indices[place] = word
                counts[place] = 1.0
                place += 1
        indptr[i + 1] = place


def zipf_table(words: NDArray[np.int64], size: int, shift: float) -> NDArray[np.int32]:
    """Return `size` entries that hold each word in proportion to 1 / (its place + shift)."""
    share = np.cumsum(1.0 / (np.arange(len(words)) + shift))
    places = np.searchsorted(share / share[-1], (np.arange(size) + 0.5) / size)
    return words[places].astype(np.int32)


def planted_text(
    n: int, d: int, k: int, seed: int, *, words: int = 40, topical_share: float = 0.4
) -> tuple[sp.csr_matrix, NDArray[np.int32]]:
    """Return a Zipf-like TF-IDF corpus, float32 CSR with unit rows, and its hidden topics.

    A document has words/2 to 3 words/2 words; `topical_share` of them come from its topic, the
    others from the whole vocabulary. Every row has at least one word.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n).astype(np.int32)
    lengths = rng.integers(max(1, words // 2), 3 * words // 2 + 2, n).astype(np.int32)
    common = zipf_table(rng.permutation(d), 1 << 16, 10.0)
    width = max(2, min(d, 600, 2 * d // max(k, 1)))
    topical = np.stack(
        [zipf_table(rng.choice(d, width, replace=False), 1 << 12, 5.0) for _ in range(k)]
    )
    indptr = np.zeros(n + 1, np.int64)
    indices = np.empty(int(lengths.sum()), np.int32)
    counts = np.empty(len(indices), np.float32)
    _write_documents(labels, lengths, common, topical, topical_share, seed, indptr, indices, counts)
    indices, values = indices[: indptr[-1]].copy(), counts[: indptr[-1]].copy()
    document_frequency = np.bincount(indices, minlength=d)
    idf = (np.log((1 + n) / (1 + document_frequency)) + 1).astype(np.float32)
    values *= idf[indices]
    norms = np.sqrt(np.add.reduceat(values.astype(np.float64) ** 2, indptr[:-1]))
    values /= np.repeat(norms, np.diff(indptr)).astype(np.float32)
    return sp.csr_matrix((values, indices, indptr.astype(np.int32)), shape=(n, d)), labels


def pairs_of_classes(labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs (must, cannot) whose closure says what classes say, -1 being none."""
    groups = [np.flatnonzero(labels == name) for name in np.unique(labels[labels >= 0])]
    must = np.concatenate([np.stack([rows[:-1], rows[1:]], axis=1) for rows in groups])
    first = [rows[0] for rows in groups]
    cannot = [(a, b) for place, a in enumerate(first) for b in first[place + 1 :]]
    return must, np.array(cannot, np.int64).reshape(-1, 2)


def label_pairs(
    labels: NDArray[Any], m: int, seed: int, must_share: float | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return m different pairs of rows as (must, cannot): equal labels must link, others cannot.

    Rows are drawn uniformly; with `must_share` that share of the pairs is must-links. Order and
    direction of the pairs are random.
    """
    rng = np.random.default_rng(seed)
    labels = np.unique(labels, return_inverse=True)[1]
    n, sizes = len(labels), np.bincount(labels)
    same, every = int((sizes * (sizes - 1) // 2).sum()), n * (n - 1) // 2
    if must_share is None:
        pairs = _draw_pairs(rng, labels, m, every, None)
        alike = labels[pairs[:, 0]] == labels[pairs[:, 1]]
        return pairs[alike], pairs[~alike]
    wanted = round(m * must_share)
    must = _draw_pairs(rng, labels, wanted, same, True)
    return must, _draw_pairs(rng, labels, m - wanted, every - same, False)


def _draw_pairs(
    rng: np.random.Generator, labels: NDArray[Any], m: int, possible: int, alike: bool | None
) -> NDArray[np.int64]:
    """Return m different pairs of one kind (None: any)."""
    n = len(labels)
    if m > possible:
        raise ValueError(f"{m} pairs wanted, {n} rows have only {possible} of this kind")
    codes = np.empty(0, np.int64)
    if 3 * m > possible and n <= 5000:  # too dense to hit by chance
        i, j = np.triu_indices(n, 1)
        kept = slice(None) if alike is None else (labels[i] == labels[j]) == alike
        codes = (i * n + j)[kept]
    order, sizes = np.argsort(labels, kind="stable"), np.bincount(labels, minlength=1)
    starts = np.cumsum(sizes) - sizes
    while len(codes) < m:
        i = rng.integers(0, n, 2 * (m - len(codes)) + 16)
        j = rng.integers(0, n, len(i))
        if alike:
            j = order[starts[labels[i]] + (rng.random(len(i)) * sizes[labels[i]]).astype(np.int64)]
        kept = (i != j) & ((labels[i] != labels[j]) if alike is False else True)
        low, high = np.minimum(i, j)[kept], np.maximum(i, j)[kept]
        codes = np.unique(np.concatenate([codes, low * n + high]))
    codes = rng.permutation(codes)[:m]
    pairs = np.stack([codes // n, codes % n], axis=1)
    return np.where(rng.random((m, 1)) < 0.5, pairs, pairs[:, ::-1])
