"""Files of row blocks: one Parquet file a block, a manifest that makes a corpus, reading."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import (
    FORMAT,
    VERSION,
    BlockFile,
    Count,
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
# Files whose hash this process has found right: that hash, and when a local one last changed.
_VERIFIED: dict[str, tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of a file, and whether this process found them right before, by their hash."""

    path: str
    content: bytes
    known: bool


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
        """Return the block; a file is refused whose bytes are not those that were written."""
        return self.decode(self.fetch())

    def fetch(self) -> Fetched:
        """Return the bytes of the block, which is all there is to wait for; see `read`.

        The hash is taken when a process first reads a file, which finds all damage: the checksums
        of pages do not cover headers and footer, where 282 of 1500 flipped bits went unseen. They
        are what later reads go by.
        """
        file, changed = self.file, 0
        with explained(self.url, f"read {file.name}"):
            filesystem, folder = open_files(self.url, self.storage_options)
            path = f"{folder}/{file.name}"
            try:
                if isinstance(filesystem, LocalFileSystem):
                    changed = _last_change(path, file)
                content: bytes = filesystem.cat_file(path)
                alive()  # a slow disk is no disk that hangs
            except FileNotFoundError:
                refuse_block(path, "it is missing")
        stamp = (file.sha256, changed)
        known = _VERIFIED.get(path) == stamp
        same = len(content) == file.n_bytes
        if not same or not (known or sha256(content).hexdigest() == file.sha256):
            _VERIFIED.pop(path, None)
            refuse_block(path, differs(len(content), file.n_bytes))
        _VERIFIED[path] = stamp
        return Fetched(path, content, known)

    def decode(self, fetched: Fetched) -> RowBlock:
        """Return the block that was fetched; see `read`."""
        return decode_block(
            fetched.content, fetched.path, self.file, self.n_features,
            known=fetched.known, ids_only=self.ids_only,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the block in memory.

        Examples
        --------
        >>> file = BlockFile("part-0.parquet", 2, 6, is_dense=True, n_bytes=99, sha256="")
        >>> BlockSource("memory://corpus", file, n_features=3).nbytes
        64
        """
        rows = 20 * self.file.n_rows + self.file.id_bytes  # indptr, id, key
        return 4 * (self.file.n_values + self.file.n_indices) + rows


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a corpus, in row order, and what holds for all of them."""

    n_features: Count
    has_ids: bool
    files: tuple[BlockFile, ...]


def write_block(
    block: RowBlock, url: str, part: int, storage_options: StorageOptions = None
) -> BlockFile:
    """Write one block under a name made of its place and content, so that a retry adds no file."""
    content = encode_block(block)
    digest = sha256(content).hexdigest()
    name = f"part-{part:05d}-{digest[:16]}.parquet"
    with explained(url, f"write {name}"):
        filesystem, folder = open_files(url, storage_options)
        make_place(filesystem, folder)
        _put(filesystem, f"{folder}/{name}", content)
    id_bytes = block.ids.nbytes - 8 * block.n_rows if block.ids.dtype.kind == "U" else 0
    return BlockFile(
        name,
        *(block.n_rows, len(block.values), block.is_dense),
        n_bytes=len(content), sha256=digest, id_bytes=id_bytes, n_dense=block.n_dense,
    )  # fmt: skip


def number_of(file: BlockFile) -> int:
    """Return the part that a file is to `write_block`.

    Examples
    --------
    >>> number_of(BlockFile("part-00012-9f86d081.parquet", 2, 6, True, n_bytes=99, sha256=""))
    12
    """
    return int(file.name.split("-")[1])


def _last_change(path: str, file: BlockFile) -> int:
    """Return when a local file last changed; one of another size is not read at all."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.n_bytes:
        refuse_block(path, differs(status.st_size, file.n_bytes))
    return status.st_mtime_ns


def write_manifest(manifest: Manifest, url: str, storage_options: StorageOptions = None) -> None:
    """Make the files a corpus, in one exclusive create; the same manifest again is no error."""
    if len({(file.is_dense, file.n_dense) for file in manifest.files if file.n_values}) > 1:
        raise InvalidInputError("rows must be all sparse or all dense, got both; convert one kind")
    described = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content = json.dumps(described, indent=1).encode()
    with explained(url, f"write {MANIFEST_NAME}"):
        filesystem, folder = open_files(url, storage_options)
        make_place(filesystem, folder)
        try:
            _put(filesystem, f"{folder}/{MANIFEST_NAME}", content, exclusive=True)
        except FileExistsError:
            if read_manifest(url, storage_options) != manifest:
                raise InvalidInputError(
                    f"the folder to write to must be empty, got {url!r}, which holds another "
                    "corpus; name another folder"
                ) from None


def read_manifest(url: str, storage_options: StorageOptions = None) -> Manifest:
    """Return which files make the corpus; refuse a folder without a manifest of this version."""
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
        files = tuple(_block_file(entry) for entry in described["files"])
        return replace(msgspec.convert(described | {"files": ()}, Manifest), files=files)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{path!r} must be a manifest of {FORMAT}, version {VERSION}, got {error!s:.300}; "
            "write the corpus again"
        ) from error


def _block_file(entry: dict[str, Any]) -> BlockFile:
    """Return what a manifest says of a file, refused where no file can be so."""
    try:
        if unknown := sorted(entry.keys() - BlockFile.__dataclass_fields__.keys()):
            raise ValueError(f"the unknown key {unknown[0]!r}")
        return msgspec.convert(entry, BlockFile)
    except (AttributeError, ValueError) as error:
        raise ValueError(f"the file {shortened(entry)}: {error}") from None


def make_place(filesystem: Any, folder: str) -> None:
    """Make a folder, and those above it, where it is not there."""
    if isinstance(filesystem, LocalFileSystem):
        make_folders(folder)
    else:
        filesystem.makedirs(folder, exist_ok=True)


def _put(filesystem: Any, path: str, content: bytes, *, exclusive: bool = False) -> None:
    """Write whole bytes: readers see all or none. `exclusive`: FileExistsError if one is there."""
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.pipe_file(path, content, **({"mode": "create"} if exclusive else {}))
        return
    part = f"{path}.{uuid4().hex}.part"
    with open(part, "wb", opener=open_file) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if not exclusive:
        os.replace(part, path)
        return
    try:
        # Exclusive like open(path, "xb"), but a writer killed here leaves no half manifest.
        os.link(part, path)
    finally:
        os.unlink(part)


class InTurn:
    """The blocks of some sources, at least one, each read when its turn comes."""

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
