"""The databases whose commit logs the invalidator reads, for measurements: their commits, and their own readers.

Each runs in a folder of its own, in its usual configuration, except that a commit does not wait for the disk: commits
are to be written fast. A commit inserts one row of the outbox, or of SQLite's journal.
"""

import abc
import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

from journal import Journal
from postgres import PASSWORD, USER, Postgres, program
from processes import PROGRAMS, Cluster, Invalidator
from replicated import MariadbServer, MysqlServer, ReplicatedServer, fetched

from experiments.programs import Unusable

WRITE_S_MAX = 900


class CommitLog(abc.ABC):
    """A database that is written and read in rounds."""

    name: str
    # The database's own reader of its log.
    reader: str | None = None
    # Transactions of a round. They should take its reader seconds, so that the start of a program does not count.
    commits: int = 60_000

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """As `--source` takes it."""

    @abc.abstractmethod
    def begin_round(self, cluster: Cluster, folder: Path) -> list[str]:
        """The arguments with which an invalidator, whose files are in `folder`, reads what is written from now on."""

    @abc.abstractmethod
    def write(self, commits: int, prefix: str) -> None:
        """Commits that many transactions, with the keys `prefix` and the numbers from 1 on."""

    def read(self) -> None:
        """Runs the database's own reader, from the beginning of the round to the end of the log."""
        raise NotImplementedError

    def is_read(self, stats: dict[str, str], commits: int) -> bool:
        """Whether an invalidator whose cluster is down reads no further, after it was started and `commits` written."""
        return stats["cluster:one:state"] == "blocked" or int(stats["cluster:one:pending_keys"]) >= commits

    @abc.abstractmethod
    def writer(self) -> Callable[[str], Callable[[], None]]:
        """A connection: it begins a transaction with the given key, and returns what commits it."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stops the database."""


class Binlog(CommitLog):
    """MariaDB or MySQL."""

    server: ReplicatedServer
    position: str

    def __init__(self, server: ReplicatedServer) -> None:
        self.server = server
        server.run("CREATE DATABASE app", schema=None)
        server.run("CREATE TABLE lookaside_outbox (`key` VARBINARY(250) NOT NULL) ENGINE=InnoDB", *self.settings)
        server.run(
            """
            CREATE PROCEDURE write_commits(commits INT, prefix VARCHAR(100)) BEGIN
              DECLARE number INT DEFAULT 1;
              WHILE number <= commits DO
                INSERT INTO lookaside_outbox VALUES (CONCAT(prefix, number));
                SET number = number + 1;
              END WHILE;
            END
            """
        )
        self.file = ""

    settings: tuple[str, ...] = ("SET GLOBAL innodb_flush_log_at_trx_commit = 0",)

    @property
    def url(self) -> str:
        return self.server.url()

    def begin_round(self, cluster: Cluster, folder: Path) -> list[str]:
        self.server.rotate()
        self.file = self.server.run("SHOW BINARY LOGS")[-1][0]
        return ["--from", self.server.run(self.position)[0][0].replace("\n", "")]

    def write(self, commits: int, prefix: str) -> None:
        with self.server.connect(read_timeout=WRITE_S_MAX) as connection, connection.cursor() as cursor:
            cursor.execute("CALL write_commits(%s, %s)", (commits, prefix))

    def read(self) -> None:
        words = [
            *self.reader_command(), "--no-defaults", "--read-from-remote-server", "--protocol=tcp", "--host=127.0.0.1",
            f"--port={self.server.port}", "--user=root", "--to-last-log", self.file,
        ]  # fmt: skip
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def reader_command(self) -> list[str]:
        """What runs `reader`."""
        return [self.reader]

    def writer(self) -> Callable[[str], Callable[[], None]]:
        connection = self.server.connect()
        cursor = connection.cursor()

        def begin(key: str) -> Callable[[], None]:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO lookaside_outbox VALUES (%s)", (key,))
            return connection.commit

        return begin

    def stop(self) -> None:
        self.server.stop()


class MariadbLog(Binlog):
    """The installed MariaDB."""

    name, reader = "MariaDB", "mariadb-binlog"
    position = "SELECT @@global.gtid_binlog_pos"

    def __init__(self, folder: Path) -> None:
        super().__init__(MariadbServer(folder))


class MysqlLog(Binlog):
    """The fetched MySQL."""

    name, reader = "MySQL", "mysqlbinlog"
    position = "SELECT @@global.gtid_executed"
    settings = (*Binlog.settings, "SET GLOBAL binlog_transaction_compression = OFF")

    def __init__(self, folder: Path) -> None:
        if fetched("mysql") is None or not fetched("mysql").with_name("mysqlbinlog").exists():
            raise Unusable("MySQL is missing: run tests/fetch_database mysql")
        super().__init__(MysqlServer(folder))

    def reader_command(self) -> list[str]:
        return [str(fetched("mysql").with_name("mysqlbinlog"))]


class PostgresLog(CommitLog):
    """The installed PostgreSQL. What a slot has passed cannot be read again: each reader of a round has its own."""

    name, reader, commits = "PostgreSQL", "pg_recvlogical", 300_000

    def __init__(self, folder: Path) -> None:
        self.server = Postgres(folder)
        setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", self.server.url]
        subprocess.run(setup, check=True, stdout=subprocess.DEVNULL)
        self.connection = self.server.connect()
        self.connection.execute(
            """
            CREATE PROCEDURE write_commits(commits int, prefix text) LANGUAGE plpgsql AS $$ BEGIN
              FOR number IN 1..commits LOOP
                INSERT INTO lookaside_outbox (key) VALUES (prefix || number);
                COMMIT;
              END LOOP;
            END $$
            """
        )
        self.rounds = 0

    @property
    def url(self) -> str:
        return self.server.url

    def begin_round(self, cluster: Cluster, folder: Path) -> list[str]:
        self.drop_slots()
        self.rounds += 1
        arguments = ["--slot", f"invalidator_{self.rounds}"]
        # It begins with commits after its slot was created, at its first start.
        Invalidator(self.url, [cluster], folder / "state", folder, *arguments).stop()
        create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
        self.connection.execute(create, (f"reader_{self.rounds}",))
        return arguments

    def drop_slots(self) -> None:
        """Ends the last round: the server keeps the log for its slots."""
        unused = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        self.connection.execute(unused)

    def write(self, commits: int, prefix: str) -> None:
        self.connection.execute(f"CALL write_commits({commits}, '{prefix}')")

    def read(self) -> None:
        (end,) = self.connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        # It ends when it receives something at or after the end.
        self.connection.execute("SELECT pg_logical_emit_message(true, 'measurement', 'end')")
        words = [
            program("pg_recvlogical"), "--dbname", f"host=127.0.0.1 port={self.server.port} user={USER} dbname=app",
            f"--slot=reader_{self.rounds}", "--start", f"--endpos={end}", "--no-loop", "--file=/dev/null",
            "--option=proto_version=1", "--option=publication_names=lookaside", "--option=messages=true",
        ]  # fmt: skip
        subprocess.run(words, check=True, env={**os.environ, "PGPASSWORD": PASSWORD})

    def is_read(self, stats: dict[str, str], commits: int) -> bool:
        # All of them are in the spool, too.
        return super().is_read(stats, commits) and int(stats["spool_commits"]) >= commits

    def writer(self) -> Callable[[str], Callable[[], None]]:
        connection = self.server.connect()

        def begin(key: str) -> Callable[[], None]:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO lookaside_outbox (key) VALUES (%s)", (key,))
            return lambda: connection.execute("COMMIT")

        return begin

    def stop(self) -> None:
        self.connection.close()
        self.server.stop()
        self.server.remove()


class SqliteLog(CommitLog):
    """The journal of a SQLite database. It has no reader of its own."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.db"
        self.journal = Journal(self.path)

    @property
    def url(self) -> str:
        return self.journal.url

    def begin_round(self, cluster: Cluster, folder: Path) -> list[str]:
        return []

    def write(self, commits: int, prefix: str) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        connection.execute("PRAGMA synchronous=OFF")
        for number in range(1, commits + 1):
            connection.execute("INSERT INTO lookaside_journal (key) VALUES (?)", (f"{prefix}{number}",))
        connection.close()

    def writer(self) -> Callable[[str], Callable[[], None]]:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=60)

        def begin(key: str) -> Callable[[], None]:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO lookaside_journal (key) VALUES (?)", (key,))
            return lambda: connection.execute("COMMIT")

        return begin

    def stop(self) -> None:
        self.journal.connection.close()


COMMIT_LOGS: tuple[type[CommitLog], ...] = (MariadbLog, MysqlLog, PostgresLog, SqliteLog)
