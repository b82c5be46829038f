"""A region on a replica: a cluster, a regional pool for markers that does not evict, and an invalidator. Its master is
outside of it.

The row's version says which database a value came from, and whether users have read their own writes.
"""

from contextlib import ExitStack
from pathlib import Path

from logical_replication import LogicalServer, master_and_replica
from processes import Invalidator, Server, connect, eventually, stats
from regional_client import RegionalClient
from replicated import MariadbServer
from routers import router

ROWS = 10
# Markers that are set at a time to have another one evicted, and in all at most.
OTHER_MARKERS = 2_000
OTHER_MARKERS_MAX = 400_000


class MariadbPair:
    """MariaDB, and a replica by GTIDs. Writes name keys by a comment or in the outbox."""

    namings = ("comment", "outbox")

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.master = MariadbServer(folder)
        stack.callback(self.master.stop)
        self.replica = MariadbServer.replicate(self.master, folder)
        stack.callback(self.replica.stop)

    def source(self) -> str:
        """The URL of the replica."""
        return self.replica.url()

    def reader_options(self) -> list[str]:
        """Options of an invalidator that has not read the replica before."""
        return []

    def prepare(self) -> None:
        """Rows of version 0 in both, and replication that runs."""
        self.start_replication()
        self.master.create_versions(ROWS)
        self.wait_replicated()

    def write(self, row: int, keys: list[str], naming: str) -> None:
        """Gives a row the next version, and names keys."""
        if naming == "comment":
            self.master.run(self.master.change(row, *keys))
        else:
            change = f"UPDATE versions SET version = version + 1 WHERE id = {row}"
            self.master.run("BEGIN", change, self.master.insert_into_outbox(*keys), "COMMIT")

    def start_replication(self) -> None:
        self.replica.run("START SLAVE", schema=None)

    def stop_replication(self) -> None:
        """The replica has what is committed now, and applies nothing more."""
        self.wait_replicated()
        self.replica.run("STOP SLAVE", schema=None)

    def wait_replicated(self) -> None:
        """Returns when the replica has all that the master has."""
        position = self.master.run("SELECT @@gtid_binlog_pos", schema=None)[0][0]
        applied = "SELECT @@gtid_slave_pos"
        eventually(lambda: self.replica.run(applied, schema=None)[0][0] == position, "the replica has caught up", 60)


class LogicalPair:
    """PostgreSQL, and a replica by logical replication. Writes name keys in the outbox."""

    namings = ("outbox",)

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.master, self.replica = master_and_replica(folder, ROWS, stack.callback)
        self.replica.follow(self.master, "from_east")
        self.readers = 0

    def source(self) -> str:
        """The URL of the replica."""
        return self.replica.url

    def reader_options(self) -> list[str]:
        """Options of an invalidator that has not read the replica before: the server remembers the names of readers."""
        self.readers += 1
        return ["--slot", f"lookaside_{self.readers}"]

    def prepare(self) -> None:
        """Rows of version 0 in both, and replication that runs."""
        # That of the invalidator of another test, which has ended.
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        slots = "SELECT FROM pg_replication_slots"
        eventually(lambda: not (self.replica.run(drop) + self.replica.run(slots)), "the slots are dropped", 60)
        self.start_replication()
        self.master.run("UPDATE versions SET version = 0")
        self.wait_replicated()

    def write(self, row: int, keys: list[str], naming: str) -> None:
        """Gives a row the next version, and names keys."""
        assert naming == "outbox"
        self.master.run(self.master.change(row, *keys))

    def start_replication(self) -> None:
        self.replica.run("ALTER SUBSCRIPTION from_east ENABLE")

    def stop_replication(self) -> None:
        """The replica has what is committed now, and applies nothing more."""
        self.wait_replicated()
        self.replica.run("ALTER SUBSCRIPTION from_east DISABLE")
        workers = "SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL"
        eventually(lambda: self.replica.run(workers) == [(0,)], "the replica applies nothing more", 60)

    def wait_replicated(self) -> None:
        """Returns when the replica has all that the master has."""
        state = "SELECT id, version FROM versions ORDER BY id", "SELECT max(id) FROM lookaside_outbox"

        def is_equal() -> bool:
            return all(self.master.run(select) == self.replica.run(select) for select in state)

        eventually(is_equal, "the replica has caught up", 60)


PAIRS = {"mariadb": MariadbPair, "postgres": LogicalPair}
Databases = MariadbPair | LogicalPair
DatabaseServer = MariadbServer | LogicalServer


class ReplicaRegion:
    """What is around the replica."""

    def __init__(self, databases: Databases, folder: Path, stack: ExitStack, evicts: bool = False) -> None:
        """With `evicts` the pool of markers evicts what was not used for long, as no such pool should."""
        self.databases, self.master, self.replica = databases, databases.master, databases.replica
        self.stack = stack
        databases.prepare()
        self.server = Server("server", folder)
        stack.callback(self.server.stop)
        no_evictions = [] if evicts else ["-M"]
        self.pool = Server("markers", folder, *no_evictions, "-m", "2", "--stale-seconds", "0")
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
        self.port = stack.enter_context(router(folder, configuration, "--probe-timeout-initial", "100"))
        # As `Invalidator` takes a cluster.
        self.name, self.ports = "replica", [self.port]
        options = databases.reader_options()
        invalidator = Invalidator(databases.source(), [self], folder / "state", folder, *options)
        stack.callback(invalidator.stop)

    def client(self, *options: str) -> RegionalClient:
        """A client of the Rust library in this region."""
        client = RegionalClient(self.port, *options)
        self.stack.callback(client.stop)
        return client

    def load(self, row: int):
        """Reads a row's version from the database that it is called with."""
        return lambda source: str(self.version(getattr(self, source), row))

    def version(self, database: DatabaseServer, row: int) -> int:
        return database.run(f"SELECT version FROM versions WHERE id = {row}")[0][0]

    def write(self, client: RegionalClient, row: int, naming: str | None = None) -> list[str]:
        """A write of a row from this region; the keys that it has named."""
        named = client.write(f"row:{row}")
        self.databases.write(row, named, naming or self.databases.namings[0])
        client.finish()
        return named

    def is_marked(self, marker: str) -> bool:
        """Whether the pool has the marker."""
        return connect(self.pool.port).get(marker) is not None

    def evict(self, marker: str) -> None:
        """Fills the pool with other markers until it has evicted this one."""
        client, count = connect(self.pool.port), 0
        value = client.get(marker)
        assert value is not None
        # Each get of the marker gives it a further life, so that it is asked for when all others of before are gone.
        while self.is_marked(marker):
            evictions = self.pool_count("evictions")
            while self.pool_count("evictions") <= evictions + 2 * self.pool_count("curr_items"):
                assert count < OTHER_MARKERS_MAX, f"{marker} has outlived {count} others"
                # Of the same size, since a value takes the place of another of its size.
                numbers = range(count, count + OTHER_MARKERS)
                client.set_many({f"{marker[:-8]}{number:08}": value for number in numbers})
                count += OTHER_MARKERS

    def pool_count(self, name: str) -> int:
        """A statistic of the pool's server."""
        return int(stats(self.pool.port)[name])

    def start_replication(self) -> None:
        self.databases.start_replication()

    def stop_replication(self) -> None:
        """The replica has what is committed now, and applies nothing more."""
        self.databases.stop_replication()
