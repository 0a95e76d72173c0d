"""A job for documents in a table of a database: found there, and its files proposed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from hmrf_dask.databases.connection import Database, open_database
from hmrf_dask.databases.statements import quoted, select_of
from hmrf_dask.databases.tables import Table, first_rows, tables_of
from hmrf_dask.documents.first_records import MOST, FirstRecords, id_column, text_columns
from hmrf_dask.errors import ConfigurationError, InvalidInputError, counted, meant
from hmrf_dask.jobs.new_job import (
    NOTHING_SAID,
    SUFFIX,
    Documents,
    NewJob,
    Wanted,
    as_yaml,
    chosen_columns,
    documents_lines,
    job_text,
    made_before,
    named_after,
    new_job_in,
    places_of,
    write_new,
)

_SAMPLED: Final = 30  # tables whose first rows are read, where nobody names one
_LISTED: Final = 12
_PLAIN_TYPES: Final = {"bigint", "uuid", "numeric"}  # of ids, which publishing can give back
_WHOLE: Final = ("integer", "smallint", "bigint", "int", "int8", "int4", "int2", "serial")


def job_for_table(url_env: str, table: str | None = None, wanted: Wanted = NOTHING_SAID) -> NewJob:
    """Make a job for documents in a database, in a new folder here; one that is there stays.

    Parameters
    ----------
    url_env : str
        The environment variable with the address of the database.
    table : str, optional
        The table or view, with its schema and a dot before it where it needs one; without it the
        only one that looks like documents.
    wanted : Wanted, optional

    Returns
    -------
    NewJob

    Raises
    ------
    ConfigurationError
        No table looks like documents, or several do: then somebody must say it.
    """
    with open_database(url_env) as database:
        found, records = _chosen(database, url_env, table)
        made = new_job_in(os.path.abspath(f"{named_after(found.name)}{SUFFIX}"))
        if before := made_before(made, wanted):
            return before
        documents = _documents(found, records, wanted)
        query = _query(database, found, documents.columns)
    home = os.path.dirname(made.job)
    manifest = _manifest(found, documents, url_env, query)
    write_new(home, manifest, job_text(documents, wanted, _publishing(found, documents, url_env)))
    about = "rows not counted" if found.n_rows is None else f"about {counted(found.n_rows, 'row')}"
    return NewJob(*places_of(made), f"table {found.shown}, {about}: {made.job}", documents.columns)


# ---- which table


def _chosen(database: Database, url_env: str, name: str | None) -> tuple[Table, FirstRecords]:
    """Return the table that is meant, with its first rows."""
    tables = tables_of(database)
    if name is not None:
        found = _named(tables, name, url_env)
        return found, _records(database, found)
    wordy = [one for one in tables if any(column.is_text for column in one.columns)]
    largest = sorted(wordy, key=lambda one: -(one.n_rows or 0))[:_SAMPLED]
    sampled = [(one, _records(database, one)) for one in largest]
    likely = [(one, records) for one, records in sampled if _has_documents(one, records)]
    if len(likely) == 1:
        return likely[0]
    shown = [one for one, _ in likely] or wordy
    what = "several" if likely else "none that looks so"
    raise ConfigurationError(
        f"there must be one table of documents in the database of {url_env}, with an id and a "
        f"text, got {what}; name one by --table: {_listed(shown) or 'there are no tables'}"
    )


def _named(tables: Sequence[Table], name: str, url_env: str) -> Table:
    for one in tables:
        if name == one.shown:
            return one
    same = [one for one in tables if name == one.name]
    if len(same) == 1:
        return same[0]
    known = [one.shown for one in tables]
    raise ConfigurationError(
        f"--table must be a table or view that may be read in the database of {url_env}, got "
        f"{name!r}{meant(name, known)}; there are {_listed(same or tables) or 'none'}"
    )


def _listed(tables: Sequence[Table]) -> str:
    """Return tables as a person looks for one among them."""
    shown = []
    for one in tables[:_LISTED]:
        rows = "" if one.n_rows is None else f"about {one.n_rows:,} rows; "
        names = ", ".join(column.name for column in one.columns[:8])
        more = ", …" if len(one.columns) > 8 else ""
        shown.append(f"{one.shown} ({rows}{names}{more})")
    return "; ".join(shown) + ("; …" if len(tables) > _LISTED else "")


def _records(database: Database, table: Table) -> FirstRecords:
    rows = first_rows(database, table, MOST)
    names = tuple(column.name for column in table.columns)
    return FirstRecords(names, rows, len(rows) < MOST)


def _has_documents(table: Table, records: FirstRecords) -> bool:
    key = _key(table, records, None)
    return bool(key) and bool(text_columns(records, key[0]))


def _key(table: Table, records: FirstRecords, said: str | None) -> tuple[str, ...]:
    """Return the columns that name a row: what is said, the primary key, or one that looks so."""
    if said is not None or not table.key:
        likely = said or id_column(records)
        return () if likely is None else (likely,)
    return table.key


# ---- the two files


def _documents(table: Table, records: FirstRecords, wanted: Wanted) -> Documents:
    key = _key(table, records, wanted.id)
    if not key:
        raise InvalidInputError(
            f"table {table.shown} must have a primary key, or a column whose values are all unlike,"
            " got neither; name it by --id, or make a view that has one"
        )
    columns = chosen_columns(f"table {table.shown}", records, replace(wanted, id=key[0]))
    used = {*key, *columns["text"], table.changed, table.deleted}
    columns["other"] = tuple(name for name in columns["other"] if name not in used)
    columns["text"] = tuple(name for name in columns["text"] if name not in key)
    texts = [text for name in columns["text"] for text in records.values(name)]
    n_documents = len(records.rows) if records.complete else None
    return Documents(
        table.name, "sql", (), texts, n_documents=n_documents, records=records,
        columns={**columns, "id": ", ".join(key), "key": key},
    )  # fmt: skip


def _query(database: Database, table: Table, columns: dict[str, Any]) -> str:
    """Return the query of the documents, with quotes where names do not go without."""
    names = [*columns["key"], *columns["text"], *columns["keep"], table.changed, table.deleted]
    wanted = list(dict.fromkeys(name for name in names if name is not None))
    query = f"select {', '.join(wanted)} from {table.shown}"
    try:
        if database.schema(select_of(query)).names == wanted:
            return query
    except ConfigurationError:  # a reserved word, capitals, spaces
        pass
    return f"select {', '.join(map(quoted, wanted))} from {table.quoted}"


def _manifest(table: Table, documents: Documents, url_env: str, query: str) -> str:
    columns, key = documents.columns, documents.columns["key"]
    lines_of_documents = documents_lines({**columns, "other": ()})
    lines = [
        "# Where the documents are. `hmrf-dask check` says what is found there.",
        "$schema: hmrf-dask/manifest/v1",
        f"name: {as_yaml(named_after(table.name))}",
        "resources:",
        f"  - name: {as_yaml(named_after(table.name))}",
        "    sql:",
        f"      query: {as_yaml(query)}",
        f"      url_env: {url_env} # holds the address; a password is there or in .pgpass",
        f"      key: {as_yaml(key[0] if len(key) == 1 else list(key))}",
        *_what_changes(table),
        *(line for line in lines_of_documents if len(key) == 1 or not line.startswith("  id:")),
        *_not_used(columns["other"]),
        "# answers: # what people know of pairs, in a table that they write into",
        "#   sql:",
        "#     query: select a, b, kind from answers # ids, ids, same or different",
        f"#     url_env: {url_env}",
    ]
    return "\n".join([*lines, ""])


def _not_used(columns: Sequence[str]) -> Iterator[str]:
    if columns:
        yield f"  # keep: {as_yaml(list(columns))} # to have next to the clusters; and in the query"


def _what_changes(table: Table) -> Iterator[str]:
    if table.changed is not None:
        yield f"      changed: {as_yaml(table.changed)} # later runs read rows that are newer"
    if table.deleted is not None:
        yield f"      deleted: {as_yaml(table.deleted)} # rows that have it are gone"


def _publishing(table: Table, documents: Documents, url_env: str) -> list[str]:
    """Return how readers of the database would see clusters, for a role that may make tables."""
    kind = table.type_of(documents.columns["id"]).lower()  # several columns become a text
    id_type = "bigint" if kind in _WHOLE else kind if kind in _PLAIN_TYPES else "text"
    view = as_yaml(f"clusters_of_{named_after(table.name).replace('-', '_')}"[:45])
    return [
        "# publish: # each release as a view in the database, where this role may make tables",
        f"#   sql: {{table: {view}, url_env: {url_env}, id_type: {id_type}}}",
    ]
