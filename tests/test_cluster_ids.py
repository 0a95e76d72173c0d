"""Ids that stay: every way of asking the model of a release gives the ids of the release."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hmrf_dask import KMeans, load
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.places import Report, assignment_files, model_folder
from hmrf_dask.rows.encoding import BlockFile
from hmrf_dask.rows.files import Manifest, write_manifest
from hmrf_dask.storage.sealed import unseal
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run


def nearest(n_clusters: int) -> dict[str, Any]:
    """Return a method that leaves every document in its nearest cluster."""
    return {"n_clusters": n_clusters, "n_init": 1, "refine": False, "random_state": 7}


def rows_of(report: Report, folder: Path) -> str:
    """Bring the rows of a release together as a corpus that commands take; return where it is."""
    model = load(model_folder(report.output))
    files = []
    for record in sorted(Path(report.output, "rows").glob("*/*/rows.json")):
        shutil.copytree(record.parent, folder, dirs_exist_ok=True)
        files += [BlockFile(**one) for one in unseal(record.read_bytes(), record.name)["files"]]
    write_manifest(Manifest(model.n_features_in_, True, tuple(files)), str(folder))
    return str(folder)


def predicted(report: Report, out: Path) -> tuple[dict[str, dict[str, Any]], Any]:
    """Return what `predict` writes for the rows of a release, by document, and what it prints."""
    rows = rows_of(report, out.with_name(f"{out.name}-rows"))
    asked = ["predict", report.output, rows, f"--out={out}", "--json", "--quiet"]
    result = CliRunner().invoke(hmrf, asked)
    assert result.exit_code == 0, result.output
    table = pa.concat_tables([pq.read_table(file.path) for file in assignment_files(str(out))])
    return {row["doc_id"]: row for row in table.to_pylist()}, json.loads(result.stdout)


def check_all_ways(report: Report, out: Path) -> None:
    """Compare the ids of a release with what its model says, in every way it can be asked."""
    wanted = assigned(report)
    found, record = predicted(report, out)
    assert found == wanted
    sizes = {one["cluster"]: one["size"] for one in record["clusters"]}
    clusters = pq.read_table(Path(report.output) / report.places["clusters"]).to_pylist()
    assert sizes == {one["cluster"]: one["size"] for one in clusters}
    model = load(model_folder(report.output))
    assert sorted(model.cluster_ids_.tolist()) == [one["cluster"] for one in clusters]
    corpus = Corpus.from_parquet(f"{out}-rows")
    ids = np.concatenate([block.read().ids for block in corpus.named]).tolist()
    expected = [wanted[name]["cluster"] for name in ids]
    assert model.predict(corpus).compute().tolist() == expected  # lazily, from files
    distances = model.transform(corpus).compute()
    assert model.cluster_ids_[distances.argmin(axis=1)].tolist() == expected
    model.save(out / "copy")
    again = load(out / "copy")
    np.testing.assert_array_equal(again.cluster_ids_, model.cluster_ids_)


def test_after_two_fits_every_way_of_asking_gives_the_ids_that_stay(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    first = run(corpus.write_all(n_pairs=0, method=nearest(20)))
    check_all_ways(first, tmp_path / "one")
    second = run(corpus.write_job(method=nearest(25)))
    ids = load(model_folder(second.output)).cluster_ids_.tolist()
    assert ids != sorted(ids)  # a permutation with gaps, not positions
    assert max(ids) >= 25
    check_all_ways(second, tmp_path / "two")
    # The model of a release is asked for files that came later, and stays as it is.
    corpus.write(corpus.files(corpus.draw(40), first=50))
    third = run(corpus.write_job(method=nearest(25)), mode="predict")
    old = {name: row["cluster"] for name, row in assigned(second).items()}
    new = {name: row["cluster"] for name, row in assigned(third).items()}
    assert {name: new[name] for name in old} == old
    assert set(new.values()) <= set(ids)
    assert load(model_folder(third.output)).cluster_ids_.tolist() == ids


def test_a_fit_calls_its_clusters_by_their_positions(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((40, 5))
    model = KMeans(4, random_state=0).fit(rows)
    assert model.cluster_ids_.tolist() == [0, 1, 2, 3]
    model.cluster_ids_ = np.array([7, 3, 9, 12])
    model.save(tmp_path)
    loaded = load(tmp_path)
    assert loaded.cluster_ids_.tolist() == [7, 3, 9, 12]
    assert set(loaded.predict(rows).tolist()) <= {7, 3, 9, 12}
    assert loaded.predict(rows).dtype == np.int32
    assert loaded.score(rows) == model.score(rows)
    # A fit begins again: labels and ids are positions again.
    loaded.fit(rows)
    np.testing.assert_array_equal(loaded.predict(rows), loaded.labels_)
    assert loaded.cluster_ids_.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("ids", [[0, 1], [0, 1, 1], [0, 1, -1]])
def test_ids_that_cannot_be_those_of_the_clusters_are_refused(
    ids: list[int], tmp_path: Path
) -> None:
    model = KMeans(3, random_state=0).fit(np.random.default_rng(0).random((30, 4)))
    model.cluster_ids_ = np.array(ids)
    model.save(tmp_path)
    with pytest.raises(InvalidInputError, match="cluster_ids must be 3 different ids"):
        load(tmp_path)
