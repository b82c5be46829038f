"""Flushes of the pools that can hold keys with a prefix: what a row rule may demand in place of keys that cannot be
expressed, and what routers do."""

import json
import subprocess
from contextlib import contextmanager

import pytest
from leases import LeaseClient
from processes import PROGRAMS, Invalidator, Process, Server, answers, connect, eventually, free_port, frozen, stats

RULE = """
[[rule]]
table = "app.users"
keys = ["user:{id}", "user_by_email:{email}"]
otherwise = "flush-pools"
"""


class Pools:
    """Servers of the pools `users`, `main` and `gutter`: keys that begin with `user` are in the first, and whatever a
    server does not answer is in the last."""

    name = "one"

    def __init__(self, folder) -> None:
        self.folder = folder
        self.users = [Server(f"users-{number}", folder) for number in (1, 2)]
        self.main, self.gutter = Server("main", folder), Server("gutter", folder)
        self.servers = [*self.users, self.main, self.gutter]
        self.ports: list[int] = []

    def configuration(self) -> dict:
        """A router's configuration."""

        def pool(servers) -> dict:
            return {"servers": [f"127.0.0.1:{server.port}" for server in servers]}

        def with_gutter(name: str, kind: str) -> dict:
            return {"type": kind, "children": [f"PoolRoute|{name}", "PoolRoute|gutter"]}

        def by_prefix(kind: str) -> dict:
            policies = {"user": with_gutter("users", kind)}
            return {"type": "PrefixSelectorRoute", "policies": policies, "wildcard": "PoolRoute|main"}

        return {
            "pools": {
                "users": pool(self.users),
                "main": pool([self.main]),
                "gutter": pool([self.gutter]),
            },
            "route": {
                "type": "OperationSelectorRoute",
                "default_policy": by_prefix("FailoverRoute"),
                "operation_policies": {"delete": by_prefix("AllSyncRoute")},
            },
        }

    @contextmanager
    def routers(self, count: int, *arguments: str):
        """Routers that are peers if there is a spool."""
        path = self.folder / "router.json"
        path.write_text(json.dumps(self.configuration()))
        self.ports, running = [free_port() for _ in range(count)], []
        for port in self.ports:
            command = [
                PROGRAMS / "lookaside-router", "-p", port, "-f", path, "--server-timeout", "300",
                "--probe-timeout-initial", "50", "--probe-timeout-max", "200", "--num-proxies", "2", *arguments,
            ]  # fmt: skip
            if "--spool" in arguments:
                command[command.index("--spool") + 1] = self.folder / f"spool-{port}"
            if count > 1:
                command += ["--spool-peers", ",".join(f"127.0.0.1:{peer}" for peer in self.ports if peer != port)]
            running.append(Process(f"router-{port}", command, self.folder))
        try:
            for router, port in zip(running, self.ports, strict=True):
                router.wait_ready(lambda port=port: answers(port))
            yield running
        finally:
            for router in running:
                router.stop()

    def fill(self) -> None:
        """Stores values directly at each server."""
        for server in self.servers:
            client = connect(server.port)
            assert not client.set_many({f"user:{number}": "old" for number in range(8)} | {"other": "old"})
            client.close()

    def items(self) -> list[int]:
        """How many each server holds: those of `users`, `main`, `gutter`."""
        return [int(stats(server.port)["curr_items"]) for server in self.servers]

    def stop(self) -> None:
        """Stops the servers."""
        for server in self.servers:
            server.stop()


@pytest.fixture
def pools(tmp_path):
    """The servers."""
    pools = Pools(tmp_path)
    yield pools
    pools.stop()


def flush(port: int, prefix: str) -> bytes | None:
    """A router's reply to a flush; it may wait for servers."""
    client = connect(port, timeout=15)
    try:
        return client.get(f"__mcrouter__.flush_prefix({prefix})")
    finally:
        client.close()


def test_a_prefix_is_flushed_in_the_pools_that_can_hold_it(pools):
    with pools.routers(1, "--enable-flush-cmd"):
        pools.fill()
        assert flush(pools.ports[0], "user:") == b"flushed 3"
        assert pools.items() == [0, 0, 9, 0], "the other pool keeps its values"
        pools.fill()
        assert flush(pools.ports[0], "post:") == b"flushed 1"
        assert pools.items() == [9, 9, 0, 9]
        assert flush(pools.ports[0], "u") == b"flushed 4", "some of these keys are in one pool, some in the other"


def test_a_lease_from_before_the_flush_fills_nothing(pools):
    with pools.routers(1, "--enable-flush-cmd"):
        client = LeaseClient(pools.ports[0])
        token = client.lease_get("user:1")[1]
        other = client.lease_get("other")[1]
        assert flush(pools.ports[0], "user:") == b"flushed 3"
        assert client.lease_set("user:1", token, b"old") == b"NOT_STORED"
        assert client.lease_set("other", other, b"kept") == b"STORED"
        client.close()


def test_a_router_without_the_option_refuses_with_the_reason(pools):
    with pools.routers(1):
        pools.fill()
        assert b"refused: " in (reply := flush(pools.ports[0], "user:")) and b"--enable-flush-cmd" in reply
        assert pools.items() == [9] * 4


def test_without_a_spool_a_server_that_does_not_answer_is_named(pools):
    with pools.routers(1, "--enable-flush-cmd"):
        with frozen(pools.users[1]):
            reply = flush(pools.ports[0], "user:")
        assert reply.startswith(b"refused: not flushed: 127.0.0.1:%d (" % pools.users[1].port), reply


@pytest.mark.parametrize("count", [1, 2])
def test_a_server_that_hangs_is_not_read_before_it_is_flushed(pools, count):
    """By no router: the flush is spooled, and acknowledged as a delete is."""
    with pools.routers(count, "--enable-flush-cmd", "--spool", "") as routers:
        pools.fill()
        victim = pools.users[1]
        clients = [connect(port) for port in pools.ports]
        with frozen(victim):
            assert flush(pools.ports[0], "user:") == b"flushed 3"
            assert stats(pools.ports[0])["spool_servers_fenced"] == "1"
        # From here on it answers, and still has the old values for a moment.
        for _ in range(200):
            for client in clients:
                assert client.get_many([f"user:{number}" for number in range(8)]) == {}
        eventually(lambda: pools.items() == [0, 0, 9, 0], "it is flushed")
        eventually(lambda: stats(pools.ports[0])["spool_servers_fenced"] == "0", "it is read again")
        assert clients[0].get("other") == b"old", routers[0].log()
        for client in clients:
            client.close()


def test_a_flush_that_a_peer_cannot_be_informed_of_is_refused(pools):
    with pools.routers(2, "--enable-flush-cmd", "--spool", "") as routers:
        pools.fill()
        routers[1].kill()
        with frozen(pools.users[0]):
            reply = flush(pools.ports[0], "user:")
            assert reply.startswith(b"refused: ") and b"a peer is unreachable" in reply, reply


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_rule_flushes_the_pools_of_its_keys(pools, kind, tmp_path, request):
    database = request.getfixturevalue(kind)
    url = database.url() if kind == "mysql" else database.url
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    with database.connect(schema=None) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE app.users (id INT PRIMARY KEY, email VARCHAR(100))")
        with pools.routers(1) as routers:
            pools.fill()
            daemon = Invalidator(url, [pools], tmp_path / "state", tmp_path, "--rules", str(rules))
            try:
                cursor.execute("INSERT INTO app.users VALUES (1, 'a')")
                eventually(lambda: stats(daemon.port)["invalidations_total"] == "2", "the rows' keys are deleted")
                cursor.execute("TRUNCATE TABLE app.users")
                eventually(lambda: "--enable-flush-cmd" in daemon.log(), "the refusal is logged")
                assert stats(daemon.port)["pool_flushes"] == "0" and pools.items()[2] == 9
                # It is not lost: the next router does it.
                routers[0].stop()
                routers[0].command.append("--enable-flush-cmd")
                routers[0].start()
                shown = lambda: stats(daemon.port)  # noqa: E731
                eventually(lambda: shown()["pool_flushes"] == "2", "both prefixes are flushed", 30)
                assert pools.items() == [0, 0, 9, 0], "the other pool keeps its values"
                counted = {name: shown()[name] for name in ("flushes", "row_flushes", "table:app.users:inexpressible")}
                assert counted == {"flushes": "0", "row_flushes": "1", "table:app.users:inexpressible": "1"}
                eventually(lambda: shown()["cluster:one:pending_keys"] == "0", "all is acknowledged")
            finally:
                daemon.stop()


def test_routers_with_different_pools_are_reported(pools, mariadb, tmp_path):
    """Either may flush or delete, so the other one serves old values. An operator was not told."""
    with pools.routers(2, "--enable-flush-cmd", "--spool", "") as routers:
        own = tmp_path / "own.json"
        configuration = pools.configuration()
        own.write_text(json.dumps(configuration))
        routers[1].stop()
        routers[1].command[routers[1].command.index("-f") + 1] = own
        routers[1].start()
        routers[1].wait_ready(lambda: answers(pools.ports[1]))
        daemon = Invalidator(mariadb.url, [pools], tmp_path / "state", tmp_path)

        def configs() -> str:
            return stats(daemon.port)["cluster:one:router_configs"]

        try:
            eventually(lambda: configs() == "1", "the routers have the same configuration", 30)
            configuration["pools"]["users"]["servers"].pop()
            own.write_text(json.dumps(configuration))
            eventually(lambda: configs() == "2", "one of them has another", 60)
            eventually(lambda: "have different configurations" in daemon.log(), "it is logged after a minute", 120)
            assert all(f"127.0.0.1:{port}: " in daemon.log() for port in pools.ports)
            own.write_text(json.dumps(pools.configuration()))
            eventually(lambda: "the same configuration again" in daemon.log(), "it is over", 60)
            assert configs() == "1"
        finally:
            daemon.stop()


def operate(*arguments):
    """Runs `lookaside invalidator`."""
    command = [str(PROGRAMS / "lookaside"), "invalidator", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_commands_show_what_a_rule_flushes(mariadb, tmp_path):
    with mariadb.connect(schema=None) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE app.users (id INT PRIMARY KEY, email VARCHAR(100))")
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    tried = operate("try", "--rules", rules, "--row", "app.users", '{"id": 1}')
    assert tried.stdout == "user:1\n" and "begin with user:, user_by_email: are flushed" in tried.stderr, tried.stderr
    shown = json.loads(operate("try", "--rules", rules, "--row", "app.users", '{"id": 1}', "--json").stdout)
    assert (shown["flush"], shown["flush_prefixes"]) == (False, ["user:", "user_by_email:"])
    checked = operate("check-rules", "--rules", rules, "--database", mariadb.url)
    assert "flushes the pools of keys that begin with user:, user_by_email:" in checked.stdout, checked.stdout
    rules.write_text(RULE.replace("user:{id}", "{id}:user"))
    checked = operate("check-rules", "--rules", rules, "--database", mariadb.url)
    assert checked.returncode == 0 and "flush-pools flushes the whole cluster" in checked.stdout, checked.stdout
    shown = json.loads(operate("check-rules", "--rules", rules, "--database", mariadb.url, "--json").stdout)
    assert shown["flushes"] == {"app.users": {"cluster": True, "prefixes": []}}
    rules.write_text(RULE.replace("flush-pools", "flush-pool:users"))
    refused = operate("check-rules", "--rules", rules, "--database", mariadb.url)
    assert refused.returncode == 1 and 'line 5, column 13: otherwise is "flush-pool:users"' in refused.stderr
