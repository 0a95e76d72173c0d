"""The commands over files: `predict`, `evaluate`, `inspect`, and options of `fit`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from click.testing import CliRunner, Result
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.measures.scores import pairwise_f


def run(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 sparse rows of three groups that share no feature, their fit, and new rows."""
    folder = tmp_path_factory.mktemp("fitted")
    groups = np.repeat(np.arange(3), 20)
    dense = np.random.default_rng(0).random((60, 30)) * (groups[:, None] == np.arange(30) // 10)
    sp.save_npz(folder / "rows.npz", sp.csr_array(dense))
    (folder / "pairs.csv").write_text("a,b,kind\n0,1,must\n0,20,cannot\n")
    result = run(
        "fit", str(folder / "rows.npz"), "--pairs", str(folder / "pairs.csv"), "-k3", "--n-init=2",
        f"--run-dir={folder / 'run'}", "--json", "--quiet",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return folder


def test_predict_gives_rows_the_clusters_of_the_model(fitted: Path) -> None:
    out = fitted / "predicted"
    result = run("predict", str(fitted / "run"), str(fitted / "rows.npz"), f"--out={out}", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["n_documents"] == 60
    assert printed["clusters"] == [{"cluster": one, "size": 20} for one in range(3)]
    first, again = (
        pq.read_table(folder / "assignments").to_pydict() for folder in (fitted / "run", out)
    )
    assert first["cluster"] == again["cluster"]
    shown = run("predict", str(fitted / "run"), str(fitted / "rows.npz"), f"--out={out}")
    assert "60 documents in 3 clusters" in shown.stdout
    assert "0: 20, 1: 20, 2: 20" in shown.stdout


def test_rows_that_are_no_table(fitted: Path) -> None:
    np.save(fitted / "words.npy", np.array(["a", "b"]))
    for arguments in (
        ("fit", str(fitted / "words.npy"), "-k2", f"--run-dir={fitted / 'x'}"),
        ("predict", str(fitted / "run"), str(fitted / "words.npy"), f"--out={fitted / 'x'}"),
    ):
        result = run(*arguments)
        assert result.exit_code == 65
        assert "rows must be a table of numbers" in result.stderr
        assert "of shape (2,)" in result.stderr


def test_predict_without_a_model(fitted: Path) -> None:
    result = run("predict", str(fitted), str(fitted / "rows.npz"), f"--out={fitted / 'x'}")
    assert result.exit_code == 65
    assert "without model.json" in result.stderr


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_evaluate_is_what_scikit_learn_says(ending: str, fitted: Path) -> None:
    classes = np.random.default_rng(1).integers(0, 3, 50)  # the last ten are not known
    path = fitted / f"truth.{ending}"
    rows = list(enumerate(classes.tolist()))
    if ending == "csv":
        path.write_text("doc_id,label\n" + "".join(f"{one},c{kind}\n" for one, kind in rows))
    elif ending == "jsonl":
        lines = (json.dumps({"doc_id": str(one), "label": f"c{kind}"}) for one, kind in rows)
        path.write_text("\n".join(lines))
    else:
        columns = {"doc_id": [one for one, _ in rows], "label": [f"c{kind}" for _, kind in rows]}
        pq.write_table(pa.table(columns), path)
    result = run(
        "evaluate", str(fitted / "run"), str(path), f"--pairs={fitted / 'pairs.csv'}", "--json"
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    clusters = pq.read_table(fitted / "run" / "assignments").to_pydict()["cluster"][:50]
    assert (printed["n_documents"], printed["n_compared"], printed["n_unasked"]) == (60, 50, 47)
    assert printed["nmi"] == pytest.approx(normalized_mutual_info_score(classes, clusters))
    assert printed["adjusted_rand"] == pytest.approx(adjusted_rand_score(classes, clusters))
    assert printed["pairwise_f"] == pytest.approx(pairwise_f(classes, clusters))
    asked = np.isin(np.arange(50), [0, 1, 20])
    rest = normalized_mutual_info_score(classes[~asked], np.array(clusters)[~asked])
    assert printed["nmi_unasked"] == pytest.approx(rest)


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("t.csv", "id;label\r\n007;x\r\n2026-11-01;y\r\n1e3;\r\n;\r\n"),
        ("t.csv", "\ufeffid,label,label 2\n007,x,\n2026-11-01,y,\n"),
        (
            "t.jsonl",
            '{"id": "007", "label": 1}\n{"id": "2026-11-01", "label": 2, "z": []}\n{"id": "1e3"}',
        ),
    ],
)
def test_ids_of_known_classes_are_compared_as_they_are_written(
    name: str, truth: str, tmp_path: Path
) -> None:
    assignments = pa.table({"doc_id": ["007", "7", "2026-11-01", "1e3"], "cluster": [1, 1, 2, 2]})
    (tmp_path / "assignments").mkdir()
    pq.write_table(assignments, tmp_path / "assignments" / "a.parquet")
    (tmp_path / name).write_text(truth, newline="")
    result = run("evaluate", str(tmp_path / "assignments"), str(tmp_path / name), "--json")
    found = json.loads(result.stdout)
    assert (found["n_documents"], found["n_compared"], found["nmi"]) == (4, 2, 1.0)


@pytest.mark.parametrize(
    ("truth", "printed"),
    [
        ("name,label\n1,a\n", "must have the columns 'doc_id' and 'label', got name, label"),
        ("doc_id,label\nx,a\n", "ids are such as '0' in the one and 'x' in the other"),
        ("doc_id,label\n00,a\n", "ids are such as '0' in the one and '00' in the other"),
        ("doc_id,label\n\n0,a,b\n", "other.csv, line 3: must have 2 fields (doc_id, label)"),
        ("doc_id,label\n0,a\n1,'a\n\"2,a\n", "other.csv, line 4: not CSV: unexpected end of data"),
        ("doc_id;label\n0;a\n0;b\n", "must have one class, got 'a' and 'b' for '0'"),
    ],
)
def test_classes_that_fit_nothing(truth: str, printed: str, fitted: Path) -> None:
    (fitted / "other.csv").write_text(truth)
    result = run("evaluate", str(fitted / "run"), str(fitted / "other.csv"))
    assert result.exit_code == 65
    assert printed in result.stderr


def test_inspect_describes_a_run_directory(fitted: Path) -> None:
    printed = json.loads(run("inspect", str(fitted / "run"), "--json").stdout)
    assert (printed["kind"], printed["running"]) == ("run", False)
    assert printed["progress"]["fit"]["J"] > 0
    shown = run("inspect", str(fitted / "run")).stdout
    assert "the fit is done" in shown
    assert "J " in shown


def test_inspect_of_another_place(tmp_path: Path) -> None:
    result = run("inspect", str(tmp_path))
    assert result.exit_code == 65
    assert "nothing is there" in result.stderr


def test_fit_takes_what_the_method_takes(fitted: Path) -> None:
    centroids = np.eye(3).repeat(10, axis=1)
    np.save(fitted / "first.npy", centroids)
    result = run(
        "fit", str(fitted / "rows.npz"), "-k3", f"--run-dir={fitted / 'warm'}", "--json",
        "--distortion=euclidean", "--penalty=potts", "--must-link-cost=2", "--cannot-link-cost=0.5",
        "--learn-weights=off", f"--init={fitted / 'first.npy'}", "--refine=off", "--max-iter=3",
        "--no-closure",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["sizes"] == [20, 20, 20]
    model = json.loads((fitted / "warm" / "model" / "model.json").read_text())
    assert model["parameters"]["penalty"] == "potts"
    assert model["parameters"]["must_link_cost"] == 2.0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_HMRF_DASK_COMPLETE" in result.stdout


def test_completion_help_shows_lines_to_type() -> None:
    lines = [line.strip() for line in run("completion", "--help").stdout.splitlines()]
    assert "hmrf-dask completion bash >> ~/.bashrc" in lines
    assert "hmrf-dask completion fish > ~/.config/fish/completions/hmrf-dask.fish" in lines


def test_a_shell_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_HMRF_DASK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "hmrf-dask in")
    monkeypatch.setenv("COMP_CWORD", "1")
    result = CliRunner().invoke(hmrf, prog_name="hmrf-dask")
    assert "plain,inspect" in result.stdout


def test_inspect_needs_the_output_of_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("output: clusters")
    result = run("inspect", str(tmp_path / "job.yaml"))
    assert (result.exit_code, result.stdout) == (65, "")
    assert "give it the folder that the job names as output" in result.stderr
