"""Clustering of large document collections from answers "same" and "different", on Dask."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmrf_dask.constraints.pairs import Constraints
    from hmrf_dask.corpus.partitioned import Corpus
    from hmrf_dask.distortions import OwnDistortion
    from hmrf_dask.estimators.classes import HMRFKMeans, KMeans, MPCKMeans, load

__all__ = ["Constraints", "Corpus", "HMRFKMeans", "KMeans", "MPCKMeans", "OwnDistortion", "load"]

_HOMES = {
    "Constraints": "constraints",
    "Corpus": "corpus",
    "OwnDistortion": "distortions",
    "HMRFKMeans": "estimators",
    "MPCKMeans": "estimators",
    "KMeans": "estimators",
    "load": "estimators",
}


def _give_numba_a_cache() -> None:
    """Let kernels compile where neither the package nor the home folder can be written.

    numba refuses to load cached functions without a place for them; the folder is this process's
    own, because what lies in a cache is run.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if "NUMBA_CACHE_DIR" not in os.environ and not any(
        _writable(folder) for folder in (os.path.dirname(__file__), home)
    ):
        folder = tempfile.mkdtemp(prefix="hmrf-numba-")
        os.environ["NUMBA_CACHE_DIR"] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _writable(folder: str) -> bool:
    """Return whether files can be made in a folder, or the folder itself where it is missing."""
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK)


_give_numba_a_cache()


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `import hmrf_dask` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hmrf_dask' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hmrf_dask.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
