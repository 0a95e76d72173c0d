"""What is heavy is imported only by those who use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIT = """
import numpy as np
from hmrf_dask import HMRFKMeans
rows = np.random.default_rng(0).random((30, 4), np.float32)
model = HMRFKMeans(2, n_init=1, max_iter=2, random_state=0).fit(rows)
model.predict(rows)
"""
NAMED = 'import dask\ndask.config.set(scheduler="threads")\n' + FIT
READ = """
import numpy as np
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import BlockFile, decode_block, encode_block
data = encode_block(RowBlock.from_array(np.eye(3)))
decode_block(data, "a", BlockFile("a", 3, 9, True, n_bytes=len(data), sha256=""), n_features=3)
"""

# The kernels, the tasks and the loop know nothing of Dask: a candidate is a whole fit without it.
WITHOUT_DASK = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dask", "distributed"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())

import hmrf_dask

for module in pkgutil.walk_packages(hmrf_dask.__path__, "hmrf_dask."):
    if not module.name.startswith(("hmrf_dask.__main__", "hmrf_dask.cli")):
        importlib.import_module(module.name)

import numpy as np
from hmrf_dask.checkpoints.records import MemoryRun
from hmrf_dask.fit.candidates import Turn, run_candidate
from tests.support.start_samples import random_rows, sample_of, start_sample_of

run = MemoryRun()
candidate = run_candidate(start_sample_of(sample_of(random_rows(0))), run, 1, Turn("k-means++ 0"))
assert candidate.history[-1][1] <= candidate.history[0][1]
assert len(np.unique(run.read_labels(candidate.file))) == 4
"""


def test_all_but_what_reaches_dask_imports_and_runs_without_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_DASK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        # half a second, only to look for a client; a fifth of it, for results nobody asked for
        pytest.param(FIT, ("distributed", "dask.array"), id="a fit"),
        pytest.param(NAMED, ("distributed",), id="a fit on threads", marks=pytest.mark.long),
        # 35 MiB of every worker, to see a column as numbers
        pytest.param(READ, ("pandas",), id="a block"),
    ],
)
def test_a_process_does_not_import(program: str, absent: tuple[str, ...]) -> None:
    asked = f"{program}\nimport sys\nassert not sys.modules.keys() & set({absent})"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
