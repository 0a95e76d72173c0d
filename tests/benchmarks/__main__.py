"""`make bench`: every figure of speed, ours and the peers in turn, in one run.

Prints a table; writes bench.json, bench.png and bench.svg (and bench-growth.*) at the project's
root, bench-quick.* with --quick. With names of rows only those are measured, and the others
stay as they are in bench.json, each with the time it was taken. `page` measures nothing: it writes
what bench.json holds into hmrf_dask/BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from tests.benchmarks import corpora, measuring, report, sizes
from tests.benchmarks.measuring import CORES, Bench, Figure

PAGE = corpora.ROOT / "hmrf_dask" / "BENCHMARKS.md"
SIZES = {"full": sizes.FULL, "quick": sizes.QUICK, "tiny": sizes.TINY}
# By the name of a row: where it is measured, in the order of the table.
ROWS = {
    "end-to-end": "end_to_end.end_to_end",
    "end-to-end-answers": "end_to_end.answers",
    "estep": "rows_kernels.estep",
    "fit": "rows_fits.fit",
    "dense": "dense_peers.dense",
    "real-text": "real_text.real_text",
    "arxiv": "rows_fits.arxiv",
    "before-first-iteration": "real_text.before_first_iteration",
    "refinement-round": "real_text.refinement_round",
    "spark": "spark_rows.against_spark",
    "dask-share": "rows_iterations.dask_share",
    "weights": "rows_iterations.weights",
    "commits": "rows_iterations.commits",
    "pairs": "rows_iterations.pairs",
    "divergences": "rows_kernels.divergences",
    "kinds": "rows_kernels.kinds",
    "processes": "rows_iterations.processes",
    "tenfold": "rows_iterations.tenfold",
    "out-of-core": "rows_out_of_core.out_of_core",
    "memory": "rows_processes.memory",
    "imports": "rows_processes.imports",
    "compiling": "rows_processes.compiling",
    "vectorising": "vectorising.vectorising",
    "dask-ml": "rows_fits.dask_ml",
    "growth": "growth.growth",
    "profile": "profiling.profile",
    "ablation": "ablation.ablation",
    "scale": "scale.scale",
}
# Only when named: one judges how kernels are written, for ten minutes; the other needs root, and
# 15 GB of memory.
ON_DEMAND = ("ablation", "scale")


def main(arguments: list[str] | None = None) -> int:
    """Measure the rows asked for; the exit code is 1 when one of them failed."""
    asked = _parser().parse_args(arguments)
    size = "tiny" if asked.tiny else "quick" if asked.quick else "full"
    stem = asked.output or corpora.ROOT / ("bench" if size == "full" else f"bench-{size}")
    path = stem.with_suffix(".json")
    if asked.rows == ["page"]:
        report.rewrite_page(asked.page, report.read_result(path), ROWS)
        return 0
    measuring.keep_cores(CORES)
    bench = Bench(SIZES[size], asked.cache, asked.arxiv, asked.spark_python, asked.faiss, _say)
    if asked.repeats:
        bench = replace(bench, sizes=replace(bench.sizes, repeats=asked.repeats))
    wanted = asked.rows or [row for row in ROWS if row not in ON_DEMAND]
    chosen = [row for row in ROWS if row in wanted]
    result = report.read_result(path) | {
        "began": _now(),
        "sizes": size,
        "machine": measuring.machine(),
        "versions": measuring.versions(),
    }
    failed, start = False, time.perf_counter()
    for row in chosen:
        began = time.perf_counter()
        figures, fine = measure(row, bench)
        failed |= not fine
        spent = time.perf_counter() - began
        stamp = {"row": row, "at": _now(), "seconds": round(spent / len(figures), 2)}
        kept = {name: one for name, one in result["figures"].items() if one["row"] != row}
        result["figures"] = kept | {one.name: one.encoded() | stamp for one in figures}
        report.write_result(path, result)  # so that Ctrl-C loses one row, not all
        _say(f"{row}: {spent:.1f} s")
    _show(result, chosen, stem)
    _say(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    return int(failed)


def measure(row: str, bench: Bench) -> tuple[list[Figure], bool]:
    """Return the figures of a row and whether it ran; a row that fails is shown, not hidden."""
    module, name = ROWS[row].split(".")
    found: Callable[[Bench], list[Figure]]
    try:
        found = getattr(import_module(f"tests.benchmarks.{module}"), name)
        return found(bench), True
    except Exception as error:  # noqa: BLE001 - the other rows are still worth measuring
        sys.stderr.write(traceback.format_exc())
        return [Figure(row, row, skipped=f"failed: {type(error).__name__}: {error}"[:200])], False


def _show(result: report.Result, chosen: list[str], stem: Path) -> None:
    figures = report.figures_of(result, ROWS)
    rows = {name: one["row"] for name, one in result["figures"].items()}
    title = f"{stem.name}: {report.caution(result)}"
    report.print_tables([one for one in figures if rows[one.name] in chosen], title)
    try:
        from tests.benchmarks import plots
    except ImportError as error:
        _say(f"no plots: {error}")
        return
    for path in plots.draw(figures, stem):
        _say(f"wrote {path}")


def _say(text: str) -> None:
    sys.stderr.write(f"[{datetime.now().astimezone():%H:%M:%S}] {text}\n")
    sys.stderr.flush()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=…", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        choices=[*ROWS, "page", []],
        help=f"{', '.join(ROWS)}; or page",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small sizes: shows that all runs")
    size.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument("--repeats", type=int, help="in place of what the sizes say")
    parser.add_argument("--cache", type=Path, default=corpora.CACHE, help="where corpora are kept")
    parser.add_argument("--arxiv", type=Path, default=corpora.ARXIV, help="arxiv_120k.parquet")
    parser.add_argument(
        "--spark-python", default=os.environ.get("SPARK_PYTHON", sys.executable),
        help="a Python that has pyspark and numpy (else $SPARK_PYTHON, else this one)",
    )  # fmt: skip
    parser.add_argument(
        "--faiss", default=os.environ.get("FAISS_FOLDER", ""), metavar="FOLDER",
        help="a folder that faiss-cpu was installed into (else $FAISS_FOLDER, else this Python's)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="files to write, without their endings")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write into")
    return parser


if __name__ == "__main__":
    sys.exit(main())
