"""The page that a person reads in the terminal after `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from hmrf_dask.jobs.check_documents import Findings


def show_findings(found: Findings) -> None:
    """Print what was found: files, documents, bad records, answers, problems and remarks."""
    console = Console(highlight=False, soft_wrap=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.formats.items())
    size = f", {_size(found.bytes)}" if found.bytes else ""
    files = "1 file" if found.files == 1 else f"{found.files} files"
    console.print(f"[bold]{files}[/] ({kinds}){size}")
    how = "all read" if found.complete else f"a sample, {found.files_read} files opened"
    console.print(f"[bold]{found.documents} documents[/] ({how})")
    _print_documents(console, found)
    for title, count, shown in (
        ("bad records", found.bad_records, _bad_records(found)),
        ("ids that come twice", found.duplicate_ids, found.first_duplicate_ids),
    ):
        if count:
            console.print(f"[bold]{count} {title}[/]")
            _print_lines(console, shown, count)
    _print_answers(console, found)
    for title, lines in (("Problems", found.problems), ("Remarks", found.remarks)):
        if lines:
            console.print(f"[bold]{title}[/]")
            _print_lines(console, lines, len(lines))
    if not found.problems:
        console.print("nothing found that would stop a run")


def _print_documents(console: Console, found: Findings) -> None:
    for document in found.first_documents:
        console.print(f"  {document['id']}  {document['text']}", markup=False)
    if found.lengths.get("longest"):
        lengths = found.lengths
        console.print(
            f"texts have {lengths['shortest']} to {lengths['longest']} characters, half of them at "
            f"most {lengths['median']:.0f}; {found.ascii_share:.0%} are ASCII only"
            + (f"; language {found.language}" if found.language else "")
        )
    if found.embedding_length:
        console.print(f"embeddings have {found.embedding_length} numbers")
    if found.labels:
        console.print(f"{found.labels} known classes")


def _bad_records(found: Findings) -> list[str]:
    lines = []
    for record in found.first_bad_records:
        place = f", line {record['line']}" if record["line"] else ""
        lines.append(f"{record['file']}{place}: {record['reason']}")
    return lines


def _print_answers(console: Console, found: Findings) -> None:
    answers = found.answers
    if answers is not None:
        console.print(
            f"[bold]{answers.must_links + answers.cannot_links} answers[/] "
            f"({answers.must_links} must-links, {answers.cannot_links} cannot-links) about "
            f"{answers.documents} documents, {answers.documents_found} of them read"
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
