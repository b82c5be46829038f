"""Templates of keys, and how a value is written into a key: as the invalidator's row rules do.

`user:{id}` is literal text and the value of a column; `{{` and `}}` are braces. The forms of values are those of
docs/operating/row_rules.md, so that a key of a row is the same text whether a rule, an ORM or an application makes it.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InexpressibleValueError, InvalidKeyError

KEY_BYTES_MAX = 250


def check_key(key: str) -> None:
    """Raises `InvalidKeyError` if no server accepts the key."""
    text = key.encode()
    if not text:
        raise InvalidKeyError("the key is empty")
    if len(text) > KEY_BYTES_MAX:
        raise InvalidKeyError(f"the key {key[:80]!r}... has {len(text)} bytes; servers accept {KEY_BYTES_MAX}")
    if any(is_bad(byte) for byte in text):
        raise InvalidKeyError(f"the key {key!r} has a space or a control character, which no key may have")


def is_bad(byte: int) -> bool:
    """Whether no key may have this byte."""
    return byte <= 0x20 or byte == 0x7F


@dataclass(frozen=True)
class Template:
    """A parsed template: literal text and the names of columns in turn, the first and the last literal."""

    text: str
    literals: tuple[str, ...]
    columns: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Template:
        """Parses a template. A `ValueError` says what was expected."""
        literals, columns, literal, at = [], [], "", 0
        while at < len(text):
            letter = text[at]
            if letter not in "{}":
                literal, at = literal + letter, at + 1
            elif text.startswith(letter, at + 1):
                literal, at = literal + letter, at + 2
            else:
                end = text.find("}", at + 1)
                if letter == "}" or end < 0:
                    raise ValueError(
                        f"the key {text!r} has a single {letter!r}; write {{column}}, or {letter * 2} for the character"
                    )
                column = text[at + 1 : end]
                if not column or "{" in column:
                    raise ValueError(f"the key {text!r} has a '{{' without the name of a column and a '}}' after it")
                literals.append(literal)
                columns.append(column)
                literal, at = "", end + 1
        literals.append(literal)
        template = Template(text, tuple(literals), tuple(columns))
        template._check()
        return template

    def _check(self) -> None:
        literal = "".join(self.literals).encode()
        if not literal and not self.columns:
            raise ValueError("a key is empty")
        if len(literal) > KEY_BYTES_MAX:
            raise ValueError(f"the key {self.text!r} is longer than {KEY_BYTES_MAX} bytes")
        if any(is_bad(byte) for byte in literal):
            raise ValueError(f"the key {self.text!r} has a space or a control character, which no key may have")

    def key(self, values: Mapping[str, str | None]) -> str | None:
        """The key of a row, from the written values of its columns; `None` if one of them is NULL."""
        key = self.literals[0]
        for column, literal in zip(self.columns, self.literals[1:], strict=True):
            value = values[column]
            if value is None:
                return None
            key += value + literal
        return key


def write_value(value: object) -> str | None:
    """A value as it is written into a key; `None` for NULL.

    A `datetime` with a time zone is an instant, and is written in UTC. A `timedelta` is MySQL's TIME. A `Decimal` is
    written with all of its digits: see `write_decimal` for those of a column.
    """
    match value:
        case None:
            return None
        case bool() | int():
            return str(int(value))
        case str():
            # The value of an enumeration, if it is one.
            return str.__str__(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case uuid.UUID():
            return str(uuid.UUID(int=value.int))
        case decimal.Decimal():
            return write_decimal(value, max(0, -_exponent(value)))
        case datetime.datetime():
            if value.tzinfo is None:
                return f"{_date(value)}T{_time(value)}"
            instant = value.astimezone(datetime.timezone.utc)  # noqa: UP017 - Python 3.10 lacks datetime.UTC
            return f"{_date(instant)}T{_time(instant)}Z"
        case datetime.date():
            return _date(value)
        case datetime.time() if value.tzinfo is None:
            return _time(value)
        case datetime.timedelta():
            return _duration(value)
    raise InexpressibleValueError(f"{value!r} ({type(value).__name__}) has no form in a key")


def write_decimal(value: decimal.Decimal | int | float, scale: int) -> str:
    """A number of a column with `scale` digits after the point: no exponent, and zero without a sign."""
    number = decimal.Decimal(repr(value) if isinstance(value, float) else value)
    if not number.is_finite():
        raise InexpressibleValueError(f"{value!r} has no form in a key")
    text = f"{number:.{scale}f}"
    return text if any(digit in "123456789" for digit in text) else text.lstrip("-")


def _exponent(value: decimal.Decimal) -> int:
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _date(value: datetime.date) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _time(value: datetime.time | datetime.datetime) -> str:
    return f"{value.hour:02}:{value.minute:02}:{value.second:02}{_fraction(value.microsecond)}"


def _duration(value: datetime.timedelta) -> str:
    magnitude = abs(value)
    seconds = magnitude.days * 86_400 + magnitude.seconds
    sign = "-" if value < datetime.timedelta() else ""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{sign}{clock}{_fraction(magnitude.microseconds)}"


def _fraction(micros: int) -> str:
    return f".{micros:06}".rstrip("0") if micros else ""
