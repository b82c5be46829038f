"""Passwords at the router: clients of both protocols, other routers and the invalidator, and the next process."""

import os
import signal
import subprocess

import bmemcached
import pytest
from bmemcached.exceptions import MemcachedException
from guarded import LOGIN, UNAUTHENTICATED, GuardedRouter, one_server
from processes import PROGRAMS, Process, Server, answers, eventually, free_port, frozen, stats
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError
from test_invalidator_routers import Journal
from upgrade import Chain, Connection


@pytest.fixture
def server(tmp_path):
    """A server without passwords."""
    server = Server("server", tmp_path)
    yield server
    server.stop()


def test_text_clients_are_served_after_their_login(tmp_path, server):
    router = GuardedRouter(tmp_path, server.port)
    try:
        client = Client(("127.0.0.1", router.port), timeout=10, default_noreply=False)
        with pytest.raises(MemcacheClientError, match="unauthenticated"):
            client.get("k")
        with pytest.raises(MemcacheClientError, match="authentication failure"):
            client.set("login", "ada wrong")
        assert client.set("login", "ada secret") and client.set("k", "v") and client.get("k") == b"v"
        assert client.get("login") is None, "the password is no item"
        values = client.stats()
        assert (values[b"auth_cmds"], values[b"auth_errors"]) == (2, 1)
        assert 'a login as "ada" from 127.0.0.1 was refused' in router.log() and "wrong" not in router.log()
        router.users.write_text("ada:other\n")
        router.running.send_signal(signal.SIGHUP)
        eventually(lambda: "1 user reloaded" in router.log(), "the new password counts")
        with pytest.raises(MemcacheClientError, match="authentication failure"):
            router.client()
        assert client.get("k") == b"v", "a client that has logged in stays so"
    finally:
        assert router.stop() == 0


def test_binary_clients_use_sasl(tmp_path, server):
    router = GuardedRouter(tmp_path, server.port, sasl=True)
    try:
        pure = bmemcached.Client((f"127.0.0.1:{router.port}",), "ada", "secret", socket_timeout=10)
        assert pure.set("a", "x") and pure.get_multi(["a", "b"]) == {"a": "x"}
        pure.disconnect_all()
        for who in [("ada", "guess"), ("eve", "secret")]:
            with pytest.raises(MemcachedException, match="Auth failure"):
                bmemcached.Client((f"127.0.0.1:{router.port}",), *who, socket_timeout=10).get("a")
        with Connection(("127.0.0.1", router.port)) as stranger:
            stranger.send(b"\x80\x0a" + bytes(22))
            assert stranger.received.read()[24:] == b"Auth failure.", "and then the connection is closed"
        assert router.client().get("a") == b"x", "the text protocol has the users of -Y"
    finally:
        assert router.stop() == 0


def test_the_next_process_knows_who_has_logged_in(tmp_path, server):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    port = free_port()
    chain = Chain(tmp_path, ["-p", port, "--config-str", one_server(server.port), "--num-proxies", "2", "-Y", users])
    chain.program = PROGRAMS / "lookaside-router"
    try:
        chain.begin()
        address = ("127.0.0.1", port)
        with Connection(address) as known, Connection(address) as stranger, Connection(address) as beginner:
            assert known.ask(LOGIN) == b"STORED\r\n" and stranger.ask(b"get k\r\n") == UNAUTHENTICATED
            beginner.ask(b"version\r\n")
            beginner.send(LOGIN[:20])
            chain.upgrade()
            assert known.ask(b"set k 0 0 1\r\nv\r\n") == b"STORED\r\n"
            assert stranger.ask(b"get k\r\n") == UNAUTHENTICATED
            assert beginner.ask(LOGIN[20:]) == b"STORED\r\n" and beginner.ask(b"mn\r\n") == b"MN\r\n"
    finally:
        chain.stop()


def test_routers_of_a_cluster_log_in_at_each_other(tmp_path, server):
    login = tmp_path / "login"
    login.write_text("ada:secret\n")
    ports = [free_port(), free_port()]
    routers = [
        GuardedRouter(
            tmp_path, server.port, "-p", own, "--spool", tmp_path / f"spool-{own}", "--probe-timeout-initial", "50",
            "--probe-timeout-max", "200", "--spool-peers", f"127.0.0.1:{other}", "--spool-peers-login", login,
            name=f"router-{own}",
        )
        for own, other in (ports, reversed(ports))
    ]  # fmt: skip
    try:
        client, connections = routers[1].client(), [Connection(("127.0.0.1", port)) for port in ports]
        assert [connection.ask(LOGIN) for connection in connections] == [b"STORED\r\n"] * 2
        assert connections[0].ask(b"set k 0 0 3\r\nold\r\n") == b"STORED\r\n"
        with frozen(server):
            deleted = (b"DELETED\r\n", b"NOT_FOUND\r\n")
            eventually(lambda: connections[0].ask(b"delete k\r\n") in deleted, "the other router confirms its fence")
            assert int(client.stats()[b"spool_servers_fenced_by_peers"]) == 1
        eventually(lambda: int(client.stats()[b"spool_servers_fenced_by_peers"]) == 0, "the fence is released")

        def is_deleted() -> bool:
            reply = connections[1].ask(b"mg k\r\n")
            assert reply != b"HD\r\n", "the deleted value is never read"
            return reply == b"EN\r\n"

        eventually(is_deleted, "the server is read again")
    finally:
        for router in routers:
            router.stop()


@pytest.mark.parametrize("password", ["secret", "wrong", None])
def test_the_invalidator_logs_in(tmp_path, server, password):
    """With a wrong password the log had only "connection failed"."""
    login = tmp_path / "login"
    login.write_text(f"ada:{password}\n")
    journal, port = Journal(tmp_path / "app.db"), free_port()
    router = GuardedRouter(tmp_path, server.port)
    invalidator = Process("invalidator", [
        PROGRAMS / "lookaside-invalidator", "--source", journal.url, "--state-dir", tmp_path / "state",
        "--listen", f"127.0.0.1:{port}", "--cluster", f"one=127.0.0.1:{router.port}",
        *(["--router-login", login] if password else []),
    ], tmp_path)  # fmt: skip
    try:
        invalidator.wait_ready(lambda: answers(port))
        eventually(lambda: stats(port).get("cluster:one:state") == "running", "it has a position in the log")
        client = router.client()
        assert client.set("k", "old")
        journal.commit("k")
        if password == "secret":
            eventually(lambda: client.get("k") is None, "the key is deleted")
        else:
            eventually(lambda: stats(port)["cluster:one:retry_queue_keys"] == "1", "the delete is kept, not lost")
            why = "the login at a router failed" if password else "unauthenticated"
            assert why in invalidator.log() and client.get("k") == b"old"
    finally:
        invalidator.stop()
        router.stop()
        journal.connection.close()


@pytest.mark.parametrize(
    ("users", "arguments", "complaint"),
    [
        ("ada\n", ["-Y", "{users}"], "line 1"),
        (None, ["-Y", "{users}"], "-Y"),
        (None, ["-S"], "MEMCACHED_SASL_PWDB"),
        ("ada", ["--spool", "{spool}", "--spool-peers", "127.0.0.1:1", "--spool-peers-login", "{users}"], "one line"),
        ("ada:secret", ["--spool-peers-login", "{users}"], "--spool-peers"),
    ],
)
def test_a_router_that_cannot_keep_its_promise_does_not_start(tmp_path, users, arguments, complaint):
    path = tmp_path / "users"
    if users is not None:
        path.write_text(users)
    arguments = [argument.format(users=path, spool=tmp_path / "spool") for argument in arguments]
    environment = {name: value for name, value in os.environ.items() if name != "MEMCACHED_SASL_PWDB"}
    options = ["-p", str(free_port()), "--config-str", '{"route": "NullRoute"}', *arguments]
    command = [PROGRAMS / "lookaside-router", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment)
    assert ended.returncode in (2, 3) and complaint in ended.stderr, ended.stderr
