"""Job files: what they may say, and that every mistake is named at once."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.estimators.classes import ESTIMATORS
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.jobs.job_file import PARAMETERS, Job, json_schema

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
    told = refused(
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
        "method.learn_weights: must be true or false or auto, got 'maybe'",
        "(did you mean 'dask_jobqueue.SLURMCluster'?)",
        "output: is missing",
        "outptu: must not be there (did you mean 'output'?)",
    ):
        assert line in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- a list\n", "must be a mapping of names to values, got a list"),
        ("a: [1\n", "must be YAML"),
        ("output: a\noutput: b\n", "the key 'output' comes twice"),
        ("!!python/object/apply:os.system [ls]\n", "must be YAML"),
    ],
)
def test_a_file_that_is_no_job(text: str, told: str, tmp_path: Path) -> None:
    assert told in refused(tmp_path, text)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"output: \xff\n")
    with pytest.raises(ConfigurationError, match="must be UTF-8"):
        load_job(str(tmp_path / "job.yaml"))


def test_the_table_of_parameters_is_that_of_the_classes() -> None:
    for name, parameters in PARAMETERS.items():
        known = inspect.signature(ESTIMATORS[name]).parameters
        assert parameters == known.keys() - {"n_clusters"}, name


def test_a_method_takes_its_own_parameters_only(tmp_path: Path) -> None:
    told = refused(
        tmp_path,
        SMALLEST.replace("{n_clusters: 3}", "{name: KMeans, n_clusters: 3, closure: true}"),
    )
    assert "method: KMeans must have no closure" in told


@pytest.mark.parametrize(
    ("cluster", "told"),
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
    ],
)
def test_a_cluster_is_one_of_five_ways(cluster: str, told: str, tmp_path: Path) -> None:
    assert told in refused(tmp_path, f"{SMALLEST}cluster: {cluster}\n")


def test_an_output_with_options_says_where_these_belong(tmp_path: Path) -> None:
    text = SMALLEST.replace("output: out", "output: {url: 's3://b/c', storage_options: {}}")
    assert "output: must be a folder or URL" in (told := refused(tmp_path, text))
    assert "AWS_PROFILE" in told


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


def test_the_published_schema_is_the_one_of_the_code() -> None:
    path = ROOT / "data_manifests" / "schema" / "job-v1.json"
    published: dict[str, Any] = json.loads(path.read_text())
    assert published == json_schema(), "write it anew: see data_manifests/README.md"


@pytest.mark.parametrize("name", ["demo", "newsgroups", "arxiv", "nightly"])
def test_shipped_jobs_can_be_read(name: str) -> None:
    folder = ROOT / "pipelines" / name
    job = load_job(str(folder / "job.yaml"))
    assert (folder / job.manifest).exists()
    assert job.name == name
