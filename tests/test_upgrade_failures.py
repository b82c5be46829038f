"""Servers that fail, hang or are refused in the middle of an upgrade: the other one serves, and nothing is lost."""

import os
import random
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from processes import STOP_S, Process, answers, connect, eventually, free_port
from router_upgrade import RouterChain
from tools import need
from upgrade import (
    CONNECTION,
    HEAD,
    HELLO,
    HELLO_PAYLOAD,
    LISTENERS,
    QUIESCED,
    READY,
    REFUSED,
    Connection,
    FakePredecessor,
    FakeSuccessor,
    ServerChain,
    background_load,
    stopped_successor,
    takeover_failures,
    wait_for_requests,
)


@pytest.mark.parametrize("until", [HELLO, LISTENERS, READY, CONNECTION, QUIESCED])
@pytest.mark.parametrize("is_warm", [True, False])
def test_a_successor_that_dies_before_it_serves_changes_nothing(tmp_path, until, is_warm):
    chain = ServerChain(tmp_path, is_warm=is_warm)
    try:
        server = chain.begin()
        with background_load(chain.port) as pools:
            for count in (1, 2):
                successor = FakeSuccessor(chain.gate)
                successor.go(until)
                successor.close()
                eventually(lambda count=count: takeover_failures(server, until) == count, "it goes on")
                wait_for_requests(pools, 20)
            assert server.running.poll() is None
            assert "starts empty" not in server.log()
            if is_warm:
                chain.upgrade()
    finally:
        chain.stop()


def test_a_successor_killed_before_it_serves_changes_nothing(chain):
    rng, ends = random.Random(3), ("does not take over:", "has not taken over:", "stopped")
    times_back = times_taken = 0
    while times_back < 12 and times_taken < 12:
        server = chain.begin()
        with background_load(chain.port, may_be_cut_off=True) as pools:
            while server.running.poll() is None and times_back < 12:
                given_up = sum(map(server.log().count, ends))
                successor = chain.spawn([*chain.arguments, "--take-over"])
                eventually(lambda successor=successor: "taking over from" in successor.log(), "it is there")
                # A random number of reads of the log: the kill comes before, during or after the takeover.
                for _ in range(rng.randrange(150)):
                    successor.log()
                successor.kill()
                eventually(lambda server=server, so_far=given_up: sum(map(server.log().count, ends)) > so_far, "an end")
                if "stopped" in server.log():
                    times_taken += 1
                    server.running.wait(STOP_S)
                    break
                times_back += 1
                wait_for_requests(pools, 20)
                assert [pool.wrong for pool in pools if pool.wrong] == []
    assert times_back == 12, (times_back, times_taken)


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_successor_that_is_stopped_before_it_serves_is_killed_and_the_old_server_goes_on(tmp_path, is_warm):
    # The old server waited for it without end: it could not know whether both would serve.
    chain = ServerChain(tmp_path, is_warm=is_warm)
    try:
        server = chain.begin()
        with Connection(("127.0.0.1", chain.port)) as client:
            assert client.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
            stopped = stopped_successor(chain)
            client.send(b"get key\r\n")
            eventually(lambda: "takeover failed; continuing to serve" in server.log(), "it resumes")
            assert stopped.running.wait(STOP_S) == -signal.SIGKILL
            assert client.line() == b"VALUE key 0 1\r\n"
        assert "has not taken over and was killed: the other process has timed out" in server.log()
        chain.upgrade()
    finally:
        chain.stop()


def test_a_successor_gives_up_on_a_stopped_server_which_goes_on_later(chain):
    # It waited without end.
    server = chain.begin()
    with Connection(("127.0.0.1", chain.port)) as client:
        assert client.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
    server.freeze()
    successor = chain.spawn([*chain.arguments, "--take-over"])
    assert successor.running.wait(40) == 1
    assert "the other process has timed out" in successor.log()
    chain.processes.remove(successor)
    server.thaw()
    with Connection(("127.0.0.1", chain.port)) as client:
        assert client.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
    chain.upgrade()


def test_a_successor_gives_up_on_a_server_that_stops_in_the_middle(tmp_path):
    # It waited without end for the connections.
    chain = ServerChain(tmp_path)
    fake = FakePredecessor(chain.gate)
    try:
        hung_up = threading.Event()
        fake.hand_over(None, dies=False, hangs_until=hung_up)
        successor = chain.take_over_port(fake.port)
        assert successor.running.wait(40) == 1
        assert "the other process has timed out" in successor.log()
        hung_up.set()
    finally:
        chain.stop()
        fake.close()


def test_a_server_stopped_in_the_middle_goes_on_when_its_successor_has_given_up(chain):
    server = chain.begin()
    with Connection(("127.0.0.1", chain.port)) as client:
        assert client.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
    successor = FakeSuccessor(chain.gate)
    successor.go(LISTENERS)
    server.freeze()
    successor.send(READY)
    successor.close()
    server.thaw()
    with Connection(("127.0.0.1", chain.port)) as client:
        assert client.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
    chain.upgrade()


def test_of_successors_that_come_together_one_serves_at_a_time(chain):
    chain.begin()
    with background_load(chain.port) as pools:
        for _ in range(4):
            contenders = [chain.current, *(chain.spawn([*chain.arguments, "--take-over"]) for _ in range(3))]

            def has_one_left(contenders: list[Process] = contenders) -> bool:
                """Whether one process is left, which serves."""
                left = [process for process in contenders if process.running.poll() is None]
                return len(left) == 1 and ("has taken over" in left[0].log() or left[0] is contenders[0])

            eventually(has_one_left, "one is left", seconds=60)
            wait_for_requests(pools, 20)
            for process in contenders:
                if process.running.poll() is None:
                    survivor = process
                else:
                    refused = "is about to take over" in process.log()
                    assert process.running.returncode == int(refused), process.log()
                    assert refused or "for the next start" in process.log()
            chain.processes.remove(survivor)
            chain.processes.append(survivor)
        assert not any("starts empty" in process.log() for process in chain.processes)


def test_a_third_server_that_takes_the_region_leaves_the_ports_to_the_old_one(chain):
    server = chain.begin()
    with Connection(("127.0.0.1", chain.port)) as client:
        assert client.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
        successor = FakeSuccessor(chain.gate)
        successor.go(QUIESCED)
        port = free_port()
        third = chain.spawn(["-p", port, "-t", "2", "-m", "64", "--warm-restart", chain.region])
        third.wait_ready(lambda: "attached with 1 items" in third.log() and answers(port))
        successor.close()
        assert client.ask(b"get key\r\n") == b"END\r\n"
        assert client.ask(b"set key 0 0 1\r\n2\r\n") == b"STORED\r\n"
    assert "continues empty" in server.log() and f"is held by process {third.running.pid}" in server.log()
    assert server.stop() == 0 and third.stop() == 0


@pytest.mark.parametrize("kind", [ServerChain, RouterChain])
def test_the_ports_of_a_dead_predecessor_are_taken_over(tmp_path, kind):
    """A successor takes over the port and the connection of a process that dies in the middle of a handover."""
    chain, fake = kind(tmp_path), FakePredecessor(tmp_path / "upgrade", kind.program.name)
    ours = socket.create_connection(("127.0.0.1", fake.port))
    theirs, _ = fake.listener.accept()
    try:
        fake.hand_over(theirs, dies=True)
        process = chain.take_over_port(fake.port)
        process.wait_ready(lambda: "has taken over" in process.log())
        assert "has ended before it could hand over" in process.log()
        assert answers(fake.port)
        ours.sendall(b"version\r\n")
        assert ours.recv(100).startswith(b"VERSION"), "a connection that was handed over goes on"
    finally:
        chain.stop()
        fake.close()
        ours.close()
        theirs.close()


@pytest.mark.parametrize("kind", [ServerChain, RouterChain])
def test_a_predecessor_that_disconnects_but_lives_is_not_replaced(tmp_path, kind):
    """A successor gives up if its predecessor disconnects and is still alive."""
    chain, fake = kind(tmp_path), FakePredecessor(tmp_path / "upgrade", kind.program.name)
    try:
        fake.hand_over(None, dies=False)
        process = chain.take_over_port(fake.port)
        assert process.running.wait(STOP_S) == kind.cannot_start
        assert "continues to serve" in process.log()
    finally:
        chain.stop()
        fake.close()


def test_a_predecessor_killed_before_it_replies_is_ignored(chain):
    old = chain.begin()
    connect(chain.port).set("key", "value")
    old.freeze()
    new = chain.spawn([*chain.arguments, "--take-over"])
    unix = Path("/proc/net/unix")
    eventually(lambda: unix.read_text().count(f"{chain.gate}\n") == 2, "it has connected")
    old.kill()
    new.wait_ready(lambda: "listening on" in new.log())
    assert "no process to take over from" in new.log()
    assert "starts empty: it was not shut down cleanly" in new.log()
    assert connect(chain.port).get("key") is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD.pack(HELLO, 0, 1 << 31),
        HEAD.pack(HELLO, 0, 65) + bytes(65),
        HEAD.pack(HELLO, 0, 4) + b"hey!",
        HEAD.pack(HELLO, 0, len(HELLO_PAYLOAD)) + HELLO_PAYLOAD[:-1] + b"\xff",
        HEAD.pack(HELLO, 3, len(HELLO_PAYLOAD)) + HELLO_PAYLOAD,
        HEAD.pack(READY, 0, 0),
        HEAD.pack(HELLO, 0, len(HELLO_PAYLOAD))
        + HELLO_PAYLOAD
        + HEAD.pack(HELLO, 0, len(HELLO_PAYLOAD))
        + HELLO_PAYLOAD,
        HEAD.pack(QUIESCED, 0, 0),
    ],
)
def test_an_invalid_successor_is_refused_with_the_reason(chain, garbage):
    server = chain.begin()
    with background_load(chain.port, clients=1):
        stranger = FakeSuccessor(chain.gate)
        stranger.connection.sendall(garbage)
        kinds = []
        while message := stranger.receive():
            kinds.append(message[0])
        assert kinds[-1] == REFUSED and set(kinds[:-1]) <= {LISTENERS}
        stranger.close()
        assert "does not take over: malformed message" in server.log()
        chain.upgrade()


def test_one_successor_at_a_time_and_a_silent_one_times_out(chain):
    server = chain.begin()
    silent, preparing = FakeSuccessor(chain.gate), FakeSuccessor(chain.gate)
    assert preparing.receive()[0] == REFUSED, "another successor is connected"
    with background_load(chain.port, clients=1):
        assert silent.receive()[0] == REFUSED, "it sent nothing until the timeout"
        assert "has timed out" in server.log()
        chain.upgrade()
    silent.close()
    preparing.close()


def as_another_user(program: str) -> subprocess.CompletedProcess:
    """Runs Python as another user."""
    need("root")
    command = ["/usr/bin/env", "-i", "/usr/bin/python3", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=STOP_S, check=False, user="nobody")


def test_another_user_may_neither_take_over_nor_be_taken_over_from(chain):
    server = chain.begin()
    path = chain.gate
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in [path.parent, *path.parent.parents][:4]:
        folder.chmod(0o755)
    ask = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); print(s.recv(1))"
    assert "PermissionError" in as_another_user(ask).stderr
    path.chmod(0o777)
    assert as_another_user(ask).stdout == "b''\n", "hung up on"
    assert "runs as another user" in server.log()
    chain.upgrade()

    fake = socket.socket(socket.AF_UNIX)
    path = chain.folder / "elsewhere"
    fake.bind(str(path))
    os.seteuid(65534)
    try:
        fake.listen()
    finally:
        os.seteuid(0)
    new = chain.spawn(["-p", "-1", "--upgrade-socket", path, "--take-over"])
    assert new.running.wait(STOP_S) == 1
    assert "runs as another user (65534)" in new.log()
    chain.processes.pop()
    fake.close()
