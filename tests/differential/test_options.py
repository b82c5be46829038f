"""The effect of options, compared with memcached started the same way: passwords, TLS, prefixes, watchers."""

import os
import re
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from certificates import Authority  # noqa: E402
from processes import PROGRAMS, ROOT, Process, accepts, eventually, free_port  # noqa: E402
from test_from_memcached import MEMCACHED_FLAGS  # noqa: E402

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


def test_every_option_of_memcached_is_on_the_page():
    """docs/from_memcached.md has each of them; tests/test_from_memcached.py compares the page with our program."""
    help_text = subprocess.run([MEMCACHED, "-h"], capture_output=True, text=True, timeout=20).stdout
    flags = set(re.findall(r"^-(\w)[, ]", help_text, re.MULTILINE))
    extended = set(re.findall(r"^ +- (\w+):", help_text, re.MULTILINE))
    page = (ROOT / "docs" / "from_memcached.md").read_text()
    assert len(flags) > 30 and len(extended) > 20, help_text
    assert flags == MEMCACHED_FLAGS
    assert [name for name in sorted(extended) if f"`{name}`" not in page] == []


OPERATORS_COMMANDS = (
    "bget key", "gets key", "gat 0 key", "gats 0 key", "touch key 0", "mn", "me key", "mg key", "md key", "ma key",
    "version", "verbosity 1", "verbosity", "flush_all 0", "stats", "stats items", "stats slabs", "stats sizes",
    "stats sizes_enable", "stats sizes_disable", "stats conns", "stats settings", "stats reset", "stats cachedump 1 1",
    "stats detail on", "stats detail off", "stats detail dump", "stats extstore", "stats proxy", "stats proxyfuncs",
    "stats proxybe", "slabs", "slabs reassign 1 2", "slabs automove", "slabs automove 0", "slabs automove 1",
    "slabs automove 2", "slabs automove ratio 0.8", "slabs automove freeratio 0.01", "slabs automove window 10",
    "lru", "lru mode", "lru mode flat", "lru mode segmented", "lru tune", "lru tune 10 25 0.1 2.0", "lru temp_ttl 60",
    "lru temp_ttl -1", "lru_crawler", "lru_crawler crawl 1", "lru_crawler crawl all", "lru_crawler crawl",
    "lru_crawler sleep 100", "lru_crawler tocrawl 10", "lru_crawler metadump all", "lru_crawler mgdump all",
    "lru_crawler disable", "lru_crawler enable", "cache_memlimit", "cache_memlimit 64", "cache_memlimit 128",
    "cache_memlimit 7", "cache_memlimit x", "refresh_certs", "shutdown", "shutdown x", "watch", "watch nonsense",
    "extstore", "extstore recache_rate 1", "extstore free_memchunks 1 1", "misbehave", "debugtime p",
    "debugitem ref key", "quit extra", "proxy reload",
)  # fmt: skip


def test_a_command_that_memcached_knows_is_no_error(started):
    """A tool takes `ERROR` for an old server. The first word of a reply is that of memcached."""
    ports = started()
    differences = []
    for command in OPERATORS_COMMANDS:
        theirs, ours = (first_word(port, command) for port in ports)
        if theirs != ours:
            differences.append(f"{command}: {ours!r}, memcached: {theirs!r}")
    assert differences == []


def first_word(port: int, command: str) -> bytes:
    """The first word of the reply, once no crawl of an earlier command is in the way; empty if the server hangs up."""
    words = []

    def is_replied() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(command.encode() + b"\r\n")
            words.append(connection.makefile("rb").readline().partition(b" ")[0].rstrip())
        return words[-1] != b"BUSY"

    eventually(is_replied, f"{command} finds no other crawl")
    return words[-1]
