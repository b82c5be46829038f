"""A Rust client that reads servers directly (`crates/client/examples/direct_client.rs`)."""

import collections
import os
import signal
from pathlib import Path

from line_client import LineClient
from processes import eventually


class DirectClient(LineClient):
    """One client."""

    def __init__(self, configuration, routers: list[int], *options: str) -> None:
        super().__init__("direct_client", *options, configuration, *(f"127.0.0.1:{port}" for port in routers))

    def get(self, key: str) -> str | None:
        """The value; None for a miss and for an error."""
        word, _, value = self.call(f"get {key}").partition(" ")
        return value if word == "hit" else None

    def is_permitted(self) -> bool:
        """Whether reads go to servers now."""
        return self.call("permitted") == "true"

    def wait_permitted(self) -> None:
        """Until reads go to servers."""
        eventually(self.is_permitted, "the client reads servers directly")

    def burst(self, count: int, keys: list[str]) -> dict[str, int]:
        """The outcomes of `count` gets of all keys at a time, and the milliseconds of the slowest."""
        words = self.call(f"burst {count} {' '.join(keys)}").split()
        return {name: int(value) for name, value in (word.split("=") for word in words)}

    def tasks(self) -> int:
        """How many run in its runtime."""
        return int(self.call("tasks"))

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.running.pid}/fd"))

    def connections(self) -> collections.Counter[str]:
        """The number of TCP connections that it has open, by the other side's port."""
        folder = Path(f"/proc/{self.running.pid}")
        rows = [line.split() for line in (folder / "net/tcp").read_text().splitlines()[1:]]
        ports = {f"socket:[{row[9]}]": str(int(row[2].rpartition(":")[2], 16)) for row in rows}
        return collections.Counter(ports[name] for name in open_files(folder) if name in ports)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.running.send_signal(signal.SIGCONT)


def open_files(folder: Path) -> list[str]:
    """The targets of a process's descriptors, but for those that are closed meanwhile."""
    targets = []
    for path in (folder / "fd").iterdir():
        try:
            targets.append(os.readlink(path))
        except FileNotFoundError:
            continue
    return targets
