"""What KDD 2004 leaves open: how much the costs of pairs matter, with right and with wrong pairs.

Run with `python -m pipelines.papers.costs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import news
from pipelines.papers.supervision import Fold, Given, random_pairs

COSTS = Axis(
    "cost of a broken pair",
    (0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 100),
    (0, 0.1, 1, 10),
    scale="symlog",
)
N_PAIRS = 250
WRONG = {"all pairs right": 0.0, "10 % wrong": 0.1}
SETS = {
    "News-Different-3": "news_different_3",
    "News-Related-3": "news_related_3",
    "News-Similar-3": "news_similar_3",
}
AT_COST = ("must_link_cost", "cannot_link_cost")


def fixed_pairs(fold: Fold, _cost: float, *, wrong: float) -> Given:
    """Return the same pairs at every cost."""
    return random_pairs(fold, N_PAIRS, wrong=wrong)


def arms(wrong: float) -> tuple[Arm, ...]:
    """Return the defaults with both penalties; wrong pairs contradict: these are not closed."""
    shared: dict[str, Any] = {"closure": False, "on_conflict": "keep"} if wrong else {}
    return (
        Arm("by distance", parameters={**shared, "penalty": "distance"}, at_x=AT_COST),
        Arm("all alike (Potts)", parameters={**shared, "penalty": "potts"}, at_x=AT_COST),
        Arm("no pairs", takes="nothing"),
    )


STUDIES = tuple(
    Study(f"{title}, {called}", partial(news, name), COSTS, arms(wrong),
          partial(fixed_pairs, wrong=wrong))
    for called, wrong in WRONG.items()
    for title, name in SETS.items()
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell the best cost, the range that is as good, and what the default costs."""
    return [
        f"- {name}: {'; '.join(_range(curves, arm.name) for arm in curves.study.arms[:2])}; "
        f"no pairs {curves.mean('no pairs', curves.xs[0]):.3f}."
        for name, curves in found.items()
    ]


def _range(curves: Curves, arm: str) -> str:
    """Tell at which costs an arm is within one standard error of its best."""
    best = max(curves.xs, key=lambda x: curves.mean(arm, x))
    least = curves.mean(arm, best) - curves.error(arm, best)
    alike = [f"{x:g}" for x in curves.xs if curves.mean(arm, x) >= least]
    return (
        f"{arm} best {curves.mean(arm, best):.3f} at {best:g}, within a standard error at "
        f"{', '.join(alike)}; {curves.mean(arm, 1.0):.3f} at the default 1"
    )


EXPERIMENT = Experiment(
    "costs",
    "Sensitivity to the costs of pairs",
    f"The defaults of the library with {N_PAIRS} random pairs from one half of the documents, the "
    "same pairs at every cost; NMI on the other half. Wrong pairs are told the wrong way round and "
    "are used as given, without their closure.",
    STUDIES,
    tuple(Figure(one.name, one.name) for one in STUDIES),
    findings,
    runs=5,
    quick_runs=1,
)

if __name__ == "__main__":
    main(EXPERIMENT)
