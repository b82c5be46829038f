"""What an INSERT, UPDATE or DELETE shows before it runs: its table, the rows it is limited to, the columns it sets.

`values` below are those of one execution: `execute(statement, values)`, or one of many in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Delete, Insert, PrimaryKeyConstraint, Table, UniqueConstraint, Update
from sqlalchemy.dialects.postgresql.dml import OnConflictDoNothing as PostgresDoNothing
from sqlalchemy.dialects.sqlite.dml import OnConflictDoNothing as SqliteDoNothing
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList, ClauseElement

from .watched_tables import Identity

Values = Mapping[str, object]
# A value that only the database knows.
UNKNOWN = object()


def tables_of(statement: Insert | Update | Delete) -> Iterator[Table]:
    """The tables that the statement may change: more than one if it changes a join."""
    pending: list[Any] = [statement.table]
    while pending:
        selectable = pending.pop()
        if hasattr(selectable, "fullname"):
            yield selectable
        elif hasattr(selectable, "left"):
            pending += [selectable.left, selectable.right]
        elif hasattr(selectable, "element"):
            pending.append(selectable.element)


def changed_in_ctes(compiled: object) -> Iterator[Table]:
    """The tables that common table expressions of a compiled statement change."""
    for cte in getattr(compiled, "ctes", None) or ():
        if isinstance(cte.element, (Insert, Update, Delete)):
            yield from tables_of(cte.element)


def limited_identities(
    statement: Update | Delete, columns: tuple[Column, ...], executions: Iterable[Values]
) -> list[Identity] | None:
    """The primary keys that the condition demands, one for each execution; `None` if it does not demand any."""
    equal = dict(equalities(statement.whereclause, statement.table))
    names = [column.name for column in columns]
    if any(name not in equal for name in names):
        return None
    identities = [tuple(bound_value(equal[name], values) for name in names) for values in executions]
    return None if any(UNKNOWN in identity for identity in identities) else identities


def equalities(condition: ClauseElement | None, table: Any) -> Iterator[tuple[str, BindParameter]]:
    """The columns of the table that must be equal to a value, and the values."""
    match condition:
        case BooleanClauseList() if condition.operator is operators.and_:
            for part in condition.clauses:
                yield from equalities(part, table)
        case BinaryExpression() if condition.operator is operators.eq:
            for column, value in ((condition.left, condition.right), (condition.right, condition.left)):
                owner = getattr(getattr(column, "table", None), "fullname", None)
                if isinstance(value, BindParameter) and owner == table.fullname:
                    yield column.name, value


def bound_value(parameter: BindParameter, values: Values) -> object:
    """The value of a parameter in an execution."""
    if parameter.key in values:
        return values[parameter.key]
    return UNKNOWN if parameter.required else parameter.effective_value


def set_values(statement: Insert | Update, values: Values) -> dict[str, object]:
    """The columns that an execution sets, by name or key, with their values; `UNKNOWN` for expressions."""
    found: dict[str, object] = {}
    ordered = getattr(statement, "_ordered_values", None) or ()
    for column, value in [*(getattr(statement, "_values", None) or {}).items(), *ordered]:
        is_bound = isinstance(value, BindParameter)
        is_plain = not isinstance(value, ClauseElement) and not hasattr(value, "__clause_element__")
        name = getattr(column, "key", column)
        found[name] = bound_value(value, values) if is_bound else value if is_plain else UNKNOWN
    return found


def sets_any(statement: Update, columns: Iterable[Column], executions: Iterable[Values]) -> bool:
    """Whether the statement may set one of these columns."""
    sought = {name for column in columns for name in (column.name, column.key)}
    if any(column.onupdate is not None or column.server_onupdate is not None for column in columns):
        return True
    known = {name for column in statement.table.c for name in (column.name, column.key)}
    return any(
        name in sought or name not in known for values in executions for name in set_values(statement, values)
    ) or any(name in sought for values in executions for name in values)


def changes_keys(statement: Update | Delete, executions: Iterable[Values]) -> bool:
    """Whether rows go, or get other values in columns to which rows of other tables may refer."""
    return isinstance(statement, Delete) or sets_any(statement, unique_columns(statement.table), executions)


def unique_columns(table: Any) -> set[Column]:
    """The columns of all unique indexes."""
    constraints = [one for one in table.constraints if isinstance(one, (PrimaryKeyConstraint, UniqueConstraint))]
    unique = {column for constraint in constraints for column in constraint.columns}
    return unique | {column for index in table.indexes if index.unique for column in index.columns}


def multiple_rows(statement: Insert) -> list[Values]:
    """The rows of `insert(table).values([...])`."""
    rows = [row for group in getattr(statement, "_multi_values", ()) for row in group]
    return [{getattr(column, "key", column): value for column, value in row.items()} for row in rows]


def why_unknown(statement: Insert) -> str | None:
    """Why the keys of an INSERT cannot be known, whatever its values are; `None` if they can."""
    conflict = getattr(statement, "_post_values_clause", None)
    if statement.select is not None:
        return "its rows come from a SELECT"
    if conflict is not None and not isinstance(conflict, (PostgresDoNothing, SqliteDoNothing)):
        return "it may change rows that exist"
    prefixes = " ".join(str(prefix[0]) for prefix in getattr(statement, "_prefixes", ()))
    return "it may replace rows that exist" if "REPLACE" in prefixes.upper() else None
