"""A release as a person asks it: which clusters there are, and which one a text belongs to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from hmrf_dask.documents.sources import BATCH_ROWS
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfWarning,
    InvalidInputError,
    SourceError,
    UnreadableFileError,
    counted,
)
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.classes import load
from hmrf_dask.estimators.comparison import compare
from hmrf_dask.estimators.prediction import OUTLIER, marked_labels_of, table_of
from hmrf_dask.estimators.reporting import write_report
from hmrf_dask.jobs import assignments
from hmrf_dask.jobs.edit import Editable
from hmrf_dask.jobs.names import OUTLIERS, called, names_given
from hmrf_dask.jobs.parent import VOCABULARY
from hmrf_dask.jobs.places import NAME, Report, assignments_of, explained_to_readers, verified_model
from hmrf_dask.jobs.places import last_release as last_release_of
from hmrf_dask.jobs.report_subject import former_of_run, page_of
from hmrf_dask.jobs.texts import Document, Texts, homes_of
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.release import (
    DamagedReleaseError,
    Release,
    read_file,
    read_if_whole,
    release_log,
)
from hmrf_dask.report.content import Report as Page
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.stores import Storage
from hmrf_dask.storage.whole_files import decode_parquet, names_in_parquet
from hmrf_dask.tasks.criteria import nonzero_rows
from hmrf_dask.text.files import Place, load_vocabulary
from hmrf_dask.text.given import as_texts
from hmrf_dask.text.tfidf import Vocabulary
from hmrf_dask.text.vectorise import rows_of_texts
from hmrf_dask.types import BoolArray, IntArray, LabelArray

if TYPE_CHECKING:
    from hmrf_dask.jobs.in_memory import InMemory

SHOWN: Final = 20  # clusters in a notebook
_WIDTH: Final = 200  # characters of a text in a table that is drawn


def load_release(output: str | os.PathLike[str], release: int | None = None) -> ReleasedModel:
    """Return the clusters that a job found, and the model that new texts can be put to.

    Parameters
    ----------
    output : str or path
        The output of a job: a folder or URL.
    release : int, optional
        The number of an earlier release that is kept; without it the last one.

    Returns
    -------
    ReleasedModel

    Raises
    ------
    ConfigurationError
        There is no such release.

    Examples
    --------
    >>> from hmrf_dask import load_release
    >>> load_release("no-such-output")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: ... must be the output of a job that has run, got ...
    """
    url = absolute_url(output, "an output")
    last = last_release_of(url)
    if last is None:
        raise ConfigurationError(
            f"{os.fspath(output)} must be the output of a job that has run, got no release there; "
            "run the job first, or give the folder that it names as output"
        )
    return ReleasedModel(url, last if release in (None, last.number) else _earlier(url, release))


def _earlier(output: str, number: int | None) -> Release:
    """Return a release that is kept, or say which are."""
    kept = releases_of(output)
    if number in kept:
        return kept[number]
    raise ConfigurationError(
        f"release must be one that is kept ({', '.join(map(str, kept))}), got {number!r}; "
        "the job's `keep` says how many stay"
    )


def releases_of(output: str) -> dict[int, Release]:
    """Return the releases of an output whose files are there, by number, the first one first."""
    storage = open_output(output)
    found = (read_if_whole(storage, number) for number in sorted(release_log(storage).numbers()))
    return {one.number: one for one in found if one is not None and one.files}


class ReleasedModel(Editable):
    """The clusters of one release of a job, and the model that made them.

    Tables are pandas DataFrames where pandas is installed, else pyarrow Tables. Clusters are called
    by the ids that they keep from release to release.

    Parameters
    ----------
    output : str
        The output of a job: an absolute path or a URL.
    release : Release

    Attributes
    ----------
    n_clusters : int
    clusters : table
        A row for each cluster: `cluster`, its id; `name`, the one that was given to it, else its
        first words; `size`, its documents; `top_words`; `representatives`, ids of the documents
        nearest to its centroid; `cohesion`, their mean distance to it.
    model : HMRFEstimator
        The fitted estimator, over rows rather than texts.

    Examples
    --------
    >>> from hmrf_dask import load_release
    >>> model = load_release("tickets-clusters/out")  # doctest: +SKIP
    >>> model.predict(["the card was charged twice"])  # doctest: +SKIP
    array([17], dtype=int32)
    >>> model.top_words(17)  # doctest: +SKIP
    ['card', 'charged', 'twice']
    """

    def __init__(self, output: str, release: Release) -> None:
        self.output = output
        self._release = release
        self._memory: InMemory | None = None
        self._page: Page | None = None

    def in_memory(self, held: InMemory) -> ReleasedModel:
        """Read all that it may be asked for, and need its files no more; return itself."""
        self._memory = held
        _ = (self._table, self._vocabulary, self.names, self.report)
        self._page = former_of_run(self.output, self._release.run)
        self.output = ""
        return self

    # ---- what is there

    @property
    def release(self) -> int:
        """The number of the release."""
        return self._release.number

    @property
    def files(self) -> dict[str, str]:
        """The sha256 of every file of the release, by its name below the output."""
        return self._release.files

    @property
    def ledger(self) -> Any:
        """Which files with documents the release was made of."""
        return self._release.ledger

    @property
    def n_documents(self) -> int:
        """How many documents have a cluster."""
        return int(self._release.counts["documents"])

    @property
    def n_clusters(self) -> int:
        """How many clusters there are."""
        return len(self._clusters)

    @property
    def clusters(self) -> Any:
        """A table with a row for each cluster, by id."""
        return as_table(self._clusters)

    @cached_property
    def report(self) -> Report:
        """What the run said of itself: documents, answers, J, time by step."""
        return Report.from_json(self._file(NAME), self.output)

    def report_page(self, path: str | os.PathLike[str] | None = None) -> Page:
        """Return the report that the run wrote for people; a notebook shows it as a page.

        Parameters
        ----------
        path : str or path, optional
            Where to write it: a file that ends in .html, its data next to it, or a folder.
        """
        page = self._page or page_of(self.output, self._release)
        if path is not None:
            write_report(page, os.fspath(path))
        return page

    def top_words(self, cluster: int) -> list[str]:
        """Return the words that a cluster is about, the weightiest first.

        Parameters
        ----------
        cluster : int

        Returns
        -------
        list of str
            Nothing where rows are embeddings.
        """
        return list(self._row(cluster)["top_words"] or ())

    def representatives(self, cluster: int) -> Any:
        """Return the documents nearest to the centroid of a cluster, with their texts.

        Parameters
        ----------
        cluster : int

        Returns
        -------
        table
            `doc_id` and `text`; a text is missing where its file is gone.
        """
        ids = self.nearest(cluster)
        texts = self._texts(ids)
        return as_table(
            pa.table(
                {
                    "doc_id": pa.array(ids, pa.string()),
                    "text": pa.array([texts.get(one) for one in ids], pa.string()),
                }
            )
        )

    def nearest(self, cluster: int) -> list[str]:
        """Return the ids of the representatives of a cluster.

        Parameters
        ----------
        cluster : int
        """
        return [str(one) for one in self._row(cluster)["representatives"] or ()]

    def clusters_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the clusters of some documents by their ids; nothing of those it has not.

        Parameters
        ----------
        ids : sequence of str
        """
        homes = homes_of(self.output, self._release, ids)
        return {name: home.cluster for name, home in homes.items()}

    def assignments(self, columns: Sequence[str] | None = None) -> Any:
        """Return the cluster of every document.

        Parameters
        ----------
        columns : sequence of str, optional
            Of the assignments: doc_id, cluster, distortion, runner_up, margin, constrained,
            violated, and what the manifest keeps. Without it all; few take less memory.

        Returns
        -------
        table
            A row for each document.
        """
        table = as_table(pa.concat_tables(self.assignment_tables(columns)))
        if self._memory is not None and self._memory.index is not None:
            table.index = self._memory.index
        return table

    def assignment_tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the assignments file by file, for who cannot have all of them in memory.

        Parameters
        ----------
        columns : sequence of str, optional

        Yields
        ------
        pyarrow.Table
        """
        wanted = None if columns is None else list(columns)
        if self._memory is not None:
            assignments.require_columns(wanted, self._memory.table.column_names)
            yield self._memory.table if wanted is None else self._memory.table.select(wanted)
            return
        for name, sha256 in sorted(assignments_of(self._release.files).items()):
            with explained_to_readers():
                data = read_file(self._storage, name, sha256)
                assignments.require_columns(wanted, names_in_parquet(data))
                yield decode_parquet(data, wanted)

    # ---- new texts

    def predict(self, texts: Any) -> IntArray:
        """Return the cluster of each text: the one whose centroid is nearest.

        Parameters
        ----------
        texts : sequence of str
            A list, a pandas or polars column. Where the job was given embeddings, an array of
            them, (n_texts, n_numbers).

        Returns
        -------
        ndarray of shape (n_texts,), int32
            Ids of clusters, as in `clusters`; -1 of outliers, where the job marks some.
        """
        parts = [
            self._called(self._labels(self._predictor.rows(block))) for block in self._blocks(texts)
        ]
        return np.concatenate([np.zeros(0, np.int32), *parts])

    def _labels(self, rows: RowBlock) -> LabelArray:
        return marked_labels_of(rows, self._predictor, self._table)

    def _called(self, labels: LabelArray) -> LabelArray:
        """Return the ids of labels, -1 of outliers."""
        return np.where(labels < 0, np.int32(OUTLIER), self.model.cluster_ids_[labels])

    def classify(self, texts: Any) -> Any:
        """Return the cluster of each text, what it is called, and how clear that is.

        Parameters
        ----------
        texts : sequence of str
            As for `predict`.

        Returns
        -------
        table
            `cluster`, -1 of outliers; `name`; `distortion`, the distance to its centroid;
            `runner_up`, the nearest other cluster; `margin`, how much farther that is; `known`,
            whether the model knows any of the words: without that a cluster says nothing.
        """
        return as_table(self.classified(texts))

    def classified(self, texts: Any) -> pa.Table:
        """Return what `classify` says as a pyarrow Table."""
        tables = [self._classified(block) for block in self._blocks(texts)]
        return pa.concat_tables([_NOTHING, *tables])

    def _classified(self, block: RowBlock) -> pa.Table:
        rows_of_metric = self._predictor.rows(block)
        labels = self._labels(rows_of_metric)
        rows = compare(rows_of_metric, self._predictor, self._table, labels)
        clusters = self._called(labels).tolist()
        several = len(self.model.cluster_ids_) > 1
        nothing = pa.nulls(block.n_rows)
        margins = np.where(labels < 0, np.nan, rows.nearest - rows.own)
        columns = [
            clusters,
            [OUTLIERS if one == OUTLIER else self.names.get(one, "") for one in clusters],
            rows.own.tolist(),
            self._called(rows.runner_up).tolist() if several else nothing,
            pa.array(margins, from_pandas=True) if several else nothing,
            _has_words(block).tolist(),
        ]
        return pa.table(
            [pa.array(one, kind) for one, kind in zip(columns, _NOTHING.schema.types, strict=True)],
            _NOTHING.schema,
        )

    def _blocks(self, texts: Any) -> Iterator[RowBlock]:
        """Yield the rows of texts, a few thousand at a time."""
        vocabulary = self._vocabulary
        if vocabulary is None or self._takes_vectors:
            yield _ready_rows(texts, self.model.cluster_centers_.shape[1])
            return
        values, place = as_texts(texts), Place(self.output) if self.output else None
        for first in range(0, len(values), BATCH_ROWS):
            some = values[first : first + BATCH_ROWS]
            yield rows_of_texts(some, vocabulary, place)

    @property
    def _takes_vectors(self) -> bool:
        """Whether rows are vectors that were given as such: no text becomes one of them."""
        dense = None if self._vocabulary is None else self._vocabulary.dense
        return self._vocabulary is None or (
            dense is not None and dense.alone and not dense.identity
        )

    # ---- what it is made of

    @cached_property
    def model(self) -> HMRFEstimator:
        """The fitted estimator."""
        with explained_to_readers():
            return load(verified_model(self._storage, self._release))

    @cached_property
    def _predictor(self) -> Any:
        return self.model.predictor()

    @cached_property
    def _table(self) -> Any:
        return table_of(self._predictor)

    @cached_property
    def _vocabulary(self) -> Vocabulary | None:
        named = self._release.ledger.get(VOCABULARY)
        if named is None:
            return None
        try:
            return load_vocabulary(named, Place(self.output))
        except UnreadableFileError as error:
            raise DamagedReleaseError(
                f"texts must become rows by the vocabulary of release {self.release}, got "
                f"{error.what}; the last two releases alone keep theirs: ask the last one, or run "
                "the job again"
            ) from error

    @cached_property
    def _clusters(self) -> pa.Table:
        table = decode_parquet(self._file(assignments.NAME))
        ids, words = table["cluster"].to_pylist(), table["top_words"].to_pylist()
        names = called(ids, words, names_given(self.output, self._release))
        return table.add_column(1, "name", pa.array(names, pa.string()))

    @cached_property
    def names(self) -> dict[int, str]:
        """What each cluster is called: the name that was given to it, else its first words."""
        columns = self._clusters["cluster"].to_pylist(), self._clusters["name"].to_pylist()
        return dict(zip(*columns, strict=True))

    @property
    def sizes(self) -> dict[int, int]:
        """How many documents each cluster has."""
        columns = self._clusters["cluster"].to_pylist(), self._clusters["size"].to_pylist()
        return dict(zip(*columns, strict=True))

    def forget_names(self) -> None:
        """Read names again where they are asked for next."""
        for name in ("_clusters", "names"):
            self.__dict__.pop(name, None)

    @cached_property
    def _reader(self) -> Texts:
        return Texts(self.output)

    def _texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts of documents that can be read."""
        if self._memory is not None:
            return {name: self._memory.texts[name] for name in ids}
        try:
            read: Mapping[str, Document] = self._reader.read(ids) if ids else {}
        except (ConfigurationError, SourceError) as error:  # files, job or manifest are gone
            warnings.warn(f"without texts: {error}", HmrfWarning, stacklevel=3)
            return {}
        return {name: one.text for name, one in read.items() if not one.missing}

    @property
    def _storage(self) -> Storage:
        return open_output(self.output)

    def _file(self, name: str) -> bytes:
        path = next(one for one in self._release.files if one.rpartition("/")[2] == name)
        with explained_to_readers():
            return read_file(self._storage, path, self._release.files[path])

    def _row(self, cluster: int) -> dict[str, Any]:
        """Return what is known of a cluster, or say which clusters there are."""
        places = np.flatnonzero(self._clusters["cluster"].to_numpy() == cluster)
        if not len(places):
            there = self._clusters["cluster"].to_pylist()
            if len(there) > SHOWN:  # those near to the number
                there = sorted(sorted(there, key=lambda one: abs(one - cluster))[:SHOWN])
            some = "such as" if len(there) < self.n_clusters else "one of"
            raise InvalidInputError(
                f"cluster must be {some} {', '.join(map(str, there))}, got {cluster!r}"
            )
        row: dict[str, Any] = self._clusters.slice(int(places[0]), 1).to_pylist()[0]
        return row

    # ---- for people

    def __repr__(self) -> str:
        """Say what it is the clusters of."""
        return f"<ReleasedModel: {self._title}>"

    @property
    def _title(self) -> str:
        clusters = counted(self.n_clusters, "cluster")
        return f"{counted(self.n_documents, 'document')} in {clusters}, release {self.release}"

    def _repr_html_(self) -> str:
        """Return the largest clusters as a table; words and names are text, whatever they hold."""
        rows = sorted(self._clusters.to_pylist(), key=lambda row: (-row["size"], row["cluster"]))
        lines = [
            f"<tr><td>{row['cluster']}</td><td>{row['size']:,}</td>"
            f"<td>{escape(row['name'][:_WIDTH])}</td>"
            f"<td>{escape(' '.join(row['top_words'] or ())[:_WIDTH])}</td></tr>"
            for row in rows[:SHOWN]
        ]
        more = f"<p>… {len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else ""
        head = "".join(f"<th>{name}</th>" for name in ("cluster", "size", "name", "words"))
        return (
            f"<p><b>{escape(self._title)}</b></p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table>{more}"
        )


@dataclass(frozen=True)
class Classified:
    """The clusters of some texts.

    Attributes
    ----------
    output : str
    release : int
    texts : list of dict
        Of each its `text`, and what `ReleasedModel.classify` says of it.
    """

    output: str
    release: int
    texts: list[dict[str, Any]]


def classify_texts(output: str, texts: Sequence[str], *, release: int | None = None) -> Classified:
    """Return the cluster of each text under a release of an output."""
    model = load_release(output, release)
    if model._takes_vectors:
        raise ConfigurationError(
            f"texts must become rows as the job made them, got {output}, whose job was given "
            "embeddings; in Python load_release(...).predict takes embeddings"
        )
    rows = model.classified(texts).to_pylist()
    return Classified(
        output,
        model.release,
        [{"text": text, **row} for text, row in zip(texts, rows, strict=True)],
    )


_NOTHING = pa.table(
    {
        "cluster": pa.array([], pa.int32()),
        "name": pa.array([], pa.string()),
        "distortion": pa.array([], pa.float64()),
        "runner_up": pa.array([], pa.int32()),
        "margin": pa.array([], pa.float64()),
        "known": pa.array([], pa.bool_()),
    }
)


def as_table(table: pa.Table) -> Any:
    """Return a table as pandas has it where that is installed, else as it is.

    Examples
    --------
    >>> as_table(pa.table({"cluster": [1]}))["cluster"].tolist()
    [1]
    """
    return table.to_pandas() if find_spec("pandas") else table


def _ready_rows(rows: Any, n_features: int) -> RowBlock:
    """Return ready embeddings as rows, where a job made its clusters of such."""
    try:
        array = np.asarray(rows, np.float32)
    except (TypeError, ValueError):
        array = np.zeros(0, np.float32)
    if array.ndim != 2 or array.shape[1] != n_features:
        raise InvalidInputError(
            f"rows must be an array of embeddings with {n_features} columns, as this job was given "
            "embeddings and not texts; make them with the same model"
        )
    return RowBlock.from_array(array)


def _has_words(block: RowBlock) -> BoolArray:
    """Return whether each row has anything in it."""
    filled = np.zeros(block.n_rows, np.bool_)
    filled[nonzero_rows(block)] = True
    return filled
