"""What KDD 2004 leaves open: the E-step by ICM against belief propagation, with ICM after it.

Run with `python -m pipelines.papers.inference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import PAPERS_START, Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import news
from pipelines.papers.supervision import random_pairs

PAIRS = Axis("number of pairs", (50, 100, 250, 500), (100, 500))
SETS = {
    "News-Similar-3": "news_similar_3",
    "News-Related-3": "news_related_3",
    "News-Different-3": "news_different_3",
}
WRONG = {"all pairs right": 0.0, "10 % wrong, Potts": 0.1}
STARTS: dict[str, dict[str, Any]] = {"the paper's start": PAPERS_START, "the defaults": {}}
ICM, BELIEFS = "ICM", "belief propagation"
INFERENCES = {ICM: "icm", BELIEFS: "belief-propagation"}


def arm_name(inference: str, start: str) -> str:
    """Return the name of an arm."""
    return f"{inference}, {start}"


def arms(wrong: float) -> tuple[Arm, ...]:
    """Return both ways under both starts.

    Wrong pairs contradict, so they are not closed. All cost alike (Potts): by distance a broken
    cannot-link of such rows costs next to nothing, and nothing holds against a wrong must-link.
    """
    open_pairs: dict[str, Any] = {"closure": False, "on_conflict": "keep", "penalty": "potts"}
    shared = open_pairs if wrong else {"penalty": "distance"}
    return tuple(
        Arm(arm_name(name, start), parameters={**shared, **parameters, "inference": inference})
        for start, parameters in STARTS.items()
        for name, inference in INFERENCES.items()
    )


STUDIES = tuple(
    Study(f"{title}, {called}", partial(news, name), PAIRS, arms(wrong),
          partial(random_pairs, wrong=wrong))
    for called, wrong in WRONG.items()
    for title, name in SETS.items()
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell J, NMI, broken pairs and time of both, fit by fit."""
    lines = [
        f"- {name}, {start}: {_compared(curves, start)}"
        for name, curves in found.items()
        for start in STARTS
    ]
    lines.append(
        "- Fits are compared one by one: the same pairs, the same first centroids. J counts as "
        "equal within 1e-9 of itself. Seconds are medians, and this machine's."
    )
    return lines


def _compared(curves: Curves, start: str) -> str:
    """Tell how fits with belief propagation differ from those by ICM under one start."""
    j, nmi, broken, seconds = (
        [_over_places(curves, arm_name(one, start), measure) for one in (ICM, BELIEFS)]
        for measure in ("objective", "nmi", "broken", "seconds")
    )
    change = (j[1] - j[0]) / np.abs(j[0])
    gain = nmi[1] - nmi[0]
    error = np.std(gain, ddof=1) / np.sqrt(len(gain))
    times = [np.median(one) for one in seconds]
    return (
        f"with belief propagation J ends lower in {(change < -1e-9).sum()} of {len(change)} fits "
        f"and higher in {(change > 1e-9).sum()} (mean {1e4 * change.mean():+.2f} of 10,000); NMI "
        f"{gain.mean():+.4f} (s.e. {error:.4f}); {broken[1].mean():.2f} pairs broken, by ICM "
        f"{broken[0].mean():.2f}; {times[1]:.3f} s a fit, by ICM {times[0]:.3f} s."
    )


def _over_places(curves: Curves, arm: str, measure: str) -> NDArray[np.float64]:
    return np.concatenate([curves.values(arm, x, measure) for x in curves.xs])


EXPERIMENT = Experiment(
    "inference",
    "ICM against belief propagation",
    "The E-step labels constrained documents by ICM, or by min-sum belief propagation with ICM "
    "after it, taken where the energy falls. Cosine, no learned weights; random pairs from one "
    "half of the documents, NMI on the other half. The paper's start is one start in batches; the "
    "defaults are a pool of starts and first variation. Wrong pairs are told the wrong way round "
    "and are used as given, without their closure, and every broken pair costs 1.",
    STUDIES,
    tuple(
        Figure(f"{one.name}: {told}", one.name, measure)
        for one in STUDIES
        for told, measure in (("NMI", "nmi"), ("J", "objective"))
    ),
    findings,
    runs=5,
    quick_runs=1,
)

if __name__ == "__main__":
    main(EXPERIMENT)
