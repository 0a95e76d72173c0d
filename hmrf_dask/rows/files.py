"""Files of row blocks: one Parquet file a block, a manifest that makes a corpus, reading."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.limits import LARGEST_INT32
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import (
    FORMAT,
    VERSION,
    StatedBlock,
    decode_block,
    differs,
    encode_block,
    refuse_block,
)
from hmrf_dask.storage.remote import alive, explained, open_files
from hmrf_dask.storage.stores import make_folders, open_file
from hmrf_dask.storage.whole_files import read_bounded

StorageOptions = Mapping[str, Any] | None

MANIFEST_NAME = "blocks.json"
_NAME: Final = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)  # of a file in the folder, no way out
_MOST_BYTES: Final = 2**50  # of a file, and of the ids in it
# Files whose hash this process has found right: that hash, and when a local one last changed.
_VERIFIED: dict[str, tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One file of a corpus: its name, what is in it and the hash that its bytes must have."""

    name: str
    n_rows: int
    n_values: int
    is_dense: bool
    n_bytes: int
    sha256: str
    id_bytes: int = 0  # in memory, beyond those of a number


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of a file, and whether this process found them right before, by their hash."""

    path: str
    content: bytes
    counted: bool


@dataclass(frozen=True, slots=True)
class BlockSource:
    """Where one block can be read: what a task takes that reads blocks itself, one by one.

    With `ids_only` its rows are empty, and have nothing but their ids.
    """

    url: str
    file: BlockFile
    n_features: int
    storage_options: StorageOptions = None
    ids_only: bool = False

    def read(self) -> RowBlock:
        """Return the block; see `read_block`."""
        return self.decode(self.fetch())

    def fetch(self) -> Fetched:
        """Return the bytes of the block, which is all there is to wait for; see `read_block`."""
        return _fetched(self.url, self.file, self.storage_options)

    def decode(self, fetched: Fetched) -> RowBlock:
        """Return the block that was fetched; see `read_block`."""
        return _decoded(fetched, self.file, self.n_features, ids_only=self.ids_only)

    @property
    def nbytes(self) -> int:
        """Bytes of the block in memory.

        Examples
        --------
        >>> file = BlockFile("part-0.parquet", 2, 6, is_dense=True, n_bytes=99, sha256="")
        >>> BlockSource("memory://corpus", file, n_features=3).nbytes
        64
        """
        entry = 4 if self.file.is_dense else 8  # value, and feature of sparse rows
        rows = 20 * self.file.n_rows + self.file.id_bytes  # indptr, id, key
        return entry * self.file.n_values + rows


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a corpus, in row order, and what holds for all of them.

    Examples
    --------
    >>> file = BlockFile("part-0.parquet", 2, 6, is_dense=True, n_bytes=99, sha256="")
    >>> Manifest(3, False, (file, file)).row_counts
    (2, 2)
    """

    n_features: int
    has_ids: bool
    files: tuple[BlockFile, ...]

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Number of rows of each file."""
        return tuple(file.n_rows for file in self.files)

    @property
    def is_dense(self) -> bool:
        """Whether the rows are dense.

        Examples
        --------
        >>> file = BlockFile("part-0.parquet", 2, 6, is_dense=False, n_bytes=99, sha256="")
        >>> Manifest(3, False, (file,)).is_dense
        False
        """
        return any(file.is_dense for file in self.files)


def write_blocks(
    blocks: Iterable[RowBlock],
    url: str,
    *,
    has_ids: bool,
    storage_options: StorageOptions = None,
) -> Manifest:
    """Write blocks one after the other and then their manifest.

    Parameters
    ----------
    blocks : iterable of RowBlock
        In row order, at least one.
    url : str
        The folder: a local path or an fsspec address.
    has_ids : bool
        Whether the ids are document ids; False where they are row numbers.
    storage_options : mapping, optional
        For fsspec. Name a profile here; never put a key in, it would travel with every task.

    Returns
    -------
    Manifest
    """
    files, widths = [], set()
    for part, block in enumerate(blocks):
        files.append(write_block(block, url, part, storage_options))
        widths.add(block.n_features)
    if len(widths) != 1:
        raise InvalidInputError(
            "blocks must be at least one and of the same number of features, got "
            f"{sorted(widths)}; give all rows the same columns"
        )
    manifest = Manifest(widths.pop(), has_ids, tuple(files))
    write_manifest(manifest, url, storage_options)
    return manifest


def write_block(
    block: RowBlock, url: str, part: int, storage_options: StorageOptions = None
) -> BlockFile:
    """Write one block under a name made of its place and content, so that a retry adds no file."""
    content = encode_block(block)
    digest = sha256(content).hexdigest()
    name = f"part-{part:05d}-{digest[:16]}.parquet"
    with explained(url, f"write {name}"):
        filesystem, folder = open_files(url, storage_options)
        _make_folder(filesystem, folder)
        _put(filesystem, f"{folder}/{name}", content)
    n_values, n_bytes = len(block.values), len(content)
    id_bytes = block.ids.nbytes - 8 * block.n_rows if block.ids.dtype.kind == "U" else 0
    return BlockFile(
        name=name,
        n_rows=block.n_rows,
        n_values=n_values,
        is_dense=block.is_dense,
        n_bytes=n_bytes,
        sha256=digest,
        id_bytes=id_bytes,
    )


def number_of(file: BlockFile) -> int:
    """Return the part that a file is to `write_block`.

    Examples
    --------
    >>> number_of(BlockFile("part-00012-9f86d081.parquet", 2, 6, True, n_bytes=99, sha256=""))
    12
    """
    return int(file.name.split("-")[1])


def read_block(
    url: str, file: BlockFile, n_features: int, storage_options: StorageOptions = None
) -> RowBlock:
    """Read one block; its bytes must be those that were written.

    Raises
    ------
    InvalidInputError
        The file is missing, damaged, or not a block of this corpus; the message names it.
    """
    return _decoded(_fetched(url, file, storage_options), file, n_features)


def _decoded(
    fetched: Fetched, file: BlockFile, n_features: int, *, ids_only: bool = False
) -> RowBlock:
    stated = StatedBlock(file.n_rows, file.n_values, n_features, file.is_dense, file.id_bytes)
    return decode_block(
        fetched.content, fetched.path, stated, known=fetched.counted, ids_only=ids_only
    )


def _fetched(url: str, file: BlockFile, storage_options: StorageOptions) -> Fetched:
    """Return the bytes of a file, which are those that were written.

    The hash is taken when a process first reads a file, which finds all damage: the checksums of
    pages do not cover headers and footer, where 282 of 1500 flipped bits went unseen. They are what
    later reads go by.
    """
    with explained(url, f"read {file.name}"):
        filesystem, folder = open_files(url, storage_options)
        path = f"{folder}/{file.name}"
        try:
            changed = _looked_at(path, file) if isinstance(filesystem, LocalFileSystem) else 0
            content: bytes = filesystem.cat_file(path)
            alive()  # a slow disk is no disk that hangs
        except FileNotFoundError:
            refuse_block(path, "it is missing")
    stamp = (file.sha256, changed)
    before = _VERIFIED.get(path) == stamp
    same = len(content) == file.n_bytes
    if not same or not (before or sha256(content).hexdigest() == file.sha256):
        _VERIFIED.pop(path, None)
        refuse_block(path, differs(len(content), file.n_bytes))
    _VERIFIED[path] = stamp
    return Fetched(path, content, before)


def _looked_at(path: str, file: BlockFile) -> int:
    """Return when a local file last changed; one of another size is not read at all."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size != file.n_bytes:
        refuse_block(path, differs(found.st_size, file.n_bytes))
    return found.st_mtime_ns


def write_manifest(manifest: Manifest, url: str, storage_options: StorageOptions = None) -> None:
    """Make the files a corpus, in one exclusive create; the same manifest again is no error.

    Raises
    ------
    InvalidInputError
        The folder holds another corpus already, or the files are partly dense, partly sparse.
    """
    if manifest.is_dense and any(f.n_values and not f.is_dense for f in manifest.files):
        raise InvalidInputError("rows must be all sparse or all dense, got both; convert one kind")
    described = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content = json.dumps(described, indent=1).encode()
    with explained(url, f"write {MANIFEST_NAME}"):
        filesystem, folder = open_files(url, storage_options)
        _make_folder(filesystem, folder)
        try:
            _create(filesystem, f"{folder}/{MANIFEST_NAME}", content)
        except FileExistsError:
            if read_manifest(url, storage_options) != manifest:
                raise InvalidInputError(
                    f"the folder to write to must be empty, got {url!r}, which holds another "
                    "corpus; name another folder"
                ) from None


def read_manifest(url: str, storage_options: StorageOptions = None) -> Manifest:
    """Read which files make the corpus.

    Raises
    ------
    InvalidInputError
        There is no manifest, or it is not one of this format and version.
    """
    with explained(url, f"read {MANIFEST_NAME}"):
        filesystem, folder = open_files(url, storage_options)
        path = f"{folder}/{MANIFEST_NAME}"
        try:
            local = isinstance(filesystem, LocalFileSystem)
            data = read_bounded(path if local else f"{url}/{MANIFEST_NAME}", storage_options)
        except FileNotFoundError:
            raise InvalidInputError(
                f"a corpus must be a folder with {MANIFEST_NAME}, got {url!r} without one; "
                "write it with Corpus.to_parquet"
            ) from None
    try:
        described = json.loads(data)
        if (described["format"], described["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {described['format']!r}, version {described['version']!r}")
        if type(described["n_features"]) is not int or type(described["has_ids"]) is not bool:
            raise ValueError("other values than a number of features and whether there are ids")
        if not 0 <= described["n_features"] <= LARGEST_INT32:
            raise ValueError(f"{described['n_features']:.9g} features")
        files = tuple(_block_file(file) for file in described["files"])
        return Manifest(described["n_features"], described["has_ids"], files)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{path!r} must be a manifest of {FORMAT}, version {VERSION}, got {error!s:.300}; "
            "write the corpus again"
        ) from error


def _block_file(content: Mapping[str, Any]) -> BlockFile:
    """Return what a manifest says of a file, refused where no file can be so."""
    file = BlockFile(**content)
    texts, sizes = (file.name, file.sha256), (file.n_rows, file.n_values)
    numbers = (*sizes, file.n_bytes, file.id_bytes)
    if any(type(one) is not str for one in texts) or not _NAME.fullmatch(file.name):
        raise ValueError(f"the name {shortened(file.name)}")
    if any(type(one) is not int or one < 0 for one in numbers) or type(file.is_dense) is not bool:
        raise ValueError(f"other numbers than sizes for {file.name}")
    if max(sizes) > LARGEST_INT32 or max(numbers) > _MOST_BYTES:
        raise ValueError(f"a block of {max(numbers):.9g} rows, values or bytes for {file.name}")
    return file


def _make_folder(filesystem: Any, folder: str) -> None:
    if isinstance(filesystem, LocalFileSystem):
        make_folders(folder)
    else:
        filesystem.makedirs(folder, exist_ok=True)


def _put(filesystem: Any, path: str, content: bytes) -> None:
    """Write whole bytes, so that a reader sees all of them or none."""
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.pipe_file(path, content)
        return
    part = _local_part(path, content)
    os.replace(part, path)


def _create(filesystem: Any, path: str, content: bytes) -> None:
    """Write whole bytes where nothing is yet; FileExistsError if another was first."""
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.pipe_file(path, content, mode="create")
        return
    part = _local_part(path, content)
    try:
        # Exclusive like open(path, "xb"), but a writer killed here leaves no half manifest.
        os.link(part, path)
    finally:
        os.unlink(part)


def _local_part(path: str, content: bytes) -> str:
    part = f"{path}.{uuid4().hex}.part"
    with open(part, "wb", opener=open_file) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return part


class InTurn:
    """The blocks of some sources, each read when its turn comes.

    Parameters
    ----------
    sources : sequence of BlockSource
        At least one.
    """

    def __init__(self, sources: Sequence[BlockSource]) -> None:
        self._sources = sources

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._sources)

    def __iter__(self) -> Iterator[RowBlock]:
        """Yield the blocks; none is held here."""
        with ThreadPoolExecutor(1) as helper:
            ahead = helper.submit(self._sources[0].fetch)
            for source, later in zip(self._sources, [*self._sources[1:], None], strict=True):
                fetched = ahead.result()
                if later is not None:
                    ahead = helper.submit(later.fetch)
                block = source.decode(fetched)
                del fetched
                yield block
                del block
        pa.default_memory_pool().release_unused()  # once a task: after each block it takes a third


Blocks = Sequence[RowBlock] | InTurn


def lasting(blocks: Blocks) -> bool:
    """Return whether blocks stay in memory whatever a task does, so that it may point into them.

    Examples
    --------
    >>> lasting([]), lasting(InTurn([]))
    (True, False)
    """
    return not isinstance(blocks, InTurn)


def batches(blocks: Blocks) -> Iterator[tuple[range, list[RowBlock]]]:
    """Yield the blocks that a task may hold at a time, and their numbers: all, or one by one.

    Examples
    --------
    >>> import numpy as np
    >>> blocks = [RowBlock.from_array(np.eye(2)), RowBlock.from_array(np.eye(2))]
    >>> [numbers for numbers, _ in batches(blocks)]
    [range(0, 2)]
    """
    if not isinstance(blocks, InTurn):
        yield range(len(blocks)), list(blocks)
        return
    for number, block in enumerate(blocks):
        yield range(number, number + 1), [block]
