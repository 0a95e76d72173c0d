"""From the files of a job to rows: what is there is kept, what is new is counted and weighed."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.jobs.bundles import Bundle, check_told, lines_before_of, refuse_rejects
from hmrf_dask.jobs.document_source import DocumentSource
from hmrf_dask.jobs.job_file import Text
from hmrf_dask.jobs.ledger import Keys
from hmrf_dask.store.blocks import number_of
from hmrf_dask.text.files import COUNTED, COUNTS, CountedSource, Place
from hmrf_dask.text.rows import Coverage
from hmrf_dask.text.settings import TextSettings
from hmrf_dask.text.vectorise import (
    SourceRows,
    corpus_of,
    count_more,
    count_sources,
    counts_key,
    fit_vocabulary,
    rows_of,
)
from hmrf_dask.text.vocabulary import Vocabulary

SoFar = Callable[[int, int], None]
Home = list[tuple[str, int]]  # files, and how many documents of each
AT_ONCE = 512  # bundles in one graph, told of when it is done
log = logging.getLogger("hmrf_dask")


@dataclass(frozen=True)
class JobRows:
    """The rows of a job.

    Attributes
    ----------
    rows : tuple of SourceRows
        Of each bundle, in their order.
    told : tuple of dict
        What each bundle told when it was read; see `hmrf_dask.jobs.bundles.Told`.
    keys : tuple of str
        What each bundle's counts and rows are called.
    vocabulary : Vocabulary or None
        None where rows are ready embeddings.
    made_of : tuple of str
        Keys of the bundles that the vocabulary was made of.
    refit : bool
        Whether it was made now.
    coverage : Coverage
        How much of the new files the vocabulary of before knew, or this one where there was none.
    """

    rows: tuple[SourceRows, ...]
    told: tuple[dict[str, Any], ...]
    keys: tuple[str, ...]
    vocabulary: Vocabulary | None
    made_of: tuple[str, ...]
    refit: bool
    coverage: Coverage

    def corpus(self, options: dict[str, Any]) -> Corpus:
        """Return all rows, one partition for each batch of a bundle."""
        return corpus_of(self.rows, options)

    def names(self) -> list[str]:
        """Return a file name for each partition of the corpus: the same bundle, the same."""
        return [
            f"{key}-{number_of(file):05d}.parquet"
            for key, one in zip(self.keys, self.rows, strict=True)
            for file in one.files
            if file.n_rows
        ]

    def places(self) -> list[int]:
        """Return the number of the bundle that each partition of the corpus comes from."""
        return [place for place, one in enumerate(self.rows) for file in one.files if file.n_rows]

    def homes(self) -> list[Home]:
        """Return of each partition of the corpus the files in it, with their documents."""
        return [
            [(told["files"][file][0], n) for file, n in documents]
            for told in self.told
            for documents in told["documents"]
            if documents
        ]

    def file_keys(self) -> dict[str, list[Keys]]:
        """Return the keys of the parts of each file as the ledger has them, by path."""
        found: dict[str, list[Keys]] = defaultdict(list)
        for told, key in zip(self.told, self.keys, strict=True):
            for path, own, *_ in told["files"]:
                found[path].append(Keys(key, told["key"], own))
        return found


def count_documents(
    bundles: Sequence[Bundle], settings: TextSettings, place: Place, so_far: SoFar
) -> list[CountedSource]:
    """Return the counts of all bundles; files that are counted already are not read again."""
    flow = DaskFlow()
    counted = count_sources(flow, bundles[:AT_ONCE], settings, place)
    n_files = sum(len(one.files) for one in bundles)
    for first in range(AT_ONCE, len(bundles), AT_ONCE):
        so_far(sum(len(one.files) for one in bundles[:first]), n_files)
        counted += count_more(flow, bundles[first : first + AT_ONCE], settings, place)
    so_far(n_files, n_files)
    for one in counted:
        check_told(one.told, f"{place.storage.url}/{COUNTS}/{one.key}/{COUNTED}")
    if any(one.stop for one in bundles):  # it was counted by a run that put them aside
        refuse_rejects([one.told for one in counted])
    return counted


@dataclass(frozen=True)
class Before:
    """The vocabulary of the last release, and the keys of the bundles that it was made of."""

    vocabulary: Vocabulary
    made_of: tuple[str, ...]


def weigh_documents(
    bundles: Sequence[Bundle],
    counted: Sequence[CountedSource],
    new: Sequence[bool],
    text: Text,
    before: Before | None,
    place: Place,
    *,
    before_written: Callable[[str], None],
) -> JobRows:
    """Return the rows of counted bundles, in the vocabulary of before or a new one.

    Parameters
    ----------
    bundles : sequence of Bundle
    counted : sequence of CountedSource
        Their counts.
    new : sequence of bool
        Which of them the last release was not made of.
    text : Text
    before : Before, optional
        None where there was none, or its settings were others.
    place : Place
        The output.
    before_written : callable
        Called with the identity of a new vocabulary before it or rows in it are written.
    """
    flow, settings = DaskFlow(), settings_of(text)
    told, keys = tuple(one.told for one in counted), tuple(one.key for one in counted)
    if before is not None:
        rows = rows_of(flow, counted, before.vocabulary, place)
        known = set(before.made_of)
        # What takes the place of bundles that it was made of, it was made of too.
        known |= {
            counts_key(one.key, settings)
            for one in bundles
            if one.origins and known.issuperset(counts_key(key, settings) for key in one.origins)
        }
        coverage = _covered(rows, new)
        since = _covered(rows, [key not in known for key in keys])
        if not _is_outdated(text, before.vocabulary, since):
            made_of = tuple(key for key in keys if key in known)
            return JobRows(tuple(rows), told, keys, before.vocabulary, made_of, False, coverage)
    vocabulary = fit_vocabulary(flow, counted, settings, place, before_written=before_written)
    rows = rows_of(flow, counted, vocabulary, place)
    if before is None:
        coverage = _covered(rows, [True] * len(rows))
    return JobRows(tuple(rows), told, keys, vocabulary, keys, True, coverage)


def _covered(rows: Sequence[SourceRows], wanted: Sequence[bool]) -> Coverage:
    some = [one.coverage for one, is_wanted in zip(rows, wanted, strict=True) if is_wanted]
    return Coverage.total(some)


def settings_of(text: Text) -> TextSettings:
    """Return what a vocabulary is made with: when it is made anew is no part of it."""
    return TextSettings.model_validate(text.model_dump(exclude={"refit"}))


def _is_outdated(text: Text, before: Vocabulary, coverage: Coverage) -> bool:
    """Return whether a vocabulary is to be made anew, by the files that it was not made of."""
    drift = coverage.unknown_share - before.unknown_share
    if text.drift is not None and drift > text.drift:
        log.info(
            "%.1f%% of the words of new files are unknown, %.1f%% were where the vocabulary was "
            "made: it is made anew", 100 * coverage.unknown_share, 100 * before.unknown_share,
        )  # fmt: skip
        return True
    return text.refit == "always"


def find_lines(
    bundles: Sequence[Bundle], rows: JobRows, wanted: Mapping[int, set[str]]
) -> dict[int, dict[str, int]]:
    """Return the lines of documents, by partition and id, from the parts of files they are in."""
    flow, places, before = DaskFlow(), rows.places(), lines_before_of(rows.told)
    tasks = [
        flow.lazy(DocumentSource.lines_of, bundles[places[part]].files[0], ids)
        for part, ids in wanted.items()
    ]
    return {
        part: {one: line + before[places[part]] for one, line in lines.items()}
        for part, lines in zip(wanted, flow.compute(tasks), strict=True)
    }
