"""Files of others stay where `fit`, `predict`, `demo` and `save` write, and where a fit cleans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner, Result

from hmrf_dask import HMRFKMeans, load
from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.releases.own_files import RUN_DIRECTORY, is_own
from tests.support.stores import files_below, iterate, opener

GROUPS = np.repeat(np.arange(3), 20)
DENSE = np.random.default_rng(0).random((60, 30)) * (GROUPS[:, None] == np.arange(30) // 10)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, [*arguments])


def fit(folder: Path, *options: str, run_dir: str = "run", rows: str = "rows.npz") -> Result:
    return command(
        "fit", str(folder / rows), "-k3", "--n-init=2", "--quiet", "--threads=2",
        f"--run-dir={folder / run_dir}", *options,
    )  # fmt: skip


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    sp.save_npz(tmp_path / "rows.npz", sp.csr_array(DENSE))
    (tmp_path / "pairs.csv").write_text("a,b,kind\n0,1,must\n0,20,cannot\n")
    result = fit(tmp_path, "--pairs", str(tmp_path / "pairs.csv"))
    assert result.exit_code == 0, result.output
    return tmp_path


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 78, result.output
    for word in words:
        assert word in result.output
    assert "Traceback" not in result.output


def test_every_file_of_a_fit_has_a_form(fitted: Path) -> None:
    names = files_below(str(fitted / "run"))
    assert {"run.json", "FINAL.json", "model/model.json"} <= names
    assert [name for name in names if not is_own(name, RUN_DIRECTORY)] == []


@pytest.mark.parametrize(
    "name", ["labels/mine.txt", "state/notes.npz", "notes", "model/notes.txt", "labels/00001/a.csv"]
)
def test_fresh_removes_nothing_where_there_are_files_of_others(name: str, fitted: Path) -> None:
    (fitted / "run" / name).parent.mkdir(exist_ok=True, parents=True)
    (fitted / "run" / name).write_text("mine")
    before = files_below(str(fitted / "run"))
    refused(fit(fitted, "--fresh"), name, "of no run lies")
    assert files_below(str(fitted / "run")) == before


def test_fresh_follows_no_link(fitted: Path) -> None:
    run, elsewhere = fitted / "run", fitted / "elsewhere"
    (run / "labels").rename(elsewhere)
    (run / "labels").symlink_to(elsewhere)
    before = files_below(str(elsewhere))
    refused(fit(fitted, "--fresh"), "labels of no run lies")
    assert files_below(str(elsewhere)) == before
    (run / "labels").unlink()
    assert fit(fitted, "--fresh").exit_code == 0
    # The run directory itself may be a link: it is what was named.
    (fitted / "link").symlink_to(run)
    assert fit(fitted, "--fresh", run_dir="link").exit_code == 0
    assert (fitted / "link").is_symlink()


def test_fresh_needs_a_run_directory(fitted: Path) -> None:
    (fitted / "run" / "run.json").rename(fitted / "elsewhere.json")
    before = files_below(str(fitted / "run"))
    refused(fit(fitted, "--fresh"), "only a run directory can be started afresh")
    assert files_below(str(fitted / "run")) == before


@pytest.mark.parametrize(
    ("run_dir", "rows", "word"),
    [
        ("blocks", "blocks", "which is it"),
        ("blocks/run", "blocks", "which lies in it"),
        ("blocks/../link/run", "blocks", "which lies in it"),
        (".", "rows.npz", "which holds it"),
        ("rows.npz", "rows.npz", "which is it"),
    ],
)
def test_a_run_directory_is_not_in_the_folder_of_rows(
    run_dir: str, rows: str, word: str, fitted: Path
) -> None:
    Corpus.from_rows(DENSE).to_parquet(str(fitted / "blocks"))
    (fitted / "link").symlink_to("blocks")
    before = files_below(str(fitted))
    for result in (
        fit(fitted, "--fresh", run_dir=run_dir, rows=rows),
        command("predict", str(fitted / "run"), str(fitted / rows), f"--out={fitted / run_dir}"),
    ):
        refused(result, "must be separate from the rows", word)
    assert files_below(str(fitted)) == before


def test_predictions_replace_only_predictions(fitted: Path) -> None:
    model, rows, out = str(fitted / "run"), str(fitted / "rows.npz"), fitted / "out"

    def predict(out: Path) -> Result:
        return command("predict", model, rows, f"--out={out}", "--quiet")

    refused(predict(fitted / "run"), "must be separate from the model")
    assert predict(out).exit_code == 0
    assert predict(out).exit_code == 0
    (out / "assignments" / "mine.parquet").write_bytes(b"mine")
    refused(predict(out), "mine.parquet", "name another folder")
    assert (out / "assignments" / "mine.parquet").read_bytes() == b"mine"
    for name in ("part-00000-of-00001.parquet", "part-00001-of-00002.parquet"):
        other = fitted / name / "assignments"
        other.mkdir(parents=True)
        (other / name).write_bytes(b"mine")
        refused(predict(fitted / name), name)
        assert (other / name).read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["model.json", "centroids.npy"])
def test_a_model_replaces_only_a_model(name: str, tmp_path: Path) -> None:
    model = HMRFKMeans(n_clusters=3, n_init=1, random_state=0).fit(DENSE)
    (tmp_path / name).write_bytes(b'{"format": "other"}')
    with pytest.raises(ConfigurationError, match=f"another {name}"):
        model.save(tmp_path)
    assert (tmp_path / name).read_bytes() == b'{"format": "other"}'
    (tmp_path / name).unlink()
    model.save(tmp_path)
    HMRFKMeans(n_clusters=2, n_init=1, random_state=0).fit(DENSE).save(tmp_path)
    assert len(load(tmp_path).cluster_centers_) == 2


@pytest.mark.parametrize("name", ["documents.parquet", "pairs.csv"])
def test_the_demo_replaces_only_a_demo(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"mine")
    refused(command("demo", f"--folder={tmp_path}"), name, "name another folder")
    assert files_below(str(tmp_path)) == {name}


def test_cleaning_a_run_leaves_what_others_put_there(tmp_path: Path) -> None:
    run = opener((str(tmp_path / "run"), {}))()
    foreign = ("labels/00001/mine.txt", "state/00001-notes.npz", "labels/00001/00001.parquet")
    for number in range(1, 5):
        iterate(run, number)
        for name in foreign:
            (tmp_path / "run" / name).write_text("mine")
        run.clean()
    assert all((tmp_path / "run" / name).read_text() == "mine" for name in foreign)
    assert len(list((tmp_path / "run" / "labels").iterdir())) == 3


def test_cleaning_a_run_follows_no_link(tmp_path: Path) -> None:
    run = opener((str(tmp_path / "run"), {}))()
    iterate(run, 1)
    (tmp_path / "run" / "state").rename(tmp_path / "state")
    (tmp_path / "run" / "state").symlink_to(tmp_path / "state")
    for number in range(2, 5):
        iterate(run, number)
        run.clean()
    assert len(list((tmp_path / "state").iterdir())) == 4


def test_a_folder_of_a_user_is_no_scratch_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(OSError, match="scratch run"):
        RunDirectory(str(tmp_path / "mine"), durable=False).remove()
    assert (tmp_path / "mine").exists()
