"""What goes wrong around a client: signals, servers that hang, clients that are dropped or closed in the middle."""

import asyncio
import gc
import inspect
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from both_clients import KINDS, open_client
from leases import LeaseClient
from lookaside import AsyncClient, CacheUnavailableError, Client, ClosedError, ConfigurationError
from processes import PROGRAMS, Process, answers, eventually, free_port, frozen
from test_client_direct import KEYS, Router, text_of, wait_permitted

PROGRAM_S = 60
# For this long the servers keep a lease whose holder is gone.
LEASE_S = 10


def resources() -> tuple[int, int]:
    """The threads and descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def is_lease_free(port: int, key: str) -> bool:
    """Whether another client gets the lease of a key."""
    other = LeaseClient(port)
    try:
        return other.lease_get(key)[1] > 1
    finally:
        other.close()


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Runs a program of Python to its end."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=PROGRAM_S
    )


def assert_prints(program: str, address: str, line: str) -> None:
    """The program ends in order, after it has printed this and nothing else."""
    ended = run_program(program, address)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{line}\n", "")


def test_pools_of_an_event_loop_share_its_descriptor(address):
    async def main() -> None:
        async with AsyncClient([address], timeout=5) as cache:
            await cache.pool("first:").set("k", 1)
            before = resources()
            for number in range(50):
                pool = cache.pool(f"{number}:")
                await pool.set("k", number)
                assert await pool.get("k") == number
                assert await pool.pool("x:").get("k") is None
            assert resources() == before

    asyncio.run(main())


def test_a_dropped_client_ends_while_its_event_loop_runs(address):
    async def use() -> None:
        cache = AsyncClient([address], timeout=5)
        await cache.pool("a:").set("k", 1)

    async def main() -> None:
        await use()
        before = resources()
        for _ in range(10):
            await use()
        gc.collect()
        deadline = time.monotonic() + 10
        while resources() > before and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert resources() <= before

    asyncio.run(main())


def test_close_waits_for_a_loader_and_wakes_its_caller(address, cluster):
    async def main() -> None:
        cache = AsyncClient([address], timeout=5)
        loading, loaded = asyncio.Event(), asyncio.Event()

        async def load() -> str:
            loading.set()
            await loaded.wait()
            return "value"

        read = asyncio.create_task(cache.get_or_load("k", load))
        await loading.wait()
        closing = asyncio.create_task(cache.close())
        # `close` has begun once calls are refused. If it waited for nothing, it would end in the same turn.
        with pytest.raises(ClosedError):
            while True:
                await cache.get("other")
        assert not closing.done()
        loaded.set()
        assert await asyncio.wait_for(read, 10) == "value"
        await asyncio.wait_for(closing, 10)

    asyncio.run(main())
    assert cluster.client().get("k") == b"value", "it was stored"


def test_close_may_be_cancelled_and_called_again(address):
    async def main() -> None:
        cache = AsyncClient([address], timeout=5)
        loading, loaded = asyncio.Event(), asyncio.Event()

        async def load() -> str:
            loading.set()
            await loaded.wait()
            return "value"

        async with AsyncClient([address]) as other:
            # The first runtime of a process opens a few descriptors for all.
            await other.get("k")
        before = resources()
        read = asyncio.create_task(cache.get_or_load("k", load))
        await loading.wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(cache.close(), 0.05)
        loaded.set()
        assert await asyncio.wait_for(read, 10) == "value"
        await asyncio.wait_for(cache.close(), 10)
        for _ in range(3):
            with pytest.raises(ClosedError):
                await cache.get("k")
        while resources() > before:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), PROGRAM_S))


def test_an_event_loop_that_is_closed_with_a_reply_on_its_way_releases_the_lease(address, cluster):
    """No task will run the loader."""
    cache = AsyncClient([address], timeout=5)

    async def absent() -> None:
        """Finds no row."""

    async def leave() -> None:
        asyncio.create_task(cache.get_or_load("k", absent))
        # The task asks, and then the event loop has its last turn before the reply has come.
        await asyncio.sleep(0)

    asyncio.run(cache.set("other", 1))
    with frozen(cluster.router):
        asyncio.run(leave())
    eventually(lambda: cache.stats()["misses"] == 1, "the reply has come")
    before = resources()

    async def use() -> None:
        await cache.set("other", 1)

    asyncio.run(use())
    eventually(lambda: is_lease_free(cluster.port, "k"), "the lease is released", seconds=LEASE_S / 2)
    asyncio.run(use())
    assert resources() <= before
    asyncio.run(cache.close())


INTERRUPTED = """
import signal, sys, threading, time
from lookaside import Client

# A program that a shell runs in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
cache = Client([sys.argv[1]], timeout=30)
cache.set("k", 1)
print("ready", flush=True)
sys.stdin.readline()
began, gets = time.monotonic(), cache.stats()["gets"]

def announce():
    while cache.stats()["gets"] == gets:
        time.sleep(0.001)
    print("waiting", flush=True)

threading.Thread(target=announce).start()
try:
    if sys.argv[2] == "get":
        cache.get("k")
    else:
        cache.get_or_load("hot", lambda: 1, wait=30)
except KeyboardInterrupt:
    print("interrupted")
print(time.monotonic() - began < 5, flush=True)
"""


@pytest.mark.parametrize("call", ["get", "get_or_load"])
def test_ctrl_c_ends_a_call_that_waits(address, cluster, call):
    holder = LeaseClient(cluster.port)
    assert holder.lease_get("hot")[1] > 1
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, address, call], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == "ready\n"
        cluster.router.freeze() if call == "get" else None
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        assert program.communicate(timeout=20)[0] == "interrupted\nTrue\n"
    finally:
        cluster.router.thaw()
        program.kill()
        holder.close()


ENDS_WITH_THREADS_THAT_WAIT = """
import sys, threading, time
from lookaside import Client

cache = Client([sys.argv[1]], timeout=5)
running = threading.Barrier(9)

def read():
    running.wait()
    while True:
        cache.get("k")

def load():
    running.wait()
    cache.get_or_load("slow", lambda: time.sleep(60))

for work in [read] * 7 + [load]:
    threading.Thread(target=work, daemon=True).start()
running.wait()
while cache.stats()["gets"] < 100 or cache.stats()["loads"] == 0:
    time.sleep(0.001)
print("ended", flush=True)
"""


def test_an_interpreter_ends_while_threads_read_and_load(address):
    for _ in range(3):
        assert_prints(ENDS_WITH_THREADS_THAT_WAIT, address, "ended")


ENDS_WITH_THREADS_THAT_DECODE = """
import asyncio, sys, threading, time
from lookaside import AsyncClient, Client

class Slow:
    def __reduce__(self):
        return (pause, ())

def pause():
    for _ in range(50):
        time.sleep(0.001)

class EndsSlowly:
    def __del__(self, sleep=time.sleep):
        sleep(0.1)

cache = Client([sys.argv[1]], timeout=5, pickle=True)
cache.set("k", Slow())
cache.set("user:42", {"names": ["a", "b"] * 200})
running = threading.Barrier(6)

def read(key):
    running.wait()
    while True:
        cache.get(key)

async def read_later():
    async with AsyncClient([sys.argv[1]], timeout=5, pickle=True) as later:
        running.wait()
        while True:
            await later.get("k")

for work in [lambda: read("k")] * 2 + [lambda: read("user:42")] * 2 + [lambda: asyncio.run(read_later())]:
    threading.Thread(target=work, daemon=True).start()
ends_slowly = EndsSlowly()
running.wait()
cache.get("k")
print("ended", flush=True)
"""


def test_an_interpreter_ends_while_threads_decode(address):
    """They are inside a call that does not wait: `pickle.loads`, `json.loads` and event loops run code of Python."""
    for _ in range(3):
        assert_prints(ENDS_WITH_THREADS_THAT_DECODE, address, "ended")


ENDS_WITH_A_HANDLER_THAT_JOINS = """
import atexit, sys, threading
stop = threading.Event()

def join():
    stop.set()
    worker.join(20)
    print("alive" if worker.is_alive() else "joined", flush=True)

atexit.register(join)
from lookaside import Client

cache = Client([sys.argv[1]], timeout=5)
cache.set("k", [1])
running = threading.Event()

def read():
    while not stop.is_set():
        cache.get("k")
        running.set()

worker = threading.Thread(target=read, daemon=True)
worker.start()
running.wait()
"""


def test_a_handler_that_was_registered_first_may_join_threads(address):
    assert_prints(ENDS_WITH_A_HANDLER_THAT_JOINS, address, "joined")


ENDS_WITH_A_TASK_THAT_LOADS = """
import asyncio, sys
from lookaside import AsyncClient

cache = AsyncClient([sys.argv[1]], timeout=5)

async def load():
    loading.set()
    await asyncio.sleep(60)

async def main():
    global loading, task
    loading = asyncio.Event()
    task = asyncio.create_task(cache.get_or_load("slow", load))
    await loading.wait()

asyncio.run(main())
print("ended", flush=True)
"""


def test_a_read_that_is_cancelled_with_its_reply_releases_the_lease(address, cluster):
    """Reply and cancellation come in one turn of the event loop, and its error is kept."""

    async def main() -> None:
        cache = AsyncClient([address], timeout=5)
        await cache.set("other", 1)

        async def never() -> None:
            raise AssertionError("it was cancelled")

        channel, loop = cache._channel, asyncio.get_running_loop()
        loop.remove_reader(channel.fileno())
        task = asyncio.create_task(cache.get_or_load("k", never))
        while not select.select([channel.fileno()], [], [], 0)[0]:
            await asyncio.sleep(0.001)
        channel.complete()
        task.cancel()
        loop.add_reader(channel.fileno(), channel.complete)
        kept = []
        try:
            await task
        except asyncio.CancelledError as cancelled:
            kept.append(cancelled)
        assert kept
        await asyncio.wait_for(cache.close(), 5)
        # Long before the lease ends by itself.
        eventually(lambda: is_lease_free(cluster.port, "k"), "the lease is released", 5)

    asyncio.run(main())


CLOSED_ERROR_RUNS_CODE = """
import sys, threading
import lookaside.errors
from lookaside import Client

cache = Client([sys.argv[1]], timeout=5)
cache.set("k", 1)
cache.close()

class SlowError(lookaside.errors.ClosedError):
    def __init__(self, message):
        super().__init__(message)
        if threading.current_thread() is first:
            # As a finalizer does that runs here: another thread has the GIL, and calls.
            second.start()
            second.join()

def call():
    try:
        cache.get("k")
    except lookaside.ClosedError as error:
        refused.append(str(error))

refused = []
lookaside.errors.ClosedError = SlowError
first, second = threading.Thread(target=call), threading.Thread(target=call)
first.start()
first.join()
print(refused)
"""


def test_a_finalizer_may_run_while_a_closed_client_refuses_a_call(address):
    """Once the error was made under a lock, for which another thread waited with the GIL: the process hung."""
    assert_prints(CLOSED_ERROR_RUNS_CODE, address, "['the client is closed', 'the client is closed']")


def test_an_interpreter_ends_while_a_task_loads(address, cluster):
    assert_prints(ENDS_WITH_A_TASK_THAT_LOADS, address, "ended")


SUBINTERPRETER = """
import lookaside
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
interpreter = interpreters.create()
failure = interpreters.run_string(interpreter, '''
try:
    import lookaside
except ImportError as refused:
    print(refused)
''')
"""


def test_a_subinterpreter_is_refused():
    refused = run_program(SUBINTERPRETER)
    assert refused.returncode == 0 and "subinterpreter" in refused.stdout, refused.stderr


def test_the_default_timeout_lets_a_router_give_up_a_server():
    """Else one server that hangs makes a whole `get_many` fail."""
    text = subprocess.run([PROGRAMS / "lookaside-router", "--help"], capture_output=True, text=True).stdout

    def default_ms(option: str) -> int:
        return int(re.search(rf"--{option} <.*?\[default: (\d+)\]", text, re.DOTALL)[1])

    timeout_s = inspect.signature(Client).parameters["timeout"].default
    assert 1_000 * timeout_s / 2 > default_ms("server-timeout") + default_ms("failover-timeout")


@pytest.fixture
def patient(tmp_path, servers):
    """A router whose configuration gives servers more time than clients have."""
    file = tmp_path / "patient.json"
    configuration = json.loads(text_of(servers))
    configuration["pools"]["main"]["server_timeout"] = 10_000
    file.write_text(json.dumps(configuration))
    router = Router(tmp_path, f"file:{file}")
    yield router
    router.thaw()
    router.stop()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_server_that_hangs_fails_its_own_keys_only(patient, servers, kind):
    async def main() -> None:
        def call(method, *arguments, **options):
            return asyncio.to_thread(method, *arguments, **options) if kind is Client else method(*arguments, **options)

        cache = kind([patient.address], config=patient.config, timeout=1.5)
        await asyncio.to_thread(wait_permitted, cache)
        assert await call(cache.set_many, dict.fromkeys(KEYS, 1)) == {}
        with frozen(servers[0]):
            began = time.monotonic()
            found = await call(cache.get_many, KEYS)
            assert time.monotonic() - began < 1.5
        assert 0 < len(found) < len(KEYS)
        assert cache.stats()["errors"] == len(KEYS) - len(found)
        await call(cache.close)

    asyncio.run(main())


def test_a_page_has_statistics_of_its_own(address, cache):
    page = cache.with_own_statistics()
    cache.set("k", 1)
    assert page.get("k") == 1 and page.pool("user:").get("k") is None
    assert page.get_or_load("l", lambda: 2) == 2
    mine, all_ = page.stats(), cache.stats()
    assert (mine["gets"], mine["hits"], mine["loads"], mine["fills"]) == (3, 1, 1, 1)
    assert mine["bytes_written"] == 1 and all_["bytes_written"] == 2
    assert all_["gets"] == 3 and cache.with_own_statistics().stats()["gets"] == 0

    async def main() -> None:
        async with AsyncClient([address], timeout=5) as later:
            pages = [later.with_own_statistics() for _ in range(3)]
            found = await asyncio.gather(*(page.get("k") for page in [*pages, later, pages[0].pool("")]))
            assert found == [1] * 5
            assert [page.stats()["gets"] for page in [*pages, later]] == [2, 1, 1, 5]
            assert [page.stats()["round_trips"] for page in [*pages, later]] == [1, 1, 1, 4]

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_datagram_is_a_miss(tmp_path, kind):
    """Once `get` raised `RefusedError` for it, and `get_many` if it was that of all keys."""
    server = UdpServer("udp", tmp_path)
    file = tmp_path / "udp.json"
    file.write_text(text_of([server]))
    router = Router(tmp_path, f"file:{file}")
    try:
        with open_client(kind, [router.address], config=router.config, udp=True, timeout=10) as cache:
            wait_permitted(cache)
            assert cache.set_many({"k": 1, "l": 2}) == {}
            # The server is sent its gets by TCP when it has not answered three.
            with frozen(server):
                assert cache.get("k", "default") == "default"
                assert cache.get_many(["k", "l"]) == {}
                assert cache.get_or_load("k", lambda: "loaded") == "loaded"
            figures = cache.stats()
            assert figures["udp.lost"] == 3 and figures["errors"] == 4, figures
            assert (figures["fills"], figures["fills_refused"]) == (0, 0)
            eventually(lambda: cache.get("k") == 1, "the server is read again")
    finally:
        router.stop()
        server.stop()


def test_a_lookup_whose_datagram_was_lost_is_not_refused(tmp_path):
    """Once it was a `RefusedError`, as that of a server without leases: dogpile.cache then stored without one."""
    server = UdpServer("udp", tmp_path)
    file = tmp_path / "udp.json"
    file.write_text(text_of([server]))
    router = Router(tmp_path, f"file:{file}")
    try:
        with Client([router.address], config=router.config, udp=True, timeout=10) as cache:
            wait_permitted(cache)
            with frozen(server), pytest.raises(CacheUnavailableError, match="UDP"):
                cache._core.look_up("k", None)
    finally:
        router.stop()
        server.stop()


class UdpServer(Process):
    """A server whose gets may come by UDP."""

    def __init__(self, name: str, log_dir) -> None:
        self.port = free_port()
        super().__init__(name, [PROGRAMS / "lookaside-server", "-p", self.port, "-U", self.port, "-m", "64"], log_dir)
        self.wait_ready(lambda: answers(self.port))


def test_gets_by_udp(tmp_path, address):
    servers = [UdpServer(f"udp-{index}", tmp_path) for index in range(2)]
    file = tmp_path / "udp.json"
    file.write_text(text_of(servers))
    router = Router(tmp_path, f"file:{file}")
    try:
        with Client([router.address], config=router.config, udp=True, timeout=5) as cache:
            wait_permitted(cache)
            cache.set_many(dict.fromkeys(KEYS, 1))
            found = cache.get_many(KEYS)
            figures = cache.stats()
            assert figures["udp.keys"] == len(KEYS), figures
            lost = figures["udp.lost"] + figures["udp.reordered"]
            assert set(found.values()) == {1} and (lost or len(found) == len(KEYS)), figures
    finally:
        router.stop()
        for server in servers:
            server.stop()
    with pytest.raises(ConfigurationError, match="routers are reached by TCP"):
        Client([address], udp=True)
