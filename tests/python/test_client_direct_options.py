"""The options of a client that reads servers directly: updates, the window, UDP, and what routers have on their command
line."""

import json
import threading
from dataclasses import replace

import pytest
from both_clients import KINDS, open_client
from direct_routers import Router, wait_permitted
from leases import LeaseClient
from lookaside import CacheUnavailableError, Client, RouterOptions, Udp, Window
from processes import PROGRAMS, Process, answers, connect, eventually, free_port, frozen, stats
from test_client_direct import KEYS, text_of


@pytest.fixture
def start_router(tmp_path, servers):
    """Starts routers over three servers."""
    file, routers = tmp_path / "router.json", []
    file.write_text(text_of(servers))

    def start(*arguments: str) -> Router:
        routers.append(Router(tmp_path, f"file:{file}", *arguments))
        return routers[-1]

    yield start
    for router in routers:
        router.stop()


def direct_client(router: Router, **options) -> Client:
    """A client that has its first permit."""
    cache = Client([router.address], config=router.config, **{"timeout": 10} | options)
    wait_permitted(cache)
    return cache


def call_late(call, begun, impatient, late) -> object:
    """What a call returns that is answered by `late`, once a client with the defaults has begun later and given up."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(call()))
    thread.start()
    eventually(begun, "it waits")
    assert impatient() is None
    late()
    thread.join()
    return returned[0]


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_sent_directly_by_choice(start_router, servers, kind):
    router = start_router()
    options = {"config": router.config, "timeout": 10}
    with (
        open_client(kind, [router.address], **options) as through_router,
        open_client(kind, [router.address], send_updates_directly=True, **options) as direct,
    ):
        for cache in (through_router, direct):
            wait_permitted(cache)
            for number, key in enumerate(KEYS):
                cache.set(key, number)
            assert cache.get_or_load("loaded", lambda: 1) == 1
            assert cache.delete("loaded") is True
            assert cache.delete_many(KEYS[:2]) == dict.fromkeys(KEYS[:2], True)
        assert [connect(server.port).get(key) for server in servers for key in KEYS[:2]] == [None] * 6
        assert [direct.get(key) for key in KEYS] == [None, None, *range(2, 60)]
        updates = len(KEYS) + 4
        assert through_router.stats()["direct.direct_updates"] == 0
        assert through_router.stats()["direct.router_requests"] == updates
        # Once more where a permit was late.
        figures = direct.stats()
        assert figures["direct.direct_updates"] + figures["direct.router_requests"] == updates
        assert figures["direct.direct_updates"] > 0, figures


def test_the_window_has_bounds_and_shows_its_state(start_router, servers):
    router = start_router()
    with direct_client(router) as cache:
        figures = cache.stats()
        assert (figures["window.size"], figures["window.outstanding"], figures["window.waiting"]) == (100, 0, 0)
    with direct_client(router, window=None) as cache:
        assert cache.get("k") is None
        assert not [name for name in cache.stats() if name.startswith("window.")]
    with direct_client(router, window=Window(initial=7, min=3, max=9)) as cache:
        assert cache.stats()["window.size"] == 7


def test_a_request_that_finds_no_place_in_the_window_fails(tmp_path, start_router, servers):
    file = tmp_path / "router.json"
    configuration = json.loads(text_of(servers))
    configuration["pools"]["main"]["server_timeout"] = 20_000
    file.write_text(json.dumps(configuration))
    router = start_router()
    with (
        direct_client(router, window=replace(Window.fixed(1), waiting_max=0), timeout=60) as cache,
        direct_client(router) as other,
    ):
        by_server = {cache.explain(key).server: key for key in KEYS}
        late, refused = (by_server[f"127.0.0.1:{server.port}"] for server in servers[:2])
        other.set_many({late: 1, refused: 1})
        found = []
        with frozen(servers[0]):
            thread = threading.Thread(target=lambda: found.append(cache.get(late)))
            thread.start()
            eventually(lambda: cache.stats()["window.outstanding"] == 1, "its server does not answer")
            with pytest.raises(CacheUnavailableError):
                cache.get(refused)
            assert other.get(refused) == 1
        thread.join()
        assert found == [cache.get(refused)] == [1]


class UdpServer(Process):
    """A server with a UDP port of its own."""

    def __init__(self, log_dir) -> None:
        self.port, self.udp_port = free_port(), free_port()
        command = [PROGRAMS / "lookaside-server", "-p", self.port, "-U", self.udp_port, "-m", "64"]
        super().__init__("udp", command, log_dir)
        self.wait_ready(lambda: answers(self.port))


def test_gets_go_to_another_udp_port_and_may_take_longer(tmp_path):
    server, file = UdpServer(tmp_path), tmp_path / "udp.json"
    file.write_text(text_of([server]))
    router = Router(tmp_path, f"file:{file}")
    try:
        with (
            direct_client(router, udp=Udp(port=server.udp_port, timeout=60), timeout=120) as cache,
            direct_client(router, udp=Udp(port=server.udp_port), timeout=120) as other,
        ):
            cache.set("k", 1)
            server.freeze()
            try:
                found = call_late(
                    lambda: cache.get("k"),
                    lambda: cache.stats()["udp.requests"] == 1,
                    lambda: other.get("k"),
                    server.thaw,
                )
                assert found == 1
            finally:
                server.thaw()
            figures = cache.stats()
            assert (figures["udp.requests"], figures["udp.lost"]) == (1, 0), figures
            assert other.stats()["udp.lost"] == 1
        with direct_client(router, udp=Udp(timeout=0.01)) as cache:
            # No server listens at the UDP port with the number of the TCP port.
            assert cache.get("k") is None and cache.stats()["udp.requests"] == 1
    finally:
        router.stop()
        server.stop()


def test_large_values_are_split_as_the_routers_split_them(start_router):
    """A client without the option reads what stands in place of the value."""
    router = start_router("--big-value-split-threshold", "1000", "--big-value-hide-reply-flag")
    options = RouterOptions(big_value_split_threshold=1_000, big_value_hide_reply_flag=True)
    with direct_client(router, router_options=options) as cache, Client([router.address], timeout=10) as other:
        value = bytes(range(256)) * 20
        other.set("large", value)
        before = cache.stats()["direct.direct_reads"]
        assert cache.get("large") == value
        assert cache.stats()["direct.direct_reads"] > before


def test_a_hot_miss_waits_as_long_as_at_the_routers(start_router, servers):
    """Plain gets take leases where routers do. Once `get` waited for 0.1 s, whatever the routers' option."""
    router = start_router("--leases", "--lease-hot-miss-wait", "1000")
    options = RouterOptions(leases=True, lease_hot_miss_wait=1.0)
    with (
        direct_client(router, router_options=options, timeout=60) as cache,
        direct_client(router, router_options=RouterOptions(leases=True), timeout=60) as other,
    ):
        server = int(cache.explain("k").server.rpartition(":")[2])
        holder = LeaseClient(server)
        _, token, _ = holder.lease_get("k")
        assert token > 1
        filled = call_late(
            lambda: cache.get("k"),
            lambda: int(stats(server)["lease_hot_misses"]) > 0,
            lambda: other.get("k"),
            lambda: holder.lease_set("k", token, b"filled"),
        )
        assert filled == b"filled" and cache.stats()["direct.unpermitted_reads"] == 0
        holder.close()


def test_a_miss_is_remembered_as_long_as_at_the_routers(start_router):
    """Once it was remembered for 10 s, whatever the routers' option."""
    router = start_router("--leases", "--lease-miss-age", "1")
    options = RouterOptions(leases=True, lease_miss_age=1)
    with direct_client(router, router_options=options) as cache:
        assert cache.get("k") is None
        eventually(
            lambda: cache.get("other") is None and cache.stats()["direct.lease_misses_expired"] > 0, "it expires"
        )
