"""The load generator (crates/load): against our server, against one that replies wrongly, and its figures of time."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import PROGRAMS, Process, Server, accepts, connect, free_port, stats

LOAD_S_MAX = 120
KEYS = 2_000
ITEMS = ("--keys", KEYS, "--value-bytes", "1-3000")
# Enough of a load to have every connection answer some times.
SHORT = ("--connections", 5, "--warmup", 0, "--requests", 3_000, "--seconds", 60)


def run(endpoint: str, *words: object) -> subprocess.CompletedProcess:
    """A run of the load generator."""
    command = [PROGRAMS / "lookaside-load", endpoint, *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LOAD_S_MAX)


def load(endpoint: str, *words: object) -> dict:
    """The figures of a run that succeeds."""
    done = run(endpoint, "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else {}


def refused(endpoint: str, *words: object) -> str:
    """What a run says that fails."""
    done = run(endpoint, *words)
    assert done.returncode != 0, done.stdout
    assert not done.stdout
    return done.stderr


def counts(server: Server, *names: str) -> list[int]:
    """Some statistics of a server."""
    found = stats(server.port)
    return [int(found[name]) for name in names]


@pytest.fixture
def endpoint(server):
    """A server that has all items."""
    load(f"127.0.0.1:{server.port}", "--fill", *ITEMS)
    return f"127.0.0.1:{server.port}"


def test_a_fill_stores_every_item_once(server, endpoint):
    assert counts(server, "cmd_set", "curr_items") == [KEYS, KEYS]


def test_gets_are_counted_as_the_server_counts_them(server, endpoint):
    before = counts(server, "get_hits", "get_misses")
    figures = load(endpoint, *ITEMS, *SHORT, "--depth", 4, "--keys-per-get", 7)
    hits, misses = (after - then for after, then in zip(counts(server, "get_hits", "get_misses"), before, strict=True))
    assert figures["requests"] >= 3_000
    assert figures["keys"] == 7 * figures["requests"]
    # Those that were on their way at the end are not measured.
    assert figures["keys"] <= hits <= figures["keys"] + 5 * 4 * 7
    assert (figures["misses"], misses) == (0, 0)
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]


def test_a_mix_has_sets(server, endpoint):
    (before,) = counts(server, "cmd_set")
    figures = load(endpoint, *ITEMS, *SHORT, "--set-share", 0.5, "--zipf", 0.99)
    sets = counts(server, "cmd_set")[0] - before
    assert 0.4 * figures["requests"] < sets < 0.6 * figures["requests"]


def test_missing_items_are_misses(server, endpoint):
    client = connect(server.port)
    client.flush_all()
    client.close()
    figures = load(endpoint, *ITEMS, *SHORT, "--keys-per-get", 3)
    assert figures["misses"] == figures["keys"] > 0


def test_large_values_are_read_and_written_in_parts(server):
    items = ("--keys", 20, "--value-bytes", 900_000)
    endpoint = f"127.0.0.1:{server.port}"
    load(endpoint, "--fill", *items)
    few = ("--connections", 3, "--warmup", 0, "--requests", 200, "--seconds", 60)
    figures = load(endpoint, *items, *few, "--depth", 3, "--set-share", 0.5)
    assert (figures["requests"] >= 200, figures["misses"]) == (True, 0)


def test_a_unix_socket(tmp_path):
    path = tmp_path / "socket"
    server = Process("unix", [PROGRAMS / "lookaside-server", "-s", path, "-t", "1", "-m", "64"], tmp_path)
    try:
        server.wait_ready(lambda: takes_connections(path))
        load(f"unix:{path}", "--fill", *ITEMS)
        assert load(f"unix:{path}", *ITEMS, *SHORT)["misses"] == 0
    finally:
        server.stop()


def takes_connections(path: Path) -> bool:
    """Whether a server listens at a Unix socket."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        return True
    return False


def test_udp(tmp_path):
    port = free_port()
    command = [PROGRAMS / "lookaside-server", "-p", port, "-U", port, "-l", "127.0.0.1", "-t", "1", "-m", "64"]
    server = Process("udp", command, tmp_path)
    try:
        server.wait_ready(lambda: accepts(port))
        load(f"127.0.0.1:{port}", "--fill", *ITEMS)
        # Replies of several datagrams.
        figures = load(f"udp:127.0.0.1:{port}", *ITEMS, *SHORT, "--keys-per-get", 5, "--udp-timeout", 20)
        assert (figures["misses"], figures["udp_lost"]) == (0, 0)
        assert figures["requests"] >= 3_000
    finally:
        server.stop()


def test_lost_datagrams_are_counted_and_replaced():
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        endpoint = f"udp:127.0.0.1:{silent.getsockname()[1]}"
        words = ("--connections", 2, "--warmup", 0, "--seconds", 1, "--udp-timeout", 0.1)
        figures = load(endpoint, *words)
    assert figures["requests"] == 0
    # Each connection gives up and asks again about every tenth of a second.
    assert 4 <= figures["udp_lost"] <= 20


def test_an_open_loop_has_its_rate(server, endpoint):
    figures = load(endpoint, *ITEMS, "--connections", 10, "--rate", 2_000, "--warmup", 0.2, "--seconds", 3)
    assert figures["requests_per_s"] == pytest.approx(2_000, rel=0.1)


def test_an_open_loop_sends_whether_or_not_the_server_keeps_up():
    # 5 ms for each request, of which 400 are due in a second: at the end of two seconds they are a second late.
    with burning_server(5) as (_, port):
        words = ("--connections", 1, "--rate", 400, "--warmup", 0, "--seconds", 2)
        figures = load(f"127.0.0.1:{port}", "--keys", 10, *words)
    assert figures["requests"] <= 410
    assert figures["max_us"] > 700_000


def test_a_request_that_is_sent_late_counts_from_when_it_was_due():
    # By UDP one request at a time is on its way. At 5 ms each and 400 due in a second, the last ones of two seconds
    # are sent a second late, and then answered within milliseconds.
    with slow_datagrams(0.005) as port:
        words = ("--connections", 1, "--rate", 400, "--warmup", 0, "--seconds", 2, "--udp-timeout", 10)
        figures = load(f"udp:127.0.0.1:{port}", "--keys", 10, *words)
    assert (figures["udp_lost"], figures["requests"] <= 410) == (0, True)
    assert figures["max_us"] > 700_000


@contextlib.contextmanager
def slow_datagrams(delay_s: float):
    """A server by UDP that answers each get with a miss after this time: its port."""

    def serve() -> None:
        while True:
            datagram, client = listener.recvfrom(2_000)
            if not datagram:
                return
            time.sleep(delay_s)
            # The request's number, and the first of one datagram (memcached's protocol.txt, UDP protocol).
            listener.sendto(datagram[:2] + bytes((0, 0, 0, 1, 0, 0)) + b"END\r\n", client)

    with socket.socket(type=socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.sendto(b"", listener.getsockname())
            serving.join()


@contextlib.contextmanager
def burning_server(burn_ms: float):
    """A server that burns this time for each get: its pid and port."""
    command = [sys.executable, str(Path(__file__).with_name("burning_server.py")), str(burn_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("burn_ms", [2, 8])
def test_the_processor_time_of_a_request_is_what_the_server_has_burnt(burn_ms):
    with burning_server(burn_ms) as (pid, port):
        words = ("--connections", 1, "--depth", 2, "--warmup", 0.3, "--seconds", 3, "--server-pid", pid)
        figures = load(f"127.0.0.1:{port}", "--keys", 10, *words)
    found = figures["server_cpu_us_per_request"]
    # A request begins before the measured time, another one is not over at its end; Python's own work is small.
    edges = 2 / figures["requests"]
    assert burn_ms * 1_000 * (1 - edges) <= found <= burn_ms * 1_000 * (1.05 + edges) + 300, figures
    assert figures["server_cpu_share"] == pytest.approx(found * figures["requests_per_s"] / 1e6, rel=0.01)
    assert 0 < figures["server_cpu_share"] < 1.05
    assert figures["server_resident_bytes"] > 1 << 20
    assert figures["load_cpu_share"] < 0.5


class WrongServer:
    """Replies to each line with the bytes that `reply` gives for it."""

    def __init__(self, reply) -> None:
        self.reply = reply
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                reply = self.reply(line.split())
                if reply is None:
                    return
                connection.sendall(reply)


@contextlib.contextmanager
def wrong_server(reply):
    """A server with these replies."""
    server = WrongServer(reply)
    try:
        yield server.endpoint
    finally:
        server.listener.close()


def stored_items(server: Server, keys: list[bytes]) -> dict[bytes, bytes]:
    """The values that a fill has stored."""
    client = connect(server.port)
    try:
        return {key: client.get(key) for key in keys}
    finally:
        client.close()


@pytest.mark.parametrize("place", [0, 8, 31])
def test_a_wrong_byte_in_a_value_is_found(server, place):
    items = ("--keys", 1, "--value-bytes", 32)
    load(f"127.0.0.1:{server.port}", "--fill", *items)
    (key,) = [b"load:00000000000" + b"00000000"]
    value = stored_items(server, [key])[key]
    assert len(value) == 32
    asked = 0

    def reply(words: list[bytes]) -> bytes:
        nonlocal asked
        asked += 1
        sent = bytearray(value)
        # Only the hundredth is wrong.
        sent[place] ^= asked == 100
        return b"VALUE %s 0 32\r\n%s\r\nEND\r\n" % (words[1], sent)

    with wrong_server(reply) as endpoint:
        message = refused(endpoint, *items, "--connections", 1, "--warmup", 0)
    assert asked >= 100
    assert "wrong reply: expected the value of item 00000000" in message


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"VALUE another 0 1\r\nx\r\nEND\r\n", "expected END or one of 1 keys"),
        (b"SERVER_ERROR out of memory\r\n", "SERVER_ERROR out of memory"),
        (b"END\r\nEND\r\n", "all requests are answered"),
        (b"END\n", "wrong reply"),
        (None, "closed a connection with 1 unanswered"),
        (b"", "no reply for"),
        (b"VALUE ", "no reply for"),
    ],
)
def test_a_wrong_reply_ends_the_load(reply, message):
    with wrong_server(lambda words: reply) as endpoint:
        assert message in refused(endpoint, "--connections", 1, "--timeout", 0.5, "--seconds", 30)


def test_a_fill_that_the_server_refuses_fails():
    with wrong_server(lambda words: b"NOT_STORED\r\n") as endpoint:
        assert "the fill failed: wrong reply: expected STORED" in refused(endpoint, "--fill", "--keys", 10)


def test_wrong_use_is_refused_before_anything_is_sent():
    nowhere = f"127.0.0.1:{free_port()}"
    assert "connection 1 cannot be opened" in refused(nowhere)
    assert "not for UDP" in refused(f"udp:{nowhere}", "--set-share", 0.1)
    assert "one request at a time" in refused(f"udp:{nowhere}", "--depth", 2)
    assert "keys of a get are distinct" in refused(nowhere, "--keys", 3, "--keys-per-get", 4)
    assert "process 4194304" in refused(nowhere, "--server-pid", 4_194_304)
    assert "cannot be used with" in refused(nowhere, "--rate", 10, "--depth", 2)
    assert "expected a number from 1 to 1000000" in refused(nowhere, "--value-bytes", 0)
    assert "--seconds 0" in refused(nowhere, "--seconds", 0)
    assert "limit on open files" in refused(nowhere, "--connections", 100_000) or hard_limit() > 100_064


def hard_limit() -> int:
    """The most files that a process may open."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_help_has_examples():
    done = run("--help")
    assert "Examples:" in done.stdout
    assert "--zipf" in done.stdout
