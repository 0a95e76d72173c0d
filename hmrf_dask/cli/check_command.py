"""`hmrf-dask check`: what a manifest's documents and answers look like, before any work."""

from __future__ import annotations

import click

from hmrf_dask.cli.group import HmrfCommand, Place, how_to_tell, print_json
from hmrf_dask.cli.progress import shown_progress
from hmrf_dask.errors import InvalidInputError


@click.command(cls=HmrfCommand, short_help="Look at the documents and answers of a manifest.")
@click.argument("manifest", type=Place())
@click.option("--all", "everything", is_flag=True, help="Read every document, not a sample.")
@how_to_tell
@click.pass_context
def check(
    context: click.Context,
    manifest: str,
    everything: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Read a sample of what a MANIFEST names and say what was found; nothing is written.

    Files, bytes, lengths, bad records with file and line, ids that come twice; bad lines and
    contradictions of answers, and whether they name documents that are there. It ends with exit
    code 65 if a run would stop at what was found.
    """
    from hmrf_dask.jobs.check_documents import check_manifest

    with shown_progress(quiet=quiet) as tell:
        found = check_manifest(manifest, everything=everything, tell=tell)
    if as_json:
        print_json(found)
    elif not quiet:
        from hmrf_dask.cli.show_findings import show_findings

        show_findings(found)
    if found.problems:
        context.exit(InvalidInputError.exit_code)
