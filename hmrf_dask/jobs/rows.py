"""From the files of a job to rows: what is there is reused, what is new is counted or read.

Counts, rows and vocabularies are swept once neither this release nor the one before needs them.
"""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import compress, zip_longest
from typing import Any, NamedTuple

from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.errors import HmrfWarning, UnreadableFileError
from hmrf_dask.flow.dataflow import DaskFlow, task_memory
from hmrf_dask.jobs.job_file import Text
from hmrf_dask.jobs.packs import FOLDER as DOCUMENTS
from hmrf_dask.jobs.packs import Pack, PackRecord, lines_before_of, refuse_rejects, refuse_widths
from hmrf_dask.jobs.parent import COUNTED_WHOLE, DENSE, MADE_OF, VOCABULARY, Keys, files_of
from hmrf_dask.jobs.progress import SoFar
from hmrf_dask.releases import own_files
from hmrf_dask.releases.own_files import FOLDERS, RUNS, is_within, remove_own
from hmrf_dask.releases.release import DamagedReleaseError, Release, read_if_whole, release_log
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import BlockFile
from hmrf_dask.rows.files import BlockSource, number_of, write_block
from hmrf_dask.storage.stores import Storage, open_storage
from hmrf_dask.text.counts import TextSettings
from hmrf_dask.text.embedders import Embedder
from hmrf_dask.text.files import (
    COUNTED,
    COUNTS,
    ROWS,
    VOCABULARIES,
    CountedSource,
    Place,
    load_vocabulary,
    read_record,
    read_source,
    save_vocabulary,
    tell_remade,
    value_or_damage,
    write_record,
)
from hmrf_dask.text.tfidf import Coverage, Dense, Vocabulary
from hmrf_dask.text.vectorise import (
    WRITTEN,
    BatchVectors,
    SourceRows,
    count_more,
    count_sources,
    counts_key,
    fit_vocabulary,
    make_vocabulary_of,
    read_rows,
    rows_of,
)
from hmrf_dask.text.vectors import VECTORS, StoredVectors, VectorSource, embed_texts, key_of

Home = list[tuple[str, int]]  # files, and how many documents of each
AT_ONCE = 512  # packs in one graph, whose end is reported
NOTHING_COVERED = Coverage()
log = logging.getLogger("hmrf_dask")


@dataclass(frozen=True)
class Vectors:
    """The vectors of all packs: of each batch where they lie, and what is reported of them."""

    dense: Dense
    batches: Sequence[Sequence[BatchVectors]]
    n_new: Sequence[int] = ()  # of each pack, texts that were embedded for it
    n_zero: int = 0  # documents without a token that the model knows
    first_zero: str = ""  # the id of one of them


@dataclass(frozen=True)
class JobRows:
    """The rows and the record of each pack, and what its counts and rows are called.

    The vocabulary, None where rows are ready embeddings, was made of the packs `made_of`, `refit`
    says whether now. `coverage` is how much of the new files the former vocabulary knew, or the
    present one if there was no former.
    """

    rows: Sequence[SourceRows]
    records: Sequence[PackRecord]
    keys: Sequence[str]
    vocabulary: Vocabulary | None = None
    made_of: Sequence[str] = ()
    refit: bool = False
    coverage: Coverage = NOTHING_COVERED
    vectors: Vectors | None = None

    def names(self) -> list[str]:
        """Return a file name for each partition of the corpus: the same pack, the same."""
        return [
            f"{key}-{number_of(file):05d}.parquet"
            for key, one in zip(self.keys, self.rows, strict=True)
            for file in one.files
            if file.n_rows
        ]

    def places(self) -> list[int]:
        """Return the number of the pack that each partition of the corpus comes from."""
        return [place for place, one in enumerate(self.rows) for file in one.files if file.n_rows]

    def kept(self) -> list[str | None]:
        """Return of each partition of the corpus the file with the columns that are kept."""
        return [
            name
            for record in self.records
            for batch, name in zip_longest(record.documents, record.kept)
            if batch
        ]

    def homes(self) -> list[Home]:
        """Return of each partition of the corpus the files in it, with their documents."""
        return [
            [(record.files[one.file].path, one.n_documents) for one in batch]
            for record in self.records
            for batch in record.documents
            if batch
        ]

    def file_keys(self) -> dict[str, list[Keys]]:
        """Return the keys of the parts of each file as the ledger has them, by path."""
        found: dict[str, list[Keys]] = defaultdict(list)
        for record, key in zip(self.records, self.keys, strict=True):
            for file in record.files:
                found[file.path].append(Keys(key, record.key, file.key))
        return found


class CountedPack(NamedTuple):
    """A pack, its counts and its record."""

    pack: Pack
    counts: CountedSource
    record: PackRecord
    was: str = ""  # the key of the counts that it had in the last release, where deltas change it


def count_documents(
    packs: Sequence[Pack], settings: TextSettings, place: Place, so_far: SoFar
) -> list[CountedPack]:
    """Return the counts of all packs; files that are counted already are not read again."""
    flow = DaskFlow()
    counted = count_sources(flow, packs[:AT_ONCE], settings, place)
    n_files = _n_files(packs)
    for first in range(AT_ONCE, len(packs), AT_ONCE):
        so_far(_n_files(packs[:first]), n_files, sum(one.n_texts for one in counted))
        counted += count_more(flow, packs[first : first + AT_ONCE], settings, place)
    so_far(n_files, n_files, sum(one.n_texts for one in counted))
    url = f"{place.storage.url}/{COUNTS}"
    records = [PackRecord.of(one.record, f"{url}/{one.key}/{COUNTED}") for one in counted]
    if any(one.stop for one in packs):  # it was counted by a run that quarantined them
        refuse_rejects(records)
    return list(map(CountedPack, packs, counted, records))


def _n_files(packs: Sequence[Pack]) -> int:
    return sum(len(pack.files) for pack in packs)


def weigh_documents(
    packs: Sequence[CountedPack],
    new: Sequence[bool],
    text: Text,
    before: tuple[Vocabulary, Sequence[str]] | None,
    place: Place,
    *,
    vectors: Vectors | None = None,
    before_written: Callable[[str], None],
) -> JobRows:
    """Return the rows of counted packs, in the vocabulary of before or a new one.

    The last release was not made of the `new` ones; `before` are its vocabulary and the keys of the
    packs that this was made of, if the settings are the same. `before_written` is called with the
    identity of a new vocabulary before it or rows in it are written.
    """
    flow, settings = DaskFlow(), settings_of(text)
    dense, of_batches = (vectors.dense, vectors.batches) if vectors else (None, ())
    counted, records = [one.counts for one in packs], [one.record for one in packs]
    keys, coverage = [one.key for one in counted], None
    if before is not None:
        vocabulary, known = before[0], set(before[1])
        rows = rows_of(flow, counted, vocabulary, place, of_batches)
        # What takes the place of packs that it was made of, it was made of too.
        known |= {
            one.counts.key
            for one in packs
            if one.pack.origins
            and known.issuperset(counts_key(key, settings) for key in one.pack.origins)
        } | {one.counts.key for one in packs if one.was in known}
        coverage = Coverage.total([one.coverage for one in compress(rows, new)])
        since = [one.coverage for one, key in zip(rows, keys, strict=True) if key not in known]
        if not _is_outdated(text, vocabulary, Coverage.total(since)):
            made_of = [key for key in keys if key in known]
            return JobRows(
                rows, records, keys, vocabulary, made_of, coverage=coverage, vectors=vectors
            )
    vocabulary = fit_vocabulary(
        flow, counted, settings, place, dense=dense, before_written=before_written
    )
    rows = rows_of(flow, counted, vocabulary, place, of_batches)
    coverage = coverage or Coverage.total([one.coverage for one in rows])
    return JobRows(
        rows, records, keys, vocabulary, keys, refit=True, coverage=coverage, vectors=vectors
    )


def settings_of(text: Text) -> TextSettings:
    """Return what a vocabulary is made with: when it is made again is no part of it."""
    return TextSettings.model_validate(text.model_dump(exclude={"refit", "model", "weight"}))


def _is_outdated(text: Text, before: Vocabulary, coverage: Coverage) -> bool:
    """Return whether a vocabulary is to be made again, by the files that it was not made of."""
    drift = coverage.unknown_share - before.unknown_share
    if text.drift is not None and drift > text.drift:
        log.info(
            "%.1f%% of the words of new files are unknown, %.1f%% were where the vocabulary was "
            "made: it is made again", 100 * coverage.unknown_share, 100 * before.unknown_share,
        )  # fmt: skip
        return True
    return text.refit == "always"


def find_lines(
    packs: Sequence[Pack], rows: JobRows, wanted: Mapping[int, set[str]]
) -> dict[int, dict[str, int]]:
    """Return the lines of documents, by partition and id, from the parts of files they are in."""
    flow, places, before = DaskFlow(), rows.places(), lines_before_of(rows.records)
    tasks = [
        flow.lazy(DocumentSegment.lines_of, packs[places[part]].files[0], ids)
        for part, ids in wanted.items()
    ]
    return {
        part: {one: line + before[places[part]] for one, line in lines.items()}
        for part, lines in zip(wanted, flow.compute(tasks), strict=True)
    }


def store_vectors(
    packs: Sequence[Pack], embedder: Embedder, dense: Dense, place: Place, so_far: SoFar
) -> Vectors:
    """Return the vectors of all packs; a text that is stored is not embedded again."""
    flow, found = DaskFlow(), list[VectorSource]()
    place.storage.make_root()
    for first in range(0, len(packs), AT_ONCE):
        so_far(_n_files(packs[:first]), _n_files(packs))
        tasks = [
            flow.lazy(embed_texts, pack, embedder, place, task_memory(), dense.column)
            for pack in packs[first : first + AT_ONCE]
        ]
        made = flow.compute(tasks)
        tell_remade([one.damage for one in made if one.damage])
        found += made
    batches = [
        [StoredVectors(one.folder, one.width, batch) for batch in one.batches] for one in found
    ]
    return Vectors(
        dense,
        batches,
        [one.n_new for one in found],
        sum(one.n_zero for one in found),
        next((one.first_zero for one in found if one.first_zero), ""),
    )


def ready_vectors(
    ready: JobRows, packs: Sequence[CountedPack], share: float, place: Place
) -> Vectors:
    """Return ready embeddings as vectors that go with counted words."""
    width = ready.rows[0].n_features if ready.rows else 1
    batches: list[list[BatchVectors]] = []
    for rows, pack in zip(ready.rows, packs, strict=True):
        files = iter(rows.files)
        batches.append(
            [
                BlockSource(rows.url, next(files), width, place.options) if batch.n_texts else None
                for batch in pack.counts.batches
            ]
        )
    return Vectors(Dense("", "", width, share), batches)


EMBEDDINGS = f"{ROWS}/embeddings"


def embed_documents(packs: Sequence[Pack], place: Place, so_far: SoFar) -> JobRows:
    """Return the embeddings of all packs as rows; files that are done already are left."""
    flow, found = DaskFlow(), list[Embedded]()
    place.storage.make_root()
    for first in range(0, len(packs), AT_ONCE):
        so_far(_n_files(packs[:first]), _n_files(packs))
        some = packs[first : first + AT_ONCE]
        made = flow.compute([flow.lazy(embed_source, one, place) for one in some])
        tell_remade([one.damage for one in made if one.damage])
        found += made
    records = [one.record for one in found]
    if any(one.stop for one in packs):  # it was read by a run that quarantined them
        refuse_rejects(records)
    widths = {one.rows.n_features: one.record.paths[0] for one in found if one.rows.files}
    refuse_widths(widths)
    width = max(widths, default=1)
    rows = [replace(one.rows, n_features=width) for one in found]  # an empty file has none
    return JobRows(rows, records, [record.key for record in records])


@dataclass(frozen=True)
class _EmbeddingsRecord:
    """What rows.json holds of a pack of embeddings."""

    files: tuple[BlockFile, ...]
    n_features: int
    told: dict[str, Any]  # a `PackRecord`


class Embedded(NamedTuple):
    """The rows of a pack, its record, and what was wrong with the file that had it before."""

    rows: SourceRows
    record: PackRecord
    damage: str


def embed_source(source: Pack, place: Place) -> Embedded:
    """Return the rows of a pack, written now if they are not there yet."""
    storage, folder = place.storage, f"{EMBEDDINGS}/{source.key}"
    url = f"{storage.url}/{folder}"
    written, damage = value_or_damage(lambda: _read_embeddings(storage, folder))
    if written is None:
        files: list[BlockFile] = []
        width = 0
        for batch in source.read():
            if batch.embeddings is not None:
                block = RowBlock.from_array(batch.embeddings, batch.ids)
                width = block.n_features
                files.append(write_block(block, url, len(files), place.options))
        written = _EmbeddingsRecord(tuple(files), width, source.record())
        write_record(storage, f"{folder}/{WRITTEN}", asdict(written))
    rows = SourceRows(url, written.files, written.n_features, Coverage())
    return Embedded(rows, PackRecord.of(written.told, f"{url}/{WRITTEN}"), damage)


def _read_embeddings(storage: Storage, folder: str) -> _EmbeddingsRecord | None:
    """Return what is known of embeddings, None where they are not written yet."""
    written = read_record(storage, f"{folder}/{WRITTEN}", _EmbeddingsRecord)
    if written is not None:
        PackRecord.of(written.told, f"{storage.url}/{folder}/{WRITTEN}")
    return written


def record_of_embeddings(key: str, place: Place) -> PackRecord | None:
    """Return what reading a pack of embeddings reported, None where they are not written."""
    folder = f"{EMBEDDINGS}/{key}"
    written = _read_embeddings(place.storage, folder)
    return None if written is None else PackRecord.of(written.told, f"{folder}/{WRITTEN}")


def rows_of_release(release: Release, place: Place, n_features: int) -> list[SourceRows]:
    """Return the rows of all packs of a release, or raise what is wrong with them."""
    keys = {key.counts for entry in files_of(release.ledger).values() for key in entry.keys}
    vocabulary, found = release.ledger[VOCABULARY], list[SourceRows]()
    for key in sorted(keys):
        if vocabulary is None:
            folder = f"{EMBEDDINGS}/{key}"
            read = _read_embeddings(place.storage, folder)
            rows = read and SourceRows(f"{place.url}/{folder}", read.files, n_features, Coverage())
        else:
            rows = read_rows(f"{ROWS}/{vocabulary}/{key}", n_features, place)[0]
        if not rows:
            raise DamagedReleaseError(f"rows of release {release.number} are gone ({key})")
        found.append(rows)
    return found


def read_vocabulary(
    release: Release, place: Place, settings: TextSettings, *, needed: bool
) -> Vocabulary | None:
    """Return the vocabulary of a release, None where it had none; made again if it is damaged.

    One that is lost is an error if it is `needed`, else a warning.
    """
    named = release.ledger[VOCABULARY]
    if named is None:
        return None
    try:
        return load_vocabulary(named, place)
    except UnreadableFileError as error:
        said = f"the vocabulary of release {release.number} cannot be read ({error.what})"
    dense = release.ledger.get(DENSE)
    found = _made_again(
        named, release.ledger[MADE_OF], place, settings, None if dense is None else Dense(**dense)
    )
    if found is not None:
        warnings.warn(f"{said}; it was made again, the same", HmrfWarning, stacklevel=2)
        return found
    if needed:
        raise DamagedReleaseError(
            f"{said}, and it cannot be made again, as what it was made of is gone; for a new one "
            "run once with text.refit always and start cold in the job: clusters keep their ids by "
            "the documents they share"
        )
    warnings.warn(f"{said}; a new one is made", HmrfWarning, stacklevel=2)
    return None


def _made_again(
    named: str, made_of: list[str], place: Place, settings: TextSettings, dense: Dense | None
) -> Vocabulary | None:
    """Return the vocabulary of this identity, made of counts; None where others come of them."""
    try:
        sources = [read_source(place.storage, key) for key in made_of]
        counted = [one for one in sources if one is not None]
        if not counted or len(counted) != len(sources):
            return None
        found = make_vocabulary_of(DaskFlow(), counted, settings, place, dense=dense)
    except UnreadableFileError:
        return None
    if found.identity != named:
        return None
    save_vocabulary(found, place)
    return found


_KEYED = (DOCUMENTS, COUNTS, VOCABULARIES)


def names_of(ledger: dict[str, Any]) -> set[str]:
    """Return the folders of an output that the files of a ledger are counted and weighed in."""
    keys = [key for entry in files_of(ledger).values() for key in entry.keys]
    packs, dense = {key.pack for key in keys}, ledger.get(DENSE)
    counts = {*(key.counts for key in keys), *ledger.get(COUNTED_WHOLE, ())}
    vocabularies = [ledger[VOCABULARY]] if VOCABULARY in ledger else []
    if dense is not None and not dense["identity"]:
        vocabularies.append(None)  # ready embeddings next to words
    made = names_made(packs, counts, vocabularies)
    return made | (vectors_made(Dense(**dense), packs) if dense else set())


def vectors_made(dense: Dense, packs: Iterable[str]) -> set[str]:
    """Return the folders of the vectors of packs by an embedder; none without one."""
    folder = f"{VECTORS}/{key_of(dense.identity, dense.column)}"
    return {folder, *(f"{folder}/{pack}" for pack in packs)} if dense.identity else set()


def names_made(
    packs: Iterable[str], counts: Iterable[str], vocabularies: Iterable[str | None]
) -> set[str]:
    """Return the folders of packs, of their counts, and of rows in vocabularies.

    Where there are no words the vocabulary is None, and the rows are the embeddings themselves.

    Examples
    --------
    >>> sorted(names_made(["pack"], ["counted"], ["words"]))
    ['counts/counted', 'documents/pack', 'rows/words', 'vocabularies/words']
    """
    named = list(vocabularies)
    return {
        *(f"{DOCUMENTS}/{pack}" for pack in packs),
        *(f"{COUNTS}/{key}" for key in counts),
        *(f"{VOCABULARIES}/{one}" for one in named if one is not None),
        *(EMBEDDINGS if one is None else f"{ROWS}/{one}" for one in named),
    }


def sweep(output: str, run_id: str, ledgers: Iterable[dict[str, Any]]) -> None:
    """Remove what the output made and these ledgers do not name; whoever calls it holds the output.

    Releases that are older need none of it: their assignments and models lie in their runs.
    """
    storage = open_storage(output, {}, durable=True)
    kept = set().union(*map(names_of, ledgers))
    own = own_files.recorded(storage) | _once_named(storage)
    for folder in filter(partial(is_within, storage), _KEYED):
        for name in sorted(_there(storage, folder) & own - kept):
            remove_own(storage, name)
    for rows in sorted(_there(storage, ROWS) & (own | kept)) if is_within(storage, ROWS) else ():
        # Rows are called as the counts that they are made of; embeddings as their pack.
        of = DOCUMENTS if rows == EMBEDDINGS else COUNTS
        for name in _there(storage, rows):
            key = name.rpartition("/")[2]
            if FOLDERS.fullmatch(name) and not (rows in kept and f"{of}/{key}" in kept):
                remove_own(storage, name)
    for vectors in sorted(_there(storage, VECTORS) & own) if is_within(storage, VECTORS) else ():
        gone = [vectors] if vectors not in kept else sorted(_there(storage, vectors) & own - kept)
        for name in gone:
            remove_own(storage, name)
    left = {name for one in (*_KEYED, ROWS, RUNS, VECTORS) for name in _there(storage, one)} & own
    own_files.bring_together(storage, run_id, kept | left)


def _there(storage: Storage, folder: str) -> set[str]:
    return {f"{folder}/{name}" for name in storage.names(folder)}


def _once_named(storage: Storage) -> set[str]:
    """Return the names of releases that have files: a former version recorded no others."""
    found = set[str]()
    for number in release_log(storage).numbers():
        release = read_if_whole(storage, number)
        if release is not None and not release.files:
            break
        found |= set() if release is None else names_of(release.ledger)
    return found
