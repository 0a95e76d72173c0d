"""The answers of a job: lines of pair files put together, rejected or waiting."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hmrf_dask.constraints.answer_files import PairLines, parse_lines, parse_pairs
from hmrf_dask.constraints.answer_rows import (
    CANNOT,
    MUST,
    Labelled,
    Said,
    class_links,
    refuse_many,
    said,
    take_vote,
    two_classes,
)
from hmrf_dask.constraints.closure import (
    SOFT,
    OnConflict,
    chain_of,
    contradicted,
    witnesses,
)
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.constraints.trust import trust_of_classes, trust_of_votes
from hmrf_dask.documents.batches import Reject
from hmrf_dask.documents.delimited import encode_lines
from hmrf_dask.errors import ConflictError, HmrfWarning, InvalidInputError, counted, meant
from hmrf_dask.fit.answers import SuspectAnswer
from hmrf_dask.jobs.inputs import AnswerFile
from hmrf_dask.jobs.job_file import Method
from hmrf_dask.jobs.journal import Taken
from hmrf_dask.jobs.places import ANSWERS
from hmrf_dask.parameters import PARAMETERS
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from hmrf_dask.jobs.former import Documents

SHOWN = 5
_NUMBER = re.compile(r"[0-9]+([.,][0-9]+)?([eE][+-]?[0-9]+)?")
RAW = 200  # characters of a bad line that are kept
_COLUMNS = ("pairs", "must", "weights", "lines", "notes")  # of `PairLines`, by pair


@dataclass(frozen=True)
class Given:
    """Pairs as they stand in files: of `PairLines` of several files one.

    `files`, like `lines`, says where each pair stands, as a number of `paths`. Documents of known
    classes, `labels`, each once, with the number of their file, are pairs as soon as it is known
    which of them are there.
    """

    paths: tuple[str, ...]
    pairs: AnyArray
    must: BoolArray
    weights: FloatArray
    files: IntArray
    lines: IntArray
    notes: AnyArray
    labels: list[tuple[int, Labelled]]
    rejects: list[Reject]  # lines that are no pairs, or judge a pair again in another way
    n_answers: int  # lines that say something, rejected ones among them
    annotators: Mapping[str, float] = field(default_factory=dict)  # trust in each, by name

    def place(self, row: int) -> tuple[str, int]:
        """Return file and line."""
        return self.paths[self.files[row]], int(self.lines[row])

    def named(self) -> list[str]:
        """Return the documents that are named, some of them more than once."""
        return [*self.pairs.ravel().tolist(), *(one.document for _, one in self.labels)]

    def judged(self) -> list[Said]:
        """Return what each line says."""
        rows = zip(self.must.tolist(), self.pairs.tolist(), strict=True)
        return [said(*ends, must=kind) for kind, ends in rows]

    def places(self) -> dict[Said, tuple[str, int]]:
        """Return file and line of what lines say, the first that says it."""
        found: dict[Said, tuple[str, int]] = {}
        for row, judged in enumerate(self.judged()):
            if judged not in found:
                found[judged] = self.place(row)
        return found

    def chosen(self, rows: BoolArray) -> Given:
        """Return some of the pairs, and all else."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("files", *_COLUMNS)})

    def with_classes(self) -> Given:
        """Return the pairs that stand there and those that tell the classes."""
        rows = [one for _, one in self.labels]
        links = list(class_links(rows, set(self.judged())))
        if not links:
            return replace(self, labels=[])
        rows_of_pairs = [row for *_, row in links]
        ends = [(rows[one], rows[two]) for _, one, two in links]
        pairs = np.array([(one.document, two.document) for one, two in ends], dtype=object)
        notes = np.empty(len(links), object)
        notes[:] = [{"trust": trust_of_classes(*both, self.annotators)} for both in ends]
        return replace(
            self,
            pairs=np.concatenate([self.pairs, pairs]),
            must=np.concatenate([self.must, [must for must, *_ in links]]),
            weights=np.concatenate([self.weights, np.full(len(links), np.nan)]),
            files=np.concatenate([self.files, [self.labels[row][0] for row in rows_of_pairs]]),
            lines=np.concatenate([self.lines, [rows[row].line for row in rows_of_pairs]]),
            notes=np.concatenate([self.notes, notes]),
            labels=[],
        )

    def constraints(self) -> Constraints | None:
        """Return the pairs, None if there are none."""
        must, cannot = self.must, ~self.must
        if not len(must):
            return None
        trust = trust_of_votes(self.judged(), self.notes.tolist(), self.annotators)
        return Constraints(
            self.pairs[must] if must.any() else None,
            self.pairs[cannot] if cannot.any() else None,
            must_link_costs=self.weights[must],
            cannot_link_costs=self.weights[cannot],
            must_link_trust=trust[must],
            cannot_link_trust=trust[cannot],
            ids=True,
        )


NOTHING_GIVEN = Given(
    paths=(),
    pairs=np.empty((0, 2), object),
    must=np.empty(0, np.bool_),
    weights=np.empty(0),
    files=np.empty(0, np.int64),
    lines=np.empty(0, np.int64),
    notes=np.empty(0, object),
    labels=[],
    rejects=[],
    n_answers=0,
)


def read_answers(
    files: Sequence[AnswerFile], annotators: Mapping[str, float], journal: Taken
) -> Given:
    """Return the lines of all files, and what the journal's answers say together, as pairs.

    Ids are text, as those of documents are.
    """
    read = [(one.path, parse_lines(one.data, one.path)) for one in files]
    if journal.identity:
        own = _weighed([lines for _, lines in read], journal.pairs(annotators))
        read.append((journal.address, own))
    return replace(put_together(read), annotators=annotators)


def _weighed(files: Sequence[PairLines], own: PairLines) -> PairLines:
    """Return pairs without weights, those that files have too with the weights there."""
    weights: dict[Said, float] = {}
    for lines in files:
        rows = zip(lines.must.tolist(), lines.pairs.tolist(), lines.weights.tolist(), strict=True)
        for must, pair, weight in rows:
            weights.setdefault(said(*pair, must=must), weight)
    judged = zip(own.must.tolist(), own.pairs.tolist(), strict=True)
    found = [weights.get(said(*pair, must=must), np.nan) for must, pair in judged]
    return replace(own, weights=np.array(found, np.float64))


def unnamed_annotators(
    given: Given, annotators: Mapping[str, float], others: Collection[str] = ()
) -> str:
    r"""Return which annotators that have a trust no answer names, "" if there are none.

    `others` are named elsewhere.

    Examples
    --------
    >>> lines = parse_lines(b"a,b,kind,annotator\n1,2,same,bo\n", "a.csv")
    >>> given = put_together([("a.csv", lines)])
    >>> unnamed_annotators(given, {"bo": 0.9})
    ''
    >>> unnamed_annotators(given, {"bob": 0.9}).partition(", got ")[2]
    "'bob', which no answer has (did you mean 'bo'?)"
    """
    noted = [*given.notes.tolist(), *(one.notes for _, one in given.labels)]
    named = {str(notes["annotator"]) for notes in noted if notes and "annotator" in notes}
    nobody = sorted(set(annotators) - named.union(others))
    if not nobody or not noted:
        return ""
    shown = ", ".join(map(repr, nobody[:SHOWN])) + (", …" if len(nobody) > SHOWN else "")
    return (
        f"annotators must be names in the column annotator, got {shown}, which no answer has"
        f"{meant(nobody[0], sorted(named))}"
    )


def put_together(files: Sequence[tuple[str, PairLines]]) -> Given:
    r"""Return the lines of files that were read; a pair has one weight, a document one class.

    Examples
    --------
    >>> given = put_together([("a.csv", parse_lines(b"a,b,kind\n1,2,same\n", "a.csv"))])
    >>> given.place(0), given.named(), given.n_answers
    (('a.csv', 2), ['1', '2'], 1)
    """
    if not files:
        return NOTHING_GIVEN
    read = [lines for _, lines in files]
    rejects = [
        Reject(path, bad.line, None, bad.reason, bad.raw)
        for path, lines in files
        for bad in lines.bad
    ]
    labels = [(file, one) for file, lines in enumerate(read) for one in lines.labels]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in read]) for name in _COLUMNS
    }
    given = Given(
        paths=tuple(path for path, _ in files),
        files=np.repeat(np.arange(len(read)), [len(one.lines) for one in read]),
        **columns,
        labels=labels,
        rejects=rejects,
        n_answers=sum(len(one.lines) for one in read) + len(labels) + len(rejects),
    )
    return _with_one_class(_with_one_weight(given))


def _with_one_weight(given: Given) -> Given:
    """Reject lines that give a pair another weight than the line that names it first."""
    first: dict[Said, int] = {}
    good = np.ones(len(given.lines), np.bool_)
    for row, judged in enumerate(given.judged()):
        before = first.setdefault(judged, row)
        one, other = given.weights[before], given.weights[row]
        if one != other and not (np.isnan(one) and np.isnan(other)):
            good[row] = False
            path, line = given.place(before)
            reason = (
                f"a pair must have one weight, got {_weight(other)} here and {_weight(one)} in "
                f"{path}, line {line}"
            )
            given.rejects.append(_reject(given, row, reason))
    return given.chosen(good)


def _with_one_class(given: Given) -> Given:
    """Reject lines that give a document another class than the file that names it first."""
    first: dict[str, tuple[int, Labelled]] = {}
    for file, one in given.labels:
        there, before = first.setdefault(one.document, (file, one))
        if before is not one and before.label == one.label:
            for name, trust in one.votes.items():
                take_vote(before.votes, {"annotator": name}, trust)
        elif before is not one:
            place = f"{given.paths[there]}, line {before.line}"
            reason = two_classes(one.label, before.label, place)
            given.rejects.append(_labelled_reject(given, file, one, reason))
    paths = list(dict.fromkeys(given.paths[file] for file, _ in given.labels))
    refuse_many(len({one.label for _, one in given.labels}), ", ".join(paths[:SHOWN]))
    return replace(given, labels=list(first.values()))


def _weight(weight: float) -> str:
    return "none" if np.isnan(weight) else f"{weight:g}"


def _reject(given: Given, row: int, reason: str) -> Reject:
    path, line = given.place(row)
    kind = MUST if given.must[row] else CANNOT
    return Reject(path, line, None, reason, ",".join([*given.pairs[row].tolist(), kind]))


def _labelled_reject(given: Given, file: int, one: Labelled, reason: str) -> Reject:
    return Reject(given.paths[file], one.line, None, reason, f"{one.document},{one.label}"[:RAW])


def refused(rejects: Sequence[Reject], *, too_much: bool) -> InvalidInputError:
    """Return the error that names the first lines that are no answers.

    Examples
    --------
    >>> bad = [Reject("pairs.csv", 3, None, "a is empty", "")]
    >>> str(refused(bad, too_much=True)).partition(";")[0]
    'pairs.csv, line 3: a is empty'
    """
    shown = "; ".join(f"{one.source}, line {one.line}: {one.reason}" for one in rejects[:SHOWN])
    more = f"; … ({len(rejects)} in all)" if len(rejects) > SHOWN else ""
    return InvalidInputError(f"{shown}{more}; {way_out(too_much=too_much)}")


def way_out(*, too_much: bool) -> str:
    """Return what to do about lines that are no answers, or more than a job would leave out.

    Examples
    --------
    >>> way_out(too_much=False)
    'correct the answers, or leave such lines out by on_bad_record: quarantine'
    """
    if too_much:
        return "correct the answers: quarantine does not leave so many out (max_rejected)"
    return "correct the answers, or leave such lines out by on_bad_record: quarantine"


def on_conflict_of(method: Method | None) -> OnConflict:
    """Return what a method does with answers that contradict each other; None: any by default.

    Examples
    --------
    >>> on_conflict_of(None), on_conflict_of(Method(name="COPKMeans", n_clusters=3))
    ('warn', 'raise')
    """
    if method is None or method.name == "KMeans":
        return "warn" if method is None else "keep"  # KMeans has no use for any
    known = method.name in PARAMETERS["on_conflict"].methods
    choice: OnConflict = method.value_of("on_conflict") if known else "raise"
    return choice


def judge_contradictions(given: Given, method: Method | None, *, certain: bool) -> str:
    """Return how must-links contradict cannot-links where the method warns of it, else "".

    ConflictError says it where the method refuses it; where pairs may be left out yet for want of
    their documents that is not certain, and a warning.
    """
    choice = on_conflict_of(method)
    pairs = given.with_classes().constraints() if choice in ("warn", "raise") else None
    if pairs is None:
        return ""
    n_documents = len(pairs.documents)
    inside = contradicted(n_documents, pairs.must_nodes, pairs.cannot_nodes)
    names = pairs.documents.tolist().__getitem__
    try:
        chains = witnesses(n_documents, pairs.must_nodes, inside, names, choice)
    except ConflictError as error:
        said = f"{_lines_of(given.with_classes(), error.witness)}: {error}"
        if certain:
            raise ConflictError(said, error.witness) from None
        warnings.warn(
            f"the fit will stop unless one of these documents is gone or unknown: {said}",
            HmrfWarning,
            stacklevel=2,
        )
        return ""
    if not chains:
        return ""
    lines = given.with_classes()
    shown = "; ".join(f"{_lines_of(lines, one)}: {chain_of(one)}" for one in chains[:SHOWN])
    more = f"; … ({len(inside):,} in all)" if len(inside) > SHOWN else ""
    return f"must-links contradict {counted(len(inside), 'cannot-link')}, {SOFT}: {shown}{more}"


def _lines_of(given: Given, path: tuple[object, ...]) -> str:
    """Return where the pairs of a contradiction stand."""
    ends = [said(*two, must=True) for two in pairwise(path)]
    ends.append(said(path[0], path[-1], must=False))
    found, shown = given.places(), dict[str, list[str]]()
    for judged in ends[: SHOWN - 1] + ends[SHOWN - 1 :][-1:]:
        where, line = found[judged]
        shown.setdefault(where, []).append(str(line))
    return "; ".join(f"{where}, lines {', '.join(some)}" for where, some in shown.items())


@dataclass(frozen=True)
class Answers:
    """Answers by what is known of their documents, and those `used`.

    Documents of `known` ones are there; `waiting` are lines that name one that is gone, `unknown`
    those that name one that no release had.
    """

    given: Given
    known: Given
    documents: Documents
    waiting: list[Reject]
    unknown: list[Reject]
    used: Constraints | None = None
    n_unused: int = 0  # new pairs, and documents of known classes, that wait for the next fit

    @property
    def rejects(self) -> list[Reject]:
        """All lines that are rejected."""
        return [*self.given.rejects, *self.unknown]

    def notes(self) -> bytes:
        """Return the other columns of answers, a JSON line for each."""
        return encode_lines(_noted(self.given))

    def suspects(self, found: Sequence[SuspectAnswer]) -> bytes:
        """Return answers that a fit finds improbable, a JSON line for each, with their lines."""
        places = self.known.with_classes().places() if found else {}
        lines = []
        for one in found:
            source, line = places[said(one.a, one.b, must=one.kind == MUST)]
            lines.append({**one._asdict(), "source": source, "line": line})
        return encode_lines(lines)


def split_answers(given: Given, documents: Documents) -> Answers:
    """Split answers by whether their documents are there, are gone, or never were."""
    ends = documents.places(given.pairs.ravel()).reshape(-1, 2)
    there, gone = documents.there[ends], documents.gone[ends]
    known = np.asarray(there.all(axis=1))
    waiting, unknown, labels = list[Reject](), list[Reject](), list[tuple[int, Labelled]]()
    for row in np.flatnonzero(~known).tolist():
        names, never = given.pairs[row], ~there[row] & ~gone[row]
        if never.any():
            unknown.append(_reject(given, row, _unknown(names[never].tolist())))
        else:
            waiting.append(_reject(given, row, _gone(names[~there[row]].tolist())))
    places = documents.places(np.array([one.document for _, one in given.labels], object))
    for place, (file, one) in zip(places.tolist(), given.labels, strict=True):
        name = [one.document]
        if documents.there[place]:
            labels.append((file, one))
        elif documents.gone[place]:
            waiting.append(_labelled_reject(given, file, one, _gone(name)))
        else:
            unknown.append(_labelled_reject(given, file, one, _unknown(name)))
    chosen = replace(given.chosen(known), labels=labels)
    return Answers(given, chosen, documents, waiting, unknown)


def _unknown(names: Sequence[str]) -> str:
    return f"answers must name documents, got unknown {shown_unknown(names)}"


def shown_unknown(names: Sequence[str]) -> str:
    """Return ids that no document has, with what a spreadsheet may have done to them.

    Examples
    --------
    >>> shown_unknown(["a", "b"])
    "'a', 'b'"
    """
    shown = ", ".join(map(repr, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")
    if any(_NUMBER.fullmatch(one) or one != one.strip() for one in names):
        shown += " (ids are compared character by character; spreadsheets drop leading zeros)"
    return shown


def _gone(names: Sequence[str]) -> str:
    return f"waits for {' and '.join(map(repr, names))}: gone since a former release"


def _noted(given: Given) -> Iterator[dict[str, Any]]:
    for row in np.flatnonzero(given.notes.astype(np.bool_)).tolist():
        path, line = given.place(row)
        first, second = given.pairs[row].tolist()
        kind = MUST if given.must[row] else CANNOT
        yield {"source": path, "line": line, "a": first, "b": second, "kind": kind,
               "notes": given.notes[row]}  # fmt: skip
    for file, one in given.labels:
        if one.notes:
            yield {"source": given.paths[file], "line": one.line, "id": one.document,
                   "label": one.label, "notes": one.notes}  # fmt: skip


def n_new(given: Given, fitted: bytes) -> int:
    """Return how many answers the last fit had not, by pair or by document of a known class.

    `fitted` are its pairs, as `encode_pairs` gives them, if it had any.
    """
    before: set[Said] = set()
    documents: set[str] = set()
    if fitted:
        known = parse_pairs(fitted, ANSWERS).as_text()
        documents.update(known.documents.tolist())
        for must, pairs in ((True, known.must_link), (False, known.cannot_link)):
            before |= {said(*pair, must=must) for pair in pairs.tolist()}
    labels = [one for one in given.labels if one[1].document in documents]
    now = set(replace(given, labels=labels).with_classes().judged())
    return len(now - before) + len(given.labels) - len(labels)
