"""Up to which size first variation pays: NMI, J and time with it and without, over rows a cluster.

Run with `python -m pipelines.papers.refinement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import some_of
from pipelines.papers.supervision import Fold, Given, random_pairs

PAIRS = Axis("pairs for every row", (0, 0.25), (0,))
BATCH, VARIED, AUTO = "batch moves only", "first variation", "auto"
ARMS = (
    Arm(BATCH, parameters={"refine": False}),
    Arm(VARIED, parameters={"refine": True}),
    Arm(AUTO),
)
# Rows and classes of what is drawn; classes only for the names, to tell rows a cluster.
SETS = {
    "newsgroups20": ("20 Newsgroups", 20, (1_000, 2_000, 5_000, 10_000, 20_000)),
    "arxiv_120k": ("arXiv", 20, (1_000, 5_000, 10_000, 20_000, 40_000, 120_000)),
    "classic3": ("Classic3", 3, (300, 1_000, 3_900)),
}
LARGE = 5_000  # rows, from which `--quick` leaves a set out


def pairs(fold: Fold, per_row: float) -> Given:
    """Return random pairs of the training part, so many for every row of the set."""
    return random_pairs(fold, int(per_row * len(fold.classes)))


STUDIES = tuple(
    Study(
        f"{title}, {n_rows:,} rows, {n_rows // n_classes:,} a cluster",
        partial(some_of, name, n_rows=n_rows), PAIRS, ARMS, pairs, is_large=n_rows >= LARGE,
    )
    for name, (title, n_classes, sizes) in SETS.items()
    for n_rows in sizes
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Return a table: what first variation brings, and what it takes."""
    head = ("set", "pairs", "NMI, batch", "first variation", "auto", "gain", "J, of batch's",
            "CPU s, batch", "first variation", "auto")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name, curves in found.items():
        lines += [f"| {name} | {x:g} | {_told(curves, x)} |" for x in curves.xs]
    return lines


def _told(curves: Curves, x: float) -> str:
    """Return what the table says of one set at one number of pairs."""
    scores = [f"{curves.mean(arm, x, 'nmi_all'):.3f}" for arm in (BATCH, VARIED, AUTO)]
    gain = curves.above(VARIED, BATCH, x, "nmi_all")
    error = curves.error(VARIED, x, "nmi_all", against=BATCH)
    energy = curves.mean(VARIED, x, "objective") / curves.mean(BATCH, x, "objective")
    seconds = [f"{curves.mean(arm, x, 'seconds'):.1f}" for arm in (BATCH, VARIED, AUTO)]
    return " | ".join([*scores, f"{gain:+.3f} ± {error:.3f}", f"{energy:.4f}", *seconds])


EXPERIMENT = Experiment(
    "refinement",
    "First variation over rows a cluster",
    'The defaults of the library with `refine` off, on and "auto", on random parts of three sets, '
    "without pairs and with random right ones from one half; NMI over all rows. Starts are the "
    "same ones for all arms.",
    STUDIES,
    tuple(Figure(one.name, one.name, "nmi_all") for one in STUDIES),
    findings,
    runs=1,
    quick_runs=1,
    further=("nmi_all",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
