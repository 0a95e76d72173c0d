"""Sets of twenty classes, 2,000 to 120,000 documents, with pairs from one half of their labels.

Run with `python -m pipelines.papers.large`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import news, some_of
from pipelines.papers.supervision import random_pairs

PAIRS = Axis("number of pairs", (0, 1_000, 5_000, 20_000), (0, 5_000), scale="symlog")
DEFAULTS = "HMRF-KMeans"
NOISE = 0.01  # a mean that falls by less does not count against growing
FIELDS = ("nmi_all", "nmi", "f_rest", "broken", "seconds")
HEADS = ("pairs", "NMI, all rows", "NMI, test half", "pairwise F, no given pair", "broken", "CPU s")

STUDIES = (
    Study("News-all20", partial(news, "mini_newsgroups"), PAIRS, (Arm(DEFAULTS),), random_pairs),
    Study(
        "20 Newsgroups", partial(news, "newsgroups20"), PAIRS, (Arm(DEFAULTS),), random_pairs,
        is_large=True,
    ),
    Study(
        "arXiv", partial(some_of, "arxiv_120k"), PAIRS, (Arm(DEFAULTS),), random_pairs,
        is_large=True,
    ),
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell whether NMI grows with the pairs, and all measures in a table a set."""
    lines = []
    for name, curves in found.items():
        lines += [
            f"- {name}: {_growth(curves, 'nmi_all')} over all rows, "
            f"{_growth(curves, 'nmi')} over the half that nothing was said of.",
            "",
        ]
        lines += [f"| {name} | {' | '.join(HEADS[1:])} |", f"|{' --- |' * len(HEADS)}"]
        lines += [f"| {x:g} | {_measures(curves, x)} |" for x in curves.xs]
        lines += [""]
    return lines  # fmt: skip


def _measures(curves: Curves, x: float) -> str:
    digits = dict.fromkeys(FIELDS, 3) | {"broken": 0, "seconds": 0}
    return " | ".join(f"{curves.mean(DEFAULTS, x, one):.{digits[one]}f}" for one in FIELDS)


def _growth(curves: Curves, measure: str) -> str:
    """Tell whether a mean falls anywhere by more than noise, and from where to where it goes."""
    means = [curves.mean(DEFAULTS, x, measure) for x in curves.xs]
    highest = [max(means[: number + 1]) for number in range(len(means))]
    falls = any(best - mean > NOISE for best, mean in zip(highest, means, strict=True))
    grows = means[-1] > means[0] and not falls
    return f"{'grows' if grows else 'does not grow'} from {means[0]:.3f} to {means[-1]:.3f}"


EXPERIMENT = Experiment(
    "large",
    "Pairs on twenty classes, 2,000 to 120,000 documents",
    "The defaults of the library with random pairs from one half of the documents, as their labels "
    "answer them: NMI over all rows and over the other half, none of which is in a pair; pairwise "
    "F over all rows without the given pairs.",
    STUDIES,
    tuple(
        Figure(f"{one.name}, {where}", one.name, measure)
        for one in STUDIES
        for measure, where in (("nmi_all", "all rows"), ("nmi", "test half"), ("broken", "broken"))
    ),
    findings,
    runs=1,
    quick_runs=1,
    further=("nmi_all",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
