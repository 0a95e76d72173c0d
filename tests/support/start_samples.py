"""Rows and pairs as the starts of a fit see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hmrf_dask.constraints.closure import ClosureRules, ConstraintGraph, CostedPairs, build_graph
from hmrf_dask.distortions import make_distortion
from hmrf_dask.fit import preparation
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks import partitions
from hmrf_dask.tasks.first_centroids import CandidateRows
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.start_sample import StartSample, make_start_sample
from tests.support.loop import Bench
from tests.support.problems import legal_rows

SMOOTHING = {"kl": 1.0, "i-divergence": 1.0}  # where the warm-up ends


def sample_of(
    X: NDArray[Any], name: str = "cosine", *, dense: bool = False, seed: int = 0, ids: Any = None
) -> CandidateRows:
    """Return rows as the starts see them."""
    rows = np.asarray(X, np.float32)
    make = RowBlock.from_array if dense else RowBlock.from_scipy
    block = make(rows if dense else scipy.sparse.csr_array(rows), ids)
    distortion = make_distortion(name)
    facts = partitions.survey_block(block, 0, distortion, ids is not None)
    bound = distortion.bind(preparation.extent_of(facts, block.n_features))
    weights = np.ones(block.n_features)
    terms = bound.terms(block, weights)
    largest = bound.summand_bound(None, weights) or bound.summand_bound(terms, weights) or 1.0
    exponent = fixed_point_exponent(block.n_rows, largest)
    return CandidateRows(block, bound, SMOOTHING.get(name, 0.0), exponent, seed)


def random_rows(
    seed: int, n: int = 24, d: int = 6, name: str = "cosine", zeros: int = 0
) -> NDArray[np.float32]:
    """Return rows of which no two have the same direction."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.1, 1.0, (n, d)) * (rng.random((n, d)) < 0.6)
    rows[np.arange(n), rng.integers(0, d, n)] += rng.uniform(0.5, 1.0, n)
    rows[:zeros] = 0.0
    return legal_rows(rows, name)


def graph_of(
    n_nodes: int, must: list[Any], cannot: list[Any], *, closure: bool = True, tables: bool = True
) -> ConstraintGraph:
    """Return the constraints among nodes 0 to n_nodes."""
    lists = [CostedPairs(np.asarray(pairs, np.int64)) for pairs in (must, cannot)]
    return build_graph(n_nodes, *lists, ClosureRules(closure, tables, "keep"), names=str)


def start_sample_of(sample: CandidateRows) -> StartSample:
    """Return rows without pairs as a start sample, in whatever order they are."""
    block, distortion = sample.block, sample.distortion
    extent = getattr(distortion, "extent")  # noqa: B009 - of a built-in one, which is bound
    nothing = np.zeros(0, np.int64)
    rows, settings = np.arange(block.n_rows), Settings(4, seed=sample.seed)
    return StartSample(block, rows, None, nothing, settings, distortion, extent, 2.0**-8, 100)


def start_sample_of_bench(bench: Bench) -> StartSample:
    """Return the whole of a small problem as a start sample."""
    laid = bench.engine.problem
    block = RowBlock.concatenate([part.block for part in laid.free])
    pairs = laid.constraints
    graph, nodes = (pairs.graph, pairs.node_rows) if pairs else (None, np.zeros(0, np.int64))
    sample = StartSample(
        block, np.arange(block.n_rows), graph, nodes, laid.settings, laid.distortion,
        laid.extent, laid.cost_unit, laid.row_bytes,
    )  # fmt: skip
    return make_start_sample(block, sample)
