"""A server that takes over from another: no connection is refused or cut off, no item is lost, no delete undone."""

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from certificates import Authority
from processes import STOP_S, Process, answers, connect, eventually, free_port, stats
from upgrade import (
    CONNECTION,
    HEAD,
    HELLO,
    HELLO_PAYLOAD,
    LISTENERS,
    QUIESCED,
    READY,
    REFUSED,
    SERVER,
    Connection,
    FakePredecessor,
    FakeSuccessor,
    ServerChain,
    background_load,
    check_ports_of_a_dead_predecessor,
    check_predecessor_that_disconnects_but_lives,
    stopped_successor,
    takeover_failures,
    wait_for_requests,
)


@pytest.fixture
def chain(tmp_path):
    """Servers with a region."""
    chain = ServerChain(tmp_path)
    yield chain
    chain.stop()


def test_clients_under_load_see_nothing_of_upgrades(chain):
    chain.begin()
    with background_load(chain.port) as pools:
        for _ in range(8):
            chain.upgrade()
            wait_for_requests(pools, 20)
    assert sum(pool.connects for pool in pools) > 100
    assert int(stats(chain.port)["evictions"]) == 0, "or else some may be missing"
    for before in chain.processes[:-1]:
        assert "for the next start" in before.log()
    assert chain.current.stop() == 0


def test_a_connection_goes_on_in_the_middle_of_anything(chain):
    chain.begin()
    large = b"x" * 900_000
    with (
        Connection(("127.0.0.1", chain.port)) as silent,
        Connection(("127.0.0.1", chain.port)) as half,
        Connection(("127.0.0.1", chain.port)) as refused,
        Connection(("127.0.0.1", chain.port), receive_bytes=4096) as slow,
        Connection(("127.0.0.1", chain.port)) as binary,
    ):
        assert half.ask(b"set large 0 0 %d\r\n%b\r\n" % (len(large), large)) == b"STORED\r\n"
        half.send(b"get none\r\nset half 0 0 10\r\n01234")
        assert half.line() == b"END\r\n"
        refused.send(b"set huge 0 0 3000000\r\n" + b"y" * 1000)
        assert refused.line().startswith(b"SERVER_ERROR object too large")
        # More than the sockets hold, so that some of it is kept with the connection, and requests behind it.
        slow.send(b"get large\r\n" * 12 + b"set behind 0 0 1\r\n1\r\nget none\r\n")
        binary.send(struct.pack("!BBHBBHIIQ", 0x80, 0x0B, 0, 0, 0, 0, 0, 7, 0)[:-4])
        eventually(lambda: conn_states(chain.port)["conn_mwrite"] == 1, "a reader is too slow")

        for _ in range(2):
            chain.upgrade()
            eventually(lambda: conn_states(chain.port)["conn_mwrite"] == 1, "it is too slow still")
        assert silent.ask(b"version\r\n").startswith(b"VERSION")
        assert half.ask(b"56789\r\n") == b"STORED\r\n"
        refused.send(b"y" * 2_999_000 + b"\r\nget half\r\n")
        assert [refused.line() for _ in range(3)] == [b"VALUE half 0 10\r\n", b"0123456789\r\n", b"END\r\n"]
        for _ in range(12):
            assert [slow.line() for _ in range(3)] == [b"VALUE large 0 900000\r\n", large + b"\r\n", b"END\r\n"]
        assert slow.line() == b"STORED\r\n" and slow.line() == b"END\r\n"
        binary.send(b"\0\0\0\0")
        assert binary.exactly(24)[:2] == b"\x81\x0b"


def test_a_failed_announcement_after_an_upgrade_is_not_fatal(chain, monkeypatch):
    chain.begin()
    client = connect(chain.port)
    assert client.set("key", b"value")
    client.close()
    monkeypatch.setenv("MEMCACHED_PORT_FILENAME", str(chain.folder / "missing" / "ports"))
    after = chain.upgrade()
    assert "cannot write the ports to" in after.log()
    client = connect(chain.port)
    assert client.get("key") == b"value"
    client.close()


def conn_states(port: int) -> dict[str, int]:
    """How many connections are in which state."""
    client = connect(port)
    states = [value.decode() for name, value in client.stats("conns").items() if name.endswith(b":state")]
    client.close()
    return {state: states.count(state) for state in ("conn_mwrite", "conn_read", "conn_nread")}


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


def test_without_a_region_ports_and_connections_are_handed_over(tmp_path):
    chain = ServerChain(tmp_path, is_warm=False)
    try:
        first = chain.begin()
        with Connection(("127.0.0.1", chain.port)) as old:
            assert old.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
            chain.upgrade()
            assert old.ask(b"get key\r\n") == b"END\r\n"
        assert "1 items are lost with this process" in first.log()
    finally:
        chain.stop()


def test_the_ports_of_a_dead_predecessor_are_taken_over(tmp_path):
    check_ports_of_a_dead_predecessor(ServerChain(tmp_path), FakePredecessor(tmp_path / "upgrade"))


def test_a_predecessor_that_disconnects_but_lives_is_not_replaced(tmp_path):
    check_predecessor_that_disconnects_but_lives(ServerChain(tmp_path), FakePredecessor(tmp_path / "upgrade"))


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


def test_take_over_without_a_predecessor_starts_normally(chain):
    server = chain.spawn([*chain.arguments, "--take-over"])
    server.wait_ready(lambda: answers(chain.port))
    assert "no process to take over from" in server.log()
    # The socket file of a dead server is not a predecessor either.
    server.kill()
    server = chain.spawn([*chain.arguments, "--take-over"])
    server.wait_ready(lambda: answers(chain.port))
    chain.upgrade()


def test_without_take_over_a_server_is_not_replaced(chain):
    chain.begin()
    for arguments, why in [
        (chain.arguments, f"cannot listen on 127.0.0.1:{chain.port}"),
        (["-p", "0", *chain.arguments[2:]], "to replace a process that listens there, use --take-over"),
    ]:
        second = chain.spawn(arguments)
        assert second.running.wait(STOP_S) == 1
        assert why in second.log()
        chain.processes.pop()
    without = subprocess.run([SERVER, "--take-over"], capture_output=True, text=True, timeout=STOP_S, check=False)
    assert without.returncode == 2 and "--upgrade-socket" in without.stderr
    chain.upgrade()


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
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
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
    new = chain.spawn(["-p", "0", "--upgrade-socket", path, "--take-over"])
    assert new.running.wait(STOP_S) == 1
    assert "runs as another user (65534)" in new.log()
    chain.processes.pop()
    fake.close()


def test_another_command_line_opens_closes_and_keeps_ports(tmp_path):
    kept, closed, opened, metrics = (free_port() for _ in range(4))
    chain = ServerChain(tmp_path, "-l", f"127.0.0.1:{kept},127.0.0.1:{closed}", "--metrics-address", str(metrics))
    chain.port = kept
    try:
        chain.begin()
        with background_load(kept) as pools:
            arguments = [*chain.arguments[:-4], "-l", f"127.0.0.1:{kept},127.0.0.1:{opened}", "-t", "5"]
            server = chain.upgrade("--metrics-address", str(metrics), arguments=arguments)
            wait_for_requests(pools)
            for port in (closed, metrics):
                assert (f"127.0.0.1:{port} was handed over, and no option asks for it" in server.log()) == (
                    port == closed
                )
        assert answers(opened)
        with pytest.raises(ConnectionRefusedError):
            Connection(("127.0.0.1", closed))
        with Connection(("127.0.0.1", metrics)) as scrape:
            assert scrape.ask(b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")
    finally:
        chain.stop()


def test_a_port_that_cannot_be_had_leaves_the_running_server_alone(chain):
    server = chain.begin()
    with background_load(chain.port), socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        new = chain.spawn([*chain.arguments, "-l", f"127.0.0.1,127.0.0.1:{taken}", "--take-over"])
        assert new.running.wait(STOP_S) == 1
        assert f"cannot listen on 127.0.0.1:{taken}" in new.log()
        eventually(lambda: "does not take over" in server.log(), "it has noticed")
    chain.processes.pop()
    assert "handing over" not in server.log()


def test_a_larger_memory_starts_empty_with_a_log_line(chain):
    chain.begin()
    with Connection(("127.0.0.1", chain.port)) as old:
        assert old.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
        server = chain.upgrade("-m", "80")
        assert "starts empty" in server.log()
        assert old.ask(b"get key\r\n") == b"END\r\n"


def test_tls_connections_close_cleanly_after_their_last_reply(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    secured = free_port()
    tls = ["-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}"]
    chain = ServerChain(tmp_path, *tls, "-l", f"127.0.0.1:{secured},notls:127.0.0.1")
    try:
        chain.begin()
        with (
            background_load(chain.port),
            connect_tls(authority, secured) as old,
            connect_tls(authority, secured, 4096) as slow,
        ):
            old.sendall(b"set key 0 0 900000\r\n" + b"x" * 900_000 + b"\r\n")
            assert old.recv(100) == b"STORED\r\n"
            slow.sendall(b"get key\r\n" * 9 + b"delete key\r\n")
            eventually(lambda: conn_states(chain.port)["conn_mwrite"] == 1, "a reader is too slow")
            chain.spawn([*chain.arguments, "--take-over"])
            assert old.recv(100) == b"", "closed in order, not reset"
            got = b""
            while piece := slow.recv(1 << 20):
                got += piece
            # The reply in flight is complete; the requests behind it were not executed.
            assert got.startswith(b"VALUE key 0 900000\r\n") and b"DELETED" not in got
            chain.current.wait_ready(lambda: "has taken over" in chain.current.log())
            with connect_tls(authority, secured) as new:
                new.sendall(b"touch key 0\r\n")
                assert new.recv(100) == b"TOUCHED\r\n"
    finally:
        chain.stop()


def connect_tls(authority: Authority, port: int, receive_bytes: int = 1 << 20):
    """A handshaken connection."""
    plain = socket.socket()
    plain.settimeout(STOP_S)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    plain.connect(("127.0.0.1", port))
    return authority.context().wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


def test_udp_loses_no_datagram(tmp_path):
    chain = ServerChain(tmp_path)
    chain.arguments += ["-U", chain.port]
    try:
        chain.begin()
        clients = []
        for number in range(20):
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.settimeout(STOP_S)
            client.connect(("127.0.0.1", chain.port))
            clients.append((number, client))
        for round_ in range(4):
            # Fewer workers, more workers: every socket that the kernel has chosen for a client is served.
            after = chain.spawn([*chain.arguments, "-t", str([1, 4, 1, 2][round_]), "--take-over"])
            while "has taken over" not in after.log():
                assert after.running.poll() is None, after.log()
                for number, client in clients:
                    request = struct.pack("!HHHH", number, 0, 1, 0) + b"set %d 0 0 1\r\nx\r\n" % number
                    client.send(request)
                for number, client in clients:
                    assert client.recv(2000) == struct.pack("!HHHH", number, 0, 1, 0) + b"STORED\r\n"
        for _, client in clients:
            client.close()
    finally:
        chain.stop()


def test_a_unix_socket_is_handed_over_too(tmp_path):
    path = tmp_path / "cache"
    chain = ServerChain(tmp_path, "-s", path)
    try:
        chain.begin()
        with Connection(str(path)) as old:
            assert old.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
            chain.upgrade()
            assert old.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
            with Connection(str(path)) as new:
                assert new.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
    finally:
        chain.stop()


def test_a_link_in_place_of_a_file_changes_and_overwrites_no_other_file(tmp_path):
    path, pid_path, other = tmp_path / "cache", tmp_path / "pid", tmp_path / "other"
    other.write_text("another's")
    other.chmod(0o600)
    chain = ServerChain(tmp_path, "-s", path, "-a", "777")
    try:
        chain.begin()
        path.unlink()
        for link, more, why in ((path, [], "not a socket"), (pid_path, ["-P", pid_path], "symbolic link")):
            link.symlink_to(other)
            new = chain.spawn([*chain.arguments, *more, "--take-over"])
            new.running.wait(STOP_S)
            assert (other.stat().st_mode & 0o777, other.read_text()) == (0o600, "another's")
            assert new.running.returncode == 1 and why in new.log()
            chain.processes.remove(new)
            link.unlink()
            if link is path:
                # The mode of a socket file can be set again.
                with socket.socket(socket.AF_UNIX) as another:
                    another.bind(str(path))
    finally:
        chain.stop()


def test_authentication_is_handed_over_with_the_connection(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    chain = ServerChain(tmp_path, "-Y", users)
    try:
        chain.begin()
        with Connection(("127.0.0.1", chain.port)) as known, Connection(("127.0.0.1", chain.port)) as stranger:
            assert known.ask(b"set auth 0 0 10\r\nada secret\r\n") == b"STORED\r\n"
            assert stranger.ask(b"get key\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
            chain.upgrade()
            assert known.ask(b"get key\r\n") == b"END\r\n"
            assert stranger.ask(b"get key\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
    finally:
        chain.stop()


def test_connections_of_a_removed_listener_are_closed(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    secured = ["-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}"]
    for number, more in enumerate((["-Y", users], ["-B", "binary"], secured)):
        folder = tmp_path / str(number)
        folder.mkdir()
        chain = ServerChain(folder)
        try:
            chain.begin()
            with Connection(("127.0.0.1", chain.port)) as old:
                assert old.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
                chain.upgrade(*more)
                with contextlib.suppress(OSError):
                    assert old.ask(b"get key\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        finally:
            chain.stop()


def test_the_pid_file_always_exists(tmp_path):
    path = tmp_path / "pid"
    chain = ServerChain(tmp_path, "-P", path)
    try:
        chain.begin()
        for _ in range(3):
            new = chain.upgrade()
            assert path.read_text() == f"{new.running.pid}\n"
        other = tmp_path / "other"
        new = chain.upgrade("-P", str(other))
        assert other.read_text() == f"{new.running.pid}\n" and not path.exists()
        assert new.stop() == 0 and not other.exists()
    finally:
        chain.stop()


def test_systemd_learns_the_new_main_pid_before_the_old_process_exits(tmp_path):
    chain = ServerChain(tmp_path)
    path = tmp_path / "notify"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.bind(str(path))
            supervisor.settimeout(STOP_S)
            os.environ["NOTIFY_SOCKET"] = str(path)
            first = chain.begin()
            assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % first.running.pid
            new = chain.spawn([*chain.arguments, "--take-over"])
            assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % new.running.pid
            assert first.running.wait(STOP_S) == 0
    finally:
        del os.environ["NOTIFY_SOCKET"]
        chain.stop()


def test_systemd_sockets_are_served_and_handed_over(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        chain = ServerChain(tmp_path)
        chain.port = chain.arguments[1] = listener.getsockname()[1]
        script = f'exec 3<&{listener.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        command = ["bash", "-c", script, "bash", SERVER, *chain.arguments]
        first = Process("server-0", command, tmp_path, pass_fds=[listener.fileno()])
        chain.processes.append(first)
        try:
            first.wait_ready(lambda: answers(chain.port))
            with background_load(chain.port):
                chain.upgrade()
            assert chain.current.stop() == 0
            socket.create_connection(("127.0.0.1", chain.port)).close()
        finally:
            chain.stop()


def test_a_server_that_dropped_root_is_replaced_by_one_that_drops_it_too(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for folder in [tmp_path, *tmp_path.parents][:4]:
        folder.chmod(0o755)
    chain = ServerChain(tmp_path, "-u", "nobody", "-P", tmp_path / "pid")
    try:
        chain.begin()
        with background_load(chain.port):
            for _ in range(2):
                new = chain.upgrade()
                assert (tmp_path / "pid").read_text() == f"{new.running.pid}\n"
                assert (chain.gate.stat().st_uid, chain.gate.stat().st_mode & 0o777) == (65534, 0o600)
        assert "starts empty" not in chain.current.log()
    finally:
        for server in chain.processes:
            server.stop()
        removal = [SERVER, "--remove-region", chain.region]
        subprocess.run(removal, check=False, capture_output=True, timeout=STOP_S, user="nobody")


def test_upgrade_of_a_daemonised_server(tmp_path):
    chain = ServerChain(tmp_path, "-d", "-P", tmp_path / "pid")
    try:
        for more in [], ["--take-over"]:
            ended = subprocess.run([SERVER, *map(str, chain.arguments), *more], check=False, timeout=STOP_S)
            assert ended.returncode == 0
            connect(chain.port).add("key", "value")
            assert connect(chain.port).get("key") == b"value"
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        eventually(lambda: not (tmp_path / "pid").exists(), "it has ended")
        chain.stop()
