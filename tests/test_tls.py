"""TLS: replies are the same as without it; client certificates are verified; certificates are reloaded."""

import contextlib
import random
import signal
import socket
import ssl
import subprocess

import pytest
from certificates import Authority
from processes import PROGRAMS, answers, connect, eventually, free_port
from tls import TlsEndpoint, check_pymemcache, read_until, serves


class TlsServer(TlsEndpoint):
    """A server with a TLS port and a plain one beside it."""

    def __init__(self, folder, *arguments: str, options: str = "") -> None:
        self.authority = Authority(folder)
        self.certificate, self.key = self.authority.sign("server")
        self.port, self.plain_port = free_port(), free_port()
        extended = f"ssl_chain_cert={self.certificate},ssl_key={self.key}{options.format(self.authority.certificate)}"
        command = [
            PROGRAMS / "lookaside-server", "-Z", "-o", extended, "-t", "2",
            "-l", f"127.0.0.1:{self.port},notls:127.0.0.1:{self.plain_port}", *arguments,
        ]  # fmt: skip
        super().__init__("server", command, folder)
        self.wait_ready(lambda: answers(self.plain_port))


@pytest.fixture
def server(tmp_path):
    """One that asks for no certificates."""
    server = TlsServer(tmp_path)
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_pymemcache_through_tls_and_plain_beside_it(server, version):
    check_pymemcache(server, version)


def test_a_plain_client_of_the_tls_port_is_refused_and_counted(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"get a key that is not there\r\n")
        assert b"END" not in connection.recv(100)
    eventually(lambda: server.statistic("ssl_handshake_errors") == 1, "the refusal is counted")
    assert serves(server, server.authority.context())


def test_pipelined_commands_of_many_records_and_single_bytes(server):
    commands = b"".join(b"set k%d 0 0 10\r\n%010d\r\nget k%d\r\n" % (n, n, n) for n in range(20_000))
    replies = b"".join(b"STORED\r\nVALUE k%d 0 10\r\n%010d\r\nEND\r\n" % (n, n) for n in range(20_000))
    with server.connect() as connection:
        answer, position = b"", 0
        while len(answer) < len(replies):
            position += connection.send(commands[position : position + 100_000]) if position < len(commands) else 0
            answer += connection.recv(1 << 20)
        assert answer == replies
        for byte in b"set a 0 0 2\r\nhi\r\nget a\r\n":
            connection.sendall(bytes([byte]))
        assert read_until(connection, b"END\r\n") == b"STORED\r\nVALUE a 0 2\r\nhi\r\nEND\r\n"


def test_records_that_arrive_in_pieces(server):
    """The handshake and the requests, three bytes at a time."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = server.authority.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def flush():
            sent = outgoing.read()
            for at in range(0, len(sent), 3):
                connection.sendall(sent[at : at + 3])

        def until_done(step):
            while True:
                try:
                    done = step()
                    flush()
                    return done
                except ssl.SSLWantReadError:
                    flush()
                    incoming.write(connection.recv(7))

        until_done(tls.do_handshake)
        tls.write(b"set a 0 0 5\r\nvalue\r\nget a\r\n")
        flush()
        answer = b""
        while not answer.endswith(b"END\r\n"):
            answer += until_done(lambda: tls.read(100))
        assert answer == b"STORED\r\nVALUE a 0 5\r\nvalue\r\nEND\r\n"


def test_a_client_that_never_reads_does_not_affect_others_and_gets_everything_later(server):
    # Larger than the socket's buffer: the rest of a reply must be kept until the socket is writable.
    value = b"v" * 1_000_000
    assert connect(server.plain_port).set("large", value)
    with server.connect() as greedy:
        for _ in range(40):
            greedy.sendall(b"get large\r\n")
        assert connect(server.plain_port).get("large") == value
        received = 0
        reply_bytes = len(b"VALUE large 0 1000000\r\n") + len(value) + len(b"\r\nEND\r\n")
        while received < 40 * reply_bytes:
            piece = greedy.recv(1 << 20)
            assert piece, received
            received += len(piece)
        greedy.sendall(b"get none\r\n")
        assert read_until(greedy, b"\r\n") == b"END\r\n"


def test_both_ends_of_a_connection_are_shown(server):
    with server.connect() as connection:
        connection.sendall(b"quit\r\n")
        assert connection.recv(100) == b"", "closed with close_notify; a truncation would be an error"
    with server.connect() as connection:
        connection.sendall(b"set a 0 0 1\r\nx\r\n")
        plain = connection.unwrap() if connection.recv(100) == b"STORED\r\n" else None
        assert plain.recv(100) == b""
    eventually(lambda: server.statistic("curr_connections") == 1, "nothing is left but the connection that asks")


def test_clients_certificates(tmp_path):
    port_basic, port_mutual = free_port(), free_port()
    listen = f"btls:127.0.0.1:{port_basic},mtls:127.0.0.1:{port_mutual}"
    server = TlsServer(tmp_path, "-l", listen, options=",ssl_ca_cert={},ssl_verify_mode=1")
    try:
        authority = server.authority
        strangers = Authority(tmp_path, "strangers")
        anonymous = authority.context()
        known = authority.context(*authority.sign("client"))
        stranger = authority.context(*strangers.sign("stranger"))
        admitted = {
            port: [serves(server, context, port) for context in (anonymous, known, stranger)]
            for port in (server.port, port_basic, port_mutual)
        }
        assert admitted[server.port] == [True, True, False], "asked for, so what is shown must be good"
        assert admitted[port_basic] == [True, True, True]
        assert admitted[port_mutual] == [False, True, False]
        # With TLS 1.3 a client may be done before the server has looked at its certificate.
        eventually(lambda: server.statistic("ssl_handshake_errors") >= 3, "all refusals are counted")
        assert server.statistic("ssl_handshake_errors") == 3
    finally:
        server.stop()


@pytest.mark.parametrize("mode", [2, 3])
def test_a_client_without_the_required_certificate_is_refused(tmp_path, mode):
    server = TlsServer(tmp_path, options=f",ssl_ca_cert={{}},ssl_verify_mode={mode},ssl_min_version=3")
    try:
        assert not serves(server, server.authority.context())
        known = server.authority.context(*server.authority.sign("client"))
        assert serves(server, known)
        known.maximum_version = ssl.TLSVersion.TLSv1_2
        assert not serves(server, known), "ssl_min_version=3 is TLS 1.3"
    finally:
        server.stop()


def serial(server: TlsServer) -> str:
    """The number of the certificate that the server shows."""
    with server.connect() as connection:
        return connection.getpeercert()["serialNumber"]


def test_certificates_are_reloaded_while_connections_stay(server):
    before = serial(server)
    with server.connect() as connection:
        server.authority.sign("server")
        assert serial(server) == before
        connection.sendall(b"refresh_certs\r\n")
        assert connection.recv(100) == b"OK\r\n"
        second = serial(server)
        assert second != before
        server.authority.sign("server")
        server.running.send_signal(signal.SIGHUP)
        eventually(lambda: serial(server) != second, "the signal has come")
        third = serial(server)
        server.certificate.write_text("no certificate\n")
        connection.sendall(b"refresh_certs\r\n")
        assert connection.recv(1000).startswith(b"Error loading the certificate chain: ")
        server.running.send_signal(signal.SIGHUP)
        eventually(lambda: "keeping the old ones" in server.log(), "the log says that it did not work")
        assert serial(server) == third
        assert server.statistic("time_since_server_cert_refresh") < 60


def test_tls_sessions_are_resumed_when_enabled(tmp_path):
    server = TlsServer(tmp_path, options=",ssl_session_cache")
    try:
        context = server.authority.context()
        with server.connect(context) as connection:
            connection.sendall(b"version\r\n")
            connection.recv(100)
            session = connection.session
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        with context.wrap_socket(plain, server_hostname="localhost", session=session) as connection:
            connection.sendall(b"version\r\n")
            assert connection.recv(100).startswith(b"VERSION") and connection.session_reused
        assert server.statistic("ssl_new_sessions") >= 1
    finally:
        server.stop()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_resumed_session_is_no_new_one(tmp_path, version):
    server = TlsServer(tmp_path, options=",ssl_session_cache")
    try:
        context = server.authority.context()
        context.minimum_version = context.maximum_version = version
        sessions = []
        for _ in range(2):
            with server.connect(context) as connection:
                connection.sendall(b"version\r\n")
                connection.recv(100)
                sessions.append(connection.session)
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        with context.wrap_socket(plain, server_hostname="localhost", session=sessions[0]) as connection:
            connection.sendall(b"version\r\n")
            assert connection.recv(100).startswith(b"VERSION") and connection.session_reused
        assert server.statistic("ssl_new_sessions") == 2
    finally:
        server.stop()


def test_an_address_for_certificates_without_an_authority_admits_no_client(tmp_path):
    mutual = free_port()
    server = TlsServer(tmp_path, "-l", f"mtls:127.0.0.1:{mutual}")
    try:
        assert "no client can connect where -l says mtls" in server.log()
        authority = server.authority
        known = authority.context(*authority.sign("client"))
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for context in (authority.context(), known):
                context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, version
                assert not serves(server, context, mutual)
                assert serves(server, context), "the other addresses serve"
        assert answers(server.plain_port)
        eventually(lambda: server.statistic("ssl_handshake_errors") == 4, "the refusals are counted")
    finally:
        assert server.stop() == 0


def test_settings_and_statistics_bear_memcacheds_names(server):
    with server.connect() as connection:
        connection.sendall(b"stats\r\n")
        answer = read_until(connection, b"END\r\n").decode()
    assert "STAT time_since_server_cert_refresh " in answer and "STAT ssl_proto_errors 0\r\n" in answer
    client = connect(server.plain_port)
    settings = client.stats("settings")
    assert settings[b"ssl_enabled"] in (b"yes", True)
    assert settings[b"ssl_chain_cert"].decode() == str(server.certificate)


def test_the_size_of_write_buffers_is_shown_in_bytes(tmp_path):
    server = TlsServer(tmp_path, options=",ssl_wbuf_size=32")
    try:
        assert int(connect(server.plain_port).stats("settings")[b"ssl_wbuf_size"]) == 32 << 10
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("options", "complaint", "status"),
    [
        ("", "ssl_chain_cert", 2),
        ("ssl_chain_cert={0}/missing.pem", "missing.pem", 1),
        ("ssl_chain_cert={0}/server.pem", "Error loading the key", 1),
        ("ssl_chain_cert={0}/server.pem,ssl_key={0}/other.key", "Error validating the certificate", 1),
        ("ssl_chain_cert={0}/server.pem,ssl_key={0}/server.key,ssl_verify_mode=2", "ssl_ca_cert", 2),
        ("ssl_chain_cert={0}/server.pem,ssl_key={0}/server.key,ssl_ciphers=RC4-MD5", "ssl_ciphers", 1),
    ],
)
def test_a_server_that_cannot_guarantee_its_options_does_not_start(tmp_path, options, complaint, status):
    authority = Authority(tmp_path)
    authority.sign("server")
    authority.sign("other")
    command = [PROGRAMS / "lookaside-server", "-Z", "-p", str(free_port()), "-o", options.format(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == status and complaint in ended.stderr, ended.stderr


def test_garbage_and_aborted_handshakes_do_not_affect_others(server):
    chance = random.Random(7)
    hello = client_hello(server)
    for _ in range(100):
        cut = bytearray(hello[: chance.randrange(1, len(hello) + 1)])
        for _ in range(chance.randrange(4)):
            cut[chance.randrange(len(cut))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(bytes(cut) + chance.randbytes(chance.randrange(3) * 1000))
            if chance.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
    assert serves(server, server.authority.context())
    eventually(lambda: server.statistic("curr_connections") == 1, "all of them are gone")


def client_hello(server: TlsServer) -> bytes:
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = server.authority.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_watcher_through_tls(server):
    with server.connect() as watcher:
        watcher.sendall(b"watch mutations\r\n")
        assert watcher.recv(100) == b"OK\r\n"
        client = connect(server.plain_port)

        def seen() -> bool:
            client.set("key", b"value")
            watcher.settimeout(0.05)
            try:
                return b"type=item_store key=key" in watcher.recv(65536)
            except TimeoutError:
                return False

        eventually(seen, "a line comes")
    eventually(lambda: server.statistic("log_watchers") == 0, "its end is seen")
