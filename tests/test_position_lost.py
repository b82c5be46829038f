"""The log was purged before the invalidator had read it: it stops and says what to do, or empties the cluster."""

import contextlib
import subprocess

import pymysql
import pytest
from journal import Journal
from processes import PROGRAMS, Cluster, Invalidator, Process, eventually, free_port, stats


class PurgedMariaDb:
    """MariaDB, whose binlog can be purged."""

    def __init__(self, mariadb) -> None:
        self.mariadb, self.url = mariadb, mariadb.url
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE lookaside_outbox (`key` VARBINARY(250) NOT NULL) ENGINE=InnoDB")

    def commit(self, *keys: str) -> None:
        """Commits a change that makes these keys stale."""
        with self.mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO lookaside_outbox VALUES (%s)", [(key,) for key in keys])

    def purge(self) -> None:
        """Removes the log up to now."""

        def is_purged(cursor) -> bool:
            cursor.execute("SHOW MASTER STATUS")
            cursor.execute("PURGE BINARY LOGS TO %s", (cursor.fetchone()[0],))
            # A log that a reader still has open stays.
            cursor.execute("SHOW BINARY LOGS")
            return len(cursor.fetchall()) == 1

        with self.mariadb.connect("root", "", None) as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (reader,) in cursor.fetchall():
                with contextlib.suppress(pymysql.MySQLError):  # it may have ended
                    cursor.execute(f"KILL {reader}")
            eventually(lambda: is_purged(cursor), "the log is purged")


class PurgedJournal(Journal):
    """A SQLite journal whose rows can be removed."""

    def purge(self) -> None:
        """Removes the log up to now."""
        self.connection.execute("DELETE FROM lookaside_journal")


class PurgedPostgres:
    """PostgreSQL, whose replication slots can be dropped."""

    def __init__(self, postgres) -> None:
        self.url, self.connection = postgres.url, postgres.connect()
        setup = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", postgres.url]
        subprocess.run(setup, check=True, capture_output=True)

    def commit(self, *keys: str) -> None:
        """Commits a change that makes these keys stale."""
        with self.connection.transaction():
            for key in keys:
                self.connection.execute("INSERT INTO lookaside_outbox (key) VALUES (%s)", (key,))

    def purge(self) -> None:
        """Removes the slots, and with them the log up to now."""

        def is_dropped() -> bool:
            slots = "FROM pg_replication_slots"
            self.connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots} WHERE NOT active")
            return self.connection.execute(f"SELECT count(*) {slots}").fetchone() == (0,)

        # The server may notice late that the reader is gone.
        eventually(is_dropped, "the slots are dropped")


@pytest.fixture(params=["mariadb", "postgres", "sqlite"])
def database(request, tmp_path):
    """A database."""
    kinds = {"mariadb": PurgedMariaDb, "postgres": PurgedPostgres}
    if request.param == "sqlite":
        return PurgedJournal(tmp_path / "app.db")
    return kinds[request.param](request.getfixturevalue(request.param))


@pytest.fixture
def cluster(tmp_path):
    """A cluster that can be flushed."""
    cluster = Cluster("one", tmp_path, ("--enable-flush-cmd",))
    yield cluster
    cluster.stop()


def test_a_lost_position_stops_the_daemon_or_empties_the_cluster(database, cluster, tmp_path):
    client, state = cluster.client(), tmp_path / "state"
    invalidator = Invalidator(database.url, [cluster], state, tmp_path)
    database.commit("before")
    eventually(lambda: stats(invalidator.port)["invalidations_total"] == "1", "it is deleted")
    invalidator.stop()
    keys = ["lost", "other"]
    assert client.set_many(dict.fromkeys(keys, "old")) == []
    database.commit("lost")
    database.purge()
    database.commit("after")

    where = f"one=127.0.0.1:{cluster.port}"
    command = [PROGRAMS / "lookaside-invalidator", "--source", database.url, "--state-dir", state, "--cluster", where]
    saved = (state / "one.position.json").read_bytes()
    stopped = Process("stopped", [*command, "--listen", f"127.0.0.1:{free_port()}"], tmp_path)
    assert stopped.running.wait(20) == 1
    for choice in ("flush_all", "--from now", "--on-position-lost flush"):
        assert choice in stopped.log(), stopped.log()
    assert (state / "one.position.json").read_bytes() == saved
    assert set(client.get_many(keys)) == set(keys), "nothing is done without the operator"

    invalidator = Invalidator(database.url, [cluster], state, tmp_path, "--on-position-lost", "flush")
    try:
        eventually(lambda: client.get_many(keys) == {}, "the cluster is flushed")
        assert stats(invalidator.port)["cluster:one:positions_lost"] == "1"
        assert client.set("next", "old")
        database.commit("next")
        eventually(lambda: client.get("next") is None, "later commits are deleted")
    finally:
        invalidator.stop()
