"""Latent semantic analysis: a truncated SVD of rows in partitions by subspace iteration."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from threadpoolctl import threadpool_limits

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import ConfigurationError, InvalidInputError, MemoryPlanError
from hmrf_dask.flow.cluster import machine_memory, memory_of_all
from hmrf_dask.flow.dataflow import FAN, Dataflow, Lazy, task_memory, tree
from hmrf_dask.kernels.distances import moments
from hmrf_dask.kernels.exact import exact_sum, exact_value
from hmrf_dask.kernels.products import LANES
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.kernels.sketches import Basis, add_sketch, power_below, project, sketch_exponent
from hmrf_dask.progress import SoFar, uncounted
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.rows.files import Blocks
from hmrf_dask.types import FloatArray, IntArray, RowArray

OVERSAMPLES = 10  # columns beyond those asked for: the first then settle sooner
NEGLIGIBLE = 2.0**-46  # of the largest eigenvalue: smaller ones are rounding
ROUNDS = 4  # each makes directions orthonormal whose lengths differ by seven digits
CLOSE = 2.0**-13  # eigenvalues this close to one another leave vectors orthonormal to 12 digits

_one_thread = threading.Lock()


@dataclass(frozen=True)
class Decomposition:
    """The first k singular vectors of the rows, largest values first.

    Components are orthonormal, but for those beyond the rank of the rows, which are zero; the
    largest entry of each, in size, is positive.
    """

    components: FloatArray  # shape (k, d)
    singular_values: FloatArray
    variances: FloatArray  # of the rows along each component
    total_variance: float


def decompose(
    flow: Dataflow,
    corpus: Corpus,
    n_components: int,
    n_iter: int,
    seed: int,
    *,
    so_far: SoFar = uncounted,
) -> Decomposition:
    """Return the first `n_components` right singular vectors of a corpus.

    Passes over the rows are one more than the `n_iter` power iterations, and one survey. `so_far`
    takes how many of them are done.
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
    rows = _lay_rows(flow, corpus)
    basis = _random_basis(n_features, n_columns, seed)
    for iteration in range(n_iter):
        so_far(iteration + 1, n_iter + 2)
        basis = orthonormal(rows.sketch(basis)[0])
    so_far(n_iter + 1, n_iter + 2)
    return _decomposed(rows, basis, n_components)


def _refuse_large(n_features: int, n_columns: int) -> None:
    """Refuse a basis that this process cannot hold, with its products and what they become."""
    needed, there = 3 * 8 * n_features * n_columns, machine_memory()
    if needed > there:
        raise MemoryPlanError(
            f"LSA must fit the memory of this machine, {there / 2**30:.3g} GiB, but three times "
            f"{n_columns} vectors of {n_features} features are {needed / 2**30:.3g} GiB; use fewer "
            "components or features"
        )


def _random_basis(n_features: int, n_columns: int, seed: int) -> FloatArray:
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

    Examples
    --------
    >>> vectors = orthonormal(np.array([[3.0, 1.0], [0.0, 2.0]]))
    >>> np.allclose(vectors.T @ vectors, np.eye(2))
    True
    """
    with blas_on_one_thread():
        for _ in range(ROUNDS):
            values, turns = _eigenvectors(vectors.T @ vectors)
            largest = float(values[0])
            if largest <= 0.0:
                break
            vectors = vectors @ (turns / np.sqrt(np.maximum(values, NEGLIGIBLE * largest)))
            if values[-1] > CLOSE * largest:
                break
    return vectors


def _eigenvectors(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the eigenvalues of a symmetric matrix, largest first, and their vectors as columns."""
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1], vectors[:, ::-1]


def _decomposed(rows: Rows, basis: FloatArray, n_components: int) -> Decomposition:
    """Return the singular vectors of QᵀX, Q orthonormal with the span of X V, from one pass.

    Q = X V W Λ^-½ with VᵀXᵀX V = W Λ Wᵀ, so that XᵀQ follows from Xᵀ(X V) and Q is never made.
    """
    image, totals = rows.sketch(basis)
    with blas_on_one_thread():
        values, turns = _eigenvectors(basis.T @ image)
        image = image @ (turns * _inverse_roots(values))  # of Q from here on
        squares, turns = _eigenvectors(image.T @ image)
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
    """Return the rows of a partition in the space of the components, with their ids.

    Examples
    --------
    >>> basis = Basis(np.array([[1.0], [0.0]]))
    >>> block = RowBlock.from_array(np.array([[3.0, 4.0]]), ids=["a"])
    >>> project_block(block, basis, normalised=False).to_dense().tolist()
    [[3.0]]
    """
    rows = RowBlock.from_array(_project_array(block, basis, normalised))
    return replace(rows, ids=block.ids, keys=block.keys)


def _project_array(block: RowBlock, basis: Basis, normalised: bool) -> RowArray:
    check_finite(block)
    return project(block.arrays, basis, normalised=normalised)


def projected(
    flow: Dataflow, corpus: Corpus, components: FloatArray, *, normalised: bool, as_blocks: bool
) -> list[Lazy]:
    """Return lazily the rows of every partition times the components, float32."""
    basis = flow.share(Basis(np.ascontiguousarray(components.T)))
    function = project_block if as_blocks else _project_array
    return [flow.lazy(function, block, basis, normalised) for block in corpus.blocks]


ROUNDING = 1.0 + 2.0**-20  # bounds hold for computed lengths and bases


@dataclass(frozen=True)
class Facts:
    """What a survey of rows finds."""

    largest: float  # |x| of an entry
    longest: float  # Σ x² of a row
    squares: IntArray  # the exact Σ x² of all rows, as limbs
    nbytes: int


def survey_rows(block: RowBlock) -> Facts:
    """Return the facts of a partition; raise InvalidInputError for values that are not finite.

    Examples
    --------
    >>> facts = survey_rows(RowBlock.from_array(np.array([[3.0, -4.0], [1.0, 0.0]])))
    >>> facts.largest, facts.longest
    (4.0, 25.0)
    """
    check_finite(block)
    squares = moments(block.arrays, np.ones(block.n_features))[2]
    largest = float(np.abs(block.values).max(initial=0.0))
    return Facts(largest, float(squares.max(initial=0.0)), exact_sum(squares), block.nbytes)


def _add_facts(parts: Sequence[Facts]) -> Facts:
    return Facts(
        max(part.largest for part in parts),
        max(part.longest for part in parts),
        np.sum([part.squares for part in parts], axis=0, dtype=np.int64),
        sum(part.nbytes for part in parts),
    )


def _survey_slice(blocks: Blocks) -> Facts:
    """Return the facts of some partitions, which may be read one after the other."""
    return _add_facts([survey_rows(block) for block in blocks])


@dataclass(frozen=True)
class Scaling:
    """How products become integers."""

    exponent: int
    constant: float  # times the sums of features: a power of two of about the longest row's length


def scaling_of(facts: Facts, n_rows: int) -> Scaling:
    """Return the scale at which sums over all rows fit: |x_im y_ic| ≤ max |x| · max ‖x‖."""
    length = math.sqrt(facts.longest) * ROUNDING
    return Scaling(sketch_exponent(n_rows, facts.largest * length), power_below(length))


def _sketch_slice(blocks: Blocks, basis: Basis, scaling: Scaling) -> IntArray:
    """Return Σ x yᵀ over the rows of some partitions, the sums of features last."""
    n_features, n_columns = basis.vectors.shape
    out = np.zeros((n_features, n_columns + 1), np.int64)
    for block in blocks:
        add_sketch(block.arrays, basis, scaling.exponent, scaling.constant, out)
    return out


def _add_sketches(parts: Sequence[IntArray]) -> IntArray:
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def strips(n_features: int, n_columns: int, allowed: int) -> list[tuple[int, int]]:
    """Return ranges of columns whose sums a task can hold, as few as memory allows.

    Examples
    --------
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
    """A corpus as passes go through it."""

    flow: Dataflow
    slices: list[list[Lazy]]  # what a task takes for its partitions
    facts: Facts
    shape: tuple[int, int]

    def sketch(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Xᵀ(X · V), shape (d, n), for orthonormal vectors V, and Σ_i x_i, shape (d,).

        It takes one pass for each strip.
        """
        flow, scaling = self.flow, scaling_of(self.facts, self.shape[0])
        unit = 2.0**-scaling.exponent
        n_features, n_columns = vectors.shape
        products: FloatArray = np.empty((n_features, n_columns))
        totals: FloatArray = np.zeros(n_features)
        for first, last in strips(n_features, n_columns, task_memory()):
            basis = flow.broadcast(Basis(np.ascontiguousarray(vectors[:, first:last])))
            parts = [flow.lazy(_sketch_slice, blocks, basis, scaling) for blocks in self.slices]
            sums: IntArray = flow.compute([tree(flow, _add_sketches, parts)])[0]
            np.multiply(sums[:, :-1], unit, out=products[:, first:last])
            np.multiply(sums[:, -1], unit / scaling.constant, out=totals)
        return products, totals


def _lay_rows(flow: Dataflow, corpus: Corpus) -> Rows:
    """Survey every row once, and keep all where they were made if they fit into memory.

    Rows of files that do not fit are read again in every pass, one partition after the other.
    """
    half = memory_of_all() // 2
    sources = corpus.sources
    files_fit = bool(sources) and sum(source.nbytes for source in sources) <= half
    known_to_fit = corpus.in_client or files_fit
    corpus = corpus.persist()  # rows of this process travel once
    blocks: Sequence[Lazy] = corpus.blocks
    if known_to_fit:
        blocks = flow.persist(list(corpus.partitions))
    if known_to_fit or corpus.sources:
        slices = _slices(flow, blocks)
        return Rows(flow, slices, _survey(flow, slices), corpus.shape)
    slices = [[block] for block in blocks]  # only a survey knows how large they are
    facts = _survey(flow, slices)
    if facts.nbytes <= half:
        slices = _slices(flow, flow.persist(list(blocks)))
    return Rows(flow, slices, facts, corpus.shape)


def _slices(flow: Dataflow, blocks: Sequence[Lazy]) -> list[list[Lazy]]:
    return [[blocks[number] for number in numbers] for numbers in flow.co_located(blocks)]


def _survey(flow: Dataflow, slices: Sequence[list[Lazy]]) -> Facts:
    surveys = [flow.lazy(_survey_slice, blocks) for blocks in slices]
    facts: Facts = flow.compute([tree(flow, _add_facts, surveys)])[0]
    return facts
