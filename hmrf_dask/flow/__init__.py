"""How tasks reach Dask, and all that is asked of a cluster, each with a deadline."""

from __future__ import annotations
