"""Clusters of others: TLS or a refusal, workers waited for, versions that must agree."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import psutil
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from dask import delayed
from distributed import Client, LocalCluster, Security, get_client

from hmrf_dask.cli import connect
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.cli.connect import connected
from hmrf_dask.errors import ClusterError, ConfigurationError, HmrfWarning, MemoryPlanError
from hmrf_dask.flow import versions, worker_count
from hmrf_dask.flow.clients import SilentClusterError
from hmrf_dask.flow.cluster import compute
from hmrf_dask.flow.versions import (
    COLUMNS,
    check_versions,
    differences,
    rows_of,
    versions_here,
    versions_of,
)
from hmrf_dask.jobs.clusters import Cluster
from hmrf_dask.releases.lock import holder_of
from hmrf_dask.releases.release import latest
from tests.support.dask_processes import SECONDS, DaskProcesses, dask_processes, make_certificates
from tests.support.job_corpus import JobCorpus

OPEN = "tcp://192.0.2.7:8786"  # an address of documentation: nobody is there


# ---- a scheduler that others reach


@pytest.mark.parametrize("way", [{"scheduler": OPEN}, {"cluster": Cluster(address=OPEN)}])
def test_an_open_scheduler_is_refused_before_anything_is_said(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "Client", lambda *_, **__: pytest.fail("a client was made"))
    refusal = pytest.raises(ConfigurationError, match=rf"must have TLS, got {OPEN}: whoever .* --i")
    with refusal, connected(**way):
        pass


def test_an_open_scheduler_that_is_allowed_is_told_of_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connect, "_is_safe", lambda address: False)
    with LocalCluster(
        n_workers=0,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        address = cluster.scheduler_address
        allowed = [{"scheduler": address, "insecure": True}]
        allowed.append({"cluster": Cluster(address=address, insecure=True)})
        for way in allowed:
            with pytest.warns(HmrfWarning, match=rf"{address} has no TLS: .* \(allowed"):  # noqa: SIM117
                with connected(**way):
                    pass


def test_a_scheduler_in_a_tunnel_is_open_where_it_is() -> None:
    asked = Cluster(address="tcp://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=OPEN):
        connect._refuse_open(asked, "tcp://127.0.0.1:1", OPEN)
    connect._refuse_open(asked, "tls://192.0.2.7:1", "gateway://a/b", "tcp://localhost:1")


def test_a_class_without_tls_starts_only_where_the_job_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []
    module = SimpleNamespace(KubeCluster=lambda **kwargs: started.append(kwargs))
    monkeypatch.setattr(connect, "import_module", lambda name: module)
    asked = Cluster(**{"class": "dask_kubernetes.operator.KubeCluster"})
    with (
        pytest.raises(ConfigurationError, match=r"KubeCluster, which has no TLS.*insecure: true"),
        connected(cluster=asked),
    ):
        pass
    assert not started


def test_a_batch_system_has_certificates_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "dask_jobqueue.SLURMCluster"
    asked = Cluster(**{"class": name, "kwargs": {"cores": 2}})
    made = connect._arguments(asked, name)["security"]
    assert "BEGIN CERTIFICATE" in made.tls_ca_file
    with dask.config.set({"distributed.comm.tls.ca-file": "own.pem"}):
        assert connect._arguments(asked, name)["security"].tls_ca_file == "own.pem"
    open_one = asked.model_copy(update={"insecure": True})
    assert "security" not in connect._arguments(open_one, name)


def configured(folder: Path) -> dict[str, str]:
    """Return new certificates as Dask's configuration names them."""
    return {
        name.removeprefix("DASK_").lower().replace("__", ".").replace("_", "-"): path
        for name, path in make_certificates(folder).items()
    }


@pytest.fixture
def secure_cluster(tmp_path: Path) -> Iterator[tuple[LocalCluster, dict[str, Any]]]:
    """Give a cluster with TLS on a thread of this process, and the configuration of its clients."""
    configuration = configured(tmp_path / "tls")
    with dask.config.set(configuration):
        security = Security(require_encryption=True)
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tls://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        security=security,
    ) as cluster:
        yield cluster, configuration


def test_a_client_has_a_certificate_or_is_refused(
    secure_cluster: tuple[LocalCluster, dict[str, Any]], tmp_path: Path
) -> None:
    cluster, configuration = secure_cluster
    address = cluster.scheduler_address
    assert address.startswith("tls://")
    with dask.config.set(configuration), connected(scheduler=address):
        client = dask.config.get("scheduler")
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3
    without = pytest.raises(ConfigurationError, match=r"must go with certificates, got nothing")
    with without, connected(scheduler=address):
        pass
    others = configured(tmp_path / "others")
    foreign = pytest.raises(ClusterError, match="both sides have certificates of the same auth")
    with dask.config.set(others), foreign, connected(scheduler=address):
        pass


# ---- workers that do not come, or do not stay


def test_workers_that_do_not_come_end_the_command_with_75(tmp_path: Path) -> None:
    cluster = {"class": "distributed.LocalCluster", "kwargs": {"n_workers": 0}, "workers": 1}
    job = JobCorpus(tmp_path).write_all(20, 0, cluster={**cluster, "wait_seconds": 1.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "_scale", lambda cluster, asked: None)
        done = CliRunner().invoke(hmrf, ["run", str(job)])
    assert done.exit_code == 75, done.output
    assert "1 worker must be there before the work begins, got 0 within 1 s" in done.output


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"local": 2, "insecure": True}, "insecure and wait_for must go with"),
        ({"address": "a:1", "workers": 3}, "kwargs and workers must go with a class"),
        ({"class": "distributed.LocalCluster", "workers": 2, "wait_for": 3}, "at most workers"),
        (
            {"class": "distributed.LocalCluster", "workers": {"least": 3, "most": 2}},
            "least must be at most most",
        ),
        ({"class": "distributed.LocalCluster", "workers": "many"}, "valid integer"),
    ],
)
def test_workers_are_asked_for_in_one_way(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster(**cluster)


def test_a_cluster_grows_and_shrinks_between_its_bounds() -> None:
    adapted: list[dict[str, int]] = []
    cluster = SimpleNamespace(adapt=lambda **bounds: adapted.append(bounds))
    asked = Cluster(
        **{"class": "distributed.LocalCluster", "workers": {"least": 2, "most": 9}, "wait_for": 4}
    )
    connect._scale(cluster, asked)
    assert adapted == [{"minimum": 2, "maximum": 9}]
    assert (asked.least_workers, asked.most_workers) == (4, 9)


@pytest.mark.cluster
def test_workers_that_do_not_stay_end_the_work_though_each_graph_is_short(
    process_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "EVERY", 0.05)
    compute(delayed(sum)([1, 2]))
    ends = time.monotonic() + 30
    refusal = pytest.raises(ClusterError, match=r"3 workers must stay .* got 2 on .* for 0.3 s")
    with dask.config.set({"hmrf.least-workers": 3, "hmrf.refill-timeout": "0.3 s"}), refusal:
        while time.monotonic() < ends:
            compute(delayed(sum)([1, 2]))


def test_workers_that_the_program_fills_are_refused() -> None:
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit="400MiB",
    ) as cluster:
        refusal = pytest.raises(MemoryPlanError, match=r"than the program .* 400 MiB before .* got")
        with refusal, connected(scheduler=cluster.scheduler_address):
            pass


# ---- versions


OWN = dict.fromkeys(COLUMNS, "1.0.0")


@pytest.mark.parametrize("column", [one for one in COLUMNS if one not in ("dask", "distributed")])
def test_a_worker_with_another_version_is_refused(column: str) -> None:
    foreign = OWN | {column: "2.0.0"}
    refused, remarks = differences({"client": OWN, "scheduler": OWN, "tls://a": foreign})
    assert refused == [f"tls://a with {column} 2.0.0, not 1.0.0"]
    assert not remarks


def test_a_scheduler_needs_the_package_and_not_the_processor() -> None:
    there = OWN | {"hmrf-dask": "missing", "instruction set": "other", "numpy": "2", "dask": "3"}
    refused, remarks = differences({"client": OWN, "scheduler": there})
    assert refused == ["the scheduler with hmrf-dask missing, not 1.0.0"]
    assert remarks == ["the scheduler with dask 3, not 1.0.0"]


def test_many_workers_are_named_once() -> None:
    workers = {f"tls://{number}": OWN | {"numpy": "2"} for number in range(5)}
    (refused,), _ = differences({"client": OWN, **workers})
    assert refused == "tls://0, tls://1, tls://2 and 2 more with numpy 2, not 1.0.0"
    assert [line.split()[:2] for line in rows_of({"client": OWN, **workers})][1:] == [
        ["client", "1.0.0"],
        ["5", "workers"],
    ]


@pytest.mark.cluster
def test_the_table_is_of_all_who_take_part(process_client: Client) -> None:
    table = check_versions(process_client)
    assert len(table) == 4
    assert all(set(row) >= set(OWN) - {"instruction set"} for row in table.values())
    workers = [row for name, row in table.items() if name not in ("client", "scheduler")]
    assert all(row == table["client"] for row in workers)


def test_who_is_silent_is_left_to_the_check_of_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(*_: Any, **__: Any) -> Any:
        raise SilentClusterError("no answer")

    monkeypatch.setattr(versions, "ask", silent)
    assert list(versions_of(SimpleNamespace(get_versions=None))) == ["client"]
    assert "no answer; what is not known is not compared" in caplog.text


@pytest.mark.parametrize(("numpy", "asked"), [("2.0.0", 1), (version("numpy"), 2)])
def test_compilers_are_imported_where_nothing_else_refuses_a_worker(
    numpy: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = versions_here()
    there = {"host": {"python": f"{own['python']}.final.0"}, "packages": own}
    worker = there | {"packages": own | {"numpy": numpy}}
    answers = [{"scheduler": there, "workers": {"tls://a": worker}}]

    def answer(*_: Any, **__: Any) -> Any:
        questions.append(1)
        if not answers:
            raise SilentClusterError("a worker is at work")
        return answers.pop()

    questions: list[int] = []
    monkeypatch.setattr(versions, "ask", answer)
    table = versions_of(SimpleNamespace(get_versions=None, run=None))
    assert len(questions) == asked
    assert table["tls://a"]["numpy"] == numpy  # though the second question has no answer
    assert "instruction set" not in table["tls://a"]


HIDDEN = """
import importlib.metadata, sys
def version(name, there=importlib.metadata.version):
    if name == "hmrf-dask":
        raise importlib.metadata.PackageNotFoundError(name)
    return "1.26.0" if name == "numpy" else there(name)
import distributed.versions
if distributed.versions.version.__module__ == "importlib.metadata":
    distributed.versions.version = version
sys.modules["hmrf_dask"] = None
"""


@pytest.mark.long
def test_a_worker_of_another_environment_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text(HIDDEN)
    with dask_processes(tmp_path, 1) as processes:
        processes.worker("--preload", str(tmp_path / "hidden.py"))
        job = JobCorpus(tmp_path).write_all(
            20, 0, cluster={"scheduler_file": processes.scheduler_file, "wait_for": 2}
        )
        done = driver(processes, job).communicate(timeout=SECONDS)[1].decode()
    (error,) = [line for line in done.splitlines() if line.startswith("error:")]
    assert "with hmrf-dask missing" in error
    assert "numpy 1.26.0, not" in error
    assert "use one image" in error


# ---- all of it, as processes


def driver(processes: DaskProcesses, job: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "hmrf_dask", "run", str(job), *options],
        env=processes.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def until(file: Path, words: str) -> None:
    """Wait until a file has some words."""
    deadline = time.monotonic() + SECONDS
    while not (file.exists() and words in file.read_text()):
        assert time.monotonic() < deadline, file
        time.sleep(0.02)


def assignments(output: str) -> dict[str, int]:
    release = latest(output)
    assert release is not None
    tables = [
        pq.read_table(f"{output}/{name}") for name in release.files if "/assignments/" in name
    ]
    return {
        document: cluster
        for table in tables
        for document, cluster in zip(
            table["doc_id"].to_pylist(), table["cluster"].to_pylist(), strict=True
        )
    }


@pytest.mark.long
def test_a_run_with_tls_loses_and_gains_workers_is_ended_and_resumed(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    method = {"n_clusters": 12, "n_init": 4}
    job = corpus.write_all(3000, 60, method=method, output="alone")
    done = CliRunner().invoke(hmrf, ["run", str(job), "--quiet", "--threads=1"])
    assert done.exit_code == 0, done.output
    output = str(tmp_path / "out")
    with dask_processes(tmp_path, 2) as processes:
        where = {"scheduler_file": processes.scheduler_file, "wait_for": 1}
        job = corpus.write_job(method=method, cluster=where)
        events = tmp_path / "events.jsonl"
        running = driver(processes, job, f"--events-file={events}")
        until(events, '"phase": "fit"')
        processes.worker()
        until(events, '"phase": "refine"')
        processes.started[1].send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=SECONDS)[1].decode()
        assert running.returncode == 143, said
        assert "ended by SIGTERM" in said
        assert latest(output) is None
        assert holder_of(output) is None
        again = driver(processes, job)
        said = again.communicate(timeout=SECONDS)[1].decode()
        assert again.returncode == 0, said
        assert "no TLS" not in said
        begun = Path(output).glob("runs/*/launches.jsonl")
        launches = [json.loads(line) for file in begun for line in file.read_text().splitlines()]
        assert len(launches) == 2
        assert launches[0]["where"]["scheduler"].startswith("tls://")
        without = {k: v for k, v in processes.environment.items() if "TLS" not in k}
        refused = subprocess.run(
            [sys.executable, "-m", "hmrf_dask", "run", str(job), "--scheduler", processes.address],
            env=without | {"PYTHONPATH": processes.environment["PYTHONPATH"]},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert refused.returncode in (0, 78), refused.stderr  # 0: up to date, without a cluster
    assert assignments(output) == assignments(str(tmp_path / "alone"))


@pytest.mark.long
def test_a_run_that_loses_a_worker_for_good_ends_with_75(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    with dask_processes(tmp_path, 2) as processes:
        where = {"scheduler_file": processes.scheduler_file, "wait_for": 2, "wait_seconds": 1.0}
        job = corpus.write_all(6000, 60, method={"n_clusters": 40, "n_init": 8}, cluster=where)
        events = tmp_path / "events.jsonl"
        running = driver(processes, job, f"--events-file={events}")
        until(events, '"phase"')
        processes.started[1].kill()
        said = running.communicate(timeout=SECONDS)[1].decode()
        assert running.returncode == 75, said
        assert "2 workers must stay while the work lasts, got 1" in said
        assert holder_of(str(tmp_path / "out")) is None
        processes.worker()
        again = driver(processes, job)
        assert again.communicate(timeout=SECONDS)[0] is not None
        assert again.returncode == 0


@pytest.mark.long
def test_a_cluster_that_a_job_starts_stays_within_its_bounds() -> None:
    kwargs = {"threads_per_worker": 1}
    asked = {"class": "distributed.LocalCluster", "kwargs": kwargs}
    with connected(cluster=Cluster(**asked, workers={"least": 1, "most": 2})):
        client = get_client()

        def number() -> int:
            return len(client.scheduler_info()["workers"])

        work = client.map(time.sleep, [5 + one / 100 for one in range(40)])
        grown = []
        while max(grown, default=0) < 2:
            grown.append(number())
            time.sleep(0.1)
        client.cancel(work)
        del work
        shrinks = time.monotonic() + SECONDS
        while number() > 1:
            assert time.monotonic() < shrinks
            time.sleep(0.1)
        assert set(grown) <= {0, 1, 2}


@pytest.mark.long
def test_what_a_run_started_is_gone_after_sigterm_and_its_launches_are_known(
    tmp_path: Path,
) -> None:
    cluster = {"class": "distributed.LocalCluster", "kwargs": {"threads_per_worker": 1}}
    method = {"n_clusters": 12, "n_init": 4}
    job = JobCorpus(tmp_path).write_all(
        3000, 60, method=method, cluster=cluster | {"workers": {"least": 1, "most": 2}}
    )
    events = tmp_path / "events.jsonl"
    command = [sys.executable, "-m", "hmrf_dask", "run", str(job), f"--events-file={events}"]
    for number, ends in enumerate((143, 0)):
        with subprocess.Popen(command, stderr=subprocess.PIPE) as running:
            if ends:
                until(events, '"phase": "fit"')
                started = psutil.Process(running.pid).children(recursive=True)
                assert started
                running.send_signal(signal.SIGTERM)
            said = running.communicate(timeout=SECONDS)[1].decode()
        assert running.returncode == ends, said
        assert not psutil.wait_procs(started, timeout=20)[1]
        (file,) = (tmp_path / "out").glob("runs/*/launches.jsonl")
        launches = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(launches) == number + 1
        assert f"hmrf-dask run {job}" in launches[-1]["command"]
        assert launches[-1]["job"]["cluster"]["workers"] == {"least": 1, "most": 2}
        assert launches[-1]["job"]["keep"] == 3  # what the file does not say, too
