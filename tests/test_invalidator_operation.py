"""Metrics of the invalidator, and replays beside it."""

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from journal import Journal
from processes import PROGRAMS, Cluster, Invalidator, eventually, free_port, stats

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


def test_the_tool_shows_the_statistics_of_any_daemon(region):
    cluster, invalidator = region

    def shown(*arguments: object) -> subprocess.CompletedProcess:
        command = [PROGRAMS / "lookaside", "stats", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert "cluster:one:state running\n" in shown(invalidator.port).stdout
    assert json.loads(shown(f"127.0.0.1:{invalidator.port}", "--json").stdout)["role"] == "active"
    assert "curr_connections " in shown(cluster.servers[0].port).stdout
    assert "maxbytes " in shown(cluster.servers[0].port, "settings").stdout
    refused = shown(free_port())
    assert refused.returncode == 1 and "cannot connect" in refused.stderr, refused


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


def replay(*arguments: object) -> subprocess.CompletedProcess:
    """Runs `lookaside invalidator replay` to its end."""
    command = [PROGRAMS / "lookaside", "invalidator", "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def position_file(folder: Path) -> bytes:
    """The saved position of the cluster."""
    return (folder / "state" / "one.position.json").read_bytes()


def test_a_replay_deletes_again_beside_the_daemon(region, journal, tmp_path):
    cluster, invalidator = region
    journal.commit(*KEYS, "page:1")
    eventually(lambda: stats(invalidator.port)["invalidations_total"] == str(len(KEYS) + 1), "all are deleted")
    journal.commit("marker")
    eventually(lambda: b'"22"' in position_file(tmp_path), "the position is saved")
    client = cluster.client()
    assert client.set_many(dict.fromkeys([*KEYS, "page:1"], "restored from an old copy")) == []
    saved, where = position_file(tmp_path), ("--cluster", f"one=127.0.0.1:{cluster.port}", "--database", journal.url)

    done = replay(*where, "--since", "1h", "--key-prefix", "user:", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["commits_read"], summary["deletes"], summary["position"]) == (22, 20, "22")
    assert len(client.get_many(KEYS)) == len(KEYS)

    assert json.loads(replay(*where, "--from", "20", "--to", "21", "--json").stdout)["deletes"] == 1
    assert client.get("page:1") is None and len(client.get_many(KEYS)) == len(KEYS)

    done = replay(*where, "--since", "1h", "--until", "1s", "--key-prefix", "user:1", "--rate", "100000")
    assert done.returncode == 0 and "at 22" in done.stdout, done
    eventually(
        lambda: (
            replay(*where, "--since", "1h", "--until", "1s", "--key-prefix", "user:1").returncode == 0
            and set(client.get_many(KEYS)) == {key for key in KEYS if not key.startswith("user:1")}
        ),
        "the commits are older than a second",
    )
    assert replay(*where, "--from", "earliest").returncode == 0
    assert client.get_many(KEYS) == {}
    assert position_file(tmp_path) == saved and stats(invalidator.port)["invalidations_total"] == "22"


def test_a_replay_reads_mariadbs_log(mariadb, cluster):
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE users (id INT PRIMARY KEY) ENGINE=InnoDB")
        cursor.execute("SELECT @@global.gtid_binlog_pos")
        (start,) = cursor.fetchone()
        for number in range(len(KEYS)):
            cursor.execute(f"INSERT INTO users VALUES ({number}) /* lookaside: user:{number} */")
            if number == 9:
                cursor.execute("SELECT @@global.gtid_binlog_pos")
                (middle,) = cursor.fetchone()
    client, where = cluster.client(), ("--cluster", f"one=127.0.0.1:{cluster.port}", "--database", mariadb.url)
    assert client.set_many(dict.fromkeys(KEYS, "old")) == []
    done = replay(*where, "--from", start, "--to", middle, "--json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["deletes"], json.loads(done.stdout)["position"]) == (10, middle)
    assert set(client.get_many(KEYS)) == set(KEYS[10:])
    assert replay(*where, "--from", start, "--since", "1h").returncode == 0
    assert client.get_many(KEYS) == {}


def test_a_replay_that_cannot_succeed_gives_the_reason(tmp_path, journal):
    cluster = ("--cluster", f"one=127.0.0.1:{free_port()}")
    done = replay(*cluster, "--database", journal.url)
    assert done.returncode == 2 and "--since" in done.stderr and "--from" in done.stderr
    for wrong in (("--since", "yesterday"), ("--from", "0", "--rate", "0")):
        assert replay(*cluster, "--database", journal.url, *wrong).returncode == 2
    done = replay(*cluster, "--database", "postgres://u:secret@h/app", "--from", "earliest")
    assert done.returncode == 1 and "cannot be read again" in done.stderr and "secret" not in done.stderr
    journal.commit("a")
    done = replay(*cluster, "--database", journal.url, "--from", "7")
    assert done.returncode == 1 and "the log ends at 1, before the position 7" in done.stderr
    done = replay(*cluster, "--database", journal.url, "--from", "0")
    assert done.returncode == 1 and "did not acknowledge a delete" in done.stderr, done


def test_sighup_does_not_end_an_invalidator_without_rules(region):
    _, invalidator = region
    invalidator.running.send_signal(signal.SIGHUP)
    eventually(lambda: "there is no rule file to load" in invalidator.log(), "it says so")
    assert invalidator.running.poll() is None
