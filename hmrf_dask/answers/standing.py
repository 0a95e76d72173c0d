"""Which entries of a journal stand: those not taken back, in an order that lines do not decide."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from operator import attrgetter

from hmrf_dask.answers.records import UNDO, Entry

_content = attrgetter(*Entry.__dataclass_fields__)


def standing(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that stand, each once, by time and id, without those that take back.

    An entry stands unless an undo that stands itself is about it, so an undo can be taken back,
    too. Undos that take each other back in a circle do not stand, and change nothing.

    Examples
    --------
    >>> answer = Entry("1", "pair", ("x", "r"), answer="same")
    >>> undo, redo = Entry("2", "undo", about="1"), Entry("3", "undo", about="2")
    >>> len(standing([undo, answer])), len(standing([redo, undo, answer]))
    (0, 1)
    """
    written = set(entries)
    taken_back = _taken_back([entry for entry in written if entry.kind == UNDO])
    left = [entry for entry in written if entry.kind != UNDO and entry.id not in taken_back]
    return sorted(left, key=_order)


def _taken_back(undos: list[Entry]) -> set[str]:
    """Return the ids that an undo takes back that stands."""
    about: dict[str, list[str]] = {}  # what the undos of an id take back
    doubts: dict[str, int] = {}  # undos about an undo, of which nobody knows yet if they stand
    for undo in undos:
        about.setdefault(undo.id, []).append(undo.about)
        doubts[undo.about] = doubts.get(undo.about, 0) + 1
    known = [(undo_id, True) for undo_id in about if undo_id not in doubts]
    taken_back: set[str] = set()
    for undo_id, stands in known:  # it grows
        for target in about[undo_id]:
            doubts[target] -= 1
            if target in taken_back:
                continue
            if stands:
                taken_back.add(target)
            if target in about and (stands or not doubts[target]):
                known.append((target, not stands))
    return taken_back


def _order(entry: Entry) -> tuple[float, str, tuple[object, ...]]:
    return _instant(entry.time), entry.id, _content(entry)


def _instant(time: str) -> float:
    """Return a time as seconds; one without a zone is of UTC, none comes before all."""
    if not time:
        return float("-inf")
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
