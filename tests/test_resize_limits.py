"""A pool below limited rates changes its servers: neither updates nor the purge are limited, and no copy stays without
deletes."""

import json

import pytest
from leases import LeaseClient
from processes import Server, connect, eventually, free_port
from resized_region import KEYS, Router, text_of

LIMITED_DELETES = 20


@pytest.fixture
def fallback(tmp_path):
    """A server for what is beyond the limit."""
    server = Server("fallback", tmp_path)
    yield server
    server.stop()


def text_with_limit(servers: list[Server], fallback: Server | None = None, **pool) -> str:
    """A configuration with one pool whose route allows no more than a few deletes."""
    configuration = json.loads(text_of(servers, **pool))
    # A rate of 0: no token is added, however slow the machine is.
    rates = {"deletes_rate": 0, "deletes_burst": LIMITED_DELETES}
    route = {"type": "RateLimitRoute", "rates": rates, "target": "PoolRoute|main"}
    if fallback:
        configuration["pools"]["fallback"] = {"servers": [f"127.0.0.1:{fallback.port}"]}
        route["fallback"] = "PoolRoute|fallback"
    return json.dumps(configuration | {"route": route})


def start(tmp_path, text: str) -> Router:
    """A router, with all keys stored."""
    router = Router(tmp_path, text, free_port(), [])
    with_client(router.port, lambda client: client.set_many(dict.fromkeys(KEYS, "old")))
    return router


def configure(router: Router, text: str) -> None:
    """Returns when the router reads by another configuration."""
    router.configure(text)
    eventually(lambda: router.reads_by(text), f"in force:\n{router.log()}", 40)


def with_client(port: int, use):
    """What `use` makes of a client."""
    client = connect(port)
    try:
        return use(client)
    finally:
        client.close()


def stored_keys(server: Server) -> set[str]:
    """The keys that a server holds."""
    return with_client(server.port, lambda client: set(client.get_many(KEYS)))


def test_a_limit_of_deletes_does_not_limit_a_change_of_servers(tmp_path, servers):
    """Once the search for places took from the limit: updates beyond it failed, and a purge removed nearly all."""
    router = start(tmp_path, text_with_limit(servers[:2]))
    try:
        before = [stored_keys(server) for server in servers[:2]]
        configure(router, text_with_limit(servers[:3], resize_warm_up_s=5))
        client = LeaseClient(router.port)
        replies = [client.command(b"set %s 0 0 3" % key.encode(), b"new") for key in KEYS]
        assert replies == [b"STORED"] * len(KEYS), "while two configurations are covered"
        # Each thread has its own limit, and serves whole connections.
        replies = [client.command(b"delete %s" % key.encode()) for key in KEYS[: 2 * LIMITED_DELETES]]
        assert replies == [b"DELETED"] * LIMITED_DELETES + [b"SERVER_ERROR 307 busy"] * LIMITED_DELETES
        client.close()
        eventually(router.is_steady, "the servers are purged", 40)
        owners = {key: router.admin(f"route(get,{key})").split()[0] for key in KEYS}
        for server, held in zip(servers, before, strict=False):
            stay = {key for key in held - set(KEYS[:LIMITED_DELETES]) if owners[key].endswith(f":{server.port}")}
            assert len(stay) > 2 * LIMITED_DELETES
            assert stored_keys(server) == stay
    finally:
        router.stop()


def test_a_fallback_of_deletes_hides_no_copies_that_have_moved(tmp_path, servers, fallback):
    """Once the search beyond the limit found the places of the fallback: copies that had moved stayed, without deletes,
    and were read again after a change back."""
    two, three = (text_with_limit(servers[:count], fallback) for count in (2, 3))
    router = start(tmp_path, two)
    try:
        configure(router, three)
        eventually(router.is_steady, "the servers are purged", 40)
        owners = {key: router.admin(f"route(get,{key})").split()[0] for key in KEYS}
        moved = [key for key in KEYS if owners[key].endswith(f":{servers[2].port}")]
        assert len(moved) > 2 * LIMITED_DELETES
        assert not set(moved) & (stored_keys(servers[0]) | stored_keys(servers[1])), "no delete would reach them"
        configure(router, two)
        assert with_client(router.port, lambda client: client.get_many(moved)) == {}
    finally:
        router.stop()
