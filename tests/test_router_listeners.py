"""The router's listeners: several ports and addresses, and a Unix socket."""

import socket
import stat
import subprocess
from pathlib import Path

import pytest
from processes import PROGRAMS, Process, eventually, free_port

NOWHERE = '{"route": "NullRoute"}'


def command(*arguments: object) -> list[object]:
    """A router whose gets all miss."""
    return [PROGRAMS / "lookaside-router", "--num-proxies", "2", "--config-str", NOWHERE, *arguments]


def start(tmp_path: Path, *arguments: object) -> Process:
    """It, running."""
    return Process("router", command(*arguments), tmp_path)


def reply_to(place: tuple[str, int] | Path, request: bytes = b"get nothing\r\n") -> bytes:
    """The reply; empty if nothing listens."""
    family = socket.AF_UNIX if isinstance(place, Path) else socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(10)
        try:
            connection.connect(str(place) if isinstance(place, Path) else place)
            connection.sendall(request)
            return connection.recv(1000)
        except OSError:
            return b""


def test_every_listener_reaches_the_same_router(tmp_path):
    first, second, third, sixth = (free_port() for _ in range(4))
    listen = ["-l", f"127.0.0.1,localhost;127.0.0.2:{third}", "--listen-addresses", f"[::1]:{sixth}"]
    router = start(tmp_path, "-p", f"{first},{second}", *listen)
    listeners = [("127.0.0.1", first), ("127.0.0.1", second), ("127.0.0.2", third), ("::1", sixth)]
    try:
        router.wait_ready(lambda: all(reply_to(listener) == b"END\r\n" for listener in listeners))
        assert reply_to(("127.0.0.2", first)) == b"", "an address with a port of its own has that alone"
        for name in (f"127.0.0.1:{second}", f"127.0.0.2:{third}", f"[::1]:{sixth}"):
            eventually(lambda name=name: f"listening on {name}\n" in router.log(), f"{name} is logged")
    finally:
        assert router.stop() == 0


def test_a_unix_socket_has_only_addresses_with_a_port_of_their_own_beside_it(tmp_path):
    plain, own, file = free_port(), free_port(), tmp_path / "router"
    listen = ["-l", f"127.0.0.1,127.0.0.1:{own}", "-p", plain, "-s", file, "--unix-mask", "600"]
    router = start(tmp_path, *listen)
    try:
        router.wait_ready(lambda: all(reply_to(listener) == b"END\r\n" for listener in (("127.0.0.1", own), file)))
        assert reply_to(("127.0.0.1", plain)) == b""
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        eventually(lambda: f"listening on {file}\n" in router.log(), "it is logged")
    finally:
        assert router.stop() == 0
    assert not file.exists()


def test_a_unix_socket_alone_replaces_a_dead_router_s_socket(tmp_path):
    file = tmp_path / "router"
    killed = start(tmp_path, "-s", file)
    killed.wait_ready(lambda: reply_to(file) == b"END\r\n")
    second = subprocess.run(command("-s", file), capture_output=True, text=True, timeout=20)
    assert second.returncode == 2 and "a process listens there" in second.stderr, second.stderr
    assert reply_to(file) == b"END\r\n", "the first one is unharmed"
    killed.kill()
    assert file.exists()
    router = start(tmp_path, "-s", file)
    try:
        eventually(lambda: reply_to(file) == b"END\r\n", "the file is taken over")
        many = [socket.socket(socket.AF_UNIX) for _ in range(50)]
        for client in many:
            client.settimeout(10)
            client.connect(str(file))
            client.sendall(b"get nothing\r\n")
        assert all(client.recv(100) == b"END\r\n" for client in many)
        for client in many:
            client.close()
    finally:
        assert router.stop() == 0
    assert not file.exists()


def test_port_0_is_a_free_one_that_all_addresses_share(tmp_path):
    router = start(tmp_path, "-p", "0", "-l", "127.0.0.1,127.0.0.2")
    try:
        router.wait_ready(lambda: router.log().count("listening on ") == 2)
        ports = [int(line.rsplit(":", 1)[1]) for line in router.log().splitlines() if "listening on " in line]
        assert ports[0] == ports[1]
        assert reply_to(("127.0.0.1", ports[0])) == reply_to(("127.0.0.2", ports[0])) == b"END\r\n"
    finally:
        assert router.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["-l", "127.0.0.1:x"], 3, '"x" is not a port'),
        (["-l", "proto[ascii]:127.0.0.1"], 3, "leave proto"),
        (["-l", "no-such-host.invalid"], 3, "no-such-host.invalid"),
        (["-l", "192.0.2.1"], 2, "no address of this machine"),
        (["-s", "/no/such/folder/router"], 2, "--unix-domain-sock"),
    ],
)
def test_an_invalid_listener_is_named(arguments, status, why):
    ended = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=20)
    assert ended.returncode == status and why in ended.stderr, ended.stderr


def test_a_taken_port_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(command("-p", str(port)), capture_output=True, text=True, timeout=20)
        assert ended.returncode == 2 and f"127.0.0.1:{port} is taken" in ended.stderr, ended.stderr


def test_it_does_not_listen_while_it_asks_its_peers(tmp_path):
    """Two routers that start together would each wait for the other's answer until they give up."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as peer:
        peer.settimeout(30)
        peers = f"127.0.0.1:{peer.getsockname()[1]}"
        router = start(tmp_path, "-p", port, "--spool", tmp_path / "spool", "--spool-peers", peers)
        try:
            question, _ = peer.accept()
            with question, pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=10).close()
            router.wait_ready(lambda: reply_to(("127.0.0.1", port)))
        finally:
            router.stop()


def test_a_taken_port_is_refused_before_the_peers_are_asked(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as peer:
        port, peers = taken.getsockname()[1], f"127.0.0.1:{peer.getsockname()[1]}"
        words = command("-p", port, "--spool", tmp_path / "spool", "--spool-peers", peers)
        ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and "taken by another process" in ended.stderr, ended.stderr
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.accept()
