"""Databases: connections by ADBC, what may be asked of them, and their errors in words."""

from __future__ import annotations
