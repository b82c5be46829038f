"""Starts the built programs, waits until they are ready, and stops them by pid, always."""

import collections
import contextlib
import fcntl
import functools
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pymemcache.client.base import Client

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(os.environ.get("LOOKASIDE_PROGRAMS", ROOT / "target" / "debug"))

READY_S = 20.0
STOP_S = 10.0


OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FREE_PORT_MIN = 10_000


# Ports that one process keeps to itself, at most.
RESERVED_PORTS_MAX = 1_000
reserved_ports: collections.deque[int] = collections.deque()


@functools.cache
def port_locks() -> int:
    """The descriptor of a file in which a locked byte is a port that a process of tests has been given."""
    path = Path(tempfile.gettempdir()) / f"lookaside-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def reserve_port(port: int) -> bool:
    """Keeps a port from other processes of tests while this one runs, or until it has been given many others."""
    if port in reserved_ports:
        return False
    try:
        fcntl.lockf(port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    reserved_ports.append(port)
    if len(reserved_ports) > RESERVED_PORTS_MAX:
        fcntl.lockf(port_locks(), fcntl.LOCK_UN, 1, reserved_ports.popleft())
    return True


def free_port() -> int:
    """A free TCP port of 127.0.0.1.

    The kernel gives none of these to outgoing connections, one of which could take it before a server does; nor is it
    given to another test before that.
    """
    outgoing_min = int(OUTGOING_PORTS.read_text().split()[0])
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            port = random.randrange(FREE_PORT_MIN, outgoing_min) if outgoing_min > FREE_PORT_MIN else 0
            probe.bind(("127.0.0.1", port))
            port = probe.getsockname()[1]
            if reserve_port(port):
                return port


def eventually(condition: Callable[[], bool], what: str, seconds: float = READY_S) -> None:
    """Returns when `condition()` holds; fails when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def silent_address():
    """An address at which connections are neither made nor refused, as at a host that is gone."""
    with socket.socket() as listener, contextlib.ExitStack() as clients:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Process:
    """A running program. Its output goes to a file; the end of it is shown when something fails."""

    def __init__(self, name: str, command: list[str], log_dir: Path, **options) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.options = options
        self.log_path = log_dir / f"{name}.log"
        self.running: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        """Starts the program, again if it has ended."""
        with self.log_path.open("ab") as log:
            self.running = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.options
            )

    def log(self) -> str:
        """The program's log so far."""
        return self.log_path.read_text(errors="replace")

    def wait_ready(self, is_ready: Callable[[], bool], seconds: float = READY_S) -> None:
        """Waits for `is_ready()`; fails at once when the program ends before that."""

        def ready() -> bool:
            assert self.running.poll() is None, f"{self.name} ended ({self.running.returncode}):\n{self.log()}"
            return is_ready()

        try:
            eventually(ready, f"{self.name} is ready:\n{self.log()}", seconds)
        except BaseException:
            # The caller has no handle to stop it by yet.
            self.stop()
            raise

    def resident_bytes_max(self) -> int:
        """The largest resident set of the running process so far."""
        status = Path(f"/proc/{self.running.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        self.running.send_signal(signal.SIGKILL)
        self.running.wait(STOP_S)

    def freeze(self) -> None:
        """SIGSTOP, and waits until no thread runs: they stop one by one, and may answer something until then."""
        self.running.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.running.pid}/task")
        eventually(lambda: all(thread_state(thread) == "T" for thread in threads.iterdir()), f"{self.name} is frozen")

    def thaw(self) -> None:
        """Lets it go on with all that it held."""
        self.running.send_signal(signal.SIGCONT)

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL for a program that does not end; its exit code."""
        if self.running is None:
            return None
        if self.running.poll() is None:
            self.running.terminate()
            try:
                self.running.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.running.returncode


def thread_state(thread: Path) -> str:
    """The kernel's one-letter state of a thread, which has a folder in /proc."""
    return (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]


@contextlib.contextmanager
def frozen(process: Process):
    """The process does not run, as a machine that is cut off; it goes on afterwards."""
    process.freeze()
    try:
        yield
    finally:
        process.thaw()


def run_in_children(works: Sequence[Callable[[], None]], seconds: int = 60) -> None:
    """Runs each function in a forked child of its own, all at the same time; fails if one fails or hangs."""
    children = []
    for work in works:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(seconds)
                work()
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * len(children)


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a memcached-compatible daemon on this port replies to `version`."""
    client = connect(port, timeout=1, host=host)
    try:
        return bool(client.version())
    except (OSError, Exception):  # noqa: B014 - pymemcache has errors of its own for half answers
        return False
    finally:
        client.close()


def accepts_at(path: Path) -> bool:
    """Whether the unix socket accepts connections. Its file is there before it does."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def accepts(port: int) -> bool:
    """Whether the port accepts connections."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def connect(port: int, timeout: float = 5, host: str = "127.0.0.1") -> Client:
    """A pymemcache client."""
    return Client((host, port), connect_timeout=timeout, timeout=timeout, default_noreply=False)


def stats(port: int, host: str = "127.0.0.1", timeout: float = 5) -> dict[str, str]:
    """`stats` of any daemon."""
    client = connect(port, timeout, host)
    try:
        return {
            name.decode(): str(value.decode() if isinstance(value, bytes) else value)
            for name, value in client.stats().items()
        }
    finally:
        client.close()


class Server(Process):
    """A `lookaside-server` on a free port."""

    def __init__(self, name: str, log_dir: Path, *arguments: str) -> None:
        self.port = free_port()
        command = [PROGRAMS / "lookaside-server", "-p", self.port, "-t", "1", "-m", "64", *arguments]
        super().__init__(name, command, log_dir)
        self.wait_ready(lambda: answers(self.port))

    def restart(self) -> None:
        """Starts the server again, empty, on the same port."""
        self.start()
        self.wait_ready(lambda: answers(self.port))


class Cluster:
    """Two servers, a gutter server and a router, as `lookaside up` lays them out."""

    def __init__(self, name: str, log_dir: Path, router_arguments: tuple[str, ...] = ()) -> None:
        self.name = name
        self.servers = [Server(f"{name}-server-{index}", log_dir) for index in (1, 2)]
        self.gutter = Server(f"{name}-gutter", log_dir)
        self.configuration_path = log_dir / f"{name}-router.json"
        self.configuration_path.write_text(json.dumps(self.configuration(), indent=2))
        self.log_dir = log_dir
        self.router_arguments = router_arguments
        self.ports: list[int] = []
        self.routers: list[Process] = []
        self.router = self.add_router()
        self.port = self.ports[0]

    def add_router(self) -> Process:
        """Starts one more router in front of the same servers."""
        port, number = free_port(), len(self.routers) + 1
        router = Process(
            f"{self.name}-router" if number == 1 else f"{self.name}-router-{number}",
            [
                PROGRAMS / "lookaside-router", "-p", port, "-R", f"/local/{self.name}/", "--num-proxies", "1",
                "-f", self.configuration_path, "--server-timeout", "300", "--probe-timeout-initial", "100",
                *self.router_arguments,
            ],
            self.log_dir,
        )  # fmt: skip
        self.ports.append(port)
        self.routers.append(router)
        router.wait_ready(lambda: answers(port))
        return router

    def configuration(self) -> dict:
        """The router's configuration."""
        wildcard = {"type": "PoolRoute", "pool": "wildcard"}
        gutter = {"type": "PoolRoute", "pool": "gutter"}
        route = {
            "type": "OperationSelectorRoute",
            "operation_policies": {"delete": {"type": "AllSyncRoute", "children": [wildcard, gutter]}},
            "default_policy": {
                "type": "FailoverWithExptimeRoute",
                "normal": wildcard,
                "failover": [gutter],
                "failover_exptime": 10,
            },
        }
        return {
            "pools": {
                "wildcard": {"servers": [f"127.0.0.1:{server.port}" for server in self.servers]},
                "gutter": {"servers": [f"127.0.0.1:{self.gutter.port}"]},
            },
            "routes": [{"aliases": [f"/local/{self.name}/"], "route": route}],
        }

    def client(self, timeout: float = 5) -> Client:
        """A client of the router."""
        return connect(self.port, timeout)

    def all_ports(self) -> list[int]:
        """Those of all processes of the cluster, the routers' first."""
        return [*self.ports, *(server.port for server in (*self.servers, self.gutter))]

    def processes(self) -> list[Process]:
        """All of the cluster, the routers first."""
        return [*self.routers, *self.servers, self.gutter]

    def stop(self) -> None:
        """Stops all processes."""
        for process in self.processes():
            process.stop()


class Invalidator(Process):
    """A `lookaside-invalidator` from a database to clusters."""

    def __init__(self, source: str, clusters: list[Cluster], state_dir: Path, log_dir: Path, *arguments: str) -> None:
        self.port = free_port()
        command = [
            PROGRAMS / "lookaside-invalidator", "--source", source, "--state-dir", state_dir,
            "--listen", f"127.0.0.1:{self.port}", *arguments,
        ]  # fmt: skip
        for cluster in clusters:
            routers = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
            command += ["--cluster", f"{cluster.name}={routers}"]
        super().__init__("invalidator", command, log_dir)
        self.wait_running(len(clusters))

    def wait_running(self, clusters: int) -> None:
        """Waits until every cluster's pipeline reads the commit log."""

        def running() -> bool:
            if not answers(self.port):
                return False
            states = [value for name, value in stats(self.port).items() if name.endswith(":state")]
            return len(states) == clusters and all(state == "running" for state in states)

        self.wait_ready(running)
