"""The report of a release: what it says against plain counting, its bytes, what cannot be read."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hmrf_dask import load_release
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError, HmrfWarning
from hmrf_dask.jobs import report as report_of
from hmrf_dask.jobs import report_history
from hmrf_dask.jobs.report import write_report
from hmrf_dask.report.content import Cluster, Flow, Report, Text
from hmrf_dask.report.layout import lay_out, likeness, place_clusters
from hmrf_dask.report.page import MOST_BYTES, page
from hmrf_dask.report.survey import COLUMNS, merge_surveys, survey_table
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned
from tests.support.job_runs import run_with_report as run
from tests.support.reports import example, hostile, packed_data


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> JobCorpus:
    """Return a corpus with an output of two releases, some of its answers wrong."""
    corpus = JobCorpus(tmp_path_factory.mktemp("report"))
    job = corpus.write_all(90, 20)
    wrong = f"{corpus.documents[0]['id']},{corpus.documents[1]['id']},must\n"
    corpus.write({"answers.csv": corpus.answers(20) + wrong.encode()})
    run(job)
    other = next(one for one in corpus.documents if one["label"] != corpus.documents[-1]["label"])
    corpus.documents[-1] = {**corpus.documents[-1], "text": other["text"]}  # it will move
    corpus.write(corpus.files(corpus.documents))
    corpus.write(corpus.files(corpus.draw(20), 10))
    corpus.write({"out/names.csv": b"cluster,name\n0,Stars & <b>rockets</b>\n"})
    run(job)
    return corpus


def folder_of(output: Path, number: int) -> Path:
    named = json.loads((output / "releases" / f"{number:05}.json").read_text())
    return output / "runs" / named["content"]["run"]


def read(folder: Path) -> Report:
    return Report.from_json((folder / "report.json").read_bytes())


def first_clusters(nights: JobCorpus) -> dict[str, int]:
    """Return the clusters of documents in the first release."""
    folder = folder_of(nights.folder / "out", 1) / "assignments"
    tables = [pq.read_table(file) for file in folder.glob("*.parquet")]
    return dict(row.values() for t in tables for row in t.select(["doc_id", "cluster"]).to_pylist())


# ---- what it says


def test_every_release_has_a_report_that_agrees_with_plain_counting(nights: JobCorpus) -> None:
    output = nights.folder / "out"
    report, other = read(folder_of(output, 2)), read(folder_of(output, 1))
    rows = assigned(run(nights.folder / "job.yaml"))
    sizes = Counter(row["cluster"] for row in rows.values())
    assert {one.id: one.size for one in report.clusters} == sizes
    assert {one.id: one.linked for one in report.clusters} == {
        cluster: sum(row["constrained"] for row in rows.values() if row["cluster"] == cluster)
        for cluster in sizes
    }
    texts = {one["id"]: one["text"] for one in nights.documents}
    for cluster in report.clusters:
        own = [
            (row["distortion"], name) for name, row in rows.items() if row["cluster"] == cluster.id
        ]
        assert [text.id for text in cluster.typical] == [name for _, name in sorted(own)[:3]]
        margins = [(rows[name]["margin"], name) for _, name in own]
        assert [text.id for text in cluster.borderline] == [name for _, name in sorted(margins)[:3]]
        assert all(
            text.text in (texts[text.id], f"{texts[text.id][:239]}…") for text in cluster.typical
        )
        assert cluster.spread == pytest.approx(np.mean([far for far, _ in own]), rel=1e-5)
    assert {text.id: text.cluster for text in report.documents_shown} == {
        name: row["cluster"] for name, row in rows.items()
    }
    assert [night.release for night in report.nights] == [1, 2]
    assert (len(other.nights), other.comparison) == (1, None)
    assert load_release(output).report_page() == report
    now, before = ({name: row["cluster"] for name, row in rows.items()}, first_clusters(nights))
    moved = {name for name in before if before[name] != now[name]}
    assert report.comparison is not None
    assert (report.comparison.n_compared, report.comparison.n_moved) == (90, len(moved))
    assert moved
    assert {one.document.id for one in report.comparison.moved} == moved
    assert {one.before for one in report.comparison.moved} == {before[name] for name in moved}
    assert report.agreement is not None
    assert report.agreement.n_documents == 110
    assert sum(map(sum, report.agreement.table)) == 110
    assert report.fit.memory["process"] > 2**20
    assert report.fit.steps[-1].terms["J"] == pytest.approx(report.fit.facts["J"], rel=1e-5)


def test_without_the_record_of_what_moved_releases_are_compared_again(
    nights: JobCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = nights.folder / "out"
    monkeypatch.setattr(report_history, "FILE", "none.parquet")
    write_report(str(output), folder=str(tmp_path))
    assert read(tmp_path).comparison == read(folder_of(output, 2)).comparison


def test_a_broken_answer_is_shown_with_both_texts_and_a_name_of_a_person(nights: JobCorpus) -> None:
    report = read(folder_of(nights.folder / "out", 2))
    broken = report.answers.broken
    assert [one.kind for one in broken] == ["must"]
    assert {broken[0].first.id, broken[0].second.id} == {one["id"] for one in nights.documents[:2]}
    assert broken[0].first.text
    assert broken[0].first.cluster != broken[0].second.cluster
    assert "broken answers" in [alert.kind for alert in report.alerts]
    assert next(one.name for one in report.clusters if one.id == 0) == "Stars & <b>rockets</b>"
    html = (folder_of(nights.folder / "out", 2) / "report.html").read_text()
    assert "Stars &amp; &lt;b&gt;rockets&lt;/b&gt;" in html
    assert "<b>rockets" not in html


def test_the_same_release_gives_the_same_bytes(nights: JobCorpus, tmp_path: Path) -> None:
    output = nights.folder / "out"
    written = [folder_of(output, number) for number in (1, 2)]
    before = [
        (folder / name).read_bytes()
        for folder in written
        for name in ("report.html", "report.json")
    ]
    (output / "names.csv").rename(output.parent / "names.csv")
    write_report(str(output), number=1)
    (output.parent / "names.csv").rename(output / "names.csv")
    result = CliRunner().invoke(hmrf, ["report", str(output), "--threads", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["release"] == 2
    after = [
        (folder / name).read_bytes()
        for folder in written
        for name in ("report.html", "report.json")
    ]
    assert before == after
    assert str(nights.folder) not in before[2].decode()
    # Made from nothing, too: what an older report remembers changes no byte.
    copy = tmp_path / "out"
    shutil.copytree(output, copy)
    for folder in (copy / "runs").iterdir():
        for name in ("report.html", "report.json"):
            (folder / name).unlink()
    write_report(str(copy), number=1)
    write_report(str(copy))
    again = [
        (copy / "runs" / f.name / n).read_bytes()
        for f in written
        for n in ("report.html", "report.json")
    ]
    assert again[2:] == before[2:]


def test_a_survey_is_the_same_for_any_partitioning() -> None:
    generator = np.random.default_rng(0)
    columns = [
        [f"d{number}" for number in range(60)],
        generator.integers(0, 4, 60).tolist(),
        generator.random(60).tolist(),
        generator.integers(0, 4, 60).tolist(),
        generator.integers(0, 3, 60).tolist(),
        (generator.random(60) < 0.3).tolist(),
        generator.integers(0, 2, 60).tolist(),
    ]
    table = pa.table(columns, list(COLUMNS))
    whole = survey_table(table, "p", 20)
    order = generator.permutation(60)
    parts = [survey_table(table.take(pa.array(part)), "p", 20) for part in np.split(order, 4)]
    other = merge_surveys([merge_surveys(parts[:2], 20), merge_surveys(parts[2:], 20)], 20)
    for name in whole.__dataclass_fields__:
        first, second = getattr(whole, name), getattr(other, name)
        same = (
            first.equals(second) if isinstance(first, pa.Table) else np.array_equal(first, second)
        )
        assert same, name
    assert whole.sampled.num_rows == 20


def test_alike_clusters_lie_close_and_places_are_those_of_any_order() -> None:
    generator = np.random.default_rng(1)
    topics = np.repeat(np.eye(3, 30), 6, axis=0) + 0.05 * generator.random((18, 30))
    places = lay_out(likeness(topics))
    centres = places.reshape(3, 6, 2).mean(axis=1)
    spread = np.abs(places.reshape(3, 6, 2) - centres[:, None]).max()
    gap = min(np.linalg.norm(centres[a] - centres[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert spread < gap / 2
    assert np.isfinite(places).all()
    same = np.zeros((40, 5))  # no direction, all alike
    assert np.isfinite(place_clusters(same, np.ones(40, np.int64))).all()


# ---- what cannot be read


def test_a_damaged_release_and_documents_that_are_gone_are_reported_as_far_as_they_can_be(
    nights: JobCorpus, tmp_path: Path
) -> None:
    copy = tmp_path / "small"
    shutil.copytree(nights.folder, copy)
    output = copy / "out"
    folder = folder_of(output, 2)
    (folder / "clusters.parquet").write_bytes(b"damaged")
    (folder / "model" / "centroids.npy").write_bytes(b"damaged")
    (folder / "report.json").unlink()
    shutil.rmtree(nights.folder / "elsewhere", ignore_errors=True)
    (copy / "out" / "releases").joinpath("00002.json").stat()
    moved = nights.folder / "documents"
    moved.rename(nights.folder / "elsewhere")
    try:
        result = CliRunner().invoke(hmrf, ["report", str(output)])
        shutil.rmtree(folder_of(output, 1) / "report.json", ignore_errors=True)
        (folder_of(output, 1) / "report.json").unlink()
        (folder / "report.json").unlink()
        (folder / "run.json").write_bytes(b"damaged")
        bare = CliRunner().invoke(hmrf, ["report", str(output), "--quiet"])
    finally:
        (nights.folder / "elsewhere").rename(moved)
    assert result.exit_code == bare.exit_code == 0, result.output + bare.output
    assert "clusters.parquet must be as it was published" in result.stdout
    report = read(folder)
    assert len(report.clusters) == 3
    assert sum(one.size for one in report.clusters) == 110
    assert not any(text.text for text in report.documents_shown)
    assert any(limit.startswith("Texts:") for limit in report.limits)
    assert "OUTPUT/" in " ".join(report.limits)
    assert str(output) not in " ".join(report.limits)


def test_a_report_that_fails_is_a_warning_and_the_release_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobCorpus(tmp_path).write_all(30, 5)

    def fail(*_: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(report_of, "make_report", fail)
    with pytest.warns(HmrfWarning, match="report could not be written .*no more.; the release is"):
        made = run(job)
    assert (made.status, made.release) == ("done", 1)
    assert run(job).status == "up to date"


def test_mistakes_are_said_in_words(nights: JobCorpus, tmp_path: Path) -> None:
    output = str(nights.folder / "out")
    for number, compare, words in (
        (7, None, "a release must be one that has its files yet, got 7; there are 1, 2"),
        (None, 2, "--compare must name a release before that of the report, got 2"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            write_report(output, number=number, compare=compare)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="neither lies; check the path"):
        write_report(str(tmp_path / "empty"))
    (tmp_path / "out").mkdir()
    written = write_report(output, compare=1, folder=str(tmp_path / "out"))
    assert Path(written.html).name == "report-1.html"
    assert Path(written.html).exists()
    (nights.folder / "out" / "names.csv").write_bytes(b"cluster,name\nStars,0\n")
    written = write_report(output, folder=str(tmp_path / "out"))
    (nights.folder / "out" / "names.csv").write_bytes(b"cluster,name\n0,Stars & <b>rockets</b>\n")
    assert any("names.csv, line 2 must have the id of a cluster" in one for one in written.limits)


def test_embeddings_alone_have_clusters_without_words_or_texts(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    values = (np.repeat(np.eye(2, 8), 15, axis=0) + 0.1 * generator.random((30, 8))).tolist()
    (tmp_path / "documents").mkdir()
    table = {"id": [f"e{number}" for number in range(30)], "embedding": values}
    pq.write_table(pa.table(table), tmp_path / "documents" / "a.parquet")
    corpus = JobCorpus(tmp_path)
    job = corpus.write_job(
        columns={"id": "id", "text": None, "embedding": "embedding"},
        method={"n_clusters": 2, "n_init": 2},
    )
    (tmp_path / "answers.csv").write_text("a,b,kind\n")
    report = read(folder_of(Path(run(job).output), 1))
    assert [one.size for one in report.clusters] == [15, 15]
    assert all(one.typical and not one.words for one in report.clusters)
    assert any("embeddings alone" in limit for limit in report.limits)


def test_a_fit_has_a_report_of_what_it_knows(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.save(
        tmp_path / "rows.npy", np.repeat(np.eye(3, 6), 10, axis=0) + 0.1 * generator.random((30, 6))
    )
    (tmp_path / "pairs.csv").write_text("a,b,kind\n0,29,must\n0,1,cannot\n")
    options = ["--pairs", str(tmp_path / "pairs.csv"), "--n-clusters", "3", "--random-state", "0"]
    options += ["--outliers", "0.1"]  # the model has one file more
    command = ["fit", str(tmp_path / "rows.npy"), "--run-dir", str(tmp_path / "run"), *options]
    result = CliRunner().invoke(hmrf, [*command, "--json"])
    assert result.exit_code == 0, result.output
    report = read(tmp_path / "run")
    assert sum(one.size for one in report.clusters) == 30
    assert report.answers.counts["pairs"] == {"must": 1, "cannot": 1}
    assert report.fit.settings["n_clusters"] == 3
    before = (tmp_path / "run" / "report.html").read_bytes()
    assert CliRunner().invoke(hmrf, ["report", str(tmp_path / "run"), "-q"]).exit_code == 0
    assert (tmp_path / "run" / "report.html").read_bytes() == before
    assert CliRunner().invoke(hmrf, [*command, "--fresh", "-q"]).exit_code == 0


# ---- the page


@pytest.mark.parametrize("n_clusters", [1, 2, 500, pytest.param(10_000, marks=pytest.mark.long)])
def test_pages_of_any_number_of_clusters_have_at_most_a_megabyte(n_clusters: int) -> None:
    report = example(n_clusters, 5_000 if n_clusters == 500 else 50)
    shown = page(report)
    assert len(shown) <= MOST_BYTES
    data = packed_data(shown)
    assert len(data["clusters"]) == min(n_clusters, 1_000)
    assert len(data["ids"]) == len(data["of"]) == len(data["x"])
    assert (b"smaller clusters are in report.json" in shown) == (n_clusters > 1_000)
    assert page(report) == shown


def test_nothing_of_a_document_an_id_a_word_or_a_name_becomes_a_tag() -> None:
    plain, shown = page(example(4, 20)), page(hostile())
    for tag in (b"<script", b"<img", b"<iframe", b"<style", b"<object", b"<base", b"<meta"):
        assert shown.count(tag) == plain.count(tag), tag
    assert b"<script>fired" not in shown
    assert shown.count(b"</script>") == 2
    assert json.dumps(packed_data(shown)).count("fired()") > 100


def test_answers_that_settle_nothing_yet_are_said_to_be_taken() -> None:
    base = example(2, 10)
    counts = {**base.answers.counts, "journal": {"answers": 21}}
    assert "21 answers of the journal were taken" not in page(base).decode()
    shown = page(replace(base, answers=replace(base.answers, counts=counts))).decode()
    assert "21 answers of the journal were taken" in shown


@pytest.mark.parametrize(("moved", "said"), [(0, "No cluster"), (1, "Documents moved, but no")])
def test_small_flows_are_not_said_to_be_none(moved: int, said: str) -> None:
    base = example(2, 10)
    assert base.comparison is not None
    compared = replace(base.comparison, n_moved=moved, moved=())
    shown = page(replace(base, flows=(Flow(0, 0, 20),), comparison=compared)).decode()
    assert f"<p>{said}" in shown
    assert "as much as 5 % of its documents to another one; smaller flows are not listed" in shown


def test_long_and_right_to_left_texts_keep_their_place() -> None:
    text = Text("ש" * 300, 0, 1, "p", "שלום " * 40_000)
    base = example(2, 10)
    first: Cluster = replace(base.clusters[0], typical=(text,), name="\u202eevil\u202e")
    shown = page(replace(base, clusters=(first, base.clusters[1])))
    assert len(shown) < 200_000
    assert 'dir="auto"' in shown.decode()
