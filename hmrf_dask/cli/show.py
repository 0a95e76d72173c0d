"""The pages that a person reads in the terminal after a command."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hmrf_dask.errors import counted, rows_moved

if TYPE_CHECKING:
    from hmrf_dask.jobs.check import Findings
    from hmrf_dask.jobs.demo import DemoResult
    from hmrf_dask.jobs.evaluate_files import Agreement
    from hmrf_dask.jobs.fit_files import FitResult, Prediction
    from hmrf_dask.jobs.places import Report

MOST = 20  # clusters shown
WAITING = "of answers waiting for a document that is gone"


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
    sizes = [f"{cluster['cluster']}: {cluster['size']}" for cluster in result.clusters]
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


def show_findings(findings: Findings) -> None:
    """Print what was found: files, documents, bad records, answers, problems and remarks."""
    console = Console(highlight=False, soft_wrap=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in findings.formats.items())
    size = f", {_size(findings.bytes)}" if findings.bytes else ""
    console.print(f"[bold]{counted(findings.files, 'file')}[/] ({kinds}){size}")
    opened = f"a sample, {counted(findings.files_read, 'file')} opened"
    how = "all read" if findings.complete else opened
    console.print(f"[bold]{counted(findings.documents, 'document')}[/] ({how})")
    _print_documents(console, findings)
    for title, count, shown in (
        (counted(findings.bad_records, "bad record"), findings.bad_records, _bad_records(findings)),
        (
            counted(findings.duplicate_ids, "id that comes twice", "ids that come twice"),
            findings.duplicate_ids,
            findings.first_duplicate_ids,
        ),
    ):
        if count:
            console.print(f"[bold]{title}[/]")
            _print_lines(console, shown, count)
    _print_answers(console, findings)
    for title, lines in (("Problems", findings.problems), ("Remarks", findings.remarks)):
        if lines:
            console.print(f"[bold]{title}[/]")
            _print_lines(console, lines, len(lines))
    if findings.output is not None:
        console.print(f"[bold]output[/] {findings.output}")
    if not findings.problems:
        console.print("nothing found that would stop a run")


def _print_documents(console: Console, findings: Findings) -> None:
    for document in findings.first_documents:
        console.print(f"  {document['id']}  {document['text']}", markup=False)
    if findings.lengths.get("longest"):
        lengths = findings.lengths
        ascii_share = (
            f"{findings.ascii_share:.1%}" if findings.ascii_share < 0.9995 else "nearly all"
        )
        if findings.ascii_share in (0.0, 1.0):
            ascii_share = "all" if findings.ascii_share else "none"
        console.print(
            f"texts have {lengths['shortest']} to {lengths['longest']} characters, half of them at "
            f"most {lengths['median']:.0f}; {ascii_share} are ASCII only"
            + (f"; language {findings.language}" if findings.language else "")
        )
    if findings.embedding_length:
        console.print(f"embeddings have {counted(findings.embedding_length, 'number')}")
    if findings.labels:
        console.print(counted(findings.labels, "known class", "known classes"))


def _bad_records(findings: Findings) -> list[str]:
    lines = []
    for record in findings.first_bad_records:
        place = f", line {record['line']}" if record["line"] else ""
        lines.append(f"{record['file']}{place}: {record['reason']}")
    return lines


def _print_answers(console: Console, findings: Findings) -> None:
    answers = findings.answers
    if answers is not None:
        console.print(
            f"[bold]{counted(answers.must_links + answers.cannot_links, 'answer')}[/] "
            f"({counted(answers.must_links, 'must-link')}, "
            f"{counted(answers.cannot_links, 'cannot-link')}) about "
            f"{counted(answers.documents, 'document')}, {answers.documents_found} of them read"
        )


def _print_lines(console: Console, lines: list[str], count: int) -> None:
    for line in lines:
        console.print(f"  {line}", markup=False)
    if count > len(lines):
        console.print(f"  … {count - len(lines)} more")


def _size(n_bytes: int) -> str:
    """Return a number of bytes as people write it.

    Examples
    --------
    >>> _size(1_500_000)
    '1.5 MB'
    """
    size, unit = float(n_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{n_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def show_report(report: Report) -> None:
    """Print what a run found, in words; of a run that had nothing to do only where it all is."""
    console = Console(highlight=False)
    console.print(f"[bold]{report.status}[/]: release {report.release}, run {report.run}")
    if report.status != "up to date":
        for line in _lines(report):
            console.print(line, soft_wrap=True)
        _print_clusters(console, report)
    console.print("[bold]Files[/]")
    for name, path in report.places.items():
        console.print(f"  {name:12} {report.output}/{path}", soft_wrap=True, markup=False)


def _lines(report: Report) -> list[str]:
    lines = [
        _documents(report),
        _since(report.files, "file"),
        _moved(report),
        _words(report),
        _answers(report),
        _fit(report),
        _clusters(report),
        None if report.nmi is None else f"NMI with the known classes: {report.nmi:.3f}",
    ]
    return [line for line in lines if line]


def _documents(report: Report) -> str:
    documents = report.documents
    line = f"{_since(documents, 'document')}; {documents['vectorised']:,} vectorised"
    quarantined = documents["quarantined"]
    return f"{line}, {counted(quarantined, 'record')} quarantined" if quarantined else line


def _since(counts: dict[str, Any], what: str) -> str:
    """Return how many there are, and what happened to them since the last release."""
    since = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("new", "changed", "gone"))
    return f"{counted(counts['all'], what)}: {since}"


def _moved(report: Report) -> str | None:
    documents = report.documents
    if report.parent is None or (report.mode == "predict" and not documents["changed"]):
        return None
    both = counted(documents["all"] - documents["new"], "document")
    return (
        f"{documents['moved']:,} of the {both} that the last release had are in another cluster "
        f"({documents['moved_share']:.2%})"
    )


def _words(report: Report) -> str | None:
    words = report.vocabulary
    if not words:
        return None
    made = "made in this run" if words["refit"] else "unchanged"
    line = f"{counted(words['terms'], 'term')}, {made}"
    if words["refit"] or not report.files["new"] + report.files["changed"]:
        return line
    return (
        f"{line}; {words['unknown_share']:.1%} of the words in new files are not among them "
        f"({words['unknown_share_then']:.1%} where they were made)"
    )


def _answers(report: Report) -> str | None:
    answers = report.answers
    others = [
        f"{counted(answers[name], 'line')} {words}"
        for name, words in (("quarantined", "of answers quarantined"), ("waiting", WAITING))
        if answers[name]
    ]
    if unused := answers["unused"]:
        line = f"{counted(unused, 'new answer')} not used: they wait for the next fit"
        return "; ".join([line, *others])
    pairs, violated = answers["pairs"], answers["violated"]
    if not any(pairs.values()):
        return "; ".join(others) or None
    line = (
        f"violated: {violated['must']:,} of {counted(pairs['must'], 'must-link')}, "
        f"{violated['cannot']:,} of {counted(pairs['cannot'], 'cannot-link')}"
    )
    return "; ".join([line, *others])


def _fit(report: Report) -> str | None:
    fit = report.fit
    if not fit:
        return None
    return (
        f"J = {fit['J']:.6g} after {counted(fit['iterations'], 'iteration')} from a "
        f"{report.start} start ({fit['stop_reason']})"
    )


def _clusters(report: Report) -> str:
    clusters, number = report.clusters, counted(report.clusters["number"], "cluster")
    if report.parent is None:
        return number
    kinds = ("kept", "split", "merged", "new", "vanished")
    line = ", ".join(f"{clusters[kind]} {kind}" for kind in kinds if clusters.get(kind))
    return f"{number}: {line}"


def _print_clusters(console: Console, report: Report) -> None:
    """Print the largest clusters, each with its size and its top words."""
    from hmrf_dask.documents.streams import read_whole
    from hmrf_dask.jobs.places import last_release
    from hmrf_dask.releases.lock import open_output
    from hmrf_dask.releases.release import read_file
    from hmrf_dask.storage.parquet import decode_parquet

    release, name = last_release(report.output), report.places["clusters"]
    if release is not None and name in release.files:
        data = read_file(open_output(report.output), name, release.files[name])
    else:  # another run released since
        data = read_whole(f"{report.output}/{name}", {})
    clusters = decode_parquet(data).to_pylist()
    clusters.sort(key=lambda cluster: -cluster["size"])
    console.print("[bold]cluster      size  top words[/]")
    for cluster in clusters[:MOST]:
        line = (
            f"{cluster['cluster']:7} {cluster['size']:9,}  {' '.join(cluster['top_words'] or ())}"
        )
        shown = line[: console.width] if console.is_terminal else line
        console.print(shown, soft_wrap=True, markup=False)
    if len(clusters) > MOST:
        console.print(f"… {len(clusters) - MOST} more in the clusters file")


def show_inspection(inspection: dict[str, Any]) -> None:
    """Print what lies in an output or a run directory, and how far its run is."""
    console = Console(highlight=False)
    console.print(f"[bold]{inspection['kind']}[/] {inspection['place']}", soft_wrap=True)
    release, holder = inspection.get("release"), inspection.get("holder")
    if inspection["kind"] == "output":
        console.print(_release(release), soft_wrap=True)
        console.print(_holder(holder), soft_wrap=True)
    elif inspection["kind"] == "job run":
        _print_job_run(console, inspection)
    elif not inspection["running"]:
        console.print("the fit is done")
    progress = None if inspection.get("report") else inspection["progress"]
    if progress is not None:
        for line in _progress(progress):
            console.print(line, soft_wrap=True, markup=False)


def _print_job_run(console: Console, inspection: dict[str, Any]) -> None:
    """Print what the run of a job reported; one that did not end has no report."""
    from hmrf_dask.jobs.places import Report

    if inspection["report"] is None:
        console.print("it did not end, or has not yet: the output says whether it is at work")
        return
    for line in _lines(Report(**inspection["report"])):
        console.print(line, soft_wrap=True)


def _release(release: dict[str, Any] | None) -> str:
    if release is None:
        return "no release yet"
    counts = ", ".join(f"{n} {name}" for name, n in release["counts"].items())
    return (
        f"release {release['number']} of run {release['run']}, {release['when']}, "
        f"{counted(release['files'], 'file')} ({release['hashed']} hashed): {counts}"
    )


def _holder(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "nobody writes it now"
    process = holder["process"]
    return (
        f"run {holder['run']} writes it: process {process['pid']} of {process['user']} on host "
        f"{process['host']}, since {holder['since']}"
    )


def _progress(progress: dict[str, Any]) -> list[str]:
    lines = []
    step, fit = progress.get("step"), progress.get("fit")
    if step:
        count = f" {step['done']} of {step['of']}" if step.get("of") else ""
        lines.append(f"step: {step['step']}{count} (since {step['since']})")
    if fit:
        ended = f", {fit['stop']}" if fit["stop"] else ""
        lines.append(
            f"fit: {fit['phase']} {fit['iteration']}, J {fit['J']:.6g}, "
            f"{rows_moved(fit['iteration'], fit['rows_moved'])}{ended}"
        )
    return lines
