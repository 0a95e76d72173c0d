"""KDD 2004, figures 3 to 8: NMI over the number of pairs, for the arms of HMRF-KMeans.

Run with `python -m pipelines.papers.kdd2004`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import PAPERS_START, Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import news
from pipelines.papers.supervision import random_pairs

SETS = {
    "News-Different-3": "news_different_3",
    "News-Related-3": "news_related_3",
    "News-Similar-3": "news_similar_3",
}
# "kl" is the I-divergence of rows scaled to sum 1.
DISTORTIONS = {"cosine": "cosine", "I-divergence": "kl"}
PAIRS = Axis("number of pairs", (0, 50, 100, 200, 250, 300, 400, 500), (0, 100, 500))
FROM_PAIRS = 100  # the inequality of the arms is asked for from here on
LEARNED, PLAIN, STARTED, NONE = "KMeans-I-C-D", "KMeans-I-C", "KMeans-I", "KMeans"
TEN_STARTS = "KMeans, 10 starts"
GAINS_AT = (50, 100, 250, 500)  # where learning should be above no learning, and by how much
MARGIN = 0.02
HARM = -0.01


def arms(distortion: str) -> tuple[Arm, ...]:
    """Return the paper's arms, one setting of the library each, and K-Means with ten starts."""
    shared: dict[str, Any] = {"distortion": distortion, "penalty": "distance", **PAPERS_START}
    plain = {**shared, "learn_weights": False}
    return (
        Arm(LEARNED, parameters={**shared, "learn_weights": True, "weight_update": "paper"}),
        Arm(PLAIN, parameters=plain),
        Arm(STARTED, parameters={**plain, "must_link_cost": 0.0, "cannot_link_cost": 0.0}),
        Arm(NONE, parameters=plain, takes="nothing"),
        Arm(
            TEN_STARTS,
            "KMeans",
            {"distortion": distortion, "refine": False, "n_init": 10},
            takes="nothing",
        ),
    )


STUDIES = tuple(
    Study(
        f"{title}, {called}",
        partial(news, name, only_worded=distortion == "kl"),
        PAIRS,
        arms(distortion),
        random_pairs,
    )
    for title, name in SETS.items()
    for called, distortion in DISTORTIONS.items()
)


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell where the order of the arms holds, and what learning brings."""
    lines = [
        f"`{LEARNED}` ≥ `{PLAIN}` ≥ `{NONE}` is asked for at every number of pairs ≥ {FROM_PAIRS}, "
        f"within one paired standard error; `{TEN_STARTS}` stands beside it.",
        "",
    ]
    lines += [f"- {name}: {_order(curves)}" for name, curves in found.items()]
    for called in DISTORTIONS:
        some = [curves for name, curves in found.items() if name.endswith(called)]
        lines.append(
            f"- Learning with {called} at {', '.join(map(str, GAINS_AT))} pairs: "
            f"{_gains(some, GAINS_AT)}. At all numbers: {_gains(some, PAIRS.values)}."
        )
    return lines


def _gains(some: Sequence[Curves], xs: Sequence[float]) -> str:
    """Tell in how many cells learning helps, and in how many it harms."""
    gains = [curves.above(LEARNED, PLAIN, x) for curves in some for x in curves.xs if x in xs]
    return (
        f"above no learning by ≥ {MARGIN} in {sum(one >= MARGIN for one in gains)} of {len(gains)} "
        f"cells, below by more than {-HARM} in {sum(one < HARM for one in gains)}; from "
        f"{min(gains):+.3f} to {max(gains):+.3f}"
    )


def _order(curves: Curves) -> str:
    """Tell at which numbers of pairs the inequality holds, and what breaks it elsewhere."""
    xs = [x for x in curves.xs if x >= FROM_PAIRS]
    broken = [
        f"{x:g} pairs {upper} {curves.above(upper, lower, x):+.3f} against {lower} "
        f"(s.e. {curves.error(upper, x, against=lower):.3f})"
        for x in xs
        for upper, lower in ((LEARNED, PLAIN), (PLAIN, NONE))
        if not curves.holds(upper, lower, x)
    ]
    ten = curves.mean(TEN_STARTS, xs[-1])
    beside = (
        f"at {xs[-1]:g} pairs {LEARNED} {curves.mean(LEARNED, xs[-1]):.3f}, ten starts {ten:.3f}"
    )
    if not broken:
        return f"holds at all {len(xs)} numbers of pairs; {beside}."
    return f"does not hold: {'; '.join(broken)}; {beside}."


EXPERIMENT = Experiment(
    "kdd2004",
    "KDD 2004, figures 3 to 8: the arms of HMRF-KMeans",
    "Random pairs from one half of the documents, all documents clustered, NMI on the other half. "
    "The paper's own start and steps: one start from the neighbourhoods, missing centroids by "
    "perturbing the global one, batch moves only. For the cosine the paper's weight step. For the "
    "I-divergence, of rows scaled to sum 1, smoothing that begins at α = 16 and falls to 1, and "
    "relative-entropy weights; 50 pairs and more always join three neighbourhoods, so that no "
    "centroid is missing there. A message without a word that is left has no distribution of "
    "words: the I-divergence is given the others (299 of the 300 of News-Different-3).",
    STUDIES,
    tuple(Figure(f"Figure {3 + place}: {one.name}", one.name) for place, one in enumerate(STUDIES)),
    findings,
)

if __name__ == "__main__":
    main(EXPERIMENT)
