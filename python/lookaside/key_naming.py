"""What both ORM extensions share: the templates of a table, the errors, the counters, and the SQL that names keys."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .errors import InexpressibleValueError, InvalidKeyError
from .key_templates import Template, check_key

OUTBOX_TABLE = "lookaside_outbox"
JOURNAL_TABLE = "lookaside_journal"
# The most keys in one statement.
KEYS_PER_STATEMENT_MAX = 1_000
# The most rows that one statement may change, by default.
ROWS_MAX = 10_000

log = logging.getLogger("lookaside.key_naming")

# A row of a table, as its columns are written into keys; `None` for NULL.
WrittenRow = Mapping[str, str | None]


class KeysUnknownError(RuntimeError):
    """A statement changes rows whose keys cannot be known. Its transaction must be rolled back."""


class KeysUnknownWarning(UserWarning):
    """As `KeysUnknownError`, where the application has chosen to continue."""


@dataclass
class Statistics:
    """Counters of one process. Additions of several threads may be lost."""

    # Keys that were put into transactions, committed or not.
    keys_named: int = 0
    # Keys that no router accepts, so that nothing can be cached under them.
    keys_refused: int = 0
    # Statements whose keys could not be known.
    statements_unknown: int = 0


@dataclass
class Naming:
    """How keys are named, and what happens where they cannot be known."""

    on_unknown: Literal["raise", "warn"] = "raise"
    rows_max: int = ROWS_MAX
    statistics: Statistics = field(default_factory=Statistics)

    def __post_init__(self) -> None:
        if self.on_unknown not in ("raise", "warn"):
            raise ValueError(f"on_unknown is {self.on_unknown!r}; expected 'raise' or 'warn'")
        if self.rows_max < 1:
            raise ValueError(f"rows_max is {self.rows_max}; expected at least 1")

    def report_unknown(self, why: str) -> None:
        """Raises `KeysUnknownError`, or warns."""
        self.statistics.statements_unknown += 1
        if self.on_unknown == "raise":
            raise KeysUnknownError(why)
        log.warning("a statement changes rows whose keys cannot be known: %s", why)
        warnings.warn(why, KeysUnknownWarning, stacklevel=2)

    def keys_of_changes(
        self, owner: str, templates: Sequence[Template], before: Iterable[WrittenRow], after: Iterable[WrittenRow]
    ) -> set[str]:
        """The keys of rows as they were and as they are.

        A key that no router accepts is counted, and left out: nothing can be cached under it, so it is never stale, and
        the row is as valid as any.
        """
        rows = [*before, *after]
        keys = {key for row in rows for template in templates if (key := template.key(row)) is not None}
        for key in list(keys):
            try:
                check_key(key)
            except InvalidKeyError as why:
                keys.discard(key)
                self.statistics.keys_refused += 1
                log.warning("%s: a row has a key under which nothing can be cached: %s", owner, why)
        return keys


def write_row(
    writers: Mapping[str, Callable[[object], str | None]], values: Iterable[object], owner: str
) -> WrittenRow:
    """A row as its columns are written into keys, from the values of the columns in the same order."""
    written = {}
    for (name, write), value in zip(writers.items(), values, strict=True):
        try:
            written[name] = None if value is None else write(value)
        except InexpressibleValueError as why:
            raise InexpressibleValueError(f"{owner}.{name}: {why}") from None
    return written


def batches(keys: Iterable[str]) -> Iterable[list[str]]:
    """The keys in order, so that statements do not depend on hashes, in parts for one statement each."""
    ordered = sorted(keys)
    return (ordered[at : at + KEYS_PER_STATEMENT_MAX] for at in range(0, len(ordered), KEYS_PER_STATEMENT_MAX))
