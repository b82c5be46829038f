"""What Python's memcached clients make of the flags that `crates/client` writes, and what they write themselves.

The table is in docs/clients.md. `crates/client/src/values/codec.rs` asserts the same bytes and flags on the Rust side.
"""

import json
import zlib

import pytest
from pymemcache.serde import compressed_serde, pickle_serde

TEXT, JSON, MESSAGE_PACK, ABSENT, ZLIB = 16, 65_552, 131_072, 262_145, 8

# Bytes and flags as crates/client writes them, and the value for a Python client.
WRITTEN = [
    (b"\x00\xff", 0, b"\x00\xff"),
    ("grün".encode(), TEXT, "grün"),
    (b"-5", 2, -5),
    (b'{"a":1}', JSON, '{"a":1}'),
    (b"\x92\x01\xa1x", MESSAGE_PACK, b"\x92\x01\xa1x"),
    (b"\x80\x02N.", ABSENT, None),
    (zlib.compress(b"text " * 100), TEXT | ZLIB, "text " * 100),
]


@pytest.mark.parametrize(("stored", "flags", "expected"), WRITTEN)
def test_pymemcache_reads_what_the_rust_client_writes(stored: bytes, flags: int, expected: object) -> None:
    assert compressed_serde.deserialize("key", stored, flags) == expected


@pytest.mark.parametrize(("stored", "flags", "expected"), WRITTEN)
def test_pylibmc_reads_what_the_rust_client_writes(stored: bytes, flags: int, expected: object) -> None:
    pylibmc = pytest.importorskip("pylibmc")
    client = pylibmc.Client(["127.0.0.1:1"])
    if flags & ZLIB:
        # The client decompresses before it calls deserialize.
        stored, flags = zlib.decompress(stored), flags & ~ZLIB
    assert client.deserialize(stored, flags) == expected


def test_json_is_text_for_clients_that_do_not_know_it() -> None:
    assert json.loads(pickle_serde.deserialize("key", b'{"a":1}', JSON)) == {"a": 1}


def test_the_python_clients_write_what_the_rust_client_reads() -> None:
    assert pickle_serde.serialize("key", "grün") == ("grün".encode(), TEXT)
    assert pickle_serde.serialize("key", -7) == ("-7", 2)
    compressed, flags = compressed_serde.serialize("key", "grün " * 100)
    assert (zlib.decompress(compressed), flags) == (("grün " * 100).encode(), TEXT | ZLIB)
    pylibmc = pytest.importorskip("pylibmc")
    client = pylibmc.Client(["127.0.0.1:1"])
    assert client.serialize("grün") == ("grün".encode(), TEXT)
    assert client.serialize(-7) == (b"-7", 4)
    assert client.serialize(b"\x00") == (b"\x00", 0)
