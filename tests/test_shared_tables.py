"""Worker processes of one machine use one table of centroids, and the bits stay the same."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse

from hmrf_dask import HMRFKMeans
from hmrf_dask.kernels import machine_room

if not machine_room.FOLDER.is_dir():
    pytest.skip("this system has no files in RAM", allow_module_level=True)


def use_folder(folder: Path) -> None:
    """Make a process look for shared memory there."""
    machine_room.FOLDER = folder
    machine_room._remove_left.cache_clear()


@pytest.mark.cluster
def test_a_fit_on_processes_shares_tables(process_client: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = scipy.sparse.random(400, 16_384, 0.002, format="csr", dtype=np.float32, rng=rng)
    model = HMRFKMeans(40, init=rows[:40].toarray(), n_init=1, refine=False, max_iter=3)
    before = tmp_path.stat().st_mtime_ns
    process_client.run(use_folder, tmp_path)
    try:
        shared = model.fit(rows)
        labels, centroids = shared.labels_, shared.cluster_centers_
    finally:
        process_client.run(use_folder, machine_room.FOLDER)
    assert tmp_path.stat().st_mtime_ns > before, "no table was shared"
    for _ in range(100):  # workers let go of their last values by and by
        if not list(tmp_path.iterdir()):
            break
        process_client.run(gc.collect)
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []
    with dask.config.set(scheduler="synchronous"):
        alone = model.fit(rows)
    np.testing.assert_array_equal(alone.labels_, labels)
    assert alone.cluster_centers_.tobytes() == centroids.tobytes()
