"""Charts of a report as numbers that a template draws in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hmrf_dask.report.content import Flow

WIDTH, HEIGHT = 640, 200
_LEFT, _TOP, _BOTTOM = 88, 12, 24  # margins for ticks
MOST_RIBBONS: Final = 24


@dataclass(frozen=True)
class Tick:
    """A place on an axis, and its words."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """A line chart: its points, and ticks of both axes."""

    points: tuple[tuple[float, float], ...]
    ticks: tuple[Tick, ...]
    below: tuple[Tick, ...]

    @property
    def path(self) -> str:
        """What SVG draws."""
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


@dataclass(frozen=True)
class Bar:
    """A bar: its left edge, top, width and height."""

    x: float
    y: float
    width: float
    height: float


def line(values: Sequence[float | None], labels: Sequence[str], *, from_zero: bool = False) -> Line:
    """Return a line through values; None leaves a gap out.

    Examples
    --------
    >>> line([1.0, 3.0], ["a", "b"]).path
    '88,176 632,12'
    """
    known = [value for value in values if value is not None]
    if not known:
        return Line((), (), ())
    low, high = (0.0 if from_zero else min(known)), max(known)
    if low == high:
        low, high = low - abs(low) * 0.01, high + (abs(high) * 0.01 or 1.0)
    right, bottom = WIDTH - 8, HEIGHT - _BOTTOM
    step = (right - _LEFT) / max(len(values) - 1, 1)

    def y_of(value: float) -> float:
        """Return where a value is drawn."""
        return round(bottom - (value - low) / (high - low) * (bottom - _TOP), 1)

    points = tuple(
        (round(_LEFT + at * step, 1), y_of(value))
        for at, value in enumerate(values)
        if value is not None
    )
    places = low, (low + high) / 2, high
    ticks = tuple(Tick(y_of(at), shown) for at, shown in zip(places, _apart(places), strict=True))
    return Line(points, ticks, _below(labels, step))


def _apart(values: Sequence[float]) -> list[str]:
    """Return numbers with as few digits as make them differ, so that they fit on an axis.

    Examples
    --------
    >>> _apart([2404.91, 2404.92, 2404.93]), _apart([0.0, 3.5, 7.0])
    (['2404.91', '2404.92', '2404.93'], ['0', '3.5', '7'])
    """
    shown = [short(value) for value in values]
    for digits in range(5, 8):
        if len(set(shown)) == len(set(values)):
            break
        shown = [f"{value:.{digits}g}" for value in values]
    return shown


def _below(labels: Sequence[str], step: float) -> tuple[Tick, ...]:
    """Return a few labels along the lower axis."""
    every = max(1, math.ceil(len(labels) / 5))
    return tuple(
        Tick(round(_LEFT + at * step, 1), label)
        for at, label in enumerate(labels)
        if at % every == 0
    )


def bars(values: Sequence[float]) -> tuple[Bar, ...]:
    """Return bars of values, next to each other.

    Examples
    --------
    >>> [bar.height for bar in bars([1.0, 2.0])]
    [82.0, 164.0]
    """
    highest = max(values, default=0.0) or 1.0
    right, bottom = WIDTH - 8, HEIGHT - _BOTTOM
    width = (right - _LEFT) / max(len(values), 1)
    return tuple(
        Bar(
            round(_LEFT + at * width, 2),
            round(bottom - value / highest * (bottom - _TOP), 1),
            round(max(width * 0.85, 0.4), 2),
            round(value / highest * (bottom - _TOP), 1),
        )
        for at, value in enumerate(values)
    )


def short(value: float) -> str:
    """Return a number in a few signs.

    Examples
    --------
    >>> short(1234567), short(0.01234), short(12.0)
    ('1.235M', '0.01234', '12')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"


# ---- chains

_MOST_LINKS: Final = 8  # documents of a chain that are drawn


@dataclass(frozen=True)
class Chain:
    """Answers that contradict each other: documents on a line by their numbers, an arc over it.

    `skipped` is the place of the gap where the middle of a long chain is left out, or None.
    """

    documents: tuple[Tick, ...]
    skipped: float | None
    arc: str


def chain(n_documents: int) -> Chain:
    """Return a chain as it is drawn; of a long one both ends.

    Examples
    --------
    >>> [(tick.at, tick.label) for tick in chain(3).documents]
    [(40.0, '1'), (320.0, '2'), (600.0, '3')]
    """
    half, numbers, skipped = _MOST_LINKS // 2, list(range(1, n_documents + 1)), None
    if n_documents > _MOST_LINKS:
        numbers = [*numbers[:half], *numbers[-half:]]
    step = (WIDTH - 80) / max(len(numbers) - 1, 1)
    ticks = tuple(Tick(round(40 + at * step, 1), str(one)) for at, one in enumerate(numbers))
    if n_documents > _MOST_LINKS:
        skipped = (ticks[half - 1].at + ticks[half].at) / 2
    first, last = ticks[0].at, ticks[-1].at
    return Chain(ticks, skipped, f"M{first:g} 54 Q{(first + last) / 2:g} -16 {last:g} 54")


# ---- flows


@dataclass(frozen=True)
class Node:
    """A cluster of a release, as a bar at the left or at the right."""

    cluster: int | None
    y: float
    height: float


@dataclass(frozen=True)
class Ribbon:
    """Documents that went from one cluster to another."""

    flow: Flow
    path: str
    is_same: bool


@dataclass(frozen=True)
class Flows:
    """Where documents went: clusters before at the left, now at the right, ribbons between."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    ribbons: tuple[Ribbon, ...]
    height: float


def flows(every: Sequence[Flow]) -> Flows:
    """Return the flow of the clusters between which most documents moved.

    Examples
    --------
    >>> drawn = flows([Flow(1, 2, 5), Flow(1, 1, 15)])
    >>> [node.cluster for node in drawn.right], drawn.ribbons[0].is_same
    ([1, 2], True)
    """
    moving = [flow for flow in every if flow.before != flow.after][:MOST_RIBBONS]
    ends = {flow.before for flow in moving} | {flow.after for flow in moving}
    staying = [flow for flow in every if flow.before == flow.after and flow.before in ends]
    chosen = sorted(moving + staying, key=lambda flow: (_order(flow.before), _order(flow.after)))
    total = sum(flow.documents for flow in chosen) or 1
    n_rows = max(len({flow.before for flow in chosen}), len({flow.after for flow in chosen}), 1)
    height = max(120.0, 26.0 * n_rows)
    scale = (height - 12.0 * n_rows) / total
    left = _nodes([(flow.before, flow.documents) for flow in chosen], scale)
    right = _nodes([(flow.after, flow.documents) for flow in chosen], scale)
    return Flows(
        tuple(left.values()), tuple(right.values()), _ribbons(chosen, left, right, scale), height
    )


def _order(cluster: int | None) -> tuple[bool, int]:
    return cluster is None, cluster or 0


def _nodes(ends: Sequence[tuple[int | None, int]], scale: float) -> dict[int | None, Node]:
    sizes: dict[int | None, int] = {}
    for cluster, documents in ends:
        sizes[cluster] = sizes.get(cluster, 0) + documents
    nodes, y = {}, 6.0
    for cluster in sorted(sizes, key=_order):
        height = max(sizes[cluster] * scale, 2.0)
        nodes[cluster] = Node(cluster, round(y, 1), round(height, 1))
        y += height + 12.0
    return nodes


def _ribbons(
    chosen: Sequence[Flow],
    left: dict[int | None, Node],
    right: dict[int | None, Node],
    scale: float,
) -> tuple[Ribbon, ...]:
    """Return ribbons, each below the last one at both of its ends."""
    used_left = {cluster: node.y for cluster, node in left.items()}
    used_right = {cluster: node.y for cluster, node in right.items()}
    x0, x1 = 190.0, 450.0
    middle, ribbons = (x0 + x1) / 2, []
    for flow in chosen:
        thick = max(flow.documents * scale, 0.8)
        a, b = used_left[flow.before], used_right[flow.after]
        used_left[flow.before] += thick
        used_right[flow.after] += thick
        path = (
            f"M{x0:g} {a:.1f} C{middle:g} {a:.1f} {middle:g} {b:.1f} {x1:g} {b:.1f} "
            f"L{x1:g} {b + thick:.1f} C{middle:g} {b + thick:.1f} {middle:g} {a + thick:.1f} "
            f"{x0:g} {a + thick:.1f} Z"
        )
        ribbons.append(Ribbon(flow, path, flow.before == flow.after))
    return tuple(ribbons)
