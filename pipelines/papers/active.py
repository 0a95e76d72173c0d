"""SDM 2004, the active arms: answers to chosen questions beside answers to random ones.

Run with `python -m pipelines.papers.active`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import classic400, lsa, news
from pipelines.papers.supervision import Fold, Given, asked

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


# Answers that may be wrong: a fifth are "don't know"; all rows may be asked about.
WRONG = Axis("share of wrong answers", (0, 0.05, 0.1, 0.15), (0, 0.1))
N_QUESTIONS = (200, 300)
LSA_SETS = ("news_different_3", "news_related_3")
TRUSTED = "default, answers certain"


def asked_with(
    fold: Fold, wrong: float, *, strategy: str, n_questions: int, trust: float | None = None
) -> Given:
    """Return what so many questions come to at a share of wrong answers."""
    return asked(
        fold, n_questions, strategy=strategy, wrong=wrong,
        trust=trust, everywhere=True,
    )  # fmt: skip


def noisy(rows: str, n_questions: int, strategy: str) -> str:
    """Return the name of a study of answers that may be wrong."""
    return f"{rows}, {n_questions} questions, {strategy}"


NOISY = tuple(
    Study(
        noisy(rows, n_questions, strategy), partial(lsa, rows), WRONG,
        (Arm(HMRF), Arm(NOTHING, takes="nothing")),
        partial(
            asked_with, strategy=DEFAULT if strategy == TRUSTED else strategy,
            n_questions=n_questions, trust=1.0 if strategy == TRUSTED else None,
        ),
        is_large=(rows, n_questions, strategy) != (LSA_SETS[1], N_QUESTIONS[0], DEFAULT),
    )
    for rows in LSA_SETS
    for n_questions in N_QUESTIONS
    for strategy in (DEFAULT, TRUSTED, SDM)
)  # fmt: skip

# "Which of these?" beside pairs: 20 groups.
CLICKS = "clicks"
ALL_20 = partial(news, "mini_newsgroups")
CLICK_AXES = {
    CLICKS: Axis("clicks", (100, 250), (100,)),
    DEFAULT: Axis("questions", (500, 1000), (500,)),
    SDM: Axis("questions", (500, 1000), (500,)),
    RANDOM: Axis("questions", (500, 1000, 2000), (500,)),
}
CLICKED = tuple(
    Study(
        named("News-all20", strategy), ALL_20, axis, (Arm(PCK, PCK),),
        partial(asked, strategy=DEFAULT if strategy == CLICKS else strategy,
                clicks=strategy == CLICKS),
        is_large=True,
    )
    for strategy, axis in CLICK_AXES.items()
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
    return [*lines, "Test half / all rows.", "", *_of_wrong(found), *_of_clicks(found)]


def _of_wrong(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI of all rows, and the share of must-links of a fit that are wrong."""
    lines = ["| rows | questions | wrong | strategy | NMI | no answers | wrong must-links |"]
    lines += [f"|{' --- |' * 7}"]
    for study in NOISY:
        if (curves := found.get(study.name)) is None:
            continue
        rows, n_questions, strategy = study.name.split(", ", 2)
        for x in curves.xs:
            nmi = [curves.values(arm, x, "nmi_all").mean() for arm in (HMRF, NOTHING)]
            must, wrong = (curves.values(HMRF, x, one).sum() for one in ("must", "wrong_must"))
            share = f"{wrong / must:.1%}" if must else "–"
            lines += [
                f"| {rows} | {n_questions.split()[0]} | {x:.0%} | {strategy} | {nmi[0]:.3f} "
                f"| {nmi[1]:.3f} | {share} |"
            ]
    return [*lines, ""]


def _of_clicks(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI of News-all20 by clicks and by pairs."""
    lines = ["| News-all20 | questions | NMI, test half / all rows |", "| --- | --- | --- |"]
    for strategy in CLICK_AXES:
        if (curves := found.get(named("News-all20", strategy))) is not None:
            lines += [f"| {strategy} | {x:g} | {_means(curves, PCK, x)} |" for x in curves.xs]
    return lines if len(lines) > 2 else []


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
    "TF-IDF rows. Then the same of all documents in LSA rows with answers that may be wrong (a "
    "fifth are none), and which of 20 groups a document belongs to, one click each.",
    (*STUDIES, *NOISY, *CLICKED),
    tuple(Figure(one.name, one.name) for one in (*STUDIES, *NOISY, *CLICKED)),
    findings,
    runs=3,
    quick_runs=1,
    further=("nmi_all", "must", "wrong_must"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
