"""Connections to databases: an address out of the environment, and transactions that only read."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from hmrf_dask.databases.duckdb_files import close_duckdb, connect_duckdb
from hmrf_dask.databases.problems import explained
from hmrf_dask.databases.statements import literal
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.redaction import shortened

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]{0,199}"
TIMEOUT: Final = 1800.0  # seconds that a statement may take
_LOCK_TIMEOUT = 30.0  # seconds that one may wait for others
_DIALECTS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
    "duckdb": "duckdb",
}
_BATCH_BYTES = 4 * 2**20
_FORMS = "postgresql://host/name, sqlite:///tickets.db or duckdb:///tickets.duckdb"
# Of an address that does not say otherwise: a dead network is noticed in minutes, not hours.
_PATIENCE = {
    "connect_timeout": "20",
    "keepalives_idle": "60",
    "keepalives_interval": "20",
    "keepalives_count": "6",
    "client_encoding": "UTF8",
    "fallback_application_name": "hmrf-dask",
}
# Values look the same as texts, whatever the settings of server, role and client.
_AS_TEXT = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
}


def checked_variable(name: str) -> str:
    """Return the name of an environment variable; refuse an address, which may have a password.

    Examples
    --------
    >>> checked_variable("TICKETS_URL")
    'TICKETS_URL'
    >>> checked_variable("postgresql://me:hunter2@host/tickets")
    Traceback (most recent call last):
    hmrf_dask.errors.ConfigurationError: url_env must be the name of an environment variable ...
    """
    if not re.fullmatch(VARIABLE, name):
        raise ConfigurationError(
            "url_env must be the name of an environment variable that holds the address of a "
            f"database, never the address itself, got {shortened(name)}; export the address under "
            "a name such as TICKETS_URL, and give that name"
        )
    return name


def address_of(
    url_env: str, schemes: Collection[str] = tuple(_DIALECTS), forms: str = _FORMS
) -> str:
    """Return the address of a database out of an environment variable."""
    url = os.environ.get(checked_variable(url_env), "").strip()
    if "://" not in url or url.partition("://")[0] not in schemes:
        # Never more than the scheme: the variable may be another one, and hold a secret.
        scheme = re.match("[a-z][a-z0-9+]{1,20}(?=://)", url)
        got = f"{scheme[0]}://…" if scheme else "another text" if url else "nothing"
        raise ConfigurationError(
            f"the environment variable {url_env} must hold the address of a database, such as "
            f"{forms}, got {got}; export it where the command and its workers run"
        )
    return url


def dialect_of(url: str) -> str | None:
    """Return the kind of a database by its address, None for none that is known.

    Examples
    --------
    >>> dialect_of("postgres://host/tickets"), dialect_of("sqlite:///a.db"), dialect_of("x.db")
    ('postgresql', 'sqlite', None)
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    return _DIALECTS.get(scheme)


class Database:
    """A connection in a transaction; what goes wrong is said in words, see `explained`."""

    def __init__(self, url_env: str, dialect: str, connection: Any) -> None:
        self.url_env = url_env
        self.dialect = dialect
        self.connection = connection  # of ADBC's DBAPI

    def run(self, statement: str, values: Sequence[Any] | None = None) -> None:
        """Run a statement that has no rows."""
        with explained(self.url_env), self.connection.cursor() as cursor:
            cursor.execute(statement, values)

    def rows(self, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, which are few."""
        with explained(self.url_env), self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def texts(self, statement: str) -> list[list[str]]:
        """Return rows of texts, without those that hold bytes which are none."""
        with explained(self.url_env), self.connection.cursor() as cursor:
            cursor.execute(statement)
            table = cursor.fetch_arrow_table()
        rows = []
        for place in range(len(table)):
            with suppress(UnicodeDecodeError):
                rows.append([str(column[place].as_py()) for column in table.columns])
        return rows

    def schema(self, statement: str) -> pa.Schema:
        """Return the columns of a select."""
        with explained(self.url_env), self.connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {statement} AS q LIMIT 0")
            return cursor.fetch_arrow_table().schema

    def batches(
        self, statement: str, values: Sequence[Any] | None = None, rows: int = 10_000
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement, a few at a time."""
        with self.connection.cursor() as cursor:
            with explained(self.url_env):
                cursor.adbc_statement.set_options(**self._options(rows))
                cursor.execute(statement, values)
                batches = cursor.fetch_record_batch()
            while (batch := self._next(batches)) is not None:
                yield from (batch.slice(first, rows) for first in range(0, len(batch), rows))

    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with explained(self.url_env):
            return next(batches, None)

    def _options(self, rows: int) -> dict[str, Any]:
        if self.dialect == "sqlite":
            return {"adbc.sqlite.query.batch_rows": rows}
        if self.dialect == "duckdb":
            return {}  # its batches have 2,048 rows
        return {"adbc.postgresql.batch_size_hint_bytes": _BATCH_BYTES}


@contextmanager
def open_database(
    url_env: str, *, writes: bool = False, snapshot: str = "", timeout: float | None = None
) -> Iterator[Database]:
    """Give a connection to a database in a transaction; one that only reads sees one state of it.

    Parameters
    ----------
    url_env : str
        The environment variable that holds the address.
    writes : bool
        Whether the transaction may write; `Database.connection.commit()` ends it. Where nobody
        says so nothing is written.
    snapshot : str
        What `exported_snapshot` named: the transaction sees what that one sees.
    timeout : float or None
        Seconds that a statement may take, where the database can stop one; `TIMEOUT` by default.
    """
    url = address_of(url_env)
    dialect = dialect_of(url) or ""
    with explained(url_env):
        connection = _connect(url, dialect, writes=writes)
    try:
        database = Database(url_env, dialect, connection)
        _prepare(database, snapshot, timeout or TIMEOUT, writes=writes)
        yield database
    finally:
        with suppress(Exception):  # it may be the connection that failed
            connection.rollback()
        with suppress(Exception):
            close_duckdb(connection) if dialect == "duckdb" else connection.close()


def _connect(url: str, dialect: str, *, writes: bool) -> Any:
    if dialect == "duckdb" and writes:
        raise ConfigurationError(
            "a DuckDB database can only be read here, not written to; publish to PostgreSQL or "
            "SQLite, or load the release's Parquet files into DuckDB"
        )
    try:
        if dialect == "duckdb":
            return connect_duckdb(_path_of(url))
        if dialect == "sqlite":
            import adbc_driver_sqlite.dbapi as sqlite

            return sqlite.connect(f"file:{quote(_path_of(url))}?mode={'rw' if writes else 'ro'}")
        import adbc_driver_postgresql.dbapi as postgresql
    except ImportError as error:
        raise ConfigurationError(
            f"a {dialect} database needs its driver ({error}); install hmrf-dask[{dialect}]"
        ) from None
    more = "&".join(f"{key}={value}" for key, value in _PATIENCE.items() if f"{key}=" not in url)
    return postgresql.connect(f"{url}{'&' if '?' in url else '?'}{more}")


def _path_of(url: str) -> str:
    """Return the file of a database that is one; one that is not there is not made."""
    path = os.path.abspath(re.sub("^/", "", url.partition("://")[2]))
    if not os.path.isfile(path):
        raise ConfigurationError(
            f"there is no database {path}; correct the address ({dialect_of(url)}:///…)"
        )
    return path


def _prepare(database: Database, snapshot: str, timeout: float, *, writes: bool) -> None:
    """Begin the transaction: what it may do, what it sees, and how long it waits."""
    if database.dialect == "duckdb":
        database.run("SET TimeZone = 'UTC'")
        return
    if database.dialect == "sqlite":
        database.rows(f"PRAGMA busy_timeout = {int(_LOCK_TIMEOUT * 1000)}")
        if not writes:
            database.run("PRAGMA query_only = 1")
        return
    settings = {"statement_timeout": f"{int(timeout * 1000)}", **_AS_TEXT}
    settings["lock_timeout"] = f"{int(_LOCK_TIMEOUT * 1000)}"
    settings["idle_in_transaction_session_timeout"] = "0"  # the one with the snapshot only waits
    if not writes:
        database.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if snapshot:
            database.run(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
    if database.rows("SELECT current_setting('server_encoding')") == [("SQL_ASCII",)]:
        settings["client_encoding"] = "SQL_ASCII"  # it would refuse all rows for a bad one
    calls = [f"set_config({literal(key)}, {literal(one)}, true)" for key, one in settings.items()]
    database.rows(f"SELECT {', '.join(calls)}")


def exported_snapshot(database: Database) -> str:
    """Return the name of what a transaction sees, for others; "" where there are no such names."""
    if database.dialect != "postgresql":
        return ""
    return str(database.rows("SELECT pg_export_snapshot()")[0][0])
