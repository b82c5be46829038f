"""One run: a region, its applications, the faults, and the checks at the end."""

import asyncio
import concurrent.futures
import contextlib
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.applications import FILLERS, Load, Reader, Writer, create_rows, poll_positions
from chaos.checker import BROKEN, Checker, Samples, Violation
from chaos.convergence import check_processes, check_served, check_servers, wait_until_converged, watch_processes
from chaos.faults import Event, Injector, Plan
from chaos.network import Loopback, Namespaces
from chaos.region import DATABASE, Layout, Region
from chaos.resize import count_changes

WARM_S = 2.0


@dataclass
class Settings:
    """What is run."""

    layout: Layout = field(default_factory=Layout)
    load: Load = field(default_factory=Load)
    plan: Plan = field(default_factory=Plan)
    is_partitioned: bool = False
    stale_ms_max: float | None = None


@dataclass
class Outcome:
    """What happened; times are seconds since the schedule began."""

    settings: Settings
    # With its version.
    database: str
    folder: Path
    start_s: float
    seconds: float
    converged_s: float
    held: int
    counts: Counter
    violations: list[Violation]
    samples: Samples
    events: list[Event]
    skipped: int
    processes: dict[str, dict[str, int]]


@contextlib.contextmanager
def started(settings: Settings, folder: Path) -> Iterator[Region]:
    """A region of that shape, stopped at the end."""
    network = Namespaces() if settings.is_partitioned else Loopback()
    try:
        region = Region(settings.layout, folder, network)
        try:
            yield region
        finally:
            region.stop()
    finally:
        network.close()


def run(settings: Settings) -> Outcome:
    """Runs it in a temporary folder, which is kept for its logs when something was found."""
    folder = Path(tempfile.mkdtemp(prefix="lookaside-chaos-"))
    try:
        with started(settings, folder) as region:
            return asyncio.run(run_in(region, settings))
    finally:
        for data in [*(folder / DATABASE).rglob("data")]:
            shutil.rmtree(data, ignore_errors=True)


async def run_in(region: Region, settings: Settings) -> Outcome:
    """The applications and the faults in a region that serves."""
    load = settings.load
    threads = 8 + load.readers * FILLERS + load.writers
    asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(threads))
    keys = [f"row:{number}" for number in range(load.keys)]
    create_rows(region, keys)
    database = f"{region.database.title} {version_of(region)}"
    checker = Checker(keys, [cluster.name for cluster in region.clusters], settings.stale_ms_max)
    seed = settings.plan.seed
    clusters = region.clusters
    readers = [
        Reader(region, clusters[number % len(clusters)], number // len(clusters), load, seed, checker)
        for number in range(load.readers)
    ]
    writers = [
        Writer(region, clusters[number % len(clusters)], number, load, seed, checker) for number in range(load.writers)
    ]
    background = [
        asyncio.create_task(poll_positions(invalidator.place, checker)) for invalidator in region.invalidators
    ]
    background.append(asyncio.create_task(watch_processes(region, checker)))
    if settings.layout.is_resized:
        background.append(asyncio.create_task(count_changes(region, checker)))
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    await asyncio.sleep(WARM_S)
    writing = [asyncio.create_task(writer.run()) for writer in writers]
    injector = Injector(
        region,
        settings.plan.faults(settings.layout),
        seed,
        lambda text: checker.add_violation(BROKEN, time.monotonic(), text),
        waits_for_targets=settings.plan.given is not None,
    )
    checker.database_away_s = injector.database_away_s
    await inject(injector, settings.plan.seconds, [*background, *reading, *writing])
    for writer in writers:
        writer.is_over = True
    await asyncio.gather(*writing)
    converged_s = await wait_until_converged(region, checker)
    end_s = time.monotonic()
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await check_served(region, checker)
    held = await asyncio.to_thread(check_servers, region, checker)
    processes = check_processes(region, checker)
    for task in background:
        task.cancel()
    for application in [*readers, *writers]:
        application.close()
    for violation in checker.violations:
        violation.at_s -= injector.start_s
    return Outcome(
        settings, database, region.folder, injector.start_s, end_s - injector.start_s, converged_s, held,
        checker.counts, checker.violations, checker.samples, injector.events, len(injector.skipped), processes,
    )  # fmt: skip


def version_of(region: Region) -> str:
    """The version of the database, without what its packagers have added."""
    with region.database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(region.database.version)
        return re.split(r"[ -]", cursor.fetchone()[0])[0]


async def inject(injector: Injector, seconds: float, tasks: list[asyncio.Task]) -> None:
    """Executes the schedule, for `seconds` at least; fails at once when one of the tasks fails."""
    injector.start()
    try:
        while injector.is_alive() or time.monotonic() < injector.start_s + seconds:
            done, _ = await asyncio.wait(tasks, timeout=0.1)
            for task in done:
                task.result()
                raise AssertionError(f"{task} has ended")
    finally:
        injector.is_over.set()
        await asyncio.to_thread(injector.join)
