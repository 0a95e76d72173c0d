"""What changed from one release to another: which documents moved, came and went, and why."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.answer_files import parse_pairs
from hmrf_dask.errors import ConfigurationError, HmrfError
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs.ask import beginning
from hmrf_dask.jobs.former import BUCKET, OldFile, split_table
from hmrf_dask.jobs.names import OUTLIERS
from hmrf_dask.jobs.parent import files_of
from hmrf_dask.jobs.places import ANSWERS, assignments_of
from hmrf_dask.jobs.released import ReleasedModel, load_release, releases_of
from hmrf_dask.jobs.texts import Texts
from hmrf_dask.releases.release import DamagedReleaseError, read_file
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.text.files import Place
from hmrf_dask.types import Sized

MOST: Final = 100_000  # documents that are listed, drawn by their ids where there are more
FILE: Final = "moved.parquet"
_SHOWN: Final = 100  # ids of new documents, and of those that are gone
_MOVED = pa.schema([("doc_id", pa.string()), ("from", pa.int32()), ("to", pa.int32())])
_ALONE = pa.schema([("doc_id", pa.string()), ("cluster", pa.int32())])


@dataclass(frozen=True)
class Changed(Sized):
    """What became of documents, or of some of them.

    Attributes
    ----------
    moved : pyarrow.Table
        doc_id, from, to: at most `MOST` of them.
    flows : mapping
        How many documents are of each old and new cluster, by both; only those that differ.
    n_same : int
        Documents that stayed where they were.
    gone, new : pyarrow.Table
        doc_id and cluster of documents without a partner: at most `MOST` of the `n_gone`, `n_new`.
    """

    moved: pa.Table
    flows: Mapping[tuple[int, int], int]
    n_same: int
    gone: pa.Table
    new: pa.Table
    n_gone: int = 0
    n_new: int = 0

    @property
    def n_moved(self) -> int:
        """How many documents are in another cluster."""
        return sum(self.flows.values())

    @property
    def n_both(self) -> int:
        """How many documents are there before and after."""
        return self.n_same + self.n_moved


def changes_of(place: Place, before: Mapping[str, str], after: Mapping[str, str]) -> Changed:
    """Return what became of documents between two sets of files of assignments.

    Parameters
    ----------
    place : Place
        The output.
    before, after : mapping of str to str
        The sha256 of the files of two releases by their names.
    """
    flow = DaskFlow()
    old = {name.rpartition("/")[2]: OldFile(place, name, one) for name, one in before.items()}
    new = {name.rpartition("/")[2]: OldFile(place, name, one) for name, one in after.items()}
    names = sorted(old.keys() | new.keys())
    parts = flow.persist([flow.lazy(_of_files, old.get(one), new.get(one)) for one in names])
    n_alone = flow.compute([flow.lazy(_n_alone, part) for part in parts])
    n_buckets = max(1, math.ceil(max(map(sum, zip(*n_alone, strict=True))) / BUCKET))
    split = [flow.lazy(_split, part, n_buckets) for part in parts]
    rest = [
        flow.lazy(_of_rest, [flow.lazy(getitem, one, bucket) for one in split])
        for bucket in range(n_buckets)
    ]
    paired = [flow.lazy(_without_alone, part) for part in parts]
    found: Changed = flow.compute([tree(flow, _together, [*paired, *rest])])[0]
    return found


def _of_files(old: OldFile | None, new: OldFile | None) -> Changed:
    """Compare two files of one name: as a rule they have the same documents."""
    if old is not None and new is not None and old.sha256 == new.sha256:
        n_rows = len(new.read() or ())
        return _compared(_ALONE.empty_table(), _ALONE.empty_table(), n_rows)
    tables = [None if one is None else one.read() for one in (old, new)]
    return _compared(*(_ALONE.empty_table() if one is None else one for one in tables))


def _compared(old: pa.Table, new: pa.Table, n_same: int = 0) -> Changed:
    """Return what became of the documents of two tables."""
    places = pc.index_in(new["doc_id"], value_set=old["doc_id"])
    both = pc.is_valid(places)
    shared, was = new.filter(both), old["cluster"].take(places.filter(both))
    moves = pc.not_equal(shared["cluster"], was)
    columns = shared["doc_id"].filter(moves), was.filter(moves), shared["cluster"].filter(moves)
    moved = pa.Table.from_arrays([column.combine_chunks() for column in columns], schema=_MOVED)
    flows = Counter(zip(moved["from"].to_pylist(), moved["to"].to_pylist(), strict=True))
    alone = pc.invert(pc.is_in(old["doc_id"], value_set=new["doc_id"]))
    n_same += len(shared) - len(moved)
    gone, new = old.filter(alone), new.filter(pc.invert(both))
    return Changed(_few(moved), flows, n_same, gone, new, n_gone=len(gone), n_new=len(new))


def _n_alone(part: Changed) -> tuple[int, int]:
    return part.n_gone, part.n_new


def _without_alone(part: Changed) -> Changed:
    none = _ALONE.empty_table()
    return Changed(part.moved, part.flows, part.n_same, none, none)


def _split(part: Changed, n_buckets: int) -> list[tuple[pa.Table, pa.Table]]:
    """Return the documents without a partner in buckets by the hash of their id."""
    if n_buckets == 1:
        return [(part.gone, part.new)]
    sides = (split_table(part.gone, n_buckets), split_table(part.new, n_buckets))
    return list(zip(*sides, strict=True))


def _of_rest(parts: Sequence[tuple[pa.Table, pa.Table]]) -> Changed:
    """Compare documents that are in files of other names than they were."""
    old, new = (pa.concat_tables(side) for side in zip(*parts, strict=True))
    return _compared(old, new)


def _together(parts: Sequence[Changed]) -> Changed:
    """Return what several parts say together."""
    flows: Counter[tuple[int, int]] = Counter()
    for part in parts:
        flows.update(part.flows)
    return Changed(
        _few(pa.concat_tables([part.moved for part in parts])),
        flows,
        sum(part.n_same for part in parts),
        _few(pa.concat_tables([part.gone for part in parts])),
        _few(pa.concat_tables([part.new for part in parts])),
        n_gone=sum(part.n_gone for part in parts),
        n_new=sum(part.n_new for part in parts),
    )


def _few(table: pa.Table) -> pa.Table:
    """Return documents by id, at most `MOST`: those whose ids have the lowest hashes."""
    if len(table) > MOST:
        keys = hash_ids(np.asarray(table["doc_id"].to_pylist(), np.str_))
        table = table.take(pa.array(np.argsort(keys, kind="stable")[:MOST]))
    return table.sort_by("doc_id")


def with_reasons(
    moved: pa.Table, place: Place, before: Mapping[str, str], after: Mapping[str, str]
) -> pa.Table:
    """Return documents that moved with the answers about them that the former fit had not."""
    new = _answers_of(place, after) - _answers_of(place, before)
    about = defaultdict[str, list[str]](list)
    for first, second, words in sorted(new):
        about[first].append(f"{words} {second}")
        about[second].append(f"{words} {first}")
    reasons = [about.get(name, []) for name in moved["doc_id"].to_pylist()]
    return moved.append_column("answers", pa.array(reasons, pa.list_(pa.string())))


def _answers_of(place: Place, files: Mapping[str, str]) -> set[tuple[str, str, str]]:
    """Return the pairs that a release was made with: two documents, and what they are."""
    found: set[tuple[str, str, str]] = set()
    for name, sha256 in files.items():
        if name.endswith(f"/{ANSWERS}"):
            with suppress(DamagedReleaseError):  # reasons are good to know, no more
                pairs = parse_pairs(read_file(place.storage, name, sha256), ANSWERS).as_text()
                found |= _named(pairs.must_link, "same as")
                found |= _named(pairs.cannot_link, "different from")
    return found


def _named(pairs: Iterable[Any], words: str) -> set[tuple[str, str, str]]:
    return {(str(first), str(second), words) for first, second in pairs}


# ---- for people


@dataclass(frozen=True)
class Difference:
    """What changed from one release of an output to another.

    Attributes
    ----------
    output : str
    before, after : int
        Numbers of releases.
    documents : dict
        How many are in `both`, and how many of these `moved`; `new` ones, and those `gone`.
    files : dict
        Files with documents that are `new`, `changed` and `gone`.
    answers : int
        That the later one was made with, and the earlier one was not.
    flows : list of dict
        From which cluster to which how many documents went, most first: `from`, `to`, their names
        in the release that has them last, and `documents`.
    moved : list of dict
        Some documents that moved: `doc_id`, `from`, `to`, new `answers` about them, and the
        beginning of their `text`.
    new, gone : list of str
        Some ids.
    """

    output: str
    before: int
    after: int
    documents: dict[str, int]
    files: dict[str, int]
    answers: int
    flows: list[dict[str, Any]]
    moved: list[dict[str, Any]]
    new: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


def difference(
    output: str, before: int | None = None, after: int | None = None, *, most: int = 20
) -> Difference:
    """Return what changed between two releases of an output; the last two without a number.

    Parameters
    ----------
    output : str
    before, after : int, optional
        Without `after` the last release, without `before` the one that is kept before `after`.
    most : int, default=20
        Documents that moved, and flows, to list.
    """
    now, place = load_release(output, after), Place(absolute_url(output))
    then = load_release(output, _number_before(output, now.release) if before is None else before)
    old, new = then.files, now.files
    changed = changes_of(place, assignments_of(old), assignments_of(new))
    answers = _answers_of(place, new) - _answers_of(place, old)
    counts = {"both": changed.n_both, "moved": changed.n_moved}
    listed = with_reasons(_first(changed.moved, most), place, old, new).to_pylist()
    return Difference(
        output, then.release, now.release,
        documents=counts | {"new": changed.n_new, "gone": changed.n_gone},
        files=_files_changed(then.ledger, now.ledger),
        answers=len(answers),
        flows=_flows(changed.flows, then, now)[:most],
        moved=_with_texts(output, listed),
        new=changed.new["doc_id"][:_SHOWN].to_pylist(),
        gone=changed.gone["doc_id"][:_SHOWN].to_pylist(),
    )  # fmt: skip


def _number_before(output: str, number: int) -> int:
    kept = [one for one in releases_of(absolute_url(output)) if one < number]
    if not kept:
        raise ConfigurationError(
            f"there must be a release before {number} to compare it with, got none that is kept in "
            f"{output}; run the job again when there is something new"
        )
    return kept[-1]


def _first(moved: pa.Table, most: int) -> pa.Table:
    """Return some documents that moved, drawn by their ids."""
    keys = hash_ids(np.asarray(moved["doc_id"].to_pylist(), np.str_))
    return moved.take(pa.array(np.argsort(keys, kind="stable")[:most]))


def _files_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    old, new = files_of(before), files_of(after)
    both = old.keys() & new.keys()
    n_changed = sum(old[path][:2] != new[path][:2] for path in both)
    return {"new": len(new) - len(both), "changed": n_changed, "gone": len(old) - len(both)}


def _flows(
    flows: Mapping[tuple[int, int], int], then: ReleasedModel, now: ReleasedModel
) -> list[dict[str, Any]]:
    names = {**then.names, **now.names}
    ordered = sorted(flows.items(), key=lambda one: (-one[1], one[0]))
    return [
        {
            "from": old, "to": new, "documents": number,
            "from_name": names.get(old, OUTLIERS), "to_name": names.get(new, OUTLIERS),
        }
        for (old, new), number in ordered
    ]  # fmt: skip


def _with_texts(output: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the beginnings of their texts, "" where these cannot be read."""
    texts: dict[str, str] = {}
    with suppress(HmrfError):  # the job is elsewhere now: the rest is worth knowing
        read = Texts(output).read([row["doc_id"] for row in rows])
        texts = {name: beginning(document.text) for name, document in read.items()}
    return [{**row, "text": texts.get(row["doc_id"], "")} for row in rows]
