"""A user's whole way over HTTP: from a bucket to a bucket with one manifest and one job."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.cli.commands import hmrf
from tests.support.job_corpus import JobCorpus


class Bucket(JobCorpus):
    """Documents and answers that lie in a bucket; manifest and job are local files."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        super().__init__(folder)
        self.name = f"documents-{uuid.uuid4().hex[:8]}"
        self.files_there = fsspec.filesystem("s3", **options, use_listings_cache=False)
        self.files_there.makedirs(self.name)

    def write(self, files: dict[str, bytes]) -> None:
        """Put files into the bucket, but for manifest and job."""
        for name, data in files.items():
            if name.endswith(".yaml"):
                super().write({name: data})
            else:
                self.files_there.pipe_file(f"{self.name}/{name}", data)


def run(job: Path) -> Result:
    return CliRunner().invoke(hmrf, ["run", str(job), "--json", "--quiet", "--threads=2"])


def test_from_a_bucket_to_a_bucket(
    tmp_path: Path, s3_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_options["endpoint_url"])  # for the output
    bucket = Bucket(tmp_path, s3_options)
    bucket.write(bucket.files(bucket.draw(80)))
    bucket.write({"answers.csv": bucket.answers(20)})
    there = f"s3://{bucket.name}"
    job = bucket.write_job(
        resource={"path": f"{there}/documents/*.jsonl.gz"}, output=f"{there}/clusters"
    )
    manifest = (tmp_path / "manifest.yaml").read_text()
    (tmp_path / "manifest.yaml").write_text(manifest.replace("answers.csv", f"{there}/answers.csv"))

    first = run(job)
    assert first.exit_code == 0, first.output
    printed = json.loads(first.stdout)
    assert (printed["status"], printed["documents"]["all"]) == ("done", 80)
    assert printed["nmi"] == pytest.approx(1.0)
    assert sum(printed["answers"]["pairs"].values()) == 20

    again = run(job)
    assert (again.exit_code, json.loads(again.stdout)["status"]) == (0, "up to date")

    bucket.write(bucket.files(bucket.draw(20), first=50))
    bucket.write({"answers.csv": bucket.answers(30)})
    journal = open_journal(f"{there}/clusters/journal")
    ends = bucket.documents[0]["id"], bucket.documents[3]["id"]
    journal.append(*(Entry(who, "pair", ends, answer="same", annotator=who) for who in "ab"))
    more = json.loads(run(job).stdout)
    assert more["documents"].items() >= {"all": 100, "vectorised": 20, "quarantined": 0}.items()
    assert (more["start"], more["clusters"]["kept"]) == ("warm", 3)
    assert (more["documents"]["new"], more["documents"]["moved"]) == (20, 0)

    folder = f"{bucket.name}/clusters/{more['places']['assignments']}"
    names = bucket.files_there.ls(folder, detail=False)
    tables = [pq.read_table(bucket.files_there.open(name)) for name in names]
    assert sum(len(table) for table in tables) == 100
    inspected = CliRunner().invoke(hmrf, ["inspect", f"{there}/clusters", "--json"])
    assert json.loads(inspected.stdout)["release"]["number"] == 2
    assert (more["answers"]["journal"]["end"], journal.end) == (2, 2)
