"""Most documents of the last release are gone: a mount is, or the job reads another collection."""

from __future__ import annotations

from hmrf_dask.errors import InvalidInputError, counted
from hmrf_dask.jobs.assignments import assignments_of
from hmrf_dask.jobs.job_steps import Material, Run
from hmrf_dask.jobs.ledger import keys_of
from hmrf_dask.jobs.overlap import count_shared


def refuse_shrunk(run: Run, material: Material) -> None:
    """Raise InvalidInputError where more than half of the last release's documents are gone.

    They are compared by their ids, before the fit; where most files are as they were then, nothing
    is.
    """
    if run.previous is None or run.inputs.allow_shrink:
        return
    n_before = int(run.previous.counts["documents"])
    if 2 * _n_surely_there(run, material) >= n_before:
        return
    with run.watch.step("compare documents with the last release"):
        old = assignments_of(run.previous.files)
        n_there = count_shared(run.inputs.output, old, material.corpus, material.names)
    if 2 * n_there < n_before:
        files = counted(len(run.changes.gone), "file")
        raise InvalidInputError(
            "at least half of the last release's documents must be there, got "
            f"{n_before - n_there} of {n_before} gone ({files} with them gone, "
            f"{len(run.changes.changed)} changed); check that the manifest names the same "
            "documents and that their store is whole, or run with --allow-shrink"
        )


def _n_surely_there(run: Run, material: Material) -> int:
    """Return how many documents there are at least of files that the last release was made of."""
    same = {key.own for entry in run.last_files.values() for key in keys_of(entry)}
    n_there: int = sum(
        n
        for told in material.rows.told
        for documents in told["documents"]
        for file, n in documents
        if told["files"][file][1] in same
    )
    return n_there - len(material.repeated)
