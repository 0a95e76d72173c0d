"""Write 20 Newsgroups as gzipped JSONL, and simulated answers about it, next to the manifest.

``python -m pipelines.newsgroups.fetch [FOLDER]``: 18,846 messages without headers, which
scikit-learn fetches once, in files of 2,000, and 500 answers, half of them "same".
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import click
import numpy as np

from hmrf_dask import Constraints
from hmrf_dask.documents.builtin import read_builtin
from hmrf_dask.errors import SourceUnavailableError
from hmrf_dask.jobs.demo import simulated_answers

FILE = 2000
N_ANSWERS = 500


def main(folder: Path) -> None:
    """Write documents/*.jsonl.gz and answers.csv."""
    records = list(read_builtin("builtin://newsgroups20"))
    (folder / "documents").mkdir(parents=True, exist_ok=True)
    for first in range(0, len(records), FILE):
        lines = [json.dumps(one._asdict()) + "\n" for one in records[first : first + FILE]]
        # Without a time in it the same content is the same bytes.
        data = gzip.compress("".join(lines).encode(), mtime=0)
        (folder / "documents" / f"messages-{first:05}.jsonl.gz").write_bytes(data)
    ids = np.array([one.id for one in records])
    must, cannot = simulated_answers([one.label for one in records], N_ANSWERS, seed=0)
    Constraints(ids[must], ids[cannot]).to_file(folder / "answers.csv")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
    except SourceUnavailableError as error:  # no network: a line, no traceback
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
