"""The integer scale of ICM, worked out before it runs so that no sum of a row can overflow.

Pair costs and distortions of linked rows are integers in one unit; then every accepted move lowers
J by at least one unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.base import Distortion
from hmrf_dask.distortions.table_form import TableDistortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.types import FloatArray, LabelArray

HEADROOM = 61  # a row's distortion and all its pair costs stay below 2**61
MOST_BITS = 28
LEAST_BITS = 14
# Of the span: by how much two distances of a row in low precision may be off. Rows of length 1 have
# a span that is really reached; of others it is that of the whole corpus.
TOLERANCE, UNIT_TOLERANCE = 2.0**-14, 2.0**-11
COST_BITS = (
    8  # costs of pairs are multiples of 2**-8, or of 2**-8 of the largest when all are below 1
)


@dataclass(frozen=True)
class Scale:
    """How J becomes integers.

    Attributes
    ----------
    bits : int
        Rows are quantised to rint(2**bits · z / radius); 0 where the distortion has no such form.
    unit : float
        J of one unit.
    shift : int
        Distortions are int32 in units of 2**shift · unit.
    cost_unit : float
        Costs of pairs are whole multiples of it.
    largest : int
        φ_max in units of φ's integers, 2**(2 bits) / radius².
    tolerance : float
        By how much two distances of a row in low precision may be off, in J; rows for which that is
        not sure are measured in float64 (`kernels.cost_rows`).
    quantum : float
        Bound of what integers misjudge a distortion, or a pair of cost 1, by, in J. Of low
        precision it is 2 tolerances: what may be off, and as much again that is held against a
        move, so that it cannot raise J. What a row wants at the labels an E-step begins with, and
        hence where a fit ends, is judged without them.
    """

    bits: int
    unit: float
    shift: int
    cost_unit: float
    largest: int
    tolerance: float
    quantum: float

    @property
    def step(self) -> float:
        """J of one integer of a cost row."""
        return self.unit * 2.0**self.shift


def cost_unit(largest_cost: float) -> float:
    """Return the unit that costs of pairs are rounded to."""
    if largest_cost <= 0:
        return 2.0**-COST_BITS
    return float(2.0 ** (min(0, math.floor(math.log2(largest_cost))) - COST_BITS))


def rounded_costs(costs: FloatArray, unit: float) -> FloatArray:
    """Return the costs that are really used: whole multiples of `unit` (NaN stays)."""
    return np.asarray(np.rint(costs / unit) * unit, np.float64)


def make_scale(
    distortion: Distortion,
    weights: FloatArray,
    *,
    potts: bool,
    degree: float,
    span: float,
    unit_of_costs: float,
) -> Scale:
    """Return the finest scale that cannot overflow.

    Parameters
    ----------
    degree : the largest sum of pair costs of one row, closure included
    span : how much the distances of one row to two centroids can differ
    """
    if isinstance(distortion, TableDistortion) and distortion.closure_form:
        return _table_scale(distortion, weights, potts, degree, span, unit_of_costs)
    largest = 1.0 if potts else distortion.maximum(weights)
    reach = degree * largest + span
    unit = 2.0 ** (math.ceil(math.log2(max(reach, 1e-300))) - HEADROOM)
    shift = _shift(span / unit)
    tolerance = (UNIT_TOLERANCE if distortion.unit_rows else TOLERANCE) * span
    quantum = unit * 2.0**shift + 2.0 * tolerance
    return Scale(0, unit, shift, unit_of_costs, largest=0, tolerance=tolerance, quantum=quantum)


def _table_scale(
    distortion: TableDistortion,
    weights: FloatArray,
    potts: bool,
    degree: float,
    span: float,
    unit_of_costs: float,
) -> Scale:
    square = 1.0 if potts else distortion.radius(weights) ** 2
    largest = 1.0 if potts else distortion.maximum(weights) / square
    # φ is A_i + A_j − κ q_i·q_j: its parts reach 1 even where φ_max is less
    reach = (degree * max(largest, 1.0) + span / square) / unit_of_costs
    bits = min(MOST_BITS, (HEADROOM - math.ceil(math.log2(max(reach, 1.0)))) // 2)
    least = 1 if potts else LEAST_BITS  # Potts penalties quantise no rows
    if bits < least:
        small = degree * max(largest, 1.0) < span / square
        advice = (
            "raise all costs, or set them to 0" if small
            else "lower must_link_cost or cannot_link_cost, or use closure=False"
        )  # fmt: skip
        raise InvalidInputError(
            f"the costs of the pairs of one document must leave {least} bits for exact "
            f"integers, got {bits} bits: they add up to {degree:g} in steps of {unit_of_costs:g}, "
            f"next to distances of up to {span:g}; {advice}"
        )
    unit = unit_of_costs * square / 4.0**bits
    shift = _shift(span / unit)
    loose = 0.0 if potts else _loose(distortion, weights, bits)
    tolerance = (UNIT_TOLERANCE if distortion.unit_rows else TOLERANCE) * span
    quantum = loose + unit * 2.0**shift + 2.0 * tolerance
    whole = round(largest * 4.0**bits)
    return Scale(bits, unit, shift, unit_of_costs, whole, tolerance=tolerance, quantum=quantum)


def _loose(distortion: TableDistortion, weights: FloatArray, bits: int) -> float:
    """Return by how much the integers of a pair can miss φ; a row's entries are off by half a step.

    A product z·z' is then off by ‖z‖₁ steps at most, and ‖z‖₁ <= √d. A squared distance is that of
    the quantised rows, exactly: |z − z'| is off by a step in every entry.
    """
    step, width = 2.0**-bits * distortion.radius(weights), len(weights)
    if distortion.kappa == 1:
        return step * math.sqrt(width)
    return 2.0 * step * math.sqrt(width * distortion.maximum(weights)) + width * step * step


def _shift(largest: float) -> int:
    return max(0, math.ceil(math.log2(max(largest, 1.0))) - 30)


def cost_rows(distances: FloatArray, scale: Scale, least: FloatArray | None = None) -> LabelArray:
    """Return distances of linked rows as int32, the `least` of each row taken off first.

    It is given, shape (n_rows, 1), where these are not the distances to all clusters.
    """
    above = distances - (distances.min(axis=1, keepdims=True) if least is None else least)
    steps = np.rint(above / scale.step)
    return np.asarray(np.minimum(steps, np.iinfo(np.int32).max), np.int32)
