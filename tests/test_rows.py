from __future__ import annotations

import pickle
from hashlib import blake2b

import numpy as np
import pytest
import scipy.sparse
from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.rows.block import RowBlock, check_finite, fingerprint
from hmrf_dask.rows.canonical import hash_ids

ARRAYS = ("values", "indices", "indptr", "ids", "keys")
FORMATS = ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")
NUMBERS = (np.bool_, np.int8, np.uint16, np.int64, np.uint64, np.float32, np.float64)


@st.composite
def dense_rows(draw, dtype=np.float32):
    """Small matrices with many zeros, some of them negative; any number of rows, also none."""
    n_rows, n_features = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    numbers = st.sampled_from([0.0, 0.0, -0.0, 1.0, -2.5, 3.25, 1e-30])
    return draw(hnp.arrays(dtype, (n_rows, n_features), elements=numbers))


def assert_same(left, right):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), strict=True)
    assert left.n_features == right.n_features


def assert_kernel_form(block):
    assert [getattr(block, name).dtype for name in ARRAYS[:3]] == [np.float32, np.int32, np.int32]
    assert block.keys.dtype == np.uint64
    for name in ARRAYS:
        array = getattr(block, name)
        assert array.flags.aligned
        assert array.flags.c_contiguous
        assert not array.flags.writeable
    for i in range(block.n_rows):
        row = block.indices[block.indptr[i] : block.indptr[i + 1]]
        assert (np.diff(row) > 0).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("make", ["matrix", "array"])
def test_every_format_and_dtype_gives_the_rows_of_the_matrix(kind, dtype, make):
    dense = np.array([[0, 3, 0, 1], [0, 0, 0, 0], [2, 0, 0, 5]]).astype(dtype)
    coo = getattr(scipy.sparse, f"coo_{make}")(dense)
    block = RowBlock.from_scipy(coo.asformat(kind), first_row=7)
    assert_kernel_form(block)
    np.testing.assert_array_equal(block.to_dense(), dense.astype(np.float32))
    assert block.ids.tolist() == [7, 8, 9]
    assert not block.is_dense


@given(dense_rows(np.float64), st.sampled_from([np.int32, np.int64]), st.randoms())
@settings(max_examples=60)
def test_shuffled_duplicated_rows_become_canonical_and_the_caller_keeps_his(dense, width, random):
    rows, columns = np.nonzero(np.ones_like(dense))
    order = list(range(len(rows))) * 2
    random.shuffle(order)
    order.sort(key=lambda p: rows[p])
    indptr = np.concatenate([[0], np.cumsum(np.full(len(dense), 2 * dense.shape[1]))])
    parts = (dense[rows, columns][order], columns[order].astype(width), indptr.astype(width))
    kept = [part.copy() for part in parts]
    block = RowBlock.from_csr(*parts, dense.shape[1])
    assert_kernel_form(block)
    assert (block.values != 0).all()
    np.testing.assert_array_equal(block.to_dense(), (2 * dense).astype(np.float32))
    for part, before in zip(parts, kept, strict=True):
        np.testing.assert_array_equal(part, before)


def test_a_matrix_in_the_right_form_shares_its_memory_and_is_not_modified():
    matrix = scipy.sparse.random_array((20, 9), density=0.3, dtype=np.float32, rng=0, format="csr")
    before = matrix.copy()
    block = RowBlock.from_scipy(matrix)
    assert np.shares_memory(block.values, matrix.data)
    assert (matrix != before).nnz == 0
    assert matrix.data.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        block.values[0] = 1


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble, *NUMBERS])
def test_dense_rows_of_every_dtype(dtype):
    dense = np.asfortranarray(np.array([[0, 3, 0, 1], [2, 0, 0, 5]]).astype(dtype))
    block = RowBlock.from_array(dense)
    assert_kernel_form(block)
    np.testing.assert_array_equal(block.to_dense(), dense.astype(np.float32))


def test_boolean_duplicates_are_or_and_small_integers_do_not_wrap():
    indptr, columns = np.array([0, 2]), np.array([1, 1])
    flags = RowBlock.from_csr(np.array([True, True]), columns, indptr, 2)
    assert flags.values.tolist() == [1.0]
    small = RowBlock.from_csr(np.array([100, 100], np.int8), columns, indptr, 2)
    assert small.values.tolist() == [200.0]


@given(dense_rows(), dense_rows())
@settings(max_examples=60)
def test_dense_rows_go_in_and_out_without_negative_zeros(dense, other):
    block = RowBlock.from_array(dense)
    assert_kernel_form(block)
    np.testing.assert_array_equal(block.to_dense(), dense)
    assert not np.signbit(block.values[block.values == 0]).any()
    np.testing.assert_array_equal(block.to_scipy().toarray(), dense)
    assert block.is_dense == (dense.size > 0)


@given(dense_rows(), st.data())
@settings(max_examples=80)
def test_take_rows_and_concatenate_agree_with_numpy(dense, data):
    for make in (RowBlock.from_array, lambda d: RowBlock.from_scipy(scipy.sparse.csr_array(d))):
        block = make(dense)
        positions = data.draw(
            st.lists(st.integers(0, max(0, len(dense) - 1)), max_size=8 if len(dense) else 0)
        )
        taken = block.take(positions)
        assert_kernel_form(taken)
        np.testing.assert_array_equal(taken.to_dense(), dense[np.array(positions, int)])
        np.testing.assert_array_equal(taken.ids, np.array(positions, int))
        cut = data.draw(st.integers(0, len(dense)))
        empty = block.rows(0, 0)
        pieces = [empty, block.rows(0, cut), empty, block.rows(cut, len(dense))]
        whole = RowBlock.concatenate(pieces)
        assert_same(whole, block)
        assert not np.shares_memory(whole.values, block.values) or not block.values.size


def test_rows_of_zeros_join_dense_rows():
    zeros = RowBlock.from_scipy(scipy.sparse.csr_array((2, 3)))
    ones = RowBlock.from_array(np.ones((1, 3)), first_row=2)
    joined = RowBlock.concatenate([zeros, ones])
    np.testing.assert_array_equal(joined.to_dense(), [[0, 0, 0], [0, 0, 0], [1, 1, 1]])
    sparse = RowBlock.from_scipy(scipy.sparse.csr_array(np.eye(3)))
    with pytest.raises(InvalidInputError, match="all sparse or all dense"):
        RowBlock.concatenate([ones, sparse])
    with pytest.raises(InvalidInputError, match="same number of features"):
        RowBlock.concatenate([ones, RowBlock.from_array(np.ones((1, 4)))])
    named = RowBlock.from_array(np.ones((1, 3)), ids=["a"])
    with pytest.raises(InvalidInputError, match="all strings or all integers"):
        RowBlock.concatenate([ones, named])


def test_size_is_honest_for_dask_and_for_python():
    block = RowBlock.from_scipy(scipy.sparse.eye_array(1000, format="csr"))
    arrays = sum(getattr(block, name).nbytes for name in ARRAYS)
    assert block.nbytes == arrays == 1000 * (4 + 4 + 8 + 8) + 1001 * 4
    assert arrays <= sizeof(block) <= arrays + 200


@pytest.mark.parametrize("ids", [None, ["ä", "b", ""]])
def test_pickle_takes_the_arrays_out_of_band_and_distributed_gives_them_back(ids):
    block = RowBlock.from_array(np.arange(6).reshape(3, 2), ids)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
    taken = sum(memoryview(buffer).nbytes for buffer in buffers)
    assert taken == block.nbytes
    assert_same(pickle.loads(stream, buffers=buffers), block)
    header, frames = serialize(block)
    assert_same(deserialize(header, frames), block)


def test_arrays_that_arrive_unaligned_are_aligned_again():
    block = RowBlock.from_array(np.arange(1.0, 7).reshape(3, 2))
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
    shifted = [memoryview(b"x" + bytes(memoryview(b).cast("B")))[1:] for b in buffers]
    arrived = pickle.loads(stream, buffers=shifted)
    assert_same(arrived, block)
    assert_kernel_form(arrived)


def test_keys_are_blake2b_of_the_utf8_and_row_numbers_themselves():
    expected = int.from_bytes(blake2b("ä".encode(), digest_size=8).digest(), "little")
    assert hash_ids(np.array(["ä"])).tolist() == [expected]
    assert hash_ids(np.array([3, -1])).tolist() == [3, 2**64 - 1]
    assert hash_ids(np.array([], dtype="<U1")).dtype == np.uint64


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], "one for each of the 2 rows"),
        (["a", 1], "got 1 in row 6"),
        ([1, "a"], "got 'a' in row 6"),
        ([None, "a"], "got None in row 5"),
        ([True, False], "got True in row 5"),
        ([1.5, 2.0], r"got 1\.5 in row 5"),
        (np.array([1.5, 2.0]), "got dtype float64"),
        (["a", "b\0"], "must not end in a NUL"),
        (["a", "\ud800"], "lone surrogate"),
        ([1, 2**70], "below 2\\*\\*63"),
        (np.array([1, 2**63], np.uint64), "below 2\\*\\*63"),
    ],
)
def test_ids_that_are_not_ids_are_refused(ids, message):
    with pytest.raises(InvalidInputError, match=message):
        RowBlock.from_array(np.ones((2, 2)), ids, first_row=5)


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "bb"],
        np.array(["a", "bb"], dtype=object),
        np.array(["a", "bb"], np.dtypes.StringDType()),
    ],
)
def test_string_ids_of_every_array_type_are_the_same(ids):
    block = RowBlock.from_array(np.ones((2, 2)), ids)
    assert block.ids.tolist() == ["a", "bb"]
    assert block.ids.dtype == np.dtype("<U2")


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones(3), "Expected 2D array, got 1D array instead"),
        (np.array(3.0), "Expected 2D array, got scalar array instead"),
        (np.ones((2, 2, 2)), "Found array with dim 3"),
        (np.ones((2, 2), complex), "Complex data not supported"),
        (np.array([["a", "b"]]), "rows must be of real numbers"),
        (np.array([[1, None]]), "got dtype object"),
    ],
)
def test_what_is_not_a_matrix_of_numbers_is_refused(matrix, message):
    with pytest.raises(InvalidInputError, match=message):
        RowBlock.from_array(matrix)


def test_a_one_dimensional_sparse_array_is_refused():
    with pytest.raises(InvalidInputError, match="Expected 2D array, got 1D array instead"):
        RowBlock.from_scipy(scipy.sparse.coo_array(np.ones(3)))


@pytest.mark.parametrize(
    ("indices", "indptr"),
    [
        ([0, 3], [0, 1, 2]),  # a feature too high
        ([0, -1], [0, 1, 2]),  # a feature below 0
        ([0, 1], [0, 2, 1]),  # row pointers that fall
        ([0, 1], [0, 1, 3]),  # row pointers past the end
        ([0, 1], [0, 9, 2]),  # a row past the end, with the right end
    ],
)
def test_broken_csr_arrays_are_refused_before_a_kernel_reads_them(indices, indptr):
    with pytest.raises(InvalidInputError, match=r"feature numbers must lie in 0\.\.2"):
        RowBlock.from_csr(np.ones(2), np.array(indices), np.array(indptr), 3)


def test_a_block_beyond_int32_is_refused_before_memory_is_taken():
    rows = np.broadcast_to(np.float32(1), (2**20, 2**11 + 1))
    with pytest.raises(InvalidInputError, match=r"entries of a dense partition must be at most"):
        RowBlock.from_array(rows)
    values = np.broadcast_to(np.float32(1), 2**31)
    columns = np.broadcast_to(np.int32(0), 2**31)
    with pytest.raises(InvalidInputError, match="values of a partition"):
        RowBlock.from_csr(values, columns, np.array([0, 2**31]), 3)
    with pytest.raises(InvalidInputError, match="number of features"):
        RowBlock.from_scipy(scipy.sparse.coo_array((1, 2**31)))


def test_values_that_are_not_finite_are_found_with_their_ids_and_count():
    rows = np.ones((9, 3))
    rows[[1, 4, 8], 0] = np.nan, np.inf, 1e39  # the last is infinite in float32 only
    rows[4, 1] = -np.inf
    named = [f"doc-{i}" for i in range(9)]
    for block in (
        RowBlock.from_array(rows, named),
        RowBlock.from_scipy(scipy.sparse.csr_array(rows), named),
    ):
        message = "got 4 that are not in 3 rows, the first with ids 'doc-1', 'doc-4', 'doc-8'"
        with pytest.raises(InvalidInputError, match=message):
            check_finite(block)
        check_finite(block.take([0, 2, 3]))


def test_values_that_vanish_in_float32_are_dropped():
    block = RowBlock.from_scipy(scipy.sparse.csr_array(np.array([[1e-60, 2.0, -0.0]])))
    assert block.indices.tolist() == [1]


def total(parts):
    content, order = zip(*parts, strict=True)
    return sum(content) % 2**64, sum(order) % 2**64


@given(dense_rows(), st.data())
@settings(max_examples=60)
def test_fingerprint_does_not_depend_on_partitioning_or_on_dense_and_sparse(dense, data):
    sparse = RowBlock.from_scipy(scipy.sparse.csr_array(dense))
    cut = data.draw(st.integers(0, len(dense)))
    pieces = [(sparse.rows(0, cut), 0), (sparse.rows(cut, len(dense)), cut)]
    expected = fingerprint(sparse, 0)
    assert total(fingerprint(block, first) for block, first in pieces) == expected
    assert fingerprint(RowBlock.from_array(dense), 0) == expected


def test_fingerprint_distinguishes_reordered_from_changed():
    matrix = scipy.sparse.random_array((50, 8), density=0.3, dtype=np.float32, rng=1, format="csr")
    named = np.array([f"doc-{i}" for i in range(50)])
    block = RowBlock.from_scipy(matrix, named)
    content, order = fingerprint(block, 0)
    shuffled = block.take(np.random.default_rng(0).permutation(50))
    assert fingerprint(shuffled, 0)[0] == content
    assert fingerprint(shuffled, 0)[1] != order
    changed = matrix.copy()
    changed.data[0] = np.nextafter(changed.data[0], np.float32(9))
    moved = matrix.copy()
    moved.indices = (7 - moved.indices).astype(np.int32)
    for other in (
        RowBlock.from_scipy(changed, named),
        RowBlock.from_scipy(moved, named),
        RowBlock.from_scipy(matrix, np.roll(named, 1)),
        block.rows(0, 49),
    ):
        assert fingerprint(other, 0)[0] != content


def test_fingerprint_without_ids_leaves_row_numbers_out_of_the_content():
    block = RowBlock.from_array(np.arange(12).reshape(4, 3))
    turned = RowBlock.from_array(np.arange(12).reshape(4, 3)[::-1])
    content, order = fingerprint(block, 0, with_ids=False)
    other, other_order = fingerprint(turned, 0, with_ids=False)
    assert content == other
    assert order != other_order
    assert fingerprint(turned, 0)[0] != fingerprint(block, 0)[0]
