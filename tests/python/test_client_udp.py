"""Gets by UDP: a lost datagram is a miss that is not filled, and an error of a server is that error (§3.1)."""

import json

import pytest
from both_clients import KINDS, open_client
from direct_routers import Router, wait_permitted
from lookaside import RefusedError, Udp
from lossy_server import LossyServer
from processes import Server

# Longer than any reply takes on a slow machine, and the timeout of a pool whose server always answers.
LONG_S = 20
POOL_TIMEOUT_MS = 30_000


@pytest.fixture
def lossy(tmp_path):
    """A server that loses datagrams, or refuses gets, when the test says so."""
    server = Server("server", tmp_path)
    lossy = LossyServer(server.port)
    yield lossy
    lossy.close()
    server.stop()


@pytest.fixture
def router(tmp_path, lossy):
    """A router in front of it."""
    file = tmp_path / "udp.json"
    pool = {"servers": [f"127.0.0.1:{lossy.port}"], "server_timeout": POOL_TIMEOUT_MS}
    file.write_text(json.dumps({"pools": {"main": pool}, "route": "PoolRoute|main"}))
    router = Router(tmp_path, f"file:{file}")
    yield router
    router.stop()


@pytest.fixture(params=KINDS)
def open_cache(request, router, lossy):
    """Opens a client of either kind whose gets go by UDP, and may take this long."""

    def open_cache(udp_timeout_s: float):
        udp = Udp(port=lossy.udp_port, timeout=udp_timeout_s)
        return open_client(request.param, [router.address], config=router.config, udp=udp, timeout=3 * LONG_S)

    return open_cache


@pytest.mark.parametrize(("replies", "timeout_s"), [("lost", 0.05), ("reordered", LONG_S)])
def test_a_lost_or_reordered_datagram_is_a_miss_that_is_not_filled(open_cache, lossy, replies, timeout_s):
    with open_cache(timeout_s) as cache:
        wait_permitted(cache)
        assert cache.set_many({"k": 1, "l": 2}) == {}
        lossy.replies = replies
        # After three lost ones the server is sent its gets by TCP.
        assert cache.get("k", "default") == "default"
        assert cache.get_many(["k", "l"]) == {}
        assert cache.get_or_load("absent", lambda: "loaded") == "loaded"
        lossy.replies = "sent"
        figures = cache.stats()
        assert (figures[f"udp.{replies}"], figures["errors"]) == (3, 4), figures
        assert (figures["fills"], figures["fills_refused"]) == (0, 0), figures


@pytest.mark.parametrize("refusal", ["SERVER_ERROR out of memory reading request", "CLIENT_ERROR unauthenticated"])
def test_an_error_of_a_server_is_raised(open_cache, lossy, refusal):
    """Once it was taken for a lost datagram: `get` returned the default for a server that asks for a password, say."""
    with open_cache(LONG_S) as cache:
        wait_permitted(cache)
        cache.set("k", 1)
        lossy.refusal = refusal.encode() + b"\r\n"
        why = refusal.partition(" ")[2]
        with pytest.raises(RefusedError, match=why):
            cache.get("k", "default")
        with pytest.raises(RefusedError, match=why):
            cache.get_many(["k", "l"])
        assert cache.get_or_load("k", lambda: "loaded") == "loaded"
        figures = cache.stats()
        assert (figures["udp.lost"], figures["udp.reordered"], figures["fills"]) == (0, 0, 0), figures
        lossy.refusal = b""
        assert cache.get("k") == 1
