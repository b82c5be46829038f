"""PostgreSQL servers of a test's own, with the methods of `replicated.ReplicatedServer`.

A replica is a physical standby.
"""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psycopg
from postgres import USER, Postgres
from processes import PROGRAMS, eventually

READ_TIMEOUT_S = 60


class PostgresServer(Postgres):
    """The installed PostgreSQL."""

    kind = "postgres"
    errors: tuple[type[Exception], ...] = (psycopg.Error, OSError)
    schema = "public"
    has_rules = False
    has_positions_of_replicas = False
    needs_spool = True
    now = "SELECT extract(epoch FROM clock_timestamp())::bigint"

    def __init__(
        self, directory: Path, server_id: int = 1, primary: Postgres | None = None, settings: tuple[str, ...] = ()
    ) -> None:
        home = directory / f"{self.kind}-{server_id}"
        home.mkdir()
        super().__init__(home, *settings, primary=primary, installed=self.installed())

    @classmethod
    def installed(cls) -> Path | None:
        """The folder of the version; `None` for the one that is installed."""
        return None

    @classmethod
    def replicate(cls, primary: Postgres, directory: Path) -> "PostgresServer":
        """A replica of a server, in the same directory. It keeps the log that a slot which it is given may need."""
        return cls(directory, server_id=2, primary=primary, settings=("wal_keep_size=64MB",))

    def wait_for_replica(self, replica: "PostgresServer") -> None:
        """From now on readers see a commit when that replica has written it. It can be given the slot."""
        self.wait_until_synchronous()

        def has_log_of_slot() -> bool:
            # Where decoding begins for the slot, which the primary has on disk. With each checkpoint, and each delete
            # after it, that can be later: after the copy with which the standby began.
            needed = self.run(
                "CHECKPOINT",
                "SELECT lookaside_invalidate('any')",
                "SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots WHERE slot_name = 'lookaside'",
            )
            return needed[0] in replica.run("SELECT name FROM pg_ls_waldir()")

        eventually(has_log_of_slot, "the standby has the log that the slot needs", READ_TIMEOUT_S)

    def wait_until_synchronous(self) -> None:
        """From now on readers see a commit when the standby has written it."""
        # The name of a standby that is given none. `*` would be the invalidator's, too.
        self.run("ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'", "SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'walreceiver'"
        eventually(lambda: self.run(state) == [("sync",)], "commits wait for the standby", READ_TIMEOUT_S)

    def has_applied_all(self) -> bool:
        """Whether a replica, whose primary is dead, has received all that was sent to it. A promotion applies that."""
        return not self.run("SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'")

    def create_account(self) -> str:
        """An account that the rights of an invalidator are given to: the one that it has."""
        return USER

    def lock_out_writers(self, connection: psycopg.Connection) -> None:
        """Nothing is committed from now on in the tables of these tests, until the connection is closed."""
        connection.execute("BEGIN")
        connection.execute("LOCK TABLE versions, lookaside_invalidator IN EXCLUSIVE MODE")

    def take_slot(self, primary: Postgres) -> None:
        """Restarts a standby with the slot of its primary, which has ended."""
        Postgres.stop(self)
        slot = Path("data/pg_replslot/lookaside")
        shutil.copytree(primary.home / slot, self.home / slot)
        if os.geteuid() == 0:
            for path in (self.home / slot, *(self.home / slot).iterdir()):
                shutil.chown(path, "postgres", "postgres")
        self.restart()

    def run(self, *statements: str) -> list[tuple]:
        """Runs statements, and returns the rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> int | None:
        """An immediate shutdown: an orderly one waits for a checkpoint, and nothing is read afterwards."""
        if self.running is not None and self.running.poll() is None:
            self.running.send_signal(signal.SIGQUIT)
        code = super().stop()
        self.remove()
        return code

    def create_versions(self, rows: int) -> None:
        """Creates the database again, with a table that has the version of each row, and what `setup` creates."""
        self.recreate_database()
        setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", self.url]
        subprocess.run(setup, check=True, capture_output=True)
        self.run(
            "CREATE TABLE versions (id INT PRIMARY KEY, version INT NOT NULL)",
            f"INSERT INTO versions SELECT row, 0 FROM generate_series(0, {rows - 1}) AS row",
        )

    def change(self, row: int, *keys: str) -> str:
        """The statement that gives a row the next version, and names its key, or other keys, by a message."""
        named = ",".join(f"'{key}'" for key in keys or [f"row:{row}"])
        change = f"UPDATE versions SET version = version + 1 WHERE id = {row}"
        if self.has_rules and not keys:
            return change
        return (
            f"WITH changed AS ({change} RETURNING id) SELECT lookaside_invalidate(VARIADIC ARRAY[{named}]) FROM changed"
        )

    def insert_into_outbox(self, *keys: str) -> str:
        """The statement that names keys by rows of the outbox."""
        return "INSERT INTO lookaside_outbox (key) VALUES " + ",".join(f"('{key}')" for key in keys)

    def create_logged_table(self, table: str, columns: str) -> None:
        """Creates a table whose rows are in the log that the invalidator reads."""
        self.run(f"CREATE TABLE {table} ({columns})", f"ALTER PUBLICATION lookaside ADD TABLE {table}")

    def store_large(self, text_bytes: int, key: str) -> None:
        """Commits one statement that stores a text of that length, logs it as a message too, and names a key."""
        self.create_logged_table("large", "id INT PRIMARY KEY, body TEXT")
        store = f"INSERT INTO large VALUES (1, '{'x' * text_bytes}') RETURNING body"
        name = f"pg_logical_emit_message(true, 'application', body), lookaside_invalidate('{key}')"
        self.run(f"WITH stored AS ({store}) SELECT {name} FROM stored")

    def fill_numbers(self, table: str, rows: int) -> str:
        """The statement that inserts the numbers from 1 to `rows` into a table."""
        return f"INSERT INTO {table} SELECT generate_series(1, {rows})"

    def commit_often(self, commits: int, rows: int) -> None:
        """Commits that many changes of one row after another; each names the row's key and a new one in the outbox."""
        self.run(
            f"""
            DO $$ BEGIN
              FOR n IN 0..{commits - 1} LOOP
                UPDATE versions SET version = version + 1 WHERE id = n % {rows};
                INSERT INTO lookaside_outbox (key) VALUES ('row:' || n % {rows}), ('commit:' || n);
                COMMIT;
              END LOOP;
            END $$
            """
        )

    def rotate(self) -> None:
        """Begins another file of the log."""
        self.run("SELECT pg_switch_wal()")

    def purge(self) -> None:
        """Removes the log that the slot needs, as it is longer than the server may keep."""

        def is_removed() -> bool:
            # A change is needed for another file.
            self.run("UPDATE versions SET version = version", "SELECT pg_switch_wal()", "CHECKPOINT")
            return self.run("SELECT wal_status FROM pg_replication_slots") == [("lost",)]

        self.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        eventually(is_removed, "the slot has lost its log", READ_TIMEOUT_S)
        self.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")

    def drop_slot(self) -> None:
        """Drops the slot of the invalidator, once the server has noticed that its reader is gone."""

        def is_dropped() -> bool:
            with suppress(psycopg.errors.ObjectInUse):
                self.run("SELECT pg_drop_replication_slot('lookaside')")
                return True
            return False

        eventually(is_dropped, "the slot is dropped", READ_TIMEOUT_S)
