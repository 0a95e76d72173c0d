"""How well a clustering fits known classes: from one table of counts, made where the labels are."""

from __future__ import annotations

from hmrf_dask.measures.contingency import Contingency, contingency
from hmrf_dask.measures.scores import (
    PairScores,
    adjusted_rand,
    completeness,
    entropy,
    homogeneity,
    mutual_info,
    normalized_mutual_info,
    pairwise_f,
    pairwise_scores,
    v_measure,
)

__all__ = [
    "Contingency",
    "PairScores",
    "adjusted_rand",
    "completeness",
    "contingency",
    "entropy",
    "homogeneity",
    "mutual_info",
    "normalized_mutual_info",
    "pairwise_f",
    "pairwise_scores",
    "v_measure",
]
