"""`make prove`: every figure of the promises at full size. Writes proof.json and prints the table.

Each row runs in a process of its own, so that memory and compiled code of one do not show in
another. `--only NAME` runs some rows and keeps the others' figures as they stand in proof.json;
`--list` names the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import versions
from tests.proofs.damage import FLIP_ROWS
from tests.proofs.databases import DATABASE_ROWS
from tests.proofs.engines import ENGINE_ROWS
from tests.proofs.frozen import FROZEN_ROWS
from tests.proofs.hostile import HOSTILE_ROWS
from tests.proofs.hosts import HOST_ROWS
from tests.proofs.jobs import JOB_ROWS
from tests.proofs.loop import LOOP_ROWS, Row
from tests.proofs.million import MILLION_ROWS
from tests.proofs.owners import OWNER_ROWS
from tests.proofs.plan import PLAN_ROWS
from tests.proofs.reading import READING_ROWS
from tests.proofs.refusals import REFUSAL_ROWS

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "proof.json"
ROWS = (
    *LOOP_ROWS,
    *OWNER_ROWS,
    *JOB_ROWS,
    *HOST_ROWS,
    *DATABASE_ROWS,
    *READING_ROWS,
    *FROZEN_ROWS,
    *HOSTILE_ROWS,
    *FLIP_ROWS,
    *MILLION_ROWS,
    *PLAN_ROWS,
    *REFUSAL_ROWS,
    *ENGINE_ROWS,
)


def main() -> int:
    """Run the rows asked for; the exit code is 1 when one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], default=None)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        sys.stdout.writelines(f"{row.name:12} {row.claim}\n" for row in ROWS)
        return 0
    if asked.row:
        sys.stdout.write("\n" + json.dumps(_figures(_row(asked.row))) + "\n")
        return 0
    chosen = [row for row in ROWS if asked.only is None or row.name in asked.only]
    proof = _read_proof()
    for row in chosen:
        proof["rows"][row.name] = _run_in_own_process(row)
        proof |= {"machine": _machine(), "versions": versions()}
        PROOF.write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
        _show(row, proof["rows"][row.name])
    _table(proof)
    return 0 if all(proof["rows"][row.name]["holds"] is not False for row in chosen) else 1


def _row(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def _figures(row: Row) -> dict[str, Any]:
    figures = row.measure()
    return {"figures": figures, "holds": None if "skipped" in figures else bool(row.holds(figures))}


def _run_in_own_process(row: Row) -> dict[str, Any]:
    sys.stderr.write(f"{row.name}: {row.claim} ...\n")
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-m", "tests.proofs", "--row", row.name]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ)
    lines = done.stdout.strip().splitlines()
    found: dict[str, Any] = {"figures": {"error": f"exit code {done.returncode}"}, "holds": False}
    if done.returncode == 0 and lines:
        found = json.loads(lines[-1])
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "claim": row.claim,
        **found,
        "seconds": round(time.perf_counter() - began, 1),
        "at": stamp,
    }


def _read_proof() -> dict[str, Any]:
    if PROOF.exists():
        proof: dict[str, Any] = json.loads(PROOF.read_text(encoding="utf-8"))
        return proof
    return {"rows": {}}


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "GiB": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "arch": platform.machine(),
    }


def _verdict(found: dict[str, Any]) -> str:
    return {True: "holds", False: "FAILS", None: "skipped"}[found["holds"]]


def _show(row: Row, found: dict[str, Any]) -> None:
    sys.stderr.write(
        f"{row.name}: {_verdict(found)} in {found['seconds']} s: {json.dumps(found['figures'])}\n"
    )


def _lines(figures: dict[str, Any]) -> list[str]:
    """Return what a person reads of a row's figures; a row that has its own table shows that."""
    if "table" in figures:
        about = [f"vectoriser: {figures['vectoriser']}"] if "vectoriser" in figures else []
        return [*about, *figures["table"]]
    return [f"{key}: {value}" for key, value in figures.items()]


def _table(proof: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("row", "what must be shown", "figures", "", title="proof")
    for row in ROWS:
        found = proof["rows"].get(row.name)
        if found is not None:
            lines = "\n".join(_lines(found["figures"]))
            table.add_row(row.name, row.claim, lines, _verdict(found))
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
