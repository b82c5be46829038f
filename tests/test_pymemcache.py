"""pymemcache, unchanged, against one server and against a router: every basic command."""

import pytest
from processes import connect


@pytest.fixture(params=["server", "cluster"])
def client(request):
    """A client of a server, then of a router."""
    endpoint = request.getfixturevalue(request.param)
    client = connect(endpoint.port)
    yield client
    client.close()


def test_set_and_get(client):
    assert client.get("absent") is None
    assert client.set("key", b"value")
    assert client.get("key") == b"value"
    assert client.set("key", b"")
    assert client.get("key") == b""
    assert client.set("binary", bytes(range(256)) * 40)
    assert client.get("binary") == bytes(range(256)) * 40


def test_add_and_replace(client):
    assert not client.replace("key", b"none to replace")
    assert client.add("key", b"first")
    assert not client.add("key", b"second")
    assert client.replace("key", b"third")
    assert client.get("key") == b"third"


def test_append_and_prepend(client):
    assert not client.append("key", b"nothing there")
    client.set("key", b"b")
    assert client.append("key", b"c")
    assert client.prepend("key", b"a")
    assert client.get("key") == b"abc"


def test_compare_and_swap(client):
    assert client.gets("key") == (None, None)
    client.set("key", b"one")
    value, cas = client.gets("key")
    assert value == b"one"
    assert client.cas("key", b"two", cas)
    assert client.cas("key", b"three", cas) is False
    assert client.cas("absent", b"four", cas) is None
    assert client.get("key") == b"two"


def test_many_keys_at_once(client):
    values = {f"key:{index}": f"value {index}".encode() for index in range(200)}
    assert client.set_many(values) == []
    assert client.get_many(list(values) + ["absent:1", "absent:2"]) == values
    assert set(client.gets_many(list(values)[:50])) == set(list(values)[:50])
    assert client.delete_many(list(values)[:100])
    assert set(client.get_many(list(values))) == set(list(values)[100:])


def test_delete(client):
    assert not client.delete("key")
    client.set("key", b"value")
    assert client.delete("key")
    assert client.get("key") is None


def test_incr_and_decr(client):
    assert client.incr("counter", 1) is None
    client.set("counter", b"10")
    assert client.incr("counter", 5) == 15
    assert client.decr("counter", 20) == 0


def test_touch_and_gat(client):
    assert not client.touch("key", 10)
    client.set("key", b"value")
    assert client.touch("key", 100)
    answer = client.raw_command("gat 100 key", b"END\r\n")
    assert answer == b"VALUE key 0 5\r\nvalue\r\n"
    answer = client.raw_command("gats 100 key absent", b"END\r\n")
    assert answer.startswith(b"VALUE key 0 5 ")


def test_exptime(client):
    client.set("key", b"value", expire=-1)
    assert client.get("key") is None
    client.set("key", b"value", expire=1000)
    assert client.get("key") == b"value"


def test_noreply(client):
    client.set("key", b"value", noreply=True)
    client.incr("key", 1, noreply=True)
    client.delete("other", noreply=True)
    assert client.get("key") == b"value"


def test_version_and_stats(client):
    assert client.version()
    client.get("key")
    stats = client.stats()
    assert int(stats[b"cmd_get"]) >= 1
    assert int(stats[b"pid"]) > 0


def test_flush_all(server):
    client = connect(server.port)
    client.set("key", b"value")
    assert client.flush_all()
    assert client.get("key") is None
    client.close()
