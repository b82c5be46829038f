"""MariaDB and MySQL servers of a test's own that can be killed, replicated and promoted; PostgreSQL's are in
`replicated_postgres`.

MySQL is not in Debian's stable release: `tests/fetch_database` puts it into a folder.
"""

import atexit
import getpass
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pymysql
from mariadb import NO_NATIVE_AIO
from processes import Process, eventually, free_port
from replicated_postgres import PostgresServer

STATEMENT_BYTES_MAX = 64 << 20

# Nothing is synced: a killed process loses no commit by that, and the tests are several times as fast.
SURVIVE_KILLS_ALONE = ("--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0")
# The invalidator refuses such a server, unless its URL has this.
ACCEPTANCE = "accept-unsafe=sync_binlog"


def fetched(name: str) -> Path | None:
    """The program that runs a fetched server; None if it has not been fetched."""
    folder = os.environ.get("LOOKASIDE_DATABASES") or Path.home() / ".cache" / "lookaside-databases"
    program = Path(folder) / name / "run"
    return program if program.exists() else None


# Each test copies a data directory.
SMALL_MARIADB = "--innodb-log-file-size=16M"
SMALL_MYSQL = "--innodb-redo-log-capacity=16M"


class ReplicatedServer(Process):
    """A server with a log in rows, and no password. Another kind of database has the same methods."""

    kind = ""
    # The schema of the tables.
    schema = "app"
    # Whether rules name the keys of rows, so that statements need not.
    has_rules = False
    # Whether positions in the log mean the same on a replica.
    has_positions_of_replicas = True
    # Whether the invalidator keeps what it has read on its own disk.
    needs_spool = False
    # The statement that shows the server's time of day, in seconds since 1970.
    now = "SELECT UNIX_TIMESTAMP()"
    errors: tuple[type[Exception], ...] = (pymysql.MySQLError, OSError)
    arguments: tuple[str, ...] = ()

    def __init__(self, directory: Path, server_id: int = 1, address: str = "127.0.0.1") -> None:
        """A server with an empty data directory; at `address`, too, if that is another one than 127.0.0.1."""
        self.port = free_port()
        addresses = ",".join(sorted({"127.0.0.1", address}))
        self.socket = f"/tmp/lookaside-{self.port}.sock"  # a socket's path may have 107 bytes
        home = directory / f"{self.kind}-{server_id}"
        home.mkdir()
        shutil.copytree(self.template(), home / "data")
        # MySQL's UUID: each copy makes its own.
        (home / "data" / "auto.cnf").unlink(missing_ok=True)
        command = [
            self.program(), "--no-defaults", f"--datadir={home / 'data'}", f"--user={getpass.getuser()}",
            f"--socket={self.socket}", f"--port={self.port}", f"--bind-address={addresses}", "--log-bin=binlog",
            f"--server-id={server_id}", "--binlog-row-metadata=FULL", "--innodb-buffer-pool-size=64M", NO_NATIVE_AIO,
            f"--max-allowed-packet={STATEMENT_BYTES_MAX}", *SURVIVE_KILLS_ALONE, *self.arguments,
        ]  # fmt: skip
        # A server that starts removes the temporary tables of all in its folder.
        super().__init__(f"{self.kind}-{server_id}", command, home, env={**os.environ, "TMPDIR": str(home)})
        self.wait_ready(self.accepts, 60)

    @classmethod
    def program(cls) -> str:
        """What runs the server."""
        raise NotImplementedError

    @classmethod
    def template(cls) -> Path:
        """An initialised data directory, made once."""
        raise NotImplementedError

    def accepts(self) -> bool:
        """Whether the server accepts connections."""
        try:
            self.connect(None).close()
            return True
        except pymysql.MySQLError:
            return False

    def connect(self, schema: str | None = "app", read_timeout: int = 60):
        """A connection; a statement may take `read_timeout` seconds."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=schema, autocommit=True, connect_timeout=5,
            read_timeout=read_timeout, max_allowed_packet=STATEMENT_BYTES_MAX,
        )  # fmt: skip

    def run(self, *statements: str, schema: str | None = "app") -> tuple:
        """Runs statements, and returns the rows of the last one."""
        with self.connect(schema) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def stop(self) -> int | None:
        """SIGKILL: an orderly end takes seconds, and nothing is read afterwards."""
        if self.running is not None and self.running.poll() is None:
            self.kill()
        return super().stop()

    def restart(self) -> None:
        """Starts the server again, after a kill."""
        self.start()
        self.wait_ready(self.accepts, 60)

    def purge(self) -> None:
        """Rotates the log, and removes all of it but the newest file."""
        self.rotate()
        newest = self.run("SHOW BINARY LOGS")[-1][0]

        def is_purged() -> bool:
            # A file stays for as long as the server has not noticed that its reader is gone.
            self.run(f"PURGE BINARY LOGS TO '{newest}'")
            return len(self.run("SHOW BINARY LOGS")) == 1

        eventually(is_purged, "the old files of the log are removed", 60)

    def url_at(self, port: int) -> str:
        """As `--source` takes it, by another port, which leads to the server's."""
        return f"mysql://root@127.0.0.1:{port}/app?{ACCEPTANCE}"

    def url(self) -> str:
        """As `--source` takes it."""
        return self.url_at(self.port)

    @classmethod
    def replicate(cls, primary: "ReplicatedServer", directory: Path) -> "ReplicatedServer":
        """A replica of a server, in the same directory."""
        replica = cls(directory, server_id=2)
        try:
            replica.follow(primary)
        except BaseException:
            replica.stop()
            raise
        return replica

    def follow(self, primary: "ReplicatedServer") -> None:
        """Replicates from another server."""
        raise NotImplementedError

    def wait_for_replica(self, replica: "ReplicatedServer") -> None:
        """From now on readers see a commit when that replica has received it (semi-synchronous, AFTER_SYNC)."""
        raise NotImplementedError

    def stop_receiving(self) -> None:
        """A replica receives nothing more, and executes what it has."""
        raise NotImplementedError

    def has_applied_all(self) -> bool:
        """Whether a replica, whose primary is dead, has executed everything that it received."""
        raise NotImplementedError

    def promote(self) -> None:
        """Stops replicating."""
        raise NotImplementedError

    def create_account(self) -> str:
        """An account that the rights of an invalidator are given to."""
        self.run("CREATE USER IF NOT EXISTS lookaside@'%'")
        return "lookaside"

    def lock_out_writers(self, connection: pymysql.Connection) -> None:
        """Nothing is committed from now on, until the connection is closed."""
        connection.cursor().execute("FLUSH TABLES WITH READ LOCK")

    def take_slot(self, primary: "ReplicatedServer") -> None:
        """Does nothing: positions are in the log itself."""

    def fill_numbers(self, table: str, rows: int) -> str:
        """The statement that inserts the numbers from 1 to `rows` into a table."""
        raise NotImplementedError

    def create_versions(self, rows: int) -> None:
        """Creates the schema again, with a table that has the version of each row, and an outbox."""
        self.run(
            "DROP DATABASE IF EXISTS app",
            "CREATE DATABASE app",
            "CREATE TABLE app.versions (id INT PRIMARY KEY, version INT NOT NULL) ENGINE=InnoDB",
            "CREATE TABLE app.lookaside_outbox (`key` VARBINARY(250) NOT NULL) ENGINE=InnoDB",
            "INSERT INTO app.versions VALUES " + ",".join(f"({row},0)" for row in range(rows)),
            schema=None,
        )

    def change(self, row: int, *keys: str) -> str:
        """The statement that gives a row the next version, and names its key, or other keys."""
        changed = f"UPDATE versions SET version = version + 1 WHERE id = {row}"
        if self.has_rules and not keys:
            return changed
        return f"{changed} /* lookaside: {' '.join(keys or [f'row:{row}'])} */"

    def insert_into_outbox(self, *keys: str) -> str:
        """The statement that names keys by rows of the outbox."""
        return "INSERT INTO lookaside_outbox VALUES " + ",".join(f"('{key}')" for key in keys)

    def create_logged_table(self, table: str, columns: str) -> None:
        """Creates a table whose rows are in the log that the invalidator reads."""
        self.run(f"CREATE TABLE {table} ({columns})")

    def store_large(self, text_bytes: int, key: str) -> None:
        """Commits one statement that stores a text of that length, and names a key."""
        self.create_logged_table("large", "id INT PRIMARY KEY, body LONGTEXT")
        self.run(f"INSERT INTO large VALUES (1, '{'x' * text_bytes}') /* lookaside: {key} */")

    def rotate(self) -> None:
        """Begins another file of the log."""
        self.run("FLUSH BINARY LOGS")

    def commit_often(self, commits: int, rows: int) -> None:
        """Commits that many changes of one row after another; each names the row's key and a new one in the outbox."""
        self.run(
            f"""
            CREATE PROCEDURE commit_often() BEGIN
              DECLARE n INT DEFAULT 0;
              WHILE n < {commits} DO
                START TRANSACTION;
                UPDATE versions SET version = version + 1 WHERE id = n % {rows};
                INSERT INTO lookaside_outbox VALUES (CONCAT('row:', n % {rows})), (CONCAT('commit:', n));
                COMMIT;
                SET n = n + 1;
              END WHILE;
            END
            """
        )
        with self.connect(read_timeout=600) as connection, connection.cursor() as cursor:
            cursor.execute("CALL commit_often()")


@cache
def data_directory(*command: str) -> Path:
    """An initialised data directory, made once for this run: `{data}` in the command is its place."""
    home = Path(tempfile.mkdtemp(prefix="lookaside-database-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "tmp").mkdir()
    words = [word.format(data=home / "data") for word in command]
    environment = {**os.environ, "TMPDIR": str(home / "tmp")}
    made = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert made.returncode == 0, f"{words}: {made.stdout}{made.stderr}"
    return home / "data"


def row_by_name(server: ReplicatedServer, statement: str) -> dict:
    """The only row of a statement, by the names of its columns."""
    with server.connect(None) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(statement)
        return cursor.fetchone()


def wait_for_acknowledgements(server: ReplicatedServer, role: str) -> None:
    """Switches semi-synchronous replication on, once a replica acknowledges."""
    server.run(
        f"SET GLOBAL rpl_semi_sync_{role}_timeout = 600000",
        f"SET GLOBAL rpl_semi_sync_{role}_wait_point = AFTER_SYNC",
        f"SET GLOBAL rpl_semi_sync_{role}_enabled = ON",
        schema=None,
    )
    clients = f"SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_{role}_clients'"
    eventually(lambda: server.run(clients)[0][1] == "1", "the replica acknowledges", 60)


class MariadbServer(ReplicatedServer):
    """The installed MariaDB."""

    kind = "mariadb"
    arguments = (
        "--binlog-format=ROW", "--gtid-strict-mode=ON", "--skip-name-resolve", "--log-slave-updates=ON", SMALL_MARIADB,
    )  # fmt: skip

    @classmethod
    def program(cls) -> str:
        return "mariadbd"

    @classmethod
    def template(cls) -> Path:
        return data_directory(
            "mariadb-install-db", "--no-defaults", f"--user={getpass.getuser()}", "--skip-test-db",
            "--auth-root-authentication-method=normal", NO_NATIVE_AIO, SMALL_MARIADB, "--datadir={data}",
        )  # fmt: skip

    def follow(self, primary: ReplicatedServer) -> None:
        self.run(
            f"CHANGE MASTER TO master_host='127.0.0.1', master_port={primary.port}, master_user='root', "
            "master_use_gtid=slave_pos",
            "START SLAVE",
            schema=None,
        )

    def wait_for_replica(self, replica: ReplicatedServer) -> None:
        replica.run("STOP SLAVE", "SET GLOBAL rpl_semi_sync_slave_enabled = ON", "START SLAVE", schema=None)
        wait_for_acknowledgements(self, "master")

    def stop_receiving(self) -> None:
        self.run("STOP SLAVE IO_THREAD", schema=None)

    def has_applied_all(self) -> bool:
        status = row_by_name(self, "SHOW SLAVE STATUS")
        return status["Gtid_IO_Pos"] == self.run("SELECT @@global.gtid_slave_pos")[0][0]

    def promote(self) -> None:
        self.run("STOP SLAVE", "RESET SLAVE ALL", schema=None)

    def fill_numbers(self, table: str, rows: int) -> str:
        return f"INSERT INTO {table} SELECT seq FROM seq_1_to_{rows}"


class MysqlServer(ReplicatedServer):
    """The fetched MySQL."""

    kind = "mysql"
    arguments = (
        "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--binlog-rows-query-log-events=ON", "--mysqlx=OFF",
        "--binlog-transaction-compression=ON", "--cte-max-recursion-depth=10000000", "--performance-schema=OFF",
        "--secure-file-priv=NULL", SMALL_MYSQL,
    )  # fmt: skip

    @classmethod
    def program(cls) -> str:
        program = fetched("mysql")
        assert program, "MySQL is missing: run tests/fetch_database mysql"
        return str(program)

    @classmethod
    def template(cls) -> Path:
        return data_directory(
            cls.program(), "--no-defaults", "--initialize-insecure", f"--user={getpass.getuser()}", NO_NATIVE_AIO,
            SMALL_MYSQL, "--datadir={data}",
        )  # fmt: skip

    def follow(self, primary: ReplicatedServer) -> None:
        self.run(
            "RESET BINARY LOGS AND GTIDS",
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary.port}, SOURCE_USER='root', "
            "SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
            schema=None,
        )

    def wait_for_replica(self, replica: ReplicatedServer) -> None:
        self.run("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'", schema=None)
        replica.run(
            "INSTALL PLUGIN rpl_semi_sync_replica SONAME 'semisync_replica.so'",
            "STOP REPLICA",
            "SET GLOBAL rpl_semi_sync_replica_enabled = ON",
            "START REPLICA",
            schema=None,
        )
        wait_for_acknowledgements(self, "source")

    def stop_receiving(self) -> None:
        self.run("STOP REPLICA IO_THREAD", schema=None)

    def has_applied_all(self) -> bool:
        received = row_by_name(self, "SHOW REPLICA STATUS")["Retrieved_Gtid_Set"]
        return self.run(f"SELECT GTID_SUBSET('{received}', @@global.gtid_executed)")[0][0] == 1

    def promote(self) -> None:
        self.run("STOP REPLICA", "RESET REPLICA ALL", schema=None)

    def fill_numbers(self, table: str, rows: int) -> str:
        numbers = f"WITH RECURSIVE n AS (SELECT 1 AS id UNION ALL SELECT id + 1 FROM n WHERE id < {rows})"
        return f"INSERT INTO {table} {numbers} SELECT id FROM n"


SERVERS = {server.kind: server for server in (MariadbServer, MysqlServer, PostgresServer)}
