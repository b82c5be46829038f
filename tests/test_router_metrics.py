"""A router's Prometheus metrics: valid for Prometheus's own parser and conventions, and correct."""

import http.client
import json
import subprocess

import pytest
from processes import PROGRAMS, Cluster, connect, eventually, free_port
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "lookaside_router_"


class MeasuredCluster(Cluster):
    """A cluster whose router has metrics and a spool."""

    def __init__(self, folder) -> None:
        self.metrics_port = free_port()
        super().__init__("one", folder, ("--metrics-address", str(self.metrics_port), "--spool", folder / "spool"))

    def text(self, path: str = "/metrics") -> tuple[int, str]:
        """Status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response.status, body

    def metrics(self) -> dict[tuple, float]:
        """Every sample by name and labels, without the prefix."""
        samples = {}
        for family in text_string_to_metric_families(self.text()[1]):
            for sample in family.samples:
                key = (sample.name.removeprefix(PREFIX), *sample.labels.values())
                assert key not in samples, key
                samples[key] = sample.value
        return samples

    def metric(self, *key: str) -> float:
        """One of them."""
        return self.metrics()[key]

    def addresses(self) -> list[str]:
        """Its servers, the gutter last."""
        return [f"127.0.0.1:{server.port}" for server in (*self.servers, self.gutter)]


@pytest.fixture
def cluster(tmp_path):
    """One with metrics."""
    cluster = MeasuredCluster(tmp_path)
    yield cluster
    cluster.stop()


def test_the_exposition_follows_prometheus_conventions(cluster):
    cluster.client().set("a", b"x")
    status, body = cluster.text()
    assert status == 200
    families = list(text_string_to_metric_families(body))
    known = {"version", "verb", "result", "pool", "server", "reason", "state", "le"}
    assert len(families) > 40 and len({family.name for family in families}) == len(families)
    for family in families:
        assert family.name.startswith(PREFIX) and family.documentation.endswith("."), family
        assert family.type in ("counter", "gauge", "histogram", "summary"), family
        units = [unit for unit in ("milliseconds", "_ms", "_us", "kilobytes", "_mb") if unit in family.name]
        assert units == [], f"{family.name}: Prometheus wants seconds and bytes"
        # The parser cuts off the end that a counter's name must have.
        assert not family.name.endswith(("_total", "_count", "_sum")), family
        if family.type == "counter":
            assert f"# TYPE {family.name}_total counter" in body, family
        if family.type in ("histogram", "summary"):
            assert family.name.endswith("_seconds"), family
        for sample in family.samples:
            assert set(sample.labels) <= known, sample


def test_requests_by_verb_and_result(cluster):
    client = cluster.client()
    client.set("a", b"x")
    client.get_many(["a", "b", "c"])
    client.delete("a")
    client.delete("a")
    client.incr("b", 1)
    client.touch("b")
    metrics = cluster.metrics()
    counts = {key[1:]: value for key, value in metrics.items() if key[0] == "requests_total" and value > 0}
    assert counts == {
        ("set", "ok"): 1, ("get", "ok"): 1, ("get", "miss"): 2, ("delete", "ok"): 1, ("delete", "miss"): 1,
        ("incr", "miss"): 1, ("touch", "miss"): 1,
    }  # fmt: skip
    # A delete goes to the gutter too; all the rest to the key's own server.
    assert metrics["pool_requests_total", "wildcard"] == 8 and metrics["pool_requests_total", "gutter"] == 2
    servers = [metrics["server_requests_total", address] for address in cluster.addresses()]
    assert sum(servers[:2]) == 8 and servers[2] == 2
    assert metrics["pool_batch_seconds_count", "gutter"] == 2
    assert 0 < metrics["pool_batch_seconds_sum", "gutter"] < 10
    assert metrics["pool_batch_seconds_bucket", "gutter", "+Inf"] == 2
    assert metrics["pool_server", "gutter", cluster.addresses()[2]] == 1
    assert metrics["connections",] == 1 and metrics["servers",] == 3


def test_metrics_of_spares_pools_and_tls_exist_when_unused(cluster):
    metrics = cluster.metrics()
    for name in (
        "spares_serving", "spare_takeovers_total", "spare_returns_total", "spare_refusals_total", "pools_failing_open",
        "tls_new_sessions_total", "tls_handshake_errors_total", "tls_certificates_age_seconds",
    ):  # fmt: skip
        assert metrics[name,] == 0, name


def test_metrics_of_a_dead_server_and_its_backlog(cluster):
    client, address = cluster.client(), cluster.addresses()[0]
    keys = [f"key:{number}" for number in range(40)]
    for key in keys:
        client.set(key, b"x")
    assert cluster.metric("server_state", address, "up") == 1
    cluster.servers[0].kill()
    for key in keys:
        client.delete(key)
    metrics = cluster.metrics()
    states = {state: metrics["server_state", address, state] for state in ("up", "soft_tko", "hard_tko", "fenced")}
    assert states == {"up": 0, "soft_tko": 0, "hard_tko": 1, "fenced": 0}
    kept = metrics["server_spooled_deletes", address]
    assert 0 < kept < 40 and metrics["server_fenced", address] == 1 and metrics["server_spooled_bytes", address] > 0
    assert 0 < metrics["server_fenced_seconds", address] < 60
    assert metrics["spool_pending_deletes",] == kept == metrics["spool_deletes_total",]
    assert metrics["pool_failures_total", "wildcard", "delete_spooled"] == kept
    reasons = ("tko", "connect_failed", "connection_lost")
    # Later deletes are spooled without a request to the server.
    assert 1 <= sum(metrics["server_failures_total", address, reason] for reason in reasons) <= kept
    assert metrics["requests_total", "delete", "unavailable"] == 0
    cluster.servers[0].restart()
    eventually(lambda: cluster.metric("server_state", address, "up") == 1, "it is back and read")
    metrics = cluster.metrics()
    assert metrics["server_fenced_seconds", address] == 0
    assert metrics["server_spooled_deletes", address] == 0 and metrics["spool_replayed_total",] == kept
    assert metrics["server_probes_total", address] > 0 and metrics["server_tko_total", address] >= 1


def test_a_change_of_the_configuration_keeps_the_counts(cluster):
    client, address = cluster.client(), cluster.addresses()[2]
    client.delete("a")
    cluster.configuration_path.write_text("{")
    eventually(lambda: cluster.metric("config_last_reload_successful") == 0, "a bad one is reported")
    assert cluster.metric("config_reload_failures_total") == 1
    changed = cluster.configuration()
    changed["pools"]["wildcard"]["servers"].pop()
    cluster.configuration_path.write_text(json.dumps(changed))
    eventually(lambda: cluster.metric("servers") == 2, "it is in force")
    metrics = cluster.metrics()
    assert metrics["config_last_reload_successful",] == 1 and metrics["server_requests_total", address] == 1
    client.delete("a")
    assert cluster.metric("server_requests_total", address) == 2


def test_other_http_requests_and_a_taken_port_are_refused(cluster):
    assert cluster.text("/")[0] == 404
    taken = f"127.0.0.1:{cluster.metrics_port}"
    router = [PROGRAMS / "lookaside-router", "-p", "0", "-f", cluster.configuration_path, "-R", "/local/one/"]
    done = subprocess.run([*router, "--metrics-address", taken], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "--metrics-address" in done.stderr and taken in done.stderr
    done = subprocess.run([*router, "--metrics-address", "here"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 3 and "a port is missing" in done.stderr
    assert connect(cluster.port).version()
