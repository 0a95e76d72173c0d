"""Ids that more than one row has, found without bringing ids together."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from dask.base import compute as dask_compute
from dask.delayed import delayed

from hmrf_dask.corpus.partitioned import Compute, Corpus
from hmrf_dask.corpus.partitions import ids_with_keys, repeated_keys, split_keys

_KEYS_PER_BUCKET = 2**25


def find_duplicate_ids(corpus: Corpus, *, compute: Compute = dask_compute) -> list[str | int]:
    """Return some of the ids that more than one row has, sorted; empty if there are none.

    Keys of ids are compared in buckets, in tasks; only ids whose keys collide come back here.
    """
    if not corpus.has_ids:
        return []
    n_buckets = max(1, math.ceil(corpus.n_rows / _KEYS_PER_BUCKET))
    split = [delayed(split_keys)(part, n_buckets) for part in corpus.partitions]
    buckets = [delayed(repeated_keys)([keys[b] for keys in split]) for b in range(n_buckets)]
    repeated = np.concatenate(compute(*buckets))
    if not repeated.size:
        return []
    # Two ids may share a key, so the ids themselves decide.
    found = compute(*[delayed(ids_with_keys)(part, repeated) for part in corpus.partitions])
    counts: Counter[str | int] = Counter()
    for ids in found:
        counts.update(ids)
    return sorted(id_ for id_, count in counts.items() if count > 1)
