"""Runs a seeded schedule of faults and checks every read.

    make chaos                                                          one run of 60 s
    make chaos CHAOS="--seed 7 --seconds 600"
    make chaos CHAOS="--fault hang:one-server-1@2+5 --seconds 10"       one fault, instead of a seed's

The exit code is 1 if something was found; the logs are kept then.
"""

import argparse
import json
import random
import shlex
import shutil
import signal
import sys
from pathlib import Path

from chaos import report
from chaos.applications import Load
from chaos.databases import DATABASES
from chaos.faults import RESIZE_KINDS, WEIGHTS, Fault, Plan
from chaos.network import enter_namespace, is_in_namespace, missing_for_partitions
from chaos.region import FILE, HISTORIES, Layout
from chaos.run import Settings, run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(
        prog="chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seed", type=int, help="of the schedule and the load; random by default")
    options.add_argument("--runs", type=int, default=1, help="runs, each with the next seed, until one finds something")
    options.add_argument("--seconds", type=float, default=60.0, help="length of the schedule (default: %(default)s)")
    options.add_argument("--gap", type=float, default=1.5, help="mean seconds between faults (default: %(default)s)")
    options.add_argument("--longest", type=float, default=6.0, help="longest fault in seconds (default: %(default)s)")
    options.add_argument(
        "--faults",
        metavar="KIND,...",
        help=f"kinds of faults, of {', '.join(WEIGHTS)}; or none; all but resizes by default",
    )
    options.add_argument(
        "--fault", action="append", type=given_fault, metavar="KIND:TARGET@AT+SECONDS", help="this fault, not a seed's"
    )
    options.add_argument("--resize", action="store_true", help="change the pools, too")
    options.add_argument(
        "--history",
        choices=HISTORIES,
        default=FILE,
        help="where routers remember changes of their pool: each in its --config-cache, all of them in etcd, or nowhere"
        " (default: %(default)s)",
    )
    options.add_argument(
        "--database",
        choices=DATABASES,
        default="mariadb",
        help="only with mariadb are processes cut off from each other (default: %(default)s)",
    )
    options.add_argument("--no-leases", action="store_true", help="readers fill with plain sets")
    options.add_argument("--no-spool", action="store_true", help="routers without --spool and --spool-peers")
    options.add_argument("--clusters", type=int, default=2, help="clusters, up to 4 (default: %(default)s)")
    options.add_argument("--routers", type=int, default=2, help="routers of a cluster (default: %(default)s)")
    options.add_argument("--servers", type=int, default=3, help="servers of a cluster (default: %(default)s)")
    options.add_argument("--invalidators", type=int, default=1, help="one of them is active (default: %(default)s)")
    options.add_argument("--keys", type=int, default=200, help="keys (default: %(default)s)")
    options.add_argument("--reads", type=float, default=2000, help="keys read a second (default: %(default)s)")
    options.add_argument("--writes", type=float, default=60, help="commits a second (default: %(default)s)")
    options.add_argument("--readers", type=int, default=8, help="readers, in all (default: %(default)s)")
    options.add_argument("--writers", type=int, default=4, help="writers, in all (default: %(default)s)")
    options.add_argument(
        "--own-deletes", type=float, default=0.5, metavar="SHARE", help="commits deleted by the writer, too (0 to 1)"
    )
    options.add_argument(
        "--stale-ms-max",
        type=float,
        metavar="MS",
        help="a read older than this is a violation; without the time in which the database was away",
    )
    options.add_argument("--router-options", default="", help="more options for every router")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options.add_argument("--report", type=Path, metavar="FILE.svg", help="draw staleness over time, faults marked")
    options.add_argument("--keep", action="store_true", help="keep the logs even if nothing was found")
    return options


def given_fault(text: str) -> Fault:
    """The value of `--fault`."""
    try:
        return Fault.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def settings_of(options: argparse.Namespace) -> Settings:
    """What the command line asks for."""
    kinds = [kind for kind in WEIGHTS if options.resize or kind not in RESIZE_KINDS]
    if options.faults:
        kinds = [kind for kind in options.faults.split(",") if kind != "none"]
    given = options.fault
    used = {fault.kind for fault in given} if given else set(kinds)
    return Settings(
        layout=Layout(
            database=options.database,
            clusters=options.clusters,
            servers=options.servers,
            routers=options.routers,
            invalidators=options.invalidators,
            is_spooling=not options.no_spool,
            is_resized=options.resize or bool(used & set(RESIZE_KINDS)),
            history=options.history,
            router_options=tuple(options.router_options.split()),
        ),
        load=Load(
            keys=options.keys,
            readers=options.readers,
            reads=options.reads,
            writers=options.writers,
            writes=options.writes,
            own_deletes=options.own_deletes,
            has_leases=not options.no_leases,
        ),
        plan=Plan(options.seed, options.seconds, options.gap, options.longest, kinds, given),
        is_partitioned="partition" in used,
        stale_ms_max=options.stale_ms_max,
    )


def end(*_) -> None:
    """SIGTERM stops the region; a second one must not interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> int:
    """Runs once."""
    options = parser().parse_args()
    for kind in (options.faults or "none").split(","):
        if kind not in (*WEIGHTS, "none"):
            parser().error(f"--faults: {kind} is no kind of fault; there are {', '.join(WEIGHTS)}")
    if options.seed is None:
        options.seed = random.randrange(1, 1_000_000)
        sys.argv += ["--seed", str(options.seed)]
    settings = settings_of(options)
    if settings.is_partitioned and not is_in_namespace():
        missing = missing_for_partitions() if options.database == "mariadb" else "the database must be mariadb"
        if missing is None:
            enter_namespace("chaos")
        print(f"chaos: NO PARTITIONS: {missing}", file=sys.stderr, flush=True)
        settings.is_partitioned = False
        settings.plan.kinds = [kind for kind in settings.plan.kinds if kind != "partition"]
        if settings.plan.given:
            settings.plan.given = [fault for fault in settings.plan.given if fault.kind != "partition"]
    signal.signal(signal.SIGTERM, end)
    for _ in range(options.runs):
        outcome = run(settings)
        print(report.text(outcome), flush=True)
        if options.json:
            options.json.write_text(json.dumps(report.figures(outcome), indent=2) + "\n")
        if options.report:
            options.report.write_text(report.picture(outcome))
        if outcome.violations:
            print(f"chaos: the logs are in {outcome.folder}; to repeat it: {repetition(settings.plan.seed)}")
            return 1
        if options.keep:
            print(f"chaos: the logs are in {outcome.folder}")
        else:
            shutil.rmtree(outcome.folder)
        settings.plan.seed += 1
    return 0


def repetition(seed: int) -> str:
    """The command that runs one seed again with the same options: of an option given twice, the last counts."""
    return f'make chaos CHAOS="{shlex.join([*sys.argv[1:], "--seed", str(seed), "--runs", "1"])}"'


if __name__ == "__main__":
    sys.exit(main())
