"""Whose an output is: a record that its first run makes, and the cleaning of its old folders."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from hmrf_dask.errors import ConfigurationError, HmrfWarning
from hmrf_dask.releases.lock import LOCK_FOLDER, OutputLock, now
from hmrf_dask.releases.own_files import FOLDERS, RUNS, is_within, recorded, remove_own
from hmrf_dask.releases.own_files import MADE_FOLDER as MADE
from hmrf_dask.releases.release import (
    LATEST,
    RELEASES_FOLDER,
    pointed,
    read_if_whole,
    release_log,
    retire,
)
from hmrf_dask.storage import sealed
from hmrf_dask.storage.log import ExclusiveLog
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.storage.stores import Storage, read_sealed, temporary_target

_HELD = {
    "": re.compile(LATEST),
    RELEASES_FOLDER: re.compile("[0-9]{5,}[.]json"),
    MADE: re.compile("[0-9a-f]{16}[.]json"),
}
HISTORY = 100  # numbers; more files of releases would be listed at every start for ever


def clean(hold: OutputLock, keep: int = 2, *, also: int | None = None) -> list[str]:
    """Remove folders of runs that none of the newest `keep` releases names; return those runs.

    What LATEST names stays, and so do the run that holds the output and the release `also`, which
    a run continues. Runs that were killed and given up go, if this output recorded them; no folder
    that another program made does. Older release files stay without the names of files that are
    gone: they are the history of the output, the last `HISTORY` numbers of it.
    """
    storage = hold.storage
    hold.check()
    _drop_halves(storage)
    numbers = release_log(storage).numbers()
    releases = filter(None, (read_if_whole(storage, number) for number in numbers))
    newest = list(islice(releases, max(keep, 1)))
    older = [] if len(newest) < keep else [n for n in numbers if n < newest[-1].number]
    held = {also, _pointed_at(storage)} & set(older)
    kept = {hold.holder.run}
    for release in (*newest, *filter(None, (read_if_whole(storage, n) for n in held if n))):
        # A release may name files of the runs before it.
        kept |= {release.run, *(_run_of(name) for name in release.files)}
    retired = [number for number in older if number not in held]
    # A version that recorded nothing made the runs of its releases.
    own = {_run_of(name) for name in recorded(storage)} | set(_retire(storage, retired))
    if newest:
        _forget(storage, [number for number in retired if number <= newest[0].number - HISTORY])
    if not is_within(storage, RUNS):
        return []
    old = sorted(set(storage.names(RUNS)) & own - kept)
    return [run for run in old if remove_own(storage, f"{RUNS}/{run}")]


def _drop_halves(storage: Storage) -> None:
    """Remove halves of files that nobody else writes while this process holds the output."""
    for folder, forms in _HELD.items():
        storage.delete(
            f"{folder}/{name}".lstrip("/")
            for name in storage.names(folder)
            if (meant := temporary_target(name)) and forms.fullmatch(meant)
        )


def _pointed_at(storage: Storage) -> int | None:
    try:
        named = pointed(storage)
    except DamagedFileError:  # its reader gets the error; what is newest is found without it
        return None
    return None if named is None else int(named["release"])


def _retire(storage: Storage, older: list[int]) -> list[str]:
    """Retire releases, newest first, as far as that was not done before; return their runs."""
    runs = []
    for number in older:
        release = read_if_whole(storage, number)
        if release is not None and not release.files:
            break
        if release is not None:
            retire(storage, release)
            runs.append(release.run)
    return [run for run in runs if FOLDERS.fullmatch(f"{RUNS}/{run}")]


def _forget(storage: Storage, older: list[int]) -> None:
    """Remove the files of releases that were retired long ago."""
    for number in older:
        release = read_if_whole(storage, number)
        if release is not None and not release.files:
            release_log(storage).delete(number)


def _run_of(name: str) -> str:
    folder, _, rest = name.partition("/")
    return rest.partition("/")[0] if folder == RUNS else ""


NAME = "output.json"
FORMAT = "hmrf-dask/output/v1"
# Names that a run gives to what it writes into the root of an output.
NAMES = (
    *("counts", "documents", "rows", "runs", "vectors", "vocabularies"),
    *(LOCK_FOLDER, RELEASES_FOLDER, LATEST, MADE),
)


@dataclass(frozen=True)
class Owner:
    """The job whose an output is.

    Attributes
    ----------
    since : str
        When it began; "" of a job that asks.
    former : tuple of dict
        Owners that it was handed over from, the first one first.
    """

    job: str
    manifest: str
    since: str = ""
    former: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        """Return what a person calls it."""
        return f"job {self.job!r} with manifest {self.manifest!r}"

    def is_same(self, other: Owner) -> bool:
        """Return whether another one is the same job."""
        return (self.job, self.manifest) == (other.job, other.manifest)


def read_owner(storage: Storage) -> Owner | None:
    """Return whose an output is, None where that is not recorded."""
    try:
        return sealed.unseal_as(Owner, storage.read(NAME), NAME, FORMAT)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        raise DamagedFileError(
            f"{storage.url}/{NAME} must be as a run wrote it, got something else; name another "
            "output, or, if this is one, remove the file and run again"
        ) from error


def refuse_other(storage: Storage, asks: Owner, *, hand_over: bool = False) -> None:
    """Raise ConfigurationError where an output is another job's, or no output but not free.

    Nothing is written. With `hand_over` another job's is no error.
    """
    owner = read_owner(storage)
    if owner is None:
        if not (_are_sealed(storage, RELEASES_FOLDER) or _are_sealed(storage, LOCK_FOLDER)):
            _refuse_strangers(storage)
    elif not (hand_over or owner.is_same(asks)):
        raise ConfigurationError(
            f"an output must be one job's, got {storage.url} of {owner} (since {owner.since}) for "
            f"{asks}; name another output, or hand this one over: hmrf-dask run JOB --take-over"
        )


def claim(storage: Storage, asks: Owner, *, hand_over: bool = False) -> None:
    """Make an output a job's that is nobody's yet; refuse as `refuse_other` does.

    An output of a version that recorded no owner becomes that of the first job that runs.
    """
    refuse_other(storage, asks, hand_over=hand_over)
    if read_owner(storage) is not None:
        return
    storage.make_root()
    if _are_sealed(storage, RELEASES_FOLDER):
        warnings.warn(
            f"{storage.url} has releases and no {NAME}: from now on it belongs to {asks}",
            HmrfWarning,
            stacklevel=2,
        )
    try:
        storage.create(NAME, _sealed(Owner(asks.job, asks.manifest, now())))
    except FileExistsError:  # another run was faster
        refuse_other(storage, asks, hand_over=hand_over)


def confirm(storage: Storage, asks: Owner, *, hand_over: bool = False) -> None:
    """See that an output is a job's, or hand it over; whoever calls it holds the output."""
    refuse_other(storage, asks, hand_over=hand_over)
    owner = read_owner(storage)
    if owner is None or owner.is_same(asks):
        return
    before = {"job": owner.job, "manifest": owner.manifest, "since": owner.since, "until": now()}
    storage.write(NAME, _sealed(Owner(asks.job, asks.manifest, now(), (*owner.former, before))))
    storage.sync_folders([""])


def _sealed(owner: Owner) -> bytes:
    return sealed.seal({"format": FORMAT, **asdict(owner)})


def _are_sealed(storage: Storage, folder: str) -> bool:
    """Return whether runs wrote the numbered files of a folder: then they are sealed."""
    log = ExclusiveLog(storage, folder)
    for number in log.numbers():
        with suppress(DamagedFileError):
            if read_sealed(storage, log.path(number)) is not None:
                return True
    return False


def _refuse_strangers(storage: Storage) -> None:
    there = set(storage.names(""))
    if foreign := [name for name in NAMES if name in there]:
        raise ConfigurationError(
            f"an output must be a folder without {', '.join(map(repr, foreign))}, or one that a "
            f"run made, got {storage.url}, which has {'these' if len(foreign) > 1 else 'it'} and "
            f"no {NAME}; name another output, such as a new folder in it"
        )
