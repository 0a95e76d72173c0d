"""What a run reports at its end: run.json, and what the command shows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from hmrf_dask.errors import InvalidInputError

FORMAT = "hmrf-dask/run/v1"
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
        Number of files with documents: all, new, changed, deleted.
    documents : dict
        Number of documents: all, vectorised now, rejected in all files.
    vocabulary : dict
        `terms`, whether it was made anew (`refit`), the share of words it does not know in the
        files that are new (`unknown_share`), and in those it was made of (`unknown_share_then`).
    answers : dict
        `pairs` used, those that name unknown documents (`unknown`), lines that are no pairs
        (`rejected`), those that wait for the next fit (`unused`, in predict mode), violated ones by
        kind.
    fit : dict
        `J`, `iterations`, `stop_reason`, `converged`; empty where nothing was fitted.
    clusters : dict
        `number`, and how many were kept, split, merged, new, vanished; `churn` in per cent.
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
    documents: dict[str, int]
    vocabulary: dict[str, Any]
    answers: dict[str, int]
    fit: dict[str, Any]
    clusters: dict[str, Any]
    nmi: float | None
    seconds: dict[str, float]
    places: dict[str, str]

    def to_json(self) -> bytes:
        """Return run.json. The output may be moved, so it is not in there."""
        content = asdict(self)
        del content["output"]
        return f"{json.dumps({'format': FORMAT, **content}, indent=1)}\n".encode()

    @staticmethod
    def from_json(data: bytes, output: str) -> Report:
        """Return what `to_json` wrote."""
        try:
            content = json.loads(data)
            if content.pop("format") != FORMAT:
                raise ValueError("another format")
            return Report(output=output, **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(
                f"{NAME} must be as it was written ({FORMAT}), got something else in {output} "
                f"({type(error).__name__}: {error}); restore it"
            ) from error

    def up_to_date(self) -> Report:
        """Return the same report of a run that had nothing to do."""
        return replace(self, status="up to date")
