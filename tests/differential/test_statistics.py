"""`stats` has memcached's names in memcached's order: exporters and dashboards find each of them."""

import random
import re

import pytest
from exchange import exchange
from test_differential import pair  # noqa: F401 - a fixture

# memcached alone has an event library to name.
NOT_OURS = {"libevent"}
CLASS = re.compile(r"^(items:)?\d+:")


def names(port: int, request: bytes) -> list[str]:
    """The names in a reply to `stats`; those of slab classes without the class, each once."""
    lines = exchange(port, request + b"\r\n", random.Random(0)).decode().splitlines()
    assert lines[-1] == "END", lines
    names = [CLASS.sub(r"\1N:", line.split(" ")[1]) for line in lines[:-1]]
    return list(dict.fromkeys(names))


@pytest.mark.parametrize(
    "request_line", [b"stats", b"stats settings", b"stats items", b"stats slabs", b"stats sizes", b"stats conns"]
)
def test_statistics_have_memcached_s_names_in_order(pair, request_line):  # noqa: F811
    for port in (pair.memcached_port, pair.ours.port):
        assert exchange(port, b"set counted 0 0 1\r\nx\r\n", random.Random(0)) == b"STORED\r\n"
    theirs = [name for name in names(pair.memcached_port, request_line) if name not in NOT_OURS]
    ours = names(pair.ours.port, request_line)
    assert ours[: len(theirs)] == theirs
