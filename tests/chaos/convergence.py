"""What must be true when the faults have ended.

The invalidator passes the last commit, no server is fenced, every change of a pool has come to its end, and every key
is served by every router. Then the servers are read directly, past the routers: each key is absent or equal to its row.
What is older now stays so, since no delete is left that would remove it.
"""

import asyncio
import time

from load import MEGABYTE, descriptors, resident_bytes
from processes import connect

from chaos.applications import load_versions, positions
from chaos.checker import BROKEN, PERMANENT, UNCONVERGED, Checker
from chaos.connections import CacheConnection, Failure
from chaos.region import Cluster, Node, Region, is_running

CONVERGE_S = 60.0
LOOK_S = 0.1
PAGE = 100
RESIDENT_BYTES_MAX = 256 * MEGABYTE
DESCRIPTORS_MAX = 500
FENCES = ("spool_servers_fenced", "spool_servers_fenced_by_peers")


async def wait_until_converged(region: Region, checker: Checker) -> float:
    """Waits until nothing is pending; the seconds that it took. What is left after CONVERGE_S is a violation."""
    begin_s = time.monotonic()
    while left := await asyncio.to_thread(unconverged, region, checker.commit_sequence):
        if time.monotonic() - begin_s > CONVERGE_S:
            checker.add_violation(UNCONVERGED, time.monotonic(), f"after {CONVERGE_S} s: {'; '.join(left)}")
            break
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - begin_s


def unconverged(region: Region, sequence: int) -> list[str]:
    """What is still pending."""
    undelivered = [undelivered_by(invalidator, sequence) for invalidator in region.invalidators]
    # One is active, and has delivered everything; any others stand by.
    left = [] if None in undelivered else undelivered
    for cluster in region.clusters:
        for number, router in enumerate(cluster.routers):
            try:
                figures = router.stats()
                is_file_read = not region.layout.is_resized or cluster.reads_its_file(number)
            except Exception as error:  # noqa: BLE001 - pymemcache has errors of its own for half answers
                left.append(f"{router.name} does not answer: {error}")
                continue
            fenced = {name: figures[name] for name in FENCES if figures.get(name, "0") != "0"}
            if fenced:
                left.append(f"{router.name}: {fenced}")
            if figures["resize_state"] != "steady" or not is_file_read:
                left.append(f"{router.name}: a change is {figures['resize_state']}, file is read: {is_file_read}")
    return left


def undelivered_by(invalidator: Node, sequence: int) -> str | None:
    """What an invalidator has not delivered of the commit log, which ends at `sequence`; None if nothing is left."""
    try:
        figures = invalidator.stats()
    except Exception as error:  # noqa: BLE001 - pymemcache has errors of its own for half answers
        return f"{invalidator.name} does not answer: {error}"
    text = "".join(f"STAT {name} {value}\n" for name, value in figures.items())
    behind = {cluster: position for cluster, position in positions(text).items() if position < sequence}
    is_done = is_running(figures) and not behind
    return None if is_done else f"{invalidator.name} is at {behind}, the commit log at {sequence}"


async def check_served(region: Region, checker: Checker) -> None:
    """Every key is served by every router, once it has probed its servers: a hit that is current, or a miss."""
    deadline = time.monotonic() + CONVERGE_S
    for cluster in region.clusters:
        for number in range(len(cluster.routers)):
            while failed := await read_all(cluster, number, checker):
                if time.monotonic() > deadline:
                    checker.add_violation(UNCONVERGED, time.monotonic(), f"after {CONVERGE_S} s: {failed}")
                    break
                await asyncio.sleep(LOOK_S)


async def read_all(cluster: Cluster, number: int, checker: Checker) -> str | None:
    """Reads every key by one router and checks it; describes what failed."""
    keys, router = list(checker.keys), cluster.routers[number].name
    connection = CacheConnection(cluster, number)
    failed = None
    for first in range(0, len(keys), PAGE):
        page = keys[first : first + PAGE]
        floors = [checker.acknowledged(cluster.name, key) for key in page]
        begin_s = time.monotonic()
        try:
            replies = await connection.get_page(page, has_leases=False)
        except Failure as error:
            failed = f"{router} does not answer: {error!r}"
            break
        for key, reply, floor in zip(page, replies, floors, strict=True):
            if reply.is_error:
                failed = f"{router} answers {key} by an error"
            elif reply.value is not None:
                checker.check_read(cluster.name, router, key, reply.value, begin_s, floor)
    connection.close()
    return failed


def check_servers(region: Region, checker: Checker) -> int:
    """Compares every value in every server and gutter with its row; the number of values."""
    with region.database.connect() as connection, connection.cursor() as cursor:
        rows = load_versions(cursor, list(checker.keys))
    held, old = 0, []
    for cluster in region.clusters:
        for server in cluster.caches():
            held += look_at_server(checker, cluster, server, rows, old)
    for text in old:
        checker.add_violation(PERMANENT, time.monotonic(), text)
    return held


def look_at_server(checker: Checker, cluster: Cluster, server: Node, rows: dict[str, int], old: list[str]) -> int:
    """The number of values of a server; those that differ from their rows are described in `old`."""
    now = time.monotonic()
    client = connect(server.place.port, host=server.place.host)
    held = client.get_many(list(rows))
    client.close()
    for key, value in held.items():
        version = checker.check_written(server.name, key, value, now)
        if version is not None and version != rows[key]:
            known = checker.acknowledged(cluster.name, key)
            _, stale_ms = checker.replacement(key, version, now)
            old.append(
                f"{server.name} has version {version} of {key}, the database {rows[key]}; it has been old for"
                f" {stale_ms / 1000:.1f} s, deletes up to version {known.version} are acknowledged"
            )
    return len(held)


def check_processes(region: Region, checker: Checker) -> dict[str, dict[str, int]]:
    """No process holds more memory or descriptors than its bound, and none has panicked; the figures of each."""
    figures = {}
    now = time.monotonic()
    for node in region.nodes():
        if "panicked at" in node.log():
            checker.add_violation(BROKEN, now, f"{node.name} panicked: {excerpt(node.log(), 'panicked at')}")
        if node.running.poll() is not None:
            continue
        figures[node.name] = {"resident_bytes": resident_bytes(node), "descriptors": descriptors(node)}
        if figures[node.name]["resident_bytes"] > RESIDENT_BYTES_MAX:
            checker.add_violation(BROKEN, now, f"{node.name} holds {figures[node.name]['resident_bytes']} bytes")
        if figures[node.name]["descriptors"] > DESCRIPTORS_MAX:
            checker.add_violation(BROKEN, now, f"{node.name} holds {figures[node.name]['descriptors']} descriptors")
    return figures


def excerpt(log: str, words: str) -> str:
    """The lines of a log around some words."""
    at = log.index(words)
    return log[max(0, at - 200) : at + 400]


async def watch_processes(region: Region, checker: Checker) -> None:
    """Reports a process that ends while no fault has ended it, until cancelled."""
    reported: set[int] = set()
    while True:
        await asyncio.sleep(LOOK_S)
        for node in region.nodes():
            status = node.running.poll()
            if status is not None and not node.is_down_expected and node.running.pid not in reported:
                reported.add(node.running.pid)
                tail = node.log()[-1500:]
                checker.add_violation(BROKEN, time.monotonic(), f"{node.name} ended by itself ({status}):\n{tail}")
