"""A commit in PostgreSQL empties the caches; what is not committed deletes nothing; a crash loses nothing."""

import shutil
import subprocess
import threading

import pytest
from cached_keys import cached, fill, gone
from postgres import Postgres
from processes import PROGRAMS, Invalidator, Process, answers, eventually, free_port, stats


def set_up(database, *more):
    command = [str(PROGRAMS / "lookaside"), "invalidator", "setup", "--database", database.url, *more]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def clusters(flushable_clusters):
    """Two clusters that may be flushed."""
    return flushable_clusters


@pytest.fixture
def users(postgres):
    """A connection to a database that is set up, and a table with a few rows."""
    done = set_up(postgres)
    assert done.returncode == 0, done.stderr
    connection = postgres.connect()
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    connection.execute("INSERT INTO users VALUES (1, 'ada'), (2, 'grace'), (3, 'barbara')")
    yield connection
    connection.close()


@pytest.fixture
def invalidator(postgres, users, clusters, tmp_path):
    """The invalidator between the database and both clusters, reading."""
    daemon = Invalidator(postgres.url, clusters, tmp_path / "state", tmp_path)
    yield daemon
    daemon.stop()


def test_a_function_and_an_outbox_name_keys_in_a_transaction(clusters, invalidator, users):
    fill(clusters, ["user:1", "user:2", "user:3", "list"])
    with users.transaction():
        users.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
        users.execute("SELECT lookaside_invalidate('user:1', 'list')")
    users.execute("INSERT INTO lookaside_outbox (key) VALUES ('user:2')")
    gone(clusters, ["user:1", "user:2", "list"])
    assert len(cached(clusters, ["user:3"])) == 2


def test_a_rolled_back_transaction_deletes_nothing(clusters, invalidator, users):
    fill(clusters, ["user:1", "user:2"])
    with users.transaction(force_rollback=True):
        users.execute("SELECT lookaside_invalidate('user:1')")
    users.execute("SELECT lookaside_invalidate('user:2')")
    gone(clusters, ["user:2"])
    assert len(cached(clusters, ["user:1"])) == 2


def test_commits_during_a_crash_of_the_invalidator_are_not_lost(clusters, invalidator, users):
    fill(clusters, ["user:1", "user:2"])
    invalidator.kill()
    users.execute("SELECT lookaside_invalidate('user:1')")
    invalidator.start()
    users.execute("SELECT lookaside_invalidate('user:2')")
    gone(clusters, ["user:1", "user:2"])


def test_commits_around_a_restart_of_the_database_are_not_lost(clusters, invalidator, postgres, users):
    fill(clusters, ["user:1", "user:2"])
    users.execute("SELECT lookaside_invalidate('user:1')")
    postgres.stop()
    postgres.restart()
    with postgres.connect() as connection:
        connection.execute("SELECT lookaside_invalidate('user:2')")
    gone(clusters, ["user:1", "user:2"])


def confirmed(users):
    """What of the log the server need not keep, by slot."""
    rows = users.execute("SELECT slot_name, (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots")
    return dict(rows.fetchall())


def test_a_cluster_that_is_down_does_not_keep_the_log_and_catches_up(clusters, invalidator, users):
    """Each cluster had a slot, so a cluster that was down for a day filled the disk of the database."""
    one, two = clusters
    fill(clusters, ["user:1"])
    two.router.kill()
    users.execute("SELECT lookaside_invalidate('user:1')")
    gone([one], ["user:1"])
    (end,) = users.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchone()
    eventually(lambda: confirmed(users)["lookaside"] >= end, "the server need not keep the log", 30)
    assert set(confirmed(users)) == {"lookaside"}
    invalidator.kill()
    invalidator.start()
    two.router.start()
    two.router.wait_ready(lambda: answers(two.port))
    gone(clusters, ["user:1"])


def test_nothing_is_lost_wherever_the_invalidator_is_killed(clusters, invalidator, postgres, users):
    keys = [f"key:{number}" for number in range(400)]
    fill(clusters, keys)
    done = threading.Event()

    def write():
        with postgres.connect() as connection:
            for key in keys:
                connection.execute("SELECT lookaside_invalidate(%s)", (key,))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    kills = 0
    while not done.is_set() or kills < 5:
        invalidator.kill()
        invalidator.start()
        kills += 1
    writer.join()
    gone(clusters, keys)


def test_a_transaction_of_many_keys_and_a_large_statement(clusters, invalidator, users):
    keys = [f"key:{number}" for number in range(10_000)]
    fill(clusters, keys[:50] + keys[-50:])
    users.execute("CREATE TABLE large (text text)")
    with users.transaction():
        users.execute("INSERT INTO large VALUES (%s)", ("x" * (20 << 20),))
        users.execute("SELECT lookaside_invalidate(VARIADIC %s)", (keys,))
    gone(clusters, keys[:50] + keys[-50:])


def test_the_loss_of_the_slot_stops_loudly_and_is_remembered(clusters, invalidator, users, tmp_path):
    """The slot is dropped while the invalidator is down: what was committed meanwhile cannot be read."""
    invalidator.kill()
    fill(clusters, ["user:1", "user:2"])
    users.execute("SELECT lookaside_invalidate('user:1')")
    users.execute("SELECT pg_drop_replication_slot('lookaside')")
    for _ in range(2):
        invalidator.start()
        assert invalidator.running.wait(30) == 1
    log = invalidator.log()
    assert "deletes are lost" in log and "does not exist" in log and "--on-position-lost flush" in log
    assert len(cached(clusters, ["user:1", "user:2"])) == 4
    invalidator.command += ["--on-position-lost", "flush"]
    invalidator.start()
    invalidator.wait_running(len(clusters))
    gone(clusters, ["user:1", "user:2"])


def test_a_state_directory_that_is_gone_is_a_loss(clusters, invalidator, users, tmp_path):
    """The slot shows that there was an invalidator, whose pending deletes are unknown now."""
    invalidator.kill()
    fill(clusters, ["user:1"])
    shutil.rmtree(tmp_path / "state")
    invalidator.start()
    assert invalidator.running.wait(30) == 1
    assert "--state-dir" in invalidator.log()
    invalidator.command += ["--on-position-lost", "flush"]
    invalidator.start()
    invalidator.wait_running(len(clusters))
    gone(clusters, ["user:1"])


def test_a_failover_to_a_promoted_standby_flushes_the_clusters(clusters, invalidator, postgres, users, tmp_path):
    """Its slots are missing there, and its log may end before what was read."""
    standby = Postgres(tmp_path, "hot_standby=on", primary=postgres)
    try:
        fill(clusters, ["user:1", "user:2"])
        users.execute("SELECT lookaside_invalidate('user:1')")
        gone(clusters, ["user:1"])
        postgres.kill()
        standby.promote()
        invalidator.kill()
        invalidator.command[invalidator.command.index(postgres.url)] = standby.url
        invalidator.command += ["--on-position-lost", "flush"]
        invalidator.start()
        invalidator.wait_running(len(clusters))
        gone(clusters, ["user:2"])
        assert int(stats(invalidator.port)["spool_gaps"]) == 1
        fill(clusters, ["user:3"])
        with standby.connect() as connection:
            connection.execute("SELECT lookaside_invalidate('user:3')")
        gone(clusters, ["user:3"])
        eventually(lambda: stats(invalidator.port)["cluster:one:position"].startswith("1:"), "the position is saved")
    finally:
        standby.stop()
        standby.remove()
        postgres.restart()


def test_positions_of_an_earlier_version_are_resumed_and_its_slots_named(clusters, postgres, users, tmp_path):
    """Earlier versions had a slot for each cluster and no spool."""
    daemon = Invalidator(postgres.url, clusters, tmp_path / "state", tmp_path)
    try:
        daemon.kill()
        shutil.rmtree(tmp_path / "state" / "spool")
        for cluster in ("one", "two"):
            users.execute("SELECT pg_copy_logical_replication_slot('lookaside', %s)", (f"lookaside_{cluster}",))
        users.execute("SELECT pg_drop_replication_slot('lookaside')")
        fill(clusters, ["user:1"])
        users.execute("SELECT lookaside_invalidate('user:1')")
        daemon.start()
        gone(clusters, ["user:1"])
        log = daemon.log()
        assert "SELECT pg_drop_replication_slot('lookaside_one');" in log and "nothing is lost" in log
    finally:
        daemon.stop()


def test_a_start_that_waits_for_an_open_transaction_names_it(clusters, invalidator, postgres, users, tmp_path):
    invalidator.kill()
    users.execute("SELECT pg_drop_replication_slot('lookaside')")
    shutil.rmtree(tmp_path / "state")
    with postgres.connect() as other, other.transaction():
        other.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
        invalidator.start()
        named = f"SELECT pg_terminate_backend({other.info.backend_pid})"
        eventually(lambda: named in invalidator.log(), "the transaction is named", 30)
    invalidator.wait_running(len(clusters))


def test_setup_can_be_repeated_and_printed(postgres, users):
    assert set_up(postgres).returncode == 0, "again"
    printed = set_up(postgres, "--print")
    assert "CREATE PUBLICATION" in printed.stdout and printed.returncode == 0
    wrong = subprocess.run(
        [str(PROGRAMS / "lookaside"), "invalidator", "setup", "--database", postgres.url + "_missing"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert wrong.returncode == 1 and "app_missing" in wrong.stderr and "secret" not in wrong.stderr


def test_a_second_invalidator_with_the_same_slot_touches_nothing(clusters, invalidator, postgres, users, tmp_path):
    """It declared a loss, advised to drop the slot that the first one was reading, and could take it from that one."""
    command = [
        PROGRAMS / "lookaside-invalidator", "--source", postgres.url, "--state-dir", tmp_path / "second",
        "--cluster", f"one=127.0.0.1:{clusters[0].port}", "--on-position-lost", "flush",
    ]  # fmt: skip
    fill(clusters, ["user:1", "user:2", "user:3"])
    users.execute("SELECT lookaside_invalidate('user:3')")
    gone(clusters, ["user:3"])
    (reader,) = users.execute("SELECT active_pid FROM pg_replication_slots").fetchone()
    second = Process("second", [*command, "--listen", f"127.0.0.1:{free_port()}"], tmp_path)
    try:
        eventually(
            lambda: f"another process reads the replication slot lookaside (pid {reader}," in second.log(),
            "it is named",
        )
        log = second.log()
        assert "--shared-state" in log and "lost" not in log and "drop" not in log, log
        assert not (tmp_path / "second" / "one.position.json").exists()
        users.execute("SELECT lookaside_invalidate('user:1')")
        gone(clusters, ["user:1"])
        assert len(cached(clusters, ["user:2"])) == 2, "nothing was flushed"
    finally:
        second.stop()
    # One that finds no process reading, and is to stop at a loss, leaves the slot as it was.
    invalidator.kill()
    eventually(
        lambda: users.execute("SELECT active FROM pg_replication_slots").fetchone() == (False,), "it is free", 30
    )
    users.execute("SELECT lookaside_invalidate('user:2')")
    before = confirmed(users)
    stopped = subprocess.run([*command[:-1], "stop", "--listen", "127.0.0.1:0"], capture_output=True, text=True)
    assert stopped.returncode == 1 and "are gone from --state-dir" in stopped.stderr, stopped.stderr
    assert confirmed(users) == before
    invalidator.start()
    gone(clusters, ["user:2"])
    assert stats(invalidator.port)["positions_lost"] == "0"
