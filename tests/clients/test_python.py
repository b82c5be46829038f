"""Python's clients: pymemcache (text), pylibmc (libmemcached beneath it), python-binary-memcached.

The first and the last speak through TLS too: libmemcached has none.
Each test uses the client's own API; the expected results are memcached's.
"""

import json
import re
import ssl
import time

import bmemcached
import pylibmc
import pytest
from certificates import Authority
from endpoints import PASSWORD, USER
from processes import eventually
from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError, MemcacheUnexpectedCloseError

LARGE_BYTES = 1_000_000
TOO_LARGE_BYTES = 1_100_000
MANY = {f"many:{index}": f"value {index}" for index in range(300)}


class JsonSerde:
    """Strings as they are, everything else as JSON under flag 2."""

    def serialize(self, key, value):
        """The bytes and the flags."""
        return (value, 1) if isinstance(value, str) else (json.dumps(value), 2)

    def deserialize(self, key, value, flags):
        """The deserialised value."""
        return json.loads(value) if flags == 2 else value.decode()


@pytest.mark.parametrize("client_class", [Client, PooledClient])
def test_pymemcache(open_server, client_class):
    exchange_text(open_server, client_class)


@pytest.mark.parametrize("client_class", [Client, PooledClient])
def test_pymemcache_through_tls(secured_server, client_class):
    exchange_text(secured_server, client_class, tls_context=secured_server.authority.context())


def test_an_untrusted_server_gets_no_request(secured_server, tmp_path):
    (tmp_path / "other").mkdir()
    context = Authority(tmp_path / "other").context()
    with pytest.raises(ssl.SSLCertVerificationError):
        Client(("127.0.0.1", secured_server.port), timeout=10, tls_context=context).get("k")
    with pytest.raises((MemcacheUnexpectedCloseError, OSError)):
        Client(("127.0.0.1", secured_server.port), timeout=10).get("plain")


def exchange_text(server, client_class, **how) -> None:
    """pymemcache's whole API."""
    client = client_class(
        ("127.0.0.1", server.port), serde=JsonSerde(), timeout=10, connect_timeout=10, default_noreply=False, **how
    )
    assert client.get("absent") is None and client.set("k", "v") and client.get("k") == "v"
    assert client.set("document", {"a": [1, None, "ü"]}) and client.get("document") == {"a": [1, None, "ü"]}
    assert client.set_many(MANY) == [] and client.get_many([*MANY, "absent"]) == MANY
    value, unique = client.gets("k")
    assert value == "v" and client.cas("k", "w", unique) and client.cas("k", "x", unique) is False
    assert client.cas("absent", "x", unique) is None
    assert client.add("k", "x") is False and client.add("added", "x") is True
    assert client.replace("k", "x") is True and client.replace("absent", "x") is False
    assert client.append("k", "y") and client.prepend("k", "w") and client.append("absent", "y") is False
    assert client.get("k") == "wxy"
    client.set("n", "10")
    assert (client.incr("n", 5), client.decr("n", 20), client.incr("absent", 1)) == (15, 0, None)
    client.set("n", str(2**64 - 1))
    assert client.incr("n", 2) == 1, "counters wrap at 64 bits"
    with pytest.raises(MemcacheClientError, match="non-numeric"):
        client.incr("k", 1)
    assert client.touch("k", 100) is True and client.touch("absent", 100) is False
    assert client.delete("k") is True and client.delete("k") is False and client.get("k") is None
    assert client.set("gone", "x", expire=-1) and client.get("gone") is None
    expires(client, lambda: client.set("brief", "x", expire=1))
    assert client.set("noreply", "x", noreply=True) and client.get("noreply") == "x"
    assert client.set("large", "x" * LARGE_BYTES) and client.get("large") == "x" * LARGE_BYTES
    with pytest.raises(MemcacheServerError, match="object too large for cache"):
        client.set("large", "x" * TOO_LARGE_BYTES)
    assert client.get("large") is None, "what was to be replaced is gone"
    stats = client.stats()
    assert stats[b"pid"] == server.running.pid and stats[b"threads"] == 2
    assert client.stats("settings")[b"num_threads"] == 2
    assert re.match(rb"\d+\.\d+\.\d+", client.version())
    assert client.flush_all() and client.get_many(MANY) == {}
    client.close()


def expires(client, store) -> None:
    """A value that `store` puts under `brief` for a second is there, and then is not."""
    stored_at = time.monotonic()
    assert store()
    found = client.get("brief")
    # A second of the server's clock may end at once.
    assert found == "x" or time.monotonic() - stored_at > 0.5 or found is None
    eventually(lambda: client.get("brief") is None, "the item expires")


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_pylibmc(open_server, binary):
    client = pylibmc.Client(
        [f"127.0.0.1:{open_server.port}"], binary=binary, behaviors={"cas": True, "tcp_nodelay": True}
    )
    assert client.get("absent") is None and client.set("k", "v") and client.get("k") == "v"
    for value in (b"bytes\r\n\0", "ü", 7, 2**70, {"a": [1, None]}, 1.5):
        assert client.set("typed", value) and client.get("typed") == value
        assert type(client.get("typed")) is type(value), "flags say the type"
    assert client.set_multi(MANY) == [] and client.get_multi([*MANY, "absent"]) == MANY
    assert client.set("compressed", "x" * 50_000, min_compress_len=1000) and client.get("compressed") == "x" * 50_000
    value, unique = client.gets("k")
    assert value == "v" and client.cas("k", "w", unique) and not client.cas("k", "x", unique)
    assert not client.add("k", "x") and client.add("added", "x")
    if binary:
        # The binary protocol has a status of its own for what is not there.
        with pytest.raises(pylibmc.NotFound):
            client.replace("absent", "x")
    else:
        assert not client.replace("absent", "x")
    assert client.replace("k", "x")
    assert client.append("k", "y") and client.prepend("k", "w") and client.get("k") == "wxy"
    with pytest.raises(pylibmc.NotFound):
        client.incr("absent")
    client.set("n", 10)
    assert (client.incr("n", 5), client.decr("n", 20)) == (15, 0)
    assert client.touch("k", 100) and not client.touch("absent", 100)
    assert client.delete("k") and not client.delete("k") and client.get("k") is None
    assert client.delete_multi(["added", "typed"]) and client.get_multi(["added", "typed"]) == {}
    expires(client, lambda: client.set("brief", "x", time=1))
    assert client.set("large", b"x" * LARGE_BYTES) and client.get("large") == b"x" * LARGE_BYTES
    with pytest.raises(pylibmc.TooBig):
        client.set("large", b"x" * TOO_LARGE_BYTES)
    [(_, stats)] = client.get_stats()
    assert stats[b"pid" if b"pid" in stats else "pid"] == str(open_server.running.pid).encode()
    assert client.flush_all() and client.get_multi(list(MANY)) == {}
    client.disconnect_all()


def exchange_binary(server, **who) -> None:
    """python-binary-memcached's whole API."""
    address = f"127.0.0.1:{server.port}"
    client = bmemcached.Client((address,), socket_timeout=10, **who)
    assert client.get("absent") is None and client.set("k", "v") and client.get("k") == "v"
    for value in (b"bytes\r\n\0", "ü", 7, {"a": [1, None]}):
        assert client.set("typed", value) and client.get("typed") == value, "flags say the type"
    assert not client.set_multi(MANY) and client.get_multi([*MANY, "absent"]) == MANY
    value, unique = client.gets("k")
    assert value == "v" and client.cas("k", "w", unique) and not client.cas("k", "x", unique)
    assert not client.add("k", "x") and client.add("added", "x")
    assert client.replace("k", "x") and not client.replace("absent", "x")
    assert (client.incr("n", 5, default=10), client.incr("n", 5), client.decr("n", 20)) == (10, 15, 0)
    assert client.delete("k") and client.get("k") is None
    assert client.delete_multi(["added", "typed"]) and client.get_multi(["added", "typed"]) == {}
    expires(client, lambda: client.set("brief", "x", time=1))
    assert client.set("large", "x" * LARGE_BYTES) and client.get("large") == "x" * LARGE_BYTES
    stats = client.stats()[address]
    assert stats["pid"] == str(server.running.pid).encode() and stats["threads"] == b"2"
    assert client.flush_all() and client.get_multi(list(MANY)) == {}
    client.disconnect_all()


def test_python_binary_memcached(open_server):
    exchange_binary(open_server)


def test_python_binary_memcached_through_tls(secured_server):
    exchange_binary(secured_server, tls_context=secured_server.authority.context())


def test_python_binary_memcached_with_a_password(guarded_server):
    exchange_binary(guarded_server, username=USER, password=PASSWORD)
    stranger = bmemcached.Client((f"127.0.0.1:{guarded_server.port}",), username=USER, password="wrong")
    with pytest.raises(bmemcached.exceptions.MemcachedException, match="Auth failure"):
        stranger.set("k", "v")
