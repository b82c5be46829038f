"""A router's own state: `stats` in mcrouter's groups, and gets of `__mcrouter__.` keys."""

import hashlib
import json
import re

import pytest
from processes import connect, stats


def group(port: int, name: str) -> dict[str, int]:
    """One group of `stats`."""
    client = connect(port)
    try:
        return {key.decode(): int(value) for key, value in client.stats(name).items()}
    finally:
        client.close()


def admin(port: int, name: str) -> str | None:
    """The value of one of its own keys."""
    client = connect(port)
    try:
        value = client.get("__mcrouter__." + name)
        return None if value is None else value.decode()
    finally:
        client.close()


def test_groups_of_stats(cluster):
    client = cluster.client()
    client.set("a", b"x")
    client.get_many(["a", "b", "c"])
    client.delete("a")
    came, went = group(cluster.port, "cmd-in"), group(cluster.port, "cmd-out")
    expected = {"cmd_set_in": 1, "cmd_get_in": 3, "cmd_delete_in": 1}
    assert {name: value for name, value in came.items() if value} == expected
    # The delete goes to the gutter too.
    assert went["cmd_out"] == 6 and 0 < went["cmd_out_writes"] <= 6
    wrong = group(cluster.port, "cmd-error")
    assert wrong["cmd_get_miss"] == 2 and sum(wrong.values()) == 2
    detailed, everything = stats(cluster.port), connect(cluster.port).stats("detailed")
    assert detailed.keys() | came.keys() | went.keys() | wrong.keys() <= {name.decode() for name in everything}
    counts = group(cluster.port, "count")
    assert counts["cmd_get"] == 3 and counts["get_misses"] == 2 and "uptime" not in counts
    for name in ("slabs", "items", "settings"):
        assert connect(cluster.port).stats(name) == {}, "monitors ask for it and choke on an error"


def test_admin_keys_about_the_configuration(cluster):
    text = cluster.configuration_path.read_text()
    digest = hashlib.md5(text.encode()).hexdigest()
    assert admin(cluster.port, "config_md5_digest") == digest
    path = str(cluster.configuration_path)
    assert admin(cluster.port, "config_file") == path
    assert json.loads(admin(cluster.port, "config_sources_info")) == {
        "config_file": path,
        "mcrouter_config": digest,
        "config_import": {},
        "pools": {},
    }
    assert json.loads(admin(cluster.port, "preprocessed_config")) == json.loads(text)
    pools = {name: pool["servers"] for name, pool in json.loads(text)["pools"].items()}
    assert json.loads(admin(cluster.port, "pools")) == pools
    assert json.loads(admin(cluster.port, "failure_domains")) == {}
    assert json.loads(admin(cluster.port, "global_params"))["default-cluster"] == "one"
    assert int(admin(cluster.port, "config_age")) >= 0


def test_admin_keys_about_the_router(cluster):
    assert admin(cluster.port, "options(server_timeout)") == "300"
    lines = admin(cluster.port, "options").split("\r\n")
    assert "route_prefix /local/one/" in lines and "spool_fsync always" in lines
    assert all(re.match(r"[a-z0-9_]+ ", line) for line in lines)
    for name in ("options(nothing)", "nothing", "failure_domains(nothing)", "verbosity(x)"):
        assert admin(cluster.port, name) == f"ERROR: unknown command: {name}"
    assert int(admin(cluster.port, "hostid")) != int(stats(cluster.port)["pid"])


@pytest.mark.parametrize("state", ["up", "hard_tko"])
def test_suspect_servers(cluster, state):
    if state != "up":
        cluster.servers[0].kill()
        for number in range(10):
            cluster.client().get(f"key:{number}")
    suspects = connect(cluster.port).stats("suspect_servers")
    assert len(suspects) == (state != "up") and len(connect(cluster.port).stats("servers")) == 3
