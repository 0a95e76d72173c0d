"""Passes of LSA over a corpus: a look at all rows, and the exact products Xᵀ(X · V)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import FAN, Dataflow, Lazy, task_memory, tree
from hmrf_dask.errors import MemoryPlanError
from hmrf_dask.kernels.distances import moments
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.kernels.products import LANES
from hmrf_dask.kernels.sketches import Basis, add_sketch, power_below, sketch_exponent
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.store.reading import Blocks
from hmrf_dask.types import FloatArray, IntArray
from hmrf_dask.workers import memory_of_all

ROUNDING = 1.0 + 2.0**-20  # bounds hold for computed lengths and bases


@dataclass(frozen=True)
class Facts:
    """What a look at rows tells.

    Attributes
    ----------
    largest : float
        The largest |x| of an entry.
    longest : float
        The largest Σ x² of a row.
    squares : int64 array
        The exact Σ x² of all rows, as limbs.
    nbytes : int
    """

    largest: float
    longest: float
    squares: IntArray
    nbytes: int


def look_at(block: RowBlock) -> Facts:
    """Return the facts of a partition; raise InvalidInputError for values that are not finite."""
    check_finite(block)
    squares = moments(block.arrays, np.ones(block.n_features))[2]
    largest = float(np.abs(block.values).max(initial=0.0))
    return Facts(largest, float(squares.max(initial=0.0)), exact_sum(squares), block.nbytes)


def add_facts(parts: Sequence[Facts]) -> Facts:
    """Return the facts of several partitions together."""
    return Facts(
        max(one.largest for one in parts),
        max(one.longest for one in parts),
        np.sum([one.squares for one in parts], axis=0, dtype=np.int64),
        sum(one.nbytes for one in parts),
    )


def look_at_some(blocks: Blocks) -> Facts:
    """Return the facts of some partitions, which may be read one after the other."""
    return add_facts([look_at(block) for block in blocks])


@dataclass(frozen=True)
class Scaling:
    """How products become integers.

    Attributes
    ----------
    exponent : int
    constant : float
        What the sums of features are times, a power of two of about the longest row's length.
    """

    exponent: int
    constant: float


def scaling_of(facts: Facts, n_rows: int) -> Scaling:
    """Return the scale at which sums over all rows fit: |x_im y_ic| ≤ max |x| · max ‖x‖."""
    length = math.sqrt(facts.longest) * ROUNDING
    return Scaling(sketch_exponent(n_rows, facts.largest * length), power_below(length))


def sketch_some(blocks: Blocks, basis: Basis, scaling: Scaling) -> IntArray:
    """Return Σ x yᵀ over the rows of some partitions, the sums of features last."""
    n_features, n_columns = basis.vectors.shape
    out = np.zeros((n_features, n_columns + 1), np.int64)
    for block in blocks:
        add_sketch(block.arrays, basis, scaling.exponent, scaling.constant, out)
    return out


def add_sketches(parts: Sequence[IntArray]) -> IntArray:
    """Return the sum of partial sums."""
    total = parts[0] + parts[1]
    for one in parts[2:]:
        total += one
    return total


def strips(n_features: int, n_columns: int, allowed: int) -> list[tuple[int, int]]:
    """Return ranges of columns whose sums a task can hold, as few as memory allows.

    Raises
    ------
    MemoryPlanError
        Not even one column fits.

    Examples
    --------
    >>> strips(1000, 30, 2**30)
    [(0, 30)]
    >>> strips(1000, 30, 2**20)
    [(0, 10), (10, 20), (20, 30)]
    """
    each = 8 * n_features * (FAN + 1)  # a node of the tree holds its children and their sum
    widest = allowed // each - 1  # one column more holds the sums of features
    needed = 8 * n_features * (2 * LANES + 2)  # one vector of the basis, laid out, and sums
    if widest < 1 or needed > allowed:
        raise MemoryPlanError(
            f"LSA of {n_features} features must fit the memory of a task, {allowed} bytes "
            f"(hmrf.task-memory), but one column of its sums needs {2 * each} bytes to add up and "
            f"{needed} to make; use fewer features or a larger hmrf.task-memory"
        )
    n_strips = -(-n_columns // min(widest, n_columns))
    bounds = [n_columns * i // n_strips for i in range(n_strips + 1)]
    return list(pairwise(bounds))


@dataclass(frozen=True)
class Rows:
    """A corpus as passes go through it.

    Attributes
    ----------
    flow : Dataflow
    groups : lists of what a task takes for its partitions
    facts : Facts
    shape : number of rows and of features
    """

    flow: Dataflow
    groups: list[list[Lazy]]
    facts: Facts
    shape: tuple[int, int]

    def sketch(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Xᵀ(X · V) for orthonormal vectors V, and Σ_i x_i, from one pass for each strip.

        Parameters
        ----------
        vectors : float64 array, shape (d, n)

        Returns
        -------
        products : float64 array, shape (d, n)
        totals : float64 array, shape (d,)
        """
        scaling = scaling_of(self.facts, self.shape[0])
        unit = 2.0**-scaling.exponent
        n_features, n_columns = vectors.shape
        products: FloatArray = np.empty((n_features, n_columns))
        totals: FloatArray = np.zeros(n_features)
        for first, last in strips(n_features, n_columns, task_memory()):
            sums = self._sums(np.ascontiguousarray(vectors[:, first:last]), scaling)
            np.multiply(sums[:, :-1], unit, out=products[:, first:last])
            np.multiply(sums[:, -1], unit / scaling.constant, out=totals)
        return products, totals

    def _sums(self, vectors: FloatArray, scaling: Scaling) -> IntArray:
        flow = self.flow
        basis = flow.broadcast(Basis(vectors))
        parts = [flow.lazy(sketch_some, group, basis, scaling) for group in self.groups]
        sums: IntArray = flow.compute([tree(flow, add_sketches, parts)])[0]
        return sums


def lay_rows(flow: Dataflow, corpus: Corpus) -> Rows:
    """Look at every row once, and keep all where they were made if they fit into memory.

    Rows of files that do not fit are read again in every pass, one partition after the other.
    """
    half = memory_of_all() // 2
    known_to_fit = corpus.in_client or _files_fit(corpus, half)
    corpus = corpus.persist()  # rows of this process travel once
    blocks: Sequence[Lazy] = corpus.blocks
    if known_to_fit:
        blocks = flow.persist(list(corpus.partitions))
    if known_to_fit or corpus.sources:
        groups = _grouped(flow, blocks)
        return Rows(flow, groups, _look(flow, groups), corpus.shape)
    groups = [[block] for block in blocks]  # only a look tells how large they are
    facts = _look(flow, groups)
    if facts.nbytes <= half:
        groups = _grouped(flow, flow.persist(list(blocks)))
    return Rows(flow, groups, facts, corpus.shape)


def _files_fit(corpus: Corpus, allowed: int) -> bool:
    return bool(corpus.sources) and sum(one.nbytes for one in corpus.sources) <= allowed


def _grouped(flow: Dataflow, blocks: Sequence[Lazy]) -> list[list[Lazy]]:
    return [[blocks[number] for number in some] for some in flow.neighbours(blocks)]


def _look(flow: Dataflow, groups: Sequence[list[Lazy]]) -> Facts:
    looks = [flow.lazy(look_at_some, group) for group in groups]
    facts: Facts = flow.compute([tree(flow, add_facts, looks)])[0]
    return facts
