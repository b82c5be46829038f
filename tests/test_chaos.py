"""The fault injector: a short run finds nothing, and what breaks a promise on purpose is found."""

import math

from chaos.checker import ACKNOWLEDGED, PERMANENT, TOO_STALE
from chaos.resize import ETCD_AWAY
from chaos_run import ONE_CLUSTER, Run, commits_during, violations
from tools import EXPECTED, need

# How often a fault that needs luck to be seen is tried: a slow machine has few commits and reads.
RUNS_MAX = 4
# A server holds what it held when it hung, and is read again soon after it resumes. The invalidator alone deletes.
HUNG_SERVER = (
    *ONE_CLUSTER, "--fault", "hang:one-server-1@1+6", "--own-deletes", "0", "--stale-ms-max", "4000", "--seconds", "9",
    "--reads", "4000", "--router-options=--probe-timeout-initial 20 --probe-timeout-max 50",
)  # fmt: skip


def assert_found(tmp_path, name: str, violation: str, *options: str) -> dict:
    """One of a few runs with these options shows the violation. Its figures."""
    outputs = []
    for attempt in range(RUNS_MAX):
        status, output, figures = Run(tmp_path, f"{name}-{attempt}", *options).wait()
        if status == 1 and violation in violations(figures):
            return figures
        outputs.append(output)
    raise AssertionError("\n".join(outputs))


def test_a_run_with_faults_finds_nothing(tmp_path):
    status, output, figures = Run(tmp_path, "faults", "--seconds", "12", "--gap", "0.7").wait()
    assert status == 0 and figures["violations"] == [], output
    # Without namespaces it runs all the same, with the other faults.
    assert "NO PARTITIONS" not in output or "partitions" not in EXPECTED, output
    assert sum(figures["faults"].values()) >= 8 and len(figures["faults"]) >= 4, output
    assert figures["counts"]["cached reads"] > 1000 and figures["counts"]["commits"] > 100, output


def test_without_leases_old_values_are_filled_and_found(tmp_path):
    options = (*ONE_CLUSTER, "--no-leases", "--faults", "none", "--keys", "32", "--writes", "120", "--seconds", "6")
    assert_found(tmp_path, "leases", ACKNOWLEDGED, *options)


def test_without_a_spool_a_server_is_read_before_its_deletes_and_that_is_found(tmp_path):
    status, output, _ = Run(tmp_path, "with", *HUNG_SERVER).wait()
    assert status == 0, output
    figures = assert_found(tmp_path, "without", TOO_STALE, "--no-spool", *HUNG_SERVER)
    assert violations(figures) == {TOO_STALE}, figures


def test_a_router_that_reads_what_its_peer_has_spooled_is_found(tmp_path):
    need("partitions")
    # A router reaches neither a server nor its peer, and its clients reach it. With `ignore` it acknowledges deletes
    # that the peer, which reads the server, does not know of; with `fail`, the default, it refuses them. The
    # invalidator, which would send the deletes through the peer within milliseconds, hangs.
    cuts = ("--fault", "partition:one-router-1=one-router-2@1+6", "--fault", "partition:one-router-1=one-server-1@1+6")
    options = (*cuts, "--fault", "hang:invalidator@1+6", *ONE_CLUSTER, "--seconds", "7", "--reads", "4000")
    ignore, fail = (
        Run(tmp_path, when_missing, *options, f"--router-options=--spool-peer-missing {when_missing}")
        for when_missing in ("ignore", "fail")
    )
    status, output, figures = ignore.wait()
    assert status == 1 and violations(figures) == {ACKNOWLEDGED}, output
    status, output, _ = fail.wait()
    assert status == 0, output


# A server is out of the pool for six seconds and returns emptied, while another hangs and a router is dead; then the
# pool changes in every other way, with further faults.
RESIZES = (
    "empty:one@1+6", "hang:one-server-1@3+2", "kill:one-router-2@4+2", "weigh:one@5+4", "twice:one@8+1",
    "exchange:one@8.5+3", "remove-killed:one-server-3@10.5+3", "hang:one-router-3@12+2", "upgrade:one-router-1@13+1",
    "remove:one@14.5+3", "add:one@15+3", "kill:one-server-2@15.5+1.5",
)  # fmt: skip
# Without peers the routers read by a new configuration as soon as they see it, some tenths of a second apart.
RESIZES_WITHOUT_PEERS = ("remove:one@1+1.5", "weigh:one@1.5+1", "add:one@2+2", "weigh:one@3.5+1.5", "twice:one@4+1")
RESIZED = (*ONE_CLUSTER, "--routers", "3")


def given(faults: tuple[str, ...]) -> list[str]:
    """The options that give these faults."""
    return [word for fault in faults for word in ("--fault", fault)]


# A server leaves the pool, whose keys move to the others. All routers are killed, and it has returned when they start
# again: then its keys have copies at the others, and it has missed deletes if it had been out for ten seconds.
# That takes ten seconds with an etcd that is back at once, and a slow machine has four more. With this many keys
# the server still holds copies when deletes no longer go there.
RETURNS_UNSEEN = ("remove:one@1+16", "kill:one-router-1@15+3.5", "kill:one-router-2@15+3.5")
# Both before the routers give up: a change waits for etcd, and a router that starts asks it for four seconds.
FAILURES_OF_ETCD = ("kill:etcd@1.2+1.5", "hang:etcd@17+2.5")
FORGETTING = (*ONE_CLUSTER, *given(RETURNS_UNSEEN), "--keys", "256", "--writes", "60", "--seconds", "20")


def test_a_pool_changes_while_processes_fail(tmp_path):
    options = (*RESIZED, *given(RESIZES), "--keys", "64", "--writes", "120", "--seconds", "18")
    status, output, figures = Run(tmp_path, "peers", *options).wait()
    assert status == 0 and figures["violations"] == [], output
    assert sum(figures["faults"].values()) == len(RESIZES) and figures["faults left out"] == 0, output
    counts = figures["counts"]
    # Each of the three routers read by more than one configuration, and by keys of former owners.
    assert counts["configuration_changes"] >= 12 and counts["covering_deletes"] > 100, output
    assert counts["former_owner_hits"] > 0 and counts["purge_keys_checked"] > 0, output
    assert counts["cached reads"] > 1000 and counts["commits"] > 100, output
    assert figures["values held at the end"] > 0, output


def test_a_pool_changes_under_routers_that_are_no_peers_and_that_is_found(tmp_path):
    load = ("--keys", "32", "--writes", "120", "--reads", "4000", "--own-deletes", "0", "--seconds", "6")
    # An old value is read if a delete falls into the moment between two routers' changes.
    assert_found(tmp_path, "no-peers", ACKNOWLEDGED, *RESIZED, *given(RESIZES_WITHOUT_PEERS), *load, "--no-spool")


def test_all_routers_start_again_and_etcd_has_the_history_of_their_pool(tmp_path):
    shared = Run(tmp_path, "etcd", *FORGETTING, *given(FAILURES_OF_ETCD), "--history", "etcd")
    unshared = Run(tmp_path, "none", *FORGETTING, "--history", "none")
    status, output, figures = shared.wait()
    assert status == 0 and figures["violations"] == [], output
    assert figures["faults"] == {"hang of etcd": 1, "kill": 2, "kill of etcd": 1, "remove": 1}, output
    assert figures["counts"]["servers_emptied"] > 0, output
    assert figures["counts"]["cached reads"] > 1000 and figures["counts"]["commits"] > 100, output
    status, output, figures = unshared.wait()
    # Copies of the returned server's keys are left at the others, where no delete reaches them.
    assert status == 1 and PERMANENT in violations(figures), output


# First the database is cut off from the invalidator and from the applications; then etcd, while a server leaves the
# pool, which is complete when etcd is back.
CUTS = ("partition:database@0.5+2.5", "partition:etcd@3.5+4", "remove:one@3.7+4.8")
# The invalidator alone deletes, and hears nothing of a database that serves the applications.
DEAF = ("--fault", "partition:invalidator=database@0.5+2.5")
NO_OLD_VALUES = (*ONE_CLUSTER, "--own-deletes", "0", "--stale-ms-max", "1000")


def test_the_database_and_etcd_are_cut_off_and_nothing_old_is_read_for_long(tmp_path):
    need("partitions")
    cut = Run(tmp_path, "cut", *NO_OLD_VALUES, *given(CUTS), "--history", "etcd", "--seconds", "8.5")
    deaf = Run(tmp_path, "deaf", *NO_OLD_VALUES, *DEAF, "--seconds", "4")
    status, output, figures = cut.wait()
    assert status == 0 and figures["violations"] == [], output
    assert figures["faults"] == {"partition of database": 1, "partition of etcd": 1, "remove": 1}, output
    assert "1 partition of database, 1 partition of etcd" in output, output
    # No commit returned while the database was cut off, in whole seconds of it, and some did afterwards.
    event = figures["schedule"][0]
    during = commits_during(figures, event)
    assert during and not any(during), output
    assert sum(second["commits"] for second in figures["by second"][math.ceil(event["recovered_s"]) :]) > 100, output
    # The routers noticed that etcd was away, and changed their pool when it was back.
    assert figures["counts"][ETCD_AWAY] > 0 and figures["counts"]["configuration_changes"] >= 2, output
    status, output, figures = deaf.wait()
    # The database was not away from all: each of these values is older than it may be.
    assert status == 1 and violations(figures) == {TOO_STALE}, output
