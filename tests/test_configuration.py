"""A router's configuration checked before a router uses it: `lookaside check-config` and `lookaside route`."""

import json
import subprocess

import pytest
from etcd import Etcd
from processes import PROGRAMS

GOOD = {
    "pools": {
        "main": {"servers": ["127.0.0.1:11211", "127.0.0.1:11212"]},
        "gutter": {"servers": ["127.0.0.1:11213"]},
    },
    "route": {
        "type": "OperationSelectorRoute",
        "default_policy": {
            "type": "FailoverWithExptimeRoute",
            "normal": "PoolRoute|main",
            "failover": "PoolRoute|gutter",
        },
        "operation_policies": {"delete": {"type": "AllSyncRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"]}},
    },
}


@pytest.fixture
def good(tmp_path):
    """A file with a good configuration."""
    path = tmp_path / "router.json"
    path.write_text(json.dumps(GOOD))
    return path


def lookaside(*arguments, stdin: str = "") -> subprocess.CompletedProcess:
    """The output of the operator's tool."""
    command = [PROGRAMS / "lookaside", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)


def test_a_valid_configuration_passes(good):
    done = lookaside("check-config", good)
    assert done.returncode == 0, done.stderr
    assert "the configuration is good: 3 servers, routing prefixes /././" in done.stdout


def test_an_invalid_one_is_refused_with_line_and_column(good):
    good.write_text('{\n  "pools": {"main": {"servers": ["127.0.0.1:1"]}},\n  "route": "PoolRoute|mian"\n}\n')
    done = lookaside("check-config", good)
    assert done.returncode == 1
    expected = f'lookaside: {good}: line 3, column 12, at route: no pool is named "mian"; did you mean "main"?'
    assert done.stderr.startswith(expected), done.stderr
    done = lookaside("check-config", "--json", good)
    report = json.loads(done.stdout)
    assert (done.returncode, report["good"]) == (1, False)
    assert (report["errors"][0]["line"], report["errors"][0]["path"]) == (3, "route")


def test_every_independent_error_is_reported(good):
    broken = json.loads(good.read_text())
    broken["pools"]["main"]["servers"][1] = "127.0.0.1"
    broken["pools"]["gutter"]["server_timeout"] = "1s"
    broken["route"]["operation_policies"]["delete"]["children"].append("PoolRoute|mian")
    good.write_text(json.dumps(broken))
    paths = [
        "pools.main.servers[1]",
        "pools.gutter.server_timeout",
        "route.operation_policies.delete.children[2]",
    ]
    done = lookaside("check-config", good)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) == 4, done.stderr
    assert all(f", at {path}: " in line for path, line in zip(paths, lines, strict=False)), done.stderr
    assert lines[3] == f"lookaside: {good}: the configuration has 3 errors"
    report = json.loads(lookaside("check-config", "--json", good).stdout)
    assert [error["path"] for error in report["errors"]] == paths
    router = [PROGRAMS / "lookaside-router", "-f", good, "--validate-config"]
    refused = subprocess.run(router, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode == 3 and all(f", at {path}: " in refused.stderr for path in paths), refused.stderr


def test_a_name_that_cannot_stand_in_a_certificate_is_an_error(good):
    """The router refused it, check-config passed it."""
    configuration = json.loads(good.read_text())
    configuration["pools"]["main"] |= {"security_mech": "tls", "ssl_service_identity": "no name"}
    configuration["pools"]["gutter"] |= {"servers": ["cache_*:11211:ascii:ssl"], "unsafe_ssl_skip_verification": True}
    good.write_text(json.dumps(configuration))
    report = json.loads(lookaside("check-config", "--json", good).stdout)
    found = [(error["path"], "ssl_service_identity" in error["message"]) for error in report["errors"]]
    assert found == [("pools.main", True), ("pools.gutter", True)], report
    shown = lookaside("route", "get", "k", "-f", good)
    assert shown.returncode == 1 and "cannot stand in a certificate" in shown.stderr


def test_a_configuration_in_etcd_is_checked_and_explained(good, tmp_path):
    etcd = Etcd(tmp_path)
    try:
        etcd.put("lookaside/one", good.read_text())
        location = f"etcd://127.0.0.1:{etcd.port}/lookaside/one"
        done = lookaside("check-config", location)
        assert done.returncode == 0 and f"{location}: the configuration is good: 3 servers" in done.stdout, done.stderr
        assert steps("get", "user:42", "-f", location)[0][0] == "OperationSelectorRoute"
        missing = lookaside("check-config", location + "2")
        assert missing.returncode == 1 and "etcd has no such key" in missing.stderr, missing.stderr
        secured = lookaside("check-config", location.replace("etcd", "etcds", 1))
        assert secured.returncode == 1 and "--pem-ca-path" in secured.stderr, secured.stderr
        wrong = lookaside("check-config", f"etcd://127.0.0.1:{etcd.port}")
        assert wrong.returncode == 1 and "the key is missing" in wrong.stderr, wrong.stderr
    finally:
        etcd.stop()


def test_standard_input_and_a_file_that_is_not_there(good):
    assert lookaside("check-config", "-", stdin=good.read_text()).returncode == 0
    done = lookaside("check-config", good.parent / "none.json")
    assert done.returncode == 1 and "none.json" in done.stderr, done.stderr
    assert lookaside("check-config").returncode == 2


def steps(*arguments) -> list[tuple[str, str]]:
    """Where a request arrives, and the replies there."""
    done = lookaside("route", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [(step["at"], step["replies"][0]) for step in json.loads(done.stdout)]


def test_explain_shows_the_route_of_a_get_and_its_failover(good):
    way = steps("get", "user:42", "-f", good)
    assert [at for at, _ in way[:3]] == ["OperationSelectorRoute", "FailoverWithExptimeRoute", "PoolRoute|main"]
    assert len(way) == 4 and way[3][1] == "miss"
    server = way[3][0]
    around = steps("get", "user:42", "-f", good, "--down", server)
    assert around[3] == (server, "server is TKO after failures")
    assert around[4:] == [("PoolRoute|gutter", "miss"), ("127.0.0.1:11213", "miss")]


def test_explain_describes_the_route_of_a_delete(good):
    done = lookaside("route", "delete", "user:42", "-f", good)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split("   ")[0].rstrip() == "OperationSelectorRoute"
    servers = [line for line in lines if line.startswith("      127.0.0.1:")]
    assert len(servers) == 2 and all(line.endswith("delete user:42 -> NOT_FOUND") for line in servers), done.stdout


def test_invalid_arguments_are_named(good):
    assert "fetch" in lookaside("route", "fetch", "k", "-f", good).stderr
    stranger = lookaside("route", "get", "k", "-f", good, "--down", "10.0.0.9:1")
    assert stranger.returncode == 1 and "it has 127.0.0.1:11211" in stranger.stderr, stranger.stderr


def test_macros_have_the_constants_of_a_router(tmp_path):
    """The router took a configuration with one of them, check-config refused it."""
    path = tmp_path / "router.json"
    servers = ["%default-cluster%:1", "timeout-%mcr_opts-server_timeout%:1", "%tier%:1", "h%hostid%:1"]
    path.write_text(json.dumps({"pools": {"A": {"servers": servers}}, "route": "AllSyncRoute|Pool|A"}))
    refused = lookaside("check-config", path)
    assert refused.returncode == 1 and "%tier% is not defined" in refused.stderr, refused.stderr
    flags = ("-R", "/r/web/", "--config-params", "tier:db,other:x")
    for file, text in ((path, ""), ("-", path.read_text())):
        done = lookaside("check-config", file, *flags, stdin=text)
        assert done.returncode == 0, done.stderr

    def asked(host: str) -> list[str]:
        return [at for at, _ in steps("get", "k", "-f", path, "--host", host, *flags) if at.endswith(":1")]

    assert asked("one")[:3] == ["web:1", "timeout-1000:1", "db:1"]
    assert asked("one") == asked("one") != asked("two"), "each host has its number"
    malformed = lookaside("check-config", path, "--config-params", "tier")
    assert malformed.returncode == 1 and "NAME:VALUE" in malformed.stderr, malformed.stderr


def test_route_shows_the_servers_that_a_change_moves_a_key_between(tmp_path):
    def configuration(name: str, *servers: str):
        path = tmp_path / name
        path.write_text(json.dumps({"pools": {"A": {"servers": list(servers)}}, "route": "PoolRoute|A"}))
        return path

    old, new = configuration("old", "10.0.0.1:1"), configuration("new", "10.0.0.2:1")
    moved = lookaside("route", "delete", "k", "-f", new, "--before", old)
    assert moved.stdout.splitlines()[-2:] == ["leaves 10.0.0.1:1", "joins 10.0.0.2:1"], moved.stderr
    assert lookaside("route", "delete", "k", "-f", new, "--before", new).stdout.endswith("The key does not move.\n")
    changes = json.loads(lookaside("route", "delete", "k", "-f", new, "--before", old, "--json").stdout)["changes"]
    assert changes == [{"leaves": "10.0.0.1:1"}, {"joins": "10.0.0.2:1"}]
