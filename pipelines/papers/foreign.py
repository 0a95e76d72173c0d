"""Foreign texts among messages: how many are found, marked after the fit or kept out of centroids.

Run with `python -m pipelines.papers.foreign`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from hmrf_dask import HMRFKMeans
from hmrf_dask.errors import HmrfError, HmrfWarning
from hmrf_dask.measures.scores import normalized_mutual_info
from pipelines.papers.sets import VECTORISER, all_texts, classes_of, data_folder

TRIPLES: Final = (  # nothing was chosen on them
    ("sci.crypt", "rec.sport.hockey", "soc.religion.christian"),
    ("comp.graphics", "sci.space", "talk.politics.guns"),
    ("comp.sys.mac.hardware", "talk.politics.mideast", "rec.sport.baseball"),
)
SIZES: Final = (100, 300)  # messages of a group
SHARE: Final = 0.05  # of all texts are foreign: abstracts of arXiv
SEEDS: Final = range(200, 205)
ARMS: Final = {"marked": {}, "kept out": {"trim_outliers": True}}


class Mixture(NamedTuple):
    """Messages of some groups and foreign texts, in any order."""

    texts: list[str]
    classes: NDArray[np.int64]  # -1 where a text is foreign


class Outcome(NamedTuple):
    """What one fit found."""

    found: float  # of the foreign texts
    wrong: float  # of the others
    agreement: float  # NMI of the others


def mixture(groups: tuple[str, ...], size: int, seed: int, folder: Path) -> Mixture:
    """Draw messages of each group, and as many abstracts as make their share."""
    messages, labels = all_texts("newsgroups20", folder)
    abstracts, _ = all_texts("arxiv_120k", folder)
    rng, named = np.random.default_rng(seed), np.asarray(labels)
    chosen = np.concatenate(
        [rng.permutation(np.flatnonzero(named == group))[:size] for group in groups]
    )
    n_foreign = round(SHARE * len(chosen) / (1.0 - SHARE))
    foreign = rng.permutation(len(abstracts))[:n_foreign]
    texts = [*(messages[row] for row in chosen), *(abstracts[row] for row in foreign)]
    classes = np.append(classes_of(named[chosen].tolist()), np.full(n_foreign, -1))
    order = rng.permutation(len(texts))
    return Mixture([texts[row] for row in order], classes[order])


def outcome(mixed: Mixture, seed: int, **parameters: Any) -> Outcome:
    """Return what a fit finds under these parameters."""
    foreign = mixed.classes < 0
    rows = TfidfVectorizer(**VECTORISER).fit_transform(mixed.texts)
    model = HMRFKMeans(len(np.unique(mixed.classes[~foreign])), outliers="auto", **parameters)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\d+ rows are zero", HmrfWarning)
        model.set_params(random_state=seed).fit(rows)
    out, labels = model.outliers_, model.labels_[~foreign]
    agreement = normalized_mutual_info(mixed.classes[~foreign], labels)
    return Outcome(float(out[foreign].mean()), float(out[~foreign].mean()), agreement)


def table(folder: Path, seeds: range) -> Iterator[str]:
    """Yield lines of Markdown, each as soon as it is measured: means over the seeds."""
    yield f"| groups | messages | outliers | found, {len(seeds)} draws | wrongly marked | NMI |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for groups in TRIPLES:
        for size in SIZES:
            drawn = [(mixture(groups, size, seed, folder), seed) for seed in seeds]
            for arm, parameters in ARMS.items():
                outcomes = [outcome(mixed, seed, **parameters) for mixed, seed in drawn]
                found, wrong, agreement = np.mean(outcomes, axis=0)
                said = f"{found:.2f} | {wrong:.3f} | {agreement:.3f}"
                yield f"| {', '.join(groups)} | {size} | {arm} | {said} |"


@click.command()
@click.option("--quick", is_flag=True, help="One draw of each.")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Where the sets lie."
)
def main(quick: bool, data: Path | None) -> None:
    """Tell how many foreign texts are found among messages, as Markdown."""
    try:
        for line in table(data or data_folder(), SEEDS[:1] if quick else SEEDS):
            click.echo(line)
    except HmrfError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
