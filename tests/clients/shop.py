"""The region that a page's program runs in: a database with users, two clusters, and an invalidator between them.

Cluster one takes leases, with the options that the page names, and is the one that the program uses. Cluster two is of
other application hosts: nothing but the invalidator deletes there.
"""

import os
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path

from page import Page
from processes import PROGRAMS, ROOT, Cluster, Invalidator, eventually, stats

USERS = "CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(100) NOT NULL)"
ROWS = "INSERT INTO users VALUES (42, 'Ada'), (43, 'Grace')"
RUN_S = 90
# The first reads of an address store nothing for the age of a miss.
FILLED_S = 60


def outbox() -> str:
    """The statement that creates the outbox, as the documents print it."""
    page = (ROOT / "docs" / "operating" / "invalidation.md").read_text()
    return re.search(r"^CREATE TABLE lookaside_outbox .*;$", page, re.MULTILINE)[0]


class Users:
    """The table of users in MariaDB or PostgreSQL."""

    def __init__(self, kind: str, server) -> None:
        self.kind, self.server = kind, server
        for statement in [USERS, ROWS, *([outbox()] if kind == "mariadb" else [])]:
            self.execute(statement)

    def execute(self, statement: str) -> None:
        """Runs a statement in a transaction of its own."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def ask(self, query: str):
        """The first column of the first row of the answer."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]

    def name(self, number: int) -> str:
        """The name of a user."""
        return self.ask(f"SELECT name FROM users WHERE id = {number}")

    def writing_transactions(self) -> int:
        """The number of transactions so far that have written something."""
        if self.kind == "mariadb":
            return int(self.ask("SELECT @@gtid_binlog_pos").rpartition("-")[2])
        return self.ask("SELECT txid_snapshot_xmax(txid_current_snapshot())")

    @contextmanager
    def locked(self):
        """No other connection can read the users."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            if self.kind == "mariadb":
                cursor.execute("LOCK TABLES users WRITE")
                yield
                cursor.execute("UNLOCK TABLES")
            else:
                cursor.execute("BEGIN")
                cursor.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")
                yield
                cursor.execute("COMMIT")

    def set_up(self, *more: str) -> None:
        """Prepares PostgreSQL for the invalidator."""
        if self.kind == "postgres":
            command = [str(PROGRAMS / "lookaside"), "invalidator", "setup", "--database", self.server.url, *more]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


class Shop:
    """A page's program, and what it runs in front of."""

    def __init__(self, page: Page, command: list, url: str, users: Users, folder: Path) -> None:
        self.command, self.users, self.folder = [str(word) for word in command], users, folder
        self.clusters: list[Cluster] = []
        self.invalidator: Invalidator | None = None
        words = [word for option in page.lease_options() for word in option.split()]
        self.clusters.append(Cluster("one", folder, (*words, "--lease-miss-age", "1")))
        self.clusters.append(Cluster("two", folder))
        self.one, self.two = self.clusters
        self.environment = {**os.environ, "CACHE": f"127.0.0.1:{self.one.port}", "DATABASE_URL": url}

    def invalidate(self, *options: str) -> None:
        """Starts the invalidator."""
        state = self.folder / "state"
        self.invalidator = Invalidator(self.users.server.url, self.clusters, state, self.folder, *options)

    def begin(self, *words) -> subprocess.Popen:
        """Starts the program with these words."""
        return subprocess.Popen(
            [*self.command, *map(str, words)], env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder,
        )  # fmt: skip

    def run(self, *words) -> str:
        """What the program prints."""
        return output_of(self.begin(*words))

    def fill(self, number: int) -> None:
        """Reads a user until it comes from the cache."""
        eventually(lambda: self.run("read", number).startswith("cache: "), f"user {number} is cached", FILLED_S)

    def read_during_delete(self, number: int) -> str:
        """What a read prints whose key is deleted while the program waits for the database."""
        tokens = int(stats(self.one.port)["plain_lease_tokens"])
        with self.users.locked():
            reading = self.begin("read", number)
            eventually(
                lambda: reading.poll() is not None or int(stats(self.one.port)["plain_lease_tokens"]) > tokens,
                "the program has missed the key", RUN_S,
            )  # fmt: skip
            client = self.one.client()
            client.delete(f"user:{number}")
            client.close()
        return output_of(reading)

    def stop(self) -> None:
        """Stops all processes."""
        for process in [self.invalidator, *self.clusters]:
            if process:
                process.stop()


def output_of(running: subprocess.Popen) -> str:
    """What a program prints, once it has ended."""
    out, errors = running.communicate(timeout=RUN_S)
    assert running.returncode == 0, f"ended with {running.returncode}:\n{out}{errors}"
    return out.strip()
