"""SDM 2004, figures 4 to 12 without the active arms: PCKMeans over random pairs.

Run with `python -m pipelines.papers.sdm2004`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import classic400, iris, news
from pipelines.papers.supervision import random_pairs

PAIRS = Axis("number of pairs", (0, 50, 100, 200, 300, 500, 750, 1000), (0, 100, 500))
MORE_PAIRS = Axis("number of pairs", (0, 250, 500, 1000, 2000, 3000, 5000), (0, 500))
IRIS_PAIRS = Axis("number of pairs", (0, 10, 25, 50, 100, 200, 500, 1000), (0, 50, 500))
# The paper's: .001 for text and 1 for Iris. It halves squared distances and this library does not,
# so that the cost for Iris is twice the paper's; for rows of length 1 half of the squared distance
# is the cosine distance.
MIDDLE = {"cosine": 0.001, "euclidean": 2.0}
HIGH = 1000.0  # every pair is worth more than any distance
PCK, SEEDED_LIKE, CONSTRAINED_LIKE = "PCKMeans", "PCKMeans, w = 0", "PCKMeans, w high"
TEN_STARTS = "KMeans, 10 starts"


def pckmeans(name: str, distortion: str, cost: float) -> Arm:
    """Return PCKMeans with the paper's start."""
    costs = {"must_link_cost": cost, "cannot_link_cost": cost}
    start = {"init": "neighborhoods", "fill": "perturb", "refine": False}
    return Arm(name, "PCKMeans", {"distortion": distortion, **start, **costs})


def arms(distortion: str, *, all_costs: bool = False) -> tuple[Arm, ...]:
    """Return PCKMeans at one cost or at three, and K-Means beside it."""
    ends = (
        pckmeans(SEEDED_LIKE, distortion, 0.0),
        pckmeans(CONSTRAINED_LIKE, distortion, HIGH),
    )
    return (
        pckmeans(PCK, distortion, MIDDLE[distortion]),
        *(ends if all_costs else ()),
        Arm(
            TEN_STARTS,
            "KMeans",
            {"distortion": distortion, "refine": False, "n_init": 10},
            takes="nothing",
        ),
    )


STUDIES = (
    Study("News-sim3", partial(news, "news_similar_3"), PAIRS,
          arms("cosine", all_costs=True), random_pairs, 10),
    Study("News-diff3", partial(news, "news_different_3"), PAIRS,
          arms("cosine"), random_pairs, 10),
    Study("News-all20", partial(news, "mini_newsgroups"), MORE_PAIRS,
          arms("cosine"), random_pairs, 10, is_large=True),
    Study("Classic400", classic400, PAIRS, arms("cosine"), random_pairs, 10),
    Study("Iris", iris, IRIS_PAIRS, arms("euclidean"), random_pairs, 10),
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell what pairs bring, what the cost changes, and whether NMI and F say the same."""
    lines = [f"- {name}: {_gain(curves)}" for name, curves in found.items()]
    if "News-sim3" in found:
        curves = found["News-sim3"]
        apart = max(
            abs(curves.above(one, PCK, x))
            for one in (SEEDED_LIKE, CONSTRAINED_LIKE)
            for x in curves.xs
        )
        lines.append(
            f"- The cost on News-sim3: means of the three costs differ by at most {apart:.3f} NMI "
            "at the same pairs; the paper finds them alike."
        )
    lines += [
        f"- J of {PCK} on {name} goes from {curves.mean(PCK, curves.xs[0], 'objective'):.1f} to "
        f"{curves.mean(PCK, curves.xs[-1], 'objective'):.1f}."
        for name, curves in found.items()
        if name in ("News-diff3", "Iris")
    ]
    lines.append(
        "- J is this library's, to be minimised: distances and costs of broken pairs. The paper "
        "draws the similarity of texts, which rises where J falls."
    )
    lines.append("- Arms with actively chosen pairs (the rest of figures 4 to 12) are not here.")
    return lines


def _gain(curves: Curves) -> str:
    first, last = curves.xs[0], curves.xs[-1]
    rises = sum(
        curves.mean(PCK, more) >= curves.mean(PCK, fewer)
        for fewer, more in itertools.pairwise(curves.xs)
    )
    return (
        f"{PCK} from {curves.mean(PCK, first):.3f} to {curves.mean(PCK, last):.3f} NMI (F "
        f"{curves.mean(PCK, first, 'f'):.3f} to {curves.mean(PCK, last, 'f'):.3f}) with {last:g} "
        f"pairs, rising in {rises} of {len(curves.xs) - 1} steps; {TEN_STARTS} "
        f"{curves.mean(TEN_STARTS, last):.3f}; {curves.mean(PCK, last, 'broken'):.1f} pairs broken."
    )


EXPERIMENT = Experiment(
    "sdm2004",
    "SDM 2004, figures 4 to 12 without the active arms: PCKMeans",
    "Random pairs from nine tenths of the rows, all rows clustered, measures on the last tenth. "
    "Cosine for text, squared Euclidean distance for Iris, every broken pair at one cost (Potts); "
    "one start from the neighbourhoods.",
    STUDIES,
    (
        Figure("Figure 4: NMI on News-sim3", "News-sim3"),
        Figure("Figure 5: pairwise F on News-sim3", "News-sim3", "f"),
        Figure("Figures 6 and 12: NMI on News-diff3", "News-diff3"),
        Figure("Figure 7: J on News-diff3", "News-diff3", "objective", (PCK,)),
        Figure("Figure 8: NMI on News-all20", "News-all20"),
        Figure("Figure 9: NMI on Classic400", "Classic400"),
        Figure("Figure 10: NMI on Iris", "Iris"),
        Figure("Figure 11: J on Iris", "Iris", "objective", (PCK,)),
        Figure("Beside figure 5: F of all rows without the given pairs", "News-sim3", "f_rest"),
    ),
    findings,
    runs=1,
    quick_runs=1,
)

if __name__ == "__main__":
    main(EXPERIMENT)
