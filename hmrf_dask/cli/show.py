"""The pages that a person reads in the terminal after `demo`, `fit`, `predict` and `evaluate`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from textwrap import fill, indent
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from hmrf_dask.errors import counted

if TYPE_CHECKING:
    from hmrf_dask.jobs.demo import DemoResult
    from hmrf_dask.jobs.evaluate_files import Agreement
    from hmrf_dask.jobs.fit_files import FitResult, Prediction


def show_demo(result: DemoResult) -> None:
    """Print clusters, agreement with the subpackages, violated pairs, files and next steps."""
    console = Console(highlight=False)
    console.print(
        f"\n[bold]{result.n_documents} docstrings[/] of numpy, scipy and scikit-learn, "
        f"{result.n_words} words, {result.n_answers} answers, {len(result.clusters)} clusters\n"
    )
    console.print(_cluster_table(result), "")
    console.print(_agreement_table(result), "")
    console.print(_violations(result.violations, result.n_answers))
    iterations = counted(result.n_iterations, "iteration")
    console.print(f"{iterations} ({result.stop_reason}), {result.seconds:.1f} s\n")
    _print_files(console, result.files)
    rows, pairs = result.files["rows"], result.files["pairs"]
    console.print("\n[bold]Next[/]")
    console.print("  change an answer in the pairs and fit again:")
    console.print(
        f"    {_command()} fit {rows} --pairs {pairs} --n-clusters {len(result.clusters)} "
        f"--random-state 0 --fresh --run-dir {result.files['run']}-mine",
        soft_wrap=True,
        markup=False,
    )
    console.print("  your own documents: the six lines of Python in README.md")


def _command() -> str:
    """Return how this very command is called: `make demo` leaves it in a .venv, not on the PATH."""
    called = Path(sys.argv[0])
    on_path = shutil.which("hmrf-dask") or called.name != "hmrf-dask"
    return "hmrf-dask" if on_path else str(called)


def _cluster_table(result: DemoResult) -> Table:
    table = Table("cluster", "size", "top words", "mostly", "share", box=None, pad_edge=False)
    for summary in result.clusters:
        table.add_row(
            str(summary.cluster),
            str(summary.size),
            " ".join(summary.top_words),
            summary.mostly,
            f"{summary.share:.0%}",
        )
    table.columns[1].justify = table.columns[4].justify = "right"
    return table


def _agreement_table(result: DemoResult) -> Table:
    unasked = result.n_documents - result.n_asked_documents
    table = Table(
        "NMI with the subpackages",
        f"all {result.n_documents} documents",
        f"the {unasked} nobody was asked about",
        box=None,
        pad_edge=False,
    )
    for title, everywhere, elsewhere in (
        ("without answers", result.nmi_without_answers, result.nmi_unasked_without_answers),
        ("with answers", result.nmi_with_answers, result.nmi_unasked_with_answers),
    ):
        table.add_row(title, f"{everywhere:.3f}", f"{elsewhere:.3f}")
    return table


def show_fit(result: FitResult) -> None:
    """Print the sizes of the clusters, how the fit ended, violated pairs and files."""
    console = Console(highlight=False)
    console.print(
        f"[bold]{counted(result.n_documents, 'document')}[/] in "
        f"{counted(len(result.sizes), 'cluster')}, sizes:"
    )
    console.print(indent(fill(" ".join(map(str, result.sizes)), console.width - 2), "  "))
    console.print(_violations(result.violations, result.n_pairs))
    console.print(
        f"J = {result.objective:.6g} after {counted(result.n_iterations, 'iteration')} "
        f"({result.stop_reason})"
    )
    _print_files(console, result.files)


def show_prediction(result: Prediction) -> None:
    """Print the clusters of new rows with their sizes, and where the assignments are."""
    console = Console(highlight=False)
    console.print(
        f"[bold]{counted(result.n_documents, 'document')}[/] in "
        f"{counted(len(result.clusters), 'cluster')}, cluster: size"
    )
    sizes = [f"{one['cluster']}: {one['size']}" for one in result.clusters]
    console.print(indent(fill(", ".join(sizes), console.width - 2), "  "))
    _print_files(console, result.files)


def show_agreement(result: Agreement) -> None:
    """Print how well assignments fit known classes."""
    console = Console(highlight=False)
    console.print(
        f"[bold]{result.n_compared} of {result.n_documents} documents[/] have a known class"
    )
    console.print(f"NMI            {result.nmi:.4f}")
    if result.nmi_unasked is not None:
        unasked = counted(result.n_unasked or 0, "document")
        console.print(f"  unasked      {result.nmi_unasked:.4f} ({unasked})")
    console.print(f"pairwise F     {result.pairwise_f:.4f}")
    console.print(f"adjusted Rand  {result.adjusted_rand:.4f}")
    console.print(f"homogeneity    {result.homogeneity:.4f}")
    console.print(f"completeness   {result.completeness:.4f}")


def _violations(violations: dict[str, int], n_pairs: int) -> str:
    must, cannot = violations["must_link"], violations["cannot_link"]
    return (
        f"violated pairs: {must + cannot} of {n_pairs} ({counted(must, 'must-link')}, "
        f"{counted(cannot, 'cannot-link')})"
    )


def _print_files(console: Console, files: dict[str, str]) -> None:
    console.print("[bold]Files[/]")
    for name, path in files.items():
        console.print(f"  {name:12} {path}", soft_wrap=True, markup=False)
