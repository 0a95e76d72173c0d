"""The run directory: whole iterations or none, resume to the same bits, refusal of other runs."""

from __future__ import annotations

from hmrf_dask.runs.directory import RunDirectory
from hmrf_dask.runs.memory import MemoryRun
from hmrf_dask.runs.records import (
    Commit,
    DamagedFileError,
    LabelsFile,
    Piece,
    RunStore,
    RunUnavailableError,
)

__all__ = [
    "Commit",
    "DamagedFileError",
    "LabelsFile",
    "MemoryRun",
    "Piece",
    "RunDirectory",
    "RunStore",
    "RunUnavailableError",
]
