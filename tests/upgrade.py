"""Servers that take over from each other, and fakes of either side."""

import contextlib
import os
import random
import re
import socket
import struct
import sys
import threading
import uuid
from pathlib import Path

import pytest
from processes import PROGRAMS, STOP_S, Process, answers, connect, eventually, free_port

SERVER = PROGRAMS / "lookaside-server"

HELLO, LISTENERS, READY, CONNECTION, QUIESCED, TAKEN_OVER, REFUSED = range(1, 8)
FORMATS = {"lookaside-server": 1, "lookaside-router": 4}


def hello_payload(program: str) -> bytes:
    """The payload of a new process's Hello."""
    return b"%b upgrade %b" % (program.encode(), struct.pack("<I", FORMATS[program]))


HELLO_PAYLOAD = hello_payload("lookaside-server")
HEAD = struct.Struct("<BBI")


class Chain:
    """Processes of one command line, each of which takes over from the one before."""

    program: Path

    def __init__(self, folder: Path, arguments: list) -> None:
        """`arguments` begin with the port: `-p`, and its number."""
        self.folder = folder
        self.gate = folder / "upgrade"
        self.arguments = [*arguments[:2], "--upgrade-socket", self.gate, *arguments[2:]]
        self.processes: list[Process] = []

    @property
    def current(self) -> Process:
        """The process that serves now."""
        return self.processes[-1]

    def begin(self) -> Process:
        """The first process, ready."""
        process = self.spawn(self.arguments)
        process.wait_ready(lambda: "listening" in process.log() and self.gate.exists())
        return process

    def spawn(self, arguments: list) -> Process:
        """One more process."""
        name = f"{self.program.name.removeprefix('lookaside-')}-{len(self.processes)}"
        process = Process(name, [self.program, *arguments], self.folder)
        self.processes.append(process)
        return process

    def upgrade(self, *more: object, arguments: list | None = None) -> Process:
        """The next process, once it serves and the one before has ended."""
        before = self.current
        after = self.spawn([*(arguments or self.arguments), *more, "--take-over"])
        after.wait_ready(lambda: "has taken over" in after.log())
        assert before.running.wait(STOP_S) == 0, before.log()
        return after

    def take_over_port(self, port: int) -> Process:
        """A process that takes over from one that listens on another port."""
        self.port = self.arguments[1] = port
        return self.spawn([*self.arguments, "--take-over"])

    def stop(self) -> None:
        """Ends all."""
        for process in self.processes:
            process.stop()


class ServerChain(Chain):
    """Servers, with a region unless `is_warm` is false."""

    program = SERVER
    cannot_start = 1

    def __init__(self, folder: Path, *arguments: str, is_warm: bool = True, memory: str = "64") -> None:
        self.port = free_port()
        super().__init__(folder, ["-p", self.port, "-t", "2", "-m", memory])
        self.region = f"upgrade-{os.getpid()}-{uuid.uuid4()}"
        if is_warm:
            self.arguments += ["--warm-restart", self.region]
        self.arguments += arguments

    def stop(self) -> None:
        """Ends all, and removes the region."""
        super().stop()
        removal = Process("remove-region", [SERVER, "--remove-region", self.region], self.folder)
        removal.running.wait(STOP_S)


class Messages:
    """One end of an upgrade channel, for tests."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(STOP_S)
        self.received, self.descriptors = b"", []

    def send(self, kind: int, payload: bytes = b"", descriptors: tuple = ()) -> None:
        """One message."""
        message = HEAD.pack(kind, len(descriptors), len(payload)) + payload
        socket.send_fds(self.connection, [message], list(descriptors))

    def receive(self) -> tuple[int, bytes, list[int]] | None:
        """The next one; None at the end."""
        while True:
            if len(self.received) >= HEAD.size:
                kind, count, length = HEAD.unpack_from(self.received)
                end = HEAD.size + length
                if len(self.received) >= end:
                    payload, self.received = self.received[HEAD.size : end], self.received[end:]
                    mine, self.descriptors = self.descriptors[:count], self.descriptors[count:]
                    return kind, payload, mine
            try:
                piece, descriptors, _, _ = socket.recv_fds(self.connection, 65536, 253)
            except ConnectionResetError:
                return None
            if not piece:
                return None
            self.received += piece
            self.descriptors += descriptors

    def close(self) -> None:
        """Closes the channel and the received descriptors."""
        self.connection.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


class FakeSuccessor(Messages):
    """A successor that goes as far as the test needs."""

    def __init__(self, gate: Path, program: str = "lookaside-server") -> None:
        self.hello_payload = hello_payload(program)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(gate))
        super().__init__(connection)

    def go(self, until: int) -> None:
        """Reads up to and including a message of that kind."""
        self.send(HELLO, self.hello_payload)
        if until == HELLO:
            return
        self.expect(LISTENERS)
        if until == LISTENERS:
            return
        self.send(READY)
        if until == READY:
            return
        while self.expect(CONNECTION, QUIESCED) != until:
            pass

    def expect(self, *kinds: int) -> int:
        """Reads a message of that kind and closes its descriptors."""
        kind, payload, descriptors = self.receive()
        assert kind in kinds, (kind, payload)
        for descriptor in descriptors:
            os.close(descriptor)
        return kind


STOPPED_SUCCESSOR = """
import os, pathlib, signal, sys
from upgrade import QUIESCED, FakeSuccessor
successor = FakeSuccessor(pathlib.Path(sys.argv[1]), sys.argv[2])
successor.go(QUIESCED)
print("quiesced", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def stopped_successor(chain: Chain) -> Process:
    """A process that gets everything from the current one, and is stopped before it takes over."""
    command = [sys.executable, "-c", STOPPED_SUCCESSOR, chain.gate, chain.program.name]
    process = Process("stopped", command, chain.folder, cwd=Path(__file__).parent)
    process.wait_ready(lambda: "quiesced" in process.log())
    return process


class Pool(threading.Thread):
    """A client with connections of its own, some old and some new, and keys of its own: it knows what each must be."""

    KEYS = 60

    def __init__(self, port: int, number: int) -> None:
        super().__init__()
        self.address = ("127.0.0.1", port)
        self.rng, self.prefix = random.Random(number), uuid.uuid4().hex.encode()
        self.values: dict[bytes, bytes | None] = {}
        self.is_over = threading.Event()
        self.requests = self.connects = 0
        self.wrong: list[Exception] = []
        self.longest_s = 0.0

    def run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                kept = [stack.enter_context(Connection(self.address)) for _ in range(3)]
                while not self.is_over.is_set():
                    for _ in range(20):
                        self.ask(self.rng.choice(kept))
                    with Connection(self.address) as new:
                        self.connects += 1
                        self.ask(new)
                for key in self.values:
                    self.look(kept[0], key)
        except (OSError, AssertionError) as error:
            self.wrong.append(error)

    def ask(self, connection: "Connection") -> None:
        """One request, or some at once."""
        key = b"%b:%d" % (self.prefix, self.rng.randrange(self.KEYS))
        self.requests += 1
        verb = self.rng.randrange(4)
        if verb == 0:
            value = b"%d:%s" % (self.requests, b"v" * self.rng.choice([0, 10, 1000, 20_000]))
            connection.send(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
            answer = connection.line()
            assert answer == b"STORED\r\n", answer
            self.values[key] = value
        elif verb == 1:
            connection.send(b"delete %b\r\n" % key)
            answer = connection.line()
            is_there = self.values.get(key) is not None
            assert answer == (b"DELETED\r\n" if is_there else b"NOT_FOUND\r\n"), (answer, is_there)
            self.values[key] = None
        else:
            self.look(connection, key)

    def look(self, connection: "Connection", key: bytes) -> None:
        """A get, whose answer is known."""
        connection.send(b"get %b\r\n" % key)
        value, line = None, connection.line()
        if line != b"END\r\n":
            assert line.startswith(b"VALUE "), line
            value = connection.exactly(int(line.split()[3]) + 2)[:-2]
            assert connection.line() == b"END\r\n"
        expected = self.values.get(key)
        assert value == expected, f"{key} is {value and value[:20]}, not {expected and expected[:20]}"


class Connection:
    """A connection whose errors name the cause."""

    def __init__(self, address: tuple[str, int] | str, receive_bytes: int = 0) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(STOP_S)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(address)
        self.received = self.socket.makefile("rb")

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_) -> None:
        self.received.close()
        self.socket.close()

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def line(self) -> bytes:
        """A line; an error at the end of the connection."""
        line = self.received.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError(f"closed behind {line!r}")
        return line

    def exactly(self, count: int) -> bytes:
        """Reads exactly `count` bytes."""
        got = self.received.read(count)
        if len(got) < count:
            raise ConnectionError(f"closed behind {len(got)} bytes of {count}")
        return got

    def ask(self, request: bytes) -> bytes:
        """A request with an answer of one line."""
        self.send(request)
        return self.line()


@contextlib.contextmanager
def background_load(port: int, clients: int = 4, may_be_cut_off: bool = False):
    """Clients that send requests without end. None may be refused, disconnected, or get a wrong reply."""
    pools = [Pool(port, number) for number in range(clients)]
    for pool in pools:
        pool.start()
    try:
        wait_for_requests(pools)
        yield pools
        if not may_be_cut_off:
            wait_for_requests(pools)
    finally:
        for pool in pools:
            pool.is_over.set()
        for pool in pools:
            pool.join(STOP_S)
    forgiven = ConnectionError if may_be_cut_off else ()
    wrong = [wrong for pool in pools for wrong in pool.wrong if not isinstance(wrong, forgiven)]
    assert not wrong, wrong


def wait_for_requests(pools: list[Pool], count: int = 100) -> None:
    """Waits until each client has had `more` further replies, or one has failed."""
    before = [pool.requests for pool in pools]

    def all_went_on() -> bool:
        return all(pool.wrong or pool.requests >= was + count for pool, was in zip(pools, before, strict=True))

    eventually(all_went_on, "clients are served")


def serves(port: int) -> bool:
    """Whether new connections are served."""
    return answers(port)


def takeover_failures(process: Process, until: int) -> int:
    """How often a process has logged that a successor went as far as `until` and no further."""
    if until > READY:
        return process.log().count("takeover failed; continuing to serve")
    # A successor that dies right after its Ready is noticed before the handover, or in the middle of it.
    return len(re.findall("does not take over|has not taken over", process.log()))


class FakePredecessor:
    """A running process that dies, or goes on, when it is asked to hand over. It listens on one port."""

    def __init__(self, gate: Path, program: str = "lookaside-server") -> None:
        self.hello_payload = hello_payload(program)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.gate = socket.socket(socket.AF_UNIX)
        self.gate.bind(str(gate))
        self.gate.listen()
        self.life, self.life_sign = socket.socketpair()
        self.thread: threading.Thread | None = None

    def hand_over(
        self, connection: socket.socket | None, dies: bool, hangs_until: threading.Event | None = None
    ) -> None:
        """In the background: answers the next process that comes, up to a connection, and hangs up.

        With `hangs_until` it is silent first, until the event is set.
        """

        def answer() -> None:
            messages = Messages(self.gate.accept()[0])
            assert messages.receive()[:2] == (HELLO, self.hello_payload)
            listeners = [self.life_sign.fileno(), self.gate.fileno(), self.listener.fileno()]
            messages.send(LISTENERS, struct.pack("<BI", 1, os.getpid()), listeners)
            assert messages.receive()[0] == READY
            if connection:
                messages.send(CONNECTION, bytes(23), [connection.fileno()])
            if hangs_until:
                hangs_until.wait(4 * STOP_S)
            if dies:
                self.life.close()
            messages.close()

        self.thread = threading.Thread(target=answer)
        self.thread.start()

    def close(self) -> None:
        """Ends it."""
        if self.thread:
            self.thread.join(STOP_S)
        for one in (self.listener, self.gate, self.life, self.life_sign):
            one.close()


def check_ports(opened: int, closed: int, metrics: int) -> None:
    """The first port is served, nothing listens on the second, and the third shows metrics."""
    assert answers(opened)
    with pytest.raises(ConnectionRefusedError):
        Connection(("127.0.0.1", closed))
    with Connection(("127.0.0.1", metrics)) as scrape:
        assert scrape.ask(b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")


def conn_states(port: int) -> dict[str, int]:
    """How many connections are in which state."""
    client = connect(port)
    states = [value.decode() for name, value in client.stats("conns").items() if name.endswith(b":state")]
    client.close()
    return {state: states.count(state) for state in ("conn_mwrite", "conn_read", "conn_nread")}
