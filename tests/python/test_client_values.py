"""What values become, and that pymemcache, pylibmc and the Python client read each other's."""

import builtins
import pickle

import pylibmc
import pytest
from both_clients import KINDS, open_client
from lookaside import Client, DecodeError, EncodeError
from pymemcache.client.base import Client as Pymemcache
from pymemcache.serde import compressed_serde, pickle_serde

TEXT = "grün " * 1_000

VALUES = [
    b"", b"\0\xff\r\n", "", "grün", "two words\r\n", 0, -5, 2**63 - 1, -(2**70), 10**400, None,
    True, False, 1.5, [1, [2.5, None]], {"a": {"b": "ü"}},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_a_value_is_read_as_it_was_stored(cache, value):
    cache.set("k", value)
    found = cache.get("k", default="missing")
    assert (found, type(found)) == (value, type(value))
    assert cache.get_many(["k"]) == {"k": value}


@pytest.mark.parametrize(
    ("value", "found"),
    [(bytearray(b"ab"), b"ab"), (memoryview(b"ab"), b"ab"), ((1, 2), [1, 2]), ({1: 2}, {"1": 2})],
)
def test_json_and_bytes_lose_the_type(cache, value, found):
    cache.set("k", value)
    assert cache.get("k") == found
    assert cache.get_or_load("other", lambda: value) == found, "a miss returns what a hit would"


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), "\ud800"], ids=["set", "object", "nan", "surrogate"])
def test_a_value_without_a_form_is_refused(cache, value):
    with pytest.raises(EncodeError):
        cache.set("k", value)
    assert cache.get("k") is None


def test_pickle_stores_any_object(cluster, address, cache):
    with Client([address], pickle=True) as pickling:
        for value in ({1, 2}, (1, (2,)), 1.5, True, {"a": object}):
            pickling.set("k", value)
            assert pickling.get("k") == value
            with pytest.raises(DecodeError, match="pickle=True"):
                cache.get("k")
        cache.set("json", {"a": 1})
        assert pickling.get("json") == {"a": 1}, "it still reads JSON"
        pickling.set("text", "x")
        assert cache.get("text") == "x"


def test_a_pickle_that_cannot_be_read_is_an_error(cluster, address):
    cluster.client().set("k", pickle.dumps(1)[:-1], flags=1)
    with Client([address], pickle=True) as pickling:
        with pytest.raises(DecodeError):
            pickling.get("k")
        assert pickling.get_or_load("k", lambda: "loaded") == "loaded"


class Raising:
    """Raises an exception when it is unpickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple:
        return raise_exception, (self.name,)


def raise_exception(name: str) -> None:
    raise getattr(builtins, name)


class Interrupted:
    """Is interrupted while it is pickled."""

    def __reduce__(self) -> tuple:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit"])
def test_an_exception_that_is_not_of_the_value_is_raised(address, kind, name):
    """Once Ctrl-C while a value was unpickled was a `DecodeError`, and `get_or_load` loaded and went on."""
    with open_client(kind, [address], timeout=5, pickle=True) as cache:
        cache.set("k", Raising(name))
        for read in (
            lambda: cache.get("k"),
            lambda: cache.get_many(["k"]),
            lambda: cache.get_or_load("k", lambda: pytest.fail("it is not loaded")),
        ):
            with pytest.raises(getattr(builtins, name)):
                read()


@pytest.mark.parametrize("name", ["MemoryError", "RecursionError", "StopIteration"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_of_the_value_is_an_error_of_the_value(address, kind, name):
    with open_client(kind, [address], timeout=5, pickle=True) as cache:
        cache.set("k", Raising(name))
        with pytest.raises(DecodeError) as refused:
            cache.get("k")
        assert type(refused.value.__cause__).__name__ == name
        assert cache.get_or_load("k", lambda: "loaded") == "loaded"


def test_a_value_whose_storing_is_interrupted(address):
    with Client([address], pickle=True) as cache:
        with pytest.raises(KeyboardInterrupt):
            cache.set("k", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_load("k", Interrupted)
        assert cache.get_or_load("k", lambda: "loaded") == "loaded", "the lease was released"


@pytest.mark.parametrize("flags", [3, 32, 1 << 21])
def test_unknown_flags_are_an_error(cluster, cache, flags):
    cluster.client().set("k", b"x", flags=flags)
    with pytest.raises(DecodeError, match=f"flags {flags}"):
        cache.get("k")


def test_pymemcache_reads_and_writes_the_same_values(cluster, address):
    other = Pymemcache(("127.0.0.1", cluster.port), serde=compressed_serde, default_noreply=False, timeout=5)
    check_against(address, other.get, lambda key, value: other.set(key, value))


def test_pylibmc_reads_and_writes_the_same_values(address):
    other = pylibmc.Client([address])
    check_against(address, other.get, lambda key, value: other.set(key, value, min_compress_len=1_000))


def check_against(address, other_get, other_set) -> None:
    """A client with pickles and zlib exchanges all values with another one."""
    objects = [b"\0\xff", "grün", 7, -(2**70), {"a": (1, None)}, {1, 2}, 1.5, TEXT, TEXT.encode(), [TEXT]]
    with Client([address], pickle=True, compression="zlib", compression_bytes_min=1_000) as cache:
        for value in objects:
            cache.set("ours", value)
            other_set("theirs", value)
            for found in (other_get("ours"), cache.get("theirs")):
                assert (found, type(found)) == (value, type(value))
        cache.get_or_load("absent", lambda: None)
        assert other_get("absent") is None


def test_json_is_text_for_pymemcache(cluster, cache):
    cache.set("k", {"a": 1})
    other = Pymemcache(("127.0.0.1", cluster.port), serde=pickle_serde, timeout=5)
    assert other.get("k") == '{"a":1}'


@pytest.mark.parametrize("compression", ["zlib", "zstd", "lz4"])
def test_large_values_are_compressed(cluster, address, cache, compression):
    with Client([address], compression=compression) as compressing:
        compressing.set("k", TEXT)
        compressing.set("short", "x")
    assert len(cluster.client().get("k")) < len(TEXT) / 10
    assert cache.get_many(["k", "short"]) == {"k": TEXT, "short": "x"}, "every client decompresses"
