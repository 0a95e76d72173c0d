"""Plots of a result: figures against what is asked of them, and growth."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure as Canvas

from tests.benchmarks.measuring import Figure
from tests.benchmarks.report import limit, spread

LEAST, MOST = -1.5, 3.0  # of the scale on which must is 0 and aim is 1
COLOURS = {"aim": "#1b7837", "must": "#e08214", "no": "#b2182b"}
AXES = {"n": "documents", "K": "clusters", "d": "features", "pairs": "pairs"}


def draw(figures: list[Figure], stem: Path) -> list[Path]:
    """Write the plots as PNG and SVG named by `stem`; return the files."""
    written = []
    asked = [one for one in figures if not one.skipped and one.must != one.aim]
    grown = [one for one in figures if one.name.startswith("growth-") and not one.skipped]
    for canvas, name in (
        (_against_asked(asked), stem.name) if asked else (None, ""),
        (_growth(grown), f"{stem.name}-growth") if grown else (None, ""),
    ):
        if canvas is not None:
            for ending in ("png", "svg"):
                path = stem.with_name(f"{name}.{ending}")
                canvas.savefig(path, dpi=130, bbox_inches="tight")
                written.append(path)
    return written


def _place(figure: Figure, value: float) -> float:
    """Return where a value lies on the scale from must to aim, cut at its ends."""
    assert figure.must is not None
    assert figure.aim is not None
    return min(max((value - figure.must) / (figure.aim - figure.must), LEAST), MOST)


def _against_asked(figures: list[Figure]) -> Canvas:
    """Draw each figure as a dot with its spread, between what must and what should be reached."""
    canvas = Canvas(figsize=(10, 0.42 * len(figures) + 1.2))
    axes = canvas.add_subplot()
    axes.axvspan(LEAST, 0, color="#b2182b", alpha=0.06)
    axes.axvspan(1, MOST, color="#1b7837", alpha=0.06)
    for number, one in enumerate(figures):
        colour = COLOURS[one.reached]
        ends = sorted(_place(one, value) for value in (min(one.values), max(one.values)))
        axes.plot(ends, [number, number], color=colour, linewidth=3, alpha=0.4)
        axes.plot(_place(one, one.median), number, "o", color=colour)
        facts = f"{spread(one)}   must {limit(one, one.must)}, aim {limit(one, one.aim)}"
        axes.text(MOST + 0.08, number, facts, va="center", fontsize=8)
    axes.set_yticks(range(len(figures)), [one.name for one in figures], fontsize=9)
    axes.set_xticks([0, 1], ["must", "aim"])
    axes.set_xlim(LEAST - 0.05, MOST + 0.05)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set_title("figures between what must and what should be reached", fontsize=10)
    return canvas


def _growth(figures: list[Figure]) -> Canvas:
    """Draw the time of an iteration over each size, on logarithmic axes, with a line of slope 1."""
    canvas = Canvas(figsize=(3.4 * len(figures), 3.2), layout="constrained")
    for one, axes in zip(figures, canvas.subplots(1, len(figures), squeeze=False)[0], strict=True):
        name = one.name.removeprefix("growth-")
        sizes, seconds = one.facts["sizes"], one.facts["seconds"]
        axes.loglog(sizes, seconds, "o-", color="#2166ac", label="measured")
        straight = [seconds[-1] * size / sizes[-1] for size in sizes]
        axes.loglog(sizes, straight, "--", color="#999999", label="in proportion")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30, fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_xlabel(AXES[name])
        axes.set_title(f"exponent {one.median:.2f} at the end", fontsize=9)
        axes.grid(which="both", alpha=0.25)
    canvas.axes[0].set_ylabel("seconds of an iteration")
    canvas.axes[0].legend(fontsize=8)
    return canvas
