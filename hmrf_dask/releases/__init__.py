"""The output of repeated runs: one holder at a time, whole releases, clusters that keep ids."""

from __future__ import annotations

from hmrf_dask.releases.lineage import Change, Lineage, carried_on, first_lineage, trace
from hmrf_dask.releases.lock import OutputLock, held, holder_of
from hmrf_dask.releases.ownership import clean
from hmrf_dask.releases.release import (
    DamagedReleaseError,
    Release,
    check_files,
    damages,
    hashed,
    is_pointed_at,
    latest,
    publish,
    read_published,
)

__all__ = [
    "Change",
    "DamagedReleaseError",
    "Lineage",
    "OutputLock",
    "Release",
    "carried_on",
    "check_files",
    "clean",
    "damages",
    "first_lineage",
    "hashed",
    "held",
    "holder_of",
    "is_pointed_at",
    "latest",
    "publish",
    "read_published",
    "trace",
]
