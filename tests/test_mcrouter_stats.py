"""`stats`, as mcrouter's public exporter for Prometheus reads it: names, types, and what moves them."""

import json
import re
import time

import pytest
from mcrouter_setups import reply, set_of, setup
from processes import eventually, free_port

COUNT, NUMBER, TEXT = r"\d+", r"\d+(\.\d+)?", r".+"


def names(text: str) -> list[str]:
    """Names that are separated by blanks."""
    return text.split()


OPERATIONS = names(
    "add append cas decr delete flushall flushre gat gats get gets incr lease_get lease_set metaget prepend replace set"
    " touch"
)
ERRORS = names(
    "error connect_error connect_timeout data_timeout busy tko client_error local_error remote_error"
    " deadline_exceeded_error"
)

NAMES = {
    COUNT: [
        *(f"cmd_{operation}_count" for operation in OPERATIONS),
        *(f"result_{error}{kind}_count" for error in ERRORS for kind in ("", "_all")),
        *(f"request_{kind}_count" for kind in ("sent", "error", "success", "replied")),
        *names(
            "final_result_error_count dev_null_requests fibers_allocated pid parent_pid time start_time uptime"
            " num_proxies num_clients num_client_connections config_age config_last_attempt config_last_success"
            " config_failures proxy_reqs_processing proxy_reqs_waiting proxy_request_num_outstanding"
            " destination_pending_reqs destination_inflight_reqs num_servers num_servers_new num_servers_up"
            " num_servers_closed num_servers_down num_suspect_servers num_soft_tko_count num_hard_tko_count"
            " num_connections_opened num_connections_closed asynclog_requests ps_num_minor_faults"
            " ps_num_major_faults ps_rss ps_vsize failover_all failover_all_failed failover_conditional"
            " failover_rate_limited failover_policy_result_error failover_policy_tko_error failover_num_collisions"
            " failover_num_failed_domain_collisions failover_same_failure_domain redirected_lease_set_count"
            " configs_from_disk"
        ),
        *(
            f"failover_{policy}_policy{failed}"
            for policy in ("inorder", "least_failures", "deterministic_order", "rendezvous")
            for failed in ("", "_failed")
        ),
    ],
    NUMBER: [
        *(f"cmd_{operation}{kind}" for operation in OPERATIONS for kind in ("", "_out", "_out_all")),
        *(f"result_{error}{kind}" for error in ERRORS for kind in ("", "_all")),
        *(f"request_{kind}" for kind in ("sent", "error", "success", "replied")),
        *names(
            "final_result_error duration_us processing_time_us asynclog_requests_rate asynclog_spool_success_rate"
            " ps_user_time_sec ps_system_time_sec rusage_user rusage_system"
        ),
    ],
    TEXT: ["version", "commandargs"],
}
GROUPS = ["all", "detailed", "cmd-error", "ods", "servers", "suspect_servers", "count", "external", "version"]

# A line of `stats servers`, as the exporter splits it.
SERVER = re.compile(
    r"STAT (?P<address>\S+:\d+):ascii:plain:notcompressed-(?P<timeout>\d+) avg_latency_us:(?P<latency>\d+\.\d{3})"
    r" pending_reqs:(?P<pending>\d+) inflight_reqs:(?P<inflight>\d+)(?P<tko> (?:hard|soft)_tko; )?"
    r"(?P<states>(?: (?:new|up|closed|down):\d+)+)(?:;(?P<results>(?: [a-z_]+:\d+)+))?"
)


def values(port: int, group: bytes = b"all") -> dict[str, str]:
    """The lines of a group."""
    lines = reply(port, b"stats %s\r\n" % group).decode().splitlines()
    assert lines[-1] == "END", lines
    return dict(line.removeprefix("STAT ").split(" ", 1) for line in lines[:-1])


def server_lines(port: int) -> dict[tuple[str, int], re.Match]:
    """The lines of `stats servers` by address and timeout."""
    found = [SERVER.fullmatch(line) for line in reply(port, b"stats servers\r\n").decode().splitlines()[:-1]]
    assert all(found), reply(port, b"stats servers\r\n")
    return {(match["address"], int(match["timeout"])): match for match in found}


def counts(text: str) -> dict[str, int]:
    """Names and numbers in a part of such a line."""
    return {name: int(count) for name, count in re.findall(r"([a-z_]+):(\d+)", text or "")}


def test_every_name_has_the_type_that_the_exporter_parses(tmp_path):
    with setup(tmp_path) as it:
        it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start(
            "-f", tmp_path / "r.json", "-t", "300", "--stats-root", tmp_path / "stats", "--stats-logging-interval", "50"
        )
        for traffic in (False, True):
            if traffic:
                it.ask(set_of("k", "v"), b"get k\r\n", b"get k\r\n")
            found = values(it.port)
            for pattern, known in NAMES.items():
                for name in known:
                    assert re.fullmatch(pattern, found.get(name, "missing")), f"{name}: {found.get(name)}"
        assert found["commandargs"].startswith(f"-p {it.port} -f ") and "mcrouter" in found["version"]
        assert (found["cmd_get_count"], found["cmd_set_count"], found["cmd_get"]) == ("2", "1", "2")
        assert float(found["duration_us"]) > 0 and int(found["num_proxies"]) == 1
        for group in GROUPS:
            assert reply(it.port, f"stats {group}\r\n".encode()).endswith(b"END\r\n"), group
        counters = values(it.port, b"count")
        assert "cmd_get_count" in counters and "uptime" not in counters and "result_error" not in counters
        prefix = f"libmcrouter.mcrouter.{it.port}."
        file = tmp_path / "stats" / f"{prefix}stats"
        eventually(file.exists, "the file is there")
        eventually(lambda: json.loads(file.read_text())[f"{prefix}cmd_get_count"] == 2, "the file has them")
        written = json.loads(file.read_text())
        assert all(name.startswith(prefix) and isinstance(value, (int, float)) for name, value in written.items())
        assert {f"{prefix}{name}" for pattern, known in NAMES.items() if pattern != TEXT for name in known} <= set(
            written
        )


def test_lines_of_servers(tmp_path):
    with setup(tmp_path) as it:
        one, dead, sixth = it.address("one"), f"127.0.0.1:{free_port()}", f"[::1]:{free_port()}"
        pools = {
            "A": {"servers": [one]},
            "B": {"servers": [one], "server_timeout": 700},
            "C": {"servers": [one]},
            "D": {"servers": [dead]},
            "E": {"servers": [sixth]},
        }
        policies = {name: f"PoolRoute|{name}" for name in pools}
        route = {"type": "PrefixSelectorRoute", "policies": policies, "wildcard": "NullRoute"}
        it.file("r.json", {"pools": pools, "route": route})
        it.start("-f", tmp_path / "r.json", "-t", "300", "-r", "60000")
        port = int(one.split(":")[1])
        assert set(server_lines(it.port)) == {(one, 300), (one, 700), (dead, 300), (sixth, 300)}, port
        assert server_lines(it.port)[one, 300]["states"] == " new:1" and not server_lines(it.port)[one, 300]["results"]
        it.ask(
            set_of("A1", "v"),
            b"get A1 A2 A3\r\n",
            b"get C1\r\n",
            b"delete A1\r\n",
            b"delete A1\r\n",
            b"get D\r\n",
            b"get D\r\n",
        )
        it.ask(b"lease-get A9\r\n", b"incr A9 1\r\n", b"touch A9 1\r\n", b"gets B1\r\n")
        line = server_lines(it.port)[one, 300]
        assert counts(line["states"]) == {"up": 1} and not line["tko"] and float(line["latency"]) > 0
        # Found A1; not found A2, A3, C1, the second delete, the lease, incr and touch.
        assert counts(line["results"]) == {"found": 1, "notfound": 7, "stored": 1, "deleted": 1}
        assert counts(server_lines(it.port)[one, 700]["results"]) == {"notfound": 1}
        line = server_lines(it.port)[dead, 300]
        assert counts(line["results"]) == {"connect_error": 1, "tko": 1}
        assert line["tko"] == " hard_tko; " and counts(line["states"]) == {"down": 1}
        found = values(it.port)
        assert (found["result_connect_error_count"], found["result_tko_count"], found["result_error_count"]) == (
            "1",
            "1",
            "2",
        )
        assert (found["request_error_count"], found["final_result_error_count"]) == ("2", "2")
        assert (found["num_hard_tko_count"], found["num_soft_tko_count"], found["num_suspect_servers"]) == (
            "1",
            "0",
            "1",
        )
        assert found["num_connections_opened"] == "2" and found["num_connections_closed"] == "0"


def test_requests_of_failover_and_shadows_are_only_in_all(tmp_path):
    with setup(tmp_path) as it:
        dead = f"127.0.0.1:{free_port()}"
        shadow = {"target": "PoolRoute|shadow", "index_range": [0, 1], "key_fraction_range": [0, 1]}
        main = {"type": "PoolRoute", "pool": "main", "shadows": [shadow]}
        pools = {"main": [dead], "gutter": [it.address("gutter")], "shadow": [it.address("shadow")]}
        it.file(
            "r.json",
            {
                "pools": {name: {"servers": servers} for name, servers in pools.items()},
                "route": {"type": "FailoverRoute", "children": [main, "PoolRoute|gutter"]},
            },
        )
        it.start("-f", tmp_path / "r.json", "-t", "300", "-r", "60000")
        for _ in range(4):
            assert it.ask(b"get k\r\n") == [b"END\r\n"]
        eventually(lambda: counts_at(it, "shadow") == 4, "the copies have come")
        found = values(it.port)
        assert (found["failover_all"], found["failover_all_failed"]) == ("4", "0")
        assert (found["failover_inorder_policy"], found["failover_inorder_policy_failed"]) == ("4", "0")
        # The first finds out that the server is down.
        assert (found["failover_policy_result_error"], found["failover_policy_tko_error"]) == ("1", "3")
        assert (found["failover_conditional"], found["failover_rendezvous_policy"]) == ("0", "0")
        assert (found["result_tko_count"], found["result_tko_all_count"]) == ("3", "3")
        assert (found["request_error_count"], found["request_success_count"]) == ("0", "4")
        assert float(found["cmd_get_out_all"]) > 0 and float(found["cmd_get_out"]) == 0.0, "the first was never sent"


def test_failovers_by_policy(tmp_path):
    """Each policy counts for itself, and so does what keeps a request from another child."""
    with setup(tmp_path) as it:
        # Not TKO, so that each request meets the same.
        dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        children = ["PoolRoute|down", "PoolRoute|down2", "PoolRoute|gutter"]
        pools = {"down": dead[:1], "down2": dead[1:], "gutter": [it.address("gutter")]}
        tries = {"max_tries": 9, "max_error_tries": 9}
        options = {
            "inorder": {},
            "least_failures": {"failover_policy": {"type": "LeastFailuresPolicy", "max_tries": 9}},
            "deterministic_order": {"failover_policy": {"type": "DeterministicOrderPolicy", **tries}},
            "rendezvous": {"failover_policy": {"type": "RendezvousPolicy", "tags": ["a", "b"]}},
            "excluded": {"failover_errors": ["timeout"]},
            "limited": {"failover_limit": {"rate": 0, "burst": 1}},
        }
        routes = {name: {"type": "FailoverRoute", "children": children, **option} for name, option in options.items()}
        route = {"type": "PrefixSelectorRoute", "policies": routes, "wildcard": "NullRoute"}
        it.file("r.json", {"pools": {name: {"servers": servers} for name, servers in pools.items()}, "route": route})
        it.start("-f", tmp_path / "r.json", "--disable-tko-tracking")

        def increase(prefix: str) -> dict[str, int]:
            """What a get counts."""
            before = values(it.port)
            it.ask(f"get {prefix}:key\r\n".encode())
            after = values(it.port)
            counted = {name: int(after[name]) - int(before[name]) for name in after if name.startswith("failover_")}
            return {name.removeprefix("failover_"): count for name, count in counted.items() if count}

        for policy in ("inorder", "least_failures", "deterministic_order", "rendezvous"):
            counted = increase(policy)
            counted.pop("num_collisions", None)
            sent = counted["all"]
            expected = {"all": sent, f"{policy}_policy": sent, "policy_result_error": sent}
            if sent > 1:
                expected |= {"all_failed": sent - 1, f"{policy}_policy_failed": sent - 1}
            assert counted == expected and sent in (1, 2), policy
            if policy == "inorder":
                assert sent == 2
        assert increase("excluded") == {"conditional": 1}
        assert increase("limited") == {
            "all": 1,
            "all_failed": 1,
            "inorder_policy": 1,
            "inorder_policy_failed": 1,
            "policy_result_error": 2,
            "conditional": 1,
            "rate_limited": 1,
        }


def test_metaget_is_an_operation_of_its_own(tmp_path):
    with setup(tmp_path) as it:
        it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "r.json")
        it.ask(set_of("k", "v"), b"metaget k missing\r\n", b"mg k v\r\n", b"me k\r\n", b"get k\r\n")
        found = values(it.port)
        assert (found["cmd_metaget"], found["cmd_metaget_count"]) == ("2", "2")
        assert (found["cmd_meta"], found["cmd_get"], found["request_sent_count"]) == ("2", "1", "6")
        assert values(it.port, b"cmd-in")["cmd_metaget_in"] == "2"


def test_configurations_from_disk_are_counted(tmp_path):
    with setup(tmp_path) as it:
        path = it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        arguments = ("-f", path, "--config-cache", tmp_path / "cache.json")
        it.start(*arguments)
        assert values(it.port)["configs_from_disk"] == "0"
        it.router.stop()
        path.write_text("{ broken")
        it.start(*arguments)
        found = values(it.port)
        assert (found["configs_from_disk"], found["config_failures"]) == ("1", "1")
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"]


def counts_at(it, name: str) -> int:
    """The gets that a server has answered."""
    found = re.search(rb"STAT cmd_get (\d+)", reply(it.servers[name].port, b"stats\r\n"))
    return int(found[1])


def test_counts_survive_a_reload_that_drops_the_server(tmp_path):
    with setup(tmp_path) as it:

        def configure(name: str) -> None:
            it.file("r.json", {"pools": {"A": {"servers": [it.address(name)]}}, "route": "PoolRoute|A"})

        configure("one")
        it.start("-f", tmp_path / "r.json", "-t", "300")
        it.ask(b"incr k x1\r\n", b"set k 0 0 1\r\nx\r\n", b"incr k 1\r\n")
        assert values(it.port)["result_client_error_count"] == "1"
        configure("two")
        two = it.address("two")
        eventually(lambda: {address for address, _ in server_lines(it.port)} == {two}, "the other server is in use")
        eventually(lambda: values(it.port)["result_client_error_count"] == "1", "the count is kept")
        assert values(it.port)["num_connections_opened"] != "0"


def test_rates_are_per_second(tmp_path):
    with setup(tmp_path) as it:
        it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "r.json")
        started = time.monotonic()
        it.ask(b"get k\r\n" * 500)
        eventually(lambda: float(values(it.port)["uptime"]) >= 2, "two seconds")
        found, most = values(it.port), 500 / (time.monotonic() - started - 1)
        for name in ("cmd_get_out", "cmd_get_out_all", "request_sent", "request_replied", "request_success"):
            assert 10 < float(found[name]) <= most, (name, found[name], most)
        assert found["cmd_set_out"] == "0.000"


@pytest.mark.parametrize("name", ["items", "slabs", "settings"])
def test_what_exporters_of_memcached_ask_is_no_error(tmp_path, name):
    with setup(tmp_path) as it:
        it.file("r.json", {"route": "NullRoute"})
        it.start("-f", tmp_path / "r.json")
        assert it.ask(f"stats {name}\r\n".encode()) == [b"END\r\n"]


def admin(it, name: str) -> str:
    """The value of one of the router's own keys."""
    lines = it.ask(f"get __mcrouter__.{name}\r\n".encode())[0].decode()
    head, _, rest = lines.partition("\r\n")
    assert head.startswith(f"VALUE __mcrouter__.{name} 0 ") and rest.endswith("\r\nEND\r\n"), lines
    return rest.removesuffix("\r\nEND\r\n")


def test_admin_keys(tmp_path):
    with setup(tmp_path) as it:
        one, two = it.address("one"), it.address("two")
        pools = {
            "main": {"servers": [one], "server_timeout": 400, "failure_domains": [7]},
            "other": {"servers": [two]},
        }
        it.file("part.json", json.dumps(pools))
        sync = {"type": "AllSyncRoute", "children": ["PoolRoute|main", "PoolRoute|other"]}
        salted = {"type": "PoolRoute", "pool": "main", "hash": {"hash_func": "Ch3", "salt": "pepper"}}
        route = {"type": "OperationSelectorRoute", "default_policy": salted, "operation_policies": {"delete": sync}}
        it.file("r.json", {"pools": "@import(file:part.json)", "route": route})
        it.start("-f", tmp_path / "r.json", "-R", "/here/one/", "--config-params", "colour:red")
        assert admin(it, "nothing") == "ERROR: unknown command: nothing"
        assert admin(it, "get_bucket(k)") == "0"
        assert admin(it, "route(get,k)") == one and admin(it, "route(delete,k)") == f"{one}\r\n{two}"
        host = f"host|pool=main|id=0|ap={one}:ascii:plain:notcompressed|timeout=400ms"
        assert admin(it, "route_handles(get,k)").split("\r\n") == [
            "proxy",
            " root",
            "  operation-selector",
            "   asynclog:main",
            "    hash|Ch3|salt=pepper",
            f"     {host}",
        ]
        assert admin(it, "route_handles(delete,k)").split("\r\n") == [
            "proxy",
            " root",
            "  operation-selector",
            "   all-sync",
            "    asynclog:main",
            "     hash|Ch3",
            f"      {host}",
            "    asynclog:other",
            "     hash|Ch3",
            f"      host|pool=other|id=0|ap={two}:ascii:plain:notcompressed|timeout=1000ms",
        ]
        assert "OperationSelectorRoute" in admin(it, "explain(get,k)")
        assert admin(it, "options(route_prefix)") == "/here/one/" and "route_prefix /here/one/" in admin(it, "options")
        assert admin(it, "options(nothing)") == "ERROR: unknown command: options(nothing)"
        assert json.loads(admin(it, "pools")) == {"main": [one], "other": [two]}
        constants = json.loads(admin(it, "global_params"))
        assert (constants["colour"], constants["default-region"], constants["num-proxies"]) == ("red", "here", 1)
        assert json.loads(admin(it, "failure_domains(main)")) == {one: "7"}
        assert admin(it, "failure_domains(nothing)").startswith("ERROR: ")
        sources = json.loads(admin(it, "config_sources_info"))
        assert sources["config_file"] == str(tmp_path / "r.json") and sources["pools"] == {}
        assert list(sources["config_import"]) == [str(tmp_path / "part.json")]
        assert sources["mcrouter_config"] == admin(it, "config_md5_digest")
        assert admin(it, "verbosity(1)") == "0 -> 1" and admin(it, "verbosity") == "1"
        assert admin(it, "verbosity(0)") == "1 -> 0"
