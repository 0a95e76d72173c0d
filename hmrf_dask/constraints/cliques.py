"""Cannot-links that so many clusters cannot keep: documents that all exclude one another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmrf_dask.constraints.closure import ConstraintGraph, Names
from hmrf_dask.errors import InfeasibleError
from hmrf_dask.kernels.graphs import graph_of, largest_clique
from hmrf_dask.types import LabelArray

SHOWN = 10  # documents, and pairs, that a message shows

Pair = tuple[object, object]


def find_clique(graph: ConstraintGraph) -> LabelArray:
    """Return nodes that all exclude one another, ascending: as many clusters are needed at least.

    Each is the lowest of its must-link group; pairs inside a contradictory group do not count. It
    is the largest such set unless that is too much work: `kernels.graphs.largest_clique` says when.
    Time and memory are linear in the pairs of the graph.

    Examples
    --------
    >>> from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
    >>> must, cannot = np.array([[2, 3]]), np.array([[0, 1], [1, 2], [0, 3], [3, 4]])
    >>> graph = build_graph(5, CostedPairs(must), CostedPairs(cannot), ClosureRules())
    >>> find_clique(graph).tolist()
    [0, 1, 2]
    """
    clique = largest_clique(graph_of(graph.n_groups, _apart(graph)))
    _, lowest = np.unique(graph.groups, return_index=True)
    return lowest[clique].astype(np.int32)


def _apart(graph: ConstraintGraph) -> LabelArray:
    """Return pairs of groups that exclude each other, some of them more than once."""
    rivals = np.concatenate([graph.groups[graph.cannot_pairs], graph.rivals])
    return np.asarray(rivals[rivals[:, 0] != rivals[:, 1]], np.int32)


def refuse_clique(graph: ConstraintGraph, n_clusters: int, names: Names) -> None:
    """Raise InfeasibleError where more documents exclude one another than there are clusters."""
    documents, pairs = _too_many(graph, n_clusters, names)
    if documents:
        raise infeasible(documents, pairs, n_clusters)


def doubt_of_clique(graph: ConstraintGraph, n_clusters: int, names: Names) -> str:
    """Return how cannot-links that may be broken ask for more clusters than there are, else "".

    Examples
    --------
    >>> from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
    >>> nothing, cannot = np.zeros((0, 2), np.int64), np.array([[0, 1], [1, 2], [0, 2]])
    >>> graph = build_graph(3, CostedPairs(nothing), CostedPairs(cannot), ClosureRules())
    >>> doubt_of_clique(graph, 3, "abc".__getitem__)
    ''
    >>> doubt_of_clique(graph, 2, "abc".__getitem__).partition(":")[0]
    '3 documents all exclude one another, of which 2 clusters separate no more than 2'
    """
    documents, pairs = _too_many(graph, n_clusters, names)
    if not documents:
        return ""
    return (
        f"{len(documents)} documents all exclude one another, of which {n_clusters} clusters "
        f"separate no more than {n_clusters}: {_few(_shown(documents))}; some of the cannot-links "
        f"between them ({shown_pairs(pairs)}) will be broken: ask for more clusters, or correct "
        "those that are wrong"
    )


def _too_many(
    graph: ConstraintGraph, n_clusters: int, names: Names
) -> tuple[list[tuple[object, int]], list[Pair]]:
    """Return one document more than clusters, all excluding one another; nothing: there are none.

    Each comes with the size of its must-link group, and with them the cannot-links between them.
    """
    degrees = np.bincount(_apart(graph).ravel())
    if (degrees >= n_clusters).sum() <= n_clusters:
        return [], []  # where there is a clique so many groups exclude so many others
    nodes = find_clique(graph)[: n_clusters + 1]
    if len(nodes) <= n_clusters:
        return [], []
    groups = graph.groups[nodes]
    ends = np.sort(graph.groups[graph.cannot_pairs], axis=1)
    among = np.flatnonzero(np.isin(ends, groups).all(axis=1))
    _, firsts = np.unique(ends[among], axis=0, return_index=True)
    pairs = graph.cannot_pairs[among[firsts]].tolist()
    sizes = np.bincount(graph.groups)[groups].tolist()
    documents = [(names(node), size) for node, size in zip(nodes.tolist(), sizes, strict=True)]
    return documents, [(names(first), names(second)) for first, second in pairs]


def infeasible(
    documents: Sequence[tuple[object, int]], pairs: Sequence[Pair], n_clusters: int
) -> InfeasibleError:
    """Return the error for documents that so many clusters cannot separate, which is proved.

    Each comes with the size of its must-link group; `pairs` are the cannot-links between these.

    Examples
    --------
    >>> error = infeasible([("a", 1), ("b", 3)], [("a", "c")], 1)
    >>> str(error).partition(";")[0]
    "cannot-links must leave every document one of the 1 clusters, got 2 documents that all \
exclude one another: 'a', 'b' (in a must-link group of 3)"
    """
    n = len(documents)
    found, enough = "a search of all labels rules out", "more clusters"
    if len(pairs) == n * (n - 1) // 2:
        found, enough = "all exclude one another", f"{n} clusters or more"
    return InfeasibleError(
        f"cannot-links must leave every document one of the {n_clusters} clusters, got {n} "
        f"documents that {found}: {_few(_shown(documents))}; ask for {enough}, drop one of the "
        f"cannot-links between them ({shown_pairs(pairs)}), or use PCKMeans, which may break pairs",
        tuple(pairs),
        proved=True,
    )


def _shown(documents: Sequence[tuple[object, int]]) -> list[str]:
    return [
        f"{name!r}{f' (in a must-link group of {size})' if size > 1 else ''}"
        for name, size in documents
    ]


def shown_pairs(pairs: Sequence[Pair]) -> str:
    """Return pairs as a message shows them.

    Examples
    --------
    >>> shown_pairs([("a", "b"), (1, 2)])
    "'a' and 'b', 1 and 2"
    """
    return _few([f"{first!r} and {second!r}" for first, second in pairs])


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
