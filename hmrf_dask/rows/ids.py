"""Document ids: strings or integers of any array type, and the keys that random choices use."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.types import AnyArray, KeyArray


def as_ids(ids: ArrayLike | None, n_rows: int, first_row: int = 0) -> AnyArray:
    """Return ids as an int64 or str array; without ids the row numbers from `first_row` on.

    Parameters
    ----------
    ids : array-like of str or int, shape (n_rows,), or None
    n_rows : int
    first_row : int

    Returns
    -------
    int64 or str array, shape (n_rows,)
    """
    if ids is None:
        return np.arange(first_row, first_row + n_rows, dtype=np.int64)
    array = ids if isinstance(ids, np.ndarray) else np.asarray(ids, dtype=object)
    if array.shape != (n_rows,):
        raise InvalidInputError(
            f"ids must be one for each of the {n_rows} rows, got shape {array.shape}; "
            "give a list or a 1-D array as long as the rows"
        )
    if array.dtype.kind in "OT":
        array = _ids_of_objects(array.tolist(), first_row)
    if array.dtype.kind == "u" and np.any(array > np.iinfo(np.int64).max):
        raise InvalidInputError("integer ids must be below 2**63; give them as strings")
    if array.dtype.kind not in "iuU":
        raise InvalidInputError(
            f"ids must be strings or integers, got dtype {array.dtype}; use astype(str)"
        )
    return array if array.dtype.kind == "U" else array.astype(np.int64, copy=False)


def hash_ids(ids: AnyArray) -> KeyArray:
    """Return blake2b-64 of string ids (of their UTF-8, little endian), integer ids as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask.rows.ids import hash_ids
    >>> hash_ids(np.array([7, 3]))
    array([7, 3], dtype=uint64)
    """
    if ids.dtype.kind != "U":
        return ids.astype(np.int64, copy=False).view(np.uint64)
    try:
        digests = [blake2b(id_.encode(), digest_size=8).digest() for id_ in ids.tolist()]
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"ids must be valid Unicode, got {error.object!r} with a lone surrogate; mend this id"
        ) from None
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64, copy=False)


def _ids_of_objects(ids: list[Any], first_row: int) -> AnyArray:
    wanted: tuple[type, ...] = (str,) if ids and isinstance(ids[0], str) else (int, np.integer)
    for position, id_ in enumerate(ids):
        if not isinstance(id_, wanted) or isinstance(id_, bool):
            raise InvalidInputError(
                f"ids must be all strings or all integers, got {id_!r} in row "
                f"{first_row + position}; convert them with astype(str)"
            )
        if isinstance(id_, str) and id_.endswith("\0"):
            raise InvalidInputError(f"ids must not end in a NUL character, got {id_!r}; mend it")
    if wanted == (str,):
        return np.array(ids, dtype=np.str_)
    try:
        return np.array(ids, dtype=np.int64)
    except OverflowError:
        raise InvalidInputError("integer ids must be below 2**63; give them as strings") from None


def id_slices(ids: ArrayLike, offsets: Sequence[int]) -> list[AnyArray]:
    """Cut ids that lie in memory at the partitions' bounds."""
    array = ids if isinstance(ids, np.ndarray) else np.asarray(ids, dtype=object)
    if array.shape != (offsets[-1],):
        raise InvalidInputError(
            f"ids must be one for each of the {offsets[-1]} rows, got shape {array.shape}; "
            "give a list or a 1-D array as long as the rows"
        )
    slices = [as_ids(array[start:stop], stop - start, start) for start, stop in pairwise(offsets)]
    if len({part.dtype.kind for part in slices if part.size}) > 1:
        raise InvalidInputError(
            "ids must be all strings or all integers, got both; convert them with astype(str)"
        )
    return slices
