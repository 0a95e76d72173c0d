"""Answers of an output to and from files: what `hmrf-dask answers` does."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.exchange import decode_answers, encode_answers
from hmrf_dask.answers.journal import FILE, Journal, journal_address, open_journal
from hmrf_dask.answers.records import ANSWERS, Entry
from hmrf_dask.answers.standing import standing
from hmrf_dask.documents.records import BadRecord
from hmrf_dask.documents.streams import read_whole
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError, counted
from hmrf_dask.jobs.answers import shown_unknown
from hmrf_dask.jobs.former import look_up
from hmrf_dask.jobs.places import last_release
from hmrf_dask.jobs.questions import annotators_of
from hmrf_dask.parameters import ANSWER_BYTES
from hmrf_dask.releases import ownership
from hmrf_dask.storage.addresses import absolute_url, is_local, local_path
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.text.files import Place
from hmrf_dask.types import AnyArray, BoolArray

SHOWN = 5
OWN = (FILE, ownership.NAME)  # of an output, besides what lies in its folders


@dataclass(frozen=True)
class Exchange:
    """What went from a journal to a file, or back.

    Attributes
    ----------
    journal : str
    file : str
    answers : int
        Of the journal, afterwards; those that stand.
    added : int
        To the journal.
    there : int
        Entries that it had before.
    open : int
        Questions of the file without an answer.
    unknown : int
        Answers about documents that no release had, which are left out.
    unsettled : int
        Documents that the answers of the journal do not place yet: a run leaves them out.
    """

    journal: str
    file: str
    answers: int
    added: int = 0
    there: int = 0
    open: int = 0
    unknown: int = 0
    unsettled: int = 0


def journal_of(output: str, journal: str | None = None) -> Journal:
    """Return the journal of an output, or the one at an address, for who may not write there."""
    return open_journal(journal or journal_address(absolute_url(output, "an output")))


def export_answers(output: str, file: str, *, journal: str | None = None) -> Exchange:
    """Write the answers that stand to a file, whose name says the format."""
    source = journal_of(output, journal)
    entries = source.entries().entries
    data = encode_answers(entries, file)
    url = absolute_url(file, "a file")
    refuse_own(url, absolute_url(output, "an output"), source.address, "a file of answers")
    folder, _, name = url.rpartition("/")
    open_storage(folder or "/", {}, durable=True).write(name, data)
    return Exchange(source.address, file, _n_answers(entries))


def refuse_own(file: str, output: str, journal: str, what: str) -> None:
    """Refuse to write a file of an output, or a journal: what it says would be lost.

    `what` names the file, a path or URL, in an error.
    """
    place, home = _real(file), _real(output)
    name = place.removeprefix(f"{home}/")
    if place == _real(journal) or name in OWN or (name != place and "/" in name):
        raise ConfigurationError(
            f"{what} must be neither a journal nor what a run writes, got {file}; name another file"
        )
    if is_local(file) and not os.path.isdir(os.path.dirname(local_path(file))):
        raise ConfigurationError(
            f"{what} must be in a folder that is there, got {file}; make the folder"
        )


def _real(url: str) -> str:
    return os.path.realpath(local_path(url)) if is_local(url) else url


def import_answers(output: str, file: str, *, journal: str | None = None) -> Exchange:
    """Add the answers in a file to a journal; what it has already is not added twice.

    They keep annotator and time. Where one row is wrong nothing is added; answers about documents
    that no release had are left out, with a warning, as a run would stop at them.
    """
    target = journal_of(output, journal)
    read = decode_answers(read_whole(file, {}, ANSWER_BYTES), file)
    if read.bad:
        raise _refused(file, read.bad)
    before = target.entries().entries
    new = read.new({entry.id for entry in before})
    known = _known(output, file, new)
    target.append(*known)
    after = target.entries().entries
    return Exchange(
        journal=target.address,
        file=file,
        answers=_n_answers(after),
        added=len(known),
        there=len(read.entries) - len(new),
        unknown=len(new) - len(known),
        open=read.n_open,
        unsettled=len(believe(after, trust=annotators_of(output)).open),
    )


def _n_answers(entries: Sequence[Entry]) -> int:
    return sum(entry.kind in ANSWERS for entry in standing(entries))


def _refused(file: str, bad: Sequence[BadRecord]) -> InvalidInputError:
    unit = "task" if file.lower().endswith(".json") else "line"
    shown = "; ".join(f"{unit} {one.line}: {one.reason}" for one in bad[:SHOWN])
    more = f"; … ({len(bad)} in all)" if len(bad) > SHOWN else ""
    return InvalidInputError(f"{file}, {shown}{more}; correct them: no answer was imported")


def _known(output: str, file: str, entries: Sequence[Entry]) -> list[Entry]:
    """Return entries about documents of a release; more than half about others are refused."""
    named = sorted({one for entry in entries for one in (*entry.documents, *entry.shown)})
    if not named or last_release(output) is None:
        return list(entries)
    documents = look_up(Place(absolute_url(output)), None, named, _nowhere)
    there = documents.gone[documents.places(np.array(named, object))]
    unknown = {name for name, known in zip(named, there.tolist(), strict=True) if not known}
    known = [one for one in entries if not unknown.intersection((*one.documents, *one.shown))]
    if not unknown:
        return known
    n_left, several = len(entries) - len(known), shown_unknown(sorted(unknown))
    if 2 * n_left > len(entries):
        raise InvalidInputError(
            f"{file}: answers must name documents of a release of {output}, got unknown {several} "
            f"in {n_left:,} of {len(entries):,}; no answer was imported"
        )
    warnings.warn(
        f"{file}: {counted(n_left, 'answer')} left out, about unknown documents: {several}; import "
        "the file again once a release has them",
        HmrfWarning,
        stacklevel=3,
    )
    return known


def _nowhere(ids: AnyArray) -> BoolArray:
    return np.zeros(len(ids), np.bool_)
