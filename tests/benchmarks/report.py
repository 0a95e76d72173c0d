"""What `make bench` leaves behind: a table, bench.json, and a section of the benchmark page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks import user_tables
from tests.benchmarks.measuring import Figure

# The page has two places that are written: what a user gets, and all figures.
USER_BEGIN = "<!-- what a user gets: from here to the end mark `make bench ARGS=page` writes -->"
USER_END = "<!-- end of what a user gets -->"
BEGIN = "<!-- measured: from here to the end mark `make bench ARGS=page` writes -->"
END = "<!-- end of what was measured -->"
REACHED = {"aim": "aim", "must": "must", "no": "**no**", "": "", "skipped": "skipped"}
TABLES = (
    "growth",
    "profile",
    "ablation",
    "end-to-end",
)  # rows whose figures have a table of their own
Result = dict[str, Any]  # what bench.json holds


def quantity(value: float, unit: str) -> str:
    """Return a number as people read it.

    Examples
    --------
    >>> quantity(12.3456, "x"), quantity(3.21, "%"), quantity(0.1234, "s")
    ('12.3 ×', '3.2 %', '0.123 s')
    """
    if unit == "%":
        return f"{value:.1f} %"
    digits = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return digits + {"x": " ×", "s": " s"}.get(unit, "")


def spread(figure: Figure) -> str:
    """Return the median and, of several repeats, the least and the most."""
    if figure.skipped:
        return figure.skipped
    shown = quantity(figure.median, figure.unit)
    if len(figure.values) == 1:
        return shown
    least, most = (quantity(one, figure.unit) for one in (min(figure.values), max(figure.values)))
    return f"{shown} ({least} to {most})"


def limit(figure: Figure, value: float | None) -> str:
    """Return what is asked of a figure, with its direction."""
    if value is None:
        return ""
    return ("≥ " if figure.better == "more" else "≤ ") + quantity(value, figure.unit)


def print_tables(figures: list[Figure], title: str) -> None:
    """Print to stdout what a user gets, where that was measured, then all figures."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=170)
    if line := user_tables.sentence(figures):
        console.print(line, "\n", soft_wrap=True, highlight=False)
        for heads, rows in (user_tables.ways(figures), user_tables.steps(figures)):
            jobs = Table(*heads)
            for row in rows:
                jobs.add_row(*row)
            console.print(jobs)
    table = Table("row", "what", "median (least to most)", "must", "aim", "reached", title=title)
    for one in figures:
        reached = one.reached.replace("no", "NO")
        asked = limit(one, one.must), limit(one, one.aim)
        table.add_row(one.name, one.what, spread(one), *asked, reached)
    console.print(table)


# ---- bench.json


def read_result(path: Path) -> Result:
    """Return what bench.json holds, an empty result where there is none."""
    if path.exists():
        found: Result = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {"figures": {}}


def write_result(path: Path, result: Result) -> None:
    """Write bench.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def figures_of(result: Result, order: Iterable[str] = ()) -> list[Figure]:
    """Return the figures of a result: those whose names begin with a row of `order` first."""
    found = [Figure.decoded(one) for one in result["figures"].values()]
    rows = list(order)
    place = {row: number for number, row in enumerate(rows)}
    return sorted(found, key=lambda one: place.get(result["figures"][one.name]["row"], len(rows)))


def caution(result: Result) -> str:
    """Return what a reader must know of a result before any figure: its sizes, rows of other runs.

    What is asked holds at full sizes only, and for rows that were measured in one run.
    """
    size, began = result.get("sizes", "unknown"), result.get("began", "")
    facts = f"{size} sizes"
    if size != "full":
        facts += ": they show that rows run, not what is reached"
    earlier: dict[str, str] = {}
    for one in result["figures"].values():
        if one.get("at", "") < began:
            earlier[one["row"]] = one.get("at", "")
    if earlier:
        named = ", ".join(f"{row} ({at})" for row, at in earlier.items())
        facts += f"; of earlier runs, not the last: {named}"
    return facts


# ---- the page


def rewrite_page(page: Path, result: Result, order: Iterable[str]) -> None:
    """Put what was measured between the marks of a page; the text around them stays."""
    text = page.read_text(encoding="utf-8")
    written = (
        (USER_BEGIN, USER_END, user_section(result, order)),
        (BEGIN, END, section(result, order)),
    )
    for begin, end, lines in written:
        if begin not in text or end not in text:
            raise ValueError(f"{page} must hold the marks {begin!r} and {end!r}; put them back")
        before, after = text.split(begin)[0], text.split(end)[1]
        measured = "\n".join(lines)
        text = f"{before}{begin}\n\n{measured}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def user_section(result: Result, order: Iterable[str]) -> list[str]:
    """Return what a user gets as Markdown: a sentence, whole jobs and peers, and their steps."""
    figures = figures_of(result, order)
    line = user_tables.sentence(figures)
    if not line:
        return ["Whole jobs: not measured yet."]
    shown = [f"**{line}**", "", *_markdown(*user_tables.ways(figures))]
    shown += ["", "Where the time of `hmrf-dask run` goes:", ""]
    return [*shown, *_markdown(*user_tables.steps(figures))]


def section(result: Result, order: Iterable[str]) -> list[str]:
    """Return the measured section as Markdown."""
    figures = figures_of(result, order)
    asked = [one for one in figures if one.must is not None]
    plain = [one for one in figures if one.must is None and not one.name.startswith(TABLES)]
    lines = [_machine(result), "", "### Figures", ""]
    lines += _markdown(
        ("", "measured", "must", "aim", "reached"),
        [
            (one.what, spread(one), limit(one, one.must), limit(one, one.aim), REACHED[one.reached])
            for one in asked
        ],
    )
    lines += ["", "Also reported:", ""]
    lines += _markdown(("", "measured"), [(one.what, spread(one)) for one in plain])
    lines += ["", "### In detail", "", *_details(figures)]
    lines += ["", "### CPU time of a whole fit, by phase", "", *_phases(figures)]
    lines += ["", "### Growth", "", *_growth(figures)]
    tricks = _ablation(figures)
    return [*lines, "", "### What each trick gains", "", *tricks] if tricks else lines


def _machine(result: Result) -> str:
    machine, versions = result.get("machine", {}), result.get("versions", {})
    shown = ", ".join(f"{name} {one}" for name, one in versions.items() if one)
    return (
        f"Measured from {result.get('began', '')}, on {len(machine.get('cores', []))} cores of "
        f"{machine.get('processor', 'an unknown processor')}, {machine.get('GiB', '?')} GiB, "
        f"Python {machine.get('python', '?')}; {shown}; "
        f"**{caution(result)}.**"
    )


def _markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(heads)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + [
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows
    ]


def _details(figures: list[Figure]) -> list[str]:
    """Say what the figures of kernels and fits were taken with."""
    rows = []
    for one in figures:
        facts = one.facts
        if one.skipped or one.name.startswith(TABLES) or not facts:
            continue
        shown = "; ".join(
            f"{key.replace('_', ' ')} {_value(value)}" for key, value in facts.items()
        )
        rows.append((f"`{one.name}`", shown))
    return _markdown(("row", "taken with"), rows)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items())
    if isinstance(value, list):
        return " / ".join(_value(one) for one in value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _phases(figures: list[Figure]) -> list[str]:
    found = [one for one in figures if one.name.startswith("profile-") and not one.skipped]
    if not found:
        return ["Not measured yet."]
    heads = ["phase"] + [
        f"K = {one.name.removeprefix('profile-')} ({one.facts['rows']:,} rows)" for one in found
    ]
    names = found[0].facts["phases_percent"]
    rows = [
        [name] + [f"{one.facts['phases_percent'].get(name, 0.0):.1f} %" for one in found]
        for name in names
    ]
    rows.append(["CPU seconds, all threads"] + [f"{one.median:.2f}" for one in found])
    seconds = [one.raw["plain"][0]["wall"] for one in found]
    rows.append(["wall seconds without the profile"] + [f"{one:.2f}" for one in seconds])
    return _markdown(heads, rows)


def _growth(figures: list[Figure]) -> list[str]:
    found = [one for one in figures if one.name.startswith("growth-") and not one.skipped]
    if not found:
        return ["Not measured yet."]
    base = found[0].facts["base"]
    lines = [f"Milliseconds of an iteration; what does not vary is {_value(base)}.", ""]
    for one in found:
        name = one.name.removeprefix("growth-")
        heads = [name] + [f"{size:,}" for size in one.facts["sizes"]] + ["exponent"]
        cells = [f"{1000 * seconds:,.1f}" for seconds in one.facts["seconds"]]
        lines += [*_markdown(heads, [["ms", *cells, f"{one.median:.2f}"]]), ""]
    return lines


def _ablation(figures: list[Figure]) -> list[str]:
    found = [one for one in figures if one.name.startswith("ablation-") and not one.skipped]
    if not found:
        return []
    works = list(dict.fromkeys(work for one in found for work in one.facts["gains_percent"]))
    rows = []
    for one in found:
        gains = one.facts["gains_percent"]
        cells = [
            "{:+.1f} ({:+.1f} to {:+.1f})".format(*gains[w]) if w in gains else "" for w in works
        ]
        rows.append(
            [f"{one.what} (`{one.name.removeprefix('ablation-')}`)", one.facts["by"], *cells]
        )
    lines = ["By how many percent the iterations of a fit take longer without it.", ""]
    return lines + _markdown(["trick", "seconds of", *works], rows)
