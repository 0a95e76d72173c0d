"""The output of repeated runs as a store, and its numbered files: 00007.json and the like."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from hmrf_dask.addresses import absolute_url, refuse_credentials
from hmrf_dask.runs.storage import Storage, open_storage

# As numbers are written, so that a number has one name: 000007.json is none.
_NUMBERED = re.compile(r"([0-9]{5}|[1-9][0-9]{5,8})\.json")


def open_output(
    output: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Storage:
    """Return the store of an output, a folder or URL; its options must hold no secrets."""
    options = dict(storage_options or {})
    refuse_credentials(options)
    return open_storage(absolute_url(output), options, durable=True)


def numbers_in(storage: Storage, folder: str) -> list[int]:
    """Return the numbers of the numbered files of a folder."""
    return [int(found[1]) for found in map(_NUMBERED.fullmatch, storage.names(folder)) if found]
