"""The binary protocol with python-binary-memcached, with and without passwords (SASL PLAIN).

Its `get_multi` is the row of quiet gets with a `noop` behind it, `set_multi` and `delete_multi` rows of quiet sets and
deletes.
"""

import os
import signal
import socket
import struct
import subprocess

import bmemcached
import pytest
from bmemcached.exceptions import MemcachedException
from processes import PROGRAMS, Process, Server, accepts, connect, eventually, free_port, stats
from routers import router

NOOP = struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 0, 0)
HEADER_BYTES = 24


@pytest.fixture
def binary(server):
    """A client without a password."""
    client = bmemcached.Client((f"127.0.0.1:{server.port}",), socket_timeout=10)
    yield client
    client.disconnect_all()


def test_values_and_conditions(binary):
    assert binary.set("a", "one") and binary.get("a") == "one"
    assert binary.get("absent") is None
    assert not binary.add("a", "two") and binary.replace("a", {"any": ["thing"]})
    assert not binary.replace("absent", "x") and binary.add("b c", "keys may hold anything")
    assert binary.get("a") == {"any": ["thing"]} and binary.get("b c") == "keys may hold anything"
    value, unique = binary.gets("a")
    assert not binary.cas("a", "x", unique + 1) and binary.cas("a", "new", unique)
    assert not binary.cas("a", "x", unique), "the unique has changed"
    assert binary.delete("a") and binary.get("a") is None


def test_numbers(binary):
    assert binary.incr("n", 5, default=10) == 10
    assert binary.incr("n", 5, default=10) == 15
    assert binary.decr("n", 100, default=10) == 0


def test_many_keys_in_a_row_of_quiet_gets(binary):
    values = {f"key{n}": f"value {n}" * (n % 7) for n in range(500)}
    assert not binary.set_multi(values), "nothing was refused"
    asked = [name for n in range(500) for name in (f"key{n}", f"absent{n}")]
    assert binary.get_multi(asked) == values
    assert binary.delete_multi(["key0", "key1"]) and binary.get_multi(["key0", "key1", "key2"]) == {
        "key2": values["key2"]
    }


def test_a_large_value_and_one_that_is_too_large(binary):
    large = os.urandom(900_000)
    assert binary.set("large", large, compress_level=0) and binary.get("large") == large
    with pytest.raises(MemcachedException, match="Too large"):
        binary.set("large", os.urandom(1_100_000), compress_level=0)
    assert binary.get("large") is None, "what was to be replaced is gone"
    assert binary.set("after", "x") and binary.get("after") == "x", "the connection goes on"


def test_both_protocols_see_the_same_items(server, binary):
    text = connect(server.port)
    assert binary.set("shared", b"from binary") and text.get("shared") == b"from binary"
    assert text.set("shared", b"from text") and binary.get("shared") == "from text"
    assert binary.flush_all() and text.get("shared") is None
    text.close()


def test_statistics(server, binary):
    binary.set("a", "x")
    values = binary.stats()[f"127.0.0.1:{server.port}"]
    assert values["cmd_set"] == b"1" and values["pid"] == str(server.running.pid).encode()
    assert binary.stats("settings")[f"127.0.0.1:{server.port}"]["binding_protocol"] == b"auto-negotiate"


def test_watchers_see_binary_commands(server, binary):
    address = f"127.0.0.1:{server.port}"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as watcher:
        watcher.sendall(b"watch fetchers mutations deletions\r\n")
        assert watcher.recv(4) == b"OK\r\n"
        eventually(lambda: stats(server.port)["log_watchers"] == "1", "it watches")
        assert binary.stats("detail on") == {address: {}}
        binary.set("p:a", "abc")
        assert binary.get_multi(["p:a", "p:b"]) == {"p:a": "abc"}
        binary.delete("p:a")
        seen = b""
        while b"type=deleted key=p%3Aa" not in seen:
            seen += watcher.recv(65536)
    assert b"type=item_store key=p%3Aa status=stored cmd=set" in seen
    assert b"type=item_get key=p%3Aa status=found" in seen and b"key=p%3Ab status=not_found" in seen
    assert binary.stats("detail dump")[address]["detailed"].startswith(b"PREFIX p get 2 hit 1 set 1 del 1\r\n")


def test_a_router_translates_the_binary_protocol_for_text_servers(cluster):
    client, text = bmemcached.Client((f"127.0.0.1:{cluster.port}",), socket_timeout=10), connect(cluster.port)
    values = {f"key{n}": f"value {n}" for n in range(300)}
    assert not client.set_multi(values) and client.get_multi([*values, "absent"]) == values
    assert text.get("key7") == b"value 7" and sorted(server_items(cluster)) != [0, 300], "keys are on both servers"
    value, unique = client.gets("key7")
    assert client.cas("key7", "new", unique) and not client.cas("key7", "x", unique)
    assert client.incr("n", 5, default=10) == 10 and client.incr("n", 5, default=10) == 15
    assert not client.add("key7", "x") and client.delete("key7") and client.get("key7") is None
    assert client.stats()[f"127.0.0.1:{cluster.port}"]["num_servers"] == b"3"
    client.disconnect_all()
    text.close()


SET, ADD, REPLACE, APPEND = 0x01, 0x02, 0x03, 0x0E


def ask_binary(connection: socket.socket, request: bytes) -> tuple[int, int]:
    """Status and CAS unique of the response to one request."""
    connection.sendall(request)
    received = b""
    while len(received) < HEADER_BYTES or len(received) < HEADER_BYTES + struct.unpack(">I", received[8:12])[0]:
        piece = connection.recv(4096)
        assert piece, f"closed after {received}"
        received += piece
    return struct.unpack(">H", received[6:8])[0], struct.unpack(">Q", received[16:24])[0]


@pytest.mark.parametrize("protocol", ["ascii", "meta"])
@pytest.mark.parametrize("route", ["PoolRoute|main", {"type": "AllSyncRoute", "children": "Pool|main"}])
def test_a_router_answers_a_store_with_the_cas_unique(tmp_path, server, protocol, route):
    """It was 0, so a conditional store needed another get, which might see the value of another client."""
    pool = {"servers": [f"127.0.0.1:{server.port}"], "protocol": protocol}
    with router(tmp_path, {"pools": {"main": pool}, "route": route}) as port:
        client = client_of(port)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            uniques = []
            for opcode, key, extras in (
                (SET, b"a", bytes(8)),
                (REPLACE, b"a", bytes(8)),
                (APPEND, b"a", b""),
                (ADD, b"b c", bytes(8)),
            ):
                status, unique = ask_binary(connection, packet(opcode, key, b"x", extras))
                assert status == 0 and unique == client.gets(key.decode())[1] != 0
                uniques.append(unique)
            assert len(set(uniques)) == 4
            assert ask_binary(connection, packet(ADD, b"a", b"x", bytes(8)))[0] == 2, "it exists"
        assert not client.cas("a", "y", uniques[0]), "it has changed since"
        assert client.cas("a", "y", uniques[2]) and client.get("a") == "y"
        client.disconnect_all()


def server_items(cluster) -> list[int]:
    """How many items each server has."""
    return [int(stats(server.port)["curr_items"]) for server in cluster.servers]


@pytest.fixture
def guarded(tmp_path):
    """A server that asks for passwords: one plain, one as `htpasswd -nB` prints it ("secret", cost 4)."""
    users = tmp_path / "users"
    users.write_text("ada:plain:secret\ngrace:$2y$04$K1yr2BLzgQuK2K8oPZWrLeo62uTp8KrDz4dsLeIXiIuugzCcvbtw2\n")
    port = free_port()
    command = [PROGRAMS / "lookaside-server", "-p", port, "-t", "2", "-S"]
    server = Process("guarded", command, tmp_path, env={**os.environ, "MEMCACHED_SASL_PWDB": str(users)})
    server.port, server.users = port, users
    server.wait_ready(lambda: accepts(port))
    yield server
    assert server.stop() == 0


def client_of(port: int, *user_and_password: str) -> bmemcached.Client:
    """A client that fails aloud."""
    return bmemcached.Client((f"127.0.0.1:{port}",), *user_and_password, socket_timeout=10)


@pytest.mark.parametrize("who", [("ada", "plain:secret"), ("grace", "secret")])
def test_the_right_password_authenticates(guarded, who):
    client = client_of(guarded.port, *who)
    assert client.set("a", "x") and client.get_multi(["a", "b"]) == {"a": "x"}
    values = client.stats()[f"127.0.0.1:{guarded.port}"]
    assert (values["auth_cmds"], values["auth_errors"]) == (b"1", b"0")
    assert client.stats("settings")[f"127.0.0.1:{guarded.port}"]["auth_enabled_sasl"] == b"yes"
    client.disconnect_all()


@pytest.mark.parametrize("who", [("ada", "secret"), ("grace", "guess"), ("eve", "secret"), ("ada", "\0plain:secret")])
def test_a_wrong_password_is_refused(guarded, who):
    with pytest.raises(MemcachedException, match="Auth failure"):
        client_of(guarded.port, *who).get("a")


def test_nothing_is_served_before_the_password(guarded):
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as connection:
        connection.sendall(NOOP)
        answer = connection.recv(4096)
        assert answer[HEADER_BYTES:] == b"Auth failure." and connection.recv(1) == b""
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as connection:
        connection.sendall(b"version\r\n")
        assert connection.recv(1) == b"", "the text protocol has no password, so it is refused"


def packet(opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"") -> bytes:
    """A request."""
    body = extras + key + value
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(body), 0, 0) + body


def test_many_connections_pipeline_password_and_request(guarded):
    word = packet(0x21, b"PLAIN", b"\0ada\0plain:secret")
    wrong = packet(0x21, b"PLAIN", b"\0ada\0guess")
    connections = [socket.create_connection(("127.0.0.1", guarded.port), timeout=10) for _ in range(60)]
    for number, connection in enumerate(connections):
        key, value = b"key%d" % number, b"value %d" % number
        first = wrong if number % 3 == 0 else word
        connection.sendall(first + packet(0x11, key, value, bytes(8)) + packet(0x00, key) + wrong + packet(0x00, key))
    for number, connection in enumerate(connections):
        with connection:
            received = b""
            while piece := connection.recv(65536):
                received += piece
        values = [b"Authenticated", b"value %d" % number, b"Auth failure."] if number % 3 else [b"Auth failure."]
        assert all(word in received for word in values), received
        assert (b"value" in received) == bool(number % 3) and received.endswith(b"Auth failure.")
    log = guarded.log()
    assert 'a login as "ada" from tcp:127.0.0.1:' in log and "guess" not in log and "plain:secret" not in log


def test_the_file_is_reloaded_on_sighup(guarded):
    client_of(guarded.port, "ada", "plain:secret").set("a", "x")
    guarded.users.write_text("ada:changed\n")
    guarded.running.send_signal(signal.SIGHUP)
    eventually(lambda: "user reloaded" in guarded.log(), "the file is reloaded")
    assert client_of(guarded.port, "ada", "changed").get("a") == "x"
    with pytest.raises(MemcachedException, match="Auth failure"):
        client_of(guarded.port, "grace", "secret").get("a")
    guarded.users.write_text("no colon\n")
    guarded.running.send_signal(signal.SIGHUP)
    eventually(lambda: "line 1: a line is user:password" in guarded.log(), "a bad file is logged")
    assert client_of(guarded.port, "ada", "changed").get("a") == "x"


def test_a_server_without_passwords_accepts_clients_that_send_one(server):
    client = client_of(server.port, "ada", "secret")
    assert client.set("a", "x") and client.get("a") == "x"
    client.disconnect_all()


def start(*options: str, users: str | None = None) -> subprocess.CompletedProcess:
    """A server that does not start."""
    env = {**os.environ, "MEMCACHED_SASL_PWDB": users} if users else os.environ
    command = [PROGRAMS / "lookaside-server", "-p", "-1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, env=env)


def test_options_that_weaken_authentication_are_refused(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:$6$salt$hash\n")
    for options, file, word, status in (
        (("-S",), None, "MEMCACHED_SASL_PWDB", 2),
        (("-S",), str(tmp_path / "absent"), "absent", 1),
        (("-S",), str(users), "line 1", 1),
        (("-S", "-B", "ascii"), str(users), "-B", 2),
        (("-S", "-U", "11999"), str(users), "-U", 2),
    ):
        ended = start(*options, users=file)
        assert ended.returncode == status and word in ended.stderr, ended.stderr
    assert start("-B", "nonsense").returncode == 2


@pytest.mark.parametrize(("name", "request_bytes"), [("ascii", NOOP + b"\r\n"), ("binary", b"version\r\n")])
def test_a_port_with_one_protocol(tmp_path, name, request_bytes):
    server = Server("server", tmp_path, "-B", name) if name == "ascii" else None
    if server is None:
        port = free_port()
        server = Process("server", [PROGRAMS / "lookaside-server", "-p", port, "-B", name], tmp_path)
        server.port = port
        server.wait_ready(lambda: accepts(port))
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(request_bytes)
            answer = connection.recv(4096)
        assert (b"ERROR" in answer) if name == "ascii" else (answer == b"")
        if name == "ascii":
            assert stats(server.port)["pid"]
    finally:
        server.stop()
