"""Which pairs to ask a person about: questions chosen so that few answers tell the clusters."""

from __future__ import annotations

from hmrf_dask.active.answers import Answers
from hmrf_dask.active.batches import next_choices, next_pairs
from hmrf_dask.active.selection import explore_consolidate

__all__ = ["Answers", "explore_consolidate", "next_choices", "next_pairs"]
