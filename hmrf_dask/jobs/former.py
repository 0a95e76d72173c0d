"""What a run shares with former releases: documents by old cluster and new label, those gone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.answer_files import parse_pairs
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import HmrfWarning, counted
from hmrf_dask.estimators.prediction import OUTLIER
from hmrf_dask.flow.dataflow import DaskFlow, Lazy, tree
from hmrf_dask.jobs.assignments import paths_of
from hmrf_dask.jobs.places import ANSWERS, ASSIGNMENTS_FOLDER, GONE, assignments_of
from hmrf_dask.measures.contingency import Contingency, merge, tabulate
from hmrf_dask.releases.release import (
    DamagedReleaseError,
    Release,
    read_file,
    read_if_whole,
    release_log,
)
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.rows.encoding import as_arrow
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet
from hmrf_dask.tasks.partitions import add_limbs, find_ids
from hmrf_dask.text.files import Place
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray, Sized

COLUMN = "doc_id"


@dataclass(frozen=True)
class Documents:
    """Documents that answers name, or named: `ids`, sorted, each once, and what is known of them.

    The corpus has those `there`; of the others a former release had those `gone`.

    Examples
    --------
    >>> ids, there, gone = np.array(["a", "b"]), np.array([True, False]), np.array([False, True])
    >>> Documents(ids, there, gone).places(np.array(["b"], object))
    array([1])
    """

    ids: AnyArray
    there: BoolArray
    gone: BoolArray

    def places(self, names: AnyArray) -> AnyArray:
        """Return where names that were searched for are."""
        return np.searchsorted(self.ids, names.astype(np.str_))

    def encode_gone(self) -> bytes:
        """Return the ids that are gone as the file that the next run reads."""
        table = pa.table({COLUMN: pa.array(self.ids[self.gone].tolist(), pa.string())})
        return encode_parquet(table)


def look_up(
    place: Place, last: Release | None, named: Sequence[str], find: Callable[[AnyArray], BoolArray]
) -> Documents:
    """Return which documents that answers name are there, and which a former release had.

    `last` is the release that the run continues; `find` takes ids and returns which are there.
    """
    releases = list(_releases(place, last))
    remembered = _remembered(place, last, releases)
    ids = np.unique(np.array([*set(named), *remembered], np.str_))
    there = find(ids)
    gone = ~there & np.array([one in remembered for one in ids.tolist()], np.bool_)
    for release in releases:
        unknown = np.flatnonzero(~there & ~gone)
        if not len(unknown):
            break
        gone[unknown] = _in_assignments(place, release, ids[unknown])
    return Documents(ids, there, gone)


def find_in(corpus: Corpus, wanted: AnyArray) -> BoolArray:
    """Return which of some documents a corpus has."""
    there = np.zeros(len(wanted), np.bool_)
    if not len(wanted):
        return there
    flow = DaskFlow()
    documents = flow.share(wanted)
    for places, _ in flow.compute([flow.lazy(find_ids, one, documents) for one in corpus.named]):
        there[places] = True
    return there


def _releases(place: Place, last: Release | None) -> Iterator[Release]:
    """Yield the releases that have their files yet, the one that the run continues first."""
    if last is not None:
        yield last
    storage = place.storage
    for number in release_log(storage).numbers():
        found = read_if_whole(storage, number)
        if found is not None and found.files and found != last:
            yield found


def _remembered(place: Place, last: Release | None, releases: Sequence[Release]) -> set[str]:
    """Return ids that answers named and that a former release had: later ones know of earlier."""
    found: set[str] = set()
    for release in releases:
        if last is not None and release.number < last.number:
            continue
        for name, sha256 in release.files.items():
            with suppress(DamagedReleaseError):  # that of the last release was checked before
                found.update(_documents_of(place, name, sha256))
    return found


def _documents_of(place: Place, name: str, sha256: str) -> list[str]:
    """Return the ids that a file of a release holds because answers named them."""
    ids: list[str] = []
    if name.endswith(f"/{GONE}"):
        ids = decode_parquet(read_file(place.storage, name, sha256))[COLUMN].to_pylist()
    elif name.endswith(f"/{ANSWERS}"):
        pairs = parse_pairs(read_file(place.storage, name, sha256), ANSWERS)
        ids = pairs.as_text().documents.tolist()
    return ids


def _in_assignments(place: Place, release: Release, wanted: AnyArray) -> BoolArray:
    """Return which documents a release had."""
    flow = DaskFlow()
    shared = flow.share(wanted)
    tasks = [
        flow.lazy(_found, place, name, sha256, shared)
        for name, sha256 in assignments_of(release.files).items()
    ]
    read = flow.compute(tasks) if tasks else []
    known = [one for one in read if one is not None]
    if len(known) < len(read):
        warnings.warn(
            f"some assignments of release {release.number} are damaged: documents that no other "
            "release has count as unknown where answers name them",
            HmrfWarning,
            stacklevel=2,
        )
    return reduce(np.logical_or, known, np.zeros(len(wanted), np.bool_))


def _found(place: Place, name: str, sha256: str, wanted: AnyArray) -> BoolArray | None:
    """Return which documents a file names, None where it is damaged."""
    try:
        data = read_file(place.storage, name, sha256)
    except DamagedReleaseError:
        return None
    known = decode_parquet(data, [COLUMN])[COLUMN]
    values = pa.array(wanted.tolist(), pa.string())
    return np.asarray(pc.is_in(values, value_set=known).to_numpy(False))


BUCKET = 2**22  # documents of one side
_SCHEMA = pa.schema([("doc_id", pa.string()), ("cluster", pa.int32())])


class Overlap(NamedTuple):
    """Cells of an old cluster's id, a new label and how many documents they share, for `trace`.

    Shared documents of `changed` partitions have cells of their own; `n_changed` are all of these,
    outliers too, which have no cell. `sizes`, of shape (K,), are all documents of each new label.
    """

    old: IntArray
    new: IntArray
    counts: IntArray
    sizes: IntArray
    n_changed: int


@dataclass(frozen=True)
class _Joined(Sized):
    """Two tables of documents joined: the counts, and those without a partner.

    `lost` is how many old files could not be read.
    """

    counts: Contingency
    old: pa.Table
    new: pa.Table
    lost: int = 0


class OldFile(NamedTuple):
    """Where assignments of the run before are read."""

    place: Place
    name: str
    sha256: str

    def content(self) -> bytes:
        """Return the file, or raise DamagedReleaseError."""
        return read_file(self.place.storage, self.name, self.sha256)

    def read(self) -> pa.Table | None:
        """Return ids as text and clusters, None where the file is not as it was published."""
        try:
            return decode_parquet(self.content(), _SCHEMA.names).cast(_SCHEMA)
        except DamagedReleaseError:
            return None


def count_overlap(
    place: Place,
    old: Mapping[str, str],
    corpus: Corpus,
    labels: Any,
    n_clusters: int,
    *,
    names: Sequence[str] | None = None,
    changed: Sequence[bool] | None = None,
) -> Overlap:
    """Return how many documents each old cluster shares with each new label.

    Parameters
    ----------
    place : Place
        The output.
    old : mapping of str to str
        The sha256 of the assignments of a former release by their names, as a `Release` has them.
    corpus : Corpus
        No id comes twice.
    labels : dask array, shape (n_rows,), optional
        In the corpus's own chunks, -1 of outliers; without it all have label 0, old outliers too.
    n_clusters : int
    names : sequence of str, optional
        Those of `write_assignments`: partitions are first compared with old files of their names.
    changed : sequence of bool, optional
        Of each partition, whether its shared documents are counted in `n_changed`.
    """
    files = [OldFile(place, name, sha256) for name, sha256 in sorted(old.items())]
    by_name = {file.name.rpartition("/")[2]: file for file in files}
    flow = DaskFlow()
    own = [path.removeprefix(f"{ASSIGNMENTS_FOLDER}/") for path in paths_of(corpus, names)]
    found = [None] * len(own) if labels is None else list(labels.to_delayed().ravel())
    # Labels of changed partitions are counted separately, as K + 1 more: outliers are -1, then K.
    n_labels = n_clusters + 1
    shifts = [n_labels if one else 0 for one in changed or [False] * corpus.n_partitions]
    parts = zip(corpus.named, found, map(by_name.get, own), shifts, strict=True)
    joined = [flow.lazy(_join_block, *part) for part in parts]
    taken = {by_name[name].name for name in own if name in by_name}
    joined += [
        flow.lazy(_join_block, None, None, file, 0) for file in files if file.name not in taken
    ]
    joined = flow.persist(joined)
    sizes = [flow.lazy(_sizes, part, n_clusters) for part in found]
    lengths, total = flow.compute(
        [
            tree(flow, add_limbs, [flow.lazy(_left, one) for one in joined]),
            tree(flow, add_limbs, sizes),
        ]
    )
    _tell_lost(files, int(lengths[2]))
    tables = [flow.lazy(_counts, one) for one in joined] + _buckets(flow, joined, lengths[:2])
    table: Contingency = flow.compute([tree(flow, merge, tables)])[0]
    then, now, counts = table.classes[table.rows], table.clusters[table.columns], table.counts
    n_changed, now = int(counts[now >= n_clusters].sum()), now % n_labels
    inside = (now < n_clusters) & ((then != OUTLIER) | (labels is None))
    return Overlap(then[inside], now[inside], counts[inside], total, n_changed)


def _tell_lost(files: Sequence[OldFile], lost: int) -> None:
    """Warn of unreadable files; where none can be read, ids would be lost: raise."""
    if lost and lost == len(files):
        files[0].content()
    if lost:
        warnings.warn(
            f"{lost} of {counted(len(files), 'file')} with the last assignments cannot be read: "
            "which cluster keeps which id follows from the documents of the others alone",
            HmrfWarning,
            stacklevel=2,
        )


def _buckets(flow: DaskFlow, joined: list[Lazy], lengths: IntArray) -> list[Lazy]:
    """Return the counts of documents that are in other partitions than before."""
    if not lengths.min():
        return []
    n_buckets = math.ceil(int(lengths.max()) / BUCKET)
    if n_buckets == 1:
        return [flow.lazy(_join_rest, joined)]
    split = [flow.lazy(_split, one, n_buckets) for one in joined]
    return [
        flow.lazy(_join_rest, [flow.lazy(getitem, parts, bucket) for parts in split])
        for bucket in range(n_buckets)
    ]


def _join_block(
    block: RowBlock | None, labels: LabelArray | None, old: OldFile | None, shift: int
) -> _Joined:
    """Join a partition with the old file of its name; `shift` is added to its labels."""
    before, new = None if old is None else old.read(), _SCHEMA.empty_table()
    if block is not None:
        ids = pa.array(block.ids.tolist()).cast(pa.string())
        shown = np.zeros(block.n_rows, np.int32) if labels is None else labels
        new = pa.table([ids, as_arrow(shown + np.int32(shift), pa.int32())], schema=_SCHEMA)
    joined = _join(_SCHEMA.empty_table() if before is None else before, new)
    return replace(joined, lost=int(old is not None and before is None))


def _join(old: pa.Table, new: pa.Table) -> _Joined:
    places = pc.index_in(new["doc_id"], value_set=old["doc_id"])
    both = pc.is_valid(places)
    alone = pc.invert(pc.is_in(old["doc_id"], value_set=new["doc_id"]))
    shared = old["cluster"].take(places.filter(both)), new["cluster"].filter(both)
    counts = tabulate(*(one.to_numpy().astype(np.int64) for one in shared))
    return _Joined(counts, old.filter(alone), new.filter(pc.invert(both)))


def _join_rest(parts: Sequence[_Joined]) -> Contingency:
    old, new = (pa.concat_tables([getattr(one, side) for one in parts]) for side in ("old", "new"))
    return _join(old, new).counts


def _split(joined: _Joined, n_buckets: int) -> list[_Joined]:
    """Return the documents without a partner in buckets by the hash of their id."""
    none = tabulate(np.zeros(0, np.int64), np.zeros(0, np.int64))
    sides = [split_table(one, n_buckets) for one in (joined.old, joined.new)]
    return [_Joined(none, old, new) for old, new in zip(*sides, strict=True)]


def split_table(table: pa.Table, n_buckets: int) -> list[pa.Table]:
    """Return documents in buckets by the hash of their ids: one id is in one bucket everywhere."""
    ids = np.asarray(table["doc_id"].to_pylist(), dtype=np.str_)
    bucket = hash_ids(ids) % np.uint64(n_buckets)
    return [table.filter(as_arrow(bucket == one, pa.bool_())) for one in range(n_buckets)]


def _left(joined: _Joined) -> IntArray:
    return np.asarray([joined.old.num_rows, joined.new.num_rows, joined.lost], np.int64)


def _sizes(labels: LabelArray | None, n_clusters: int) -> IntArray:
    if labels is None:
        return np.zeros(n_clusters, np.int64)
    return np.bincount(labels[labels >= 0], minlength=n_clusters).astype(np.int64)


def _counts(joined: _Joined) -> Contingency:
    return joined.counts
