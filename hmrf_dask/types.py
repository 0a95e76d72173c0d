"""Names for the array types that signatures share."""

from __future__ import annotations

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
