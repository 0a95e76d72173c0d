"""A release in a database: tables of its own, behind views that one transaction switches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.databases.connection import Database
from hmrf_dask.databases.relations import KINDS, TABLE, VIEW, Mark, Relation, View
from hmrf_dask.databases.statements import literal, quoted
from hmrf_dask.errors import ConfigurationError, InvalidInputError

IdType = Literal["text", "bigint", "uuid", "numeric"]
MOST_BYTES: Final = 45  # of a view's name: PostgreSQL cuts names at 63, and tables add to it
CLUSTERS, RELEASES, CHANGES = "clusters", "releases", "changes"
QUESTIONS, JOURNAL = "questions", "journal"
_ENDINGS: Final = tuple(f"_{part}" for part in (CLUSTERS, RELEASES, CHANGES, QUESTIONS, JOURNAL))
MOST_INDEXED: Final = 2_000  # bytes of a value: a page of an index holds three of them
_OF_RELEASE: Final = re.compile(r"_[rc]\d+_[0-9a-f]{6}")
OF_RUN: Final = ("release", "run")


class Rows(NamedTuple):
    """Rows of a table that keeps its older ones, but for those with the same values in `key`."""

    table: pa.Table
    key: tuple[str, ...] = OF_RUN


class Contents(NamedTuple):
    """What a release has to show: assignments are read when they are written, file by file."""

    schema: pa.Schema  # of the assignments, whose first column is the id of the document
    assignments: Callable[[], Iterator[pa.Table]]
    clusters: pa.Table  # cluster, name, …
    appended: Mapping[str, Rows]


class Publication:
    """What a job publishes in a database.

    Parameters
    ----------
    database : Database
        That may be written.
    table : str
        Name of the view that shows the assignments, or its schema, a dot and that.
    mark : Mark
        Of the release.
    id_type : {"text", "bigint", "uuid", "numeric"}
        Of the column of ids.
    """

    def __init__(
        self, database: Database, table: str, mark: Mark, id_type: IdType = "text"
    ) -> None:
        schema, dot, self._name = table.rpartition(".")
        self._relations = KINDS[database.dialect](database, schema if dot else None)
        self._mark, self._id_type = mark, id_type
        self._longest = 0  # bytes of an id
        self._columns: list[str] = []  # of the assignments

    # ---- what is there

    def shown(self, *, take_over: bool = False) -> Mark | None:
        """Return the mark of the release that is shown now, None where none is.

        ConfigurationError where a name is taken by what is not of this job. With `take_over` what
        another job published is no error.
        """
        self._relations.refuse_unwritable()
        there = self._relations.beginning_with(self._name)
        views = (self._name, self._name + _ENDINGS[0])
        for name in (*views, *(self._name + ending for ending in _ENDINGS[1:])):
            found = there.get(self._relations.key_of(name))
            if found is not None:
                self._refuse_other(found, VIEW if name in views else TABLE, take_over=take_over)
        view = there.get(self._relations.key_of(self._name))
        return None if view is None else view.mark

    def _refuse_other(self, found: Relation, kind: str, *, take_over: bool) -> None:
        shown = self._relations.shown(found.name)
        if found.mark is None or found.kind != kind:
            raise ConfigurationError(
                f"publish.sql.table must be a name that is free, with {', '.join(_ENDINGS)} after "
                f"it too, got {shown}, which no run of this program made; give another name, or "
                "rename what is there"
            )
        # Tables are made once; the mark of a view is written again with each release.
        if kind == VIEW and not (take_over or found.mark.is_same_owner(self._mark)):
            raise ConfigurationError(
                f"publish.sql.table must be of one output of one job, got {shown} of job "
                f"{found.mark.job!r} with manifest {found.mark.manifest!r}, whose output began "
                f"{found.mark.since}; give another name, or take it over: hmrf-dask run JOB "
                "--take-over"
            )

    # ---- publishing

    def publish(
        self,
        contents: Contents,
        *,
        patience: float,
        confirm: Callable[[], None],
        take_over: bool = False,
    ) -> bool:
        """Make a release what readers see, in one transaction; return whether it was not yet.

        Parameters
        ----------
        contents : Contents
        patience : float
            Seconds to wait for readers that lock the views, and for others who write.
        confirm : callable
            Called last: what it raises undoes all.
        take_over : bool, default False
            Whether what another job published becomes this one's.
        """
        relations = self._relations
        relations.begin(self._name, patience)
        try:
            before = self.shown(take_over=take_over)
            if before == self._mark:
                relations.rollback()
                return False
            there = relations.beginning_with(self._name)
            is_there = relations.key_of(self.table) in there
            if before is None or not (is_there and before.is_same_release(self._mark)):
                self._write_assignments(contents, there)
            self._write_clusters(contents.clusters, there)
            if relations.key_of(self._of(RELEASES)) in there:
                releases = relations.quoted(self._of(RELEASES))
                relations.run(f"UPDATE {releases} SET shown = false WHERE shown")
            for part, rows in contents.appended.items():
                self._append(self._of(part), rows, there)
            self._columns = contents.schema.names
            relations.switch(self._views(before, there), patience)
            confirm()
            relations.commit()
        except BaseException:
            with suppress(Exception):  # the connection may be gone
                relations.rollback()
            raise
        return True

    @property
    def table(self) -> str:
        """Name of the table with the assignments of the release."""
        return self._own("r")

    def _own(self, initial: str) -> str:
        return self._named(initial, self._mark)

    def _cleared(self, name: str, there: Mapping[str, Relation]) -> None:
        """Remove a table of an attempt of ours; refuse one of somebody else."""
        found = there.get(self._relations.key_of(name))
        if found is not None:
            self._refuse_other(found, TABLE, take_over=True)
            self._relations.run(f"DROP TABLE {self._relations.quoted(name)}")

    def _write_assignments(self, contents: Contents, there: Mapping[str, Relation]) -> None:
        relations, name, schema = self._relations, self.table, contents.schema
        id_ = schema.names[0]
        if self._id_type == "bigint":
            schema = schema.set(0, schema.field(0).with_type(pa.int64()))
        self._cleared(name, there)
        relations.create(name, schema, self._mark)
        relations.load(name, schema, map(self._as_wanted, contents.assignments()))
        if self._id_type in ("uuid", "numeric"):
            relations.convert(name, id_, self._id_type)
        if self._longest > MOST_INDEXED:
            relations.index_long(name, id_)
        else:
            relations.index(name, id_, unique=True)
        relations.index(name, "cluster")
        relations.analyse(name)

    def _as_wanted(self, table: pa.Table) -> pa.Table:
        """Return rows as a database takes them, or name a document that it does not take."""
        ids = table.column(0)
        self._longest = max(self._longest, pc.max(pc.binary_length(ids)).as_py() or 0)
        for name in table.column_names:
            if pa.types.is_string(table[name].type):
                place = pc.index(pc.match_substring(table[name], "\0"), True).as_py()
                if place >= 0:
                    raise InvalidInputError(
                        f"what is published must have no NUL character, got one in {name!r} of "
                        f"document {ids[place].as_py()!r:.200}; leave that column out of "
                        "documents.keep, or correct the document"
                    )
        if self._id_type == "bigint":
            return table.set_column(0, table.column_names[0], _whole_numbers(ids))
        return table

    def _write_clusters(self, clusters: pa.Table, there: Mapping[str, Relation]) -> None:
        """Write the clusters of the release; in place of those that were called otherwise."""
        relations, name = self._relations, self._own("c")
        found = there.get(relations.key_of(name))
        if found is None:
            relations.create(name, clusters.schema, self._mark)
            relations.index(name, "cluster", unique=True)
        else:
            self._refuse_other(found, TABLE, take_over=True)
            relations.run(f"DELETE FROM {relations.quoted(name)}")
        relations.load(name, clusters.schema, iter([clusters]))

    def _append(self, name: str, rows: Rows, there: Mapping[str, Relation]) -> None:
        relations, table = self._relations, rows.table
        if relations.key_of(name) not in there:
            relations.create(name, table.schema, self._mark)
        elif rows.key == OF_RUN:
            of_run = f"release = {self._mark.release} AND run = '{self._mark.run}'"
            relations.run(f"DELETE FROM {relations.quoted(name)} WHERE {of_run}")
        else:  # entries never change
            (column,) = rows.key
            found = relations.rows(f"SELECT {quoted(column)} FROM {relations.quoted(name)}")
            known = pa.array([one for (one,) in found], pa.string())
            table = table.filter(pc.invert(pc.is_in(table[column], value_set=known)))
        relations.load(name, table.schema, iter([table]))

    def _views(self, before: Mark | None, there: Mapping[str, Relation]) -> tuple[View, View]:
        """Return the views of the release: assignments with names of clusters, and clusters.

        PostgreSQL takes the definition of a view that is there now, and the rows that were there
        when a transaction began: one that began before would see tables without a row. So a view
        has the release before, too, where its columns are the same, and a row says which it shows.
        """
        runs, columns_of = [self._mark], self._relations.columns_of
        own = [columns_of(self.table), columns_of(self._own("c"))]
        last = self._before(before)
        if last is not None and all(own):
            names = [self._named(initial, last) for initial in "rc"]
            are_there = all(self._relations.key_of(name) in there for name in names)
            if are_there and [columns_of(name) for name in names] == own:
                runs.append(last)
        assigned = " UNION ALL ".join(map(self._joined, runs))
        clusters = " UNION ALL ".join(
            f"SELECT * FROM {self._quoted('c', run)}{self._where(run)}" for run in runs
        )
        return (
            View(self._name, assigned, self._mark),
            View(f"{self._name}_{CLUSTERS}", clusters, self._mark),
        )

    def _before(self, shown: Mark | None) -> Mark | None:
        """Return the mark of the release before the one that is published, None where none is."""
        if shown is not None and not shown.is_same_release(self._mark):
            return shown
        rows = self._relations.rows(
            f"SELECT release, run FROM {self._relations.quoted(self._of(RELEASES))} "
            f"WHERE run <> {literal(self._mark.run)} ORDER BY published DESC LIMIT 1"
        )
        return replace(self._mark, release=rows[0][0], run=rows[0][1]) if rows else None

    def _joined(self, run: Mark) -> str:
        columns = self._columns
        chosen = [f"a.{quoted(columns[0])}", f"a.{quoted(columns[1])}"]
        chosen += ["coalesce(c.name, 'outliers') AS name"]
        chosen += [f"a.{quoted(name)}" for name in columns[2:]]
        return (
            f"SELECT {', '.join(chosen)} FROM {self._quoted('r', run)} a "
            f"LEFT JOIN {self._quoted('c', run)} c ON c.cluster = a.cluster{self._where(run)}"
        )

    def _where(self, run: Mark) -> str:
        """Return what lets a part of a view show its rows only where it is the release shown."""
        if not self._relations.has_older_readers:
            return ""
        releases = self._relations.quoted(self._of(RELEASES))
        return f" WHERE EXISTS (SELECT 1 FROM {releases} WHERE shown AND run = {literal(run.run)})"

    def _of(self, part: str) -> str:
        return f"{self._name}_{part}"

    def _quoted(self, initial: str, run: Mark) -> str:
        return self._relations.quoted(self._named(initial, run))

    def _named(self, initial: str, run: Mark) -> str:
        return f"{self._name}_{initial}{run.release}_{run.run[:6]}"

    # ---- what is old

    def remove_old(self, keep: int, patience: float) -> None:
        """Remove tables of all but the newest releases that were published, as far as it goes."""
        relations = self._relations
        relations.begin(self._name, patience)
        try:
            there = relations.beginning_with(self._name)
            releases = relations.quoted(self._of(RELEASES))
            rows = relations.rows(
                f"SELECT release, run FROM {releases} ORDER BY published DESC, release DESC"
            )
            kept = {(int(release), run) for release, run in rows[: max(keep, 2)]}  # of the views
            for name, kind, mark in there.values():
                if mark is None or kind != TABLE or (mark.release, mark.run) in kept:
                    continue
                if _OF_RELEASE.fullmatch(name[len(self._name) :]) and relations.drop(name):
                    self._note_removed(name)
            relations.commit()
        except BaseException:
            with suppress(Exception):
                relations.rollback()
            raise

    def _note_removed(self, name: str) -> None:
        """Let the list of releases name no table that is gone."""
        releases, value = self._relations.quoted(self._of(RELEASES)), literal(name)
        self._relations.run(f"UPDATE {releases} SET assignments = NULL WHERE assignments = {value}")


def _whole_numbers(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return ids as whole numbers of 64 bits, or name one that is none, written as they are.

    Examples
    --------
    >>> _whole_numbers(pa.chunked_array([["7", "12"]])).to_pylist()
    [7, 12]
    >>> _whole_numbers(pa.chunked_array([["007"]]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.InvalidInputError: publish.sql.id_type bigint must go with ids that are ...
    """
    try:
        numbers = pc.cast(ids, pa.int64())
        different = pc.index(pc.not_equal(pc.cast(numbers, pa.string()), ids), True).as_py()
    except pa.ArrowInvalid:
        different = next(row for row, one in enumerate(ids.to_pylist()) if not _is_whole(one))
    if different >= 0:
        raise InvalidInputError(
            "publish.sql.id_type bigint must go with ids that are whole numbers, got "
            f"{ids[different].as_py()!r:.200}; let it be text"
        )
    return numbers


def _is_whole(text: str) -> bool:
    try:
        return str(int(text)) == text and -(2**63) <= int(text) < 2**63
    except ValueError:
        return False
