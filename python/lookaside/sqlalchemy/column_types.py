"""How a column is read from the database and written into a key, by its type and the dialect.

Columns are read as the database holds them: an enumeration as its label, a custom type as the type below it.
"""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Column, types
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.expression import ColumnElement, type_coerce

from ..errors import InexpressibleValueError
from ..key_templates import write_decimal, write_value

MYSQL_DIALECTS = ("mysql", "mariadb")
# Types of PostgreSQL that SQLAlchemy does not derive from a generic one, and whose values are written as they are.
PLAIN_TYPES = ("citext", "oid")


@dataclass(frozen=True)
class KeyColumn:
    """A column that a template names."""

    column: Column
    # What is selected to read it.
    read: ColumnElement
    # From what is read to the text in a key.
    write: Callable[[object], str | None]
    # Whether a value of the program is written as the database has it, so that it need not be read.
    is_exact: bool

    def write_exact(self, value: object) -> str | None:
        """Writes a value of the program; `None` if it must be read from the database."""
        if self.is_exact and isinstance(value, (int, uuid.UUID)) and not isinstance(value, bool):
            return self.write(value)
        return None


def key_column(column: Column, dialect: Dialect) -> KeyColumn:
    """How the column is read and written. A `ValueError` names a type that keys cannot have."""
    stored, is_custom = stored_type(column.type, dialect)
    is_mysql = dialect.name in MYSQL_DIALECTS
    raw = type_coerce(column, types.NullType())
    as_stored = type_coerce(column, stored)
    match stored:
        case mysql.TIMESTAMP() | types.TIMESTAMP() if is_mysql:
            raise refused(column, "a TIMESTAMP is read in the session's time zone; use DATETIME, or a row rule")
        case types.Float():
            raise refused(column, "the same floating-point number has several texts")
        case types.Boolean():
            return KeyColumn(column, as_stored, write_value, False)
        case types.Integer():
            return KeyColumn(column, as_stored, write_value, not is_custom)
        case types.Numeric():
            if stored.scale is None:
                raise refused(column, "a number without a scale has several texts; declare Numeric(precision, scale)")
            return KeyColumn(column, as_stored, decimal_writer(stored.scale), False)
        case types.Uuid():
            is_native = stored.native_uuid and dialect.supports_native_uuid
            return KeyColumn(column, raw, write_uuid if is_native else write_uuid_digits, not is_custom)
        case mysql.SET():
            raise refused(column, "the order of a SET is not known")
        case types.Enum():
            return KeyColumn(column, raw, write_value, False)
        case types.CHAR() | types.NCHAR():
            return KeyColumn(column, as_stored, write_char, False)
        case types.String():
            return KeyColumn(column, as_stored, write_value, False)
        case types.LargeBinary() | types.BINARY() | types.VARBINARY():
            return KeyColumn(column, as_stored, write_value, False)
        case types.DateTime() | types.Date():
            return KeyColumn(column, as_stored, write_value, False)
        case types.Time() if not stored.timezone:
            # MySQL's have up to 838 hours, which its driver reads as a timedelta, and SQLAlchemy as a time of day.
            return KeyColumn(column, raw if is_mysql else as_stored, write_value, False)
    if stored.__class__.__name__.lower() in PLAIN_TYPES:
        return KeyColumn(column, raw, write_value, False)
    raise refused(column, "values of this type have no form in a key")


def stored_type(declared: types.TypeEngine, dialect: Dialect) -> tuple[types.TypeEngine, bool]:
    """The type with which the column is created in this dialect, and whether the program has another one above it."""
    is_custom = False
    while True:
        variant = declared._variant_mapping.get(dialect.name)
        if variant is not None:
            declared = variant
        elif isinstance(declared, types.TypeDecorator):
            declared, is_custom = declared.load_dialect_impl(dialect), True
        else:
            return declared, is_custom


def refused(column: Column, why: str) -> ValueError:
    return ValueError(f"the column {column.table.name}.{column.name} is {column.type!r}: {why}")


def decimal_writer(scale: int) -> Callable[[object], str | None]:
    def write(value: object) -> str:
        if not isinstance(value, (decimal.Decimal, int, float)):
            raise InexpressibleValueError(f"{value!r} is no number")
        return write_decimal(value, scale)

    return write


def write_char(value: object) -> str | None:
    """Without the spaces with which the database fills it up."""
    return str(value).rstrip(" ")


def write_uuid(value: object) -> str | None:
    """As databases that have a type for it write it."""
    return write_value(value if isinstance(value, uuid.UUID) else uuid.UUID(str(value)))


def write_uuid_digits(value: object) -> str | None:
    """As the 32 digits of the CHAR column in which other databases store it."""
    if not isinstance(value, (uuid.UUID, str)):
        raise InexpressibleValueError(f"{value!r} is no UUID")
    return value.hex if isinstance(value, uuid.UUID) else value
