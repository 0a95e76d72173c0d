"""Rows that need processes of their own: memory, imports, compiling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.corpora import ROOT, folder_of
from tests.benchmarks.measuring import CORES, Bench, Figure, Timed, in_turn, raw

MEMORY = """
import json, sys
from pathlib import Path
from tests.benchmarks.iterations import watched_fit
from tests.benchmarks.corpora import load_matrix
from tests.benchmarks.measuring import CORES, threads
import hmrf_dask.estimators.classes

def status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

n_clusters, max_iter = int(sys.argv[2]), int(sys.argv[3])
before = status("VmRSS")
X = load_matrix(Path(sys.argv[1]))
with threads(CORES):
    found = watched_fit(X, n_clusters, max_iter)
nbytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
peak = status("VmHWM")
print(json.dumps({"before": before, "peak": peak, "csr": nbytes}))
"""
FIRST_FIT = """
import json, time
import numpy as np, scipy.sparse
from tests.benchmarks.corpora import first_centroids
from tests.benchmarks.measuring import CORES, threads
from hmrf_dask import HMRFKMeans

# Rows that no kernel made: the first of a process would pay for the start of the compiler.
X = scipy.sparse.random(1000, 2000, 0.02, "csr", np.float32, np.random.default_rng(0))
model = HMRFKMeans(8, init=first_centroids(X, 8), n_init=1, max_iter=10, random_state=0)
pairs = np.arange(40).reshape(-1, 2)
took = []
with threads(CORES):
    for _ in range(2):
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(X, must_link=pairs[:10], cannot_link=pairs[10:])
        took.append((time.perf_counter() - wall, time.process_time() - cpu))
print(json.dumps(took))
"""


def run_python(code: str, *arguments: str, environment: dict[str, str] | None = None) -> Any:
    """Return the JSON that a new Python prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        cwd=ROOT, env=os.environ | (environment or {}), stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


# ---- memory


def memory(bench: Bench) -> list[Figure]:
    """Measure the most memory of a process that loads a CSR and fits it, beyond its imports.

    The CSR itself is in it: 1.0 would be a fit that needs no memory.
    """
    sizes, K = bench.sizes, bench.sizes.n_clusters
    bench.say(f"peak memory, K = {K}, {sizes.large:,} rows")
    bench.rows(sizes.large)  # leaves it in the cache
    folder = folder_of(bench.cache, sizes.large, sizes.n_features)
    asked = str(folder), str(K), str(min(sizes.iterations, 4))
    found = [run_python(MEMORY, *asked) for _ in range(sizes.repeats)]
    return [
        Figure(
            "memory",
            f"peak memory above imports over the CSR's own, {sizes.large:,} documents, K = {K}",
            tuple((one["peak"] - one["before"]) / one["csr"] for one in found), "x", "less",
            1.4, 1.2,
            facts={
                "rows": sizes.large,
                "MiB": [{name: value // 2**20 for name, value in one.items()} for one in found],
            },
        )
    ]  # fmt: skip


# ---- what an import costs


def imports(bench: Bench) -> list[Figure]:
    """Time `import hmrf_dask` and `hmrf-dask --help` as a shell sees them, less bare Python."""
    bench.say("imports")
    command = Path(sys.executable).parent / "hmrf-dask"
    helped = [str(command)] if command.exists() else [sys.executable, "-m", "hmrf_dask"]
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import hmrf_dask"],
        "help": [*helped, "--help"],
    }
    works = {name: lambda asked=asked: _quiet(asked) for name, asked in commands.items()}
    for work in works.values():
        work()
    runs = in_turn(bench.sizes.starts, works)
    asked = {"import": ("import hmrf_dask", 0.3, 0.15), "help": ("hmrf-dask --help", 0.4, 0.25)}
    return [
        Figure(
            name, f"`{what}` beyond bare Python",
            tuple(one.wall - bare.wall for one, bare in zip(runs[name], runs["bare"], strict=True)),
            "s", "less", must, aim,
            {one: raw(runs)[one] for one in (name, "bare")},
        )
        for name, (what, must, aim) in asked.items()
    ]  # fmt: skip


def _quiet(command: list[str]) -> None:
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


# ---- compiling


@contextmanager
def empty_cache() -> Iterator[str]:
    """Give a folder in which no kernel has been compiled yet."""
    with tempfile.TemporaryDirectory(prefix="hmrf-kernels-") as folder:
        yield folder


def compiling(bench: Bench) -> list[Figure]:
    """Time the first small fit of a process less its second one, kernels compiled or loaded.

    The first process finds an empty cache, the next one what the first left. The fit has pairs,
    starts from given centroids and refines; imports are over before.
    """
    bench.say("compiling")
    first: list[Timed] = []
    later: list[Timed] = []
    for _ in range(bench.sizes.compiles):
        with empty_cache() as folder:
            for found in (first, later):
                before, after = run_python(FIRST_FIT, environment={"NUMBA_CACHE_DIR": folder})
                found.append(Timed(before[0] - after[0], before[1] - after[1]))
    asked = {
        "compile": ("first fit after install: kernels compiled", first, 8.0, 4.0),
        "cached": ("first fit of later processes: kernels loaded", later, 0.5, 0.2),
    }
    return [
        Figure(
            name, what, tuple(one.wall for one in found), "s", "less", must, aim,
            {"ours": [one.seconds() for one in found]}, {"cores": CORES},
        )
        for name, (what, found, must, aim) in asked.items()
    ]  # fmt: skip
