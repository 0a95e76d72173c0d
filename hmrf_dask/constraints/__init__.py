"""The pairs people gave: canonical form, closure, contradictions."""

from __future__ import annotations

from hmrf_dask.constraints.pairs import Constraints

__all__ = ["Constraints"]
