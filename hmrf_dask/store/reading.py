"""Blocks read where a task runs, one after the other: the next is fetched while the task works.

A task over many blocks holds one of them and the bytes of the next. Bytes alone are read ahead:
waiting for a disk or a store is what can be hidden. A second thread that decodes gains nothing
where every core has a task, and leaves Arrow's memory with two threads: 80 MiB more of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from hmrf_dask.rows.block import RowBlock
from hmrf_dask.store.blocks import BlockSource


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
    """Return whether blocks stay in memory whatever a task does, so that it may point into them."""
    return not isinstance(blocks, InTurn)


def batches(blocks: Blocks) -> Iterator[tuple[range, list[RowBlock]]]:
    """Yield the blocks that a task may hold at a time, and their numbers: all, or one by one."""
    if not isinstance(blocks, InTurn):
        yield range(len(blocks)), list(blocks)
        return
    for number, block in enumerate(blocks):
        yield range(number, number + 1), [block]
