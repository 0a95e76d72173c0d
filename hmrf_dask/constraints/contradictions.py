"""Contradictions: cannot-links that a must-link path joins, each with its shortest path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hmrf_dask.constraints.graphs import BreadthFirst, adjacency
from hmrf_dask.errors import ConflictError
from hmrf_dask.types import LabelArray

OnConflict = Literal["raise", "keep", "drop"]
Names = Callable[[int], object]

N_WITNESSES = 100
SHOWN_PATH = 8  # documents of a witness that a message shows


def witnesses(
    n_nodes: int,
    must: LabelArray,
    contradictions: LabelArray,
    names: Names,
    on_conflict: OnConflict,
) -> tuple[tuple[object, ...], ...]:
    """Return the shortest must-link paths of the first contradictions, or refuse with the first.

    Parameters
    ----------
    n_nodes : int
    must : ndarray of shape (m, 2), int32
        Must-links.
    contradictions : ndarray of shape (k, 2), int32
        Cannot-links inside must-link groups, lowest first.
    names : callable
        Document name of a node.
    on_conflict : {"raise", "keep", "drop"}

    Returns
    -------
    tuple of tuples
        Document names along each path: of several shortest ones, the lowest.

    Raises
    ------
    ConflictError
        There is a contradiction and `on_conflict` is ``"raise"``.
    """
    if not len(contradictions):
        return ()
    search = BreadthFirst(adjacency(n_nodes, must))
    wanted = contradictions[: 1 if on_conflict == "raise" else N_WITNESSES].tolist()
    paths = tuple(tuple(map(names, search.path(*pair))) for pair in wanted)
    if on_conflict == "raise":
        raise ConflictError(_conflict_message(paths[0], len(contradictions) - 1), paths[0])
    return paths


def _conflict_message(path: tuple[object, ...], n_more: int) -> str:
    shown = [repr(name) for name in path]
    if len(shown) > SHOWN_PATH:
        half = SHOWN_PATH // 2
        left_out = f"… ({len(shown) - SHOWN_PATH} more documents) …"
        shown = [*shown[:half], left_out, *shown[-half:]]
    more = "contradiction" if n_more == 1 else "contradictions"
    rest = f", and {n_more:,} more {more}" if n_more else ""
    return (
        "must-links and cannot-links must not contradict each other, got "
        f"{' = '.join(shown)} but {path[0]!r} ≠ {path[-1]!r}{rest}: correct the pairs, or, "
        "where pairs may be broken (HMRFKMeans, PCKMeans), set on_conflict to keep (given pairs "
        "only for these documents) or drop (without the contradicting cannot-links)"
    )
