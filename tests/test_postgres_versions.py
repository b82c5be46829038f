"""The essentials with the oldest supported PostgreSQL and the newest: setup, messages, the outbox, row rules, the spool
and the slot. All else is tested with the installed version."""

import subprocess
from contextlib import ExitStack

import pytest
from cached_keys import cached, fill, gone
from forwarder import Forwarder
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

# The oldest does not send messages to subscribers: the function writes to the outbox there.
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
    gone(clusters, keys)
    kept = {"undone", "other"}
    assert cached(clusters, [*keys, "undone", "other"]) == {(one.name, key) for one in clusters for key in kept}
    assert ("does not send messages" in invalidator.log()) == (not HAS_MESSAGES[version])
    stored = users.execute("SELECT key FROM lookaside_outbox ORDER BY key").fetchall()
    assert stored == ([("outbox",)] if HAS_MESSAGES[version] else [("message",), ("outbox",)])
    users.execute("TRUNCATE users")
    gone(clusters, kept)


def test_any_account_may_call_the_function(clusters, invalidator, users):
    """On the oldest version it inserts into a table that the account has no right to. A NULL is no key."""
    fill(clusters, ["first", "second", "undone"])
    users.execute("CREATE ROLE application")
    try:
        with users.transaction():
            users.execute("SET LOCAL ROLE application")
            users.execute("SET LOCAL search_path = pg_temp, public")
            users.execute("SELECT lookaside_invalidate('first', NULL, 'second')")
            users.execute("SAVEPOINT here")
            users.execute("SELECT lookaside_invalidate('undone')")
            users.execute("ROLLBACK TO here")
    finally:
        users.execute("DROP ROLE application")
    gone(clusters, ["first", "second"])
    assert cached(clusters, ["undone"]) == {(one.name, "undone") for one in clusters}


def start_refused(database, clusters, folder) -> Process:
    """An invalidator that may not read, and tries again."""
    command = [PROGRAMS / "lookaside-invalidator", "--source", database.url, "--state-dir", folder / "state",
               "--listen", f"127.0.0.1:{free_port()}"]  # fmt: skip
    for cluster in clusters:
        command += ["--cluster", f"{cluster.name}=127.0.0.1:{cluster.port}"]
    return Process("invalidator", command, folder)


def test_a_function_whose_messages_are_not_sent_is_refused(version, database, clusters, users, tmp_path):
    """An earlier setup created it: no key that an application named was deleted."""
    users.execute(
        "CREATE OR REPLACE FUNCTION lookaside_invalidate(VARIADIC keys text[]) RETURNS void LANGUAGE sql AS "
        "$$ SELECT pg_logical_emit_message(true, 'lookaside', key) FROM unnest(keys) AS key $$"
    )
    daemon = start_refused(database, clusters, tmp_path)
    try:
        if not HAS_MESSAGES[version]:
            eventually(lambda: "run `lookaside invalidator setup` again" in daemon.log(), "it is refused", 30)
            operate("setup", database, users.rules)
        fill(clusters, ["message"])
        slots = "SELECT active FROM pg_replication_slots"
        eventually(lambda: users.execute(slots).fetchall() == [(True,)], "the log is read", 30)
        users.execute("SELECT lookaside_invalidate('message')")
        gone(clusters, ["message"])
    finally:
        daemon.stop()


def test_such_a_function_of_another_schema_is_named_with_what_drops_it(version, database, clusters, users, tmp_path):
    """The refusal named no schema: `setup` replaced another function, and the refusal stayed."""
    if HAS_MESSAGES[version]:
        pytest.skip("messages are sent to subscribers")
    users.execute("CREATE SCHEMA old")
    users.execute(
        "CREATE FUNCTION old.lookaside_invalidate(VARIADIC keys text[]) RETURNS void LANGUAGE sql AS "
        "$$ SELECT pg_logical_emit_message(true, 'lookaside', key) FROM unnest(keys) AS key $$"
    )
    daemon = start_refused(database, clusters, tmp_path)
    try:
        drop = "DROP FUNCTION old.lookaside_invalidate(VARIADIC keys text[])"
        eventually(lambda: drop in daemon.log(), "it is refused, with what drops it", 30)
        operate("setup", database, users.rules)
        users.execute(drop)
        slots = "SELECT active FROM pg_replication_slots"
        eventually(lambda: users.execute(slots).fetchall() == [(True,)], "the log is read", 30)
    finally:
        daemon.stop()


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


@pytest.fixture
def own_servers(version, tmp_path):
    """Starts servers of this version that one test has for itself."""
    with ExitStack() as stack:

        def start(name: str, *settings: str, primary: Postgres | None = None) -> Postgres:
            folder = tmp_path / name
            folder.mkdir()
            server = Postgres(folder, *settings, primary=primary, installed=fetched(version).parent / "root")
            stack.callback(server.remove)
            stack.callback(server.stop)
            return server

        yield start


def test_a_promoted_standby_has_copied_the_slot(version, own_servers, clusters, tmp_path):
    """What is read is on the standby already, so the position is not lost, and no delete of a commit that survives."""
    if version != "postgres18":
        pytest.skip("standbys of older versions do not copy slots")
    primary = own_servers("primary", "synchronized_standby_slots=standby")
    with primary.connect() as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    # As the documents have it.
    settings = ("sync_replication_slots=on", "hot_standby_feedback=on", "primary_slot_name=standby")
    standby = own_servers("standby", *settings, primary=primary)
    done = subprocess.run(
        [PROGRAMS / "lookaside", "invalidator", "setup", "--database", primary.url], capture_output=True, text=True
    )
    assert done.returncode == 0 and "sync_replication_slots = on" in done.stdout, done.stdout + done.stderr
    link = Forwarder(primary.port)
    daemon = Invalidator(primary.url_at(link.port), clusters, tmp_path / "state", tmp_path)
    try:
        with primary.connect() as on_primary, standby.connect() as on_standby:
            on_primary.execute("CREATE TABLE users AS SELECT id, 0 AS version FROM generate_series(0, 99) AS id")

            def change(rows: range) -> list[str]:
                """Changes rows, each in a transaction of its own; returns their keys."""
                for row in rows:
                    on_primary.execute(
                        "WITH changed AS (UPDATE users SET version = 1 WHERE id = %s RETURNING id) "
                        "SELECT lookaside_invalidate('user:' || id) FROM changed",
                        (row,),
                    )
                return [f"user:{row}" for row in rows]

            def is_copied() -> bool:
                # The standby copies the slot when the primary's log has moved on.
                on_primary.execute("SELECT lookaside_invalidate('any')")
                copied = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = 'lookaside'"
                return on_standby.execute(copied).fetchone() == (True,)

            eventually(is_copied, "the standby has copied the slot", 120)
            fill(clusters, [f"user:{row}" for row in range(100)])
            gone(clusters, change(range(50)))
            on_standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            on_standby.execute("SELECT pg_reload_conf()")
            receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
            eventually(lambda: on_standby.execute(receivers).fetchone() == (0,), "the standby receives no more", 30)
            lost = change(range(50, 100))
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"
            eventually(lambda: on_primary.execute(waiting).fetchone() == (1,), "the log waits for the standby", 30)
        primary.kill()
        standby.promote()
        link.switch(standby.port)
        with standby.connect() as connection:
            fill(clusters, ["after"])
            connection.execute("SELECT lookaside_invalidate('after')")
            gone(clusters, ["after"])
            changed = connection.execute("SELECT count(*) FROM users WHERE version = 1").fetchone()
        assert changed == (50,), "the commits that the standby had not received are lost"
        assert cached(clusters, lost) == {(one.name, key) for one in clusters for key in lost}, "they were not read"
        assert "a promoted standby continues the log" in daemon.log()
        assert stats(daemon.port)["positions_lost"] == "0"
    finally:
        daemon.stop()
        link.close()


def test_a_slot_of_an_earlier_version_of_the_program_is_copied_too(version, database, clusters, users, tmp_path):
    if version != "postgres18":
        pytest.skip("slots of older versions have no such property")
    users.execute("SELECT pg_create_logical_replication_slot('lookaside', 'pgoutput')")
    daemon = Invalidator(database.url, clusters, tmp_path / "state", tmp_path, "--from", "earliest")
    try:
        assert users.execute("SELECT slot_name, failover FROM pg_replication_slots").fetchall() == [("lookaside", True)]
    finally:
        daemon.stop()
