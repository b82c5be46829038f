"""Names the keys of every INSERT, UPDATE and DELETE that an engine executes, in the transaction of the statement.

It sees statements as SQLAlchemy's constructs: those of a session's flush, of `session.execute(update(User))`, of
relationships, and of connections without a session. Text (`text("UPDATE ...")`) is not examined.

```
before the statement:   lock the rows and read their columns  ->  their keys, as they are
the statement
after it:               read the rows again, if it may have set one of these columns  ->  their keys, as they are now
                        write the keys into the transaction
```

A key of integers or UUIDs of the primary key is known without reading.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection, Delete, Engine, Insert, Table, Update, event
from sqlalchemy.orm import DeclarativeBase, Session

from ..key_naming import ROWS_MAX, Naming, Statistics, WrittenRow
from ..key_templates import check_key
from . import statements
from .cascades import CascadedRows, read_cascaded, references_to_watched
from .changed_rows import read_identities, read_matching
from .commit_refusals import CommitRefusals
from .statements import UNKNOWN, Values
from .transactions import key_writer
from .watched_tables import Identity, RowKeys, watched_tables

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

# In `Connection.info`: what is known of the statement that runs.
CHANGE = "lookaside_change"


@dataclass
class Change:
    """What was known of the rows of a statement before it ran."""

    table: str
    # For each of the table's keys: the rows before, by primary key.
    before: list[dict[Identity, WrittenRow]] = field(default_factory=list)
    # The primary keys that the condition demands, one for each execution; `None` if it does not demand any.
    limited: list[Identity] | None = None
    # Rows of other tables, which the database changes with those of a DELETE.
    cascaded: list[CascadedRows] = field(default_factory=list)


class Watcher:
    """Puts keys into the transactions of an engine; `watch` makes it."""

    def __init__(
        self, engine: Engine, base: type[DeclarativeBase], by: Literal["message", "outbox"], naming: Naming
    ) -> None:
        self._engine = weakref.ref(engine)
        self._naming = naming
        self._tables = watched_tables(base, engine.dialect)
        self._references = references_to_watched(base.metadata, self._tables)
        self._write = key_writer(engine.dialect, by)
        self._refusals = CommitRefusals()
        self._listeners: dict[str, Callable[..., Any]] = {
            "before_execute": self._before_execute,
            "before_cursor_execute": self._before_cursor_execute,
            "after_execute": self._after_execute,
            **self._refusals.listeners,
        }
        for name, listener in self._listeners.items():
            event.listen(engine, name, listener, retval=name == "before_execute")

    @property
    def statistics(self) -> Statistics:
        """Counters of this process."""
        return self._naming.statistics

    def name_keys(self, session: Session | Connection, *keys: str) -> None:
        """Names further keys in the transaction of a session or connection, such as those of a list.

        Raises `InvalidKeyError`. With an `AsyncSession`: `await session.run_sync(watcher.name_keys, "front_page")`.
        """
        for key in keys:
            check_key(key)
        connection = session if isinstance(session, Connection) else session.connection()
        self._check_transaction(connection, "name_keys")
        self._name(connection, set(keys))

    def stop(self) -> None:
        """Names no more keys."""
        engine = self._engine()
        for name, listener in self._listeners.items() if engine is not None else ():
            event.remove(engine, name, listener)

    def _before_execute(
        self, connection: Connection, statement: Any, multiparams: Any, params: Any, _options: Any
    ) -> tuple[Any, Any, Any]:
        if isinstance(statement, (Insert, Update, Delete)):
            # A statement that failed has left it.
            connection.info.pop(CHANGE, None)
            executions = list(multiparams) or [params]
            changed = [table for table in statements.tables_of(statement) if self._may_name(statement, table)]
            if changed:
                self._check_transaction(connection, changed[0].fullname)
                statement = self._prepare(connection, statement, changed, executions)
        return statement, multiparams, params

    def _before_cursor_execute(
        self, _connection: Connection, _cursor: Any, _statement: str, _parameters: Any, context: Any, _many: bool
    ) -> None:
        for table in statements.changed_in_ctes(getattr(context, "compiled", None)):
            if table.fullname in self._tables:
                self._naming.report_unknown(
                    f"a common table expression changes {table.fullname}; execute it as a statement of its own"
                )

    def _after_execute(
        self, connection: Connection, statement: Any, multiparams: Any, params: Any, _options: Any, result: Any
    ) -> None:
        if not isinstance(statement, (Insert, Update, Delete)):
            return
        change = connection.info.pop(CHANGE, None)
        if change is None or change.table not in {table.fullname for table in statements.tables_of(statement)}:
            return
        try:
            self._name_keys_of(connection, change, statement, list(multiparams) or [params], result)
        except Exception as why:
            # The rows are changed already: a program that ignores this must not commit them.
            self._refusals.refuse_commit(connection, why)
            raise

    def _name_keys_of(
        self, connection: Connection, change: Change, statement: Any, executions: list[Values], result: Any
    ) -> None:
        watched = self._tables.get(change.table, [])
        if isinstance(statement, Insert):
            identities = self._inserted(watched[0], statement, result)
            after = [self._rows(connection, rows, identities) for rows in watched]
        else:
            self._check_count(watched, change, result)
            after = [{}] * len(watched)
            if isinstance(statement, Update):
                after = [
                    self._updated(connection, rows, before, change, statement, executions)
                    for rows, before in zip(watched, change.before, strict=True)
                ]
        before = change.before or [{}] * len(watched)
        for cascaded in change.cascaded:
            watched, before = [*watched, cascaded.rows], [*before, cascaded.before]
            after.append(self._rows(connection, cascaded.rows, cascaded.before, is_read=True))
        self._name_changes(connection, watched, before, after)

    def _may_name(self, statement: object, table: Table) -> bool:
        """Whether a change of the table makes keys stale, its own or those of rows that are deleted with its rows."""
        deletes_others = isinstance(statement, Delete) and table.fullname in self._references
        return deletes_others or table.fullname in self._tables

    def _prepare(self, connection: Connection, statement: Any, changed: list[Table], executions: list[Values]) -> Any:
        """Reads what is known only before the statement. Returns the statement that is executed."""
        table = changed[0]
        change = Change(table.fullname)
        if isinstance(statement, Insert):
            why = statements.why_unknown(statement)
            if why is not None:
                self._naming.report_unknown(f"{table.fullname}: the keys of an INSERT cannot be known: {why}")
                return statement
            if can_return_identities(statement, connection, executions):
                statement = statement.return_defaults(*table.primary_key.columns)
        elif statement.table is not table:
            self._naming.report_unknown(f"{table.fullname}: a statement changes several tables")
            return statement
        else:
            for rows in self._tables.get(table.fullname, ()):
                change.before.append(self._read_before(connection, rows, change, statement, executions))
            if isinstance(statement, Delete) and table.fullname in self._references:
                change.cascaded = read_cascaded(
                    connection, self._references, self._tables, statement, executions, self._naming.rows_max
                )
        connection.info[CHANGE] = change
        return statement

    def _read_before(
        self,
        connection: Connection,
        rows: RowKeys,
        change: Change,
        statement: Update | Delete,
        executions: list[Values],
    ) -> dict[Identity, WrittenRow]:
        """The rows before an UPDATE or DELETE."""
        identities = statements.limited_identities(statement, rows.identity_columns, executions)
        change.limited = identities
        if identities is None:
            return read_matching(connection, rows, statement, executions, self._naming.rows_max)
        known = known_rows(rows, identities)
        if known is not None:
            return known
        keeps_keys = not statements.changes_keys(statement, executions)
        return read_identities(connection, rows, identities, is_before=True, keeps_keys=keeps_keys)

    def _updated(
        self,
        connection: Connection,
        rows: RowKeys,
        before: dict[Identity, WrittenRow],
        change: Change,
        statement: Update,
        executions: list[Values],
    ) -> dict[Identity, WrittenRow]:
        """The rows after an UPDATE, as far as it may have set columns of their keys."""
        identity_columns = rows.identity_columns
        if not statements.sets_any(statement, [column.column for column in rows.columns.values()], executions):
            return {}
        if not statements.sets_any(statement, identity_columns, executions):
            return self._rows(connection, rows, list(before))
        if change.limited is not None:
            moved = list(zip(change.limited, executions, strict=True))
        else:
            moved = [(identity, values) for values in executions for identity in before]
        identities = [moved_identity(identity, identity_columns, statement, values) for identity, values in moved]
        if any(UNKNOWN in identity for identity in identities):
            self._naming.report_unknown(f"{rows.owner}: an UPDATE sets the primary key by an expression")
            identities = [identity for identity in identities if UNKNOWN not in identity]
        return self._rows(connection, rows, identities)

    def _inserted(self, rows: RowKeys, statement: Insert, result: Any) -> list[Identity]:
        """The primary keys of the rows of an INSERT."""
        names = [column.key for column in rows.identity_columns]
        several = statements.multiple_rows(statement)
        if several:
            identities = [tuple(row.get(name) for name in names) for row in several]
        elif result.context._is_explicit_returning and not result.context._is_supplemental_returning:
            identities = [tuple(row.get(name) for name in names) for row in result.context.compiled_parameters]
        else:
            identities = [tuple(row) for row in result.inserted_primary_key_rows if row is not None]
        known = [identity for identity in identities if is_known(identity)]
        if len(known) < len(identities) and getattr(statement, "_post_values_clause", None) is None:
            self._naming.report_unknown(
                f"{rows.owner}: the primary keys of inserted rows are not known; insert them by a session, or give the "
                "values as a list of parameters, or with their primary keys"
            )
        return known

    def _rows(
        self, connection: Connection, rows: RowKeys, identities: Iterable[Identity], *, is_read: bool = False
    ) -> dict[Identity, WrittenRow]:
        """Rows that this transaction has written, as they are now; read if they may be gone."""
        sought = list(identities)
        known = None if is_read else known_rows(rows, sought)
        return read_identities(connection, rows, sought, is_before=False) if known is None else known

    def _check_count(self, watched: list[RowKeys], change: Change, result: Any) -> None:
        """Another transaction may have added rows that match since they were read."""
        read = [len(old) for rows, old in zip(watched, change.before, strict=True) if rows.source is rows.table]
        repeated = len(change.limited or ()) - len(set(change.limited or ()))
        seen = min(read, default=result.rowcount) + repeated
        if result.rowcount > seen:
            self._naming.report_unknown(
                f"{change.table}: {result.rowcount} rows were changed, of which {seen} were there when their keys were "
                "read; run the transaction again"
            )

    def _name_changes(
        self,
        connection: Connection,
        watched: list[RowKeys],
        before: list[dict[Identity, WrittenRow]],
        after: list[dict[Identity, WrittenRow]],
    ) -> None:
        keys: set[str] = set()
        for rows, old, new in zip(watched, before, after, strict=True):
            keys |= self._naming.keys_of_changes(rows.owner, rows.templates, old.values(), new.values())
        self._name(connection, keys)

    def _name(self, connection: Connection, keys: set[str]) -> None:
        if keys:
            self._write(connection, keys)
            self.statistics.keys_named += len(keys)

    def _check_transaction(self, connection: Connection, where: str) -> None:
        level = connection.get_execution_options().get("isolation_level")
        if level == "AUTOCOMMIT" or (level is None and connection._is_autocommit_isolation()):
            raise RuntimeError(
                f"{where}: the connection commits each statement by itself (AUTOCOMMIT), so a change and its keys are "
                "not committed together; use a transaction"
            )


def watch(
    engine: Engine | AsyncEngine,
    base: type[DeclarativeBase],
    *,
    by: Literal["message", "outbox"] = "message",
    on_unknown: Literal["raise", "warn"] = "raise",
    rows_max: int = ROWS_MAX,
) -> Watcher:
    """Names the keys of what is written through an `Engine` or `AsyncEngine`, from then on.

    `base` is the declarative base of the classes, all of which must be defined. `by` is for PostgreSQL: messages store
    nothing and need version 14. `on_unknown` says what a statement does whose keys cannot be known: `raise` a
    `KeysUnknownError`, or `warn` and count it. `rows_max` bounds the rows of one UPDATE or DELETE.

    Raises a `ValueError` for a template, a column or a type that keys cannot have.
    """
    if by not in ("message", "outbox"):
        raise ValueError(f"by is {by!r}; expected 'message' or 'outbox'")
    synchronous: Any = getattr(engine, "sync_engine", None) or engine
    return Watcher(synchronous, base, by, Naming(on_unknown, rows_max))


def known_rows(rows: RowKeys, identities: Iterable[Identity]) -> dict[Identity, WrittenRow] | None:
    """The rows with these primary keys, if keys have no other columns; `None` if they must be read."""
    known = {}
    for identity in identities:
        row = rows.row_of_identity(identity)
        if row is None:
            return None
        known[identity] = row
    return known


def can_return_identities(statement: Any, connection: Connection, executions: list[Values]) -> bool:
    """Whether the database can return primary keys that an INSERT of several rows does not give."""
    names = {column.key for column in statement.table.primary_key.columns}
    return (
        len(executions) > 1
        and any(not names <= set(values) for values in executions)
        and connection.dialect.insert_executemany_returning
        and not statement._returning
        and not statement._return_defaults
    )


def moved_identity(identity: Identity, columns: tuple, statement: Update, values: Mapping) -> Identity:
    """The primary key of a row after an UPDATE that sets it."""
    given = statements.set_values(statement, values) | dict(values)
    return tuple(given.get(column.key, old) for column, old in zip(columns, identity, strict=True))


def is_known(identity: Identity) -> bool:
    """Whether no value is missing or an SQL expression."""
    return all(value is not None and not hasattr(value, "_execute_on_connection") for value in identity)
