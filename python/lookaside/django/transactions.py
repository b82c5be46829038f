"""Puts keys into the transaction of a connection, in the way in which the invalidator reads them.

| database | keys are | |
|---|---|---|
| PostgreSQL | transactional messages | `lookaside_invalidate`; or rows of the outbox |
| MariaDB, MySQL | rows of the outbox | |
| SQLite | rows of the journal | |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper

from ..key_naming import JOURNAL_TABLE, OUTBOX_TABLE, batches

MESSAGES = "SELECT lookaside_invalidate(VARIADIC %s::text[])"


def write_keys(connection: BaseDatabaseWrapper, keys: Iterable[str], by: str) -> None:
    """Names the keys. The caller has opened a transaction."""
    with connection.cursor() as cursor:
        for batch in batches(keys):
            if connection.vendor == "postgresql" and by == "message":
                cursor.execute(MESSAGES, [batch])
            else:
                table, encode = outbox(connection)
                key = connection.ops.quote_name("key")
                rows = ", ".join(["(%s)"] * len(batch))
                cursor.execute(f"INSERT INTO {table} ({key}) VALUES {rows}", [encode(one) for one in batch])


def outbox(connection: BaseDatabaseWrapper) -> tuple[str, Callable[[str], str | bytes]]:
    """The table whose rows name keys, and how it holds them."""
    match connection.vendor:
        case "postgresql":
            return OUTBOX_TABLE, str
        case "mysql":
            return OUTBOX_TABLE, str.encode
        case "sqlite":
            return JOURNAL_TABLE, str.encode
    raise ImproperlyConfigured(
        f"the invalidator does not read {connection.vendor}; it reads PostgreSQL, MariaDB, MySQL and SQLite"
    )


def lock_for_writing(connection: BaseDatabaseWrapper) -> None:
    """Begins SQLite's one write transaction, so that what is read next is what the statement after it changes."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {JOURNAL_TABLE} WHERE 0")
