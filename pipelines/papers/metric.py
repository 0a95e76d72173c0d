"""Dense rows of few dimensions: full and diagonal metrics beside RCA and ITML with K-means.

Run with `python -m pipelines.papers.metric`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmrf_dask import KMeans
from hmrf_dask.errors import InvalidInputError
from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import Rows, iris
from pipelines.papers.supervision import Given, random_pairs

Matrix = NDArray[np.float64]
Learn = Callable[[Matrix, Given, int], Matrix]
PAIRS = Axis("number of pairs", (60, 250), (250,))
NONE, DIAGONAL, FULL, AUTO = "no weights", "diagonal", "full", "auto"
RCA, ITML = "RCA + K-means", "ITML + K-means"
LEAST = 1e-9  # of the largest variance: less is rounding
ROUNDS, TOLERANCE = 200, 1e-3  # of ITML
NEAR, FAR, DRAWN = 5, 95, 20_000  # percentiles of random distances that ITML asks pairs to keep


@cache
def of_scikit_learn(name: str, _folder: Path) -> Rows:
    """Return a set that scikit-learn brings, as it is."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return Rows(np.asarray(found.data, np.float64), np.asarray(found.target, np.int64))


@cache
def uci(name: str, folder: Path) -> Rows:
    """Return a sample of UCI from `<name>.parquet`: columns x0, x1, … and label."""
    import pyarrow.parquet as pq

    path = folder / f"{name}.parquet"
    if not path.exists():
        raise InvalidInputError(
            f"{name}.parquet must be there (columns x0, x1, … and label), got no such file in "
            f"{folder}; give its folder with --data"
        )
    table = pq.read_table(path)
    columns = [column for column in table.column_names if column.startswith("x")]
    values = np.column_stack([table[column].to_numpy() for column in columns])
    classes = np.unique(table["label"].to_numpy(), return_inverse=True)[1]
    return Rows(values.astype(np.float64), classes.astype(np.int64))


@cache
def standardised(load: Callable[[Path], Rows], folder: Path) -> Rows:
    """Return rows with features of mean 0 and deviation 1."""
    rows = load(folder)
    spread = np.maximum(rows.values.std(axis=0), 1e-12)
    return replace(rows, values=(rows.values - rows.values.mean(axis=0)) / spread)


def rca(rows: Matrix, given: Given, _seed: int) -> Matrix:
    """Return rows whitened by the mean covariance of must-linked groups (Shental et al., 2002)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    must = given.must_link
    shape = (len(rows), len(rows))
    graph = coo_array((np.ones(len(must)), (must[:, 0], must[:, 1])), shape=shape)
    groups = connected_components(graph, directed=False)[1]
    sizes = np.bincount(groups)
    sums = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(sums, groups, rows)
    grouped = sizes[groups] > 1
    gaps = (rows - (sums / sizes[:, None])[groups])[grouped]
    values, vectors = np.linalg.eigh(gaps.T @ gaps / max(1, len(gaps)))
    return rows @ (vectors / np.sqrt(np.maximum(values, LEAST * max(values[-1], LEAST))))


def itml(rows: Matrix, given: Given, seed: int) -> Matrix:
    """Return rows under the metric of information-theoretic metric learning (Davis et al., 2007).

    Algorithm 1 with slack γ = 1 from the identity: must-links are to be nearer than the 5th
    percentile of random distances, cannot-links farther than the 95th.
    """
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, len(rows), (2, DRAWN))
    drawn = np.percentile(((rows[ends[0]] - rows[ends[1]]) ** 2).sum(axis=1), (NEAR, FAR))
    pairs, n_must = given.pairs, len(given.must_link)
    gaps = rows[pairs[:, 0]] - rows[pairs[:, 1]]
    signs = np.where(np.arange(len(pairs)) < n_must, 1.0, -1.0)
    bounds, multipliers = np.where(signs > 0, *drawn), np.zeros(len(pairs))
    metric = np.eye(rows.shape[1])
    for _ in range(ROUNDS):
        before = multipliers.copy()
        for t, (gap, sign) in enumerate(zip(gaps, signs, strict=True)):
            turned = metric @ gap
            size = gap @ turned
            if size < 1e-12:
                continue
            step = min(multipliers[t], 0.5 * sign * (1.0 / size - 1.0 / bounds[t]))
            bounds[t] /= 1.0 + sign * step * bounds[t]
            multipliers[t] -= step
            metric += sign * step / (1.0 - sign * step * size) * np.outer(turned, turned)
        scale = np.linalg.norm(multipliers) + np.linalg.norm(before)
        if not scale or np.abs(before - multipliers).sum() < TOLERANCE * scale:
            break
    values, vectors = np.linalg.eigh(metric)
    return rows @ (vectors * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True)
class Transformed(Arm):
    """K-means with ten starts on rows in the space of a metric that others learn."""

    learn: Learn = rca

    def fit(self, rows: Rows, given: Given, x: float | None, seed: int) -> Any:  # noqa: ARG002 - of `Arm`
        """Return a fitted model of all rows."""
        moved = replace(rows, values=self.learn(rows.values, given, seed))
        model = KMeans(rows.n_clusters, distortion="euclidean", random_state=seed)
        return model.fit(moved.values)


ARMS = (
    *(
        Arm(name, "MPCKMeans", {"learn_weights": value})
        for name, value in ((NONE, False), (DIAGONAL, True), (FULL, "full"), (AUTO, "auto"))
    ),
    Transformed(RCA, learn=rca),
    Transformed(ITML, learn=itml),
)
SETS: dict[str, Callable[[Path], Rows]] = {
    "iris": iris,
    "wine": partial(of_scikit_learn, "wine"),
    "breast cancer": partial(of_scikit_learn, "breast_cancer"),
    "digits 3, 8, 9": partial(uci, "uci_digits389"),
    "letters I, J, L": partial(uci, "uci_letter_ijl"),
}
STUDIES = tuple(
    Study(f"{name}{after}", form, PAIRS, ARMS, random_pairs, is_large=bool(after))
    for after, made in (("", False), (", standardised", True))
    for name, load in SETS.items()
    for form in (partial(standardised, load) if made else load,)
)


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI of all arms in a table for each number of pairs, and the means."""
    arms, lines = [arm.name for arm in ARMS], list[str]()
    for x in next(iter(found.values())).xs:
        lines += [f"| {x:g} pairs | {' | '.join(arms)} |", f"|{' --- |' * (len(arms) + 1)}"]
        table = {name: [curves.mean(arm, x) for arm in arms] for name, curves in found.items()}
        table["mean"] = np.mean(list(table.values()), axis=0).tolist()
        lines += [
            f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |"
            for name, means in table.items()
        ]
        least = min(curves.above(AUTO, NONE, x) for curves in found.values())
        lines += ["", f"- {AUTO} against {NONE}: {least:+.3f} at least.", ""]
    return lines


EXPERIMENT = Experiment(
    "metric",
    "Metrics learned from pairs, on dense rows",
    "Random pairs from one half of the rows, all rows clustered by squared Euclidean distances, "
    "NMI on the other half. RCA whitens by the mean covariance of must-linked groups; ITML is that "
    "of Davis et al. (2007); both with K-means and ten starts.",
    STUDIES,
    tuple(Figure(study.name, study.name) for study in STUDIES),
    findings,
    runs=5,
)

if __name__ == "__main__":
    main(EXPERIMENT)
