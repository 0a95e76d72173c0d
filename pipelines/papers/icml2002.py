"""ICML 2002: mutual information over the share of seeds, their noise and the seeded categories.

Run with `python -m pipelines.papers.icml2002`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import PAPERS_START, Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import Rows, news
from pipelines.papers.supervision import Fold, Given, seeds

FRACTIONS = Axis("share of seeds", (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0), (0.05, 0.5))
NOISE = Axis("share of wrong seeds", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.3))
CATEGORIES = Axis("seeded categories", (1, 2, 5, 10, 15, 18, 20), (5, 20))
# The numbers of the figures with noise and categories are lost in our text of the paper.
FRACTION = 0.5
CONSTRAINED, SEEDED, COP, RANDOM = "Constrained-KMeans", "Seeded-KMeans", "COP-KMeans", "KMeans"
MUCH_NOISE = 0.2  # beyond it seeds that may change should be better than those that may not

# One start of batch moves, as the paper has it. Clusters without seeds begin far from the seeds.
BATCH: dict[str, Any] = {"refine": False}
ARMS = (
    Arm(CONSTRAINED, "ConstrainedKMeans", BATCH, takes="seeds"),
    Arm(SEEDED, "SeededKMeans", BATCH, takes="seeds"),
    Arm(COP, "COPKMeans", {**BATCH, "init": "random", "n_init": 1}),
    Arm(RANDOM, "HMRFKMeans", {**PAPERS_START, "learn_weights": False}, takes="nothing"),
)
Load = Callable[[Path], Rows]
SMALL: dict[str, Load] = {
    "Small-20 Newsgroups": partial(news, "mini_newsgroups"),
    "News-Different-3": partial(news, "news_different_3"),
    "News-Similar-3": partial(news, "news_similar_3"),
}
LARGE: dict[str, Load] = {
    "20 Newsgroups": partial(news, "newsgroups20"),
    "Different-3 Newsgroups": partial(news, "different_3"),
}


def seeded(fold: Fold, fraction: float) -> Given:
    """Return right seeds of all categories."""
    return seeds(fold, fraction)


def noisy(fold: Fold, wrong: float) -> Given:
    """Return a fixed share of seeds, some of them wrong."""
    return seeds(fold, FRACTION, wrong=wrong)


def incomplete(fold: Fold, n_categories: float) -> Given:
    """Return right seeds of some categories."""
    return seeds(fold, FRACTION, n_categories=int(n_categories))


def studies(sets: Mapping[str, Load], *, is_large: bool) -> list[Study]:
    """Return the studies of seeds and of noise on some sets, of categories where there are 20."""
    found = []
    for name, load in sets.items():
        asked = [("seeds", FRACTIONS, seeded), ("noise", NOISE, noisy)]
        if "20" in name:
            asked.append(("categories", CATEGORIES, incomplete))
        found += [
            Study(f"{name}, {what}", load, axis, ARMS, ask, 10, is_large)
            for what, axis, ask in asked
        ]
    return found


STUDIES = (*studies(SMALL, is_large=False), *studies(LARGE, is_large=True))


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell where the order of the arms is the paper's, and what incomplete seeding costs."""
    lines = []
    for name, curves in found.items():
        if name.endswith("seeds"):
            lines.append(f"- {name}: {_order(curves, curves.xs, (CONSTRAINED, SEEDED, RANDOM))}")
        elif name.endswith("noise"):
            xs = [x for x in curves.xs if x > MUCH_NOISE]
            one, other = (
                _order(curves, xs, (SEEDED, CONSTRAINED)),
                _order(curves, xs, (SEEDED, COP)),
            )
            lines.append(f"- {name}, beyond {MUCH_NOISE:.0%}: {one} {other} {_lost(curves)}")
        else:
            lines.append(f"- {name}: {_incomplete(curves)}")
    return lines


def _order(curves: Curves, xs: Sequence[float], arms: Sequence[str]) -> str:
    """Tell where each arm is not below the next by more than one paired standard error."""
    broken = [
        f"{x:g} {upper} {curves.above(upper, lower, x, 'mi'):+.3f} against {lower} (s.e. "
        f"{curves.error(upper, x, 'mi', against=lower):.3f})"
        for x in xs
        for upper, lower in itertools.pairwise(arms)
        if not curves.holds(upper, lower, x, "mi")
    ]
    asked = " ≥ ".join(arms)
    if broken:
        return f"{asked} does not hold at {'; '.join(broken)}."
    return f"{asked} holds at all {len(xs)} places."


def _lost(curves: Curves) -> str:
    """Tell what the most noise takes from each arm."""
    first, last = curves.xs[0], curves.xs[-1]
    lost = (
        f"{arm} {curves.mean(arm, last, 'mi') - curves.mean(arm, first, 'mi'):+.3f}"
        for arm in (SEEDED, CONSTRAINED, COP)
    )
    return f"From {first:.0%} to {last:.0%} wrong: {', '.join(lost)}."


def _incomplete(curves: Curves) -> str:
    """Tell what is left of the mutual information with fewer seeded categories."""
    whole = curves.xs[-1]
    return (
        "; ".join(
            f"{arm} "
            + ", ".join(f"{curves.mean(arm, x, 'mi'):.2f} with {x:g}" for x in curves.xs)
            + f" ({curves.mean(arm, curves.xs[0], 'mi') / curves.mean(arm, whole, 'mi'):.0%} left)"
            for arm in (CONSTRAINED, SEEDED, COP)
        )
        + f"; {RANDOM} {curves.mean(RANDOM, whole, 'mi'):.2f}."
    )


EXPERIMENT = Experiment(
    "icml2002",
    "ICML 2002: seeding",
    "Seeds from nine tenths of the documents, all documents clustered by the cosine, mutual "
    f"information on the last tenth. With noise and with fewer categories {FRACTION:.0%} of the "
    "nine tenths are seeds. COP-KMeans gets pairs that say the same as the seeds. An order of arms "
    "holds where it is not broken by more than one paired standard error: of places where two arms "
    "are alike, chance alone breaks one in six.",
    STUDIES,
    (
        *(Figure(one.name, one.name, "mi") for one in STUDIES),
        Figure("Small-20 Newsgroups, J over seeds", "Small-20 Newsgroups, seeds", "objective"),
    ),
    findings,
    runs=1,
    quick_runs=1,
)

if __name__ == "__main__":
    main(EXPERIMENT)
