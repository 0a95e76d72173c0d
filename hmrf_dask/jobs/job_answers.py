"""The answers of a job: pair files put together, and what names documents that are not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.constraints.arrays import listed
from hmrf_dask.constraints.files import parse_pairs
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.em.prepare import find_ids
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.inputs import AnswerFile
from hmrf_dask.types import AnyArray, BoolArray


@dataclass(frozen=True)
class Answers:
    """Pairs of documents that are there, and those that are not used."""

    used: Constraints | None
    unknown: Constraints | None

    @property
    def n_unknown(self) -> int:
        """How many pairs name a document that is not there."""
        return 0 if self.unknown is None else len(self.unknown)


def read_answers(files: Sequence[AnswerFile]) -> Constraints | None:
    """Return the pairs of all files as one; ids are text, as those of documents are."""
    some = [parse_pairs(one.data, one.path).as_text() for one in files]
    some = [one for one in some if len(one)]
    if not some:
        return None
    if len(some) == 1:
        return some[0]
    return Constraints(
        _joined([one.must_link for one in some]),
        _joined([one.cannot_link for one in some]),
        must_link_costs=np.concatenate([one.must_link_costs for one in some]),
        cannot_link_costs=np.concatenate([one.cannot_link_costs for one in some]),
        ids=True,
    )


def _joined(pairs: list[AnyArray]) -> AnyArray | None:
    named = [some for some in pairs if len(some)]
    return np.concatenate(named) if named else None


def known_answers(
    given: Constraints | None, corpus: Corpus, *, quarantine: bool, files: Sequence[AnswerFile]
) -> Answers:
    """Split pairs by whether the corpus has their documents.

    Raises
    ------
    InvalidInputError
        Some name unknown documents, and they are not to be put aside.
    """
    if given is None:
        return Answers(None, None)
    there = _there(given, corpus)
    if there.all():
        return Answers(given, None)
    if not quarantine:
        missing = listed(np.flatnonzero(~there), lambda node: given.documents[node].item())
        raise InvalidInputError(
            f"answers must name documents that are there, got unknown {missing} in "
            f"{', '.join(one.path for one in files)}; mend the ids, or put such pairs aside with "
            "on_bad_record: quarantine"
        )
    return Answers(_some(given, there, known=True), _some(given, there, known=False))


def _there(given: Constraints, corpus: Corpus) -> BoolArray:
    """Return which of the documents named the corpus has."""
    flow = DaskFlow()
    documents = flow.share(given.documents)
    found = flow.compute([flow.lazy(find_ids, block, documents) for block in corpus.named])
    there = np.zeros(len(given.documents), np.bool_)
    for places, _ in found:
        there[places] = True
    return there


def _some(given: Constraints, there: BoolArray, *, known: bool) -> Constraints | None:
    must = there[given.must_nodes].all(axis=1) == known
    cannot = there[given.cannot_nodes].all(axis=1) == known
    if not (must.any() or cannot.any()):
        return None
    return Constraints(
        given.must_link[must] if must.any() else None,
        given.cannot_link[cannot] if cannot.any() else None,
        must_link_costs=given.must_link_costs[must],
        cannot_link_costs=given.cannot_link_costs[cannot],
        ids=True,
    )
