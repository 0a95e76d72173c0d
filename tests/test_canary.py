"""A secret, put wherever an address or an option can be given, comes out nowhere."""

from __future__ import annotations

import http.server
import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import yaml
from click.testing import CliRunner, Result
from dask.callbacks import Callback
from distributed import get_client

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.cli.connect import connected
from hmrf_dask.constraints import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import HmrfError, HmrfWarning, SourceError
from hmrf_dask.estimators.classes import HMRFKMeans, load
from hmrf_dask.releases.release import latest
from tests.support.long_cases import long

CANARY = "CANARY-5ecret"
SPELLINGS = [
    f"https://user:{CANARY}@127.0.0.1:9/a",
    f"S3://user:pa/{CANARY}@bucket/a",
    f"user:{CANARY}@127.0.0.1:9",
    f"https://user%3A{CANARY}\uff20127.0.0.1:9/a",
    f"s3://bucket/a?sig={CANARY}",
    f"https://127.0.0.1:9/a?password={CANARY}",
    f"https://127.0.0.1:9/a?{CANARY}",
    f"https://127.0.0.1:9/a#access_token={CANARY}",
    f"simplecache::s3://user:{CANARY}@bucket/a",
    f"rows.npz?sig={CANARY}",
]
JOB = {"$schema": "hmrf-dask/job/v1", "manifest": "m.yaml", "output": "out"}
MANIFEST = {
    "$schema": "hmrf-dask/manifest/v1",
    "name": "m",
    "resources": [{"name": "r", "path": "documents.jsonl"}],
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with documents, their manifest and job, rows and pairs."""
    monkeypatch.chdir(tmp_path)
    # What the environment says is allowed to be a secret; it is not shown either.
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    texts = ("orbit moon rocket", "engine brake wheel", "church prayer creed")
    lines = [json.dumps({"id": str(n), "text": texts[n % 3]}) for n in range(30)]
    (tmp_path / "documents.jsonl").write_text("\n".join(lines))
    (tmp_path / "pairs.csv").write_text("a,b,kind\n0,3,must\n0,1,cannot\n")
    rows = np.random.default_rng(0).random((30, 6))
    sp.save_npz(tmp_path / "rows.npz", sp.csr_array(rows))
    write(tmp_path)
    return tmp_path


def write(folder: Path, job: Any = None, manifest: Any = None) -> None:
    """Write a job and a manifest, some of their keys changed."""
    said = {**JOB, "text": {"min_df": 1}, "method": {"n_clusters": 3, "n_init": 1}, **(job or {})}
    (folder / "job.yaml").write_text(yaml.safe_dump(said))
    (folder / "m.yaml").write_text(yaml.safe_dump({**MANIFEST, **(manifest or {})}))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


def refuse_canary(folder: Path, output: str, given: frozenset[str] = frozenset()) -> None:
    """Fail if the secret is in a text, or in the name or the bytes of a file that was not given."""
    assert CANARY not in output, output
    for path in folder.rglob("*"):
        assert CANARY not in str(path)
        if path.is_file() and path.name not in given:
            assert CANARY.encode() not in path.read_bytes(), path


def everywhere(secret: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return what a job and a manifest say, a secret at each place in turn."""
    resource = MANIFEST["resources"][0]  # type: ignore[index]
    cluster = "distributed.LocalCluster"
    jobs: list[dict[str, Any]] = [
        {"output": secret},
        {"manifest": secret},
        {"answers": secret},
        {"answers": ["pairs.csv", secret]},
        {"name": secret},
        {"cluster": secret},
        {"cluster": {"address": secret}},
        {"cluster": {"scheduler_file": secret}},
        {"cluster": {"class": secret}},
        {"cluster": {"class": cluster, "kwargs": {"host": secret}}},
        {"cluster": {"class": cluster, "kwargs": {"name": [secret]}}},
        {"cluster": {"class": cluster, "kwargs": {"scheduler_options": {"host": secret}}}},
        {"cluster": {"class": cluster, "kwargs": {"password": secret}}},
        {"cluster": {"class": cluster, "kwargs": secret}},
        {"text": {"kind": secret}},
        {"text": {"refit": secret}},
        {"method": {"n_clusters": secret}},
        {"method": {"n_clusters": 3, "init": secret}},
        {"mode": secret},
        {"keep": secret},
        {"$schema": secret},
        {secret: 1},
        {"cluster": {"class": cluster, "kwargs": {secret: 1}}},
        {"method": {"n_clusters": 3, secret: 1}},
    ]
    manifests: list[dict[str, Any]] = [
        {"resources": [{**resource, "path": secret}]},
        {"resources": [{**resource, "path": ["documents.jsonl", secret]}]},
        {"resources": [{**resource, "hash": secret}]},
        {"resources": [{**resource, "format": secret}]},
        {"resources": [{**resource, "encoding": secret}]},
        {"resources": [{**resource, "storage_options": {"endpoint_url": secret}}]},
        {"resources": [{**resource, "storage_options": {"profile": secret}}]},
        {"resources": [{**resource, "storage_options": {"secret": secret}}]},
        {"resources": secret},
        {"answers": {"path": secret}},
        {"answers": secret},
        {"storage_options": {"endpoint_url": secret}},
        {"storage_options": {"token": secret}},
        {"storage_options": {"project": secret}},
        {"storage_options": secret},
        {"licenses": [{"path": secret}]},
        {"sources": [{"path": secret}]},
        {"sources": [{"title": secret}]},
        {"homepage": secret},
        {"description": secret},
        {"language": secret},
        {"documents": {"id": secret}},
        {"storage_options": {secret: "x"}},
        {secret: secret},
    ]
    return [(f"job {one}", one, {}) for one in jobs] + [
        (f"manifest {one}", {}, one) for one in manifests
    ]


@pytest.mark.parametrize("secret", [*SPELLINGS[:3], *long(*SPELLINGS[3:])])
def test_what_files_say(secret: str, world: Path) -> None:
    for _, job, manifest in everywhere(secret):
        write(world, job, manifest)
        for arguments in (("run", "job.yaml", "--threads=1"), ("check", "m.yaml", "--json")):
            if arguments[0] == "check" and job:
                continue
            result = run(*arguments)
            assert result.exit_code in (0, 65, 78), (job, manifest, result.output)
            refuse_canary(world, result.output, frozenset(("job.yaml", "m.yaml")))


COMMANDS = {
    "run": [["{}"], ["job.yaml", "--output={}"], ["job.yaml", "--scheduler={}"]],
    "check": [["{}"], ["m.yaml", "{}"]],
    "inspect": [["{}"], ["{}", "--json"]],
    "fit": [
        ["{}", "-k3", "--run-dir=run"],
        ["rows.npz", "-k3", "--run-dir={}"],
        ["rows.npz", "-k3", "--run-dir=run", "--pairs={}"],
        ["rows.npz", "-k3", "--run-dir=run", "--init={}"],
        ["rows.npz", "-k3", "--run-dir=run", "--scheduler-file={}"],
        ["rows.npz", "-k{}", "--run-dir=run"],
        ["rows.npz", "-k3", "--run-dir=run", "--distortion={}"],
        ["rows.npz", "-k3", "--rundir={}"],
    ],
    "predict": [["{}", "rows.npz", "--out=o"], ["m", "{}", "--out=o"], ["m", "r", "--out={}"]],
    "evaluate": [["{}", "t.csv"], ["out", "{}"], ["out", "t.csv", "--pairs={}"]],
    "demo": [["--folder={}"]],
    "completion": [["{}"]],
    "{}": [[]],
}


@pytest.mark.parametrize("secret", SPELLINGS)
def test_what_the_command_line_says(secret: str, world: Path) -> None:
    for command, many in COMMANDS.items():
        for arguments in many:
            result = run(*(one.format(secret) for one in (command, *arguments)))
            assert result.exit_code in (2, 65, 78), (command, arguments, result.output)
            refuse_canary(world, result.output)


@pytest.mark.parametrize("secret", SPELLINGS)
def test_what_python_says(secret: str, world: Path) -> None:
    rows = np.random.default_rng(0).random((9, 3))
    estimator = HMRFKMeans(n_clusters=2, n_init=1, distortion="euclidean")
    for ask in (
        lambda: (
            HMRFKMeans(n_clusters=2, run_dir=secret).fit(rows)
            if "run_dir" in HMRFKMeans().get_params()
            else estimator.fit(rows, run_dir=secret)
        ),
        lambda: estimator.fit(secret),
        lambda: Corpus.from_parquet(secret),
        lambda: Constraints.from_file(secret),
        lambda: Constraints.from_file(f"{secret}.csv"),
        lambda: load(secret),
        lambda: latest(secret),
        lambda: latest("out", storage_options={"client_kwargs": [{"endpoint_url": secret}]}),
        lambda: latest("s3://b", storage_options={"endpoint_url": secret, "secret": CANARY}),
    ):
        with pytest.raises((HmrfError, OSError)) as caught:
            ask()
        refuse_canary(world, f"{caught.value} {caught.value!r}")


def test_a_run_that_ends_well_keeps_nothing_of_options_and_environment(world: Path) -> None:
    write(world, {}, {"storage_options": {"profile": CANARY}})
    keys: list[str] = []
    with Callback(pretask=lambda key, *_: keys.append(str(key))):
        result = run("run", "job.yaml", "--threads=1", "--json")
    assert result.exit_code == 0, result.output
    assert keys
    assert not [key for key in keys if CANARY in key]
    (world / "m.yaml").unlink()
    shown = run("inspect", "out", "--json")
    assert shown.exit_code == 0, shown.output
    refuse_canary(world, result.output + shown.output)


def test_what_is_unexpected_is_shown_without_it(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **more: object) -> None:
        warnings.warn(HmrfWarning(f"at {SPELLINGS[0]}"), stacklevel=1)
        warnings.warn(f"password={CANARY}", stacklevel=1)
        logging.getLogger("library.core").error("lost %s", SPELLINGS[0])
        try:
            raise OSError(f"no answer from {SPELLINGS[0]}")
        except OSError as error:
            raise RuntimeError(f"{{'password': '{CANARY}'}}") from error

    monkeypatch.setattr("hmrf_dask.jobs.places.inspect_output", fail)
    seen = io.StringIO()
    handler = logging.StreamHandler(seen)
    logging.getLogger("library.core").addHandler(handler)
    with pytest.warns(UserWarning, match="password=…"):
        result = run("inspect", "out")
    logging.getLogger("library.core").removeHandler(handler)
    assert result.exit_code == 1
    assert "RuntimeError" in result.output
    assert "no answer from https://…@127.0.0.1:9/a" in result.output
    assert "lost https://…@127.0.0.1:9/a" in seen.getvalue()
    refuse_canary(world, result.output + seen.getvalue())


class Index(http.server.BaseHTTPRequestHandler):
    """A page that links to files by signed addresses."""

    def do_GET(self) -> None:
        page = f'<a href="a.jsonl?sig={CANARY}">a</a> <a href="b.jsonl">b</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *given: object) -> None:
        """Print nothing."""


def test_addresses_that_a_page_lists_have_no_secret(world: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        path = f"http://127.0.0.1:{server.server_port}/in/*"
        resource = {"name": "r", "path": path, "format": "jsonl"}
        write(world, {}, {"resources": [resource]})
        result = run("run", "job.yaml", "--threads=1")
    finally:
        server.shutdown()
        server.server_close()
    assert result.exit_code == 78, result.output
    assert "must have no query" in result.output
    refuse_canary(world, result.output)


@pytest.mark.cluster
def test_what_a_worker_raises_has_no_secret(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise SourceError(f"no answer from {SPELLINGS[0]}")

    with connected(processes=1), pytest.raises(SourceError) as caught:
        get_client().submit(fail).result(timeout=60)
    assert "no answer from https://…@127.0.0.1:9/a" in str(caught.value)
    refuse_canary(world, "".join(capfd.readouterr()) + repr(caught.value))


@pytest.mark.parametrize(
    "quiet", [(), *(pytest.param((one,), marks=pytest.mark.long) for one in ("--quiet", "--json"))]
)
def test_what_another_process_prints(quiet: tuple[str, ...], world: Path) -> None:
    write(world, {"output": SPELLINGS[0], "answers": SPELLINGS[4]})
    command = [sys.executable, "-m", "hmrf_dask", "run", "job.yaml", *quiet]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 78, done.stderr
    assert "output: must not hold a user or a password, got https://…" in done.stderr
    refuse_canary(world, done.stdout + done.stderr, frozenset(("job.yaml",)))


def test_a_reader_that_goes_is_no_fault(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **more: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("hmrf_dask.jobs.places.inspect_output", fail)
    result = run("inspect", "out")
    assert result.exit_code == 141  # as shells say it
    assert "Traceback" not in result.output
