"""Latent semantic analysis: a truncated SVD of rows in partitions by randomised subspace iteration.

Halko, Martinsson, Tropp (SIAM Review 2011), in the form that keeps nothing of size n: every pass
takes an orthonormal V (d × l) to Xᵀ(X V), and the last one gives the l × l problem VᵀXᵀX V. Sums
over rows are exact and BLAS has one thread, so on one machine the bits depend on the seed and the
rows alone: not on partitions, threads, nor on the order of the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import Dataflow, Lazy
from hmrf_dask.errors import ConfigurationError, InvalidInputError, MemoryPlanError
from hmrf_dask.kernels.exact import exact_sum, exact_value
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.kernels.sketches import Basis, project
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.text.passes import Rows, lay_rows
from hmrf_dask.types import FloatArray, RowArray
from hmrf_dask.workers import machine_memory

OVERSAMPLES = 10  # columns beyond those asked for: the first then settle sooner
NEGLIGIBLE = 2.0**-46  # of the largest eigenvalue: smaller ones are rounding
ROUNDS = 4  # each makes directions orthonormal whose lengths are seven digits further apart
CLOSE = 2.0**-13  # eigenvalues this close to one another leave vectors orthonormal to 12 digits

_one_thread = threading.Lock()


@dataclass(frozen=True)
class Decomposition:
    """The first singular vectors of the rows, largest values first.

    Attributes
    ----------
    components : float64 array, shape (k, d)
        Orthonormal, but for those beyond the rank of the rows, which are zero; the largest entry
        of each, in size, is positive.
    singular_values : float64 array, shape (k,)
    variances : float64 array, shape (k,)
        Of the rows along each component.
    total_variance : float
    """

    components: FloatArray
    singular_values: FloatArray
    variances: FloatArray
    total_variance: float


def decompose(
    flow: Dataflow, corpus: Corpus, n_components: int, n_iter: int, seed: int
) -> Decomposition:
    """Return the first `n_components` right singular vectors of a corpus.

    Parameters
    ----------
    flow : Dataflow
    corpus : Corpus
    n_components : int
        At most the number of features.
    n_iter : int
        Power iterations; passes over the rows are one more, and one look.
    seed : int
    """
    n_rows, n_features = corpus.shape
    if n_components > n_features:
        raise ConfigurationError(
            f"n_components must be at most the number of features, {n_features}, got "
            f"{n_components}; ask for fewer"
        )
    if n_rows < 1:
        raise InvalidInputError(
            f"Found array with 0 sample(s) (shape=({n_rows}, {n_features})) while a minimum of 1 "
            "is required; give rows"
        )
    n_columns = min(n_components + OVERSAMPLES, n_features)
    _refuse_large(n_features, n_columns)
    rows = lay_rows(flow, corpus)
    basis = random_basis(n_features, n_columns, seed)
    for _ in range(n_iter):
        basis = orthonormal(rows.sketch(basis)[0])
    return _decomposed(rows, basis, n_components)


def _refuse_large(n_features: int, n_columns: int) -> None:
    """Refuse a basis that this process cannot hold, with its products and what they become."""
    needed, there = 3 * 8 * n_features * n_columns, machine_memory()
    if needed > there:
        raise MemoryPlanError(
            f"LSA must fit the memory of this machine, {there / 2**30:.3g} GiB, but thrice "
            f"{n_columns} vectors of {n_features} features are {needed / 2**30:.3g} GiB; use fewer "
            "components or features"
        )


def random_basis(n_features: int, n_columns: int, seed: int) -> FloatArray:
    """Return random orthonormal vectors (d, n), keyed by the number of feature and column."""
    keys = np.arange(n_features, dtype=np.uint64)
    drawn = np.empty((n_features, n_columns))
    for column in range(n_columns):
        drawn[:, column] = uniforms(keys, seed, "sketch", 0, column, 0) - 0.5
    return orthonormal(drawn)


@contextmanager
def blas_on_one_thread() -> Iterator[None]:
    """Let BLAS add up in one order: on other numbers of threads it takes others.

    The limit is of the process, and two fits at a time would lift one another's.
    """
    with _one_thread, threadpool_limits(1, user_api="blas"):
        yield


def orthonormal(vectors: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the space of vectors (d, n), as many of them.

    SVQB (Stathopoulos, Wu: SIAM J. Sci. Comput. 2002), repeated: products of matrices alone, so
    several times as fast as a QR decomposition. Directions that only rounding has set off from zero
    become others, orthogonal to the rest; vectors that are exactly zero stay zero.
    """
    with blas_on_one_thread():
        for _ in range(ROUNDS):
            values, turns = eigenvectors(vectors.T @ vectors)
            largest = float(values[0])
            if largest <= 0.0:
                break
            vectors = vectors @ (turns / np.sqrt(np.maximum(values, NEGLIGIBLE * largest)))
            if values[-1] > CLOSE * largest:
                break
    return vectors


def eigenvectors(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the eigenvalues of a symmetric matrix, largest first, and their vectors as columns."""
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1], vectors[:, ::-1]


def _decomposed(rows: Rows, basis: FloatArray, n_components: int) -> Decomposition:
    """Return the singular vectors of QᵀX, Q orthonormal with the span of X V, from one pass.

    Q = X V W Λ^-½ with VᵀXᵀX V = W Λ Wᵀ, so that XᵀQ follows from Xᵀ(X V) and Q is never made.
    """
    image, totals = rows.sketch(basis)
    with blas_on_one_thread():
        values, turns = eigenvectors(basis.T @ image)
        image = image @ (turns * _inverse_roots(values))  # of Q from here on
        squares, turns = eigenvectors(image.T @ image)
        turns = (turns * _inverse_roots(squares))[:, :n_components]
        components = _signed(turns.T @ image.T)
    squares, n_rows = np.maximum(squares[:n_components], 0.0), rows.shape[0]
    means = totals / n_rows
    along = np.asarray([exact_value(exact_sum(row * means)) for row in components])
    variances = np.maximum(squares / n_rows - along * along, 0.0)
    total = exact_value(rows.facts.squares) / n_rows - exact_value(exact_sum(means * means))
    return Decomposition(components, np.sqrt(squares), variances, max(total, 0.0))


def _inverse_roots(values: FloatArray) -> FloatArray:
    """Return 1/√ of eigenvalues, zero for those that are rounding."""
    real = values > NEGLIGIBLE * max(float(values[0]), 0.0)
    return np.where(real, 1.0 / np.sqrt(np.where(real, values, 1.0)), 0.0)


def _signed(components: FloatArray) -> FloatArray:
    """Turn every component so that its largest entry in size, the first of several, is positive."""
    largest = np.abs(components).argmax(axis=1)
    signs = np.where(components[np.arange(len(components)), largest] < 0.0, -1.0, 1.0)
    return components * signs[:, None]


def project_block(block: RowBlock, basis: Basis, normalised: bool) -> RowBlock:
    """Return the rows of a partition in the space of the components, with their ids."""
    found = RowBlock.from_array(project_array(block, basis, normalised))
    return replace(found, ids=block.ids, keys=block.keys)


def project_array(block: RowBlock, basis: Basis, normalised: bool) -> RowArray:
    """Return the rows of a partition in the space of the components."""
    check_finite(block)
    return project(block.arrays, basis, normalised=normalised)


def projected(
    flow: Dataflow, corpus: Corpus, components: FloatArray, *, normalised: bool, as_blocks: bool
) -> list[Lazy]:
    """Return lazily the rows of every partition times the components, float32."""
    basis = flow.share(Basis(np.ascontiguousarray(components.T)))
    function = project_block if as_blocks else project_array
    return [flow.lazy(function, block, basis, normalised) for block in corpus.blocks]
