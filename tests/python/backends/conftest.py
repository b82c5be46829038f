"""What the cache backends stand on: a server, a router in front of servers, and a router that takes leases."""

import asyncio
import contextlib
import os

import pytest
from processes import Cluster, Server, connect, eventually
from pymemcache.exceptions import MemcacheServerError

# The arguments of routers. One that takes leases stores only what has been missed.
KINDS = {"router": ("--enable-flush-cmd",), "leases": ("--leases", "--lease-hot-miss-wait", "20")}


# Whether tests run that take seconds each: `make python-backends`.
IS_ALL_WANTED = os.environ.get("LOOKASIDE_PYTHON_BACKENDS") == "all"


def pytest_configure(config):
    """The mark that dogpile.cache's own tests have."""
    config.addinivalue_line("markers", "time_intensive: takes seconds; runs in `make python-backends`")


def pytest_collection_modifyitems(items):
    """Skips tests with the mark."""
    for item in items:
        if not IS_ALL_WANTED and item.get_closest_marker("time_intensive"):
            item.add_marker(pytest.mark.skip(reason="make python-backends"))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a server or a cluster, once for all tests of a module."""
    started = {}

    def start(kind: str) -> Server | Cluster:
        if kind not in started:
            folder = tmp_path_factory.mktemp(kind)
            started[kind] = Server("server", folder) if kind == "server" else Cluster("one", folder, KINDS[kind])
        return started[kind]

    yield start
    for running in started.values():
        running.stop()


@pytest.fixture(params=["server", "router"])
def running(request, start):
    """A server, and a router in front of servers."""
    return start(request.param)


@pytest.fixture
def plain(running):
    """A pymemcache client of it, after it was emptied."""
    plain = connect(running.port)

    def is_emptied() -> bool:
        # A server that did not run for 300 ms, as others used the processor, is TKO to its router for a moment.
        with contextlib.suppress(MemcacheServerError):
            return plain.flush_all()
        return False

    eventually(is_emptied, "all servers are empty")
    yield plain
    plain.close()


@pytest.fixture
def address(running, plain):
    """Its address, instead of one router's."""
    return f"127.0.0.1:{running.port}"


@pytest.fixture
def leasing(start):
    """The address of a router that takes leases. Each test has keys of its own."""
    return f"127.0.0.1:{start('leases').port}"


@pytest.fixture(params=["server", "router", "leases"])
def any_address(request, start):
    """The address of either."""
    return f"127.0.0.1:{start(request.param).port}"


@pytest.fixture
def dead(tmp_path):
    """The address of a router whose servers have ended."""
    cluster = Cluster("dead", tmp_path)
    for server in (*cluster.servers, cluster.gutter):
        server.stop()
    yield f"127.0.0.1:{cluster.port}"
    cluster.stop()


@pytest.fixture(params=["blocking", "asyncio"])
def call(request):
    """Calls a method of a cache by its name, or the one for asyncio."""

    def call_blocking(cache, name, *arguments, **options):
        return getattr(cache, name)(*arguments, **options)

    def call_asynchronous(cache, name, *arguments, **options):
        return asyncio.run(getattr(cache, f"a{name}")(*arguments, **options))

    return call_blocking if request.param == "blocking" else call_asynchronous
