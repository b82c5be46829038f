"""A router with `--leases`, byte by byte: plain clients, a delete in between, a reload, an upgrade."""

import hashlib
import json

import pytest
from leases import LeaseClient
from processes import Cluster, eventually, stats
from pymemcache.client.base import Client
from router_upgrade import RouterChain


@pytest.fixture
def leasing(tmp_path):
    """A cluster whose router takes leases, and does not hold misses back for long."""
    cluster = Cluster("one", tmp_path, ("--leases", "--lease-hot-miss-wait", "20"))
    yield cluster
    cluster.stop()


def test_a_value_from_before_a_delete_is_refused_and_the_next_is_stored(leasing):
    client, invalidator = LeaseClient(leasing.port), LeaseClient(leasing.port)
    assert client.command(b"get k") == b"END"
    assert invalidator.command(b"delete k") == b"NOT_FOUND"
    assert client.command(b"set k 0 0 3", b"old") == b"NOT_STORED"
    assert client.command(b"get k") == b"END"
    assert client.command(b"set k 5 60 3", b"new") == b"STORED"
    assert client.command(b"get k") == b"VALUE k 5 3" and client.block(3) == b"new"
    shown = stats(leasing.port)
    assert (shown["plain_lease_sets_stored"], shown["plain_lease_sets_refused"]) == ("1", "1")
    assert (shown["plain_lease_tokens"], shown["plain_lease_misses"]) == ("2", "0")


def test_meta_and_noreply_stores_are_leased(leasing):
    client, invalidator = LeaseClient(leasing.port), LeaseClient(leasing.port)
    assert client.command(b"mg k v") == b"EN"
    invalidator.command(b"delete k")
    assert client.command(b"ms k 3 T60 O1", b"old") == b"NS O1"
    assert client.command(b"mg k v") == b"EN"
    assert client.command(b"ms k 3 T60 O2 c", b"new") == b"HD O2 c0"
    assert client.command(b"get other") == b"END"
    invalidator.command(b"delete other")
    client.socket.sendall(b"set other 0 0 3 noreply\r\nold\r\n")
    assert client.command(b"get other") == b"END"


def test_a_set_without_a_miss_is_refused_and_counted(leasing):
    client = LeaseClient(leasing.port)
    assert client.command(b"set k 0 0 1", b"x") == b"NOT_STORED"
    assert client.command(b"get k") == b"END"
    other = LeaseClient(leasing.port)
    assert other.command(b"set k 0 0 1", b"x") == b"NOT_STORED", "the miss is of another connection"
    assert stats(leasing.port)["plain_lease_unleased_refused"] == "2"
    assert client.command(b"set k 0 0 1", b"x") == b"STORED"


def test_counters_begin_after_a_missed_increment(leasing):
    client = Client(("127.0.0.1", leasing.port), timeout=10, default_noreply=False)
    assert client.incr("n", 1) is None
    assert client.add("n", "5") is True
    assert client.incr("n", 1) == 6
    client.close()


def test_only_if_absent_needs_a_time_without_deletes(tmp_path):
    options = ("--leases", "--lease-set-without-miss", "only-if-absent", "--lease-hold-off", "500")
    cluster = Cluster("one", tmp_path, options)
    client = LeaseClient(cluster.port)
    client.command(b"delete k")
    assert client.command(b"set k 0 0 1", b"x") == b"NOT_STORED", "the hold-off"
    eventually(lambda: client.command(b"set k 0 0 1", b"y") == b"STORED", "the hold-off ends")
    assert client.command(b"set k 0 0 1", b"z") == b"NOT_STORED", "there is a value"
    cluster.stop()


def test_the_tokens_of_a_connection_survive_another_configuration(leasing):
    client = LeaseClient(leasing.port)
    assert client.command(b"get k") == b"END"
    configuration = json.loads(leasing.configuration_path.read_text())
    configuration["pools"]["wildcard"]["server_timeout"] = 251
    text = json.dumps(configuration)
    leasing.configuration_path.write_text(text)
    reader = LeaseClient(leasing.port)

    def is_in_force() -> bool:
        head = reader.command(b"get __mcrouter__.config_md5_digest").split()
        digest = reader.block(int(head[3]))
        assert reader.reader.readline() == b"END\r\n"
        return digest.decode() == hashlib.md5(text.encode()).hexdigest()

    eventually(is_in_force, "the router has the new configuration")
    assert client.command(b"set k 0 0 1", b"x") == b"STORED"


def test_an_upgrade_drops_tokens_and_stores_nothing_for_them(tmp_path):
    chain = RouterChain(tmp_path, "--leases", "--lease-miss-age", "1")
    try:
        chain.begin()
        missed, idle = LeaseClient(chain.port), LeaseClient(chain.port)
        assert missed.command(b"get k") == b"END"
        assert idle.command(b"version").startswith(b"VERSION")
        chain.upgrade()
        assert missed.command(b"set k 0 0 3", b"old") == b"NOT_STORED"
        assert missed.command(b"get j") == b"END"
        assert missed.command(b"set j 0 0 1", b"x") == b"NOT_STORED", "it may have missed this before"
        assert idle.command(b"get i") == b"END"
        assert idle.command(b"set i 0 0 1", b"x") == b"STORED", "it had missed nothing"

        def fills() -> bool:
            assert missed.command(b"get m") in (b"END", b"VALUE m 0 1")
            return missed.command(b"set m 0 0 1", b"x") == b"STORED"

        eventually(fills, "it stores again")
    finally:
        chain.stop()
