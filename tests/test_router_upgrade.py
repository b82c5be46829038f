"""A router that takes over from another: no connection is refused or cut off, no request lost, no delete that was kept
is forgotten, and no server is read that owes one."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import threading
from pathlib import Path

import pytest
from certificates import Authority
from processes import PROGRAMS, STOP_S, Process, Server, answers, eventually, free_port, statistics
from test_spool import stopped
from upgrade import (
    CONNECTION,
    DOORS,
    HELLO,
    QUIET,
    READY,
    Connection,
    FakePredecessor,
    FakeSuccessor,
    load,
    wait_for_requests,
)

ROUTER = PROGRAMS / "lookaside-router"
KEYS = 4_000


class Lineage:
    """Routers of one command line, each of which takes over from the one before, and their two servers: keys that begin
    with `cut:` are at one that is cut off now and then."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder = folder
        self.sound, self.cut = Server("sound", folder), Server("cut", folder)
        configuration = {
            "pools": {
                "sound": {"servers": [f"127.0.0.1:{self.sound.port}"]},
                "cut": {"servers": [f"127.0.0.1:{self.cut.port}"]},
            },
            "route": {
                "type": "PrefixSelectorRoute",
                "policies": {"cut:": "PoolRoute|cut"},
                "wildcard": "PoolRoute|sound",
            },
        }
        path = folder / "router.json"
        path.write_text(json.dumps(configuration))
        self.port, self.gate, self.spool = free_port(), folder / "upgrade", folder / "spool"
        self.arguments = [
            "-p", self.port, "-f", path, "--num-proxies", "2",
            "--server-timeout", "200", "--probe-timeout-initial", "50",
            "--upgrade-socket", self.gate, "--spool", self.spool, *arguments,
        ]  # fmt: skip
        self.routers: list[Process] = []

    @property
    def router(self) -> Process:
        """The one that serves."""
        return self.routers[-1]

    def begin(self) -> Process:
        """The first router."""
        router = self.spawn(self.arguments)
        router.wait_ready(lambda: "listening" in router.log() and self.gate.exists())
        return router

    def spawn(self, arguments: list) -> Process:
        """One more process."""
        router = Process(f"router-{len(self.routers)}", [ROUTER, *arguments], self.folder)
        self.routers.append(router)
        return router

    def upgrade(self, *more: object) -> Process:
        """The next router, once it serves and the one before has ended."""
        before = self.router
        after = self.spawn([*self.arguments, *more, "--take-over"])
        after.wait_ready(lambda: "has taken over" in after.log())
        assert before.running.wait(STOP_S) == 0, before.log()
        return after

    def wait_for_visitor(self) -> None:
        """Until somebody has connected to the gate of a router that is stopped."""
        eventually(lambda: Path("/proc/net/unix").read_text().count(f"{self.gate}\n") == 2, "it has connected")

    def connect(self) -> Connection:
        """A client."""
        return Connection(("127.0.0.1", self.port))

    def behind(self) -> int:
        """Servers that owe deletes."""
        return int(statistics(self.port)["spool_servers_fenced"])

    def stop(self) -> None:
        """Ends all."""
        for process in [*self.routers, self.sound, self.cut]:
            process.stop()


@pytest.fixture
def lineage(tmp_path):
    """Routers with a spool."""
    lineage = Lineage(tmp_path)
    yield lineage
    lineage.stop()


class Deleter(threading.Thread):
    """Deletes keys at a server that is cut off, and looks whether one that was acknowledged is ever read again."""

    def __init__(self, lineage: Lineage, may_be_cut_off: bool = False) -> None:
        super().__init__()
        self.lineage, self.may_be_cut_off = lineage, may_be_cut_off
        self.acknowledged: list[bytes] = []
        self.attempts = 0
        self.is_over = threading.Event()
        self.wrong: list[Exception] = []

    def run(self) -> None:
        while not self.is_over.is_set() and not self.wrong:
            try:
                with self.lineage.connect() as writer, self.lineage.connect() as reader:
                    while not self.is_over.is_set():
                        self.delete_some(writer)
                        self.look(reader)
            except OSError as error:
                if not self.may_be_cut_off:
                    self.wrong.append(error)
            except AssertionError as error:
                self.wrong.append(error)

    def delete_some(self, writer: Connection) -> None:
        """A few at once; those that are acknowledged must be gone."""
        keys = [b"cut:%d" % (self.attempts + number) for number in range(3)]
        self.attempts += len(keys)
        writer.send(b"".join(b"delete %b\r\n" % key for key in keys))
        for key in keys:
            answer = writer.line()
            if answer in (b"NOT_FOUND\r\n", b"DELETED\r\n"):
                self.acknowledged.append(key)
            else:
                assert self.may_be_cut_off, answer

    def look(self, reader: Connection) -> None:
        """At one that was acknowledged."""
        key = random.choice(self.acknowledged or [b"cut:none"])
        reader.send(b"get %b\r\n" % key)
        answer = reader.line()
        assert not answer.startswith(b"VALUE"), f"{key} was deleted and is read: {answer}"


def fill(server: Server) -> None:
    """What is to be deleted, and what is not, put there past all routers."""
    with Connection(("127.0.0.1", server.port)) as client:
        for number in range(KEYS):
            for key in (b"cut:%d" % number, b"cut:kept:%d" % number):
                client.send(b"set %b 0 0 3 noreply\r\nold\r\n" % key)
        assert client.ask(b"version\r\n").startswith(b"VERSION")


@contextlib.contextmanager
def deletes(lineage: Lineage, may_be_cut_off: bool = False):
    """Deletes without end, while their server is cut off; when it is back, all of them are done and nothing else is."""
    fill(lineage.cut)
    deleter = Deleter(lineage, may_be_cut_off)
    try:
        with stopped(lineage.cut):
            deleter.start()
            eventually(lambda: deleter.wrong or len(deleter.acknowledged) > 20, "deletes are kept")
            yield deleter
        # It looks on: the server answers again, and has not carried everything out yet.
        eventually(lambda: deleter.wrong or lineage.behind() == 0, "all deletes are done")
    finally:
        deleter.is_over.set()
        deleter.join(STOP_S)
    assert not deleter.wrong, deleter.wrong
    with lineage.connect() as client:
        eventually(lambda: client.ask(b"get cut:none\r\n") == b"END\r\n", "the server is read")
        for key in deleter.acknowledged:
            assert client.ask(b"get %b\r\n" % key) == b"END\r\n", key
        client.send(b"get cut:kept:%d\r\n" % (len(deleter.acknowledged) % KEYS))
        assert client.line().startswith(b"VALUE"), "nothing was forgotten that nobody deleted"


def test_clients_under_load_see_nothing_of_upgrades_and_no_delete_is_lost(lineage):
    lineage.begin()
    with load(lineage.port) as pools, deletes(lineage) as deleter:
        for _ in range(5):
            before = len(deleter.acknowledged)
            lineage.upgrade()
            wait_for_requests(pools, 20)
            eventually(lambda so_far=before: len(deleter.acknowledged) > so_far + 10, "deletes are kept")
    assert sum(pool.connects for pool in pools) > 50
    assert sum("recovered undelivered deletes" in router.log() for router in lineage.routers) == 5
    assert not any("will be flushed" in router.log() for router in lineage.routers)
    assert lineage.router.stop() == 0


def test_a_connection_goes_on_in_the_middle_of_anything(tmp_path):
    path = tmp_path / "clients"
    lineage = Lineage(tmp_path, "-s", path, "-I", "2000000")
    large = b"x" * 900_000
    try:
        lineage.begin()
        with (
            lineage.connect() as silent,
            Connection(str(path)) as half,
            lineage.connect() as refused,
            Connection(("127.0.0.1", lineage.port), receive_bytes=4096) as slow,
            lineage.connect() as binary,
        ):
            assert half.ask(b"set large 0 0 %d\r\n%b\r\n" % (len(large), large)) == b"STORED\r\n"
            half.send(b"get none\r\nset half 0 0 10\r\n01234")
            assert half.line() == b"END\r\n"
            refused.send(b"set huge 0 0 3000000\r\n" + b"y" * 1000)
            assert refused.line().startswith(b"SERVER_ERROR object too large")
            # More than the sockets hold, so that some of it is kept with the connection, and requests behind it.
            slow.send(b"get large\r\n" * 6 + b"set behind 0 0 1\r\n1\r\nget none\r\n")
            binary.send(struct.pack("!BBHBBHIIQ", 0x80, 0x0B, 0, 0, 0, 0, 0, 7, 0)[:-4])
            for _ in range(2):
                lineage.upgrade()
            assert silent.ask(b"version\r\n").startswith(b"VERSION")
            assert half.ask(b"56789\r\n") == b"STORED\r\n"
            refused.send(b"y" * 2_999_000 + b"\r\nget half\r\n")
            assert [refused.line() for _ in range(3)] == [b"VALUE half 0 10\r\n", b"0123456789\r\n", b"END\r\n"]
            for _ in range(6):
                assert [slow.line() for _ in range(3)] == [b"VALUE large 0 900000\r\n", large + b"\r\n", b"END\r\n"]
            assert slow.line() == b"STORED\r\n" and slow.line() == b"END\r\n"
            binary.send(b"\0\0\0\0")
            assert binary.exactly(24)[:2] == b"\x81\x0b"
        assert path.exists(), "it is the new router's"
        assert lineage.router.stop() == 0 and not path.exists()
    finally:
        lineage.stop()


@pytest.mark.parametrize("until", [HELLO, DOORS, READY, CONNECTION, QUIET])
def test_a_successor_that_dies_before_it_serves_changes_nothing(lineage, until):
    router = lineage.begin()
    with load(lineage.port) as pools, deletes(lineage) as deleter:
        for count in (1, 2):
            successor = FakeSuccessor(lineage.gate, "lookaside-router")
            successor.go(until)
            successor.close()
            end = "continues to serve" if until > READY else "does not take over"
            eventually(lambda end=end, count=count: router.log().count(end) == count, "it goes on")
            wait_for_requests(pools, 20)
            before = len(deleter.acknowledged)
            eventually(lambda so_far=before: len(deleter.acknowledged) > so_far + 10, "deletes are kept")
        assert router.running.poll() is None
        lineage.upgrade()


def test_killed_at_any_moment_a_successor_is_as_if_it_had_not_been(lineage):
    rng, times_back = random.Random(3), 0
    router = lineage.begin()
    with load(lineage.port, may_be_cut_off=True), deletes(lineage, may_be_cut_off=True):
        for number in range(12):
            if number % 3 == 0:
                # Surely before it takes over, however fast it is: nobody listens to it yet.
                with stopped(router):
                    successor = lineage.spawn([*lineage.arguments, "--take-over"])
                    lineage.wait_for_visitor()
                    successor.kill()
            else:
                successor = lineage.spawn([*lineage.arguments, "--take-over"])
                eventually(lambda successor=successor: "taking over from" in successor.log(), "it is there")
                # As long as it takes to look at a log so many times: before, while or after it takes over.
                for _ in range(rng.randrange(60)):
                    successor.log()
                successor.kill()
            if "has taken over" in router.log():
                router.running.wait(STOP_S)
                router = lineage.begin()
            else:
                times_back += 1
                given_up = re.compile("does not take over|has not taken over")
                eventually(lambda router=router, end=given_up: end.search(router.log()), "it goes on")
                eventually(lambda: answers(lineage.port), "it serves")
    assert times_back >= 4, times_back


def test_a_predecessor_that_is_killed_leaves_its_deletes_and_its_clients(lineage):
    first = lineage.begin()
    with deletes(lineage, may_be_cut_off=True) as deleter:
        os.kill(first.running.pid, signal.SIGSTOP)
        second = lineage.spawn([*lineage.arguments, "--take-over"])
        lineage.wait_for_visitor()
        first.kill()
        second.wait_ready(lambda: "listening on" in second.log())
        assert "recovered undelivered deletes" in second.log()
        before = len(deleter.acknowledged)
        eventually(lambda: len(deleter.acknowledged) > before + 10, "deletes are kept")


def test_a_predecessor_that_dies_leaves_its_ports(tmp_path):
    fake = FakePredecessor(tmp_path / "upgrade", "lookaside-router")
    ours = socket.create_connection(("127.0.0.1", fake.port))
    theirs, _ = fake.door.accept()
    lineage = Lineage(tmp_path)
    try:
        fake.hand_over(theirs, dies=True)
        lineage.port = lineage.arguments[1] = fake.port
        router = lineage.spawn([*lineage.arguments, "--take-over"])
        router.wait_ready(lambda: "has taken over" in router.log())
        assert "has ended before it could hand over" in router.log()
        assert answers(fake.port)
        ours.sendall(b"version\r\n")
        assert ours.recv(100).startswith(b"VERSION"), "what it has handed over already goes on"
    finally:
        lineage.stop()
        fake.close()
        ours.close()
        theirs.close()


def test_a_predecessor_that_hangs_up_and_lives_is_not_replaced(tmp_path):
    fake = FakePredecessor(tmp_path / "upgrade", "lookaside-router")
    lineage = Lineage(tmp_path)
    try:
        fake.hand_over(None, dies=False)
        lineage.arguments[1] = fake.port
        router = lineage.spawn([*lineage.arguments, "--take-over"])
        assert router.running.wait(STOP_S) == 1
        assert "continues to serve" in router.log()
    finally:
        lineage.stop()
        fake.close()


def test_a_server_is_no_successor_of_a_router(lineage):
    router = lineage.begin()
    stranger = FakeSuccessor(lineage.gate)
    stranger.send(HELLO, stranger.greeting)
    eventually(lambda: "does not take over: malformed message" in router.log(), "refused")
    stranger.close()
    lineage.upgrade()


def test_with_nobody_to_take_over_from_it_starts_as_usual_and_only_who_asks_replaces(lineage):
    first = lineage.spawn([*lineage.arguments, "--take-over"])
    first.wait_ready(lambda: answers(lineage.port))
    assert "no process to take over from" in first.log()
    second = lineage.spawn(lineage.arguments)
    assert second.running.wait(STOP_S) == 1
    assert f"127.0.0.1:{lineage.port} is taken" in second.log()
    lineage.routers.pop()
    lineage.upgrade()


def test_another_command_line_opens_closes_and_keeps_ports(tmp_path):
    kept, closed, opened, metrics = (free_port() for _ in range(4))
    lineage = Lineage(tmp_path, "-l", f"127.0.0.1:{kept},127.0.0.1:{closed}")
    lineage.port = kept
    measured = ["--metrics-address", f"127.0.0.1:{metrics}"]
    try:
        lineage.begin()
        lineage.upgrade(*measured)
        with load(kept) as pools:
            lineage.arguments[-1] = f"127.0.0.1:{kept},127.0.0.1:{opened}"
            lineage.arguments[lineage.arguments.index("--num-proxies") + 1] = "4"
            router = lineage.upgrade(*measured)
            wait_for_requests(pools)
            assert f"127.0.0.1:{closed} was handed over, and no option asks for it" in router.log()
        assert answers(opened)
        with pytest.raises(ConnectionRefusedError):
            Connection(("127.0.0.1", closed))
        with Connection(("127.0.0.1", metrics)) as scrape:
            assert scrape.ask(b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")
    finally:
        lineage.stop()


def test_a_successor_that_fails_in_order_leaves_the_unix_socket(tmp_path):
    lineage = Lineage(tmp_path, "-s", tmp_path / "clients")
    try:
        lineage.begin()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            failed = lineage.spawn([*lineage.arguments, "--take-over", "--metrics-address", address])
            assert failed.running.wait(STOP_S) == 1
        assert "--metrics-address" in failed.log()
        lineage.routers.remove(failed)
        with Connection(str(tmp_path / "clients")) as client:
            assert client.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
        lineage.upgrade()
        with Connection(str(tmp_path / "clients")) as client:
            assert client.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
        lineage.router.stop()
        assert not (tmp_path / "clients").exists()
    finally:
        lineage.stop()


def test_tls_is_closed_in_order_behind_its_last_reply(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    secured = free_port()
    lineage = Lineage(tmp_path)
    lineage.arguments += ["--ssl-port", secured, "--pem-cert-path", certificate, "--pem-key-path", key]
    try:
        lineage.begin()
        with socket.create_connection(("127.0.0.1", secured)) as plain:
            plain.settimeout(STOP_S)
            with authority.context().wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as old:
                old.sendall(b"set key 0 0 1\r\n1\r\n")
                assert old.recv(100) == b"STORED\r\n"
                lineage.spawn([*lineage.arguments, "--take-over"])
                assert old.recv(100) == b"", "told that nothing more comes, not reset"
        lineage.router.wait_ready(lambda: "has taken over" in lineage.router.log())
        with lineage.connect() as client:
            assert client.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
    finally:
        lineage.stop()


def test_a_supervisor_knows_the_new_process_before_the_old_one_ends(lineage, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(STOP_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        first = lineage.begin()
        assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % first.running.pid
        new = lineage.spawn([*lineage.arguments, "--take-over"])
        assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % new.running.pid
        assert first.running.wait(STOP_S) == 0
