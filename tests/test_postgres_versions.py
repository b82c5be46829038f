"""The essentials with the oldest supported PostgreSQL and the newest: setup, messages, the outbox, row rules, the spool
and the slot. All else is tested with the installed version."""

import subprocess

import pytest
from cached_keys import cached, fill, gone
from postgres import Postgres
from processes import PROGRAMS, Invalidator, Process, answers, eventually, free_port, stats
from replicated import fetched
from tools import need

RULES = """
[[rule]]
table = "public.users"
keys = ["user:{id}", "user_by_email:{email}"]
otherwise = "flush-cluster"
"""

# The oldest does not send messages to subscribers.
HAS_MESSAGES = {"postgres13": False, "postgres18": True}


@pytest.fixture(scope="module", params=HAS_MESSAGES)
def version(request):
    """The name of a version that has been fetched."""
    need(request.param)
    return request.param


@pytest.fixture(scope="module")
def server(version, tmp_path_factory):
    """A server of that version."""
    server = Postgres(tmp_path_factory.mktemp(version), installed=fetched(version).parent / "root")
    try:
        with server.connect() as connection:
            (shown,) = connection.execute("SHOW server_version").fetchone()
        assert f"postgres{shown.split('.')[0]}" == version
        yield server
    finally:
        server.stop()
        server.remove()


@pytest.fixture
def database(server):
    """The server with an empty database `app` and no slots."""
    server.recreate_database()
    return server


@pytest.fixture
def clusters(flushable_clusters):
    """Two clusters that may be flushed."""
    return flushable_clusters


def operate(command: str, database: Postgres, rules) -> str:
    """Runs `lookaside invalidator`; returns what it printed."""
    arguments = [PROGRAMS / "lookaside", "invalidator", command, "--rules", rules, "--database", database.url]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def users(database, tmp_path):
    """A connection to a database with a table and rules, both set up."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with database.connect() as connection:
        connection.execute("CREATE TABLE users (id int, email text, PRIMARY KEY (id)) PARTITION BY HASH (id)")
        connection.execute("CREATE TABLE users_0 PARTITION OF users FOR VALUES WITH (modulus 1, remainder 0)")
        connection.execute("INSERT INTO users VALUES (1, 'ada@example'), (2, 'grace@example')")
        operate("setup", database, rules)
        operate("setup", database, rules)
        operate("check-rules", database, rules)
        connection.rules = rules
        yield connection


@pytest.fixture
def invalidator(database, users, clusters, tmp_path):
    """The invalidator between the database and both clusters, reading."""
    daemon = Invalidator(database.url, clusters, tmp_path / "state", tmp_path, "--rules", str(users.rules))
    yield daemon
    daemon.stop()


def test_messages_the_outbox_and_rows_name_keys(version, clusters, invalidator, users):
    keys = ["message", "outbox", "user:1", "user:2", "user_by_email:ada@example", "user_by_email:ada@new"]
    fill(clusters, [*keys, "undone", "other"])
    with users.transaction(force_rollback=True):
        users.execute("SELECT lookaside_invalidate('undone')")
        users.execute("INSERT INTO lookaside_outbox (key) VALUES ('undone')")
    with users.transaction():
        users.execute("UPDATE users SET email = 'ada@new' WHERE id = 1")
        users.execute("SELECT lookaside_invalidate('message')")
    users.execute("INSERT INTO lookaside_outbox (key) VALUES ('outbox')")
    users.execute("DELETE FROM users WHERE id = 2")
    gone(clusters, keys if HAS_MESSAGES[version] else keys[1:])
    kept = {"undone", "other"} if HAS_MESSAGES[version] else {"undone", "other", "message"}
    assert cached(clusters, [*keys, "undone", "other"]) == {(one.name, key) for one in clusters for key in kept}
    assert ("does not send messages" in invalidator.log()) == (not HAS_MESSAGES[version])
    users.execute("TRUNCATE users")
    gone(clusters, kept)


def test_rows_of_a_transaction_beyond_the_servers_memory_name_keys(clusters, invalidator, users):
    users.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
    users.execute("SELECT pg_reload_conf()")
    rows = range(10, 2_010)
    fill(clusters, [f"user:{row}" for row in rows])
    users.execute("INSERT INTO users SELECT row, 'a' FROM generate_series(10, 2009) AS row")
    gone(clusters, [f"user:{row}" for row in rows])


def test_commits_wait_in_the_spool_and_survive_crashes(database, clusters, invalidator, users):
    fill(clusters, ["user:1", "user:2", "user:3"])
    one, two = clusters
    two.router.kill()
    users.execute("UPDATE users SET email = 'ada@new' WHERE id = 1")
    gone([one], ["user:1"])
    confirmed = "SELECT confirmed_flush_lsn = pg_current_wal_lsn() FROM pg_replication_slots"
    eventually(lambda: users.execute(confirmed).fetchone() == (True,), "the slot keeps nothing for that cluster")
    invalidator.kill()
    users.execute("INSERT INTO users VALUES (3, 'barbara@example')")
    invalidator.start()
    gone([one], ["user:3"])
    database.stop()
    database.restart()
    with database.connect() as connection:
        connection.execute("DELETE FROM users WHERE id = 2")
    gone([one], ["user:2"])
    two.router.start()
    two.router.wait_ready(lambda: answers(two.port))
    gone(clusters, ["user:1", "user:2", "user:3"])
    assert stats(invalidator.port)["positions_lost"] == "0"


def test_a_slot_that_is_dropped_stops_the_invalidator_loudly(database, clusters, invalidator, users, tmp_path):
    assert invalidator.stop() == 0
    fill(clusters, ["user:1"])
    users.execute("SELECT pg_drop_replication_slot('lookaside')")
    users.execute("UPDATE users SET email = 'ada@new' WHERE id = 1")
    invalidator.start()
    assert invalidator.running.wait(60) == 1
    assert "--on-position-lost flush" in invalidator.log()
    arguments = ["--rules", str(users.rules), "--on-position-lost", "flush"]
    daemon = Invalidator(database.url, clusters, tmp_path / "state", tmp_path, *arguments)
    try:
        gone(clusters, ["user:1"])
    finally:
        daemon.stop()


def test_a_standby_is_not_read_before_it_is_promoted(version, database, clusters, users, tmp_path):
    """From version 16 on the server would decode its log: a slot was created there, and the log could not be read."""
    if version != "postgres18":
        pytest.skip("older standbys have no slots; the refusal is tested with the installed version")
    standby = Postgres(tmp_path, primary=database, installed=fetched(version).parent / "root")
    daemon = None
    try:
        command = [PROGRAMS / "lookaside-invalidator", "--source", standby.url, "--state-dir", tmp_path / "state",
                   "--listen", f"127.0.0.1:{free_port()}", "--rules", users.rules]  # fmt: skip
        for cluster in clusters:
            command += ["--cluster", f"{cluster.name}=127.0.0.1:{cluster.port}"]
        daemon = Process("invalidator", command, tmp_path)
        eventually(lambda: "the server is a physical standby" in daemon.log(), "the log says why it is not read")
        with standby.connect() as connection:
            assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
            standby.promote()
            slots = "SELECT active FROM pg_replication_slots"
            eventually(lambda: connection.execute(slots).fetchall() == [(True,)], "the promoted server is read", 30)
            fill(clusters, ["message"])
            connection.execute("SELECT lookaside_invalidate('message')")
        gone(clusters, ["message"])
    finally:
        if daemon:
            daemon.stop()
        standby.stop()
        standby.remove()
