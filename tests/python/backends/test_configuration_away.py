"""Backends with `config` while etcd, or the router, is away: gets miss, nothing waits for it, and it is used later."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from dogpile.cache.api import NO_VALUE
from etcd import Etcd
from lookaside.dogpile import LookasideBackend
from lookaside.errors import ConfigurationError
from lookaside.flask_caching import LookasideCache as FlaskCache
from processes import eventually, free_port, silent_address
from test_client_direct import Router, text_of
from test_django_cache import make

# A client that needs its configuration waits for it during this time.
CONFIGURATION_S = 10
# How long a turn of an event loop may take on a loaded machine.
TURN_S = 5


def make_dogpile(address: str, **options) -> LookasideBackend:
    """A backend of dogpile.cache; its values are bytes, as those of a region with a serializer."""
    return LookasideBackend({"url": [address], **options})


MAKERS = {"django": make, "dogpile": make_dogpile, "flask": FlaskCache}


@pytest.fixture(params=MAKERS)
def backend(request):
    """Makes a backend of one of the frameworks."""
    return MAKERS[request.param]


@pytest.fixture
def etcd(tmp_path, servers):
    """An etcd that has the configuration of three servers and has ended; `restart` brings it back."""
    etcd = Etcd(tmp_path)
    etcd.put("lookaside", text_of(servers))
    etcd.source = f"etcd://127.0.0.1:{etcd.port}/lookaside"
    etcd.stop()
    yield etcd
    etcd.stop()


@pytest.fixture
def router(tmp_path, servers):
    """A router that has the same configuration from a file."""
    file = tmp_path / "router.json"
    file.write_text(text_of(servers))
    router = Router(tmp_path, f"file:{file}")
    yield router
    router.stop()


def is_direct(cache) -> bool:
    """Whether gets go to servers."""
    return cache._client.stats()["direct.is_permitted"] == 1


def test_without_etcd_all_goes_through_the_router_and_gets_to_servers_later(backend, router, etcd):
    """Once each thread waited for etcd, for 10 s, and then raised `ConfigurationError`."""
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(backend, router.address, config=etcd.source, timeout=5) for _ in range(8)]
        caches = [cache.result() for cache in made]
    cache = caches[0]
    assert all(other._client is cache._client for other in caches)
    assert cache.get("k") in (None, NO_VALUE)
    cache.set("k", b"value")
    assert cache.get("k") == b"value"
    cache.delete("k")
    assert cache.get("k") in (None, NO_VALUE)
    assert not is_direct(cache)
    etcd.restart()
    eventually(lambda: is_direct(cache), "the configuration is read")
    cache.set("k", b"value")
    before = cache._client.stats()["direct.direct_reads"]
    assert cache.get("k") == b"value"
    assert cache._client.stats()["direct.direct_reads"] > before


def test_without_a_router_either_gets_miss_until_it_is_back(backend, router, etcd):
    router.stop()
    cache = backend(router.address, config=etcd.source, timeout=5)
    for _ in range(2):
        assert cache.get("k") in (None, NO_VALUE)
    router.start()

    def is_stored() -> bool:
        try:
            cache.set("k", b"value")
        except OSError:
            return False
        return cache.get("k") == b"value"

    eventually(is_stored, "the router is used again")


def test_a_configuration_that_is_invalid_leaves_the_routers(backend, router, tmp_path):
    file = tmp_path / "broken.json"
    file.write_text("{")
    cache = backend(router.address, config=f"file:{file}", timeout=5)
    cache.set("k", b"value")
    assert cache.get("k") == b"value"
    eventually(lambda: cache._client.stats()["direct.configurations_refused"] > 0, "it is counted")
    with pytest.raises(ConfigurationError, match="expected file:PATH"):
        backend(router.address, config="router.json")
    with pytest.raises(ConfigurationError, match="line 1"):
        backend(router.address, config=f"file:{file}", config_required=True)


def test_an_event_loop_is_not_blocked_while_etcd_hangs(router):
    """The first call in an event loop makes its client."""

    async def main(source: str) -> float:
        turns = [time.monotonic()]

        async def count_turns() -> None:
            while True:
                await asyncio.sleep(0)
                turns.append(time.monotonic())

        counting = asyncio.create_task(count_turns())
        cache = make(router.address, config=source, timeout=CONFIGURATION_S)
        await cache.aset("k", "value")
        assert await cache.aget("k") == "value"
        counting.cancel()
        return max(later - earlier for earlier, later in zip(turns, turns[1:], strict=False))

    with silent_address() as address:
        assert asyncio.run(main(f"etcd://{address}/lookaside")) < TURN_S


def test_etcd_that_refuses_is_no_error_either(router):
    cache = make(router.address, config=f"etcd://127.0.0.1:{free_port()}/lookaside", timeout=5)
    assert cache.get("k", "default") == "default"
