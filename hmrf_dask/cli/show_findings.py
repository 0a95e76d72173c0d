"""The page that a person reads in the terminal after `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from hmrf_dask.errors import counted

if TYPE_CHECKING:
    from hmrf_dask.jobs.check import Findings


def show_findings(found: Findings) -> None:
    """Print what was found: files, documents, bad records, answers, problems and remarks."""
    console = Console(highlight=False, soft_wrap=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.formats.items())
    size = f", {_size(found.bytes)}" if found.bytes else ""
    console.print(f"[bold]{counted(found.files, 'file')}[/] ({kinds}){size}")
    opened = f"a sample, {counted(found.files_read, 'file')} opened"
    how = "all read" if found.complete else opened
    console.print(f"[bold]{counted(found.documents, 'document')}[/] ({how})")
    _print_documents(console, found)
    for title, count, shown in (
        (counted(found.bad_records, "bad record"), found.bad_records, _bad_records(found)),
        (
            counted(found.duplicate_ids, "id that comes twice", "ids that come twice"),
            found.duplicate_ids,
            found.first_duplicate_ids,
        ),
    ):
        if count:
            console.print(f"[bold]{title}[/]")
            _print_lines(console, shown, count)
    _print_answers(console, found)
    for title, lines in (("Problems", found.problems), ("Remarks", found.remarks)):
        if lines:
            console.print(f"[bold]{title}[/]")
            _print_lines(console, lines, len(lines))
    if found.output is not None:
        console.print(f"[bold]output[/] {found.output}")
    if not found.problems:
        console.print("nothing found that would stop a run")


def _print_documents(console: Console, found: Findings) -> None:
    for document in found.first_documents:
        console.print(f"  {document['id']}  {document['text']}", markup=False)
    if found.lengths.get("longest"):
        lengths = found.lengths
        ascii_share = f"{found.ascii_share:.1%}" if found.ascii_share < 0.9995 else "nearly all"
        if found.ascii_share in (0.0, 1.0):
            ascii_share = "all" if found.ascii_share else "none"
        console.print(
            f"texts have {lengths['shortest']} to {lengths['longest']} characters, half of them at "
            f"most {lengths['median']:.0f}; {ascii_share} are ASCII only"
            + (f"; language {found.language}" if found.language else "")
        )
    if found.embedding_length:
        console.print(f"embeddings have {counted(found.embedding_length, 'number')}")
    if found.labels:
        console.print(counted(found.labels, "known class", "known classes"))


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
