"""Bad input gives a clear error to the client that sent it, loses nothing, and affects no other client."""

import socket
import subprocess

import pytest
from processes import PROGRAMS, Process, accepts_at, answers, connect, eventually, free_port, stats


@pytest.fixture(params=["server", "cluster"])
def port(request):
    """The port of a server, then of a router."""
    return request.getfixturevalue(request.param).port


def talk(port: int, sent: bytes) -> bytes:
    """All that comes back until the connection is closed or a `version` sent afterwards is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent + b"version\r\n")
        answer = b""
        while not (answer.endswith(b"\r\n") and b"VERSION" in answer):
            piece = connection.recv(65536)
            if not piece:
                return answer
            answer += piece
        return answer


def test_a_key_that_is_too_long(port):
    answer = talk(port, b"get " + b"k" * 251 + b"\r\n")
    assert answer.startswith(b"CLIENT_ERROR"), answer
    assert b"VERSION" in answer
    assert talk(port, b"get " + b"k" * 250 + b"\r\n").startswith(b"END\r\n")


@pytest.fixture
def is_router(port, request):
    """Whether a router has the port: as mcrouter does, it ends a connection with a malformed line."""
    return request.node.callspec.params["port"] == "cluster"


def test_a_key_with_control_characters(port, is_router):
    answer = talk(port, b"set bad\x01key 0 0 1\r\nx\r\n")
    assert answer.startswith(b"CLIENT_ERROR"), answer
    assert b"STORED" not in answer and (b"VERSION" in answer) != is_router


def test_a_value_over_the_limit(port):
    size = 3 << 20
    answer = talk(port, b"set large 0 0 %d\r\n" % size + b"x" * size + b"\r\n")
    assert answer.startswith(b"SERVER_ERROR object too large for cache\r\n"), answer[:200]
    assert b"VERSION" in answer, "the connection continues after the value"
    assert connect(port).get("large") is None


def test_garbage(port, is_router):
    answer = talk(port, b"\x00\xff\xfe nonsense\r\n\r\n")
    assert answer.startswith(b"CLIENT_ERROR malformed request\r\n" if is_router else b"ERROR\r\n"), answer
    assert connect(port).set("key", b"value")


def test_an_endless_line_ends_the_connection(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        answer = b""
        try:
            for _ in range(400):
                connection.sendall(b"x" * 65536)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert answers(port)


def test_an_unfinished_command_does_not_affect_other_clients(port):
    halves = []
    for half in (b"get half", b"set half 0 0 100\r\nonly a part", b"set half 0 0"):
        half_sent = socket.create_connection(("127.0.0.1", port), timeout=10)
        half_sent.sendall(half)
        halves.append(half_sent)
    client = connect(port)
    assert client.set("key", b"value")
    assert client.get("key") == b"value"
    assert client.get("half") is None
    halves[1].close()
    assert client.get("half") is None
    for half_sent in halves:
        half_sent.close()


def test_a_client_that_never_reads_does_not_affect_others(port):
    client = connect(port)
    value = b"v" * (1 << 19)
    assert client.set("large", value)
    greedy = socket.create_connection(("127.0.0.1", port), timeout=10)
    greedy.setblocking(False)
    sent = 0
    try:
        while sent < 1 << 22:
            sent += greedy.send(b"get large\r\n" * 100)
    except BlockingIOError:
        pass  # it is no longer read from: as it should be
    except (ConnectionResetError, BrokenPipeError):
        pass  # or it was disconnected
    for _ in range(20):
        assert client.get("large") == value
    greedy.close()
    eventually(lambda: int(stats(port)["curr_connections"]) < 50, "the greedy client is disconnected")


def test_a_taken_port_is_named_with_the_option_to_change_it(server):
    for program, arguments in (
        ("lookaside-server", ["-p", str(server.port)]),
        ("lookaside-router", ["-p", str(server.port), "--config-str", '{"route": "NullRoute"}']),
    ):
        ended = subprocess.run([PROGRAMS / program, *arguments], capture_output=True, text=True, timeout=20)
        assert ended.returncode != 0
        assert str(server.port) in ended.stderr and "-p" in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-o", "foo"], "no such option"),
        (["-o", "idle_timeot=9"], "did you mean idle_timeout?"),
        (["-o", "idle_timeout=x"], "idle_timeout"),
        (["-o", "slab_automove=9"], "slab_automove"),
        (["-o", "ssl_key=server.key"], "without -Z"),
        (["-Z", "-o", "ssl_chain_cert=absent.pem,ssl_verify_mode=9"], "ssl_verify_mode=9"),
        (["-p", "0"], "no client could connect"),
        (["--memory-limit-max", "32"], "--memory-limit-max 32 is below -m 64"),
        (["--udp-worker-ports", "11300"], "add -U"),
        (["-U", "11301", "--udp-worker-ports", "11300", "-t", "4"], "up to 11303, -U is among them"),
        (["-U", "11211", "--udp-worker-ports", "65530", "-t", "8"], "8 threads need a port each"),
        (["--remove-region", "main", "-m", "64"], "--remove-region NAME takes no other option"),
        (["-m", "1"], "-m"),
        (["-m", "-5"], "a number of megabytes"),
        (["-m", "64m"], "as in 64"),
        (["-I", "512m"], "-I"),
        (["-t", "-1"], "-1"),
        (["-l", ""], "-l"),
        (["-l", "127.0.0.1:99999"], '"99999" is not a port'),
        (["-l", "10.0.0.999"], "10.0.0.999"),
        (["--metrics-address", "99999"], "99999 is not a port"),
        (["--metrics-address", "127.0.0.1"], "a port is missing"),
    ],
)
def test_a_usage_error_is_named_and_exits_with_2(arguments, complaint):
    command = [PROGRAMS / "lookaside-server", "-p", "-1", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2 and complaint in ended.stderr, ended.stderr


def test_ignored_options_are_logged_as_warnings(tmp_path):
    path = tmp_path / "m.sock"
    command = [PROGRAMS / "lookaside-server", "-s", path, "-l", "127.0.0.1", "-o", "ext_path=/x:1G,hashpower=20"]
    server = Process("server", command, tmp_path)
    try:
        server.wait_ready(lambda: accepts_at(path))
        warnings = [line for line in server.log().splitlines() if "WARN" in line]
        for option in ("-o ext_path=/x:1G", "-l"):
            assert any(f"{option} has no effect" in line for line in warnings), server.log()
        assert not any("hashpower" in line for line in warnings) and "-o hashpower=20" in server.log()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("configuration", "complaint"),
    [
        ('{\n "pools": {"a": {"servers": ["127.0.0.1:1"]}},\n "route": "PoolRoute|b"\n}', ["line 3", '"b"', "a"]),
        ('{\n "route": {"type": "NoSuchRoute"}\n}', ["line 2", "NoSuchRoute"]),
        ('{\n "route": \n', ["line"]),
    ],
)
def test_an_invalid_configuration_is_refused_with_line_and_reason(tmp_path, configuration, complaint):
    path = tmp_path / "router.json"
    path.write_text(configuration)
    command = [PROGRAMS / "lookaside-router", "-f", path, "-p", str(free_port()), "--validate-config"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 3
    for words in complaint:
        assert words in ended.stderr, ended.stderr


def test_a_bad_change_of_the_configuration_is_refused_and_the_old_one_stays(cluster):
    good = cluster.configuration_path.read_text()
    client = cluster.client()
    assert client.set("key", b"value")
    failures = int(stats(cluster.port)["config_failures"])
    cluster.configuration_path.write_text(good.replace('"pool": "wildcard"', '"pool": "no such pool"'))
    eventually(lambda: int(stats(cluster.port)["config_failures"]) > failures, "the change is refused")
    assert "no such pool" in cluster.router.log()
    assert client.get("key") == b"value"
    client.close()


def test_an_unreachable_database_is_named_and_retried(cluster, tmp_path):
    port = free_port()
    daemon = Process(
        "invalidator",
        [
            PROGRAMS / "lookaside-invalidator", "--source", f"mysql://user:secret@127.0.0.1:{free_port()}/",
            "--state-dir", tmp_path / "state", "--listen", f"127.0.0.1:{port}",
            "--cluster", f"one=127.0.0.1:{cluster.port}",
        ],
        tmp_path,
    )  # fmt: skip
    try:
        daemon.wait_ready(lambda: answers(port))
        daemon.wait_ready(lambda: "reach" in daemon.log())
        assert "secret" not in daemon.log()
    finally:
        assert daemon.stop() == 0
