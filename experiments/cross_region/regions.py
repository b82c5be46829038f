"""Two regions of real processes: a master and a replica region, as `lookaside up --regions 2` lays them out, and a
monitor for each.

```
  east: MariaDB (master) --------- replication --------> MariaDB (replica) :west
     |         |                                            |          |
  monitor  invalidator (active, standby)                 invalidator  monitor
               |                                            |
           2 routers, 2 servers, gutter                 2 routers, 2 servers, gutter
```

Unlike `up`, a region has two routers and two invalidators, so that there is one when the other fails. The invalidators
of the replica region share their state by a table of the master, since a replica takes no writes.
"""

import contextlib
from pathlib import Path

from chaos.network import Loopback, Namespaces
from chaos.region import Cluster, Layout, Node, create_shared_state, start_invalidator
from monitor import Monitor
from processes import eventually
from replicated import ACCEPTANCE, MariadbServer

MASTER, REPLICA = "east", "west"
LAYOUT = Layout(servers=2, routers=2, invalidators=2)
ACCOUNT, PASSWORD = "lookaside", "secret"
READY_S = 60.0
# A bound that no run reaches: samples are kept until their last age.
PENDING_MAX = 500_000
QUESTIONS_PER_S_MAX = 20_000


class OneRegion:
    """A database, a cluster and its invalidators. They are stopped by what started them."""

    def __init__(self, name: str, database: MariadbServer, folder: Path, network: Loopback | Namespaces) -> None:
        self.name, self.database, self.network = name, database, network
        self.folder = folder / name
        self.folder.mkdir()
        self.source = f"mysql://{ACCOUNT}:{PASSWORD}@{network.address}:{database.port}/app?{ACCEPTANCE}"
        self.cluster = Cluster(name, LAYOUT, self.folder, network)
        self.invalidators: list[Node] = []

    def start_invalidators(self, shared_state: str) -> None:
        """Starts an active and a standby invalidator."""
        options = ("--shared-state", shared_state, "--shared-state-name", self.name)
        for number in range(LAYOUT.invalidators):
            name = f"{self.name}-invalidator-{number + 1}"
            started = start_invalidator(
                name, self.source, [self.cluster], self.folder, self.network, number == 0, *options
            )
            self.invalidators.append(started)

    def nodes(self) -> list[Node]:
        """All processes that faults may hit."""
        return [*self.cluster.nodes(), *self.invalidators]

    def routers(self) -> str:
        """The addresses of its routers, as options take them."""
        return ",".join(router.place.address for router in self.cluster.routers)

    def stop(self) -> None:
        """Stops the invalidators and the cluster."""
        with contextlib.ExitStack() as stops:
            stops.callback(self.cluster.stop)
            for invalidator in self.invalidators:
                stops.callback(invalidator.stop)


class TwoRegions:
    """Both regions, and what the fault injector of tests/chaos asks for."""

    def __init__(self, folder: Path, network: Loopback | Namespaces, rows: int) -> None:
        self.folder, self.network = folder, network
        self.regions: list[OneRegion] = []
        self.monitors: list[Monitor] = []
        self.stack = contextlib.ExitStack()
        try:
            self.start(rows)
        except BaseException:
            self.stack.close()
            raise

    def start(self, rows: int) -> None:
        """Starts databases, clusters and invalidators; returns when deletes flow in both regions."""
        master, replica = (self.start_database(number) for number in (1, 2))
        replica.follow(master)
        master.create_versions(rows)
        master.run(
            f"CREATE USER {ACCOUNT}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON *.* TO {ACCOUNT}@'%' WITH GRANT OPTION",
            schema=None,
        )
        for name, database in ((MASTER, master), (REPLICA, replica)):
            region = OneRegion(name, database, self.folder, self.network)
            self.stack.callback(region.stop)
            self.regions.append(region)
        self.master, self.replica = self.regions
        create_shared_state(self.master.source, ACCOUNT)
        self.wait_replicated(master, replica)
        for region in self.regions:
            region.start_invalidators(self.master.source)

    def start_database(self, number: int) -> MariadbServer:
        """One of the servers, reachable from the processes of both regions."""
        database = MariadbServer(self.folder, number, self.network.address)
        self.stack.callback(database.stop)
        return database

    @staticmethod
    def wait_replicated(master: MariadbServer, replica: MariadbServer) -> None:
        """Returns when the replica has executed all that the master has logged by now."""
        ((position,),) = master.run("SELECT @@global.gtid_binlog_pos", schema=None)

        def is_executed() -> bool:
            return replica.run(f"SELECT MASTER_GTID_WAIT('{position}', 0.1)", schema=None) == ((0,),)

        eventually(is_executed, "the replica has what the master has", READY_S)

    def start_monitors(self, ages_s: tuple[int, ...]) -> None:
        """A monitor of each database's log that asks the cluster of its region, and the master's also the other one."""
        watched = {
            MASTER: [f"--cluster={region.name}/{region.name}={region.routers()}" for region in self.regions],
            REPLICA: [f"--cluster={REPLICA}={self.replica.routers()}"],
        }
        for region in self.regions:
            monitor = Monitor(
                region.source, region.folder / "monitor", region.folder, "--region", region.name,
                "--pending-max", PENDING_MAX, "--rate", QUESTIONS_PER_S_MAX, *watched[region.name],
                ages=",".join(map(str, ages_s)),
            )  # fmt: skip
            self.stack.callback(monitor.stop)
            self.monitors.append(monitor)

    def node(self, name: str) -> Node:
        """The process of that name."""
        return {node.name: node for region in self.regions for node in region.nodes()}[name]

    def close(self) -> None:
        """Stops everything, also when a part of it fails to stop."""
        self.stack.close()
