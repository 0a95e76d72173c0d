"""Pairs that people gave, "same" (must-link) or "different" (cannot-link), in canonical form."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hmrf_dask.constraints.arrays import as_costs, as_pairs, canonical_pairs, encode
from hmrf_dask.types import AnyArray, FloatArray, LabelArray


class Constraints:
    """Must-links and cannot-links, each with an optional cost: canonical and immutable.

    The content does not depend on the order of the pairs, on (a, b) against (b, a), or on exact
    repeats. Pairs name row numbers, or document ids (strings, or integers with ``ids=True``).

    Parameters
    ----------
    must_link, cannot_link : array-like of shape (m, 2), optional
        Pairs of integers or of strings; both lists must name documents the same way.
    must_link_costs, cannot_link_costs : array-like of shape (m,), optional
        Cost of each pair, at least 0; NaN means the estimator's cost.
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

    __slots__ = (
        "by_id",
        "cannot_link_costs",
        "cannot_nodes",
        "documents",
        "must_link_costs",
        "must_nodes",
    )

    documents: AnyArray
    must_nodes: LabelArray
    cannot_nodes: LabelArray
    must_link_costs: FloatArray
    cannot_link_costs: FloatArray
    by_id: bool

    def __init__(
        self,
        must_link: object = None,
        cannot_link: object = None,
        *,
        must_link_costs: object = None,
        cannot_link_costs: object = None,
        ids: bool = False,
    ) -> None:
        must, cannot = as_pairs(must_link, "must_link"), as_pairs(cannot_link, "cannot_link")
        given = {
            "must": as_costs(must_link_costs, len(must), "must_link"),
            "cannot": as_costs(cannot_link_costs, len(cannot), "cannot_link"),
        }
        documents, must_codes, cannot_codes = encode(must, cannot)
        codes = {"must": must_codes, "cannot": cannot_codes}
        values: dict[str, Any] = {"documents": documents}
        for kind, costs in given.items():
            values[f"{kind}_nodes"], values[f"{kind}_link_costs"] = canonical_pairs(
                codes[kind],
                costs,
                len(documents),
                f"{kind}_link",
                lambda node: documents[node].item(),
            )
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
        parts = (
            self.must_link,
            self.cannot_link,
            self.must_link_costs,
            self.cannot_link_costs,
            self.by_id,
        )
        return _rebuild, parts

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
    def must_link(self) -> AnyArray:
        """Must-links as pairs of row numbers or ids, shape (m, 2)."""
        return self.documents[self.must_nodes]

    @property
    def cannot_link(self) -> AnyArray:
        """Cannot-links as pairs of row numbers or ids, shape (m, 2)."""
        return self.documents[self.cannot_nodes]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, hexadecimal: the same for any order of the same pairs."""
        digest = hashlib.sha256(b"hmrf_dask constraints 1\n")
        digest.update(json.dumps([self.by_id, self.documents.tolist()]).encode())
        for nodes, costs in (
            (self.must_nodes, self.must_link_costs),
            (self.cannot_nodes, self.cannot_link_costs),
        ):
            digest.update(f"\n{len(nodes)}\n".encode())
            digest.update(nodes.astype("<i4").tobytes())
            digest.update(np.where(np.isnan(costs), -1.0, costs).astype("<f8").tobytes())
        return digest.hexdigest()

    def as_text(self) -> Constraints:
        """Return the same pairs with every id written as text (integers in decimal)."""
        if self.documents.dtype.kind == "U":
            return self
        return Constraints(
            self.must_link.astype(np.str_),
            self.cannot_link.astype(np.str_),
            must_link_costs=self.must_link_costs,
            cannot_link_costs=self.cannot_link_costs,
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, ids: bool = True) -> Constraints:
        """Read a pair file: columns a, b, kind and, if wanted, weight; all others are notes.

        Parameters
        ----------
        path : str or path-like
            Name ending in ``.csv``, ``.jsonl`` or ``.parquet``; any address fsspec knows.
        ids : bool, default=True
            Integers name document ids; False: row numbers.

        Returns
        -------
        Constraints

        Notes
        -----
        A kind is must, must-link, same, 1, true or yes, or cannot, cannot-link, different, 0, false
        or no, in any case. Notes (`annotator`, `trust`, `time`, `comment` are checked) are no part
        of constraints. A file with columns id and label has known classes, which become pairs.

        CSV has no types: its ids are integers when every one of them is written exactly as Python
        writes an integer, text otherwise; `as_text` loses nothing on the way back.
        """
        from hmrf_dask.constraints.files import read_pairs

        return read_pairs(path, ids=ids)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write a pair file that `from_file` reads, of the kind that its ending tells."""
        from hmrf_dask.constraints.written import write_pairs

        write_pairs(self, path)


def _rebuild(
    must: object, cannot: object, must_costs: object, cannot_costs: object, ids: bool
) -> Constraints:
    return Constraints(
        must, cannot, must_link_costs=must_costs, cannot_link_costs=cannot_costs, ids=ids
    )
