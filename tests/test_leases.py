"""Leases through a router: one database read for a herd, and no stale set (§3.2.1)."""

import threading

from leases import HOT_MISS, LeaseClient
from processes import eventually, stats


def test_a_hundred_clients_that_miss_the_same_key_read_the_database_once(cluster):
    loads = []
    start = threading.Barrier(100)
    values = []

    def hot_misses() -> int:
        return sum(int(stats(server.port)["lease_hot_misses"]) for server in cluster.servers)

    def load() -> bytes:
        loads.append(1)
        # The query lasts until all other clients have missed as well.
        eventually(lambda: hot_misses() >= 99, "the other 99 clients have got a hot miss")
        return b"from the database"

    def ask() -> None:
        client = LeaseClient(cluster.port)
        start.wait(20)
        values.append(client.read("hot", load))
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert values == [b"from the database"] * 100
    assert len(loads) == 1


def test_a_delete_voids_the_lease_so_that_no_stale_value_is_set(cluster):
    reader, writer = LeaseClient(cluster.port), LeaseClient(cluster.port)
    _, token, _ = reader.lease_get("row")
    assert token > HOT_MISS
    assert writer.command(b"delete row") == b"NOT_FOUND"
    assert reader.lease_set("row", token, b"read before the commit") == b"NOT_STORED"
    assert reader.command(b"get row") == b"END"
    reader.close()
    writer.close()


def test_a_deleted_value_is_shown_as_stale_and_never_to_a_plain_get(cluster):
    client, other = LeaseClient(cluster.port), LeaseClient(cluster.port)
    assert client.command(b"set row 0 0 3", b"old") == b"STORED"
    assert client.command(b"delete row") == b"DELETED"
    assert client.command(b"get row") == b"END"
    value, token, stale = client.lease_get("row")
    assert (value, stale) == (None, b"old") and token > HOT_MISS
    assert other.lease_get("row") == (None, HOT_MISS, b"old")
    assert client.lease_set("row", token, b"new") == b"STORED"
    assert other.lease_get("row") == (b"new", 0, None)
    client.close()
    other.close()


def test_a_token_counts_once_and_for_its_key_only(cluster):
    client = LeaseClient(cluster.port)
    _, token, _ = client.lease_get("one")
    client.lease_get("two")
    assert client.lease_set("two", token, b"x") == b"NOT_STORED"
    assert client.lease_set("one", token, b"1") == b"STORED"
    assert client.lease_set("one", token, b"2") == b"NOT_STORED"
    assert client.lease_set("three", 12345, b"3") == b"NOT_STORED"
    client.close()


def test_add_is_refused_during_the_hold_off_of_a_delete(cluster):
    client = LeaseClient(cluster.port)
    assert client.command(b"delete row 30") == b"NOT_FOUND"
    assert client.command(b"add row 0 0 4", b"warm") == b"NOT_STORED"
    assert client.command(b"set row 0 0 5", b"fresh") == b"STORED"
    assert client.command(b"get row") == b"VALUE row 0 5"
    client.close()
