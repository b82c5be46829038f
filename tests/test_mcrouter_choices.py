"""How the router chooses servers and clients, as mcrouter does: hashes, failover, ports, the limit on connections."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from mcrouter_setups import hit, reply, set_of, setup
from processes import eventually, stats

VECTORS = Path(__file__).parents[1] / "crates" / "routing" / "tests" / "vectors"


def rendezvous(tags: list[str], key: str) -> str:
    """The tag that the program of the vectors chooses for a key."""
    program = (VECTORS / "rendezvous.py").read_text().split("keys = sys.stdin")[0]
    ask = f"print(last_of_highest(scores({tags!r}, {key!r})))"
    found = subprocess.run([sys.executable, "-c", program + ask], capture_output=True, text=True, check=True)
    return tags[int(found.stdout)]


def test_rendezvous_by_tags(tmp_path):
    """Keys are where the published hashes put them, and stay there when the servers are listed otherwise."""
    with setup(tmp_path) as it:
        names = ["one", "two", "three"]

        def configuration(names: list[str]) -> dict:
            pool = {"servers": [it.address(name) for name in names], "tags": names}
            return {
                "pools": {"A": pool},
                "route": {"type": "PoolRoute", "pool": "A", "hash": {"hash_func": "Rendezvous", "salt": "x"}},
            }

        it.file("config.json", configuration(names))
        it.start("-f", tmp_path / "config.json")
        keys = [f"key:{number}" for number in range(12)]
        assert set(it.ask(*(set_of(key, "v") for key in keys))) == {b"STORED\r\n"}
        assert [it.holders(key) for key in keys] == [{rendezvous(names, key + "x")} for key in keys]
        it.router.stop()
        it.file("config.json", configuration(["three", "one", "two"]))
        it.start("-f", tmp_path / "config.json")
        assert it.ask(*(f"get {key}\r\n".encode() for key in keys)) == [hit(key, "v") for key in keys]


def test_latest_as_a_hash(tmp_path):
    """All keys are at one server; when it is down, at the host's next one."""
    with setup(tmp_path) as it:
        names = ["one", "two", "three"]
        pool = {"servers": [it.address(name) for name in names]}
        hashed = {"hash_func": "Latest", "failover_count": 2, "thread_local_failover": True}
        it.file("config.json", {"pools": {"A": pool}, "route": {"type": "PoolRoute", "pool": "A", "hash": hashed}})
        it.start("-f", tmp_path / "config.json", "-t", "300")
        keys = [f"key:{number}" for number in range(10)]
        it.ask(*(set_of(key, "v") for key in keys))
        (first,) = it.holders(keys[0])
        assert all(it.holders(key) == {first} for key in keys)
        it.servers[first].kill()
        assert set(it.ask(*(set_of(key, "w") for key in keys))) == {b"STORED\r\n"}
        second = next(name for name in names if name != first and it.at(name, keys[0]) == b"w")
        it.servers[second].kill()
        assert it.ask(b"get key:1\r\n")[0].startswith(b"SERVER_ERROR"), "two of three are asked"


def test_failover_limit_is_a_share(tmp_path):
    """After the burst a tenth of the requests fails over; from a server that is out all do."""
    with setup(tmp_path) as it:
        pools = {name: {"servers": [it.address(name)]} for name in ("main", "gutter")}
        route = {
            "type": "FailoverRoute",
            "children": ["PoolRoute|main", "PoolRoute|gutter"],
            "failover_limit": {"rate": 0.1, "burst": 10},
        }
        it.file("config.json", {"pools": pools, "route": route})
        it.start("-f", tmp_path / "config.json", "--disable-tko-tracking")
        it.servers["main"].kill()
        replies = [it.ask(b"get k\r\n")[0] for _ in range(110)]
        through = replies.count(b"END\r\n")
        assert 18 <= through <= 22, "the burst, and a tenth of the others"
        assert replies[:10] == [b"END\r\n"] * 10
        it.router.stop()
        it.start("-f", tmp_path / "config.json", "-r", "60000")
        assert [it.ask(b"get k\r\n")[0] for _ in range(110)] == [b"END\r\n"] * 110, "the first failure marks it"


def test_the_least_recently_used_connection_is_closed(tmp_path):
    """A client above --max-conns is served, in the place of the one that was idle longest."""
    with setup(tmp_path) as it:
        it.file("config.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "config.json", "--max-conns", "3")
        eventually(lambda: stats(it.port)["curr_connections"] == "1", "the probes of the start are gone")
        clients = [socket.create_connection(("127.0.0.1", it.port), timeout=10) for _ in range(3)]

        def ask(client: socket.socket) -> bytes:
            client.sendall(b"get k\r\n")
            return client.recv(100)

        assert [ask(client) for client in clients] == [b"END\r\n"] * 3
        assert ask(clients[0]) == b"END\r\n"
        clients.append(socket.create_connection(("127.0.0.1", it.port), timeout=10))
        assert ask(clients[3]) == b"END\r\n"
        assert clients[1].recv(100) == b"", "of the three it was used first"
        assert [ask(client) for client in (clients[0], clients[2])] == [b"END\r\n"] * 2
        found = stats(it.port)
        # One for the fourth client and one for these stats; the router may still have counted a probe of the start.
        assert int(found["evicted_connections"]) in (2, 3) and found["rejected_connections"] == "0"
        for client in clients:
            client.close()
        it.router.stop()
        for bound in ("0", "1"):
            it.start("-f", tmp_path / "config.json", f"--max-conns={bound}")
            assert it.ask(b"get k\r\n") == [b"END\r\n"]
            it.router.stop()


@pytest.mark.parametrize("part", [b"set big 0 0 400000\r\n" + b"x" * 100_000, b"set big 0 0 400000\r\n", b"set b"])
def test_a_client_in_the_middle_of_a_command_is_not_closed_for_another(tmp_path, part):
    """It was: a value that had arrived in part did not count as a request in progress."""
    whole = b"set big 0 0 400000\r\n" + b"x" * 400_000 + b"\r\n"
    with setup(tmp_path) as it:
        it.file("config.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "config.json", "--max-conns", "2")
        eventually(lambda: stats(it.port)["curr_connections"] == "1", "the probes of the start are gone")
        with ExitStack() as stack:

            def connect() -> socket.socket:
                return stack.enter_context(socket.create_connection(("127.0.0.1", it.port), timeout=10))

            def ask(client: socket.socket, behind: bytes = b"") -> bytes:
                # With the reply the router has read what is behind the request, too.
                client.sendall(b"get k\r\n" + behind)
                return client.recv(100)

            sending = connect()
            assert ask(sending, part) == b"END\r\n"
            other = connect()
            assert ask(other) == b"END\r\n"
            third = connect()
            assert ask(third, b"set half 0 0 2\r\n") == b"END\r\n"
            assert other.recv(100) == b"", "it was used last, but has nothing in progress"
            assert ask(connect()).startswith(b"ERROR Too many open connections"), "all have requests in progress"
            third.sendall(b"ab\r\n")
            assert third.recv(100) == b"STORED\r\n"
            sending.sendall(whole.removeprefix(part))
            assert sending.recv(100) == b"STORED\r\n"
        assert len(it.at("one", "big")) == 400_000


def test_ports_by_region(tmp_path):
    """A pool of this region is reached at one port, the same hosts from another region at another."""
    with setup(tmp_path) as it:
        near, far = (int(it.address(name).rsplit(":")[-1]) for name in ("near", "far"))
        pool = {"servers": ["127.0.0.1:1"], "region": "r", "cluster": "c"}
        pool |= {"port_override": 1, "port_override_within_dc": near, "port_override_cross_dc": far}
        it.file("config.json", {"pools": {"A": pool}, "route": "PoolRoute|A"})
        for prefix, name in (("/r/c/", "near"), ("/s/c/", "far")):
            it.start("-f", tmp_path / "config.json", "-R", prefix)
            assert it.ask(set_of(name, "v")) == [b"STORED\r\n"]
            assert it.holders(name) == {name}
            it.router.stop()


def test_errors_of_one_text(tmp_path):
    """With --group-remote-errors a client does not see why a request failed."""
    with setup(tmp_path) as it:
        it.file("config.json", {"pools": {"A": {"servers": ["127.0.0.1:1"]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "config.json", "--group-remote-errors")
        error = b"SERVER_ERROR remote error\r\n"
        assert it.ask(b"get k\r\n", set_of("k", "v"), b"delete k\r\n") == [error] * 3


def test_idle_connections_to_servers_are_closed(tmp_path):
    """A connection without requests is closed after one to two intervals, and made again when it is needed."""
    with setup(tmp_path) as it:
        it.file("config.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "config.json", "--reset-inactive-connection-interval", "200")
        port = it.servers["one"].port
        before = int(stats(port)["curr_connections"])
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"]
        eventually(lambda: int(stats(port)["curr_connections"]) == before, "it is closed")
        assert it.ask(b"get k\r\n") == [hit("k", "v")]
        assert reply(it.port, b"get k\r\n" * 50).count(b"VALUE") == 50
