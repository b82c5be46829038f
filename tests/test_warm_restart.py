"""A server with a region keeps its items over a restart in order, and starts empty after any other end (§6.4)."""

import os
import random
import signal
import socket
import subprocess
import threading
import uuid
import zlib
from pathlib import Path

import pytest
from processes import PROGRAMS, STOP_S, Process, Server, answers, connect, eventually, free_port, stats

SERVER = PROGRAMS / "lookaside-server"
UNCLEAN = "starts empty: it was not shut down cleanly"


def remove_region(name: str) -> subprocess.CompletedProcess:
    """`lookaside-server --remove-region NAME`, to its end."""
    return subprocess.run(
        [SERVER, "--remove-region", name], capture_output=True, text=True, timeout=STOP_S, check=False
    )


def segments() -> list[dict[str, int]]:
    """All System V shared memory segments of the machine."""
    names, *rows = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines())
    return [dict(zip(names, map(int, row), strict=True)) for row in rows]


def segments_made_by(pid: int) -> list[dict[str, int]]:
    return [segment for segment in segments() if segment["cpid"] == pid]


class Region:
    """A region of one test's own, and the servers that use it, one after the other."""

    def __init__(self, log_dir: Path) -> None:
        self.name = f"end-to-end-{os.getpid()}-{uuid.uuid4()}"
        self.log_dir = log_dir
        self.servers: list[Process] = []

    def serve(self, *arguments: str, option: str = "--warm-restart", memory: str = "64") -> Process:
        """Another server, with a log of its own."""
        port = free_port()
        command = [SERVER, "-p", port, "-t", "2", "-m", memory, option, self.name, *arguments]
        server = Process(f"server-{len(self.servers)}", command, self.log_dir)
        server.port = port
        self.servers.append(server)
        server.wait_ready(lambda: answers(port))
        return server

    def refused(self, *arguments: str) -> str:
        """The error of a server that must not start with this region."""
        command = [SERVER, "--warm-restart", self.name, "-t", "1", *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=STOP_S, check=False)
        assert run.returncode == 1, run.stderr
        return run.stderr

    def remove(self) -> None:
        for server in self.servers:
            server.stop()
        assert remove_region(self.name).returncode in (0, 1)
        left = remove_region(self.name)
        assert "there is no region" in left.stderr, left


@pytest.fixture
def region(tmp_path):
    region = Region(tmp_path)
    yield region
    region.remove()


def end(server: Process, by: signal.Signals = signal.SIGTERM) -> None:
    """Ends the server in order."""
    server.running.send_signal(by)
    assert server.running.wait(STOP_S) == 0, server.log()


def value_of(number: int) -> bytes:
    """Some bytes, some hundred, and now and then a value over many chunks."""
    return bytes([number % 251]) * (700_000 if number % 400 == 7 else number % 700)


def fill(port: int, count: int) -> dict[str, tuple[bytes, bytes]]:
    """Items with flags and expiry; what `gets` shows of them."""
    client = connect(port)
    for number in range(count):
        expire = 0 if number % 2 else 3600
        assert client.set(f"key:{number}", value_of(number), expire=expire, flags=number % 3)
    seen = client.gets_many([f"key:{number}" for number in range(count)])
    client.close()
    assert len(seen) == count
    return seen


def meta(port: int, command: str) -> str:
    """The answer to one meta command."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.makefile("rb").readline().decode().strip()


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_clean_stop_keeps_every_item(region, by):
    server = region.serve()
    assert "is new" in server.log()
    before = fill(server.port, 1500)
    end(server, by)
    assert "saved 1500 items for the next start" in server.log()

    server = region.serve()
    assert "attached with 1500 items" in server.log()
    client = connect(server.port)
    assert client.gets_many(list(before)) == before, "the same values under the same CAS uniques"
    assert meta(server.port, "mg key:5 f t") == "HD f2 t-1"
    assert 3500 < int(meta(server.port, "mg key:4 t").removeprefix("HD t")) <= 3600
    value, unique = client.gets("key:1")
    assert client.cas("key:1", b"changed", unique) is True
    assert client.cas("key:1", b"again", unique) is False
    now = stats(server.port)
    assert (now["curr_items"], now["warm_restart_items"], now["total_items"]) == ("1500", "1500", "1")
    assert client.stats("settings")[b"warm_restart"].decode() == region.name
    client.close()


def test_the_command_shutdown_keeps_them_too(region):
    server = region.serve("-A")
    fill(server.port, 10)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"shutdown graceful\r\n")
        assert server.running.wait(STOP_S) == 0
    assert stats(region.serve().port)["curr_items"] == "10"


def test_memcacheds_option_names_a_region_and_makes_no_file(region, tmp_path):
    region.name = str(tmp_path / f"memory-{uuid.uuid4()}")
    for items in ("0", "10"):
        server = region.serve(option="-e")
        assert stats(server.port)["curr_items"] == items
        assert not Path(region.name).exists()
        fill(server.port, 10)
        end(server)


def test_without_the_option_nothing_outlives_the_server(tmp_path):
    server = Server("plain", tmp_path)
    try:
        fill(server.port, 10)
        pid = server.running.pid
        assert segments_made_by(pid) == []
        assert server.stop() == 0
        assert segments_made_by(pid) == []
        server.restart()
        assert stats(server.port)["curr_items"] == "0"
        assert "warm_restart_items" not in stats(server.port)
    finally:
        server.stop()


def test_a_second_server_is_refused_and_the_first_serves_on(region):
    server = region.serve()
    before = fill(server.port, 10)
    for _ in range(3):
        error = region.refused("-p", "-1")
        assert f"is held by process {server.running.pid}" in error
        assert "--warm-restart" in error
    assert connect(server.port).gets_many(list(before)) == before
    end(server)
    assert stats(region.serve().port)["curr_items"] == "10"


def test_a_start_that_fails_later_loses_nothing(region):
    server = region.serve()
    before = fill(server.port, 10)
    end(server)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert str(taken.getsockname()[1]) in region.refused("-p", str(taken.getsockname()[1]))
    server = region.serve()
    assert connect(server.port).gets_many(list(before)) == before


def test_a_different_memory_size_starts_empty_with_a_reason(region):
    server = region.serve()
    fill(server.port, 10)
    end(server)
    server = region.serve(memory="128")
    assert "starts empty: it was made with -m 64, now -m 128" in server.log()
    assert stats(server.port)["curr_items"] == "0"
    fill(server.port, 10)
    end(server)
    server = region.serve("-I", "2m", "--stale-seconds", "1", memory="128")
    assert stats(server.port)["curr_items"] == "10", "options that do not affect the layout may change"
    end(server)
    server = region.serve("-f", "1.25", memory="128")
    assert "starts empty: it was made with other slab options" in server.log()


def test_a_large_region_starts_as_fast_as_a_small_one(region):
    server = region.serve(memory="4096")
    before = fill(server.port, 500)
    end(server)
    server = region.serve(memory="4096")
    assert connect(server.port).gets_many(list(before)) == before
    assert int(stats(server.port)["warm_restart_attach_ms"]) < 1000


def test_warm_restart_of_a_daemonised_server(region, tmp_path):
    """With `-d` there is no log: the pid file exists as long as the server, and `stats` shows the rest."""
    pid_path = tmp_path / "pid"
    try:
        for items in ("0", "10"):
            port = free_port()
            command = [SERVER, "-d", "-P", pid_path, "-p", str(port), "--warm-restart", region.name]
            assert subprocess.run(command, timeout=STOP_S, check=False).returncode == 0
            eventually(lambda port=port: answers(port), "the server is ready")
            assert stats(port)["curr_items"] == items
            fill(port, 10)
            os.kill(int(pid_path.read_text()), signal.SIGUSR1)
            eventually(lambda: not pid_path.exists(), "the server has ended")
    finally:
        if pid_path.exists():
            os.kill(int(pid_path.read_text()), signal.SIGKILL)


def test_remove_region_removes_an_unused_region(region):
    server = region.serve()
    fill(server.port, 10)
    pid = server.running.pid
    (segment,) = segments_made_by(pid)
    assert segment["perms"] == 600, "in octal"
    assert segment["size"] <= 64 << 20
    refused = remove_region(region.name)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"held by process {pid}" in refused.stderr
    end(server)
    assert len(segments_made_by(pid)) == 1
    removed = remove_region(region.name)
    assert removed.returncode == 0
    assert "10 items" in removed.stdout
    assert region.name in removed.stdout
    assert segments_made_by(pid) == []
    gone = remove_region(region.name)
    assert gone.returncode == 1
    assert "there is no region" in gone.stderr
    assert (
        subprocess.run([SERVER, "--remove-region", "a", "-m", "64"], capture_output=True, check=False).returncode == 2
    )


class Writer(threading.Thread):
    """Sets keys of its own without end, and remembers the last value of each that the server has acknowledged."""

    KEYS = 300
    BATCH = 20

    def __init__(self, port: int, number: int) -> None:
        super().__init__()
        self.port, self.number = port, number
        self.acknowledged: dict[bytes, int] = {}
        self.sent: dict[bytes, int] = {}
        self.count = 0
        self.wanted = threading.Event()
        self.wanted_count = 0
        self.serial = 0

    def value(self, key: bytes, serial: int) -> bytes:
        """A value that carries its length and number; every fiftieth is chained over many chunks."""
        body = f"{serial}:".encode() + key * (20_000 if serial % 50 == 0 else serial % 60)
        return body + f":{zlib.crc32(body)}".encode()

    def run(self) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=STOP_S) as connection:
                replies = connection.makefile("rb")
                while True:
                    self.batch(connection, replies)
        except OSError:
            return  # The server has been ended.

    def batch(self, connection: socket.socket, replies) -> None:
        batch, request = [], b""
        for _ in range(self.BATCH):
            self.serial += 1
            key = f"writer:{self.number}:{self.serial % self.KEYS}".encode()
            value = self.value(key, self.serial)
            batch.append((key, self.serial))
            request += b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value)
        self.sent.update(batch)
        connection.sendall(request)
        for key, serial in batch:
            if replies.readline() != b"STORED\r\n":
                raise ConnectionError
            self.acknowledged[key] = serial
        self.count += self.BATCH
        if self.count >= self.wanted_count:
            self.wanted.set()

    def check(self, shown: dict[bytes, bytes], everything_is_there: bool) -> None:
        """Values in the server are whole, and nothing that it acknowledged is missing or older."""
        for key, serial in self.acknowledged.items():
            value = shown.get(key)
            if value is None:
                assert not everything_is_there, key
                continue
            seen = int(value.split(b":", 1)[0])
            assert value == self.value(key, seen), f"{key} is torn"
            assert serial <= seen <= self.sent[key], key


def end_at_random(server: Process, rng: random.Random) -> None:
    """By SIGKILL, by SIGTERM, or by both, so that some die while they save."""
    how = rng.choice(["killed", "killed", "ended", "both"])
    if how != "killed":
        server.running.send_signal(rng.choice([signal.SIGTERM, signal.SIGUSR1]))
    if how == "both":
        # A random number of reads of this file: some die before, some during, some after the save.
        for _ in range(rng.randrange(60)):
            server.log()
    if how != "ended":
        server.running.kill()
    server.running.wait(STOP_S)


def test_killed_at_any_moment_it_starts_empty_and_never_with_torn_data(region):
    rng = random.Random(6_4)
    unclean = warm = 0
    server = region.serve()
    for _ in range(24):
        writers = [Writer(server.port, number) for number in (1, 2)]
        for writer in writers:
            writer.wanted_count = rng.randrange(1, 60) * Writer.BATCH
            writer.start()
        assert all(writer.wanted.wait(STOP_S) for writer in writers)
        end_at_random(server, rng)
        for writer in writers:
            writer.join(STOP_S)

        server = region.serve()
        is_warm = "attached with" in server.log()
        assert is_warm != (UNCLEAN in server.log()), server.log()
        client = connect(server.port)
        for writer in writers:
            shown = client.get_many(list(writer.acknowledged))
            assert is_warm or shown == {}
            writer.check(shown, everything_is_there=is_warm)
        if not is_warm:
            assert stats(server.port)["curr_items"] == "0"
        assert int(stats(server.port)["evictions"]) == 0, "or else some may be missing"
        client.flush_all()
        client.close()
        warm, unclean = warm + is_warm, unclean + (not is_warm)
    assert min(warm, unclean) >= 4, (warm, unclean)


def test_after_a_crash_memory_for_one_region_is_enough():
    """In an IPC namespace of its own, where the kernel has shared memory for 100 MiB."""
    script = "echo 25600 >/proc/sys/kernel/shmall && echo ready && exec cat"
    holder = subprocess.Popen(
        ["unshare", "--ipc", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        if holder.stdout.readline() != b"ready\n":
            pytest.skip("namespaces are not to be had here")
        inside = ["nsenter", f"--ipc=/proc/{holder.pid}/ns/ipc", SERVER, "-m", "64", "--warm-restart", "crash"]
        for _ in range(2):
            port = free_port()
            server = subprocess.Popen([*inside, "-p", str(port)], stderr=subprocess.DEVNULL)
            try:
                eventually(lambda port=port, server=server: server.poll() is not None or answers(port), "a start")
                assert server.poll() is None, "it ended instead of serving"
            finally:
                server.kill()
                server.wait()
    finally:
        holder.kill()
        holder.communicate()
