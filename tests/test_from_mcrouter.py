"""docs/from_mcrouter.md says what the router does: its tables are compared with the built programs, row by row.

The table of the command line, and that of flags, are in test_from_mcrouter_command_line.py.
"""

import json
import re
import subprocess

import pytest
from mcrouter_setups import Setup, reply, set_of, setup
from processes import PROGRAMS, ROOT, eventually, free_port

PAGE = (ROOT / "docs" / "from_mcrouter.md").read_text()
ROUTES = ROOT / "crates" / "routing" / "src" / "cluster"

# What the page writes for a part of a name.
PARTS = {
    "OP": "add append cas decr delete flushall flushre gat gats get gets incr lease_get lease_set metaget prepend"
    " replace set touch",
    "R": "error connect_error connect_timeout data_timeout busy tko client_error local_error remote_error"
    " deadline_exceeded_error",
}

# The tests of each row of the table of behaviour.
BEHAVIOUR = {
    "undelivered deletes": ["crates/router/tests/spool.rs::a_lost_delete_is_replayed_before_the_server_is_read"],
    "a server that is back": [
        "crates/client/tests/destination_outages.rs::one_refused_connection_makes_the_server_tko_until_a_probe_is_answered",
        "tests/test_spool.py::test_a_server_that_was_unreachable_is_never_read_stale",
    ],
    "a changed list of servers": [
        "tests/test_resize.py::test_a_server_leaves_its_pool_and_returns",
        "tests/test_resize.py::test_keys_that_moved_are_read_from_their_former_owners",
    ],
    "a delete that a shadow's server does not answer": [
        "tests/test_from_mcrouter.py::test_a_delete_that_a_shadow_does_not_answer_is_spooled"
    ],
    "a shadow whose target is wrong": [
        "crates/routing/tests/shadows.rs::an_error_of_a_named_handle_or_a_pool_of_a_target_refuses"
    ],
    "broadcast deletes": [
        "crates/routing/tests/region.rs::a_broadcast_delete_is_acknowledged_only_if_every_cluster_has_done_it",
        "crates/routing/tests/region.rs::a_broadcast_in_the_background_has_the_first_trees_reply_and_reaches_all",
        "tests/test_mcrouter_command_line.py::test_broadcasts_in_the_background",
    ],
    "deletes with a gutter": ["crates/routing/tests/cluster.rs::a_failed_delete_reaches_every_child_and_stays_failed"],
    "`AllSyncRoute`, `AllMajorityRoute` for deletes": [
        "crates/routing/tests/cluster.rs::all_sync_returns_the_worst_reply_but_deleted_beats_not_found",
        "crates/routing/tests/fan_out.rs::a_majority_decides_and_without_one_the_worst",
    ],
    "`RateLimitRoute`, a delete over the limit": [
        "crates/routing/tests/limits.rs::rates_are_limited_by_kind",
        "tests/test_resize_limits.py::test_a_limit_of_deletes_does_not_limit_a_change_of_servers",
    ],
    "`MissFailoverRoute`, deletes": [
        "crates/routing/tests/every_verb.rs::every_handle_treats_every_verb_as_in_its_table"
    ],
    "`L1L2CacheRoute`, changes and deletes": [
        "crates/routing/tests/near_cache.rs::the_far_cache_is_asked_once_and_writes_delete_the_near_copy",
        "crates/routing/tests/near_cache.rs::with_l1_only_writes_the_far_cache_is_only_read",
    ],
    "`L1L2SizeSplitRoute` with `both_full_set`, `lease-set`": [
        "crates/routing/tests/size_split.rs::both_caches_may_get_large_values"
    ],
    "`WarmUpRoute`, a miss of the cold cluster": [
        "crates/routing/tests/warm_up.rs::a_refused_add_is_a_miss_and_never_the_warm_value",
        "crates/routing/tests/warm_up.rs::a_cold_miss_is_filled_from_the_warm_cluster_once",
        "crates/routing/tests/warm_up.rs::writes_and_deletes_stay_in_the_cold_cluster_and_deletes_hold_off",
    ],
    "`WarmUpRoute` with `enable_metaget`, exptime not known": [
        "crates/routing/tests/warm_up.rs::a_copy_lives_as_long_as_the_value_in_the_warm_cluster"
    ],
    "`fanout_deletes`, while the number of splits changes": [
        "crates/routing/tests/shard_splits.rs::hosts_migrate_over_time_and_deletes_cover_both_sizes"
    ],
    "`HostIdRoute`, `shard_splits`": [
        "crates/routing/tests/fan_out.rs::a_host_always_has_the_same_child_and_hosts_share_the_children",
        "tests/test_mcrouter_handles.py::test_shard_splits_with_deletes_of_all_splits",
    ],
    "`metaget`": ["tests/test_mcrouter_handles.py::test_metaget"],
    "a `set` above `--value-bytes-max` (64 MiB)": [
        "tests/test_from_mcrouter.py::test_a_value_above_the_limit_is_refused_and_the_old_one_deleted"
    ],
    "get errors": [
        "crates/router/tests/session.rs::failed_gets_are_misses_with_miss_on_get_errors",
        "tests/test_mcrouter_wire.py::test_errors_of_the_routers_own_making_by_their_beginnings",
    ],
    "certificates of servers": [
        "tests/test_router_tls_servers.py::test_a_server_with_an_untrusted_certificate_gets_no_request",
        "tests/test_router_tls_servers.py::test_a_pool_may_name_another_identity_or_none",
    ],
    "a lost idle connection, bytes that no request asked for": [
        "crates/client/tests/destination_outages.rs::connection_closed_while_idle_fails_no_request",
        "crates/client/tests/destination_outages.rs::bytes_that_no_request_asked_for_end_the_connection",
    ],
    "a reply with another key than the one asked for": [
        "crates/client/tests/destination.rs::items_may_come_in_another_order_but_not_of_other_keys"
    ],
    "`shutdown`": ["tests/test_mcrouter_wire.py::test_bad_input"],
    "the mode of a Unix socket": [
        "tests/test_router_listeners.py::test_a_unix_socket_has_only_addresses_with_a_port_of_their_own_beside_it"
    ],
    "a start by `--config-dump-root`": [
        "tests/test_mcrouter_command_line.py::test_imported_files_come_from_the_dump_together_with_the_configuration"
    ],
    "names of servers": [
        "crates/client/tests/connect_and_resolve.rs::"
        "name_that_leads_to_another_address_is_followed_without_a_failed_request"
    ],
    "protocols for clients": [
        "tests/test_router_protocols.py::test_replies_are_the_same_with_text_and_meta_servers",
        "tests/test_router_protocols.py::test_binary_replies_are_the_same_with_text_and_meta_servers",
    ],
    "passwords of clients": [
        "tests/test_router_authentication.py::test_text_clients_are_served_after_their_login",
        "tests/test_router_authentication.py::test_binary_clients_use_sasl",
    ],
}

# The tests of each sentence of the row "other meaning".
OTHER_MEANING = {
    "`failover_limit`: failovers of deletes cost nothing": [
        "crates/routing/tests/failover.rs::failovers_are_limited_to_a_share_of_the_requests"
    ],
    "`LatestRoute`: another order of hosts; `thread_local_failover` has no effect": [
        "crates/routing/tests/fan_out.rs::latest_fails_over_among_a_few_in_the_hosts_own_order",
        "tests/test_mcrouter_choices.py::test_latest_as_a_hash",
    ],
    "`LoadBalancerRoute`: the further children of `failover_count` are chosen by key": [
        "crates/routing/tests/failover.rs::a_load_balancer_asks_further_children_by_key"
    ],
    "`port_override_cross_dc` and its kind: by `region` of pool and `--route-prefix`": [
        "crates/routing/tests/odd_configurations.rs::ports_and_protection_may_depend_on_the_region",
        "tests/test_mcrouter_choices.py::test_ports_by_region",
    ],
    "`tls_to_plain`: stays TLS": [
        "crates/routing/tests/odd_configurations.rs::ports_and_protection_may_depend_on_the_region"
    ],
    "A pool's `tags` serve `RendezvousPolicy`, too": [
        "crates/routing/tests/failover.rs::a_pools_tags_are_those_of_a_rendezvous_policy_without_tags"
    ],
}

# A configuration that has all that the row "supported" names.
SUPPORTED = """{
  "macros": { "timeout": { "type": "constDef", "result": 250 }, },
  "pools": {
    "A": {
      "servers": [ "127.0.0.1:1", "127.0.0.1:2", ],
      "server_timeout": "%timeout%",
      "tko_tracker": { "percent_tko_threshold_upper": 100, "percent_tko_threshold_lower": 50 },
    },
    "B": { "inherit": "A", "servers": "@import(file:servers.json)" },
    "C": { "servers": [ "127.0.0.1:4", { "type": "PoolRoute", "pool": "B" }, ] },
    "empty": { "servers": [] },
  },
  "named_handles": { "gutter": "PoolRoute|B" },
  "routes": [
    {
      "aliases": [ "/././", "/r/c/", ],
      "route": [
        {
          "type": "FailoverRoute",
          "children": [
            {
              "vars": { "pool": "A" },
              "type": "PoolRoute",
              "pool": "%pool%",
              "asynclog": false,
              "shard_splits": { "17": 2 },
              "slow_warmup": { "failoverTarget": "gutter", "settings": { "start": 0.5 } },
              "shadows": [ { "target": [ "PoolRoute|B" ], "index_range": [ 0, 1 ], "key_fraction_range": [ 0, 1 ] } ],
            },
            [ "gutter", "PoolRoute|empty" ],
          ],
          "failover_policy": { "type": "DeterministicOrderPolicy", "max_tries": 2, "max_error_tries": 2 },
          "failover_limit": { "rate": 0.5, "burst": 10 },
        },
      ],
    },
    { "aliases": [ "/r/d/" ], "route": { "type": "AllSyncRoute", "children": "PoolRoute|C" }, },
  ],
}"""


def table(heading: str) -> list[list[str]]:
    """The rows of the table of a section: the cells of each."""
    section = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def row(heading: str, name: str) -> str:
    """The last cell of the row of this name."""
    (found,) = [cells[-1] for cells in table(heading) if cells[0] == name]
    return found


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def expanded(name: str) -> list[str]:
    """The names that a name with a variable part stands for."""
    for part, values in PARTS.items():
        if part in name.split("_"):
            return ["_".join(value if word == part else word for word in name.split("_")) for value in values.split()]
    return [name]


def check(tmp_path, configuration: dict | str) -> dict:
    """The report of `lookaside check-config`."""
    path = tmp_path / "checked.json"
    path.write_text(configuration if isinstance(configuration, str) else json.dumps(configuration))
    command = [PROGRAMS / "lookaside", "check-config", "--json", path]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout)


def route_errors(tmp_path, route: dict) -> str:
    """Why a configuration with this route is refused."""
    report = check(tmp_path, {"pools": {"A": {"servers": ["127.0.0.1:1"]}}, "route": route})
    return "\n".join(error["message"] for error in report["errors"])


def test_the_handles_are_those_of_the_program(tmp_path):
    (cells,) = [cells for cells in table("Configuration language") if cells[0].endswith("route handles")]
    handles = quoted(cells[1])
    registered = set()
    for path in ROUTES.glob("*.rs"):
        registered |= set(re.findall(r'const TYPE: RouteType =\s*RouteType::\w+\(\s*"(\w+)"', path.read_text()))
    assert int(cells[0].split()[0]) == len(handles) and set(handles) == registered
    assert handles == sorted(handles)
    for handle in handles:
        assert "Unknown RouteHandle" not in route_errors(tmp_path, {"type": handle, "children": 7}), handle
    assert "Unknown RouteHandle: OtherRoute line: " in route_errors(tmp_path, {"type": "OtherRoute"})


def test_what_is_refused_by_name_is_refused(tmp_path):
    *handles, bucketize = quoted(row("Configuration language", "refused by name"))
    assert handles and bucketize == "bucketize"
    for handle in handles:
        assert handle in route_errors(tmp_path, {"type": handle}), handle
    for is_on in (False, True):
        assert ("bucketize" in route_errors(tmp_path, {"type": "PoolRoute", "pool": "A", "bucketize": is_on})) == is_on


def test_a_refused_hash_is_named(tmp_path):
    (hash_function,) = quoted(row("Configuration language", "refused"))
    assert hash_function in route_errors(tmp_path, {"type": "PoolRoute", "pool": "A", "hash": hash_function})


def test_what_is_unknown_is_refused(tmp_path):
    protocols, _, handles = row("Configuration language", "unknown").partition(". Handles")
    assert quoted(protocols) == ["caret", "thrift"] and quoted(handles)
    for protocol in quoted(protocols):
        pools = {"A": {"servers": [f"127.0.0.1:1:{protocol}"]}}
        (error,) = check(tmp_path, {"pools": pools, "route": "PoolRoute|A"})["errors"]
        assert f'"{protocol}" is not supported' in error["message"], error
    for handle in quoted(handles):
        assert f"Unknown RouteHandle: {handle} line: " in route_errors(tmp_path, {"type": handle}), handle


def test_what_is_supported_is_taken_without_a_warning(tmp_path):
    (tmp_path / "servers.json").write_text('["127.0.0.1:3"]')
    report = check(tmp_path, SUPPORTED)
    assert report["good"] and report["warnings"] == [], report
    names = quoted(row("Configuration language", "supported"))
    assert len(names) > 10 and [name for name in names if name not in SUPPORTED] == []


def test_functions_of_macros_that_differ_are_a_warning(tmp_path):
    functions, _, parameters = row("Configuration language", "functions of macros").partition(" give other results")
    response = {
        "hash": "@str(@hash(a))",
        "weightedHash": {"type": "weightedHash", "dictionary": {"a": 0, "b": 1}, "key": "k"},
        "shuffle": "@str(@select(@shuffle(@range(1,9)),0))",
        "process": {"type": "process", "initialValue": "", "transform": "%value%%item%", "dictionary": ["a"]},
        "foreach": {"type": "select", "dictionary": {"type": "foreach", "from": ["a"]}, "key": 0},
    }
    assert set(quoted(functions)) | set(quoted(parameters)) == set(response)
    for name, text in response.items():
        report = check(tmp_path, {"route": {"type": "ErrorRoute", "response": text}})
        warned = f"@{name} gives other results than mcrouter's" in json.dumps(report["warnings"])
        assert report["good"] and warned == (name in quoted(functions)), (name, report)


def test_each_other_meaning_has_tests():
    sentences = re.sub(r"(?<=[^.])\. (?=[`A-Z])", "\n", row("Configuration language", "other meaning")).split("\n")
    assert sentences == list(OTHER_MEANING)
    check_that_they_exist(OTHER_MEANING)


def test_unknown_keys_are_warnings_with_the_nearest_known_one(tmp_path):
    route = {"type": "PoolRoute", "pool": "A", "hsh": "Ch3", "asynclog_name": "x"}
    report = check(tmp_path, {"pools": {"A": {"servers": ["127.0.0.1:1"]}}, "route": route})
    assert report["good"], report
    warnings = "\n".join(warning["message"] for warning in report["warnings"])
    assert '"hsh"' in warnings and '"hash"' in warnings and '"asynclog_name"' in warnings, report


def test_what_is_new_is_known(tmp_path):
    new = quoted(row("Configuration language", "new"))
    warm_up = {
        "type": "WarmUpRoute",
        "cold": "PoolRoute|A",
        "warm": "PoolRoute|A",
        "exptime": 60,
        "end_share": 0.1,
        "end_after": 100,
        "hold_off_ms": 10,
    }
    near = {"type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|A", "upgradingL1Exptime": 60}
    near["l1_only_writes"] = True
    staging = {"type": "StagingRoute", "warm": "PoolRoute|A", "staging": "PoolRoute|A", "hold_off_ms": 10}
    leases = {"type": "LeaseRoute", "target": "PoolRoute|A"}
    servers = {"servers": ["127.0.0.1:1"], "spares": ["127.0.0.1:2"], "spare_after_ms": 100}
    configuration = {
        "pools": {"A": {**servers, "flush_new_servers": True, "protocol": "meta"}, "B": servers | {"spares": []}},
        "route": {
            "type": "PrefixSelectorRoute",
            "policies": {"a": warm_up, "b": near, "c": staging, "d": leases},
            "wildcard": "NullRoute",
        },
    }
    configuration["routers"] = ["127.0.0.1:3"]
    del configuration["pools"]["B"]["spare_after_ms"]
    configuration["pools"]["B"]["resize_warm_up_s"] = 60
    report = check(tmp_path, configuration)
    assert report["good"] and report["warnings"] == [], report
    used = json.dumps(configuration)
    routes = {"WarmUpRoute", "L1L2CacheRoute"}
    missing = [name for name in new if name.strip('"').split('"')[0] not in used and name not in routes]
    assert new and missing == []


def test_each_row_of_behaviour_has_a_reason_and_tests():
    rows = [cells[0] for cells in table("Behaviour")]
    assert set(rows) == set(BEHAVIOUR) and len(rows) == len(BEHAVIOUR)
    without_reason = [cells[0] for cells in table("Behaviour") if len(cells) != 4 or not cells[3]]
    assert without_reason == [], "each difference has its reason"
    check_that_they_exist(BEHAVIOUR)


def check_that_they_exist(tests_of: dict[str, list[str]]) -> None:
    """Fails if a test that is named is not there."""
    for name, tests in tests_of.items():
        for test in tests:
            path, _, function = test.partition("::")
            definition = rf"^(async )?(fn|def) {function}\("
            assert re.search(definition, (ROOT / path).read_text(), re.MULTILINE), f"{name}: {test}"


@pytest.fixture
def running(tmp_path):
    """A router in front of one server."""
    with setup(tmp_path) as it:
        it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "r.json")
        it.ask(set_of("k", "v"), b"get k\r\n")
        yield it


def names_of(it: Setup, group: str) -> set[str]:
    """The names that a group of `stats` prints."""
    lines = reply(it.port, f"stats {group}\r\n".encode()).decode().splitlines()
    assert lines[-1] == "END", (group, lines)
    return {line.split()[1] for line in lines[:-1]}


def test_the_statistics_are_there_or_not_as_on_the_page(running):
    found = names_of(running, "all")
    for cells in table("Statistics"):
        for name in quoted(cells[0]):
            match = re.fullmatch(r"__mcrouter__\.(\w+)\((.*)\)", name)
            if match:
                arguments = match[2].replace("OP", "get").replace("KEY", "k")
                assert "ERROR" not in admin(running, f"{match[1]}({arguments})"), name
            elif name.startswith("stats "):
                for group in name.removeprefix("stats ").split(", "):
                    names_of(running, group)
            elif name not in ("slabs", "settings"):
                assert set(expanded(name)) <= found, set(expanded(name)) - found
            else:
                names_of(running, name)
    missing = quoted(row("Statistics", "not there"))
    assert missing
    for pattern in missing:
        expression = pattern.replace("*", ".*")
        assert not [name for name in names_of(running, "detailed") if re.fullmatch(expression, name)], pattern


def test_the_groups_of_statistics_are_there(running):
    section = PAGE.partition("\n## Statistics\n")[2].partition("\n|")[0]
    groups = quoted(section.partition(" exist under")[0])
    assert groups[0] == "stats" and len(groups) == 12
    for group in groups[1:]:
        names_of(running, group)
    assert reply(running.port, b"stats other\r\n") == b"CLIENT_ERROR bad stats command\r\n"


def admin(it: Setup, name: str) -> str:
    """The value of one of the router's own keys."""
    return it.ask(f"get __mcrouter__.{name}\r\n".encode())[0].decode()


def test_a_delete_that_a_shadow_does_not_answer_is_spooled(tmp_path):
    with setup(tmp_path) as it:
        shadow = {"target": "PoolRoute|new", "index_range": [0, 1], "key_fraction_range": [0, 1]}
        pools = {"main": {"servers": [it.address("main")]}, "new": {"servers": [f"127.0.0.1:{free_port()}"]}}
        it.file("r.json", {"pools": pools, "route": {"type": "PoolRoute", "pool": "main", "shadows": [shadow]}})
        it.start("-f", tmp_path / "r.json", "--async-dir", tmp_path / "spool")
        assert it.ask(set_of("k", "v"), b"delete k\r\n") == [b"STORED\r\n", b"DELETED\r\n"]

        def spooled() -> bool:
            return b"STAT asynclog_requests 1\r\n" in reply(it.port, b"stats\r\n")

        eventually(spooled, "the copy of the delete is kept for the shadow")


def test_a_value_above_the_limit_is_refused_and_the_old_one_deleted(tmp_path):
    with setup(tmp_path) as it:
        it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "r.json", "--value-bytes-max", "1000")
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"] and it.at("one", "k") == b"v"
        assert it.ask(set_of("k", "x" * 1_001))[0].startswith(b"SERVER_ERROR object too large")
        assert it.at("one", "k") is None
