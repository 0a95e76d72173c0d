"""The demo: its corpus is real, deterministic and does not give its labels away."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.documents.builtin import Document, read_docstrings
from hmrf_dask.jobs import demo


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return read_docstrings()


def test_corpus_is_about_2000_documents_of_12_subpackages(documents: list[Document]) -> None:
    sizes = Counter(document.label for document in documents)
    assert set(sizes) == set(demo.SUBPACKAGES)
    assert len(sizes) == 12
    assert 1500 < len(documents) < 2500
    assert min(sizes.values()) > 40


def test_ids_are_sorted_and_texts_distinct(documents: list[Document]) -> None:
    ids = [document.id for document in documents]
    assert ids == sorted(set(ids))
    assert len({document.text for document in documents}) == len(documents)
    assert documents == read_docstrings()


def test_texts_do_not_name_their_module(documents: list[Document]) -> None:
    dotted = [f"{package}." for package in ("numpy", "np", "scipy", "sklearn")]
    for document in documents:
        assert ">>>" not in document.text
        words = document.text.replace("(", " ").replace("`", " ").split()
        assert not [word for word in words if word.startswith(tuple(dotted)) and word[-1] != "."]


def test_no_word_of_the_vocabulary_is_a_package(documents: list[Document]) -> None:
    _, words = demo.tfidf_rows(documents)
    assert not {"numpy", "scipy", "sklearn"} & set(words)


def test_answers_are_right_distinct_and_half_of_each_kind() -> None:
    labels = ["a", "b", "c", "c"] * 10
    must_link, cannot_link = demo.simulated_answers(labels, 40, seed=1)
    assert len(must_link) == len(cannot_link) == 20
    assert all(labels[first] == labels[second] for first, second in must_link)
    assert all(labels[first] != labels[second] for first, second in cannot_link)
    pairs = [tuple(pair) for pair in (*must_link.tolist(), *cannot_link.tolist())]
    assert len(set(pairs)) == 40
    assert all(first < second for first, second in pairs)


def test_demo_goes_the_whole_way(
    tmp_path: Path, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmrf_dask.cli.progress.AFTER", 0.0)
    documents = documents[::3]
    monkeypatch.setattr(demo, "read_docstrings", lambda: documents)
    folder = str(tmp_path / "demo")
    result = CliRunner().invoke(hmrf, ["demo", "--json", f"--folder={folder}"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    numbers = re.findall(r"^ +\d+:\d\d  (\d of 6): ", result.stderr, re.MULTILINE)
    assert [*dict.fromkeys(numbers)] == [f"{number} of 6" for number in range(1, 7)]
    assert sum(summary["size"] for summary in found["clusters"]) == len(documents)
    assert found["nmi_with_answers"] > found["nmi_without_answers"] - 0.05
    assert found["nmi_with_answers"] > 0.5
    few = [found[name] for name in ("random_pairs", "chosen_questions")]
    assert few[0]["n_pairs"] == found["n_questions"] < few[1]["n_pairs"]
    assert min(one["nmi"] for one in few) > 0.5
    table = pq.read_table(found["files"]["assignments"])
    assert table.column_names[:3] == ["doc_id", "cluster", "distortion"]
    assert table["doc_id"].to_pylist() == [document.id for document in documents]

    again = CliRunner().invoke(hmrf, ["demo", "--resume", f"--folder={folder}"])
    assert again.exit_code == 0, again.output
    for name in ("assignments", "pairs"):
        assert found["files"][name] in again.stdout
    assert f"{found['nmi_with_answers']:.3f}" in again.stdout
