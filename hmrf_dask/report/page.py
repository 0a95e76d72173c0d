"""The page of a report: one file with nothing from elsewhere, same bytes for the same content.

Scripts and styles are our own and named by their hashes in the policy of the page, so nothing that
a document, an id or a name holds can run. What script shows (the map, texts) is packed; all else
is plain HTML, which reads without script.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from hmrf_dask.errors import counted
from hmrf_dask.report import charts
from hmrf_dask.report.content import Cluster, Report, Text, Word, rounded
from hmrf_dask.text.marked import Segment, segments, words_of

COLOURS: Final = "colours.css"
MOST_BYTES: Final = 1_000_000
MOST_LISTED: Final = 1_000  # clusters
_LENGTHS = ((240, 90), (160, 60), (100, 40), (60, 24), (40, 0))  # characters: clusters, map
_ALL = 500_000  # characters of texts at first
_COMMON: Final = 0.1  # of the sampled texts have a word: it is not marked


def page(report: Report) -> bytes:
    """Return the page; texts are shortened until it has at most a megabyte.

    Parameters
    ----------
    report : Report
    """
    n_texts = sum(len(one.typical) + len(one.borderline) for one in report.clusters[:MOST_LISTED])
    shown = b""
    for length, on_map in _LENGTHS:
        if length * n_texts > _ALL and length > _LENGTHS[-1][0]:
            continue
        shown = _page(report, length, on_map)
        if len(shown) <= MOST_BYTES:
            break
    return shown


def _page(report: Report, length: int, on_map: int) -> bytes:
    style, script = _file(COLOURS) + _file("report.css"), _file("report.js")
    listed = report.clusters[:MOST_LISTED]
    environment = _environment()
    text = environment.get_template("report.html").render(
        report=report,
        listed=listed,
        words_of=_Names(report),
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        data=packed(_data(report, listed, length, on_map)),
        charts=charts,
        drawn=_drawn(report),
        growing=_growing(listed),
        common=_common(report.documents_shown),
        excerpt=min(length // 2, 120),
    )
    return text.encode()


@cache
def _file(name: str) -> str:
    folder = "static" if name.endswith((".css", ".js")) else "templates"
    return (files("hmrf_dask.report") / folder / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_file),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": lambda value: f"{value:,}",
        "share": lambda value, digits=1: f"{value:.{digits}%}",
        "short": charts.short,
        "bytes": lambda value: f"{value / 2**20:,.0f} MiB",
        "value": shown_value,
        "counted": counted,
        "marked": marked,
    }
    return environment


def shown_value(value: Any) -> str:
    """Return a value of settings as people write it.

    Examples
    --------
    >>> shown_value(None), shown_value(True), shown_value(0.5)
    ('none', 'yes', '0.5')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _common(documents: Sequence[Text]) -> frozenset[str]:
    """Return the words of so many sampled texts that they tell nothing."""
    texts = [document.text for document in documents if document.text]
    counts = Counter(word for text in texts for word in {*words_of(text)})
    least = max(_COMMON * len(texts), 3)
    return frozenset(word for word, number in counts.items() if number > least)


def marked(text: str, other: str, common: frozenset[str]) -> list[Segment]:
    """Return a text in stretches; those are marked that are words of another text, too.

    Examples
    --------
    >>> marked("moon and gear", "gear and box", frozenset({"and"}))
    [('moon and ', ''), ('gear', 'both')]
    """
    return segments(text, dict.fromkeys({*words_of(other)} - common, "both")) if text else []


class _Names:
    """What clusters are called, by id: names of people, or words; former ones, too."""

    def __init__(self, report: Report) -> None:
        self._by_id = {one.id: one for one in report.clusters}
        self._before = {} if report.comparison is None else report.comparison.names_before

    def __call__(self, cluster: int | None) -> str:
        """Return name or words, "" where there are none."""
        if cluster is None:
            return "in no cluster"
        if cluster in self._by_id:
            known = self._by_id[cluster]
            return known.name or ", ".join(known.words[:4])
        return self._before.get(str(cluster), "")


def _growing(listed: Sequence[Cluster]) -> list[Cluster]:
    """Return the clusters that grew or shrank most, by documents."""
    changed = [one for one in listed if one.size_before not in (None, one.size)]
    return sorted(changed, key=lambda one: -abs(one.size - (one.size_before or 0)))[:10]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _drawn(report: Report) -> dict[str, Any]:
    """Return the charts."""
    steps, nights = report.fit.steps, report.nights
    labels = [f"{step.phase} {step.iteration}" for step in steps]
    kinds = ("must_link", "cannot_link")
    broken = [sum(step.terms.get(kind, 0.0) for kind in kinds) for step in steps]
    times = [f"release {night.release}" for night in nights]
    return {
        "sizes": charts.bars([float(one.size) for one in report.clusters[:MOST_LISTED]]),
        "objective": charts.line([step.terms.get("J") for step in steps], labels),
        "broken": charts.line(broken, labels, from_zero=True) if any(broken) else None,
        "moved": charts.line([float(step.moved) for step in steps], labels, from_zero=True),
        "nights": [
            (title, charts.line(values, times, from_zero=zero))
            for title, values, zero in (
                ("Documents", [float(night.documents) for night in nights], True),
                (
                    "Documents that moved, in %",
                    [_percent(night.moved_share) for night in nights],
                    True,
                ),
                ("J of a document", [night.spread for night in nights], False),
                ("NMI with known classes", [night.nmi for night in nights], False),
            )
            if any(value is not None for value in values)
        ],
        "flows": charts.flows(report.flows),
    }


# ---- what script shows


def packed(content: Any) -> str:
    """Return JSON as base64 of gzip: letters that no page takes for anything else."""
    data = json.dumps(rounded(content), ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(data.encode(), 9, mtime=0)).decode()


def _data(report: Report, listed: Sequence[Cluster], length: int, on_map: int) -> dict[str, Any]:
    places = {one.id: at for at, one in enumerate(listed)}
    documents = [one for one in report.documents_shown if one.cluster in places]
    return {
        "clusters": [_cluster(one, length) for one in listed],
        "ids": [cut(one.id, 60) for one in documents],
        "of": [places[one.cluster] for one in documents],
        "x": [one.x for one in documents],
        "y": [one.y for one in documents],
        "texts": [cut(one.text, on_map) for one in documents] if on_map else [],
    }


def _cluster(one: Cluster, length: int) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "words": list(one.words),
        "size": one.size,
        "x": one.x,
        "y": one.y,
        "bars": [_bar(bar) for bar in one.bars],
        "typical": [_text(text, length) for text in one.typical],
        "borderline": [_text(text, length) for text in one.borderline],
        "near": [[near.cluster, round(near.likeness, 2)] for near in one.similar],
    }


def _bar(bar: Word) -> list[Any]:
    numbers = [float(f"{value:.3g}") for value in (bar.weight, bar.lift)]
    return [bar.word, *numbers, *([] if bar.learned is None else [float(f"{bar.learned:.3g}")])]


def _text(text: Text, length: int) -> list[Any]:
    return [cut(text.id, 120), cut(text.text, length), text.runner_up]


def cut(text: str, length: int) -> str:
    """Return a text of at most some characters.

    Examples
    --------
    >>> cut("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= length else f"{text[: max(length - 1, 0)]}…"
