"""What Dask calls on workers: functions of rows, labels and the model; no loop, no Dask."""

from __future__ import annotations
