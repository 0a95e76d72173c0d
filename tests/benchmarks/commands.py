"""Commands in processes of their own: the clock, CPU of all they start, the most memory of one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.corpora import ROOT
from tests.benchmarks.measuring import Timed

# Linux gives a process the peak memory of the one that started it, so a small one starts them.
LAUNCH = """
import json, resource, subprocess, sys, time
began, clock = time.time(), time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
wall, ended = time.perf_counter() - clock, time.time()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({
    "began": began, "ended": ended, "wall": wall, "cpu": used.ru_utime + used.ru_stime,
    "peak": used.ru_maxrss * 1024, "code": done.returncode, "printed": done.stdout,
}))
"""


@dataclass(frozen=True)
class Ran:
    """A command that ended well.

    Attributes
    ----------
    timed : Timed
        From the start of its process to the end, CPU of every process it started; its value is
        what it printed as JSON in its last line.
    began, ended : float
        The time of day, in seconds since 1970.
    peak : int
        Bytes of memory of its largest process.
    """

    timed: Timed
    began: float
    ended: float
    peak: int


def run_command(command: Sequence[str]) -> Ran:
    """Run a command from the project's root, as a shell would."""
    launched = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCH, *command],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(launched.stdout)
    if found["code"]:
        raise RuntimeError(f"{' '.join(command)!s:.300} must end with 0, got {found['code']}")
    value = json.loads(found["printed"].splitlines()[-1])
    timed = Timed(found["wall"], found["cpu"], value)
    return Ran(timed, found["began"], found["ended"], found["peak"])
