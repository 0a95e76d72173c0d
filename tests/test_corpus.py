from __future__ import annotations

import pathlib
import subprocess
import sys

import dask
import dask.array
import numpy as np
import pytest
import scipy.sparse
from dask.delayed import delayed
from distributed import Client, futures_of, wait
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrf_dask.corpus import partitioned
from hmrf_dask.corpus.partitioned import Corpus, as_corpus, find_duplicate_ids
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.rows.block import RowBlock, fingerprint

SPARSE_CHUNKS = (scipy.sparse.csr_matrix, scipy.sparse.csr_array, scipy.sparse.coo_array)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def dense():
    return np.where(np.arange(70).reshape(10, 7) % 3 == 0, np.arange(70.0).reshape(10, 7), 0)


class CountingCompute:
    """Stands in for dask.compute and counts how often it is called."""

    def __init__(self):
        self.n_calls = 0

    def __call__(self, *collections):
        self.n_calls += 1
        return dask.compute(*collections)


def never(*_):
    raise AssertionError("nothing may be computed here")


@pytest.fixture
def counting(monkeypatch):
    compute = CountingCompute()
    monkeypatch.setattr(partitioned, "compute", compute)
    return compute


def blocks_of(corpus):
    return dask.compute(*corpus.partitions)


def assert_holds(corpus, dense, ids=None):
    """The partitions are the rows, in order, with the sizes that the corpus says."""
    blocks = blocks_of(corpus)
    assert corpus.row_counts == tuple(block.n_rows for block in blocks)
    assert corpus.offsets == tuple(np.cumsum([0, *corpus.row_counts]))
    assert corpus.shape == dense.shape
    assert corpus.has_ids == (ids is not None)
    np.testing.assert_array_equal(np.vstack([block.to_dense() for block in blocks]), dense)
    found = [id_ for block in blocks for id_ in block.ids.tolist()]
    assert found == (list(range(len(dense))) if ids is None else list(ids))


NAMES = [f"doc-{i}" for i in range(10)]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "dense"])
@pytest.mark.parametrize("ids", [None, NAMES, list(range(100, 110))])
def test_rows_in_memory(dense, kind, ids):
    rows = dense if kind == "dense" else scipy.sparse.csr_matrix(dense).asformat(kind)
    assert_holds(Corpus.from_rows(rows, ids, n_partitions=3), dense, ids)
    assert_holds(as_corpus(rows, ids), dense, ids)


@pytest.mark.parametrize("n_partitions", [1, 2, 7, 10, 24])
def test_more_partitions_than_rows_are_normal(dense, n_partitions):
    corpus = Corpus.from_rows(scipy.sparse.csr_array(dense), NAMES, n_partitions)
    assert corpus.n_partitions == n_partitions
    assert_holds(corpus, dense, NAMES)


def test_partition_bytes_bound_the_partitions_and_every_one_has_a_row(dense):
    sparse = scipy.sparse.csr_array(dense)
    for rows, most in ((sparse, 40), (dense, 70), (sparse, 1)):
        corpus = Corpus.from_rows(rows, partition_bytes=most)
        assert_holds(corpus, dense)
        sizes = [b.values.nbytes + b.indices.nbytes for b in blocks_of(corpus)]
        assert all(s <= most or n == 1 for s, n in zip(sizes, corpus.row_counts, strict=True))
        assert min(corpus.row_counts) >= 1
    default = Corpus.from_rows(scipy.sparse.csr_array((2**17 + 1, 3)))
    assert default.row_counts == (2**16, 2**16, 1)


def test_rows_in_the_right_form_are_not_copied(dense):
    sparse = scipy.sparse.csr_array(dense, dtype=np.float32)
    for block in blocks_of(Corpus.from_rows(sparse, n_partitions=3)):
        assert np.shares_memory(block.values, sparse.data)


def test_no_rows_and_no_features(dense):
    empty = Corpus.from_rows(np.empty((0, 3)))
    assert (empty.shape, empty.row_counts) == ((0, 3), (0,))
    with pytest.raises(InvalidInputError, match=r"0 feature\(s\).*minimum of 1 is required"):
        Corpus.from_rows(np.empty((3, 0)))
    with pytest.raises(InvalidInputError, match="at least one partition"):
        Corpus.from_delayed([], 3, [])


@pytest.mark.parametrize("make", [*SPARSE_CHUNKS, np.asarray])
@pytest.mark.parametrize("chunks", [(4, 7), (10, 3), ((0, 1, 9), (2, 5))])
@pytest.mark.parametrize("unknown", [False, True])
def test_dask_arrays(dense, make, chunks, unknown, counting):
    array = dask.array.from_array(dense, chunks=chunks).map_blocks(make, dtype=float)
    if unknown:
        array._chunks = tuple(tuple(np.nan for _ in axis) for axis in array.chunks)
    corpus = Corpus.from_dask(array, NAMES)
    assert counting.n_calls == int(unknown)
    assert_holds(corpus, dense, NAMES)


def test_dask_array_under_query_planning(dense):
    code = (
        "import dask; dask.config.set({'array.query-planning': True, 'scheduler': 'synchronous'})\n"
        "import dask.array as da, numpy as np, scipy.sparse as sp\n"
        "from hmrf_dask.corpus.partitioned import Corpus\n"
        "x = da.from_array(np.eye(6), chunks=(4, 3)).map_blocks(sp.csr_array, dtype=float)\n"
        "c = Corpus.from_dask(x)\n"
        "print(c.row_counts, sum(b.to_dense().sum() for b in dask.compute(*c.partitions)))\n"
        "try: c.to_dask_array()\n"
        "except ValueError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[0] == "(4, 2) 6.0"
    assert "array.query-planning must be off" in done.stdout


@pytest.mark.parametrize("ids_chunks", [4, 10, (3, 3, 4)])
def test_ids_may_be_a_dask_array_of_any_known_chunks(dense, ids_chunks, counting):
    ids = dask.array.from_array(np.array(NAMES, dtype=object), chunks=ids_chunks)
    array = dask.array.from_array(dense, chunks=(4, 7))
    assert_holds(Corpus.from_dask(array, ids), dense, NAMES)
    assert counting.n_calls == 0


def test_ids_of_unknown_chunks_must_match_in_number(dense):
    array = dask.array.from_array(dense, chunks=(5, 7))
    ids = dask.array.from_array(np.array(NAMES), chunks=5)
    ids._chunks = ((np.nan, np.nan),)
    assert_holds(Corpus.from_dask(array, ids), dense, NAMES)
    with pytest.raises(InvalidInputError, match=r"same row chunks as the rows \(10 rows"):
        Corpus.from_dask(array.rechunk((2, 7)), ids)
    with pytest.raises(InvalidInputError, match="same row chunks"):
        Corpus.from_dask(array, dask.array.from_array(np.array(NAMES[:9]), chunks=5))


def chunks_of(*shapes):
    parts = [delayed(np.ones)(shape) for shape in shapes]
    return [dask.array.from_delayed(part, (np.nan, 3), dtype=float) for part in parts]


def test_partitions_of_differing_columns_are_named():
    array = dask.array.concatenate(chunks_of((2, 3), (2, 3), (4, 5), (1, 5)))
    with pytest.raises(InvalidInputError, match=r"3 features in partition 0 but 5 in partition 2"):
        Corpus.from_dask(array)
    lying = dask.array.from_delayed(delayed(np.ones)((2, 5)), (2, 3), dtype=float)
    with pytest.raises(InvalidInputError, match="partition 0 must have 2 rows of 3 features"):
        blocks_of(Corpus.from_dask(lying))


def test_chunks_that_are_no_matrices_are_named(dense):
    array = dask.array.from_array(dense, chunks=(5, 4))
    mixed = array.map_blocks(
        lambda chunk: scipy.sparse.csr_array(chunk) if chunk.shape[1] == 4 else chunk, dtype=float
    )
    with pytest.raises(
        InvalidInputError, match=r"chunks of partition [01] must be all scipy sparse"
    ):
        blocks_of(Corpus.from_dask(mixed))
    strange = array.map_blocks(lambda chunk: chunk.tolist(), dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(InvalidInputError, match=r"partition [01] must be .* got list"):
        blocks_of(Corpus.from_dask(strange))
    words = array.map_blocks(lambda chunk: chunk.astype(object), dtype=float)
    with pytest.raises(InvalidInputError, match=r"partition [01]: rows must be of real numbers"):
        blocks_of(Corpus.from_dask(words))


def test_delayed_parts_are_renumbered_or_keep_their_ids(dense, counting):
    sparse = scipy.sparse.csr_array(dense)
    parts = [delayed(RowBlock.from_scipy)(sparse[a : a + 5], NAMES[a : a + 5]) for a in (0, 5)]
    assert_holds(Corpus.from_delayed(parts, 7), dense, NAMES)
    assert counting.n_calls == 1
    assert_holds(Corpus.from_delayed(parts, 7, [5, 5], has_ids=False), dense)
    assert counting.n_calls == 1
    wrong = Corpus.from_delayed(parts, 7, [5, 4])
    with pytest.raises(InvalidInputError, match="partition 1 must have 4 rows of 7 features"):
        blocks_of(wrong)
    for counts in ([5], [5, 5, 5]):
        with pytest.raises(InvalidInputError, match=rf"one for each .* got {len(counts)} for 2"):
            Corpus.from_delayed(parts, 7, counts)


def test_one_dimensional_complex_masked_and_other_things_are_refused(dense):
    with pytest.raises(InvalidInputError, match="Expected 2D array, got 1D array instead"):
        as_corpus(dense[0])
    with pytest.raises(InvalidInputError, match="Expected 2D array, got 1D array instead"):
        as_corpus(dask.array.ones(3))
    with pytest.raises(InvalidInputError, match="Complex data not supported"):
        as_corpus(scipy.sparse.csr_array(dense * 1j))
    with pytest.raises(InvalidInputError, match="masked"):
        as_corpus(np.ma.masked_array(dense))
    with pytest.raises(InvalidInputError, match=r"rows must be .* got list"):
        as_corpus([[1, 2]])
    with pytest.raises(InvalidInputError, match="it has its own"):
        as_corpus(Corpus.from_rows(dense), NAMES)
    with pytest.raises(ConfigurationError, match=r"n_partitions must be an integer .* got 0"):
        Corpus.from_rows(dense, n_partitions=0)


def test_ids_in_memory_must_fit_and_be_of_one_kind(dense):
    with pytest.raises(InvalidInputError, match="one for each of the 10 rows"):
        Corpus.from_rows(dense, NAMES[:9])
    with pytest.raises(InvalidInputError, match="one for each of the 10 rows"):
        Corpus.from_dask(dask.array.from_array(dense, chunks=(5, 7)), NAMES[:9])
    mixed = [*range(5), *NAMES[5:]]
    with pytest.raises(InvalidInputError, match="all strings or all integers"):
        Corpus.from_rows(dense, mixed, n_partitions=2)


@pytest.mark.parametrize("sparse", [False, True])
def test_parquet_and_back(dense, tmp_path, sparse):
    rows = scipy.sparse.csr_array(dense) if sparse else dense
    url = str(tmp_path / "corpus")
    for ids in (None, NAMES):
        folder = f"{url}-{ids is None}"
        corpus = Corpus.from_rows(rows, ids, n_partitions=12)
        read = corpus.to_parquet(folder)
        assert_holds(read, dense, ids)
        files = {path.name for path in pathlib.Path(folder).iterdir()}
        again = corpus.to_parquet(folder)
        assert {path.name for path in pathlib.Path(folder).iterdir()} == files
        assert_holds(again, dense, ids)
        assert_holds(as_corpus(folder), dense, ids)
        assert_holds(as_corpus(pathlib.Path(folder)), dense, ids)
    with pytest.raises(InvalidInputError, match="holds another corpus"):
        Corpus.from_rows(rows, n_partitions=2).to_parquet(f"{url}-True")


@given(
    st.lists(st.integers(0, 10), max_size=5),
    st.lists(st.integers(0, 10), max_size=5),
    st.booleans(),
)
@settings(max_examples=60)
def test_any_repartitioning_keeps_rows_ids_and_fingerprint(first, second, is_dense):
    dense = np.arange(30.0).reshape(10, 3) % 4
    rows = dense if is_dense else scipy.sparse.csr_array(dense)
    one = Corpus.from_rows(rows, NAMES, n_partitions=1)
    cut = one.with_partitions([0, *sorted(first), 10])
    again = cut.with_partitions([0, *sorted(second), 10])
    for corpus in (cut, again, again.repartition(3)):
        assert_holds(corpus, dense, NAMES)
        parts = [
            fingerprint(block, offset)
            for block, offset in zip(blocks_of(corpus), corpus.offsets[:-1], strict=True)
        ]
        sums = [sum(column) % 2**64 for column in zip(*parts, strict=True)]
        assert tuple(sums) == fingerprint(blocks_of(one)[0], 0)


def test_unchanged_partitions_are_not_touched_and_slices_own_their_memory(dense):
    corpus = Corpus.from_rows(scipy.sparse.csr_array(dense), n_partitions=2)
    again = corpus.with_partitions([0, 2, 5, 10])
    assert again.partitions[2] is corpus.partitions[1]
    source = blocks_of(corpus)[0]
    assert not np.shares_memory(blocks_of(again)[0].values, source.values)
    for bad in ([], [0], [1, 10], [0, 9], [0, 7, 3, 10]):
        with pytest.raises(InvalidInputError, match="bounds must ascend from 0"):
            corpus.with_partitions(bad)


@pytest.mark.parametrize("ids", [None, [f"document {i:03d}" for i in range(10)]])
def test_a_corpus_of_files_says_where_they_are_and_what_they_hold(dense, ids, tmp_path):
    rows = scipy.sparse.csr_array(dense)
    corpus = Corpus.from_rows(rows, ids=ids, n_partitions=3)
    read = corpus.to_parquet(str(tmp_path))
    blocks = blocks_of(corpus)
    assert [source.nbytes for source in read.sources] == [b.nbytes - 4 for b in blocks]
    for source, block in zip(read.sources, blocks, strict=True):
        np.testing.assert_array_equal(source.read().values, block.values)
    assert corpus.sources == read.repartition(2).sources == ()


@pytest.mark.parametrize("as_dense", [False, True])
def test_a_dask_array_of_the_same_row_chunks(dense, as_dense):
    corpus = Corpus.from_rows(scipy.sparse.csr_array(dense), n_partitions=4)
    corpus = corpus.with_partitions([0, 0, 3, 3, 4, 10])
    array = corpus.to_dask_array(dense=as_dense)
    assert array.chunks == ((0, 3, 0, 1, 6), (7,))
    assert array.dtype == np.float32
    assert isinstance(array._meta, np.ndarray if as_dense else scipy.sparse.csr_array)
    chunks = [array.blocks[i].compute() for i in range(5)]
    assert {type(chunk) for chunk in chunks} == {type(array._meta)}
    stacked = np.vstack([chunk if as_dense else chunk.toarray() for chunk in chunks])
    np.testing.assert_array_equal(stacked, dense)
    assert_holds(Corpus.from_dask(array), dense)
    assert_holds(Corpus.from_dask(array[2:7]), dense[2:7])


def test_duplicate_ids_are_found_across_partitions_and_buckets(monkeypatch):
    ids = [f"doc-{i}" for i in range(40)]
    rows = np.ones((40, 2))
    corpus = Corpus.from_rows(rows, ids, n_partitions=5)
    assert find_duplicate_ids(corpus, DaskFlow()) == []
    assert find_duplicate_ids(Corpus.from_rows(rows), None) == []
    monkeypatch.setattr(partitioned, "_KEYS_PER_BUCKET", 7)
    ids[3] = ids[30]
    ids[20] = ids[21]
    assert find_duplicate_ids(Corpus.from_rows(rows, ids, 5), DaskFlow()) == ["doc-21", "doc-30"]
    numbers = np.arange(40)
    numbers[39] = 0
    assert find_duplicate_ids(Corpus.from_rows(rows, numbers, 3), DaskFlow()) == [0]


def test_ids_that_only_share_a_key_are_no_duplicates():
    corpus = Corpus.from_rows(np.ones((4, 1)), ["a", "b", "c", "c"], n_partitions=1)
    (block,) = blocks_of(corpus)
    clash = RowBlock(
        block.values,
        block.indices,
        block.indptr,
        block.ids,
        np.array([5, 5, 7, 7], np.uint64),
        1,
    )
    clashing = Corpus.from_delayed([delayed(clash, traverse=False)], 1, [4])
    assert find_duplicate_ids(clashing, DaskFlow()) == ["c"]


def test_only_a_few_ids_come_back_when_all_are_alike():
    returned = []

    class Spying(DaskFlow):
        def compute(self, values):
            returned.append(super().compute(values))
            return returned[-1]

    corpus = Corpus.from_rows(np.ones((600, 1)), [f"{i % 100}" for i in range(600)], 4)
    assert len(find_duplicate_ids(corpus, Spying())) == 10
    assert max(len(part) for results in returned for part in results) <= 10


def test_rows_of_the_client_are_sent_once_each_as_a_task_of_its_own(dense, monkeypatch):
    corpus = Corpus.from_rows(scipy.sparse.csr_array(dense), n_partitions=3)
    sent = []

    def spying(part):
        sent.append(part.key)
        return dask.persist(part)

    monkeypatch.setattr("dask.base.persist", spying)
    placed = corpus.persist()
    assert sent == [part.key for part in corpus.partitions]
    assert len(set(sent)) == 3
    assert not placed.in_client
    assert_holds(placed, dense)
    assert placed.persist() is placed
    assert len(sent) == 3
    for part in corpus.partitions:
        assert len(part.__dask_graph__()) == 1


def test_rows_sent_to_a_cluster_are_recomputed_there_and_never_sent_again():
    # Each partition is 12 MiB: Dask warns, which is an error here, where a graph holds one.
    dense = np.ones((3, 3 * 2**20), np.float32)
    with (
        dask.config.set(scheduler=None),
        Client(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as client,
    ):
        corpus = Corpus.from_rows(dense, n_partitions=3)
        placed = corpus.persist()
        del corpus
        wait(futures_of(placed.partitions))
        counts = [part.n_rows for part in placed.partitions]
        assert dask.compute(*counts) == (1, 1, 1)
        (holder, *_) = client.who_has(futures_of(placed.partitions)[:1]).popitem()[1]
        client.retire_workers([holder], close_workers=True)
        again = [part.n_rows for part in placed.partitions]
        assert dask.compute(*again) == (1, 1, 1)
