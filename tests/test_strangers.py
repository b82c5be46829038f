"""A port that is no port for strangers: what a browser, a TLS client or a client without an end sends is not executed.

Any web page can make a browser send a request to a port on loopback, with lines of its own choice in the body. Servers
and routers once refused the first lines as commands, and executed those of the body.
"""

import contextlib
import json
import socket

import pytest
from guarded import LOGIN, GuardedServer
from monitor import Monitor, route_to
from processes import PROGRAMS, Invalidator, Process, Server, answers, connect, free_port, stats
from routers import router
from test_invalidator_routers import Journal
from test_tls import TlsServer
from test_watch import Watcher, watching

INJECTED = b"set injected 0 0 1\r\nx\r\n"
REQUESTS = {
    "get": b"GET / HTTP/1.0\r\n" + INJECTED,
    "post": b"POST /cache HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 25\r\n\r\n" + INJECTED,
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + INJECTED,
    "websocket": b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + INJECTED,
    # A page whose host name leads here chooses the method: here one that is a command.
    "rebound": b"gets /x HTTP/1.1\r\nHost: example.org:11211\r\n\r\n" + INJECTED,
    "rebound lease-get": b"lease-get /x HTTP/1.1\r\nHost: example.org:11211\r\n\r\n" + INJECTED,
    # A TLS client that was redirected here; its session ticket is the attacker's.
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n" + INJECTED,
}


def all_replies(connection: socket.socket, sent: bytes) -> bytes:
    """Everything that the daemon sends until it closes the connection."""
    answer = b""
    try:
        connection.sendall(sent)
        while piece := connection.recv(65536):
            answer += piece
    except (ConnectionResetError, BrokenPipeError):
        pass  # it did not read the rest
    return answer


def pieces(bytes_sent: bytes, length: int) -> list[bytes]:
    """The bytes cut into pieces."""
    return [bytes_sent[at : at + length] for at in range(0, len(bytes_sent), length)]


@pytest.fixture(params=["server", "cluster"])
def port(request):
    """The port of a server, then of a router."""
    return request.getfixturevalue(request.param).port


@pytest.mark.parametrize("request_of", REQUESTS)
def test_a_request_of_a_browser_is_not_answered_and_nothing_behind_it_is_executed(port, request_of):
    for sent in (REQUESTS[request_of], b"set before 0 0 1\r\nx\r\n" + REQUESTS[request_of]):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            replies = all_replies(connection, sent)
        assert replies in (b"", b"STORED\r\n", b"END\r\n", b"STORED\r\nEND\r\n"), replies
        assert connect(port).get("injected") is None
    assert int(stats(port)["closed_foreign_protocol"]) == 2


def test_a_web_page_takes_no_lease(cluster):
    """`HTTP/1.1` is a valid key."""
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=10) as connection:
        assert all_replies(connection, REQUESTS["rebound lease-get"]) == b""
    assert sum(int(stats(server.port)["lease_tokens"]) for server in cluster.servers) == 0


@pytest.mark.parametrize("request_of", REQUESTS)
def test_the_port_of_the_invalidator(tmp_path, cluster, request_of):
    journal = Journal(tmp_path / "app.db")
    invalidator = Invalidator(journal.url, [cluster], tmp_path / "state", tmp_path)
    try:
        with socket.create_connection(("127.0.0.1", invalidator.port), timeout=10) as connection:
            reply = all_replies(connection, REQUESTS[request_of] + b"stats\r\n")
        assert reply == b""
        assert answers(invalidator.port)
    finally:
        invalidator.stop()
        journal.connection.close()


def test_silent_connections_keep_no_operator_out_of_the_invalidator(tmp_path, cluster):
    """64 of them kept all others waiting for 300 seconds."""
    journal = Journal(tmp_path / "app.db")
    invalidator = Invalidator(journal.url, [cluster], tmp_path / "state", tmp_path)
    try:
        with contextlib.ExitStack() as held:
            for _ in range(100):
                held.enter_context(socket.create_connection(("127.0.0.1", invalidator.port), timeout=10))
            assert int(stats(invalidator.port)["connections_displaced"]) >= 100 - 64
    finally:
        invalidator.stop()
        journal.connection.close()


def test_silent_connections_keep_no_scraper_out(tmp_path):
    """Each batch of 16 had its five seconds before the next was accepted."""
    port = free_port()
    with router(tmp_path, {"route": "NullRoute"}, "--metrics-address", str(port)), contextlib.ExitStack() as held:
        for _ in range(100):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        with socket.create_connection(("127.0.0.1", port), timeout=4) as connection:
            reply = all_replies(connection, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 "), reply


@pytest.fixture
def metrics_port(request, tmp_path):
    """The port of the metrics of a daemon, which the test's parameter names."""
    port = free_port()
    metrics = ("--metrics-address", str(port))
    with contextlib.ExitStack() as stack:
        journal = Journal(tmp_path / "app.db")
        stack.callback(journal.connection.close)
        if request.param == "server":
            stack.callback(Server("server", tmp_path, *metrics).stop)
        elif request.param == "router":
            stack.enter_context(router(tmp_path, {"route": "NullRoute"}, *metrics))
        else:
            cluster = request.getfixturevalue("cluster")
            if request.param == "invalidator":
                daemon = Invalidator(journal.url, [cluster], tmp_path / "state", tmp_path, *metrics)
            else:
                daemon = Monitor(journal.url, tmp_path / "state", tmp_path, route_to(cluster))
                port = daemon.metrics_port
            stack.callback(daemon.stop)
        yield port


@pytest.mark.parametrize(
    ("metrics_port", "daemon"), [(name, name) for name in ("server", "router", "invalidator", "monitor")],
    indirect=["metrics_port"],
)  # fmt: skip
def test_a_web_page_reads_no_metrics(metrics_port, daemon):
    """A page whose own name leads to loopback is of the same origin as the port. No other port of a daemon has HTTP."""
    for host, expected in ((b"example.org", b"HTTP/1.1 403 "), (b"localhost", b"HTTP/1.1 200 ")):
        with socket.create_connection(("127.0.0.1", metrics_port), timeout=10) as connection:
            sent = b"GET /metrics HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (host, metrics_port)
            reply = all_replies(connection, sent)
        assert reply.startswith(expected), reply
        assert (f"lookaside_{daemon}_".encode() in reply) == (host == b"localhost")


@pytest.mark.parametrize("length", [1, 7, 14])
def test_a_request_in_pieces(port, length):
    """The commands come with a later read than the line that closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces(REQUESTS["get"], length):
                connection.sendall(piece)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert all_replies(connection, b"") == b""
    assert connect(port).get("injected") is None


@pytest.mark.parametrize("daemon", ["server", "router"])
def test_unix_sockets(tmp_path, daemon):
    path = tmp_path / "daemon.sock"
    backend = Server("backend", tmp_path)
    config = json.dumps({"pools": {"a": {"servers": [f"127.0.0.1:{backend.port}"]}}, "route": "PoolRoute|a"})
    options = {"server": ["-t", "1"], "router": ["--config-str", config]}[daemon]
    server = Process(daemon, [PROGRAMS / f"lookaside-{daemon}", "-s", path, *options], tmp_path)
    try:
        # The file is there before the daemon listens.
        server.wait_ready(lambda: "listening" in server.log() or "serving" in server.log())
        for sent, expected in ((REQUESTS["get"], b""), (b"get injected\r\nquit\r\n", b"END\r\n")):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10)
                connection.connect(str(path))
                assert all_replies(connection, sent) == expected
    finally:
        server.stop()
        backend.stop()


def test_https(tmp_path):
    """A browser accepts the certificate and offers HTTP/2: the handshake succeeds, the request does not."""
    server = TlsServer(tmp_path)
    try:
        context = server.authority.context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with server.connect(context) as connection:
            assert all_replies(connection, REQUESTS["post"]) == b""
        assert connect(server.plain_port).get("injected") is None
    finally:
        server.stop()


def test_a_handshake_that_is_never_finished_gives_its_place_to_others(tmp_path):
    """Clients without a certificate that sent half a handshake kept their connections for ever."""
    server = TlsServer(tmp_path, options=",ssl_handshake_timeout=1")
    try:
        with server.connect() as idle, contextlib.ExitStack() as strangers:
            for sent in (b"", b"\x16\x03\x01\x02\x00", b""):
                stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                stranger.sendall(sent)
                assert stranger.recv(100) in (b"", b"\x15\x03\x03\x00\x02\x01\x00"), "closed, with close_notify"
            assert server.statistic("ssl_handshake_errors") == 3
            idle.sendall(b"mn\r\n")
            assert idle.recv(100) == b"MN\r\n", "a client with a finished handshake stays"
    finally:
        server.stop()


def test_a_watcher_sees_the_close_as_an_error(server):
    watcher = Watcher(server.port, "connevents")
    watching(server.port, 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        own_port = connection.getsockname()[1]
        assert all_replies(connection, REQUESTS["get"]) == b""
    closed = watcher.until(
        lambda lines: [fields for kind, fields in lines if kind == "conn_close" and fields["rport"] == str(own_port)]
    )
    assert [fields["reason"] for _, fields in closed if fields["rport"] == str(own_port) and "reason" in fields] == [
        "error"
    ]


def test_an_http_request_in_a_datagram(tmp_path):
    port = free_port()
    server = Process(
        "server", [PROGRAMS / "lookaside-server", "-p", port, "-U", port, "-t", "1"], tmp_path
    )  # fmt: skip
    try:
        server.wait_ready(lambda: answers(port))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(10)
            client.connect(("127.0.0.1", port))
            header = b"\x00\x07\x00\x00\x00\x01\x00\x00"
            client.send(header + REQUESTS["get"])
            client.send(header + b"get injected\r\n")
            assert client.recv(1400) == header + b"END\r\n", "the first datagram has no reply"
        assert int(stats(port)["closed_foreign_protocol"]) == 1
    finally:
        server.stop()


@pytest.mark.parametrize("line", [b"x", b"set a", b"mg ", b"stats "])
def test_a_line_without_an_end_closes_the_connection(port, line):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(line + b"x" * (2_048 - len(line)))
        connection.sendall(b"x")
        assert all_replies(connection, b"") == b"CLIENT_ERROR line too long\r\n"
    assert int(stats(port)["closed_long_line"]) == 1


@pytest.mark.parametrize("verb", [b"get", b"gets", b"gat 0", b"lease-get"])
def test_a_multiget_may_be_long(port, verb):
    keys = b"".join(b" key-%d" % number for number in range(1_740))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for piece in pieces(verb + keys + b"\r\nquit\r\n", 1_500):
            connection.sendall(piece)
        assert all_replies(connection, b"").endswith(b"END\r\n")


@pytest.fixture
def guarded(tmp_path):
    """A server with one user."""
    server = GuardedServer(tmp_path)
    yield server
    server.stop()


def test_before_authentication_no_value_is_swallowed(guarded):
    """A client announced 2 GB, got its refusal at once, and no reply to anything that it sent afterwards."""
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as connection:
        announced = b"set x 0 0 2147483646\r\nget x\r\n" + LOGIN + b"get x\r\nstats\r\nquit\r\n"
        replies = all_replies(connection, announced)
    assert replies.startswith(
        b"CLIENT_ERROR auth token too long\r\nCLIENT_ERROR unauthenticated\r\nSTORED\r\nEND\r\n"
    ), replies
    assert b"STAT auth_cmds 1\r\nSTAT auth_errors 0\r\n" in replies, "only comparisons count"


@pytest.mark.parametrize("sent", [b"mn\r\n", b"\r\n", b"quit\r\n", b"x" * 2_049, REQUESTS["get"], REQUESTS["tls"]])
def test_before_authentication_junk_closes_the_connection(guarded, sent):
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as connection:
        assert all_replies(connection, sent + LOGIN) == b""


def test_a_login_may_be_long_up_to_16_kilobytes(guarded):
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as connection:
        long = b"set x 0 0 16384\r\n" + b"ada " + b"x" * 16_380 + b"\r\n"
        longer = b"set x 0 0 16385\r\n"
        assert all_replies(connection, long + longer + LOGIN + b"quit\r\n") == (
            b"CLIENT_ERROR authentication failure\r\nCLIENT_ERROR auth token too long\r\nSTORED\r\n"
        )
