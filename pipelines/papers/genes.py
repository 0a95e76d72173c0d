"""What KDD 2004 proposes: genes by Pearson correlation, with pairs; on a simulated set.

Run with `python -m pipelines.papers.genes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import Rows
from pipelines.papers.supervision import random_pairs

PAIRS = Axis("number of pairs", (0, 50, 100, 250, 500, 1000), (0, 250, 1000))
N_GENES, N_GROUPS = 600, 8
N_TIMES, N_OTHER = 20, 20  # conditions that tell groups apart, and those that do not
PEARSON, LEARNED, TEN_STARTS = "Pearson", "Pearson, learned weights", "Pearson, no pairs"
OTHERS = {"cosine": "cosine", "Euclidean": "euclidean"}


@cache
def simulated(_folder: Path) -> Rows:
    """Return genes whose groups share the shape of their expression; nothing is read.

    A gene is its own level and its own strength times the profile of its group over a time course,
    with noise, as microarrays are: correlation sees the groups, levels and strengths hide them
    from distances. Half of the conditions say nothing of the groups.
    """
    rng = np.random.default_rng(2004)
    classes = np.sort(rng.integers(0, N_GROUPS, N_GENES))
    times = np.linspace(0.0, 4.0 * np.pi, N_TIMES)  # two cell cycles
    phases = rng.uniform(0.0, 2.0 * np.pi, (N_GROUPS, 2))
    profiles = np.sin(times + phases[:, :1]) + 0.5 * np.sin(2.0 * times + phases[:, 1:])
    shapes = np.hstack([profiles[classes], np.zeros((N_GENES, N_OTHER))])
    noise = rng.normal(0.0, 1.2, shapes.shape)
    level = rng.normal(0.0, 2.0, (N_GENES, 1))
    strength = rng.lognormal(0.0, 0.7, (N_GENES, 1))
    return Rows(level + strength * (shapes + noise), classes.astype(np.int64))


def arms() -> tuple[Arm, ...]:
    """Return the defaults with each distortion, Pearson also with weights and without pairs."""
    plain: dict[str, Any] = {"learn_weights": False}
    return (
        Arm(PEARSON, parameters={"distortion": "pearson", **plain}),
        Arm(LEARNED, parameters={"distortion": "pearson", "learn_weights": True}),
        Arm(TEN_STARTS, "KMeans", {"distortion": "pearson"}, takes="nothing"),
        *(Arm(name, parameters={"distortion": one, **plain}) for name, one in OTHERS.items()),
    )


STUDY = Study("simulated genes", simulated, PAIRS, arms(), random_pairs)


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell what pairs bring under each distortion, and how far Pearson is from the others."""
    curves = found[STUDY.name]
    first, last = curves.xs[0], curves.xs[-1]
    lines = [
        f"- {arm}: NMI {curves.mean(arm, first):.3f} without pairs, {curves.mean(arm, last):.3f} "
        f"with {last:g}."
        for arm in (PEARSON, LEARNED, *OTHERS)
    ]
    lines += [
        f"- {PEARSON} against {other}: {curves.above(PEARSON, other, last):+.3f} (s.e. "
        f"{curves.error(PEARSON, last, against=other):.3f}) with {last:g} pairs."
        for other in (*OTHERS, TEN_STARTS, LEARNED)
    ]
    return lines


EXPERIMENT = Experiment(
    "genes",
    "Genes by Pearson correlation, simulated",
    f"{N_GENES} simulated genes of {N_GROUPS} groups under {N_TIMES + N_OTHER} conditions: a group "
    "shares the shape of its expression over time, every gene has its own level and strength, half "
    "of the conditions are noise. Pairs from one half of the genes, NMI on the other half; the "
    "defaults of the library.",
    (STUDY,),
    (
        Figure("NMI", STUDY.name),
        Figure("given pairs broken", STUDY.name, "broken", (PEARSON, LEARNED, *OTHERS)),
    ),
    findings,
    runs=5,
)

if __name__ == "__main__":
    main(EXPERIMENT)
