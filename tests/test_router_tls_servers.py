"""TLS between the router and its servers: a server without a trusted certificate gets no request."""

import json
import signal
import socketserver
import subprocess
import threading

import pytest
from certificates import Authority
from leases import LeaseClient
from processes import PROGRAMS, Process, answers, connect, eventually, free_port, stats


class TlsServer(Process):
    """A server with a TLS port and a plain port for the test."""

    def __init__(self, folder, authority: Authority, name: str = "server", options: str = "") -> None:
        self.authority, self.certificate_name = authority, name
        self.certificate, self.key = authority.sign(name)
        self.port, self.plain_port = free_port(), free_port()
        extended = f"ssl_chain_cert={self.certificate},ssl_key={self.key}{options}"
        command = [
            PROGRAMS / "lookaside-server", "-Z", "-o", extended, "-t", "1",
            "-l", f"127.0.0.1:{self.port},notls:127.0.0.1:{self.plain_port}",
        ]  # fmt: skip
        super().__init__(name, command, folder)
        self.wait_ready(lambda: answers(self.plain_port))


class Router(Process):
    """A router in front of pools."""

    def __init__(self, folder, pools: dict, *arguments: object, route: object = "PoolRoute|A") -> None:
        self.port = free_port()
        self.configuration = folder / "router.json"
        self.configuration.write_text(json.dumps({"pools": pools, "route": route}))
        command = [
            PROGRAMS / "lookaside-router", "-p", self.port, "--num-proxies", "1", "-f", self.configuration,
            "--server-timeout", "2000", "--probe-timeout-initial", "50", "--probe-timeout-max", "100", *arguments,
        ]  # fmt: skip
        super().__init__(f"router-{self.port}", command, folder)
        self.wait_ready(lambda: answers(self.port))

    def reply_to(self, line: bytes) -> bytes:
        """The first line of the answer."""
        client = LeaseClient(self.port)
        try:
            return client.command(line)
        finally:
            client.close()


@pytest.fixture
def authority(tmp_path):
    """The authority that all sides trust."""
    return Authority(tmp_path)


@pytest.fixture
def server(tmp_path, authority):
    """A server for localhost and 127.0.0.1."""
    server = TlsServer(tmp_path, authority)
    yield server
    server.stop()


def test_all_requests_to_a_server_use_tls(tmp_path, authority, server):
    pool = {"servers": [f"127.0.0.1:{server.port}"], "security_mech": "tls"}
    router = Router(tmp_path, {"A": pool}, "--pem-ca-path", authority.certificate, "--enable-flush-cmd")
    try:
        client = connect(router.port)
        large = bytes(range(256)) * 2000
        assert client.set("small", b"value") and client.set("large", large)
        assert connect(server.plain_port).get("large") == large
        assert client.get_many(["small", "large", "none"]) == {"small": b"value", "large": large}
        lease = LeaseClient(router.port)
        lease.socket.sendall(b"".join(b"set k%d 0 0 3\r\nabc\r\nget k%d\r\n" % (n, n) for n in range(2000)))
        expected = b"".join(b"STORED\r\nVALUE k%d 0 3\r\nabc\r\nEND\r\n" % n for n in range(2000))
        assert lease.reader.read(len(expected)) == expected
        lease.close()
        assert client.flush_all()
        assert client.get("small") is None
        assert int(stats(server.plain_port)["ssl_handshake_errors"]) == 0
    finally:
        assert router.stop() == 0


@pytest.mark.parametrize("kind", ["stranger", "another name", "plain server"])
def test_a_server_with_an_untrusted_certificate_gets_no_request(tmp_path, authority, server, kind):
    trusted = Authority(tmp_path, "strangers") if kind == "stranger" else authority
    port = server.plain_port if kind == "plain server" else server.port
    pool = {"servers": [f"127.0.0.1:{port}"], "security_mech": "tls", "server_timeout": 200}
    if kind == "another name":
        pool["ssl_service_identity"] = "elsewhere.example"
    connect(server.plain_port).set("key", b"secret")
    router = Router(tmp_path, {"A": pool}, "--pem-ca-path", trusted.certificate)
    try:
        assert router.reply_to(b"get key").startswith(b"SERVER_ERROR")
        assert connect(server.plain_port).get("key") == b"secret"
        eventually(lambda: "TLS handshake with server failed" in router.log(), "the log says why")
        assert router.log().count("TLS handshake with server failed") == 1, "once"
    finally:
        assert router.stop() == 0


def test_a_pool_may_name_another_identity_or_none(tmp_path, authority, server):
    strangers = TlsServer(tmp_path, Authority(tmp_path, "strangers"), "stranger")
    pools = {
        "named": {"servers": [f"127.0.0.1:{server.port}:ascii:ssl"], "ssl_service_identity": "localhost"},
        "unsafe": {
            "servers": [f"127.0.0.1:{strangers.port}"], "use_ssl": True, "unsafe_ssl_skip_verification": True,
        },
        "plain": {"servers": [f"127.0.0.1:{server.plain_port}:ascii:plain"], "security_mech": "tls"},
    }  # fmt: skip
    route = {"type": "PrefixSelectorRoute", "policies": {f"{name}:": f"PoolRoute|{name}" for name in pools}}
    router = Router(tmp_path, pools, "--pem-ca-path", authority.certificate, route=route)
    try:
        client = connect(router.port)
        for name in pools:
            assert client.set(f"{name}:key", name.encode()) and client.get(f"{name}:key") == name.encode()
        assert connect(server.plain_port).get("named:key") == b"named"
        assert connect(strangers.plain_port).get("unsafe:key") == b"unsafe"
        assert f"unsafe_ssl_skip_verification) server=127.0.0.1:{strangers.port}" in router.log(), router.log()
    finally:
        assert router.stop() == 0
        strangers.stop()


def test_a_server_that_requests_a_certificate_gets_one(tmp_path, authority):
    server = TlsServer(tmp_path, authority, options=f",ssl_verify_mode=2,ssl_ca_cert={authority.certificate}")
    certificate, key = authority.sign("router")
    pool = {"A": {"servers": [f"localhost:{server.port}"], "security_mech": "ssl"}}
    trust = ["--pem-ca-path", authority.certificate]
    try:
        router = Router(tmp_path, pool, *trust, "--pem-cert-path", certificate, "--pem-key-path", key)
        assert connect(router.port).set("key", b"value")
        assert router.stop() == 0
        router = Router(tmp_path, pool, *trust)
        assert router.reply_to(b"get key").startswith(b"SERVER_ERROR")
        assert router.stop() == 0
    finally:
        server.stop()


def test_sighup_reloads_the_ca_and_a_pool_may_change_to_tls(tmp_path, authority, server):
    trusted = tmp_path / "believed.pem"
    trusted.write_text(Authority(tmp_path, "strangers").certificate.read_text())
    plain = {"A": {"servers": [f"127.0.0.1:{server.plain_port}"]}}
    tls = {"A": {"servers": [f"127.0.0.1:{server.port}"], "use_ssl": True}}
    router = Router(tmp_path, plain, "--pem-ca-path", trusted)
    try:
        assert connect(router.port).set("key", b"value")
        router.configuration.write_text(json.dumps({"pools": tls, "route": "PoolRoute|A"}))
        eventually(lambda: "cannot empty a new server" in router.log(), "the new server is not trusted")
        assert router.reply_to(b"get key").startswith(b"VALUE key"), "the old one still serves"
        trusted.write_text(authority.certificate.read_text())
        router.running.send_signal(signal.SIGHUP)
        eventually(lambda: "new configuration in force" in router.log(), "it is")
        assert connect(router.port).set("key", b"value")
    finally:
        assert router.stop() == 0


def test_a_server_is_verified_again_when_its_name_changes(tmp_path, authority, server):
    pool = {"servers": [f"127.0.0.1:{server.port}"], "use_ssl": True}
    router = Router(tmp_path, {"A": pool}, "--pem-ca-path", authority.certificate)
    try:
        assert connect(router.port).set("key", b"value")
        pool["ssl_service_identity"] = "elsewhere.example"
        router.configuration.write_text(json.dumps({"pools": {"A": pool}, "route": "PoolRoute|A"}))
        eventually(lambda: router.reply_to(b"get key").startswith(b"SERVER_ERROR"), "its certificate has another name")
    finally:
        assert router.stop() == 0


class PlainServer(socketserver.ThreadingTCPServer):
    """Answers plain commands, and says nothing to the first message of TLS."""

    daemon_threads = True

    def __init__(self) -> None:
        self.gets = 0
        super().__init__(("127.0.0.1", 0), PlainServer.Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class Handler(socketserver.StreamRequestHandler):
        """One connection."""

        def handle(self) -> None:
            """Answers until the end."""
            for line in self.rfile:
                if line.startswith(b"get "):
                    self.server.gets += 1
                    self.wfile.write(b"END\r\n")
                elif line == b"version\r\n":
                    self.wfile.write(b"VERSION 1\r\n")


def test_a_server_that_is_to_use_tls_is_not_reached_plain_while_it_is_connected_to(tmp_path, authority):
    """A thread kept its old tree, and sent plain requests, for up to two seconds."""
    with PlainServer() as server:
        pool = {"servers": [f"127.0.0.1:{server.server_address[1]}"]}
        router = Router(tmp_path, {"A": pool}, "--pem-ca-path", authority.certificate)
        client = LeaseClient(router.port)
        try:
            assert client.command(b"get key") == b"END"
            configuration = {"pools": {"A": pool | {"use_ssl": True}}, "route": "PoolRoute|A"}
            router.configuration.write_text(json.dumps(configuration))
            eventually(lambda: "new configuration in force" in router.log(), "it is read")

            def is_refused() -> bool:
                return client.command(b"get key").startswith(b"SERVER_ERROR")

            # The threads may learn of it a moment after the line.
            eventually(is_refused, "the handshake takes too long", 1)
            gets = server.gets
            assert is_refused() and server.gets == gets
        finally:
            client.close()
            assert router.stop() == 0
            server.shutdown()


def test_spooled_deletes_are_replayed_through_tls(tmp_path, authority, server):
    pool = {"servers": [f"127.0.0.1:{server.port}"], "security_mech": "tls", "server_timeout": 300}
    trust = ["--pem-ca-path", authority.certificate, "--spool", tmp_path / "spool"]
    router = Router(tmp_path, {"A": pool}, *trust)
    try:
        connect(server.plain_port).set("key", b"old")
        assert connect(router.port).get("key") == b"old"
        server.freeze()
        assert router.reply_to(b"delete key") == b"NOT_FOUND", "kept"
        server.thaw()
        eventually(lambda: connect(server.plain_port).get("key") is None, "it is replayed")
        eventually(lambda: router.reply_to(b"get key") == b"END", "and the server is read again")
    finally:
        server.thaw()
        assert router.stop() == 0


def test_spool_peers_fence_servers_through_tls(tmp_path, authority, server):
    certificate, key = authority.sign("router")
    ports = [free_port(), free_port()]
    pool = {"servers": [f"127.0.0.1:{server.plain_port}"], "server_timeout": 300}
    routers = []
    try:
        for at, port in enumerate(ports):
            folder = tmp_path / f"router-{at}"
            folder.mkdir()
            arguments = [
                "--ssl-port", port, "--pem-cert-path", certificate, "--pem-key-path", key,
                "--pem-ca-path", authority.certificate, "--spool", folder / "spool",
                "--spool-peers", f"localhost:{ports[1 - at]}:ascii:ssl",
            ]  # fmt: skip
            routers.append(Router(folder, {"A": pool}, *arguments))
        one, other = routers
        connect(other.port).set("key", b"old")
        server.freeze()
        eventually(lambda: one.reply_to(b"delete key") == b"NOT_FOUND", "it is kept, and the other router knows")
        server.thaw()
        assert other.reply_to(b"get key") != b"VALUE key 0 3"
        eventually(lambda: other.reply_to(b"get key") == b"END", "the server is read again")
        for router in routers:
            assert int(stats(router.port)["ssl_new_sessions"]) > 0
    finally:
        server.thaw()
        assert [router.stop() for router in routers] == [0, 0]


@pytest.mark.parametrize(
    ("pools", "trust", "why"),
    [
        (
            {"A": {"servers": ["a:1"], "security_mech": "tls"}},
            False,
            "a:1 is reached by TLS: servers' certificates are",
        ),
        (
            {"A": {"servers": ["a:1"], "security_mech": "tls_to_plain"}},
            False,
            "a:1 is reached by TLS: servers' certificates are",
        ),
        (
            {"A": {"servers": ["a:1"]}, "B": {"servers": ["a:1:ascii:ssl"]}},
            True,
            "a:1 is reached by TLS here, and plain by another pool",
        ),
        ({"A": {"servers": ["a*:1:ascii:ssl"]}}, True, "cannot stand in a certificate"),
    ],
)
def test_a_tls_policy_that_cannot_be_guaranteed_is_refused(tmp_path, authority, pools, trust, why):
    arguments = ["--pem-ca-path", authority.certificate] if trust else []
    text = json.dumps({"pools": pools, "route": "PoolRoute|A"})
    command = [PROGRAMS / "lookaside-router", "--validate-config", "--config-str", text, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 3 and why in ended.stderr, ended.stderr
