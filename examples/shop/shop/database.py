"""The database: an engine whose statements name the keys that they make stale, and are recorded for the panel."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lookaside.sqlalchemy import watch
from sqlalchemy import Engine, Executable, create_engine, event
from sqlalchemy.orm import Session

from .models import Base

#: How the extension names keys in PostgreSQL.
NAMING = "SELECT lookaside_invalidate"


@dataclass
class Statement:
    """A statement of a request."""

    sql: str
    seconds: float


@dataclass
class StatementLog:
    """What one request did in the database."""

    statements: list[Statement] = field(default_factory=list)
    #: The keys that its transactions named as stale.
    keys_named: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The time that its statements took."""
        return sum(statement.seconds for statement in self.statements)


class Database:
    """Reads and transactions. `current_log` returns the log of the request that the calling thread serves."""

    def __init__(self, url: str, current_log: Callable[[], StatementLog | None]) -> None:
        self.engine = create_engine(sqlalchemy_url(url), pool_size=16, pool_pre_ping=True)
        # A read by itself needs no BEGIN and ROLLBACK.
        self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._current_log = current_log
        watch(self.engine, Base)
        record_statements(self.engine, current_log)

    def rows(self, query: Executable) -> list[dict[str, Any]]:
        """The rows of a query."""
        with self._reading.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end of the block."""
        log = self._current_log() or StatementLog()
        with Session(self.engine) as session:
            try:
                yield session
                session.flush()
                started = time.perf_counter()
                session.commit()
            except BaseException:
                log.keys_named.clear()
                raise
        log.statements.append(Statement("COMMIT", time.perf_counter() - started))


def record_statements(engine: Engine, current_log: Callable[[], StatementLog | None]) -> None:
    """Records each statement in the log of its request."""

    @event.listens_for(engine, "before_cursor_execute")
    def start(connection, _cursor, _sql, _parameters, _context, _many) -> None:
        connection.info["started"] = time.perf_counter()

    @event.listens_for(engine, "after_cursor_execute")
    def record(connection, _cursor, sql, parameters, _context, _many) -> None:
        log = current_log()
        if log is None:
            return
        log.statements.append(Statement(shorten(sql), time.perf_counter() - connection.info["started"]))
        if sql.startswith(NAMING):
            log.keys_named.extend(parameters["keys"])


def shorten(sql: str) -> str:
    """A statement on one line, with `?` for its parameters, and `...` for lists of them."""
    text = re.sub(r"%\(\w+\)s(::\w+(\[\])?)?", "?", " ".join(sql.split()))
    return re.sub(r"\(\?(, \?)+\)", "(?, ...)", text)


def sqlalchemy_url(url: str) -> str:
    """The URL of a database as SQLAlchemy takes it."""
    return "postgresql+psycopg://" + url.split("://", 1)[1]
