"""The commands: what they print where, their exit codes, and that `--help` stays light."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.corpus.partitioned import as_corpus
from hmrf_dask.errors import ClusterError, HmrfWarning, InvalidInputError, MemoryPlanError

HEAVY = {"numpy", "scipy", "sklearn", "pyarrow", "numba", "dask", "distributed", "rich"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


@pytest.mark.parametrize(
    "command", [["label"], ["ask"], ["report"], ["inspect"], ["classify", "-"], ["export", "x.csv"]]
)
def test_a_job_where_its_output_belongs_is_refused_with_the_path_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets").mkdir()
    Path("tickets/job.yaml").write_text("$schema: hmrf-dask/job/v1\noutput: out\n")
    for place, what in (("tickets", "the folder of a job"), ("tickets/job.yaml", "a job file")):
        result = run(command[0], place, *command[1:])
        assert result.exit_code == 78
        assert result.stderr == (
            f"error: {place} is {what}, not its output: that is tickets/out, give it\n"
        )


def test_errors_name_paths_below_this_folder_as_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.csv").write_text("note\nhello\n")
    result = run("init", "notes.csv")
    assert result.stderr.startswith("error: notes.csv: must have a column")
    assert "add one, such as a number that stays with its row" in result.stderr


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """60 sparse rows of three groups that share no feature, and four right answers."""
    groups = np.repeat(np.arange(3), 20)
    dense = np.random.default_rng(0).random((60, 30)) * (groups[:, None] == np.arange(30) // 10)
    sp.save_npz(tmp_path / "rows.npz", sp.csr_array(dense))
    (tmp_path / "pairs.csv").write_text(
        "a,b,kind\n0,1,must\n20,21,must\n0,20,cannot\n1,40,cannot\n"
    )
    return tmp_path


def fit_blobs(folder: Path, *more: str) -> Result:
    return run(
        "fit",
        str(folder / "rows.npz"),
        "--pairs",
        str(folder / "pairs.csv"),
        "--n-clusters=3",
        "--random-state=0",
        f"--run-dir={folder / 'run'}",
        *more,
    )


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom hmrf_dask.cli.commands import hmrf\n"
        "hmrf(['--help'], standalone_mode=False)\n"
        "print(*(name for name in sys.modules if '.' not in name))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert output.startswith("Usage: ")
    assert not HEAVY & set(output.splitlines()[-1].split())


def test_help_names_every_command_and_exit_code() -> None:
    text = run("--help").stdout
    for word in (*hmrf.commands, "65 bad data", "75 try again", "78 bad configuration"):
        assert word in " ".join(text.split())


def test_the_module_runs_like_the_script() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "hmrf_dask", "fit", "--threads", "0"], capture_output=True, text=True
    )
    assert finished.returncode == 2
    assert "hmrf-dask fit" in finished.stderr
    assert finished.stdout == ""


def test_a_command_ends_before_python_is_taken_down() -> None:
    """Else a thread of Arrow that gives back memory then aborts it; what has to end still does."""
    program = (
        "import sys\nfrom hmrf_dask.cli.commands import main\n"
        "class Late:\n    def __del__(self):\n        print('taken down', flush=True)\n"
        "late = Late()\nimport threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('waited'))).start()\n"
        "sys.argv = ['hmrf-dask', *sys.argv[1:]]\nmain()"
    )
    for argument, code in (("--version", 0), ("--nothing", 2)):
        finished = subprocess.run(
            [sys.executable, "-c", program, argument], capture_output=True, text=True
        )
        assert finished.returncode == code
        assert finished.stdout.splitlines()[-1] == "waited"


def test_dask_finds_the_group() -> None:
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="dask_cli", name="hmrf")
    assert entry.load() is hmrf
    assert isinstance(hmrf, click.Group)


def test_fit_writes_an_assignment_for_every_document(blobs: Path) -> None:
    result = fit_blobs(blobs, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["sizes"] == [20, 20, 20]
    assert summary["n_pairs"] == 4
    assert summary["violations"] == {"must_link": 0, "cannot_link": 0}
    table = pq.read_table(summary["files"]["assignments"]).to_pydict()
    assert table["doc_id"] == list(range(60))
    groups = np.reshape(table["cluster"], (3, 20))
    assert (groups == groups[:, :1]).all()


def test_fit_prints_a_page_to_stdout(blobs: Path) -> None:
    result = fit_blobs(blobs)
    assert result.exit_code == 0, result.output
    assert "60 documents in 3 clusters" in result.stdout
    assert "violated pairs: 0 of 4" in result.stdout
    assert "\x1b[" not in result.stdout


def test_the_same_fit_again_gives_the_same_answer(blobs: Path) -> None:
    first = json.loads(fit_blobs(blobs, "--json").stdout)
    resumed = json.loads(fit_blobs(blobs, "--json").stdout)
    fresh = json.loads(fit_blobs(blobs, "--json", "--fresh", "--threads=1").stdout)
    assert first == resumed == fresh


def test_fresh_starts_a_run_with_another_configuration(blobs: Path) -> None:
    assert fit_blobs(blobs).exit_code == 0
    refused = fit_blobs(blobs, "--distortion=euclidean")
    assert refused.exit_code == 78
    assert refused.stderr.startswith("error: ")
    assert fit_blobs(blobs, "--distortion=euclidean", "--fresh").exit_code == 0


def test_fresh_removes_nothing_where_there_are_other_files(blobs: Path) -> None:
    assert fit_blobs(blobs).exit_code == 0
    (blobs / "run" / "notes.txt").write_text("mine")
    before = sorted(blobs.rglob("*"))
    result = fit_blobs(blobs, "--fresh")
    assert result.exit_code == 78
    assert "notes.txt of no run" in result.stderr
    assert sorted(blobs.rglob("*")) == before


def test_pairs_of_a_corpus_name_its_ids(blobs: Path) -> None:
    corpus = as_corpus(sp.load_npz(blobs / "rows.npz"), ids=[f"d{row}" for row in range(60)])
    corpus.repartition(3).to_parquet(str(blobs / "rows"))
    (blobs / "ids.csv").write_text("a,b,kind\nd0,d1,must\nd0,d20,cannot\n")
    result = run(
        "fit",
        str(blobs / "rows"),
        f"--pairs={blobs / 'ids.csv'}",
        "--n-clusters=3",
        "--random-state=0",
        f"--run-dir={blobs / 'run'}",
        "--json",
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["sizes"] == [20, 20, 20]
    table = pq.read_table(summary["files"]["assignments"]).to_pydict()
    assert sorted(table["doc_id"]) == sorted(f"d{row}" for row in range(60))


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (InvalidInputError("rows must be\n  finite, got NaN in row 3"), 65),
        (ClusterError("no workers"), 75),
        (MemoryPlanError("needs 3 GiB"), 78),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    error: Exception, exit_code: int, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("hmrf_dask.jobs.fit_files.fit_files", fail)
    result = fit_blobs(blobs)
    assert result.exit_code == exit_code
    assert result.stdout == ""
    assert result.stderr == f"error: {' '.join(str(error).split())}\n"


def test_a_warning_is_one_line_on_stderr(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: object, **__: object) -> None:
        warnings.warn("2 rows are\n zero", HmrfWarning, stacklevel=1)
        raise InvalidInputError("stop here")

    monkeypatch.setattr("hmrf_dask.jobs.fit_files.fit_files", warn)
    assert fit_blobs(blobs).stderr == "warning: 2 rows are zero\nerror: stop here\n"


def test_quiet_shows_warnings_and_json_lists_them(
    blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hmrf_dask.jobs import fit_files

    fitted = fit_files.fit_files

    def warn(*given: Any, **named: Any) -> Any:
        for _ in range(2):
            warnings.warn("2 rows are\n zero", HmrfWarning, stacklevel=1)
        warnings.warn("a library will change", UserWarning, stacklevel=1)
        return fitted(*given, **named)

    assert json.loads(fit_blobs(blobs, "--json").stdout)["warnings"] == []
    monkeypatch.setattr("hmrf_dask.jobs.fit_files.fit_files", warn)
    quiet = fit_blobs(blobs, "--quiet", "--json")
    assert quiet.stderr == "warning: 2 rows are zero\n"
    assert json.loads(quiet.stdout)["warnings"] == ["2 rows are zero"]


def test_progress_is_on_stderr(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmrf_dask.cli.progress.AFTER", 0.0)
    result = fit_blobs(blobs, "--json")
    steps = ("1 of 4: read the rows", "2 of 4: find clusters", "4 of 4: write the report", "done")
    assert [step for step in steps if step not in result.stderr] == []
    assert len(result.stdout.splitlines()) == 1


def test_an_interrupt_is_one_line(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hmrf_dask.jobs.fit_files.fit_files", stop)
    result = fit_blobs(blobs)
    assert result.exit_code == 130
    assert result.stderr == (
        "interrupted; run it again, without --fresh: it resumes where it stopped\n"
    )


def test_kinds_and_notes_of_pairs_are_those_that_people_write(blobs: Path) -> None:
    fitted = json.loads(fit_blobs(blobs, "--json").stdout)
    lines = "0,1,1,me\n20,21,True,me\n0,20,DIFFERENT,\n1,40,no,\n"
    (blobs / "pairs.csv").write_text(f"a,b,kind,annotator\n{lines}")
    again = json.loads(fit_blobs(blobs, "--json").stdout)
    assert (again["n_pairs"], again["objective"]) == (4, fitted["objective"])


def test_contradictions_can_be_dropped(blobs: Path) -> None:
    with (blobs / "pairs.csv").open("a") as file:
        file.write("0,21,must\n")
    refused = fit_blobs(blobs, "--on-conflict=raise")
    assert refused.exit_code == 65
    assert "0 ≠ 20" in refused.stderr
    warned = fit_blobs(blobs, "--fresh")
    assert warned.exit_code == 0
    chain = "0 = 21 = 20 but 0 ≠ 20"
    kept = "warning: must-links contradict 1 cannot-link, kept as pairs that may be broken"
    assert warned.stderr.startswith(f"{kept}: {chain}")
    assert "1 answer more likely wrong than right (--json lists them)" in warned.stdout
    (suspect,) = json.loads(fit_blobs(blobs, "--json").stdout)["suspect_answers"]
    assert (suspect["a"], suspect["b"], suspect["kind"]) == (0, 21, "must")
    dropped = fit_blobs(blobs, "--on-conflict=drop", "--fresh")
    assert dropped.exit_code == 0
    assert dropped.stderr.startswith("warning: must-links contradict 1 cannot-link, dropped")


def test_one_way_to_run_is_enough(blobs: Path) -> None:
    result = fit_blobs(blobs, "--threads=1", "--processes=1")
    assert result.exit_code == 2
    assert "--threads and --processes exclude each other" in result.stderr


def test_an_address_that_is_none_is_refused(blobs: Path) -> None:
    result = fit_blobs(blobs, "--scheduler=nonsense")
    assert result.exit_code == 78
    assert "must look like tcp://host:port, got 'nonsense'" in result.stderr


@pytest.mark.parametrize("name", ["missing.npz", "missing", "broken.npz", "broken.npy", "rows.csv"])
def test_rows_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    for broken in ("broken.npz", "broken.npy", "rows.csv"):
        (tmp_path / broken).write_text("no numbers here")
    path = str(tmp_path / name)
    result = run("fit", path, "--n-clusters=2", f"--run-dir={tmp_path / 'run'}")
    assert result.exit_code == 65
    assert repr(path) in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
