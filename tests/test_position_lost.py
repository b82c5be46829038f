"""The log was purged before the invalidator had read it: it stops and says what to do, and that works."""

import contextlib
import shutil
import subprocess

import pymysql
import pytest
from journal import Journal
from processes import PROGRAMS, Cluster, Invalidator, Process, answers, connect, eventually, free_port, stats


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


def save_position(database, cluster, state, tmp_path) -> None:
    """Runs an invalidator until it has deleted one key."""
    invalidator = Invalidator(database.url, [cluster], state, tmp_path)
    database.commit("before")
    eventually(lambda: stats(invalidator.port)["invalidations_total"] == "1", "it is deleted")
    invalidator.stop()


def log_of_stopped(database, cluster, state, tmp_path) -> str:
    """Starts an invalidator that stops at a loss, and returns its log."""
    where = f"one=127.0.0.1:{cluster.port}"
    command = [PROGRAMS / "lookaside-invalidator", "--source", database.url, "--state-dir", state, "--cluster", where]
    stopped = Process("stopped", [*command, "--listen", f"127.0.0.1:{free_port()}"], tmp_path)
    assert stopped.running.wait(20) == 1
    return stopped.log()


def test_a_lost_position_stops_the_daemon_or_empties_the_cluster(database, cluster, tmp_path):
    client, state = cluster.client(), tmp_path / "state"
    save_position(database, cluster, state, tmp_path)
    keys = ["lost", "other"]
    assert client.set_many(dict.fromkeys(keys, "old")) == []
    database.commit("lost")
    database.purge()
    database.commit("after")

    saved = (state / "one.position.json").read_bytes()
    log = log_of_stopped(database, cluster, state, tmp_path)
    for choice in ("--on-position-lost flush", "--on-position-lost continue", "flush_all"):
        assert choice in log, log
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


def assert_stops(database, cluster, state, tmp_path) -> None:
    """Starts an invalidator that stops at a loss."""
    log = log_of_stopped(database, cluster, state, tmp_path)
    assert "--on-position-lost continue" in log, log


def continue_and_flush(database, cluster, state, tmp_path) -> None:
    """What the log says: continues after the loss, and empties the cluster by hand. After that nothing is lost."""
    client = cluster.client()
    invalidator = Invalidator(database.url, [cluster], state, tmp_path, "--on-position-lost", "continue")
    advice = "empty it (flush_all on its servers)"
    eventually(lambda: advice in invalidator.log(), "the log says that it continues", 20)
    assert client.set("later", "old")
    database.commit("later")
    eventually(lambda: client.get("later") is None, "later commits are deleted", 20)
    assert client.get("lost") == b"old", "nothing is flushed without the operator"
    for server in cluster.servers:
        assert connect(server.port).flush_all(noreply=False)
    assert client.get("lost") is None
    invalidator.stop()
    # The next start needs no option.
    invalidator = Invalidator(database.url, [cluster], state, tmp_path)
    try:
        assert client.set("next", "old")
        database.commit("next")
        eventually(lambda: client.get("next") is None, "later commits are deleted")
        assert stats(invalidator.port)["positions_lost"] == "0"
    finally:
        invalidator.stop()


def test_an_operator_flushes_by_hand_and_continues(database, cluster, tmp_path):
    """The log said to flush, and then to begin at the present: commits between the two were deleted nowhere."""
    client, state = cluster.client(), tmp_path / "state"
    save_position(database, cluster, state, tmp_path)
    assert client.set("lost", "old")
    database.commit("lost")
    database.purge()
    assert_stops(database, cluster, state, tmp_path)
    continue_and_flush(database, cluster, state, tmp_path)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_lost_state_directory_is_replaced(database, cluster, tmp_path):
    """The log said to move the position file away and to begin at the present. A cluster without a position stopped at
    the loss again, whatever the operator did."""
    client, state = cluster.client(), tmp_path / "state"
    save_position(database, cluster, state, tmp_path)
    assert client.set("lost", "old")
    database.commit("lost")
    shutil.rmtree(state)
    assert_stops(database, cluster, state, tmp_path)
    (state / "one.position.json").unlink(missing_ok=True)
    assert_stops(database, cluster, state, tmp_path)
    continue_and_flush(database, cluster, state, tmp_path)


def test_routers_that_do_not_flush_are_named_at_the_start_and_after_a_loss(tmp_path):
    """The log blamed the commit log, said nothing of --enable-flush-cmd, and each attempt counted as one more loss."""
    database, cluster = PurgedJournal(tmp_path / "app.db"), Cluster("one", tmp_path)
    flush = ("--on-position-lost", "flush")
    invalidator = Invalidator(database.url, [cluster], tmp_path / "state", tmp_path, *flush)
    try:
        warning = "router refuses flush_all, which rules or --on-position-lost flush need"
        eventually(lambda: warning in invalidator.log(), "it is known before a flush is needed")
        invalidator.stop()
        database.commit("lost")
        database.purge()
        invalidator.start()
        eventually(
            lambda: answers(invalidator.port) and stats(invalidator.port)["cluster:one:state"] == "flush_failing",
            "the flush is refused",
        )
        eventually(lambda: int(stats(invalidator.port)["flush_failures"]) > 2, "it is tried again")
        shown = stats(invalidator.port)
        assert (shown["positions_lost"], shown["source_failures"], shown["flushes"]) == ("1", "0", "0")
        log = invalidator.log()
        assert "start the routers of the cluster with --enable-flush-cmd" in log
        assert "the cluster cannot be flushed after lost deletes" in log and "reading the commit log failed" not in log
        cluster.router.stop()
        cluster.router.command.append("--enable-flush-cmd")
        cluster.router.start()
        eventually(lambda: stats(invalidator.port)["cluster:one:state"] == "running", "it is flushed", 30)
        assert (stats(invalidator.port)["positions_lost"], stats(invalidator.port)["flushes"]) == ("1", "1")
    finally:
        invalidator.stop()
        cluster.stop()


@pytest.mark.parametrize("database", ["mariadb", "sqlite"], indirect=True)
def test_a_replay_of_a_purged_log_names_its_beginning(database, cluster):
    """It sent what was left of the period, and ended with success."""
    client = cluster.client()
    assert client.set_many({"purged": "old", "left": "old"}) == []
    database.commit("purged")
    database.purge()
    database.commit("left")
    command = [
        PROGRAMS / "lookaside", "invalidator", "replay", "--database", database.url, "--since", "1d",
        "--cluster", f"one=127.0.0.1:{cluster.port}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "the log begins at 20" in done.stderr, done
    assert client.get_many(["purged", "left"]) == {"purged": b"old"}
