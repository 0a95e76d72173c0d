"""Labels of some documents as answers: NMI of the others, beside seeds and no answers at all.

Run with `python -m pipelines.papers.labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import news, some_of
from pipelines.papers.supervision import Fold, Given, seeds

LABELS = Axis("labelled documents", (100, 200, 500, 1_000), (100, 500))
N_ABSTRACTS = 20_000
DEFAULTS, SEEDED, CONSTRAINED, NOTHING = "defaults", "Seeded-KMeans", "Constrained-KMeans", "none"
ARMS = (
    Arm(DEFAULTS),
    Arm(SEEDED, "SeededKMeans", takes="seeds"),
    Arm(CONSTRAINED, "ConstrainedKMeans", takes="seeds"),
    Arm(NOTHING, takes="nothing"),
)


def labelled(fold: Fold, n_labels: float) -> Given:
    """Return labels of so many documents of the training part, and pairs that say the same."""
    return seeds(fold, n_labels / len(fold.training))


STUDIES = (
    Study("News-all20", partial(news, "mini_newsgroups"), LABELS, ARMS, labelled),
    Study("20 Newsgroups", partial(news, "newsgroups20"), LABELS, ARMS, labelled, is_large=True),
    Study(
        "arXiv", partial(some_of, "arxiv_120k", n_rows=N_ABSTRACTS), LABELS, ARMS, labelled,
        is_large=True,
    ),
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell the means in a table a set, and how far the defaults are from the better of seeds."""
    lines = []
    for name, curves in found.items():
        heads = (f"{name}, labels", *(arm.name for arm in ARMS), "above the better of seeds")
        lines += [f"| {' | '.join(heads)} | above none |", f"|{' --- |' * (len(heads) + 1)}"]
        lines += [f"| {x:g} | {_row(curves, x)} |" for x in curves.xs]
        lines += [""]
    return lines


def _row(curves: Curves, x: float) -> str:
    means = [f"{curves.mean(arm.name, x):.3f}" for arm in ARMS]
    above = min(curves.above(DEFAULTS, arm, x) for arm in (SEEDED, CONSTRAINED))
    return " | ".join([*means, f"{above:+.3f}", f"{curves.above(DEFAULTS, NOTHING, x):+.3f}"])


EXPERIMENT = Experiment(
    "labels",
    "Labels as answers",
    "The defaults of the library, told the classes of some documents of one half as pairs; the "
    "same as seeds; and no answers. All documents are clustered, NMI on the other half. TF-IDF "
    "rows.",
    STUDIES,
    tuple(Figure(one.name, one.name) for one in STUDIES),
    findings,
    runs=3,
    quick_runs=1,
)

if __name__ == "__main__":
    main(EXPERIMENT)
