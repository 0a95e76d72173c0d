"""Rows of several kinds: each kind a block of columns, scaled so that weights say what it counts.

A row is [√w₁·u₁, √w₂·u₂, …], uᵢ of length 1 and Σw = 1, so that a product of two rows is the
weighted mean of their cosines. A row that has nothing of one kind is the others' at full length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.kernels.distances import sizes
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.rows.canonical import require_int32
from hmrf_dask.types import AnyArray, BoolArray, FloatArray


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
    numbers = [isinstance(one, int | float) and one is not True for one in given]
    if not len(given) or not all(numbers) or not all(0 < one < np.inf for one in given):
        raise ConfigurationError(
            f"weights must be numbers above 0, got {shortened(list(weights))}; leave a kind of "
            "rows out that shall not count"
        )
    return [float(one / sum(weights)) for one in weights]


def join(blocks: Sequence[RowBlock], weights: Sequence[float]) -> Joined:
    """Return the rows of several blocks side by side, at their weights.

    Columns keep their order, those of the first block first. All dense blocks make a dense one.

    Examples
    --------
    >>> words = RowBlock.from_scipy(scipy.sparse.csr_array([[0, 2.0], [0, 0]]))
    >>> vectors = RowBlock.from_array(np.array([[3.0, -4.0], [0.0, 5.0]]))
    >>> joined = join([words, vectors], [1, 1])
    >>> (100 * joined.block.to_dense()).round().astype(int).tolist(), joined.partial.tolist()
    ([[0, 71, 42, -57], [0, 0, 0, 100]], [False, True])
    """
    shares = shares_of(weights)
    n_rows = blocks[0].n_rows
    squares = np.stack([sizes(one.arrays, np.ones(one.n_features))[0] for one in blocks])
    there = squares > 0
    whole = np.where(there, np.asarray(shares)[:, None], 0.0).sum(axis=0)
    # Where a kind is missing the weights of the others add up to 1.
    lengths = np.sqrt(np.asarray(shares)[:, None] / np.where(whole > 0, whole, 1.0))
    factors = np.divide(lengths, np.sqrt(squares), out=np.zeros_like(squares), where=there)
    scaled = [_scaled(one, factor) for one, factor in zip(blocks, factors, strict=True)]
    partial: BoolArray = np.asarray(there.any(axis=0) & ~there.all(axis=0))
    n_features = sum(one.n_features for one in blocks)
    first = blocks[0]
    if all(one.is_dense or not one.n_rows for one in blocks):
        shaped = [
            values.reshape(n_rows, one.n_features)
            for one, values in zip(blocks, scaled, strict=True)
        ]
        block = RowBlock.from_array(np.concatenate(shaped, axis=1), first.ids)
    else:
        arrays = _side_by_side(blocks, scaled)
        block = RowBlock.from_csr(*arrays, n_features, first.ids)
    return Joined(block, partial)


def _scaled(block: RowBlock, factors: FloatArray) -> AnyArray:
    """Return the values of a block, each times the factor of its row, rounded once."""
    each = np.repeat(factors, np.diff(block.indptr))
    return (block.values * each).astype(np.float32)


def _side_by_side(
    blocks: Sequence[RowBlock], values: Sequence[AnyArray]
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return blocks as one CSR matrix: of each row the entries of the first block come first."""
    counts = np.stack([np.diff(one.indptr).astype(np.int64) for one in blocks])
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.sum(axis=0))])
    require_int32(int(ends[-1]), "the number of values of rows of several kinds")
    data, indices = np.empty(ends[-1], np.float32), np.empty(ends[-1], np.int32)
    begins, first_column = ends[:-1].copy(), 0
    for block, own, n_values in zip(blocks, values, counts, strict=True):
        places = np.arange(len(own)) + np.repeat(begins - block.indptr[:-1], n_values)
        data[places] = own
        indices[places] = _columns_of(block) + np.int32(first_column)
        begins += n_values
        first_column += block.n_features
    return data, indices, ends


def _columns_of(block: RowBlock) -> AnyArray:
    if not block.is_dense:
        return block.indices
    return np.tile(np.arange(block.n_features, dtype=np.int32), block.n_rows)


class Blocks:
    """Rows of several kinds for one fit, such as words and an embedding.

    Each kind is scaled to length 1 and counts by its weight; a row without anything of one kind is
    what it has of the others. Give new rows to `predict` in the same kinds, at the same weights.
    They are for distortions of directions and distances: cosine and euclidean.

    Parameters
    ----------
    parts : list of sparse matrix, sparse array or ndarray
        The kinds, with the same rows in the same order.
    weights : list of float, optional
        What each kind counts, above 0; all the same without them.

    Attributes
    ----------
    matrix : csr_array or ndarray, shape (n_rows, n_features)
        The rows: float32, the columns of the first kind first.
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
        parts = list(parts)
        shares = [1.0] * len(parts) if weights is None else list(weights)
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
        dense = joined.block.is_dense
        self.matrix: Any = joined.block.to_dense() if dense else joined.block.to_scipy()
        self.n_partial = int(joined.partial.sum())

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        n_rows, n_features = self.matrix.shape
        return int(n_rows), int(n_features)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]


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
