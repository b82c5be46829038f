"""A commit in PostgreSQL empties the caches; what is not committed deletes nothing; a crash loses nothing."""

import subprocess

import pytest
from processes import PROGRAMS, Invalidator, answers, eventually


def set_up(database, *more):
    command = [str(PROGRAMS / "lookaside"), "invalidator", "setup", "--database", database.url, *more]
    return subprocess.run(command, capture_output=True, text=True)


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


def fill(clusters, keys):
    for cluster in clusters:
        client = cluster.client()
        assert client.set_many(dict.fromkeys(keys, "old")) == []
        client.close()


def cached(clusters, keys):
    found = set()
    for cluster in clusters:
        client = cluster.client()
        found |= {(cluster.name, key) for key in client.get_many(list(keys))}
        client.close()
    return found


def gone(clusters, keys):
    eventually(lambda: not cached(clusters, keys), f"{keys} are gone", 30)


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


def test_a_cluster_that_is_down_keeps_the_log_and_catches_up(clusters, invalidator, users):
    one, two = clusters
    fill(clusters, ["user:1"])
    two.router.kill()
    users.execute("SELECT lookaside_invalidate('user:1')")
    gone([one], ["user:1"])
    slots = dict(users.execute("SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots").fetchall())
    assert set(slots) == {"lookaside_one", "lookaside_two"}
    two.router.start()
    two.router.wait_ready(lambda: answers(two.port))
    gone(clusters, ["user:1"])


def test_setup_can_be_repeated_and_printed(postgres, users):
    assert set_up(postgres).returncode == 0, "again"
    printed = set_up(postgres, "--print")
    assert "CREATE PUBLICATION" in printed.stdout and printed.returncode == 0
    wrong = subprocess.run(
        [str(PROGRAMS / "lookaside"), "invalidator", "setup", "--database", postgres.url + "_missing"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert wrong.returncode == 1 and "app_missing" in wrong.stderr and "secret" not in wrong.stderr
