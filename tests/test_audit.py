"""`lookaside audit` finds a value that was made stale in each of the ways that the paper names, and deletes it."""

import json
import sqlite3
import subprocess
from pathlib import Path

import pytest
from processes import PROGRAMS, answers, connect

QUERIES = """
[[query]]
key = "user:{id}"
sql = "SELECT name FROM users WHERE id = {id}"
list = "SELECT id FROM users"

[[query]]
key = "page:{id}"
sql = "SELECT id, name, visits FROM users WHERE id = {id}"
value = "json"
list = "SELECT id FROM users"
"""
ROWS = [(1, "ada"), (2, "grace"), (3, "o'hara \\ co")]
CREATE = "CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(40), visits INT)"


@pytest.fixture
def database(tmp_path):
    """A SQLite database with users."""
    connection = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    connection.execute(CREATE)
    connection.executemany("INSERT INTO users VALUES (?, ?, 7)", ROWS)
    yield connection
    connection.close()


class Audit:
    """Runs of the command for one database and cluster."""

    def __init__(self, url: str, folder: Path, *clusters) -> None:
        (folder / "queries.toml").write_text(QUERIES)
        options = [f"--cluster={cluster.name}=127.0.0.1:{cluster.port}" for cluster in clusters]
        self.command = [
            PROGRAMS / "lookaside", "audit", "--database", url, "--queries", folder / "queries.toml", *options,
            "--once", "--json", "--recheck-ms", "300", "--rate", "1000",
        ]  # fmt: skip

    def run(self, *arguments: str, code: int = 0) -> tuple[set[tuple[str, str, str]], dict[str, int]]:
        """What is wrong, as (found, cluster, key), and the counts that are not 0."""
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        counts = {name: count for name, count in lines.pop()["round"].items() if count}
        return {(line["found"], line["cluster"], line["key"]) for line in lines}, counts


def fill_users(cluster) -> None:
    """Caches the users as an application does."""
    values = {f"user:{id}": name for id, name in ROWS}
    values |= {f"page:{id}": json.dumps({"id": id, "name": name, "visits": 7}) for id, name in ROWS}
    assert cluster.client().set_many(values) == []


def test_each_way_to_a_wrong_value_is_found_and_repaired(database, clusters, tmp_path):
    one, two = clusters
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, one, two)
    fill_users(one)
    fill_users(two)
    assert audit.run() == (set(), {"fresh": 12})
    # A lost delete: no invalidator runs.
    database.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
    for cluster in clusters:
        cluster.client().delete_many(["user:1", "page:1"])
    two.client().set("user:1", "ada")
    # A stale set: a client that read the row before the commit fills it after the delete.
    database.execute("UPDATE users SET visits = 8 WHERE id = 2")
    one.client().delete("page:2")
    two.client().delete("page:2")
    one.client().set("page:2", json.dumps({"id": 2, "name": "grace", "visits": 7}))
    # A row is gone, and its value is not.
    database.execute("DELETE FROM users WHERE id = 3")
    wrong = {("stale", "two", "user:1"), ("stale", "one", "page:2")}
    found, counts = audit.run(code=1)
    assert found == wrong and counts == {"stale": 2, "fresh": 2, "missing": 4}
    # The list of the database has no row that is gone: the servers have its keys.
    servers = [f"127.0.0.1:{server.port}" for cluster in clusters for server in cluster.servers]
    wrong |= {("orphaned", cluster, key) for cluster in ("one", "two") for key in ("user:3", "page:3")}
    found, counts = audit.run("--dump", ",".join(servers), code=1)
    assert found == wrong and counts["orphaned"] == 4
    found, counts = audit.run("--dump", ",".join(servers), "--repair")
    assert found == wrong and counts["repaired"] == 6
    found, counts = audit.run("--dump", ",".join(servers))
    assert found == set() and "stale" not in counts and "orphaned" not in counts


def test_a_value_that_a_changed_pool_brings_back_is_found(database, cluster, tmp_path):
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    fill_users(cluster)
    holder = next(server for server in cluster.servers if connect(server.port).get("user:1"))
    (other,) = [server for server in cluster.servers if server is not holder]
    # The other server has a copy of before, from a time when the pool was another one; the router starts with a pool of
    # that server alone, and knows nothing of the one before.
    assert connect(other.port).set("user:1", "ada of before")
    assert audit.run()[0] == set()
    cluster.router.stop()
    configuration = cluster.configuration()
    configuration["pools"]["wildcard"]["servers"] = [f"127.0.0.1:{other.port}"]
    cluster.configuration_path.write_text(json.dumps(configuration))
    cluster.router.start()
    cluster.router.wait_ready(lambda: answers(cluster.port))
    assert audit.run("--repair")[0] == {("stale", "one", "user:1")}
    assert connect(other.port).get("user:1") is None


def test_keys_come_from_a_file_too(database, cluster, tmp_path):
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    cluster.client().set_many({"user:1": "wrong", "user:2": "wrong", "other": "x"})
    (tmp_path / "keys").write_text("user:1\nother\nuser:9\n\n")
    found, counts = audit.run("--keys", str(tmp_path / "keys"), code=1)
    assert found == {("stale", "one", "user:1")}
    assert counts == {"stale": 1, "nothing": 1, "without_query": 1}


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_servers_of_databases_are_read(kind, cluster, tmp_path, request):
    server = request.getfixturevalue(kind)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.executemany("INSERT INTO users VALUES (%s, %s, 7)", ROWS)
        audit = Audit(server.url, tmp_path, cluster)
        fill_users(cluster)
        assert audit.run() == (set(), {"fresh": 6})
        cursor.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
        found, counts = audit.run("--repair")
        assert found == {("stale", "one", "user:1"), ("stale", "one", "page:1")} and counts["repaired"] == 2
        assert audit.run() == (set(), {"fresh": 4, "missing": 2})


def test_bad_input_is_refused_with_its_reason(database, cluster, tmp_path):
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)

    def refusal(*arguments: str) -> str:
        done = subprocess.run([*audit.command, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode in (1, 2) and not done.stdout, done
        return done.stderr

    (tmp_path / "queries.toml").write_text("[[query]]\nkey = 'user:{id}'\nsql = 'SELECT name FROM users'\n")
    assert "list" in refusal()
    (tmp_path / "keys").write_text("user:1\n")
    assert "has 3 rows for one key" in refusal("--keys", str(tmp_path / "keys"))
    (tmp_path / "queries.toml").write_text("[[query]]\nkey = 'user:{id}'\nsql = 'SELECT {ip}'\n")
    assert "queries.toml" in refusal() and "{ip}" in refusal()
