"""Which ids of a file were there before: 16 bytes a document, whatever the ids."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]


class SeenIds:
    """Hashes of ids (128 bits: no two ids share one) in sorted runs that double in size."""

    def __init__(self) -> None:
        self._runs: list[Keys] = []  # each (n, 2), sorted by the first half

    def add(self, ids: list[str]) -> list[int]:
        """Take ids in and return the positions of those that were there before."""
        if not ids:
            return []
        keys = _keys(ids)
        repeated = set()
        for run in self._runs:
            places = np.searchsorted(run[:, 0], keys[:, 0])
            inside = np.minimum(places, len(run) - 1)
            for position in np.flatnonzero(run[inside, 0] == keys[:, 0]).tolist():
                if _holds(run, int(places[position]), keys[position]):
                    repeated.add(position)
        if len(set(ids)) < len(ids):
            first: set[str] = set()
            for position, id_ in enumerate(ids):
                if id_ in first:
                    repeated.add(position)
                first.add(id_)
        self._insert(keys)
        return sorted(repeated)

    def _insert(self, keys: Keys) -> None:
        self._runs.append(_sorted(keys))
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            last = self._runs.pop()
            self._runs[-1] = _sorted(np.concatenate([self._runs[-1], last]))


def _keys(ids: list[str]) -> Keys:
    digests = b"".join([blake2b(id_.encode(), digest_size=16).digest() for id_ in ids])
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


def _sorted(keys: Keys) -> Keys:
    return keys[np.argsort(keys[:, 0], kind="stable")]


def _holds(run: Keys, place: int, key: Keys) -> bool:
    """Tell whether a run has a key, looking through all whose first half is the same."""
    while place < len(run) and run[place, 0] == key[0]:
        if run[place, 1] == key[1]:
            return True
        place += 1
    return False
