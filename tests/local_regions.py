"""`lookaside up` as a process of a test: one region, or several."""

import contextlib
import json
import os
import random
import re
import socket
import subprocess
from pathlib import Path

from processes import PROGRAMS, Process, connect, eventually

# Ports from the first one of a region on.
PORTS_OF_ONE = 40
PORTS_OF_SEVERAL = 200
STOP_S = 60
# Below the ports of all other tests (`free_port`), and each process that runs tests has some of its own: `up` starts
# databases first, and its daemons find their ports free only then.
FIRST_PORT = 2_100
PORTS_OF_PROCESS = 950
PROCESSES_MAX = 8


def free_base(ports: int = PORTS_OF_ONE) -> int:
    """A port from which on that number of ports are free."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES_MAX
    first = FIRST_PORT + process * PORTS_OF_PROCESS
    bases = range(first, first + PORTS_OF_PROCESS - ports, 20)
    for base in random.sample(bases, len(bases)):
        try:
            for port in range(base, base + ports):
                with socket.socket() as probe:
                    # As the daemons do: connections of the test before may still be in TIME_WAIT.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise AssertionError("no free ports")


class Up(Process):
    """A running `lookaside up --json`."""

    def __init__(self, log_dir: Path, *arguments: str, is_temporary: bool = False, ports: int = PORTS_OF_ONE) -> None:
        self.base = free_base(ports)
        self.state = log_dir / "region"
        directory = [] if is_temporary else ["--state-dir", self.state]
        command = [PROGRAMS / "lookaside", "up", "--json", "--port", self.base, *directory, *arguments]
        super().__init__("up", command, log_dir)
        self.wait_ready(lambda: any("ready" in line for line in self.lines()), 120)

    def stop(self) -> int | None:
        """SIGTERM; its exit code. Databases take a while to end on a busy machine."""
        if self.running.poll() is None:
            self.running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running.wait(STOP_S)
        return super().stop()

    def lines(self) -> list[dict]:
        """Its output, line by line."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{") and line.endswith("}")]

    def activity(self, region: str) -> list[dict]:
        """The lines about a region."""
        return [line for line in self.lines() if line.get("region") == region]

    def children(self) -> list[int]:
        """The pids of its processes."""
        listed = subprocess.run(["ps", "--ppid", str(self.running.pid), "-o", "pid="], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]


class UpRegion:
    """One of several regions of `lookaside up`."""

    def __init__(self, up: Up, announced: dict) -> None:
        self.up, self.name, self.link = up, announced["name"], announced["link"]
        self.ports = [int(cluster["endpoint"].rsplit(":", 1)[1]) for cluster in announced["clusters"]]
        self.database = announced["database"]
        self.state_dir = Path(announced["state_dir"])
        # That of the server of remote markers.
        self.marker_port = int(announced["markers"].rsplit(":", 1)[1])

    def clients(self) -> list:
        """A client of each cluster."""
        return [connect(port) for port in self.ports]

    def set_link(self, state: str) -> None:
        """Cuts the link to the master, or gives it a delay; returns when that has taken effect."""
        before = len(self.up.lines())
        Path(self.link).write_text(f"{state}\n")
        event = f"{self.name}: the link is now: "
        eventually(lambda: any(event in line.get("event", "") for line in self.up.lines()[before:]), f"{state} is seen")

    def run(self, sql: str) -> str:
        """Runs SQL in the region's database; what its shell prints without headings."""
        kind, _, rest = self.database.partition("://")
        if kind == "sqlite":
            command = ["sqlite3", "-cmd", ".timeout 5000", rest, sql]
        elif kind == "postgres":
            command = ["psql", "--no-psqlrc", "-Atqc", sql, self.database]
        else:
            port = re.search(r":(\d+)/", rest)[1]
            command = [
                "mariadb", "--no-defaults", "--comments", "-h127.0.0.1", f"-P{port}", "-uapp", "-papp", "-N", "-e", sql,
                "app",
            ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{sql}: {done.stderr}"
        return done.stdout.strip()


def regions_of(up: Up) -> list[UpRegion]:
    """Its regions, the master first."""
    return [UpRegion(up, announced) for announced in up.lines()[0]["regions"]]
