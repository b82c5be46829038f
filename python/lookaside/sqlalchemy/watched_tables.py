"""Which keys a row of a table makes stale: from declared classes and tables to the columns of each table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from sqlalchemy import Column, FromClause, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import ColumnProperty, DeclarativeBase, Mapper

from ..key_naming import WrittenRow
from ..key_templates import Template
from .column_types import KeyColumn, key_column

CLASS_ATTRIBUTE = "__lookaside_keys__"
TABLE_INFO = "lookaside_keys"

# The values of a row's primary key.
Identity = tuple[Any, ...]


@dataclass(frozen=True)
class RowKeys:
    """The templates of one class or table, for the rows of one table."""

    owner: str
    table: Table
    templates: tuple[Template, ...]
    # By their names in the templates.
    columns: Mapping[str, KeyColumn]
    # The table, or the join of tables that a class is mapped to, if it takes more than the table to read the columns.
    source: FromClause

    @property
    def identity_columns(self) -> tuple[Column, ...]:
        """The primary key."""
        return tuple(self.table.primary_key.columns)

    def row_of_identity(self, identity: Identity) -> WrittenRow | None:
        """The columns of a row with this primary key; `None` if they must be read from the database."""
        values = dict(zip(self.identity_columns, identity, strict=True))
        row = {}
        for name, column in self.columns.items():
            row[name] = column.write_exact(values.get(column.column))
            if row[name] is None:
                return None
        return row


def watched_tables(base: type[DeclarativeBase], dialect: Dialect) -> dict[str, list[RowKeys]]:
    """The keys of the rows of each table, by the full name of the table.

    A `ValueError` names the class or table, and the column or template that is wrong.
    """
    found: dict[str, list[RowKeys]] = {}
    # Parents first, so that messages about their tables name them.
    mappers = sorted(base.registry.mappers, key=lambda one: (len(list(one.iterate_to_root())), one.class_.__name__))
    for mapper in mappers:
        for rows in rows_of_class(mapper, dialect):
            others = found.setdefault(rows.table.fullname, [])
            # A class in the table of its parent has the parent's templates.
            if all((rows.templates, set(rows.columns)) != (other.templates, set(other.columns)) for other in others):
                others.append(rows)
    for table in base.metadata.tables.values():
        texts = table.info.get(TABLE_INFO)
        if texts:
            columns = {column.key: column for column in table.columns}
            templates = parse_templates(texts, f"the table {table.fullname}")
            named = named_columns(templates, columns, table, f"the table {table.fullname}", dialect)
            found.setdefault(table.fullname, []).append(row_keys(table.name, table, templates, named, table))
    if not found:
        raise ValueError(
            f"no class of {base.__name__} has {CLASS_ATTRIBUTE}, and no table has {TABLE_INFO!r} in its info"
        )
    return found


def rows_of_class(mapper: Mapper, dialect: Dialect) -> Iterator[RowKeys]:
    """The keys of a class, for each table that it is mapped to."""
    name = mapper.class_.__name__
    texts = getattr(mapper.class_, CLASS_ATTRIBUTE, None)
    if not texts:
        return
    templates = parse_templates(texts, name)
    for table in filter(is_table, mapper.tables):
        columns = {}
        for column_name in dict.fromkeys(column for template in templates for column in template.columns):
            columns[column_name] = column_of_attribute(mapper, column_name, table, name)
        source = table if all(column.table is table for column in columns.values()) else mapper.persist_selectable
        named = named_columns(templates, columns, source, name, dialect)
        yield row_keys(name, table, templates, named, source)


def is_table(selectable: FromClause) -> TypeGuard[Table]:
    """Whether it is a table with a primary key of its own, and no query."""
    return isinstance(selectable, Table)


def column_of_attribute(mapper: Mapper, attribute: str, table: Table, owner: str) -> Column:
    """The column of an attribute, in this table if it is there."""
    mapped = mapper.attrs.get(attribute)
    candidates = mapped.columns if isinstance(mapped, ColumnProperty) else []
    columns = [column for column in candidates if isinstance(column, Column)]
    if not columns:
        known = ", ".join(sorted(other.key for other in mapper.column_attrs))
        raise ValueError(f"{owner}.{CLASS_ATTRIBUTE}: {attribute!r} is not mapped to a column; columns are {known}")
    return next((column for column in columns if column.table is table), columns[0])


def parse_templates(texts: Iterable[str], owner: str) -> tuple[Template, ...]:
    """The templates of a class or table."""
    if isinstance(texts, str):
        raise ValueError(f"{owner}: the keys are the text {texts!r}; expected a list of templates")
    try:
        return tuple(map(Template.parse, texts))
    except ValueError as why:
        raise ValueError(f"{owner}: {why}") from None


def named_columns(
    templates: Iterable[Template], columns: Mapping[str, Column], source: FromClause, owner: str, dialect: Dialect
) -> dict[str, KeyColumn]:
    """The columns that the templates name, as they are read from the source."""
    named = {}
    for name in dict.fromkeys(name for template in templates for name in template.columns):
        if name not in columns:
            raise ValueError(f"{owner}: there is no column {name!r}; columns are {', '.join(sorted(columns))}")
        try:
            named[name] = key_column(columns[name], dialect)
        except ValueError as why:
            raise ValueError(f"{owner}: {why}") from None
    return named


def row_keys(
    owner: str, table: Table, templates: tuple[Template, ...], columns: dict[str, KeyColumn], source: FromClause
) -> RowKeys:
    """The keys of the rows of a table, which must have a primary key to be read again after a change."""
    if not table.primary_key.columns:
        raise ValueError(f"{owner}: the table {table.fullname} has no primary key, so changed rows cannot be found")
    return RowKeys(owner, table, templates, columns, source)
