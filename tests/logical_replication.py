"""PostgreSQL servers of a test's own that follow each other by logical replication, which brings rows: no tables, no
messages, no values of sequences. So keys are named by rows of the outbox.
"""

import subprocess
from pathlib import Path

import psycopg
from postgres import PASSWORD, USER
from processes import PROGRAMS, eventually
from replicated_postgres import PostgresServer

PUBLICATION = "regions"
# An account that may write at the master alone.
APPLICATION = "app"
WRITES = "INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public"


class LogicalServer(PostgresServer):
    """A server that publishes all of its tables."""

    def create_versions(self, rows: int) -> None:
        """The table of versions, the outbox, and the application's account, which may only read."""
        setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", self.url]
        subprocess.run(setup, check=True, capture_output=True)
        self.run(
            "CREATE TABLE versions (id INT PRIMARY KEY, version INT NOT NULL)",
            f"INSERT INTO versions SELECT row, 0 FROM generate_series(0, {rows - 1}) AS row",
            f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES",
            f"CREATE ROLE {APPLICATION} LOGIN PASSWORD '{PASSWORD}'",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {APPLICATION}",
        )

    def change(self, row: int, *keys: str) -> str:
        """The statement that gives a row the next version, and names its key, or other keys, in the outbox."""
        named = ",".join(f"('{key}')" for key in keys or [f"row:{row}"])
        outbox = f"INSERT INTO lookaside_outbox (key) VALUES {named}"
        return f"WITH named AS ({outbox}) UPDATE versions SET version = version + 1 WHERE id = {row}"

    def address(self, port: int | None = None) -> str:
        """As `CREATE SUBSCRIPTION` takes it, by another port if one is given."""
        return f"host=127.0.0.1 port={port or self.port} user={USER} password={PASSWORD} dbname=app"

    def follow(self, master: "LogicalServer", name: str, port: int | None = None, slot: str | None = None) -> None:
        """Subscribes to all tables of a server; both have the same rows. `slot` is the name of the slot, if it is not
        that of the subscription."""
        slot = slot or name
        self.run(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{master.address(port)}' PUBLICATION {PUBLICATION} "
            f"WITH (copy_data = false, slot_name = '{slot}')"
        )
        follows = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
        eventually(lambda: master.run(follows) == [(True,)], "the replica follows", 60)

    def connect_application(self) -> psycopg.Connection:
        """A connection of the application's account."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=APPLICATION, password=PASSWORD, dbname="app", autocommit=True,
            connect_timeout=5,
        )  # fmt: skip


def master_and_replica(folder: Path, rows: int, close) -> tuple[LogicalServer, LogicalServer]:
    """Two servers with the same rows, of which none follows the other yet. `close` is called with what stops each."""
    servers = []
    for number in (1, 2):
        server = LogicalServer(folder, number)
        close(server.stop)
        server.create_versions(rows)
        servers.append(server)
    servers[0].run(f"GRANT {WRITES} TO {APPLICATION}")
    return servers[0], servers[1]
