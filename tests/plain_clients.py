"""Look-aside applications of several languages whose clients know no leases, in front of a database whose rows change.

A stale set is seen from outside: a server that is asked directly holds a version that is older than one whose delete
the router had acknowledged before the question was sent.
"""

import json
import random
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from leases import LeaseClient
from processes import Cluster

CLIENTS = Path(__file__).resolve().parent / "clients"
# As an example, `row:7`.
KEYS = 8
QUERY_S_MAX = 0.02
PAUSE_S = 0.002
RUN_S_MAX = 120


class Database:
    """The rows, by key, and their versions; a query takes up to QUERY_S_MAX and reads at some moment in between."""

    def __init__(self) -> None:
        self.versions = {f"row:{number}": 0 for number in range(KEYS)}
        rows = self

        class Queries(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    time.sleep(random.uniform(0, QUERY_S_MAX / 2))
                    version = rows.versions[line.decode().strip()]
                    time.sleep(random.uniform(0, QUERY_S_MAX / 2))
                    self.wfile.write(b"%d\n" % version)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Queries)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Ends all connections to come."""
        self.server.shutdown()
        self.server.server_close()


@dataclass(frozen=True)
class Application:
    """An unmodified client library in an application. `command` makes its command lines, one for each process."""

    name: str
    command: Callable[[str, str, int, float], list[list[str]]]
    sends_all_over_one_connection: bool = False


@dataclass
class Outcome:
    """What an application did, and what came of it."""

    reads: int = 0
    hits: int = 0
    stored: int = 0
    refused: int = 0
    commits: int = 0
    stale_sets: int = 0


def python(connections: str) -> Application:
    """pymemcache, whose threads have their `own` connections, or share `pooled` ones."""
    script = CLIENTS / "look_aside.py"

    def command(cache: str, database: str, readers: int, seconds: float) -> list[list[str]]:
        words = [sys.executable, script, cache, database, KEYS, readers, seconds, connections]
        return [[str(word) for word in words]]

    return Application(f"Python: pymemcache, {'a pool' if connections == 'pooled' else 'own connections'}", command)


def php() -> Application:
    """PHP's extension memcached, a process for each reader."""
    script = CLIENTS / "php" / "look_aside.php"

    def command(cache: str, database: str, readers: int, seconds: float) -> list[list[str]]:
        words = ["php", script, cache, database, KEYS, seconds]
        return [[str(word) for word in words]] * readers

    return Application("PHP: memcached, a process for each reader", command)


def node() -> Application:
    """Node's memjs: all readers over one connection, in the binary protocol."""
    script = CLIENTS / "node" / "look_aside.js"

    def command(cache: str, database: str, readers: int, seconds: float) -> list[list[str]]:
        words = ["node", script, cache, database, KEYS, readers, seconds]
        return [[str(word) for word in words]]

    return Application("Node: memjs, one connection", command, sends_all_over_one_connection=True)


def go(program: Path) -> Application:
    """Go's gomemcache: goroutines that share a pool."""

    def command(cache: str, database: str, readers: int, seconds: float) -> list[list[str]]:
        return [[str(word) for word in (program, cache, database, KEYS, readers, seconds)]]

    return Application("Go: gomemcache, a pool", command)


def ruby(script: Path) -> Application:
    """Ruby's Dalli. In the cache of its page, threads take a connection out of a pool for a get and its set; with Rails
    they take any for each command."""

    def command(cache: str, database: str, readers: int, seconds: float) -> list[list[str]]:
        return [[str(word) for word in ("ruby", script, cache, database, KEYS, readers, seconds)]]

    uses_rails = script.stem == "rails_cache"
    connections = "Rails.cache, a pool" if uses_rails else "Dalli, a connection for a get and its set"
    return Application(f"Ruby: {connections}", command)


def java(folder: Path) -> Application:
    """Java's XMemcached in the cache of its page: threads that share one connection."""

    def command(cache: str, database: str, readers: int, seconds: float) -> list[list[str]]:
        classes = f"{folder}/target/classes:{folder}/target/jars/*"
        words = ["java", "-cp", classes, "LookAside", cache, database, KEYS, readers, seconds]
        return [[str(word) for word in words]]

    return Application("Java: XMemcached, one connection", command, sends_all_over_one_connection=True)


class Writer(threading.Thread):
    """Commits versions of rows, and deletes their keys by the router."""

    def __init__(self, port: int, database: Database) -> None:
        super().__init__(daemon=True)
        self.client, self.database = LeaseClient(port), database
        self.deleted = dict(database.versions)
        self.commits = 0
        self.is_stopping = threading.Event()

    def run(self) -> None:
        while not self.is_stopping.wait(PAUSE_S):
            key = f"row:{random.randrange(KEYS)}"
            self.database.versions[key] += 1
            version = self.database.versions[key]
            reply = self.client.command(f"delete {key}".encode())
            if reply in (b"DELETED", b"NOT_FOUND"):
                self.deleted[key] = version
                self.commits += 1
            else:
                # A server did not answer in time: nothing is promised, and the key is deleted again later.
                assert reply.startswith(b"SERVER_ERROR"), reply


class Observer(threading.Thread):
    """Reads all keys at the servers."""

    def __init__(self, ports: list[int], writer: Writer) -> None:
        super().__init__(daemon=True)
        self.servers = {port: LeaseClient(port) for port in ports}
        self.writer = writer
        self.stale: set[tuple[int, str, int]] = set()
        self.is_stopping = threading.Event()

    def run(self) -> None:
        while not self.is_stopping.wait(PAUSE_S):
            self.look()

    def look(self) -> None:
        """Reads all keys once."""
        deleted = dict(self.writer.deleted)
        for port, server in self.servers.items():
            server.socket.sendall(b"get %s\r\n" % " ".join(deleted).encode())
            while (head := server.reader.readline().split())[0] == b"VALUE":
                key, version = head[1].decode(), int(server.block(int(head[3])))
                if version < deleted[key]:
                    self.stale.add((port, key, version))


def run(application: Application, cluster: Cluster, readers: int, seconds: float) -> Outcome:
    """Runs an application through the cluster's router while rows change."""
    database = Database()
    writer = Writer(cluster.port, database)
    observer = Observer([server.port for server in [*cluster.servers, cluster.gutter]], writer)
    commands = application.command(f"127.0.0.1:{cluster.port}", database.address, readers, seconds)
    writer.start()
    observer.start()
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    outcome = Outcome()
    for process in running:
        out, errors = process.communicate(timeout=RUN_S_MAX)
        assert process.returncode == 0, errors
        for name, count in json.loads(out).items():
            setattr(outcome, name, getattr(outcome, name) + count)
    for thread in (writer, observer):
        assert thread.is_alive(), "it has failed: what it should have seen is no proof"
        thread.is_stopping.set()
        thread.join()
    observer.look()
    database.close()
    outcome.commits, outcome.stale_sets = writer.commits, len(observer.stale)
    return outcome
