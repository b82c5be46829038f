"""Remote markers (§5 of the paper) by both clients of the package, between real databases.

tests/test_remote_markers.py has the same for the Rust client.
"""

import asyncio
import inspect
import multiprocessing
from contextlib import ExitStack

import pytest
from both_clients import KINDS
from lookaside import (
    AsyncClient,
    AsyncRegionalClient,
    Client,
    ConfigurationError,
    InvalidKeyError,
    MarkerNotSetError,
    RegionalClient,
    RemoteMarkers,
)
from processes import connect, eventually
from replica_region import PAIRS, ReplicaRegion

pytestmark = pytest.mark.timeout(300)

# Longer than the router waits for a server.
TIMEOUT_S = 5


@pytest.fixture(scope="module", params=PAIRS)
def databases(request, tmp_path_factory):
    """A master and its replica."""
    with ExitStack() as stack:
        yield PAIRS[request.param](tmp_path_factory.mktemp("databases"), stack)


@pytest.fixture
def region(databases, tmp_path):
    """A replica region whose replication runs."""
    with ExitStack() as stack:
        yield ReplicaRegion(databases, tmp_path, stack)


@pytest.fixture
def evicting_region(databases, tmp_path):
    """The same with a pool of markers that evicts."""
    with ExitStack() as stack:
        yield ReplicaRegion(databases, tmp_path, stack, evicts=True)


@pytest.fixture(params=KINDS)
def client(request, region):
    """A client of the region, and of the package."""
    return open_client(request.param, region)


class Blocking:
    """A client for asyncio, or a write of one, whose calls block, and whose loaders are functions."""

    def __init__(self, target, event_loop: asyncio.AbstractEventLoop) -> None:
        self.target, self.event_loop = target, event_loop

    def __getattr__(self, name: str):
        call = getattr(self.target, name)
        if not inspect.iscoroutinefunction(call):
            return call

        def block(*args, **kwargs):
            args = [as_coroutine(arg) if callable(arg) else arg for arg in args]
            result = self.event_loop.run_until_complete(call(*args, **kwargs))
            return Blocking(result, self.event_loop) if hasattr(result, "finish") else result

        return block


def as_coroutine(loader):
    async def load(*args):
        return loader(*args)

    return load


def open_client(kind: str, region: ReplicaRegion, **markers):
    """A client of the region with these settings of markers; it is closed with the region."""
    address, settings = [f"127.0.0.1:{region.port}"], RemoteMarkers(**markers)
    if kind == "Client":
        client = region.stack.enter_context(Client(address, timeout=TIMEOUT_S))
        return RegionalClient(client, settings)
    event_loop = asyncio.new_event_loop()
    region.stack.callback(event_loop.close)
    client = AsyncClient(address, timeout=TIMEOUT_S)
    region.stack.callback(lambda: event_loop.run_until_complete(client.close()))
    return Blocking(AsyncRegionalClient(client, settings), event_loop)


def read(client, region: ReplicaRegion, row: int, **options) -> tuple[str, str]:
    """Where a row's value came from (`cache`, `master`, `replica`), and the value."""
    sources = []

    def load(source: str) -> str:
        sources.append(source)
        return region.load(row)(source)

    value = client.get_or_load(f"row:{row}", load, **options)
    return (sources or ["cache"])[0], value


def read_uncached(client, region: ReplicaRegion, row: int) -> tuple[str, str]:
    """The same after the cluster has lost the key, as by eviction."""
    connect(region.port).delete(f"row:{row}")
    return read(client, region, row)


def write(client, region: ReplicaRegion, row: int, naming: str | None = None):
    """A write of a row; its markers are set, and it is finished."""
    begun = client.begin_write([f"row:{row}"])
    region.databases.write(row, begun.keys, naming or region.databases.namings[0])
    begun.finish()
    return begun


class Calls:
    """A loader of rows, and the calls of it."""

    def __init__(self, region: ReplicaRegion) -> None:
        self.region = region
        self.made: list[tuple[str, list[str]]] = []

    def load(self, keys: list[str], source: str) -> dict[str, str]:
        """The versions of rows in a database."""
        self.made.append((source, keys))
        return {key: self.region.load(int(key.removeprefix("row:")))(source) for key in keys}


@pytest.mark.parametrize("naming", ["comment", "outbox"])
def test_users_read_their_own_writes_while_replication_stands_still(region, client, naming):
    if naming not in region.databases.namings:
        pytest.skip("PostgreSQL's log has no comments")
    assert read(client, region, 1) == ("replica", "0")
    assert read(client, region, 1) == ("cache", "0")
    region.stop_replication()
    [marker] = write(client, region, 1, naming).markers
    assert region.is_marked(marker)
    assert read(client, region, 1) == ("master", "1")
    assert read(client, region, 1) == ("cache", "1")
    another = open_client("Client", region)
    assert read_uncached(another, region, 1) == ("master", "1"), "every user of the region sees the marker"
    assert read_uncached(another, region, 2) == ("replica", "0"), "other rows are read here"

    region.start_replication()
    eventually(lambda: not region.is_marked(marker), "the replication of the write removes its marker", 60)
    assert read_uncached(client, region, 1) == ("replica", "1")
    counted = client.stats()
    assert (counted["markers.marked"], counted["markers.found"], counted["markers.unknown"]) == (1, 1, 0)


def test_the_replication_of_one_write_leaves_the_marker_of_another(region, client):
    two = open_client("Client", region)
    region.stop_replication()
    [first] = write(client, region, 1).markers
    begun = two.begin_write(["row:1"])
    region.start_replication()
    eventually(lambda: not region.is_marked(first), "the first write's marker is gone", 60)
    region.stop_replication()
    region.databases.write(1, begun.keys, region.databases.namings[0])
    begun.finish()
    assert region.is_marked(begun.markers[0])
    assert read_uncached(client, region, 1) == ("master", "2")


def test_a_marker_that_is_removed_by_hand_uncovers_its_write(region, client):
    region.stop_replication()
    [marker] = write(client, region, 1).markers
    assert read_uncached(client, region, 1) == ("master", "1")
    assert connect(region.pool.port).delete(marker)
    assert read_uncached(client, region, 1) == ("replica", "0")


@pytest.mark.parametrize("kind", KINDS)
def test_an_evicted_marker_uncovers_its_write_until_the_replica_has_it(evicting_region, kind):
    region = evicting_region
    client = open_client(kind, region)
    region.stop_replication()
    [marker] = write(client, region, 1).markers
    assert read_uncached(client, region, 1) == ("master", "1")
    region.evict(marker)
    assert read(client, region, 1) == ("cache", "1"), "what was cached stays"
    assert read_uncached(client, region, 1) == ("replica", "0")
    assert read(client, region, 1) == ("cache", "0")
    region.start_replication()
    eventually(lambda: read(client, region, 1) == ("cache", "1"), "the replication deletes the old value", 60)


def test_keys_of_both_databases_are_loaded_each_from_its_own(region, client):
    region.stop_replication()
    for row in (1, 3):
        write(client, region, row)
    calls = []

    def load(keys: list[str], source: str) -> dict[str, str]:
        calls.append((source, keys))
        return {key: region.load(int(key.removeprefix("row:")))(source) for key in keys}

    rows = {f"row:{row}": "1" if row in (1, 3) else "0" for row in range(5)}
    # With a ttl for each key, those of each are read side by side.
    assert client.get_or_load_many(rows, load, ttl=lambda key: 60 + int(key[-1]) % 2) == rows
    assert {(source, key) for source, keys in calls for key in keys} == {
        ("master" if value == "1" else "replica", key) for key, value in rows.items()
    }
    assert client.get_or_load_many(rows, None) == rows, "all are cached"


def test_an_aborted_write_leaves_no_marker(region, client):
    region.stop_replication()
    begun = client.begin_write(["row:1", "row:2"])
    assert len(begun.markers) == 2 and begun.keys == ["row:1", "row:2", *begun.markers]
    begun.abort()
    assert not any(map(region.is_marked, begun.markers))
    assert read(client, region, 1) == ("replica", "0")


def test_a_dead_pool_and_the_callers_choices(region, client):
    accepting = open_client("Client", region, accept_lag=True, when_unknown="replica")
    region.stop_replication()
    region.pool.kill()
    with pytest.raises(MarkerNotSetError, match="row:2"):
        client.begin_write(["row:2"])
    assert read(client, region, 1) == ("master", "0"), "it is not known whether there is a marker"
    begun = accepting.begin_write(["row:2"])
    assert list(begun.unmarked) == ["row:2"]
    region.databases.write(2, ["row:2"], region.databases.namings[0])
    begun.finish()
    assert read(accepting, region, 2) == ("replica", "0")
    assert read(accepting, region, 2) == ("cache", "0"), "older than what its user has written"
    calls = Calls(region)
    assert accepting.read_master(begun.unmarked, calls.load) == {"row:2": "1"}, "the user chooses so"
    assert accepting.read_past_cache(["row:2"], calls.load) == {"row:2": "0"}
    assert accepting.find_sources(["row:2"]) == {"row:2": "replica"}
    assert client.read_past_cache(["row:2"], calls.load) == {"row:2": "1"}, "it is not known whether there is one"
    assert [source for source, _ in calls.made] == ["master", "replica", "master"]
    assert read(accepting, region, 2) == ("cache", "0"), "nothing was cached"
    assert accepting.stats()["markers.demanded"] == 1


def test_reads_past_the_cache_follow_the_markers(region, client):
    """The cluster keeps the old value, as another cluster of the region does until its delete arrives."""
    assert read(client, region, 1) == ("replica", "0")
    region.stop_replication()
    begun = client.begin_write(["row:1"])
    region.databases.write(1, begun.keys, region.databases.namings[0])
    calls = Calls(region)
    rows = {"row:2": "0", "row:1": "1", "row:3": "0"}
    read_rows = client.read_past_cache([*rows, "row:1"], calls.load)
    assert list(read_rows.items()) == list(rows.items()), "in the order of the keys"
    assert sorted(calls.made) == [("master", ["row:1"]), ("replica", ["row:2", "row:3"])]
    assert client.find_sources(["row:1", "row:2"]) == {"row:1": "master", "row:2": "replica"}
    assert read(client, region, 1) == ("cache", "0"), "the cache is as it was"
    assert client.stats()["loads"] == 1 + 3, "those of the first read and of these"
    begun.abort()
    assert client.find_sources(["row:1"]) == {"row:1": "replica"}, "the marker alone says so"


def test_no_loader_of_a_read_past_the_cache_outlives_it(region):
    """Once the loader of the other database ran on when one had failed, with a connection that the caller closed."""
    client = open_client("AsyncClient", region)
    region.stop_replication()
    begun = client.begin_write(["row:1"])
    # What the loaders of both databases do, in the order in which they do it.
    calls = []

    async def load(keys: list[str], source: str) -> None:
        calls.append((source, "began"))
        try:
            if source == "replica":
                while len(calls) < 2:
                    await asyncio.sleep(0)
                raise ZeroDivisionError
            await asyncio.Event().wait()
        finally:
            if source == "master":
                # Its end takes a while.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            calls.append((source, "ended"))

    async def read_past_cache() -> None:
        try:
            await client.target.read_past_cache(["row:1", "row:2"], load)
        finally:
            calls.append(("caller", "ended"))

    with pytest.raises(ZeroDivisionError):
        client.event_loop.run_until_complete(read_past_cache())
    assert calls[2:] == [("replica", "ended"), ("master", "ended"), ("caller", "ended")]
    begun.abort()


def test_a_read_that_gives_the_cache_up_reads_the_master(region, client):
    region.pool.freeze()
    try:
        assert read(client, region, 1, timeout=0.2) == ("master", "0")
        assert client.find_sources(["row:1"], timeout=0.2) == {"row:1": "master"}
    finally:
        region.pool.thaw()


def test_a_value_that_cannot_be_read_is_loaded_from_the_master(region, client):
    """It is in the cache, so no marker was looked for."""
    with Client([f"127.0.0.1:{region.port}"], pickle=True) as pickling:
        pickling.set("row:1", {"a": 1})
    assert read(client, region, 1) == ("master", "0")


def test_a_write_finishes_although_its_transaction_fails(region):
    client = open_client("Client", region)
    connect(region.port).set("row:1", b"old")
    with pytest.raises(ZeroDivisionError), client.begin_write(["row:1"]) as begun:
        raise ZeroDivisionError
    assert connect(region.port).get("row:1") is None
    assert region.is_marked(begun.markers[0]), "it is unknown whether the transaction was committed"


def test_a_forked_child_has_tokens_of_its_own(region):
    """Two writes with one token would clear each other's marker."""
    client = open_client("Client", region)
    before = client.begin_write(["row:1"]).markers

    def report(connection) -> None:
        connection.send([client.begin_write(["row:1"]).markers for _ in range(3)])

    theirs = []
    for _ in range(2):
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=report, args=(sender,))
        child.start()
        assert receiver.poll(60)
        theirs += receiver.recv()
        child.join(60)
    ours = [before, *(client.begin_write(["row:1"]).markers for _ in range(3))]
    assert len({marker for [marker] in ours + theirs}) == 10


def test_what_cannot_be_marked_is_refused(region):
    client = open_client("Client", region)
    for key in ("two words", "k" * 225, b"\xff"):
        with pytest.raises(InvalidKeyError):
            client.begin_write([key])
    assert client.begin_write(["user:1"]).sql_comment().startswith("/* lookaside: user:1 marker:user:1|#|")
    with pytest.raises(ValueError, match="the key 'a./b' .* outbox"):
        client.begin_write(["a*/b"]).sql_comment()
    for settings in ({"ttl": 0}, {"key_prefix": "two words"}, {"when_unknown": "both"}):
        with pytest.raises(ConfigurationError):
            open_client("Client", region, **settings)
    with Client([f"127.0.0.1:{region.port}"]) as cache, pytest.raises(ConfigurationError, match="routing prefix"):
        RegionalClient(cache.pool("/region/cluster/"))


def test_reads_past_the_cache_take_and_refuse_what_others_do(region):
    for client in (open_client(kind, region) for kind in KINDS):
        assert client.read_master([], None) == client.read_past_cache([], None) == client.find_sources([]) == {}
        rows = client.read_master(["row:1", "row:2", "row:1"], lambda keys, source: {"row:2": (source, keys)})
        assert rows == {"row:1": None, "row:2": ("master", ["row:1", "row:2"])}
        for call in (client.read_master, client.read_past_cache):
            with pytest.raises(ValueError, match="1 values for 2 keys"):
                call(["row:1", "row:2"], lambda keys, source: ["one"])
            with pytest.raises(ZeroDivisionError):
                call(["row:1"], lambda keys, source: 1 / 0)
            with pytest.raises(InvalidKeyError):
                call(["two words"], lambda keys, source: keys)
        with pytest.raises(InvalidKeyError):
            client.find_sources(["two words"])
