"""The output of repeated runs: one holder at a time, whole releases, clusters that keep ids."""

from __future__ import annotations

from hmrf_dask.releases.release import DamagedReleaseError, Release, latest

__all__ = ["DamagedReleaseError", "Release", "latest"]
