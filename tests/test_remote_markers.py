"""Remote markers (§5 of the paper) between two real databases: a master, and a replica whose region has a cluster, a
regional pool for markers that does not evict, and an invalidator on the replica.

The row's version says which database a value came from, and whether users have read their own writes.
"""

from contextlib import ExitStack

import pytest
from processes import connect, eventually, stats
from replica_region import PAIRS, ReplicaRegion

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=PAIRS)
def databases(request, tmp_path_factory):
    """A master and its replica."""
    with ExitStack() as stack:
        yield PAIRS[request.param](tmp_path_factory.mktemp("databases"), stack)


@pytest.fixture
def region(databases, tmp_path):
    """A replica region whose replication runs."""
    with ExitStack() as stack:
        yield ReplicaRegion(databases, tmp_path, stack)


@pytest.fixture
def evicting_region(databases, tmp_path):
    """The same with a pool of markers that evicts."""
    with ExitStack() as stack:
        yield ReplicaRegion(databases, tmp_path, stack, evicts=True)


@pytest.mark.parametrize("naming", ["comment", "outbox"])
def test_users_read_their_own_writes_while_replication_stands_still(region, naming):
    if naming not in region.databases.namings:
        pytest.skip("PostgreSQL's log has no comments")
    client = region.client()
    assert client.read("row:1", region.load(1)) == ("replica", "0")
    assert client.read("row:1", region.load(1)) == ("cache", "0")
    region.stop_replication()
    key, marker = region.write(client, 1, naming)
    assert key == "row:1" and region.is_marked(marker)
    assert client.read("row:1", region.load(1)) == ("master", "1")
    assert client.read("row:1", region.load(1)) == ("cache", "1")
    another = region.client()
    assert another.read_uncached("row:1", region.load(1)) == ("master", "1"), "every user of the region sees the marker"
    assert another.read_uncached("row:2", region.load(2)) == ("replica", "0"), "other rows are read here"

    region.start_replication()
    eventually(lambda: not region.is_marked(marker), "the replication of the write removes its marker", 60)
    assert client.read_uncached("row:1", region.load(1)) == ("replica", "1")


def test_the_replication_of_one_write_leaves_the_marker_of_another(region):
    """The second write is under way while the first one is replicated."""
    one, two = region.client(), region.client()
    region.stop_replication()
    _, first = region.write(one, 1)
    named = two.write("row:1")
    second = named[1]
    region.start_replication()
    eventually(lambda: not region.is_marked(first), "the first write's marker is gone", 60)
    region.stop_replication()
    region.databases.write(1, named, region.databases.namings[0])
    two.finish()
    assert region.is_marked(second)
    assert two.read_uncached("row:1", region.load(1)) == ("master", "2")

    region.start_replication()
    eventually(lambda: not region.is_marked(second), "the second write's marker is gone", 60)
    assert two.read_uncached("row:1", region.load(1)) == ("replica", "2")


def test_with_one_marker_for_each_key_the_second_writer_reads_an_older_value(region):
    """The race that the paper accepts."""
    one, two = region.client("--per-key"), region.client("--per-key")
    region.stop_replication()
    _, marker = region.write(one, 1)
    named = two.write("row:1")
    assert named == ["row:1", marker]
    region.start_replication()
    eventually(lambda: not region.is_marked(marker), "the only marker is gone", 60)
    region.stop_replication()
    region.databases.write(1, named, region.databases.namings[0])
    two.finish()
    assert two.read_uncached("row:1", region.load(1)) == ("replica", "1"), "older than what this user has written"


def test_a_full_pool_keeps_its_markers_and_the_caller_chooses(region):
    client = region.client()
    region.stop_replication()
    _, marker = region.write(client, 1)
    fill_pool(region)

    assert "out of memory" in client.call("write row:2")
    accepting = region.client("--accept-lag")
    reply = accepting.call("write row:2")
    assert reply.startswith("unmarked row:2 name row:2 marker:row:2|#|"), reply
    region.databases.write(2, reply.split(" ")[3:], region.databases.namings[0])
    accepting.finish()
    assert accepting.read("row:2", region.load(2)) == ("replica", "0"), "as the caller has accepted"

    assert region.is_marked(marker)
    assert client.read("row:1", region.load(1)) == ("master", "1")
    counters = stats(region.pool.port)
    assert (counters["evictions"], int(counters["store_no_memory"]) > 0) == ("0", True)


def test_a_full_pool_keeps_the_marker_that_writes_of_a_key_share(region):
    """A `set` that finds no memory removes the value that was there."""
    client = region.client("--per-key")
    region.stop_replication()
    _, marker = region.write(client, 1)
    fill_pool(region)
    assert region.client("--per-key").call("write row:1").split(" ")[0] in ("error", "name")
    assert region.is_marked(marker)
    assert client.read_uncached("row:1", region.load(1)) == ("master", "1")


def fill_pool(region) -> None:
    """Until no value finds memory, however small."""
    client, stored = connect(region.pool.port), 0
    for value_bytes in (1000, 100, 0):
        # A value that is refused raises.
        while is_stored(client, f"marker:other:{stored}", b"x" * value_bytes):
            stored += 1
    assert stored > 1000


def is_stored(client, key: str, value: bytes) -> bool:
    try:
        return client.set(key, value)
    except Exception as error:
        assert "out of memory storing object" in str(error), error
        return False


def test_a_marker_that_is_removed_by_hand_uncovers_its_write(region):
    """What eviction would do: why the pool must not evict."""
    client = region.client()
    region.stop_replication()
    _, marker = region.write(client, 1)
    assert client.read_uncached("row:1", region.load(1)) == ("master", "1")
    assert connect(region.pool.port).delete(marker)
    assert client.read_uncached("row:1", region.load(1)) == ("replica", "0")


def test_an_evicted_marker_uncovers_its_write_until_the_replica_has_it(evicting_region):
    """What remote_markers.md says of a lost marker: the old row may be read and cached while replication lags."""
    region = evicting_region
    client = region.client()
    region.stop_replication()
    _, marker = region.write(client, 1)
    assert client.read_uncached("row:1", region.load(1)) == ("master", "1")
    region.evict(marker)
    assert client.read("row:1", region.load(1)) == ("cache", "1"), "what was cached stays"
    assert client.read_uncached("row:1", region.load(1)) == ("replica", "0")
    assert client.read("row:1", region.load(1)) == ("cache", "0")
    # Another write has a marker of its own.
    _, another = region.write(client, 1)
    assert client.read("row:1", region.load(1)) == ("master", "2")
    region.evict(another)
    assert client.read_uncached("row:1", region.load(1)) == ("replica", "0")

    region.start_replication()
    newest = ("cache", "2")
    eventually(lambda: client.read("row:1", region.load(1)) == newest, "the replication deletes the old value", 60)


def test_a_dead_pool_and_the_callers_choices(region):
    client = region.client()
    accepting = region.client("--accept-lag", "--replica-when-unknown")
    region.stop_replication()
    region.write(client, 1)
    region.pool.kill()
    assert client.call("write row:2").startswith("error the remote marker of row:2 could not be set")
    assert region.version(region.master, 2) == 0, "nothing was written"
    assert client.read("row:1", region.load(1)) == ("master", "1"), "it is not known whether there is a marker"
    assert client.read("row:3", region.load(3)) == ("master", "0")
    assert client.statistics()["unknown"] == 2

    assert accepting.call("write row:2").startswith("unmarked row:2 name row:2 marker:row:2|#|")
    region.databases.write(2, ["row:2"], region.databases.namings[0])
    accepting.finish()
    assert accepting.read("row:2", region.load(2)) == ("replica", "0")
    assert accepting.read("row:2", region.load(2)) == ("cache", "0"), "older than what its user has written"
    assert accepting.read_master("row:2", region.load(2)) == ("master", "1"), "the user chooses so"
    assert accepting.read_past_cache("row:2", region.load(2)) == ("replica", "0")
    assert client.read_past_cache("row:2", region.load(2)) == ("master", "1"), "it is not known whether there is one"
    assert accepting.read("row:2", region.load(2)) == ("cache", "0"), "nothing was cached"
    assert accepting.statistics()["demanded"] == 1

    region.pool.restart()

    def is_marked_again() -> bool:
        return client.call("write row:4").startswith("name ")

    eventually(is_marked_again, "the router uses the pool again")


def test_a_read_past_the_cache_follows_the_markers(region):
    """The cluster keeps the old value, as another cluster of the region does until its delete arrives."""
    client = region.client()
    assert client.read("row:1", region.load(1)) == ("replica", "0")
    region.stop_replication()
    named = client.write("row:1")
    region.databases.write(1, named, region.databases.namings[0])
    assert client.read_past_cache("row:1", region.load(1)) == ("master", "1")
    assert client.read_past_cache("row:2", region.load(2)) == ("replica", "0")
    assert client.read("row:1", region.load(1)) == ("cache", "0"), "the cache is as it was"
    assert client.call("abort") == "aborted"
    assert client.read_past_cache("row:1", region.load(1)) == ("replica", "0"), "the marker alone says so"


def test_a_marker_that_is_not_cleared_expires(region):
    client = region.client("--ttl", "2")
    region.stop_replication()
    _, marker = region.write(client, 1)
    assert client.read("row:1", region.load(1)) == ("master", "1")
    eventually(lambda: not region.is_marked(marker), "the marker expires")
    assert client.read_uncached("row:1", region.load(1)) == ("replica", "0")


def test_an_aborted_write_clears_its_own_marker_alone(region):
    one, two = region.client(), region.client()
    region.stop_replication()
    _, first = region.write(one, 1)
    _, second = two.write("row:1")
    assert region.is_marked(second)
    assert two.call("abort") == "aborted"
    assert not region.is_marked(second) and region.is_marked(first)
    assert two.read("row:1", region.load(1)) == ("master", "1")
    assert one.write("row:3") and one.call("abort") == "aborted"
    assert one.read("row:3", region.load(3)) == ("replica", "0")
