"""Rows at rest: Parquet blocks over fsspec."""

from __future__ import annotations
