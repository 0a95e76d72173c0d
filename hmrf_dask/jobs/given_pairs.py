"""Which documents the given pairs name, and how many of its pairs are broken for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow, Lazy, share_array
from hmrf_dask.em.fitted import labels_at
from hmrf_dask.em.prepare import find_ids
from hmrf_dask.types import IntArray

Places = tuple[IntArray, IntArray]  # which of the documents named, and their rows of a partition
_NOWHERE = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Broken:
    """The broken pairs of the documents that pairs name.

    Attributes
    ----------
    places : list of (documents, rows)
        For each partition; empty where there are no pairs.
    counts : int32 array, shape (n_documents,)
        Broken pairs of each document.
    violations : dict of str to int
        Broken pairs by kind.
    """

    places: list[Places]
    counts: IntArray
    violations: dict[str, int]

    def of_partition(self, number: int) -> Places:
        """Return the named rows of a partition, and how many of the pairs of each are broken."""
        if not self.places:
            return _NOWHERE
        documents, rows = self.places[number]
        return rows, self.counts[documents]


NO_PAIRS = Broken([], np.zeros(0, np.int32), {"must_link": 0, "cannot_link": 0})


def count_violations(
    flow: DaskFlow, corpus: Corpus, labels: Sequence[Lazy], constraints: Constraints
) -> Broken:
    """Return which pairs are broken; the labels of the documents they name alone come here.

    Parameters
    ----------
    flow : DaskFlow
    corpus : Corpus
    labels : sequence
        Of each partition.
    constraints : Constraints
        A pair that names a document the corpus has not counts as kept.
    """
    places = _places(flow, corpus, constraints)
    used = [number for number, (documents, _) in enumerate(places) if len(documents)]
    found = flow.compute(
        [flow.lazy(labels_at, labels[one], share_array(flow, places[one][1])) for one in used]
    )
    known = np.full(len(constraints.documents), -1, np.int32)
    for number, some in zip(used, found, strict=True):
        known[places[number][0]] = some
    must, cannot = known[constraints.must_nodes], known[constraints.cannot_nodes]
    there = (must >= 0).all(axis=1), (cannot >= 0).all(axis=1)
    apart = constraints.must_nodes[there[0] & (must[:, 0] != must[:, 1])]
    together = constraints.cannot_nodes[there[1] & (cannot[:, 0] == cannot[:, 1])]
    ends = np.concatenate([apart.ravel(), together.ravel()])
    return Broken(
        places,
        np.bincount(ends, minlength=len(known)).astype(np.int32),
        {"must_link": len(apart), "cannot_link": len(together)},
    )


def _places(flow: DaskFlow, corpus: Corpus, constraints: Constraints) -> list[Places]:
    """Return which of the documents named each partition holds, and at which of its rows."""
    documents = constraints.documents
    if constraints.by_id:
        shared = flow.share(documents)
        return flow.compute([flow.lazy(find_ids, block, shared) for block in corpus.named])
    bounds = np.searchsorted(documents, corpus.offsets)
    return [
        (np.arange(start, stop), documents[start:stop] - first)
        for start, stop, first in zip(bounds[:-1], bounds[1:], corpus.offsets, strict=False)
    ]
