"""The rows that the database changes with a deleted row: those that refer to it by ON DELETE CASCADE or SET NULL.

No statement names these rows, so they are looked up before the DELETE, from table to table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Delete, ForeignKeyConstraint, MetaData, Table, select, tuple_

from ..key_naming import KeysUnknownError, WrittenRow
from .changed_rows import IDENTITIES_PER_SELECT_MAX, for_change, read_identities
from .statements import Values
from .transactions import lock_for_writing
from .watched_tables import Identity, RowKeys

ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT")

# The foreign keys by which a table of this name changes others.
References = Mapping[str, list[ForeignKeyConstraint]]


@dataclass(frozen=True)
class CascadedRows:
    """Rows that the database changes, as they were."""

    rows: RowKeys
    before: dict[Identity, WrittenRow]


def references_to_watched(metadata: MetaData, tables: Mapping[str, list[RowKeys]]) -> References:
    """The foreign keys over which a DELETE reaches a table with keys."""
    found: dict[str, list[ForeignKeyConstraint]] = {}
    pending, seen = list(tables), set()
    while pending:
        name = pending.pop()
        if name in seen or name not in metadata.tables:
            continue
        seen.add(name)
        for constraint in metadata.tables[name].foreign_key_constraints:
            if (constraint.ondelete or "").upper() in ACTIONS:
                found.setdefault(constraint.referred_table.fullname, []).append(constraint)
                pending.append(constraint.referred_table.fullname)
    return found


def read_cascaded(
    connection: Connection,
    references: References,
    tables: Mapping[str, list[RowKeys]],
    statement: Delete,
    executions: Iterable[Values],
    rows_max: int,
) -> list[CascadedRows]:
    """Locks the rows that a DELETE matches, and those that the database changes with them; reads the latter."""
    lock_for_writing(connection)
    table: Any = statement.table
    query = for_change(select(*columns_of(table, references)).select_from(table), table, keeps_keys=False)
    if statement.whereclause is not None:
        query = query.where(statement.whereclause)
    pending = [(table, [row for values in executions for row in connection.execute(query, dict(values)).mappings()])]
    identities: dict[str, dict[Identity, None]] = {}
    while pending:
        table, rows = pending.pop()
        for constraint in references.get(table.fullname, ()):
            referring = constraint.table
            known = identities.setdefault(referring.fullname, {})
            found = [
                row
                for row in referring_rows(connection, constraint, rows, references)
                if identity_of(referring, row) not in known
            ]
            known.update(dict.fromkeys(identity_of(referring, row) for row in found))
            if sum(map(len, identities.values())) > rows_max:
                raise KeysUnknownError(f"{statement.table}: a DELETE changes over {rows_max} rows of other tables")
            if found and (constraint.ondelete or "").upper() == "CASCADE":
                pending.append((referring, found))
    return [
        CascadedRows(rows, read_identities(connection, rows, list(found), is_before=True, keeps_keys=True))
        for name, found in identities.items()
        for rows in (tables.get(name, ()) if found else ())
    ]


def columns_of(table: Table, references: References) -> list:
    """The primary key, and the columns that others refer to."""
    columns = dict.fromkeys(table.primary_key.columns)
    for constraint in references.get(table.fullname, ()):
        columns.update(dict.fromkeys(element.column for element in constraint.elements))
    return list(columns)


def referring_rows(
    connection: Connection, constraint: ForeignKeyConstraint, rows: list, references: References
) -> list:
    """Locks and reads the rows that refer to these by a foreign key."""
    referring = constraint.table
    is_deleting = (constraint.ondelete or "").upper() == "CASCADE"
    local = tuple(constraint.columns)
    values = list(dict.fromkeys(tuple(row[element.column.name] for element in constraint.elements) for row in rows))
    found: list[Any] = []
    for at in range(0, len(values), IDENTITIES_PER_SELECT_MAX):
        part = values[at : at + IDENTITIES_PER_SELECT_MAX]
        is_referring = local[0].in_([one for (one,) in part]) if len(local) == 1 else tuple_(*local).in_(part)
        query = select(*columns_of(referring, references)).where(is_referring)
        found += connection.execute(for_change(query, referring, keeps_keys=not is_deleting)).mappings().all()
    return found


def identity_of(table: Table, row: Mapping) -> Identity:
    return tuple(row[column.name] for column in table.primary_key.columns)
