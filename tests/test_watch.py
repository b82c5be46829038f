"""An operator's view of running requests: `watch`, and `stats detail`."""

import re
import socket

import pytest
from processes import PROGRAMS, Process, Server, accepts_at, answers, connect, eventually, stats

LINE = re.compile(r"ts=\d+\.\d{6} gid=\d+ type=(\w+) (.*)")


class Watcher:
    """A connection that watches."""

    def __init__(self, port: int, kinds: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.sendall(f"watch {kinds}\r\n".encode())
        assert self.socket.recv(4) == b"OK\r\n"
        self.received = ""

    def until(self, condition) -> list[tuple[str, dict[str, str]]]:
        """The lines, once they satisfy the condition: type and fields of each."""
        while not condition(self.lines()):
            piece = self.socket.recv(65536)
            assert piece, f"closed behind {self.received}"
            self.received += piece.decode()
        return self.lines()

    def lines(self) -> list[tuple[str, dict[str, str]]]:
        """The lines received so far."""
        whole = self.received.split("\n")[:-1]
        matches = [LINE.fullmatch(line) for line in whole if not line.startswith("skipped=")]
        assert all(matches), whole
        return [(match[1], dict(field.split("=", 1) for field in match[2].split())) for match in matches]


def talk(port: int, sent: bytes, last: bytes) -> bytes:
    """All that comes back up to `last`."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        answer = b""
        while not answer.endswith(last):
            piece = connection.recv(65536)
            assert piece, answer
            answer += piece
        return answer


def watching(port: int, count: int) -> None:
    """Waits until `count` watchers are connected."""
    eventually(lambda: int(stats(port)["log_watchers"]) == count, f"{count} watchers")
    # A watcher counts from its arrival; the workers record its kinds once its thread has updated them.
    eventually(lambda: sum(b"conn_watch" in line for line in conns(port)) == count, "they are watching")


def conns(port: int) -> list[bytes]:
    """The lines of `stats conns`."""
    return talk(port, b"stats conns\r\n", b"END\r\n").split(b"\r\n")


def test_each_watcher_sees_its_own_kinds(tmp_path):
    server = Server("server", tmp_path, "-t", "3")
    port = server.port
    try:
        kinds = ("fetchers", "mutations", "connevents", "deletions", "fetchers deletions")
        fetchers, mutations, connections, deletions, both = watchers = [Watcher(port, kind) for kind in kinds]
        watching(port, len(watchers))
        talk(
            port,
            b"set a 5 0 3\r\nabc\r\nget a b%20\r\nadd a 0 0 1\r\nx\r\nmg a v\r\nms m 2\r\nhi\r\nmd m\r\ndelete a\r\n"
            b"delete a\r\nquit\r\n",
            b"DELETED\r\nNOT_FOUND\r\n",
        )
        lines = fetchers.until(lambda lines: len(lines) >= 3)
        assert [(kind, line["key"], line["status"]) for kind, line in lines] == [
            ("item_get", "a", "found"),
            ("item_get", "b%2520", "not_found"),
            ("item_get", "a", "found"),
        ]
        assert (lines[0][1]["size"], lines[0][1]["clsid"], lines[1][1]["clsid"]) == ("3", "1", "0")
        lines = mutations.until(lambda lines: len(lines) >= 3)
        assert [(line["key"], line["status"], line["cmd"], line["size"]) for _, line in lines] == [
            ("a", "stored", "set", "3"),
            ("a", "not_stored", "add", "1"),
            ("m", "stored", "ms", "2"),
        ]
        lines = deletions.until(lambda lines: len(lines) >= 2)
        assert [(kind, line["key"], line["cmd"], line["clsid"], line["size"]) for kind, line in lines] == [
            ("deleted", "m", "md", "1", "2"),
            ("deleted", "a", "delete", "1", "3"),
        ]
        assert {kind for kind, _ in both.until(lambda lines: len(lines) >= 5)} == {"item_get", "deleted"}
        lines = connections.until(lambda lines: sum(kind == "conn_close" for kind, _ in lines) >= 3)
        closed = [line for kind, line in lines if kind == "conn_close"][-1]
        assert (closed["rip"], closed["transport"], closed["reason"]) == ("127.0.0.1", "tcp", "normal")
    finally:
        assert server.stop() == 0


def test_no_connection_behind_the_ok_is_missing(tmp_path):
    """The reply promises that every thread records from now on. It came before that: 10 of 40 were missing."""
    path = tmp_path / "socket"
    server = Process("server", [PROGRAMS / "lookaside-server", "-t", "4", "-s", path], tmp_path)
    try:
        server.wait_ready(lambda: accepts_at(path))
        for attempt in range(100):
            with socket.socket(socket.AF_UNIX) as watcher, socket.socket(socket.AF_UNIX) as other:
                watcher.settimeout(20)
                watcher.connect(str(path))
                watcher.sendall(b"watch connevents\r\n")
                assert watcher.recv(4) == b"OK\r\n"
                other.connect(str(path))
                received = b""
                while b"type=conn_new" not in received:
                    piece = watcher.recv(1 << 16)
                    assert piece, f"attempt {attempt}: {received}"
                    received += piece
    finally:
        assert server.stop() == 0


def test_slab_class_and_size_are_the_items_own(tmp_path):
    server = Server("server", tmp_path)
    port = server.port
    try:
        fetchers, mutations, deletions = watchers = [
            Watcher(port, kind) for kind in ("fetchers", "mutations", "deletions")
        ]
        watching(port, len(watchers))
        value = b"x" * 10_000
        talk(
            port,
            b"set k 0 0 10000\r\n%s\r\nappend k 0 0 5\r\nhello\r\nadd k 0 0 2\r\nno\r\nget k\r\nmg k\r\n"
            b"ms b2s= 5000 b\r\n%s\r\nmn\r\n" % (value, value[:5_000]),
            b"MN\r\n",
        )
        classes = {
            key: cls
            for key, cls in re.findall(
                rb"key=(\w+) .* cls=(\d+) ", talk(port, b"lru_crawler metadump all\r\n", b"END\r\n")
            )
        }
        large, middle = classes[b"k"].decode(), classes[b"ok"].decode()
        assert int(large) > int(middle) > 1
        talk(port, b"md b2s= b\r\ndelete k\r\ndelete k\r\n", b"NOT_FOUND\r\n")

        def fields(watcher: Watcher, count: int) -> list[tuple[str, str, str]]:
            return [
                (line["key"], line["clsid"], line["size"])
                for _, line in watcher.until(lambda lines: len(lines) >= count)
            ]

        assert fields(mutations, 4) == [
            ("k", large, "10000"),
            ("k", large, "10005"),
            ("k", "0", "2"),
            ("ok", middle, "5000"),
        ]
        assert fields(fetchers, 2) == [("k", large, "10005")] * 2
        assert fields(deletions, 2) == [("ok", middle, "5000"), ("k", large, "10005")]
    finally:
        assert server.stop() == 0


def test_evictions_are_logged_to_watchers(tmp_path):
    server = Server("server", tmp_path, "-m", "2")
    port = server.port
    try:
        watcher = Watcher(port, "evictions")
        watching(port, 1)
        client = connect(port)
        for number in range(400):
            client.set(f"key {number}".replace(" ", "-"), b"v" * 20_000, noreply=True)
        lines = watcher.until(lambda lines: len(lines) >= 100)
        assert {kind for kind, _ in lines} == {"eviction"}
        line = lines[0][1]
        assert (line["fetch"], line["ttl"], line["size"]) == ("no", "-1", "20000") and int(line["clsid"]) > 20
        assert client.get(line["key"]) is None
        assert int(stats(port)["evictions"]) >= len(lines)
    finally:
        server.stop()


def test_a_slow_watcher_loses_lines_and_gets_the_number_skipped(tmp_path):
    server = Server("server", tmp_path)
    port = server.port
    try:
        slow = Watcher(port, "fetchers")
        watching(port, 1)
        keys = b" ".join(b"key-%0200d" % n for n in range(50))
        while int(stats(port)["log_watcher_skipped"]) == 0:
            talk(port, b"get " + keys + b"\r\n", b"END\r\n")
        values = stats(port)
        assert int(values["log_worker_written"]) == int(values["log_watcher_sent"]) + int(values["log_watcher_skipped"])

        def one_more(_lines) -> bool:
            talk(port, b"get another\r\n", b"END\r\n")
            return "skipped=" in slow.received

        slow.until(one_more)
        skipped = sum(int(number) for number in re.findall(r"skipped=(\d+)\n", slow.received))
        assert 0 < skipped <= int(stats(port)["log_watcher_skipped"])
        slow.socket.close()
        watching(port, 0)
    finally:
        server.stop()


def test_at_most_twenty_watchers_and_unknown_kinds_are_refused(tmp_path):
    server = Server("server", tmp_path)
    port = server.port
    try:
        for line in (b"watch bogus\r\n", b"watch mutations bogus\r\n", b"watch fetchers noreply\r\n"):
            assert talk(port, line, b"\r\n") == b"ERROR\r\n"
        watchers = [Watcher(port, "proxyreqs") for _ in range(20)]
        assert talk(port, b"watch\r\n", b"\r\n") == b"WATCHER_TOO_MANY log watcher limit reached\r\n"
        assert int(stats(port)["curr_connections"]) == 21
        watchers.pop().socket.close()
        watching(port, 19)
        Watcher(port, "")
    finally:
        server.stop()
    server = Server("forbidding", tmp_path, "-W")
    try:
        assert talk(server.port, b"watch\r\n", b"\r\n") == b"CLIENT_ERROR watch commands not allowed\r\n"
    finally:
        server.stop()


def test_stats_detail_counts_by_prefix(server):
    answer = talk(
        server.port,
        b"set early:1 0 0 1\r\nx\r\nstats detail on\r\nset a:1 0 0 1\r\nx\r\nadd a:1 0 0 1\r\nx\r\n"
        b"get a:1 a:2 plain\r\n"
        b"set :x 0 0 1\r\nx\r\nset b:c:d 0 0 1\r\nx\r\ndelete nothere:1\r\nmg a:1\r\ngat 0 a:1\r\nstats detail dump\r\n"
        b"stats detail off\r\nget a:1\r\nstats detail dump\r\nstats reset\r\nstats detail dump\r\nmn\r\n",
        b"MN\r\n",
    ).decode()
    dumped = [
        "PREFIX  get 0 hit 0 set 1 del 0",
        "PREFIX a get 3 hit 2 set 2 del 0",
        "PREFIX b get 0 hit 0 set 1 del 0",
        "PREFIX nothere get 0 hit 0 set 0 del 1",
        "END",
    ]
    assert [line for line in answer.split("\r\n") if line.startswith("PREFIX")] == dumped[:4] * 2
    assert answer.endswith("RESET\r\nEND\r\nMN\r\n")


@pytest.mark.parametrize("delimiter", ["/", "#"])
def test_another_delimiter_counts_from_the_start(tmp_path, delimiter):
    server = Server("server", tmp_path, "-D", delimiter)
    try:
        assert answers(server.port)
        connect(server.port).set(f"a:b{delimiter}c", "x")
        answer = talk(server.port, b"stats detail dump\r\n", b"END\r\n")
        assert answer == b"PREFIX a:b get 0 hit 0 set 1 del 0\r\nEND\r\n"
        assert connect(server.port).stats("settings")[b"detail_enabled"] in (b"yes", True)
    finally:
        server.stop()


def traced_lines(server: Server, descriptor: str) -> list[str]:
    """The log lines of one connection since its `set`: `<` commands, `>` replies."""
    lines = [line for line in re.findall(r"TRACE ([<>]\d+ .*)", server.log()) if line[1:].startswith(descriptor + " ")]
    # An earlier connection may have had the same descriptor.
    return lines[next(at for at, line in enumerate(lines) if " set k " in line) :]


def test_vv_logs_commands_and_replies_without_values(tmp_path):
    server = Server("server", tmp_path, "-vv", "-t", "1")
    port = server.port
    try:
        talk(
            port,
            b"set k 1 0 6\r\nhidden\r\nget k absent\r\nbad \x1b[2J line\r\nmg k v\r\nstats\r\n"
            b"append k 0 0 6 noreply\r\nhidden\r\nmn\r\n",
            b"MN\r\n",
        )
        eventually(lambda: re.search(r">\d+ MN", server.log()), "the last reply is logged")
        descriptor = re.search(r">(\d+) MN", server.log())[1]
        commands = [
            "set k 1 0 6",
            "get k absent",
            r"bad \x1b[2J line",
            "mg k v",
            "stats",
            "append k 0 0 6 noreply",
            "mn",
        ]
        replies = ["STORED", "sending key k", "END", "ERROR", "VA 6", "END", "MN"]
        lines = traced_lines(server, descriptor)
        assert [line.split(" ", 1)[1] for line in lines if line.startswith("<")] == commands
        assert [line.split(" ", 1)[1] for line in lines if line.startswith(">")] == replies
        noop, get = (
            bytes([0x80, opcode, 0, key_bytes]) + bytes(7) + bytes([key_bytes]) + bytes(12)
            for opcode, key_bytes in ((0x0A, 0), (0x00, 1))
        )
        talk(port, get + b"k" + noop, bytes([0x81, 0x0A]) + bytes(22))
        eventually(lambda: re.search(r">\d+ +0x81 0x0a 0x00 0x00", server.log()), "a binary response is logged")
        assert re.search(r"<\d+    0x80 0x00 0x00 0x01", server.log()) and re.search(r"<\d+ key k\n", server.log())
        assert "hidden" not in server.log()
        talk(port, b"verbosity 1\r\nmn\r\n", b"MN\r\n")
        talk(port, b"get quiet\r\n", b"END\r\n")
        talk(port, b"verbosity 2\r\nmn\r\n", b"MN\r\n")
        talk(port, b"get loud\r\n", b"END\r\n")
        eventually(lambda: "get loud" in server.log(), "it is logged again")
        assert "get quiet" not in server.log()
    finally:
        assert server.stop() == 0
