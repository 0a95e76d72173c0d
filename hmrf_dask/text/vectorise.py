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
    ConfigurationError,
    HmrfWarning,
    InvalidInputError,
    MemoryPlanError,
)
from hmrf_dask.flow.dataflow import FAN, Dataflow, task_memory, tree
from hmrf_dask.kernels.sketches import Basis
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.blocks import join
from hmrf_dask.rows.encoding import BlockFile
from hmrf_dask.rows.files import BlockSource, write_block
from hmrf_dask.text.counts import Counted, TextSettings, count_texts, stray_stop_words, texts_of
from hmrf_dask.text.embedders import Embedder, find_embedder
from hmrf_dask.text.files import (
    ROWS,
    CountedBatch,
    CountedSource,
    Place,
    read_counted,
    read_left_out,
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
from hmrf_dask.text.tfidf import (
    Coverage,
    Dense,
    Frequencies,
    Vocabulary,
    make_vocabulary,
    to_rows,
)
from hmrf_dask.text.vectors import StoredVectors, vectors_of

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
    n_partial: int = 0  # rows that lack words or a vector, but not both


@dataclass(frozen=True)
class _RowsRecord:
    """What rows.json holds."""

    files: tuple[BlockFile, ...]
    coverage: Coverage
    n_partial: int = 0


# The vectors of the batches of a source, where they lie.
BatchVectors = StoredVectors | BlockSource | None  # None: the batch has no document


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
        counted = count_texts(texts_of(batch, settings.column), settings)
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
    dense: Dense | None = None,
    before_written: Callable[[str], None] = lambda _identity: None,
) -> Vocabulary:
    """Make the vocabulary of counted sources, with its components if asked for, and save it.

    Before anything is written below an identity, `before_written` is called with it.
    """
    vocabulary = make_vocabulary_of(
        flow, counted, settings, place, dense=dense, before_written=before_written
    )
    before_written(vocabulary.identity)
    save_vocabulary(vocabulary, place)
    return vocabulary


def make_vocabulary_of(
    flow: Dataflow,
    counted: Sequence[CountedSource],
    settings: TextSettings,
    place: Place,
    *,
    dense: Dense | None = None,
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
    needed = dense is None or not dense.alone
    made = flow.lazy(make_vocabulary, whole, settings, needed)
    vocabulary: Vocabulary = flow.compute([made])[0]
    if settings.lsa is not None and needed:
        before_written(vocabulary.identity)
        corpus = corpus_of(rows_of(flow, counted, vocabulary, place), place.options)
        factors = decompose(flow, corpus, settings.lsa, LSA_ITERATIONS, LSA_SEED)
        vocabulary = replace(vocabulary, components=factors.components)
    return replace(vocabulary, dense=dense)


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
    # Words that share a bucket may share a text, and texts that are left out have words too.
    if settings.kind == "hashing" or batch.without is not None:
        return Frequencies.of(read_counted(place.storage, batch)[0], settings)
    terms, documents, occurrences = read_terms(place.storage, batch)
    return Frequencies(terms, documents, occurrences, batch.n_texts, np.zeros(0, np.int64))


# ---- rows


def rows_of(
    flow: Dataflow,
    counted: Sequence[CountedSource],
    vocabulary: Vocabulary,
    place: Place,
    vectors: Sequence[Sequence[BatchVectors]] = (),
) -> list[SourceRows]:
    """Write the rows of counted sources; what is written already is left.

    A batch is a task: the batches of one large source are weighed side by side. `vectors` are those
    of each batch of each source, where the vocabulary has any.
    """
    folders = [f"{ROWS}/{vocabulary.identity}/{source.key}" for source in counted]
    width = vocabulary.n_features
    read = flow.compute([flow.lazy(read_rows, folder, width, place) for folder in folders])
    tell_remade([damage for _, damage in read if damage])
    rows = {folder: written for folder, (written, _) in zip(folders, read, strict=True) if written}
    shared, made = flow.broadcast(vocabulary), {}
    every = vectors or [[None] * len(source.batches) for source in counted]
    for folder, source, own in zip(folders, counted, every, strict=True):
        if folder not in rows:
            blocks = [
                flow.lazy(_rows_of_batch, (folder, number), batch, shared, place, vectors_of_batch)
                for number, (batch, vectors_of_batch) in enumerate(
                    zip(source.batches, own, strict=True)
                )
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
    return SourceRows(url, record.files, n_features, record.coverage, record.n_partial), ""


def _rows_of_batch(
    target: tuple[str, int],
    batch: CountedBatch,
    vocabulary: Vocabulary,
    place: Place,
    vectors: StoredVectors | RowBlock | None,
) -> tuple[BlockFile, Coverage, int]:
    """Write the rows of a batch into a folder, under its number."""
    counted, ids = read_counted(place.storage, batch)
    if vectors is None and vocabulary.dense is not None:  # a batch without a document
        vectors = RowBlock.from_array(np.zeros((0, vocabulary.dense.width)), [])
    left_out = read_left_out(place.storage, batch)
    if isinstance(vectors, StoredVectors):
        stored = np.delete(vectors.read(place.storage), left_out, axis=0)
        vectors = RowBlock.from_array(stored, ids)
    elif vectors is not None and len(left_out):
        vectors = vectors.take(np.delete(np.arange(vectors.n_rows), left_out))
    if vectors is not None and vectors.ids.tolist() != ids:
        raise InvalidInputError(
            "words and embeddings must be of the same documents, got other ids of one batch; run "
            "again when nobody writes the documents"
        )
    block, coverage, n_partial = _weighed(counted, vocabulary, ids, vectors)
    folder, number = target
    file = write_block(block, f"{place.storage.url}/{folder}", number, place.options)
    return file, coverage, n_partial


def _weighed(
    counted: Counted, vocabulary: Vocabulary, ids: Sequence[str], vectors: RowBlock | None
) -> tuple[RowBlock, Coverage, int]:
    """Return the rows of counted texts, and how many of these lack one of two kinds.

    They are of words, or components where the vocabulary has any, and of vectors, or of one kind.
    """
    block, coverage = to_rows(counted, vocabulary, ids)
    if vocabulary.dense is not None and vectors is not None:
        if vocabulary.dense.alone:
            return vectors, coverage, 0
        share = vocabulary.dense.share
        joined = join([_projected(block, vocabulary), vectors], [1.0 - share, share])
        return joined.block, coverage, int(joined.partial.sum())
    return _projected(block, vocabulary), coverage, 0


def _projected(block: RowBlock, vocabulary: Vocabulary) -> RowBlock:
    """Return TF-IDF rows in components, where the vocabulary has any."""
    if not len(vocabulary.components):
        return block
    basis = Basis(np.ascontiguousarray(vocabulary.components.T))
    return project_block(block, basis, normalised=True)


def rows_of_texts(
    texts: Sequence[str], vocabulary: Vocabulary, place: Place | None = None
) -> RowBlock:
    """Return the rows of a few texts in memory, the same bits as in files.

    A text stands for each of the columns that rows are made of. Where the vocabulary has vectors,
    those that are stored in the output `place` are not made
    again; others are made by the model that the vocabulary names.

    Examples
    --------
    >>> settings = TextSettings()
    >>> counted = count_texts(["garden tree"], settings)
    >>> vocabulary = make_vocabulary(Frequencies.of(counted, settings), settings)
    >>> rows_of_texts(["tree", "sea"], vocabulary).to_dense().tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    ids, vectors = [str(number) for number in range(len(texts))], None
    if vocabulary.dense is not None:
        embedder = _embedder_of(vocabulary.dense)
        column = vocabulary.dense.column
        vectors = RowBlock.from_array(vectors_of(texts, embedder, place, column), ids)
    return _weighed(count_texts(texts, vocabulary.settings), vocabulary, ids, vectors)[0]


def _embedder_of(dense: Dense) -> Embedder:
    """Return the embedder of the fit; another one, or none, is an error."""
    if not dense.identity:
        raise ConfigurationError(
            "texts must be embedded by whoever made the column of embeddings, got texts alone; "
            "give rows to the model instead"
        )
    embedder = find_embedder(dense.model)
    if (embedder.identity, embedder.width) != (dense.identity, dense.width):
        raise ConfigurationError(
            f"texts must be embedded by {dense.identity}, {dense.width} numbers, as those of the "
            f"fit were, got {embedder.identity}, {embedder.width} numbers, as {dense.model}; "
            "install that version again"
        )
    return embedder


def _end_rows(
    folder: str, made: Sequence[tuple[BlockFile, Coverage, int]], n_features: int, place: Place
) -> SourceRows:
    """Say that the rows of a source are written: what makes its files count."""
    blocks = tuple(block for block, _, _ in made)
    coverage = Coverage.total([of_batch for _, of_batch, _ in made])
    n_partial = sum(of_batch for _, _, of_batch in made)
    record = asdict(_RowsRecord(blocks, coverage, n_partial))
    write_record(place.storage, f"{folder}/{WRITTEN}", record)
    url = f"{place.storage.url}/{folder}"
    return SourceRows(url, blocks, n_features, coverage, n_partial)


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
