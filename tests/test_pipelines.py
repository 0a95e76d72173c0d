"""The shipped pipelines: their jobs run on small data, their schedules know our exit codes."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from hmrf_dask import errors
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.databases.connection import open_database
from hmrf_dask.documents.builtin import Document
from hmrf_dask.documents.manifest import load_manifest
from hmrf_dask.jobs.inputs import load_job
from pipelines.newsgroups import fetch
from pipelines.tickets import play
from tests.support.job_corpus import lines

ROOT = Path(__file__).parents[1]
PIPELINES = ROOT / "pipelines"
NIGHTLY = PIPELINES / "nightly"
DEPLOY = ROOT / "deploy"
CRON_JOB = DEPLOY / "kubernetes" / "base" / "cronjob.yaml"
N_DOCUMENTS, N_TOPICS = 400, 10
TRY_AGAIN = errors.HeldError.exit_code


def drawn(first: int, n_documents: int) -> list[Document]:
    """Return documents of ten topics: every topic's words are in most of its documents."""
    made = []
    for number in range(first, first + n_documents):
        topic = number % N_TOPICS
        words = [
            f"word{'abcdefghij'[topic]}{(number * 7 + step * step) % 17}" for step in range(30)
        ]
        made.append(Document(f"topic-{topic}/{number}", " ".join(words), f"topic-{topic}"))
    return made


def copied(name: str, folder: Path, old: str = "", new: str = "") -> Path:
    """Copy job and manifest of a pipeline; of their content only a place may change."""
    job = yaml.safe_load((PIPELINES / name / "job.yaml").read_text())
    manifest = (PIPELINES / name / job["manifest"]).resolve()
    for source in (PIPELINES / name / "job.yaml", manifest):
        text = source.read_text()
        text = text.replace(job["manifest"], manifest.name)
        (folder / source.name).write_text(text.replace(old, new) if old else text)
    return folder / "job.yaml"


def run(job: Path, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(hmrf, ["run", str(job), "--json", "--quiet", "--threads=2", *options])
    assert done.exit_code == 0, done.output
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def write_lines(path: Path, records: list[dict[str, Any]], bad: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records) + bad)


# ---- the jobs


def test_demo(tmp_path: Path) -> None:
    job = copied("demo", tmp_path, "builtin://docstrings", "documents.jsonl")
    write_lines(tmp_path / "documents.jsonl", [one._asdict() for one in drawn(0, N_DOCUMENTS)])
    printed = run(job)
    assert printed["documents"]["all"] == N_DOCUMENTS
    assert printed["clusters"]["number"] == 12
    assert printed["nmi"] > 0.8


def test_newsgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "read_builtin", lambda url: iter(drawn(0, N_DOCUMENTS)))
    fetch.main(tmp_path)
    printed = run(copied("newsgroups", tmp_path))
    assert printed["documents"]["all"] == N_DOCUMENTS
    assert sum(printed["answers"]["pairs"].values()) == fetch.N_ANSWERS
    assert printed["answers"]["unknown"] == 0
    assert printed["nmi"] > 0.8


def test_arxiv(tmp_path: Path) -> None:
    """Lines as the snapshot of arXiv has them."""
    records = [
        {
            "id": f"{2000 + number // 100}.{number:05}",
            "submitter": None,
            "authors": "A. Author",
            "title": "A title",
            "categories": one.label,
            "abstract": f"  {one.text}\n",
            "versions": [{"version": "v1", "created": "Mon, 2 Apr 2007 19:18:42 GMT"}],
            "update_date": "2008-11-26",
            "authors_parsed": [["Author", "A.", ""]],
        }
        for number, one in enumerate(drawn(0, N_DOCUMENTS))
    ]
    snapshot = tmp_path / "arxiv-metadata-oai-snapshot.json"
    write_lines(snapshot, records, bad='{"id": "2007.1, cut off\n')
    printed = run(copied("arxiv", tmp_path))
    assert (printed["documents"]["all"], printed["documents"]["quarantined"]) == (N_DOCUMENTS, 1)
    assert printed["clusters"]["number"] == 100


def test_three_nights(tmp_path: Path) -> None:
    """At first; documents and answers come, a file and an answered document go; nothing new."""
    bucket = tmp_path / "bucket"
    job = copied("nightly", tmp_path, "s3://my-bucket", str(bucket))
    assert str(bucket / "clusters") in job.read_text()

    def arrive(day: int, first: int, n_documents: int) -> Path:
        records = [
            {"message_id": one.id, "body": one.text, "sent": f"2026-11-{day:02}"}
            for one in drawn(first, n_documents)
        ]
        path = bucket / "messages" / f"day-{day}" / "part.jsonl.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(lines([*records, {"message_id": f"no-body/{day}"}]))
        return path

    def answer(name: str, pairs: str) -> None:
        path = bucket / "answers" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"a,b,kind\n{pairs}")

    gone = arrive(1, 0, 50)
    arrive(2, 50, 300)
    answer("first.csv", "topic-1/1,topic-1/51,must\ntopic-2/62,topic-3/73,cannot\n")
    first = run(job)
    assert first["documents"].items() >= {"all": 350, "vectorised": 350, "quarantined": 2}.items()
    assert first["answers"]["pairs"] == {"must": 1, "cannot": 1}

    gone.unlink()
    arrive(3, 350, 50)
    answer("second.csv", "topic-4/54,topic-4/354,must\n")
    second = run(job)
    assert second["files"] == {"all": 2, "new": 1, "changed": 0, "gone": 1}
    assert second["documents"].items() >= {"all": 350, "vectorised": 350, "quarantined": 2}.items()
    assert second["answers"]["pairs"] == {"must": 1, "cannot": 1}
    assert (second["answers"]["unknown"], second["answers"]["waiting"]) == (0, 1)
    assert (second["documents"]["new"], second["documents"]["gone"]) == (50, 50)
    assert second["start"] == "warm"

    assert run(job)["status"] == "up to date"


def test_tickets(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets come, change, are closed and opened again: the database shows each night."""
    monkeypatch.setenv(play.URL_ENV, database)
    job = copied("tickets", tmp_path)
    counts, shown = [], []
    for night in range(1, play.NIGHTS + 1):
        play.evening(night)
        counts.append(run(job)["documents"])
        with open_database(play.URL_ENV) as opened:
            shown.append(opened.rows(play.SHOWN))
            listed = opened.rows("SELECT release, documents FROM clusters_of_tickets_releases")
    assert [one["all"] for one in counts] == [300, 310, 331]
    assert [one["new"] for one in counts[1:]] == [20, 21]
    assert [one["gone"] for one in counts[1:]] == [10, 0]
    assert 5 <= counts[1]["changed"] <= 10  # who is read again for being newest is the same
    assert [sum(number for *_, number in one) for one in shown] == [300, 310, 331]
    assert sorted(listed) == [(1, 300), (2, 310), (3, 331)]
    checked = CliRunner().invoke(hmrf, ["check", str(job)])
    assert re.match(r"\d segments? \(\d sql\)", checked.stdout)
    assert "releases are shown as clusters_of_tickets" in checked.output
    ids = [{cluster for cluster, *_ in one} for one in shown]
    assert len(ids[0] & ids[2]) >= 5  # of six: clusters are the same ones
    with pytest.raises(errors.ConfigurationError, match="already exists"):
        play.evening(1)  # somebody's tables are not replaced


# ---- the schedules


def parse(command: str) -> click.Context:
    """Read a command line as the program would, without running it."""
    program, name, *arguments = shlex.split(command)
    assert PurePosixPath(program).name == "hmrf-dask"
    return hmrf.commands[name].make_context(name, arguments)


def codes_for_a_person() -> set[int]:
    """Return all our exit codes that another try cannot change; 1 is a mistake of the program."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    ours = {one.exit_code for one in kinds if issubclass(one, errors.HmrfError)}
    assert TRY_AGAIN in ours
    return (ours | {click.UsageError.exit_code}) - {TRY_AGAIN}


Pod = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


@pytest.fixture
def pod() -> Pod:
    """Give the job, its pod and its container of the Kubernetes manifest."""
    content = yaml.safe_load(CRON_JOB.read_text())
    assert (content["apiVersion"], content["kind"]) == ("batch/v1", "CronJob")
    assert content["spec"]["concurrencyPolicy"] == "Forbid"
    job = content["spec"]["jobTemplate"]["spec"]
    template = job["template"]["spec"]
    (container,) = template["containers"]
    return job, template, container


def test_the_cron_job_tries_again_what_another_try_may_solve(pod: Pod) -> None:
    job, template, container = pod
    assert template["restartPolicy"] == "Never"  # a podFailurePolicy is for nothing else
    drained, failed = job["podFailurePolicy"]["rules"]
    assert drained["action"] == "Ignore"
    assert drained["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert failed["action"] == "FailJob"
    codes = failed["onExitCodes"]
    assert codes["containerName"] == container["name"]
    assert (codes["operator"], set(codes["values"])) == ("In", codes_for_a_person())
    assert job["backoffLimit"] >= 5  # a pod that was killed holds the output for 90 seconds


def test_the_cron_job_runs_our_command_where_only_its_volumes_can_be_written(pod: Pod) -> None:
    _, template, container = pod
    given = parse(shlex.join(container["command"])).params
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in template["volumes"]}
    assert "configMap" in volumes[mounts[str(PurePosixPath(given["job_file"]).parent)]]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    writable = [PurePosixPath(at) for at, name in mounts.items() if "emptyDir" in volumes[name]]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert any(PurePosixPath(environment["HOME"]).is_relative_to(one) for one in writable)
    assert any(PurePosixPath("/tmp").is_relative_to(one) for one in writable)
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]  # the plan of memory is made of the limit
    job = yaml.safe_load((NIGHTLY / "job.yaml").read_text())
    assert "/" not in job["manifest"]  # a ConfigMap is one folder


def section(unit: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # as it is done
    parser.read(DEPLOY / "systemd" / unit)
    return dict(parser[name])


def test_the_service_tries_again_what_another_try_may_solve() -> None:
    service = section("hmrf-nightly.service", "Service")
    assert parse(service["ExecStart"]).params["quiet"]
    assert service["Restart"] == "on-failure"
    assert {int(one) for one in service["RestartPreventExitStatus"].split()} == codes_for_a_person()
    assert "RestartForceExitStatus" not in service  # systemd refuses it where Type=oneshot
    assert service["Type"] == "oneshot"
    folder = PurePosixPath(service["WorkingDirectory"])
    assert service["ReadWritePaths"] == str(folder)
    environment = dict(one.split("=") for one in service["Environment"].split())
    assert PurePosixPath(environment["NUMBA_CACHE_DIR"]).is_relative_to(folder)


def test_timer_and_cron_job_begin_at_the_same_time_whatever_the_season() -> None:
    content = yaml.safe_load(CRON_JOB.read_text())["spec"]
    minute, hour, *rest = content["schedule"].split()
    assert rest == ["*"] * 3
    assert content["timeZone"] == "Etc/UTC"
    timer = section("hmrf-nightly.timer", "Timer")
    assert timer["OnCalendar"] == f"*-*-* {hour:0>2}:{minute:0>2}:00 UTC"


# ---- what the pages tell to type


def commands_of(page: Path) -> Iterator[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for line in "".join(text for language, text in blocks if not language).splitlines():
        if found := re.search(r"hmrf-dask [^#>|&]+", line):
            yield found[0].strip()


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
    *PIPELINES.rglob("README.md"),
    *(ROOT / "deploy").rglob("README.md"),
]


def test_commands_on_the_pages_are_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hmrf-scheduler.json", "scheduler.json"):  # an option wants it to be there
        (tmp_path / name).touch()
    commands = [command for page in PAGES for command in commands_of(page)]
    assert len(commands) >= 5
    for command in commands:
        parse(command)


def commands_of_deploy() -> Iterator[str]:
    """Yield our commands in scripts, images, schedules, and in the lists of YAML files."""
    for path in sorted((ROOT / "deploy").rglob("*")):
        if path.suffix in (".sh", ".sbatch", ".service", ".py", "") and path.is_file():
            text = path.read_text().replace("\\\n", " ")
            for found in re.findall(r"(?:^|[\s=/])hmrf-dask ([^#>|&)\n]+)", text):
                yield f"hmrf-dask {found.strip()}"
        elif path.suffix == ".yaml":
            for found in re.findall(r"\[hmrf-dask, (.+)\]$", path.read_text(), re.MULTILINE):
                yield f"hmrf-dask {found.replace(',', '')}"


def test_commands_of_deploy_are_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [
        one.replace("$here/", "").replace("$job", "job.yaml") for one in commands_of_deploy()
    ]
    assert len(commands) >= 7
    (tmp_path / "scheduler.json").touch()
    for command in commands:
        parse(command.replace("|| code=$?", ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_on_the_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_on_the_pages_are_there(page: Path) -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text())
    places = (ROOT, ROOT / "hmrf_dask", page.parent)
    assert [name for name in named if not any((top / name).exists() for top in places)] == []


def test_the_files_on_the_pages_can_be_read(tmp_path: Path) -> None:
    text = (ROOT / "data_manifests" / "README.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        if "hmrf-dask/job/v1" in block:
            assert load_job(str(path)).text is not None
        else:
            assert load_manifest(str(path)).answers is not None


def test_the_image_is_made_of_files_that_are_there() -> None:
    text = (DEPLOY / "image" / "Dockerfile").read_text()
    names = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)).split()
    assert "requirements/lock.txt" in names
    for name in names:
        assert (ROOT / name).exists()
    assert "USER 10001" in text
