"""Set-ups of mcrouter start unchanged and behave as their users expect."""

import json
import time

from mcrouter_setups import hit, reply, set_of, setup
from processes import eventually


def test_replicated_pools(tmp_path):
    """Every change goes to all replicas; a get asks one, and the next if that is down."""
    with setup(tmp_path) as it:
        it.file(
            "replicas.json",
            f"""{{
              // Three copies of everything.
              "pools": {{
                "A": {{ "servers": [ "{it.address("one")}", "{it.address("two")}", "{it.address("three")}", ] }},
              }},
              "route": {{
                "type": "OperationSelectorRoute",
                "operation_policies": {{
                  "add": "AllSyncRoute|Pool|A",
                  "delete": "AllSyncRoute|Pool|A",
                  "get": "LatestRoute|Pool|A",
                  "set": "AllSyncRoute|Pool|A",
                }},
                "pool_locality": "cluster",
              }},
            }}""".replace('"LatestRoute|Pool|A"', '{ "type": "LatestRoute", "children": "Pool|A" }'),
        )
        it.start(f"--config=file:{tmp_path}/replicas.json", "-t", "300", "--stats-async-queue-length", "50")
        assert it.ask(set_of("k", "v"), b"get k\r\n") == [b"STORED\r\n", hit("k", "v")]
        assert it.holders("k") == {"one", "two", "three"}
        for name in ("one", "two"):
            it.servers[name].kill()
            assert it.ask(b"get k\r\n") == [hit("k", "v")]
        assert it.ask(b"delete k\r\n")[0].startswith(b"SERVER_ERROR"), "two replicas have not deleted it"
        assert it.at("three", "k") is None
        assert "pool_locality" in it.router.log() and "--stats-async-queue-length" in it.router.log()


def test_sharded_with_failover(tmp_path):
    """Keys are spread; while a server is down its keys live in the gutter, for a short time."""
    with setup(tmp_path) as it:
        servers = [it.address(name) for name in ("one", "two")]
        it.file(
            "shards.json",
            {
                "pools": {"main": {"servers": servers}, "gutter": {"servers": [it.address("gutter")]}},
                "route": {
                    "type": "FailoverWithExptimeRoute",
                    "normal": ["PoolRoute|main"],
                    "failover": "PoolRoute|gutter",
                    "failover_exptime": 30,
                    "failover_errors": {"deletes": []},
                },
            },
        )
        it.start("-f", tmp_path / "shards.json", "-t", "300", "-r", "100", "--probe-timeout-max", "200")
        keys = [f"key:{number}" for number in range(40)]
        assert set(it.ask(*(set_of(key, "v") for key in keys))) == {b"STORED\r\n"}
        owners = [it.holders(key) for key in keys]
        assert all(len(owner) == 1 for owner in owners) and {"one"} in owners and {"two"} in owners
        it.servers["one"].kill()
        assert set(it.ask(*(set_of(key, "w") for key in keys))) == {b"STORED\r\n"}
        lost = [key for key, owner in zip(keys, owners, strict=True) if owner == {"one"}]
        assert all(it.at("gutter", key) == b"w" for key in lost)
        assert "marked hard TKO. Total hard TKOs: 1; soft TKOs: 0. Reply: mc_res_connect_error" in it.router.log()
        it.servers["one"].restart()
        eventually(lambda: it.ask(f"get {lost[0]}\r\n".encode()) == [b"END\r\n"], "the server is read again, empty")
        assert "unmarked TKO" in it.router.log()


def test_a_server_is_replaced_by_a_route(tmp_path):
    """A server of a pool gives way to two that have the same values; no other key moves."""
    with setup(tmp_path) as it:
        servers = [it.address(name) for name in ("one", "two", "three")]
        copies = [it.address(name) for name in ("copy", "other copy")]
        replicated = {
            "type": "OperationSelectorRoute",
            "operation_policies": {"get": {"type": "LatestRoute", "children": "Pool|copies"}},
            "default_policy": "AllSyncRoute|Pool|copies",
        }

        def configure(second) -> None:
            pools = {"main": {"servers": [servers[0], second, servers[2]]}, "copies": {"servers": copies}}
            it.file("pools.json", {"pools": pools, "route": "PoolRoute|main"})

        configure(servers[1])
        it.start("-f", tmp_path / "pools.json", "-t", "300")
        keys = [f"key:{number}" for number in range(60)]
        assert set(it.ask(*(set_of(key, "old") for key in keys))) == {b"STORED\r\n"}
        before = {key: it.holders(key) for key in keys}
        moved = [key for key in keys if before[key] == {"two"}]
        assert 0 < len(moved) < len(keys)

        configure(replicated)
        eventually(lambda: it.ask(f"get {moved[0]}\r\n".encode()) == [b"END\r\n"], "the copies are read, empty")
        assert set(it.ask(*(set_of(key, "new") for key in keys))) == {b"STORED\r\n"}
        for key in keys:
            assert it.holders(key) - {"two"} == ({"copy", "other copy"} if key in moved else before[key]), key
        assert it.ask(*(f"get {key}\r\n".encode() for key in keys)) == [hit(key, "new") for key in keys]
        it.servers["copy"].kill()
        assert it.ask(*(f"get {key}\r\n".encode() for key in moved)) == [hit(key, "new") for key in moved]

        assert it.at("two", moved[0]) == b"old"
        configure(servers[1])
        eventually(
            lambda: it.ask(f"get {moved[0]}\r\n".encode()) != [hit(moved[0], "new")], "the server is read, emptied"
        )
        for key in keys:
            expected = b"END\r\n" if key in moved else hit(key, "new")
            assert it.ask(f"get {key}\r\n".encode()) == [expected], key


def test_warm_up(tmp_path):
    """A cold cluster fills itself from a warm one."""
    with setup(tmp_path) as it:
        it.file(
            "warm.json",
            {
                "pools": {"cold": {"servers": [it.address("cold")]}, "warm": {"servers": [it.address("warm")]}},
                "route": {
                    "type": "WarmUpRoute",
                    "cold": "PoolRoute|cold",
                    "warm": "PoolRoute|warm",
                    "exptime": 60,
                    "enable_metaget": False,
                },
            },
        )
        it.start("--config-file", tmp_path / "warm.json", "--num-proxies=1")
        assert reply(it.servers["warm"].port, set_of("k", "v")) == b"STORED\r\n"
        assert it.ask(b"get k\r\n") == [hit("k", "v")]
        eventually(lambda: it.at("cold", "k") == b"v", "the value is copied")
        assert it.ask(set_of("new", "1"), b"get new\r\n") == [b"STORED\r\n", hit("new", "1")]
        assert it.holders("new") == {"cold"}


def test_two_caches_by_size(tmp_path):
    """Large values live in a second cache. What a late fill leaves there cannot be read."""
    with setup(tmp_path) as it:
        it.file(
            "sizes.json",
            {
                "pools": {"near": {"servers": [it.address("near")]}, "far": {"servers": [it.address("far")]}},
                "route": {
                    "type": "L1L2SizeSplitRoute",
                    "l1": "PoolRoute|near",
                    "l2": "PoolRoute|far",
                    "threshold": 1000,
                    "ttl_threshold": 0,
                    "failure_ttl": 30,
                    "both_full_set": False,
                    "retries": 2,
                },
            },
        )
        it.start("-f", tmp_path / "sizes.json", "-t", "500", "-r", "60000")
        near, far, large = it.servers["near"].port, it.servers["far"].port, "0123456789" * 100
        assert it.ask(set_of("small", large[1:]), set_of("big", large)) == [b"STORED\r\n"] * 2
        assert it.holders("small") == {"near"} and it.at("far", "big") == large.encode()
        assert reply(near, b"get big\r\n") == b"VALUE big 32 0\r\n\r\nEND\r\n", "the sentinel"
        assert it.ask(b"get small big\r\n") == [hit("small", large[1:])[:-5] + hit("big", large)]

        def fill(key: str) -> str:
            """Stores a large value under a lease; returns its key in the far cache."""
            lease = it.ask(f"lease-get {key}\r\n".encode())[0].split()
            assert lease[:2] == [b"LVALUE", key.encode()] and int(lease[2]) > 1, lease
            stored = b"lease-set %s %s 0 0 %d\r\n%s\r\n" % (key.encode(), lease[2], len(large), large.encode())
            assert it.ask(stored) == [b"STORED\r\n"]
            number = it.at("near", key)
            return f"{key}|==|{number.decode()}" if number != large.encode() else key

        alias = fill("hot")
        assert it.at("far", alias) == large.encode() and it.at("far", "hot") is None
        for verb in ("get", "lease-get"):
            assert it.ask(f"{verb} hot\r\n".encode()) == [hit("hot", large)]
        assert it.ask(b"delete hot\r\n", b"get hot\r\n") == [b"DELETED\r\n", b"END\r\n"]
        (lease,) = it.ask(b"lease-get hot\r\n")
        assert lease.startswith(b"LVALUE hot ") and lease.endswith(b" 0 0\r\n\r\nEND\r\n"), "no stale sentinel"
        assert reply(far, set_of(alias, "late")) == b"STORED\r\n" and it.ask(b"get hot\r\n") == [b"END\r\n"]

        assert reply(far, f"delete {fill('lost')}\r\n".encode()) == b"DELETED\r\n"
        assert it.ask(b"get lost\r\n") == [b"SERVER_ERROR local error\r\n"]
        assert it.ask(b"get lost\r\n") == [b"END\r\n"] and it.at("near", "lost") is None

        it.servers["far"].kill()
        assert fill("alone") == "alone", "L1 has the value itself"
        assert 0 < int(reply(near, b"mg alone t\r\n")[4:]) <= 30
        assert it.ask(set_of("big", large + "!"))[0].startswith(b"SERVER_ERROR ")


def test_several_clusters_by_routing_prefix(tmp_path):
    """A key may name its cluster; a delete with a pattern reaches all of them."""
    with setup(tmp_path) as it:
        pools = {name: {"servers": [it.address(name)], "region": "r", "cluster": name} for name in ("east", "west")}
        routes = [{"aliases": [f"/r/{name}/"], "route": f"PoolRoute|{name}"} for name in pools]
        it.file("clusters.json", {"pools": pools, "routes": routes})
        arguments = ("-f", tmp_path / "clusters.json", "-R", "/r/east/", "--cross-cluster-timeout-ms", "500")
        it.start(*arguments)
        stored = it.ask(set_of("k", "e"), set_of("/r/west/k", "w"), set_of("/a/k", "plain"))
        assert stored == [b"STORED\r\n"] * 3
        assert (it.at("east", "k"), it.at("west", "k"), it.at("east", "/a/k")) == (b"e", b"w", b"plain")
        assert it.ask(b"get /r/west/k\r\n") == [hit("/r/west/k", "w")]
        assert it.ask(b"delete /*/*/k\r\n") == [b"DELETED\r\n"] and it.holders("k") == set()
        assert it.ask(set_of("/x/y/k", "lost"))[0].startswith(b"SERVER_ERROR")
        it.router.stop()
        it.start(*arguments, "--send-invalid-route-to-default")
        assert it.ask(set_of("/x/y/k", "found"), b"get k\r\n") == [b"STORED\r\n", hit("k", "found")]
        assert it.ask(b"get /z*/y/k\r\n") == [hit("/z*/y/k", "found")]
        assert it.holders("k") == {"east"}


def test_big_values(tmp_path):
    """Values above a size are stored in pieces."""
    with setup(tmp_path) as it:
        it.file("big.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        words = ("-f", tmp_path / "big.json", "--big-value-split-threshold=1000", "--big-value-batch-size", "5")
        it.start(*words)
        value = "0123456789" * 350
        split = hit("big", value).replace(b" 0 ", b" 32768 ", 1)
        assert it.ask(set_of("big", value), b"get big\r\n") == [b"STORED\r\n", split], "with mcrouter's flag"
        assert it.at("one", "big").startswith(b"1-4-"), "four pieces"
        assert it.ask(set_of("small", "v")) == [b"STORED\r\n"] and it.at("one", "small") == b"v"
        it.router.stop()
        it.start(*words, "--big-value-hide-reply-flag")
        assert it.ask(b"get big\r\n") == [hit("big", value)]
        assert it.ask(b"delete big\r\n", b"get big\r\n") == [b"DELETED\r\n", b"END\r\n"]


def test_rate_limits(tmp_path):
    """Sets above the rate of a pool are not stored."""
    with setup(tmp_path) as it:
        route = {"type": "PoolRoute", "pool": "A", "rates": {"sets_rate": 1, "sets_burst": 3}}
        it.file("rates.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": route})
        it.start("-f", tmp_path / "rates.json")
        begun = time.monotonic()
        (replies,) = it.ask(b"".join(set_of(f"k{number}", "v") for number in range(200)))
        stored = replies.split().count(b"STORED")
        assert 3 <= stored <= 4 + time.monotonic() - begun and replies.split().count(b"NOT_STORED") == 200 - stored
        assert it.ask(b"get k0\r\n") == [hit("k0", "v")]


def test_macros_with_imports(tmp_path):
    """Pools are made by macros from another file and from the command line; a change of that file is seen."""
    with setup(tmp_path) as it:
        tiers = {"one": it.address("one"), "two": it.address("two")}
        (tmp_path / "shared").mkdir()
        it.file("shared/servers.json", tiers)
        it.file(
            "macros.json",
            """{
              "macros": [
                { "servers": { "type": "constDef", "result": "@import(file:shared/servers.json)" } },
                {
                  "pool_of": {
                    "type": "macroDef",
                    "params": ["tier", { "name": "timeout", "default": 250 }],
                    "result": { "servers": ["@select(%servers%,%tier%)"], "server_timeout": "%timeout%" },
                  },
                },
              ],
              "pools": { "@merge(pool-,%tier%)": "@pool_of(%tier%)" },
              "route": {
                "vars": { "pool": "@merge(pool-,%tier%)" },
                "type": "if",
                "condition": "@and(@equals(%default-cluster%,web),@isArray(@range(1,2)))",
                "is_true": "PoolRoute|%pool%",
                "is_false": "@fail(a cluster of its own is needed)",
              },
            }""",
        )
        arguments = (
            "--config",
            f"file:{tmp_path}/macros.json",
            "-R",
            "/r/web/",
            "--config-params",
            "tier:one,unused:1",
        )
        it.start(*arguments)
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"] and it.holders("k") == {"one"}
        it.file("shared/servers.json", tiers | {"one": tiers["two"]})
        eventually(lambda: it.ask(set_of("moved", "v")) and it.at("two", "moved") == b"v", "the import is read again")
        digest = it.ask(b"get __mcrouter__.config_md5_digest\r\n")[0].split(b"\r\n")[1].decode()
        assert f"reconfigured 1 proxies with 1 pools, 1 clients {digest}" in it.router.log()
        it.router.stop()
        it.start(*arguments, "--additional-config-params=tier:two")
        assert it.ask(set_of("other", "v")) == [b"STORED\r\n"] and it.holders("other") == {"two"}


def test_staged_migration(tmp_path):
    """Between the two dates deletes reach both sides, and reads and sets move from one to the other."""
    with setup(tmp_path) as it:
        now = int(time.time())

        def migration(start: int) -> dict:
            pools = {name: {"servers": [it.address(name)]} for name in ("old", "new")}
            route = {"type": "MigrateRoute", "from": "PoolRoute|old", "to": "PoolRoute|new", "interval": 10_000}
            return {"pools": pools, "route": route | {"start_time": start}}

        path = it.file("migration.json", migration(now - 100))
        it.start("-f", path, "--reconfiguration-delay-ms=1000")
        assert it.ask(set_of("k", "v"), b"get k\r\n") == [b"STORED\r\n", hit("k", "v")] and it.holders("k") == {"old"}
        assert reply(it.servers["new"].port, set_of("k", "copy")) == b"STORED\r\n"
        assert it.ask(b"delete k\r\n") == [b"DELETED\r\n"] and it.holders("k") == set()
        path.write_text(json.dumps(migration(now - 15_000)))
        eventually(lambda: it.ask(set_of("later", "v")) and it.at("new", "later") == b"v", "the new servers serve")
