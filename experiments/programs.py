"""Starts what is measured: built programs on free ports of 127.0.0.1, pinned to a core, stopped by pid, always."""

import contextlib
import ctypes
import getpass
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "target" / "release"

READY_S = 20.0
STOP_S = 10.0


class Unusable(Exception):
    """Something is missing on this machine; the message names the remedy."""


def peer(name: str) -> Path:
    """The runner of a program that we are compared with, `memcached` or `twemproxy`; fetched if it is not there."""
    found = subprocess.run([ROOT / "experiments" / "peers", name], stdout=subprocess.PIPE, text=True)
    if found.returncode != 0:
        raise Unusable(f"{name} cannot be fetched; see above")
    return Path(found.stdout.split()[-1])


def peer_version(name: str) -> str:
    """The release of a peer, as it prints it."""
    shown = subprocess.run([peer(name), "-V"], capture_output=True, text=True)
    return next(word for word in re.findall(r"\d+\.[\d.]*\d", shown.stdout + shown.stderr))


def memcached() -> Path:
    """The runner of the memcached that we are compared with."""
    return peer("memcached")


def lookaside(name: str) -> Path:
    """One of our release programs."""
    path = PROGRAMS / name
    if not path.exists():
        raise Unusable(f"{name} is not built: cargo build --release --package {name}")
    return path


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free for TCP and UDP."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < count:
            stream = held.enter_context(socket.socket())
            datagrams = held.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            stream.bind(("127.0.0.1", 0))
            with contextlib.suppress(OSError):
                datagrams.bind(stream.getsockname())
                ports.append(stream.getsockname()[1])
        return ports


def stop(process: subprocess.Popen) -> None:
    """SIGTERM, then SIGKILL for a program that does not end."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


def answers(port: int) -> bool:
    """Whether a memcached-compatible daemon on this port replies to `version`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(100).startswith(b"VERSION")
    except OSError:
        return False


def server_statistics(port: int) -> dict[str, str]:
    """What `stats` of the daemon on this port prints."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"stats\r\n")
        reply = b""
        while not reply.endswith(b"END\r\n"):
            received = connection.recv(65536)
            if not received:
                raise Unusable(f"port {port} ended the connection within its statistics")
            reply += received
    words = (line.split(maxsplit=2) for line in reply.decode().splitlines())
    return {line[1]: line[2] for line in words if line[0] == "STAT" and len(line) == 3}


def resident_bytes(pid: int) -> int:
    """The resident set of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise Unusable(f"process {pid} has no resident set; this needs Linux")


def pin_and_prioritise(nice: int, core: int | None = None, is_realtime: bool = False) -> Callable[[], None]:
    """Runs in a child before exec: pins it to its core and sets its priority.

    Linux shares the processor between sessions first and between processes second ("autogroup"), so that niceness
    alone means little: the program gets a session of its own and that session the same niceness. Even so, a running
    process may keep the core for some milliseconds after another wakes; only a real-time process gets it at once.
    """

    def prepare() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        if nice:
            os.setsid()
            os.nice(nice)
            with contextlib.suppress(OSError):
                Path("/proc/self/autogroup").write_text(str(nice))
        if is_realtime:
            # In turns of 100 ms among themselves, as both servers share a core.
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))

    return prepare


@dataclass
class CacheServer:
    """A running cache server, or a proxy in front of some, with one worker thread."""

    name: str
    process: subprocess.Popen
    port: int
    unix_path: Path | None

    def address(self, transport: str) -> str:
        """Where the load generator finds it by `tcp`, `udp` or `unix`."""
        if transport == "unix":
            return f"unix:{self.unix_path}"
        return f"udp:127.0.0.1:{self.port}" if transport == "udp" else f"127.0.0.1:{self.port}"


PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Runs in a child before exec: SIGTERM when the measurement ends without having stopped it, as by a signal."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def started(
    name: str, words: list, is_ready: Callable[[], bool], log_path: Path, prepare: Callable[[], None]
) -> Iterator[subprocess.Popen]:
    """A program that is ready; it is stopped at the end."""

    def before_exec() -> None:
        end_with_parent()
        prepare()

    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=before_exec
        )
    try:
        deadline = time.monotonic() + READY_S
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unusable(f"{name} did not start:\n{log_path.read_text(errors='replace')}")
            time.sleep(0.01)
        yield process
    finally:
        stop(process)


def as_user(name: str) -> list:
    """The options that memcached needs to run as root."""
    return ["-u", getpass.getuser()] if name == "memcached" and os.geteuid() == 0 else []


@contextlib.contextmanager
def cache_server(
    name: str,
    program: Path,
    core: int | None,
    memory_mib: int,
    unix: bool = False,
    nice: int = 0,
    is_realtime: bool = False,
) -> Iterator[CacheServer]:
    """`program` with memcached's flags, one worker (on `core`): TCP and UDP on one port, or a unix socket."""
    with tempfile.TemporaryDirectory(prefix="lookaside-bench-") as folder:
        port = free_ports(1)[0]
        unix_path = Path(folder) / "socket" if unix else None
        where = ["-s", unix_path] if unix else ["-p", port, "-U", port, "-l", "127.0.0.1"]
        words = [program, "-t", 1, "-m", memory_mib, "-c", 20000, *where, *as_user(name)]
        log_path = Path(folder) / "log"
        prepare = pin_and_prioritise(nice, core, is_realtime)

        def is_ready() -> bool:
            return unix_path.exists() if unix else answers(port)

        with started(name, words, is_ready, log_path, prepare) as process:
            yield CacheServer(name, process, port, unix_path)


def has_flag(program: Path, flag: str) -> bool:
    """Whether `--help` of the program mentions the flag at the start of a line."""
    shown = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    return any(line.strip().startswith(flag) for line in shown.splitlines())
