"""Bytes that tasks over linked rows need, worked out from rows, pairs and K before they run."""

from __future__ import annotations

from typing import TypeVar

from hmrf_dask.types import IntArray

Count = TypeVar("Count", int, IntArray)  # one component, or an array of them

# Bytes a heap ICM task keeps for one row beside its costs: labels in, out and before group moves
# 12, gains as they come and slack 24, adjacency starts and cursors 16, hub 4, heap (target, gain,
# item, place) 20, and for group moves: group, members and starts 16, slot, target, kept, waiting,
# queue 17, heap 24, what to look at again 9.
ROW_BYTES = 144
# One end of a pair in the adjacency: neighbour 4, cost 8, kept rows of hubs at most 4.
END_BYTES = 16
# One pair as it comes: both ends 8, kind 1, weight 8, cost from its pair block 8.
PAIR_BYTES = 25
# In a piece: a half-edge with its place among the pairs, and kept rows of hubs: 4 + 8 + 4 + 4.
HALF_EDGE_BYTES = 20
# The far end of a half-edge in another piece: index, group, label before and after 16, the list for
# its piece 4, its entry in a boundary as it comes, joined and sorted 36, its place worked out 36.
FAR_BYTES = 92
# Belief propagation beside a heap task. Of a row, beside 8 K of beliefs: labels, component 24. Of a
# pair, beside 16 K of two messages: 72 while pairs are put in order.
BELIEF_BYTES, MESSAGE_BYTES = 24, 72
BOUNDARY_SHARE = 8  # proposals of must-link groups take at most this part of the task memory


def heap_bytes(n_rows: Count, n_pairs: Count, n_clusters: int) -> Count:
    """Return what one heap ICM task over these rows and explicit pairs needs, in bytes.

    Costs are int32: 4 K a row as they come, 4 K laid end to end where they come from several
    partitions, and up to K for the kept sums of group moves.
    """
    return n_rows * (9 * n_clusters + ROW_BYTES) + n_pairs * (2 * END_BYTES + PAIR_BYTES)


def message_bytes(n_rows: Count, n_pairs: Count, n_clusters: int) -> Count:
    """Return what belief propagation needs beside `heap_bytes`, in bytes."""
    rows = n_rows * (8 * n_clusters + BELIEF_BYTES)
    return rows + n_pairs * (16 * n_clusters + MESSAGE_BYTES)


def round_bytes(n_rows: Count, n_ends: Count, n_clusters: int) -> Count:
    """Return what one partition needs in a priority round, in bytes, proposals of groups included.

    Parameters
    ----------
    n_rows : int
        Rows of the partition: costs come in layout order, 4 K a row, and are not copied.
    n_ends : int
        Ends of explicit pairs that lie on these rows; each is counted as if the other lay outside
        and wanted to move, so that far ends and their boundaries are covered. Nothing is held of
        the rest of the component.
    n_clusters : int
        K.
    """
    own = n_rows * (5 * n_clusters + ROW_BYTES) + n_ends * (HALF_EDGE_BYTES + FAR_BYTES)
    return own + own // (BOUNDARY_SHARE - 1) + 1


def table_mode_bytes(
    n_rows: int,
    n_pairs: int,
    n_clusters: int,
    rows_nbytes: int,
    tables_nbytes: int,
) -> int:
    """Return what one task over components in table form needs, in bytes.

    The rows as they come and once more gathered and quantised, what a heap task needs for the
    explicit differences, and the tables.
    """
    return heap_bytes(n_rows, n_pairs, n_clusters) + 2 * rows_nbytes + tables_nbytes
