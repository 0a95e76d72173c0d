"""Who answers questions where nobody sits at a page: known labels, a file of answers.

An oracle is a function of two documents that returns True (same), False (different) or None (don't
know). One that also has `choose(x, representatives)`, which returns the place of the one that x
belongs with, "new" for none of them, or None, is asked "which of these?" instead.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hmrf_dask.constraints.answer_files import read_pairs
from hmrf_dask.constraints.closure import connected_numbers
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.parameters import RANGES

Choice = int | Literal["new"] | None


class LabelOracle:
    """Answers by known classes, like a person who errs at times: the same question, the same way.

    Parameters
    ----------
    labels : sequence or mapping
        The class of every document, by row number or by id.
    error_rate, unknown_rate : float
        How many of the answers are wrong, or "don't know".
    difficulty : sequence or mapping, optional
        By how much both rates are multiplied for a document; of a pair it is the mean of both. 1
        without it.
    seed : int
        Other seeds err elsewhere.

    Examples
    --------
    >>> oracle = LabelOracle(["cat", "dog", "cat"])
    >>> oracle(0, 2), oracle(0, 1), LabelOracle("aab", unknown_rate=1.0)(0, 1)
    (True, False, None)
    """

    def __init__(
        self,
        labels: Sequence[Any] | Mapping[Any, Any],
        *,
        error_rate: float = 0.0,
        unknown_rate: float = 0.0,
        difficulty: Sequence[float] | Mapping[Any, float] | None = None,
        seed: int = 0,
    ) -> None:
        for name, rate in (("error_rate", error_rate), ("unknown_rate", unknown_rate)):
            if problem := RANGES["share"].problem(rate):
                raise InvalidInputError(f"{name} {problem}, got {rate!r:.60}")
        self.labels, self.difficulty, self.seed = labels, difficulty, seed
        self.error_rate, self.unknown_rate = error_rate, unknown_rate

    def __call__(self, first: Any, second: Any) -> bool | None:
        """Return whether two documents are of one class."""
        low, high = sorted((str(first), str(second)))
        hard = (self._hard(first) + self._hard(second)) / 2.0
        unknown, wrong, _ = _draws(self.seed, low, high)
        if unknown < self.unknown_rate * hard:
            return None
        return self._same(first, second) != (wrong < self.error_rate * hard)

    def _same(self, first: Any, second: Any) -> bool:
        return bool(self.labels[first] == self.labels[second])

    def _hard(self, document: Any) -> float:
        return 1.0 if self.difficulty is None else float(self.difficulty[document])


class ChoosingOracle(LabelOracle):
    """A label oracle that says which of several documents one belongs with.

    A wrong choice is any other place, or "new", as likely as each other.

    Examples
    --------
    >>> oracle = ChoosingOracle(["cat", "dog", "cat"])
    >>> oracle.choose(0, [1, 2]), oracle.choose(0, [1])
    (1, 'new')
    """

    def choose(self, document: Any, representatives: Sequence[Any]) -> Choice:
        """Return the place of a representative of the same class, or "new"."""
        hard = self._hard(document)
        shown = sorted(map(str, representatives))
        unknown, wrong, which = _draws(self.seed, str(document), *shown)
        if unknown < self.unknown_rate * hard:
            return None
        order = np.argsort([str(one) for one in representatives]).tolist()
        right = [place for place in order if self._same(document, representatives[place])][:1]
        if wrong >= self.error_rate * hard:
            return right[0] if right else "new"
        places = [place for place in order if place not in right]
        at = int(which * (len(places) + bool(right)))
        return places[at] if at < len(places) else "new"


def _draws(seed: int, *names: str) -> list[float]:
    """Return three numbers from 0 to 1 that documents and seed decide."""
    content = "\0".join((str(seed), *names)).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=24).digest()
    return [int.from_bytes(digest[at : at + 8], "big") / 2**64 for at in (0, 8, 16)]


class FileOracle:
    r"""Answers by a file of answers and what follows from them; None where it says nothing.

    Parameters
    ----------
    path : str or path
        A pair file, or one of documents and their labels.
    ids : bool, default True
        Whether integers are ids of documents, not row numbers.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "known.csv")
    ...     text = path.write_text("a,b,kind\nx,y,same\ny,z,different\n")
    ...     oracle = FileOracle(path)
    >>> oracle("x", "y"), oracle("x", "z"), oracle("x", "w")
    (True, False, None)
    """

    def __init__(self, path: str | os.PathLike[str], *, ids: bool = True) -> None:
        pairs = read_pairs(path, ids=ids)
        groups = connected_numbers(len(pairs.documents), pairs.must_nodes)
        self._group = dict(zip(pairs.documents.tolist(), groups.tolist(), strict=True))
        self._rivals = {frozenset(pair) for pair in groups[pairs.cannot_nodes].tolist()}

    def __call__(self, first: Any, second: Any) -> bool | None:
        """Return whether two documents belong together, as far as the file says."""
        if not {first, second} <= self._group.keys():
            return None
        groups = frozenset((self._group[first], self._group[second]))
        return True if len(groups) == 1 else False if groups in self._rivals else None
