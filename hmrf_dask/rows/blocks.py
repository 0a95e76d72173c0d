"""Rows of several kinds: each kind a block of columns, scaled so that weights say what it counts.

A row is [√w₁·u₁, √w₂·u₂, …], uᵢ of length 1 and Σw = 1, so that a product of two rows is the
weighted mean of their cosines. A row that has nothing of one kind is the others' at full length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.kernels.distances import sizes
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.rows.canonical import require_int32
from hmrf_dask.types import BoolArray, FloatArray


class Joined(NamedTuple):
    """Rows of several kinds, and which of them lack a kind, but not all."""

    block: RowBlock
    partial: BoolArray


def shares_of(weights: Sequence[float]) -> list[float]:
    """Return weights that add up to 1, or raise ConfigurationError.

    Examples
    --------
    >>> shares_of([1, 3])
    [0.25, 0.75]
    """
    given: Sequence[Any] = weights
    numbers = [isinstance(one, Real) and not isinstance(one, bool) for one in given]  # numpy's too
    if not len(given) or not all(numbers) or not all(0 < one < np.inf for one in given):
        raise ConfigurationError(
            f"weights must be numbers above 0, got {shortened(list(weights))}; leave a kind of "
            "rows out that shall not count"
        )
    total = sum(map(float, weights))
    return [float(one) / total for one in weights]


def join(blocks: Sequence[RowBlock], weights: Sequence[float]) -> Joined:
    """Return the rows of several blocks side by side, at their weights.

    The columns of sparse blocks come first, then those of dense ones, each kind in its order.

    Examples
    --------
    >>> words = RowBlock.from_scipy(scipy.sparse.csr_array([[0, 2.0], [0, 0]]))
    >>> vectors = RowBlock.from_array(np.array([[3.0, -4.0], [0.0, 5.0]]))
    >>> joined = join([words, vectors], [1, 1])
    >>> (100 * joined.block.to_dense()).round().astype(int).tolist(), joined.partial.tolist()
    ([[0, 71, 42, -57], [0, 0, 0, 100]], [False, True])
    """
    shares = shares_of(weights)
    squares = np.stack([sizes(one.arrays, np.ones(one.n_features))[0] for one in blocks])
    there = squares > 0
    whole = np.where(there, np.asarray(shares)[:, None], 0.0).sum(axis=0)
    # Where a kind is missing the weights of the others add up to 1.
    lengths = np.sqrt(np.asarray(shares)[:, None] / np.where(whole > 0, whole, 1.0))
    factors = np.divide(lengths, np.sqrt(squares), out=np.zeros_like(squares), where=there)
    scaled = [_scaled(one, factor) for one, factor in zip(blocks, factors, strict=True)]
    partial: BoolArray = np.asarray(there.any(axis=0) & ~there.all(axis=0))
    return Joined(_side_by_side(scaled), partial)


def _scaled(block: RowBlock, factors: FloatArray) -> RowBlock:
    """Return a block, each row times its factor, rounded once."""
    each = np.repeat(factors, np.diff(block.indptr))
    return replace(block, values=(block.values * each).astype(np.float32))


def _side_by_side(blocks: Sequence[RowBlock]) -> RowBlock:
    """Return blocks of the same documents as one, sparse ones before dense ones."""
    first = blocks[0]
    if not first.n_rows:  # of no kind
        return RowBlock.from_array(np.zeros((0, sum(one.n_features for one in blocks))), first.ids)
    dense = [one for one in blocks if one.is_dense]
    if not dense:
        return _sparse_side_by_side(blocks)
    together = np.concatenate([one.to_dense() for one in dense], axis=1)
    vectors = RowBlock.from_array(together, first.ids)
    if len(dense) == len(blocks):
        return vectors
    words = _sparse_side_by_side([one for one in blocks if not one.is_dense])
    return RowBlock.side_by_side(words, vectors)


def _sparse_side_by_side(blocks: Sequence[RowBlock]) -> RowBlock:
    """Return sparse blocks as one: of each row the entries of the first block come first."""
    counts = np.stack([np.diff(one.indptr).astype(np.int64) for one in blocks])
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.sum(axis=0))])
    require_int32(int(ends[-1]), "the number of values of rows of several kinds")
    data, indices = np.empty(ends[-1], np.float32), np.empty(ends[-1], np.int32)
    begins, n_features = ends[:-1].copy(), 0
    for block, n_values in zip(blocks, counts, strict=True):
        places = np.arange(len(block.values)) + np.repeat(begins - block.indptr[:-1], n_values)
        data[places] = block.values
        indices[places] = block.indices + np.int32(n_features)
        begins += n_values
        n_features += block.n_features
    return RowBlock.from_csr(data, indices, ends, n_features, blocks[0].ids)


class Blocks:
    """Rows of several kinds for one fit, such as words and an embedding.

    Each kind is scaled to length 1 and counts by its weight; a row without anything of one kind is
    what it has of the others. Give new rows to `predict` in the same kinds, at the same weights.
    Rows of sparse and dense kinds are compared as both are alone, in little more than the time of
    both. They are for distortions of directions and distances: cosine and euclidean.

    Parameters
    ----------
    parts : list of sparse matrix, sparse array or ndarray
        The kinds, any number of them, with the same rows in the same order.
    weights : list of float, optional
        What each kind counts, above 0; all the same without them.

    Attributes
    ----------
    rows : RowBlock, shape (n_rows, n_features)
        The rows: float32, columns of sparse kinds before those of dense ones, each in its order.
    n_partial : int
        Rows that lack a kind, but not all.

    Examples
    --------
    >>> from hmrf_dask import Blocks, KMeans
    >>> words = scipy.sparse.csr_array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    >>> vectors = np.array([[1.0, 0.1], [0.9, 0], [0, 1], [0.1, 1]])
    >>> rows = Blocks([words, vectors], weights=[1, 0.5])
    >>> rows.shape, len(set(KMeans(2, random_state=0).fit(rows).labels_.tolist()))
    ((4, 4), 2)
    """

    def __init__(self, parts: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        parts = _listed("kinds of rows", parts)
        shares = [1.0] * len(parts) if weights is None else _listed("weights", weights)
        if not parts or len(shares) != len(parts):
            raise ConfigurationError(
                f"weights must be one for each kind of rows, got {len(shares)} for {len(parts)}"
            )
        blocks = [_block_of(one, number) for number, one in enumerate(parts, 1)]
        counts = [one.n_rows for one in blocks]
        if len(set(counts)) > 1:
            raise InvalidInputError(
                "all kinds of rows must be of the same documents, got "
                f"{', '.join(map(str, counts))} rows; give each kind a row for each document"
            )
        joined = join(blocks, shares)
        self.rows = joined.block
        self.n_partial = int(joined.partial.sum())

    @property
    def matrix(self) -> Any:
        """The rows as a csr_array or, where all kinds are dense, an ndarray."""
        return self.rows.to_dense() if self.rows.is_dense else self.rows.to_scipy()

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.rows.shape

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]


def _listed(what: str, values: Any) -> list[Any]:
    """Return what was given as a list, or raise ConfigurationError: rows alone are no kinds."""
    rows = scipy.sparse.issparse(values) or (isinstance(values, np.ndarray) and values.ndim != 1)
    if rows or isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(
            f"{what} must be a list, one for each kind, got {type(values).__name__}; give a list"
        )
    return list(values)


def _block_of(part: Any, number: int) -> RowBlock:
    """Return one kind of rows, checked."""
    if scipy.sparse.issparse(part):
        block = RowBlock.from_scipy(part)
    elif isinstance(part, np.ndarray) and not isinstance(part, np.ma.MaskedArray):
        block = RowBlock.from_array(part)
    else:
        raise InvalidInputError(
            "each kind of rows must be a scipy sparse matrix or an ndarray, got "
            f"{type(part).__name__} as number {number}; convert it, or fit a corpus of files"
        )
    check_finite(block)
    return block


def refuse_distortion(distortion: Any) -> None:
    """Refuse a distortion under which a weighted mean of kinds has no meaning; own ones may know.

    Examples
    --------
    >>> refuse_distortion("cosine")
    """
    if isinstance(distortion, str) and distortion not in ("cosine", "euclidean"):
        raise ConfigurationError(
            f"rows of several kinds must go with distortion cosine or euclidean, got "
            f"{distortion}: it "
            "would mix numbers of different kinds; give one kind of rows"
        )
