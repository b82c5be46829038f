"""The keys that `lookaside audit` compares: where they come from, and how many of them in a round and a second."""

import sqlite3
import time

import pytest
from audit import CREATE, Audit, database_fixture, fill_users, sqlite_audit  # noqa: F401 - a fixture
from processes import eventually


def test_keys_come_from_a_file_too(database, cluster, tmp_path):
    audit = sqlite_audit(tmp_path, cluster)
    cluster.client().set_many({"user:1": "wrong", "user:2": "wrong", "other": "x"})
    (tmp_path / "keys").write_text("user:1\nother\nuser:9\n\n")
    found, counts = audit.run("--keys", str(tmp_path / "keys"), code=1)
    assert found == {("stale", "one", "user:1")}
    assert counts == {"stale": 1, "nothing": 1, "without_query": 1}


@pytest.mark.parametrize("source", ["list", "dump", "keys"])
def test_rounds_compare_other_keys_each_time(source, database, cluster, tmp_path):
    # It was always the first --keys-max keys, in the order of the keys: a wrong value behind them was never found.
    audit = sqlite_audit(tmp_path, cluster)
    fill_users(cluster)
    database.executemany("INSERT INTO users VALUES (?, 'x', 1)", [(id,) for id in range(10, 30)])
    cluster.client().set("user:29", "wrong")
    servers = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    (tmp_path / "keys").write_text("\n".join(f"user:{id}" for id in range(30)))
    options = {"list": (), "dump": ("--dump", servers), "keys": ("--keys", f"{tmp_path}/keys")}[source]
    with audit.repeated("--keys-max", "4", *options) as running:
        eventually(lambda: ("stale", "one", "user:29") in running.found(), "the last key is in a round", 60)
        rounds = [sum(line["round"].values()) for line in running.lines() if "round" in line]
        assert max(rounds) <= 4


def test_a_list_of_postgres_may_be_long(postgres, cluster, tmp_path):
    # Its connection returns ten thousand rows of one query at the most: a longer list failed, in each round.
    with postgres.connect() as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.execute("INSERT INTO users SELECT n, 'x', 7 FROM generate_series(1, 10100) AS n")
        audit = Audit(postgres.url, tmp_path, cluster)
        audit.command[audit.command.index("--rate") + 1] = "100000"
        audit.write_queries("""
[[query]]
key = "user:{id}"
sql = "SELECT name FROM users WHERE id = {id}"
list = "SELECT id FROM users"
""")
        assert audit.run() == (set(), {"missing": 10_100})


def test_a_key_that_would_end_its_command_is_not_sent(cluster, tmp_path):
    with sqlite3.connect(tmp_path / "app.db", isolation_level=None) as connection:
        connection.execute("CREATE TABLE users (id TEXT, name TEXT, visits INT)")
        connection.execute("INSERT INTO users VALUES (?, 'x', 1)", ("1 v\r\ndelete user:2\r\n",))
    audit = sqlite_audit(tmp_path, cluster)
    fill_users(cluster)
    assert audit.run() == (set(), {"invalid_keys": 2})
    assert cluster.client().get("user:2") == b"grace"


def test_the_rate_is_that_of_all_clusters_together(database, clusters, tmp_path):
    audit = sqlite_audit(tmp_path, *clusters)
    fill_users(clusters[0])
    audit.command[audit.command.index("--rate") + 1] = "5"
    begun = time.monotonic()
    found, counts = audit.run()
    # Six keys in two clusters: eleven pauses of 0.2 s.
    assert found == set() and counts == {"fresh": 6, "missing": 6}
    assert time.monotonic() - begun > 2.0
