"""The journal of an output as a run takes it: up to its end when the run began, as pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.journal import Lines, journal_address, open_journal
from hmrf_dask.answers.records import ANSWERS, EDITS, IMPORTED, UNDO, Entry
from hmrf_dask.answers.standing import standing
from hmrf_dask.constraints.answer_files import PairLines
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.documents.batches import Reject
from hmrf_dask.storage.sealed import DamagedFileError, digest, seal
from hmrf_dask.storage.stores import Storage, read_sealed
from hmrf_dask.types import AnyArray

if TYPE_CHECKING:
    from hmrf_dask.jobs.answers import Given
    from hmrf_dask.jobs.former import Documents

Row = tuple[tuple[str, str, bool], int, dict[str, Any]]  # a pair, its line, and its notes
COUNTING = (*ANSWERS, *EDITS, UNDO)  # kinds of entries that a run may end otherwise for
NAME = "journal.json"  # in the folder of a run: how far it took the journal
KEY = "journal"  # in a ledger and a report


@dataclass(frozen=True)
class Taken:
    """A journal up to an end, which those who answer meanwhile do not move."""

    address: str
    read: Lines

    @cached_property
    def identity(self) -> str:
        """The same for the same answers and edits, in any order; "" where there are none."""
        lines = {one.to_line() for one in self.read.entries if one.kind in COUNTING}
        return digest(b"".join(sorted(lines))) if lines else ""

    @property
    def n_answers(self) -> int:
        """How many answers stand."""
        return sum(one.kind in ANSWERS for one in standing(self.read.entries))

    @property
    def edits(self) -> list[Entry]:
        """The edits of clusters that stand, the first one first."""
        return [one for one in standing(self.read.entries) if one.kind in EDITS]

    @property
    def annotators(self) -> set[str]:
        """Who answered."""
        return {one.annotator for one in self.read.entries}

    def until(self, end: int) -> Taken:
        """Return the same journal up to an earlier end."""
        return Taken(self.address, open_journal(self.address).entries(until=end))

    def described(self) -> dict[str, dict[str, int]]:
        """Return how far it was taken, as ledgers and reports have it; nothing without one."""
        if not (self.read.end or self.read.bad):
            return {}
        numbers = {"end": self.read.end, "answers": self.n_answers, "bad": len(self.read.bad)}
        return {KEY: numbers}

    def rejects(self) -> list[Reject]:
        """Return the lines that are no entries, such as one that a kill cut."""
        return [Reject(self.address, bad.line, None, bad.reason, bad.raw) for bad in self.read.bad]

    def pairs(self, annotators: Mapping[str, float]) -> PairLines:
        """Return what its answers say together as pairs with trust; see `answers.beliefs`.

        The line of such a pair is that of the first answer about its document. Answers that were
        imported are pairs as those of files are: with trust of their own, or their annotator's.
        """
        stand = standing(self.read.entries)
        pairs = believe(stand, trust=annotators).constraints() if stand else NO_PAIRS
        place = {one.id: line for one, line in zip(self.read.entries, self.read.lines, strict=True)}
        rows = [
            (pair, place[one.id], _notes_of(one))
            for one in stand if one.why == IMPORTED for pair in one.pairs()
        ]  # fmt: skip
        first: dict[str, int] = {}
        for entry in stand:
            for document in entry.documents:
                first.setdefault(document, place[entry.id])
        return _lines([*_believed(pairs, first), *rows])


NO_PAIRS = Constraints(ids=True)


def _notes_of(entry: Entry) -> dict[str, Any]:
    """Return the notes of an imported answer, as a line of a file has them."""
    noted = {"annotator": entry.annotator or None, "trust": entry.trust, "why": IMPORTED}
    return {name: value for name, value in noted.items() if value is not None}


def _believed(pairs: Constraints, first: Mapping[str, int]) -> Iterator[Row]:
    """Yield what answers to questions say together."""
    for ends, likely, is_same in (
        (pairs.must_link, pairs.must_link_trust, True),
        (pairs.cannot_link, pairs.cannot_link_trust, False),
    ):
        for (one, other), trust in zip(ends.tolist(), likely.tolist(), strict=True):
            line = min(first.get(str(one), 1), first.get(str(other), 1))
            yield (str(one), str(other), is_same), line, {"trust": trust}


def _lines(rows: Sequence[Row]) -> PairLines:
    ends, notes = np.empty((len(rows), 2), object), np.empty(len(rows), object)
    for row, ((one, other, _), _, noted) in enumerate(rows):
        ends[row], notes[row] = (one, other), noted
    return PairLines(
        pairs=ends,
        must=np.array([is_same for (_, _, is_same), _, _ in rows], np.bool_),
        weights=np.full(len(rows), np.nan),
        lines=np.array([line for _, line, _ in rows], np.int64),
        notes=notes,
        labels=[],
        bad=[],
    )


def take(output: str) -> Taken:
    """Return the journal of an output, up to where its last whole line ends now."""
    address = journal_address(output)
    return Taken(address, open_journal(address).entries())


# ---- documents that are gone


def anchored(given: Given, address: str, documents: Documents) -> Given:
    """Return pairs of a journal without documents that are gone, where another stands for them.

    A group is linked to one document of it. Where that is gone, the document that is most likely
    of its group takes its place, so that the others are not lost with it.
    """
    if address not in given.paths:
        return given
    asked = np.array([(noted or {}).get("why") != IMPORTED for noted in given.notes], np.bool_)
    of_journal = asked & (given.files == given.paths.index(address))
    there = documents.there[documents.places(given.pairs.ravel())].reshape(-1, 2)
    rows = np.flatnonzero(of_journal & ~there.all(axis=1)).tolist()
    instead = _substitutes(given, rows, there)
    pairs, notes = given.pairs.copy(), given.notes.copy()
    for row in rows:
        replaced = [_in_place_of(name, instead) for name in given.pairs[row].tolist()]
        ends = [name for name, _ in replaced]
        if ends[0] != ends[1]:
            pairs[row] = ends
            trust = [given.notes[row]["trust"], *(likely for _, likely in replaced)]
            notes[row] = {"trust": _all_or_two_wrong(trust)}
    return replace(given, pairs=pairs, notes=notes)


def _substitutes(
    given: Given, rows: Sequence[int], there: AnyArray
) -> dict[str, tuple[float, str]]:
    """Return for documents that are not there the surest document of their group that is."""
    best: dict[str, tuple[float, str]] = {}
    for row in rows:
        if given.must[row] and there[row].any():
            gone, left = given.pairs[row][np.argsort(there[row], kind="stable")].tolist()
            likely = -given.notes[row]["trust"], left
            best[gone] = min(best.get(gone, likely), likely)
    return {gone: (-likely, left) for gone, (likely, left) in best.items()}


def _in_place_of(name: str, instead: Mapping[str, tuple[float, str]]) -> tuple[str, float]:
    likely, other = instead.get(name, (1.0, name))
    return other, likely


def _all_or_two_wrong(trust: Sequence[float]) -> float:
    """Return how likely an even number of statements about the same two groups is wrong.

    Examples
    --------
    >>> _all_or_two_wrong([0.9, 1.0]), round(_all_or_two_wrong([0.9, 0.9]), 3)
    (0.9, 0.82)
    """
    right = 1.0
    for likely in trust:
        right = right * likely + (1.0 - right) * (1.0 - likely)
    return right


# ---- a run that was killed takes the journal as it did


def record(storage: Storage, folder: str, taken: Taken) -> None:
    """Record in the folder of a run how far it takes the journal, before it does anything."""
    storage.write(f"{folder}/{NAME}", seal({"end": taken.read.end}))


def recorded(storage: Storage, folder: str) -> int | None:
    """Return how far a run took the journal, None where it recorded nothing that can be read."""
    try:
        content: dict[str, Any] = read_sealed(storage, f"{folder}/{NAME}") or {}
    except DamagedFileError:
        return None
    end = content.get("end")
    return end if isinstance(end, int) else None
