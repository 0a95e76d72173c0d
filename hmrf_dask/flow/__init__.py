"""Clients, questions with deadlines, and waiting for tasks: all that is asked of a Dask cluster."""

from __future__ import annotations
