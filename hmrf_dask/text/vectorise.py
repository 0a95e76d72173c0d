"""From sources of texts to rows in files: count, make the vocabulary, write TF-IDF blocks.

Every step leaves its result in files that are named after what they depend on, so what is there is
not made again: not by a run that was killed, and not by the next one. A task holds one batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Protocol

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus, corpus_of_files
from hmrf_dask.errors import (
    HmrfWarning,
    InvalidInputError,
    MemoryPlanError,
)
from hmrf_dask.flow.dataflow import FAN, Dataflow, task_memory, tree
from hmrf_dask.kernels.sketches import Basis
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import BlockFile
from hmrf_dask.rows.files import BlockSource, write_block
from hmrf_dask.text.counts import Counted, TextSettings, count_texts, stray_stop_words
from hmrf_dask.text.files import (
    ROWS,
    CountedBatch,
    CountedSource,
    Place,
    read_counted,
    read_record,
    read_source,
    read_terms,
    save_vocabulary,
    tell_remade,
    value_or_damage,
    write_counted,
    write_record,
    write_source,
)
from hmrf_dask.text.lsa import decompose, project_block
from hmrf_dask.text.tfidf import Coverage, Frequencies, Vocabulary, make_vocabulary, to_rows

LSA_ITERATIONS, LSA_SEED = 7, 0
WRITTEN = "rows.json"


class TextBatch(Protocol):
    """Some texts, and the ids of their documents."""

    @property
    def ids(self) -> Sequence[str]:
        """One for each text."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts, in the same order."""


class TextSource(Protocol):
    """Where texts come from: a file as a rule. It travels to the task that reads it."""

    @property
    def key(self) -> str:
        """What the texts depend on: path, size and etag. Equal keys are counted once."""

    def read(self) -> Iterator[TextBatch]:
        """Yield the texts, in batches that fit into memory and are the same every time."""

    def record(self) -> dict[str, Any]:
        """Return what reading them reported, for JSON; called after the last batch."""


@dataclass(frozen=True)
class SourceRows:
    """The rows of one source."""

    url: str  # of the folder with the files
    files: tuple[BlockFile, ...]
    n_features: int
    coverage: Coverage


@dataclass(frozen=True)
class _RowsRecord:
    """What rows.json holds."""

    files: tuple[BlockFile, ...]
    coverage: Coverage


# ---- counts


def count_sources(
    flow: Dataflow, sources: Sequence[TextSource], settings: TextSettings, place: Place
) -> list[CountedSource]:
    """Count the texts of sources; what is counted already is not read again."""
    stray = stray_stop_words(settings)
    if stray:
        warnings.warn(
            f"stop_words must be words as they are found in texts to be left out, got some that "
            f"are found as {', '.join(map(repr, stray[:10]))}; add these",
            HmrfWarning,
            stacklevel=2,
        )
    place.storage.make_root()
    return count_more(flow, sources, settings, place)


def count_more(
    flow: Dataflow, sources: Sequence[TextSource], settings: TextSettings, place: Place
) -> list[CountedSource]:
    """Count further sources, after some went through `count_sources`, which checks the settings."""
    tasks = [flow.lazy(_count_source, source, settings, place) for source in sources]
    counted: list[CountedSource] = flow.compute(tasks)
    tell_remade([source.damage for source in counted if source.damage])
    return counted


def counts_key(key: str, settings: TextSettings) -> str:
    """Return what the counts of a source of this key are found under.

    Examples
    --------
    >>> counts_key("a.jsonl", TextSettings()) == counts_key("b.jsonl", TextSettings())
    False
    """
    return sha256(f"{settings.counting_identity} {key}".encode()).hexdigest()[:24]


def _count_source(source: TextSource, settings: TextSettings, place: Place) -> CountedSource:
    """Return the counted texts of a source, counted now if they are not there yet."""
    storage, key = place.storage, counts_key(source.key, settings)
    known, damage = value_or_damage(lambda: read_source(storage, key))
    if known is not None:
        return known
    batches: list[CountedBatch] = []
    for batch in source.read():
        counted = count_texts(batch.texts, settings)
        batches.append(write_counted(storage, key, len(batches), counted, batch.ids))
    counts = CountedSource(key, tuple(batches), source.record(), damage)
    write_source(storage, counts)
    return counts


# ---- the vocabulary


def fit_vocabulary(
    flow: Dataflow,
    counted: Sequence[CountedSource],
    settings: TextSettings,
    place: Place,
    *,
    before_written: Callable[[str], None] = lambda _identity: None,
) -> Vocabulary:
    """Make the vocabulary of counted sources, with its components if asked for, and save it.

    Before anything is written below an identity, `before_written` is called with it.
    """
    vocabulary = make_vocabulary_of(flow, counted, settings, place, before_written=before_written)
    before_written(vocabulary.identity)
    save_vocabulary(vocabulary, place)
    return vocabulary


def make_vocabulary_of(
    flow: Dataflow,
    counted: Sequence[CountedSource],
    settings: TextSettings,
    place: Place,
    *,
    before_written: Callable[[str], None] = lambda _identity: None,
) -> Vocabulary:
    """Make the vocabulary of counted sources: the same counts give the same, to the bit."""
    if not counted:
        raise InvalidInputError("texts must come from at least one source, got none; add one")
    if settings.kind == "hashing":
        _refuse_many_buckets(settings.n_features)
    batches = [batch for source in counted for batch in source.batches]
    parts = [flow.lazy(_frequencies_of, batch, settings, place) for batch in batches]
    whole = tree(flow, Frequencies.merge, parts or [Frequencies.none(settings)])
    vocabulary: Vocabulary = flow.compute([flow.lazy(make_vocabulary, whole, settings)])[0]
    if settings.lsa is not None:
        before_written(vocabulary.identity)
        corpus = corpus_of(rows_of(flow, counted, vocabulary, place), place.options)
        factors = decompose(flow, corpus, settings.lsa, LSA_ITERATIONS, LSA_SEED)
        vocabulary = replace(vocabulary, components=factors.components)
    return vocabulary


def _refuse_many_buckets(n_features: int) -> None:
    """Refuse more buckets than a task can count: their numbers are added up as dense vectors."""
    needed, allowed = 8 * n_features * (FAN + 1), task_memory()
    if needed > allowed:
        raise MemoryPlanError(
            f"counts of {n_features} buckets must fit the memory of a task, {allowed} bytes "
            f"(hmrf.task-memory), but adding them up needs {needed}; use a smaller n_features or a "
            "larger hmrf.task-memory"
        )


def _frequencies_of(batch: CountedBatch, settings: TextSettings, place: Place) -> Frequencies:
    if settings.kind == "hashing":  # words that share a bucket may share a text
        return Frequencies.of(read_counted(place.storage, batch)[0], settings)
    terms, documents, occurrences = read_terms(place.storage, batch)
    return Frequencies(terms, documents, occurrences, batch.n_texts, np.zeros(0, np.int64))


# ---- rows


def rows_of(
    flow: Dataflow, counted: Sequence[CountedSource], vocabulary: Vocabulary, place: Place
) -> list[SourceRows]:
    """Write the rows of counted sources; what is written already is left.

    A batch is a task: the batches of one large source are weighed side by side.
    """
    folders = [f"{ROWS}/{vocabulary.identity}/{source.key}" for source in counted]
    width = vocabulary.n_features
    read = flow.compute([flow.lazy(read_rows, folder, width, place) for folder in folders])
    tell_remade([damage for _, damage in read if damage])
    rows = {folder: written for folder, (written, _) in zip(folders, read, strict=True) if written}
    shared, made = flow.broadcast(vocabulary), {}
    for folder, source in zip(folders, counted, strict=True):
        if folder not in rows:
            blocks = [
                flow.lazy(_rows_of_batch, folder, number, batch, shared, place)
                for number, batch in enumerate(source.batches)
            ]
            made[folder] = flow.lazy(_end_rows, folder, blocks, width, place)
    if made:
        rows |= zip(made, flow.compute(list(made.values())), strict=True)
    return [rows[folder] for folder in folders]


def read_rows(folder: str, n_features: int, place: Place) -> tuple[SourceRows | None, str]:
    """Return the rows of a source if they are written, and what is wrong with their record."""
    storage, name = place.storage, f"{folder}/{WRITTEN}"
    record, damage = value_or_damage(lambda: read_record(storage, name, _RowsRecord))
    if record is None:
        return None, damage
    url = f"{storage.url}/{folder}"
    return SourceRows(url, record.files, n_features, record.coverage), ""


def _rows_of_batch(
    folder: str, number: int, batch: CountedBatch, vocabulary: Vocabulary, place: Place
) -> tuple[BlockFile, Coverage]:
    """Write the rows of a batch."""
    counted, ids = read_counted(place.storage, batch)
    block, coverage = _weighed(counted, vocabulary, ids)
    return write_block(block, f"{place.storage.url}/{folder}", number, place.options), coverage


def _weighed(
    counted: Counted, vocabulary: Vocabulary, ids: Sequence[str]
) -> tuple[RowBlock, Coverage]:
    """Return the rows of counted texts: of components where the vocabulary has any."""
    block, coverage = to_rows(counted, vocabulary, ids)
    if len(vocabulary.components):
        basis = Basis(np.ascontiguousarray(vocabulary.components.T))
        block = project_block(block, basis, normalised=True)
    return block, coverage


def rows_of_texts(texts: Sequence[str], vocabulary: Vocabulary) -> RowBlock:
    """Return the rows of a few texts in memory, the same bits as in files.

    Examples
    --------
    >>> settings = TextSettings()
    >>> counted = count_texts(["garden tree"], settings)
    >>> vocabulary = make_vocabulary(Frequencies.of(counted, settings), settings)
    >>> rows_of_texts(["tree", "sea"], vocabulary).to_dense().tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    ids = [str(number) for number in range(len(texts))]
    return _weighed(count_texts(texts, vocabulary.settings), vocabulary, ids)[0]


def _end_rows(
    folder: str, made: Sequence[tuple[BlockFile, Coverage]], n_features: int, place: Place
) -> SourceRows:
    """Say that the rows of a source are written: what makes its files count."""
    blocks = tuple(block for block, _ in made)
    coverage = Coverage.total([of_batch for _, of_batch in made])
    record = asdict(_RowsRecord(blocks, coverage))
    write_record(place.storage, f"{folder}/{WRITTEN}", record)
    return SourceRows(f"{place.storage.url}/{folder}", blocks, n_features, coverage)


def corpus_of(rows: Sequence[SourceRows], options: Mapping[str, Any]) -> Corpus:
    """Return the rows of several sources as one corpus, in their order; empty files left out."""
    sources = [
        BlockSource(source.url, file, source.n_features, dict(options))
        for source in rows
        for file in source.files
        if file.n_rows
    ]
    if not sources:
        raise InvalidInputError("the sources must hold at least one document, got none; add some")
    return corpus_of_files(sources, rows[0].n_features)
