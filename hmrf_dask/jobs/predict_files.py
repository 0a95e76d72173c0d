"""Clusters of new rows under a saved model: written partition by partition where the rows are."""

from __future__ import annotations

from dataclasses import dataclass

from hmrf_dask.addresses import absolute_url
from hmrf_dask.estimators.classes import load
from hmrf_dask.jobs.apart import Place, overlaps, refuse, refuse_in_run
from hmrf_dask.jobs.assignments import FOLDER, write_assignments
from hmrf_dask.jobs.fit_files import read_rows
from hmrf_dask.jobs.places import model_folder, record_assignments


@dataclass(frozen=True)
class Prediction:
    """How many new documents each cluster has, and where the assignments are.

    Attributes
    ----------
    n_documents : int
    clusters : list of dict
        `cluster`, what the model calls it (of a job's output the id that stays), and `size`, how
        many of the documents it has; by id.
    files : dict of str to str
    """

    n_documents: int
    clusters: list[dict[str, int]]
    files: dict[str, str]


def predict_files(model: str, rows: str, out: str) -> Prediction:
    """Give rows in files their nearest clusters.

    Parameters
    ----------
    model : str
        A saved model, the run directory of a fit, or the output of a job.
    rows : str
        What `read_rows` reads.
    out : str
        Folder or URL for the assignments.
    """
    folder = model_folder(model)
    places = [Place(f"the model ({model})", model), Place(f"the rows ({rows})", rows)]
    refuse(overlaps(absolute_url(out), places, called="--out"))
    refuse_in_run(absolute_url(out), "--out")
    fitted, corpus = load(folder), read_rows(rows)
    assigned = write_assignments(corpus, None, fitted, out)
    record_assignments(out, assigned.files)
    files = {"model": folder, "assignments": f"{out}/{FOLDER}"}
    sizes = sorted(zip(fitted.cluster_ids_.tolist(), assigned.sizes.tolist(), strict=True))
    clusters = [{"cluster": cluster, "size": size} for cluster, size in sizes]
    return Prediction(corpus.n_rows, clusters, files)
