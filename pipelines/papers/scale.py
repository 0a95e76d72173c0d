"""PCKMeans and COP-KMeans from 2,000 to 200,000 documents, beside the Python peer on dense rows.

Run with `python -m pipelines.papers.scale`, `--peer-python` names a Python that has the peer.
"""

from __future__ import annotations

import csv
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import hmrf_dask
from hmrf_dask.errors import HmrfError, HmrfWarning
from pipelines.papers.peer import fit_peer
from pipelines.papers.planted import dense_rows, sparse_rows
from pipelines.papers.report import COLOURS, MARKERS, check_drawing
from pipelines.papers.sets import Rows
from pipelines.papers.supervision import Fold, Given, random_pairs

NAME = "scale"
SIZES = (2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
QUICK_SIZES = (2_000, 5_000, 10_000)
PEER_SIZES = (1_000, 2_000, 4_000, 8_000, 16_000)
QUICK_PEER_SIZES = (500, 1_000, 2_000)
PAIRS_PER_ROW = 0.25
MAX_ITER = 5
# One start each, batch moves only: what is timed is the loop, not a pool of starts.
ESTIMATORS: dict[str, dict[str, Any]] = {
    "PCKMeans": {"init": "neighborhoods", "refine": False},
    "COPKMeans": {"init": "random", "n_init": 1, "refine": False},
}
LINEAR = 1.1  # the largest exponent that is called linear
FACTOR = 40  # so many times ours is what a linear peer takes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """One fit: the lowest of its runs."""

    rows: str  # "sparse" or "dense"
    arm: str
    n_rows: int
    n_pairs: int
    iterations: int
    seconds: float
    cpu_seconds: float

    @property
    def per_iteration(self) -> float:
        """CPU seconds of an iteration, the fit's beginning and end shared out among them."""
        return self.cpu_seconds / max(self.iterations, 1)


def pairs_of(rows: Rows) -> Given:
    """Return as many random pairs of all rows for every row, as the truth answers them."""
    every = np.arange(len(rows.classes))
    return random_pairs(Fold(rows.classes, every, every, 0, 0), int(PAIRS_PER_ROW * len(every)))


def fit_ours(name: str, rows: Rows, given: Given, seed: int) -> tuple[float, float, int]:
    """Return wall and CPU seconds and iterations of a fit."""
    parameters = {**ESTIMATORS[name], "max_iter": MAX_ITER, "random_state": seed}
    if isinstance(rows.values, np.ndarray):
        parameters["distortion"] = "euclidean"
    model = getattr(hmrf_dask, name)(rows.n_clusters, **parameters)
    told = {"must_link": given.must_link, "cannot_link": given.cannot_link}
    wall, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmrfWarning)
        model.fit(rows.values, **told)
    return time.perf_counter() - wall, time.process_time() - processor, model.n_iter_


Fit = Callable[[Rows, Given, int], tuple[float, float, int]]


def lowest(rows: Rows, given: Given, fit: Fit, runs: int) -> tuple[float, float, int]:
    """Return the run with the fewest CPU seconds an iteration: others were disturbed."""
    found = [fit(rows, given, seed) for seed in range(runs)]
    return min(found, key=lambda one: one[1] / max(one[2], 1))


def measure(sizes: dict[str, Sequence[int]], runs: int, peer: str | None, say: Say) -> list[Timing]:
    """Time every arm at every size.

    Parameters
    ----------
    sizes : dict
        Of "sparse" and of "dense" rows; the peer takes dense ones alone.
    runs : int
    peer : str, optional
        A Python that has the peer.
    say : callable
        Gets lines of progress.
    """
    found = []
    for kind, make in (("sparse", sparse_rows), ("dense", dense_rows)):
        every = make(max(sizes[kind]))
        arms = _arms(peer if kind == "dense" else None)
        first = Rows(every.values[:200], every.classes[:200])
        for name in ESTIMATORS:
            fit_ours(name, first, pairs_of(first), 0)  # compiles what it calls
        for n_rows in sizes[kind]:
            rows = Rows(every.values[:n_rows], every.classes[:n_rows])
            given = pairs_of(rows)
            for arm, fit in arms.items():
                seconds, processor, n_iter = lowest(rows, given, fit, runs)
                one = Timing(kind, arm, n_rows, len(given.pairs), n_iter, seconds, processor)
                say(f"{kind} {n_rows:,}: {arm} {processor:.2f} CPU s, {n_iter} iterations")
                found.append(one)
    return found


def _arms(peer: str | None) -> dict[str, Fit]:
    """Return names and fits: ours, then those of the peer."""
    found: dict[str, Fit] = {name: partial(fit_ours, name) for name in ESTIMATORS}
    if peer is not None:
        found |= {f"{name}, peer": partial(fit_peer, peer, name, MAX_ITER) for name in ESTIMATORS}
    return found


# ---- what it shows


def curve(found: Sequence[Timing], rows: str, arm: str) -> list[Timing]:
    """Return the timings of an arm, the smallest set first."""
    chosen = [one for one in found if (one.rows, one.arm) == (rows, arm)]
    return sorted(chosen, key=lambda one: one.n_rows)


def exponent(timings: Sequence[Timing]) -> float:
    """Return the slope of log time over log rows: 1 is linear, 2 quadratic."""
    sizes = np.log([one.n_rows for one in timings])
    return float(np.polyfit(sizes, np.log([one.per_iteration for one in timings]), 1)[0])


def summary(found: Sequence[Timing]) -> list[dict[str, Any]]:
    """Return of every curve its exponents, and how many times ours a peer takes at its largest."""
    lines = []
    for kind, arm in dict.fromkeys((one.rows, one.arm) for one in found):
        own = curve(found, kind, arm)
        line: dict[str, Any] = {"rows": kind, "arm": arm, "largest": own[-1].n_rows}
        line |= {"exponent": exponent(own), "exponent_at_large": exponent(own[-3:])}
        if arm.endswith(", peer"):
            ours = curve(found, kind, arm.removesuffix(", peer"))[-1]
            line["times_ours"] = own[-1].per_iteration / ours.per_iteration
        lines.append(line)
    return lines


def findings(found: Sequence[Timing]) -> list[str]:
    """Say of every curve whether it holds."""
    told = []
    for line in summary(found):
        steep = max(line["exponent"], line["exponent_at_large"])
        text = (
            f"- {line['arm']}, {line['rows']} rows: exponent {line['exponent']:.2f}, "
            f"{line['exponent_at_large']:.2f} over the three largest sizes"
        )
        if "times_ours" in line:
            beyond = line["times_ours"] >= FACTOR or steep > 2.0 - (LINEAR - 1.0)
            text += f"; {line['times_ours']:,.0f} × our CPU time at {line['largest']:,} rows: "
            text += f"{'' if beyond else 'not '}{FACTOR} × or quadratic."
        else:
            text += f": {'' if steep <= LINEAR else 'not '}linear (at most {LINEAR})."
        told.append(text)
    if not any("times_ours" in line for line in summary(found)):
        told.append("- The peer was not asked: `--peer-python` names a Python that has it.")
    return told


def text(found: Sequence[Timing], *, with_figure: bool = False) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Time over the number of documents",
        "",
        f"One start, {MAX_ITER} iterations at most, {PAIRS_PER_ROW:g} right pairs a row, 20 "
        "clusters, whole fits. Sparse rows are documents of planted topics, the dense ones have 20 "
        "features, as the peer (`active-semi-supervised-clustering` 0.0.1) takes no sparse ones. "
        "CPU seconds of all threads, the lowest of the runs; exponents are those of CPU seconds an "
        "iteration.",
        "",
        *(["![CPU seconds over rows, both logarithmic](scale.png)", ""] if with_figure else []),
        "## What it shows",
        "",
        *findings(found),
        "",
        "## The figures",
        "",
        "| rows | | n | pairs | iterations | wall s | CPU s | CPU s an iteration |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {one.rows} | {one.arm} | {one.n_rows:,} | {one.n_pairs:,} | {one.iterations} | "
        f"{one.seconds:.2f} | {one.cpu_seconds:.2f} | {one.per_iteration:.4f} |"
        for one in found
    ]
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Timing], stem: Path) -> list[Path]:
    """Draw both kinds of rows, axes logarithmic, into a PNG and an SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    files = [stem.with_suffix(ending) for ending in (".png", ".svg")]
    kinds = list(dict.fromkeys(one.rows for one in found))
    with mpl.rc_context({"svg.hashsalt": NAME, "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(4.6 * len(kinds), 3.8), layout="constrained")
        for kind, axes in zip(kinds, canvas.subplots(1, len(kinds), squeeze=False)[0], strict=True):
            _draw_panel(found, kind, axes)
        canvas.savefig(files[0], dpi=130)
        canvas.savefig(files[1], metadata={"Date": None})
    return files


def _draw_panel(found: Sequence[Timing], kind: str, axes: Any) -> None:
    arms = dict.fromkeys(one.arm for one in found if one.rows == kind)
    for number, arm in enumerate(arms):
        own = curve(found, kind, arm)
        label = f"{arm}: exponent {exponent(own):.2f}"
        points = [one.n_rows for one in own], [one.per_iteration for one in own]
        axes.loglog(
            *points, label=label, color=COLOURS[number], marker=MARKERS[number], linewidth=1.4
        )
    axes.set_title(f"{kind} rows", fontsize=10)
    axes.set_xlabel("documents", fontsize=9)
    axes.set_ylabel("CPU seconds an iteration", fontsize=9)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7)


def write(found: Sequence[Timing], folder: Path) -> list[Path]:
    """Write CSV, figure and text into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / NAME
    table, page = stem.with_suffix(".csv"), stem.with_suffix(".md")
    with table.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow([one.name for one in fields(Timing)])
        lines.writerows(astuple(one) for one in found)
    page.write_text(text(found, with_figure=True))
    return [table, *draw(found, stem), page]


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(1), help="Runs of each fit [default: 3, quick: 1].")
@click.option("--quick", is_flag=True, help="Small sizes only.")
@click.option("--peer-python", metavar="FILE", help="A Python that has the peer.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs", "papers", NAME),
    metavar="DIR",
    show_default=True,
    help="Where files are written.",
)
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON, not the text.")
def main(
    runs: int | None, quick: bool, peer_python: str | None, output: Path, as_json: bool
) -> None:
    """Run the command."""
    sizes: dict[str, Sequence[int]] = {"sparse": SIZES, "dense": PEER_SIZES}
    if quick:
        sizes = {"sparse": QUICK_SIZES, "dense": QUICK_PEER_SIZES}
    try:
        check_drawing()
        found = measure(
            sizes, runs or (1 if quick else 3), peer_python, lambda line: click.echo(line, err=True)
        )
    except HmrfError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    files = write(found, output)
    click.echo(f"written: {', '.join(map(str, files))}", err=True)
    click.echo(json.dumps(summary(found)) if as_json else text(found), nl=as_json)


if __name__ == "__main__":
    main()
