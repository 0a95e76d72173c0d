"""How well clusters fit known classes: scores, and the table of the largest of both."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hmrf_dask.measures.contingency import Contingency, tabulate
from hmrf_dask.measures.scores import (
    adjusted_rand,
    completeness,
    homogeneity,
    normalized_mutual_info,
    pairs_within,
)
from hmrf_dask.report.content import Agreement

MOST_CLASSES: Final = 40  # of the table
MOST_CLUSTERS: Final = 60


def compared(classes: list[str], clusters: list[int], documents: list[int]) -> Agreement | None:
    """Return scores and the largest classes by the largest clusters, from cells of their table.

    Examples
    --------
    >>> compared(["x", "y"], [4, 5], [2, 3]).table
    ((3, 0), (0, 2))
    """
    if not documents:
        return None
    cells = tabulate(np.asarray(classes, np.str_), np.asarray(clusters, np.int64))
    places = {
        (str(cells.classes[row]), int(cells.clusters[column])): at
        for at, (row, column) in enumerate(zip(cells.rows, cells.columns, strict=True))
    }
    counts = np.zeros(len(places), np.int64)
    for cell, number in zip(zip(classes, clusters, strict=True), documents, strict=True):
        counts[places[cell]] += number
    table = Contingency(cells.classes, cells.clusters, cells.rows, cells.columns, counts)
    both, of_classes, of_clusters = (
        pairs_within(sizes) for sizes in (table.counts, table.class_sizes, table.cluster_sizes)
    )
    scores = {
        "NMI": normalized_mutual_info(table),
        "pairwise F": 2 * both / (of_classes + of_clusters) if of_classes + of_clusters else 0.0,
        "adjusted Rand": adjusted_rand(table),
        "homogeneity": homogeneity(table),
        "completeness": completeness(table),
    }
    rows = np.lexsort((np.arange(len(table.class_sizes)), -table.class_sizes))[:MOST_CLASSES]
    columns = _in_diagonal_order(table, rows)[:MOST_CLUSTERS]
    dense = np.zeros((len(table.class_sizes), len(table.cluster_sizes)), np.int64)
    dense[table.rows, table.columns] = table.counts
    return Agreement(
        {name: float(score) for name, score in scores.items()},
        tuple(str(table.classes[row]) for row in rows),
        tuple(int(table.clusters[column]) for column in columns),
        tuple(tuple(dense[row, columns].tolist()) for row in rows),
        table.n_rows,
    )


def _in_diagonal_order(table: Contingency, rows: Any) -> Any:
    """Return the columns so that large cells lie along the diagonal, as far as they can."""
    place = {int(row): at for at, row in enumerate(rows)}
    best: dict[int, tuple[int, int]] = {}
    for row, column, count in zip(
        table.rows.tolist(), table.columns.tolist(), table.counts.tolist(), strict=True
    ):
        best[column] = max(best.get(column, (-1, 0)), (count, -place.get(row, len(place))))
    return np.array(sorted(best, key=lambda column: (-best[column][1], -best[column][0], column)))
