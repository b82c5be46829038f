"""A pool changes its servers while rows change: no read is older than a delete that was acknowledged before it.

Two or three routers, each other's peers, in front of servers that join, leave, return and die. A writer changes rows
and deletes their keys; readers look aside under leases, and compare every hit with the last acknowledged version.
"""

import json
import re
import select
import socket
from pathlib import Path

import pytest
from leases import LeaseClient
from processes import Server, connect, eventually, free_port, frozen, stats
from resized_region import KEYS, Region, Router, metric_states, routes, text_of

WARM_UP = pytest.mark.parametrize("region", [{}, {"resize_warm_up_s": 3}], ids=["cold", "warm"], indirect=True)


@pytest.fixture
def region(tmp_path, request):
    """Three servers that are used and one that is not."""
    region = Region(tmp_path, **getattr(request, "param", {}))
    try:
        yield region
    finally:
        region.stop()


@WARM_UP
def test_a_server_leaves_its_pool_and_returns(region):
    """Copies that the other servers kept from its first absence were read in its second one."""
    region.traffic.flow()
    for _ in range(2):
        region.configure([0, 1])
        region.wait_in_force()
        region.traffic.flow()
        region.configure([0, 1, 2])
        region.wait_in_force()
        region.traffic.flow()
    region.traffic.check()


@WARM_UP
def test_configurations_change_twice_within_a_second(region):
    region.traffic.flow()
    for servers in ([0, 1], [0, 1, 2], [1, 2], [0, 1], [0, 1, 2]):
        region.configure(servers)
        region.configure([0, 2, 1])
        region.configure(servers)
        region.wait_in_force()
        region.traffic.flow()
    region.traffic.check()


# Two changes, and the server that is killed before them. No configuration is there twice, so it shows when it is seen.
CHANGES_WITH_A_DEAD_SERVER = {
    "leaves": ([0, 1], [0, 1, 3], 2),
    "stays": ([0, 2], [0, 3, 2], 0),
    "joins": ([3, 2], [3, 2, 1], 1),
}


@pytest.mark.parametrize("region", [{"routers": 3, "resize_warm_up_s": 2}], indirect=True)
def test_three_routers_change_twice_within_a_second_while_servers_are_killed(region):
    """The second change meets a router that has begun the first one, one that may have, and one that has it from its
    peers only; and a server that is dead and in neither, both, or the second. It is started again, empty."""
    region.traffic.flow()
    for first, second, killed in CHANGES_WITH_A_DEAD_SERVER.values():
        region.servers[killed].kill()
        begun, late = region.routers[0], region.routers[1]
        before = configurations(begun)
        text = text_of([region.servers[index] for index in first], **region.pool)
        for router in (begun, late):
            router.configure(text)
        eventually(lambda: configurations(begun) - before, "the first change has begun", 10)  # noqa: B023
        region.configure(second)
        region.traffic.flow()
        region.servers[killed].restart()
        region.wait_in_force()
        region.traffic.flow()
    assert region.total("configuration_changes") >= len(region.routers) * len(CHANGES_WITH_A_DEAD_SERVER)
    region.wait_steady()
    region.traffic.check()


def configurations(router: Router) -> set[str]:
    """What a router reads by, waits for and covers."""
    return set(re.findall(r"[0-9a-f]{32}", router.admin("coverage")))


@WARM_UP
def test_servers_are_exchanged_and_weighted_while_one_is_killed(region):
    region.traffic.flow()
    region.configure([0, 1, 3])
    region.servers[1].kill()
    region.wait_in_force()
    region.servers[1].restart()
    region.traffic.flow()
    region.configure([0, 1, 3], weights=[1.0, 0.3, 0.6])
    region.wait_in_force()
    region.traffic.flow()
    region.configure([0, 1, 2])
    region.wait_in_force()
    region.traffic.flow()
    region.traffic.check()


def test_a_router_that_has_the_old_file_or_restarts_covers_both(region):
    new, old = region.routers
    region.traffic.flow()
    region.text = text_of(region.servers[:2])
    new.configure(region.text)
    region.wait_in_force([new])
    assert not old.reads_by(region.text)
    assert stats(old.port)["configurations_covered"] == "2"
    region.traffic.flow()
    assert int(stats(old.port)["covering_deletes"]) > 0
    covered = {len(old.admin(f"route(delete,{key})").splitlines()) for key in KEYS}
    assert covered == {1, 2}, "a key that moves is deleted at two servers"
    for router in (old, new):
        router.kill()
        router.restart()
        region.traffic.flow()
    assert new.reads_by(region.text) and not old.reads_by(region.text)
    old.configure(region.text)
    region.wait_in_force()
    region.configure([0, 1, 2])
    region.wait_in_force()
    region.traffic.flow()
    region.traffic.check()


def test_a_change_continues_in_the_next_process_of_an_upgrade(region):
    new, old = region.routers
    region.traffic.flow()
    region.text = text_of(region.servers[:2])
    new.configure(region.text)
    region.wait_in_force([new])
    for router in (old, new):
        router.upgrade()
        region.traffic.flow()
        assert stats(router.port)["configurations_covered"] == "2"
    assert new.reads_by(region.text) and not old.reads_by(region.text)
    old.configure(region.text)
    region.wait_in_force()
    region.traffic.flow()
    region.configure([0, 1, 2])
    region.wait_in_force()
    region.traffic.flow()
    region.traffic.check()


def leave_with_outdated_copy(region: Region, config_cache: Path) -> None:
    """A server leaves the pool, with values that are out of date soon. The copy of a router's file does not know it."""
    region.traffic.flow()
    region.wait_steady()
    region.routers[0].copy_coverage(config_cache)
    region.configure([0, 1])
    region.wait_in_force()
    region.wait_steady()
    region.traffic.flow()


def test_the_next_process_of_an_upgrade_asks_its_peer_if_its_file_is_not_the_predecessors(region, tmp_path):
    """It read the server that had left, as the outdated file in its own --config-cache said."""
    router = region.routers[0]
    leave_with_outdated_copy(region, tmp_path / "other.json")
    router.set_config_cache(tmp_path / "other.json")
    router.upgrade()
    region.traffic.flow()
    assert "is not what the predecessor has saved last" in router.log()
    # The file is the new one's by now.
    router.upgrade()
    region.traffic.flow()
    assert router.log().count("is not what the predecessor has saved last") == 1
    region.traffic.check()


@pytest.mark.parametrize("region", [{"routers": 1}], indirect=True)
def test_an_upgrade_with_an_outdated_file_and_no_peer_is_refused(region, tmp_path):
    """The predecessor goes on, and a process that has its file takes over."""
    (router,) = region.routers
    leave_with_outdated_copy(region, tmp_path / "other.json")
    own = router.set_config_cache(tmp_path / "other.json")
    predecessor = router.running
    router.start()
    refused, router.running = router.running, predecessor
    try:
        eventually(lambda: refused.poll() is not None, f"refused:\n{router.log()[-4000:]}")
        assert refused.returncode != 0 and predecessor.poll() is None
    finally:
        refused.kill()
    assert "give it the --config-cache of the predecessor" in router.log()
    region.traffic.flow()
    router.set_config_cache(own)
    router.upgrade()
    region.traffic.flow()
    region.traffic.check()


def test_misplaced_copies_are_removed_and_the_old_configuration_is_released(region):
    region.traffic.flow()
    region.configure([0, 1])
    region.wait_in_force()
    region.traffic.flow()
    # Further deletes would remove most of them.
    region.traffic.stop()
    region.configure([0, 1, 2])
    region.wait_steady()
    assert sum(int(stats(router.port)["purge_keys_removed"]) for router in region.routers) > 0
    owner = {key: region.routers[0].admin(f"route(delete,{key})").split()[0] for key in KEYS}
    for server in region.servers[:3]:
        client = connect(server.port)
        misplaced = [key for key in client.get_many(KEYS) if owner[key] != f"127.0.0.1:{server.port}"]
        assert not misplaced, f"{server.name} has copies that it does not own"
        client.close()
    region.traffic.check()


SUFFIXED = {"type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|main"}
PREFIXED = {"type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "target": "PoolRoute|main"}


@pytest.mark.parametrize(
    ("first", "second"), [("PoolRoute|main", SUFFIXED), (PREFIXED, "PoolRoute|main")], ids=["suffix", "prefix"]
)
def test_a_route_that_changes_keys_comes_or_goes_and_that_is_taken_back(region, first, second):
    """The servers stayed, and so did the copies under the former names: deletes reached them only when they were read
    again."""
    region.traffic.stop()
    client, hits = connect(region.routers[0].port), []
    for route in (first, second, first):
        region.text = json.dumps(json.loads(region.text) | {"route": route})
        for router in region.routers:
            router.configure(region.text)
        region.wait_in_force()
        region.wait_steady()
        hits.append(len(client.get_many(KEYS)))
        # The rows change while the second one is in force.
        if route == first:
            client.set_many(dict.fromkeys(KEYS, b"1"))
            assert len(client.get_many(KEYS)) == len(KEYS)
        else:
            client.delete_many(KEYS)
    client.close()
    assert hits[1:] == [0, 0], f"hits in each configuration: {hits}"


def test_a_new_configuration_waits_for_its_servers_and_peers(region):
    router, peer = region.routers
    region.servers[3].kill()
    peer.kill()
    region.configure([0, 1, 3])
    eventually(lambda: "cannot empty a new server" in router.log(), "the log names the server")
    assert stats(router.port)["resize_state"] == "emptying"
    assert metric_states(router) == ["emptying"]
    region.servers[3].restart()
    eventually(lambda: stats(router.port)["resize_state"] == "waiting_for_peers", "the peer is away")
    assert metric_states(router) == ["waiting_for_peers"]
    assert not router.reads_by(region.text)
    key, former, new = moved_key(router)
    done, reported = routes(key, router, router.port)
    assert done.returncode == 0, done.stderr
    assert reported[0]["resize_state"] == "waiting_for_peers" and reported[0]["configurations_covered"] == 2
    assert reported[0]["reached"] == [former] and reported[0]["deleted_at"] == sorted([former, new])
    done, reported = routes(key, router, router.port, peer.port)
    assert done.returncode == 1 and f"no report from 127.0.0.1:{peer.port}\n" in done.stderr, done.stderr
    assert "error" not in reported[0] and "cannot connect" in reported[1]["error"]
    region.traffic.flow()
    peer.restart()
    region.wait_in_force()
    region.wait_steady()
    assert metric_states(router) == ["steady"]
    done, reported = routes(key, router, router.port, peer.port)
    assert [report["resize_state"] for report in reported] == ["steady", "steady"]
    assert all(report["reached"] == report["deleted_at"] == [new] for report in reported)
    region.traffic.check()


def moved_key(router: Router) -> tuple[str, str, str]:
    """A key whose deletes reach two servers: the one that the router reads, and the new one."""
    for key in KEYS:
        former = router.admin(f"route(get,{key})").split()[0]
        deleted_at = {line.split()[0] for line in router.admin(f"route(delete,{key})").splitlines()}
        if len(deleted_at) == 2:
            return key, former, (deleted_at - {former}).pop()
    raise AssertionError("no key moves")


@pytest.mark.parametrize("changes", [([0, 1], [0, 1, 2]), ([0, 1, 2], [0, 1])], ids=["stays", "leaves"])
def test_a_token_from_before_a_change_fills_nothing(tmp_path, changes):
    """A client hung between its miss and its fill. Its key moved away, was deleted where it was then, and moved back:
    the value from before the delete was stored, since no delete had voided the token. The key's first server stays in
    the pool, or leaves it and returns without any item."""
    servers = [Server(f"server-{index}", tmp_path) for index in range(3)]
    first, second = (text_of([servers[index] for index in indices]) for indices in changes)
    router = Router(tmp_path, first, free_port(), [])
    client = LeaseClient(router.port)
    try:
        tokens = {key: client.lease_get(key)[1] for key in KEYS}
        owners = [router.admin(f"route(get,{key})") for key in KEYS]
        for text in (second, first):
            router.configure(text)
            eventually(lambda text=text: router.reads_by(text) and router.is_steady(), "in force")
            if text == second:
                moved = [key for key, at in zip(KEYS, owners, strict=True) if router.admin(f"route(get,{key})") != at]
                assert len(moved) > 20
                assert {client.command(b"delete " + key.encode()) for key in moved} == {b"NOT_FOUND"}
        replies = {client.lease_set(key, tokens[key], b"old") for key in moved}
        assert replies == {b"NOT_STORED"}
    finally:
        client.close()
        for process in [router, *servers]:
            process.stop()


@pytest.mark.parametrize("pool", [{}, {"resize_warm_up_s": 600}], ids=["cold", "warm"])
def test_a_former_owner_that_hangs_does_not_keep_old_values_readable(tmp_path, pool):
    """Deletes of keys that had moved waited for their former owner, which hung, before they reached the new one: it was
    read for as long."""
    servers = [Server(f"server-{index}", tmp_path) for index in range(3)]
    first, second = text_of(servers[:2], **pool), text_of(servers, **pool)
    ports = [free_port(), free_port()]
    # Longer than the test: no delete is spooled for the server, which is not TKO.
    routers = [
        Router(tmp_path, first, port, [peer for peer in ports if peer != port], server_timeout_ms=60_000)
        for port in ports
    ]
    router, peer = routers
    try:
        before = {key: router.admin(f"route(get,{key})").split()[0] for key in KEYS}
        for changed in routers:
            changed.configure(second)
        eventually(lambda: router.reads_by(second), "in force", 40)
        # The former configuration is covered until the peer reports that it does not read it.
        peer.kill()
        new, former = (f"127.0.0.1:{server.port}" for server in (servers[2], servers[0]))
        owner = {key: router.admin(f"route(get,{key})").split()[0] for key in KEYS}
        moved = [key for key in KEYS if (before[key], owner[key]) == (former, new)]
        assert len(moved) > 20
        client, at_owner = connect(router.port), connect(servers[2].port)
        assert all(client.set(key, "old", noreply=False) for key in moved)
        assert len(at_owner.get_many(moved)) == len(moved)
        with socket.create_connection(("127.0.0.1", router.port)) as invalidator:
            with frozen(servers[0]):
                invalidator.sendall(b"".join(b"delete %s\r\n" % key.encode() for key in moved))
                eventually(lambda: at_owner.get_many(moved) == {}, f"deleted:\n{router.log()[-4000:]}")
                assert not select.select([invalidator], [], [], 0)[0], "the former owner has not replied"
                assert stats(router.port)["resize_state"] in ("draining", "warming_up")
            with invalidator.makefile("rb") as replies:
                assert {replies.readline() for _ in moved} <= {b"DELETED\r\n", b"NOT_FOUND\r\n"}
        client.close()
        at_owner.close()
        assert int(stats(router.port)["spool_deletes"]) == 0
    finally:
        for process in [*routers, *servers]:
            process.stop()


def read_moved(region, keys: list[str], port: int) -> float:
    """The part of `keys` that are hits, each read once."""
    client = connect(port)
    hits = sum(client.get(key) is not None for key in keys)
    client.close()
    return hits / len(keys)


@pytest.mark.parametrize("grows", [True, False], ids=["grows", "shrinks"])
@pytest.mark.parametrize("region", [{}, {"resize_warm_up_s": 4}], ids=["cold", "warm"], indirect=True)
def test_keys_that_moved_are_read_from_their_former_owners(region, grows):
    """A quarter of all keys missed at once when a pool grew from three servers to four, or shrank again."""
    region.traffic.flow()
    region.traffic.stop()
    three, four = [0, 1, 2], [0, 1, 2, 3]
    if not grows:
        region.configure(four)
        region.wait_in_force()
        region.wait_steady()
    client = connect(region.routers[0].port)
    for number, key in enumerate(KEYS):
        assert client.set(key, b"x" * (1 + number * 500), expire=300 if number % 2 else 0, flags=number, noreply=False)
    before = region.owners()
    region.configure(four if grows else three)
    region.wait_in_force()
    after = region.owners()
    moved = [key for key in KEYS if before[key] != after[key]]
    kept = [key for key in KEYS if before[key] == after[key]]
    half = len(moved) // 2
    first, by_lease = moved[:half], moved[half:]
    assert read_moved(region, kept, region.routers[0].port) == 1
    ratio = read_moved(region, first, region.routers[0].port)
    leases = LeaseClient(region.routers[1].port)
    ratio_leases = sum(leases.lease_get(key)[0] is not None for key in by_lease) / len(by_lease)
    leases.close()
    print(f"{len(moved)} of {len(KEYS)} keys moved; hits by get {ratio:.2f}, by lease-get {ratio_leases:.2f}")
    if not region.pool:
        assert (ratio, ratio_leases, region.total("former_owner_hits")) == (0, 0, 0)
        return
    assert (ratio, ratio_leases) == (1, 1)
    eventually(lambda: region.total("former_owner_fills") == len(moved), "all are copied")
    assert stats(region.routers[0].port)["resize_state"] == "warming_up"
    for number, key in enumerate(KEYS):
        if key in moved:
            new = connect(int(after[key].rsplit(":")[-1]))
            assert new.get(key) == b"x" * (1 + number * 500)
            head, rest = new.raw_command(f"mg {key} f t").decode().split(" ", 1)
            flags, ttl = rest.split()
            assert (head, flags) == ("HD", f"f{number}")
            assert 280 < int(ttl[1:]) <= 300 if number % 2 else ttl == "t-1"
            new.close()
    region.wait_steady()
    assert read_moved(region, moved, region.routers[0].port) == 1, "they keep their copies"
    # The copies of a server that has left are removed if it returns.
    left = f"127.0.0.1:{region.servers[3].port}"
    assert region.total("purge_keys_removed") > 0 if grows else left in region.routers[0].admin("coverage")


@pytest.mark.parametrize("region", [{"resize_warm_up_s": 60}], indirect=True)
def test_a_flush_during_a_warm_up_is_not_undone(region):
    """A router copied a value from a former owner that was flushed after the new one."""
    region.traffic.flow()
    region.traffic.stop()
    region.configure([0, 1, 2, 3])
    region.wait_in_force()
    flushes = [int(stats(server.port)["cmd_flush"]) for server in region.servers]
    client = connect(region.routers[0].port)
    assert client.flush_all(noreply=False)
    assert [int(stats(server.port)["cmd_flush"]) for server in region.servers] == [before + 2 for before in flushes]
    assert client.get_many(KEYS) == {}
    client.close()


@pytest.mark.parametrize("region", [{"resize_warm_up_s": 60}], indirect=True)
def test_moved_keys_are_read_while_rows_change_and_their_former_owners_die(region):
    region.traffic.flow()
    for servers in ([0, 1, 2, 3], [0, 1, 2], [0, 1, 3], [1, 2, 3]):
        region.configure(servers)
        region.wait_in_force()
        region.traffic.flow()
    assert region.total("former_owner_fills") > 20
    region.configure([0, 1, 2, 3])
    region.wait_in_force()
    region.configure([0, 2, 3])
    region.servers[1].kill()
    region.wait_in_force()
    region.traffic.flow()
    router = region.routers[0]
    router.kill()
    router.restart()
    region.wait_in_force()
    region.traffic.flow()
    region.traffic.check()
    hits, fills = region.total("former_owner_hits"), region.total("former_owner_fills")
    print(f"no stale read of {region.traffic.hits} hits, {hits} at former owners, {fills} copied")


def test_a_router_that_its_peers_no_longer_know_reads_what_they_read(region):
    """A router that was removed from `--spool-peers` returned with the configuration that it had on disk, and read old
    values from a server that had left the pool meanwhile: the other's deletes no longer went there."""
    stays, returns = region.routers
    keys = [f"own:{number}" for number in range(50)]
    client = connect(stays.port)
    for key in keys:
        assert client.set(key, "old")
    client.close()
    returns.kill()

    at = stays.command.index("--spool-peers")
    peers = stays.command[at : at + 2]
    del stays.command[at : at + 2]
    stays.kill()
    stays.restart()
    region.text = text_of(region.servers[:2])
    stays.configure(region.text)
    region.wait_in_force([stays])
    eventually(stays.is_steady, "only the new configuration is covered", 60)
    client = connect(stays.port)
    for key in keys:
        client.delete(key)
    client.close()

    stays.command += peers
    stays.kill()
    stays.restart()
    returns.restart()
    client = connect(returns.port)
    assert [key for key in keys if client.get(key)] == []
    client.close()
    assert returns.reads_by(region.text)
    returns.configure(region.text)
    region.configure([0, 1, 2])
    region.wait_in_force()
    client = connect(returns.port)
    assert [key for key in keys if client.get(key)] == [], "the server that returns is emptied"
    client.close()
