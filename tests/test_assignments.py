"""What is written of every document and cluster, against plain numpy over the whole matrix."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from hmrf_dask import Constraints, HMRFKMeans, KMeans
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.estimators import comparison
from hmrf_dask.jobs import assignments, former
from hmrf_dask.jobs.assignments import Part, write_assignments, write_clusters
from hmrf_dask.jobs.former import count_overlap
from hmrf_dask.jobs.words import DocumentWords
from hmrf_dask.releases.lineage import first_lineage, trace
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.text.files import Place
from tests.naive_clusters import telling_words, usual
from tests.support.fits import Case, text_case
from tests.support.own_distortions import Hellinger
from tests.support.stores import Place as Address

COLUMNS = ["doc_id", "cluster", "distortion", "runner_up", "margin", "constrained", "violated"]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture(scope="module")
def case() -> Case:
    """Give 90 documents with ids, and pairs of which a third is wrong."""
    right = text_case(90, 120, 4, 60, ids=True, n_init=1, on_conflict="keep")
    wrong = np.random.default_rng(5).permutation(90)[:60].reshape(2, 15, 2)
    return replace(
        right,
        must=np.concatenate([right.must, wrong[0]]),
        cannot=np.concatenate([right.cannot, wrong[1]]),
    )


@pytest.fixture(scope="module")
def model(case: Case) -> HMRFKMeans:
    with dask.config.set(scheduler="synchronous"):
        corpus = case.corpus(1)
        fitted = HMRFKMeans(**case.parameters, must_link_cost=0.3, cannot_link_cost=0.3)
        return fitted.fit(corpus, must_link=case.constraints())


def called(model: HMRFKMeans, ids: list[int]) -> HMRFKMeans:
    """Return the same model, its clusters called by ids."""
    other = copy(model)
    other.cluster_ids_ = np.asarray(ids, np.int32)
    return other


def fitted_labels(model: HMRFKMeans, corpus: Corpus) -> Any:
    """Return the labels of the fit in the chunks of a corpus."""
    return model.labels_.rechunk((corpus.row_counts,))


def read(folder: Path | str) -> dict[str, list[Any]]:
    """Return all assignments, by the id of the document."""
    files = sorted(Path(folder, "assignments").iterdir())
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table.column_names == COLUMNS
    return table.sort_by("doc_id").to_pydict()


def naive(
    matrix: np.ndarray, labels: np.ndarray, ids: np.ndarray, pairs: Constraints
) -> dict[str, list[Any]]:
    """Return the columns from the whole matrix of distances, pair by pair."""
    rows: list[dict[str, Any]] = []
    label_of = dict(zip(ids.tolist(), labels.tolist(), strict=True))
    violated: Counter[Any] = Counter()
    for kind, given in (("must", pairs.must_link), ("cannot", pairs.cannot_link)):
        for one, other in given.tolist():
            if (label_of[one] == label_of[other]) == (kind == "cannot"):
                violated.update([one, other])
    for row, one in enumerate(ids.tolist()):
        own = labels[row]
        others = [h for h in range(matrix.shape[1]) if h != own]
        second = min(others, key=lambda h: (matrix[row, h], h)) if others else None
        rows.append(
            {
                "doc_id": one,
                "cluster": own,
                "distortion": matrix[row, own],
                "runner_up": second,
                "margin": None if second is None else matrix[row, second] - matrix[row, own],
                "constrained": one in set(pairs.documents.tolist()),
                "violated": violated[one],
            }
        )
    rows.sort(key=lambda one: one["doc_id"])
    return {name: [row[name] for row in rows] for name in COLUMNS}


@pytest.mark.parametrize("n_features", [119, 121])
def test_rows_of_another_width_are_refused(
    model: HMRFKMeans, n_features: int, tmp_path: Path
) -> None:
    corpus = text_case(10, n_features, 4, 0).corpus(1)
    message = f"must have the 120 columns that the model was fitted on, got {n_features}"
    with pytest.raises(InvalidInputError, match=message):
        write_assignments(corpus, None, model, str(tmp_path))


@pytest.mark.parametrize("partitions", [1, 7, (0, 0, 1, 40, 40, 90)])
@pytest.mark.parametrize("batch", [2**26, 200])
def test_columns_are_those_of_the_whole_matrix(
    case: Case, model: HMRFKMeans, tmp_path: Path, partitions: Any, batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(comparison, "_BATCH_BYTES", batch)
    corpus = case.corpus(partitions)
    labels = fitted_labels(model, corpus)
    written = write_assignments(
        corpus, labels, model, str(tmp_path), constraints=case.constraints()
    )
    assert case.ids is not None
    expected = naive(model.transform(case.X), np.asarray(labels), case.ids, case.constraints())
    assert read(tmp_path) == expected
    assert any(margin < 0 for margin in expected["margin"])
    assert max(expected["violated"]) > 1
    assert written.violations == model.violations_
    assert written.sizes.tolist() == np.bincount(np.asarray(labels), minlength=4).tolist()
    assert len(written.files) == corpus.n_partitions


def test_pairs_of_row_numbers(case: Case, model: HMRFKMeans, tmp_path: Path) -> None:
    pairs = Constraints(case.must, case.cannot)
    corpus = Corpus.from_rows(case.X, n_partitions=5)
    labels = fitted_labels(model, corpus)
    write_assignments(corpus, labels, model, str(tmp_path), constraints=pairs)
    rows = np.arange(case.n_rows)
    expected = naive(model.transform(case.X), np.asarray(labels), rows, pairs)
    assert read(tmp_path) == expected


def test_without_labels_the_nearest_cluster(case: Case, model: HMRFKMeans, tmp_path: Path) -> None:
    # New documents: most of those that the pairs name are not among them.
    some = Corpus.from_rows(case.X[:30], case.ids[:30], n_partitions=3)  # type: ignore[index]
    pairs = case.constraints()
    written = write_assignments(some, None, model, str(tmp_path), constraints=pairs)
    found = read(tmp_path)
    order = np.argsort(case.ids[:30])  # type: ignore[index]
    assert found["cluster"] == model.predict(case.X[:30])[order].tolist()
    assert min(found["margin"]) >= 0
    inside = [
        kind
        for kind, given in (("must_link", pairs.must_link), ("cannot_link", pairs.cannot_link))
        for pair in given.tolist()
        if set(pair) <= set(found["doc_id"])
        and (len({found["cluster"][found["doc_id"].index(one)] for one in pair}) == 1)
        == (kind == "cannot_link")
    ]
    assert written.violations == {k: inside.count(k) for k in ("must_link", "cannot_link")}
    assert sum(found["violated"]) == 2 * len(inside)


def test_one_cluster_has_no_runner_up(case: Case, tmp_path: Path) -> None:
    corpus = case.corpus(2)
    model = KMeans(1, random_state=0, n_init=1).fit(corpus)
    write_assignments(corpus, model.labels_, model, str(tmp_path))
    found = read(tmp_path)
    assert found["runner_up"] == found["margin"] == [None] * case.n_rows
    assert not any(found["constrained"])


def test_own_distortions_and_dense_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = rng.dirichlet(np.ones(6), 40).astype(np.float32)
    model = HMRFKMeans(3, distortion=Hellinger(), random_state=0, n_init=1)
    pairs = Constraints([(0, 1), (2, 3)], [(0, 2)])
    corpus = Corpus.from_rows(rows, n_partitions=3)
    model.fit(corpus, must_link=pairs)
    write_assignments(corpus, model.labels_, model, str(tmp_path), constraints=pairs)
    expected = naive(model.transform(rows), np.asarray(model.labels_), np.arange(40), pairs)
    assert read(tmp_path) == expected


def test_stable_ids_and_names(case: Case, model: HMRFKMeans, tmp_path: Path) -> None:
    corpus = case.corpus(2)
    labels, ids = fitted_labels(model, corpus), [17, 3, 40, 8]
    other = case.corpus(3)
    write_assignments(other, fitted_labels(model, other), model, str(tmp_path))
    plain = write_assignments(corpus, labels, model, str(tmp_path))
    before = read(tmp_path)
    names = ["b.parquet", "a.parquet"]
    written = write_assignments(
        corpus, labels, called(model, ids), str(tmp_path), parts=list(map(Part, names))
    )
    assert sorted(written.files) == ["assignments/a.parquet", "assignments/b.parquet"]
    after = read(tmp_path)
    assert after["cluster"] == [ids[one] for one in before["cluster"]]
    assert after["runner_up"] == [ids[one] for one in before["runner_up"]]
    assert after["margin"] == before["margin"]
    assert written.sizes.tolist() == plain.sizes.tolist()
    for wrong in (["a"], ["a", "a"]):
        with pytest.raises(InvalidInputError, match="names must be one for each"):
            write_assignments(corpus, labels, model, str(tmp_path), parts=list(map(Part, wrong)))


def clusters_of(folder: Path) -> dict[str, list[Any]]:
    return pq.read_table(folder / "clusters.parquet").to_pydict()


def test_clusters(
    case: Case, model: HMRFKMeans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignments, "REPRESENTATIVES", 3)
    names = [f"word{number:03}" for number in range(case.X.shape[1])]
    assert case.ids is not None
    ids = [17, 3, 40, 8]
    tables, bytes_ = [], set()
    lengths = np.random.default_rng(2).integers(1, 200, len(case.ids))
    for partitions in (1, 90, (0, 0, 50, 90)):
        corpus = case.corpus(partitions)
        labels = fitted_labels(model, corpus)
        folder = str(tmp_path / str(partitions))
        words = [
            DocumentWords((case.X[start:stop] != 0).astype(np.int64), lengths[start:stop])
            for start, stop in itertools.pairwise(corpus.offsets)
        ]
        parts = [Part(f"words-{part:05}.parquet", words=of) for part, of in enumerate(words)]
        written = write_assignments(corpus, labels, model, folder, parts=parts)
        renamed = called(model, ids)
        (sha256,) = write_clusters(written, renamed, folder, terms=pa.array(names)).values()
        bytes_.add(sha256)
        tables.append(clusters_of(Path(folder)))
    assert len(bytes_) == 1
    table = tables[0]
    assert table["cluster"] == [3, 8, 17, 40]
    labels, matrix = np.asarray(model.labels_), model.transform(case.X)
    has = (case.X.toarray() != 0).astype(int)
    counts = [has[labels == label].sum(axis=0).tolist() for label in range(4)]
    expected = telling_words(counts, names, 10)
    for row, label in enumerate([1, 3, 0, 2]):
        members = np.flatnonzero(labels == label)
        own = matrix[members, label]
        # Classes of length are half as wide as a doubling, so somewhat more than the quartiles.
        shortest, longest = map(length_class, usual(lengths[members].tolist()))
        near = sorted(
            (distance, document)
            for distance, document, length in zip(
                own, case.ids[members], lengths[members].tolist(), strict=True
            )
            if shortest <= length_class(length) <= longest
        )
        assert table["representatives"][row] == [document for _, document in near[:3]]
        assert table["size"][row] == len(members)
        assert table["cohesion"][row] == pytest.approx(own.mean(), rel=1e-14)
        assert table["top_words"][row] == expected[label]


def length_class(length: int) -> int:
    """Return how many half doublings a length is above 1, rounded down."""
    return (length * length).bit_length()


def test_clusters_without_words_and_without_documents(tmp_path: Path) -> None:
    corpus = Corpus.from_rows(np.eye(3, dtype=np.float32), n_partitions=2)
    model = KMeans(3, random_state=0, distortion="euclidean").fit(corpus)
    one = Corpus.from_rows(np.eye(3, dtype=np.float32)[:1])
    written = write_assignments(one, None, model, str(tmp_path))
    write_clusters(written, model, str(tmp_path), terms=pa.array(["a", "b", "c"]))
    table = clusters_of(tmp_path)
    assert table["top_words"] == [None] * 3
    assert sorted(table["size"]) == [0, 0, 1]
    assert [one for one in table["representatives"] if one] == [[0]]
    assert sorted(table["cohesion"], key=str) == [0.0, None, None]
    words = DocumentWords(sp.csr_array(np.array([[0, 1, 1]])), np.array([2]))
    parts = [Part("part-00000-of-00001.parquet", words=words)]
    written = write_assignments(one, None, model, str(tmp_path), parts=parts)
    write_clusters(written, model, str(tmp_path), terms=pa.array(["a", "b", "c"]))
    assert sorted(clusters_of(tmp_path)["top_words"]) == [[], [], ["b", "c"]]


def test_any_store(
    case: Case, model: HMRFKMeans, place: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = place
    if options:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", options["endpoint_url"])
    corpus = case.corpus(3)
    labels = fitted_labels(model, corpus)
    old = write_assignments(corpus, labels, model, f"{url}/runs/a")
    assert write_clusters(old, model, f"{url}/runs/a").keys() == {"clusters.parquet"}
    files = {f"runs/a/{name}": sha256 for name, sha256 in old.files.items()}
    found = count_overlap(Place(url), files, corpus, labels, 4)
    lineage = trace(first_lineage(old.sizes.tolist()), *found[:4])
    assert (lineage.ids, lineage.n_moved) == ((0, 1, 2, 3), 0)


@pytest.mark.parametrize("bucket", [2**22, 7])
@pytest.mark.parametrize("same_names", [True, False])
def test_overlap_is_the_count_of_shared_documents(
    case: Case, model: HMRFKMeans, tmp_path: Path, bucket: int, same_names: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(former, "BUCKET", bucket)
    assert case.ids is not None
    labels = np.asarray(model.labels_)
    older = Corpus.from_rows(case.X[:70], case.ids[:70], n_partitions=3)
    given = dask.array.from_array(labels[:70], chunks=(older.row_counts,))
    before = called(model, [5, 6, 7, 9])
    old = write_assignments(older, given, before, str(tmp_path / "runs/a"))
    # 10 documents gone, 20 added, in another order and other partitions; some clusters changed.
    order = np.random.default_rng(0).permutation(np.arange(10, 90))
    newer = Corpus.from_rows(case.X[order], case.ids[order], n_partitions=4)
    changed = (labels[order] + (order % 5 == 0)) % 4
    names = [f"part-{number:05}-of-00003.parquet" for number in range(3)] + ["more"]
    found = count_overlap(
        Place(str(tmp_path)),
        {f"runs/a/{name}": sha256 for name, sha256 in old.files.items()},
        newer,
        dask.array.from_array(changed.astype(np.int32), chunks=(newer.row_counts,)),
        4,
        names=names if same_names else None,
    )
    expected = Counter(
        ([5, 6, 7, 9][labels[row]], int(label))
        for row, label in zip(order.tolist(), changed, strict=True)
        if row < 70
    )
    cells = zip(found.old.tolist(), found.new.tolist(), strict=True)
    assert dict(zip(cells, found.counts.tolist(), strict=True)) == expected
    assert found.sizes.tolist() == np.bincount(changed, minlength=4).tolist()


def test_old_assignments_that_changed_are_named(
    case: Case, model: HMRFKMeans, tmp_path: Path
) -> None:
    corpus = case.corpus(1)
    labels = fitted_labels(model, corpus)
    old = write_assignments(corpus, labels, model, str(tmp_path))
    (name,) = old.files
    with pytest.raises(DamagedFileError, match=f"{name} must be as it was published"):
        count_overlap(Place(str(tmp_path)), {name: "0" * 64}, corpus, labels, 4)


def test_a_lost_file_of_old_assignments_leaves_the_others(
    case: Case, model: HMRFKMeans, tmp_path: Path
) -> None:
    corpus = case.corpus(3)
    labels = fitted_labels(model, corpus)
    old = write_assignments(corpus, labels, model, str(tmp_path))
    whole = count_overlap(Place(str(tmp_path)), old.files, corpus, labels, 4)
    lost = dict.fromkeys(sorted(old.files)[:1], "0" * 64)
    with pytest.warns(HmrfWarning, match="1 of 3 files with the last assignments cannot be read"):
        found = count_overlap(Place(str(tmp_path)), old.files | lost, corpus, labels, 4)
    assert found.counts.sum() == corpus.n_rows - corpus.row_counts[0]
    assert found.sizes.tolist() == whole.sizes.tolist()


@pytest.mark.cluster
def test_worker_processes_write_the_same_bytes(
    case: Case, model: HMRFKMeans, tmp_path: Path, process_client: Any
) -> None:
    corpus, pairs = case.corpus(5), case.constraints()
    with dask.config.set(scheduler="threads"):
        labels = np.asarray(model.labels_)
    given = dask.array.from_array(labels, chunks=(corpus.row_counts,))
    there = write_assignments(corpus, given, model, str(tmp_path / "a"), constraints=pairs)
    with dask.config.set(scheduler="synchronous"):
        here = write_assignments(corpus, given, model, str(tmp_path / "b"), constraints=pairs)
    assert there.files == here.files
    assert there.distortions.tolist() == here.distortions.tolist()
    assert there.nearest.ids.tolist() == here.nearest.ids.tolist()
    found = count_overlap(Place(str(tmp_path / "a")), there.files, corpus, given, 4)
    assert sum(found.counts) == case.n_rows
