"""Outputs that only their owner may read: `private: true` of a job."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.modes import OTHERS, PRIVATE_FOLDER, is_private, make_folders
from hmrf_dask.releases import owner


def make_private(output: str) -> None:
    """Keep a local output from all but its owner: what is there, and all that will be written.

    The folder itself is the sign that writers go by (`hmrf_dask.modes`), so it comes last. An
    object store has no such bits: its own rules say who may read.
    """
    if "://" in output:
        return
    try:
        if not os.path.isdir(output):
            make_folders(os.path.dirname(output))
            os.mkdir(output, PRIVATE_FOLDER)
        if is_private(output):
            return
        for path in (*_own(output), output):
            os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~OTHERS)
    except OSError as error:
        raise ConfigurationError(
            f"private: true must go with an output whose owner runs the job, got {output} "
            f"({error.strerror}); give another output, or leave private out"
        ) from error


def _own(output: str) -> Iterator[str]:
    """Yield what an output holds of its own, never through a link."""
    for name in (owner.NAME, *owner.NAMES):
        path = f"{output}/{name}"
        if os.path.islink(path) or not os.path.exists(path):
            continue
        yield path
        for above, folders, files in os.walk(path):
            inside = (f"{above}/{one}" for one in (*folders, *files))
            yield from (one for one in inside if os.path.exists(one) and not os.path.islink(one))
