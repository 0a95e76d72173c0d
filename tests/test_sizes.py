"""Sizes that Dask places, moves and spills by: those of arrays, wherever in a value they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dask.sizeof import sizeof

from hmrf_dask.checkpoints.records import LabelsFile
from hmrf_dask.constraints.closure import ClosureRules, ConstraintGraph, CostedPairs, build_graph
from hmrf_dask.distortions.cosine import Cosine
from hmrf_dask.kernels.sketches import Basis
from hmrf_dask.kernels.sums import Accumulator, Sums
from hmrf_dask.measures.contingency import Contingency
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import RowTerms, Step
from hmrf_dask.tasks.rounds import Members, Piece
from hmrf_dask.text.counts import Counted
from hmrf_dask.types import bytes_of

SMALL = 1500  # bytes of everything that is no array, in any of these
N = 10_000


def integers(n: int = N) -> Any:
    return np.arange(n)


def labels(n: int = N) -> Any:
    return np.zeros(n, np.int32)


def sums() -> Sums:
    return Sums(np.ones((10, 1001), np.int64), integers(0), integers(0), integers(10), 1001)


def model() -> Model:
    return Model(Cosine(), np.ones(1000), np.ones((10, 1000)))


def accumulator() -> Accumulator:
    total = Accumulator(10, 1001)
    total.join(sums())
    return total


def piece() -> Piece:
    groups = Members(labels(30), integers(20), labels(30))
    return Piece(
        0, 0, N, labels(), integers(), labels(), labels(), labels(), groups, groups,
        seen_by={1: labels(70), 2: labels(30)},
    )  # fmt: skip


def chain() -> ConstraintGraph:
    """Return cannot-links between neighbours: one component, every document a group of its own."""
    ends = np.column_stack([integers(N - 1), 1 + integers(N - 1)])
    must = CostedPairs(np.zeros((0, 2), np.int64))
    return build_graph(N, must, CostedPairs(ends), ClosureRules(closure=False))


def step(n_files: int) -> Step:
    files = tuple(
        LabelsFile(
            f"labels/00001/rows-{n:05d}-0123456789abcdef.parquet", "0" * 64, 0, 1, f"rows-{n}"
        )
        for n in range(n_files)
    )
    return Step(files, 0, None, sums())


SIZES = {
    "rows": (lambda: RowBlock.from_array(np.ones((N, 3))), N * (3 * 4 + 4 + 8 + 8) + 4),
    "rows of a larger array": (
        lambda: RowBlock.from_array(np.ones((N, 3))).take(np.arange(0, N, 2)),
        N // 2 * (3 * 4 + 4 + 8 + 8) + 4,
    ),
    "sums": (sums, 10 * 1001 * 8),
    "sums that are being added": (accumulator, 10 * 1001 * 8),
    "a step": (lambda: step(0), 10 * 1001 * 8),
    "a model, with its table": (model, (1 + 3 * 10) * 1000 * 8),
    "a basis, with its layout": (lambda: Basis(np.ones((N, 2))), 2 * N * 2 * 8),
    "terms of rows": (lambda: RowTerms((np.ones(N), np.ones(N))), 2 * N * 8),
    "a piece": (piece, N * (4 * 4 + 8) + 2 * (60 * 4 + 20 * 8) + 100 * 4),
    "a graph of pairs": (chain, N * (3 * 4 + 1) + 1 + (N - 1) * (2 * 4 + 8)),
    "a contingency table": (
        lambda: Contingency(integers(5), integers(5), integers(), integers(), integers()),
        3 * N * 8 + 80,
    ),
    "counted words": (
        lambda: Counted(labels(), labels(), labels(), pa.array(["moon"] * N)),
        3 * N * 4 + N * (4 + 4),
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_value_is_as_large_as_its_arrays(name: str) -> None:
    make, arrays = SIZES[name]
    assert arrays <= sizeof(make()) <= arrays + SMALL


def test_names_of_files_count() -> None:
    each = (sizeof(step(1000)) - sizeof(step(0))) / 1000
    assert 250 < each < 600


def test_containers_are_as_large_as_what_they_hold() -> None:
    array = np.zeros(N)[: N // 2]  # of which Python counts the header alone
    for value in ([array], (array, None), {"one": array}, {array.nbytes: [[array]]}):
        assert array.nbytes <= bytes_of(value) <= array.nbytes + SMALL
