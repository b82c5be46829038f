"""The procedures of docs/operating/regions.md, by the commands that the page prints: a promotion under load, a region
taken out of service and back, a cluster taken out of service and back."""

import json
import threading

import pytest
from leases import LeaseClient
from lookaside import Client, RegionalClient
from operating_page import OperatingPage, run_commands, start_commands
from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port
from region_pair import ROWS, RegionPair, RegionTrio, Users, return_to_service
from regional_users import RegionalUsers, check_promoted, direct_users, wait_promoted

pytestmark = pytest.mark.timeout(300)

PAGE = OperatingPage("regions")


@pytest.fixture
def pair(tmp_path):
    pair = RegionPair(tmp_path)
    yield pair
    pair.close()


@pytest.fixture
def trio(tmp_path):
    trio = RegionTrio(tmp_path)
    yield trio
    trio.close()


def waits_for_replication(pair: RegionPair) -> bool:
    """Whether the page's command waits until the replica has everything."""
    processes = pair.west.database.run("SHOW FULL PROCESSLIST", schema=None)
    return any("MASTER_GTID_WAIT" in str(process[7]) for process in processes)


def test_promotion_under_load(trio, tmp_path):
    """Both replicas are behind when the promotion begins, and north until it follows west; no acknowledged commit is
    lost, no cache is left stale, and no marker stays."""
    *until_promoted, follow, follow_with_north = PAGE.commands("## Promote a replica")
    names = [region.name for region in trio.regions]
    users = RegionalUsers(trio.regions, trio.east.database)
    try:
        users.wait_for_commits(100)
        users.wait_for_rounds(*names)
        users.leave_markers()
        trio.link.cut()
        # Never healed: what north lacks of the old master comes from the new one.
        trio.link_north.cut()
        users.wait_for_commits(20)
        shell = start_commands("".join(until_promoted), trio.settings(), tmp_path)
        eventually(lambda: waits_for_replication(trio), "the commands wait for the replica", 60)
        eventually(lambda: users.refusals.total() > 0, "the old master refuses writes", 60)
        assert shell.poll() is None
        trio.link.heal()
        direct_users(trio, users, shell)
        wait_promoted(shell, [trio.east, trio.west])
        acknowledged_before = users.acknowledged.copy()
        assert trio.north.versions() != trio.west.versions(), "north is behind"
        sampled_before = trio.monitor.metric("sampled_total")
        users.resume_writes()
        users.wait_for_commits(100)
        run_commands(follow, trio.settings(), tmp_path)
        run_commands(follow_with_north, trio.settings(), tmp_path)
        users.wait_for_commits(100)
        users.wait_for_rounds(*names)
    finally:
        users.stop()
    assert all(users.acknowledged[row] > acknowledged_before[row] for row in range(ROWS))
    check_promoted(trio, users)
    assert trio.monitor.metric("sampled_total") > sampled_before


@pytest.mark.parametrize("kind", [Users, RegionalUsers])
def test_users_notice_a_row_that_goes_back(pair, kind):
    """What the tests of promotions rely on: the readers read all the time, in both regions, and compare."""
    users = kind(pair.regions, pair.east.database)
    try:
        for region in pair.regions:
            users.wait_for_commits(ROWS)
            users.wait_for_rounds(region.name)
            assert [reversal for reversal in users.reversals if reversal.startswith(region.name)] == []

            # An older value in its cache, as a lost delete or a stale fill leaves it.
            def store_old_value(region=region) -> bool:
                region.cluster.client().set("row:7", b"0")
                return any(reversal.startswith(f"{region.name}: row 7 ") for reversal in users.reversals)

            eventually(store_old_value, "the reader notices", 60)
    finally:
        users.stop()


def test_promotion_after_the_death_of_the_master(pair, tmp_path):
    users = Users(pair.regions, pair.east.database)
    try:
        users.wait_for_commits(100)
        users.wait_for_rounds("east", "west")
        pair.east.database.kill()
        run_commands("".join(PAGE.commands("### If the master is dead")), pair.settings(), tmp_path)
        before = users.acknowledged.copy()
        users.master = pair.west.database
        users.wait_for_commits(3 * ROWS)
        users.wait_for_rounds("west")
    finally:
        users.stop()
    versions = pair.west.versions()
    assert all(versions[row] >= users.acknowledged[row] - before[row] for row in range(ROWS))
    eventually(pair.west.is_fresh, "no cache of the new master's region is old", 60)
    assert [reversal for reversal in users.reversals if reversal.startswith("west")] == []


def test_a_commit_that_died_with_the_master_is_in_a_cache_of_the_new_one_until_it_is_flushed(pair, tmp_path):
    """A user in west has read it from the master, as there was a marker."""
    west = pair.west
    pair.link.cut()
    with Client([f"127.0.0.1:{west.cluster.port}"]) as client:
        regional = RegionalClient(client)
        with regional.begin_write(["row:7"]) as begun:
            pair.east.database.run(pair.east.database.change(7, *begun.keys))

        def load(source: str) -> str:
            database = {"master": pair.east.database, "replica": west.database}[source]
            return str(database.run("SELECT version FROM versions WHERE id = 7")[0][0])

        assert regional.get_or_load("row:7", load) == "1"
    pair.east.database.kill()
    run_commands("".join(PAGE.commands("### If the master is dead")), pair.settings(), tmp_path)
    assert west.versions()[7] == 0 and west.cached() == {7: 1} and not west.is_fresh()
    for server in (*west.cluster.servers, west.cluster.gutter):
        assert connect(server.port).flush_all()
    west.fill()
    assert west.is_fresh()


def test_a_region_out_of_service_and_back(pair, tmp_path):
    """Its servers keep their values meanwhile; none that is old is read afterwards."""
    catch_up, _, wait_for_gate = PAGE.commands("## Take a region out of service, and back")
    west = pair.west
    west.fill()
    assert len(west.cached()) == ROWS
    west.cluster.router.stop()
    west.invalidator.stop()
    west.database.run("STOP SLAVE", schema=None)
    for row in range(ROWS):
        pair.east.database.run(pair.east.database.change(row))
    west.database.run("START SLAVE", schema=None)
    run_commands(catch_up, pair.settings(), tmp_path)
    return_to_service(pair, wait_for_gate, tmp_path)


class PeerCluster:
    """A server, a gutter server, and a router that shares its configuration with that of the other cluster."""

    def __init__(self, name: str, folder) -> None:
        self.name, self.port = name, free_port()
        self.server, self.gutter = (Server(f"{name}-{role}", folder) for role in ("server", "gutter"))

    def pools(self) -> dict:
        pools = {"wildcard": self.server, "gutter": self.gutter}
        return {f"{self.name}.{role}": {"servers": [f"127.0.0.1:{server.port}"]} for role, server in pools.items()}

    def route(self) -> dict:
        wildcard, gutter = (f"PoolRoute|{name}" for name in self.pools())
        default = {
            "type": "FailoverWithExptimeRoute", "normal": wildcard, "failover": [gutter], "failover_exptime": 10,
        }  # fmt: skip
        return {
            "aliases": [f"/east/{self.name}/"],
            "route": {
                "type": "OperationSelectorRoute",
                "operation_policies": {"delete": {"type": "AllSyncRoute", "children": [wildcard, gutter]}},
                "default_policy": default,
            },
        }

    def start_router(self, folder, peer: int) -> None:
        command = [
            PROGRAMS / "lookaside-router", "-p", self.port, "-R", f"/east/{self.name}/", "-f", folder / "router.json",
            "--num-proxies", "1", "--probe-timeout-initial", "50", "--probe-timeout-max", "200",
            "--config-cache", folder / f"{self.name}.cache", "--spool", folder / f"{self.name}.spool",
            "--spool-peers", f"127.0.0.1:{peer}",
        ]  # fmt: skip
        self.router = Process(f"{self.name}-router", command, folder)

    def stop(self) -> None:
        for process in (self.router, self.server, self.gutter):
            process.stop()


class RegionUsers:
    """Readers of both clusters and a writer that deletes in both; counts reads that are older than an acknowledged
    delete."""

    def __init__(self, clusters: list[PeerCluster]) -> None:
        self.rows = [0] * ROWS
        self.acknowledged = [0] * ROWS
        self.reads = {cluster.name: 0 for cluster in clusters}
        self.stale: list[str] = []
        self.failures: list[BaseException] = []
        self.is_stopped = threading.Event()
        targets = [lambda: self.write(clusters), *[lambda cluster=cluster: self.read(cluster) for cluster in clusters]]
        self.threads = [threading.Thread(target=self.run, args=(target,), daemon=True) for target in targets]
        for thread in self.threads:
            thread.start()

    def run(self, target) -> None:
        try:
            target()
        except BaseException as failure:
            self.failures.append(failure)

    def write(self, clusters: list[PeerCluster]) -> None:
        clients = [connect(cluster.port, 30) for cluster in clusters]
        while not self.is_stopped.is_set():
            for row in range(ROWS):
                self.rows[row] += 1
                for client in clients:
                    client.delete(f"row:{row}")
                self.acknowledged[row] = self.rows[row]

    def read(self, cluster: PeerCluster) -> None:
        client = LeaseClient(cluster.port)
        while not self.is_stopped.is_set():
            for row in range(ROWS):
                least = self.acknowledged[row]
                value = client.read(f"row:{row}", lambda row=row: str(self.rows[row]).encode(), has_writers=True)
                version = int(value)
                if version < least:
                    self.stale.append(f"{cluster.name}: row {row} is {version}, not {least}")
                self.reads[cluster.name] += 1

    def wait_for_reads(self) -> None:
        """Returns after some rounds of every reader."""
        least = {name: count + 4 * ROWS for name, count in self.reads.items()}
        eventually(lambda: all(self.reads[name] >= least[name] for name in least) or self.failures, "reads", 120)

    def stop(self) -> None:
        self.is_stopped.set()
        for thread in self.threads:
            thread.join(60)
        assert not self.failures, self.failures


def test_a_cluster_out_of_service_and_back(tmp_path):
    define, drain, warm_up, end_warm_up = PAGE.commands("## Take a cluster out of service, and back")
    clusters = [PeerCluster(name, tmp_path) for name in ("one", "two")]
    one, two = clusters
    configuration = {"pools": {**one.pools(), **two.pools()}, "routes": [one.route(), two.route()]}
    (tmp_path / "router.json").write_text(json.dumps(configuration))
    for cluster, peer in ((one, two), (two, one)):
        cluster.start_router(tmp_path, peer.port)
    settings = {"ROUTERS": " ".join(f"127.0.0.1:{cluster.port}" for cluster in clusters)}
    users = None
    try:
        for cluster in clusters:
            cluster.router.wait_ready(lambda cluster=cluster: answers(cluster.port))
        assert all(connect(cluster.port).set("kept", cluster.name.encode()) for cluster in clusters)
        users = RegionUsers(clusters)
        users.wait_for_reads()

        run_commands(define + drain, settings, tmp_path)
        assert connect(one.port).get("kept") == b"two", "cluster two serves the applications of cluster one"
        for server in (one.server, one.gutter):
            assert server.stop() == 0
        users.wait_for_reads()
        assert connect(two.port).get("kept") == b"two"

        for server in (one.server, one.gutter):
            server.restart()
        # What it may still have from before is flushed.
        assert connect(one.server.port).set("kept", b"old")
        run_commands(define + warm_up, settings, tmp_path)
        users.wait_for_reads()
        assert connect(one.port).get("kept") == b"two"
        assert connect(one.server.port).get("kept") == b"two", "it was filled from cluster two"
        run_commands(define + end_warm_up, settings, tmp_path)
        users.wait_for_reads()
        assert connect(one.port).delete("kept")
        assert connect(one.port).get("kept") is None and connect(two.port).get("kept") == b"two"
    finally:
        try:
            if users:
                users.stop()
        finally:
            for cluster in clusters:
                cluster.stop()
    assert users.stale == []
