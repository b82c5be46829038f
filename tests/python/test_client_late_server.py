"""A server that answers late: a reply that was given up is not that of a later call, and only its own keys fail."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from both_clients import KINDS, open_client
from direct_routers import Router, wait_permitted
from forwarder import LateServer
from lookaside import CacheUnavailableError, Client, DeadlineExceededError, RefusedError
from processes import connect, eventually

DELAYS_S = [0.04, 0.3]
# Longer than anything takes on a loaded machine.
LONG_S = 60
LATE_KEYS = [f"late:{number}" for number in range(5)]
OTHER_KEYS = [f"other:{number}" for number in range(20)]


class Region:
    """A pool of one server, whose keys begin with `late:` and which answers late, and a pool of all other keys."""

    def __init__(self, folder, servers, late_timeout_ms: int) -> None:
        self.server = servers[0]
        self.late = LateServer(self.server.port)
        pools = {
            "late": {"servers": [f"127.0.0.1:{self.late.port}"], "server_timeout": late_timeout_ms},
            "others": {
                "servers": [f"127.0.0.1:{server.port}" for server in servers[1:]],
                "server_timeout": 1000 * LONG_S,
            },
        }
        route = {"type": "PrefixSelectorRoute", "policies": {"late:": "PoolRoute|late"}, "wildcard": "PoolRoute|others"}
        file = folder / "late.json"
        file.write_text(json.dumps({"pools": pools, "route": route}))
        self.router = Router(folder, f"file:{file}")

    def stop(self) -> None:
        """Stops all."""
        self.router.stop()
        self.late.close()


@pytest.fixture
def open_region(tmp_path, servers):
    """Starts a region whose late server may take this long."""
    regions = []

    def open_region(late_timeout_ms: int) -> Region:
        regions.append(Region(tmp_path, servers, late_timeout_ms))
        return regions[0]

    yield open_region
    for region in regions:
        region.stop()


@pytest.fixture(params=["router", "direct"])
def open_cache(request):
    """Opens a client of a region, which reads by the router or directly."""

    def open_cache(region: Region, kind: str):
        options = {"config": region.router.config} if request.param == "direct" else {}
        return open_client(kind, [region.router.address], timeout=LONG_S, **options)

    open_cache.wait = wait_permitted if request.param == "direct" else lambda cache: None
    return open_cache


def fails(call: Callable[[], Any], *errors: type[Exception]) -> bool:
    """Whether a call raises one of these errors. It does not if the process was not run until the late reply came."""
    try:
        call()
    except errors:
        return True
    return False


@pytest.mark.parametrize("delay_s", DELAYS_S)
@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_was_given_up_is_not_that_of_a_later_call(open_region, open_cache, kind, delay_s):
    region = open_region(late_timeout_ms=1000 * LONG_S)
    with open_cache(region, kind) as cache:
        open_cache.wait(cache)
        assert cache.set_many({"late:k": "old", "late:l": "other"}) == {}
        region.late.delay_s = delay_s

        def get_in_time() -> None:
            assert cache.get("late:k", timeout=delay_s / 3) == "old"

        eventually(lambda: fails(get_in_time, DeadlineExceededError), "a call ends before its reply is there")
        assert connect(region.server.port).set("late:k", "new", flags=16)
        assert cache.get("late:l") == "other"
        assert cache.get("late:k") == "new"
        assert cache.get_many(["late:k", "late:l", "late:m"]) == {"late:k": "new", "late:l": "other"}

        rows = iter(range(1_000))

        def is_loaded_without_a_fill() -> bool:
            row, fills = next(rows), cache.stats()["fills"]
            assert cache.get_or_load(f"late:row:{row}", lambda: row, timeout=delay_s / 3) == row
            assert cache.get(f"late:row:{row}") in (None, row)
            return cache.stats()["fills"] == fills

        eventually(is_loaded_without_a_fill, "a row is loaded when the cache has not answered in time")
        assert cache.get_or_load("late:row", lambda: "loaded") == "loaded"
        assert cache.get("late:row") == "loaded", "a late server is filled"


@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_direct_reads_of_other_servers_do_not_wait_for_a_late_one(open_region, delay_s):
    """By a router they may: it replies to what came over one connection in order."""
    region = open_region(late_timeout_ms=1000 * LONG_S)
    router = region.router
    with Client([router.address], config=router.config, timeout=LONG_S) as cache:
        wait_permitted(cache)
        assert cache.set_many({"late:k": "late", "other": "other"}) == {}
        region.late.delay_s = delay_s

        def ends_before() -> bool:
            found = []
            waiting = threading.Thread(target=lambda: found.append(cache.get("late:k")))
            waiting.start()
            eventually(lambda: region.late.held or not waiting.is_alive(), "the late server has replied")
            assert cache.get("other") == "other"
            is_held = bool(region.late.held)
            waiting.join()
            assert found == ["late"]
            return is_held

        eventually(ends_before, "the key of another server is read while the late server's reply is on its way")


@pytest.mark.parametrize("delay_s", DELAYS_S)
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_too_late_fails_its_own_keys_only(open_region, open_cache, kind, delay_s):
    region = open_region(late_timeout_ms=int(1000 * delay_s / 3))
    with open_cache(region, kind) as cache:
        open_cache.wait(cache)
        others = dict.fromkeys(OTHER_KEYS, "value")
        assert cache.set_many(others) == {}
        for key in LATE_KEYS:
            assert connect(region.server.port).set(key, "value", flags=16)
        region.late.delay_s = delay_s

        def are_others_found_alone() -> bool:
            found = cache.get_many([*LATE_KEYS, *OTHER_KEYS])
            assert found.items() >= others.items()
            return found == others

        eventually(are_others_found_alone, "the late server's keys fail")
        assert cache.stats()["errors"] >= len(LATE_KEYS)
        # A router replies with an error.
        errors = (CacheUnavailableError, RefusedError)
        eventually(lambda: fails(lambda: cache.get(LATE_KEYS[0]), *errors), "one of its keys alone fails")
        everything = dict.fromkeys([*LATE_KEYS, *OTHER_KEYS], "value")
        assert cache.get_or_load_many(everything, lambda keys: ["value"] * len(keys)) == everything
        region.late.delay_s = 0
        eventually(lambda: cache.get_many(everything) == everything, "it is read again")
