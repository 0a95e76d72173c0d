from __future__ import annotations

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.rows import encoding
from hmrf_dask.rows import files as store
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import BlockFile

ARRAYS = ("values", "indices", "indptr", "ids", "keys")


@st.composite
def row_blocks(draw):
    """Sparse and dense blocks, with ids or without, of no, one or a few rows, some empty."""
    n_rows, n_features = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    numbers = st.sampled_from([0.0, 0.0, 1.0, -2.5, 1e-30])
    dense = draw(hnp.arrays(np.float32, (n_rows, n_features), elements=numbers))
    ids = draw(st.none() | st.just([f"dök-{i}" for i in range(n_rows)]))
    if draw(st.booleans()):
        return RowBlock.from_array(dense, ids)
    return RowBlock.from_scipy(scipy.sparse.csr_array(dense), ids, first_row=3)


def decoded(content, block, path="f", *, known=False):
    """Return what the bytes of a file hold of which a manifest says that it is this block."""
    facts = (block.n_rows, len(block.values), block.is_dense)
    file = BlockFile("f", *facts, n_bytes=len(content), sha256="", id_bytes=block.ids.nbytes)
    return encoding.decode_block(content, path, file, block.n_features, known=known)


def read(url, file, n_features=30):
    return store.BlockSource(url, file, n_features).read()


def write(blocks, url, *, has_ids):
    files = tuple(store.write_block(block, url, part) for part, block in enumerate(blocks))
    manifest = store.Manifest(blocks[0].n_features, has_ids, files)
    store.write_manifest(manifest, url)
    return manifest


def assert_same(left, right):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    for name in ("values", "indices", "indptr", "keys"):
        assert getattr(left, name).dtype == getattr(right, name).dtype
    assert (left.n_features, left.is_dense) == (right.n_features, right.is_dense)


@pytest.fixture
def block():
    matrix = scipy.sparse.random_array((40, 30), density=0.2, dtype=np.float32, rng=0, format="csr")
    return RowBlock.from_scipy(matrix, [f"doc-{i}" for i in range(40)])


@given(row_blocks())
@settings(max_examples=80)
def test_a_block_comes_back_as_it_was(block):
    assert_same(decoded(encoding.encode_block(block), block), block)


@given(row_blocks(), st.data())
@settings(max_examples=40)
def test_slices_of_a_block_are_written_as_what_they_are(block, data):
    start = data.draw(st.integers(0, block.n_rows))
    part = block.rows(start, data.draw(st.integers(start, block.n_rows)))
    assert_same(decoded(encoding.encode_block(part), part), part)


def test_the_lists_of_a_sliced_table_are_read_from_their_own_offsets(block):
    table = pq.read_table(pa.BufferReader(encoding.encode_block(block))).slice(7, 9)
    values, indptr = encoding._flattened(table.column("values").combine_chunks(), 30)
    expected = block.rows(7, 16)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(indptr, expected.indptr)


def test_values_are_read_without_a_copy_and_may_not_be_written(block):
    values = decoded(encoding.encode_block(block), block).values
    assert isinstance(values.base, np.ndarray | pa.Buffer | pa.Array)
    assert not values.flags.writeable


@pytest.mark.parametrize("dense", [False, True])
def test_encodings_are_those_measured_to_be_read_fastest(block, dense):
    written = RowBlock.from_array(block.to_dense()) if dense else block
    metadata = pq.ParquetFile(pa.BufferReader(encoding.encode_block(written))).metadata
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    encodings = {column.path_in_schema: set(column.encodings) for column in columns}
    assert metadata.num_row_groups == 1
    assert {column.compression for column in columns} == {"LZ4"}
    assert not any("DICTIONARY" in code for codes in encodings.values() for code in codes)
    assert "BYTE_STREAM_SPLIT" in encodings["values.list.element"]
    if not dense:
        assert "BYTE_STREAM_SPLIT" in encodings["indices.list.element"]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_files_of_other_encodings_stay_readable(block, compression):
    table = pq.read_table(pa.BufferReader(encoding.encode_block(block)))
    sink = pa.BufferOutputStream()
    codes = {
        "indices.list.element": "DELTA_BINARY_PACKED",
        "values.list.element": "BYTE_STREAM_SPLIT",
    }
    pq.write_table(
        table, sink, compression=compression, use_dictionary=False, column_encoding=codes,
        row_group_size=7,
    )  # fmt: skip
    assert_same(decoded(sink.getvalue().to_pybytes(), block), block)


def test_a_flipped_byte_in_the_data_of_a_page_fails_its_checksum(block):
    content = encoding.encode_block(block)
    group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
    column = group.column(group.num_columns - 1)
    end = column.data_page_offset + column.total_compressed_size
    for place in range(end - 200, end):
        flipped = bytearray(content)
        flipped[place] ^= 1
        with pytest.raises(InvalidInputError, match=r"'f\.parquet'.*cannot be read as Parquet"):
            decoded(bytes(flipped), block, "f.parquet", known=True)


def test_no_flipped_byte_of_a_file_goes_unseen(block, tmp_path):
    file = store.write_block(block.rows(0, 4), str(tmp_path), 0)
    path = tmp_path / file.name
    content = path.read_bytes()
    assert file.n_bytes == len(content)
    for place in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(InvalidInputError, match=file.name):
            read(str(tmp_path), file)
    path.write_bytes(content)
    assert_same(read(str(tmp_path), file), block.rows(0, 4))


def test_a_file_is_hashed_once_in_a_process_and_again_when_it_changed(block, tmp_path, monkeypatch):
    hashed = []
    file = store.write_block(block, str(tmp_path), 0)
    monkeypatch.setattr(store, "sha256", lambda content: hashed.append(1) or sha256(content))
    for _ in range(3):
        assert_same(read(str(tmp_path), file), block)
    assert len(hashed) == 1
    path = tmp_path / file.name
    content = bytearray(path.read_bytes())
    os.utime(path, ns=(1, 1))
    assert_same(read(str(tmp_path), file), block)
    assert len(hashed) == 2
    content[-3] ^= 1  # of the footer, which has no checksum of its own
    path.write_bytes(content)
    os.utime(path, ns=(2, 2))
    for _ in range(2):  # what was refused once is not taken the second time
        with pytest.raises(InvalidInputError, match=rf"{file.name}.*its hash differs, though"):
            read(str(tmp_path), file)


def test_a_page_that_decays_after_the_first_read_is_found(block, tmp_path):
    file = store.write_block(block, str(tmp_path), 0)
    path = tmp_path / file.name
    when = path.stat().st_mtime_ns
    read(str(tmp_path), file)
    content = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = group.column(group.num_columns - 1)
    content[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(when, when))
    with pytest.raises(InvalidInputError, match=rf"{file.name}.*cannot be read as Parquet"):
        read(str(tmp_path), file)


def test_a_missing_a_cut_and_a_foreign_file_are_named(block, tmp_path):
    url = str(tmp_path)
    file = store.write_block(block, url, 0)
    with pytest.raises(InvalidInputError, match=rf"{file.name}.*30.*not 40 of 31"):
        read(url, file, 31)
    path = tmp_path / file.name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InvalidInputError, match=rf"{file.name}.*, not the {file.n_bytes} that"):
        read(url, file)
    path.unlink()
    with pytest.raises(InvalidInputError, match=rf"{file.name}.*it is missing"):
        read(url, file)


def parquet(table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_files_of_another_schema_are_refused(block):
    with pytest.raises(InvalidInputError, match="not a file of hmrf-dask-blocks, version 1"):
        decoded(parquet(pa.table({"a": [1]})), block)
    table = pq.read_table(pa.BufferReader(encoding.encode_block(block)))
    with pytest.raises(InvalidInputError, match="of other types"):
        decoded(parquet(table.drop_columns(["key"])), block)
    with pytest.raises(InvalidInputError, match="cannot be read as Parquet"):
        decoded(b"PAR1", block)


def test_feature_numbers_outside_are_refused_before_a_kernel_reads_them(block):
    outside = replace(block, indices=block.indices + np.int32(9))
    with pytest.raises(InvalidInputError, match=r"do not fit its values or 0\.\.29"):
        decoded(encoding.encode_block(outside), block)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_folder_is_a_corpus_only_with_its_manifest(block, tmp_path, place):
    url = str(tmp_path / "c") if place == "local" else f"memory://{tmp_path.name}/c"
    file = store.write_block(block, url, 0)
    with pytest.raises(InvalidInputError, match=r"a folder with blocks\.json.*to_parquet"):
        store.read_manifest(url)
    written = write([block, block.rows(0, 0)], url, has_ids=True)
    assert store.read_manifest(url) == written
    assert [file.n_rows for file in written.files] == [40, 0]
    assert not written.files[0].is_dense
    assert written.files[0] == file  # a retry gives the same file
    filesystem, folder = fsspec.core.url_to_fs(url)
    names = {Path(name).name for name in filesystem.ls(folder, detail=False)}
    assert names == {"blocks.json", *(each.name for each in written.files)}
    assert_same(read(url, file), block)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_manifest_of_another_corpus_is_never_overwritten(block, tmp_path, place):
    url = str(tmp_path / "d") if place == "local" else f"memory://{tmp_path.name}/d"
    first = write([block], url, has_ids=True)
    with pytest.raises(InvalidInputError, match="holds another corpus"):
        write([block.rows(0, 5)], url, has_ids=True)
    assert store.read_manifest(url) == first
    assert_same(read(url, first.files[0]), block)


def test_a_writer_that_is_stopped_leaves_no_half_file(block, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    for name in ("replace", "link"):
        monkeypatch.setattr(store.os, name, stopped)
    with pytest.raises(KeyboardInterrupt):
        store.write_block(block, str(tmp_path), 0)
    with pytest.raises(KeyboardInterrupt):
        store.write_manifest(store.Manifest(30, True, ()), str(tmp_path))
    finished = {p.name for p in tmp_path.iterdir() if not p.name.endswith(".part")}
    assert finished == set()


def test_damaged_manifests_are_named(tmp_path):
    manifest = write([RowBlock.from_array(np.eye(2))], str(tmp_path), has_ids=False)
    assert manifest.files[0].is_dense
    path = tmp_path / "blocks.json"
    good = json.loads(path.read_text())
    outside = {**good, "files": [{**good["files"][0], "name": "../part.parquet"}]}
    for bad in ({**good, "version": 2}, {**good, "files": [{}]}, outside, {}, [], "{"):
        path.write_text(bad if isinstance(bad, str) else json.dumps(bad))
        with pytest.raises(InvalidInputError, match=r"blocks\.json' must be a manifest"):
            store.read_manifest(str(tmp_path))


def test_blocks_that_do_not_belong_together_are_refused(block, tmp_path):
    dense = RowBlock.from_array(block.to_dense(), block.ids)
    with pytest.raises(InvalidInputError, match="all sparse or all dense"):
        write([block, dense], str(tmp_path / "c"), has_ids=True)
    assert not list(tmp_path.rglob("blocks.json"))


def test_names_come_from_content(block, tmp_path):
    file = store.write_block(block, str(tmp_path), 12)
    digest = sha256((tmp_path / file.name).read_bytes()).hexdigest()
    assert file.sha256 == digest
    assert file.name == f"part-00012-{digest[:16]}.parquet"
