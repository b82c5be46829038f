"""The Prometheus endpoint, and its handling of other clients."""

import http.client
import re
import socket
import subprocess

import pytest
from processes import PROGRAMS, Server, connect, eventually, free_port, stats

SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


class MeasuredServer(Server):
    """A server with metrics."""

    def __init__(self, folder, *arguments: str) -> None:
        self.metrics_port = free_port()
        super().__init__("server", folder, "--metrics-address", f"127.0.0.1:{self.metrics_port}", *arguments)

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=10)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response.status, body

    def metrics(self) -> dict[tuple[str, str], float]:
        """Every sample by name and labels; fails on a line that Prometheus would not read."""
        status, body = self.get("/metrics")
        assert status == 200
        samples = {}
        for line in body.splitlines():
            if line.startswith("# "):
                assert re.fullmatch(r"# (HELP \w+ .+|TYPE \w+ (counter|gauge|histogram))", line), line
                continue
            match = SAMPLE.fullmatch(line)
            assert match and (match[1], match[2] or "") not in samples, line
            samples[match[1], match[2] or ""] = float(match[3])
        return samples


@pytest.fixture
def server(tmp_path):
    """One with two threads."""
    server = MeasuredServer(tmp_path, "-t", "2")
    yield server
    assert server.stop() == 0


def test_every_statistic_is_exported(server):
    client = connect(server.port)
    client.set("a", b"x")
    client.get("a")
    values, metrics = stats(server.port), server.metrics()
    for name, value in values.items():
        if not name.endswith("version") and re.fullmatch(r"[\d.]+", value):
            assert ("lookaside_server_" + name, "") in metrics, name
    assert metrics["lookaside_server_get_hits", ""] == 1 and metrics["lookaside_server_cmd_set", ""] == 1
    body = server.get("/metrics")[1]
    assert "# HELP lookaside_server_get_hits Requested keys that were found." in body
    assert "# TYPE lookaside_server_get_hits counter" in body and "# TYPE lookaside_server_curr_items gauge" in body


def test_each_metric_has_a_help_text(server):
    helps = re.findall(r"# HELP lookaside_server_(\w+) (.+)", server.get("/metrics")[1])
    assert len(helps) > 90
    for name, text in helps:
        assert "of the command stats" not in text and text.endswith("."), f"{name}: {text}"


def test_latencies_by_command(server):
    client = connect(server.port)
    client.set("a", b"x")
    for _ in range(2000):
        client.get("a")
    for _ in range(500):
        client.delete("b")
    metrics = server.metrics()

    def of(suffix: str, command: str) -> float:
        return metrics[f"lookaside_server_reply_seconds_{suffix}", f'command="{command}"']

    # One of sixteen, give or take.
    assert 2000 / 20 < of("count", "get") < 2000 / 12 and 500 / 24 < of("count", "delete") < 500 / 10
    assert of("count", "meta") == 0
    assert 0 < of("sum", "get") / of("count", "get") < 0.1
    buckets = [
        value
        for (name, labels), value in metrics.items()
        if name == "lookaside_server_reply_seconds_bucket" and labels.startswith('command="get"')
    ]
    assert buckets == sorted(buckets) and buckets[-1] == of("count", "get") and len(buckets) == 21


def test_hot_keys(server):
    client = connect(server.port)
    hot, odd = "user:hot", 'odd"\\key'
    for number in range(500):
        client.get_many([hot] * 1 + [f"cold:{number}:{n}" for n in range(40)] + [odd])
        for _ in range(18):
            client.get(hot)
    metrics = server.metrics()
    shares = {labels: share for (name, labels), share in metrics.items() if name == "lookaside_server_hot_key_share"}
    assert len(shares) <= 20
    assert max(shares, key=shares.get) == 'key="user:hot"'
    # 19 of 60 keys, from some 230 samples.
    assert 0.15 < shares['key="user:hot"'] < 0.5
    assert metrics["lookaside_server_hot_key_samples", ""] > 100
    for _ in range(3000):
        client.get(odd)
    assert 'key="odd\\"\\\\key"' in server.get("/metrics")[1]


def test_other_http_requests_are_refused(server):
    assert server.get("/")[0] == 404
    assert server.get("/metrics?name[]=x")[0] == 200
    assert server.get("/metrics", "POST")[0] == 405
    with socket.create_connection(("127.0.0.1", server.metrics_port), timeout=10) as long:
        long.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 2000)
        assert long.recv(100).startswith(b"HTTP/1.1 431 ")
    with socket.create_connection(("127.0.0.1", server.metrics_port), timeout=10) as pieces:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\nHost: localhost:80\r\n", b"\r\n"):
            pieces.sendall(piece)
        assert pieces.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_slow_scrapers_are_disconnected_and_do_not_block_others(server):
    slow = [socket.create_connection(("127.0.0.1", server.metrics_port), timeout=20) for _ in range(20)]
    for connection in slow:
        connection.sendall(b"GET /metr")
    client = connect(server.port)
    for _ in range(100):
        assert client.set("a", b"x"), "the cache does not wait for them"
    assert slow[0].recv(100) == b"", "closed at its deadline"
    assert server.get("/metrics")[0] == 200


def test_a_port_that_is_taken_is_named_and_without_the_option_there_is_none(server):
    taken = f"127.0.0.1:{server.metrics_port}"
    command = [PROGRAMS / "lookaside-server", "-p", str(free_port()), "--metrics-address", taken]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1 and "--metrics-address" in ended.stderr and taken in ended.stderr
    eventually(lambda: server.get("/metrics")[0] == 200, "the first one is not hurt")
