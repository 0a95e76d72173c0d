"""Rows of documents: the block type, document ids, and the form all input is brought into."""

from __future__ import annotations

from hmrf_dask.rows.block import RowBlock

__all__ = ["RowBlock"]
