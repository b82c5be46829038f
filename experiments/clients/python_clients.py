"""The Python client beside other Python clients, in one run: time of a get, of 100 keys, and of 1,000 concurrent gets.

What: one thread of one process, values of VALUE_BYTES bytes, every key in the cache.

* a get of one key, one after the other;
* a get of KEYS keys that are spread over SERVERS servers;
* CONCURRENT gets at once, each of one key, in one event loop.

How: SERVERS servers and a router on this machine. The other clients ask the servers; ours asks the router, or the
servers by the router's configuration (`config=`). The clients take turns in each of ROUNDS rounds, and the median is
reported, so that all share the same disturbance. Every client has keys of its own, and its values are checked. Beside
them bare sockets send the same requests, composed before, and count the bytes of the replies: what no client of this
many servers can do without, as each takes a system call to send and one to receive.

    make python-clients    two minutes; writes docs/measurements/python_clients.md
"""

import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import aiomcache
import emcache
import memcache
import pylibmc
from lookaside import AsyncClient, Client
from meta_memcache import CacheClient, ServerAddress, connection_pool_factory_builder
from processes import PROGRAMS, ROOT, Process, answers, eventually, free_port
from pymemcache.client.hash import HashClient

from experiments import command_line, machine_facts

SERVERS = 8
KEYS = 100
CONCURRENT = 1_000
VALUE_BYTES = 100
ROUNDS = 15
REPORT = ROOT / "docs" / "measurements" / "python_clients.md"
OURS, OURS_DIRECT = "lookaside, through a router", "lookaside, directly"
BARE = "bare sockets, without a client"
VALUE = b"v" * VALUE_BYTES
MANY_US_MAX = 200
RATE_RATIO_MIN = 3

TEXT = """# Python clients

`make python-clients` measures this and writes this page: one thread, values of {value_bytes} bytes, every key in the
cache, {servers} servers and a router on the same machine. The clients take turns in each of {rounds} rounds; each
figure is the median of the rounds, in brackets the lowest and highest.

| client | a get, us | {keys} keys over {servers} servers, us |
|---|---|---|
{blocking}

{concurrent} gets at once in one event loop, each of one key:

| client | gets/s |
|---|---|
{event_loop}

| bar, for lookaside directly | measured | |
|---|---|---|
{bars}

The ratios are medians of those of the rounds. The other clients ask the servers. aiomcache knows one server only, so
its gets all go to one. Bare sockets send requests that were composed before, one to each server, and count the bytes of
the replies, which is the least that a program in Python can do: {floor}.

{facts}
"""

Get = Callable[[str], object]
GetMany = Callable[[list[str]], object]


def keys_of(client: str) -> list[str]:
    """The keys of a client, as many as are read at once. Other clients' flags need not be its own."""
    return [f"{client.split(',')[0].replace(' ', '-')}:{number}" for number in range(CONCURRENT)]


@contextlib.contextmanager
def cluster() -> Iterator[tuple[list[int], int, str]]:
    """The servers' ports, the router's, and the router's configuration."""
    with tempfile.TemporaryDirectory(prefix="lookaside-clients-") as name, contextlib.ExitStack() as running:

        def start(label: str, port: int, *words: object) -> None:
            process = Process(label, [*words, "-p", port], Path(name))
            running.callback(process.stop)
            process.wait_ready(lambda: answers(port))

        ports = [free_port() for _ in range(SERVERS)]
        for port in ports:
            start(f"server-{port}", port, PROGRAMS / "lookaside-server", "-t", 1, "-m", 64)
        file, router = Path(name) / "router.json", free_port()
        pool = {"servers": [f"127.0.0.1:{port}" for port in ports]}
        file.write_text(json.dumps({"pools": {"main": pool}, "route": "PoolRoute|main"}))
        start("router", router, PROGRAMS / "lookaside-router", "-f", file, "--num-proxies", 1)
        yield ports, router, f"file:{file}"


class BareSockets:
    """A socket for each server; the keys go to the servers in turn. Nothing is composed or parsed while time counts."""

    def __init__(self, ports: list[int], keys: list[str]) -> None:
        self.sockets = [socket.create_connection(("127.0.0.1", port), timeout=10) for port in ports]
        for sock in self.sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.servers = {key: number % len(ports) for number, key in enumerate(keys)}
        for key, server in self.servers.items():
            self.ask(server, b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), VALUE_BYTES, VALUE), len(b"STORED\r\n"))
        self.gets = {key: self.request([key]) for key in keys}
        self.wanted, self.pages = keys[:KEYS], []
        for server in range(len(ports)):
            self.pages.append(self.request([key for key in self.wanted if self.servers[key] == server]))

    @staticmethod
    def request(keys: list[str]) -> tuple[bytes, int]:
        """The request for keys of one server, and the bytes of its reply."""
        reply = sum(len(f"VALUE {key} 0 {VALUE_BYTES}\r\n") + VALUE_BYTES + 2 for key in keys) + len("END\r\n")
        return f"get {' '.join(keys)}\r\n".encode(), reply

    def receive(self, server: int, count: int) -> bytes:
        """A reply of `count` bytes."""
        reply = self.sockets[server].recv(1 << 16)
        while len(reply) < count:
            reply += self.sockets[server].recv(1 << 16)
        return reply

    def ask(self, server: int, request: bytes, count: int) -> bytes:
        """The reply to a request."""
        self.sockets[server].sendall(request)
        return self.receive(server, count)

    def get(self, key: str) -> bytes:
        """The value of a key."""
        return self.ask(self.servers[key], *self.gets[key])[-VALUE_BYTES - 7 : -7]

    def get_many(self, keys: list[str]) -> list[str]:
        """These keys, which are the first ones, once they have been received."""
        assert keys == self.wanted
        for sock, (request, _) in zip(self.sockets, self.pages, strict=True):
            sock.sendall(request)
        for server, (_, count) in enumerate(self.pages):
            self.receive(server, count)
        return keys


def blocking_clients(ports: list[int], router: int, config: str) -> dict[str, tuple[Get, GetMany]]:
    """Each client's calls for one key and for many, with the keys stored where it looks for them."""
    servers = [f"127.0.0.1:{port}" for port in ports]
    ours = Client([f"127.0.0.1:{router}"], timeout=10)
    direct = Client([f"127.0.0.1:{router}"], config=config, timeout=10)
    eventually(lambda: direct.stats()["direct.is_permitted"] == 1, "reads go to servers")
    pymemcache = HashClient([("127.0.0.1", port) for port in ports], timeout=10, no_delay=True)
    libmemcached = pylibmc.Client(servers, behaviors={"tcp_nodelay": True, "ketama": True})
    python_memcached = memcache.Client(servers)
    meta = CacheClient.cache_client_from_servers(
        servers=[ServerAddress("127.0.0.1", port) for port in ports],
        connection_pool_factory_fn=connection_pool_factory_builder(),
    )
    setters = {
        OURS: ours.set,
        "pylibmc": libmemcached.set,
        "pymemcache": pymemcache.set,
        "python-memcached": python_memcached.set,
        "meta-memcache": lambda key, value: meta.set(key, value, 0),
    }
    for name, store in setters.items():
        for key in keys_of(name):
            store(key, VALUE)
    bare = BareSockets(ports, keys_of(BARE))
    return {
        BARE: (bare.get, bare.get_many),
        OURS: (ours.get, ours.get_many),
        OURS_DIRECT: (direct.get, direct.get_many),
        "pylibmc": (libmemcached.get, libmemcached.get_multi),
        "pymemcache": (pymemcache.get, pymemcache.get_many),
        "python-memcached": (python_memcached.get, python_memcached.get_multi),
        "meta-memcache": (meta.get, lambda keys: meta.multi_get(keys)),
    }


def measure_blocking(clients: dict[str, tuple[Get, GetMany]], repeats: int) -> dict[str, tuple[list, list]]:
    """For each client the times of a get and of a get of many, in us, of each round."""
    for name, (get, get_many) in clients.items():
        wanted = keys_of(name)[:KEYS]
        assert get(wanted[0]) == VALUE, name
        assert len(get_many(wanted)) == KEYS, name
    times: dict[str, tuple[list, list]] = {name: ([], []) for name in clients}
    for _ in range(ROUNDS):
        for name, (get, get_many) in clients.items():
            singles, wanted = keys_of(name)[:repeats], keys_of(name)[:KEYS]
            began = time.perf_counter()
            for key in singles:
                get(key)
            times[name][0].append((time.perf_counter() - began) / repeats * 1e6)
            began = time.perf_counter()
            for _ in range(repeats // 10):
                get_many(wanted)
            times[name][1].append((time.perf_counter() - began) / (repeats // 10) * 1e6)
    return times


async def measure_event_loop(ports: list[int], router: int, config: str) -> dict[str, list[float]]:
    """For each client the concurrent gets a second of each round."""
    ours = AsyncClient([f"127.0.0.1:{router}"], timeout=10)
    direct = AsyncClient([f"127.0.0.1:{router}"], config=config, timeout=10)
    while not direct.stats()["direct.is_permitted"]:
        await asyncio.sleep(0.01)
    em = await emcache.create_client([emcache.MemcachedHostAddress("127.0.0.1", port) for port in ports], timeout=10)
    aiom = aiomcache.Client("127.0.0.1", ports[0])
    setters: dict[str, Callable] = {
        OURS: ours.set,
        "emcache": lambda key, value: em.set(key.encode(), value),
        "aiomcache": lambda key, value: aiom.set(key.encode(), value),
    }
    for name, store in setters.items():
        for key in keys_of(name):
            await store(key, VALUE)

    async def get_with_emcache(key: str) -> bytes:
        item = await em.get(key.encode())
        return item.value

    gets: dict[str, Callable[[str], Awaitable[bytes]]] = {
        OURS: ours.get,
        OURS_DIRECT: direct.get,
        "emcache": get_with_emcache,
        "aiomcache": lambda key: aiom.get(key.encode()),
    }
    rates: dict[str, list[float]] = {name: [] for name in gets}
    for _ in range(ROUNDS):
        for name, get in gets.items():
            wanted = keys_of(name)
            began = time.perf_counter()
            values = await asyncio.gather(*(get(key) for key in wanted))
            rates[name].append(CONCURRENT / (time.perf_counter() - began))
            assert values == [VALUE] * CONCURRENT, name
    await ours.close()
    await direct.close()
    await em.close()
    await aiom.close()
    return rates


def spread(values: list[float]) -> str:
    """The median, the lowest and the highest."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def bars(blocking: dict, event_loop: dict) -> list[str]:
    """A row for each bar: what was asked for, measured, and whether it is met."""
    (one, many), (peer_one, peer_many) = blocking[OURS_DIRECT], blocking["pylibmc"]
    many_us = statistics.median(many)
    many_ratio = statistics.median(ours / peer for ours, peer in zip(many, peer_many, strict=True))
    one_ratio = statistics.median(ours / peer for ours, peer in zip(one, peer_one, strict=True))
    peers = event_loop["emcache"]
    rates = statistics.median(ours / peer for ours, peer in zip(event_loop[OURS_DIRECT], peers, strict=True))
    times = f"{many_ratio:.2f} times pylibmc's"
    rows = [
        (f"{KEYS} keys: at most {MANY_US_MAX} us", f"{many_us:.0f} us, {times}", many_us <= MANY_US_MAX),
        ("a get: no slower than pylibmc's", f"{one_ratio:.2f} times its time", one_ratio <= 1),
        (f"an event loop: at least {RATE_RATIO_MIN} times emcache's", f"{rates:.1f}", rates >= RATE_RATIO_MIN),
    ]
    return [f"| {bar} | {measured} | {'met' if is_met else 'missed'} |" for bar, measured, is_met in rows]


def main() -> int:
    """Measures, and writes the page."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=500, help="gets of a client in a round (%(default)s)")
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    options = parser.parse_args()
    facts = machine_facts.facts()
    with cluster() as region:
        blocking = measure_blocking(blocking_clients(*region), min(options.repeats, CONCURRENT))
        event_loop = asyncio.run(measure_event_loop(*region))
    floor_us = statistics.median(blocking[BARE][1])
    text = TEXT.format(
        floor=f"{floor_us:.0f} us of {statistics.median(blocking[OURS_DIRECT][1]):.0f} us for {KEYS} keys",
        value_bytes=VALUE_BYTES,
        servers=SERVERS,
        rounds=ROUNDS,
        keys=KEYS,
        concurrent=f"{CONCURRENT:,}",
        blocking="\n".join(f"| {name} | {spread(one)} | {spread(many)} |" for name, (one, many) in blocking.items()),
        event_loop="\n".join(f"| {name} | {spread(rates)} |" for name, rates in event_loop.items()),
        bars="\n".join(bars(blocking, event_loop)),
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )
    if options.report:
        REPORT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
