"""Rows of the proof table about several hosts: namespaces with addresses and links of their own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.proofs.jobs import BUCKET, LONGEST, bucket, hmrf, published
from tests.proofs.loop import Figures, Row
from tests.support.dask_processes import DaskProcesses, dask_processes
from tests.support.hosts import Host, hosts, no_hosts
from tests.support.job_corpus import JobCorpus

N_DOCUMENTS = 3000
METHOD = {"n_clusters": 12, "n_init": 4}


def three_hosts() -> Figures:
    """Run from and to S3 on hosts of 1 Gbit/s: one joins mid-run, then one is cut off."""
    if why := no_hosts():
        return {"skipped": why}
    with (
        hosts(4) as network,
        bucket(network.address) as files,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        corpus = JobCorpus(folder)
        for name, data in corpus.files(corpus.draw(N_DOCUMENTS)).items():
            files.pipe_file(f"{BUCKET}/{name}", data)
        files.pipe_file(f"{BUCKET}/answers.csv", corpus.answers(60))
        hmrf(folder, "run", str(_job(corpus, "threads")), "--threads=2")
        first, second, cut, joins = network.hosts
        with dask_processes(folder, 4, places=(first, second, cut)) as processes:
            running = _driver(processes, _job(corpus, "hosts", processes), first)
            _until(folder / "events.jsonl", '"phase": "fit"', running)
            processes.worker(host=joins)
            _until(folder / "events.jsonl", '"phase": "refine"', running)
            cut.cut_off()
            sent, began = cut.sent_and_received(), time.perf_counter()
            unreleased = not files.exists(f"{BUCKET}/hosts/releases/00001.json")
            said = running.communicate(timeout=LONGEST)[1].decode()
        return {
            "exit_code": running.returncode,
            "said": said[-500:] if running.returncode else "",
            "cut_off_before_the_release": unreleased,
            "seconds_after_the_cut": round(time.perf_counter() - began, 1),
            "sent_after_the_cut": cut.sent_and_received()[0] - sent[0],
            "MB_of_the_one_that_joined": round(sum(joins.sent_and_received()) / 1e6, 1),
            "same_bits": published(files, "hosts") == published(files, "threads"),
        }


def _job(corpus: JobCorpus, output: str, processes: DaskProcesses | None = None) -> Path:
    """Write a job from the bucket to an output in it, on a cluster or wherever it is run."""
    where = {} if processes is None else {"cluster": {"scheduler_file": processes.scheduler_file}}
    job = corpus.write_job(
        resource={"path": f"{BUCKET}/documents/*.jsonl.gz"},
        method=METHOD,
        output=f"{BUCKET}/{output}",
        **where,
    )
    manifest = corpus.folder / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("answers.csv", f"{BUCKET}/answers.csv"))
    return job


def _driver(processes: DaskProcesses, job: Path, host: Host) -> subprocess.Popen[bytes]:
    events = f"--events-file={job.parent / 'events.jsonl'}"
    return subprocess.Popen(
        host.command(sys.executable, "-m", "hmrf_dask", "run", str(job), "--quiet", events),
        env=processes.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _until(file: Path, words: str, running: subprocess.Popen[bytes]) -> None:
    """Wait until a file has some words."""
    deadline = time.monotonic() + LONGEST
    while not (file.exists() and words in file.read_text()):
        if running.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {words} in {file}")
        time.sleep(0.02)


HOST_ROWS: tuple[Row, ...] = (
    Row(
        "three-hosts",
        "from and to S3 on hosts of 1 Gbit/s, one joins mid-run, one is cut off: the same bits",
        three_hosts,
        lambda f: (
            f["exit_code"] == 0
            and f["cut_off_before_the_release"]
            and f["same_bits"]
            and f["MB_of_the_one_that_joined"] > 1
        ),
    ),
)
