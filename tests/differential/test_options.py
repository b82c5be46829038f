"""The effect of options, compared with memcached started the same way: passwords, TLS, prefixes, watchers."""

import os
import re
import socket
import ssl
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from certificates import Authority  # noqa: E402
from processes import PROGRAMS, Process, accepts, free_port  # noqa: E402

MEMCACHED = os.environ.get("LOOKASIDE_MEMCACHED")

pytestmark = pytest.mark.skipif(MEMCACHED is None, reason="LOOKASIDE_MEMCACHED names no memcached")

READY_SECONDS = 20


@pytest.fixture
def started(tmp_path):
    """Starts memcached and ours with the same arguments; two ports."""
    processes = []

    def start(*arguments: str) -> list[int]:
        ports = []
        for name, program in (("memcached", MEMCACHED), ("ours", PROGRAMS / "lookaside-server")):
            port = free_port()
            words = [argument.format(port=port) for argument in arguments]
            command = [program, "-u", "root", "-p", port, "-t", "1", "-U", "0", *words]
            if not any(argument.startswith("-l") for argument in arguments):
                command += ["-l", "127.0.0.1"]
            process = Process(name, command, tmp_path)
            processes.append(process)
            process.wait_ready(lambda port=port: accepts(port))
            ports.append(port)
        return ports

    yield start
    for process in processes:
        process.stop()


def request_reply(port: int, requests: list[bytes], context: ssl.SSLContext | None = None) -> list[bytes]:
    """A reply to each request."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        connection = context.wrap_socket(plain, server_hostname="localhost") if context else plain
        replies = []
        for request in requests:
            connection.sendall(request)
            reply = connection.recv(65536)
            while reply and not reply.endswith(b"\r\n"):
                reply += connection.recv(65536)
            replies.append(reply)
        return replies


@pytest.mark.parametrize(
    "requests",
    [
        [b"get a\r\n", b"version\r\n", b"set a 0 0 10\r\nada secret\r\n", b"set a 0 0 1\r\nx\r\n", b"get a\r\n"],
        [b"set a 0 0 9\r\nada other\r\n", b"get a\r\n", b"set x y z 10 noreply\r\nada secret\r\n", b"mn\r\n"],
        [b"set a 0 0 3\r\nada\r\n", b"set a 0 0\r\n", b"set a 0 0 x\r\n", b"set a 0 0 7\r\nbob x y\r\n", b"mn\r\n"],
        [b"set a 0 0 10\r\nada secretxx", b"set a 0 0 10\r\nada secret\r\n", b"mn\r\n"],
        [b"mg a v\r\n", b"add a 0 0 10\r\n", b"set a 0 0 5\r\neve x\r\n", b"flush_all\r\n"],
    ],
)
def test_ascii_authentication(started, tmp_path, requests):
    users = tmp_path / "users"
    users.write_text("ada:secret\nbob:x y\n")
    theirs, ours = (request_reply(port, requests) for port in started("-Y", str(users), "-B", "ascii"))
    assert ours == theirs


def test_certificates_and_their_errors(started, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    ports = started("-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}", "-l", "127.0.0.1:{port}")
    requests = [b"set a 0 0 1\r\nx\r\n", b"get a\r\n", b"refresh_certs\r\n", b"gets nothing\r\n"]
    theirs, ours = (request_reply(port, requests, authority.context()) for port in ports)
    assert ours == theirs
    certificate.unlink()
    theirs, ours = (request_reply(port, [b"refresh_certs\r\n"], authority.context())[0] for port in ports)
    begin = b"Error loading the certificate chain: " + str(certificate).encode() + b" : "
    assert theirs.startswith(begin) and ours.startswith(begin)


def test_prefixes(started):
    commands = (
        b"stats detail on\r\nset a:1 0 0 1\r\nx\r\nadd a:1 0 0 1\r\nx\r\nget a:1 a:2 plain\r\nset :x 0 0 1\r\nx\r\n"
        b"gets a:1\r\ngat 0 a:1\r\nmg a:1 v\r\nms a:1 1\r\nx\r\nmd a:1\r\ndelete b:1\r\nincr a:1 1\r\ntouch a:1 1\r\n"
    )
    theirs, ours = (prefixes(port, commands) for port in started())
    assert ours == theirs


def prefixes(port: int, commands: bytes) -> set[bytes]:
    """The lines of `stats detail dump` after these commands: memcached's order is that of a hash table."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(commands + b"stats detail dump\r\nmn\r\n")
        answer = b""
        while not answer.endswith(b"MN\r\n"):
            answer += connection.recv(65536)
    return {line for line in answer.split(b"\r\n") if line.startswith(b"PREFIX")}


def test_lines_for_watchers(started):
    commands = (
        b"set a 5 0 3\r\nabc\r\nget a b\r\nadd a 0 0 1\r\nx\r\ncas a 0 0 1 1\r\nx\r\n"
        b"set k%20e 0 100 1\r\nx\r\nappend a 0 0 4\r\ndefg\r\n"
        b"set m 0 0 2\r\nhi\r\nmd m\r\ndelete a\r\ndelete a\r\nget last\r\n"
    )
    for kinds, kept in (("mutations", b"type="), ("deletions", b"type="), ("fetchers", b"key=b ")):
        theirs, ours = (watched(port, kinds, commands, kept) for port in started())
        assert ours == theirs, kinds


def watched(port: int, kinds: str, commands: bytes, kept: bytes) -> list[bytes]:
    """The lines that a watcher sees, without what differs from run to run."""
    watcher = socket.create_connection(("127.0.0.1", port), timeout=10)
    watcher.sendall(f"watch {kinds} connevents\r\n".encode())
    assert watcher.recv(4) == b"OK\r\n"
    # Watching has begun when a connection is seen to come.
    seen = b""
    watcher.settimeout(0.1)
    for _ in range(100):
        accepts(port)
        try:
            seen += watcher.recv(65536)
            break
        except TimeoutError:
            continue
    watcher.settimeout(10)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        name = b"rport=%d " % connection.getsockname()[1]
        connection.sendall(commands)
        answer = b""
        while not answer.endswith(b"END\r\n") or b"NOT_FOUND" not in answer:
            answer += connection.recv(65536)
    while not re.search(b"type=conn_close [^\n]*" + name, seen):
        seen += watcher.recv(65536)
    watcher.close()
    lines = [line for line in seen.split(b"\n") if kept in line and b"type=conn_" not in line]
    return [re.sub(rb"^ts=\d+\.\d+ gid=\d+|clsid=\d+|cfd=\d+", b"", line) for line in lines]


def test_sizes_have_memcacheds_shape(started):
    ports = started("-o", "track_sizes")
    lengths = [10, 10, 200, 5_000, 500_000]
    requests = [b"set k%d 0 0 %d\r\n%s\r\n" % (number, bytes_, b"x" * bytes_) for number, bytes_ in enumerate(lengths)]
    histograms = []
    for port in ports:
        empty, *stored, sizes, unknown = request_reply(
            port, [b"stats sizes\r\n", *requests, b"stats sizes\r\n", b"stats sizes_enable\r\n"]
        )
        assert (empty, set(stored), unknown) == (b"END\r\n", {b"STORED\r\n"}, b"ERROR\r\n")
        histograms.append([(int(size), int(count)) for size, count in re.findall(rb"STAT (\d+) (\d+)\r\n", sizes)])
    theirs, ours = histograms
    assert [count for _, count in ours] == [count for _, count in theirs] == [2, 1, 1, 1]
    # Our header is smaller by 40 bytes, so a size is the same step or one or two below.
    assert all(
        0 <= their_size - our_size <= 64 and our_size % 32 == 0
        for (their_size, _), (our_size, _) in zip(theirs, ours, strict=True)
    )


@pytest.mark.parametrize("general", ["ascii", "binary", "auto"])
@pytest.mark.parametrize("own", ["ascii", "binary", "negotiating"])
def test_a_protocol_of_an_address_goes_before_the_general_one(started, general, own):
    noop = bytes([0x80, 0x0A]) + bytes(22)
    for request, known in ((b"mn\r\n", own != "binary"), (noop, own != "ascii")):
        for port in started("-B", general, "-l", f"proto[{own}]:127.0.0.1:{{port}}") if known else ():
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(request)
                assert connection.recv(100)[:2] in (b"MN", b"\x81\x0a")
