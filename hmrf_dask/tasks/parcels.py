"""What rows change, on its way to owners: it lies with its worker until they take it.

A task of a worker makes a parcel for each owner; the scheduler knows where they are and no more. A
parcel is gone from its worker when it is taken: what fails half way is lost, never added twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hmrf_dask.errors import LostOwnerError
from hmrf_dask.kernels.exact import exact_zero
from hmrf_dask.kernels.sums import Sums, add_sums
from hmrf_dask.tasks.partitions import Step, merge_steps
from hmrf_dask.types import IntArray, Sized

if TYPE_CHECKING:
    from hmrf_dask.flow.messages import Peers

_parcels: dict[tuple[str, int], Sums] = {}  # by name and the owner's first cluster
_left: deque[str] = deque(maxlen=64)  # fits that have ended; a task of theirs may come later
_lock = threading.RLock()  # a fit may end as garbage is collected in here


class Parcels(NamedTuple):
    """Where the sums lie that tasks of one worker changed, until owners take them."""

    address: str
    name: str
    owners: IntArray  # by their first clusters; to the rest of them it is nothing


@dataclass(frozen=True)
class Changes(Sized):
    """What steps changed: a report for the driver, nothing in it of the size of the sums."""

    report: Step
    parcels: tuple[Parcels, ...]

    @staticmethod
    def merged(parts: Sequence[Changes]) -> Changes:
        """Return what all of them changed."""
        parcels = tuple(parcel for part in parts for parcel in part.parcels)
        return Changes(merge_steps([part.report for part in parts]), parcels)


def report_of(changes: Changes) -> Step:
    """Return the report alone: owners wait for the rest, and Dask cancels no task with dependents.

    (The scheduler ends where it is asked to, and nobody else wants these.)
    """
    return changes.report


def changed_by(
    name: str, changes: Sequence[Step | Sums], ends: Sequence[int], peers: Peers
) -> Changes:
    """Return what tasks of one worker changed; its sums stay here, a parcel for each owner.

    Owners have the clusters between `ends`. Parcels that nobody took are of a pass that was lost.
    """
    steps = [one if isinstance(one, Step) else Step((), 0, exact_zero(), one) for one in changes]
    sums = [step.sums for step in steps if isinstance(step.sums, Sums)]
    whole = sums[0] if len(sums) == 1 else add_sums(sums)
    parts = dict(zip(ends[:-1], whole.cut(ends), strict=True))
    parts = {
        first: part
        for first, part in parts.items()
        if part.is_dense or len(part.places) or part.counts.any()
    }
    report = merge_steps([replace(step, sums=_counts_of(step)) for step in steps])
    with _lock:
        for key in [key for key in _parcels if is_before(key[0], name)]:
            _parcels.pop(key, None)
        if not has_left(fit_of(name)):
            _parcels.update({(name, first): part for first, part in parts.items()})
    return Changes(report, (Parcels(peers.here, name, np.asarray(list(parts), np.int64)),))


def _counts_of(step: Step) -> Sums:
    assert isinstance(step.sums, Sums)  # rows are noted where the driver sees them
    return step.sums.without_numbers()


def fit_of(name: str) -> str:
    """Return the fit that a version is of."""
    return name.partition(".")[0]


def is_before(name: str, later: str) -> bool:
    """Return whether a version of a fit was named before another one of it."""
    (fit, number), (its, last) = (one.partition("/")[0].split(".") for one in (name, later))
    return fit == its and int(number) < int(last)


def hand_over(name: str, first: int) -> Sums:
    """Return the parcel for an owner, which has it alone from now on."""
    with _lock:
        parcel = _parcels.pop((name, first), None)
    if parcel is None:
        raise LostOwnerError(
            f"a worker must hold what its rows change, got {name} for the clusters from {first} on "
            "gone; the fit resumes from its last commit"
        )
    return parcel


def taken(first: int, changes: Changes, peers: Peers) -> Iterator[Sums]:
    """Return the parcels for an owner, as they come: a few of them are here at a time."""
    asked = [
        (parcels.address, (parcels.name, first))
        for parcels in changes.parcels
        if first in parcels.owners
    ]
    return (sums for _, sums in peers.ask(hand_over, asked))


def leave(fit: str) -> None:
    """Let go of all parcels of a fit, and of those that tasks of it make later."""
    with _lock:
        _left.append(fit)
        for key in [key for key in _parcels if key[0].startswith(fit)]:
            _parcels.pop(key, None)


def has_left(fit: str) -> bool:
    """Return whether a fit has ended."""
    return fit in _left
