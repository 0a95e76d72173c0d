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
from hmrf_dask.rows.encoding import decode_block, encode_block
decode_block(encode_block(RowBlock.from_array(np.eye(3))), "a")
"""


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        pytest.param(FIT, "distributed", id="half a second, only to look for a client"),
        pytest.param(NAMED, "distributed", id="the same where local threads are asked for"),
        pytest.param(FIT, "dask.array", id="a fifth of a second, for results nobody asked for"),
        pytest.param(READ, "pandas", id="35 MiB of every worker, to see a column as numbers"),
    ],
)
def test_a_process_does_not_import(program: str, absent: str) -> None:
    asked = f"{program}\nimport sys\nassert {absent!r} not in sys.modules"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
