"""The monitor of deletes, as tests start and read it."""

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from processes import PROGRAMS, Process, eventually, free_port

# A value that was stored this long before a commit is certain to be found: longer than between two look-ups of the end
# of the log (0.1 s here) and two marks of the server (1 s), on a busy machine.
OLD_ENOUGH_MS = 4_000

LABELS = r'cluster="(.*?)",.*age_s="(\d+)",found="(\w+)"'
LOOKS = re.compile(rf"^lookaside_monitor_looks_total\{{{LABELS}\}} (\d+)$", re.MULTILINE)


class Monitor(Process):
    """A `lookaside-monitor` that samples every delete."""

    def __init__(self, source: str, state_dir: Path, log_dir: Path, *arguments: object, ages: str = "1,6") -> None:
        self.metrics_port = free_port()
        self.state_dir = state_dir
        command = [
            PROGRAMS / "lookaside-monitor", "--source", source, "--state-dir", state_dir, "--sample", "1",
            "--ages", ages, "--look-up-every-ms", "100", "--metrics-address", self.metrics_port,
            "--log-format", "json", *arguments,
        ]  # fmt: skip
        super().__init__("monitor", command, log_dir)
        self.wait_watching()

    def wait_watching(self) -> None:
        """Waits until it reads the commit log and knows its end."""
        self.wait_ready(lambda: self.metric("watching") == 1, 60)

    def metrics(self) -> str:
        """The text of its metrics; empty if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as response:
                return response.read().decode()
        except (urllib.error.URLError, OSError):
            return ""

    def metric(self, name: str) -> int | None:
        """A metric without labels; `None` if the monitor does not answer."""
        found = re.search(rf"^lookaside_monitor_{name} (\d+)$", self.metrics(), re.MULTILINE)
        return int(found.group(1)) if found else None

    def looks(self, cluster: str, age_s: int) -> dict[str, int]:
        """What was found in a cluster at an age: the counts that are not 0."""
        found = {}
        for name, age, kind, count in LOOKS.findall(self.metrics()):
            if (name, int(age)) == (cluster, age_s) and int(count):
                found[kind] = int(count)
        return found

    def wait_looks(self, clusters: Iterable[str], age_s: int, number: int) -> None:
        """Waits until this number of samples has reached the age in each of the clusters."""
        for cluster in clusters:
            eventually(
                lambda cluster=cluster: sum(self.looks(cluster, age_s).values()) >= number,
                f"{number} looks at {cluster} after {age_s} s",
                120,
            )

    def findings(self) -> list[dict]:
        """The old values in its log."""
        events = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [event for event in events if event["message"].startswith("an old value")]

    def summary(self) -> dict:
        """What `lookaside monitor --json` prints."""
        command = [PROGRAMS / "lookaside", "monitor", "--state-dir", self.state_dir, "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def route_to(cluster) -> str:
    """The option for a cluster by its routers."""
    return f"--cluster={cluster.name}={','.join(f'127.0.0.1:{port}' for port in cluster.ports)}"


def debug(port: int, key: str, host: str = "127.0.0.1") -> str:
    """The reply of a server or router to `me KEY a`."""
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(f"me {key} a\r\n".encode())
        return connection.makefile().readline().rstrip("\r\n")


def age_min_ms(port: int, key: str, host: str = "127.0.0.1") -> int:
    """For how long an item has been stored at least; 0 if there is none."""
    found = re.search(r" age=(\d+)-", debug(port, key, host))
    return int(found.group(1)) if found else 0


def wait_old(clusters, keys: Iterable[str]) -> None:
    """Waits until values are so old that the monitor distinguishes them from new ones."""
    for cluster in clusters:
        for key in keys:
            eventually(
                lambda cluster=cluster, key=key: age_min_ms(cluster.port, key) > OLD_ENOUGH_MS, f"{key} is old", 60
            )
