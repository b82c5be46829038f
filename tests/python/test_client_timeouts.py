"""`timeout` of `get_or_load` bounds its waiting for the cache, all of it together, whatever it waits for."""

import threading
import time

import pytest
from both_clients import KINDS, open_client
from leases import LeaseClient
from processes import eventually

TIMEOUT_S = 0.5
# How long a miss would wait for another client's load.
WAIT_S = 60
# Longer than a loaded machine needs, and less than the wait.
BOUND_S = 30


@pytest.fixture(params=KINDS)
def patient(request, address):
    """A client that gives nothing up by itself, connected."""
    with open_client(request.param, [address], timeout=4 * WAIT_S) as cache:
        cache.set("other", 1)
        yield cache


@pytest.fixture
def holder(cluster):
    """Another client, which keeps the leases that it gets."""
    holder = LeaseClient(cluster.port)
    yield holder
    holder.close()


@pytest.fixture
def router(cluster):
    """A router that a test may freeze."""
    yield cluster.router
    cluster.router.thaw()


def test_a_router_that_hangs(patient, router):
    router.freeze()
    began = time.monotonic()
    assert patient.get_or_load("k", lambda: "loaded", timeout=TIMEOUT_S, wait=WAIT_S) == "loaded"
    assert time.monotonic() - began < BOUND_S
    router.thaw()
    assert patient.get("k") is None, "what was loaded without an answer was not filled"


def test_another_client_that_holds_the_lease(patient, holder):
    """Once each step could take the timeout and `wait` on top."""
    _, token, _ = holder.lease_get("hot")
    assert token > 1
    assert patient.get_or_load("hot", lambda: "loaded", timeout=TIMEOUT_S, wait=WAIT_S) == "loaded"
    assert holder.lease_set("hot", token, b"filled") == b"STORED", "it was not waited for until the lease had ended"
    assert patient.stats()["fills"] == 0


def test_a_router_that_hangs_while_the_value_is_loaded(patient, router):
    def load() -> str:
        router.freeze()
        return "loaded"

    began = time.monotonic()
    assert patient.get_or_load("k", load, timeout=TIMEOUT_S, wait=WAIT_S) == "loaded"
    assert time.monotonic() - began < BOUND_S


def test_all_steps_share_the_timeout(patient, holder, router):
    """The first lookup takes most of it, as the router hangs; the wait for the other client gets what is left. With all
    of it, that would last until the other client's lease has ended, after 10 s, and the value would be filled.
    """
    assert holder.lease_get("hot")[1] > 1
    router.freeze()
    later = threading.Timer(5, router.thaw)
    later.start()
    found = patient.get_or_load_many(["hot", "cold"], lambda keys: keys, timeout=6, wait=WAIT_S)
    later.join()
    assert found == {"hot": "hot", "cold": "cold"}
    assert patient.get("hot") is None


def test_the_time_of_the_loader_does_not_count(patient):
    began = time.monotonic()

    def load() -> str:
        eventually(lambda: time.monotonic() - began > 3, "the timeout has passed")
        return "loaded"

    assert patient.get_or_load("k", load, timeout=2) == "loaded"
    assert patient.get("k") == "loaded", "it was filled"
