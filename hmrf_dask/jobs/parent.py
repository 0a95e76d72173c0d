"""Which release a run continues, which files it was made of, and what is new since."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.documents.sources import Segment
from hmrf_dask.errors import ConfigurationError, HmrfWarning, UnreadableFileError
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.places import ANSWERS, EDITED, GONE, LINEAGE, MODEL, REJECTS
from hmrf_dask.jobs.places import NAME as REPORT
from hmrf_dask.jobs.reshape import Edits
from hmrf_dask.releases.lineage import Lineage
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.release import (
    DamagedReleaseError,
    Release,
    check_files,
    damages,
    hashed_in,
    latest,
    pointed,
    read_if_whole,
    release_log,
    tonight,
)
from hmrf_dask.storage.sealed import RESTORE, DamagedFileError, typed
from hmrf_dask.storage.stores import Storage

SOURCES = "sources"
VOCABULARY = "vocabulary"  # its identity, None where rows are ready embeddings
DENSE = "dense"  # the vectors that rows are made of, a `text.tfidf.Dense`; absent without any
MADE_OF = "made_of"  # keys of the counts that the vocabulary was made of
# Keys of counts of whole packs, from which documents are left out that deltas have or say are gone.
COUNTED_WHOLE = "counted_whole"
CAME = "came"  # the releases that files came with since the last fit, by path
JOB = "job"  # where the job file was; former versions kept it not
CHOICE = "choice_of_k"  # the K that a release chose, or one before it; a `ChosenK`


class Keys(NamedTuple):
    """What a part of a file is called; most files, and segments of other sources, have one."""

    counts: str  # the counts and rows of its pack
    pack: str
    own: str


class FileEntry(NamedTuple):
    """A file of a release as its ledger lists it, or a segment of another source, and its keys."""

    size: Any
    etag: Any
    keys: list[Keys]


@dataclass(frozen=True)
class ChosenK:
    """A K that was chosen: that of all later fits, until it is to be chosen again."""

    n_clusters: int
    least: int  # of the range that was recommended
    largest: int
    likely: float  # the range, from 0 to 1
    release: int  # for which it was chosen
    asked: bool  # whether it was to be chosen again

    @staticmethod
    def of(ledger: Mapping[str, Any]) -> ChosenK | None:
        """Return the one that a ledger has; None where K was given, or nothing fitted yet."""
        named = ledger.get(CHOICE)
        return None if named is None else ChosenK(**named)


@dataclass(frozen=True)
class _Ledger:
    """What the ledger of a release has at least."""

    inputs: str
    sources: dict[str, tuple[Any, Any, list[tuple[str, str, str]]]]
    vocabulary: str | None
    made_of: list[str]
    next_id: int
    came: dict[str, int] = field(default_factory=dict)  # former versions kept none
    choice_of_k: ChosenK | None = None
    dense: dict[str, str | int | float] | None = None
    edits: Edits | None = None


def last_release(output: str) -> Release | None:
    """Return the last release of a job's output, with a ledger that a run can continue."""
    release = latest(output)
    if release is not None:
        _check_ledger(release, output)
    return release


def _check_ledger(release: Release, output: str) -> None:
    """Raise DamagedReleaseError where a run cannot continue from the ledger of a release."""
    try:
        typed(_Ledger, release.ledger, f"the ledger of release {release.number} of {output}")
    except DamagedFileError as error:
        raise DamagedReleaseError(str(error).removesuffix(f"; {RESTORE}")) from error


@dataclass(frozen=True)
class Changes:
    """What happened to the files since the last release, by path, sorted."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    same: tuple[str, ...]
    gone: tuple[str, ...]

    def counted(self) -> dict[str, int]:
        """Return how many there are of each kind, and of all that are there.

        Examples
        --------
        >>> Changes(new=("b.csv",), changed=(), same=("a.csv",), gone=("c.csv",)).counted()
        {'all': 2, 'new': 1, 'changed': 0, 'gone': 1}
        """
        counts = {name: len(getattr(self, name)) for name in ("new", "changed", "gone")}
        return {"all": counts["new"] + counts["changed"] + len(self.same), **counts}


def entries(
    segments: Sequence[Segment | DocumentSegment], keys: Mapping[str, list[Keys]]
) -> dict[str, FileEntry]:
    """Return what the ledger of a release keeps of its segments, by name; `keys` by name too.

    Examples
    --------
    >>> keys = {"a.csv": [Keys("1", "2", "3")]}
    >>> entries([Segment("a.csv", 10, "9f")], keys)
    {'a.csv': FileEntry(size=10, etag='9f', keys=[Keys(counts='1', pack='2', own='3')])}
    """
    return {one.name: FileEntry(one.size, one.stamp, keys[one.name]) for one in segments}


def files_of(ledger: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Return the files that a ledger lists, by path; keys of former versions name nothing now.

    Examples
    --------
    >>> files_of({SOURCES: {"a.csv": [10, "9f", [["1", "2", "3"]]]}})
    {'a.csv': FileEntry(size=10, etag='9f', keys=[Keys(counts='1', pack='2', own='3')])}
    """
    return {
        path: FileEntry(size, etag, [Keys(*one) for one in keys[0]] if len(keys) == 1 else [])
        for path, (size, etag, *keys) in ledger.get(SOURCES, {}).items()
    }


def compare(
    before: Mapping[str, FileEntry], segments: Sequence[Segment | DocumentSegment]
) -> Changes:
    """Return what is new compared with the ledger of a release, as `files_of` gives it.

    Examples
    --------
    >>> before = {"a.csv": FileEntry(10, "9f", []), "c.csv": FileEntry(3, "d0", [])}
    >>> compare(before, [Segment("a.csv", 10, "9f")])
    Changes(new=(), changed=(), same=('a.csv',), gone=('c.csv',))
    """
    now = {segment.name: (segment.size, segment.stamp) for segment in segments}
    both = sorted(now.keys() & before.keys())
    return Changes(
        new=tuple(sorted(now.keys() - before.keys())),
        changed=tuple(path for path in both if before[path][:2] != now[path]),
        same=tuple(path for path in both if before[path][:2] == now[path]),
        gone=tuple(sorted(before.keys() - now.keys())),
    )


NEXT_ID = "next_id"
INPUTS = "inputs"


def chose_again(release: Release) -> bool:
    """Return whether the run that made a release was asked to choose K again."""
    chosen = ChosenK.of(release.ledger)
    return chosen is not None and chosen.asked and chosen.release == release.number


def is_of(release: Release, inputs: Inputs) -> bool:
    """Return whether a release was made of these inputs, with a K chosen again if these ask it."""
    same = release.ledger.get(INPUTS) == inputs.identity
    return same and (chose_again(release) or not inputs.choose_k)


def is_done(release: Release, inputs: Inputs) -> bool:
    """Return whether a release leaves nothing to do for these inputs, and no edit waits for it."""
    waits = inputs.job.mode == "fit" and Edits.of(release.ledger, 0).waiting
    return is_of(release, inputs) and not waits


@dataclass(frozen=True)
class Parent:
    """Where a run begins."""

    release: Release | None  # that it continues
    number: int  # of the release that it will make
    run_id: str
    done: bool = False  # the release was made of these very inputs
    skipped: range = range(0)  # numbers of later releases that it does not continue


def find_parent(inputs: Inputs) -> Parent:
    """Return where a run of these inputs begins; a prediction without a release is an error."""
    chosen = inputs.from_release
    parent = _last(inputs) if chosen is None else _chosen(inputs, chosen)
    if parent.release is None and inputs.job.mode == "predict":
        raise ConfigurationError(
            f"mode predict must have a model, got {inputs.output} without a release to go on "
            "from; run with mode fit first"
        )
    return parent


def _last(inputs: Inputs) -> Parent:
    last = last_release(inputs.output)
    if last is not None and is_done(last, inputs):
        return Parent(last, last.number + 1, last.run, done=True)
    return Parent(last, 1 if last is None else last.number + 1, _run_id(inputs, last))


def _chosen(inputs: Inputs, chosen: int) -> Parent:
    """Return the place after all releases that are there, be they damaged.

    The run that made the release after the chosen one of these very inputs is done again: it makes
    the same files, so what was damaged is whole again.
    """
    storage = open_output(inputs.output, None)
    release = read_if_whole(storage, chosen) if chosen else None
    newest = _newest(storage)
    if chosen and not newest:
        raise ConfigurationError(
            f"--from-release must name a release, got {chosen} for {inputs.output}, which has none "
            "yet; leave it out"
        )
    if chosen and (release is None or not release.files):
        raise ConfigurationError(
            f"--from-release must name a release that can be read and has its files yet, got "
            f"{chosen}; {_way_out(storage, None)}"
        )
    if release is not None:
        _check_ledger(release, inputs.output)
    skipped = range(chosen + 1, newest)
    run_id = _run_id(inputs, release, skipped)
    last = read_if_whole(storage, newest)
    if newest == chosen or last is None or last.run != run_id:
        skipped = range(chosen + 1, newest + 1)
        run_id = _run_id(inputs, release, skipped)
    elif not damages(storage, last):
        return Parent(last, newest + 1, run_id, done=True)
    return Parent(release, newest + 1, run_id, skipped=skipped)


def _run_id(inputs: Inputs, release: Release | None, skipped: range = range(0)) -> str:
    """Return the id of the run from a release, by what identifies it and its model."""
    identity = None if release is None else f"{release.number} {release.run} {release.model}"
    return inputs.run_id(f"{identity}, passing over {skipped}" if skipped else identity)


def _newest(storage: Storage) -> int:
    """Return the highest number that a release has or had."""
    numbers = release_log(storage).numbers()
    try:
        named = pointed(storage)
    except DamagedFileError:
        named = None
    return max([*numbers, *([] if named is None else [named["release"]])], default=0)


# ---- what is damaged, and the way out


@contextmanager
def damage_explained(output: str, release: Release | None = None) -> Iterator[None]:
    """Say which release is damaged, and how to go on."""
    try:
        yield
    except DamagedReleaseError as error:
        storage = open_output(output, None)
        whose = "" if release is None else f"release {release.number} of {output} is damaged: "
        below = None if release is None else release.number
        raise DamagedReleaseError(
            f"{whose}{error}; restore it from a copy, or {_way_out(storage, below)}"
        ) from error


def _way_out(storage: Storage, below: int | None) -> str:
    """Return the option that continues the newest release that is whole."""
    numbers = release_log(storage).numbers()
    for number in numbers if below is None else [one for one in numbers if one < below]:
        release = read_if_whole(storage, number)
        if release is not None and release.files and not _damaged(storage, release):
            return (
                f"go on from release {number}, the last one that is whole: hmrf-dask run JOB "
                f"--from-release {number} (clusters keep the ids they had there)"
            )
    return (
        "begin again, as no release is whole: hmrf-dask run JOB --from-release 0 (all clusters get "
        "new ids)"
    )


def _damaged(storage: Storage, release: Release) -> bool:
    """Return whether a run cannot continue a release."""
    from hmrf_dask.text.files import Place, load_vocabulary  # much is imported to read one

    try:
        _check_ledger(release, storage.url)
        check_release(storage, release)
        if (named := release.ledger[VOCABULARY]) is not None:
            load_vocabulary(named, Place(storage.url))
    except (DamagedFileError, UnreadableFileError):
        return True
    return False


# ---- a release that is made again


def parent_again(inputs: Inputs, last: Release) -> Parent | None:
    """Return where the run began that made a release of these inputs, None where that is gone.

    What it makes again from there are the same files.
    """
    storage = open_output(inputs.output, None)
    before = None
    if last.parent is not None:
        found = (read_if_whole(storage, number) for number in range(last.number - 1, 0, -1))
        before = next((one for one in found if one is not None and one.run == last.parent), None)
        if before is None or not before.files or _damaged(storage, before):
            return None
    skipped = range(1 if before is None else before.number + 1, last.number)
    if not is_of(last, inputs) or _run_id(inputs, before, skipped) != last.run:
        return None
    return Parent(before, last.number + 1, last.run, skipped=skipped)


def check_release(storage: Storage, release: Release, *, predicting: bool = True) -> None:
    """Raise DamagedReleaseError where a file that a run needs is not as it was published.

    A fit needs lineage and model, and can do without some of the assignments, which it checks where
    it reads them. A prediction publishes assignments again without reading them, so their sizes are
    read, and a share of them is hashed.
    """
    hashed = [name for name in release.files if _is_needed(name)]
    if not predicting:
        check_files(storage, release, hashed, hashed)
        return
    needed = [name for name in release.files if _is_carried(name)]
    share = set(hashed_in(tonight(), {name: release.sizes[name] for name in needed}))
    check_files(storage, release, sorted(share.union(hashed)), [*hashed, *needed])


def _is_needed(name: str) -> bool:
    """Return whether any run needs a file of the last release."""
    return f"/{MODEL}/" in name or name.rpartition("/")[2] in (LINEAGE, ANSWERS, EDITED, GONE)


def _is_carried(name: str) -> bool:
    """Return whether a prediction needs a file too; reports and rejects are for people."""
    return not (_is_needed(name) or f"/{REJECTS}/" in name or name.endswith(f"/{REPORT}"))


# ---- ids of clusters


def next_id_after(output: str, parent: Parent) -> int:
    """Return the lowest id that no cluster of the skipped releases had; 0 where none was."""
    storage = open_output(output, None)
    known = {n: next_id for n in parent.skipped if (next_id := _next_id(storage, n)) is not None}
    # One that can be read had ids above those of all before it.
    last_known = max(known, default=0)
    if unknown := [number for number in parent.skipped if number > last_known]:
        some = f"{unknown[0]} to {unknown[-1]}" if len(unknown) > 1 else f"{unknown[0]}"
        warnings.warn(
            f"no readable file says which ids new clusters got in release {some}: they "
            "may be given again to other clusters",
            HmrfWarning,
            stacklevel=2,
        )
    return max(known.values(), default=0)


def _next_id(storage: Storage, number: int) -> int | None:
    """Return what the ledger of a release says, or else the lineage of the run that made it."""
    release = read_if_whole(storage, number)
    if release is not None and isinstance(release.ledger.get(NEXT_ID), int):
        return int(release.ledger[NEXT_ID])
    try:
        run = release.run if release is not None else _run_pointed_at(storage, number)
        return Lineage.from_json(storage.read(f"runs/{run}/{LINEAGE}")).next_id
    except (FileNotFoundError, DamagedFileError):
        return None


def _run_pointed_at(storage: Storage, number: int) -> str:
    """Return the run of a release by what LATEST says, "" where that names another release."""
    named = pointed(storage)
    return named["run"] if named is not None and named["release"] == number else ""
