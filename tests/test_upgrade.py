"""A server that takes over from another: no connection is refused or cut off, no item is lost, no delete undone."""

import struct
import subprocess

from processes import STOP_S, answers, connect, eventually, stats
from upgrade import (
    SERVER,
    Connection,
    ServerChain,
    background_load,
    conn_states,
    wait_for_requests,
)


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
        (["-p", "-1", *chain.arguments[2:]], "to replace a process that listens there, use --take-over"),
    ]:
        second = chain.spawn(arguments)
        assert second.running.wait(STOP_S) == 1
        assert why in second.log()
        chain.processes.pop()
    without = subprocess.run([SERVER, "--take-over"], capture_output=True, text=True, timeout=STOP_S, check=False)
    assert without.returncode == 2 and "--upgrade-socket" in without.stderr
    chain.upgrade()


def test_a_larger_memory_starts_empty_with_a_log_line(chain):
    chain.begin()
    with Connection(("127.0.0.1", chain.port)) as old:
        assert old.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
        server = chain.upgrade("-m", "80")
        assert "starts empty" in server.log()
        assert old.ask(b"get key\r\n") == b"END\r\n"


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
