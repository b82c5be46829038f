"""Remote markers (§5 of the paper) between two real MariaDBs: a master, and a replica whose region has a cluster, a
regional pool for markers that does not evict, and an invalidator on the replica.

The row's version says which database a value came from, and whether a user has read his own write.
"""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from processes import Invalidator, Server, connect, eventually, stats
from regional_client import RegionalClient
from replicated import MariadbServer
from routers import router

pytestmark = pytest.mark.timeout(300)

ROWS = 10


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    """A master and its replica."""
    folder = tmp_path_factory.mktemp("databases")
    with ExitStack() as stack:
        master = MariadbServer(folder)
        stack.callback(master.stop)
        replica = MariadbServer.replicate(master, folder)
        stack.callback(replica.stop)
        yield SimpleNamespace(master=master, replica=replica)


class ReplicaRegion:
    """What is around the replica."""

    def __init__(self, databases: SimpleNamespace, folder, stack: ExitStack) -> None:
        self.master, self.replica = databases.master, databases.replica
        self.stack = stack
        self.replica.run("START SLAVE", schema=None)
        self.master.create_versions(ROWS)
        self.wait_replicated()
        self.server = Server("server", folder)
        stack.callback(self.server.stop)
        self.pool = Server("markers", folder, "-M", "-m", "2", "--stale-seconds", "0")
        stack.callback(self.pool.stop)
        configuration = {
            "pools": {
                "wildcard": {"servers": [f"127.0.0.1:{self.server.port}"]},
                "markers": {"servers": [f"127.0.0.1:{self.pool.port}"]},
            },
            "route": {
                "type": "PrefixSelectorRoute",
                "policies": {"marker:": "PoolRoute|markers"},
                "wildcard": "PoolRoute|wildcard",
            },
        }
        port = stack.enter_context(router(folder, configuration, "--probe-timeout-initial", "100"))
        self.port = port
        clusters = [SimpleNamespace(name="replica", ports=[port])]
        invalidator = Invalidator(self.replica.url(), clusters, folder / "state", folder)
        stack.callback(invalidator.stop)

    def client(self, *options: str) -> RegionalClient:
        """A client in this region."""
        client = RegionalClient(self.port, *options)
        self.stack.callback(client.stop)
        return client

    def load(self, row: int):
        """Reads a row's version."""
        return lambda source: str(self.version(getattr(self, source), row))

    def version(self, database: MariadbServer, row: int) -> int:
        return database.run(f"SELECT version FROM versions WHERE id = {row}")[0][0]

    def stop_replication(self) -> None:
        """The replica applies nothing more."""
        self.wait_replicated()
        self.replica.run("STOP SLAVE", schema=None)

    def position(self) -> str:
        """The position of the master's last commit."""
        return self.master.run("SELECT @@gtid_binlog_pos", schema=None)[0][0]

    def replicate_until(self, position: str) -> None:
        """The replica applies what the master has committed until there, and nothing more."""
        self.replica.run(f"START SLAVE UNTIL master_gtid_pos = '{position}'", schema=None)
        eventually(lambda: self.applied() == position, "the replica has the commit", 60)

    def applied(self) -> str:
        return self.replica.run("SELECT @@gtid_slave_pos", schema=None)[0][0]

    def wait_replicated(self) -> None:
        """Returns when the replica has all that the master has."""
        position = self.position()
        eventually(lambda: self.applied() == position, "the replica has caught up", 60)

    def write(self, client: RegionalClient, row: int, naming: str = "comment") -> list[str]:
        """A write of a row from this region; the keys that it has named."""
        named = client.write(f"row:{row}")
        if naming == "comment":
            self.master.run(self.master.change(row, *named))
        else:
            change = f"UPDATE versions SET version = version + 1 WHERE id = {row}"
            self.master.run("BEGIN", change, self.master.insert_into_outbox(*named), "COMMIT")
        client.finish()
        return named

    def is_marked(self, marker: str) -> bool:
        """Whether the pool has the marker."""
        return connect(self.pool.port).get(marker) is not None


@pytest.fixture
def region(databases, tmp_path):
    """A replica region whose replication runs."""
    with ExitStack() as stack:
        yield ReplicaRegion(databases, tmp_path, stack)


@pytest.mark.parametrize("naming", ["comment", "outbox"])
def test_a_user_reads_his_own_write_while_replication_stands_still(region, naming):
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

    region.replica.run("START SLAVE", schema=None)
    eventually(lambda: not region.is_marked(marker), "the replication of the write removes its marker", 60)
    assert client.read_uncached("row:1", region.load(1)) == ("replica", "1")


def test_the_replication_of_one_write_leaves_the_marker_of_another(region):
    one, two = region.client(), region.client()
    region.stop_replication()
    _, first = region.write(one, 1)
    position = region.position()
    _, second = region.write(two, 1)
    region.replicate_until(position)
    eventually(lambda: not region.is_marked(first), "the first write's marker is gone", 60)
    assert region.is_marked(second)
    assert two.read_uncached("row:1", region.load(1)) == ("master", "2")

    region.replica.run("START SLAVE", schema=None)
    eventually(lambda: not region.is_marked(second), "the second write's marker is gone", 60)
    assert two.read_uncached("row:1", region.load(1)) == ("replica", "2")


def test_with_one_marker_for_each_key_the_second_writer_reads_an_older_value(region):
    """The race that the paper accepts."""
    one, two = region.client("--per-key"), region.client("--per-key")
    region.stop_replication()
    _, marker = region.write(one, 1)
    position = region.position()
    assert region.write(two, 1) == ["row:1", marker]
    assert two.read_uncached("row:1", region.load(1)) == ("master", "2")
    region.replicate_until(position)
    eventually(lambda: not region.is_marked(marker), "the only marker is gone", 60)
    assert two.read_uncached("row:1", region.load(1)) == ("replica", "1"), "older than what this user has written"


def test_a_full_pool_keeps_its_markers_and_the_caller_chooses(region):
    client = region.client()
    region.stop_replication()
    _, marker = region.write(client, 1)
    fill = connect(region.pool.port)
    stored = 0
    for value_bytes in (1000, 100, 0):
        # A value that is refused raises.
        while is_stored(fill, f"marker:other:{stored}", b"x" * value_bytes):
            stored += 1
    assert stored > 1000

    assert "out of memory" in client.call("write row:2")
    accepting = region.client("--accept-lag")
    reply = accepting.call("write row:2")
    assert reply.startswith("unmarked row:2 name row:2 marker:row:2|#|"), reply
    region.master.run(region.master.change(2, *reply.split(" ")[3:]))
    accepting.finish()
    assert accepting.read("row:2", region.load(2)) == ("replica", "0"), "as the caller has accepted"

    assert region.is_marked(marker)
    assert client.read("row:1", region.load(1)) == ("master", "1")
    counters = stats(region.pool.port)
    assert (counters["evictions"], int(counters["store_no_memory"]) > 0) == ("0", True)


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
    region.master.run(region.master.change(2, "row:2"))
    accepting.finish()
    assert accepting.read("row:2", region.load(2)) == ("replica", "0")

    region.pool.restart()

    def is_marked_again() -> bool:
        return client.call("write row:4").startswith("name ")

    eventually(is_marked_again, "the router uses the pool again")


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
