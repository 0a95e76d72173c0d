"""How a run was launched, each time: the command, the whole configuration, where it ran."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hmrf_dask.flow.clients import active_client, local_threads, settings
from hmrf_dask.flow.versions import rows_of, versions_here, versions_of, workers_in_words
from hmrf_dask.redaction import without_secrets

if TYPE_CHECKING:
    from hmrf_dask.jobs.inputs import Inputs
    from hmrf_dask.storage.stores import Storage

NAME = "launches.jsonl"  # in the folder of a run, a line each time it is begun or resumed
# Of the environment: what changes how the work runs, never what may be a credential.
_VARIABLES = ("NUMBA_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "DASK_HMRF__", "SLURM_JOB_ID")


def record(storage: Storage, folder: str, inputs: Inputs) -> None:
    """Add a line that says how a run is launched now."""
    line = json.dumps(_launch(inputs), sort_keys=True)
    storage.append(f"{folder}/{NAME}", f"{line}\n".encode())


def _launch(inputs: Inputs) -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": without_secrets(inputs.command),
        "host": socket.gethostname(),
        "version": version("hmrf-dask"),
        "job": inputs.job.model_dump(mode="json", by_alias=True),
        "where": _where(),
        "configuration": settings(),
        "environment": {
            name: without_secrets(value)
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES)
        },
    }


def _where() -> dict[str, Any]:
    """Return the threads of this process, or the scheduler, its workers and all versions."""
    client = active_client()
    if client is None:
        table = {"client": versions_here()}
        return {"threads": local_threads(), "versions": rows_of(table)}
    return {
        "scheduler": client.scheduler.address,
        "workers": workers_in_words(client),
        "versions": rows_of(versions_of(client)),
    }
