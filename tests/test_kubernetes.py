"""deploy/kubernetes as written, on a stand-in for Kubernetes with Dask's own operator."""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from hmrf_dask import errors
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.releases.release import latest
from tests.support.dask_processes import make_certificates
from tests.support.job_corpus import JobCorpus

pytest.importorskip("aiohttp", reason="aiohttp is not installed: make setup does it")
pytest.importorskip(
    "dask_kubernetes", reason="dask_kubernetes is not installed: make setup does it"
)
from tests.support.kubernetes import Objects, RefusedError, verdict
from tests.support.kubernetes_node import Kubernetes, dask_operator, kubernetes

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"
CRONJOB = yaml.safe_load((FOLDER / "base" / "cronjob.yaml").read_text())["spec"]["jobTemplate"][
    "spec"
]
MADE = ("daskclusters", "daskworkergroups", "daskautoscalers", "deployments", "services", "pods")
LONGEST = 300  # seconds of a night


# ---- exit codes


def codes() -> set[int]:
    """Return the codes that a run can fail with: of errors, of signals, of Python, of click."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    return {1, 2, 129, 130, 137, 143} | {
        one.exit_code for one in kinds if isinstance(getattr(one, "exit_code", None), int)
    }


def test_every_exit_code_leads_to_the_right_policy() -> None:
    policy = CRONJOB["podFailurePolicy"]
    found = {code: verdict(policy, code) for code in codes()}
    person = {1, 2, 65, 78}
    assert found == {code: "FailJob" if code in person else "Count" for code in codes()}
    assert {verdict(policy, code, drained=True) for code in codes()} == {"Ignore"}
    table = (FOLDER / "README.md").read_text()
    assert {
        int(code) for code in re.findall(r"\d+", table.split("| 1, ")[1].split("|")[0])
    } <= person


def test_a_policy_that_is_wrong_is_found() -> None:
    policy = json.loads(json.dumps(CRONJOB["podFailurePolicy"]).replace("65, ", ""))
    assert verdict(policy, 65) == "Count"
    policy["rules"][1]["onExitCodes"]["values"] = [75]
    assert verdict(policy, 75) == "FailJob"


def test_the_stand_in_refuses_what_a_server_would() -> None:
    objects = Objects()
    with pytest.raises(RefusedError, match="'schedule' is a required property"):
        objects.create("cronjobs", {"metadata": {"name": "a"}, "spec": {}})
    made = objects.create("configmaps", {"metadata": {"name": "a", "finalizers": ["wait"]}})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": made["metadata"]["uid"]}
    objects.create("configmaps", {"metadata": {"name": "b", "ownerReferences": [owner]}})
    with pytest.raises(RefusedError, match="already exists"):
        objects.create("configmaps", {"metadata": {"name": "a"}})
    held = copy.deepcopy(objects.delete("configmaps", "a"))
    assert ("configmaps", "b") in objects.objects
    held["metadata"]["finalizers"] = []
    objects.change("configmaps", "a", held)
    assert {name for _, name in objects.objects} == {"default"}


# ---- nights


def applied(cluster: Kubernetes, overlay: str) -> list[dict[str, Any]]:
    """Create the objects of an overlay; whoever runs the job has the role's rights alone."""
    program = shutil.which("kubectl") or pytest.skip("kubectl is not there: install it")
    command = [program, "kustomize", str(FOLDER / overlay)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = [one for one in yaml.safe_load_all(text) if one]
    cluster.apply(objects)
    for one in objects:
        if one["kind"] == "Role":
            cluster.server.may["job"] = one["rules"]
    cluster.node.environment["KUBECONFIG"] = str(cluster.access("job"))
    return objects


@pytest.fixture
def documents(tmp_path: Path, s3_options: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Give the environment by which processes reach a bucket as nightly.yaml has it."""
    environment = {"AWS_ENDPOINT_URL": s3_options["endpoint_url"], "OMP_NUM_THREADS": "1"}
    corpus = JobCorpus(tmp_path)
    drawn = [
        {"message_id": one["id"], "body": one["text"], "sent": "2026-01-01T00:00:00Z"}
        for one in corpus.draw(900)
    ]
    files = fsspec.filesystem("s3", **s3_options)
    files.makedirs("my-bucket", exist_ok=True)
    data = "".join(f"{json.dumps(one)}\n" for one in drawn).encode()
    files.pipe_file("my-bucket/messages/part-0.jsonl.gz", gzip.compress(data))
    files.pipe_file("my-bucket/answers/all.csv", corpus.answers(100))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment | {
            name: os.environ[name] for name in os.environ if name.startswith("AWS")
        }
    files.rm("my-bucket", recursive=True)


def clusters_of(output: str) -> dict[str, int]:
    release = latest(output)
    assert release is not None
    names = [name for name in release.files if "/assignments/" in name]
    tables = [
        pq.read_table(f"{output}/{name}".removeprefix("s3://"), filesystem=fsspec.filesystem("s3"))
        for name in names
    ]
    return {
        document: cluster
        for table in tables
        for document, cluster in zip(
            table["doc_id"].to_pylist(), table["cluster"].to_pylist(), strict=True
        )
    }


def eventually(function: Callable[[], Any], wanted: Any, seconds: int = 30) -> None:
    """Wait until a function returns what is wanted; not by a clock, which runs while we do not."""
    for _ in range(10 * seconds):
        if (found := function()) == wanted:
            return
        time.sleep(0.1)
    raise AssertionError(found)


def left(cluster: Kubernetes) -> list[str]:
    """Return what of Dask is left."""
    there = [f"{plural}/{name}" for plural in MADE for name in cluster.names(plural)]
    return [one for one in there if re.search("-scheduler|-worker|dask", one)]


def until_committed(pod: str, cluster: Kubernetes) -> None:
    """Wait until a run has committed something."""
    files = fsspec.filesystem("s3")

    def committed() -> bool:
        assert pod not in cluster.node.codes, (cluster.folder / f"{pod}.log").read_text()
        return bool(files.glob("my-bucket/clusters/runs/*/**/commits/*"))

    eventually(committed, True, LONGEST)


@pytest.mark.long
@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_night_is_ended_and_run_again(
    ended: int, documents: dict[str, str], tmp_path: Path
) -> None:
    with kubernetes(tmp_path / "cluster", documents) as cluster, dask_operator(cluster):
        applied(cluster, "overlays/cluster")
        (night,) = cluster.call(cluster.objects.all, "cronjobs")
        job = night["spec"]["jobTemplate"]["spec"]
        first = cluster.start_pod("first", job["template"])
        until_committed("first", cluster)
        first.send_signal(ended)
        code = cluster.code_of("first", LONGEST)
        assert code == 128 + ended, (cluster.folder / "first.log").read_text()
        assert verdict(job["podFailurePolicy"], code) == "Count"
        if ended == signal.SIGTERM:
            eventually(partial(left, cluster), [])
        cluster.start_pod("second", job["template"])
        assert cluster.code_of("second", LONGEST) == 0, (cluster.folder / "second.log").read_text()
        made = {plural for plural, what, _ in cluster.objects.happened if what == "ADDED"}
        assert made >= {"daskclusters", "daskworkergroups", "deployments", "services", "pods"}
        eventually(partial(left, cluster), [])
        assert cluster.server.refused == []
        said = (cluster.folder / "second.log").read_text()
        assert json.loads(said.splitlines()[-1])["documents"]["all"] == 900
    on_threads = tmp_path / "threads"
    on_threads.mkdir()
    for name in ("base/job.yaml", "documents/nightly.yaml"):
        shutil.copy(FOLDER / name, on_threads)
    alone = ["run", str(on_threads / "job.yaml"), "--output", "s3://my-bucket/alone", "--quiet"]
    done = CliRunner().invoke(hmrf, alone)
    assert done.exit_code == 0, done.output
    assert clusters_of("s3://my-bucket/clusters") == clusters_of("s3://my-bucket/alone")


@pytest.mark.long
def test_a_dask_job_is_run_once(documents: dict[str, str], tmp_path: Path) -> None:
    with kubernetes(tmp_path / "cluster", documents) as cluster, dask_operator(cluster):
        applied(cluster, "overlays/once")
        assert cluster.code_of("hmrf-once-runner", LONGEST) == 0
        eventually(partial(left, cluster), [])

        def status() -> str:
            (job,) = cluster.call(cluster.objects.all, "daskjobs")
            return str(job["status"]["jobStatus"])

        eventually(status, "Successful")


@pytest.mark.long
def test_a_night_on_a_cluster_that_stays_with_tls(
    documents: dict[str, str], tmp_path: Path
) -> None:
    make_certificates(tmp_path / "tls")
    files = {path.name: path.read_text() for path in (tmp_path / "tls").iterdir()}
    with kubernetes(tmp_path / "cluster", documents) as cluster:
        secret = {"kind": "Secret", "metadata": {"name": "hmrf-tls"}, "stringData": files}
        cluster.apply([secret])
        applied(cluster, "overlays/tls")
        assert cluster.names("deployments") == ["hmrf-scheduler", "hmrf-worker"]
        (night,) = cluster.call(cluster.objects.all, "cronjobs")
        cluster.start_pod("first", night["spec"]["jobTemplate"]["spec"]["template"])
        assert cluster.code_of("first", LONGEST) == 0, (cluster.folder / "first.log").read_text()
        said = (cluster.folder / "first.log").read_text()
    assert "no TLS" not in said
    assert json.loads(said.splitlines()[-1])["documents"]["all"] == 900
    store = fsspec.filesystem("s3")
    store.invalidate_cache()  # of what former nights had there
    (launches,) = store.glob("my-bucket/clusters/runs/*/launches/*.jsonl")
    assert "tls://hmrf-scheduler:8786" in store.cat_file(launches).decode()
