"""Where the processes listen, and how the links between them are cut.

On 127.0.0.1 nothing can be cut. With namespaces each process has a network of its own, joined by a bridge:

```
  this program          database        one-server-1        one-router-1
   10.88.0.1            10.88.0.2         10.88.0.3           10.88.0.4        a namespace each
       |                    |                 |                   |            veth pairs
  -----+--------------------+-----------------+-------------------+---------   bridge, in this program's namespace
```

The applications are this program. A process is cut off by disabling its port of the bridge, and from one other by an
entry in its table of neighbours that leads nowhere. Either way packets vanish without an error, as they do when a cable
is pulled.
"""

import itertools
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from processes import STOP_S, eventually

IN_NAMESPACE = "LOOKASIDE_CHAOS_IN_NAMESPACE"
BRIDGE = "bridge"
BRIDGE_ADDRESS = "10.88.0.1"
NOWHERE = "02:00:00:00:ff:ff"
LINKS = itertools.count()
# A connection between namespaces is made within a millisecond; the machine may be busy.
CONNECT_S = 0.5


class Loopback:
    """All processes share 127.0.0.1."""

    can_partition = False
    address = "127.0.0.1"

    def add(self, name: str) -> tuple[str, list[str]]:
        """The address of a process, and the words in front of its command."""
        return self.address, []

    def close(self) -> None:
        """Nothing was made."""


@dataclass
class Namespace:
    """The network of one process, kept alive by a process that sleeps."""

    holder: subprocess.Popen
    address: str
    link: str

    @property
    def prefix(self) -> list[str]:
        """The words that run a command in it."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--"]


class Namespaces:
    """A namespace for each process. This program must be in a namespace of its own already."""

    can_partition = True
    address = BRIDGE_ADDRESS

    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}
        for words in (
            "link set lo up",
            f"link add {BRIDGE} type bridge forward_delay 0",
            f"addr add {BRIDGE_ADDRESS}/16 dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ):
            run_ip(words)

    def add(self, name: str) -> tuple[str, list[str]]:
        """A new namespace: its address, and the words in front of a command that runs in it."""
        number = len(self.namespaces) + 2
        own = Path("/proc/self/ns/net").readlink()
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        eventually(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != own, "a new namespace")
        # The link of a run before may still be on its way out.
        link = f"link{next(LINKS)}"
        namespace = Namespace(holder, f"10.88.{number // 250}.{number % 250}", link)
        self.namespaces[name] = namespace
        run_ip(f"link add {namespace.link} type veth peer name eth0 netns {holder.pid}")
        run_ip(f"link set {namespace.link} master {BRIDGE} up")
        for words in ("link set lo up", f"addr add {namespace.address}/16 dev eth0", "link set eth0 up"):
            run_ip(words, namespace.prefix)
        return namespace.address, namespace.prefix

    def isolate(self, name: str, is_cut: bool) -> None:
        """Cuts a process off from all others, or undoes it."""
        # `ip link set ... type bridge_slave state 0` succeeds, too; but the kernel then enables the port again.
        run_ip(f"link set dev {self.namespaces[name].link} state {0 if is_cut else 3}", program="bridge")

    def cut(self, source: str, target: str, is_cut: bool) -> None:
        """Drops all packets from one process to another, or undoes it."""
        near, far = self.namespaces[source], self.namespaces[target]
        if is_cut:
            run_ip(f"neigh replace {far.address} lladdr {NOWHERE} dev eth0 nud permanent", near.prefix)
        else:
            run_ip(f"neigh del {far.address} dev eth0", near.prefix)

    def close(self) -> None:
        """Ends the sleeping processes; their namespaces vanish with the last process in them."""
        for namespace in self.namespaces.values():
            namespace.holder.kill()
            namespace.holder.wait(STOP_S)
        run_ip(f"link del {BRIDGE}")


def is_reachable(host: str, port: int) -> bool:
    """Whether this program can connect to a process."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True


def run_ip(words: str, prefix: list[str] | None = None, program: str = "ip") -> None:
    """Runs iproute2's `ip`, or another program of it."""
    subprocess.run([*(prefix or []), program, *words.split()], check=True, capture_output=True, text=True)


def enter_namespace(module: str) -> None:
    """Runs this program, `python -m module`, again in a network namespace of its own."""
    os.environ[IN_NAMESPACE] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", module, *sys.argv[1:]])


def is_in_namespace() -> bool:
    """Whether this program is the one that `enter_namespace` has run."""
    return IN_NAMESPACE in os.environ


def missing_for_partitions() -> str | None:
    """Why partitions cannot be made here; `None` if they can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    for program in ("ip", "bridge", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"the program {program} is missing (Debian packages iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", BRIDGE, "type", "bridge"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"no network namespace with a bridge: {tried.stderr.strip()}"
