"""Route handles of mcrouter's that few have, and metaget: conversations with a router and servers."""

import re
import time

from mcrouter_setups import Setup, hit, reply, set_of, setup
from processes import eventually


def pools(it: Setup, *names: str) -> dict:
    """A pool of one server for each name."""
    return {name: {"servers": [it.address(name)]} for name in names}


def host_id(it: Setup) -> int:
    """The number by which the router knows its host."""
    (found,) = it.ask(b"get __mcrouter__.hostid\r\n")
    return int(found.split(b"\r\n")[1])


def test_shard_splits_with_deletes_of_all_splits(tmp_path):
    """Each host has its own copy of a hot shard; a delete removes those of all hosts, or its own."""
    with setup(tmp_path) as it:
        servers = [it.address(name) for name in ("one", "two", "three")]
        splits = {"17": {"new_split_size": 29, "fanout_deletes": True}, "18": 29}
        route = {"type": "PoolRoute", "pool": "A", "shard_splits": splits}
        it.file("splits.json", {"pools": {"A": {"servers": servers}}, "route": route})
        it.start("-f", tmp_path / "splits.json", "--disable-shard-split-route")
        unsplit = it.port
        it.start("-f", tmp_path / "splits.json")
        own = host_id(it) % 29

        def key(shard: int, split: int) -> str:
            letters = [chr(ord("a") + (split - 1) % 26), chr(ord("a") + (split - 1) // 26)] if split else []
            return f"user:{shard}{''.join(letters)}:x"

        for shard in (17, 18):
            assert it.ask(set_of(f"user:{shard}:x", "v")) == [b"STORED\r\n"]
            assert [split for split in range(29) if it.holders(key(shard, split))] == [own]
            assert reply(unsplit, f"get {key(shard, own)}\r\n".encode()) == hit(key(shard, own), "v")
            # What the other hosts have.
            for split in range(29):
                assert reply(unsplit, set_of(key(shard, split), "v")) == b"STORED\r\n"
            assert it.ask(f"get user:{shard}:x\r\n".encode()) == [hit(f"user:{shard}:x", "v")]
            assert it.ask(f"delete user:{shard}:x\r\n".encode()) == [b"DELETED\r\n"]
        left = [split for split in range(29) if split != own]
        eventually(lambda: not any(it.holders(key(17, split)) for split in range(29)), "all copies are deleted")
        assert [split for split in range(29) if it.holders(key(18, split))] == left, "only its own"
        assert it.ask(b"get user:17:x\r\n") == [b"END\r\n"]


def test_misses_are_cached_in_l1(tmp_path):
    """A miss of both caches is stored in L1; now and then L2 is asked nevertheless, and no client waits for it."""
    with setup(tmp_path) as it:
        route = {
            "type": "L1L2CacheRoute",
            "l1": "PoolRoute|near",
            "l2": "PoolRoute|far",
            "upgradingL1Exptime": 60,
            "ncacheExptime": 60,
            "ncacheUpdatePeriod": 3,
        }
        it.file("near.json", {"pools": pools(it, "near", "far"), "route": route})
        it.start("-f", tmp_path / "near.json")
        near, far = it.servers["near"].port, it.servers["far"].port
        assert it.ask(b"get k\r\n") == [b"END\r\n"]
        note = b"VALUE k 65536 6\r\nncache\r\nEND\r\n"
        eventually(lambda: reply(near, b"get k\r\n") == note, "the miss is stored")
        assert reply(far, set_of("k", "v")) == b"STORED\r\n"
        assert it.ask(b"get k\r\n", b"get k\r\n") == [b"END\r\n"] * 2 and reply(near, b"get k\r\n") == note
        assert it.ask(b"get k\r\n") == [b"END\r\n"], "the third hit asks L2, in the background"
        eventually(lambda: it.at("near", "k") == b"v", "the value replaces the note")
        assert it.ask(b"get k\r\n") == [hit("k", "v")]
        assert it.ask(set_of("k", "new")) == [b"STORED\r\n"] and it.holders("k") == {"far"}
        it.router.stop()

        it.file("near.json", {"pools": pools(it, "near", "far"), "route": route | {"l1_only_writes": True}})
        it.start("-f", tmp_path / "near.json")
        assert it.ask(set_of("mine", "v")) == [b"STORED\r\n"] and it.holders("mine") == {"near"}
        assert it.ask(b"get k\r\n") == [hit("k", "new")]
        eventually(lambda: it.at("near", "k") == b"new", "a hit of L2 is copied")
        assert it.ask(b"delete k\r\n") == [b"DELETED\r\n"] and it.holders("k") == {"far"}


def test_a_prefix_takes_the_place_of_the_first_bytes(tmp_path):
    """modify_inplace keeps the length of keys that are long enough."""
    with setup(tmp_path) as it:
        route = {
            "type": "ModifyKeyRoute",
            "target": "PoolRoute|one",
            "ensure_key_prefix": "b:",
            "modify_inplace": True,
        }
        it.file("modify.json", {"pools": pools(it, "one"), "route": route})
        it.start("-f", tmp_path / "modify.json")
        assert it.ask(set_of("a:user", "v"), set_of("x", "w"), b"get a:user x\r\n") == [
            b"STORED\r\n",
            b"STORED\r\n",
            b"VALUE a:user 0 1\r\nv\r\nVALUE x 0 1\r\nw\r\nEND\r\n",
        ]
        assert (it.at("one", "b:user"), it.at("one", "b:x")) == (b"v", b"w")
        assert it.at("one", "a:user") is None and it.at("one", "b:a:user") is None


METADATA = rb"META %s age: (\d+); exptime: (\d+); from: unknown; is_transient: 0\r\n"


def test_metaget(tmp_path):
    """Age and exptime of items, without reading or touching them; a server that is down is failed over."""
    with setup(tmp_path) as it:
        route = {
            "type": "RoutingGroupRoute",
            "routing_group_policies": {
                "get_like": {"type": "FailoverRoute", "children": ["PoolRoute|a", "PoolRoute|b"]}
            },
            "default_policy": {"type": "AllSyncRoute", "children": ["PoolRoute|a", "PoolRoute|b"]},
        }
        it.file("metaget.json", {"pools": pools(it, "a", "b"), "route": route})
        it.start("-f", tmp_path / "metaget.json", "-t", "500")
        stored_at = time.time()
        assert it.ask(set_of("k", "v", 100), set_of("forever", "v")) == [b"STORED\r\n"] * 2
        for down in (None, "a"):
            if down:
                it.servers[down].kill()
            (found,) = it.ask(b"metaget k missing forever\r\n")
            match = re.fullmatch(METADATA % b"k" + METADATA % b"forever" + rb"END\r\n", found)
            assert match, found
            age, exptime, _, never = (int(number) for number in match.groups())
            assert age <= time.time() - stored_at + 1 and abs(exptime - stored_at - 100) <= 3 and never == 0, found
        assert it.ask(b"metaget missing\r\n") == [b"END\r\n"]
        (found,) = it.ask(b"get forever\r\nmetaget forever\r\nget missing\r\n")
        assert re.fullmatch(re.escape(hit("forever", "v")) + METADATA % b"forever" + rb"END\r\nEND\r\n", found), found
        assert reply(it.servers["b"].port, b"mg k h\r\n") == b"HD h0\r\n", "it was not taken for a read"
        it.servers["b"].kill()
        assert it.ask(b"metaget k\r\n")[0].startswith(b"SERVER_ERROR ")


def test_a_copy_lives_as_long_as_the_warm_value(tmp_path):
    """With enable_metaget a cold cluster takes over the time to live."""
    with setup(tmp_path) as it:
        route = {"type": "WarmUpRoute", "cold": "PoolRoute|cold", "warm": "PoolRoute|warm", "enable_metaget": True}
        it.file("warm.json", {"pools": pools(it, "cold", "warm"), "route": route})
        it.start("-f", tmp_path / "warm.json", "--enable-logging-route")
        warm, cold = it.servers["warm"].port, it.servers["cold"].port
        assert reply(warm, set_of("k", "v", 500) + set_of("forever", "v")) == b"STORED\r\n" * 2
        assert it.ask(b"metaget k\r\n")[0].startswith(b"META k age: ") and it.holders("k") == {"warm"}
        assert it.ask(b"get k\r\n", b"get forever\r\n") == [hit("k", "v"), hit("forever", "v")]
        left = int(re.fullmatch(rb"HD t(\d+)\r\n", reply(cold, b"mg k t\r\n"))[1])
        assert 450 < left <= 500 and reply(cold, b"mg forever t\r\n") == b"HD t-1\r\n"
        assert it.ask(set_of("new", "vvv"), b"get new\r\n")[1] == hit("new", "vvv")
        for line in (
            "metaget k: debug, 0 bytes",
            "get k: value, 1 bytes",
            "set new: stored, 0 bytes",
            "new: value, 3 ",
        ):
            assert line in it.router.log(), line
