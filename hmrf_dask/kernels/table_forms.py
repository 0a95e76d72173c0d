"""Which closed groups have a table, and how many bytes the tables of a component need."""

from __future__ import annotations

import numpy as np

from hmrf_dask.types import AnyArray, BoolArray, IntArray

LARGE_GROUP = 64  # a group of more members keeps sums over itself that its rivals look at
# A group has a table when it would have to look at more rows than this, one by one, for a point.
MOST_PARTNERS = 512
RIVAL_BYTES = 128  # a pair of rivals: both directions here and there 48, as they come, sorted 80


def table_forms(
    sizes: IntArray, closed: BoolArray, rival_start: IntArray, rival: AnyArray
) -> tuple[BoolArray, BoolArray]:
    """Return which groups have a table, and which of them keep sums over themselves.

    Parameters
    ----------
    sizes : int array, shape (G,)
        Members of each group.
    closed : bool array, shape (G,)
        Whether the must-links inside a group are closed.
    rival_start, rival
        As in `Closure`.

    Examples
    --------
    >>> sizes, closed = np.array([100, 1]), np.array([True, True])
    >>> tables, owners = table_forms(sizes, closed, np.array([0, 1, 2]), np.array([1, 0]))
    >>> tables.tolist(), owners.tolist()
    ([True, False], [True, False])
    """
    taking_part = closed | (np.diff(rival_start) > 0)
    owner = taking_part & (sizes > LARGE_GROUP)
    looked_at = np.concatenate([[0], np.cumsum(np.where(owner, 0, sizes)[rival])])
    partners = looked_at[rival_start[1:]] - looked_at[rival_start[:-1]] + np.where(closed, sizes, 0)
    return owner | (taking_part & (partners > MOST_PARTNERS)), owner


def table_bytes(
    n_features: int,
    n_clusters: int,
    slot_values: IntArray,
    owner_values: IntArray,
    n_values: int,
    n_points: int,
    n_groups: int,
    n_rivals: int,
) -> int:
    """Return how many bytes the tables of a component need at most, beside its rows and costs.

    Parameters
    ----------
    n_features : int
        Features of the component's rows (0 for Potts).
    n_clusters : int
    slot_values, owner_values : int arrays
        Entries of the rows of each group that has a table, and of each that keeps its own sums.
    n_values, n_points, n_groups, n_rivals : int
        Entries of all rows, rows, groups of any kind, and pairs of rivals.

    Examples
    --------
    >>> large = np.array([10**7, 10**7])
    >>> table_bytes(50_000, 20, large, large, 2 * 10**7, 200_000, 2, 1) // 10**6
    204
    """
    slots = np.minimum(slot_values, n_features)
    owners = np.minimum(owner_values, n_features)
    wide = int(slots.sum()) + int(owners.sum()) + int(slots.max(initial=0))
    tables = 8 * n_clusters * wide + 4 * int(slots.sum()) + 8 * n_features
    vectors = 16 * n_clusters * (len(slots) + len(owners)) + 16 * (len(slots) + len(owners))
    # where an entry stands in its table 4; while rows are gathered they are held once more 4
    of_all = 8 * n_values + 16 * n_points + 48 * n_groups + RIVAL_BYTES * n_rivals
    return tables + vectors + of_all + 64 * n_clusters + 128
