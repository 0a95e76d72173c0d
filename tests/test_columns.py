"""Columns of documents: texts that are joined, and those that go through to the assignments."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest
from click.testing import CliRunner

from hmrf_dask import load_release
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.documents.batches import read_batches
from hmrf_dask.documents.files import DocumentFile
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.jobs.check import check_file
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run

COLUMNS = {"text": ["subject", "body"], "keep": ["product", "opened"]}


def write_tickets(folder: Path, kind: str, rows: list[dict[str, Any]]) -> str:
    path = folder / f"tickets.{kind}"
    if kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif kind == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_texts_are_joined_and_other_columns_kept(tmp_path: Path, kind: str) -> None:
    rows = [
        {"id": "a", "subject": "Hello", "body": "World", "product": "x", "opened": "2026"},
        {"id": "b", "subject": None, "body": "alone", "product": None, "opened": "2025"},
        {"id": "c", "subject": None, "body": None, "product": "y", "opened": "2024"},
    ]
    path = write_tickets(tmp_path, kind, rows)
    state = Path(path).stat()
    source = DocumentFile(path, path, state.st_size, f"{state.st_mtime_ns:x}", kind)
    (batch,) = read_batches(source, Columns(**COLUMNS))
    assert batch.texts == ["Hello\n\nWorld", "alone"]
    assert batch.kept == {"product": ["x", None], "opened": ["2026", "2025"]}
    (reject,) = batch.rejects
    assert "the text" in reject.reason


def tickets(corpus: JobCorpus, n_documents: int) -> list[dict[str, Any]]:
    return [
        {
            "id": one["id"], "subject": one["text"][:20], "body": one["text"][20:],
            "product": one["label"], "opened": number % 4 == 0,
        }
        for number, one in enumerate(corpus.draw(n_documents), len(corpus.documents) - n_documents)
    ]  # fmt: skip


def test_kept_columns_reach_the_assignments_of_every_night(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    rows = tickets(corpus, 45)
    corpus.write(corpus.files(rows))
    corpus.write({"answers.csv": corpus.answers(5)})
    output = run(corpus.write_job(columns=COLUMNS)).output
    new = tickets(corpus, 10)
    corpus.write(corpus.files(new, first=50))
    run(corpus.folder / "job.yaml", mode="predict")
    table = load_release(output).assignments().set_index("doc_id")
    wanted = pd.DataFrame([*rows, *new]).set_index("id").loc[table.index]
    assert table["product"].tolist() == wanted["product"].tolist()
    assert table["opened"].tolist() == [str(one).lower() for one in wanted["opened"]]
    assert list(table)[-2:] == ["product", "opened"]
    for kind in ("csv", "jsonl", "parquet"):
        file = tmp_path / f"groups.{kind}"
        for _ in range(2):  # an earlier one is replaced
            done = CliRunner().invoke(hmrf, ["export", output, str(file)])
            assert done.exit_code == 0, done.output
        read = {
            "csv": lambda path: pd.read_csv(path, dtype=str),
            "jsonl": lambda path: pd.read_json(path, lines=True, dtype=str),
            "parquet": pd.read_parquet,
        }[kind](file)
        assert list(read) == ["doc_id", "cluster", "name", "product", "opened"]
        assert set(read["doc_id"]) == set(table.index)
        assert read["cluster"].astype(int).tolist() == table["cluster"][read["doc_id"]].tolist()
    assert not list(tmp_path.glob("*.part"))


def test_a_cell_of_an_export_is_no_formula_and_ids_stay(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    rows = [
        {**one, "id": f"={one['id']}", "note": '=HYPERLINK("http://x")'} for one in corpus.draw(30)
    ]
    corpus.documents = rows
    corpus.write(corpus.files(rows))
    corpus.write({"answers.csv": corpus.answers(3)})
    output = run(corpus.write_job(columns={"keep": ["note"]})).output
    CliRunner().invoke(hmrf, ["export", output, str(tmp_path / "groups.csv")])
    with (tmp_path / "groups.csv").open() as file:
        cells = list(csv.DictReader(file))
    assert {cell["doc_id"] for cell in cells} == {row["id"] for row in rows}
    assert {cell["note"] for cell in cells} == {'\'=HYPERLINK("http://x")'}


def test_an_export_takes_no_place_of_others(tmp_path: Path) -> None:
    output = run(JobCorpus(tmp_path).write_all(30, 3)).output
    for file in ("out/journal.jsonl", "out/runs/groups.csv", "none/groups.csv"):
        done = CliRunner().invoke(hmrf, ["export", output, str(tmp_path / file)])
        assert done.exit_code == 78, done.output
        assert not (tmp_path / file).exists()
    others = {
        "documents.csv": "doc_id,text\n1,mine\n",
        "documents.jsonl": '{"doc_id": "1", "text": "mine"}\n',
        "documents.parquet": "mine",
    }
    for file, content in others.items():
        (tmp_path / file).write_text(content)
        done = CliRunner().invoke(hmrf, ["export", output, str(tmp_path / file)])
        assert (done.exit_code, "which is another file" in done.stderr) == (78, True), done.output
        assert (tmp_path / file).read_text() == content
    store, bucket = fsspec.filesystem("memory"), "memory://exports-of-groups"
    for ending, content in {"csv": "id,text\n", "jsonl": '{"id": 1}\n', "parquet": "mine"}.items():
        file = f"{bucket}/documents.{ending}"  # a bucket keeps what is somebody's, too
        store.pipe_file(file, content.encode())
        done = CliRunner().invoke(hmrf, ["export", output, file])
        assert (done.exit_code, "which is another file" in done.stderr) == (78, True), done.output
        for _ in range(2):
            done = CliRunner().invoke(hmrf, ["export", output, f"{bucket}/groups.{ending}"])
            assert done.exit_code == 0, done.output
    (tmp_path / "groups.csv.part").write_text("mine")
    done = CliRunner().invoke(hmrf, ["export", output, str(tmp_path / "groups.csv")])
    assert (done.exit_code, (tmp_path / "groups.csv.part").read_text()) == (0, "mine")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"keep": ["cluster"]}, "keep must name columns other than .* got cluster"),
        ({"keep": ["text"]}, "keep must name columns other than .* got text"),
        ({"keep": ["a", "a"]}, "each column once"),
        ({"text": []}, "text: .*at least one item"),
        ({"text": ["a", "a"]}, "must be different columns"),
        ({"text": 3}, "text: must be a text, got 3 .* or must be a list"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused(
    tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    corpus = JobCorpus(tmp_path)
    corpus.write_all(30, 3, columns=columns)
    with pytest.raises(ConfigurationError, match=said):
        check_file(str(tmp_path / "manifest.yaml"))


def test_a_kept_column_that_is_not_there_or_no_word_is_said(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    documents = [{**one, "tags": ["a", "b"]} for one in corpus.draw(30)]
    corpus.write(corpus.files(documents))
    corpus.write({"answers.csv": corpus.answers(3)})
    with pytest.raises(InvalidInputError, match="kept column tags must be a text or a number"):
        run(corpus.write_job(columns={"keep": ["tags"]}))
