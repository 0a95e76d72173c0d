"""Rows of the proof table about databases: releases that readers see while runs are killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.proofs.loop import Figures, Row
from tests.support.job_corpus import JobCorpus
from tests.support.postgres import WAY_OUT, Postgres, programs
from tests.support.published_jobs import NIGHTS, URL_ENV, published_jobs

TIMES = 4  # that all nights are played, each with a kill: half at statements, half at moments
ENDED = 2  # nights at most that had ended before they were to be killed
PER_NIGHT = 600


def published() -> Figures:
    """Play three nights with readers, and kill the driver at random statements and moments."""
    where = programs()
    if where is None:
        return {"skipped": f"there is no PostgreSQL: {WAY_OUT}"}
    server = Postgres(where)
    try:
        server.create()
        server.start()
        os.environ[URL_ENV] = server.url()
        with tempfile.TemporaryDirectory() as folder:
            corpus = JobCorpus(Path(folder))
            job = corpus.write_all(PER_NIGHT, 100, method={"n_clusters": 3, "n_init": 3})
            for night in range(2, NIGHTS + 1):
                files = corpus.files(corpus.draw(PER_NIGHT), 1000 * night)
                corpus.write(
                    {f"night-{night}/{Path(name).name}": data for name, data in files.items()}
                )
            return published_jobs(job, TIMES, seed=19)
    finally:
        server.stop()
        shutil.rmtree(server.folder)


DATABASE_ROWS = (
    Row(
        "published",
        f"{TIMES * NIGHTS} nights read all the time, each killed once: whole releases, same ends",
        published,
        lambda f: (
            f["same"] == TIMES * NIGHTS
            and not f["not whole"]
            and f["killed"] >= TIMES * NIGHTS - ENDED
        ),
    ),
)
