"""Arrays of pairs and of their costs: checked, encoded, and brought into canonical order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.limits import COST_MUST_BE, LEAST_COST, RANGES
from hmrf_dask.redaction import shortened
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

SHOWN = 5  # how many offenders an error names


def canonical_pairs(
    pairs: IntArray,
    costs: FloatArray,
    n_nodes: int,
    kind: str,
    names: Callable[[int], object],
) -> tuple[LabelArray, FloatArray]:
    """Order pairs (lower, higher), sort them and fold repeats; refuse self-pairs and two costs.

    Parameters
    ----------
    pairs : ndarray of shape (m, 2)
        Node indexes in 0..n_nodes-1.
    costs : ndarray of shape (m,), float64
        NaN for the estimator's cost.
    n_nodes : int
        Number of nodes.
    kind : str
        What to call the pairs in an error, ``"must_link"`` or ``"cannot_link"``.
    names : callable
        Document name of a node, for errors.

    Returns
    -------
    pairs : ndarray of shape (k, 2), int32
    costs : ndarray of shape (k,), float64
    """
    lower, higher = pairs.min(axis=1), pairs.max(axis=1)
    if len(pairs) and (lower.min() < 0 or higher.max() >= n_nodes):
        raise InvalidInputError(
            f"{kind} pairs must be node indexes in 0..{n_nodes - 1}, "
            f"got {int(lower.min())}..{int(higher.max())}: resolve the documents first"
        )
    alone = np.flatnonzero(lower == higher)
    if len(alone):
        shown = listed(np.unique(lower[alone]), names)
        raise InvalidInputError(
            f"{kind} pairs must join two different documents, got pairs of a document with "
            f"itself: {shown}: remove them"
        )
    keys = lower.astype(np.int64) * n_nodes + higher
    order = np.argsort(keys, kind="stable")
    keys, costs = keys[order], costs[order]
    fresh = np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)]
    _refuse_two_costs(keys, costs, fresh, n_nodes, kind, names)
    keys = keys[fresh]
    nodes = np.stack([keys // max(n_nodes, 1), keys % max(n_nodes, 1)], axis=1).astype(np.int32)
    return nodes, np.ascontiguousarray(costs[fresh])


def _refuse_two_costs(
    keys: IntArray,
    costs: FloatArray,
    fresh: BoolArray,
    n_nodes: int,
    kind: str,
    names: Callable[[int], object],
) -> None:
    """Refuse a pair that is given with two different costs (NaN, the estimator's, is one)."""
    same = (costs[1:] == costs[:-1]) | (np.isnan(costs[1:]) & np.isnan(costs[:-1]))
    clash = np.unique(keys[1:][~fresh[1:] & ~same])
    if not len(clash):
        return

    def pair(key: int) -> object:
        given = sorted(set(np.nan_to_num(costs[keys == key], nan=-1.0).tolist()))
        shown = " and ".join("the estimator's" if cost < 0 else f"{cost:g}" for cost in given)
        return Verbatim(f"{names(key // n_nodes)!r}, {names(key % n_nodes)!r} ({shown})")

    raise InvalidInputError(
        f"a {kind} pair must have one cost, got two different ones for {listed(clash, pair)}: "
        "keep one of them"
    )


class Verbatim:
    """Text that errors show without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def listed(offenders: IntArray, names: Callable[[int], object]) -> str:
    """Name up to five offenders and say how many there are in all."""
    shown = ", ".join(repr(names(int(one))) for one in offenders[:SHOWN])
    return f"{shown}, … ({len(offenders)} in all)" if len(offenders) > SHOWN else shown


def as_pairs(given: object, kind: str) -> AnyArray:
    """Return an (m, 2) array of int64 or strings; whatever is neither is refused."""
    if given is None:
        return np.empty((0, 2), np.int64)
    if isinstance(given, np.ma.MaskedArray):
        raise InvalidInputError(f"{kind} must not be masked, got a masked array; leave pairs out")
    # Lists go through objects: np.asarray([("a", 1)]) would silently write the integer as text.
    array = given if isinstance(given, np.ndarray) else _as_objects(given, kind)
    if array.size == 0 and array.shape in ((0,), (0, 2)):
        return np.empty((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise InvalidInputError(
            f"{kind} must be an array of pairs of shape (m, 2), got shape {array.shape}"
        )
    if array.dtype.kind == "O":
        return _from_objects(array, kind)
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
            raise InvalidInputError(f"{kind} must name documents with integers below 2**63")
        return array.astype(np.int64)
    raise InvalidInputError(
        f"{kind} must name documents with integers or strings, got dtype {array.dtype}: "
        "convert the columns"
    )


def _as_objects(given: object, kind: str) -> AnyArray:
    try:
        return np.asarray(given, dtype=object)
    except ValueError as error:
        raise InvalidInputError(
            f"{kind} must be an array of pairs of shape (m, 2), got rows of different lengths"
        ) from error


def _from_objects(array: AnyArray, kind: str) -> AnyArray:
    """Turn objects into strings when all are strings, into int64 when all are integers."""
    types = {type(value) for value in array.ravel()}
    if all(issubclass(one, str) for one in types):
        return array.astype(np.str_)
    if all(issubclass(one, int | np.integer) and one is not bool for one in types):
        try:
            return array.astype(np.int64)
        except OverflowError as error:
            raise InvalidInputError(
                f"{kind} must name documents with integers below 2**63"
            ) from error
    names = ", ".join(sorted(one.__name__ for one in types))
    raise InvalidInputError(
        f"{kind} must name documents with integers only or with strings only, got {names}"
    )


def as_costs(given: object, n_pairs: int, kind: str) -> FloatArray:
    """Return float64 costs, NaN where the estimator's cost is meant; -0.0 becomes 0.0."""
    if given is None:
        return np.full(n_pairs, np.nan)
    try:
        raw = np.asarray(given)
        if isinstance(given, np.ma.MaskedArray):
            raise TypeError("a mask would be lost")
        objects = raw.flat if raw.dtype.kind == "O" else ()
        if raw.dtype.kind not in "iufO" or any(isinstance(one, bool | str) for one in objects):
            raise TypeError("no numbers")
        costs = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{kind}_costs must be numbers, got {shortened(given)}") from error
    if costs.shape != (n_pairs,):
        raise InvalidInputError(
            f"{kind}_costs must have shape ({n_pairs},), one cost per pair, got shape {costs.shape}"
        )
    refuse_bad_costs(costs, kind, lambda row: Verbatim(f"{costs[row]:g} for pair {row}"))
    return costs + 0.0


def refuse_bad_costs(costs: FloatArray, kind: str, names: Callable[[int], object]) -> None:
    """Refuse costs out of range, naming their pairs (NaN is the estimator's cost)."""
    out = (costs < LEAST_COST) | (costs > RANGES["must_link_cost"].most)
    bad = np.flatnonzero(out & (costs != 0))
    if len(bad):
        raise InvalidInputError(
            f"{kind}_costs {COST_MUST_BE} (NaN for the estimator's), got {listed(bad, names)}"
        )


def encode(must: AnyArray, cannot: AnyArray) -> tuple[AnyArray, IntArray, IntArray]:
    """Return the documents named, sorted, and both lists as positions in them."""
    lists = [pairs for pairs in (must, cannot) if len(pairs)]
    if len({pairs.dtype.kind for pairs in lists}) > 1:
        raise InvalidInputError(
            "must_link and cannot_link must name documents the same way, "
            "got integers in one and strings in the other"
        )
    flat = np.concatenate([pairs.ravel() for pairs in lists]) if lists else must.ravel()
    documents, codes = np.unique(flat, return_inverse=True)
    split = must.size
    return documents, codes[:split].reshape(-1, 2), codes[split:].reshape(-1, 2)


def freeze_arrays(record: Any) -> None:
    """Make the arrays of a dataclass read-only."""
    for one in fields(record):
        value = getattr(record, one.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
