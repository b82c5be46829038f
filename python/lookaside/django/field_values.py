"""How the value of a field is written into a key: as the database's column holds it."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, ForeignKey
from django.utils import timezone

from ..key_templates import write_decimal, write_value

INTEGERS = frozenset(
    f"{size}{kind}"
    for kind, sizes in {
        "AutoField": ("", "Small", "Big"),
        "IntegerField": ("", "Small", "Big", "Positive", "PositiveSmall", "PositiveBig"),
    }.items()
    for size in sizes
)
PLAIN = frozenset(
    ["BooleanField", "CharField", "TextField", "SlugField", "FileField", "FilePathField", "BinaryField", "DateField"]
    + ["TimeField"]
)
OTHERS = frozenset(["UUIDField", "DateTimeField", "DecimalField", "GenericIPAddressField"])
REFUSED = {
    "FloatField": "the same floating-point number has several texts",
    "DurationField": "databases store it as a number or as an interval",
}

Write = Callable[[Any], str | None]


def stored_field(field: Field) -> Field:
    """The field that decides the type of the column: of a foreign key, the field that it refers to."""
    while isinstance(field, ForeignKey):
        field = field.target_field
    return field


def is_identifier(field: Field) -> bool:
    """Whether a value of the program is written as the database has it, so that it need not be read."""
    return stored_field(field).get_internal_type() in (*INTEGERS, "UUIDField")


def check_field(field: Field) -> None:
    """Raises a `ValueError` for a field that keys cannot have."""
    kind = stored_field(field).get_internal_type()
    if kind not in INTEGERS | PLAIN | OTHERS:
        raise ValueError(f"{field.name!r} is a {kind}: {REFUSED.get(kind, 'its values have no form in a key')}")


def field_writer(field: Field, connection: BaseDatabaseWrapper) -> Write:
    """From a value of the program to the text in a key; the column of the value is one of this connection."""
    stored = stored_field(field)
    write: Write = write_value
    match stored.get_internal_type():
        case "DecimalField":
            write = lambda value: write_decimal(value, stored.decimal_places)  # noqa: E731
        case "UUIDField" if not connection.features.has_native_uuid_field:
            write = lambda value: uuid.UUID(str(value)).hex  # noqa: E731
        case "DateTimeField":
            write = lambda value: write_value(stored_time(value, connection))  # noqa: E731
        case "GenericIPAddressField" if connection.vendor == "postgresql":
            raise ValueError(f"{field.name!r} is a network address, which has several texts")
    return lambda value: write(stored.get_prep_value(value))


def stored_time(value: datetime.datetime, connection: BaseDatabaseWrapper) -> datetime.datetime:
    """PostgreSQL's columns hold instants, those of the others the time of day in the connection's time zone."""
    if connection.vendor == "postgresql":
        zone = ZoneInfo(connection.timezone_name)
        return timezone.make_aware(value, zone) if timezone.is_naive(value) else value
    return value if timezone.is_naive(value) else timezone.make_naive(value, connection.timezone)
