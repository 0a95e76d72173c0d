"""A component of the integer oracle in pieces, reconciled by the package's own rounds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from hmrf_dask.fit.rounds import ROUNDS, Rounds
from hmrf_dask.flow.dataflow import Inline
from hmrf_dask.tasks.rounds import Cutting, Piece, PricedPiece, cut_points

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


def cut(pairs: Pairs, groups: np.ndarray, bounds: list[int]) -> list[Piece]:
    """Return the points bounds[p] to bounds[p + 1] as piece p."""
    ends = [pairs[:2] for _ in bounds[1:]]
    return list(cut_points(np.array(bounds), groups.astype(np.int64), ends))


def reconciliation(
    costs: np.ndarray,
    shift: int,
    pairs: Pairs,
    groups: np.ndarray,
    bounds: list[int],
    *,
    rounds: int = ROUNDS,
    budget: int = 2**20,
    watch: Callable[[np.ndarray], None] | None = None,
) -> Rounds:
    """Return the rounds over pieces; `watch` is shown all labels after every step."""
    pieces = cut(pairs, groups, bounds)
    homes = np.array(
        [
            np.searchsorted(bounds, np.flatnonzero(groups == g)[0], "right") - 1
            for g in np.unique(groups)
        ]
    )
    whole = {int(g) for piece in pieces for g in piece.inside.number}
    large = np.flatnonzero(np.bincount(groups) > 1)
    cut_groups = np.array([g for g in large if int(g) not in whole], np.int32)
    near = tuple(tuple(sorted(piece.seen_by)) for piece in pieces)
    cutting = Cutting(range(len(pieces)), range(0), (), near, (), cut_groups, homes)

    def show(labels: list[np.ndarray]) -> None:
        if watch is not None:
            watch(
                np.concatenate([one[piece.own] for one, piece in zip(labels, pieces, strict=True)])
            )

    signed = np.asarray(pairs[2], np.int64)
    priced = [
        PricedPiece(piece, costs[first:last], signed[piece.edge], shift)
        for piece, (first, last) in zip(pieces, pairwise(bounds), strict=True)
    ]
    return Rounds(Inline(), cutting, priced, costs.shape[1], budget, rounds=rounds, watch=show)


def reconcile(rounds: Rounds, labels: np.ndarray) -> np.ndarray:
    """Run to the end from `labels` (negative: none yet); return the labels of all points."""
    pieces = [priced.piece for priced in rounds.pieces]
    rounds.open([labels[piece.offset : piece.offset + piece.size] for piece in pieces])
    rounds.run()
    ends = zip(rounds.labels, pieces, strict=True)
    return np.concatenate([one[piece.own] for one, piece in ends])
