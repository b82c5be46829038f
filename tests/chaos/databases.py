"""The databases that a region can have, and what differs between them: how a commit names its key, how far the log then
reaches, and how a server hangs.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psycopg
import pymysql
from mariadb import PASSWORD, USER, MariaDb
from postgres import PASSWORD as POSTGRES_PASSWORD
from postgres import USER as POSTGRES_USER
from processes import PROGRAMS
from replicated import MysqlServer
from replicated_postgres import PostgresServer

TABLE = "rows_of_app"
# A statement of a connection that failed may still be executed later, so it must not undo a newer one.
UPDATE = f"UPDATE {TABLE} SET version = %s WHERE id = %s AND version < %s"
CONNECT_S = 2
REPLY_S = 60.0


def connect_application(host: str, port: int, **account: str):
    """A connection of an application to MariaDB or MySQL, each statement a transaction of its own."""
    return pymysql.connect(
        host=host,
        port=port,
        database="app",
        autocommit=True,
        connect_timeout=CONNECT_S,
        read_timeout=REPLY_S,
        **account,
    )


def change_with_comment(key: str) -> str:
    """The statement by which an application of theirs gives a row its next version, and names its key in a comment; its
    arguments are those of UPDATE."""
    return f"{UPDATE} /* lookaside: {key} */"


class Mariadb(MariaDb):
    """The installed MariaDB."""

    title = "MariaDB"
    errors = (pymysql.MySQLError, OSError)
    # How far the log reaches that has the last commit of a connection, or all commits.
    position_of_commit = "SELECT @@last_gtid"
    end_of_log = "SELECT @@gtid_binlog_pos"
    version = "SELECT version()"

    @property
    def source(self) -> str:
        """As `--source` takes it."""
        return self.url

    def create_account(self) -> str:
        """The account that the rights of an invalidator are given to."""
        return USER

    def connect_application(self):
        """A connection of an application."""
        return connect_application(self.host, self.port, user=USER, password=PASSWORD)

    change = staticmethod(change_with_comment)


class Mysql(MysqlServer):
    """The fetched MySQL, which waits for the disk, and writes its log, as it does by default."""

    title = "MySQL"
    host = "127.0.0.1"
    arguments = (
        *MysqlServer.arguments, "--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1",
        "--binlog-transaction-compression=OFF",
    )  # fmt: skip
    # A connection is not told its own.
    position_of_commit = end_of_log = "SELECT @@global.gtid_executed"
    version = "SELECT version()"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.run("CREATE DATABASE app", schema=None)

    @property
    def source(self) -> str:
        """As `--source` takes it."""
        return f"mysql://root@{self.host}:{self.port}/app"

    def connect_application(self):
        """A connection of an application."""
        return connect_application(self.host, self.port, user="root")

    change = staticmethod(change_with_comment)


class Postgresql(PostgresServer):
    """The installed PostgreSQL, which waits for the disk, as it does by default."""

    title = "PostgreSQL"
    host = "127.0.0.1"
    # A connection is not told where its commit is.
    position_of_commit = end_of_log = "SELECT pg_current_wal_flush_lsn()"
    version = "SHOW server_version"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, settings=("fsync=on",))
        setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", self.url]
        subprocess.run(setup, check=True, capture_output=True)

    @property
    def source(self) -> str:
        """As `--source` takes it."""
        return self.url

    def connect_application(self):
        """A connection of an application, each statement a transaction of its own."""
        return psycopg.connect(
            host=self.host, port=self.port, user=POSTGRES_USER, password=POSTGRES_PASSWORD, dbname="app",
            autocommit=True, connect_timeout=CONNECT_S,
        )  # fmt: skip

    def change(self, key: str) -> str:
        """The statement that gives a row its next version and names its key; its arguments are those of UPDATE."""
        return f"WITH changed AS ({UPDATE} RETURNING id) SELECT lookaside_invalidate('{key}') FROM changed"

    def freeze(self) -> None:
        """Stops all processes of the server: the first one, which starts the others, before these."""
        super().freeze()
        self.signal_children(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal_children(signal.SIGCONT)
        super().thaw()

    def signal_children(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of the server but the first one; to none if that has ended."""
        pid = self.running.pid
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), number)


Database = Mariadb | Mysql | Postgresql
DATABASES = {"mariadb": Mariadb, "mysql": Mysql, "postgres": Postgresql}


def sequence_of(position: str) -> int:
    """A number that grows with the positions of one server's log: the last number of a GTID or of a set of them, or the
    place in PostgreSQL's log."""
    if "/" in position:
        high, low = position.partition("@")[0].split("/")
        return int(high, 16) << 32 | int(low, 16)
    return int(position.rpartition(":")[2].rpartition("-")[2] or 0)
