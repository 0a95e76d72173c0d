"""Answers that clusters break, the worst of them; answers that contradict each other, in chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.closure import contradicted, witnesses
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.report.content import Broken, Text
from hmrf_dask.report.survey import Survey
from hmrf_dask.storage.whole_files import decode_parquet

MOST_BROKEN: Final = 20
MOST_CHAINS: Final = 10


class BrokenPair(NamedTuple):
    """A broken answer, by the places of its documents in the survey's table of such."""

    kind: str
    first: int
    second: int
    firmness: float


def broken_pairs(data: bytes, whole: Survey) -> list[BrokenPair]:
    """Return the worst broken answers: whose documents lie most firmly where they are.

    Parameters
    ----------
    data : bytes
        The answers as `encode_pairs` gives them.
    whole : Survey
    """
    if not data or not whole.breaking.num_rows:
        return []
    ids = whole.breaking["doc_id"].combine_chunks()
    clusters = whole.breaking["cluster"].to_numpy()
    margins = np.nan_to_num(whole.breaking["margin"].cast(pa.float64()).fill_null(0).to_numpy())
    pairs = decode_parquet(data, ["a", "b", "kind"])
    first, second = (pc.index_in(pairs[end].cast(pa.string()), value_set=ids) for end in "ab")
    there = pc.and_(pc.is_valid(first), pc.is_valid(second))
    ends = [end.filter(there).to_numpy() for end in (first, second)]
    must = pc.equal(pairs["kind"].filter(there), "must").to_numpy(zero_copy_only=False)
    broken = np.flatnonzero((clusters[ends[0]] != clusters[ends[1]]) == must)
    firmness = margins[ends[0]] + margins[ends[1]]
    order = broken[np.lexsort((broken, -firmness[broken]))][:MOST_BROKEN]
    return [
        BrokenPair(
            "must" if must[at] else "cannot",
            int(ends[0][at]),
            int(ends[1][at]),
            float(firmness[at]),
        )
        for at in order.tolist()
    ]


def broken_shown(pairs: Sequence[BrokenPair], documents: Sequence[Text]) -> tuple[Broken, ...]:
    """Return broken answers with their documents, those of the survey with broken answers."""
    return tuple(
        Broken(kind, documents[first], documents[second], firmness)
        for kind, first, second, firmness in pairs
    )


def chains_in(pairs: Constraints) -> tuple[int, tuple[tuple[str, ...], ...]]:
    """Return how many cannot-links must-links contradict, and the chains of the shortest ones.

    Of a chain each document is said to be the same as the next, and the first and the last to be
    different.

    Examples
    --------
    >>> chains_in(Constraints([("a", "b"), ("b", "c")], [("a", "c")]))
    (1, (('a', 'b', 'c'),))
    """
    n_documents = len(pairs.documents)
    inside = contradicted(n_documents, pairs.must_nodes, pairs.cannot_nodes)
    names = pairs.documents.tolist().__getitem__
    chains = witnesses(n_documents, pairs.must_nodes, inside, names, "keep")
    shortest = sorted(chains, key=len)[:MOST_CHAINS]
    return len(inside), tuple(tuple(map(str, chain)) for chain in shortest)
