"""Answers as people give them: up to a fifth of random pairs wrong, on sets no rule was chosen on.

Run with `python -m pipelines.papers.noise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import news_groups
from pipelines.papers.supervision import Fold, Given, random_pairs

WRONG = Axis("share of wrong answers", (0, 0.05, 0.1, 0.15, 0.2), (0, 0.1, 0.2))
N_PAIRS = (100, 500)
# Random triples of the 20 groups; rules were chosen on the papers' three sets and on other triples.
TRIPLES = (
    ("comp.sys.ibm.pc.hardware", "misc.forsale", "sci.electronics"),
    ("alt.atheism", "sci.crypt", "sci.med"),
    ("rec.motorcycles", "soc.religion.christian", "talk.politics.mideast"),
    ("rec.motorcycles", "soc.religion.christian", "talk.politics.guns"),
    ("alt.atheism", "comp.sys.ibm.pc.hardware", "rec.sport.baseball"),
    ("misc.forsale", "rec.autos", "sci.crypt"),
    ("sci.med", "sci.space", "talk.religion.misc"),
    ("comp.windows.x", "rec.sport.hockey", "talk.politics.misc"),
    ("comp.os.ms-windows.misc", "sci.electronics", "talk.politics.mideast"),
)
DEFAULTS, PAPERS, NOTHING = "defaults", "by distance, closed", "no answers"
ARMS = (
    Arm(DEFAULTS),
    Arm(PAPERS, parameters={"penalty": "distance"}),
    Arm(NOTHING, takes="nothing"),
)


def pairs_with(fold: Fold, wrong: float, *, n_pairs: int) -> Given:
    """Return the same pairs at every share, more and more of them told the wrong way round."""
    return random_pairs(fold, n_pairs, wrong=wrong)


def named(number: int, n_pairs: int) -> str:
    """Return the name of the study of a triple."""
    return f"triple {number + 1}, {n_pairs} pairs"


STUDIES = tuple(
    Study(
        named(number, n_pairs),
        partial(news_groups, groups),
        WRONG,
        ARMS,
        partial(pairs_with, n_pairs=n_pairs),
    )
    for n_pairs in N_PAIRS
    for number, groups in enumerate(TRIPLES)
)

Cells = list[Curves]


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell the mean over the sets, against the same pairs all right and against no answers."""
    lines = [
        "| pairs | wrong | defaults | against all right | against no answers | by distance, closed "
        "| no answers | suspects that are wrong | wrong ones that are suspect |",
        f"|{' --- |' * 9}",
    ]
    for n_pairs in N_PAIRS:
        cells = [found[name] for n in range(len(TRIPLES)) if (name := named(n, n_pairs)) in found]
        lines += [_row(cells, n_pairs, wrong) for wrong in (cells[0].xs if cells else ())]
    return [*lines, "", f"Means of {len(TRIPLES)} sets, and their standard errors over the sets."]


def _row(cells: Cells, n_pairs: int, wrong: float) -> str:
    suspects, hits, n_wrong = (
        sum(float(curves.values(DEFAULTS, wrong, one).sum()) for curves in cells)
        for one in ("suspects", "suspects_wrong", "wrong")
    )
    means = [
        _mean(cells, lambda curves: curves.mean(DEFAULTS, wrong), ""),
        _mean(cells, lambda curves: curves.mean(DEFAULTS, wrong) - curves.mean(DEFAULTS, 0)),
        _mean(cells, lambda curves: curves.above(DEFAULTS, NOTHING, wrong)),
        _mean(cells, lambda curves: curves.mean(PAPERS, wrong), ""),
        _mean(cells, lambda curves: curves.mean(NOTHING, wrong), ""),
    ]
    shares = [f"{hits / whole:.0%}" if whole else "–" for whole in (suspects, n_wrong)]
    return f"| {n_pairs} | {wrong:.0%} | {' | '.join([*means, *shares])} |"


def _mean(cells: Cells, of: Callable[[Curves], float], sign: str = "+") -> str:
    values = np.array([of(curves) for curves in cells])
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{values.mean():{sign}.3f} ± {error:.3f}"


EXPERIMENT = Experiment(
    "noise",
    "Wrong answers",
    "The defaults of the library with 100 and 500 random pairs from one half of 300 messages of "
    "three groups, of which a share is told the wrong way round; the same fit by the energy of KDD "
    "2004; and no answers. All documents are clustered, NMI on the other half. TF-IDF rows. "
    "A suspect is an answer in `suspect_answers_`.",
    STUDIES,
    tuple(Figure(one.name, one.name) for one in STUDIES),
    findings,
    runs=5,
    quick_runs=1,
    further=("suspects", "suspects_wrong", "wrong"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
