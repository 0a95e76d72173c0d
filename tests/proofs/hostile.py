"""The row of the proof table about hostile inputs: every one of them ends in words."""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from pathlib import Path

from tests.proofs.loop import Figures, Row
from tests.support.hostile import ALL_CASES, SECONDS, check, make_world


def hostile() -> Figures:
    """Run every hostile input; what is wrong is named."""
    wrong, slowest = list[str](), ("", 0.0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        world = Path(folder) / "world"
        world.mkdir()
        make_world(world)
        for number, case in enumerate(ALL_CASES):
            here = Path(folder) / f"here-{number}"  # tasks of the last case may be at work yet
            began = time.monotonic()
            if problem := check(case, world, here):
                wrong.append(problem[:300])
            shutil.rmtree(here, ignore_errors=True)
            slowest = max(slowest, (case.name, time.monotonic() - began), key=lambda one: one[1])
    return {
        "cases": len(ALL_CASES),
        "refused": sum(not case.fine for case in ALL_CASES),
        "fine": sum(case.fine for case in ALL_CASES),
        "peak MiB of a process": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        "in a process of capped memory": sum(case.alone for case in ALL_CASES),
        "slowest": f"{slowest[0]}, {slowest[1]:.1f} s with writing its files",
        "allowed seconds": SECONDS,
        "wrong": wrong,
    }


HOSTILE_ROWS = (
    Row(
        "hostile",
        "hostile values, YAML, options, rows, documents, answers: one line, an exit code, bounds",
        hostile,
        lambda f: f["cases"] >= 500 and not f["wrong"],
    ),
)
