"""Plain clients of the databases that have row rules, and what is deleted after a client has changed a row."""

import itertools
import subprocess
import tempfile
from pathlib import Path

import pytest
from processes import PROGRAMS, Invalidator, eventually
from recording_router import RecordingRouter
from row_model import MARIADB, MYSQL, POSTGRES, Step, Table, create_sql, quoted

OUTBOX = "CREATE TABLE app.lookaside_outbox (item VARBINARY(250))"
USERS = """CREATE TABLE app.users (id INT PRIMARY KEY, email VARCHAR(100), score DOUBLE PRECISION, bio TEXT,
  parent INT, FOREIGN KEY (parent) REFERENCES app.users (id) ON DELETE CASCADE)"""
RULE = '[[rule]]\ntable = "app.users"\nkeys = ["user:{id}", "user_by_email:{email}"]\n'


def operate(*arguments):
    """Runs `lookaside invalidator`."""
    command = [str(PROGRAMS / "lookaside"), "invalidator", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


class MariaDbClient:
    """A plain client of MariaDB. The tests of another database need the same methods, and its SQL."""

    sql = MARIADB
    schema = "app"
    # Whether rows that a statement leaves as they were name keys: superfluous ones.
    has_unchanged_rows = False
    # Whether rows that a foreign key changes are in the log.
    logs_cascades = False
    # Whether the server reads rows from a file.
    can_load = True

    def __init__(self, server, url: str) -> None:
        self.url = url
        self.connection = server.connect(schema=None)
        self.run(self.sql.session)
        self.run(OUTBOX)

    def run(self, statement: str) -> None:
        """Runs a statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def rows(self, query: str) -> list[tuple]:
        """The rows that a query finds."""
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def vary_log(self, seed: int) -> None:
        """Chooses settings of the log that must make no difference."""
        self.run(f"SET GLOBAL binlog_row_metadata = '{['FULL', 'NO_LOG', 'MINIMAL'][seed % 3]}'")
        self.run(f"SET GLOBAL log_bin_compress = {seed % 2}")

    def accepting_url(self) -> str:
        """The URL of a log whose rows may have no names of columns; they are those of the catalogue then."""
        return self.url + (",binlog_row_metadata" if "?" in self.url else "?accept-unsafe=binlog_row_metadata")

    def close(self) -> None:
        """Ends the connection; the log is as it was."""
        self.connection.rollback()
        self.vary_log(0)
        self.connection.close()

    def mark(self, key: str) -> None:
        """Commits an outbox row with this key."""
        self.run(f"INSERT INTO {self.schema}.lookaside_outbox VALUES ('{key}')")

    def create(self, table: Table) -> None:
        """Creates a table."""
        self.run(create_sql(table, self.sql))

    def create_partitioned(self, table: Table, bounds: list[int]) -> None:
        """Creates a table with partitions, one for the values of `id` below each bound, and one for the rest."""
        parts = [f"PARTITION p{bound} VALUES LESS THAN ({bound})" for bound in bounds]
        parts.append("PARTITION rest VALUES LESS THAN MAXVALUE")
        self.run(f"{create_sql(table, self.sql)} PARTITION BY RANGE (id) ({', '.join(parts)})")

    def recreate(self, table: Table) -> None:
        """Drops a table, and creates it."""
        self.run(f"DROP TABLE {table.name}")
        self.create(table)

    def load(self, table: Table, lines: str) -> None:
        """Inserts rows: lines with a tab between two values, and `\\N` for NULL."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".tsv") as file:
            file.write(lines)
            file.flush()
            self.run(
                f"LOAD DATA INFILE {quoted(file.name)} INTO TABLE {table.name} CHARACTER SET utf8mb4 "
                f"({', '.join(table.columns)})"
            )

    def prepare(self, rules: Path) -> None:
        """Does to the database what the rules need."""


class MysqlClient(MariaDbClient):
    """The same for MySQL, which compresses whole transactions."""

    sql = MYSQL
    # As innodb_native_foreign_keys is OFF by default.
    logs_cascades = True
    # As secure_file_priv is NULL and local_infile OFF.
    can_load = False

    def vary_log(self, seed: int) -> None:
        self.run(f"SET GLOBAL binlog_row_metadata = '{['FULL', 'MINIMAL'][seed % 2]}'")
        self.run(f"SET SESSION binlog_transaction_compression = {seed % 3 > 0}")


class PostgresClient:
    """The same for PostgreSQL."""

    sql = POSTGRES
    schema = "app"
    has_unchanged_rows = True
    logs_cascades = True
    can_load = True

    def __init__(self, server) -> None:
        self.url = server.url
        self.connection = server.connect()
        self.run("CREATE SCHEMA app")
        self.run(self.sql.session)

    def run(self, statement: str) -> None:
        """Runs a statement."""
        self.connection.execute(statement)

    def rows(self, query: str) -> list[tuple]:
        """The rows that a query finds."""
        return self.connection.execute(query).fetchall()

    def vary_log(self, seed: int) -> None:
        """Chooses how values are written as text, unless a session chooses by itself."""
        self.run(f"ALTER DATABASE app SET DateStyle = '{['ISO', 'German', 'SQL, MDY'][seed % 3]}'")
        self.run(f"ALTER DATABASE app SET TimeZone = '{['UTC', 'Asia/Kolkata'][seed % 2]}'")
        self.run(f"ALTER DATABASE app SET bytea_output = '{['escape', 'hex'][seed % 2]}'")
        self.has_unchanged_rows = seed % 4 < 2

    def accepting_url(self) -> str:
        """The URL: the log always has names."""
        return self.url

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()

    def create(self, table: Table) -> None:
        """Creates a table. If its log has no old rows unless keys need them, an unchanged row is not known for one."""
        self.run(create_sql(table, self.sql))
        self.log_old_rows(table.name)

    def log_old_rows(self, name: str) -> None:
        """Has the old rows of a table in the log, unless unchanged rows are to name keys."""
        if not self.has_unchanged_rows:
            self.run(f"ALTER TABLE {name} REPLICA IDENTITY FULL")

    def create_partitioned(self, table: Table, bounds: list[int]) -> None:
        """Creates a table with partitions, one for the values of `id` below each bound, and one for the rest."""
        self.run(f"{create_sql(table, self.sql)} PARTITION BY RANGE (id)")
        for first, end in itertools.pairwise(["MINVALUE", *bounds, "MAXVALUE"]):
            part = f"{table.name}_below_{end}"
            self.run(f"CREATE TABLE {part} PARTITION OF {table.name} FOR VALUES FROM ({first}) TO ({end})")
            self.log_old_rows(part)

    def recreate(self, table: Table) -> None:
        """Drops a table, creates it, and publishes it; no look at the catalogue finds it between these."""
        self.run("BEGIN")
        self.run(f"DROP TABLE {table.name}")
        self.run(create_sql(table, self.sql))
        self.run(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")
        self.run(f"ALTER PUBLICATION lookaside ADD TABLE {table.name}")
        self.run("COMMIT")

    def load(self, table: Table, lines: str) -> None:
        """Inserts rows: lines with a tab between two values, and `\\N` for NULL."""
        statement = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN"
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(lines)

    def mark(self, key: str) -> None:
        """Commits a message with this key."""
        self.run(f"SELECT lookaside_invalidate('{key}')")

    def prepare(self, rules: Path) -> None:
        """Publishes the tables of the rules, with the identities that they need."""
        done = operate("setup", "--database", self.url, "--rules", rules)
        assert done.returncode == 0, done.stderr


DATABASES = ["mariadb", "mysql", "postgres"]


@pytest.fixture(name="client", params=DATABASES)
def client_fixture(request):
    """A client of each database that has row rules."""
    server = request.getfixturevalue(request.param)
    match request.param:
        case "mariadb":
            client = MariaDbClient(server, server.url)
        case "mysql":
            client = MysqlClient(server, server.url())
        case _:
            client = PostgresClient(server)
    yield client
    client.close()


@pytest.fixture(name="router")
def router_fixture():
    """A router that records deletes."""
    router = RecordingRouter()
    yield router
    router.stop()


@pytest.fixture(name="users")
def users_fixture(client):
    """A client, and a table."""
    client.run(USERS)
    return client


def keys_until(
    router: RecordingRouter, client, mark: str, flushed: list[str] | None = None, expected: set[str] | None = None
) -> tuple[set[str], list[str]]:
    """Everything that was deleted or flushed before a key that is committed now, and at least these flushes with
    `expected`, which may come after it."""
    flushed = flushed or []
    client.mark(mark)
    eventually(
        lambda: router.has(mark) and set(flushed) <= set(router.flushed), f"{mark} is deleted after {flushed}", 60
    )
    if flushed:
        eventually(lambda: all(router.has(key) for key in expected or ()), f"{expected} are deleted", 60)
    keys, flushed = router.take_flushed()
    return keys - {mark}, flushed


def start_with_rules(router: RecordingRouter, client, folder: Path, tables: list[Table]) -> Invalidator:
    """An invalidator with the rules of these tables, which has begun to read the log."""
    rules = folder / "rules.toml"
    rules.write_text("\n".join(table.rule() for table in tables))
    client.prepare(rules)
    checked = operate("check-rules", "--rules", rules, "--database", client.accepting_url(), "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    daemon = Invalidator(client.accepting_url(), [router], folder / "state", folder, "--rules", str(rules))
    try:
        # The catalogue has been read, so that an ALTER TABLE is noticed.
        assert keys_until(router, client, "begun") == (set(), [])
    except BaseException:
        daemon.stop()
        raise
    return daemon


def check_step(router: RecordingRouter, client, mark: str, step: Step) -> None:
    """Exactly the keys and flushes of a step that has been executed have reached the router."""
    found, flushed = keys_until(router, client, mark, step.flushed, step.keys)
    if client.has_unchanged_rows:
        found -= step.unchanged - step.keys
    assert (found, flushed) == (step.keys, step.flushed), step.statements
