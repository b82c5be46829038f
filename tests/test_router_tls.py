"""TLS between clients and the router: replies are the same as without TLS, and failed handshakes affect no other"""

import contextlib
import random
import signal
import socket
import ssl
import subprocess

import pytest
from certificates import Authority
from processes import PROGRAMS, Process, answers, connect, eventually, free_port
from tls import TlsEndpoint, check_pymemcache, read_until, serves


class TlsRouter(TlsEndpoint):
    """A router with a TLS port, one for clients with a certificate, a plain one, and a server behind it."""

    def __init__(self, folder, *arguments: object) -> None:
        self.authority = Authority(folder)
        self.certificate, self.key = self.authority.sign("router")
        self.port, self.plain_port, self.mutual_port, self.server_port = (free_port() for _ in range(4))
        self.server = Process(
            "server", [PROGRAMS / "lookaside-server", "-t", "1", "-p", self.server_port, "-I", "2m"], folder
        )
        self.server.wait_ready(lambda: answers(self.server_port))
        configuration = f'{{"pools": {{"A": {{"servers": ["127.0.0.1:{self.server_port}"]}}}}, "route": "PoolRoute|A"}}'
        command = [
            PROGRAMS / "lookaside-router", "--num-proxies", "2", "--config-str", configuration,
            "-p", self.plain_port, "--ssl-port", self.port, "-l", f"127.0.0.1,mtls:127.0.0.1:{self.mutual_port}",
            "--pem-cert-path", self.certificate, "--pem-key-path", self.key,
            "--pem-ca-path", self.authority.certificate, "--value-bytes-max", "2000000", *arguments,
        ]  # fmt: skip
        try:
            super().__init__("router", command, folder)
            self.wait_ready(lambda: answers(self.plain_port))
        except BaseException:
            self.server.stop()
            raise

    def stop(self) -> int | None:
        self.server.stop()
        return super().stop()


@pytest.fixture
def router(tmp_path):
    """One that waits a second for handshakes."""
    router = TlsRouter(tmp_path, "--ssl-handshake-timeout", "1000")
    yield router
    assert router.stop() == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_pymemcache_through_tls_and_plain_beside_it(router, version):
    check_pymemcache(router, version)
    log = router.log()
    for line in (f"127.0.0.1:{router.port} with TLS\n", f"{router.mutual_port} with TLS, for clients with a cert"):
        assert line in log, log
    assert router.statistic("ssl_new_sessions") == 1 and router.statistic("time_since_server_cert_refresh") < 60


def test_many_records_and_a_client_that_reads_late(router):
    value = b"v" * 1_000_000
    assert connect(router.plain_port).set("large", value)
    reply = b"VALUE large 0 1000000\r\n" + value + b"\r\nEND\r\n"
    with router.connect() as greedy:
        greedy.sendall(b"get large\r\n" * 20)
        assert connect(router.plain_port).get("large") == value, "others are served"
        received = bytearray()
        while len(received) < 20 * len(reply):
            piece = greedy.recv(1 << 20)
            assert piece, len(received)
            received += piece
        assert received == reply * 20
        for byte in b"get none\r\n":
            greedy.sendall(bytes([byte]))
        assert read_until(greedy, b"\r\n") == b"END\r\n"


def test_both_ends_of_a_connection_are_shown(router):
    with router.connect() as connection:
        connection.sendall(b"quit\r\n")
        assert connection.recv(100) == b"", "closed with close_notify; a truncation would be an error"
    with router.connect() as connection:
        connection.sendall(b"set a 0 0 1\r\nx\r\n")
        plain = connection.unwrap() if connection.recv(100) == b"STORED\r\n" else None
        assert plain.recv(100) == b""
    eventually(lambda: router.statistic("curr_connections") == 1, "nothing is left but the connection that asks")


def test_clients_certificates(router):
    authority, strangers = router.authority, Authority(router.certificate.parent, "strangers")
    anonymous = authority.context()
    known = authority.context(*authority.sign("client"))
    stranger = authority.context(*strangers.sign("stranger"))
    admitted = [serves(router, context, router.mutual_port) for context in (anonymous, known, stranger)]
    assert admitted == [False, True, False]
    assert all(serves(router, context) for context in (anonymous, known, stranger)), "no client is asked"
    eventually(lambda: router.statistic("ssl_handshake_errors") == 2, "the refusals are counted")


def test_all_ports_may_ask_for_certificates(tmp_path):
    router = TlsRouter(tmp_path, "--ssl-require-peer-certs")
    try:
        assert not serves(router)
        assert serves(router, router.authority.context(*router.authority.sign("client")))
    finally:
        assert router.stop() == 0


def serial(router: TlsRouter) -> str:
    """The number of the certificate that the router shows."""
    with router.connect() as connection:
        return connection.getpeercert()["serialNumber"]


def test_certificates_are_reloaded_while_connections_stay(router):
    first = serial(router)
    with router.connect() as connection:
        router.authority.sign("router")
        eventually(lambda: serial(router) != first, "the change is seen without a word")
        second = serial(router)
        router.certificate.write_text("no certificate\n")
        router.running.send_signal(signal.SIGHUP)
        eventually(lambda: "keeping the old ones" in router.log(), "the log says that it did not work")
        assert serial(router) == second
        connection.sendall(b"get none\r\n")
        assert connection.recv(100) == b"END\r\n", "older than all of it"


def client_hello(router: TlsRouter) -> bytes:
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = router.authority.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_garbage_and_aborted_handshakes_do_not_affect_others(router):
    chance = random.Random(7)
    hello = client_hello(router)
    for _ in range(100):
        cut = bytearray(hello[: chance.randrange(1, len(hello) + 1)])
        for _ in range(chance.randrange(4)):
            cut[chance.randrange(len(cut))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", router.port), timeout=10) as connection:
            connection.sendall(bytes(cut) + chance.randbytes(chance.randrange(3) * 1000))
            if chance.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
    assert serves(router)
    eventually(lambda: router.statistic("curr_connections") == 1, "all of them are gone")


def test_a_hanging_handshake_times_out_and_does_not_block_others(router):
    hello = client_hello(router)
    silent = [socket.create_connection(("127.0.0.1", router.port), timeout=10) for _ in range(20)]
    for number, connection in enumerate(silent):
        connection.sendall(hello[:number])
    assert serves(router), "others come in meanwhile"
    assert all(connection.recv(100) == b"" for connection in silent), "hung up on"
    assert router.statistic("ssl_handshake_errors") == 20
    for connection in silent:
        connection.close()


def test_a_plain_client_of_the_tls_port_is_refused(router):
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as connection:
        connection.sendall(b"get a key that is not there\r\n")
        assert b"END" not in connection.recv(100)
    eventually(lambda: router.statistic("ssl_handshake_errors") == 1, "the refusal is counted")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ssl-port", "1"], "--pem-cert-path"),
        (["--ssl-port", "1", "--pem-cert-path", "{0}/missing.pem"], "missing.pem"),
        (["--ssl-port", "1", "--pem-cert-path", "{0}/router.pem"], "private key in {0}/router.pem"),
        (
            ["--ssl-port", "1", "--pem-cert-path", "{0}/router.pem", "--pem-key-path", "{0}/other.key"],
            "the certificate cannot be used",
        ),
        (
            ["-l", "mtls:127.0.0.1:1", "--pem-cert-path", "{0}/router.pem", "--pem-key-path", "{0}/router.key"],
            "--pem-ca-path",
        ),
    ],
)
def test_a_router_that_cannot_guarantee_its_options_does_not_start(tmp_path, arguments, complaint):
    authority = Authority(tmp_path)
    authority.sign("router")
    authority.sign("other")
    arguments = [argument.format(tmp_path) for argument in arguments]
    command = [PROGRAMS / "lookaside-router", "--config-str", '{"route": "NullRoute"}', *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 3 and complaint.format(tmp_path) in ended.stderr, ended.stderr
