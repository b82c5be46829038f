"""Replays from the spool of an invalidator of PostgreSQL, whose log cannot be read again."""

import json
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from processes import PROGRAMS, Invalidator, answers, eventually, stats

KEYS = [f"user:{number}" for number in range(20)]


class Region:
    """A database, a cluster and an invalidator."""

    def __init__(self, postgres, cluster, folder: Path) -> None:
        self.postgres, self.cluster, self.folder = postgres, cluster, folder
        self.client = cluster.client()
        self.connection = postgres.connect()
        self.daemon: Invalidator | None = None
        command = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", postgres.url]
        subprocess.run(command, check=True, capture_output=True)

    def start(self, *arguments: str) -> None:
        """Starts the invalidator, instead of the one that runs."""
        self.stop()
        state = self.folder / "state"
        self.daemon = Invalidator(self.postgres.url, [self.cluster], state, self.folder, *arguments)

    def stop(self) -> None:
        """Stops the invalidator."""
        if self.daemon:
            assert self.daemon.stop() == 0
            self.daemon = None

    def stat(self, name: str) -> str:
        """A statistic of the invalidator."""
        return stats(self.daemon.port)[name]

    def commit(self, *keys: str) -> None:
        """Commits a transaction that names these keys, and waits until they are deleted."""
        deletes = int(self.stat("invalidations_total")) + len(keys)
        self.connection.execute("SELECT lookaside_invalidate(VARIADIC %s::text[])", (list(keys),))
        eventually(lambda: int(self.stat("invalidations_total")) >= deletes, "they are deleted")

    def position(self) -> str:
        """The present end of the log."""
        return self.connection.execute("SELECT pg_current_wal_lsn()").fetchone()[0]

    def next_second(self) -> str:
        """A time after everything that was committed, and before everything that will be."""
        (now,) = self.connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        second = int(now) + 1

        def is_over() -> bool:
            (now,) = self.connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
            return now >= second

        eventually(is_over, "the second is over")
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))

    def restore(self, keys=KEYS) -> None:
        """Puts old values back behind the invalidator."""
        assert self.client.set_many(dict.fromkeys(keys, "restored from an old copy")) == []

    def cached(self, keys=KEYS) -> set[str]:
        """Which of the keys are cached."""
        return set(self.client.get_many(keys))

    def replay(self, *options: str) -> subprocess.CompletedProcess:
        """Runs a replay to its end."""
        command = [
            PROGRAMS / "lookaside", "invalidator", "replay", "--database", self.postgres.url,
            "--state-dir", self.folder / "state", "--cluster", f"one=127.0.0.1:{self.cluster.port}", *options,
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def region(postgres, cluster, tmp_path):
    """A region whose invalidator does not run yet."""
    region = Region(postgres, cluster, tmp_path)
    yield region
    region.stop()
    region.connection.close()
    region.client.close()


def test_a_replay_deletes_again_beside_the_daemon(region):
    region.start()
    region.commit("first")
    after_first, middle = region.next_second(), None
    for key in KEYS:
        region.commit(key)
        if key == KEYS[9]:
            middle, half = region.position(), region.next_second()
    position_file = region.folder / "state" / "one.position.json"
    region.commit("last")
    region.restore([*KEYS, "first"])

    done = region.replay("--since", after_first, "--key-prefix", "user:", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["deletes"] == len(KEYS) and region.cached() == set(KEYS)
    done = region.replay("--since", after_first, "--until", half, "--key-prefix", "user:", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["deletes"] == 10, done
    assert region.cached() == set(KEYS[10:])
    region.restore()
    done = region.replay("--from", middle, "--key-prefix", "user:1", "--json")
    assert done.returncode == 0 and region.cached() == set(KEYS[:10]), done
    region.restore()
    done = region.replay("--from", "earliest", "--to", middle, "--json")
    assert done.returncode == 0 and region.cached() == set(KEYS[10:]), done
    assert json.loads(done.stdout)["position"] == middle
    assert region.client.get("first") is None

    # What the daemon has not read is its own; a stopped one is read as well.
    region.stop()
    saved = position_file.read_bytes()
    region.restore()
    done = region.replay("--since", after_first, "--rate", "100000")
    assert done.returncode == 0 and region.cached() == set(), done
    assert region.replay("--from", "earliest").returncode == 0
    assert position_file.read_bytes() == saved, "the positions of the daemon are its own"


def test_a_replay_across_a_lost_position_fails(region):
    region.start()
    region.commit("before")
    before = region.position()
    region.commit("between")
    region.stop()

    def is_dropped() -> bool:
        with suppress(psycopg.errors.ObjectInUse):
            region.connection.execute("SELECT pg_drop_replication_slot('lookaside')")
            return True
        return False

    eventually(is_dropped, "the server has noticed that the reader is gone")
    region.start("--on-position-lost", "continue")
    # What is committed before the new slot is there is lost.
    in_use = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'lookaside' AND active"
    eventually(lambda: region.connection.execute(in_use).fetchone() == (1,), "a new slot is read")
    eventually(lambda: region.stat("cluster:one:position").startswith("1:"), "the cluster has found the loss")
    region.commit("after")
    after = region.stat("cluster:one:position")
    assert after.startswith("1:"), after

    region.restore(["before", "after"])
    done = region.replay("--from", "earliest", "--json")
    assert done.returncode == 1 and "lost its position 1 times" in done.stderr, done
    assert json.loads(done.stdout)["losses"] == 1 and region.cached(["before", "after"]) == set()

    # The database's own notation names two positions now.
    region.restore(["before", "after"])
    for option in "--from", "--to":
        start = [] if option == "--from" else ["--from", "earliest"]
        unclear = region.replay(*start, option, before)
        assert unclear.returncode == 1 and f"0:{before}" in unclear.stderr and f"1:{before}" in unclear.stderr, unclear
    assert region.cached(["before", "after"]) == {"before", "after"}, "nothing was sent"
    done = region.replay("--from", "earliest", "--to", f"0:{before}", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["losses"] == 0, done
    assert region.cached(["before", "after"]) == {"after"}
    backwards = region.replay("--from", after, "--to", f"0:{before}")
    assert backwards.returncode == 1 and f"which is after the position 0:{before}" in backwards.stderr, backwards


def test_what_is_kept_is_bounded_and_a_range_before_it_is_an_error(region):
    # Segments of an eighth of the limit.
    region.start("--spool-bytes-max", "1048576", "--spool-keep-bytes", "300000")
    begin = region.position()
    region.commit("first")
    for number in range(30):
        region.commit(*(f"page:{number}:{part}:{'x' * 180}" for part in range(200)))
    eventually(lambda: int(region.stat("spool_kept_segments")) > 0, "acknowledged segments are kept")
    assert 0 < int(region.stat("spool_kept_bytes")) <= 300_000
    region.restore(["first", "last"])
    region.commit("last")
    region.restore(["first", "last"])
    gone = region.replay("--from", begin)
    assert gone.returncode == 1 and "the log begins at " in gone.stderr, gone
    assert region.cached(["first", "last"]) == {"first", "last"}, "nothing was sent"
    late = region.replay("--since", "1h", "--key-prefix", "last", "--json")
    assert late.returncode == 1 and "the log begins at " in late.stderr, late
    assert json.loads(late.stdout)["deletes"] == 1 and region.cached(["first", "last"]) == {"first"}
    region.restore(["last"])
    assert region.replay("--from", "earliest").returncode == 0 and region.cached(["first", "last"]) == {"first"}
    # A restart keeps what is kept, within its own limits.
    kept = region.stat("spool_kept_bytes")
    region.start("--spool-bytes-max", "1048576", "--spool-keep-bytes", "300000")
    assert region.stat("spool_kept_bytes") == kept
    region.start("--spool-keep-hours", "0")
    assert region.stat("spool_kept_bytes") == "0" and not list(region.folder.glob("state/spool/*.kept"))


def test_a_full_disk_costs_what_is_kept_and_delays_nothing(root, region):
    state = region.folder / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", state], check=True)
    try:
        # Segments of 128 KiB, and more to keep than there is space.
        region.start("--spool-bytes-max", "1048576", "--spool-keep-bytes", "1000000000")
        for number in range(60):
            region.commit(*(f"page:{number}:{part}:{'x' * 180}" for part in range(250)))
        region.commit("last")
        found = stats(region.daemon.port)
        assert int(found["spool_kept_discarded"]) > 0 and found["spool_failures"] == "0", region.daemon.log()
        assert 0 < int(found["spool_kept_bytes"]) < 2 << 20
        region.restore(["last"])
        assert region.replay("--from", "earliest").returncode == 0 and region.cached(["last"]) == set()
        region.stop()
    finally:
        region.stop()
        subprocess.run(["umount", state], check=True)


def test_replays_while_the_daemon_writes_and_removes(region):
    region.start("--spool-bytes-max", "4194304", "--spool-keep-bytes", "1500000")
    region.commit("first")
    is_stopped, failures = threading.Event(), []

    def write() -> None:
        with region.postgres.connect() as connection:
            number = 0
            while not is_stopped.is_set():
                number += 1
                eventually(lambda: int(region.stat("cluster:one:pending_keys")) < 2_000, "the cluster keeps up")
                keys = [f"page:{number}:{part}:{'x' * 180}" for part in range(100)]
                connection.execute("SELECT lookaside_invalidate(VARIADIC %s::text[])", (keys,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        eventually(lambda: int(region.stat("spool_kept_segments")) > 0, "segments are kept")
        for _ in range(10):
            done = region.replay("--from", "earliest", "--key-prefix", "user:", "--rate", "1000000")
            # A segment that was removed first is an error that says so, and never a silent gap.
            if done.returncode != 0:
                failures.append(done.stderr)
    finally:
        is_stopped.set()
        writer.join()
    assert all("the log begins at " in failure for failure in failures), failures
    assert len(failures) < 10, failures
    region.commit("last")
    found = stats(region.daemon.port)
    assert (found["spool_failures"], found["spool_gaps"], found["spool_discarded_segments"]) == ("0", "0", "0")


def test_flushes_of_rules_are_counted_and_not_done(region):
    region.connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    rules = region.folder / "rules.toml"
    rules.write_text('[[rule]]\ntable = "public.users"\nkeys = ["user:{id}"]\notherwise = "flush-pools"\n')
    command = [PROGRAMS / "lookaside", "invalidator", "setup", "--rules", rules, "--database", region.postgres.url]
    subprocess.run(command, check=True, capture_output=True)
    region.start("--rules", str(rules))
    region.connection.execute("INSERT INTO users VALUES (1)")
    region.connection.execute("TRUNCATE users")
    eventually(lambda: region.stat("cluster:one:retry_queue_keys") == "1", "the router refuses the flush")
    assert region.stat("pool_flushes") == "0" and "--enable-flush-cmd" in region.daemon.log()
    region.restore()
    done = region.replay("--from", "earliest", "--json")
    assert done.returncode == 0 and "demand a flush" in done.stderr, done
    assert json.loads(done.stdout)["flushes_skipped"] == 1 and region.cached() == set(KEYS) - {"user:1"}
    # It waits in the spool, also over a restart.
    region.daemon.kill()
    region.daemon.start()
    region.daemon.wait_ready(lambda: answers(region.daemon.port))
    eventually(lambda: region.stat("cluster:one:retry_queue_keys") == "1", "it is still to be done")
    region.client.close()
    region.cluster.routers[0].stop()
    region.cluster.routers[0].command.append("--enable-flush-cmd")
    region.cluster.routers[0].start()
    eventually(lambda: region.stat("pool_flushes") == "1", "the router flushes")
    assert region.cached() == set()


def test_a_replay_that_cannot_succeed_gives_the_reason(region):
    none = region.replay("--from", "earliest")
    assert none.returncode == 1 and "has no spool of an invalidator" in none.stderr, none
    where = ["--cluster", "one=127.0.0.1:1", "--from", "earliest"]
    command = [PROGRAMS / "lookaside", "invalidator", "replay", *where]
    done = subprocess.run([*command, "--database", region.postgres.url], capture_output=True, text=True)
    assert done.returncode == 1 and "--state-dir" in done.stderr and "secret" not in done.stderr
    sqlite = ["--database", "sqlite:///nothing", "--state-dir", "/nowhere"]
    done = subprocess.run([*command, *sqlite], capture_output=True, text=True)
    assert done.returncode == 1 and "--state-dir is for PostgreSQL" in done.stderr
    region.start()
    region.commit("a")
    wrong = region.replay("--from", "0-1-7")
    assert wrong.returncode == 1 and "is no position of this log" in wrong.stderr, wrong
