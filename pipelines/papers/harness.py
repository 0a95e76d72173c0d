"""Runs an experiment of a paper: sets, folds, what is told, arms, scores, and the files of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hmrf_dask.errors import HmrfError
from hmrf_dask.measures.contingency import contingency
from hmrf_dask.measures.scores import mutual_info, normalized_mutual_info, pairwise_f
from pipelines.papers import report
from pipelines.papers.cells import SECONDS, CellFile, Curves, Scores, curves
from pipelines.papers.plans import Arm, Experiment, Key, Study
from pipelines.papers.sets import Rows, data_folder
from pipelines.papers.supervision import Fold, Given, folds

Say = Callable[[str], None]


def run(
    experiment: Experiment, *, runs: int, quick: bool, data: Path, output: Path, say: Say
) -> dict[str, Curves]:
    """Fit what is not in the CSV file of `output` yet; return the curves.

    Parameters
    ----------
    experiment : Experiment
    runs : int
    quick : bool
    data, output : Path
    say : callable
        Gets lines of progress.
    """
    file = CellFile(output, experiment.name, experiment.further)
    for study in experiment.chosen(quick):
        rows = study.load(data)
        file.check(study, study.settings(rows))
        _run_study(study, rows, list(study.keys(runs, quick)), file, say)
    return curves(experiment, file.cells, runs, quick)


def _run_study(study: Study, rows: Rows, keys: list[Key], file: CellFile, say: Say) -> None:
    """Fit the cells of a study that are missing, in order."""
    missing = [key for key in keys if key not in file.cells]
    say(f"{study.name}: {len(keys)} fits, {len(keys) - len(missing)} of them from {file.path}")
    arms = {arm.name: arm for arm in study.arms}
    begun = time.perf_counter()
    for number, key in enumerate(missing, 1):
        file.add(key, cell(study, arms[key.arm], rows, key))
        if number == len(missing) or missing[number][3:] != key[3:]:
            spent = time.perf_counter() - begun
            left = spent / number * (len(missing) - number)
            say(
                f"{study.name}: run {key.run} fold {key.fold} done, {number} of {len(missing)} "
                f"fits in {spent:.0f} s, about {left:.0f} s left"
            )


def cell(study: Study, arm: Arm, rows: Rows, key: Key) -> Scores:
    """Return the scores and seconds of one fit; its key tells folds, what is told and the seed."""
    fold = folds(rows.classes, key.run, study.n_folds)[key.fold]
    fold = replace(fold, values=rows.values)
    given = Given() if key.x is None else study.ask(fold, key.x)
    begun = time.process_time()
    model = arm.fit(rows, given, key.x, seed=study.seed(key))
    spent = time.process_time() - begun
    return {**scores(rows, fold, given, model), SECONDS: spent}


def scores(rows: Rows, fold: Fold, given: Given, model: Any) -> Scores:
    """Return the measures of a model: those of the test part, and those of the whole."""
    classes, labels, test = rows.classes, model.labels_, fold.test
    table = contingency(classes[test], labels[test])
    must, cannot = given.must_link, given.cannot_link
    broken = (labels[must[:, 0]] != labels[must[:, 1]]).sum()
    broken += (labels[cannot[:, 0]] == labels[cannot[:, 1]]).sum()
    return {
        "nmi": normalized_mutual_info(table),
        "mi": mutual_info(table),
        # of test rows nothing was told, so that all their pairs are judged
        "f": pairwise_f(classes[test], labels[test]),
        "f_rest": pairwise_f(classes, labels, without=given.pairs),
        "objective": float(model.objective_),
        "broken": float(broken),
        "nmi_all": normalized_mutual_info(contingency(classes, labels)),
        **_suspects(classes, given, model),
    }


def _suspects(classes: Any, given: Given, model: Any) -> Scores:
    """Return how many answers are wrong, how many the model suspects, and how many are both."""
    must, cannot = given.must_link, given.cannot_link
    wrong = int((classes[must[:, 0]] != classes[must[:, 1]]).sum())
    wrong += int((classes[cannot[:, 0]] == classes[cannot[:, 1]]).sum())
    suspects = getattr(model, "suspect_answers_", [])
    hits = sum((classes[one.a] == classes[one.b]) != (one.kind == "must") for one in suspects)
    found = {"suspects": len(suspects), "suspects_wrong": hits, "wrong": wrong}
    found["must"] = len(must)
    found["wrong_must"] = int((classes[must[:, 0]] != classes[must[:, 1]]).sum())
    return {name: float(number) for name, number in found.items()}


def main(experiment: Experiment) -> None:
    """Run the command of an experiment's file."""
    command(experiment)()


def command(experiment: Experiment) -> click.Command:
    """Return the command of an experiment."""

    @click.command(help=f"{experiment.title}.\n\n{experiment.about}")
    @click.option("--runs", type=click.IntRange(1), help=f"Runs [default: {experiment.runs}].")
    @click.option("--quick", is_flag=True, help="A few places, two folds, small sets only.")
    @click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Where the sets lie [default: HMRF_DATA, or shared/data beside the project].",
    )
    @click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help=f"Where files are written [default: runs/papers/{experiment.name}].",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print means as JSON, not the text.")
    def command(
        runs: int | None, quick: bool, data: Path | None, output: Path | None, as_json: bool
    ) -> None:
        runs = runs or (experiment.quick_runs if quick else experiment.runs)
        output = output or Path("runs", "papers", experiment.name)
        try:
            report.check_drawing()
            found = run(
                experiment,
                runs=runs,
                quick=quick,
                data=data or data_folder(),
                output=output,
                say=lambda line: click.echo(line, err=True),
            )
        except HmrfError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        files = report.write(experiment, found, output, runs)
        click.echo(f"written: {', '.join(map(str, files))}", err=True)
        if as_json:
            click.echo(json.dumps(report.figures(experiment, found, runs), ensure_ascii=False))
        else:
            click.echo(report.text(experiment, found, runs), nl=False)

    return command
