"""Penalties of pairs of rows: φ and its complement in float64, and what φ adds to each feature.

Three forms: `INNER` φ = 1 − z·z', `SQUARED` φ = Σ a (x − y)², `DIVERGENCE` φ = D_IM (KDD eq. 13).
A row's summand is z_m = √a_m (factor · x_m + extra). The rows of `INNER` are centred or `extra` is
nought, so z·z' is corrected by one column: Σ a factor x factor' x' − (Σ a) extra extra'.

Both ends enter every operation alike: (i, j) and (j, i) give the same bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from hmrf_dask.kernels.distances import Terms
from hmrf_dask.kernels.links import frozen
from hmrf_dask.kernels.quantised import Quantised, pair_integers, quantise
from hmrf_dask.kernels.sides import Side, next_feature, side
from hmrf_dask.types import FloatArray, IntArray, LabelArray
