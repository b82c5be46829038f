"""`lookaside audit` finds a value that was made stale in each of the ways that the paper names, and deletes it."""

import contextlib
import json
import sqlite3
from types import SimpleNamespace

import pytest
from audit import ROWS, Audit, database_fixture, fill_users, restart_router, sqlite_audit  # noqa: F401 - a fixture
from leases import LeaseClient
from processes import Cluster, Server, connect, eventually, frozen, stats
from replica_region import MariadbPair, ReplicaRegion
from routers import router


def test_each_way_to_a_wrong_value_is_found_and_repaired(database, clusters, tmp_path):
    one, two = clusters
    audit = sqlite_audit(tmp_path, one, two)
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
    audit = sqlite_audit(tmp_path, cluster)
    fill_users(cluster)
    holder = next(server for server in cluster.servers if connect(server.port).get("user:1"))
    (other,) = [server for server in cluster.servers if server is not holder]
    # The other server has a copy of before, from a time when the pool was another one; the router starts with a pool of
    # that server alone, and knows nothing of the one before.
    assert connect(other.port).set("user:1", "ada of before")
    assert audit.run()[0] == set()
    configuration = cluster.configuration()
    configuration["pools"]["wildcard"]["servers"] = [f"127.0.0.1:{other.port}"]
    restart_router(cluster, configuration)
    assert audit.run("--repair")[0] == {("stale", "one", "user:1")}
    assert connect(other.port).get("user:1") is None


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
        audit = sqlite_audit(tmp_path, SimpleNamespace(name="cold", port=port))
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
        audit.write_queries("""
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


def test_a_value_of_the_master_is_not_wrong_beside_a_replica_that_lags(database, cluster, tmp_path):
    # A client that has written finds its remote marker, reads the master, and fills what the replica does not have yet.
    audit = sqlite_audit(tmp_path, cluster)
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


def test_an_old_value_of_a_server_that_comes_back_from_the_gutter_is_found(database, cluster, tmp_path):
    audit = sqlite_audit(tmp_path, cluster)
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
        with sqlite_audit(tmp_path, cluster).repeated() as running:
            running.wait_round(lambda counts: counts["missing"] == 6, "all keys are compared")
            client = LeaseClient(cluster.port)
            assert client.command(b"get user:1") == b"END"
            assert client.command(b"set user:1 0 0 3", b"ada") == b"STORED"
            running.wait_round(lambda counts: counts["fresh"] == 1 and counts["missing"] == 5, "the value is compared")
            shown = stats(cluster.port)
            assert (shown["plain_lease_tokens"], shown["plain_lease_misses"]) == ("1", "0")
    finally:
        cluster.stop()
