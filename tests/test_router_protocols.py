"""Pools served by text and by meta commands: replies to clients are the same."""

import json
import re
import struct

import pytest
from leases import LeaseClient
from processes import PROGRAMS, Process, answers, free_port, stats

SCRIPT = b"""set a 5 0 3\r
abc\r
get a\r
get a b a c\r
gets a\r
gat 100 a b\r
gats 0 a\r
touch a 50\r
touch b 50\r
add a 0 0 1\r
x\r
add b 7 0 1\r
1\r
replace b 8 0 2\r
41\r
replace c 0 0 1\r
x\r
append b 0 0 1\r
0\r
prepend b 0 0 1\r
1\r
append c 0 0 1\r
x\r
get b\r
incr b 5\r
decr b 10000\r
incr a 5\r
incr c 1\r
cas a 0 0 1 99999999\r
x\r
cas c 0 0 1 1\r
x\r
set gone 0 -1 1\r
x\r
get gone\r
set empty 0 0 0\r
\r
get empty a\r
delete b\r
delete b\r
set quiet 0 0 1 noreply\r
7\r
incr quiet 1 noreply\r
touch quiet 0 noreply\r
append quiet 0 0 1 noreply\r
9\r
add quiet 0 0 1 noreply\r
x\r
get quiet\r
delete quiet noreply\r
delete quiet noreply\r
get quiet\r
ms m 2 T90 F3\r
mv\r
mg m s v f t k Oabc\r
mg bTI= b k v\r
mg none v\r
ms m 1 ME\r
x\r
ms m 1 MA q\r
y\r
mg m v q\r
mg none v q k\r
ma n N0 J5 v\r
ma n v D3\r
ma none q\r
md m q\r
md m q\r
md m I T30\r
ms s 1\r
x\r
md s I T30\r
mg s v c t N30\r
mg s v\r
mn\r
lease-get fresh\r
ms s 1 T\r
x\r
mn\r
""".replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


class Bench:
    """A server of its own behind a router of its own."""

    def __init__(self, folder, protocol: str) -> None:
        folder.mkdir()
        self.port, self.server_port = free_port(), free_port()
        self.server = Process(
            f"server-{protocol}", [PROGRAMS / "lookaside-server", "-t", "1", "-p", self.server_port], folder
        )
        self.server.wait_ready(lambda: answers(self.server_port))
        pool = {"servers": [f"127.0.0.1:{self.server_port}"], "protocol": protocol}
        text = json.dumps({"pools": {"A": pool}, "route": "PoolRoute|A"})
        command = [PROGRAMS / "lookaside-router", "-p", self.port, "--num-proxies", "1", "--config-str", text]
        self.router = Process(f"router-{protocol}", command, folder)
        self.router.wait_ready(lambda: answers(self.port))

    def stop(self) -> None:
        """Both."""
        self.router.stop()
        self.server.stop()


@pytest.fixture(params=["ascii", "meta"])
def bench(request, tmp_path):
    """A bench with text servers, and one with meta servers."""
    bench = Bench(tmp_path / "bench", request.param)
    bench.protocol = request.param
    yield bench
    bench.stop()


def replies(port: int, commands: bytes, end: bytes) -> bytes:
    """The reply up to `end`, without uniques and tokens, which differ by server."""
    client = LeaseClient(port)
    client.socket.sendall(commands + end + b"\r\n")
    answer = b""
    while not answer.endswith(b"\r\nVERSION") and b"\r\nVERSION " not in answer:
        piece = client.socket.recv(65536)
        assert piece, answer
        answer += piece
    client.close()
    answer = re.sub(rb"(VALUE \S+ \d+ \d+) \d+", rb"\1 CAS", answer.split(b"VERSION ")[0])
    return re.sub(rb"(LVALUE \S+) \d+", rb"\1 TOKEN", re.sub(rb" c\d+", b" cCAS", answer))


def test_replies_are_the_same_with_text_and_meta_servers(tmp_path, bench):
    direct_port = free_port()
    direct = Process("direct", [PROGRAMS / "lookaside-server", "-t", "1", "-p", direct_port], tmp_path)
    try:
        direct.wait_ready(lambda: answers(direct_port))
        expected = replies(direct_port, SCRIPT, b"version")
        assert b"VALUE a 5 3 CAS\r\nabc\r\n" in expected and b"LVALUE fresh TOKEN" in expected
        assert replies(bench.port, SCRIPT, b"version") == expected
    finally:
        direct.stop()
    counted = stats(bench.server_port)
    before = int(counted["cmd_meta"])
    client = LeaseClient(bench.port)
    for number in range(10):
        assert client.command(b"set k%d 0 0 1" % number, b"x") == b"STORED"
        assert client.command(b"incr none 1") == b"NOT_FOUND"
    client.close()
    asked_in_meta = int(stats(bench.server_port)["cmd_meta"]) - before
    assert asked_in_meta == (20 if bench.protocol == "meta" else 0)


def test_replies_match_requests_of_all_kinds(bench):
    commands, expected = [], []
    for n in range(500):
        commands += [b"set k%d 0 0 4\r\n%04d\r\nget k%d k%d none\r\n" % (n, n, n, max(0, n - 1))]
        commands += [b"set q%d 0 0 1 noreply\r\nx\r\nlease-get k%d\r\nmg k%d v\r\nmg none q\r\n" % (n, n, n)]
        item = b"VALUE k%d 0 4\r\n%04d\r\n"
        expected += [b"STORED\r\n" + item % (n, n) + item % (max(0, n - 1), max(0, n - 1)) + b"END\r\n"]
        expected += [item % (n, n) + b"END\r\nVA 4\r\n%04d\r\n" % n]
    assert replies(bench.port, b"".join(commands), b"version") == b"".join(expected)


class BinaryClient:
    """Requests of the binary protocol, bare."""

    def __init__(self, port: int) -> None:
        self.client = LeaseClient(port)

    def ask(self, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", cas: int = 0) -> list[tuple]:
        """The reply without uniques, if any, and the unique of the last reply."""
        body = extras + key + value
        head = struct.pack("!BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(body), 7, cas)
        self.client.socket.sendall(head + body + struct.pack("!BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 8, 0))
        results = []
        while True:
            head = struct.unpack("!BBHBBHIIQ", self.client.reader.read(24))
            opcode, key_bytes, extras_bytes, status, body_bytes, opaque = *head[1:4], *head[5:8]
            body = self.client.reader.read(body_bytes)
            if opaque == 8:
                return results
            self.cas = head[8]
            value = body[extras_bytes + key_bytes :]
            results.append((opcode, status, body[:extras_bytes], body[extras_bytes:][:key_bytes], value))


def binary_replies(port: int) -> list:
    """The replies to all key commands of the binary protocol, without uniques."""
    client = BinaryClient(port)
    flags, number = struct.pack("!II", 5, 0), struct.pack("!QQI", 3, 40, 0)
    results = []
    for key in (b"plain", b"two words"):
        results += [client.ask(0x01, key, b"10", flags), client.ask(0x00, key), client.ask(0x0C, key)]
        unique = client.cas
        assert unique, results
        # A stale unique changes nothing; the right one does.
        for cas in (unique + 999_999, unique):
            results += [client.ask(0x0E, key, b"1", cas=cas), client.ask(0x0D, key)]
        unique = client.cas
        results += [client.ask(0x05, key, extras=number, cas=unique + 999_999)]
        results += [client.ask(0x05, key, extras=number, cas=unique), client.ask(0x00, key)]
        unique = client.cas
        results += [client.ask(0x01, key, b"x", flags, cas=unique + 999_999), client.ask(0x11, key, b"y", flags)]
        results += [client.ask(0x09, key), client.ask(0x1D, key, extras=struct.pack("!I", 100))]
        unique = client.cas
        results += [
            client.ask(0x04, key, cas=unique + 999_999),
            client.ask(0x04, key, cas=unique),
            client.ask(0x04, key),
        ]
        results += [client.ask(opcode, key) for opcode in (0x00, 0x09, 0x0C, 0x0D, 0x14)]
        results += [
            client.ask(0x02, key, b"1", flags),
            client.ask(0x12, key, b"x", flags),
            client.ask(0x03, key, b"2", flags),
        ]
        results += [client.ask(0x19, key, b"3"), client.ask(0x1A, key, b"4"), client.ask(0x00, key)]
        results += [client.ask(0x15, key, extras=number), client.ask(0x00, key), client.ask(0x06, key, extras=number)]
        results += [client.ask(0x14, key), client.ask(0x05, key, extras=number), client.ask(0x05, key, extras=number)]
    client.client.close()
    return results


def test_binary_replies_are_the_same_with_text_and_meta_servers(tmp_path, bench):
    direct_port = free_port()
    direct = Process("direct", [PROGRAMS / "lookaside-server", "-t", "1", "-p", direct_port], tmp_path)
    try:
        direct.wait_ready(lambda: answers(direct_port))
        for results, expected in zip(binary_replies(bench.port), binary_replies(direct_port), strict=True):
            assert results == expected
    finally:
        direct.stop()
