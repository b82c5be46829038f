"""Metrics of the invalidator."""

import re
import urllib.request

import pytest
from journal import Journal
from processes import Cluster, Invalidator, eventually, free_port, stats

KEYS = [f"user:{number}" for number in range(20)]


@pytest.fixture
def journal(tmp_path):
    """A database."""
    journal = Journal(tmp_path / "app.db")
    yield journal
    journal.connection.close()


@pytest.fixture
def region(tmp_path, journal):
    """A cluster and an invalidator with metrics."""
    cluster, invalidator = Cluster("one", tmp_path), None
    try:
        port = free_port()
        invalidator = Invalidator(journal.url, [cluster], tmp_path / "state", tmp_path, "--metrics-address", str(port))
        invalidator.metrics_port = port
        yield cluster, invalidator
    finally:
        if invalidator:
            assert invalidator.stop() == 0
        cluster.stop()


def metrics(port: int) -> dict[str, float]:
    """Every sample of the invalidator, without its prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    samples = (re.fullmatch(r"lookaside_invalidator_(\S+) (\S+)", line) for line in lines if not line.startswith("#"))
    return {sample[1]: float(sample[2]) for sample in samples}


def test_metrics_show_what_stats_shows(region, journal):
    _, invalidator = region
    journal.commit(*KEYS)
    journal.commit("not valid: white space")
    label = '{cluster="one"}'
    eventually(lambda: metrics(invalidator.metrics_port)["deletes_total" + label] == len(KEYS), "all are deleted")
    eventually(lambda: metrics(invalidator.metrics_port)["keys_rejected_total" + label] == 1, "one is refused")
    eventually(lambda: metrics(invalidator.metrics_port).get("source_lag_seconds" + label) == 0, "the lag is known")
    seen, shown = metrics(invalidator.metrics_port), stats(invalidator.port)
    assert seen['state{cluster="one",state="running"}'] == 1 and shown["cluster:one:state"] == "running"
    for metric, stat in [
        ("deletes_total", "invalidations"), ("batches_total", "batches"), ("packets_total", "packets"),
        ("packets_unbatched_total", "packets_unbatched"), ("keys_rejected_total", "keys_rejected"),
        ("pending_keys", "pending_keys"), ("oldest_pending_commit_seconds", "oldest_pending_ms"),
        ("source_lag_transactions", "source_lag_transactions"),
    ]:  # fmt: skip
        assert seen[metric + label] == float(shown[f"cluster:one:{stat}"]), metric
    assert seen['batch_keys_bucket{cluster="one",le="+Inf"}'] == seen["batches_total" + label] > 0
    assert seen["batch_keys_sum" + label] == len(KEYS)
    assert seen["commit_seconds_count" + label] == seen["commits_total" + label] == len(KEYS)
    assert seen["packets_unbatched_total" + label] == len(KEYS) > seen["packets_total" + label]


def test_metrics_show_a_cluster_that_is_behind(region, journal):
    cluster, invalidator = region
    cluster.router.kill()
    journal.commit("user:1")
    label = '{cluster="one"}'
    eventually(lambda: metrics(invalidator.metrics_port)["oldest_pending_commit_seconds" + label] > 0.5, "it is old")
    eventually(lambda: metrics(invalidator.metrics_port).get("source_lag_transactions" + label) == 1, "it is behind")
    seen = metrics(invalidator.metrics_port)
    assert seen['state{cluster="one",state="retrying"}'] == 1 and seen["routers_tko" + label] == 1
    assert seen["retry_queue_keys" + label] == 1
