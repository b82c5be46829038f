"""An error names the key, the argument or the router that it is about: a call may have hundreds of keys."""

import pytest
from both_clients import KINDS, open_client
from lookaside import (
    CacheUnavailableError,
    Client,
    ConfigurationError,
    DecodeError,
    EncodeError,
    InvalidKeyError,
    Plan,
    RefusedError,
)
from processes import free_port

# A set, which JSON has no form for.
NO_VALUE = {1}
# A pickle, which the client does not read, and flags of no format.
UNREADABLE_FLAGS = [1, 3]


@pytest.fixture(params=KINDS)
def cache(request, address):
    """Either client."""
    with open_client(request.param, [address], timeout=5) as cache:
        yield cache


@pytest.mark.parametrize(
    ("key", "shown"), [("two words", '"two words"'), (b"\xff\n", r"\\n"), ("x" * 300, r'x"\.\.\.:')]
)
def test_an_invalid_key(cache, key, shown):
    for call in (
        lambda: cache.get(key),
        lambda: cache.get_many(["good", key, "better"]),
        lambda: cache.set(key, 1),
        lambda: cache.set_many({"good": 1, key: 2}),
        lambda: cache.delete_many(["good", key]),
        lambda: cache.get_or_load(key, lambda: 1),
    ):
        with pytest.raises(InvalidKeyError, match=f"bad key .*{shown}"):
            call()


def test_the_key_of_a_pool_is_the_one_that_is_sent(cache):
    with pytest.raises(InvalidKeyError, match='bad key "users:two words"'):
        cache.pool("users:").get("two words")


def test_a_key_of_another_type(cache):
    with pytest.raises(TypeError, match="not int: 42"):
        cache.get_many(["good", 42])


@pytest.mark.parametrize("flags", UNREADABLE_FLAGS)
def test_a_value_that_cannot_be_read(cluster, cache, flags):
    cache.set("good", 1)
    cluster.client().set("unreadable", b"x", flags=flags)
    with pytest.raises(DecodeError, match='^"unreadable": '):
        cache.get("unreadable")
    with pytest.raises(DecodeError, match='^"unreadable": '):
        cache.get_many(["good", "unreadable"])
    cluster.client().set("users:unreadable", b"x", flags=flags)
    with pytest.raises(DecodeError, match='^"users:unreadable": '):
        cache.pool("users:").get_many(["good", "unreadable"])


def test_a_value_that_cannot_be_stored(cache):
    for call in (
        lambda: cache.set("k", NO_VALUE),
        lambda: cache.add("k", NO_VALUE),
        lambda: cache.set_many({"good": 1, "k": NO_VALUE}),
    ):
        with pytest.raises(EncodeError, match='^"k": cannot store a value of type set') as refused:
            call()
        assert type(refused.value.__cause__) is TypeError, "what JSON has raised"
    for load in (
        lambda: cache.get_or_load("k", lambda: NO_VALUE),
        lambda: cache.get_or_load_many(["good", "k"], lambda keys: [NO_VALUE if key == "k" else 1 for key in keys]),
    ):
        with pytest.raises(EncodeError, match='^"k": cannot store a value of type set'):
            load()


@pytest.mark.parametrize(
    ("loaded", "error", "message"),
    [
        (["x"], ValueError, "returned 1 values for 2 keys: 'a', 'b'"),
        (None, TypeError, "loader of 'a', 'b' returned a NoneType; expected a dictionary"),
        ("xy", TypeError, "returned a str"),
    ],
)
def test_a_loader_that_returns_something_else(cache, loaded, error, message):
    """Once the two letters of a text were the values of two keys."""
    with pytest.raises(error, match=message):
        cache.get_or_load_many(["a", "b"], lambda keys: loaded)


def test_a_loader_of_a_plan_that_returns_too_little(address):
    plan = Plan()
    plan.node(["a", "b", "c", "d"], lambda keys: ["x"])
    message = "returned 1 values for 4 keys: 'a', 'b', 'c' and 1 others"
    with Client([address], timeout=5) as cache, pytest.raises(ValueError, match=message):
        cache.run_plan(plan)


def test_a_time_that_means_nothing(cache):
    for call, message in (
        (lambda: cache.get("k", timeout=0), "timeout is 0 s"),
        (lambda: cache.set("k", 1, ttl=-1), "ttl is -1 s"),
        (lambda: cache.get_or_load("k", lambda: 1, absent_ttl=0), "absent_ttl is 0 s"),
        (lambda: cache.get_or_load("k", lambda: 1, wait=-1), "wait is -1 s"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            call()


def test_a_router_that_does_not_answer_or_refuses(address):
    gone = f"127.0.0.1:{free_port()}"
    with Client([gone]) as cache:
        with pytest.raises(CacheUnavailableError, match=f"no reply from the routers {gone}: "):
            cache.explain("k")
        with pytest.raises(CacheUnavailableError, match=f"router {gone}: cannot connect"):
            cache.flush_all()
        with pytest.raises(CacheUnavailableError, match="2 of 2 keys may not be deleted, the first of them k: "):
            cache.delete_many(["k", "l"])
    with Client([address]) as cache, pytest.raises(RefusedError, match=f"router {address}: "):
        cache.flush_all()


def test_a_server_in_place_of_a_router(cluster):
    """Once an explanation without pools and servers, as of a key that has no route."""
    server = f"127.0.0.1:{cluster.servers[0].port}"
    for kind in KINDS:
        with open_client(kind, [server], timeout=5) as cache:
            cache.set("k", 1)
            with pytest.raises(RefusedError, match=f"^{server} did not reply as a router does"):
                cache.explain("k")
