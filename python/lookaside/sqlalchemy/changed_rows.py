"""Reads the rows that a statement changes, before it (locked, so that no other transaction changes them) and after it.

An old value in the program's memory may be older than the row: another transaction may have changed it since. So old
values are read from the database, under the lock that the statement itself takes a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, Delete, Select, Table, Update, and_, or_, select

from ..key_naming import KeysUnknownError, WrittenRow, write_row
from .statements import Values, changes_keys
from .transactions import lock_for_writing
from .watched_tables import Identity, RowKeys

# The most rows that are looked up by one SELECT.
IDENTITIES_PER_SELECT_MAX = 500


def read_matching(
    connection: Connection, rows: RowKeys, statement: Update | Delete, executions: Iterable[Values], rows_max: int
) -> dict[Identity, WrittenRow]:
    """Locks and reads the rows that the condition of a statement matches."""
    lock_for_writing(connection)
    executions = list(executions)
    sought = row_query(rows)
    if statement.whereclause is not None:
        sought = sought.where(statement.whereclause)
    keeps_keys = not changes_keys(statement, executions)
    found: dict[Identity, WrittenRow] = {}
    for values in executions:
        locked = for_change(sought.limit(rows_max + 1), rows.table, keeps_keys=keeps_keys)
        found |= fetch(connection, rows, locked, dict(values))
        if len(found) > rows_max:
            raise KeysUnknownError(
                f"{rows.owner}: one statement changes over {rows_max} rows (rows_max); change them in parts"
            )
    return found


def read_identities(
    connection: Connection,
    rows: RowKeys,
    identities: Sequence[Identity],
    *,
    is_before: bool,
    keeps_keys: bool = False,
) -> dict[Identity, WrittenRow]:
    """Reads rows by their primary keys, and locks them before a change."""
    if is_before:
        lock_for_writing(connection)
    ordered = sorted(set(identities), key=repr)
    found: dict[Identity, WrittenRow] = {}
    for at in range(0, len(ordered), IDENTITIES_PER_SELECT_MAX):
        sought = row_query(rows).where(is_one_of(rows, ordered[at : at + IDENTITIES_PER_SELECT_MAX]))
        found |= fetch(
            connection, rows, for_change(sought, rows.table, keeps_keys=keeps_keys) if is_before else sought, {}
        )
    return found


def for_change(query: Select, table: Table, *, keeps_keys: bool) -> Select:
    """Locks rows as the statement itself will.

    PostgreSQL inserts rows that refer to a locked one meanwhile, if the statement keeps the row and its keys.
    """
    return query.with_for_update(of=table, key_share=keeps_keys)


def row_query(rows: RowKeys) -> Select:
    """Selects the primary key, then the columns of the templates. Rows are locked in one order by all transactions."""
    read = [column.read.label(f"lookaside_{index}") for index, column in enumerate(rows.columns.values())]
    return select(*rows.identity_columns, *read).select_from(rows.source).order_by(*rows.identity_columns)


def is_one_of(rows: RowKeys, identities: Iterable[Identity]) -> ColumnElement[bool]:
    columns = rows.identity_columns
    if len(columns) == 1:
        return columns[0].in_([value for (value,) in identities])
    return or_(*(and_(*(column == value for column, value in zip(columns, one, strict=True))) for one in identities))


def fetch(connection: Connection, rows: RowKeys, query: Select, values: dict) -> dict[Identity, WrittenRow]:
    width = len(rows.identity_columns)
    writers = {name: column.write for name, column in rows.columns.items()}
    return {
        tuple(row[:width]): write_row(writers, row[width:], rows.owner)
        for row in connection.execute(query, values).all()
    }
