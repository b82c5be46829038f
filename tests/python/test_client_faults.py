"""What goes wrong around a client: servers that hang, and datagrams that are lost."""

import asyncio
import inspect
import json
import re
import subprocess
import time

import pytest
from both_clients import KINDS, open_client
from lookaside import AsyncClient, CacheUnavailableError, Client, ConfigurationError
from processes import PROGRAMS, Process, answers, eventually, free_port, frozen
from test_client_direct import KEYS, Router, text_of, wait_permitted


def test_the_default_timeout_lets_a_router_give_up_a_server():
    """Else one server that hangs makes a whole `get_many` fail."""
    text = subprocess.run([PROGRAMS / "lookaside-router", "--help"], capture_output=True, text=True).stdout

    def default_ms(option: str) -> int:
        return int(re.search(rf"--{option} <.*?\[default: (\d+)\]", text, re.DOTALL)[1])

    timeout_s = inspect.signature(Client).parameters["timeout"].default
    assert 1_000 * timeout_s / 2 > default_ms("server-timeout") + default_ms("failover-timeout")


@pytest.fixture
def patient(tmp_path, servers):
    """A router whose configuration gives servers more time than clients have."""
    file = tmp_path / "patient.json"
    configuration = json.loads(text_of(servers))
    configuration["pools"]["main"]["server_timeout"] = 10_000
    file.write_text(json.dumps(configuration))
    router = Router(tmp_path, f"file:{file}")
    yield router
    router.thaw()
    router.stop()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_server_that_hangs_fails_its_own_keys_only(patient, servers, kind):
    async def main() -> None:
        def call(method, *arguments, **options):
            return asyncio.to_thread(method, *arguments, **options) if kind is Client else method(*arguments, **options)

        cache = kind([patient.address], config=patient.config, timeout=1.5)
        await asyncio.to_thread(wait_permitted, cache)
        assert await call(cache.set_many, dict.fromkeys(KEYS, 1)) == {}
        with frozen(servers[0]):
            began = time.monotonic()
            found = await call(cache.get_many, KEYS)
            assert time.monotonic() - began < 1.5
        assert 0 < len(found) < len(KEYS)
        assert cache.stats()["errors"] == len(KEYS) - len(found)
        await call(cache.close)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_datagram_is_a_miss(tmp_path, kind):
    """Once `get` raised `RefusedError` for it, and `get_many` if it was that of all keys."""
    server = UdpServer("udp", tmp_path)
    file = tmp_path / "udp.json"
    file.write_text(text_of([server]))
    router = Router(tmp_path, f"file:{file}")
    try:
        with open_client(kind, [router.address], config=router.config, udp=True, timeout=10) as cache:
            wait_permitted(cache)
            assert cache.set_many({"k": 1, "l": 2}) == {}
            # The server is sent its gets by TCP when it has not answered three.
            with frozen(server):
                assert cache.get("k", "default") == "default"
                assert cache.get_many(["k", "l"]) == {}
                assert cache.get_or_load("k", lambda: "loaded") == "loaded"
            figures = cache.stats()
            assert figures["udp.lost"] == 3 and figures["errors"] == 4, figures
            assert (figures["fills"], figures["fills_refused"]) == (0, 0)
            eventually(lambda: cache.get("k") == 1, "the server is read again")
    finally:
        router.stop()
        server.stop()


def test_a_lookup_whose_datagram_was_lost_is_not_refused(tmp_path):
    """Once it was a `RefusedError`, as that of a server without leases: dogpile.cache then stored without one."""
    server = UdpServer("udp", tmp_path)
    file = tmp_path / "udp.json"
    file.write_text(text_of([server]))
    router = Router(tmp_path, f"file:{file}")
    try:
        with Client([router.address], config=router.config, udp=True, timeout=10) as cache:
            wait_permitted(cache)
            with frozen(server), pytest.raises(CacheUnavailableError, match="UDP"):
                cache._core.look_up("k", None)
    finally:
        router.stop()
        server.stop()


class UdpServer(Process):
    """A server whose gets may come by UDP."""

    def __init__(self, name: str, log_dir) -> None:
        self.port = free_port()
        super().__init__(name, [PROGRAMS / "lookaside-server", "-p", self.port, "-U", self.port, "-m", "64"], log_dir)
        self.wait_ready(lambda: answers(self.port))


def test_gets_by_udp(tmp_path, address):
    servers = [UdpServer(f"udp-{index}", tmp_path) for index in range(2)]
    file = tmp_path / "udp.json"
    file.write_text(text_of(servers))
    router = Router(tmp_path, f"file:{file}")
    try:
        with Client([router.address], config=router.config, udp=True, timeout=5) as cache:
            wait_permitted(cache)
            cache.set_many(dict.fromkeys(KEYS, 1))
            found = cache.get_many(KEYS)
            figures = cache.stats()
            assert figures["udp.keys"] == len(KEYS), figures
            lost = figures["udp.lost"] + figures["udp.reordered"]
            assert set(found.values()) == {1} and (lost or len(found) == len(KEYS)), figures
    finally:
        router.stop()
        for server in servers:
            server.stop()
    with pytest.raises(ConfigurationError, match="routers are reached by TCP"):
        Client([address], udp=True)
