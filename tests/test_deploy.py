"""Every configuration under deploy/ is checked, or run; and a mistake of each kind is found."""

from __future__ import annotations

import gc
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
import yaml
from distributed import get_client

from hmrf_dask.cli.connect import _class_of, connected
from hmrf_dask.jobs.clusters import CLASSES, Cluster
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.releases.release import latest
from tests.support.dask_processes import make_certificates
from tests.support.job_corpus import JobCorpus

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
PLACES = sorted(path for path in DEPLOY.iterdir() if path.is_dir())
WAY = "make setup installs it"
ORIGINS = {
    "kubectl": "install it from Kubernetes' releases",
    "systemd-analyze": "install the system's package systemd",
}


def needs(*modules: str) -> pytest.MarkDecorator:
    lacking = [name for name in modules if find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"{lacking} not installed: make setup does it")


def tool(name: str) -> str:
    """Return a program of the environment or the system, or skip the test."""
    path = BIN / name
    found = str(path) if path.exists() else shutil.which(name)
    return found or pytest.skip(f"{name} is not there: {ORIGINS.get(name, WAY)}")


def checked(*command: str, folder: Path = ROOT) -> str:
    """Return what a program finds wrong, nothing if it finds nothing."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stdout + done.stderr) or "failed"


def changed(path: Path, folder: Path, old: str, new: str) -> Path:
    """Return a copy of a file with a mistake in it."""
    text = path.read_text()
    assert old in text
    copy = folder / path.name
    copy.write_text(text.replace(old, new))
    return copy


# ---- the folders and their pages


@pytest.mark.parametrize("place", PLACES, ids=lambda path: path.name)
def test_each_place_has_its_page_with_four_headings_and_a_row(place: Path) -> None:
    page = (place / "README.md").read_text()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [
        "What it needs",
        "Set up",
        "Run",
        "Clean up",
    ]
    assert f"[{place.name}]({place.name}/README.md)" in (DEPLOY / "README.md").read_text()
    files = [one.name for one in place.iterdir() if one.is_file() and one.name != "README.md"]
    unnamed = [name for name in files if name not in page]
    assert unnamed == [name for name in unnamed if place.name in ("image", "compose", "systemd")]


# ---- programs that know the formats


SCRIPTS = [*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script: Path, tmp_path: Path) -> None:
    assert checked(tool("shellcheck"), str(script)) == ""
    wrong = tmp_path / script.name
    wrong.write_text(f"{script.read_text()}\nrm -r $undefined/*\n")
    assert "SC2154" in checked(tool("shellcheck"), str(wrong))


def test_the_image_is_sound(tmp_path: Path) -> None:
    path = DEPLOY / "image" / "Dockerfile"
    assert checked(tool("hadolint"), str(path)) == ""
    wrong = changed(path, tmp_path, "FROM python:3.11-slim AS build", "FROM python")
    assert "DL3006" in checked(tool("hadolint"), str(wrong))


@pytest.mark.parametrize(
    ("file", "schema", "old", "new"),
    [
        ("compose/compose.yaml", "compose-spec", "healthcheck:", "healthchek:"),
        ("schedules/github.yaml", "github-workflows", "runs-on:", "run-on:"),
    ],
)
@needs("check_jsonschema")
def test_files_are_as_their_schema_says(
    file: str, schema: str, old: str, new: str, tmp_path: Path
) -> None:
    from jsonschema.validators import validator_for
    from ruamel.yaml import YAML

    vendored = find_spec("check_jsonschema")
    assert vendored is not None
    assert vendored.origin is not None
    folder = Path(vendored.origin).parent / "builtin_schemas" / "vendor"
    content = json.loads((folder / f"{schema}.json").read_text())
    validator = validator_for(content)(content)

    def mistakes(path: Path) -> list[str]:
        loaded = YAML(typ="safe", pure=True).load(path.read_text())  # where `on` is no truth value
        return [error.message for error in validator.iter_errors(loaded)]

    assert mistakes(DEPLOY / file) == []
    wrong = changed(DEPLOY / file, tmp_path, old, new)
    assert any(new.rstrip(":") in one for one in mistakes(wrong))


UNITS = ["hmrf-nightly.service", "hmrf-nightly.timer"]


@pytest.mark.parametrize("unit", UNITS)
def test_units_are_sound(unit: str, tmp_path: Path) -> None:
    program = tool("systemd-analyze")
    for name in UNITS:  # this machine has no /srv/clusters
        text = (DEPLOY / "systemd" / name).read_text()
        command = "/srv/clusters/.venv/bin/hmrf-dask"
        (tmp_path / name).write_text(text.replace(command, shutil.which("true") or ""))
    verify = (program, "verify", "--man=no", f"./{unit}")
    assert "hmrf-nightly" not in checked(*verify, folder=tmp_path)
    text = (tmp_path / unit).read_text()
    (tmp_path / unit).write_text(re.sub("^(ExecStart|OnCalendar)=", r"\1=\n\1x=", text, flags=re.M))
    assert "hmrf-nightly" in checked(*verify, folder=tmp_path)


# ---- Kubernetes


CONFIGURATIONS = ("job.yaml", "nightly.yaml", "dask.yaml")
MANIFESTS = sorted(
    path for path in (DEPLOY / "kubernetes").rglob("*.yaml")
    if path.name not in ("kustomization.yaml", "names.yaml", *CONFIGURATIONS)
)  # fmt: skip
RELEASES = ("1.29", "1.34")
Objects = Iterator[dict[str, Any]]


def objects(text: str) -> Objects:
    yield from (one for one in yaml.safe_load_all(text) if one)


def kubernetes_mistakes(content: dict[str, Any]) -> list[str]:
    import kubernetes_validate

    if content["apiVersion"] == "kubernetes.dask.org/v1":
        return _operator_mistakes(content)
    found = []
    for release in RELEASES:
        try:
            kubernetes_validate.validate(content, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(error.message)
    return found


def _operator_mistakes(content: dict[str, Any]) -> list[str]:
    """Return what the operator's own schema, and that of pods, have against its objects."""
    from jsonschema import Draft202012Validator

    located = find_spec("dask_kubernetes.operator")
    assert located is not None
    assert located.origin is not None
    folder = Path(located.origin).parent / "customresources"
    templates = yaml.safe_load((folder / "templates.yaml").read_text())["definitions"]
    kind = content["kind"].lower()
    (version,) = yaml.safe_load((folder / f"{kind}.yaml").read_text())["spec"]["versions"]
    schema = _closed(version["schema"]["openAPIV3Schema"], templates)
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
    found = [error.message for error in Draft202012Validator(schema).iter_errors(content)]
    cluster = content["spec"].get("cluster", content)["spec"]
    parts = [("Pod", cluster["worker"]["spec"]), ("Pod", cluster["scheduler"]["spec"])]
    if "job" in content["spec"]:
        parts.append(("Pod", content["spec"]["job"]["spec"]))
    for part_kind, spec in [*parts, ("Service", cluster["scheduler"]["service"])]:
        part = {"apiVersion": "v1", "kind": part_kind, "metadata": {"name": "part"}, "spec": spec}
        found += kubernetes_mistakes(part)
    return found


def _closed(schema: Any, templates: dict[str, Any]) -> Any:
    """Return a schema with its templates in place, whose objects have the names it says alone.

    Of what Kubernetes' own objects refer to it says nothing.
    """
    if isinstance(schema, list):
        return [_closed(one, templates) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        return _closed(templates.get(schema["$ref"].rpartition("/")[2], {}), templates)
    made = {name: _closed(one, templates) for name, one in schema.items()}
    open_ended = "additionalProperties" in schema or not isinstance(schema.get("properties"), dict)
    return made if open_ended else made | {"additionalProperties": False}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
@needs("kubernetes_validate", "dask_kubernetes")
def test_manifests_are_as_their_schemas_say(path: Path) -> None:
    for content in objects(path.read_text()):
        assert kubernetes_mistakes(content) == []


@needs("kubernetes_validate", "dask_kubernetes")
def test_mistakes_in_manifests_are_found() -> None:
    planted = [
        ("base/cronjob.yaml", "concurrencyPolicy", "concurencyPolicy"),
        ("overlays/once/daskjob.yaml", "replicas: 4", "replicas: four"),
        ("overlays/once/daskjob.yaml", "readinessProbe", "readynessProbe"),
        ("overlays/cluster/role.yaml", "verbs", "verb"),
        ("overlays/cluster/cluster.yaml", "idleTimeout", "idleTimout"),
        ("overlays/cluster/cluster.yaml", "resources", "resource"),
        ("overlays/tls/cluster.yaml", "secretName", "name"),
    ]
    for file, old, new in planted:
        text = (DEPLOY / "kubernetes" / file).read_text()
        assert old in text
        broken = [kubernetes_mistakes(one) for one in objects(text.replace(old, new))]
        assert any(broken), (file, new)


def test_overlays_are_put_together() -> None:
    program = tool("kubectl")
    for folder, kinds in (
        ("base", {"ServiceAccount", "ConfigMap", "CronJob", "NetworkPolicy"}),
        ("overlays/cluster", {"Role", "RoleBinding", "CronJob", "ConfigMap"}),
        ("overlays/once", {"DaskJob", "ConfigMap"}),
        ("overlays/tls", {"Deployment", "Service", "CronJob", "ConfigMap", "NetworkPolicy"}),
    ):
        done = subprocess.run(
            [program, "kustomize", str(DEPLOY / "kubernetes" / folder)],
            capture_output=True,
            text=True,
            check=True,
        )
        every = list(objects(done.stdout))
        made = {one["kind"]: one for one in every}
        assert made.keys() >= kinds
        maps = {one["metadata"]["name"]: one["data"] for one in every if one["kind"] == "ConfigMap"}
        (job,) = [name for name, data in maps.items() if {"job.yaml", "nightly.yaml"} <= set(data)]
        named = {one["kind"]: maps_of(one) for one in every}
        assert set().union(*named.values()) == maps.keys()
        assert job not in named.get("Deployment", ())  # another job.yaml restarts no cluster
        if "CronJob" in made:
            pod = made["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            assert pod["volumes"][0]["configMap"]["name"] == job
            assert pod["containers"][0]["image"].startswith("registry.example.org/hmrf-dask:")
            assert pod["serviceAccountName"] == "hmrf-nightly"


def maps_of(content: Any) -> set[str]:
    """Return the ConfigMaps that the pods of an object name."""
    volumes = [one for pod in pods_of(content) for one in pod.get("volumes", [])]
    return {one["configMap"]["name"] for one in volumes if "configMap" in one}


def pods_of(content: Any) -> list[dict[str, Any]]:
    """Return what says of a pod which containers it has, wherever it lies in objects."""
    if isinstance(content, list):
        return [pod for one in content for pod in pods_of(one)]
    if not isinstance(content, dict):
        return []
    return [content] if "containers" in content else pods_of(list(content.values()))


def unsafe(pod: dict[str, Any]) -> list[str]:
    """Return what a pod lacks of what we promise of all of them."""
    (container,) = pod["containers"]
    own = container.get("securityContext", {})
    mounts = {one["mountPath"] for one in container.get("volumeMounts", [])}
    holds = {
        "no root": pod.get("securityContext", {}).get("runAsNonRoot"),
        "a user": pod.get("securityContext", {}).get("runAsUser") == 10001,
        "a root that is not written to": own.get("readOnlyRootFilesystem") and "/tmp" in mounts,
        "no more rights": own.get("allowPrivilegeEscalation") is False,
        "no capabilities": own.get("capabilities") == {"drop": ["ALL"]},
        "requests": {"cpu", "memory"} <= container["resources"].get("requests", {}).keys(),
        "a limit": "memory" in container["resources"].get("limits", {}),
    }
    return [name for name, held in holds.items() if not held]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_pod_has_limits_and_no_rights(path: Path) -> None:
    for pod in pods_of(list(objects(path.read_text()))):
        assert unsafe(pod) == []


def test_a_pod_with_rights_is_found() -> None:
    text = (DEPLOY / "kubernetes" / "overlays" / "tls" / "cluster.yaml").read_text()
    wrong = text.replace("readOnlyRootFilesystem: true, ", "").replace("limits:", "limit:")
    found = [unsafe(pod) for pod in pods_of(list(objects(wrong)))]
    assert found == [["a root that is not written to", "a limit"]] * 2


# ---- job files, and what they name


@pytest.mark.parametrize(
    "path",
    [one for name in CONFIGURATIONS for one in DEPLOY.rglob(name)],
    ids=lambda path: str(path.relative_to(DEPLOY)),
)
def test_configurations_are_short_and_those_of_one_name_agree(path: Path) -> None:
    assert 3 <= len(path.read_text().splitlines()) <= 15
    if path.name == "nightly.yaml":  # which folders that are copied have each for itself
        assert path.read_text() == (DEPLOY / "compose" / "nightly.yaml").read_text()
    if path.name == "job.yaml" and "$schema" in path.read_text():
        job, usual = (
            yaml.safe_load(one.read_text()) | {"cluster": None}
            for one in (path, DEPLOY / "compose" / "job.yaml")
        )
        assert job == usual  # but for where it runs


JOBS = sorted(path for path in DEPLOY.rglob("job.yaml") if "$schema" in path.read_text())
LINES = [
    *(path for path in DEPLOY.rglob("job.yaml") if path not in JOBS),
    DEPLOY / "gateway" / "coiled.yaml",
]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_job_files_are_read(path: Path) -> None:
    job = load_job(str(path))
    assert job.manifest == "nightly.yaml"
    if job.cluster.insecure:
        assert "insecure: true #" in path.read_text()  # with its reason


@pytest.mark.parametrize("path", LINES, ids=lambda path: path.parent.name + path.stem)
def test_lines_of_a_cluster_are_read(path: Path) -> None:
    assert Cluster(**yaml.safe_load(path.read_text())).least_workers > 1


def _arguments_of(kind: type) -> set[str]:
    """Return what the constructors of a class and of its bases take."""
    inits = [vars(one).get("__init__") for one in kind.__mro__ if one is not object]
    own = {name for one in inits if one for name in inspect.signature(one).parameters}
    jobs = getattr(kind, "job_cls", None)
    return own if jobs is None else own | _arguments_of(jobs)


@pytest.mark.parametrize(
    "name",
    [
        "dask_jobqueue.SLURMCluster",
        "dask_jobqueue.PBSCluster",
        "dask_kubernetes.operator.KubeCluster",
    ],
)
@needs("dask_jobqueue", "dask_kubernetes")
def test_classes_take_what_a_job_may_tell_them(name: str) -> None:
    ctrl_c = signal.getsignal(signal.SIGINT)
    kind = _class_of(name)
    assert signal.getsignal(signal.SIGINT) is ctrl_c
    known = CLASSES[name]
    taken = known.arguments | known.mappings.keys()
    assert taken - _arguments_of(kind) - known.of_scheduler == set()


# ---- what really runs


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def local_cluster(address_file: Path) -> Iterator[psutil.Process]:
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PORT": str(free_port()),
        "WORKERS": "1",
    }
    process = subprocess.Popen(
        ["bash", str(DEPLOY / "local" / "cluster.sh"), str(address_file)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


@pytest.mark.cluster
def test_local_cluster_works_on_loopback_and_leaves_nothing(tmp_path: Path) -> None:
    address_file = tmp_path / "scheduler.json"
    with local_cluster(address_file) as script:
        # Dask waits for the file of a scheduler that is still starting.
        with connected(scheduler_file=str(address_file)):
            assert get_client().submit(sum, [1, 2]).result(timeout=60) == 3
        started = script.children(recursive=True)
        addresses = {
            connection.laddr.ip
            for process in started
            for connection in process.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive


@pytest.mark.parametrize(
    ("codes", "ends", "tries"), [("75 137 0", 0, 3), ("75 65", 65, 2), ("75 75 75 75", 75, 3)]
)
def test_a_night_is_tried_again_where_it_may_pass(
    codes: str, ends: int, tries: int, tmp_path: Path
) -> None:
    command = tmp_path / "hmrf-dask"
    command.write_text(
        '#!/usr/bin/env bash\necho "$*" >> asked\nset -- $CODES\nn=$(wc -l < asked)\n'
        'shift $((n - 1)); exit "$1"\n'
    )
    command.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(DEPLOY / "schedules" / "nightly.sh"), "job.yaml"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "CODES": codes, "TRIES": "3", "PAUSE": "0"},
    )
    assert done.returncode == ends
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["run job.yaml --json --quiet"] * tries


# Starts each task as a process of its own, as Slurm would on nodes, and ends with their worst code.
SRUN = """#!/usr/bin/env bash
tasks=1
while [[ ${1:-} == -* ]]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; -n) tasks=$2; shift ;; esac
    shift
done
for ((task = 0; task < tasks; task++)); do
    SLURM_NTASKS=$tasks SLURM_PROCID=$task "$@" & pids+=($!)
done
trap 'kill "${pids[@]}" 2> /dev/null' TERM
worst=0
for pid in "${pids[@]}"; do wait "$pid" || worst=$?; done
exit "$worst"
"""
HMRF = f'#!/usr/bin/env bash\nname=${{0##*/}}\nexec {sys.executable} -m "${{name/-/_}}" "$@"\n'


def slurm(folder: Path, n_tasks: int) -> dict[str, str]:
    """Return an environment as an allocation has it, with a stand-in for srun."""
    programs = folder / "programs"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("hmrf-dask", HMRF), ("dask", HMRF)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        **make_certificates(folder / "tls"),
        "PATH": f"{programs}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": str(n_tasks),
        "SLURM_CPUS_PER_TASK": "1",
        "DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__ENABLED": "False",
    }


@pytest.mark.long
@pytest.mark.parametrize("script", ["cluster.sbatch", "runner.py"])
@needs("dask_jobqueue")
def test_a_job_runs_in_an_allocation(script: str, tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(60, 10)
    path = str(DEPLOY / "slurm" / script)
    how: dict[str, Callable[[], list[str]]] = {
        "cluster.sbatch": lambda: ["bash", path, str(job)],
        "runner.py": lambda: ["srun", "-n", "3", sys.executable, path, str(job)],
    }
    environment = slurm(tmp_path, 2 if script.endswith("sbatch") else 3)
    command = how[script]()
    command[0] = shutil.which(command[0], path=environment["PATH"]) or ""
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(printed[-1])["documents"]["all"] == 60
    assert latest(str(tmp_path / "out")) is not None


SBATCH = """#!/usr/bin/env bash
setsid bash -c "$(cat "${@: -1}")" > "$PWD/worker-$$.log" 2>&1 & # the script will be gone
echo "Submitted batch job $!"
"""
SCANCEL = '#!/usr/bin/env bash\nfor job in "$@"; do kill -- "-$job"; done\n'


@pytest.mark.long
@needs("dask_jobqueue")
def test_a_job_starts_workers_of_a_batch_system_with_certificates_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {"sbatch": SBATCH, "scancel": SCANCEL}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    kwargs = {"cores": 1, "processes": 1, "memory": "1GB", "host": "127.0.0.1"}
    asked = {"class": "dask_jobqueue.SLURMCluster", "kwargs": kwargs, "workers": 2}
    with (
        dask.config.set({"jobqueue.slurm.shared-temp-directory": str(tmp_path)}),
        connected(cluster=Cluster(**asked)),
    ):
        client = get_client()
        assert client.scheduler.address.startswith("tls://")
        assert len(client.scheduler_info()["workers"]) == 2
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3
        jobs = client.run(os.getpid).values()
    _, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in jobs if psutil.pid_exists(pid)], 30
    )
    assert not alive
    del client
    with warnings.catch_warnings():  # dask_jobqueue leaves certificates' files to the collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
