"""Clustering of large document collections from answers "same" and "different", on Dask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmrf_dask.constraints.pairs import Constraints
    from hmrf_dask.corpus.partitioned import Corpus
    from hmrf_dask.distortions import OwnDistortion
    from hmrf_dask.estimators.classes import (
        ConstrainedKMeans,
        COPKMeans,
        HMRFKMeans,
        KMeans,
        MPCKMeans,
        PCKMeans,
        SeededKMeans,
        load,
    )
    from hmrf_dask.estimators.displays import ClusterMapDisplay, ConvergenceDisplay
    from hmrf_dask.estimators.lsa import LSA
    from hmrf_dask.jobs.in_memory import group
    from hmrf_dask.jobs.released import ReleasedModel, load_release
    from hmrf_dask.rows.blocks import Blocks

__all__ = [
    "LSA",
    "Blocks",
    "COPKMeans",
    "ClusterMapDisplay",
    "ConstrainedKMeans",
    "Constraints",
    "ConvergenceDisplay",
    "Corpus",
    "HMRFKMeans",
    "KMeans",
    "MPCKMeans",
    "OwnDistortion",
    "PCKMeans",
    "ReleasedModel",
    "SeededKMeans",
    "group",
    "load",
    "load_release",
]

_HOMES = {
    "Blocks": "rows.blocks", "ClusterMapDisplay": "estimators.displays",
    "ConvergenceDisplay": "estimators.displays",
    "Constraints": "constraints", "Corpus": "corpus.partitioned",
    "LSA": "estimators.lsa", "OwnDistortion": "distortions", "ReleasedModel": "jobs.released",
    "group": "jobs.in_memory", "load_release": "jobs.released",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: `import hmrf_dask` stays fast."""
    if name not in __all__:
        raise AttributeError(f"module 'hmrf_dask' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hmrf_dask.{_HOMES.get(name, 'estimators.classes')}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
