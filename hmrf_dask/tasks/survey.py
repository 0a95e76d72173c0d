"""One survey of all rows before the loop: what is in them, which rows ids name, what they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.rows.block import RowBlock, check_finite, fingerprint
from hmrf_dask.rows.files import Blocks
from hmrf_dask.rows.survey import survey
from hmrf_dask.types import AnyArray, IntArray, RowArray


@dataclass(frozen=True)
class Facts:
    """What one look at a partition tells; facts of partitions add up to those of the corpus."""

    n_rows: int
    minimum: RowArray  # by feature
    maximum: RowArray
    mass: IntArray  # exact sum, limbs
    largest_mass: float
    n_zero: int
    zero_rows: tuple[Any, ...]  # a few ids
    content: int
    order: int
    n_values: int
    nbytes: int
    largest_block: int  # bytes
    longest_block: int  # rows
    trouble: str | None


def survey_block(
    block: RowBlock,
    first_row: int,
    distortion: Distortion,
    has_ids: bool,
    fingerprinted: bool = True,
) -> Facts:
    """Return the facts of a partition; what is wrong with it comes back as words.

    Without a fingerprint `content` and `order` are 0.
    """
    found = survey(block)
    finite = np.isfinite(found.mass)
    trouble = None
    try:
        if not finite.all():
            check_finite(block)  # names the rows
        distortion.check(block)
    except InvalidInputError as error:
        trouble = str(error)
    zero = np.flatnonzero(found.mass == 0)
    content, order = fingerprint(block, first_row, with_ids=has_ids) if fingerprinted else (0, 0)
    return Facts(
        block.n_rows, found.minimum, found.maximum,
        exact_sum(np.where(finite, found.total, 0.0)), float(found.mass.max(initial=0.0)),
        len(zero), tuple(block.ids[zero[:5]].tolist()), content, order,
        len(block.values), block.nbytes, block.nbytes,
        block.n_rows, trouble,
    )  # fmt: skip


def add_facts(parts: list[Facts]) -> Facts:
    """Return the facts of several partitions together."""
    troubles = [one.trouble for one in parts if one.trouble is not None]
    return Facts(
        sum(one.n_rows for one in parts),
        np.min([one.minimum for one in parts], axis=0),
        np.max([one.maximum for one in parts], axis=0),
        np.sum([one.mass for one in parts], axis=0, dtype=np.int64),
        max(one.largest_mass for one in parts),
        sum(one.n_zero for one in parts),
        tuple(row for one in parts for row in one.zero_rows)[:5],
        sum(one.content for one in parts) % 2**64,
        sum(one.order for one in parts) % 2**64,
        sum(one.n_values for one in parts),
        sum(one.nbytes for one in parts),
        max(one.largest_block for one in parts),
        max(one.longest_block for one in parts),
        troubles[0] if troubles else None,
    )


def survey_slice(
    blocks: Blocks,
    first_rows: list[int],
    distortion: Distortion,
    has_ids: bool,
    fingerprinted: bool,
) -> Facts:
    """Return the facts of some partitions together, added as they come: they hold d numbers."""
    looks = (
        survey_block(block, first, distortion, has_ids, fingerprinted)
        for block, first in zip(blocks, first_rows, strict=True)
    )
    return reduce(lambda facts, look: add_facts([facts, look]), looks)


def find_ids(block: RowBlock, wanted: AnyArray) -> tuple[IntArray, IntArray]:
    """Return which of the sorted `wanted` ids a partition holds, and at which of its rows."""
    if not block.n_rows or not len(wanted):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(wanted, block.ids), len(wanted) - 1)
    rows = np.flatnonzero(wanted[place] == block.ids)
    return place[rows], rows


def describe_rows(block: RowBlock, rows: IntArray) -> tuple[AnyArray, IntArray]:
    """Return ids and numbers of entries of some rows."""
    return block.ids[rows], np.diff(block.indptr)[rows].astype(np.int64)


def first_rows(block: RowBlock, most: int = 8) -> RowBlock:
    """Return the first rows of a partition."""
    return block.take(np.arange(min(block.n_rows, most)))
