"""Shadows of mcrouter's configurations: which requests are copied, and runtime variables that change it."""

import os
import time

import pytest
from mcrouter_setups import Setup, set_of, setup
from processes import eventually, stats

KEYS = [f"key:{number}" for number in range(200)]
MARKER = "marker"


def start(it: Setup, shadow: dict, *arguments: object) -> None:
    """A router in front of two servers, with a shadow for the pool, and another for one key."""
    servers = [it.address("one"), it.address("two")]
    shadow = {"target": "PoolRoute|new", "validate_replies": False, **shadow}
    marker = {"target": "PoolRoute|new", "keys_to_shadow": [MARKER]}
    it.file(
        "shadow.json",
        {
            "pools": {"main": {"servers": servers}, "new": {"servers": [it.address("new")]}},
            "route": {"type": "PoolRoute", "pool": "main", "shadows": [shadow, marker]},
        },
    )
    it.start("-f", it.folder / "shadow.json", *arguments)


def copied(it: Setup) -> set[str]:
    """The keys of which the shadow gets a copy, when each is stored once more."""
    mark = str(time.monotonic_ns())
    assert set(it.ask(*(set_of(key, mark) for key in KEYS))) == {b"STORED\r\n"}
    wait_for_copies(it)
    return {key for key in KEYS if it.at("new", key) == mark.encode()}


def wait_for_copies(it: Setup) -> None:
    """Waits until the copies of all earlier requests have arrived: one connection leads to the shadow."""
    mark = str(time.monotonic_ns())
    assert it.ask(set_of(MARKER, mark)) == [b"STORED\r\n"]
    eventually(lambda: it.at("new", MARKER) == mark.encode(), "the marker has been copied")


def variables(it: Setup, content: str) -> None:
    """Replaces the file of runtime variables in one step."""
    it.file("vars.new", content)
    os.replace(it.folder / "vars.new", it.folder / "vars.json")


def test_a_runtime_variable_changes_what_is_copied(tmp_path):
    with setup(tmp_path) as it:
        variables(it, "{}")
        shadow = {"index_range": [0, 2], "key_fraction_range_rv": "key_fraction_range_new"}
        start(it, shadow, "--runtime-vars-file", tmp_path / "vars.json")
        assert copied(it) == set()
        variables(it, '{"key_fractions": {"new": 0.25}}')
        eventually(lambda: len(copied(it)) > 0, "a quarter of the keys is copied")
        quarter = copied(it)
        assert 20 <= len(quarter) <= 85
        variables(it, '{"key_fraction_range_new": [0, 0.5]}')
        eventually(lambda: len(copied(it)) > len(quarter), "half of the keys is copied")
        half = copied(it)
        assert quarter < half < set(KEYS)
        # A wrong file changes nothing.
        variables(it, '{"key_fractions": 7}')
        eventually(lambda: "runtime variables stay as they are" in it.router.log(), "the file was read")
        assert copied(it) == half
        variables(it, '{"key_fraction_range_new": [0, 1]}')
        eventually(lambda: copied(it) == set(KEYS), "all keys are copied")


@pytest.mark.parametrize(
    ("index_range", "owners"), [([0, 0], []), ([0, 1], ["one"]), ([1, 2], ["two"]), ([0, 2], ["one", "two"])]
)
def test_the_end_of_the_indices_is_not_included(tmp_path, index_range, owners):
    with setup(tmp_path) as it:
        start(it, {"index_range": index_range, "key_fraction_range": [0, 1]})
        found = copied(it)
        assert found == {key for key in KEYS if any(it.at(owner, key) for owner in owners)}


def test_a_shadow_accepts_the_fill_of_a_lease(tmp_path):
    with setup(tmp_path) as it:
        start(it, {"keys_to_shadow": KEYS})
        keys = iter(KEYS)

        def shadow_tokens() -> int:
            return int(stats(it.servers["new"].port)["lease_tokens"])

        def is_filled() -> bool:
            key = next(keys)
            tokens_before = shadow_tokens()
            token = it.ask(f"lease-get {key}\r\n".encode())[0].split()[2].decode()
            # The shadow is asked for its lease after the reply, so a quick fill finds no token for it.
            eventually(lambda: shadow_tokens() > tokens_before, "the shadow has issued a token")
            assert it.ask(f"lease-set {key} {token} 0 0 1\r\nv\r\n".encode()) == [b"STORED\r\n"]
            wait_for_copies(it)
            return it.at("new", key) == b"v"

        eventually(is_filled, "the shadow has a value that was stored under a lease")


def test_a_wrong_entry_is_skipped_and_the_router_serves(tmp_path):
    with setup(tmp_path) as it:
        start(it, {"index_range": [3, 1], "key_fraction_range": [0, 1]})
        assert copied(it) == set()
        assert "this shadow is skipped: the range is backwards" in it.router.log()


def test_a_shadow_with_a_wrong_target_is_left_out(tmp_path):
    """It refused the configuration, and the router did not start."""
    with setup(tmp_path) as it:
        start(it, {"target": "PoolRoute|missing", "index_range": [0, 2], "key_fraction_range": [0, 1]})
        assert copied(it) == set()
        assert 'this shadow is skipped: no pool is named "missing"' in it.router.log()
