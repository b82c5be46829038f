"""Clients that never log in. They kept their places among `-c` for ever, so that a client with a password could not
connect."""

import contextlib
import socket
import struct

import pytest
from guarded import LOGIN, GuardedRouter, GuardedServer
from processes import eventually

BINARY_VERSION = struct.pack(">BBHBBHIIQ", 0x80, 0x0B, 0, 0, 0, 0, 0, 0, 0)
LOGIN_SECONDS = 1


@pytest.fixture(params=["server", "router"])
def guarded(request, tmp_path):
    """A daemon that admits three clients, each for a second until it has logged in."""
    if request.param == "server":
        options = ["-c", "3", "--login-timeout", str(LOGIN_SECONDS)]
        daemon = GuardedServer(tmp_path, *options, sasl=True)
    else:
        options = ["-c", "3", "--login-timeout-ms", str(1_000 * LOGIN_SECONDS)]
        daemon = GuardedRouter(tmp_path, 1, *options, sasl=True)
    yield daemon
    assert daemon.stop() == 0


def connection_to(daemon, held: contextlib.ExitStack) -> socket.socket:
    return held.enter_context(socket.create_connection(("127.0.0.1", daemon.port), timeout=10))


def is_closed(stranger: socket.socket) -> bool:
    """Reads what has arrived."""
    try:
        return stranger.recv(65_536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def keep_busy(stranger: socket.socket, request: bytes) -> bool:
    """Sends once more; whether the daemon has closed the connection."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        stranger.send(request)
    return is_closed(stranger)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (LOGIN[:20], b""),
        (b"version\r\n", b"version\r\n"),
        (BINARY_VERSION, BINARY_VERSION),
    ],
    ids=["silent", "half a login", "busy", "busy, binary"],
)
def test_a_client_that_never_logs_in_gives_its_place_to_others(guarded, first, then):
    with contextlib.ExitStack() as held:
        known = connection_to(guarded, held)
        known.sendall(LOGIN)
        assert known.recv(100) == b"STORED\r\n"
        for _ in range(2):
            stranger = connection_to(guarded, held)
            stranger.sendall(first)
            stranger.setblocking(False)
            eventually(lambda stranger=stranger: keep_busy(stranger, then), "the stranger is disconnected")
        known.sendall(b"stats\r\n")
        values = b""
        while not values.endswith(b"END\r\n"):
            values += known.recv(65_536)
        assert b"STAT login_timeouts 2\r\n" in values, values
        assert b"STAT curr_connections 1\r\n" in values, values


def test_a_client_that_reads_no_refusal_is_disconnected(guarded):
    with contextlib.ExitStack() as held:
        known = connection_to(guarded, held)
        known.sendall(LOGIN)
        assert known.recv(100) == b"STORED\r\n"
        stranger = connection_to(guarded, held)
        stranger.setblocking(False)
        sent = b"version\r\n" * 1_000

        def is_disconnected() -> bool:
            with contextlib.suppress(BlockingIOError):
                try:
                    stranger.send(sent)
                except ConnectionError:
                    return True
            return False

        eventually(is_disconnected, "the stranger is disconnected")


def test_without_the_deadline_a_client_may_log_in_later(tmp_path):
    """The other server shows when the time is over."""
    folders = [tmp_path / "unlimited", tmp_path / "limited"]
    servers = []
    try:
        for folder, seconds in zip(folders, ["0", "1"], strict=True):
            folder.mkdir()
            servers.append(GuardedServer(folder, "--login-timeout", seconds))
        with contextlib.ExitStack() as held:
            beginner, stranger = (connection_to(server, held) for server in servers)
            assert stranger.recv(1) == b"", "disconnected"
            beginner.sendall(LOGIN)
            assert beginner.recv(100) == b"STORED\r\n"
    finally:
        for server in servers:
            server.stop()
