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
N_OWNERS = 3
WORDS = " ".join(f"word{number}" for number in range(40_000))  # so wide that no owner has all


def three_hosts() -> Figures:
    """Run from and to S3 on hosts of 1 Gbit/s: one joins mid-run, then one is cut off.

    Once sums and centroids are the driver's, and once those of three owners.
    """
    if why := no_hosts():
        return {"skipped": why}
    return {"by the driver": _run_on_hosts(0), "over owners": _run_on_hosts(N_OWNERS)}


def _run_on_hosts(n_owners: int) -> Figures:
    with (
        hosts(4) as network,
        bucket(network.address) as files,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        corpus = JobCorpus(folder)
        for name, data in corpus.files(corpus.draw(N_DOCUMENTS, words=WORDS)).items():
            files.pipe_file(f"{BUCKET}/{name}", data)
        files.pipe_file(f"{BUCKET}/answers.csv", corpus.answers(60))
        hmrf(folder, "run", str(_job(corpus, "threads")), "--threads=2")
        first, second, cut, joins = network.hosts
        with dask_processes(folder, 4, places=(first, second, cut)) as processes:
            processes.environment["DASK_HMRF__OWNERS"] = str(n_owners)
            running = _driver(processes, _job(corpus, "hosts", processes), first)
            _until(folder / "events.jsonl", '"phase": "fit"', running)
            processes.worker(host=joins)
            _until(folder / "events.jsonl", '"phase": "refine"', running)
            cut.cut_off()
            sent, began = cut.sent_and_received(), time.perf_counter()
            unreleased = not files.exists(f"{BUCKET}/hosts/releases/00001.json")
            tasks = _tasks_of(processes)
            said = running.communicate(timeout=LONGEST)[1].decode()
        return {
            "exit_code": running.returncode,
            "said": said[-500:] if running.returncode else "",
            "cut_off_before_the_release": unreleased,
            "seconds_after_the_cut": round(time.perf_counter() - began, 1),
            "sent_after_the_cut": cut.sent_and_received()[0] - sent[0],
            "MB_of_the_one_that_joined": round(sum(joins.sent_and_received()) / 1e6, 1),
            "owned": "remake" in tasks,
            "same_bits": published(files, "hosts") == published(files, "threads"),
        }


def _tasks_of(processes: DaskProcesses) -> str:
    """Return the names of all kinds of tasks that a scheduler has seen."""
    code = (
        "import sys; from distributed import Client; "
        "print(*Client(scheduler_file=sys.argv[1], timeout=60).run_on_scheduler("
        "lambda dask_scheduler: list(dask_scheduler.task_prefixes)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, processes.scheduler_file],
        env=processes.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _job(corpus: JobCorpus, output: str, processes: DaskProcesses | None = None) -> Path:
    """Write a job from the bucket to an output in it, on a cluster or wherever it is run."""
    where = {} if processes is None else {"cluster": {"scheduler_file": processes.scheduler_file}}
    job = corpus.write_job(
        resource={"path": f"{BUCKET}/documents/*.jsonl.gz"},
        method=METHOD,
        text={"min_df": 1},
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


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def scale() -> Figures:
    """Measure iterations on up to eight hosts, and model more: `tests.benchmarks scale`."""
    from tests.benchmarks.measuring import Bench
    from tests.benchmarks.scale import scale as measure
    from tests.benchmarks.sizes import FULL

    found = measure(Bench(FULL, say=_say))
    if len(found) == 1 and found[0].skipped:
        return {"skipped": found[0].skipped}
    figures: Figures = {one.name: one.skipped or round(one.median, 3) for one in found}
    return figures | {"short_of": [one.name for one in found if one.reached == "no"]}


HOST_ROWS: tuple[Row, ...] = (
    Row(
        "three-hosts",
        "from and to S3 on hosts of 1 Gbit/s, one joins, one is cut off, with and without owners",
        three_hosts,
        lambda f: all(
            found["exit_code"] == 0
            and found["cut_off_before_the_release"]
            and found["same_bits"]
            and found["MB_of_the_one_that_joined"] > 1
            and found["owned"] == (way == "over owners")
            for way, found in f.items()
        ),
    ),
    Row(
        "scale",
        "1 to 8 hosts: driver 1 MB a worker, 500 MB in all; 8 predicted to 20 %; 64 modelled: 40 x",
        scale,
        lambda f: not f["short_of"],
    ),
)
