"""Several addresses side by side, and UDP that cannot be used for amplification."""

import socket
import struct
import subprocess

import pytest
from processes import PROGRAMS, Process, accepts, answers, connect, free_port, stats


def start(tmp_path, *arguments: str) -> Process:
    """A server with these arguments alone."""
    return Process("server", [PROGRAMS / "lookaside-server", "-t", "2", *arguments], tmp_path)


def sends_version(host: str, port: int) -> bool:
    """Whether a server answers there."""
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(100).startswith(b"VERSION")
    except OSError:
        return False


def test_several_addresses_of_one_store(tmp_path):
    first, second, third, sixth = (free_port() for _ in range(4))
    listen = ["-l", f"127.0.0.1,127.0.0.2:{second}", "-l", f"notls:127.0.0.3:{third};[::1]:{sixth}"]
    server = start(tmp_path, "-p", str(first), *listen)
    places = [("127.0.0.1", first), ("127.0.0.2", second), ("127.0.0.3", third), ("::1", sixth)]
    try:
        server.wait_ready(lambda: all(sends_version(*place) for place in places))
        assert not sends_version("127.0.0.2", first), "an address with a port of its own has that alone"
        connect(first).set("key", b"value")
        for place in places:
            with socket.create_connection(place, timeout=5) as connection:
                connection.sendall(b"get key\r\n")
                assert connection.recv(100) == b"VALUE key 0 5\r\nvalue\r\nEND\r\n"
    finally:
        assert server.stop() == 0


BINARY_NOOP = struct.pack("!BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 0, 0)


def reply_to(port: int, request: bytes) -> bytes:
    """The beginning of the reply; empty if the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        try:
            return connection.recv(100)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("general", [[], ["-B", "ascii"], ["-B", "binary"]])
def test_an_address_may_have_a_protocol_of_its_own(tmp_path, general):
    text, binary, either, general_port = (free_port() for _ in range(4))
    listen = f"proto[ascii]:127.0.0.1:{text},proto[binary]:tag[x]:127.0.0.1:{binary},proto[auto]:127.0.0.1:{either}"
    server = start(
        tmp_path, "-p", str(general_port), "-l", listen, "-l", "127.0.0.1", "-U", str(general_port), *general
    )
    try:
        server.wait_ready(lambda: all(accepts(port) for port in (text, binary, either, general_port)))
        assert reply_to(text, b"mn\r\n") == b"MN\r\n" and not reply_to(text, BINARY_NOOP).startswith(b"\x81")
        assert reply_to(binary, BINARY_NOOP).startswith(b"\x81") and reply_to(binary, b"mn\r\n") == b""
        assert reply_to(either, b"mn\r\n") == b"MN\r\n" and reply_to(either, BINARY_NOOP).startswith(b"\x81")
        assert reply_to(general_port, b"mn\r\n") == (b"" if "binary" in general else b"MN\r\n")
        assert reply_to(general_port, BINARY_NOOP).startswith(b"\x81") == ("ascii" not in general)
        log = server.log()
        assert f"127.0.0.1:{text}, for the text protocol" in log, log
        assert f"127.0.0.1:{binary}, for the binary protocol" in log, log
        assert UdpClient("127.0.0.1", text).ask(b"mn\r\n") == b"MN\r\n"
        assert UdpClient("127.0.0.1", binary).ask(BINARY_NOOP).startswith(b"\x81")
    finally:
        assert server.stop() == 0


def test_no_protocol_of_an_address_bypasses_passwords(tmp_path):
    (tmp_path / "users").write_text("ada:secret\n")
    environment = {"MEMCACHED_SASL_PWDB": str(tmp_path / "users")}
    for options, listen in (
        (["-Y", tmp_path / "users"], "127.0.0.1,proto[binary]:127.0.0.1:1"),
        (["-S"], "proto[ascii]:127.0.0.1:1"),
    ):
        command = [PROGRAMS / "lookaside-server", "-p", str(free_port()), *options, "-l", listen]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment)
        assert ended.returncode == 2 and "remove proto[" in ended.stderr, ended.stderr
    text, binary = free_port(), free_port()
    listen = f"proto[ascii]:127.0.0.1:{text},proto[binary]:127.0.0.1:{binary}"
    command = [PROGRAMS / "lookaside-server", "-t", "1", "-Y", tmp_path / "users", "-S", "-l", listen]
    server = Process("server", command, tmp_path, env=environment)
    try:
        server.wait_ready(lambda: accepts(text) and accepts(binary))
        assert reply_to(text, b"version\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        assert reply_to(text, BINARY_NOOP) == b"" or b"unauthenticated" in reply_to(text, BINARY_NOOP)
        assert b"Auth failure" in reply_to(binary, BINARY_NOOP)
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("listen", ["127.0.0.1:x", "[::1", "mtls:127.0.0.1", "proto[proxy]:127.0.0.1", "no such host"])
def test_an_invalid_address_is_named(listen):
    command = [PROGRAMS / "lookaside-server", "-p", str(free_port()), "-l", listen]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2 and "-l" in ended.stderr, ended.stderr


class UdpClient:
    """Requests by UDP from an address of this machine."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((host, 0))
        self.socket.settimeout(5)
        self.socket.connect(("127.0.0.1", port))

    def ask(self, commands: bytes) -> bytes:
        """The reply to one datagram, without the header of its first datagram."""
        self.socket.send(struct.pack("!HHHH", 7, 0, 1, 0) + commands)
        return self.socket.recv(65536)[8:]


def test_a_reply_by_udp_is_no_larger_than_asked_for_until_the_client_has_connected_by_tcp(tmp_path):
    port = free_port()
    server = start(tmp_path, "-p", str(port), "-U", str(port))
    stranger = UdpClient("127.0.0.9", port)
    try:
        server.wait_ready(lambda: answers(port))
        connect(port).set("large", b"v" * 1000)
        connect(port).set("s", b"1")
        assert stranger.ask(b"get large\r\n") == b"ERROR\r\n", "all that fits"
        assert stranger.ask(b"get large" + b" " * 60 + b"\r\n").startswith(b"SERVER_ERROR reply too large for UDP")
        assert stranger.ask(b"get s" + b" " * 30 + b"\r\n") == b"VALUE s 0 1\r\n1\r\nEND\r\n"
        assert stranger.ask(b"get large" + b" " * 1100 + b"\r\n").endswith(b"END\r\n"), "as large as its request"
        assert stranger.ask(b"set t 0 0 1\r\nx\r\n") == b"STORED\r\n"
        assert int(stats(port)["udp_replies_refused"]) == 2
        with socket.create_connection(("127.0.0.1", port), timeout=5, source_address=("127.0.0.9", 0)):
            # Accepting comes before answering: once another connection is served, this one has been seen.
            assert answers(port)
            assert stranger.ask(b"get large\r\n").startswith(b"VALUE large 0 1000\r\n")
        assert UdpClient("127.0.0.8", port).ask(b"get large\r\n") == b"ERROR\r\n", "it is the address that is proven"
    finally:
        server.stop()


def test_the_operator_may_allow_larger_replies_by_udp(tmp_path):
    port = free_port()
    server = start(tmp_path, "-p", str(port), "-U", str(port), "--udp-reply-limit", "500")
    try:
        server.wait_ready(lambda: answers(port))
        connect(port).set("middle", b"v" * 400)
        connect(port).set("large", b"v" * 500)
        stranger = UdpClient("127.0.0.9", port)
        assert stranger.ask(b"get middle\r\n").startswith(b"VALUE middle 0 400\r\n")
        assert stranger.ask(b"get large\r\n").startswith(b"SERVER_ERROR reply too large for UDP")
    finally:
        server.stop()
