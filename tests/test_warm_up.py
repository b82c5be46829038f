"""Cold cluster warm-up (§4.3) over real servers: one router, a server for each cluster."""

from contextlib import contextmanager

import pytest
from processes import Server, eventually, stats
from routers import ask, router

# Far longer than it takes to ask twice, on any machine.
HOLD_OFF_MS = 3_000
HERE = "127.0.0.1"


@pytest.fixture
def clusters(tmp_path):
    """A server for the cold cluster, and one for the warm one."""
    servers = [Server(name, tmp_path) for name in ("cold", "warm")]
    yield servers
    for server in servers:
        server.stop()


@contextmanager
def cold_router(tmp_path, cold: Server, warm: Server):
    """The cold cluster's router; its port."""
    pools = {name: {"servers": [f"{HERE}:{server.port}"]} for name, server in (("cold", cold), ("warm", warm))}
    route = {
        "type": "WarmUpRoute",
        "cold": "PoolRoute|cold",
        "warm": "PoolRoute|warm",
        "exptime": 60,
        "hold_off_ms": HOLD_OFF_MS,
    }
    with router(tmp_path, {"pools": pools, "route": route}) as port:
        yield port


def value(text: bytes) -> bytes:
    return b"VALUE k 0 %d\r\n%s\r\nEND\r\n" % (len(text), text)


def gets(server: Server) -> int:
    return int(stats(server.port)["cmd_get"])


def test_a_cold_miss_is_filled_from_the_warm_cluster_once(clusters, tmp_path):
    cold, warm = clusters
    with cold_router(tmp_path, cold, warm) as port:
        assert ask(warm.port, HERE, b"set k 0 0 1\r\nv\r\n") == b"STORED\r\n"
        assert ask(port, HERE, b"get k\r\n") == value(b"v")
        assert ask(cold.port, HERE, b"get k\r\n") == value(b"v"), "it was added"
        asked = gets(warm)
        assert ask(port, HERE, b"get k\r\n") == value(b"v")
        assert gets(warm) == asked, "now the cold cluster has it"


def test_the_hold_off_of_a_delete_keeps_the_warm_cluster_s_old_value_out(clusters, tmp_path):
    cold, warm = clusters
    with cold_router(tmp_path, cold, warm) as port:
        ask(warm.port, HERE, b"set k 0 0 3\r\nold\r\n")
        assert ask(port, HERE, b"get k\r\n") == value(b"old")
        # A writer here has changed the database. The invalidation has not reached the warm cluster yet.
        assert ask(port, HERE, b"delete k\r\n") == b"DELETED\r\n"
        assert ask(port, HERE, b"get k\r\n") == b"END\r\n", "the client reads the database"
        assert ask(cold.port, HERE, b"get k\r\n") == b"END\r\n"
        # Now it has: once the hold-off is over, its values are copied again.
        ask(warm.port, HERE, b"set k 0 0 3\r\nnew\r\n")
        eventually(lambda: ask(port, HERE, b"get k\r\n") == value(b"new"), "the hold-off ends", seconds=20)


def test_a_miss_in_both_comes_with_a_lease_of_the_cold_cluster(clusters, tmp_path):
    cold, warm = clusters
    with cold_router(tmp_path, cold, warm) as port:
        line = ask(port, HERE, b"lease-get k\r\n").split(b"\r\n")[0]
        verb, key, token, *_ = line.split()
        assert (verb, key) == (b"LVALUE", b"k")
        assert int(token) > 1
        assert ask(port, HERE, b"lease-set k %s 0 0 1\r\nv\r\n" % token) == b"STORED\r\n"
        assert ask(cold.port, HERE, b"get k\r\n") == value(b"v")
        assert ask(warm.port, HERE, b"get k\r\n") == b"END\r\n"


def test_a_dead_warm_cluster_fails_no_read_and_does_not_replace_a_dead_cold_one(clusters, tmp_path):
    cold, warm = clusters
    with cold_router(tmp_path, cold, warm) as port:
        ask(warm.port, HERE, b"set k 0 0 1\r\nv\r\n")
        cold.kill()
        asked = gets(warm)
        assert ask(port, HERE, b"get k\r\n").startswith(b"SERVER_ERROR")
        assert gets(warm) == asked
        cold.restart()
        warm.kill()
        eventually(lambda: ask(port, HERE, b"get k\r\n") == b"END\r\n", "the cold cluster is asked again")
