"""What a user gets, of bench.json: one sentence, and the tables of whole jobs as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.benchmarks.measuring import Figure

WAYS = {
    "hmrf_dask": "hmrf-dask run",
    "scikit_learn": "scikit-learn, KMeans with its defaults",
    "mini_batch": "scikit-learn, MiniBatchKMeans with its defaults",
    "ten_starts": "scikit-learn, KMeans(n_init=10)",
}
Rows = list[list[str]]
Table = tuple[list[str], Rows]


def measured(figures: Iterable[Figure]) -> list[Figure]:
    """Return the figures of whole jobs without answers."""
    return [
        one
        for one in figures
        if one.name.startswith("end-to-end-") and "steps" in one.facts and not _answers(one)
    ]


def _answers(figure: Figure) -> int:
    return int(figure.facts.get("answers", 0))


def sentence(figures: Iterable[Figure]) -> str:
    """Return what a user gets in one line; "" where it was not measured."""
    found = measured(figures)
    if not found:
        return ""
    facts = found[0].facts
    seconds = _listed(f"{one.facts['ways']['hmrf_dask']['wall']:.1f} s" for one in found)
    clusters = _listed(str(one.facts["K"]) for one in found)
    times = _listed(f"{one.median:.2g}" for one in found)
    peers = _listed(f"{one.facts['ways']['scikit_learn']['wall']:.1f} s" for one in found)
    return (
        f"From texts to clusters: with the defaults {facts['documents']:,} abstracts "
        f"({facts['MB']:,.0f} MB of JSONL) are released in {clusters} clusters after {seconds}; a "
        f"scikit-learn script with its own takes {peers}, {times} times as long."
    )


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def ways(figures: Iterable[Figure]) -> Table:
    """Return the table of ways from texts to clusters."""
    rows = []
    for one in measured(figures):
        ours = one.facts["ways"]["hmrf_dask"]["wall"]
        for way, found in one.facts["ways"].items():
            rows.append(
                [
                    f"{WAYS[way]}, K = {one.facts['K']}",
                    *_resources(found),
                    f"{found['wall'] / ours:.2f} ×",
                    f"{found['nmi']:.3f} (`{one.facts['truth']}`)",
                ]
            )
    return ["", "wall", "CPU", "most memory", "wall over ours", "NMI with the truth"], rows


def _resources(found: dict[str, Any]) -> list[str]:
    return [f"{found['wall']:.1f} s", f"{found['cpu']:.1f} s", f"{found['peak_MiB']:,} MiB"]


def steps(figures: Iterable[Figure]) -> Table:
    """Return the table of how long each step of our jobs takes, without answers and with."""
    jobs: dict[str, dict[str, float]] = {}
    for one in figures:
        if one.name.startswith("end-to-end-") and "steps" in one.facts:
            answers = f", {_answers(one):,} answers" if _answers(one) else ""
            jobs[f"K = {one.facts['K']}{answers}"] = one.facts["steps"]
    names = list(dict.fromkeys(name for found in jobs.values() for name in found))
    rows = [[name, *(f"{found.get(name, 0.0):.2f}" for found in jobs.values())] for name in names]
    rows.append(["all", *(f"{sum(found.values()):.2f}" for found in jobs.values())])
    return ["seconds", *jobs], rows
