"""Replicated pools, regional pools and a gutter with a limit, over real servers (§3.2.3, §4.2, §3.3)."""

import pytest
from processes import Server, eventually, stats
from routers import ask, router


def holders(servers, key: str) -> list[int]:
    """The servers that have a value under `key`."""
    get = f"get {key}\r\n".encode()
    return [index for index, server in enumerate(servers) if b"VALUE" in ask(server.port, "127.0.0.1", get)]


def pools(servers) -> dict:
    return {f"replica{index}": {"servers": [f"127.0.0.1:{server.port}"]} for index, server in enumerate(servers)}


CLIENTS = [f"127.0.0.{number}" for number in range(1, 13)]


@pytest.mark.parametrize("sets_go_to", ["the chosen replica", "all replicas"])
def test_a_client_reads_its_replica_and_a_delete_reaches_all(servers, tmp_path, sets_go_to):
    replicas = [f"PoolRoute|{name}" for name in pools(servers)]
    to_all = {"type": "AllSyncRoute", "children": replicas}
    policies = {"delete": to_all}
    if sets_go_to == "all replicas":
        policies["set"] = to_all
    route = {
        "type": "OperationSelectorRoute",
        "default_policy": {"type": "OriginalClientHashRoute", "children": replicas},
        "operation_policies": policies,
    }
    with router(tmp_path, {"pools": pools(servers), "route": route}) as port:
        replica_of = {}
        for client in CLIENTS:
            before = [int(stats(server.port)["get_misses"]) for server in servers]
            for index in range(5):
                assert ask(port, client, f"get missing:{index}\r\n".encode()) == b"END\r\n"
            after = [int(stats(server.port)["get_misses"]) for server in servers]
            asked = [index for index in range(3) if after[index] > before[index]]
            assert len(asked) == 1, "a client keeps to one replica, whatever the key"
            replica_of[client] = asked[0]
        assert set(replica_of.values()) == {0, 1, 2}, "the replicas share the clients"

        for client, replica in replica_of.items():
            assert ask(port, client, b"set k 0 0 1\r\nv\r\n") == b"STORED\r\n"
            assert holders(servers, "k") == ([0, 1, 2] if sets_go_to == "all replicas" else [replica])
            assert ask(port, client, b"get k\r\n") == b"VALUE k 0 1\r\nv\r\nEND\r\n"
            assert ask(port, client, b"delete k\r\n") == b"DELETED\r\n"
            assert holders(servers, "k") == []

        # Filled by clients of every replica, deleted by one.
        for client in CLIENTS:
            ask(port, client, b"set k 0 0 1\r\nv\r\n")
        assert holders(servers, "k") == [0, 1, 2]
        assert ask(port, CLIENTS[0], b"delete k\r\n") == b"DELETED\r\n"
        assert holders(servers, "k") == []


def test_clusters_share_a_regional_pool(servers, tmp_path):
    def configuration(own: Server) -> dict:
        return {
            "pools": {
                "own": {"servers": [f"127.0.0.1:{own.port}"]},
                "regional": {"servers": [f"127.0.0.1:{servers[2].port}"]},
            },
            "route": {
                "type": "PrefixSelectorRoute",
                "policies": {"rare:": "PoolRoute|regional"},
                "wildcard": "PoolRoute|own",
            },
        }

    with (
        router(tmp_path, configuration(servers[0])) as one,
        router(tmp_path, configuration(servers[1])) as two,
    ):
        for port, client in ((one, "127.0.0.1"), (two, "127.0.0.2")):
            assert ask(port, client, b"set usual 0 0 1\r\nv\r\n") == b"STORED\r\n"
        assert ask(one, "127.0.0.1", b"set rare:k 0 0 1\r\nv\r\n") == b"STORED\r\n"
        assert holders(servers, "usual") == [0, 1], "each cluster has its own copy"
        assert holders(servers, "rare:k") == [2], "one copy for the region"
        assert b"VALUE" in ask(two, "127.0.0.2", b"get rare:k\r\n")
        assert ask(two, "127.0.0.2", b"delete rare:k\r\n") == b"DELETED\r\n"
        assert ask(one, "127.0.0.1", b"get rare:k\r\n") == b"END\r\n"


def test_a_gutter_takes_over_no_more_than_its_limit(servers, tmp_path):
    main, gutter = servers[:2]
    route = {
        "type": "FailoverWithExptimeRoute",
        "normal": "PoolRoute|replica0",
        "failover": "PoolRoute|replica1",
        "failover_exptime": 10,
        "failover_limit": {"rate": 0.1, "burst": 20},
    }
    # A server that is TKO may be failed over from without a limit.
    options = ("--num-proxies", "1", "--disable-tko-tracking")
    with router(tmp_path, {"pools": pools(servers), "route": route}, *options) as port:
        main.kill()
        answered = [ask(port, "127.0.0.1", b"get k\r\n") for _ in range(60)]
        through = [answer for answer in answered if answer == b"END\r\n"]
        refused = [answer for answer in answered if answer.startswith(b"SERVER_ERROR")]
        assert len(through) + len(refused) == 60
        assert 24 <= len(through) <= 26, "the burst, and a tenth of the others"
        assert int(stats(gutter.port)["cmd_get"]) == len(through)
        main.restart()
        eventually(lambda: ask(port, "127.0.0.1", b"get k\r\n") == b"END\r\n", "the server is asked again")
