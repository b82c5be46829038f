"""A client that is used before and after a fork, in parent and child, and by threads that end."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from lookaside import Client
from processes import eventually, run_in_children

CHILD_S = 30
# Of a lookup of a host name, when the process is forked.
WHEN = ["resolved", "in flight"]


def run_in_child(work) -> None:
    """Runs `work` in a forked child; fails if it fails or hangs."""
    run_in_children([work], CHILD_S)


def test_a_child_has_connections_of_its_own(cache):
    cache.set("k", "parent")

    def child() -> None:
        for number in range(50):
            assert cache.get("k") == "parent"
            cache.set(f"child:{number}", number)
        assert cache.stats()["gets"] == 50

    run_in_child(child)
    assert cache.get_many([f"child:{number}" for number in range(50)]) == {
        f"child:{number}": number for number in range(50)
    }


def test_parent_and_children_use_one_client_at_the_same_time(cache):
    def child(name: str) -> None:
        for number in range(200):
            cache.set(name, number)
            assert cache.get(name) == number

    cache.set("k", 1)
    with ThreadPoolExecutor(4) as threads:
        names = [f"child:{number}" for number in range(4)]
        children = [threads.submit(run_in_child, lambda name=name: child(name)) for name in names]
        child("parent")
        for ended in children:
            ended.result()


# A program without threads of Python's, as such a fork is not safe with them.
FORKS_IN_C = """
import ctypes, os, sys
from lookaside import Client

cache = Client([sys.argv[1]], timeout=5)
cache.set("k", 1)
children = []
while len(children) < 2 and (pid := ctypes.PyDLL(None).fork()):
    children.append(pid)
name = f"process:{len(children)}"
for number in range(300):
    cache.set(name, number)
    assert cache.get(name) == number
if len(children) < 2:
    os._exit(0)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))
"""


def test_forks_that_python_does_not_know_of(address):
    """uWSGI forks its workers in C."""
    program = [sys.executable, "-c", FORKS_IN_C, address]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=CHILD_S)
    assert ended.returncode == 0, ended.stderr


def test_a_fork_while_other_threads_call(cache):
    """Another thread is in the middle of a call when the process is forked."""
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            cache.get("k")

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            run_in_child(lambda: cache.set("k", 1))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# Holds each lookup of a host name while the file LOOKUPS_HELD exists, after it has made the file LOOKUP_BEGUN.
HOLDS_LOOKUPS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*look_up)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        dlsym(RTLD_NEXT, "getaddrinfo");
    if (access(getenv("LOOKUPS_HELD"), F_OK) == 0)
        close(open(getenv("LOOKUP_BEGUN"), O_CREAT | O_WRONLY, 0600));
    while (access(getenv("LOOKUPS_HELD"), F_OK) == 0)
        usleep(1000);
    return look_up(node, service, hints, found);
}
"""

FORKS_DURING_A_LOOKUP = """
import os, sys, threading, time
from lookaside import Client

router, when = sys.argv[1:]
cache = Client([router], timeout=10)
if when == "resolved":
    os.unlink(os.environ["LOOKUPS_HELD"])
parents = threading.Thread(target=cache.set, args=("parent", 1))
parents.start()
while when == "in flight" and not os.path.exists(os.environ["LOOKUP_BEGUN"]):
    time.sleep(0.001)
if when == "resolved":
    parents.join()
pid = os.fork()
if when == "in flight" and pid == 0:
    os.unlink(os.environ["LOOKUPS_HELD"])
if pid == 0:
    cache.set("child", 1)
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
parents.join()
print(cache.get_many(["parent", "child"]))
"""


@pytest.mark.parametrize("when", WHEN)
def test_a_child_looks_host_names_up_by_itself(address, tmp_path, when):
    """Once a lookup that was in flight stayed so in a child: its connections waited for it until they timed out."""
    source, library, held = tmp_path / "lookups.c", tmp_path / "lookups.so", tmp_path / "held"
    source.write_text(HOLDS_LOOKUPS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    held.touch()
    environment = {"LD_PRELOAD": library, "LOOKUPS_HELD": held, "LOOKUP_BEGUN": tmp_path / "begun"}
    router = address.replace("127.0.0.1", "localhost")
    program = [sys.executable, "-c", FORKS_DURING_A_LOOKUP, router, when]
    ended = subprocess.run(program, env=os.environ | environment, capture_output=True, text=True, timeout=CHILD_S)
    assert (ended.returncode, ended.stdout) == (0, "0\n{'parent': 1, 'child': 1}\n"), ended.stderr


# A thread forks while another one is inside a call, which decodes a value for long.
FORKS_DURING_A_CALL = """
import os, sys, threading, time
from lookaside import Client

class Slow:
    def __reduce__(self):
        return (wait, ())

def wait():
    if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
        inside.set()
        forked.wait()

parent, inside, forked = os.getpid(), threading.Event(), threading.Event()
cache = Client([sys.argv[1]], timeout=5, pickle=True)
cache.set("k", Slow())
threading.Thread(target=lambda: cache.get("k")).start()
inside.wait()
began = time.monotonic()
pid = os.fork()
if pid == 0:
    sys.exit()
status = os.waitpid(pid, 0)[1]
print(status, time.monotonic() - began < 0.9, flush=True)
forked.set()
"""


def test_a_child_that_is_forked_during_a_call_ends_at_once(address):
    """An interpreter ends after threads that are inside a call, or a second. A child has none of them."""
    program = [sys.executable, "-c", FORKS_DURING_A_CALL, address]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=CHILD_S)
    assert (ended.returncode, ended.stdout) == (0, "0 True\n"), ended.stderr


def test_a_child_may_close_and_drop_its_parents_client(cache, address):
    other = Client([address])
    other.set("k", 1)

    def child() -> None:
        nonlocal other
        cache.close()
        other = None

    run_in_child(child)
    assert cache.get("k") == other.get("k") == 1


def test_closed_clients_leave_no_thread_and_no_descriptor(address):
    def count(folder: str) -> int:
        return len(os.listdir(f"/proc/self/{folder}"))

    def use() -> None:
        with Client([address]) as cache:
            cache.set("k", 1)

    use()
    before = (count("task"), count("fd"))
    for _ in range(20):
        use()
    # Threads end a moment after the client was closed.
    eventually(lambda: (count("task"), count("fd")) <= before, "threads and descriptors are gone")


@pytest.mark.parametrize("how", ["drop", "exit"])
def test_a_client_that_is_not_closed_ends(address, how):
    def child() -> None:
        cache = Client([address])
        cache.set("k", 1)
        if how == "drop":
            del cache

    run_in_child(child)
