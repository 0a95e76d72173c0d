"""How many questions a goal takes: all classes found, or clusters that are nearly the classes.

Run with `python -m pipelines.papers.goals`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from hmrf_dask import LSA, HMRFKMeans
from hmrf_dask.active import explore_consolidate
from hmrf_dask.errors import HmrfError, HmrfWarning
from hmrf_dask.measures.scores import normalized_mutual_info
from pipelines.papers.sets import N_DIMENSIONS, Rows, data_folder, news, titles
from pipelines.papers.supervision import Fold, Given, asked, random_pairs

GOAL = 0.9  # v-measure
N_SEEDS, QUICK_SEEDS = 10, 2
OUTLIERS = 0.05  # of the rows, of no class
STEP = 25  # questions between the numbers that are tried
CERTAIN, DEFAULT, CLICKS, RANDOM = "default, answers certain", "default", "clicks", "random"
MOST = {CERTAIN: 1_500, DEFAULT: 1_500, CLICKS: 500, RANDOM: 5_000}
Classes = NDArray[np.int64]


class AllFoundError(Exception):
    """A document of every class was asked about."""


class Searched:
    """An oracle that counts questions until the last class has a group of its own.

    About a document of no class it does not know, or says that it is like no other.
    """

    def __init__(self, classes: Classes, *, knows_outliers: bool) -> None:
        self.classes, self.n_classes = classes, int(classes.max()) + 1
        self.n_questions, self._knows = 0, knows_outliers
        self._found: set[int] = set()
        self._document = -1

    def __call__(self, first: int, second: int) -> bool | None:
        """Answer, unless every class is found."""
        if first != self._document:  # nobody is asked about the one before any more: it is placed
            self._found.add(int(self.classes[second if self._document < 0 else self._document]))
            self._document = first
            if len(self._found - {-1}) == self.n_classes:
                raise AllFoundError
        self.n_questions += 1
        of_none = -1 in (self.classes[first], self.classes[second])
        unknown = False if self._knows else None
        return unknown if of_none else bool(self.classes[first] == self.classes[second])


def until_all_found(rows: Rows, seed: int, *, outliers: str = "") -> int:
    """Return the questions until all classes are found; `outliers`: "unknown", "different" or none.

    Where outliers are told apart from all, each is a group, so nobody knows how many there are.
    """
    values, classes = np.asarray(rows.values), rows.classes
    if outliers:
        n_rows = round(OUTLIERS * len(classes))
        drawn = np.random.default_rng(seed).normal(size=(n_rows, values.shape[1]))
        values = np.vstack([values, drawn / np.linalg.norm(drawn, axis=1, keepdims=True)])
        classes = np.concatenate([classes, np.full(n_rows, -1)])
    oracle = Searched(classes, knows_outliers=outliers == "different")
    n_clusters = None if outliers == "different" else rows.n_clusters
    try:
        explore_consolidate(values, oracle, n_clusters, len(classes) ** 2, random_state=seed)
    except AllFoundError:
        return oracle.n_questions
    return sys.maxsize


def until_clustered(rows: Rows, seed: int, how: str) -> int:
    """Return the least number of questions after which the v-measure of all rows is `GOAL`.

    It is found by halving, as if more questions were never worse; `sys.maxsize`: too many.
    """
    low, high = 0, MOST[how] // STEP + 1
    while low + 1 < high:
        middle = (low + high) // 2
        reached = measured(rows, seed, how, STEP * middle) >= GOAL
        low, high = (low, middle) if reached else (middle, high)
    return STEP * high if STEP * high <= MOST[how] else sys.maxsize


def measured(rows: Rows, seed: int, how: str, n_questions: int) -> float:
    """Return the v-measure of all rows after so many questions about any of them."""
    everything = np.arange(len(rows.classes))
    fold = Fold(rows.classes, everything, everything, seed, 0, rows.values)
    given = _given(fold, how, n_questions)
    pairs: dict[str, Any] = {"must_link": given.must_link, "cannot_link": given.cannot_link}
    trust = 1.0 if given.trust is None else given.trust
    model = HMRFKMeans(rows.n_clusters, trust=trust, random_state=seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\d+ rows are zero", HmrfWarning)
        model.fit(rows.values, **pairs)
    return normalized_mutual_info(rows.classes, model.labels_)  # the v-measure, by its definition


def _given(fold: Fold, how: str, n_questions: int) -> Given:
    if how == RANDOM:
        return random_pairs(fold, n_questions)
    return asked(
        fold, n_questions, strategy=DEFAULT, clicks=how == CLICKS,
        trust=1.0 if how == CERTAIN else None, everywhere=True,
    )  # fmt: skip


def table(folder: Path, n_seeds: int, *, quick: bool) -> Iterator[str]:
    """Yield lines of Markdown, each as soon as it is measured."""
    yield f"| goal | how | questions, mean of {n_seeds} | least | most |"
    yield "| --- | --- | --- | --- | --- |"
    messages = news("mini_newsgroups", folder)
    for outliers in ("", "unknown", "different"):
        said = f", {OUTLIERS:.0%} outliers: {outliers}" if outliers else ""
        yield _line(
            f"all 20 classes of News-all20 found{said}", DEFAULT,
            [until_all_found(_lsa(messages, seed), seed, outliers=outliers)
             for seed in range(n_seeds)],
        )  # fmt: skip
    for how in (CERTAIN, CLICKS) if quick else MOST:
        goal = f"v-measure {GOAL} of 500 titles, 10 classes"
        counts = [until_clustered(titles(folder, seed), seed, how) for seed in range(n_seeds)]
        yield _line(goal, how, counts)


def _lsa(rows: Rows, seed: int) -> Rows:
    values = LSA(N_DIMENSIONS, random_state=seed).fit_transform(rows.values)
    return replace(rows, values=values)


def _line(goal: str, how: str, counts: list[int]) -> str:
    reached = [count for count in counts if count < sys.maxsize]
    missed = f" ({len(counts) - len(reached)} never)" if len(reached) < len(counts) else ""
    mean = float(np.mean(reached)) if reached else math.nan
    least, most = min(reached, default=0), max(reached, default=0)
    return f"| {goal} | {how} | {mean:.0f}{missed} | {least} | {most} |"


@click.command()
@click.option("--quick", is_flag=True, help="Two seeds, of titles two ways alone.")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Where the sets lie."
)
def main(quick: bool, data: Path | None) -> None:
    """Tell how many questions a goal takes, by ten seeds, as Markdown."""
    n_seeds = QUICK_SEEDS if quick else N_SEEDS
    try:
        for line in table(data or data_folder(), n_seeds, quick=quick):
            click.echo(line)
    except HmrfError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
