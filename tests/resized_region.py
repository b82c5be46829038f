"""A cluster whose pool changes its servers: routers that are peers, and traffic whose reads are checked."""

import contextlib
import hashlib
import json
import random
import re
import shutil
import subprocess
import threading
from pathlib import Path

from leases import HOT_MISS, LeaseClient
from observed_programs import exposition
from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port, stats

KEYS = [f"row:{number}" for number in range(200)]


def text_of(servers: list[Server], name: str = "main", **pool) -> str:
    """A configuration with one pool."""
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    return json.dumps({"pools": {name: {"servers": addresses, **pool}}, "route": f"PoolRoute|{name}"})


class Router(Process):
    """A router with a spool, peers, and a configuration file of its own."""

    def __init__(self, tmp_path, text: str, port: int, peers: list[int], server_timeout_ms: int = 300) -> None:
        self.port, self.metrics_port = port, free_port()
        self.file = tmp_path / f"router-{port}.json"
        self.file.write_text(text)
        command = [
            PROGRAMS / "lookaside-router", "-p", port, "-f", self.file, "--num-proxies", "2",
            "--server-timeout", server_timeout_ms, "--probe-timeout-initial", "50", "--probe-timeout-max", "200",
            "--config-cache", tmp_path / f"cache-{port}.json",
            "--spool", tmp_path / f"spool-{port}",
            "--metrics-address", f"127.0.0.1:{self.metrics_port}",
            "--upgrade-socket", tmp_path / f"upgrade-{port}", "--take-over", "--enable-flush-cmd",
        ]  # fmt: skip
        if peers:
            command += ["--spool-peers", ",".join(f"127.0.0.1:{peer}" for peer in peers)]
        super().__init__(f"router-{port}", command, tmp_path)
        self.wait_ready(lambda: answers(port))

    def restart(self) -> None:
        """Starts it again, with what it has on disk."""
        self.start()
        self.wait_ready(lambda: answers(self.port))

    def upgrade(self) -> None:
        """Starts a process that takes over."""
        predecessor = self.running
        self.start()
        eventually(lambda: predecessor.poll() is not None, f"taken over:\n{self.log()[-4000:]}")
        assert predecessor.returncode == 0 and answers(self.port)

    def copy_coverage(self, config_cache: Path) -> None:
        """Copies the file of its covered configurations to where another `--config-cache` has it."""
        own = self.command[self.command.index("--config-cache") + 1]
        shutil.copy(f"{own}.coverage", f"{config_cache}.coverage")

    def set_config_cache(self, config_cache: Path | str) -> str:
        """Gives the next process another `--config-cache`, and returns the former one."""
        place = self.command.index("--config-cache") + 1
        former, self.command[place] = self.command[place], str(config_cache)
        return former

    def configure(self, text: str) -> None:
        """Replaces the file, as an operator does, by a rename."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def admin(self, name: str) -> str:
        """A value of the router about itself; empty if it has none."""
        client = connect(self.port)
        try:
            return (client.get(f"__mcrouter__.{name}") or b"").decode()
        finally:
            client.close()

    def reads_by(self, text: str) -> bool:
        """Whether requests are routed by that configuration."""
        return self.admin("config_md5_digest") == hashlib.md5(text.encode()).hexdigest()

    def is_steady(self) -> bool:
        """Whether no change is in progress."""
        return stats(self.port).get("resize_state", "steady") == "steady"


def metric_states(router: Router) -> list[str]:
    """The values of the label `state` with which the metric of a change is 1."""
    return re.findall(
        r'^lookaside_router_resize_state\{state="(\w+)"\} 1$', exposition(router.metrics_port), re.MULTILINE
    )


def routes(key: str, router: Router, *ports: int) -> tuple[subprocess.CompletedProcess, list[dict]]:
    """`lookaside route` by the router's file, which also asks the routers at these ports."""
    addresses = ",".join(map(str, ports))
    command = [PROGRAMS / "lookaside", "route", "get", key, "-f", router.file, f"--routers={addresses}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done, json.loads(done.stdout)["routers"]


class Traffic:
    """A writer and readers, until the end of the test."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.rows = dict.fromkeys(KEYS, 1)
        self.acknowledged = dict.fromkeys(KEYS, 0)
        self.writes = self.hits = 0
        self.stale: list[str] = []
        self.stop_requested = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(self.write_one, 1))]
        self.threads += [threading.Thread(target=self.run, args=(self.read_one, seed)) for seed in (2, 3)]
        for thread in self.threads:
            thread.start()

    def run(self, step, seed: int) -> None:
        chance, clients = random.Random(seed), {}
        while not self.stop_requested.is_set():
            port, key = chance.choice(self.ports), chance.choice(KEYS)
            with contextlib.suppress(OSError, AssertionError, IndexError, ValueError):
                client = clients.pop(port, None) or LeaseClient(port)
                step(client, key)
                clients[port] = client
        for client in clients.values():
            client.close()

    def write_one(self, client: LeaseClient, key: str) -> None:
        self.rows[key] += 1
        version = self.rows[key]
        if client.command(b"delete " + key.encode()) in (b"DELETED", b"NOT_FOUND"):
            self.acknowledged[key] = version
            self.writes += 1

    def read_one(self, client: LeaseClient, key: str) -> None:
        floor = self.acknowledged[key]
        value, token, _ = client.lease_get(key)
        if value is not None:
            self.hits += 1
            if int(value) < floor:
                self.stale.append(f"{key}: {int(value)} after {floor} was acknowledged")
        elif token > HOT_MISS:
            client.lease_set(key, token, b"%d" % self.rows[key])

    def flow(self) -> None:
        """Waits until rows and caches have changed."""
        writes, hits = self.writes + 150, self.hits + 300
        eventually(lambda: self.writes >= writes and self.hits >= hits, "writes and hits", 60)

    def stop(self) -> None:
        self.stop_requested.set()
        for thread in self.threads:
            thread.join()

    def check(self) -> None:
        """Reads every key through every router once more."""
        self.stop()
        for port in self.ports:
            client = connect(port)
            for key in KEYS:
                value = client.get(key)
                if value is not None and int(value) < self.acknowledged[key]:
                    self.stale.append(f"{key} at the end: {int(value)} after {self.acknowledged[key]}")
            client.close()
        assert not self.stale, f"{len(self.stale)} stale reads of {self.hits} hits: {self.stale[:5]}"


class Region:
    """Servers, routers, and traffic. Every pool has the settings `pool`."""

    def __init__(self, tmp_path, routers: int = 2, **pool) -> None:
        self.pool = pool
        self.servers = [Server(f"server-{index}", tmp_path) for index in range(4)]
        self.text = text_of(self.servers[:3], **pool)
        ports = [free_port() for _ in range(routers)]
        self.routers = [Router(tmp_path, self.text, port, [peer for peer in ports if peer != port]) for port in ports]
        self.traffic = Traffic(ports)

    def configure(self, servers: list[int], **pool) -> str:
        """Gives all routers a new file."""
        self.text = text_of([self.servers[index] for index in servers], **self.pool, **pool)
        for router in self.routers:
            router.configure(self.text)
        return self.text

    def wait_in_force(self, routers: list[Router] | None = None) -> None:
        """Waits until requests are routed by the last configuration."""
        for router in routers or self.routers:
            eventually(lambda router=router: router.reads_by(self.text), f"in force:\n{router.log()[-4000:]}", 40)

    def wait_steady(self) -> None:
        """Waits until only the last configuration is covered."""
        for router in self.routers:
            eventually(router.is_steady, f"steady:\n{router.log()[-4000:]}", 60)

    def total(self, name: str) -> int:
        """A statistic, summed over the routers."""
        return sum(int(stats(router.port)[name]) for router in self.routers)

    def owners(self) -> dict[str, str]:
        """The server of each key."""
        return {key: self.routers[0].admin(f"route(get,{key})").split()[0] for key in KEYS}

    def stop(self) -> None:
        self.traffic.stop()
        for process in [*self.routers, *self.servers]:
            process.stop()
