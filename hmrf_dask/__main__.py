"""`python -m hmrf_dask` is `hmrf-dask`."""

from __future__ import annotations

from hmrf_dask.cli.commands import main

main()
