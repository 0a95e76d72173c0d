"""Whose an output is: a record in its root that its first run makes and every other run obeys."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from hmrf_dask.errors import ConfigurationError, HmrfWarning
from hmrf_dask.releases import holder, release
from hmrf_dask.releases.made import FOLDER as MADE
from hmrf_dask.releases.output import numbers_in
from hmrf_dask.runs import records
from hmrf_dask.runs.files import read_sealed
from hmrf_dask.runs.records import DamagedFileError
from hmrf_dask.runs.storage import Storage

NAME = "output.json"
FORMAT = "hmrf-dask/output/v1"
# Names that a run gives to what it writes into the root of an output.
NAMES = (
    *("counts", "documents", "rows", "runs", "vocabularies"),
    *(holder.FOLDER, release.FOLDER, release.LATEST, MADE),
)


@dataclass(frozen=True)
class Owner:
    """The job whose an output is.

    Attributes
    ----------
    job, manifest : str
        Their names.
    since : str
        When it began, in ISO 8601, UTC; "" of a job that asks.
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
        """Tell whether another one is the same job."""
        return (self.job, self.manifest) == (other.job, other.manifest)


def read_owner(storage: Storage) -> Owner | None:
    """Return whose an output is, None where that is not recorded.

    Raises
    ------
    DamagedFileError
        output.json is none of a run's, or was changed.
    """
    try:
        found = read_sealed(storage, NAME)
        if found is None:
            return None
        if found.pop("format", None) != FORMAT:
            raise DamagedFileError(f"{NAME} must have the format {FORMAT}")
        return Owner(**{**found, "former": tuple(found["former"])})
    except (DamagedFileError, TypeError, KeyError) as error:
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
        if not any(_are_sealed(storage, folder) for folder in (release.FOLDER, holder.FOLDER)):
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
    if _are_sealed(storage, release.FOLDER):
        warnings.warn(
            f"{storage.url} has releases and no {NAME}: from now on it belongs to {asks}",
            HmrfWarning,
            stacklevel=2,
        )
    try:
        storage.create(NAME, _sealed(Owner(asks.job, asks.manifest, _now())))
    except FileExistsError:  # another run was faster
        refuse_other(storage, asks, hand_over=hand_over)


def confirm(storage: Storage, asks: Owner, *, hand_over: bool = False) -> None:
    """See that an output is a job's, or hand it over; whoever calls it holds the output."""
    refuse_other(storage, asks, hand_over=hand_over)
    owner = read_owner(storage)
    if owner is None or owner.is_same(asks):
        return
    before = {"job": owner.job, "manifest": owner.manifest, "since": owner.since, "until": _now()}
    storage.write(NAME, _sealed(Owner(asks.job, asks.manifest, _now(), (*owner.former, before))))
    storage.settle([""])


def _sealed(owner: Owner) -> bytes:
    return records.seal({"format": FORMAT, **asdict(owner)})


def _are_sealed(storage: Storage, folder: str) -> bool:
    """Tell whether runs wrote the numbered files of a folder: then they are sealed."""
    numbers = sorted(numbers_in(storage, folder), reverse=True)
    return any(_is_sealed(storage, f"{folder}/{number:05d}.json") for number in numbers)


def _is_sealed(storage: Storage, name: str) -> bool:
    try:
        return read_sealed(storage, name) is not None
    except DamagedFileError:
        return False


def _refuse_strangers(storage: Storage) -> None:
    there = set(storage.names(""))
    if foreign := [name for name in NAMES if name in there]:
        raise ConfigurationError(
            f"an output must be a folder without {_listed(foreign)}, or one that a run made, got "
            f"{storage.url}, which has {'these' if len(foreign) > 1 else 'it'} and no {NAME}; name "
            "another output, such as a new folder in it"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"{name!r}" for name in names)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
