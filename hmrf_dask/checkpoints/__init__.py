"""The run directory: whole iterations or none, resume to the same bits, refusal of other runs."""

from __future__ import annotations

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.checkpoints.records import CheckpointStore, Commit, LabelsFile, MemoryRun, Piece
from hmrf_dask.storage.sealed import DamagedFileError, RunUnavailableError

__all__ = [
    "CheckpointStore",
    "Commit",
    "DamagedFileError",
    "LabelsFile",
    "MemoryRun",
    "Piece",
    "RunDirectory",
    "RunUnavailableError",
]
