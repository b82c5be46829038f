"""`lookaside audit` finds a value that was made stale in each of the ways that the paper names, and deletes it."""

import contextlib
import json
import sqlite3
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from certificates import Authority
from leases import LeaseClient
from lookaside import Client
from mariadb import PASSWORD, USER, MariaDb
from processes import PROGRAMS, Cluster, Process, Server, answers, connect, eventually, frozen, stats
from pymemcache.serde import compressed_serde, pickle_serde
from replica_region import MariadbPair, ReplicaRegion
from routers import router

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


class ContinuousAudit(Process):
    """An audit without `--once`."""

    def __init__(self, audit: Audit, *arguments: str) -> None:
        command = [word for word in audit.command if word != "--once"]
        super().__init__("audit", [*command, *arguments], audit.command[5].parent)

    def lines(self) -> list[dict]:
        """Its output, but for what it says about failures."""
        whole = self.log().rsplit("\n", 1)[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    def found(self) -> set[tuple[str, str, str]]:
        """What was wrong, as (found, cluster, key)."""
        return {(line["found"], line["cluster"], line["key"]) for line in self.lines() if "key" in line}

    def wait_round(self, condition, what: str) -> None:
        """Waits until the counts of a round that ends from now on meet the condition."""
        before = len(self.lines())

        def is_met() -> bool:
            return any(condition(line["round"]) for line in self.lines()[before:] if "round" in line)

        eventually(is_met, what, 60)


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


def test_a_value_whose_delete_fails_is_reported(database, cluster, tmp_path):
    # With --once the failure of the delete was the end, before the key of the wrong value was printed.
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    fill_users(cluster)
    cluster.client().set("user:1", "wrong")
    configuration = cluster.configuration()
    configuration["routes"][0]["route"]["operation_policies"]["delete"] = "ErrorRoute|no deletes"
    cluster.router.stop()
    cluster.configuration_path.write_text(json.dumps(configuration))
    cluster.router.start()
    cluster.router.wait_ready(lambda: answers(cluster.port))
    done = subprocess.run([*audit.command, "--repair"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "deleting user:1: " in done.stderr, done
    assert json.loads(done.stdout) == {
        "key": "user:1", "cluster": "one", "found": "stale", "deleted": False, "cached": "wrong", "expected": "ada",
    }  # fmt: skip
    # The values are what distinguishes a mistaken query from an old value. They are no part of the text by default.
    for arguments, line in [
        ([], "stale one user:1"),
        (["--show-values"], 'stale one user:1 cached="wrong" expected="ada"'),
    ]:
        command = [word for word in audit.command if word != "--json"]
        shown = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
        assert shown.stdout.splitlines()[0] == line, shown
    # Otherwise the audit goes on, and says what has failed.
    running = ContinuousAudit(audit, "--repair")
    try:
        running.wait_round(lambda counts: counts["stale"] == 1 and counts["failed"] == 1, "the delete is counted")
        assert ("stale", "one", "user:1") in running.found()
        assert "deleting user:1: " in running.log()
        # A comparison's error names the key.
        cluster.router.kill()
        eventually(lambda: "comparing " in running.log(), "the failed comparison is logged", 60)
    finally:
        running.stop()


def test_a_cold_cluster_that_was_filled_from_the_warm_one_after_the_delete_is_found(database, tmp_path):
    with contextlib.ExitStack() as stack:
        cold, warm = (Server(name, tmp_path) for name in ("cold", "warm"))
        stack.callback(cold.stop)
        stack.callback(warm.stop)
        pools = {name: {"servers": [f"127.0.0.1:{server.port}"]} for name, server in (("cold", cold), ("warm", warm))}
        # Without a hold-off nothing refuses what is copied after a delete (§4.3).
        route = {
            "type": "WarmUpRoute", "cold": "PoolRoute|cold", "warm": "PoolRoute|warm", "exptime": 600, "hold_off_ms": 0,
        }  # fmt: skip
        port = stack.enter_context(router(tmp_path, {"pools": pools, "route": route}))
        audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, SimpleNamespace(name="cold", port=port))
        for id, name in ROWS:
            assert connect(warm.port).set(f"user:{id}", name)
        client = connect(port)
        assert client.get("user:1") == b"ada"
        # The delete is in the cold cluster, and not yet in the warm one.
        database.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
        assert client.delete("user:1") and client.get("user:1") == b"ada"
        assert connect(warm.port).delete("user:1")
        found, counts = audit.run(code=1)
        assert found == {("stale", "cold", "user:1")} and counts == {"stale": 1, "missing": 5}
        assert audit.run("--repair")[0] == {("stale", "cold", "user:1")}
        assert audit.run() == (set(), {"missing": 6}) and client.get("user:1") is None
        assert connect(cold.port).get("user:2") is None, "the audit itself has filled nothing"


@pytest.mark.timeout(300)
def test_a_fill_from_a_replica_that_lags_is_found_beside_the_master(tmp_path):
    with contextlib.ExitStack() as stack:
        (tmp_path / "databases").mkdir()
        region = ReplicaRegion(MariadbPair(tmp_path / "databases", stack), tmp_path, stack)
        client, load = region.client(), region.load(1)
        assert client.read("row:1", load) == ("replica", "0")
        # A user of the region writes. The remote marker is lost, so that the next reader fills the replica's old row.
        region.stop_replication()
        _, marker = region.write(client, 1)
        assert connect(region.pool.port).delete(marker)
        assert client.read("row:1", load) == ("replica", "0") and client.read("row:1", load) == ("cache", "0")
        audit = Audit(f"mysql://root@127.0.0.1:{region.master.port}/app", tmp_path, region)
        (tmp_path / "queries.toml").write_text("""
[[query]]
key = "row:{id}"
sql = "SELECT version FROM versions WHERE id = {id}"
list = "SELECT id FROM versions"
""")
        found, counts = audit.run(code=1)
        assert found == {("stale", "replica", "row:1")} and counts["stale"] == 1
        assert audit.run("--repair")[0] == found
        found, counts = audit.run()
        assert found == set() and set(counts) == {"missing"}
        region.start_replication()
        region.databases.wait_replicated()
        assert client.read("row:1", load) == ("replica", "1")
        assert audit.run()[1]["fresh"] == 1


def test_an_old_value_of_a_server_that_comes_back_from_the_gutter_is_found(database, cluster, tmp_path):
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    fill_users(cluster)
    holder = next(server for server in cluster.servers if connect(server.port).get("page:1"))
    client = LeaseClient(cluster.port)
    with frozen(holder):

        def is_tko() -> bool:
            # Reads go on through the gutter; their timeouts make the server TKO.
            client.command(b"touch page:1 0")
            return stats(cluster.port)["num_soft_tko_count"] == "1"

        eventually(is_tko, "the router sends nothing more to the server")
        database.execute("UPDATE users SET visits = 8 WHERE id = 1")
        # Without --spool the delete reaches the gutter alone, and the application does not repeat it.
        assert client.command(b"delete page:1").startswith(b"SERVER_ERROR")
    eventually(lambda: cluster.client().get("page:1") is not None, "the server is read again")
    found, counts = audit.run(code=1)
    assert found == {("stale", "one", "page:1")} and counts == {"stale": 1, "fresh": 5}
    assert audit.run("--repair")[0] == {("stale", "one", "page:1")}
    assert audit.run() == (set(), {"fresh": 5, "missing": 1})


def test_an_audit_takes_no_lease_from_clients(database, tmp_path):
    # A router with --leases took one for each key that the audit missed. The next client that missed it waited for a
    # fill that did not come, and its own was refused.
    cluster = Cluster("one", tmp_path, ("--leases",))
    try:
        audit = ContinuousAudit(Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster))
        try:
            audit.wait_round(lambda counts: counts["missing"] == 6, "all keys are compared")
            client = LeaseClient(cluster.port)
            assert client.command(b"get user:1") == b"END"
            assert client.command(b"set user:1 0 0 3", b"ada") == b"STORED"
            audit.wait_round(lambda counts: counts["fresh"] == 1 and counts["missing"] == 5, "the value is compared")
            shown = stats(cluster.port)
            assert (shown["plain_lease_tokens"], shown["plain_lease_misses"]) == ("1", "0")
        finally:
            audit.stop()
    finally:
        cluster.stop()


def test_keys_come_from_a_file_too(database, cluster, tmp_path):
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    cluster.client().set_many({"user:1": "wrong", "user:2": "wrong", "other": "x"})
    (tmp_path / "keys").write_text("user:1\nother\nuser:9\n\n")
    found, counts = audit.run("--keys", str(tmp_path / "keys"), code=1)
    assert found == {("stale", "one", "user:1")}
    assert counts == {"stale": 1, "nothing": 1, "without_query": 1}


@pytest.mark.parametrize("source", ["list", "dump", "keys"])
def test_rounds_compare_other_keys_each_time(source, database, cluster, tmp_path):
    # It was always the first --keys-max keys, in the order of the keys: a wrong value behind them was never found.
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    fill_users(cluster)
    database.executemany("INSERT INTO users VALUES (?, 'x', 1)", [(id,) for id in range(10, 30)])
    cluster.client().set("user:29", "wrong")
    servers = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    (tmp_path / "keys").write_text("\n".join(f"user:{id}" for id in range(30)))
    options = {"list": (), "dump": ("--dump", servers), "keys": ("--keys", f"{tmp_path}/keys")}[source]
    running = ContinuousAudit(audit, "--keys-max", "4", *options)
    try:
        eventually(lambda: ("stale", "one", "user:29") in running.found(), "the last key is in a round", 60)
        rounds = [sum(line["round"].values()) for line in running.lines() if "round" in line]
        assert max(rounds) <= 4
    finally:
        running.stop()


def test_a_continuous_audit_goes_on_after_failures(database, clusters, tmp_path):
    one, two = clusters
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, one, two)
    fill_users(one)
    fill_users(two)
    running = ContinuousAudit(audit)
    try:
        running.wait_round(lambda counts: counts["fresh"] == 12, "both clusters are compared")
        # The router of a cluster is gone. The other cluster is compared all the same.
        one.router.kill()
        two.client().set("user:1", "wrong")
        eventually(lambda: ("stale", "two", "user:1") in running.found(), "the other cluster's value is found", 60)
        running.wait_round(lambda counts: counts["failed"] >= 6, "failures are counted")
        one.router.start()
        one.router.wait_ready(lambda: answers(one.port))
        running.wait_round(lambda counts: counts["failed"] == 0, "the cluster is compared again")
        # The table goes at any moment: also between the listing of a round and its comparisons.
        for _ in range(8):
            database.execute("ALTER TABLE users RENAME TO gone")
            running.wait_round(lambda counts: counts["failed"] > 0, "failures of the database are counted")
            database.execute("ALTER TABLE gone RENAME TO users")
            running.wait_round(lambda counts: counts["failed"] == 0, "the database is read again")
        database.execute("ALTER TABLE users RENAME TO gone")
        running.wait_round(lambda counts: counts["failed"] > 0, "failures of the database are counted")
        assert "no such table" in running.log()
        database.execute("ALTER TABLE gone RENAME TO users")
        running.wait_round(lambda counts: counts["failed"] == 0, "the database is read again")
        # With --once a failure is the end.
        one.router.kill()
        done = subprocess.run(audit.command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "127.0.0.1" in done.stderr, done
    finally:
        running.stop()


@pytest.mark.parametrize("is_hung", [False, True], ids=["killed", "hung"])
def test_a_server_that_cannot_be_listed_does_not_end_the_listing_of_the_others(is_hung, database, clusters, tmp_path):
    # Nothing was compared in any cluster until the server was back, and a hung one held up each round for ten minutes.
    one, two = clusters
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, one, two)
    fill_users(two)
    # The first in the list.
    lost = one.servers[0]
    servers = [f"127.0.0.1:{server.port}" for cluster in clusters for server in cluster.servers]
    running = ContinuousAudit(audit, "--dump", ",".join(servers))
    try:
        running.wait_round(lambda counts: counts["fresh"] == 6 and counts["failed"] == 0, "all servers are listed")

        def find_wrong_value() -> None:
            # Not before: a round may have listed all keys while the server was still there.
            eventually(lambda: f"listing the keys of {servers[0]}" in running.log(), "the reason is logged", 60)
            two.client().set("user:1", "wrong")
            eventually(lambda: ("stale", "two", "user:1") in running.found(), "the wrong value is found", 60)
            running.wait_round(lambda counts: counts["failed"] >= 1, "the failure is counted")

        if is_hung:
            with frozen(lost):
                find_wrong_value()
        else:
            lost.kill()
            find_wrong_value()
            lost.restart()
        # Its delays have grown, up to half a minute.
        running.wait_round(lambda counts: counts["failed"] == 0, "it is listed again")
        # With --once it is the end.
        lost.kill()
        done = subprocess.run(
            [*audit.command, "--dump", ",".join(servers)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1 and servers[0] in done.stderr, done
    finally:
        running.stop()


def test_a_list_that_cannot_be_read_does_not_keep_the_others_from_being_compared(database, cluster, tmp_path):
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    (tmp_path / "queries.toml").write_text(
        """
[[query]]
key = "gone:{id}"
sql = "SELECT name FROM gone WHERE id = {id}"
list = "SELECT id FROM gone"
"""
        + QUERIES
    )
    fill_users(cluster)
    cluster.client().set("user:1", "wrong")
    running = ContinuousAudit(audit)
    try:
        eventually(lambda: ("stale", "one", "user:1") in running.found(), "the wrong value is found", 60)
        running.wait_round(lambda counts: counts["failed"] == 1, "the list that failed is counted")
        assert "listing gone:{id}" in running.log() and "no such table" in running.log()
    finally:
        running.stop()


def test_values_of_the_projects_clients_and_of_pythons_are_read(database, cluster, tmp_path):
    # Each of them was unreadable, or stale without being wrong.
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    text, note = "the same words again. " * 50, "grün " * 100
    database.execute("CREATE TABLE notes (id INT PRIMARY KEY, body TEXT, visits INT)")
    database.executemany("INSERT INTO notes VALUES (?, ?, 7)", [(number, text) for number in range(6)] + [(9, note)])
    (tmp_path / "queries.toml").write_text("""
[[query]]
key = "text:{id}"
sql = "SELECT body FROM notes WHERE id = {id}"

[[query]]
key = "visits:{id}"
sql = "SELECT visits FROM notes WHERE id = {id}"

[[query]]
key = "json:{id}"
sql = "SELECT id, body, visits FROM notes WHERE id = {id}"
value = "json"

[[query]]
key = "raw:{id}"
sql = "SELECT body FROM notes WHERE id = {id}"
flags = "ignored"
""")
    keys: list[str] = []

    def compare(code: int = 0) -> tuple[set, dict]:
        (tmp_path / "keys").write_text("\n".join(keys))
        return audit.run("--keys", str(tmp_path / "keys"), code=code)

    addresses = [f"127.0.0.1:{cluster.port}"]
    for number, compression in enumerate((None, "zlib", "zstd", "lz4")):
        options = {"compression": compression} if compression else {}
        with Client(addresses, **options) as client:
            document = {"id": number, "body": text, "visits": 7}
            written = {f"text:{number}": text, f"visits:{number}": 7, f"json:{number}": document}
            for key, value in written.items():
                client.set(key, value)
            keys += written
    stored = [connect(server.port).get("text:2") for server in cluster.servers]
    assert 0 < max(len(value or b"") for value in stored) < len(text) / 5, "it is compressed"
    # pymemcache's own compression, and its numbers.
    memcache = cluster.client()
    for serde, key, value in ((compressed_serde, "text:9", note), (pickle_serde, "visits:9", 7)):
        data, flag = serde.serialize(key, value)
        assert memcache.set(key, data, flags=flag)
        keys.append(key)
    found, counts = compare()
    assert found == set() and counts == {"fresh": len(keys)}
    # The mark of an absent row, beside none; a pickle; flags of another client.
    with Client(addresses) as client:
        client.set("text:77", None)
    with Client(addresses, pickle=True) as client:
        client.set("json:4", {"id": 4, "body": text, "visits": 7})
    memcache.set("text:5", text, flags=32)
    memcache.set("raw:5", text, flags=32)
    keys += ["text:77", "json:4", "text:5", "raw:5"]
    found, counts = compare()
    assert found == set() and counts == {"fresh": len(keys) - 2, "unreadable": 2}
    # And what is wrong is found, in each format.
    database.execute("UPDATE notes SET body = 'another', visits = 8 WHERE id IN (1, 2)")
    database.execute("INSERT INTO notes VALUES (77, 'now there', 1)")
    found, _ = compare(code=1)
    changed = [f"{kind}:{number}" for kind in ("text", "visits", "json") for number in (1, 2)]
    assert found == {("stale", "one", key) for key in [*changed, "text:77"]}


def test_a_refused_query_costs_no_login(mariadb, cluster, tmp_path):
    # Each error dropped the connection: one wrong query cost as many logins as the audit made comparisons.
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.executemany("INSERT INTO users VALUES (%s, %s, 7)", ROWS)
        audit = Audit(mariadb.url, tmp_path, cluster)
        fill_users(cluster)

        def status(name: str) -> int:
            cursor.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")
            return int(cursor.fetchone()[1])

        # One that ended without a word of it was logged by the server as aborted.
        aborted, connected = status("Aborted_clients"), status("Threads_connected")
        audit.run()
        eventually(lambda: status("Threads_connected") == connected, "the audit's connection has ended")
        assert status("Aborted_clients") == aborted
        (tmp_path / "queries.toml").write_text(
            QUERIES
            + """
[[query]]
key = "gone:{id}"
sql = "SELECT name FROM gone WHERE id = {id}"
list = "SELECT id FROM users"
"""
        )
        running = ContinuousAudit(audit)
        try:
            running.wait_round(lambda counts: counts["failed"] == 3 and counts["fresh"] == 6, "it compares")
            # It was there twice: as the driver's words, and as their cause.
            failure = next(line for line in running.log().splitlines() if "1146" in line)
            assert failure.count("1146") == 1, failure
            before, rounds = status("Connections"), len(running.lines())
            eventually(lambda: len(running.lines()) >= rounds + 20, "twenty rounds, each with three errors", 60)
            assert status("Connections") - before <= 3, "the health checks of others, at most"
            # A connection that is lost is made again.
            others = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = %s"
            cursor.execute(others, (USER,))
            for (id,) in cursor.fetchall():
                cursor.execute(f"KILL {id}")
            running.wait_round(lambda counts: counts["failed"] == 3 and counts["fresh"] == 6, "it compares again")
        finally:
            running.stop()


@pytest.mark.timeout(300)
def test_a_database_is_read_by_tls(cluster, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    own, own_key = authority.sign("audit")
    (tmp_path / "db").mkdir()
    options = (f"--ssl-cert={certificate}", f"--ssl-key={key}", f"--ssl-ca={authority.certificate}")
    # The certificate names 127.0.0.1 and not 127.0.0.2.
    server = MariaDb(tmp_path / "db", host="127.0.0.2", options=options)
    try:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(CREATE)
            cursor.executemany("INSERT INTO users VALUES (%s, %s, 7)", ROWS)
            cursor.execute(f"CREATE USER secured@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE SSL")
            cursor.execute(f"CREATE USER certified@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE X509")
            cursor.execute("GRANT SELECT ON app.* TO secured@'%', certified@'%'")
        fill_users(cluster)
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other")

        def audit(user: str, parameters: str, host: str = "127.0.0.1") -> Audit:
            return Audit(f"mariadb://{user}:{PASSWORD}@{host}:{server.port}/app{parameters}", tmp_path, cluster)

        def refusal(tried: Audit) -> str:
            done = subprocess.run(tried.command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 1 and not done.stdout, done
            return done.stderr

        by_name = f"?ssl-mode=VERIFY_IDENTITY&ssl-ca={authority.certificate}"
        by_authority = f"?ssl-mode=VERIFY_CA&ssl-ca={authority.certificate}"
        assert audit("secured", by_name).run() == (set(), {"fresh": 6})
        assert audit("certified", f"{by_name}&ssl-cert={own}&ssl-key={own_key}").run() == (set(), {"fresh": 6})
        assert "Access denied" in refusal(audit("secured", ""))
        assert "Access denied" in refusal(audit("certified", by_name))
        assert "certificate" in refusal(audit("secured", by_name, "127.0.0.2"))
        unknown = by_name.replace(str(authority.certificate), str(stranger.certificate))
        assert "certificate" in refusal(audit("secured", unknown))
        assert "VERIFY_IDENTITY" in refusal(audit("secured", by_authority))
        assert "ssl-mode" in refusal(audit("secured", f"?ssl-mode=REQUIRED&ssl-ca={authority.certificate}"))
    finally:
        server.stop()


def test_a_list_of_postgres_may_be_long(postgres, cluster, tmp_path):
    # Its connection returns ten thousand rows of one query at the most: a longer list failed, in each round.
    with postgres.connect() as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.execute("INSERT INTO users SELECT n, 'x', 7 FROM generate_series(1, 12000) AS n")
        audit = Audit(postgres.url, tmp_path, cluster)
        audit.command[audit.command.index("--rate") + 1] = "100000"
        (tmp_path / "queries.toml").write_text("""
[[query]]
key = "user:{id}"
sql = "SELECT name FROM users WHERE id = {id}"
list = "SELECT id FROM users"
""")
        assert audit.run() == (set(), {"missing": 12_000})


def test_a_value_of_the_master_is_not_wrong_beside_a_replica_that_lags(database, cluster, tmp_path):
    # A client that has written finds its remote marker, reads the master, and fills what the replica does not have yet.
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    fill_users(cluster)
    with sqlite3.connect(tmp_path / "master.db", isolation_level=None) as master:
        database.backup(master)
        master.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
    cluster.client().delete("page:1")
    cluster.client().set("user:1", "Ada")
    assert audit.run(code=1)[0] == {("stale", "one", "user:1")}
    beside = ("--master", f"sqlite://{tmp_path}/master.db")
    assert audit.run(*beside) == (set(), {"fresh": 4, "missing": 1, "behind": 1})
    # Where both databases agree, a wrong value is wrong.
    cluster.client().set("user:2", "Grace")
    assert audit.run(*beside, code=1)[0] == {("stale", "one", "user:2")}
    database.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
    assert audit.run(*beside, "--repair")[0] == {("stale", "one", "user:2")}
    assert audit.run(*beside) == (set(), {"fresh": 4, "missing": 2})


def test_a_key_that_would_end_its_command_is_not_sent(cluster, tmp_path):
    with sqlite3.connect(tmp_path / "app.db", isolation_level=None) as connection:
        connection.execute("CREATE TABLE users (id TEXT, name TEXT, visits INT)")
        connection.execute("INSERT INTO users VALUES (?, 'x', 1)", ("1 v\r\ndelete user:2\r\n",))
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, cluster)
    fill_users(cluster)
    assert audit.run() == (set(), {"invalid_keys": 2})
    assert cluster.client().get("user:2") == b"grace"


def test_the_rate_is_that_of_all_clusters_together(database, clusters, tmp_path):
    audit = Audit(f"sqlite://{tmp_path}/app.db", tmp_path, *clusters)
    fill_users(clusters[0])
    audit.command[audit.command.index("--rate") + 1] = "5"
    begun = time.monotonic()
    found, counts = audit.run()
    # Six keys in two clusters: eleven pauses of 0.2 s.
    assert found == set() and counts == {"fresh": 6, "missing": 6}
    assert time.monotonic() - begun > 2.0


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
    assert "returned 3 rows for key user:1; expected at most one" in refusal("--keys", str(tmp_path / "keys"))
    (tmp_path / "queries.toml").write_text("[[query]]\nkey = 'user:{id}'\nsql = 'SELECT {ip}'\n")
    assert "queries.toml" in refusal() and "{ip}" in refusal()
