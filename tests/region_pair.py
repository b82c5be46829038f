"""Two regions by hand: a database and its replica, each with a cluster, a pool of remote markers and an invalidator;
and users of both. A trio has a second replica. `regional_users` has users with remote markers.
"""

import contextlib
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pymysql
from forwarder import Forwarder
from leases import LeaseClient
from logical_replication import LogicalServer, master_and_replica
from monitor import Monitor, route_to
from operating_page import start_commands
from processes import Cluster, Invalidator, Process, Server, answers, eventually, stats
from replicated import MariadbServer

ROWS = 50
# An account without the right to write to a read-only server.
APPLICATION = "app"

DatabaseServer = MariadbServer | LogicalServer


class MarkedCluster(Cluster):
    """A cluster with a pool of remote markers."""

    def __init__(self, name: str, log_dir: Path, router_arguments: tuple[str, ...] = ()) -> None:
        self.markers = Server(f"{name}-markers", log_dir, "-M", "--stale-seconds", "0")
        super().__init__(name, log_dir, router_arguments)

    def configuration(self) -> dict:
        configuration = super().configuration()
        configuration["pools"]["markers"] = {"servers": [f"127.0.0.1:{self.markers.port}"]}
        [route] = configuration["routes"]
        policies = {"marker:": "PoolRoute|markers"}
        route["route"] = {"type": "PrefixSelectorRoute", "policies": policies, "wildcard": route["route"]}
        return configuration

    def processes(self) -> list[Process]:
        return [*super().processes(), self.markers]


class PairedRegion:
    """One of the regions."""

    def __init__(self, name: str, database: DatabaseServer, source: str, folder: Path) -> None:
        """`source` is the URL of the database."""
        self.name, self.database, self.source, self.folder = name, database, source, folder / name
        self.folder.mkdir()
        # Routers serve nothing before the invalidator has caught up.
        self.cluster = MarkedCluster(name, self.folder, ("--wait-for-invalidator", "60"))
        self.invalidator = Invalidator(source, [self.cluster], self.folder / "state", self.folder)
        eventually(lambda: self.router_stats()["start_gate_open"] == "1", "the router serves")

    def router_stats(self) -> dict[str, str]:
        return stats(self.cluster.port)

    def versions(self) -> dict[int, int]:
        """The rows of the region's database."""
        return dict(self.database.run("SELECT id, version FROM versions"))

    def cached(self) -> dict[int, int]:
        """The versions in the cache of the cluster."""
        values = self.cluster.client().get_many([f"row:{row}" for row in range(ROWS)])
        return {int(key.removeprefix("row:")): int(value) for key, value in values.items()}

    def is_fresh(self) -> bool:
        """Whether no cached value is older or newer than the region's database."""
        versions = self.versions()
        return all(versions[row] == version for row, version in self.cached().items())

    def fill(self) -> None:
        """Reads every row through the cache."""
        reader = RegionReader(self)
        try:
            for row in range(ROWS):
                reader.read(row)
        finally:
            reader.close()

    def stop(self) -> None:
        self.invalidator.stop()
        self.cluster.stop()


class RegionReader:
    """Reads through the cache, which it fills from the region's database."""

    def __init__(self, region: PairedRegion) -> None:
        self.client = LeaseClient(region.cluster.port)
        self.errors = region.database.errors
        self.database = region.database.connect()

    def read(self, row: int) -> int:
        """The version of a row."""
        return int(self.client.read(f"row:{row}", lambda: self.load(row), has_writers=True))

    def load(self, row: int) -> bytes:
        with self.database.cursor() as cursor:
            cursor.execute("SELECT version FROM versions WHERE id = %s", (row,))
            return str(cursor.fetchone()[0]).encode()

    def close(self) -> None:
        self.client.close()
        with contextlib.suppress(*self.errors):
            self.database.close()


class Users:
    """Writers that follow the master, and readers in each region, each a thread."""

    def __init__(self, regions: list[PairedRegion], master: DatabaseServer) -> None:
        self.master = master
        self.acknowledged = Counter()
        # Writes that failed, by the name of the error.
        self.refusals = Counter()
        # Reads of all rows, by region.
        self.rounds = Counter()
        # Rows whose cached version went back.
        self.reversals: list[str] = []
        self.is_stopped = threading.Event()
        self.failures: list[BaseException] = []
        targets = [self.write, *[lambda region=region: self.read(region) for region in regions]]
        self.threads = [threading.Thread(target=self.record_failure, args=(target,), daemon=True) for target in targets]
        for thread in self.threads:
            thread.start()

    def record_failure(self, target) -> None:
        try:
            target()
        except BaseException as failure:
            self.failures.append(failure)

    def write(self) -> None:
        count = 0
        while not self.is_stopped.is_set():
            master = self.master
            with (
                contextlib.suppress(*master.errors),
                contextlib.closing(connect_application(master)) as connection,
            ):
                while self.master is master and not self.is_stopped.is_set():
                    row = count % ROWS
                    try:
                        connection.cursor().execute(master.change(row))
                    except master.errors as error:
                        self.refusals[type(error).__name__] += 1
                        self.is_stopped.wait(0.01)
                        raise
                    self.acknowledged[row] += 1
                    count += 1

    def read(self, region: PairedRegion) -> None:
        reader, newest = RegionReader(region), Counter()
        try:
            while not self.is_stopped.is_set():
                for row in range(ROWS):
                    try:
                        version = reader.read(row)
                    except region.database.errors:
                        return  # the region's database is dead
                    if version < newest[row]:
                        self.reversals.append(f"{region.name}: row {row} from {newest[row]} to {version}")
                    newest[row] = version
                self.rounds[region.name] += 1
        finally:
            reader.close()

    def wait_for_commits(self, count: int) -> None:
        """Returns after that number of further commits."""
        least = self.acknowledged.total() + count
        eventually(lambda: self.acknowledged.total() >= least, f"{count} commits", 120)

    def wait_for_rounds(self, *regions: str) -> None:
        """Returns when the readers of these regions have read every row, beginning now, at least once."""
        least = {region: self.rounds[region] + 2 for region in regions}
        eventually(lambda: all(self.rounds[region] >= least[region] for region in regions), f"reads in {regions}", 120)

    def stop(self) -> None:
        self.is_stopped.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive()
        assert not self.failures, self.failures


def return_to_service(pair: "RegionPair", wait_for_gate: str, folder: Path) -> None:
    """Starts router and invalidator of region west again, whose database has caught up; its servers have their values
    of before. None that is old is read. `wait_for_gate` are the commands of the page."""
    west = pair.west
    assert west.versions() == pair.east.versions()
    west.cluster.router.start()
    west.cluster.router.wait_ready(lambda: answers(west.cluster.port))
    shell = start_commands(wait_for_gate, pair.settings(), folder)
    assert west.router_stats()["start_gate_open"] == "0" and shell.poll() is None
    west.invalidator.start()
    west.invalidator.wait_running(1)
    output, _ = shell.communicate(timeout=90)
    assert shell.returncode == 0, output
    assert west.cached() == {}, "every old value is deleted before the first read"
    west.fill()
    assert west.cached() == pair.east.versions()


def connect_application(server: DatabaseServer):
    """A connection of the application's account."""
    if isinstance(server, LogicalServer):
        return server.connect_application()
    return pymysql.connect(
        host="127.0.0.1", port=server.port, user=APPLICATION, database="app", autocommit=True, connect_timeout=5
    )


class Rollout:
    """What the commands of the page call to direct the applications to the new master: they wait until the test has
    done it."""

    def __init__(self, folder: Path) -> None:
        self.begun, self.ended = folder / "rollout-begun", folder / "rollout-ended"
        self.script = folder / "rollout"
        self.script.write_text(f"touch {self.begun}; until test -e {self.ended}; do sleep 0.05; done")

    def settings(self) -> dict[str, str]:
        """Those of the page that it stands for. No call that began before is left when it ends."""
        return {"DIRECT_TO_WEST": f"sh {self.script}", "LONGEST_CALL_S": "0"}

    def wait_until_begun(self, shell: subprocess.Popen) -> None:
        """Returns when the commands call it."""
        eventually(lambda: self.begun.exists() or shell.poll() is not None, "the applications are directed", 120)
        assert self.begun.exists(), shell.communicate()[0]

    def end(self) -> None:
        """The commands go on."""
        self.ended.touch()


class RegionPair:
    """East has the master, west follows it over a link that can be cut."""

    def __init__(self, folder: Path) -> None:
        self.stack = contextlib.ExitStack()
        self.rollout = Rollout(folder)
        try:
            self.start(folder)
        except BaseException:
            self.stack.close()
            raise

    def start(self, folder: Path) -> None:
        east, west = MariadbServer(folder, 1), None
        self.stack.callback(east.stop)
        west = MariadbServer(folder, 2)
        self.stack.callback(west.stop)
        self.link = Forwarder(east.port)
        self.stack.callback(self.link.close)
        west.follow(self.link)
        east.create_versions(ROWS)
        east.run(f"CREATE USER {APPLICATION}@'%'", f"GRANT ALL ON app.* TO {APPLICATION}@'%'", schema=None)
        west.run("SET GLOBAL read_only = ON", schema=None)
        eventually(lambda: has_account(west), "the replica has everything", 60)
        self.start_regions({"east": (east, east.url()), "west": (west, west.url())}, folder)

    def start_regions(self, databases: dict[str, tuple[DatabaseServer, str]], folder: Path) -> None:
        """A region for each database, with its URL."""
        self.regions: list[PairedRegion] = []
        self.east, self.west = (self.add_region(name, *database, folder) for name, database in databases.items())

    def add_region(self, name: str, database: DatabaseServer, source: str, folder: Path) -> PairedRegion:
        """One more region."""
        region = PairedRegion(name, database, source, folder)
        self.stack.callback(region.stop)
        self.regions.append(region)
        return region

    def settings(self) -> dict[str, str]:
        """The settings of the page's commands."""
        return {
            **{region.name.upper(): mariadb_shell(region.database) for region in self.regions},
            "WEST_ADDRESS": f"master_host = '127.0.0.1', master_port = {self.west.database.port}",
            "REPLICATION_LOGIN": "master_user = 'root'",
            "WEST_ROUTER": f"127.0.0.1:{self.west.cluster.port}",
            **self.rollout.settings(),
        }

    def old_master_behind(self) -> contextlib.AbstractContextManager:
        """The old master does not get what is committed at the new one meanwhile, if it follows that already."""
        return contextlib.nullcontext()

    def close(self) -> None:
        self.stack.close()


class LogicalRegionPair(RegionPair):
    """The same with PostgreSQL, by logical replication."""

    def start(self, folder: Path) -> None:
        east, west = master_and_replica(folder, ROWS, self.stack.callback)
        self.link, self.link_back = Forwarder(east.port), Forwarder(west.port)
        self.stack.callback(self.link.close)
        self.stack.callback(self.link_back.close)
        west.follow(east, "from_east", self.link.port)
        self.start_regions({"east": (east, east.url), "west": (west, west.url)}, folder)

    @contextlib.contextmanager
    def old_master_behind(self):
        self.link_back.cut()
        yield
        self.link_back.heal()

    def settings(self) -> dict[str, str]:
        """The settings of the page's commands."""
        return {
            **{region.name.upper(): postgres_shell(region.database) for region in self.regions},
            "WEST_CONNECTION": self.west.database.address(self.link_back.port),
            "WEST_ROUTER": f"127.0.0.1:{self.west.cluster.port}",
            **self.rollout.settings(),
        }


class RegionTrio(RegionPair):
    """A third region, north, follows east, too, over a link of its own. A monitor watches its deletes."""

    def start(self, folder: Path) -> None:
        super().start(folder)
        north = MariadbServer(folder, 3)
        self.stack.callback(north.stop)
        self.link_north = Forwarder(self.east.database.port)
        self.stack.callback(self.link_north.close)
        north.follow(self.link_north)
        north.run("SET GLOBAL read_only = ON", schema=None)
        eventually(lambda: has_account(north), "the second replica has everything", 60)
        self.north = self.add_region("north", north, north.url(), folder)
        self.monitor = watch_deletes(self.north, self.stack)


class LogicalRegionTrio(LogicalRegionPair):
    """The same with PostgreSQL."""

    def start(self, folder: Path) -> None:
        super().start(folder)
        north, east = LogicalServer(folder, 3), self.east.database
        self.stack.callback(north.stop)
        north.create_versions(ROWS)
        self.link_north = Forwarder(east.port)
        self.stack.callback(self.link_north.close)
        north.follow(east, "from_east", self.link_north.port, slot="north_from_east")
        self.north = self.add_region("north", north, north.url, folder)
        self.monitor = watch_deletes(self.north, self.stack)


def watch_deletes(region: PairedRegion, stack: contextlib.ExitStack) -> Monitor:
    """A monitor of a region's deletes; `stack` stops it."""
    monitor = Monitor(region.source, region.folder / "monitor-state", region.folder, route_to(region.cluster), ages="1")
    stack.callback(monitor.stop)
    return monitor


def mariadb_shell(server: MariadbServer) -> str:
    """The shell of a database as the commands of the page call it."""
    return f"mariadb --no-defaults --host=127.0.0.1 --port={server.port} --user=root"


def postgres_shell(server: LogicalServer) -> str:
    """The same with PostgreSQL."""
    return f"psql --no-psqlrc -qAt -v ON_ERROR_STOP=1 {server.url}"


def has_account(server: MariadbServer) -> bool:
    with contextlib.suppress(pymysql.MySQLError):
        connect_application(server).close()
        return True
    return False
