"""Routers without disks share the history of their configuration's changes in etcd: all of them are killed in the
middle of a change, or after it, and no old value comes back. The same happens with an account that may not write to
etcd, and then old values do come back. The configuration is in etcd, too, or in a file, with a history that is reached
in plain text or by TLS."""

import base64
import contextlib
import http.server
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
from certificates import Authority
from etcd import Etcd, encoded
from observed_programs import exposition
from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port, frozen, stats
from resized_region import KEYS, Router, text_of

KEY = "lookaside/one"
RECORD = KEY + ".history/./."
PASSWORDS = {"root": "root", "writer": "w", "reader": "r"}


class DisklessRouter(Router):
    """It follows a key in etcd or a file, and its disk is lost with its process."""

    def __init__(self, tmp_path, source: list, user: str, port: int, peers: list[int]) -> None:
        self.port, self.metrics_port = port, free_port()
        self.spool = tmp_path / f"spool-{port}"
        command = [
            PROGRAMS / "lookaside-router", "-p", port, *source,
            "--num-proxies", "2", "--server-timeout", 300, "--probe-timeout-initial", "50",
            "--spool", self.spool, "--metrics-address", f"127.0.0.1:{self.metrics_port}",
        ]  # fmt: skip
        if peers:
            command += ["--spool-peers", ",".join(f"127.0.0.1:{peer}" for peer in peers)]
        Process.__init__(self, f"router-{port}", command, tmp_path, env={"LOOKASIDE_ETCD_PASSWORD": PASSWORDS[user]})

    def lose(self) -> None:
        """It is killed, and its disk is gone."""
        self.kill()
        shutil.rmtree(self.spool)

    def history(self) -> str:
        """Where its history is."""
        return stats(self.port)["resize_history"]


def certificates_of(authority: Authority) -> list:
    """The options by which a router trusts an etcd of this authority, and presents a certificate to it."""
    certificate, key = authority.sign("router", "O")
    return ["--pem-ca-path", authority.certificate, "--pem-cert-path", certificate, "--pem-key-path", key]


class Cluster:
    """Three servers, two routers without disks, and their configuration in etcd, or in a file with a history there."""

    def __init__(self, tmp_path, account: str, first_endpoint: str | None = None) -> None:
        is_in_file = account in ("file", "tls")
        self.user = "writer" if is_in_file else account
        self.file = tmp_path / "router.json" if is_in_file else None
        self.authority = Authority(tmp_path) if account == "tls" else None
        self.etcd = Etcd(tmp_path, self.authority)
        self.certificates = certificates_of(self.authority) if self.authority else []
        endpoints = ",".join(filter(None, [first_endpoint, f"127.0.0.1:{self.etcd.port}"]))
        self.set_users()
        self.servers = [Server(f"server-{index}", tmp_path) for index in range(3)]
        self.put([0, 1, 2])
        ports = [free_port(), free_port()]
        self.routers = [
            DisklessRouter(tmp_path, self.source(endpoints), self.user, port, [peer for peer in ports if peer != port])
            for port in ports
        ]
        self.wait_ready()

    def source(self, endpoints: str, certificates: list | None = None) -> list:
        """The options of a router for its configuration and its history, with these endpoints of etcd."""
        certificates = self.certificates if certificates is None else certificates
        location = f"etcd{'s' if self.authority else ''}://{self.user}@{endpoints}/{KEY}"
        if self.file:
            return ["-f", self.file, "--config-history", f"{location}.history", *certificates]
        return ["--config", location]

    def set_users(self) -> None:
        """One may read the configuration alone; another one may also write its history."""
        reads = {"permType": "READ", "key": encoded(KEY)}
        below = encoded(KEY + ".history"), encoded(KEY + ".historz")
        writes = {"permType": "READWRITE", "key": below[0], "range_end": below[1]}
        for path, body in [
            *(("/v3/auth/user/add", {"name": user, "password": password}) for user, password in PASSWORDS.items()),
            ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
            ("/v3/auth/role/add", {"name": "reads"}),
            ("/v3/auth/role/grant", {"name": "reads", "perm": reads}),
            ("/v3/auth/role/add", {"name": "writes"}),
            ("/v3/auth/role/grant", {"name": "writes", "perm": writes}),
            ("/v3/auth/user/grant", {"user": "reader", "role": "reads"}),
            ("/v3/auth/user/grant", {"user": "writer", "role": "reads"}),
            ("/v3/auth/user/grant", {"user": "writer", "role": "writes"}),
            ("/v3/auth/enable", {}),
        ]:
            self.etcd.ask(path, body)

    def ask(self, path: str, body: dict) -> dict:
        """A request of the administrator."""
        token = self.etcd.ask("/v3/auth/authenticate", {"name": "root", "password": "root"})["token"]
        return self.etcd.ask(path, body, token)

    def put(self, servers: list[int]) -> None:
        """Gives all routers another configuration."""
        self.text = text_of([self.servers[index] for index in servers])
        if self.file:
            new = self.file.with_suffix(".new")
            new.write_text(self.text)
            new.rename(self.file)
            return
        self.ask("/v3/kv/put", {"key": encoded(KEY), "value": encoded(self.text)})

    def put_history(self, configs: list[tuple[str, str, bool]]) -> None:
        """Replaces the record by one with these configurations, each with its text, and whether it is readable."""
        record = [{"id": identity, "is_readable": is_readable} for identity, _, is_readable in configs]
        record = {"version": 1, "configs": record, "departed": [], "is_departed_incomplete": False}
        for key, value in [(RECORD, json.dumps(record)), *((f"{RECORD}/{i}", text) for i, text, _ in configs)]:
            self.ask("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})

    def history(self) -> list[dict]:
        """The configurations in the record, once there is one."""
        eventually(self.keys, "the routers have written the history")
        record = next(pair["value"] for pair in self.keys() if pair["key"] == encoded(RECORD))
        return json.loads(base64.b64decode(record))["configs"]

    def keys(self) -> list[dict]:
        """The record of the history in etcd, and what is below it."""
        end = encoded(RECORD + "0")
        return self.ask("/v3/kv/range", {"key": encoded(RECORD), "range_end": end}).get("kvs", [])

    def wait_ready(self) -> None:
        for router in self.routers:
            router.wait_ready(lambda router=router: answers(router.port))

    def wait_in_force(self) -> None:
        """Waits until requests are routed by the last configuration."""
        for router in self.routers:
            eventually(lambda router=router: router.reads_by(self.text), f"in force:\n{router.log()[-4000:]}", 40)

    def wait_steady(self) -> None:
        """Waits until only that is covered."""
        for router in self.routers:
            eventually(router.is_steady, f"steady:\n{router.log()[-4000:]}", 60)

    def lose_all(self) -> None:
        """All routers lose their disks. They are started when this has returned."""
        for router in self.routers:
            router.lose()

    def start_all(self) -> None:
        for router in self.routers:
            router.start()
        self.wait_ready()

    def set_all(self, value: str) -> None:
        client = connect(self.routers[0].port)
        assert all(client.set(key, value, noreply=False) for key in KEYS)
        client.close()

    def delete_all(self) -> None:
        """All rows change."""
        client = connect(self.routers[1].port)
        assert all(client.delete(key, noreply=False) in (True, False) for key in KEYS)
        client.close()

    def found(self) -> int:
        """How many keys are hits, by each router."""
        found = 0
        for router in self.routers:
            client = connect(router.port)
            found += len(client.get_many(KEYS))
            client.close()
        return found

    def restart_etcd(self) -> None:
        """Starts it again with what it had."""

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return bool(self.keys())
            return False

        self.etcd.start()
        self.etcd.wait_ready(answers)

    def stop(self) -> None:
        for process in [*self.routers, *self.servers, self.etcd]:
            process.stop()


@pytest.fixture
def cluster(tmp_path, request):
    cluster = Cluster(tmp_path, request.param)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["dead", "hanging"])
def cluster_of_two_endpoints(tmp_path, request):
    """Of the two endpoints of etcd the first one does not answer: nothing listens there, or a process that hangs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "hanging":
            # The kernel accepts connections.
            listener.listen(256)
        cluster = Cluster(tmp_path, "writer", f"127.0.0.1:{listener.getsockname()[1]}")
        try:
            yield cluster
        finally:
            cluster.stop()


class Gateway(http.server.ThreadingHTTPServer):
    """Etcd behind a proxy that passes reads alone, until it is healthy."""

    def __init__(self, etcd: Etcd) -> None:
        self.etcd, self.is_healthy = etcd, False
        super().__init__(("127.0.0.1", 0), GatewayRequest)
        self.endpoint = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class GatewayRequest(http.server.BaseHTTPRequestHandler):
    """A request through it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v3/watch":
            return self.reply(501, b"{}")
        if self.path == "/v3/kv/txn" and not self.server.is_healthy:
            return self.reply(503, b"{}")
        token = self.headers.get("authorization")
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(self.server.etcd.url + self.path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return self.reply(200, answer.read())
        except urllib.error.HTTPError as error:
            return self.reply(error.code, error.read())

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments) -> None:
        """It is in the log of the router, if it matters."""


ACCOUNTS = pytest.mark.parametrize("cluster", ["writer", "reader", "file", "tls"], indirect=True)
SOURCES = pytest.mark.parametrize("cluster", ["writer", "file"], indirect=True)
SECURED = pytest.mark.parametrize("cluster", ["tls"], indirect=True)


def check(cluster: Cluster) -> None:
    """No old value is read with the history, and some are without it."""
    is_shared = cluster.routers[0].history() == "recorded"
    found = cluster.found()
    print(f"{found} old values read, the history is {cluster.routers[0].history()}")
    assert (found == 0) == is_shared, cluster.routers[0].log()[-4000:]


@ACCOUNTS
def test_a_server_returns_after_all_routers_have_lost_their_memory(cluster):
    """It had missed deletes while it was away. The routers started by the configuration that has it, and trusted it."""
    cluster.set_all("old")
    cluster.put([0, 1])
    cluster.wait_in_force()
    cluster.wait_steady()
    cluster.delete_all()
    cluster.lose_all()
    cluster.put([0, 1, 2])
    cluster.start_all()
    cluster.wait_in_force()
    check(cluster)


def test_an_endpoint_of_etcd_that_does_not_answer_hides_no_history(cluster_of_two_endpoints):
    """Each router read its configuration from the second one. It asked the first one alone for the history, once, and
    took itself for the first of its cluster."""
    cluster = cluster_of_two_endpoints
    cluster.set_all("old")
    cluster.put([0, 1])
    cluster.wait_in_force()
    cluster.wait_steady()
    cluster.delete_all()
    cluster.lose_all()
    cluster.put([0, 1, 2])
    cluster.start_all()
    cluster.wait_in_force()
    assert cluster.found() == 0
    assert all(router.history() == "recorded" for router in cluster.routers)


@SOURCES
def test_a_router_that_knows_nothing_does_not_start_before_etcd_returns_the_history(cluster, tmp_path):
    """It logged that etcd was away, and served all that its servers had."""
    with Gateway(cluster.etcd) as gateway:
        router = DisklessRouter(tmp_path, cluster.source(gateway.endpoint), "writer", free_port(), [])
        try:
            assert router.running.wait(30) == 2, router.log()
            assert "it does not know which servers have missed deletes" in router.log()
            gateway.is_healthy = True
            router.start()
            router.wait_ready(lambda: answers(router.port))
            assert router.history() == "recorded"
        finally:
            router.stop()
            gateway.shutdown()


@pytest.mark.parametrize("cluster", ["file"], indirect=True)
def test_a_router_that_is_refused_the_history_that_it_was_given_does_not_start(cluster, tmp_path):
    """It took itself for the first of its cluster, and served all that its servers had."""
    history = f"etcd://reader@127.0.0.1:{cluster.etcd.port}/{KEY}.history"
    router = DisklessRouter(tmp_path, ["-f", cluster.file, "--config-history", history], "reader", free_port(), [])
    try:
        assert router.running.wait(30) == 2, router.log()
        assert "permission denied" in router.log() and "which --config-history asks for" in router.log()
    finally:
        router.stop()


@SECURED
def test_a_router_starts_only_by_tls_that_both_sides_trust(cluster, tmp_path):
    """Etcd's authority, and a certificate of its own, are what a router needs to read the history."""
    assert cluster.etcd.url.startswith("https:") and cluster.routers[0].history() == "recorded"
    trusted, own = cluster.certificates[:2], cluster.certificates[2:]
    strange = ["--pem-ca-path", Authority(tmp_path, "stranger").certificate]
    unknown = "it does not know which servers have missed deletes"
    for certificates, status, why in [
        (trusted, 2, unknown),
        ([*strange, *own], 2, unknown),
        (own, 3, "servers' certificates are verified against --pem-ca-path FILE"),
    ]:
        source = cluster.source(f"127.0.0.1:{cluster.etcd.port}", certificates)
        router = DisklessRouter(tmp_path, source, "writer", free_port(), [])
        try:
            assert router.running.wait(30) == status and why in router.log(), router.log()
        finally:
            router.stop()
    assert not any("is sent unencrypted" in router.log() for router in cluster.routers)


LATER_ID = "0" * 31 + "7"
LATER = json.dumps({"pools": {"main": {"servers": []}}, "route": {"type": "LaterRoute", "pool": "main"}})


@pytest.mark.parametrize("cluster", ["writer"], indirect=True)
def test_routers_of_an_earlier_version_empty_all_servers_of_the_next_configuration(cluster):
    """A former configuration was of a later version, and had placed copies. No router started."""
    cluster.set_all("old")
    identity = cluster.history()[0]["id"]
    cluster.lose_all()
    cluster.put_history([(LATER_ID, LATER, False), (identity, cluster.text, True)])
    cluster.start_all()
    assert cluster.found() == 2 * len(KEYS), "what is read had all deletes"
    lost = [config["id"] for config in cluster.history() if config.get("is_lost")]
    assert lost == [LATER_ID] and LATER_ID in cluster.routers[0].log()
    cluster.put([0, 1])
    cluster.wait_in_force()
    assert cluster.found() == 0
    cluster.wait_steady()
    eventually(lambda: len(cluster.keys()) == 2, f"one configuration is left: {cluster.keys()}", 30)


@pytest.mark.parametrize("cluster", ["writer"], indirect=True)
def test_a_router_that_cannot_use_what_others_may_read_by_names_it(cluster):
    router = cluster.routers[0]
    identity = cluster.history()[0]["id"]
    cluster.lose_all()
    cluster.put_history([(identity, cluster.text, True), (LATER_ID, LATER, True)])
    router.start()
    assert router.running.wait(30) == 2, router.log()
    remove = f"(etcdctl del {RECORD}, and etcdctl del --prefix {RECORD}/)"
    assert f"{RECORD}/{LATER_ID}" in router.log() and remove in router.log()


@ACCOUNTS
def test_all_routers_lose_their_memory_in_the_middle_of_a_change(cluster):
    """Copies that keys left behind when they moved had not been removed, and the routers did not know of them."""
    cluster.set_all("former")
    cluster.put([0, 1])
    cluster.wait_in_force()
    cluster.set_all("old")
    cluster.put([0, 1, 2])
    cluster.wait_in_force()
    assert not any(router.is_steady() for router in cluster.routers)
    cluster.lose_all()
    cluster.start_all()
    cluster.wait_in_force()
    cluster.delete_all()
    cluster.put([0, 1])
    cluster.wait_in_force()
    check(cluster)


@pytest.mark.parametrize("cluster", ["reader"], indirect=True)
def test_an_account_that_may_not_write_is_shown(cluster):
    router = cluster.routers[0]
    assert "etcd refuses to read or write the history" in router.log() and "permission denied" in router.log()
    metric = r'^lookaside_router_resize_history\{state="(\w+)"\} 1$'
    assert re.findall(metric, exposition(router.metrics_port), re.MULTILINE) == ["refused"]
    assert "history refused" in routes(router)
    # It may from now on, and the routers notice.
    cluster.ask("/v3/auth/user/grant", {"user": "reader", "role": "writes"})
    for router in cluster.routers:
        eventually(lambda router=router: router.history() == "recorded", "recorded", 90)
    assert cluster.keys()


def routes(router: DisklessRouter) -> str:
    """`lookaside route` with that router."""
    command = [PROGRAMS / "lookaside", "route", "get", "k", "-f", "-", f"--routers={router.port}"]
    text = json.dumps({"route": "NullRoute"})
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


@SOURCES
def test_a_change_waits_until_etcd_has_recorded_it(cluster):
    """And its history does not grow."""
    router, peer = cluster.routers
    assert router.history() == "recorded" and "history recorded" in routes(router)
    assert "this one has no --config-cache" not in router.log(), "it needs none"
    before = cluster.text
    with frozen(peer):
        cluster.put([0, 1])
        eventually(lambda: stats(router.port)["resize_state"] == "waiting_for_peers", "the peer hangs")
        cluster.etcd.kill()
    eventually(lambda: stats(router.port)["resize_state"] == "recording", f"etcd is away:\n{router.log()[-4000:]}", 20)
    assert router.reads_by(before) and router.history() == "away"
    assert "a change waits until it can" in router.log()
    client = connect(router.port)
    assert client.set("k", "v", noreply=False) and client.delete("k", noreply=False)
    client.close()
    cluster.restart_etcd()
    cluster.wait_in_force()
    cluster.wait_steady()
    eventually(lambda: len(cluster.keys()) == 2, f"one configuration is left: {cluster.keys()}", 30)
    assert all(router.history() == "recorded" for router in cluster.routers)
