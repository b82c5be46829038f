"""Listings of keys have memcached's lines, whatever order they come in: memcached walks its LRUs, ours its index."""

import random
import re
import socket

import pytest
from exchange import exchange
from test_differential import pair  # noqa: F401 - a fixture

ITEMS = (
    b"set plain 5 0 3\r\nabc\r\n"
    b"set expiring 0 100 200\r\n" + b"x" * 200 + b"\r\n"
    b"ms AGI= 3 b E77\r\nabc\r\n"
    b"set %25+: 0 0 1\r\nx\r\nget plain\r\nmd plain I E78\r\nmg stub N30 E79\r\nset past 0 -1 1\r\nx\r\n"
)
# Fields that are each server's own: times, CAS uniques, slab classes, sizes.
OWN = re.compile(rb"(?<= )(?:(exp|la)=\d+|cas=\d{3,}|cls=\d+|size=\d+)|(?<=b; )\d{9,}")


@pytest.fixture
def filled(pair):  # noqa: F811
    """Both servers, each with the same items and no others."""
    for port in (pair.memcached_port, pair.ours.port):
        exchange(port, b"flush_all\r\n", random.Random(0))
        exchange(port, ITEMS, random.Random(0))
    return pair


def listed(port: int, request: bytes) -> tuple[bytes, list[bytes], bytes]:
    """The first line, those between in order, the last."""
    lines = OWN.sub(lambda own: own[1] or b"", answer(port, request)).split(b"\n")
    return lines[0], sorted(lines[1:-2]), lines[-2]


def answer(port: int, request: bytes) -> bytes:
    """The listing. memcached drops its output if the client half-closes too early."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        listing = b""
        while not listing.endswith((b"END\r\n", b"EN\r\n")) and not re.match(rb"\w*(ERROR|CLASS)[^\n]*\n$", listing):
            piece = connection.recv(1 << 16)
            assert piece, listing
            listing += piece
        return listing


@pytest.mark.parametrize(
    "request_line",
    [b"lru_crawler metadump all", b"lru_crawler metadump hash", b"lru_crawler mgdump all", b"lru_crawler mgdump hash"],
)
def test_listings_have_the_same_lines(filled, request_line):
    theirs, ours = (listed(port, request_line + b"\r\n") for port in (filled.memcached_port, filled.ours.port))
    assert ours == theirs
    assert len(ours[1]) >= 5


@pytest.mark.parametrize(
    "request_line",
    [
        b"lru_crawler metadump", b"lru_crawler metadump 0", b"lru_crawler metadump x", b"lru_crawler mgdump all x",
        b"lru_crawler metadump 1,x", b"stats cachedump", b"stats cachedump 1", b"stats cachedump x 1",
        b"stats cachedump 1 x", b"stats cachedump 1000 1", b"stats cachedump 40 1",
    ],
)  # fmt: skip
def test_refusals_are_the_same(filled, request_line):
    theirs, ours = (answer(port, request_line + b"\r\n") for port in (filled.memcached_port, filled.ours.port))
    assert ours == theirs


def test_a_cachedump_has_lines_of_the_same_form(filled):
    shape = re.compile(rb"(?:ITEM \S+ \[\d+ b; \d+ s\]\r\n)*END\r\n")
    for port in (filled.memcached_port, filled.ours.port):
        dumps = [answer(port, b"stats cachedump %d 0\r\n" % number) for number in range(1, 63)]
        assert all(shape.fullmatch(dump) for dump in dumps)
        assert {line.split()[1] for line in b"".join(dumps).splitlines() if line != b"END"} == {
            b"expiring", b"%25+:", b"stub",
            *([b"plain"] if any(b"ITEM plain" in dump for dump in dumps) else []),
        }  # fmt: skip
