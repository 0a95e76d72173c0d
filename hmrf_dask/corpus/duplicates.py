"""Ids that more than one row has, found without bringing ids together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.delayed import delayed

from hmrf_dask.cluster.watch import compute as compute_all
from hmrf_dask.corpus.partitioned import Compute, Corpus
from hmrf_dask.corpus.partitions import ids_with_keys, keys_in_bucket, repeated_keys

_KEYS_PER_BUCKET = 2**25


def _delayed_call(function: Callable[..., Any], *arguments: Any) -> Any:
    return delayed(function)(*arguments)


def find_duplicate_ids(
    corpus: Corpus,
    *,
    blocks: Sequence[Any] | None = None,
    lazy: Callable[..., Any] = _delayed_call,
    compute: Compute = compute_all,
) -> list[str | int]:
    """Return some of the ids that more than one row has, sorted; empty if there are none.

    Keys of ids are compared in buckets, in tasks; only ids whose keys collide come back here.

    Parameters
    ----------
    corpus : Corpus
    blocks : sequence, optional
        What `lazy` takes for the partitions; without it these themselves.
    lazy, compute : callable
        What makes a task of a function and its arguments, and what runs tasks: Dask's own unless
        the blocks are another dataflow's.
    """
    if not corpus.has_ids:
        return []
    parts = corpus.partitions if blocks is None else blocks
    n_buckets = max(1, math.ceil(corpus.n_rows / _KEYS_PER_BUCKET))
    buckets = [
        [lazy(keys_in_bucket, part, bucket, n_buckets) for part in parts]
        for bucket in range(n_buckets)
    ]
    repeated = np.concatenate(compute(*[lazy(repeated_keys, keys) for keys in buckets]))
    if not repeated.size:
        return []
    # Two ids may share a key, so the ids themselves decide.
    found = compute(*[lazy(ids_with_keys, part, repeated) for part in parts])
    counts: Counter[str | int] = Counter()
    for ids in found:
        counts.update(ids)
    return sorted(id_ for id_, count in counts.items() if count > 1)
