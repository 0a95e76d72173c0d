"""What machines watch of a run: metrics in a file and at an address, events, Dask's report."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import stat
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result
from distributed import Client, LocalCluster

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.cli.traffic import traffic
from hmrf_dask.cli.watching import HELP, Metrics, watched
from hmrf_dask.errors import ConfigurationError, HmrfWarning
from hmrf_dask.flow.cluster import report_life
from hmrf_dask.storage.remote import answered, open_files, store_traffic
from tests.support.job_corpus import JobCorpus

LINE = re.compile(r'([a-z_]+)(\{[a-z]+="[^"]*"\})? (-?[0-9.e+]+)')


def values_of(text: str) -> dict[str, float]:
    """Return the metrics of a text in Prometheus' format, each of which says what it is."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            assert line.split()[3] in ("gauge", "counter")
        elif not line.startswith("# HELP"):
            found = LINE.fullmatch(line)
            assert found, line
            assert f"# TYPE {found[1]} " in text
            values[found[1]] = float(found[3])
    return values


NO_BASE_UNIT = {
    "ms",
    "milliseconds",
    "minutes",
    "hours",
    "kb",
    "mb",
    "gb",
    "kib",
    "mib",
    "gib",
    "percent",
}


def badly_named(text: str) -> list[str]:
    """Return what `promtool check metrics` finds in names: kinds, base units, help."""
    found = []
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        words = name.split("_")
        found += [name] * (not re.fullmatch("[a-z][a-z_]*", name) or f"# HELP {name} " not in text)
        found += [name] * ((kind == "counter") != (words[-1] == "total"))
        found += [name] * bool({kind, *NO_BASE_UNIT} & set(words))
    return found


def run(job: Path, *options: str) -> Result:
    return CliRunner().invoke(hmrf, ["run", str(job), "--quiet", "--threads=1", *options])


def test_a_run_is_watched(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(60, 5)
    metrics, events = tmp_path / "hmrf.prom", tmp_path / "events.jsonl"
    options = (f"--metrics-file={metrics}", f"--events-file={events}")
    done = run(job, *options)
    assert done.exit_code == 0, done.output
    values = values_of(metrics.read_text())
    assert values.keys() == HELP.keys()
    assert badly_named(metrics.read_text()) == []
    assert values["hmrf_succeeded"] == 1
    assert (values["hmrf_rows"], values["hmrf_moved_rows"]) == (60, 0)
    assert stat.S_IMODE(metrics.stat().st_mode) == 0o644
    reported = [json.loads(line) for line in events.read_text().splitlines()]
    last = [one for one in reported if "J" in one][-1]
    assert last["J"] == values["hmrf_energy"]
    assert values["hmrf_commits_total"] == sum("J" in one for one in reported)
    assert [one["time"] for one in reported] == sorted(one["time"] for one in reported)
    assert {"fit", "publish"} <= {one.get("step") for one in reported}

    assert run(job, *options).exit_code == 0  # nothing is left to do
    assert values_of(metrics.read_text())["hmrf_succeeded"] == 1
    (tmp_path / "job.yaml").write_text(job.read_text().replace("n_clusters: 3", "n_clusters: 500"))
    assert run(job, *options).exit_code == 65
    assert values_of(metrics.read_text())["hmrf_succeeded"] == 0
    assert [path.name for path in tmp_path.glob("tmp*")] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hmrf_bytes", "counter"),
        ("hmrf_rows_total", "gauge"),
        ("hmrf_start_ms", "gauge"),
        ("hmrfRows", "gauge"),
        ("hmrf_rows_gauge", "gauge"),
    ],
)
def test_a_bad_name_of_a_metric_is_found(name: str, kind: str) -> None:
    text = f"# HELP {name} What it is.\n# TYPE {name} {kind}\n{name} 1\n"
    assert name in badly_named(text)
    assert badly_named("# TYPE hmrf_rows gauge\nhmrf_rows 1\n") == ["hmrf_rows"]  # without help


def test_bytes_of_a_bucket_are_counted(tmp_path: Path, s3_options: dict[str, Any]) -> None:
    files, path = open_files(f"s3://runs/{tmp_path.name}", s3_options)
    before = store_traffic()
    options = {name: str(tmp_path / name) for name in ("events_file", "metrics_file")}
    with watched(lambda _: None, options) as tell:
        files.pipe_file(path, bytes(12345))
        assert files.cat_file(path) == bytes(12345)
        tell({"phase": "fit", "iteration": 1, "J": 2.0, "moved": 3, "n_rows": 100})
    (event,) = map(json.loads, (tmp_path / "events_file").read_text().splitlines())
    values = values_of((tmp_path / "metrics_file").read_text())
    for name in ("store_sent_bytes", "store_received_bytes"):
        assert event[name] == before[name] + 12345 == values[f"hmrf_{name}_total"]


def test_requests_that_are_made_again_are_counted() -> None:
    before, errors = store_traffic()["store_retries"], [ConnectionResetError(), TimeoutError()]

    async def ask() -> str:
        if errors:
            raise errors.pop()
        return "there"

    assert asyncio.run(answered(ask, "s3://somewhere")) == "there"
    assert store_traffic()["store_retries"] == before + 2


def _fails_once(path: str) -> bytes:
    report_life()
    if not Path(path).exists():
        Path(path).touch()
        raise OSError("not yet")
    return bytes(2**20)


@pytest.mark.cluster
def test_tasks_that_start_again_and_bytes_of_workers_are_counted(
    process_cluster: LocalCluster, tmp_path: Path
) -> None:
    with Client(process_cluster) as client:
        plugins = partial(client.run_on_scheduler, lambda dask_scheduler: [*dask_scheduler.plugins])
        first = traffic()
        assert first["task_retries"] == 0
        first_worker, second = client.scheduler_info()["workers"]
        made = client.submit(_fails_once, str(tmp_path / "it"), retries=2, workers=[first_worker])
        assert client.submit(len, made, workers=[second]).result(timeout=60) == 2**20
        deadline = time.monotonic() + 60
        while traffic().get("worker_sent_bytes", 0) - first.get("worker_sent_bytes", 0) < 2**20:
            assert time.monotonic() < deadline  # of the next heartbeat
            time.sleep(0.1)
        assert traffic()["task_retries"] == 1
        own = {f"hmrf-counting-{client.id}"}
        assert own <= set(plugins())
    with Client(process_cluster) as client:
        left = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.plugins])
        assert not own & set(left)


def test_metrics_are_served_as_long_as_the_run_lasts() -> None:
    with watched(lambda _: None, {"metrics_address": "127.0.0.1:18464"}) as tell:
        tell({"step": 'count "words"', "done": 2, "of": 5})
        with urlopen("http://127.0.0.1:18464/metrics") as answer:
            text = answer.read().decode()
        assert r'hmrf_step_done{step="count \"words\""} 2' in text
        with pytest.raises(HTTPError, match="404"):
            urlopen("http://127.0.0.1:18464/")
        taken = {"metrics_address": "127.0.0.1:18464"}
        with (
            pytest.raises(ConfigurationError, match="must be a free address"),
            watched(tell, taken),
        ):
            pass


def test_rows_a_second_are_those_of_one_phase() -> None:
    metrics = Metrics()
    event: dict[str, Any] = {"phase": "fit", "iteration": 1, "J": 2.0, "moved": 3, "n_rows": 100}
    metrics.take(event)
    assert "hmrf_rows_per_second" not in metrics.text()
    metrics.take(event | {"phase": "refine"})
    assert "hmrf_rows_per_second" not in metrics.text()
    metrics.take(event | {"phase": "refine", "iteration": 2, "J": float("nan")})
    values = values_of(metrics.text())
    assert values["hmrf_rows_per_second"] > 0
    assert values["hmrf_energy"] == 2.0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--metrics-file={}/none/a.prom", "--metrics-file must be a file that can be written"),
        ("--metrics-file={}", "--metrics-file must be a file that can be written"),
        ("--events-file={}", "--events-file must be a file that can be written"),
        ("--insecure", "--insecure must go with a scheduler"),
        ("--metrics-address=nowhere", "--metrics-address must be a free address"),
        ("--performance-report=a.html", "--performance-report must go with a cluster"),
    ],
)
def test_what_cannot_be_watched_is_refused(option: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    done = run(JobCorpus(tmp_path / "job").write_all(20, 0), option.format(tmp_path))
    assert done.exit_code == 78
    assert message in done.output
    assert list(tmp_path.parent.glob("tmp*")) == []


def test_a_run_that_is_detached_is_not_watched_from_here(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(20, 0)
    done = run(job, "--detach", "--scheduler=tcp://127.0.0.1:9", f"--events-file={tmp_path}/events")
    assert done.exit_code == 2
    assert "--events-file must go without --detach" in " ".join(done.output.split())


@pytest.mark.parametrize("option", ["metrics_file", "events_file"])
def test_a_place_that_is_gone_meanwhile_ends_no_run(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watch").mkdir()
    monkeypatch.setattr("hmrf_dask.cli.watching.EVERY", 0.0)
    events: list[dict[str, Any]] = []
    path = tmp_path / "watch" / "file"
    path.symlink_to("/dev/full" if option == "events_file" else path.parent / "other")
    with watched(events.append, {option: str(path)}) as tell:
        shutil.rmtree(tmp_path / "watch")
        with pytest.warns(HmrfWarning, match="cannot be written any more .* goes on without it"):
            tell({"step": "fit"})
        tell({"step": "fit"})
    assert len(events) == 2
