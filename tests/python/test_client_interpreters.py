"""Clients in whole programs: signals, the end of an interpreter, finalizers, subinterpreters."""

import signal
import subprocess
import sys

import pytest
from leases import LeaseClient

PROGRAM_S = 60


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Runs a program of Python to its end."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=PROGRAM_S
    )


def assert_prints(program: str, address: str, line: str) -> None:
    """The program ends in order, after it has printed this and nothing else."""
    ended = run_program(program, address)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{line}\n", "")


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
