"""Names the keys of every INSERT, UPDATE and DELETE that Django's ORM executes, in the transaction of the statement.

All that the ORM writes is executed by one of three compilers, whichever manager or method it comes from: `save`,
`QuerySet.update`, `bulk_create`, `bulk_update`, `delete` with its cascades, many-to-many fields. Signals are not sent
for most of these, and old values in an object may be older than its row. Raw SQL is not examined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.models.constants import OnConflict
from django.db.models.lookups import Exact, In
from django.db.models.options import Options
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler, SQLDeleteCompiler, SQLInsertCompiler, SQLUpdateCompiler
from django.db.models.sql.constants import MULTI
from django.db.models.sql.where import AND, WhereNode

from ..key_naming import KeysUnknownError, Naming
from ..key_templates import check_key
from .transactions import lock_for_writing, write_keys
from .watched_models import ModelKeys, WatchedModels

# The wrapped methods, so that they are wrapped once.
ORIGINAL = "lookaside_original"


class Namer:
    """Names keys for all connections of the process."""

    def __init__(self, models: WatchedModels, naming: Naming, by: str) -> None:
        self.models, self.naming, self.by = models, naming, by

    def install(self) -> None:
        """Wraps the compilers."""
        for compiler, execute in (
            (SQLInsertCompiler, self.insert),
            (SQLUpdateCompiler, self.update),
            (SQLDeleteCompiler, self.delete),
        ):
            original = getattr(compiler.execute_sql, ORIGINAL, compiler.execute_sql)
            compiler.execute_sql = self._wrapped(original, execute)

    def name_keys(self, connection: BaseDatabaseWrapper, keys: set[str]) -> None:
        """Names keys in the open transaction."""
        if keys:
            write_keys(connection, keys, self.by)
            self.naming.statistics.keys_named += len(keys)

    def _wrapped(self, original: Callable, execute: Callable) -> Callable:
        @functools.wraps(original)
        def execute_sql(compiler: SQLCompiler, *arguments: Any, **options: Any) -> Any:
            watched = self.models.of_table(compiler.query.get_meta().model)
            if not watched:
                return original(compiler, *arguments, **options)
            # So that the rows and the keys are committed together, also in autocommit mode.
            with transaction.atomic(using=compiler.connection.alias, savepoint=False):
                return execute(compiler, watched, functools.partial(original, compiler, *arguments, **options))

        setattr(execute_sql, ORIGINAL, original)
        return execute_sql

    def insert(self, compiler: SQLInsertCompiler, watched: list[ModelKeys], run: functools.partial) -> Any:
        """An INSERT: the keys of the new rows."""
        query, model = compiler.query, compiler.query.get_meta().concrete_model
        # A new row of a parent's table is not a part of a child's yet.
        watched = [keys for keys in watched if keys.model is model]
        if query.on_conflict is OnConflict.UPDATE:
            self.naming.report_unknown(f"{model._meta.label}: update_conflicts may change rows that exist")
        returned = (run.args[1] if len(run.args) > 1 else run.keywords.get("returning_fields")) or ()
        pk = model._meta.pk
        pks = [getattr(one, pk.attname) for one in query.objs]
        # The rows whose primary keys will not be known. A table of a many-to-many field is filled so.
        nameless = [one for one in query.objs if pk not in returned and not is_plain(getattr(one, pk.attname))]
        after = [self._rows_of_objects(compiler, keys, nameless) for keys in watched]
        rows = run()
        if pk in returned:
            pks = [row[list(returned).index(pk)] for row in rows]
        pks = [value for value in pks if is_plain(value)]
        for keys, known in zip(watched, after, strict=True):
            known.update(self._after(compiler, keys, pks))
        self._name_changes(compiler, watched, [{}] * len(watched), after)
        return rows

    def _rows_of_objects(self, compiler: SQLInsertCompiler, keys: ModelKeys, objects: list[Model]) -> dict:
        """The rows that an INSERT writes, by the values of the program."""
        rows = {id(one): keys.row_of_object(one, compiler.connection) for one in objects}
        if None in rows.values():
            self.naming.report_unknown(
                f"{keys.owner}: the primary keys of inserted rows are not known: bulk_create does not get them from "
                "this database, nor with ignore_conflicts; save the objects, or give them primary keys"
            )
        return {identity: row for identity, row in rows.items() if row is not None}

    def update(self, compiler: SQLUpdateCompiler, watched: list[ModelKeys], run: functools.partial) -> Any:
        """An UPDATE: the keys of the rows as they were and as they are. A parent's table has an UPDATE of its own."""
        query = compiler.query
        if not query.values:
            return run()
        pk = query.get_meta().pk
        values = {field.attname: value for field, _, value in query.values}
        before = self._before(compiler, watched, keeps_keys=values.keys().isdisjoint(unique_names(query.get_meta())))
        result = run()
        after = []
        for keys, old in zip(watched, before, strict=True):
            if pk.attname in values:
                pks = [values[pk.attname]] if is_plain(values[pk.attname]) else []
                if not pks:
                    self.naming.report_unknown(f"{keys.owner}: an UPDATE sets the primary key by an expression")
            else:
                has_set = any(field.attname in values for field in keys.fields.values())
                pks = list(old) if has_set else []
            after.append(self._after(compiler, keys, pks))
        self._name_changes(compiler, watched, before, after)
        return result

    def delete(self, compiler: SQLDeleteCompiler, watched: list[ModelKeys], run: functools.partial) -> Any:
        """A DELETE: the keys of the rows as they were."""
        before = self._before(compiler, watched, keeps_keys=False)
        # `None` if the condition matches nothing, so that nothing was executed.
        count = run() or 0
        self._name_changes(compiler, watched, before, [{}] * len(watched))
        return count

    def _before(self, compiler: SQLCompiler, watched: list[ModelKeys], *, keeps_keys: bool) -> list[dict]:
        """Locks and reads the rows that the statement matches, and limits it to these.

        The locks are those of the statement: PostgreSQL inserts rows that refer to a locked one meanwhile, if the
        statement keeps the row and its keys.
        """
        no_key = keeps_keys and compiler.connection.features.has_select_for_no_key_update
        query, model = compiler.query, compiler.query.get_meta().concrete_model
        limited = limited_pks(query.where, model)
        if limited is None or not all(keys.is_identified for keys in watched):
            lock_for_writing(compiler.connection)
        pks = self._matching_pks(compiler, no_key=no_key) if limited is None else limited
        before = [keys.rows(pks, compiler.connection, locked=True, no_key=no_key) for keys in watched]
        found = [rows for keys, rows in zip(watched, before, strict=True) if keys.model is model]
        present = [pk for pk in pks if all(pk in rows for rows in found)]
        if limited is None or len(present) < len(pks):
            # Rows that another transaction adds from now on are not changed: their keys are not known.
            query.add_filter("pk__in", present)
        return before

    def _matching_pks(self, compiler: SQLCompiler, *, no_key: bool) -> list:
        query = compiler.query.chain(klass=Query)
        query.select_related = False
        query.clear_ordering(force=True)
        query.extra = {}
        query.select = ()
        query.add_fields([query.get_meta().pk.name])
        # As the statement sees them: with MariaDB's and MySQL's isolation a plain SELECT shows older rows. Those of a
        # join or with DISTINCT cannot be locked here; they are locked a moment later.
        query.select_for_update = len(active_tables(query)) == 1 and not query.distinct
        query.select_for_no_key_update = no_key
        rows_max = self.naming.rows_max
        query.set_limits(high=rows_max + 1)
        pks = [row[0] for rows in query.get_compiler(compiler.connection.alias).execute_sql(MULTI) for row in rows]
        if len(pks) > rows_max:
            raise KeysUnknownError(
                f"{query.get_meta().label}: one statement changes over {rows_max} rows (LOOKASIDE['ROWS_MAX']); change "
                "them in parts"
            )
        return pks

    def _after(self, compiler: SQLCompiler, keys: ModelKeys, pks: list) -> dict:
        return keys.rows(pks, compiler.connection, locked=False) if pks else {}

    def _name_changes(
        self, compiler: SQLCompiler, watched: list[ModelKeys], before: list[dict], after: list[dict]
    ) -> None:
        named: set[str] = set()
        for keys, old, new in zip(watched, before, after, strict=True):
            named |= self.naming.keys_of_changes(keys.owner, keys.templates, old.values(), new.values())
        self.name_keys(compiler.connection, named)


def limited_pks(where: WhereNode, model: type[Model]) -> list | None:
    """The primary keys that a condition demands; `None` if it does not demand any."""
    pk: Any = model._meta.pk
    if where.connector != AND or where.negated:
        return None
    for condition in where.children:
        if isinstance(condition, WhereNode):
            pks = limited_pks(condition, model)
            if pks is not None:
                return pks
        elif isinstance(condition, (Exact, In)) and getattr(condition.lhs, "target", None) == pk:
            values = condition.rhs if isinstance(condition, In) else [condition.rhs]
            if isinstance(values, (list, tuple, set, frozenset)) and all(map(is_plain, values)):
                return [pk.to_python(value) for value in values]
    return None


def active_tables(query: Query) -> list[str]:
    """The tables that the query reads."""
    return [table for table, count in query.alias_refcount.items() if count]


def unique_names(options: Options) -> set[str]:
    """The attributes of the fields of all unique indexes of a model's table."""
    unique = {field.attname for field in options.local_concrete_fields if field.unique}
    together = [*options.unique_together, *(constraint.fields for constraint in options.total_unique_constraints)]
    return unique | {options.get_field(name).attname for names in together for name in names}


def is_plain(value: object) -> bool:
    """Whether it is a value, not missing and no expression."""
    return value is not None and not hasattr(value, "resolve_expression") and not hasattr(value, "as_sql")


def check_keys(keys: tuple[str, ...]) -> set[str]:
    """The keys, if servers accept all of them."""
    for key in keys:
        check_key(key)
    return set(keys)
