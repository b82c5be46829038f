"""The processes of a region: a database, an invalidator, and clusters of servers, a gutter and several routers. An etcd
is there, too, if the routers share the history of their pool's changes.

A process keeps its address and port for the whole run. Ports lie below the kernel's range for outgoing connections, so
that no client takes the port of a process that is down.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etcd import Etcd
from processes import PROGRAMS, STOP_S, Process, answers, connect, eventually, stats

from chaos.databases import DATABASES, Database, Mariadb
from chaos.network import Loopback, Namespaces

PORTS = range(12_000, 32_000)
TAKE_OVER_S = 30.0
READY_S = 60.0
SERVER_MIB = 32
GUTTER_EXPTIME_S = 10
SPARE = "spare"
DATABASE = "database"
# Where routers remember the changes of their pool: each in a file, all of them in etcd, or nowhere.
HISTORIES = FILE, ETCD, NONE = "file", "etcd", "none"
# The exit code of a router that has no other memory, if etcd does not return the history.
NO_HISTORY = 2


@dataclass(frozen=True)
class Layout:
    """The shape of a region, and the promises that are left out."""

    # One of DATABASES.
    database: str = "mariadb"
    clusters: int = 2
    servers: int = 3
    routers: int = 2
    # More than one share their state: one is active, the others stand by.
    invalidators: int = 1
    is_spooling: bool = True
    is_resized: bool = False
    history: str = FILE
    router_options: tuple[str, ...] = ()
    # Further options of the routers of some clusters, by the cluster's name.
    cluster_router_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a process listens, and the words that run a command in its network."""

    host: str
    port: int
    prefix: tuple[str, ...]

    @property
    def address(self) -> str:
        """As options and configurations name it."""
        return f"{self.host}:{self.port}"


RESERVATIONS: list[int] = []
"""Locked files, one for each chosen port: it is chosen long before a process listens there, by several runs at once."""


def free_fixed_port(host: str) -> int:
    """A free port that no outgoing connection is given, and that is chosen once as long as this program runs."""
    folder = Path(tempfile.gettempdir()) / "lookaside-chaos-ports"
    folder.mkdir(exist_ok=True)
    while True:
        port = random.choice(PORTS)
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context((folder / str(port)).open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                stack.enter_context(socket.socket()).bind((host, port))
            except OSError:
                continue
            RESERVATIONS.append(os.dup(lock.fileno()))
            return port


class Node(Process):
    """A process of ours that can be killed, stopped, continued and upgraded."""

    def __init__(self, name: str, role: str, program: str, place: Place, arguments: list, folder: Path) -> None:
        self.role, self.place = role, place
        self.is_down_expected = False
        # Whether it is a router that may need the history in etcd to start.
        self.needs_etcd = False
        command = [*place.prefix, PROGRAMS / f"lookaside-{program}", *arguments]
        super().__init__(name, command, folder)

    def answers(self) -> bool:
        """Whether it replies to `version`."""
        return answers(self.place.port, self.place.host)

    def stats(self) -> dict[str, str]:
        """Its `stats`."""
        return stats(self.place.port, self.place.host)

    def restart(self) -> None:
        """Starts it again; returns when it replies, fails when it ends."""
        self.start()
        if self.needs_etcd:
            eventually(self.is_up, f"{self.name} is up", READY_S)
        self.is_down_expected = False
        self.wait_ready(self.answers, READY_S)

    def is_up(self) -> bool:
        """Whether it replies. Starts it again if it lacks the history, as a supervisor does."""
        if self.running.poll() == NO_HISTORY:
            self.start()
        return self.answers()

    def kill(self) -> None:
        self.is_down_expected = True
        super().kill()

    def terminate(self) -> None:
        """SIGTERM; it must end by itself, with status 0."""
        self.is_down_expected = True
        status = self.stop()
        assert status == 0, f"{self.name} ended with {status} after SIGTERM:\n{self.log()[-2000:]}"

    def hang(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self.running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.running.send_signal(signal.SIGCONT)

    def start_successor(self) -> tuple[subprocess.Popen, subprocess.Popen]:
        """The running process, and one that is about to take over from it."""
        self.is_down_expected = True
        with self.log_path.open("ab") as log:
            words = [*self.command, "--take-over"]
            return self.running, subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def upgrade(self) -> None:
        """A new process takes over from the running one, unless it lacks the history."""
        before, after = self.start_successor()
        self.running = after

        def has_taken_over() -> bool:
            if self.needs_etcd and after.poll() == NO_HISTORY:
                self.running = before
                return True
            assert after.poll() is None, f"{self.name}: the successor ended with {after.returncode}"
            return before.poll() is not None

        try:
            eventually(has_taken_over, f"{self.name} is upgraded", TAKE_OVER_S)
            ended = before.poll() if self.running is after else 0
            assert ended == 0, f"{self.name}: the predecessor ended with {ended}"
        except AssertionError:
            end_processes(before, after)
            raise
        self.is_down_expected = False
        self.wait_ready(self.answers, READY_S)

    def resolve_upgrade(self, before: subprocess.Popen, after: subprocess.Popen) -> None:
        """After an upgrade that was disturbed: one of both serves; or both have ended, and a third is started."""

        def is_decided() -> bool:
            return before.poll() is not None or after.poll() is not None

        try:
            eventually(is_decided, f"{self.name}: one of the processes {before.pid} and {after.pid} ends", READY_S)
        except AssertionError:
            end_processes(before, after)
            raise
        self.running = before if after.poll() is not None else after
        try:
            eventually(lambda: self.running.poll() is not None or self.answers(), f"{self.name} answers", READY_S)
        except AssertionError:
            end_processes(before, after)
            raise
        if self.running.poll() is None:
            self.is_down_expected = False
        else:
            self.restart()

    def stop(self) -> int | None:
        if self.running is not None and self.running.poll() is None:
            self.resume()
        return super().stop()


def end_processes(*processes: subprocess.Popen) -> None:
    """SIGKILL."""
    for process in processes:
        process.kill()
        process.wait(STOP_S)


class Cluster:
    """Servers, a gutter, and routers that each have their own copy of the configuration."""

    def __init__(
        self, name: str, layout: Layout, folder: Path, network: Loopback | Namespaces, etcd: Etcd | None = None
    ) -> None:
        self.name, self.layout, self.folder, self.etcd = name, layout, folder, etcd
        self.network = network
        # The path of a socket may have 107 bytes.
        self.sockets = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
        self.places: dict[str, Place] = {}
        self.regions: list[str] = []
        # What faults change: the servers of the pool in order, their weights, the time in which moved keys are read
        # from their former owners, and a pool that nothing uses.
        self.members = [f"server-{number + 1}" for number in range(layout.servers)]
        self.weights: dict[str, float] = {}
        self.warm_up_s = 0
        self.reloads = 0
        self.lock = threading.Lock()
        self.servers: dict[str, Node] = {}
        self.routers: list[Node] = []
        self.started: list[Node] = []
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Starts all processes; returns when they reply."""
        for name in [*self.members, *([SPARE] if self.layout.is_resized else [])]:
            self.servers[name] = self.start_server(name, "server")
        self.gutter = self.start_server("gutter", "gutter")
        for number in range(self.layout.routers):
            self.add_place(f"router-{number + 1}")
        self.routers = [self.start_router(number) for number in range(self.layout.routers)]
        for node in self.started:
            node.wait_ready(node.answers, READY_S)

    def nodes(self) -> list[Node]:
        """All processes."""
        return self.started

    def caches(self) -> list[Node]:
        """The servers that the configuration names, and the gutter."""
        return [*(self.servers[name] for name in self.members), self.gutter]

    def add_place(self, role: str) -> Place:
        """Chooses address and port of a process."""
        host, prefix = self.network.add(f"{self.name}-{role}")
        self.places[role] = Place(host, free_fixed_port("127.0.0.1"), tuple(prefix))
        return self.places[role]

    def start_server(self, name: str, role: str) -> Node:
        """A server that keeps its items over a restart by SIGTERM, and over an upgrade."""
        place, full = self.add_place(name), f"{self.name}-{name}"
        self.regions.append(f"chaos-{os.getpid()}-{full}")
        words = ["-l", place.host, "-p", place.port, "-t", "1", "-m", SERVER_MIB]
        words += ["--warm-restart", self.regions[-1], "--upgrade-socket", self.sockets / full]
        return self.start_node(full, role, "server", place, words)

    def start_router(self, number: int) -> Node:
        """One of the routers."""
        role = f"router-{number + 1}"
        place, full = self.places[role], f"{self.name}-{role}"
        path = self.configuration_path(number)
        path.write_text(json.dumps(self.configuration()))
        words = ["-l", place.host, "-p", place.port, "-R", f"/local/{self.name}/", "--num-proxies", "2", "-f", path]
        words += ["--upgrade-socket", self.sockets / full, *self.history_options(full)]
        if self.layout.is_spooling:
            words += ["--spool", self.folder / f"{full}.spool"]
            peers = [f"router-{other + 1}" for other in range(self.layout.routers) if other != number]
            if peers:
                words += ["--spool-peers", ",".join(self.places[peer].address for peer in peers)]
        words += [*self.layout.router_options, *self.layout.cluster_router_options.get(self.name, ())]
        node = self.start_node(full, "router", "router", place, words)
        node.needs_etcd = self.etcd is not None
        return node

    def history_options(self, router: str) -> list:
        """Where a router remembers the changes of its pool."""
        if self.etcd is not None:
            return ["--config-history", f"etcd://{self.etcd.host}:{self.etcd.port}/history"]
        return ["--config-cache", self.folder / f"{router}.cache"] if self.layout.history == FILE else []

    def start_node(self, name: str, role: str, program: str, place: Place, words: list) -> Node:
        """Starts a process, which `stop` stops."""
        self.started.append(Node(name, role, program, place, words, self.folder))
        return self.started[-1]

    def configuration_path(self, number: int) -> Path:
        """The file of a router."""
        return self.folder / f"{self.name}-router-{number + 1}.json"

    def configuration(self) -> dict:
        """As `lookaside up` writes it: deletes reach server and gutter, other requests fail over to the gutter."""
        pool = {"servers": [self.servers[name].place.address for name in self.members]}
        wildcard: str | dict = "PoolRoute|wildcard"
        if self.layout.is_resized:
            pool["weights"] = [self.weights.get(name, 1.0) for name in self.members]
            pool["resize_warm_up_s"] = self.warm_up_s
            wildcard = {"type": "PoolRoute", "pool": "wildcard", "hash": {"hash_func": "WeightedCh3"}}
        pools = {"wildcard": pool, "gutter": {"servers": [self.gutter.place.address]}}
        if self.reloads % 2:
            pools["unused"] = pool
        children = [wildcard, "PoolRoute|gutter"]
        route = {
            "type": "OperationSelectorRoute",
            "operation_policies": {"delete": {"type": "AllSyncRoute", "children": children}},
            "default_policy": {
                "type": "FailoverWithExptimeRoute",
                "normal": wildcard,
                "failover": ["PoolRoute|gutter"],
                "failover_exptime": GUTTER_EXPTIME_S,
            },
        }
        return {"pools": pools, "routes": [{"aliases": [f"/local/{self.name}/"], "route": route}]}

    def write_configuration(self, number: int) -> None:
        """Gives a router the current configuration; a reader of the file sees the old one or the new one."""
        path = self.configuration_path(number)
        new = path.with_suffix(".new")
        with self.lock:
            new.write_text(json.dumps(self.configuration()))
            new.replace(path)

    def reads_its_file(self, number: int) -> bool:
        """Whether a router routes by the configuration that it was given last."""
        place = self.routers[number].place
        client = connect(place.port, host=place.host)
        try:
            digest = client.get("__mcrouter__.config_md5_digest") or b""
        finally:
            client.close()
        return digest.decode() == hashlib.md5(self.configuration_path(number).read_bytes()).hexdigest()

    def stop(self) -> None:
        """Stops all processes and removes the servers' memory, also when one of them fails to stop."""
        with contextlib.ExitStack() as stops:
            stops.callback(shutil.rmtree, self.sockets)
            for region in self.regions:
                command = [PROGRAMS / "lookaside-server", "--remove-region", region]
                stops.callback(subprocess.run, command, capture_output=True, timeout=STOP_S)
            for node in self.started:
                stops.callback(node.stop)


class Region:
    """A database, its invalidators, and the clusters."""

    def __init__(self, layout: Layout, folder: Path, network: Loopback | Namespaces) -> None:
        self.layout, self.folder, self.network = layout, folder, network
        self.clusters: list[Cluster] = []
        self.invalidators: list[Node] = []
        self.database = start_database(layout.database, folder / DATABASE, network)
        self.etcd: Etcd | None = None
        try:
            if layout.history == ETCD:
                host, prefix = network.add(ETCD)
                self.etcd = Etcd(folder, host=host, prefix=prefix)
            for name in ("one", "two", "three", "four")[: layout.clusters]:
                self.clusters.append(Cluster(name, layout, folder, network, self.etcd))
            if layout.invalidators > 1:
                create_shared_state(self.database.source, self.database.create_account())
            for number in range(layout.invalidators):
                self.invalidators.append(self.start_invalidator(number))
        except BaseException:
            self.stop()
            raise

    def start_invalidator(self, number: int) -> Node:
        """An invalidator of all clusters; the first one is active, each other stands by."""
        name = f"invalidator-{number + 1}" if number else "invalidator"
        options = ("--shared-state", "source") if self.layout.invalidators > 1 else ()
        is_active = number == 0
        source = self.database.source
        return start_invalidator(name, source, self.clusters, self.folder, self.network, is_active, *options)

    def nodes(self) -> list[Node]:
        """All processes but the database."""
        return [*self.invalidators, *(node for cluster in self.clusters for node in cluster.nodes())]

    def node(self, name: str) -> Node:
        """The process of that name."""
        return {node.name: node for node in self.nodes()}[name]

    def foreign(self, name: str) -> Database | Etcd:
        """The database or etcd."""
        if name == DATABASE:
            return self.database
        assert self.etcd is not None, "etcd runs with --history etcd"
        return self.etcd

    def cluster(self, name: str) -> Cluster:
        """The cluster of that name."""
        return {cluster.name: cluster for cluster in self.clusters}[name]

    def stop(self) -> None:
        """Stops everything, also when a part of it fails to stop."""
        with contextlib.ExitStack() as stops:
            stops.callback(self.database.stop)
            stops.callback(self.database.thaw)
            if self.etcd is not None:
                stops.callback(self.etcd.stop)
                stops.callback(self.etcd.thaw)
            for cluster in self.clusters:
                stops.callback(cluster.stop)
            for invalidator in self.invalidators:
                stops.callback(invalidator.stop)


def start_database(kind: str, folder: Path, network: Loopback | Namespaces) -> Database:
    """Starts a database, whose files are in a new folder."""
    folder.mkdir()
    if kind == "mariadb":
        host, prefix = network.add(DATABASE)
        return Mariadb(folder, host, free_fixed_port("127.0.0.1"), prefix=prefix)
    assert not network.can_partition, f"{kind} runs in no network namespace"
    return DATABASES[kind](folder)


def create_shared_state(url: str, account: str) -> None:
    """Creates the table by which invalidators know which one is active."""
    command = [
        PROGRAMS / "lookaside", "invalidator", "setup", "--shared-state", "--account", account, "--database", url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"setup --shared-state: {done.stderr}"


def start_invalidator(
    name: str,
    source: str,
    clusters: list[Cluster],
    folder: Path,
    network: Loopback | Namespaces,
    is_active: bool,
    *options: object,
) -> Node:
    """An invalidator in a network of its own. One that is to be active reads the commit log when this returns."""
    host, prefix = network.add(name)
    place = Place(host, free_fixed_port("127.0.0.1"), tuple(prefix))
    words = ["--source", source, "--state-dir", folder / f"{name}.state", "--listen", place.address, *options]
    for cluster in clusters:
        routers = ",".join(router.place.address for router in cluster.routers)
        words += ["--cluster", f"{cluster.name}={routers}"]
    node = Node(name, "invalidator", "invalidator", place, words, folder)
    node.wait_ready(lambda: node.answers() and (not is_active or is_running(node.stats())), READY_S)
    return node


def is_running(invalidator_stats: dict[str, str]) -> bool:
    """Whether every cluster's pipeline reads the commit log."""
    states = [value for name, value in invalidator_stats.items() if name.endswith(":state")]
    return bool(states) and all(state == "running" for state in states)
