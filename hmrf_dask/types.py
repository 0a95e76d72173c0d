"""Names for the array types that signatures share, and values that know how large they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
RowArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
LabelArray = npt.NDArray[np.int32]
KeyArray = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]
# The types of their elements; what an alias of numpy is made of differs from release to release.
DTYPES = {
    FloatArray: np.float64,
    RowArray: np.float32,
    IntArray: np.int64,
    LabelArray: np.int32,
    KeyArray: np.uint64,
    BoolArray: np.bool_,
}


class Sized:
    """A value whose size is that of the arrays in it: Dask places, moves and spills by that.

    Without this a dataclass of arrays counts as some fifty bytes.
    """

    __slots__ = ()

    def __sizeof__(self) -> int:
        """Return the bytes of the object and of all that `sized_values` returns."""
        return super().__sizeof__() + sum(map(bytes_of, self.sized_values()))

    def sized_values(self) -> Iterable[Any]:
        """Return what counts: the fields of a dataclass that its constructor takes."""
        return [getattr(self, one.name) for one in fields(self) if one.init]  # type: ignore[arg-type]


def bytes_of(value: Any) -> int:
    """Return the bytes of an array, a `Sized` value, a container of such, or another object."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(bytes_of, (*value.keys(), *value.values())))
    if isinstance(value, tuple | list):
        return sys.getsizeof(value) + sum(map(bytes_of, value))
    array_bytes = getattr(value, "nbytes", None)  # of a view Python counts no data
    return sys.getsizeof(value) if array_bytes is None else int(array_bytes)
