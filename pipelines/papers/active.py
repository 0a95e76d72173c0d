"""SDM 2004, the active arms: answers to chosen questions beside answers to random ones.

Run with `python -m pipelines.papers.active`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import classic400, news
from pipelines.papers.supervision import asked

QUESTIONS = Axis("questions", (25, 50, 100, 200, 500), (25, 100))
DEFAULT, SDM, RANDOM = "default", "explore-consolidate", "random"
STRATEGIES = (DEFAULT, SDM, "min-max", RANDOM)
PCK, HMRF, NOTHING = "PCKMeans", "HMRFKMeans", "no answers"
ARMS = (Arm(PCK, PCK), Arm(HMRF))
MEASURES = ("nmi", "nmi_all")
SETS = {
    "Classic400": classic400,
    "News-Different-3": partial(news, "news_different_3"),
    "News-Related-3": partial(news, "news_related_3"),
    "News-Similar-3": partial(news, "news_similar_3"),
}


def named(rows: str, strategy: str) -> str:
    """Return the name of the study of a set under a strategy."""
    return f"{rows}, {strategy}"


STUDIES = tuple(
    Study(
        named(rows, strategy), load, QUESTIONS,
        (*ARMS, Arm(NOTHING, takes="nothing")) if strategy == RANDOM else ARMS,
        partial(asked, strategy=strategy),
    )
    for rows, load in SETS.items()
    for strategy in STRATEGIES
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI of the half that nobody was asked about, and of all, in a table an estimator."""
    lines: list[str] = []
    for arm in (PCK, HMRF):
        lines += [
            f"| {arm} | questions | {' | '.join(STRATEGIES)} | default − random "
            "| default − explore-consolidate |",
            f"|{' --- |' * (len(STRATEGIES) + 4)}",
        ]
        for rows in SETS:
            curves = [found[name] for one in STRATEGIES if (name := named(rows, one)) in found]
            if len(curves) == len(STRATEGIES):
                lines += [f"| {rows} | {x:g} | {_row(curves, arm, x)} |" for x in curves[0].xs]
                lines += [f"| {rows} | none | {_means(curves[-1], NOTHING, 0)} |{' |' * 5}"]
        lines += [""]
    return [*lines, "Test half / all rows."]


def _row(curves: list[Curves], arm: str, x: float) -> str:
    cells = [_means(one, arm, x) for one in curves]
    for place in (STRATEGIES.index(RANDOM), STRATEGIES.index(SDM)):
        both = [
            one.values(arm, x, measure).mean() for one in (curves[0], curves[place])
            for measure in MEASURES
        ]  # fmt: skip
        cells += [f"{both[0] - both[2]:+.3f} / {both[1] - both[3]:+.3f}"]
    return " | ".join(cells)


def _means(curves: Curves, arm: str, x: float) -> str:
    return " / ".join(f"{curves.values(arm, x, measure).mean():.3f}" for measure in MEASURES)


EXPERIMENT = Experiment(
    "active",
    "Chosen questions",
    "Questions about one half of the documents, chosen by the strategies of "
    "`hmrf_dask.active.explore_consolidate` and answered by their classes. All documents are "
    "clustered from the answers, by the PCKMeans of SDM 2004 and by the defaults of the library. "
    "TF-IDF rows.",
    STUDIES,
    tuple(Figure(one.name, one.name) for one in STUDIES),
    findings,
    runs=3,
    quick_runs=1,
    further=("nmi_all",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
