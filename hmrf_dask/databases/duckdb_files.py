"""Files of DuckDB, read only: a process opens each once, for all of its transactions.

The lock that keeps writers out is the process's: whoever closed a second opening of a file would
give up that of the first, and a writer could come in while rows are read.
"""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Any, Final

_MEMORY: Final = "1GB"  # of a process, sorts that need more go to a scratch folder
_OPEN: dict[tuple[int, str], list[Any]] = {}
_LOCK = threading.Lock()


def connect_duckdb(path: str) -> Any:
    """Return a connection that only reads; it is given back with `close_duckdb`.

    Queries see this file and nothing else: no other file, no network, no extensions.
    """
    import adbc_driver_duckdb
    from adbc_driver_manager import dbapi

    settings = {
        "access_mode": "READ_ONLY",
        "enable_external_access": "false",
        "threads": "1",  # whoever calls: workers share out the cores
        "memory_limit": _MEMORY,
        "temp_directory": os.path.join(tempfile.gettempdir(), f"hmrf-dask-duckdb-{os.getpid()}"),
    }
    with _LOCK:
        there = _OPEN.setdefault((os.getpid(), path), [])
        connection = (
            there[0].adbc_clone()
            if there
            else dbapi.connect(
                driver=adbc_driver_duckdb.driver_path(),
                entrypoint="duckdb_adbc_init",
                db_kwargs={"path": path, **settings},
            )
        )
        there.append(connection)
    return connection


def close_duckdb(connection: Any) -> None:
    """Close a connection; the last one of a file gives up its lock."""
    with _LOCK:
        for there in _OPEN.values():
            there[:] = [one for one in there if one is not connection]
        connection.close()
