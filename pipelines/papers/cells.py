"""Figures of fits: their CSV file, which grows by a line a fit, and the curves made of them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmrf_dask.errors import RunDirectoryError
from pipelines.papers.plans import Experiment, Key, Study

MEASURES = {
    "nmi": "NMI, test part",
    "mi": "mutual information (nats), test part",
    "f": "pairwise F, test part",
    "f_rest": "pairwise F, all rows without the given pairs",
    "objective": "J",
    "broken": "given pairs broken",
    "nmi_all": "NMI, all rows",
}
PLAIN = ("nmi", "mi", "f", "f_rest", "objective", "broken")  # those of every experiment
COLUMNS = (*Key._fields, *PLAIN)
SECONDS = "seconds"  # of CPU, of a fit: the machine's, so they stand in a file of their own

Scores = dict[str, float]


class CellFile:
    """The CSV file of an experiment: a line is there as a whole or not at all.

    Beside it lies one of the seconds each fit took, a line each, too.

    Parameters
    ----------
    folder : Path
    name : str
        Of the experiment.
    further : tuple of str
        Measures that it keeps beside those of every experiment.

    Attributes
    ----------
    cells : dict of Key to scores
        Those that are finished; what a stopped run left is taken up.
    """

    def __init__(self, folder: Path, name: str, further: tuple[str, ...] = ()) -> None:
        self._measures = (*PLAIN, *further)
        self.path = folder / f"{name}.csv"
        self._times = folder / f"{name}.{SECONDS}.csv"
        self._settings = folder / f"{name}.settings.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.cells = self._read()

    def _read(self) -> dict[Key, Scores]:
        """Return the finished cells; seconds that nobody wrote down are NaN."""
        lines = _lines(self.path, (*Key._fields, *self._measures))
        cells = {_key(line): {one: float(line[one]) for one in self._measures} for line in lines}
        timed = _lines(self._times, (*Key._fields, SECONDS))
        seconds = {_key(line): float(line[SECONDS]) for line in timed}
        return {
            key: {**scores, SECONDS: seconds.get(key, math.nan)} for key, scores in cells.items()
        }

    def check(self, study: Study, settings: Mapping[str, Any]) -> None:
        """Refuse a study whose finished cells were made with other rows or settings."""
        text = self._settings.read_text() if self._settings.exists() else "{}"
        known = json.loads(text)
        # as JSON has it: tuples are lists there
        own = json.loads(json.dumps(settings))
        begun = any(key.study == study.name for key in self.cells)
        if begun and known.get(study.name) != own:
            before = known.get(study.name, {})
            changed = [name for name, value in own.items() if before.get(name) != value]
            raise RunDirectoryError(
                f"figures of {study.name!r} in {self.path} must have been made with the same rows "
                f"and settings, got other {', '.join(changed)}; choose another --output, or delete "
                f"{self.path.name} and {self._settings.name}"
            )
        known[study.name] = own
        self._settings.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")

    def add(self, key: Key, scores: Scores) -> None:
        """Keep one cell: it is finished with its line in the file of figures, which comes last."""
        place = key._replace(x=None if key.x is None else float(key.x))
        values = ["" if one is None else one for one in place]
        for path, names in ((self._times, (SECONDS,)), (self.path, self._measures)):
            with path.open("a", newline="") as file:
                line = [*values, *(repr(float(scores[name])) for name in names)]
                csv.writer(file, lineterminator="\n").writerow(line)
        self.cells[key] = scores


def _lines(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the lines of a CSV file, and cut off one that a kill left half written."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1] or ",".join(columns) + "\n"
    if whole != text:
        path.write_text(whole)
    lines = csv.DictReader(whole.splitlines())
    if tuple(lines.fieldnames or ()) != columns:
        raise RunDirectoryError(
            f"{path} must have the columns {', '.join(columns)}, got "
            f"{', '.join(lines.fieldnames or ())}; choose another --output"
        )
    return list(lines)


def _key(line: Mapping[str, str]) -> Key:
    x = float(line["x"]) if line["x"] else None
    return Key(line["study"], line["arm"], x, int(line["run"]), int(line["fold"]))


@dataclass(frozen=True)
class Curves:
    """The figures of one study: of every arm and place an array over runs and folds, in one order.

    So arms can be compared pair by pair: they had the same folds, pairs and seeds.
    """

    study: Study
    xs: tuple[float, ...]
    keys: dict[tuple[str, float | None], list[Key]]
    cells: Mapping[Key, Scores]

    def values(self, arm: str, x: float, measure: str = "nmi") -> NDArray[np.float64]:
        """Return the figures of an arm at a place."""
        keys = self.keys.get((arm, x)) or self.keys[arm, None]
        return np.array([self.cells[key][measure] for key in keys])

    def mean(self, arm: str, x: float, measure: str = "nmi") -> float:
        """Return the mean over runs and folds."""
        return float(self.values(arm, x, measure).mean())

    def error(
        self, arm: str, x: float, measure: str = "nmi", *, against: str | None = None
    ) -> float:
        """Return the standard error of a mean, or of the mean difference from another arm.

        It is that of drawing folds, pairs and seeds, not that of drawing documents.
        """
        values = self.values(arm, x, measure)
        if against is not None:
            values = values - self.values(against, x, measure)
        return standard_error(values)

    def above(self, arm: str, other: str, x: float, measure: str = "nmi") -> float:
        """Return by how much the mean of an arm is above that of another."""
        return self.mean(arm, x, measure) - self.mean(other, x, measure)

    def holds(self, arm: str, other: str, x: float, measure: str = "nmi") -> bool:
        """Return whether an arm is not below another by more than one paired standard error."""
        below = -self.above(arm, other, x, measure)
        return below <= self.error(arm, x, measure, against=other)


def standard_error(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the standard error of a mean; of one value it is not known, and 0 here."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def curves(
    experiment: Experiment, cells: Mapping[Key, Scores], runs: int, quick: bool
) -> dict[str, Curves]:
    """Return the curves of every study that was run."""
    found = {}
    for study in experiment.chosen(quick):
        keys: dict[tuple[str, float | None], list[Key]] = {}
        for key in study.keys(runs, quick):
            keys.setdefault((key.arm, key.x), []).append(key)
        found[study.name] = Curves(study, study.places(quick), keys, cells)
    return found
