"""Pairs that people gave, "same" (must-link) or "different" (cannot-link), in canonical form."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.parameters import COST_MUST_BE, LEAST_COST, RANGES, TRUST_MUST_BE
from hmrf_dask.redaction import shortened
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray


@dataclass(init=False, repr=False, eq=False, slots=True)
class Constraints:
    """Must-links and cannot-links, maybe with costs or trust of their own: canonical, immutable.

    The content does not depend on the order of the pairs, on (a, b) against (b, a), or on exact
    repeats. Pairs name row numbers, or document ids (strings, or integers with ``ids=True``).

    Parameters
    ----------
    must_link, cannot_link : array-like of shape (m, 2), optional
        Pairs of integers or of strings; both lists must name documents the same way.
    must_link_costs, cannot_link_costs : array-like of shape (m,), optional
        Cost of each pair, at least 0; NaN means the estimator's cost.
    must_link_trust, cannot_link_trust : array-like of shape (m,), optional
        Probability that each pair is right, 0 to 1; NaN means the estimator's `trust`.
    ids : bool, default=False
        Integers are document ids, not row numbers. Strings are always document ids.

    Attributes
    ----------
    documents : ndarray of shape (n,)
        The documents named, sorted, each once: int64 or strings.
    must_nodes, cannot_nodes : ndarray of shape (m, 2), int32
        The pairs as positions in `documents`, lower first, sorted, each once.
    must_link_costs, cannot_link_costs : ndarray of shape (m,), float64
        Cost of each pair, NaN for the estimator's.
    must_link_trust, cannot_link_trust : ndarray of shape (m,), float64
        Probability that each pair is right, NaN for the estimator's.
    by_id : bool
        Whether the pairs name document ids.

    Examples
    --------
    >>> pairs = Constraints(must_link=[("b", "a"), ("a", "b")], cannot_link=[("c", "a")])
    >>> pairs
    Constraints(1 must-link, 1 cannot-link, 3 documents by id)
    >>> pairs.must_link.tolist()
    [['a', 'b']]
    """

    documents: AnyArray
    must_nodes: LabelArray
    cannot_nodes: LabelArray
    must_link_costs: FloatArray
    cannot_link_costs: FloatArray
    must_link_trust: FloatArray
    cannot_link_trust: FloatArray
    by_id: bool

    def __init__(
        self,
        must_link: object = None,
        cannot_link: object = None,
        *,
        must_link_costs: object = None,
        cannot_link_costs: object = None,
        must_link_trust: object = None,
        cannot_link_trust: object = None,
        ids: bool = False,
    ) -> None:
        must, cannot = _as_pairs(must_link, "must_link"), _as_pairs(cannot_link, "cannot_link")
        documents, must_codes, cannot_codes = _encode(must, cannot)
        values: dict[str, Any] = {"documents": documents}
        for kind, codes, costs, trust in (
            ("must", must_codes, must_link_costs, must_link_trust),
            ("cannot", cannot_codes, cannot_link_costs, cannot_link_trust),
        ):
            name = f"{kind}_link"
            given = PairValues(
                _as_costs(costs, len(codes), name), _as_trust(trust, len(codes), name)
            )
            nodes, given = canonical_pairs(
                codes, given, len(documents), name, lambda node: documents[node].item()
            )
            values |= {f"{kind}_nodes": nodes, f"{name}_costs": given.costs}
            values[f"{name}_trust"] = given.trust
        for array in values.values():
            array.flags.writeable = False
        values["by_id"] = bool(ids) or documents.dtype.kind == "U"
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __setattr__(self, field: str, value: object) -> None:
        """Refuse: constraints are immutable, and their fingerprint stands in commits."""
        raise AttributeError(f"Constraints are immutable, cannot set {field!r}: make new ones")

    def __reduce__(self) -> tuple[Callable[..., Constraints], tuple[Any, ...]]:
        """Rebuild through the constructor, so that the arrays stay read-only after pickling."""
        return _rebuilt, (self.must_link, self.cannot_link, self.values(), self.by_id)

    def values(self) -> dict[str, Any]:
        """Return costs and trust as arguments for constraints of the same pairs.

        Examples
        --------
        >>> pairs = Constraints([(0, 1)], must_link_trust=[0.9])
        >>> Constraints(pairs.must_link, **pairs.values()).must_link_trust.tolist()
        [0.9]
        """
        return {name: getattr(self, name) for name in _VALUES}

    def __len__(self) -> int:
        """Count the pairs of both kinds."""
        return len(self.must_nodes) + len(self.cannot_nodes)

    def __repr__(self) -> str:
        """Say how many pairs of each kind there are and how they name documents."""
        named = "id" if self.by_id else "row number"
        return (
            f"Constraints({len(self.must_nodes)} must-link, {len(self.cannot_nodes)} cannot-link, "
            f"{len(self.documents)} documents by {named})"
        )

    @property
    def is_uncertain(self) -> bool:
        """Whether some pairs have trust of their own that is below 1.

        Examples
        --------
        >>> Constraints([(0, 1)], must_link_trust=[0.9]).is_uncertain
        True
        """
        own = (self.must_link_trust, self.cannot_link_trust)
        return any(bool((trust < 1.0).any()) for trust in own)

    @property
    def must_link(self) -> AnyArray:
        """Must-links as pairs of row numbers or ids, shape (m, 2).

        Examples
        --------
        >>> Constraints([("b", "a")]).must_link.tolist()
        [['a', 'b']]
        """
        return self.documents[self.must_nodes]

    @property
    def cannot_link(self) -> AnyArray:
        """Cannot-links as pairs of row numbers or ids, shape (m, 2).

        Examples
        --------
        >>> Constraints(cannot_link=[(7, 4)]).cannot_link.tolist()
        [[4, 7]]
        """
        return self.documents[self.cannot_nodes]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, hexadecimal: the same for any order of the same pairs.

        Examples
        --------
        >>> Constraints([(0, 1), (2, 3)]).fingerprint == Constraints([(3, 2), (1, 0)]).fingerprint
        True
        """
        digest = hashlib.sha256(b"hmrf_dask constraints 1\n")
        digest.update(json.dumps([self.by_id, self.documents.tolist()]).encode())
        for kind in ("must", "cannot"):
            nodes, costs = getattr(self, f"{kind}_nodes"), getattr(self, f"{kind}_link_costs")
            digest.update(f"\n{len(nodes)}\n".encode())
            digest.update(nodes.astype("<i4").tobytes())
            digest.update(np.where(np.isnan(costs), -1.0, costs).astype("<f8").tobytes())
        trust = np.concatenate([self.must_link_trust, self.cannot_link_trust])
        if not np.isnan(trust).all():  # pairs without it are what they were before there was any
            digest.update(b"\ntrust\n")
            digest.update(np.where(np.isnan(trust), -1.0, trust).astype("<f8").tobytes())
        return digest.hexdigest()

    def as_text(self) -> Constraints:
        """Return the same pairs with every id written as text (integers in decimal).

        Examples
        --------
        >>> Constraints([(3, 1)]).as_text().must_link.tolist()
        [['1', '3']]
        """
        if self.documents.dtype.kind == "U":
            return self
        return Constraints(
            self.must_link.astype(np.str_),
            self.cannot_link.astype(np.str_),
            **self.values(),
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, ids: bool = True) -> Constraints:
        r"""Read a pair file: columns a, b, kind and, if wanted, weight and trust; others are notes.

        Parameters
        ----------
        path : str or path-like
            Name ending in ``.csv``, ``.jsonl`` or ``.parquet``; any address fsspec knows.
        ids : bool, default=True
            Integers name document ids; False: row numbers.

        Notes
        -----
        A kind is must, must-link, same, 1, true or yes, or cannot, cannot-link, different, 0, false
        or no, in any case; trust is the probability that the answer is right. Notes (`annotator`,
        `time`, `comment` are checked) are no part of constraints. A file with columns id and label
        has known classes, which become pairs that are certain.

        CSV has no types: its ids are integers when every one of them is written exactly as Python
        writes an integer, text otherwise; `as_text` loses nothing on the way back.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.csv")
        ...     text = path.write_text("a,b,kind\n1,2,same\n2,3,different\n")
        ...     pairs = Constraints.from_file(path)
        >>> pairs.must_link.tolist(), pairs.cannot_link.tolist()
        ([[1, 2]], [[2, 3]])
        """
        from hmrf_dask.constraints.answer_files import read_pairs

        return read_pairs(path, ids=ids)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write a pair file that `from_file` reads, of the kind that its ending says.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Constraints([("b", "a")]).to_file(Path(folder, "pairs.csv"))
        ...     Path(folder, "pairs.csv").read_text().split()
        ['a,b,kind,weight,trust', 'a,b,must,,']
        """
        from hmrf_dask.constraints.answer_files import write_pairs

        write_pairs(self, path)


SHOWN = 5  # how many offenders an error names
_VALUES = ("must_link_costs", "cannot_link_costs", "must_link_trust", "cannot_link_trust")


def _rebuilt(must: AnyArray, cannot: AnyArray, values: Any, by_id: bool) -> Constraints:
    """Return constraints that were pickled: through the constructor, so arrays stay read-only."""
    return Constraints(must, cannot, **values, ids=by_id)


class PairValues(NamedTuple):
    """What may be given with pairs, NaN where the estimator's is meant."""

    costs: FloatArray
    trust: FloatArray

    def chosen(self, places: IntArray | BoolArray) -> PairValues:
        """Return those of some of the pairs."""
        return PairValues(*(np.ascontiguousarray(values[places]) for values in self))


def canonical_pairs(
    pairs: IntArray,
    values: PairValues,
    n_nodes: int,
    kind: str,
    names: Callable[[int], object],
) -> tuple[LabelArray, PairValues]:
    """Order pairs (lower, higher), sort them and fold repeats; refuse self-pairs and two costs.

    Pairs are node indexes in 0..n_nodes-1, shape (m, 2). Errors say `kind` of the pairs and the
    `names` of nodes.

    Examples
    --------
    >>> values = PairValues(np.array([2.0, 1.0, 2.0]), np.full(3, np.nan))
    >>> pairs = np.array([[2, 0], [0, 1], [0, 2]])
    >>> nodes, values = canonical_pairs(pairs, values, 3, "must_link", int)
    >>> nodes.tolist(), values.costs.tolist()
    ([[0, 1], [0, 2]], [1.0, 2.0])
    """
    lower, higher = pairs.min(axis=1), pairs.max(axis=1)
    if len(pairs) and (lower.min() < 0 or higher.max() >= n_nodes):
        raise InvalidInputError(
            f"{kind} pairs must be node indexes in 0..{n_nodes - 1}, "
            f"got {int(lower.min())}..{int(higher.max())}: resolve the documents first"
        )
    alone = np.flatnonzero(lower == higher)
    if len(alone):
        shown = _listed(np.unique(lower[alone]), lambda node: repr(names(node)))
        raise InvalidInputError(
            f"{kind} pairs must join two different documents, got pairs of a document with "
            f"itself: {shown}: remove them"
        )
    keys = lower.astype(np.int64) * n_nodes + higher
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values.chosen(order)
    fresh = np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)]
    repeats = keys, fresh, n_nodes
    for word, given in zip(("cost", "trust"), values, strict=True):
        _refuse_two(word, given, repeats, kind, names)
    keys = keys[fresh]
    nodes = np.stack([keys // max(n_nodes, 1), keys % max(n_nodes, 1)], axis=1).astype(np.int32)
    return nodes, values.chosen(fresh)


def _refuse_two(
    word: str,
    values: FloatArray,
    repeats: tuple[IntArray, BoolArray, int],
    kind: str,
    names: Callable[[int], object],
) -> None:
    """Refuse a pair that is given with two different costs, or trusts (NaN is one of them)."""
    keys, fresh, n_nodes = repeats
    same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    clash = np.unique(keys[1:][~fresh[1:] & ~same])
    if not len(clash):
        return

    def pair(key: int) -> str:
        """Return both names of a pair and the values that were given for it."""
        found = sorted(set(np.nan_to_num(values[keys == key], nan=-1.0).tolist()))
        shown = " and ".join("the estimator's" if value < 0 else f"{value:g}" for value in found)
        return f"{names(key // n_nodes)!r}, {names(key % n_nodes)!r} ({shown})"

    raise InvalidInputError(
        f"a {kind} pair must have one {word}, got two different ones for {_listed(clash, pair)}: "
        "keep one of them"
    )


def _listed(offenders: IntArray, text_of: Callable[[int], str]) -> str:
    """Name up to five offenders and say how many there are in all."""
    shown = ", ".join(map(text_of, offenders[:SHOWN].tolist()))
    return f"{shown}, … ({len(offenders)} in all)" if len(offenders) > SHOWN else shown


def _as_pairs(value: object, kind: str) -> AnyArray:
    """Return an (m, 2) array of int64 or strings; whatever is neither is refused."""
    if value is None:
        return np.empty((0, 2), np.int64)
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInputError(f"{kind} must not be masked, got a masked array; leave pairs out")
    # Lists go through objects: np.asarray([("a", 1)]) would silently write the integer as text.
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)
    except ValueError as error:
        raise InvalidInputError(
            f"{kind} must be an array of pairs of shape (m, 2), got rows of different lengths"
        ) from error
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


def _from_objects(array: AnyArray, kind: str) -> AnyArray:
    """Turn objects into strings when all are strings, into int64 when all are integers."""
    types = {type(value) for value in array.ravel()}
    if all(issubclass(value_type, str) for value_type in types):
        return array.astype(np.str_)
    if bool not in types and all(issubclass(each, int | np.integer) for each in types):
        try:
            return array.astype(np.int64)
        except OverflowError as error:
            raise InvalidInputError(
                f"{kind} must name documents with integers below 2**63"
            ) from error
    names = ", ".join(sorted(value_type.__name__ for value_type in types))
    raise InvalidInputError(
        f"{kind} must name documents with integers only or with strings only, got {names}"
    )


def _as_costs(value: object, n_pairs: int, kind: str) -> FloatArray:
    """Return float64 costs, NaN where the estimator's cost is meant; -0.0 becomes 0.0."""
    costs = _as_numbers(value, n_pairs, f"{kind}_costs", "cost")
    bad = np.flatnonzero(((costs < LEAST_COST) | (costs > RANGES["cost"].most)) & (costs != 0))
    _refuse_values(costs, bad, f"{kind}_costs {COST_MUST_BE}")
    return costs


def _as_trust(value: object, n_pairs: int, kind: str) -> FloatArray:
    """Return float64 probabilities, NaN where the estimator's trust is meant."""
    trust = _as_numbers(value, n_pairs, f"{kind}_trust", "probability")
    bad = np.flatnonzero((trust < 0.0) | (trust > 1.0))
    _refuse_values(trust, bad, f"{kind}_trust {TRUST_MUST_BE}")
    return trust


def _as_numbers(value: object, n_pairs: int, name: str, word: str) -> FloatArray:
    """Return a number of each pair, NaN for all of them without any."""
    if value is None:
        return np.full(n_pairs, np.nan)
    try:
        raw = np.asarray(value)
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("a mask would be lost")
        objects = raw.flat if raw.dtype.kind == "O" else ()
        if raw.dtype.kind not in "iufO" or any(isinstance(one, bool | str) for one in objects):
            raise TypeError("no numbers")
        numbers = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{name} must be numbers, got {shortened(value)}") from error
    if numbers.shape != (n_pairs,):
        raise InvalidInputError(
            f"{name} must have shape ({n_pairs},), one {word} per pair, got shape {numbers.shape}"
        )
    return numbers + 0.0


def _refuse_values(values: FloatArray, bad: IntArray, problem: str) -> None:
    if len(bad):
        shown = _listed(bad, lambda row: f"{values[row]:g} for pair {row}")
        raise InvalidInputError(f"{problem} (NaN for the estimator's), got {shown}")


def _encode(must: AnyArray, cannot: AnyArray) -> tuple[AnyArray, IntArray, IntArray]:
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
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
