"""Embeddings made in a job: stored once, embedded once, next to words or alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from hmrf_dask import load_release
from hmrf_dask.documents.batches import Batch
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfWarning,
    InvalidInputError,
    MemoryPlanError,
    UnreadableFileError,
)
from hmrf_dask.estimators.classes import load
from hmrf_dask.jobs.places import Report
from hmrf_dask.releases.release import latest
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.text.embedders import ALLOWED
from hmrf_dask.text.files import Place, load_vocabulary
from hmrf_dask.text.vectorise import rows_of_texts
from hmrf_dask.text.vectors import (
    StoredVectors,
    VectorIndex,
    embed_texts,
    folder_of,
    hashes_of,
)
from tests.support import embedders
from tests.support.job_corpus import JobCorpus, lines
from tests.support.job_runs import assigned
from tests.support.job_runs import run_with_report as run

OWN = "tests.support.embedders"
CLASSES = (
    "Topics", "OtherTopics", "NotFinite", "Narrow", "Moody", "Drifting", "Wider", "Numbered",
    "Flat", "Choosy", "NoEmbedder", "Failing", "Crowded", "Ragged", "Fewer", "Unmade", "Unloaded",
    "Missing", "Listed",
)  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobCorpus:
    monkeypatch.setenv(ALLOWED, ",".join(f"{OWN}:{name}" for name in CLASSES))
    embedders.EMBEDDED.clear()
    return JobCorpus(tmp_path)


def vectors(name: str = "Topics", **more: Any) -> dict[str, Any]:
    return {"kind": "embeddings", "model": f"{OWN}:{name}", **more}


def embedded(report: Report) -> int:
    return int(report.vocabulary["embeddings"]["embedded"])


def test_texts_are_embedded_once_over_nights(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 10, text=vectors())
    first = run(job)
    assert first.nmi == pytest.approx(1.0)
    assert embedded(first) == len(set(embedders.EMBEDDED)) == 60
    assert run(job).status == "up to date"
    embedders.EMBEDDED.clear()

    texts = {one["text"] for one in corpus.documents}
    corpus.write(corpus.files(corpus.draw(6), first=9))
    # A changed file: its pack is read again, and of its texts one alone is new.
    changed = [dict(one) for one in corpus.documents[:20]]
    changed[3]["text"] = "orbit moon rocket and a new word"
    corpus.write({"documents/part-000.jsonl.gz": lines(changed)})
    second = run(job)
    assert embedded(second) == 7
    assert texts.isdisjoint(embedders.EMBEDDED)
    assert set(embedders.EMBEDDED) >= {changed[3]["text"]}


def test_a_prediction_embeds_new_texts_alone(corpus: JobCorpus) -> None:
    run(corpus.write_all(40, 10, text=vectors()))
    embedders.EMBEDDED.clear()
    new = corpus.draw(5)
    asked = load_release(corpus.folder / "out").predict([one["text"] for one in corpus.documents])
    assert len(embedders.EMBEDDED) <= 6  # what is stored is not made again
    assert [str(one["label"]) for one in new] == [
        corpus.documents[asked.tolist().index(cluster)]["label"] for cluster in asked[-5:].tolist()
    ]
    embedders.EMBEDDED.clear()
    corpus.write(corpus.files(new, first=9))
    report = run(corpus.write_job(text=vectors(), mode="predict"))
    assert embedded(report) == 5
    assert set(embedders.EMBEDDED) == {one["text"] for one in new}


def test_equal_texts_have_one_vector(corpus: JobCorpus) -> None:
    documents = corpus.draw(30)
    copies = [{**one, "id": f"copy/{one['id']}"} for one in documents]
    corpus.write({"answers.csv": corpus.answers(5)})
    files = {"documents/a.jsonl.gz": lines(documents), "documents/b.jsonl.gz": lines(copies)}
    corpus.write(files)
    report = run(corpus.write_job(text=vectors("Drifting")))
    assert embedded(report) == 30
    found = {id_: row["distortion"] for id_, row in assigned(report).items()}
    for one in documents:
        assert found[one["id"]] == found[f"copy/{one['id']}"]


def test_stored_vectors_stay_the_input(corpus: JobCorpus) -> None:
    """An embedder that gives others every time changes nothing of what is stored."""
    job = corpus.write_all(40, 10, text=vectors("Drifting"), start="cold")
    first = assigned(run(job))
    again = run(corpus.write_job(text=vectors("Drifting"), start="cold", questions=1))
    assert (again.release, embedded(again)) == (2, 0)
    assert assigned(again) == first


def test_another_embedder_is_another_input(corpus: JobCorpus) -> None:
    first = run(corpus.write_all(30, 5, text=vectors()))
    second = run(corpus.write_job(text=vectors("OtherTopics")))
    assert (second.release, second.start, embedded(second)) == (2, "cold", 30)
    assert first.vocabulary["embeddings"]["model"] != second.vocabulary["embeddings"]["model"]


def test_words_and_vectors_side_by_side(corpus: JobCorpus) -> None:
    both = [{"kind": "words", "min_df": 2}, vectors(weight=0.5)]
    report = run(corpus.write_all(60, 10, text=both))
    assert report.nmi == pytest.approx(1.0)
    assert report.vocabulary["embeddings"]["share"] == pytest.approx(1 / 3)
    page = json.loads(
        (corpus.folder / "out" / report.places["page"]).with_suffix(".json").read_text()
    )
    assert page["limits"] == []
    assert all(bar["word"] in one["words"] for one in page["clusters"] for bar in one["bars"][:1])
    output = str(corpus.folder / "out")
    release = latest(output)
    assert release is not None
    place = Place(output)
    vocabulary = load_vocabulary(release.ledger["vocabulary"], place)
    assert vocabulary.n_features == vocabulary.n_terms + embedders.WIDTH
    words = pq.read_table(corpus.folder / "out" / report.places["clusters"])["top_words"]
    assert {word for one in words.to_pylist() for word in one[:3]} <= set(
        vocabulary.terms.to_pylist()
    )

    embedders.EMBEDDED.clear()
    texts = [one["text"] for one in corpus.documents]
    rows = rows_of_texts(texts, vocabulary, place)
    assert not embedders.EMBEDDED  # they are stored
    model = load(f"{output}/{report.places['model']}")
    found, labels = assigned(report), model.predict(rows.to_scipy())
    ids = model.cluster_ids_[labels].tolist()
    assert ids == [found[one["id"]]["cluster"] for one in corpus.documents]
    squares = np.asarray(rows.to_scipy().power(2).sum(axis=1)).ravel()
    np.testing.assert_allclose(squares, 1.0, rtol=1e-5)
    dense = rows.to_dense()[:, vocabulary.n_terms :]
    np.testing.assert_allclose((dense**2).sum(axis=1), 1 / 3, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:1 document without a token:hmrf_dask.errors.HmrfWarning")
def test_words_of_one_column_and_vectors_of_another(corpus: JobCorpus) -> None:
    corpus.draw(30)
    corpus.write({"answers.csv": corpus.answers(5)})
    for one in [*corpus.documents, *corpus.draw(10)]:
        words = one.pop("text").split()
        one["subject"], one["body"] = " ".join(words[:6]), " ".join(words[6:])
    corpus.documents[3]["subject"] = None
    corpus.documents[7]["body"] = ""
    corpus.write(corpus.files(corpus.documents[:30]))
    columns = {"label": "label", "text": ["subject", "body"]}
    both = [{"kind": "words", "column": "subject"}, vectors(column="body")]
    partial = "2 documents with words alone or a vector alone"
    with pytest.warns(HmrfWarning, match=partial):
        report = run(job := corpus.write_job(columns=columns, text=both))
    assert report.nmi == pytest.approx(1.0)
    release = latest(output := str(corpus.folder / "out"))
    assert release is not None
    vocabulary = load_vocabulary(release.ledger["vocabulary"], Place(output))
    subjects = " ".join(one["subject"] or "" for one in corpus.documents[:30]).split()
    assert set(vocabulary.terms.to_pylist()) == set(subjects)
    assert set(embedders.EMBEDDED) == {one["body"] for one in corpus.documents[:30]}
    text = f"{corpus.documents[0]['subject']} {corpus.documents[0]['body']}"
    assert load_release(output).predict([text]) == [assigned(report)["space/0000"]["cluster"]]

    embedders.EMBEDDED.clear()
    corpus.write(corpus.files(corpus.documents[30:], first=9))
    with pytest.warns(HmrfWarning, match=partial):
        run(job)
    assert set(embedders.EMBEDDED) == {one["body"] for one in corpus.documents[30:]}
    both[0]["column"] = "subjct"
    with pytest.raises(ConfigurationError, match=r"\(subject, body\), got 'subjct' .*'subject'"):
        run(corpus.write_job(columns=columns, text=both))
    ready = {"kind": "embeddings", "column": "body"}
    with pytest.raises(ConfigurationError, match="column must go with words or a model"):
        run(corpus.write_job(columns=columns, text=ready))


@pytest.mark.long  # a second
def test_a_new_vocabulary_keeps_the_vectors_of_a_warm_start(corpus: JobCorpus) -> None:
    both = [{"kind": "words", "refit": "always"}, vectors()]
    job = corpus.write_all(60, 10, text=both)
    run(job)
    corpus.write(corpus.files(corpus.draw(20, words="brandnew words"), first=9))
    report = run(job)
    assert (report.start, report.vocabulary["refit"], embedded(report)) == ("warm", True, 20)
    assert report.nmi == pytest.approx(1.0)


@pytest.mark.long  # a second
def test_ready_embeddings_go_with_words(corpus: JobCorpus) -> None:
    topics = embedders.Topics()
    rows = [{**one, "vector": topics.one(one["text"])} for one in corpus.draw(40)]
    corpus.write(
        {"documents/a.jsonl.gz": lines(rows[:25]), "documents/b.jsonl.gz": lines(rows[25:])}
    )
    corpus.write({"answers.csv": corpus.answers(5)})
    columns = {"embedding": "vector", "label": "label"}
    alone = run(corpus.write_job(columns=columns, text={"kind": "embeddings"}))
    clusters = pq.read_table(corpus.folder / "out" / alone.places["clusters"])
    assert all(clusters["top_words"].to_pylist())  # words are counted for people
    both = [{"kind": "words"}, {"kind": "embeddings"}]
    report = run(corpus.write_job(columns=columns, text=both))
    assert report.nmi == pytest.approx(1.0)
    assert report.vocabulary["embeddings"]["width"] == embedders.WIDTH


def test_vectors_of_other_documents_than_the_words_are_refused(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Turned:
        """Gives ready embeddings as if somebody wrote the documents again between two reads."""

        @staticmethod
        def from_array(rows: Any, ids: list[str]) -> RowBlock:
            return RowBlock.from_array(rows, ids[::-1])

    monkeypatch.setattr("hmrf_dask.jobs.rows.RowBlock", Turned)
    rows = [{**one, "vector": [1.0, 2.0]} for one in corpus.draw(20)]
    corpus.write({"documents/a.jsonl.gz": lines(rows), "answers.csv": corpus.answers(2)})
    both = [{"kind": "words"}, {"kind": "embeddings"}]
    with pytest.raises(InvalidInputError, match="must be of the same documents, got other ids"):
        run(corpus.write_job(columns={"embedding": "vector"}, text=both))


def test_documents_that_the_model_does_not_know_are_reported(corpus: JobCorpus) -> None:
    documents = corpus.draw(30)
    documents[4]["text"] = "people time know"
    corpus.write({"documents/a.jsonl.gz": lines(documents), "answers.csv": corpus.answers(5)})
    with (
        pytest.warns(HmrfWarning, match=r"1 document without a token that .* knows"),
        pytest.warns(HmrfWarning, match="1 document with words alone or a vector alone"),
    ):
        report = run(corpus.write_job(text=[{"kind": "words"}, vectors()]))
    assert report.vocabulary["embeddings"]["without_token"] == 1
    assert report.vocabulary["embeddings"]["of_one_kind"] == 1


def test_the_first_stored_vector_of_a_text_counts(tmp_path: Path) -> None:
    """Two processes embed the same text at once: both go on with what one of them stored."""
    storage = open_storage(str(tmp_path), {}, durable=False)
    hashes = np.sort(hashes_of(["moon", "orbit", "wheel"]))
    first, second = VectorIndex(storage, "vectors/a"), VectorIndex(storage, "vectors/a")
    first.store(hashes[:2], np.ones((2, 3), np.float32), 0)
    second.store(hashes[1:], np.full((2, 3), 2.0, np.float32), 0)  # it has read nothing yet
    assert second.find(hashes).tolist() == [2**32, 2**32 + 1, 2 * 2**32]
    first.refresh(0)
    assert first.find(hashes).tolist() == second.find(hashes).tolist()
    assert pq.read_table(tmp_path / "vectors/a/log/00002.parquet").num_rows == 1
    with pytest.raises(MemoryPlanError, match="3 texts need 72"):
        VectorIndex(storage, "vectors/a").refresh(50)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("NotFinite", InvalidInputError, "must return finite numbers, got NaN or infinity"),
        ("Narrow", InvalidInputError, r"must return vectors of float32, shape \(\d+, 8\), got"),
        ("Moody", InvalidInputError, "must return the same vector for the same text"),
        ("NoEmbedder", ConfigurationError, "must have identity, width, row_exact, load and embed"),
        ("Numbered", ConfigurationError, "a str as identity .* got 7 and 8"),
        ("Flat", ConfigurationError, "an int above 0 as width, got 'flat' and 0"),
        ("Choosy", ConfigurationError, "must be a class that is made without arguments"),
        ("Failing", InvalidInputError, r"got KeyError: .* for document '\w+/0017' \('unspeakable"),
        ("Crowded", InvalidInputError, r"got MemoryError: .* for 20 texts together, the first of"),
        ("Ragged", InvalidInputError, r"must return a vector for every text, got ValueError: "),
        ("Fewer", InvalidInputError, r"shape \(\d+, 8\), got .* the first of them document '"),
        ("Unmade", ConfigurationError, "made without arguments, got RuntimeError: 'no licence'"),
        ("Unloaded", ConfigurationError, "unloaded must be one that can be loaded, got OSError: "),
        ("Missing", ConfigurationError, "can be imported, got AttributeError: "),
        ("Unlisted", ConfigurationError, "must be listed in the environment variable HMRF_DASK"),
    ],
)
def test_bad_embedders_are_refused_in_words(
    corpus: JobCorpus, name: str, error: type[Exception], words: str
) -> None:
    job = corpus.write_all(20, 0, text=vectors(name))
    corpus.documents[17]["text"] = "unspeakable " + corpus.documents[17]["text"]
    corpus.write(corpus.files(corpus.documents))
    with pytest.raises(error, match=words):
        run(job)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("wordlama", "did you mean 'wordllama'"),
        ("./no-such-folder", "must be a folder with a model of sentence-transformers"),
        ("https://example.org/model", "nothing is fetched"),
    ],
)
def test_models_that_are_none(corpus: JobCorpus, model: str, words: str) -> None:
    job = corpus.write_all(20, 0, text={"kind": "embeddings", "model": model})
    with pytest.raises(ConfigurationError, match=words):
        run(job)


STATIC = {"config.json": b'{"model_type": "model2vec"}'}
TRANSFORMER = {"modules.json": b'[{"type": "sentence_transformers.models.Transformer"}]'}


@pytest.mark.parametrize(
    ("model", "files", "extra"),
    [
        ("wordllama", {}, "wordllama"),
        ("./model", STATIC, "model2vec"),
        ("./model", TRANSFORMER, "sentence-transformers"),
    ],
)
def test_a_wheel_that_is_missing_says_which_extra(
    corpus: JobCorpus,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    files: dict[str, bytes],
    extra: str,
) -> None:
    monkeypatch.setattr("hmrf_dask.text.embedders.util.find_spec", lambda _: None)
    corpus.write({f"model/{name}": data for name, data in files.items()})
    job = corpus.write_all(20, 0, text={"kind": "embeddings", "model": model})
    with pytest.raises(ConfigurationError, match=rf"pip install 'hmrf-dask\[{extra}\]'"):
        run(job)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "got a folder without either; check the path"),
        ({"config.json": b"{"}, "got a folder without either; check the path"),
        (STATIC, r"must be a safetensors file with a matrix 'embeddings', got one that is not"),
        ({**STATIC, "model.safetensors": b"weights" * 9}, "safetensors file .* save the model"),
        (TRANSFORMER, "must say how many numbers a vector has"),
    ],
    ids=["empty", "no JSON", "no weights", "bad weights", "no width"],
)
def test_folders_without_a_whole_model(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], words: str
) -> None:
    monkeypatch.setattr("hmrf_dask.text.embedders.util.find_spec", lambda _: True)
    corpus.write({"model/README.md": b"", **{f"model/{name}": one for name, one in files.items()}})
    job = corpus.write_all(20, 0, text={"kind": "embeddings", "model": "./model"})
    with pytest.raises(ConfigurationError, match=words):
        run(job)


@pytest.mark.long  # a second
def test_damaged_vectors_are_made_again(corpus: JobCorpus) -> None:
    job = corpus.write_all(30, 5, text=vectors())
    run(job)
    stored = sorted((corpus.folder / "out").glob("vectors/*/log/*.parquet"))
    data = bytearray(stored[0].read_bytes())
    data[len(data) // 2] ^= 1
    stored[0].write_bytes(data)
    embedders.EMBEDDED.clear()
    corpus.write(corpus.files(corpus.draw(3), first=9))
    with pytest.warns(HmrfWarning, match="made again of the documents"):
        report = run(corpus.write_job(text=[{"kind": "words"}, vectors()]))
    assert report.nmi == pytest.approx(1.0)
    assert len(set(embedders.EMBEDDED)) == 33


def test_an_embedder_of_another_width_needs_another_name(corpus: JobCorpus) -> None:
    run(corpus.write_all(20, 0, text=vectors()))
    words = "width of its stored vectors, 8, got 16; give it another identity"
    for n_new in (0, 2):
        corpus.write(corpus.files(corpus.draw(n_new), first=9))
        with pytest.raises(InvalidInputError, match=words):
            run(corpus.write_job(text=vectors("Wider", refit="always"), questions=n_new))


class Source(NamedTuple):
    """Documents as packs give them."""

    key: str
    texts: list[str]

    def read(self) -> Iterator[Batch]:
        yield Batch(self.texts, self.texts)


def test_a_log_in_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    """Other vectors are stored under the number of the last log, which somebody removed."""
    place, model = Place(str(tmp_path)), embedders.Drifting()
    one, other = Source("one", ["orbit moon", "engine"]), Source("other", ["engine"])

    def read(source: Source) -> list[list[float]]:
        found = embed_texts(source, model, place, 0)
        batch = StoredVectors(found.folder, found.width, found.batches[0])
        return batch.read(place.storage).tolist()

    before = read(one)
    assert read(other) == before[1:]
    log = tmp_path / folder_of(model) / "log/00001.parquet"
    log.unlink()
    after = read(one)
    assert after != before
    record = folder_of(model) + "/other"
    with pytest.raises(UnreadableFileError, match=rf"{record}/places.* not the log"):
        read(other)  # as a job notices, which makes it again:
    place.storage.delete([f"{record}/vectors.json"])
    assert read(other) == after[1:]
    # Another process did so, and this one has an index of what was there.
    log.unlink()
    index = VectorIndex(place.storage, folder_of(model))
    index.store(hashes_of(["engine"]), np.ones((1, embedders.WIDTH), np.float32), 0)
    with pytest.raises(UnreadableFileError, match=r"/third/places.* not the log"):
        read(third := Source("third", ["engine"]))
    assert read(third) == [[1.0] * embedders.WIDTH]


@pytest.mark.long  # processes of their own, twice
def test_killed_on_processes_and_run_again_embeds_no_text_twice(
    corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):  # each too large to share a pack with others
        documents = corpus.draw(12)
        for one in documents:
            one["text"] = " ".join([one["text"]] * 700)
        documents[5]["text"] += " barrier" * (number == 1)
        content = "".join(f"{json.dumps(one)}\n" for one in documents)
        corpus.write({f"documents/{number}.jsonl": content.encode()})
    corpus.write({"answers.csv": corpus.answers(5)})
    both = [{"kind": "words"}, vectors("Listed")]
    job, listed = corpus.write_job(text=both), corpus.folder / "listed"
    monkeypatch.setenv(embedders.LISTED, str(listed))
    command = [sys.executable, "-m", "hmrf_dask", "run", str(job), "--processes", "2"]
    with subprocess.Popen(command, start_new_session=True) as first:
        until = time.monotonic() + embedders.PATIENCE
        while not (
            listed.with_suffix(".waiting").exists()
            and len(list(corpus.folder.glob("out/vectors/*/log/*.parquet"))) == 2
        ):
            assert first.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)
    assert len(listed.read_text().splitlines()) == 24
    listed.with_suffix(".open").touch()
    subprocess.run(command, check=True)
    texts = {sha256(one["text"].encode()).hexdigest() for one in corpus.documents}
    assert sorted(listed.read_text().splitlines()) == sorted(texts)  # each of them once
    run(corpus.write_job(text=both, output="undisturbed"))
    resumed, undisturbed = (latest(str(corpus.folder / one)) for one in ("out", "undisturbed"))
    assert resumed is not None
    assert undisturbed is not None
    assert (resumed.run, resumed.model) == (undisturbed.run, undisturbed.model)
    timed = f"runs/{resumed.run}/run.json"
    assert {**resumed.files, timed: ""} == {**undisturbed.files, timed: ""}


@pytest.mark.long  # a second
def test_vectors_of_a_former_model_are_swept(corpus: JobCorpus) -> None:
    first = corpus.write_all(24, 0, text=vectors(), keep=1)
    run(first)
    for name in ("OtherTopics", "OtherTopics", "OtherTopics"):
        corpus.write(corpus.files(corpus.draw(2), first=len(corpus.documents)))
        run(corpus.write_job(text=vectors(name), keep=1))
    assert len(list((corpus.folder / "out/vectors").iterdir())) == 1
    assert yaml.safe_load((corpus.folder / "job.yaml").read_text())["keep"] == 1
