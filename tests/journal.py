"""A SQLite database with a journal, as the invalidator reads it."""

import sqlite3
from pathlib import Path

JOURNAL = """
CREATE TABLE lookaside_journal (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  key BLOB NOT NULL,
  at_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER))
)
"""


class Journal:
    """A SQLite database whose commits name keys."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite://{path}"
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(JOURNAL)

    def commit(self, *keys: str) -> None:
        """Commits a change that makes these keys stale."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO lookaside_journal (key) VALUES (?)", [(key,) for key in keys])
        self.connection.execute("COMMIT")
