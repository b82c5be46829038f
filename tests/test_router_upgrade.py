"""A router that takes over from another: no connection is refused or cut off, no request and no spooled delete is lost,
and no server with a backlog is read."""

import fcntl
import json
import random
import re
import signal
import socket
import struct
import time

import pytest
from certificates import Authority
from processes import STOP_S, Process, answers, eventually, free_port, frozen, silent_address, stats
from router_upgrade import ROUTER, RouterChain, deletes, fill
from routers import ask
from upgrade import (
    CONNECTION,
    HELLO,
    LISTENERS,
    QUIESCED,
    READY,
    Connection,
    FakePredecessor,
    FakeSuccessor,
    background_load,
    check_ports,
    stopped_successor,
    takeover_failures,
    wait_for_requests,
)


@pytest.fixture
def chain(tmp_path):
    """Routers with a spool."""
    chain = RouterChain(tmp_path)
    yield chain
    chain.stop()


def test_clients_under_load_see_nothing_of_upgrades_and_no_delete_is_lost(chain):
    chain.begin()
    with background_load(chain.port) as pools, deletes(chain) as deleter:
        for _ in range(5):
            before = len(deleter.acknowledged)
            chain.upgrade()
            wait_for_requests(pools, 20)
            eventually(lambda so_far=before: len(deleter.acknowledged) > so_far + 10, "deletes are kept")
    assert sum(pool.connects for pool in pools) > 50
    assert sum("recovered undelivered deletes" in router.log() for router in chain.processes) == 5
    assert not any("will be flushed" in router.log() for router in chain.processes)
    assert chain.current.stop() == 0


def test_a_connection_goes_on_in_the_middle_of_anything(tmp_path):
    path = tmp_path / "clients"
    chain = RouterChain(tmp_path, "-s", path, "--value-bytes-max", "2000000")
    large = b"x" * 900_000
    try:
        chain.begin()
        with (
            chain.connect() as silent,
            Connection(str(path)) as half,
            chain.connect() as refused,
            Connection(("127.0.0.1", chain.port), receive_bytes=4096) as slow,
            chain.connect() as binary,
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
                chain.upgrade()
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
        assert chain.current.stop() == 0 and not path.exists()
    finally:
        chain.stop()


@pytest.mark.parametrize("until", [HELLO, LISTENERS, READY, CONNECTION, QUIESCED])
def test_a_successor_that_dies_before_it_serves_changes_nothing(chain, until):
    router = chain.begin()
    with background_load(chain.port) as pools, deletes(chain) as deleter:
        for count in (1, 2):
            successor = FakeSuccessor(chain.gate, "lookaside-router")
            successor.go(until)
            successor.close()
            eventually(lambda count=count: takeover_failures(router, until) == count, "it goes on")
            wait_for_requests(pools, 20)
            before = len(deleter.acknowledged)
            eventually(lambda so_far=before: len(deleter.acknowledged) > so_far + 10, "deletes are kept")
        assert router.running.poll() is None
        chain.upgrade()


def test_a_successor_killed_at_any_moment_changes_nothing(chain):
    rng, times_back = random.Random(3), 0
    router = chain.begin()
    with background_load(chain.port, may_be_cut_off=True), deletes(chain, may_be_cut_off=True):
        for number in range(12):
            if number % 3 == 0:
                # Surely before it takes over, however fast it is: it does not listen yet.
                with frozen(router):
                    successor = chain.spawn([*chain.arguments, "--take-over"])
                    chain.wait_for_visitor()
                    successor.kill()
            else:
                successor = chain.spawn([*chain.arguments, "--take-over"])
                eventually(lambda successor=successor: "taking over from" in successor.log(), "it is there")
                # A random number of reads of the log: the kill comes before, during or after the takeover.
                for _ in range(rng.randrange(60)):
                    successor.log()
                successor.kill()
            if "has taken over" in router.log():
                router.running.wait(STOP_S)
                router = chain.begin()
            else:
                times_back += 1
                given_up = re.compile("does not take over|has not taken over")
                eventually(lambda router=router, end=given_up: end.search(router.log()), "it goes on")
                eventually(lambda: answers(chain.port), "it serves")
    assert times_back >= 4, times_back


def test_a_successor_that_is_stopped_before_it_serves_is_killed_and_the_old_router_goes_on(chain):
    router = chain.begin()
    fill(chain.cut)
    with chain.connect() as client:
        with frozen(chain.cut):
            assert client.ask(b"delete cut:1\r\n") == b"NOT_FOUND\r\n", "it is kept"
            successor = stopped_successor(chain)
            client.send(b"set key 0 0 1\r\n1\r\n")
            eventually(lambda: "takeover failed; continuing to serve" in router.log(), "it resumes")
            assert successor.running.wait(STOP_S) == -signal.SIGKILL
            assert client.line() == b"STORED\r\n"
        assert "has not taken over and was killed: the other process has timed out" in router.log()
        eventually(lambda: chain.behind() == 0, "all deletes are done")
        assert client.ask(b"get cut:1\r\n") == b"END\r\n"
    chain.upgrade()


def test_a_router_whose_spool_another_has_taken_ends_and_keeps_its_deletes(chain):
    """After a failed takeover a router must not read servers without the deletes in its spool."""
    first = chain.begin()
    fill(chain.cut)
    with frozen(chain.cut):
        assert ask(chain.port, "127.0.0.1", b"delete cut:1\r\n") == b"NOT_FOUND\r\n"
        successor = FakeSuccessor(chain.gate, "lookaside-router")
        successor.go(QUIESCED)
        with (chain.spool / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            successor.close()
            assert first.running.wait(STOP_S) == 1
        assert re.search("cannot open the spool again after a failed takeover: .*in use by another", first.log())
        assert "recovered undelivered deletes" in chain.begin().log()
    eventually(lambda: chain.behind() == 0, "the deletes are replayed")
    assert ask(chain.port, "127.0.0.1", b"get cut:1\r\n") == b"END\r\n"


def test_a_killed_predecessor_leaves_its_spool_and_its_ports(chain):
    first = chain.begin()
    with deletes(chain, may_be_cut_off=True) as deleter:
        first.freeze()
        second = chain.spawn([*chain.arguments, "--take-over"])
        chain.wait_for_visitor()
        first.kill()
        second.wait_ready(lambda: "listening on" in second.log())
        assert "recovered undelivered deletes" in second.log()
        before = len(deleter.acknowledged)
        eventually(lambda: len(deleter.acknowledged) > before + 10, "deletes are kept")


@pytest.mark.parametrize("upgraded", ["deletes", "reads"])
def test_an_upgrade_keeps_the_fences_of_and_at_a_peer(tmp_path, upgraded):
    """One router has a backlog for a server, the other one has fenced it for that. Either of them is upgraded."""
    peer_port = free_port()
    chain, peer = RouterChain(tmp_path, "--spool-peers", f"127.0.0.1:{peer_port}"), None
    try:
        chain.begin()
        command = [
            ROUTER, "-p", peer_port, "-f", chain.path, "--num-proxies", "2", "--server-timeout", "5000",
            "--probe-timeout-initial", "50", "--spool", tmp_path / "spool-of-peer",
            "--spool-peers", f"127.0.0.1:{chain.port}",
        ]  # fmt: skip
        peer = Process("peer", command, tmp_path)
        peer.wait_ready(lambda: answers(peer_port))
        for port in (chain.port, peer_port):
            eventually(lambda port=port: stats(port)["spool_peers_unreachable"] == "0", "they know each other")
        if upgraded == "deletes":
            chain.read_port = peer_port
        else:
            chain.delete_port = peer_port

        def is_fenced() -> bool:
            return stats(chain.read_port)["spool_servers_fenced_by_peers"] == "1"

        with deletes(chain) as deleter:
            eventually(is_fenced, "the other router has fenced the server")
            for _ in range(3):
                before = len(deleter.acknowledged)
                chain.upgrade()
                assert is_fenced()
                eventually(lambda so_far=before: len(deleter.acknowledged) > so_far + 10, "deletes are acknowledged")
            assert is_fenced()
        eventually(lambda: not is_fenced(), "the fence is released")
        assert not any("will be flushed" in router.log() for router in (*chain.processes, peer))
    finally:
        if peer:
            peer.stop()
        chain.stop()


def test_a_server_is_no_successor_of_a_router(chain):
    router = chain.begin()
    stranger = FakeSuccessor(chain.gate)
    stranger.send(HELLO, stranger.hello_payload)
    eventually(lambda: "does not take over: malformed message" in router.log(), "refused")
    stranger.close()
    chain.upgrade()


def test_take_over_without_a_predecessor_starts_normally(chain):
    first = chain.spawn([*chain.arguments, "--take-over"])
    first.wait_ready(lambda: answers(chain.port))
    assert "no process to take over from" in first.log()
    second = chain.spawn(chain.arguments)
    assert second.running.wait(STOP_S) == 2
    assert f"127.0.0.1:{chain.port} is taken" in second.log()
    chain.processes.pop()
    chain.upgrade()


def test_a_silent_server_does_not_prolong_the_pause(tmp_path):
    """The new process connected to the servers after it had taken over, and waited 2 s for one that was silent."""
    chain = RouterChain(tmp_path, "--connect-timeout", "10000")
    path = tmp_path / "router.json"
    try:
        with silent_address() as silent:
            configuration = json.loads(path.read_text())
            configuration["pools"]["silent"] = {"servers": [silent]}
            configuration["route"]["policies"]["silent:"] = "PoolRoute|silent"
            path.write_text(json.dumps(configuration))
            chain.begin()
            with chain.connect() as client:
                assert client.ask(b"get key\r\n") == b"END\r\n"
                new = chain.spawn([*chain.arguments, "--take-over"])
                longest_s, taken_over_at = 0.0, None
                # Also for a moment after it has taken over: its clients could wait then.
                while taken_over_at is None or time.monotonic() < taken_over_at + 1:
                    asked_at = time.monotonic()
                    assert client.ask(b"get key\r\n") == b"END\r\n"
                    longest_s = max(longest_s, time.monotonic() - asked_at)
                    if taken_over_at is None and "has taken over" in new.log():
                        taken_over_at = time.monotonic()
            assert longest_s < 1, f"a client waited {longest_s:.1f} s"
    finally:
        chain.stop()


def test_another_command_line_opens_closes_and_keeps_ports(tmp_path):
    kept, closed, opened, metrics = (free_port() for _ in range(4))
    chain = RouterChain(tmp_path, "-l", f"127.0.0.1:{kept},127.0.0.1:{closed}")
    chain.port = kept
    measured = ["--metrics-address", f"127.0.0.1:{metrics}"]
    try:
        chain.begin()
        chain.upgrade(*measured)
        with background_load(kept) as pools:
            chain.arguments[-1] = f"127.0.0.1:{kept},127.0.0.1:{opened}"
            chain.arguments[chain.arguments.index("--num-proxies") + 1] = "4"
            router = chain.upgrade(*measured)
            wait_for_requests(pools)
            assert f"127.0.0.1:{closed} was handed over, and no option asks for it" in router.log()
        check_ports(opened, closed, metrics)
    finally:
        chain.stop()


def test_a_successor_that_fails_in_order_leaves_the_unix_socket(tmp_path):
    chain = RouterChain(tmp_path, "-s", tmp_path / "clients")
    try:
        chain.begin()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            failed = chain.spawn([*chain.arguments, "--take-over", "--metrics-address", address])
            assert failed.running.wait(STOP_S) == 2
        assert "--metrics-address" in failed.log()
        chain.processes.remove(failed)
        with Connection(str(tmp_path / "clients")) as client:
            assert client.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
        chain.upgrade()
        with Connection(str(tmp_path / "clients")) as client:
            assert client.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
        chain.current.stop()
        assert not (tmp_path / "clients").exists()
    finally:
        chain.stop()


def test_tls_connections_close_cleanly_after_their_last_reply(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    secured = free_port()
    chain = RouterChain(tmp_path)
    chain.arguments += ["--ssl-port", secured, "--pem-cert-path", certificate, "--pem-key-path", key]
    try:
        chain.begin()
        with socket.create_connection(("127.0.0.1", secured)) as plain:
            plain.settimeout(STOP_S)
            with authority.context().wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as old:
                old.sendall(b"set key 0 0 1\r\n1\r\n")
                assert old.recv(100) == b"STORED\r\n"
                chain.spawn([*chain.arguments, "--take-over"])
                assert old.recv(100) == b"", "closed in order, not reset"
        chain.current.wait_ready(lambda: "has taken over" in chain.current.log())
        with chain.connect() as client:
            assert client.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
    finally:
        chain.stop()


def test_systemd_learns_the_new_main_pid_before_the_old_process_exits(chain, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(STOP_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        first = chain.begin()
        assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % first.running.pid
        new = chain.spawn([*chain.arguments, "--take-over"])
        assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % new.running.pid
        assert first.running.wait(STOP_S) == 0


def router_value(port: int, key: str) -> bytes:
    """The value of one of the router's own keys."""
    return ask(port, "127.0.0.1", f"get __mcrouter__.{key}\r\n".encode()).split(b"\r\n")[1]


def check_that_the_gate_opens_by(port: int, token: str) -> None:
    """The gate is still closed, and waits for the invalidator that names this token."""
    assert router_value(port, "start_gate") == f"waiting {token}".encode()
    assert ask(port, "127.0.0.1", b"get k\r\n").startswith(b"SERVER_ERROR router waits")
    assert router_value(port, f"caught_up({token})") == b"open"
    assert ask(port, "127.0.0.1", b"get k\r\n") == b"END\r\n"


@pytest.mark.parametrize("is_lost", [False, True], ids=["taken-over", "failed"])
def test_a_router_that_waits_for_the_invalidator_hands_its_gate_over(tmp_path, is_lost):
    """Such a router answered an upgrade only when its gate had opened: the new process waited for 20 s and gave up. It
    must take over at once, and the gate must stay closed, also if the new command line knows nothing of it."""
    chain = RouterChain(tmp_path)
    try:
        first = chain.spawn([*chain.arguments, "--wait-for-invalidator", "60"])
        first.wait_ready(lambda: "listening" in first.log() and chain.gate.exists())
        waiting, token = router_value(chain.port, "start_gate").decode().split()
        assert waiting == "waiting"
        if is_lost:
            successor = FakeSuccessor(chain.gate, "lookaside-router")
            successor.go(QUIESCED)
            successor.close()
            eventually(lambda: takeover_failures(first, QUIESCED) == 1, "the first one goes on")
        else:
            chain.upgrade()
        assert stats(chain.port)["pid"] == str(chain.current.running.pid)
        check_that_the_gate_opens_by(chain.port, token)
        # An open gate stays open.
        chain.upgrade("--wait-for-invalidator", "60")
        assert (stats(chain.port)["start_gate_open"], router_value(chain.port, "start_gate")) == ("1", b"open")
        assert ask(chain.port, "127.0.0.1", b"get k\r\n") == b"END\r\n"
    finally:
        chain.stop()


def test_a_gate_is_closed_if_the_predecessor_dies_before_it_hands_over(tmp_path):
    """The successor took the gate for open because there had been a predecessor. That is a restart like any other."""
    chain, fake = (
        RouterChain(tmp_path, "--wait-for-invalidator", 60),
        FakePredecessor(tmp_path / "upgrade", ROUTER.name),
    )
    try:
        fake.hand_over(None, dies=True)
        process = chain.take_over_port(fake.port)
        process.wait_ready(lambda: "has taken over" in process.log())
        assert router_value(fake.port, "start_gate").startswith(b"waiting ")
        assert ask(fake.port, "127.0.0.1", b"get k\r\n").startswith(b"SERVER_ERROR router waits")
    finally:
        chain.stop()
        fake.close()
