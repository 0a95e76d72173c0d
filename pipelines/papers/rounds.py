"""Nightly rounds: 25 questions about last night's clusters, answered before the next fit.

Run with `python -m pipelines.papers.rounds`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial

import numpy as np

from hmrf_dask import HMRFKMeans
from hmrf_dask.active import Answers, next_choices
from hmrf_dask.active.rounds import Person, next_question
from hmrf_dask.answers.records import DIFFERENT, PAIR, SAME, Entry, Question
from hmrf_dask.errors import HmrfWarning
from pipelines.papers.cells import Curves
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import lsa
from pipelines.papers.supervision import Fold, Given, random_pairs

A_NIGHT = 25
QUESTIONS = Axis("answers", (25, 50, 75), (25, 50))
CHOSEN, RANDOM, NOTHING = "chosen", "random", "no answers"
DEFAULTS = "defaults"
SETS = {
    "News-Related-3, LSA": partial(lsa, "news_related_3"),
    "News-Similar-3, LSA": partial(lsa, "news_similar_3"),
}


def nightly(fold: Fold, n_answers: float, *, trust: float | None = None) -> Given:
    """Return the answers to so many questions, 25 a night, each night about the last fit."""
    n_clusters, entries = int(fold.classes.max()) + 1, list[Entry]()
    answers = Answers(entries, trust=trust, n_clusters=n_clusters)
    while len(entries) < n_answers:
        given = given_of(answers)
        model = HMRFKMeans(n_clusters, random_state=2 * fold.run + fold.number)
        with warnings.catch_warnings():
            # a few short messages have no word that is left, and the fit says so every time
            warnings.filterwarnings("ignore", r"\d+ rows are zero", HmrfWarning)
            model.fit(fold.values, must_link=given.must_link, cannot_link=given.cannot_link)
            batch = next_choices(model, A_NIGHT, X=fold.values, answers=answers)
        night = len(entries) + A_NIGHT
        while len(entries) < night:
            person = Person(kind=PAIR)
            question = next_question(batch, entries, person, control=0.0, beliefs=answers.beliefs)
            if question is None:
                return given_of(answers)
            entries.append(_answered(question, fold, len(entries)))
            answers = Answers(entries, trust=trust, n_clusters=n_clusters)
    return given_of(answers)


def _answered(question: Question, fold: Fold, number: int) -> Entry:
    """Return what somebody says who knows the classes."""
    classes = {int(fold.classes[int(name)]) for name in question.documents}
    answer = SAME if len(classes) == 1 else DIFFERENT
    return Entry(f"{number:06d}", PAIR, question.documents, (), answer, likely=question.likely)


def given_of(answers: Answers) -> Given:
    """Return what answers tell a fit, as pairs of rows."""
    pairs = answers.constraints()
    both = (
        np.array(some, np.int64).reshape(-1, 2) for some in (pairs.must_link, pairs.cannot_link)
    )
    return Given(*both)


def anywhere(fold: Fold, n_answers: float) -> Given:
    """Return answers to random pairs of all rows."""
    everything = np.arange(len(fold.classes))
    return random_pairs(Fold(fold.classes, everything, fold.test, fold.run, fold.number), n_answers)


STUDIES = tuple(
    Study(
        f"{rows}, {how}", load, QUESTIONS,
        (Arm(DEFAULTS), Arm(NOTHING, takes="nothing")) if how == RANDOM else (Arm(DEFAULTS),),
        ask,
    )
    for rows, load in SETS.items()
    for how, ask in ((CHOSEN, nightly), (RANDOM, anywhere), ("certain", partial(nightly, trust=1.0)))
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI of all rows after each night, and its differences, with their standard errors."""
    lines = [
        "| rows | answers | chosen | random | no answers | chosen − random | chosen − none |",
        f"|{' --- |' * 7}",
    ]
    for rows in SETS:
        chosen, random = (found.get(f"{rows}, {how}") for how in (CHOSEN, RANDOM))
        if chosen is not None and random is not None:
            lines += [f"| {rows} | {x:g} | {_row(chosen, random, x)} |" for x in chosen.xs]
    return [*lines, "", "NMI of all rows."]


def _row(chosen: Curves, random: Curves, x: float) -> str:
    ours = chosen.values(DEFAULTS, x, "nmi_all")
    others = [random.values(arm, x, "nmi_all") for arm in (DEFAULTS, NOTHING)]
    means = [f"{values.mean():.3f}" for values in (ours, *others)]
    errors = [(ours - values).std(ddof=1) / np.sqrt(len(ours)) for values in others]
    return " | ".join(
        [
            *means,
            *(
                f"{(ours - values).mean():+.3f} ± {error:.3f}"
                for values, error in zip(others, errors, strict=True)
            ),
        ]
    )


EXPERIMENT = Experiment(
    "rounds",
    "Nightly rounds of questions",
    "Three nights of 25 answers each: to questions that `next_choices` asks about the clusters of "
    "the night before, a document going on to its next group where it was told apart from one, "
    "beside answers to random pairs. All documents may be asked about, and all are judged. "
    "Defaults of the library.",
    STUDIES,
    tuple(Figure(one.name, one.name, "nmi_all") for one in STUDIES),
    findings,
    runs=3,
    quick_runs=1,
    further=("nmi_all",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
