"""What running programs print, for `generate_reference.py`: names of statistics, and metrics."""

import re
import socket
import sqlite3
import subprocess
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from certificates import Authority
from processes import PROGRAMS, Process, accepts, answers, eventually, free_port


def ask(port: int, command: str) -> list[str]:
    """The lines of the reply to a `stats` command, without its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(command.encode() + b"\r\n")
        reply = b""
        while not reply.endswith(b"END\r\n"):
            piece = connection.recv(65536)
            assert piece and b"ERROR" not in reply, f"{command}: {reply}"
            reply += piece
    return reply.decode(errors="replace").splitlines()[:-1]


def stats_of(port: int, command: str = "stats") -> list[str]:
    """The names that a `stats` command prints, in order, with placeholders for classes, addresses and the like."""
    names: dict[str, None] = {}
    for line in ask(port, command):
        name = line.split(" ")[1]
        if command == "stats conns":
            name = re.sub(r"^\d+:", "FD:", name)
        elif command == "stats sizes":
            name = "SIZE"
        name = re.sub(r"^(items:|class:)?\d+:", r"\1CLASS:", name)
        name = re.sub(r"^prefix:[^:]*:", "prefix:PREFIX:", name)
        name = re.sub(r"^cluster:[^:]*:", "cluster:NAME:", name)
        names[name] = None
    return list(names)


def exposition(port: int) -> str:
    """What Prometheus reads."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return reply.read().decode()


def metrics_in(text: str) -> list[tuple[str, str, str, str]]:
    """Name, type, labels and meaning of each metric."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    types = dict(re.findall(r"^# TYPE (\S+) (.*)$", text, re.MULTILINE))
    rows = []
    for name, meaning in helps.items():
        labels: dict[str, None] = {}
        for sample in re.findall(rf"^{name}(?:_bucket|_sum|_count)?\{{(.*)\}} \S+$", text, re.MULTILINE):
            labels.update(dict.fromkeys(re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', sample)))
        shown = ", ".join(f"`{label}`" for label in labels if label != "le")
        rows.append((name, types.get(name, ""), shown, meaning))
    return rows


@dataclass
class Observed:
    """What the running programs printed."""

    # Group of statistics -> names.
    stats: dict[str, list[str]] = field(default_factory=dict)
    # Program -> metrics.
    metrics: dict[str, list[tuple[str, str, str, str]]] = field(default_factory=dict)

    def add(self, group: str, names: list[str]) -> None:
        """Adds names to a group."""
        known = self.stats.setdefault(group, [])
        known += [name for name in names if name not in known]


def start(stack: ExitStack, folder: Path, name: str, *command: object, port: int) -> Process:
    """Starts a program that is stopped with the stack, and waits until it answers."""
    process = Process(name, [PROGRAMS / command[0], *command[1:]], folder)
    stack.callback(process.stop)
    process.wait_ready(lambda: answers(port))
    return process


def observe_server(stack: ExitStack, folder: Path, authority: Authority, seen: Observed) -> int:
    """Two servers, which together have all statistics; the port of the first."""
    port, tls_port, metrics_port, region = free_port(), free_port(), free_port(), f"reference-{free_port()}"
    server = PROGRAMS / "lookaside-server"
    stack.callback(subprocess.run, [server, "--remove-region", region], capture_output=True, check=False)
    start(
        stack, folder, "server", "lookaside-server", "-p", port, "-U", port, "--udp-worker-ports", free_port(), "-t", 1,
        "-o", "track_sizes", "--warm-restart", region, "--metrics-address", metrics_port, port=port,
    )  # fmt: skip
    certificate, key = authority.sign("server")
    start(
        stack, folder, "tls-server", "lookaside-server", "-l", f"notls:127.0.0.1:{tls_port},127.0.0.1:{free_port()}",
        "-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key},ssl_session_cache", port=tls_port,
    )  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"set a:key 0 0 5\r\nvalue\r\n")
        assert connection.recv(100) == b"STORED\r\n"
    for group in ("", "settings", "items", "slabs", "sizes", "conns", "workingset 3600 1"):
        command = f"stats {group}".strip()
        heading = "lookaside-server: " + " ".join(command.split()[:2])
        seen.add(heading, stats_of(port, command))
        if group in ("", "settings"):
            seen.add(heading, stats_of(tls_port, command))
    seen.metrics["lookaside-server"] = metrics_in(exposition(metrics_port))
    return port


def observe_router(stack: ExitStack, folder: Path, authority: Authority, server: int, seen: Observed) -> int:
    """A router whose one server is dead and replaced by a spare; its port."""
    port, metrics_port = free_port(), free_port()
    certificate, key = authority.sign("router")
    configuration = folder / "router.json"
    text = (
        f'{{"pools": {{"main": {{"servers": ["127.0.0.1:{free_port()}"], "spares": ["127.0.0.1:{server}"],'
        ' "spare_after_ms": 1}}, "route": "PoolRoute|main"}'
    )
    configuration.write_text(text)
    start(
        stack, folder, "router", "lookaside-router", "-f", configuration, "-p", port, "--ssl-port", free_port(),
        "--pem-cert-path", certificate, "--pem-key-path", key, "--num-proxies", 1, "--window", 100,
        "--spool", folder / "spool", "--metrics-address", metrics_port, port=port,
    )  # fmt: skip
    eventually(lambda: any("replaced_by" in line for line in ask(port, "stats servers_detailed")), "a spare serves")
    configuration.write_text("{")
    eventually(lambda: "config_last_refusal" in stats_of(port), "the configuration is refused")
    configuration.write_text(text)
    general = stats_of(port)
    seen.add("lookaside-router: stats", general)
    detailed = stats_of(port, "stats detailed")
    seen.add("lookaside-router: stats detailed", [name for name in detailed if name not in general])
    # The ports, by which the lines are sorted, are others each time: the dead server's line is read first.
    lines = sorted(ask(port, "stats servers_detailed"), key=lambda line: "replaced_by:" not in line)
    fields = [name for line in lines for name in re.findall(r" (\w+):", line.partition(" destination:")[2])]
    seen.add("lookaside-router: stats servers_detailed", list(dict.fromkeys(fields)))
    seen.metrics["lookaside-router"] = metrics_in(exposition(metrics_port))
    return port


def observe_invalidator(stack: ExitStack, folder: Path, router: int, seen: Observed) -> None:
    """An invalidator, one of whose two clusters does not answer."""
    port, metrics_port, database = free_port(), free_port(), folder / "app.db"
    with sqlite3.connect(database) as journal:
        journal.execute("PRAGMA journal_mode=WAL")
        journal.execute(
            "CREATE TABLE lookaside_journal (seq INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL, at_ms INTEGER"
            " NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)))"
        )
    start(
        stack, folder, "invalidator", "lookaside-invalidator", "--source", f"sqlite://{database}", "--state-dir",
        folder / "positions", "--listen", f"127.0.0.1:{port}", "--cluster", f"one=127.0.0.1:{router}",
        "--cluster", f"two=127.0.0.1:{free_port()}", "--metrics-address", metrics_port, port=port,
    )  # fmt: skip
    state = "cluster:two:state running"
    eventually(lambda: any(state in line for line in ask(port, "stats")), "the journal is read")
    with sqlite3.connect(database) as journal:
        journal.execute("INSERT INTO lookaside_journal (key) VALUES ('a:key')")
    eventually(lambda: "cluster:NAME:why" in stats_of(port), "a delete fails")
    lag = "cluster:one:source_lag_ms -"
    eventually(lambda: not any(lag in line for line in ask(port, "stats")), "the lag is known")
    seen.add("lookaside-invalidator: stats", stats_of(port))
    seen.metrics["lookaside-invalidator"] = metrics_in(exposition(metrics_port))


def observe_monitor(stack: ExitStack, folder: Path, router: int, seen: Observed) -> None:
    """A monitor of the invalidator's database."""
    metrics_port = free_port()
    command = [
        PROGRAMS / "lookaside-monitor", "--source", f"sqlite://{folder / 'app.db'}", "--state-dir", folder / "monitor",
        "--cluster", f"one=127.0.0.1:{router}", "--metrics-address", metrics_port,
    ]  # fmt: skip
    monitor = Process("monitor", command, folder)
    stack.callback(monitor.stop)
    monitor.wait_ready(lambda: accepts(metrics_port))
    seen.metrics["lookaside-monitor"] = metrics_in(exposition(metrics_port))


def observe(folder: Path) -> Observed:
    """Starts a server, a router, an invalidator and a monitor, and asks them."""
    seen = Observed()
    with ExitStack() as stack:
        authority = Authority(folder)
        server = observe_server(stack, folder, authority, seen)
        router = observe_router(stack, folder, authority, server, seen)
        observe_invalidator(stack, folder, router, seen)
        observe_monitor(stack, folder, router, seen)
    return seen
