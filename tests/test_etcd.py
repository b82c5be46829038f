"""A router whose configuration is in etcd: changes while clients are served, and failures of etcd."""

import json
import signal
import subprocess
import threading
import time

import pytest
from certificates import Authority
from etcd import Etcd, encoded
from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port, stats

KEY = "lookaside/one"


def configuration(*servers: Server) -> str:
    """A router's, over these servers."""
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    return json.dumps({"pools": {"main": {"servers": addresses}}, "route": "PoolRoute|main"})


class Router(Process):
    """A router that takes its configuration from etcd."""

    def __init__(self, etcd: Etcd, folder, *arguments: str, source: str | None = None) -> None:
        self.port = free_port()
        source = source or f"etcd://127.0.0.1:{etcd.port}/{KEY}"
        command = [
            PROGRAMS / "lookaside-router", "-p", self.port, "--num-proxies", "2", "--config", source, *arguments
        ]  # fmt: skip
        super().__init__("router", command, folder, env={"LOOKASIDE_ETCD_PASSWORD": "secret"})

    def started(self) -> "Router":
        """The same when it answers."""
        self.wait_ready(lambda: answers(self.port))
        return self

    def servers(self) -> set[int]:
        """The ports of the servers that its threads know."""
        lines = connect(self.port).stats("servers_detailed")
        return {int(name.decode().rsplit(":", 1)[1]) for name in lines}

    def takes(self, *servers: Server, seconds: float = 20) -> None:
        """Waits until it routes to these and no others."""
        ports = {server.port for server in servers}
        eventually(lambda: self.servers() == ports, f"the router knows {ports}:\n{self.log()}", seconds)

    def number(self, name: str) -> int:
        """One of `stats`."""
        return int(stats(self.port)[name])


class ClosedLoop:
    """A client that asks without pause, each time when the last answer is there, and records errors."""

    def __init__(self, port: int) -> None:
        self.rounds, self.wrong = 0, []
        self.client = connect(port)
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        """Sets, gets and deletes of many keys."""
        while not self.ends.is_set():
            keys = {f"{self.rounds}:{number}": b"x" for number in range(10)}
            try:
                self.client.set_many(keys)
                self.client.get_many(list(keys))
                self.client.delete_many(list(keys))
            except Exception as error:  # noqa: BLE001 - whatever it is, a client has seen it
                self.wrong.append(error)
                return
            self.rounds += 1

    def stop(self) -> None:
        """Ends it; fails if it has seen an error."""
        self.ends.set()
        self.thread.join()
        assert self.wrong == [] and self.rounds > 0


@pytest.fixture
def etcd(tmp_path):
    """One etcd."""
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.thaw()
    etcd.stop()


@pytest.fixture
def start(etcd, tmp_path):
    """Starts routers, and stops them."""
    routers = []

    def start(*arguments: str, **options) -> Router:
        routers.append(Router(etcd, tmp_path, *arguments, **options))
        return routers[-1]

    yield start
    for router in routers:
        router.stop()


def test_changes_apply_within_a_second_without_client_errors(etcd, servers, start):
    first, second, third = servers
    etcd.put(KEY, configuration(first))
    router = start().started()
    client = ClosedLoop(router.port)
    steps = [(first, second), (first, second, third), (second, third), (third,), (first,), (first, third)]
    took_s = []
    for step in steps:
        begun, put_at = client.rounds, time.monotonic()
        etcd.put(KEY, configuration(*step))
        router.takes(*step)
        took_s.append(time.monotonic() - put_at)
        eventually(lambda begun=begun: client.rounds > begun + 2 or client.wrong, "the client goes on")
    client.stop()
    # The best of them: any one may have waited for the machine.
    assert min(took_s) < 1, took_s
    assert router.number("get_failures") == 0 and router.number("other_failures") == 0


def test_an_invalid_configuration_is_refused_and_the_old_one_stays(etcd, servers, start):
    etcd.put(KEY, configuration(servers[0]))
    router = start().started()
    etcd.put(KEY, '{"route": "PoolRoute|nowhere"}')
    eventually(lambda: router.number("config_failures") == 1, "it is refused")
    assert f"etcd://127.0.0.1:{etcd.port}/{KEY}: line 1, column 11" in router.log()
    assert router.servers() == {servers[0].port} and connect(router.port).set("a", b"x")
    etcd.put(KEY, configuration(servers[1]))
    router.takes(servers[1])
    assert "config_last_refusal" not in stats(router.port)


def test_etcd_killed_and_back_after_a_compaction(etcd, servers, start):
    etcd.put(KEY, configuration(servers[0]))
    router = start().started()
    client = ClosedLoop(router.port)
    etcd.kill()
    eventually(lambda: "etcd does not answer" in router.log(), "it is in the log")
    assert router.servers() == {servers[0].port}
    etcd.restart()
    etcd.put(KEY, configuration(servers[1]))
    etcd.compact(etcd.put(KEY, configuration(servers[2])))
    router.takes(servers[2])
    etcd.put(KEY, configuration(servers[0], servers[1]))
    router.takes(servers[0], servers[1])
    client.stop()
    assert router.log().count("etcd does not answer") == 1
    assert router.log().count("etcd answers again") == 1
    assert router.number("config_failures") == 0


def test_a_key_that_is_deleted_changes_nothing(etcd, servers, start):
    etcd.put(KEY, configuration(servers[0]))
    router = start().started()
    etcd.delete(KEY)
    eventually(lambda: "etcd has no such key; the configuration in force stays" in router.log(), "it is in the log")
    assert router.servers() == {servers[0].port}
    etcd.put(KEY, configuration(servers[1]))
    router.takes(servers[1])


def test_a_start_without_etcd_uses_the_last_good_configuration(etcd, servers, start, tmp_path):
    cache = tmp_path / "last.json"
    etcd.put(KEY, configuration(servers[0]))
    router = start("--config-cache", cache).started()
    etcd.put(KEY, configuration(servers[1]))
    router.takes(servers[1])
    eventually(lambda: cache.read_text() == configuration(servers[1]), "it is kept")
    etcd.kill()
    router.stop()
    router.start()
    router.started()
    assert router.servers() == {servers[1].port}
    assert "config_last_refusal" in stats(router.port) and "starting with the last good" in router.log()
    etcd.restart()
    etcd.put(KEY, configuration(servers[2]))
    router.takes(servers[2])
    assert "config_last_refusal" not in stats(router.port)


def test_an_invalid_value_in_etcd_at_the_start_is_reported(etcd, servers, start, tmp_path):
    cache = tmp_path / "last.json"
    router = start()
    assert router.running.wait(20) == 2 and "etcd has no such key" in router.log()
    etcd.put(KEY, "{")
    cache.write_text(configuration(servers[0]))
    router = start("--config-cache", cache).started()
    assert router.servers() == {servers[0].port} and router.number("config_failures") == 1
    etcd.kill()
    router = start()
    assert router.running.wait(20) == 2 and "etcd does not answer" in router.log()


def test_a_dead_endpoint_is_replaced_by_another(etcd, servers, start):
    etcd.put(KEY, configuration(servers[0]))
    router = start(source=f"etcd://127.0.0.1:{free_port()},127.0.0.1:{etcd.port}/{KEY}").started()
    etcd.put(KEY, configuration(servers[1]))
    router.takes(servers[1])
    assert "etcd does not answer" not in router.log()


def test_with_user_and_password(etcd, servers, start):
    etcd.put(KEY, configuration(servers[0]))
    for path, body in [
        ("/v3/auth/user/add", {"name": "root", "password": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/user/add", {"name": "router", "password": "secret"}),
        ("/v3/auth/role/add", {"name": "reader"}),
        ("/v3/auth/role/grant", {"name": "reader", "perm": {"permType": "READ", "key": encoded(KEY)}}),
        ("/v3/auth/user/grant", {"user": "router", "role": "reader"}),
        ("/v3/auth/enable", {}),
    ]:
        etcd.ask(path, body)
    router = start(source=f"etcd://router@127.0.0.1:{etcd.port}/{KEY}").started()
    token = etcd.ask("/v3/auth/authenticate", {"name": "root", "password": "root"})["token"]
    etcd.ask("/v3/kv/put", {"key": encoded(KEY), "value": encoded(configuration(servers[1]))}, token)
    router.takes(servers[1])
    assert router.log().count("is sent unencrypted") == 1
    refused = start(source=f"etcd://router:wrong@127.0.0.1:{etcd.port}/{KEY}")
    assert refused.running.wait(20) == 2
    assert "authentication failed" in refused.log() and "wrong" not in refused.log()


def test_through_tls(servers, start, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("router")
    (tmp_path / "secured").mkdir()
    secured = Etcd(tmp_path / "secured", authority)
    try:
        source = f"etcds://127.0.0.1:{secured.port}/{KEY}"
        secured.put(KEY, configuration(servers[0]))
        papers = ("--pem-cert-path", certificate, "--pem-key-path", key)
        router = start("--pem-ca-path", authority.certificate, *papers, source=source).started()
        secured.put(KEY, configuration(servers[1]))
        router.takes(servers[1])
        for tool in (["check-config", source], ["route", "get", "k", "-f", source]):
            command = [PROGRAMS / "lookaside", *tool, "--pem-ca-path", authority.certificate]
            done = subprocess.run([*command, *papers], capture_output=True, text=True, timeout=20)
            shown = "the configuration is good: 1 server" if tool[0] == "check-config" else str(servers[1].port)
            assert done.returncode == 0 and shown in done.stdout, done.stderr
            anonymous = subprocess.run(command, capture_output=True, text=True, timeout=20)
            assert anonymous.returncode == 1 and "etcd does not answer" in anonymous.stderr, anonymous.stderr
            untrusting = subprocess.run(command[:-2], capture_output=True, text=True, timeout=20)
            assert untrusting.returncode == 1 and "--pem-ca-path" in untrusting.stderr, untrusting.stderr
        stranger = Authority(tmp_path, "stranger")
        refused = start("--pem-ca-path", stranger.certificate, source=source)
        assert refused.running.wait(20) == 2 and "etcd does not answer" in refused.log()
        assert start(source=source).running.wait(20) == 3
    finally:
        secured.stop()


def test_sighup_reloads_the_configuration_at_once(etcd, servers, start, tmp_path):
    path = tmp_path / "router.json"
    path.write_text("{")
    (tmp_path / "last.json").write_text(configuration(servers[0]))
    for source in (f"file:{path}", None):
        etcd.put(KEY, "{")
        router = start("--config-cache", tmp_path / "last.json", source=source).started()
        before = router.number("config_failures")
        router.running.send_signal(signal.SIGHUP)
        eventually(lambda: router.number("config_failures") == before + 1, "it is read again")  # noqa: B023
        assert router.servers() == {servers[0].port}


def test_sighup_while_etcd_is_away_changes_and_refuses_nothing(etcd, servers, start):
    """The failed read once counted as a refused configuration, even when etcd came back with the same value."""
    etcd.put(KEY, configuration(servers[0]))
    router = start().started()
    for away, back in ((etcd.kill, etcd.restart), (etcd.freeze, etcd.thaw)):
        away()
        logged = router.log().count("etcd does not answer")
        for _ in range(2):
            router.running.send_signal(signal.SIGHUP)
            eventually(lambda: router.log().count("etcd does not answer") > logged, "each is in the log", 30)  # noqa: B023
            logged += 1
        assert router.servers() == {servers[0].port} and connect(router.port).set("a", b"x")
        read = router.log().count("configuration read; it is valid")
        back()
        eventually(lambda: router.log().count("configuration read; it is valid") > read, "it is read", 30)  # noqa: B023
        assert router.number("config_failures") == 0 and "config_last_refusal" not in stats(router.port)
    etcd.put(KEY, configuration(servers[1]))
    router.takes(servers[1])
    etcd.freeze()
    router.running.send_signal(signal.SIGHUP)
    assert router.stop() == 0, "a read that hangs does not delay the end"


def test_an_invalid_location_is_refused():
    done = subprocess.run(
        [PROGRAMS / "lookaside-router", "--config", "etcd://127.0.0.1:2379"], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 3 and "the key is missing" in done.stderr
