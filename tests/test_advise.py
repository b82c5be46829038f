"""`lookaside advise`: where the keys of a trace should be cached (§3.2.2, §3.2.3, §4.2)."""

import contextlib
import json
import random
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from processes import PROGRAMS, Server, eventually, stats

SECONDS = 20


def advise(path, *arguments: str) -> subprocess.CompletedProcess:
    command = [PROGRAMS / "lookaside", "advise", "--clusters", "4", *arguments, path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def requests_of_table_1():
    """Family `a` is used by many users, `b` by one for each key; `feed` is rewritten all the time."""
    rng = random.Random(1)
    for second in range(SECONDS):
        for _ in range(400):
            yield f"{second},a:{rng.randrange(200)},10,10700,user{rng.randrange(30)},get,0"
        for _ in range(60):
            key = rng.randrange(300)
            yield f"{second},b:{key},10,4340,user{key},get,0"
        for _ in range(50):
            yield f"{second},feed:{rng.randrange(20)},10,1000,user{rng.randrange(30)},set,0"


def test_a_trace_that_is_missing_is_reported_once(tmp_path):
    # The system's reason was there twice.
    done = advise(tmp_path / "missing.csv")
    assert done.returncode == 1 and done.stderr.count("No such file") == 1, done.stderr


def test_the_families_of_the_paper_are_placed_as_in_the_paper(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(requests_of_table_1()) + "\n")
    done = advise(trace, "--json")
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)
    families = {family["family"]: family for family in advice["families"]}
    placements = {name: family["placement"] for name, family in families.items()}
    assert placements == {"a": "cluster", "b": "regional", "feed": "own_pool"}
    b = families["b"]
    assert (b["users_per_key_median"], b["value_bytes_median"], b["gets_per_s"]) == (1, 4340, 60)
    # Four gets of a key reach 2.7 of four clusters on average.
    assert advice["saved_bytes"] == b["saved_bytes"]
    assert b["data_bytes"] * 1.4 < b["saved_bytes"] < b["data_bytes"] * 2

    text = advise(trace).stdout
    assert "regional" in text and "would be saved" in text, text


def test_a_family_is_replicated_if_each_cluster_has_more_gets_than_a_server_answers(tmp_path):
    """400 gets a second of family `a` are 100 in each of four clusters. They were compared as if each had them all."""
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(requests_of_table_1()) + "\n")

    def advice_on_a(server_gets: int) -> dict:
        families = json.loads(advise(trace, "--json", "--server-gets", str(server_gets)).stdout)["families"]
        return next(family for family in families if family["family"] == "a")

    calm, hot = advice_on_a(150), advice_on_a(60)
    assert (calm["placement"], calm["cost_bytes"]) == ("cluster", 0)
    assert hot["placement"] == "replicated" and "100 gets/s in each cluster" in hot["why"]
    # Two servers in each cluster: the second ones have what all clusters hold once more.
    assert 3.9 * hot["data_bytes"] < hot["cost_bytes"] <= 4 * hot["data_bytes"]


def test_a_trace_without_keys_is_refused_with_the_line(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("1,a:1,3,100,u,get,0\nnonsense\n")
    done = advise(trace)
    assert done.returncode == 1 and "line 2" in done.stderr, done.stderr
    trace.write_text("")
    done = advise(trace)
    assert done.returncode == 1 and "has no requests" in done.stderr, done.stderr


class Watching:
    """`lookaside advise --watch` of some servers, which ends when it is interrupted."""

    def __init__(self, servers: list[Server], *arguments: str) -> None:
        self.servers = servers
        self.own_watches: list[socket.socket] = []
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        command = [PROGRAMS / "lookaside", "advise", "--clusters", "4", "--watch", addresses, "--json", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_begun(self) -> None:
        """Waits until all servers are watched. Then the test watches them, too: each event is sent to it last."""
        for server in self.servers:
            eventually(lambda server=server: phase_of_connections(server).count("conn_watch") == 1, "it watches")
            watch = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            watch.sendall(b"watch fetchers mutations deletions\r\n")
            assert watch.recv(4) == b"OK\r\n"
            self.own_watches.append(watch)

    def wait_read(self, events: int) -> None:
        """Waits until the servers have sent this number of requests, and all were read."""
        lines = 0
        for watch in self.own_watches:
            watch.setblocking(False)

        def is_sent() -> bool:
            nonlocal lines
            for watch in self.own_watches:
                with contextlib.suppress(BlockingIOError):
                    lines += watch.recv(1 << 16).count(b"\n")
            return lines >= events

        eventually(is_sent, f"{events} requests are sent")
        for watch in self.own_watches:
            watch.close()
        eventually(lambda: not any(unread_bytes(server.port) for server in self.servers), "all are read")

    def interrupt(self) -> tuple[int, dict, str]:
        """Ctrl-C: the exit code, the advice by family with `watched`, and what it says on standard error."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        advice = json.loads(out) if out else {"families": [], "watched": None}
        families = {family["family"]: family for family in advice["families"]}
        return self.process.returncode, {"watched": advice["watched"], **families}, err

    def kill(self) -> None:
        """Ends it if it still runs."""
        self.process.kill()
        self.process.communicate()


def phase_of_connections(server: Server) -> list[str]:
    """What the connections of a server do, by `stats conns`."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"stats conns\r\n")
        lines = iter(connection.makefile().readline, "END\n")
        return [line.split()[2] for line in lines if ":state " in line]


def unread_bytes(port: int) -> int:
    """The bytes that programs on this host have not read yet from their connections to `port`."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    to_port = [line for line in lines if int(line[2].split(":")[1], 16) == port]
    return sum(int(line[4].split(":")[1], 16) for line in to_port)


@pytest.fixture
def servers(tmp_path):
    """Two servers of a pool."""
    started = [Server(f"server-{number}", tmp_path) for number in range(2)]
    yield started
    for server in started:
        server.stop()


class Client:
    """A client with an address of its own, connected to all servers; each key has one server."""

    def __init__(self, servers: list[Server], host: str) -> None:
        self.sockets = [
            socket.create_connection(("127.0.0.1", server.port), timeout=10, source_address=(host, 0))
            for server in servers
        ]

    def send(self, number: int, command: str, end: str) -> None:
        """Sends a command about the key with this number, and reads up to the end of the reply."""
        connection = self.sockets[number % len(self.sockets)]
        connection.sendall(command.encode())
        reply = b""
        while not reply.endswith(end.encode()):
            piece = connection.recv(1 << 16)
            assert piece, reply
            reply += piece

    def close(self) -> None:
        """Closes the connections."""
        for connection in self.sockets:
            connection.close()


def make_traffic(clients: list[Client]) -> int:
    """Families `a`, which all clients read, and `b`, of which each key has one client. Returns the number of events."""
    events = 0
    for number in range(20):
        clients[0].send(number, f"set a:{number} 0 0 5\r\nhello\r\n", "STORED\r\n")
        clients[number % len(clients)].send(number, f"set b:{number} 0 0 4000\r\n{'x' * 4000}\r\n", "STORED\r\n")
        events += 2
        for client in clients:
            client.send(number, f"get a:{number}\r\n", "END\r\n")
            events += 1
        for _ in range(4):
            clients[number % len(clients)].send(number, f"get b:{number}\r\n", "END\r\n")
            events += 1
    clients[0].send(0, "delete a:0\r\n", "DELETED\r\n")
    return events + 1


def test_running_servers_are_watched(servers):
    early = [Client(servers, f"127.0.1.{n}") for n in range(1, 5)]
    watching = Watching(servers, "--client-addresses", "--seconds", "600")
    try:
        watching.wait_begun()
        # Some have connected before, some connect now, and one number is used by two clients in turn.
        late = [Client(servers, f"127.0.1.{n}") for n in range(5, 9)]
        late[0].close()
        late[0] = Client(servers, "127.0.1.9")
        events = make_traffic(early + late)
        watching.wait_read(events)
        code, advice, err = watching.interrupt()
        assert code == 0, err
        watched = advice["watched"]
        assert (watched["requests"], watched["dropped_events"]) == (events, 0)
        a, b = advice["a"], advice["b"]
        # All keys of both servers, each with its own users and sizes.
        assert (a["keys"], a["users_per_key_median"], a["value_bytes_median"]) == (20, 8, 5)
        assert (b["keys"], b["users_per_key_median"], b["value_bytes_median"]) == (20, 1, 4000)
        rates = [rate * watched["seconds"] for rate in (a["gets_per_s"], b["sets_per_s"], a["deletes_per_s"])]
        assert rates == pytest.approx([160, 20, 1])
        assert (a["placement"], b["placement"]) == ("cluster", "regional") and b["saved_bytes"] > 0
    finally:
        watching.kill()


def test_routers_are_no_users(servers):
    # A server behind routers sees one or two clients: each family would seem to have few users.
    watching = Watching(servers, "--seconds", "600")
    try:
        watching.wait_begun()
        clients = [Client(servers, "127.0.1.1")]
        events = make_traffic(clients)
        watching.wait_read(events)
        code, advice, err = watching.interrupt()
        assert code == 0, err
        assert advice["watched"]["requests"] == events
        assert advice["b"]["users_per_key_median"] is None and advice["b"]["placement"] != "regional"
    finally:
        watching.kill()


def test_a_server_that_is_lost_is_reported_and_the_others_are_watched(servers):
    watching = Watching(servers, "--seconds", "600")
    try:
        watching.wait_begun()
        client = Client(servers, "127.0.1.1")
        client.send(0, "set a:0 0 0 1\r\nx\r\n", "STORED\r\n")
        watching.wait_read(1)
        servers[1].kill()
        sent_before = int(stats(servers[0].port)["log_watcher_sent"])
        client.send(0, "get a:0\r\n", "END\r\n")
        eventually(lambda: int(stats(servers[0].port)["log_watcher_sent"]) > sent_before, "the get is sent")
        eventually(lambda: not unread_bytes(servers[0].port), "the get is read")
        code, advice, err = watching.interrupt()
        assert code == 0 and advice["watched"]["requests"] == 2, err
        assert f"127.0.0.1:{servers[1].port}" in err and "the others are watched" in err
    finally:
        watching.kill()


def test_what_cannot_be_watched_is_refused(servers):
    def refusal(*arguments: str, code: int = 1) -> str:
        command = [PROGRAMS / "lookaside", "advise", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code and not done.stdout, done
        return done.stderr

    address = f"127.0.0.1:{servers[0].port}"
    assert "no requests in 1 seconds" in refusal("--watch", address, "--seconds", "1")
    assert "127.0.0.1:1" in refusal("--watch", f"{address},127.0.0.1:1")
    assert "TRACE" in refusal(code=2)
    assert "cannot be used with" in refusal("--watch", address, "trace.csv", code=2)
    assert "cannot be used with" in refusal("--client-addresses", "trace.csv", code=2)
