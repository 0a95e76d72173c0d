"""What all commands promise alike: `--json`, `--quiet`, exit codes, Ctrl-C, empty values."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner, Result

from hmrf_dask.cli import show
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.cli.group import AGAIN
from hmrf_dask.errors import ClusterError, ConfigurationError, InvalidInputError
from hmrf_dask.jobs.demo import ClusterSummary, DemoResult, FewAnswers
from hmrf_dask.jobs.plan import Plan, Workers
from tests.support.job_corpus import JobCorpus

# What does the work of each command. `completion` prints a script for a shell, no result.
WORK = {
    "run": "hmrf_dask.jobs.inputs.gather",
    "check": "hmrf_dask.jobs.check.check_manifest",
    "suggest-k": "hmrf_dask.jobs.suggest.suggest_for",
    "plan": "hmrf_dask.jobs.plan.plan_job",
    "inspect": "hmrf_dask.jobs.places.inspect_output",
    "report": "hmrf_dask.jobs.report.write_report",
    "ask": "hmrf_dask.jobs.ask.asked",
    "init": "hmrf_dask.jobs.new_job.job_for",
    "classify": "hmrf_dask.jobs.released.classify_texts",
    "export": "hmrf_dask.jobs.export.export_groups",
    "edit": "hmrf_dask.jobs.released.load_release",
    "diff": "hmrf_dask.jobs.changes.difference",
    "fit": "hmrf_dask.jobs.fit_files.fit_files",
    "predict": "hmrf_dask.jobs.fit_files.predict_files",
    "evaluate": "hmrf_dask.jobs.evaluate_files.evaluate_files",
    "demo": "hmrf_dask.jobs.demo.run_demo",
}
COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-8]|4[0-8]|9[0-7])[0-9;]*m")
all_commands = pytest.mark.parametrize("name", WORK)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents with a finished job, and rows with a finished fit."""
    folder = tmp_path_factory.mktemp("world")
    JobCorpus(folder).write_all(n_documents=45, n_pairs=6)
    groups = np.repeat(np.arange(3), 20)
    dense = np.random.default_rng(0).random((60, 30)) * (groups[:, None] == np.arange(30) // 10)
    sp.save_npz(folder / "rows.npz", sp.csr_array(dense))
    lines = [f"{row},c{group}" for row, group in enumerate(groups)]
    (folder / "truth.csv").write_text("\n".join(["id,label", *lines]))
    for name in ("run", "fit"):
        assert run(name, *_given(folder, name), "-q").exit_code == 0
    return folder


def _given(folder: Path, name: str) -> list[str]:
    """Return the smallest arguments of a command that are right."""
    rows, fitted = str(folder / "rows.npz"), str(folder / "fitted")
    return {
        "run": [str(folder / "job.yaml")],
        "check": [str(folder / "manifest.yaml")],
        "suggest-k": [str(folder / "job.yaml"), "--most=3"],
        "plan": [str(folder / "job.yaml"), "--threads=2"],
        "inspect": [str(folder / "out")],
        "report": [str(folder / "out")],
        "ask": [str(folder / "out"), "-n2"],
        "init": [str(folder / "documents")],
        "classify": [str(folder / "out"), "rocket to the moon"],
        "edit": [str(folder / "out"), "--rename", "0", "Zero"],
        "diff": [str(folder / "out"), "1", "1"],
        "export": [str(folder / "out"), str(folder / "groups.csv")],
        "fit": [rows, "-k3", "--n-init=2", f"--run-dir={fitted}"],
        "predict": [fitted, rows, f"--out={folder / 'predicted'}"],
        "evaluate": [fitted, str(folder / "truth.csv")],
        "demo": [f"--folder={folder / 'demo'}"],
    }[name]


@pytest.fixture(autouse=True)
def short_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo, which takes its time and has tests of its own, end at once."""
    cluster = ClusterSummary(0, 1, ["word"], "numpy.fft", 1.0)
    files = {"rows": "demo/rows", "pairs": "demo/pairs.csv", "run": "demo/run", "report": "r"}
    no_pairs = {"must_link": 0, "cannot_link": 0}
    shares = (0.1, 0.2, 0.1, 0.2)
    few = FewAnswers(1, 0.5, 0.5)
    shown = (1, few, few, no_pairs, 1, "settled", [cluster], files, 1.0)
    result = DemoResult(1, 1, 1, 1, *shares, *shown)
    monkeypatch.setattr(WORK["demo"], lambda *_, **__: result)


@pytest.fixture(autouse=True)
def short_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a plan, which rehearses a job five times and has tests of its own, end at once."""
    documents = {"estimated": 45, "plus_or_minus": 0, "files": 3, "bytes": 9, "read": 45}
    documents |= {"bytes_read": 9, "rehearsed": 45, "bad_records": 0, "characters": 9, "entries": 9}
    memory = {"rows": 1, "rows_stay": True, "centroids": 1, "largest_task": 1, "driver": 1}
    memory |= {"largest_task_is": "a task needs 1 MiB", "worker": 0}
    traffic = {"owners": 0, "to_a_worker": 0, "from_the_driver": 0}
    result = Plan(
        "threads", 2, 2, documents, 10, {"n_clusters": 3, "asked": 3, "chosen_on": 45},
        {"pairs": 6, "documents": 9}, memory, {"read": 9, "written": 9}, traffic, {"fit": 1.0}, 1.0,
        (1.0, 1.0),
        {"iterations": 1}, [Workers(2, 1.0, 1, 0, 0.1, None)], "fit", ["a first run"],
    )  # fmt: skip
    monkeypatch.setattr(WORK["plan"], lambda *_, **__: result)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_every_command_is_here() -> None:
    assert WORK.keys() | {"completion", "answers", "label"} == hmrf.commands.keys()


def leaves(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(
    ("path", "command"), [*leaves(hmrf, "hmrf-dask")], ids=lambda value: str(value)[10:30]
)
def test_help_has_two_examples_and_a_word_on_each_option(path: str, command: click.Command) -> None:
    above = click.Context(hmrf, **hmrf.context_settings)
    context = click.Context(command, parent=above, info_name=path)
    shown = [line[2:] for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    assert len(shown) >= 2
    for line in shown:
        assert line.startswith(f"{path} ")
        given = re.split(" (?:>>?|<) ", line.removeprefix(path))[0]
        command.make_parser(context).parse_args(shlex.split(given))  # all options are there
    for param in command.params:
        assert isinstance(param, click.Argument) or param.help, param.name
    assert all(len(line) <= 80 for line in command.get_help(context).splitlines())


@all_commands
def test_json_is_one_object_and_nothing_else(name: str, world: Path) -> None:
    result = run(name, *_given(world, name), "--json")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), dict)
    assert len(result.stdout.splitlines()) == 1


@all_commands
def test_a_page_is_for_people(name: str, world: Path) -> None:
    result = run(name, *_given(world, name))
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    assert not result.stdout.startswith("{")
    assert "\x1b[" not in result.output


@all_commands
def test_quiet_says_nothing_where_all_is_well(name: str, world: Path) -> None:
    result = run(name, *_given(world, name), "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    printed = run(name, *_given(world, name), "--quiet", "--json")
    assert isinstance(json.loads(printed.stdout), dict)
    assert printed.stderr == ""


@all_commands
@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(InvalidInputError("bad"), 65), (ClusterError("later"), 75), (ConfigurationError("no"), 78)],
)
@pytest.mark.parametrize("more", ["--json", "--quiet"])
def test_an_error_is_its_exit_code_and_one_line(
    name: str,
    error: Exception,
    exit_code: int,
    more: str,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WORK[name], raising(error))
    result = run(name, *_given(world, name), more)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr == f"error: {error}\n"


@all_commands
def test_wrong_usage_ends_with_2(name: str, world: Path) -> None:
    for arguments in ([*_given(world, name), "--no-such-option"], ["one", "two", "three", "four"]):
        result = run(name, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"hmrf {name}" in result.stderr


@all_commands
def test_empty_values_are_refused(name: str, world: Path) -> None:
    command, given = hmrf.commands[name], _given(world, name)
    places = [place for place, text in enumerate(given) if not text.startswith("-")]
    for place in places:
        result = run(name, *given[:place], "", *given[place + 1 :])
        assert result.exit_code == 2
        assert "must not be empty" in result.stderr
    texts = [
        param
        for param in command.params
        if isinstance(param, click.Option) and isinstance(param.type, click.types.StringParamType)
    ]
    for option in texts:
        result = run(name, *given, f"{option.opts[0]}=")
        assert result.exit_code == 2
        assert f"'{option.opts[0]}': must not be empty" in result.stderr


@all_commands
def test_after_ctrl_c_it_says_what_to_do(
    name: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WORK[name], raising(KeyboardInterrupt()))
    result = run(name, *_given(world, name))
    assert result.exit_code == 130
    assert result.stderr.endswith(
        f"interrupted; {AGAIN.get(name, 'run it again to have it all')}\n"
    )


def test_groups_have_examples_and_no_sentence_is_cut() -> None:
    for path in ((), ("answers",)):
        shown = CliRunner().invoke(hmrf, [*path, "--help"], terminal_width=80).stdout.splitlines()
        assert len([line for line in shown if line.startswith("    hmrf-dask ")]) == 2
        assert [line for line in shown[1:] if line.endswith("...")] == []


@all_commands
def test_a_shell_completes_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_HMRF_DASK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"hmrf-dask {name} --")
    monkeypatch.setenv("COMP_CWORD", "2")
    offered = CliRunner().invoke(hmrf, prog_name="hmrf-dask").stdout.split()
    assert {"plain,--json", "plain,--quiet"} <= set(offered)


@pytest.mark.parametrize("no_color", [False, True])
def test_no_color_is_kept(no_color: bool) -> None:
    program = (
        "from hmrf_dask.cli.progress import shown_progress\n"
        "with shown_progress(quiet=False) as tell:\n"
        "    tell({'step': 'count words', 'done': 1, 'of': 3})\n"
    )
    environment = {key: text for key, text in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", **({"NO_COLOR": "1"} if no_color else {})}
    ours, theirs = pty.openpty()
    finished = subprocess.run([sys.executable, "-c", program], stderr=theirs, env=environment)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)
    assert finished.returncode == 0
    assert "count words" in shown
    assert bool(COLOUR.search(shown)) != no_color


def test_inspect_waits_for_the_end_where_a_program_asks(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hmrf_dask.jobs.places import inspect_output

    found = inspect_output(str(world / "out"))
    states = iter([{**found, "running": True}, {**found, "running": True}, found])
    monkeypatch.setattr(WORK["inspect"], lambda _, **__: next(states))
    monkeypatch.setattr("time.sleep", lambda _: None)
    result = run("inspect", str(world / "out"), "--watch", "--json")
    assert json.loads(result.stdout) == {**found, "warnings": []}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "printed"),
    [
        (("run", "manifest.yaml"), 78, "manifest.yaml is a manifest, not a job: `hmrf-dask check "),
        (("run", "xyz://a/job.yaml"), 78, "an unknown kind of store, 'xyz'"),
        (("run", "out"), 78, "out is the output of a job, not a job; `hmrf-dask inspect out` "),
        (("run", "job.yaml", "--output=xyz://a"), 78, "an unknown kind of store, 'xyz'"),
        (("run", "job.yaml", "--output=truth.csv"), 78, "a file where a folder must be"),
        (("inspect", "truth.csv"), 78, "a file where a folder must be"),
        (("evaluate", "fitted", "xyz://a.csv"), 78, "an unknown kind of store, 'xyz'"),
        (("evaluate", "fitted", "none.csv"), 78, "no such file or folder"),
        (
            ("evaluate", "fitted", "truth.csv", "--pairs=xyz://a.csv"),
            78,
            "an unknown kind of store",
        ),
        (("fit", "xyz://a", "-k3", "--run-dir=x"), 78, "an unknown kind of store, 'xyz'"),
        (("fit", "out.npz", "-k3", "--run-dir=x"), 65, "a folder where a file must be"),
        (("predict", "xyz://a", "rows.npz", "--out=x"), 78, "an unknown kind of store, 'xyz'"),
    ],
)
def test_what_stores_say_is_explained_in_words(
    arguments: tuple[str, ...],
    exit_code: int,
    printed: str,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(world)
    (world / "out.npz").mkdir(exist_ok=True)
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert printed in result.stderr
    assert not re.search(r"Error\b|Errno|Protocol", result.stderr)
    assert len(result.stderr.splitlines()) == 1


def test_a_scheduler_file_is_next_to_its_job(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (world / "job.yaml").read_text()
    elsewhere = world / "elsewhere.yaml"
    elsewhere.write_text(f"{text}\ncluster: {{scheduler_file: scheduler.json}}\n")
    monkeypatch.setattr("hmrf_dask.cli.connect.CONNECT_SECONDS", 0.1)
    result = run("run", str(elsewhere), f"--output={world / 'nothing'}")
    assert result.exit_code == 75
    assert f"no scheduler file '{world / 'scheduler.json'}'" in result.stderr


def test_a_store_without_credentials_is_not_asked_again(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type("NoCredentialsError", (Exception,), {})  # botocore's
    monkeypatch.setattr("os.listdir", raising(kind("none found")))
    result = run("inspect", str(world / "out"))
    assert result.exit_code == 78
    assert "got no credentials for it (none found)" in result.stderr


def test_swapped_files_name_the_command_with_its_path(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.parent)
    manifest = f"{world.name}/manifest.yaml"
    assert f"`hmrf-dask check {manifest}`" in run("run", manifest).stderr


def test_the_folder_of_a_run_shows_what_it_reported(world: Path) -> None:
    (folder,) = (world / "out" / "runs").iterdir()
    printed = json.loads(run("inspect", str(folder), "--json").stdout)
    assert (printed["kind"], printed["report"]["run"]) == ("job run", folder.name)
    shown = run("inspect", str(folder)).stdout
    assert "vectorised" in shown
    (folder / "run.json").rename(folder / "aside")
    assert "it did not end" in run("inspect", str(folder)).stdout
    (folder / "aside").rename(folder / "run.json")


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_clusters_that_cannot_be_shown_are_a_line(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "clusters.parquet"
    if content is not None:
        path.write_bytes(content)
    (line,) = show._clusters(str(path), str(tmp_path))
    assert line.startswith("clusters: cannot be read now")
    assert "SourceError" not in line
