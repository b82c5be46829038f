"""For how long old values are read while any one process hangs or is dead."""

import pytest
from chaos.checker import TOO_STALE
from chaos_run import ONE_CLUSTER, Run, commits_during, violations
from tools import need

# The aim, which `make staleness` checks with optimized programs. Unoptimized ones on two processors, with eight busy
# processes beside them, stay below 250 ms: a router is given up long before a second has passed.
STALE_MS_MAX = "1000"
SINGLE_FAULTS = {
    "server hangs": ("hang:one-server-1@1+4",),
    "server killed": ("kill:one-server-1@1+4",),
    "gutter hangs": ("hang:one-gutter@1+4",),
    "gutter killed": ("kill:one-gutter@1+4",),
    "router hangs": ("hang:one-router-1@1+4",),
    "router killed": ("kill:one-router-1@1+4", "--routers", "3"),
}
# How often the database fails until no commit came just before that.
RUNS_MAX = 4


@pytest.mark.parametrize("name", SINGLE_FAULTS)
def test_with_one_failed_process_no_old_value_is_read_for_long(tmp_path, name):
    fault, *more = SINGLE_FAULTS[name]
    options = ("--fault", fault, "--own-deletes", "0", "--stale-ms-max", STALE_MS_MAX, "--seconds", "7")
    options = (*options, *more)
    status, output, figures = Run(tmp_path, "single", *ONE_CLUSTER, *options).wait()
    assert status == 0 and figures["violations"] == [], output
    assert figures["counts"]["cached reads"] > 1000 and figures["counts"]["commits"] > 100, output


@pytest.mark.parametrize("kind", ["kill", "hang"])
def test_what_was_committed_before_the_database_failed_is_deleted_soon_after_its_return(tmp_path, kind):
    # Nothing is committed meanwhile. A commit that was acknowledged in the milliseconds before the fault has been sent
    # to no process. Its old value is read for as long as the database is away, which the checker does not count, until
    # a second after its return. All others are deleted within a second.
    outputs = []
    for attempt in range(RUNS_MAX):
        fault = ("--fault", f"{kind}:database@1+3", "--stale-ms-max", STALE_MS_MAX)
        options = (*ONE_CLUSTER, "--own-deletes", "0", "--seconds", "10")
        status, output, figures = Run(tmp_path, f"database-{kind}-{attempt}", *options, *fault).wait()
        assert status == 0 and figures["violations"] == [], output
        assert figures["counts"]["cached reads"] > 1000 and figures["counts"]["commits"] > 100, output
        if figures["staleness"]["max_ms"] <= float(STALE_MS_MAX):
            return
        outputs.append(output)
    raise AssertionError("\n".join(outputs))


@pytest.mark.parametrize("database", ["mysql", "postgres"])
def test_another_database_fails_and_returns(tmp_path, database):
    if database == "mysql":
        need("mysql")
    # An attempt to read PostgreSQL's log while it recovers is repeated a second later.
    faults = ("--fault", "hang:database@0.5+2.5", "--fault", "kill:database@3.5+1", "--stale-ms-max", "3000")
    options = (*ONE_CLUSTER, "--database", database, "--invalidators", "2", "--own-deletes", "0", "--seconds", "8")
    status, output, figures = Run(tmp_path, database, *options, *faults).wait()
    assert status == 0 and figures["violations"] == [], output
    assert figures["faults"] == {"hang of database": 1, "kill of database": 1}, output
    assert figures["database"].lower().startswith(database), output
    # How many there are depends on the machine, and on how long its database needs to start.
    assert figures["counts"]["cached reads"] > 0 and figures["counts"]["commits"] > 0, output
    # All of its processes hung.
    hung = commits_during(figures, figures["schedule"][0])
    assert hung and not any(hung), output


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_standby_takes_the_place_of_an_invalidator(tmp_path, fault):
    options = (*ONE_CLUSTER, "--invalidators", "2", "--own-deletes", "0", "--seconds", "12")
    # The end of its session is seen at once, and that it beats no more after half a second; a record that is not
    # renewed, after two to three seconds, which would be too late.
    fault = ("--fault", f"{fault}:invalidator@1+8", "--stale-ms-max", STALE_MS_MAX)
    status, output, figures = Run(tmp_path, "standby", *options, *fault).wait()
    assert status == 0 and figures["violations"] == [], output
    assert figures["counts"]["cached reads"] > 1000 and figures["counts"]["commits"] > 100, output


def test_an_invalidator_that_is_away_is_found(tmp_path):
    options = (
        *ONE_CLUSTER,
        "--fault",
        "kill:invalidator@1+4",
        "--own-deletes",
        "0",
        "--stale-ms-max",
        "2500",
        "--seconds",
        "6",
    )
    status, output, figures = Run(tmp_path, "invalidator", *options).wait()
    assert status == 1 and violations(figures) == {TOO_STALE}, output
