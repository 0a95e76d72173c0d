"""What an experiment leaves behind beside its CSV: a figure like the paper's, and a short text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmrf_dask.errors import ConfigurationError
from pipelines.papers.cells import MEASURES, Curves
from pipelines.papers.plans import Experiment, Figure

COLOURS = ("#b2182b", "#2166ac", "#1b7837", "#e08214", "#762a83", "#4d4d4d")
MARKERS = "osD^v*"
WIDTH = 3  # panels in a row


def write(
    experiment: Experiment, found: Mapping[str, Curves], folder: Path, runs: int
) -> list[Path]:
    """Write the figure and the text into a folder; return the files, the CSV first."""
    stem = folder / experiment.name
    page = stem.with_suffix(".md")
    page.write_text(text(experiment, found, runs, with_figure=True))
    return [stem.with_suffix(".csv"), *draw(experiment, found, stem), page]


def check_drawing() -> None:
    """Refuse to begin hours of fits that could not be drawn in the end."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            "matplotlib must be installed to draw the figures, got none; install the group bench "
            "of pyproject.toml: pip install --group bench, or make setup"
        )


def drawn(experiment: Experiment, found: Mapping[str, Curves]) -> list[Figure]:
    """Return the figures whose studies were run."""
    return [one for one in experiment.figures if one.study in found]


def arms_of(figure: Figure, lines: Curves) -> tuple[str, ...]:
    """Return the arms that a figure shows."""
    return figure.arms or tuple(arm.name for arm in lines.study.arms)


# ---- the figure


def draw(experiment: Experiment, found: Mapping[str, Curves], stem: Path) -> list[Path]:
    """Draw all panels into one PNG and one SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    panels = drawn(experiment, found)
    n_columns = min(WIDTH, len(panels))
    n_rows = -(-len(panels) // n_columns)
    files = [stem.with_suffix(ending) for ending in (".png", ".svg")]
    # The same figures give the same file: ids of an SVG are random without a salt.
    with mpl.rc_context({"svg.hashsalt": experiment.name, "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(4.3 * n_columns, 3.5 * n_rows), layout="constrained")
        axes = canvas.subplots(n_rows, n_columns, squeeze=False).ravel()
        for panel, place in zip(panels, axes, strict=False):
            _draw_panel(panel, found[panel.study], place)
        for place in axes[len(panels) :]:
            place.set_axis_off()
        canvas.savefig(files[0], dpi=130)
        canvas.savefig(files[1], metadata={"Date": None})
    return files


def _draw_panel(figure: Figure, lines: Curves, axes: Any) -> None:
    """Draw the mean of each arm with a band of one standard error on either side."""
    xs, axis = lines.xs, lines.study.axis
    for number, arm in enumerate(arms_of(figure, lines)):
        means = [lines.mean(arm, x, figure.measure) for x in xs]
        errors = [lines.error(arm, x, figure.measure) for x in xs]
        colour = COLOURS[number % len(COLOURS)]
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(xs, means, color=colour, marker=marker, markersize=4, linewidth=1.4, label=arm)
        low = [mean - error for mean, error in zip(means, errors, strict=True)]
        high = [mean + error for mean, error in zip(means, errors, strict=True)]
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    if axis.scale == "symlog":
        axes.set_xscale("symlog", linthresh=min(x for x in xs if x > 0))
    axes.set_title(figure.title, fontsize=10)
    axes.set_xlabel(axis.label, fontsize=9)
    axes.set_ylabel(MEASURES[figure.measure], fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


# ---- the text


def text(
    experiment: Experiment, found: Mapping[str, Curves], runs: int, *, with_figure: bool = False
) -> str:
    """Return the text as Markdown: a table of every figure, and what they show."""
    n_folds = sorted({len(_first(lines)) // runs for lines in found.values()})
    lines = [
        f"# {experiment.title}",
        "",
        experiment.about,
        "",
        f"{runs} runs × {' or '.join(map(str, n_folds))} folds; mean ± standard error of drawing "
        "folds, pairs and seeds.",
        "",
    ]
    if with_figure:
        lines += [f"![the curves]({experiment.name}.png)", ""]
    lines += ["## What it shows", "", *experiment.findings(found), ""]
    for figure in drawn(experiment, found):
        lines += [f"## {figure.title}", "", *_table(figure, found[figure.study]), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _first(lines: Curves) -> list[Any]:
    return next(iter(lines.keys.values()))


def _table(figure: Figure, lines: Curves) -> list[str]:
    """Return a table of a figure: an arm a row, a place a column."""
    head = [MEASURES[figure.measure], *(f"{x:g}" for x in lines.xs)]
    rows = [
        [arm, *(_told(lines, arm, x, figure.measure) for x in lines.xs)]
        for arm in arms_of(figure, lines)
    ]
    every = [head, ["---"] * len(head), *rows]
    return [f"{lines.study.axis.label} across.", "", *(f"| {' | '.join(row)} |" for row in every)]


def _told(lines: Curves, arm: str, x: float, measure: str) -> str:
    mean, error = lines.mean(arm, x, measure), lines.error(arm, x, measure)
    digits = 1 if measure in ("objective", "broken", "seconds") else 3
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def figures(experiment: Experiment, found: Mapping[str, Curves], runs: int) -> dict[str, Any]:
    """Return means and standard errors of every figure, as JSON has it."""
    return {
        "experiment": experiment.name,
        "runs": runs,
        "findings": experiment.findings(found),
        "figures": [
            {
                "title": figure.title,
                "measure": figure.measure,
                "x": list(found[figure.study].xs),
                "arms": {
                    arm: {
                        "mean": [
                            found[figure.study].mean(arm, x, figure.measure)
                            for x in found[figure.study].xs
                        ],
                        "standard_error": [
                            found[figure.study].error(arm, x, figure.measure)
                            for x in found[figure.study].xs
                        ],
                    }
                    for arm in arms_of(figure, found[figure.study])
                },
            }
            for figure in drawn(experiment, found)
        ],
    }
