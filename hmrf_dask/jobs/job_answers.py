"""The answers of a job: lines of pair files put together, and those that are put aside."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hmrf_dask.constraints.contradictions import witnesses
from hmrf_dask.constraints.files import parse_lines, parse_pairs
from hmrf_dask.constraints.graphs import connected_numbers
from hmrf_dask.constraints.labels import (
    Labelled,
    Said,
    class_links,
    refuse_many,
    said,
    two_classes,
)
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.documents.batches import Reject
from hmrf_dask.em.prepare import find_ids
from hmrf_dask.errors import ConflictError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs.inputs import AnswerFile
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray

SHOWN = 5
RAW = 200  # characters of a bad line that are kept
UNKNOWN = "answers must name documents, got unknown"


@dataclass(frozen=True)
class Given:
    """Pairs as they stand in files.

    Attributes
    ----------
    paths : tuple of str
    pairs : object array, shape (m, 2)
        Ids as text.
    must : bool array, shape (m,)
    weights : float64 array, shape (m,)
    files, lines : int arrays, shape (m,)
        Where each stands: which of the paths, and the line.
    labels : list of (int, Labelled)
        Documents of known classes, each once, and which of the paths names them: they are pairs
        as soon as it is known which of them are there.
    rejects : list of Reject
        Lines that are no pairs, or judge a pair again in another way.
    """

    paths: tuple[str, ...]
    pairs: AnyArray
    must: BoolArray
    weights: FloatArray
    files: IntArray
    lines: IntArray
    labels: list[tuple[int, Labelled]]
    rejects: list[Reject]

    def place(self, row: int) -> tuple[str, int]:
        """Return file and line."""
        return self.paths[self.files[row]], int(self.lines[row])

    def judged(self) -> list[Said]:
        """Return what each line says."""
        rows = zip(self.must.tolist(), self.pairs.tolist(), strict=True)
        return [said(*ends, must=kind) for kind, ends in rows]

    def chosen(self, rows: BoolArray) -> Given:
        """Return some of the pairs, and all else."""
        return replace(
            self,
            pairs=self.pairs[rows],
            must=self.must[rows],
            weights=self.weights[rows],
            files=self.files[rows],
            lines=self.lines[rows],
        )

    def with_classes(self) -> Given:
        """Return the pairs that stand there and those that tell the classes."""
        rows = [one for _, one in self.labels]
        links = list(class_links(rows, set(self.judged())))
        if not links:
            return replace(self, labels=[])
        told = [row for *_, row in links]
        pairs = np.array([(other, rows[row].document) for _, other, row in links], dtype=object)
        return replace(
            self,
            pairs=np.concatenate([self.pairs, pairs]),
            must=np.concatenate([self.must, [must for must, *_ in links]]),
            weights=np.concatenate([self.weights, np.full(len(links), np.nan)]),
            files=np.concatenate([self.files, [self.labels[row][0] for row in told]]),
            lines=np.concatenate([self.lines, [rows[row].line for row in told]]),
            labels=[],
        )

    def constraints(self) -> Constraints | None:
        """Return the pairs, None if there are none."""
        must, cannot = self.must, ~self.must
        if not len(must):
            return None
        return Constraints(
            self.pairs[must] if must.any() else None,
            self.pairs[cannot] if cannot.any() else None,
            must_link_costs=self.weights[must],
            cannot_link_costs=self.weights[cannot],
            ids=True,
        )


NOTHING_GIVEN = Given(
    (),
    np.empty((0, 2), object),
    np.empty(0, np.bool_),
    np.empty(0),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    [],
    [],
)


@dataclass(frozen=True)
class Answers:
    """Pairs of documents that are there, and what is not used.

    Attributes
    ----------
    used : Constraints or None
    rejects : list of Reject
        Lines that are put aside.
    n_unknown : int
        How many of these name a document that is not there.
    n_unused : int
        New pairs, and documents of known classes, that wait for the next fit.
    """

    used: Constraints | None
    rejects: list[Reject] = field(default_factory=list)
    n_unknown: int = 0
    n_unused: int = 0


def read_answers(files: Sequence[AnswerFile], *, quarantine: bool) -> Given:
    """Return the lines of all files; ids are text, as those of documents are.

    Raises
    ------
    InvalidInputError
        A file cannot be read at all, or a line of it, and these are not put aside.
    """
    if not files:
        return NOTHING_GIVEN
    read = [parse_lines(one.data, one.path) for one in files]
    rejects = [
        Reject(one.path, bad.line, None, bad.reason, bad.raw)
        for one, lines in zip(files, read, strict=True)
        for bad in lines.bad
    ]
    given = Given(
        tuple(one.path for one in files),
        np.concatenate([one.pairs for one in read]),
        np.concatenate([one.must for one in read]),
        np.concatenate([one.weights for one in read]),
        np.repeat(np.arange(len(read)), [len(one.lines) for one in read]),
        np.concatenate([one.lines for one in read]),
        [(file, one) for file, lines in enumerate(read) for one in lines.labels],
        rejects,
    )
    given = _with_one_class(_with_one_weight(given))
    if given.rejects and not quarantine:
        raise _refused(given.rejects)
    return given


def _with_one_weight(given: Given) -> Given:
    """Put aside lines that give a pair another weight than the line that names it first."""
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
    """Put aside lines that give a document another class than the file that names it first."""
    first: dict[str, tuple[int, Labelled]] = {}
    for file, one in given.labels:
        there, before = first.setdefault(one.document, (file, one))
        if before.label != one.label:
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
    kind = "must" if given.must[row] else "cannot"
    return Reject(path, line, None, reason, ",".join([*given.pairs[row].tolist(), kind]))


def _labelled_reject(given: Given, file: int, one: Labelled, reason: str) -> Reject:
    return Reject(given.paths[file], one.line, None, reason, f"{one.document},{one.label}"[:RAW])


def _refused(rejects: Sequence[Reject]) -> InvalidInputError:
    shown = "; ".join(f"{one.source}, line {one.line}: {one.reason}" for one in rejects[:SHOWN])
    more = f"; … ({len(rejects)} in all)" if len(rejects) > SHOWN else ""
    return InvalidInputError(
        f"{shown}{more}; mend the answers, or keep such lines aside with on_bad_record: quarantine"
    )


def refuse_contradictions(given: Given, *, quarantine: bool) -> None:
    """Refuse must-links that lead from one end of a cannot-link to the other.

    Where pairs of unknown documents will be put aside that is only likely to stop the run, and a
    warning.
    """
    given = given.with_classes()
    pairs = given.constraints()
    if pairs is None:
        return
    n_documents, cannot = len(pairs.documents), pairs.cannot_nodes
    groups = connected_numbers(n_documents, pairs.must_nodes)
    inside = cannot[groups[cannot[:, 0]] == groups[cannot[:, 1]]]
    names = pairs.documents.tolist()
    try:
        witnesses(n_documents, pairs.must_nodes, inside, names.__getitem__, "raise")
    except ConflictError as error:
        said = f"{_lines_of(given, error.witness)}: {error}"
        if not quarantine:
            raise ConflictError(said, error.witness) from None
        warnings.warn(
            f"the run will stop before the fit unless one of these documents is unknown: {said}",
            HmrfWarning,
            stacklevel=2,
        )


def _lines_of(given: Given, path: tuple[object, ...]) -> str:
    """Return where the pairs of a contradiction stand."""
    ends = [(True, *some) for some in pairwise(map(str, path))] + [
        (False, str(path[0]), str(path[-1]))
    ]
    found: dict[Said, int] = {}
    for row, judged in enumerate(given.judged()):
        found.setdefault(judged, row)
    shown: dict[str, list[str]] = {}
    for must, one, other in ends[: SHOWN - 1] + ends[SHOWN - 1 :][-1:]:
        where, line = given.place(found[must, min(one, other), max(one, other)])
        shown.setdefault(where, []).append(str(line))
    return "; ".join(f"{where}, lines {', '.join(some)}" for where, some in shown.items())


def known_answers(given: Given, corpus: Corpus, *, quarantine: bool) -> Answers:
    """Split pairs by whether the corpus has their documents.

    Raises
    ------
    InvalidInputError
        Some name unknown documents, and they are not to be put aside.
    """
    labelled = [one.document for _, one in given.labels]
    named = np.concatenate([given.pairs.ravel(), np.array(labelled, dtype=object)])
    if not len(named):
        return Answers(None, given.rejects)
    documents, nodes = np.unique(named, return_inverse=True)
    there = _there(documents.astype(np.str_), corpus)[nodes]
    ends, classed = there[: given.pairs.size].reshape(-1, 2), there[given.pairs.size :].tolist()
    known = np.asarray(ends.all(axis=1))
    unknown = []
    for row in np.flatnonzero(~known).tolist():
        named_here = " and ".join(map(repr, given.pairs[row][~ends[row]].tolist()))
        unknown.append(_reject(given, row, f"{UNKNOWN} {named_here}"))
    for (file, one), is_there in zip(given.labels, classed, strict=True):
        if not is_there:
            reason = f"{UNKNOWN} {one.document!r}"
            unknown.append(_labelled_reject(given, file, one, reason))
    if unknown and not quarantine:
        raise _refused(unknown)
    labels = [one for one, is_there in zip(given.labels, classed, strict=True) if is_there]
    used = replace(given.chosen(known), labels=labels).with_classes().constraints()
    return Answers(used, [*given.rejects, *unknown], len(unknown))


def _there(wanted: AnyArray, corpus: Corpus) -> BoolArray:
    """Return which of the documents named the corpus has."""
    flow = DaskFlow()
    documents = flow.share(wanted)
    found = flow.compute([flow.lazy(find_ids, block, documents) for block in corpus.named])
    there = np.zeros(len(wanted), np.bool_)
    for places, _ in found:
        there[places] = True
    return there


def unused(given: Given, fitted: bytes | None) -> Answers:
    """Return answers of which none is used: those that the last fit had not are counted.

    Parameters
    ----------
    given : Given
    fitted : bytes, optional
        The pairs of the last fit, as `encode_pairs` gives them.
    """
    before: set[Said] = set()
    documents: set[str] = set()
    if fitted is not None:
        known = parse_pairs(fitted, "answers.parquet").as_text()
        documents.update(known.documents.tolist())
        for must, pairs in ((True, known.must_link), (False, known.cannot_link)):
            before |= {said(*pair, must=must) for pair in pairs.tolist()}
    labels = [one for one in given.labels if one[1].document in documents]
    now = set(replace(given, labels=labels).with_classes().judged())
    n_new = len(given.labels) - len(labels)
    return Answers(None, given.rejects, n_unused=len(now - before) + n_new)
