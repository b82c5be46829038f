"""A client that reads servers directly through more than one pool: a gutter, spares, replicas, a cluster that warms up,
a near cache. What has been deleted is read from none of them."""

import json

import pytest
from direct_client import DirectClient
from processes import connect, eventually, free_port, frozen, stats
from test_direct_client import KEYS, Router

OWN, OTHER = "/west/first/", "/west/second/"


@pytest.fixture
def start(tmp_path):
    """Starts a router of a configuration, and a client."""
    started = []

    def start_both(configuration: dict, *options: str, client_options: tuple[str, ...] = (), is_permitted: bool = True):
        file = tmp_path / "router.json"
        file.write_text(json.dumps(configuration))
        router = Router(tmp_path, file, free_port(), [], *options)
        started.append(router)
        client = DirectClient(file, [router.port], *client_options)
        started.append(client)
        if is_permitted:
            client.wait_permitted()
        return router, client

    yield start_both
    for process in reversed(started):
        process.stop()


def pool(*servers, **settings) -> dict:
    return {"servers": [f"127.0.0.1:{server.port}" for server in servers], "server_timeout": 300, **settings}


def is_read_directly(client, key: str, value: str) -> bool:
    """Gets a key that has this value. Whether no router took part."""
    before = client.statistics()
    assert client.get(key) == value
    after = client.statistics()
    return after["direct_reads"] > before["direct_reads"] and after["router_requests"] == before["router_requests"]


def test_a_gutter_serves_while_a_server_is_dead_and_none_is_read_after_a_delete(start, servers):
    first, second, gutter = servers
    route = {"type": "FailoverRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"]}
    pools = {"main": pool(first, second), "gutter": pool(gutter)}
    router, client = start({"pools": pools, "route": route})
    for key in KEYS:
        assert client.call(f"set {key} first") == "stored"
    first.kill()
    moved = [key for key in KEYS if client.get(key) is None]
    assert 0 < len(moved) < len(KEYS)
    for key in moved:
        assert client.call(f"set {key} gutter") == "stored", "the router fails over, too"
    eventually(lambda: all(client.get(key) == "gutter" for key in moved), "the gutter is read")
    for key in moved:
        assert router.delete(key) in (b"DELETED", b"NOT_FOUND")
        assert client.get(key) is None
    first.restart()
    eventually(lambda: stats(router.port)["spool_servers_fenced"] == "0", "its deletes are replayed")
    assert all(client.get(key) is None for key in moved)
    assert all(client.get(key) == "first" for key in KEYS if key not in moved)
    figures = client.statistics()
    assert figures["direct_reads"] > 3 * len(moved)


def test_a_spare_is_read_while_it_serves(start, servers):
    first, second, spare = servers
    main = pool(first, second, spares=[f"127.0.0.1:{spare.port}"], spare_after_ms=300)
    router, client = start({"pools": {"main": main}, "route": "PoolRoute|main"})
    for key in KEYS:
        assert client.call(f"set {key} first") == "stored"
    first.kill()
    eventually(lambda: stats(router.port)["spares_in_use"] == "1", "the spare serves")
    eventually(lambda: all(client.call(f"get {key}") in ("hit first", "miss") for key in KEYS), "the client knows it")
    moved = [key for key in KEYS if client.get(key) is None]
    assert 0 < len(moved) < len(KEYS)
    for key in moved:
        assert client.call(f"set {key} spare") == "stored"
    before = int(stats(spare.port)["cmd_get"])
    assert all(client.get(key) == "spare" for key in moved)
    assert int(stats(spare.port)["cmd_get"]) >= before + len(moved), "it was read directly"
    assert router.delete(moved[0]) in (b"DELETED", b"NOT_FOUND")
    assert client.get(moved[0]) is None
    first.restart()
    eventually(lambda: stats(router.port)["spares_in_use"] == "0", "the server has its place again")
    eventually(lambda: all(client.get(key) is None for key in moved), "the client knows it: the server is empty")


def test_a_late_read_is_answered_by_another_replica_but_never_after_a_delete(start, servers):
    first, second, _ = servers
    to_all = {"type": "AllSyncRoute", "children": ["PoolRoute|first", "PoolRoute|second"]}

    def replica(name: str) -> dict:
        updates = {"set": to_all, "delete": to_all}
        return {"type": "OperationSelectorRoute", "default_policy": f"PoolRoute|{name}", "operation_policies": updates}

    routes = [{"aliases": [OWN], "route": replica("first")}, {"aliases": [OTHER], "route": replica("second")}]
    configuration = {"pools": {"first": pool(first), "second": pool(second)}, "routes": routes}
    router, client = start(configuration, "-R", OWN, client_options=("--replicas", OWN, OTHER))
    for key in KEYS:
        assert client.call(f"set {key} value") == "stored"
    with frozen(first):
        assert client.get(KEYS[0]) == "value", "the other replica has it"
        assert client.statistics()["client_hedges_won"] == 1
        assert router.delete(KEYS[0]) in (b"DELETED", b"NOT_FOUND")
        for _ in range(5):
            assert client.get(KEYS[0]) is None, "one replica has deleted it, the other one is not read"
        assert client.get(KEYS[1]) in ("value", None), "a fenced server is not waited for"
    eventually(lambda: stats(router.port)["spool_servers_fenced"] == "0", "its deletes are replayed")
    assert client.get(KEYS[0]) is None
    eventually(lambda: client.get(KEYS[1]) == "value", "the first replica is read again")


def test_a_cluster_that_warms_up_is_read_through_its_router_and_others_directly(start, servers, tmp_path):
    """Once the client asked the warm cluster for every miss, and stored none of its values in the cold one. Then it
    read all keys through the router."""
    cold, warm, rest = servers
    warming = {"type": "WarmUpRoute", "cold": "PoolRoute|cold", "warm": "PoolRoute|warm", "exptime": 60}
    pools = {"cold": pool(cold), "warm": pool(warm), "rest": pool(rest)}

    def route(wildcard) -> dict:
        return {"type": "PrefixSelectorRoute", "policies": {"rest:": "PoolRoute|rest"}, "wildcard": wildcard}

    router, client = start({"pools": pools, "route": route(warming)})
    row = tmp_path / "row"
    with_warm, with_cold = connect(warm.port), connect(cold.port)
    with_warm.set("k", b"old", noreply=False)
    assert client.get("k") == "old"
    assert with_cold.get("k") == b"old", "it was copied"
    assert client.call("delete k") == "deleted"
    for _ in range(20):
        assert client.call("plain k") == "miss", "the delete has not reached the warm cluster"
    row.write_text("new")
    assert client.call(f"read k {row}") == "miss"
    assert client.get("k") == "new"
    assert (with_cold.get("k"), with_warm.get("k")) == (b"new", b"old")
    filled = client.statistics()["reads_filled_by_routers"]
    assert filled > 0
    before = int(stats(rest.port)["get_hits"])
    assert client.call("set rest:k value") == "stored"
    eventually(lambda: client.get("rest:k") == "value" and client.is_permitted(), "other keys are read directly")
    assert int(stats(rest.port)["get_hits"]) > before
    assert client.statistics()["reads_filled_by_routers"] == filled
    with_warm.close()
    with_cold.close()
    (tmp_path / "router.json").write_text(json.dumps({"pools": pools, "route": route("PoolRoute|cold")}))
    eventually(lambda: is_read_directly(client, "k", "new"), "the warm-up has ended")


def test_a_near_cache_is_filled_by_the_router(start, servers):
    """Once a direct client copied nothing to L1, and read L2 for ever."""
    near, far, _ = servers
    route = {"type": "L1L2CacheRoute", "l1": "PoolRoute|near", "l2": "PoolRoute|far", "upgradingL1Exptime": 100}
    router, client = start({"pools": {"near": pool(near), "far": pool(far)}, "route": route})
    assert client.call("set k value") == "stored"
    with_near = connect(near.port)
    assert with_near.get("k") is None
    assert client.get("k") == "value"
    eventually(lambda: with_near.get("k") == b"value", "it was copied")
    left_s = int(with_near.raw_command(b"mg k t", b"\r\n").split()[1][1:])
    assert 0 < left_s <= 100, "for the configured time"
    eventually(lambda: is_read_directly(client, "k", "value"), "L1 is read directly")
    assert client.call("plain k") == "hit value"
    assert client.call("delete k") == "deleted"
    assert with_near.get("k") is None and client.get("k") is None
    with_near.close()


def test_a_value_that_the_router_splits_is_read_whole(start, servers):
    """Once the client read what the router stores in place of a large value: the number of its chunks and its hash."""
    configuration = {"pools": {"main": pool(*servers)}, "route": "PoolRoute|main"}
    options = ("--big-value-split-threshold", "100", "--big-value-hide-reply-flag")
    router, client = start(configuration, *options, is_permitted=False)
    large = "".join(str(number) for number in range(500))
    with_cluster = connect(router.port)
    assert with_cluster.set("k", large.encode(), noreply=False, flags=16)
    with_cluster.close()
    eventually(lambda: client.statistics()["permits_of_other_options"] > 1, "the router has given permits")
    assert client.get("k") == large
    assert client.call("plain k") == f"hit {large}"
    assert not client.is_permitted()
    assert client.statistics()["direct_reads"] == 0
