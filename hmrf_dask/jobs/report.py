"""What a run reports at its end: run.json, and what the command shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from hmrf_dask.storage.sealed import DamagedFileError, seal_for_people, typed, unseal

FORMAT = "hmrf-dask/run/v2"
NAME = "run.json"


@dataclass(frozen=True)
class Report:
    """How a run ended.

    Attributes
    ----------
    status : {"done", "up to date"}
    run, output : str
    parent : str or None
        The run it went on from.
    release : int
    mode : {"fit", "predict"}
    start : {"cold", "warm"} or None
        None where nothing was fitted.
    files : dict
        Number of files with documents: `all` that are there; `new`, `changed` and `gone` since the
        last release.
    documents : dict
        Number of documents by their ids: `all`; `new` and `gone` since the last release; `changed`,
        those that it had too, in a file that is new or changed; `moved`, those that it had too, in
        another cluster, and `moved_share`, 0 to 1, of those that it had too. Beside them
        `vectorised` in this run, and `quarantined` records of all files.
    vocabulary : dict
        `terms`, whether it was made anew (`refit`), the share of words it does not know in the
        files that are new (`unknown_share`), and in those it was made of (`unknown_share_then`).
    answers : dict
        `pairs` used and those of them that are `violated`, both by kind (`must`, `cannot`); lines
        that were `quarantined`, and those of them that name documents that never were (`unknown`);
        lines that are `waiting` for a document that a former release had; those that wait for the
        next fit (`unused`, in predict mode).
    fit : dict
        `J`, `iterations`, `stop_reason`, `converged`; empty where nothing was fitted.
    clusters : dict
        `number`, and how many were kept, split, merged, new, vanished.
    nmi : float or None
        With the label column, where the manifest names one.
    seconds : dict
        By step; of the attempt that ended the run.
    places : dict
        Where assignments, clusters, model, lineage and rejects lie, below the output.
    """

    status: str
    run: str
    output: str
    parent: str | None
    release: int
    mode: str
    start: str | None
    files: dict[str, int]
    documents: dict[str, Any]
    vocabulary: dict[str, Any]
    answers: dict[str, Any]
    fit: dict[str, Any]
    clusters: dict[str, Any]
    nmi: float | None
    seconds: dict[str, float]
    places: dict[str, str]

    def to_json(self) -> bytes:
        """Return run.json. The output may be moved, so it is not in there."""
        content = asdict(self)
        del content["output"]
        return seal_for_people({"format": FORMAT, **content})

    @staticmethod
    def from_json(data: bytes, output: str) -> Report:
        """Return what `to_json` wrote."""
        name = f"{NAME} of a run in {output}"
        content = unseal(data, name)
        if content.pop("format", None) != FORMAT:
            raise DamagedFileError(f"{name} must have the format {FORMAT}, got another; run again")
        return typed(Report, {**content, "output": output}, name)

    def up_to_date(self) -> Report:
        """Return the same report of a run that had nothing to do."""
        return replace(self, status="up to date")
