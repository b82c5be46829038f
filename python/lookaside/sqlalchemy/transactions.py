"""Puts keys into the transaction of a connection, in the way in which the invalidator reads them.

| database | keys are | |
|---|---|---|
| PostgreSQL | transactional messages | `lookaside_invalidate`; or rows of the outbox |
| MariaDB, MySQL | rows of the outbox | |
| SQLite | rows of the journal | |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from sqlalchemy import Connection, TableClause, bindparam, column, delete, false, insert, table, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Dialect
from sqlalchemy.types import LargeBinary, Text

from ..key_naming import JOURNAL_TABLE, OUTBOX_TABLE, batches
from .column_types import MYSQL_DIALECTS

KeyWriter = Callable[[Connection, Iterable[str]], None]

MESSAGES = text("SELECT lookaside_invalidate(VARIADIC CAST(:keys AS text[]))").bindparams(
    bindparam("keys", type_=ARRAY(Text))
)
JOURNAL = table(JOURNAL_TABLE, column("key", LargeBinary))
BINARY_OUTBOX = table(OUTBOX_TABLE, column("key", LargeBinary))
TEXT_OUTBOX = table(OUTBOX_TABLE, column("key", Text))


def key_writer(dialect: Dialect, by: Literal["message", "outbox"]) -> KeyWriter:
    """How keys are written in this dialect. A `ValueError` names a database that the invalidator does not read."""
    if dialect.name == "postgresql":
        return write_messages if by == "message" else text_row_writer
    if dialect.name in MYSQL_DIALECTS:
        return lambda connection, keys: write_rows(connection, BINARY_OUTBOX, map(str.encode, sorted(keys)))
    if dialect.name == "sqlite":
        return lambda connection, keys: write_rows(connection, JOURNAL, map(str.encode, sorted(keys)))
    raise ValueError(f"the invalidator does not read {dialect.name}; it reads PostgreSQL, MariaDB, MySQL and SQLite")


def write_messages(connection: Connection, keys: Iterable[str]) -> None:
    """As messages in the log, which store nothing."""
    for batch in batches(keys):
        connection.execute(MESSAGES, {"keys": batch})


def text_row_writer(connection: Connection, keys: Iterable[str]) -> None:
    """As rows of PostgreSQL's outbox."""
    write_rows(connection, TEXT_OUTBOX, sorted(keys))


def write_rows(connection: Connection, outbox: TableClause, keys: Iterable[object]) -> None:
    """As rows of a table."""
    rows = [{"key": key} for key in keys]
    if rows:
        connection.execute(insert(outbox), rows)


def lock_for_writing(connection: Connection) -> None:
    """Begins SQLite's one write transaction, so that what is read next is what the statement after it changes."""
    if connection.dialect.name == "sqlite":
        connection.execute(delete(JOURNAL).where(false()))
