"""A client from `config=` alone: the configuration names its routers."""

import asyncio
import json
import os
import re
import signal
import socket
import time

import pytest
from both_clients import KINDS, open_client
from direct_routers import Router, wait_permitted
from etcd import Etcd
from lookaside import CacheUnavailableError, Client, ConfigurationError, DeadlineExceededError
from processes import connect, eventually, free_port, run_in_children, stats
from test_client_direct import CONFIGURATION_S, KEYS, text_of


def naming(servers, *routers) -> str:
    """The configuration of the servers, which names these routers, or addresses."""
    addresses = [router if isinstance(router, str) else router.address for router in routers]
    return json.dumps(json.loads(text_of(servers)) | {"routers": addresses})


@pytest.fixture
def file(tmp_path, servers):
    """A configuration file that names no router yet."""
    file = tmp_path / "router.json"
    file.write_text(text_of(servers))
    return file


@pytest.fixture
def routers(tmp_path, file):
    """Two routers of this file."""
    routers = [Router(tmp_path, f"file:{file}") for _ in range(2)]
    yield routers
    for router in routers:
        router.stop()


def is_stored(cache) -> bool:
    """Whether the client can set a value now."""
    try:
        cache.set("k", 1, timeout=0.5)
    except CacheUnavailableError:
        return False
    return True


def sets_of(router: Router) -> int:
    """How many sets the router has routed."""
    return int(stats(router.port)["cmd_set"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_is_all_that_a_client_needs(file, routers, servers, kind):
    file.write_text(naming(servers, *routers))
    with open_client(kind, config=f"file:{file}", timeout=5) as cache:
        wait_permitted(cache)
        assert cache.set_many(dict.fromkeys(KEYS, 1)) == {}
        assert cache.get_many(KEYS) == dict.fromkeys(KEYS, 1)
        assert cache.get_or_load("loaded", lambda: 2) == 2
        assert cache.delete(KEYS[0]) is True and cache.get(KEYS[0]) is None
        assert cache.explain(KEYS[0]).pool == "main"
        figures = cache.stats()
        assert figures["direct.direct_reads"] >= len(KEYS) and figures["direct.unpermitted_reads"] == 0, figures
        assert figures["direct.permits_of_other_configurations"] == 0, "the routers read it without their names"


def test_routers_that_are_given_win(file, routers, servers):
    file.write_text(naming(servers, routers[0]))
    with Client([routers[1].address], config=f"file:{file}", timeout=5) as cache:
        wait_permitted(cache)
        before = [sets_of(router) for router in routers]
        cache.set("k", 1)
        assert [sets_of(router) for router in routers] == [before[0], before[1] + 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_list_is_followed_without_a_restart(file, routers, servers, kind):
    first, second = routers
    file.write_text(naming(servers, first))
    with open_client(kind, config=f"file:{file}", timeout=5) as cache:
        wait_permitted(cache)
        assert is_stored(cache)
        first.stop()
        assert not is_stored(cache), "it knows no other"
        file.write_text(naming(servers, second))
        eventually(lambda: is_stored(cache), "the other router is used")
        wait_permitted(cache)
        assert cache.get("k") == 1
        assert cache.stats()["direct.configurations"] == 1


def test_a_bad_list_is_refused_and_changes_nothing(file, routers, servers):
    file.write_text(naming(servers, routers[0]))
    with Client(config=f"file:{file}", timeout=5) as cache:
        wait_permitted(cache)
        file.write_text(naming(servers, "no port"))
        eventually(lambda: cache.stats()["direct.configurations_refused"] == 1, "the client refuses it")
        eventually(lambda: int(stats(routers[0].port)["config_failures"]) > 0, "so do routers")
        cache.set("k", 1)
        wait_permitted(cache)
        assert cache.get("k") == 1
        file.write_text(text_of(servers))
        eventually(lambda: cache.stats()["direct.configurations"] == 1, "it is valid without a list")
        cache.set("k", 2)
        assert connect(routers[0].port).get("k") == b"2", "the last routers are used on"


def test_a_client_needs_routers_from_somewhere(file, servers):
    with pytest.raises(ConfigurationError, match="no router"):
        Client()
    with pytest.raises(ConfigurationError, match='"routers"'):
        Client(config=f"file:{file}")
    file.write_text(naming(servers, "127.0.0.1"))
    with pytest.raises(ConfigurationError, match=r"routers\[0\]: \"127.0.0.1\" is not a router: the port is missing"):
        Client(config=f"file:{file}")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_names_the_routers_of_the_configuration(file, servers, kind):
    """Once only routers that were given were named: "none of the routers  replied"."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [f"127.0.0.1:{port}" for port in (silent.getsockname()[1], free_port())]
        file.write_text(naming(servers, *addresses))
        with open_client(kind, config=f"file:{file}", timeout=0.2) as cache:
            for _ in range(2):
                # At first no reply arrives in time; later the client knows that its routers do not answer.
                with pytest.raises(
                    (CacheUnavailableError, DeadlineExceededError), match=f"routers {re.escape(', '.join(addresses))}"
                ):
                    cache.explain("k")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_does_not_wait_has_its_routers_with_its_configuration(tmp_path, routers, servers, kind):
    late = tmp_path / "late.json"
    with open_client(kind, config=f"file:{late}", config_required=False, timeout=30) as cache:
        began = time.monotonic()
        with pytest.raises(CacheUnavailableError):
            cache.get("missed")
        with pytest.raises(CacheUnavailableError):
            cache.flush_all()
        with pytest.raises(CacheUnavailableError, match="the configuration that names the routers has not been read"):
            cache.explain("k")
        assert time.monotonic() - began < CONFIGURATION_S, "nothing is waited for"
        late.write_text(naming(servers, routers[0]))
        eventually(lambda: is_stored(cache), "its router is used")
        wait_permitted(cache)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_begins_with_the_routers_of_its_parent(tmp_path, servers, kind):
    """It reads the configuration again, and does not wait for it: etcd may be away."""
    etcd = Etcd(tmp_path)
    source = f"etcd://127.0.0.1:{etcd.port}/lookaside"
    etcd.put("lookaside", text_of(servers))
    router = Router(tmp_path, source)
    etcd.put("lookaside", naming(servers, f"127.0.0.1:{free_port()}"))
    called = tmp_path / "called"
    try:
        with open_client(kind, config=source, timeout=CONFIGURATION_S) as cache:
            assert not is_stored(cache), "no router is there"
            etcd.put("lookaside", naming(servers, router))
            eventually(lambda: is_stored(cache), "the new list in etcd is followed")
            wait_permitted(cache)

            def child() -> None:
                began = time.monotonic()
                # It needs an event loop of its own, as the other one is its parent's.
                found = asyncio.run(cache.client.get("k")) if kind == "AsyncClient" else cache.get("k")
                assert found == 1 and time.monotonic() - began < CONFIGURATION_S
                assert cache.stats()["direct.direct_reads"] == 0, "through the router"
                called.touch()
                wait_permitted(cache)

            def restart_etcd() -> None:
                eventually(called.exists, "the child has called", 2 * CONFIGURATION_S)
                # Not `thaw`: etcd is no child of this process.
                os.kill(etcd.running.pid, signal.SIGCONT)

            etcd.freeze()
            run_in_children([child, restart_etcd])
    finally:
        etcd.thaw()
        router.stop()
        etcd.stop()
