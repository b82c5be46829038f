"""A server that evicts nothing (`-M`): what a client is answered when memory is full, and what is counted."""

import socket

import bmemcached
import pytest
from processes import Server, connect, eventually, stats
from pymemcache.exceptions import MemcacheServerError

REFUSED = b"SERVER_ERROR out of memory storing object\r\n"
VALUE = b"x" * 1000


@pytest.fixture
def full(tmp_path):
    """A server that is full of values of one size, and their keys."""
    server = Server("server", tmp_path, "-M", "-m", "4", "--stale-seconds", "0")
    try:
        client = connect(server.port)
        keys = []
        with pytest.raises(MemcacheServerError, match="out of memory storing object"):
            while len(keys) < 10_000:
                client.set(f"key:{len(keys)}", VALUE)
                keys.append(f"key:{len(keys)}")
        yield server, client, keys
    finally:
        server.stop()


def ask(port: int, request: bytes) -> bytes:
    """The reply of one line to one request."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        received = b""
        while not received.endswith(b"\r\n"):
            received += connection.recv(4096)
        return received


def test_a_full_server_refuses_and_keeps_what_it_has(full):
    server, client, keys = full
    assert len(keys) > 2_000
    before = stats(server.port)
    block = b"%d\r\n%s\r\n" % (len(VALUE), VALUE)
    for command in (b"set new 0 0 ", b"add new 0 0 ", b"append key:1 0 0 ", b"prepend key:1 0 0 "):
        assert ask(server.port, command + block) == REFUSED, command
    assert ask(server.port, b"ms new " + block) == REFUSED
    assert ask(server.port, b"append absent 0 0 1\r\nx\r\n") == b"NOT_STORED\r\n", "the block was swallowed"
    assert client.get_many(keys) == {key: VALUE for key in keys}

    after = stats(server.port)
    assert int(after["store_no_memory"]) == int(before["store_no_memory"]) + 5
    assert after["evictions"] == "0" and after["curr_items"] == str(len(keys))
    assert int(after["bytes"]) < int(after["memory_bytes"]) <= 4 << 20
    assert client.stats("settings")[b"evictions"] == b"off"
    refused = [int(count) for name, count in client.stats("items").items() if name.endswith(b":outofmemory")]
    assert max(refused) == 4, "the one that found it full, set, add and ms; the longer values are of another class"


def test_a_refused_set_removes_its_old_value(full):
    """Else it would outlive the update."""
    server, client, keys = full
    assert ask(server.port, b"set key:0 0 0 9000\r\n%s\r\n" % (b"y" * 9000)) == REFUSED
    assert client.get("key:0") is None
    assert ask(server.port, b"replace key:1 0 0 9000\r\n%s\r\n" % (b"y" * 9000)) == REFUSED
    assert client.get("key:1") == VALUE
    assert client.set("another", VALUE), "in the place of the old value"


def test_a_delete_and_an_expiry_free_memory(full):
    server, client, keys = full
    assert client.delete("key:0") and client.set("new:0", VALUE)
    assert client.touch("key:1", 2)
    with pytest.raises(MemcacheServerError):
        client.set("new:1", VALUE)

    def is_stored() -> bool:
        try:
            return client.set("new:1", VALUE)
        except MemcacheServerError:
            return False

    eventually(is_stored, "the item that has expired frees memory")
    assert client.get("key:1") is None
    assert client.get_many(keys[2:]) == {key: VALUE for key in keys[2:]}


def test_a_number_that_needs_more_memory(tmp_path):
    server = Server("server", tmp_path, "-M", "-m", "4")
    try:
        client = connect(server.port)
        # With a header of 16 bytes and one digit it fills a chunk of 64 bytes.
        key = "n" * 47
        assert client.set(key, b"8")
        with pytest.raises(MemcacheServerError):
            for number in range(10_000):
                client.set(f"fill:{number}", VALUE)
        assert ask(server.port, b"incr %s 1\r\n" % key.encode()) == b"9\r\n"
        assert ask(server.port, b"incr %s 1\r\n" % key.encode()) == b"SERVER_ERROR out of memory\r\n"
        assert client.get(key) == b"9", "it stays"
    finally:
        server.stop()


def test_the_binary_protocol_has_its_status(full):
    server, _, _ = full
    client = bmemcached.Client((f"127.0.0.1:{server.port}",), socket_timeout=10)
    try:
        assert not client.set("binary", "x" * 1000, compress_level=0)
    except bmemcached.exceptions.MemcachedException as error:
        assert error.code == 0x82
    finally:
        client.disconnect_all()
