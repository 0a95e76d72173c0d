"""Outliers: limits against plain loops, the same for any partitioning, and in releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask import HMRFKMeans, KMeans, load, load_release
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs.places import Report
from hmrf_dask.releases.lineage import Lineage
from hmrf_dask.report.alerts import Facts, alerts_of
from hmrf_dask.tasks.outliers import CLASSES, NOWHERE, limits_of
from tests import naive_clusters
from tests.support.job_corpus import JobCorpus, lines
from tests.support.job_runs import assigned
from tests.support.job_runs import run_with_report as run
from tests.support.problems import planted_text

CLUSTERS = st.lists(st.lists(st.none() | st.integers(0, 30), max_size=9), min_size=1, max_size=3)


@given(CLUSTERS.filter(any), st.none() | st.sampled_from([0.0, 0.1, 0.3, 0.5]))
def test_limits_are_those_of_plain_loops(
    clusters: list[list[int | None]], share: float | None
) -> None:
    counts = np.zeros((len(clusters), CLASSES), np.int64)
    classes = [[NOWHERE if one is None else one for one in rows] for rows in clusters]
    for number, rows in enumerate(classes):
        np.add.at(counts[number], np.array(rows, np.int64), 1)
    limits = limits_of(sp.csr_array(counts), share)
    found = [[one > limit for one in rows] for rows, limit in zip(classes, limits, strict=True)]
    assert found == naive_clusters.outliers(clusters, share)


def with_foreign_rows() -> tuple[sp.csr_matrix, np.ndarray[Any, Any]]:
    """Return 120 texts, 6 of another language, and a row without any word last."""
    known = planted_text(114, 300, 3, 0)[0]
    foreign = sp.random(6, 200, 0.2, random_state=1, dtype=np.float32)
    rows = sp.block_array([[known, None], [None, foreign], [sp.csr_matrix((1, 300)), None]])
    return sp.csr_matrix(rows, dtype=np.float32), np.arange(121) >= 114


@pytest.mark.filterwarnings("ignore:. rows are zero")
def test_foreign_rows_are_marked_and_nothing_else_changes(tmp_path: Path) -> None:
    rows, foreign = with_foreign_rows()
    pairs = {"must_link": [(0, 119)], "cannot_link": [(1, 118)]}
    plain = HMRFKMeans(3, n_init=2, random_state=0).fit(rows, **pairs)
    model = HMRFKMeans(3, n_init=2, random_state=0, outliers="auto")
    marked = []
    with dask.config.set(scheduler="synchronous"):
        for partitions in (1, 7):
            model.fit(Corpus.from_rows(rows, n_partitions=partitions), **pairs)
            assert np.asarray(model.labels_).tolist() == plain.labels_.tolist()
            assert model.objective_ == plain.objective_
            marked.append(np.asarray(model.outliers_))
    assert (marked[0] == marked[1]).all()
    assert not marked[0][[118, 119]].any()  # they have pairs
    assert marked[0][foreign].sum() == 5
    assert marked[0][~foreign].mean() < 0.05
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").is_outlier(rows)
    assert (again == marked[0])[np.r_[:118, 120]].all()
    assert again[[118, 119]].all()  # as new rows they are foreign
    assert plain.outliers_ is None
    assert not plain.is_outlier(rows).any()


def test_clusters_of_other_widths_have_limits_of_their_own() -> None:
    rng = np.random.default_rng(0)
    near, wide = rng.normal(0, 0.1, (60, 2)), rng.normal(50, 5, (60, 2))
    rows = np.concatenate([near, wide, [[3.0, 3.0]]])
    model = KMeans(2, distortion="euclidean", n_init=3, random_state=0, outliers="auto").fit(rows)
    assert model.outliers_[-1]
    assert model.outliers_[:-1].mean() < 0.1


@pytest.mark.parametrize("none", [0, 0.0])
def test_no_share_marks_nothing(none: float) -> None:
    rows = np.array([[0.0], [0.1], [0.2], [0.3], [90.0]])
    model = KMeans(1, distortion="euclidean", random_state=0, outliers=none).fit(rows)
    assert not model.outliers_.any()


@pytest.mark.parametrize("wrong", [0.7, -0.1, "many", True])
def test_a_rule_is_a_share_or_auto(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a number from 0 to 0\.5 or 'auto'"):
        KMeans(2, outliers=wrong).fit(np.eye(3))


def lineage_of(report: Report) -> Lineage:
    return Lineage.from_json((Path(report.output) / report.places["lineage"]).read_bytes())


@pytest.mark.parametrize(("outliers", "said"), [(11, True), (10, False)])
def test_many_outliers_are_an_alert(outliers: int, said: bool) -> None:
    facts = Facts({}, {"all": 100, "outliers": outliers}, {}, {})
    assert ("many outliers" in [alert.kind for alert in alerts_of(facts, [])]) is said


@pytest.mark.filterwarnings("ignore:. rows are zero")
@pytest.mark.parametrize("trimmed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_job_marks_outliers_in_every_night(trimmed: bool, tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    method = {"n_clusters": 3, "n_init": 2, "outliers": "auto", "trim_outliers": trimmed}
    corpus.write_all(60, 15, text={"min_df": 2})
    alien = " ".join(f"quux{number}" for number in range(24))
    foreign = [{"id": f"x/{number}", "text": alien, "label": "space"} for number in range(2)]
    foreign.append({"id": "x/3", "text": "…", "label": "space"})
    corpus.write({"documents/part-100.jsonl.gz": lines(foreign)})
    first = run(corpus.write_job(method=method, text={"min_df": 2}))
    outliers = {one for one, row in assigned(first).items() if row["cluster"] == -1}
    assert outliers >= {"x/0", "x/1", "x/3"}
    assert len(outliers) < 6
    assert (first.documents["all"], first.documents["outliers"]) == (63, len(outliers))
    lineage = lineage_of(first)
    assert (lineage.ids, sum(lineage.sizes)) == ((0, 1, 2), 63 - len(outliers))
    row = assigned(first)["x/0"]
    assert row["margin"] is None
    assert row["runner_up"] in lineage.ids
    late = [{**one, "id": f"y{one['id']}"} for one in foreign]
    corpus.write({"documents/part-101.jsonl.gz": lines(late)})
    # Of a file one document is gone, and one is foreign now.
    stays = [{**corpus.documents[0], "text": alien}, *corpus.documents[2:20]]
    corpus.write({"documents/part-000.jsonl.gz": lines(stays)})
    before, changed = assigned(first), len(stays)
    for mode in ("predict", "fit"):
        report = run(corpus.write_job(method=method, text={"min_df": 2}, mode=mode))
        after = assigned(report)
        marked = {one for one, row in after.items() if row["cluster"] == -1}
        assert marked >= {one["id"] for one in (*foreign, *late)}
        assert lineage_of(report).ids == (0, 1, 2)
        both = before.keys() & after.keys()
        moved = sum(before[one]["cluster"] != after[one]["cluster"] for one in both)
        found = {name: report.documents[name] for name in report.documents if name != "vectorised"}
        assert found == {
            "all": 65, "outliers": len(marked), "new": len(after.keys() - before.keys()),
            "gone": len(before.keys() - after.keys()), "changed": changed, "moved": moved,
            "moved_share": moved / len(both), "quarantined": 0,
        }  # fmt: skip
        page = Path(report.output, report.places["page"]).with_suffix(".json").read_text()
        outside = next(one for one in json.loads(page)["clusters"] if one["id"] == -1)
        assert (outside["name"], outside["size"]) == ("outliers", len(marked))
        assert not any(-1 in one["clusters"] for one in json.loads(page)["alerts"])
        shown = CliRunner().invoke(hmrf, ["classify", report.output, alien])
        assert shown.stdout.splitlines()[0] == "cluster -1  outliers"
        assert "the nearest is cluster" in shown.stdout
        released = load_release(report.output)
        assert released.predict([alien, ""]).tolist() == [-1, -1]
        assert released.classified([alien]).to_pylist()[0]["margin"] is None
        if mode == "predict":
            assert marked - outliers == {stays[0]["id"], *(one["id"] for one in late)}
        before, changed = after, 0
