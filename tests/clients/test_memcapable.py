"""libmemcached's own test of a server, `memcapable`, in both protocols, and a bounded load by its `memcslap`.

What memcapable expects of a command with words too many depends on the release that `version` names, and ours names its
own. A relay between them says 1.6.45 in the text protocol, so that it is asked what a memcached of that release is.
"""

import shutil
import socket
import subprocess
import threading

import pytest
from endpoints import Endpoint

# Debian names libmemcached's programs `memccapable` and so on; elsewhere it is `memcapable`.
CAPABLE = shutil.which("memccapable") or shutil.which("memcapable") or "memccapable is missing: see tests/install"
SLAP = shutil.which("memcslap") or "memcslap is missing: see tests/install"

# memcached passes over the words after `delete KEY`; memcapable still expects an error. Ours refuses them.
FAILURES_OF_MEMCACHED = {"ascii delete", "ascii delete noreply"}
RUN_S = 120
TESTS_MIN = 25
CHUNK_BYTES = 1 << 16


class Relay:
    """A port whose bytes go to a server's and back, with `VERSION 1.6.45` in the place of the server's own line."""

    def __init__(self, port_behind: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.port_behind = self.listener.getsockname()[1], port_behind
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        """Takes connections until the listener is shut down."""
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.port_behind))
            for pair in ((near, far, False), (far, near, True)):
                threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        """Carries bytes one way until their end."""
        try:
            while chunk := source.recv(CHUNK_BYTES):
                if is_reply and chunk.startswith(b"VERSION "):
                    chunk = b"VERSION 1.6.45\r\n" + chunk.partition(b"\r\n")[2]
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def stop(self) -> None:
        """Takes no more connections."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def relay(open_server: Endpoint):
    """A relay before the server."""
    relay = Relay(open_server.port)
    yield relay
    relay.stop()


def failures(port: int, protocol: str) -> tuple[set[str], str]:
    """The names of memcapable's tests that failed, and all it said."""
    # Both outputs into one pipe: the names are written to the one, the failures to the other.
    command = [CAPABLE, "-h", "127.0.0.1", "-p", str(port), protocol]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S)
    outcomes = [line for line in ran.stdout.splitlines() if "[" in line]
    assert len(outcomes) >= TESTS_MIN, ran.stdout
    return {line.partition("[")[0].strip() for line in outcomes if "[FAIL]" in line}, ran.stdout


def test_capable_in_text(open_server, relay):
    expected = FAILURES_OF_MEMCACHED if open_server.kind == "memcached" else set()
    failed, said = failures(relay.port, "-a")
    assert failed == expected, said


def test_capable_in_binary(open_server):
    failed, said = failures(open_server.port, "-b")
    assert not failed, said


@pytest.mark.parametrize("protocol", ["text", "binary"])
@pytest.mark.parametrize("kind_of_load", ["set", "get", "mget"])
def test_bounded_load(open_server, protocol, kind_of_load):
    command = [SLAP, "-s", f"127.0.0.1:{open_server.port}", "-t", kind_of_load, "-c", "4", "-e", "500"]
    command += ["-b"] if protocol == "binary" else []
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    assert ran.returncode == 0 and not ran.stderr, ran.stdout + ran.stderr
