"""Answers that contradict others: "different" of two documents that a chain of "same" joins."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hmrf_dask.answers.evidence import Evidence
from hmrf_dask.constraints.closure import N_WITNESSES, BreadthFirst, connected_numbers


class Contradiction(NamedTuple):
    """A shortest chain of documents said to be the same, whose ends are said to be different.

    One link of it is wrong, or what closes it.
    """

    documents: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]  # entries that say so, of each link; last of the ends


def contradictions_of(evidence: Evidence) -> tuple[Contradiction, ...]:
    """Return the first contradictions, by documents, at most 100."""
    same: dict[tuple[int, int], list[str]] = defaultdict(list)
    different: dict[tuple[int, int], list[str]] = defaultdict(list)
    for vote in evidence.votes:
        kind, others = (different, vote.against) if vote.chosen is None else (same, (vote.chosen,))
        for other in others:
            kind[min(vote.document, other), max(vote.document, other)] += vote.entries
    must = np.array(sorted(same), np.int32).reshape(-1, 2)
    cannot = np.array(sorted(different), np.int32).reshape(-1, 2)
    n_nodes = len(evidence.names)
    joined = connected_numbers(n_nodes, must)
    torn = cannot[joined[cannot[:, 0]] == joined[cannot[:, 1]]][:N_WITNESSES].tolist()
    search = BreadthFirst(n_nodes, must) if torn else None
    found = []
    for first, last in torn:
        assert search is not None
        path = search.path(first, last)
        links = [same[min(step), max(step)] for step in pairwise(path)]
        ends = different[first, last]
        documents = tuple(evidence.names[node] for node in path)
        found.append(Contradiction(documents, tuple(map(tuple, [*links, ends]))))
    return tuple(found)
