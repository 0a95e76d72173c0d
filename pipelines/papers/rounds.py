"""Nightly rounds: 25 questions about last night's clusters, answered before the next fit.

Run with `python -m pipelines.papers.rounds`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hmrf_dask import Constraints, HMRFKMeans
from hmrf_dask.active import Answers, next_choices
from hmrf_dask.answers.records import CHOICE, DIFFERENT, NONE, PAIR, SAME, Entry, Question
from hmrf_dask.errors import HmrfWarning
from hmrf_dask.questions.known import Known
from hmrf_dask.questions.rounds import Person, next_question
from pipelines.papers.cells import Curves, standard_error
from pipelines.papers.harness import main
from pipelines.papers.plans import Arm, Axis, Experiment, Figure, Study
from pipelines.papers.sets import lsa
from pipelines.papers.supervision import Fold, Given, random_pairs

A_NIGHT = 25
QUESTIONS = Axis("answers", (25, 50, 75), (25,))
SIZES = (10, 25, 50)  # of a batch
LONGER = Axis("answers", (50, 100, 150), (50,))
SURE, BELIEVED, CLICKS = "pairs", "pairs believed", "clicks believed"
HOW = (SURE, BELIEVED, CLICKS)
WARM = ", warm"
WARMED = (SURE + WARM, CLICKS + WARM)
RANDOM, NOTHING = "random", "no answers"
DEFAULTS = "defaults"
SETS = {
    "News-Related-3, LSA": partial(lsa, "news_related_3"),
    "News-Similar-3, LSA": partial(lsa, "news_similar_3"),
}


def nightly(
    fold: Fold, n_answers: float, *, how: str, warm: bool = False, a_night: int = A_NIGHT
) -> Given:
    """Return what so many answers tell a fit, some a night, each night about the last fit.

    A warm fit begins with the centroids of the night before, next to starts that answers make.
    """
    entries: list[Entry] = []
    batches: list[Question] = []
    given = Given()
    while len(entries) < n_answers:
        model = HMRFKMeans(int(fold.classes.max()) + 1, random_state=2 * fold.run + fold.number)
        model._last = given.last
        with warnings.catch_warnings():
            # a few short messages have no word that is left, and the fit says so every time
            warnings.filterwarnings("ignore", r"\d+ rows are zero", HmrfWarning)
            model.fit(fold.values, must_link=given.must_link, cannot_link=given.cannot_link)
            known = (
                Constraints(given.must_link, given.cannot_link) if how == SURE else Answers(entries)
            )
            batch = next_choices(model, a_night, X=fold.values, answers=known)
        batches += batch
        if not _answer(fold, batch, entries, how, a_night):
            break
        given = _given_of(entries, batches, how)
        if warm:
            given = replace(given, last=model.cluster_centers_)
    return given


def _answer(
    fold: Fold, batch: list[Question], entries: list[Entry], how: str, a_night: int
) -> bool:
    """Answer a night's questions as somebody who knows the classes; return whether any was left."""
    person = Person(kind=CHOICE if how == CLICKS else PAIR)
    for _ in range(a_night):
        beliefs = None if how == SURE else Answers(entries).beliefs
        question = next_question(batch, entries, person, control=0.0, beliefs=beliefs)
        if question is None:
            return False
        own = int(fold.classes[int(question.documents[0])])
        others = question.shown or question.documents[1:]
        alike = [name for name in others if int(fold.classes[int(name)]) == own]
        documents = question.documents
        answer = SAME if alike else DIFFERENT
        if question.kind == CHOICE:
            documents, answer = (documents[0], *alike[:1]), SAME if alike else NONE
        name = f"{len(entries):06d}"
        entries.append(
            Entry(name, question.kind, documents, question.shown, answer, likely=question.likely)
        )
    return True


def _given_of(entries: list[Entry], batches: list[Question], how: str) -> Given:
    """Return what answers tell a fit, as pairs of rows."""
    if how != SURE:
        pairs = Answers(entries).constraints()
        return Given(*(_rows(some) for some in (pairs.must_link, pairs.cannot_link)))
    known = Known.of(entries)
    same = [entry.documents for entry in entries if entry.answer == SAME]
    last = [(question.documents[0], known.last_left(question)) for question in batches]
    same += [(document, other) for document, other in last if other is not None]
    return Given(_rows(same), _rows([one.documents for one in entries if one.answer == DIFFERENT]))


def _rows(pairs: Any) -> Any:
    return np.array(pairs, dtype=np.str_).reshape(-1, 2).astype(np.int64)


def anywhere(fold: Fold, n_answers: float) -> Given:
    """Return answers to random pairs of all rows."""
    everything = np.arange(len(fold.classes))
    return random_pairs(Fold(fold.classes, everything, fold.test, fold.run, fold.number), n_answers)


STUDIES = tuple(
    Study(
        f"{rows}, {how}", load, QUESTIONS,
        (Arm(DEFAULTS), Arm(NOTHING, takes="nothing")) if how == RANDOM else (Arm(DEFAULTS),),
        ask,
        is_large=how in WARMED,
    )
    for rows, load in SETS.items()
    for how, ask in (
        *((how, partial(nightly, how=how)) for how in HOW),
        *((how, partial(nightly, how=how.removesuffix(WARM), warm=True)) for how in WARMED),
        (RANDOM, anywhere),
    )
)  # fmt: skip


BATCHES = tuple(
    Study(
        f"{rows}, {a_night} a night", load, LONGER, (Arm(DEFAULTS),),
        partial(nightly, how=SURE, warm=True, a_night=a_night), is_large=True,
    )
    for rows, load in SETS.items()
    for a_night in SIZES
)  # fmt: skip


def findings(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI of all rows after each night, and its differences, with their standard errors."""
    lines = [
        f"| rows | answers | {' | '.join(HOW)} | random | no answers | pairs − random "
        "| pairs − none | clicks − random |",
        f"|{' --- |' * (len(HOW) + 7)}",
    ]
    for rows in SETS:
        curves = [found[name] for how in (*HOW, RANDOM) if (name := f"{rows}, {how}") in found]
        if len(curves) == len(HOW) + 1:
            lines += [f"| {rows} | {x:g} | {_row(curves, x)} |" for x in curves[0].xs]
    lines += ["", f"| rows | answers | {' | '.join(WARMED)} | warm − cold | |", f"|{' --- |' * 6}"]
    for rows in SETS:
        names = [f"{rows}, {how}" for how in (*WARMED, *(one.removesuffix(WARM) for one in WARMED))]
        if all(name in found for name in names):
            curves = [found[name] for name in names]
            lines += [f"| {rows} | {x:g} | {_warm_row(curves, x)} |" for x in curves[0].xs]
    return [*lines, "", *_of_batches(found), "NMI of all rows."]


def _row(curves: list[Curves], x: float) -> str:
    values = [one.values(DEFAULTS, x, "nmi_all") for one in curves]
    values.append(curves[-1].values(NOTHING, x, "nmi_all"))
    pairs, _, clicks, chance, none = values
    differences = [
        f"{(one - other).mean():+.3f} ± {standard_error(one - other):.3f}"
        for one, other in ((pairs, chance), (pairs, none), (clicks, chance))
    ]
    return " | ".join([*(f"{one.mean():.3f}" for one in values), *differences])


def _of_batches(found: Mapping[str, Curves]) -> list[str]:
    """Tell NMI by how many questions are asked between two fits."""
    lines = ["| rows | a night | 50 answers | 100 | 150 | mean |", f"|{' --- |' * 6}"]
    for study in BATCHES:
        if (curves := found.get(study.name)) is not None:
            means = [curves.mean(DEFAULTS, x, "nmi_all") for x in curves.xs]
            rows, a_night = study.name.removesuffix(" a night").rsplit(", ", 1)
            shown = " | ".join(f"{mean:.3f}" for mean in (*means, np.mean(means)))
            lines += [f"| {rows} | {a_night} | {shown} |"]
    return [*lines, ""] if len(lines) > 2 else []


def _warm_row(curves: list[Curves], x: float) -> str:
    pairs, clicks, *cold = (one.values(DEFAULTS, x, "nmi_all") for one in curves)
    differences = [warm - one for warm, one in zip((pairs, clicks), cold, strict=True)]
    shown = [f"{one.mean():.3f}" for one in (pairs, clicks)]
    shown += [f"{one.mean():+.3f} ± {standard_error(one):.3f}" for one in differences]
    return " | ".join(shown)


EXPERIMENT = Experiment(
    "rounds",
    "Nightly rounds of questions",
    "Three nights of 25 answers each: to questions that `next_choices` asks about the clusters of "
    "the night before, beside answers to random pairs. Pairs: a document goes on to its next group "
    "where it was told apart from one, and every answer is a pair for the next fit. Believed: "
    "answers may be wrong, and only documents that are settled reach the fit; of a click one is "
    "enough. Warm: as a job does, a night begins with the centroids of the one before, next to "
    "starts that answers make. All documents may be asked about, and all are judged. Defaults of "
    "the library. Then warm nights of 10, 25 and 50 pairs each.",
    (*STUDIES, *BATCHES),
    tuple(Figure(one.name, one.name, "nmi_all") for one in (*STUDIES, *BATCHES)),
    findings,
    runs=3,
    quick_runs=1,
    further=("nmi_all",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
