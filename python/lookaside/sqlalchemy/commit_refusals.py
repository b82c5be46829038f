"""Refuses the commit of a transaction whose rows were changed without naming their keys.

A program may ignore the error of a statement and commit. Then it would commit rows whose keys are missing. A savepoint
that was made before the error and is rolled back takes the rows with it, and the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Connection

from ..key_naming import KeysUnknownError

# In `Connection.info`.
FAILURE = "lookaside_failure"


@dataclass
class Failure:
    """Why keys of a transaction are missing."""

    why: Exception
    # Those that were made since.
    savepoints: set[str] = field(default_factory=set)


class CommitRefusals:
    """Listens to the transactions of an engine."""

    def __init__(self) -> None:
        # By the names of SQLAlchemy's events.
        self.listeners: dict[str, Callable[..., None]] = {
            "begin": self.begin,
            "savepoint": self.savepoint,
            "rollback_savepoint": self.rollback_savepoint,
            "commit": self.commit,
            "prepare_twophase": self.prepare_twophase,
        }

    def refuse_commit(self, connection: Connection, why: Exception) -> None:
        """Refuses the commit of the open transaction."""
        connection.info.setdefault(FAILURE, Failure(why))

    def begin(self, connection: Connection) -> None:
        # Of a transaction that ended with its connection.
        connection.info.pop(FAILURE, None)

    def savepoint(self, connection: Connection, name: str) -> None:
        failure = connection.info.get(FAILURE)
        if failure is not None:
            failure.savepoints.add(name)

    def rollback_savepoint(self, connection: Connection, name: str, _context: None) -> None:
        failure = connection.info.get(FAILURE)
        if failure is not None and name not in failure.savepoints:
            del connection.info[FAILURE]

    def commit(self, connection: Connection) -> None:
        if FAILURE in connection.info:
            # An error here leaves the transaction open, on a connection that goes back to its pool.
            connection.connection.rollback()
            self.prepare_twophase(connection)

    def prepare_twophase(self, connection: Connection, _xid: object = None) -> None:
        failure = connection.info.get(FAILURE)
        if failure is not None:
            raise KeysUnknownError(f"keys of this transaction are missing, so it must be rolled back: {failure.why}")
